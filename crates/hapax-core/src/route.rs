//! Typed node names, and what a node says about where to go next.

use crate::{
    canonical::CanonicalError,
    id::NodeId,
    json::Json,
    state::{Delta, State},
};
use serde::{Deserialize, Serialize};
use std::{convert::Infallible, fmt, marker::PhantomData};

/// A node's name, with the type of the input that a fork must hand over. Written once, as a constant.
///
/// ```
/// use hapax_core::route::Node;
/// const TAX: Node<u64> = Node::new("tax");
/// assert_eq!(TAX.name(), "tax");
/// ```
pub struct Node<I = ()> {
    name: &'static str,
    input: PhantomData<fn(I)>,
}

impl<I> Clone for Node<I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Node<I> {}

impl<I> fmt::Debug for Node<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({:?})", self.name)
    }
}

impl<I> Node<I> {
    /// Names a node.
    pub const fn new(name: &'static str) -> Self {
        Self { name, input: PhantomData }
    }

    /// The name as the store keeps it.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl<I: Serialize> Node<I> {
    /// One branch of a fork: this node with its input.
    pub fn with(self, input: I) -> Branch {
        Branch { to: self.name.into(), input: Json::of(&input) }
    }
}

/// One branch of a fork. An input that can't be written is reported when the node returns.
///
/// ```
/// use hapax_core::route::{Node, Route, RouteError};
/// const TAX: Node<f64> = Node::new("tax");
/// let branches = vec![TAX.with(0.19), TAX.with(f64::NAN)];
/// let refused = Route::Fork(branches).settle();
/// assert!(matches!(refused, Err(RouteError::Input { to, .. }) if to == "tax"), "JSON has no NaN");
/// ```
#[derive(Debug, Clone)]
pub struct Branch {
    pub(crate) to: String,
    pub(crate) input: Result<Json, CanonicalError>,
}

impl Branch {
    /// A branch to a node whose name is only known now.
    ///
    /// ```
    /// use hapax_core::route::{Branch, Route};
    /// assert!(Route::Fork(vec![Branch::to("tax", &4200)]).settle().is_ok());
    /// ```
    pub fn to<I: Serialize + ?Sized>(node: impl Into<String>, input: &I) -> Self {
        Branch { to: node.into(), input: Json::of(input) }
    }
}

/// Where a finished node leads.
///
/// ```
/// use hapax_core::{route::{Node, Route, RouteExt}, state::State};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// const ADD: Node<u64> = Node::new("add");
/// let Route::Fork(branches) = Sum::delta().fork((1..=3).map(|n| ADD.with(n))).route else { unreachable!() };
/// assert_eq!(branches.len(), 3);
/// ```
#[derive(Debug, Clone)]
pub enum Route {
    /// Along the declared edges.
    Edges,
    /// To this node.
    Goto(String),
    /// Nowhere: this branch ends.
    Stop,
    /// To these, each with its own input.
    Fork(Vec<Branch>),
    /// To the start again, with this state of this version, and without the history so far.
    ContinueAs {
        /// The state as JSON.
        state: Result<Json, CanonicalError>,
        /// Its version.
        version: u32,
    },
}

impl Route {
    /// The route as it is in a graph that holds this one under a prefix.
    pub fn prefixed(self, prefix: &str) -> Self {
        let inside = |to: String| format!("{prefix}/{to}");
        match self {
            Route::Goto(to) => Route::Goto(inside(to)),
            Route::Fork(branches) => {
                let branch = |Branch { to, input }| Branch { to: inside(to), input };
                Route::Fork(branches.into_iter().map(branch).collect())
            }
            route => route,
        }
    }
}

/// What a node returns: what it wrote, and where to go.
///
/// ```
/// use hapax_core::{route::{Node, Outcome, Route, RouteExt}, state::State};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// const REPORT: Node = Node::new("report");
/// let outcome: Outcome<Sum> = Sum::delta().total(3u64).goto(REPORT);
/// let mut sum = Sum { total: 4 };
/// sum.apply(outcome.delta);
/// assert_eq!(sum.total, 7);
/// assert!(matches!(outcome.route, Route::Goto(to) if to == "report"));
/// ```
#[derive(Debug, Clone)]
pub struct Outcome<S: State> {
    /// The fields it wrote.
    pub delta: S::Delta,
    /// Where it leads.
    pub route: Route,
}

impl<S: State> Outcome<S> {
    /// Begins anew under the same name: the run goes on at its start with this state, and everything before is
    /// forgotten: steps, recorded calls, streams. For loops without end, whose history would grow without end.
    ///
    /// The node must be alone: no other branch may be under way, and no join may wait. What was sent is still delivered,
    /// letters that nobody has taken are kept, and the run's time counts anew.
    ///
    /// ```
    /// use hapax_core::{route::{Outcome, Route}, state::State};
    /// # use hapax_core as hapax;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
    /// # #[state(crate = hapax)]
    /// # struct Poll { #[state(sum)] rounds: u64 }
    /// let anew = Outcome::continue_as(&Poll { rounds: 0 });
    /// assert!(matches!(anew.route, Route::ContinueAs { version: 1, .. }));
    /// ```
    pub fn continue_as(state: &S) -> Self {
        Outcome {
            delta: S::delta(),
            route: Route::ContinueAs { state: Json::of(state), version: S::VERSION },
        }
    }
}

/// Adds routes to deltas.
///
/// ```
/// use hapax_core::{route::{Node, Route, RouteExt}, state::State};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// const ADD: Node<u64> = Node::new("add");
/// const REPORT: Node = Node::new("report");
/// assert!(matches!(Sum::delta().goto(REPORT).route, Route::Goto(to) if to == "report"));
/// assert!(matches!(Sum::delta().total(3u64).stop().route, Route::Stop));
/// let forked = Sum::delta().fork([ADD.with(1), ADD.with(2)]);
/// assert!(matches!(forked.route, Route::Fork(branches) if branches.len() == 2));
/// ```
pub trait RouteExt: Delta {
    /// Goes to `to`, whatever the edges say.
    fn goto(self, to: Node) -> Outcome<Self::State> {
        Outcome { delta: self, route: Route::Goto(to.name.into()) }
    }

    /// Ends this branch; the run ends when no branch is left.
    fn stop(self) -> Outcome<Self::State> {
        Outcome { delta: self, route: Route::Stop }
    }

    /// Goes to several nodes at once, each with its input.
    fn fork(self, branches: impl IntoIterator<Item = Branch>) -> Outcome<Self::State> {
        Outcome { delta: self, route: Route::Fork(branches.into_iter().collect()) }
    }
}

impl<D: Delta> RouteExt for D {}

/// What a node may return: a delta, an outcome, `()`, or a `Result` of one.
///
/// ```
/// use hapax_core::{route::{IntoOutcome, Route}, state::State};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// let Ok(outcome) = Sum::delta().total(3u64).into_outcome();
/// assert!(matches!(outcome.route, Route::Edges));
/// ```
#[diagnostic::on_unimplemented(
    message = "a node cannot return `{Self}`",
    label = "expected a delta, an `Outcome`, `()`, or a `Result` of one",
    note = "build a delta with `{S}::delta()`, and a route with `.goto(…)`, `.stop()` or `.fork(…)`"
)]
pub trait IntoOutcome<S: State> {
    /// Whether it can carry a route of its own; if not, the graph is checked more strictly.
    const ROUTES: bool;
    /// What it gives when the node failed.
    type Error;
    /// Gives the outcome.
    fn into_outcome(self) -> Result<Outcome<S>, Self::Error>;
}

impl<S: State> IntoOutcome<S> for () {
    const ROUTES: bool = false;
    type Error = Infallible;
    fn into_outcome(self) -> Result<Outcome<S>, Infallible> {
        S::delta().into_outcome()
    }
}

impl<D: Delta> IntoOutcome<D::State> for D {
    const ROUTES: bool = false;
    type Error = Infallible;
    fn into_outcome(self) -> Result<Outcome<D::State>, Infallible> {
        Ok(Outcome { delta: self, route: Route::Edges })
    }
}

impl<S: State> IntoOutcome<S> for Outcome<S> {
    const ROUTES: bool = true;
    type Error = Infallible;
    fn into_outcome(self) -> Result<Outcome<S>, Infallible> {
        Ok(self)
    }
}

impl<S: State, T: IntoOutcome<S, Error = Infallible>, E> IntoOutcome<S> for Result<T, E> {
    const ROUTES: bool = T::ROUTES;
    type Error = E;
    fn into_outcome(self) -> Result<Outcome<S>, E> {
        let Ok(outcome) = self?.into_outcome();
        Ok(outcome)
    }
}

/// A route as the journal keeps it: names checked, inputs written.
///
/// ```
/// use hapax_core::{id::NodeId, route::{Route, SettledRoute}};
/// let settled = Route::Goto("report".into()).settle();
/// assert_eq!(settled, Ok(SettledRoute::Goto(NodeId::new("report").unwrap())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledRoute {
    /// Along the declared edges.
    Edges,
    /// To this node.
    Goto(NodeId),
    /// Nowhere.
    Stop,
    /// To these, each with its own input.
    Fork(Vec<(NodeId, Json)>),
    /// To the start again, without the history so far.
    ContinueAs {
        /// The state.
        state: Json,
        /// Its version.
        version: u32,
    },
}

/// A node asked for something that can't be routed.
///
/// ```
/// use hapax_core::route::{Route, RouteError};
/// assert!(matches!(Route::Goto(String::new()).settle(), Err(RouteError::Name(_))));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The input of a branch can't be written as JSON.
    #[error("the input for `{to}` cannot be written as JSON: {source}")]
    Input {
        /// The branch's node.
        to: String,
        /// Why.
        source: CanonicalError,
    },
    /// The state to begin anew with can't be written as JSON.
    #[error("the state to continue as cannot be written as JSON: {0}")]
    State(CanonicalError),
    /// The name is no name at all.
    #[error(transparent)]
    Name(#[from] crate::id::InvalidId),
}

impl Route {
    /// Checks names and inputs; afterwards nothing about the route can fail but an unknown node.
    pub fn settle(self) -> Result<SettledRoute, RouteError> {
        Ok(match self {
            Route::Edges => SettledRoute::Edges,
            Route::Stop => SettledRoute::Stop,
            Route::ContinueAs { state, version } => {
                SettledRoute::ContinueAs { state: state.map_err(RouteError::State)?, version }
            }
            Route::Goto(to) => SettledRoute::Goto(NodeId::new(to)?),
            Route::Fork(branches) => SettledRoute::Fork(
                branches
                    .into_iter()
                    .map(|Branch { to, input }| match input {
                        Ok(input) => Ok((NodeId::new(to)?, input)),
                        Err(source) => Err(RouteError::Input { to, source }),
                    })
                    .collect::<Result<_, _>>()?,
            ),
        })
    }
}
