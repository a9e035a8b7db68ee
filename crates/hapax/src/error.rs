//! What can go wrong, named by what the caller must do next. Each error has a code with a page of its own.

use crate::{clock::later, fork::ForkError, letters::NotInDoubt, question::AnswerError};
use hapax_core::{
    canonical::CanonicalError,
    commit::RunFailure,
    error::{Code, Coded, code},
    failure::{NodeFailure, clip},
    graph::GraphError,
    id::{InvalidId, RunId, RunKey},
    json::Json,
    key::Digest,
    state::StateShape,
};
use hapax_store::StoreError;
use serde::{Deserialize, Serialize};
use std::{any::Any, fmt, sync::Arc, time::Duration};

/// What an engine answers when it can't say yes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use hapax::{Coded, Engine, Error};
/// let error = Engine::open("orders.db").await.unwrap_err();
/// assert!(matches!(error, Error::BadUrl { .. }));
/// assert_eq!(error.code(), "HX0050"); // docs/errors/HX0050.md says what to do
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph doesn't hold together.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph is described by a value that describes none.
    #[error("the description of a graph can't be used: {0}")]
    Description(String),
    /// A name is no name.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// The initial state has no JSON form.
    #[error("the initial state cannot be written as JSON: {0}")]
    State(#[from] CanonicalError),
    /// What a run was to be told has no JSON form.
    #[error("{what} cannot be written as JSON: {source}")]
    Value {
        /// What it was.
        what: &'static str,
        /// Why.
        source: CanonicalError,
    },
    /// The stored state doesn't fit the program's type.
    #[error(transparent)]
    Shape(#[from] StateShape),
    /// The store refused or failed.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The run failed; `retry` goes on from its last step.
    #[error("run `{run}` failed: {failure}")]
    Failed {
        /// The run.
        run: RunKey,
        /// What happened.
        failure: Box<RunFailure>,
    },
    /// The run was cancelled.
    #[error("run `{run}` was cancelled")]
    Cancelled {
        /// The run.
        run: RunKey,
    },
    /// The id is taken by a run of another graph or with another input.
    #[error("run `{run}` exists already with another graph or input; choose another id, or attach to it")]
    RunExists {
        /// The run.
        run: RunKey,
    },
    /// The id that a child was to have is taken by a run that isn't this one's child.
    #[error(
        "run `{run}` exists already {}, so it can't be the child of `{parent}`; give the child an id that holds its parent's",
        whose(of.as_ref())
    )]
    NotOurChild {
        /// The run that was to be the child.
        run: RunKey,
        /// The run that asked for it.
        parent: RunId,
        /// The run whose child it is; `None`: it was started by itself.
        of: Option<RunId>,
    },
    /// The run is over, so there is nothing to cancel.
    #[error("run `{run}` is {status} already")]
    AlreadyFinished {
        /// The run.
        run: RunKey,
        /// How it ended.
        status: &'static str,
    },
    /// The run belongs to another shape of the graph.
    #[error(
        "run `{run}` was started on another shape of graph `{graph}` (stored {stored}, this program's {ours}); deploy that shape again, or declare it with `.compatible(…)`"
    )]
    GraphMismatch {
        /// The run.
        run: RunKey,
        /// The graph's name.
        graph: Arc<str>,
        /// The shape that the run is bound to.
        stored: Digest,
        /// The registered shape.
        ours: Digest,
    },
    /// No graph of that name is registered with this engine.
    #[error("graph `{graph}` is not registered with this engine; call `engine.register(…)` first")]
    NotRegistered {
        /// The graph's name.
        graph: Arc<str>,
    },
    /// A schedule can't be, or isn't there.
    #[cfg(feature = "schedules")]
    #[error(transparent)]
    Schedule(Box<crate::schedule::ScheduleError>),
    /// A run can't start on such terms of flow control.
    #[error(transparent)]
    Terms(hapax_core::flow::BadTerms),
    /// Another run lives under a singleton's name.
    #[error("run `{run}` lives under the name `{name}`, and only one may; wait for its end, or attach to it")]
    SingletonTaken {
        /// The name.
        name: String,
        /// The run that lives.
        run: RunId,
    },
    /// The run under a name of flow control is one of another graph.
    #[error("the name `{name}` is held by run `{run}` of graph `{graph}`; give each graph names of its own")]
    NameElsewhere {
        /// The name.
        name: String,
        /// The run.
        run: RunId,
        /// Its graph.
        graph: Arc<str>,
    },
    /// Nobody has to decide about that call.
    #[error(transparent)]
    NotInDoubt(Box<NotInDoubt>),
    /// An answer was not taken.
    #[error(transparent)]
    Answer(Box<AnswerError>),
    /// The run can't be forked like this.
    #[error(transparent)]
    Fork(Box<ForkError>),
    /// The engine is shut down.
    #[error("the engine is shut down; its runs go on when another one opens the store")]
    ShutDown,
    /// Somebody watches the engine already.
    #[error("the engine has a watcher already; give it one that tells the others")]
    Watched,
    /// The source of events isn't one by CloudEvents.
    #[error("{text:?} can't be the source of events: it is not a URI, nor a part of one such as `/shop`")]
    EventSource {
        /// What was given.
        text: String,
    },
    /// The store's address isn't understood.
    #[error(
        "`{}` is not the address of a store that is built in; it has {}",
        without_password(url),
        built_in()
    )]
    BadUrl {
        /// What was given.
        url: String,
    },
}

fn whose(parent: Option<&RunId>) -> String {
    parent.map_or_else(|| "as nobody's child".into(), |parent| format!("as the child of `{parent}`"))
}

/// Writes what a run is to be told.
pub(crate) fn json<T: Serialize + ?Sized>(what: &'static str, value: &T) -> Result<Json, Error> {
    Json::of(value).map_err(|source| Error::Value { what, source })
}

/// The addresses that this build understands.
fn built_in() -> String {
    let stores = [
        (cfg!(feature = "sqlite"), "`sqlite:path/to/file.db`"),
        (cfg!(feature = "postgres"), "`postgres://user@host/database`"),
        (cfg!(feature = "mysql"), "`mysql://user@host/database`"),
        (true, "`memory:`"),
        (true, "`sharded:` with several of these, parted by commas"),
    ];
    let stores: Vec<&str> = stores.into_iter().filter_map(|(has, address)| has.then_some(address)).collect();
    stores.join(", ")
}

/// An address as it may be shown: nobody knows which part of one that isn't understood is a password.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    match rest.contains(['@', '=', ':']) || rest.contains("%40") {
        false => url.to_owned(),
        true if scheme.is_empty() => "…".into(),
        true => format!("{scheme}:…"),
    }
}

impl From<AnswerError> for Error {
    fn from(error: AnswerError) -> Self {
        Error::Answer(Box::new(error))
    }
}

impl From<ForkError> for Error {
    fn from(error: ForkError) -> Self {
        Error::Fork(Box::new(error))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::WrongStatus { run, status } if status.is_final() => {
                Error::AlreadyFinished { run, status: status.word() }
            }
            StoreError::NameTaken { name, holder } => Error::SingletonTaken { name, run: holder },
            error => Error::Store(Arc::new(error)),
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Error::Graph(e) => e.code(),
            Error::Description(_) => code::GRAPH_DESCRIPTION,
            Error::Id(e) => e.code(),
            Error::State(e) | Error::Value { source: e, .. } => e.code(),
            Error::Shape(e) => e.code(),
            Error::Store(e) => e.code(),
            Error::Fork(e) => e.code(),
            #[cfg(feature = "schedules")]
            Error::Schedule(e) => e.code(),
            Error::Failed { failure, .. } => known(&failure.code).unwrap_or(code::NODE_FAILED),
            Error::Cancelled { .. } => code::CANCELLED,
            Error::RunExists { .. } | Error::NotOurChild { .. } => code::RUN_EXISTS,
            Error::AlreadyFinished { .. } => code::ALREADY_FINISHED,
            Error::GraphMismatch { .. } => code::GRAPH_MISMATCH,
            Error::NotRegistered { .. } => code::NOT_REGISTERED,
            Error::Terms(e) => e.code(),
            Error::SingletonTaken { .. } => code::SINGLETON_TAKEN,
            Error::NameElsewhere { .. } => code::FLOW_NAME_ELSEWHERE,
            Error::NotInDoubt(e) => e.code(),
            Error::Answer(e) => e.code(),
            Error::ShutDown => code::SHUT_DOWN,
            Error::Watched => code::WATCHED,
            Error::EventSource { .. } => code::EVENT_SOURCE,
            Error::BadUrl { .. } => code::BAD_URL,
        }
    }
}

/// A stored code as the constant it is, unless a newer program stored it.
fn known(stored: &str) -> Option<Code> {
    code::ALL.iter().find(|code| **code == stored).copied()
}

/// What a node returns when it fails: any error fits through `?`.
///
/// ```
/// use hapax::NodeError;
/// fn parse(text: &str) -> hapax::Result<u64> {
///     Ok(text.parse()?)
/// }
/// assert!(parse("x").unwrap_err().is_retryable());
/// assert!(!NodeError::new("card refused").fatal().is_retryable());
/// ```
pub struct NodeError {
    source: Box<dyn std::error::Error + Send + Sync>,
    code: Code,
    retryable: bool,
    pause: Option<Pause>,
}

/// When another attempt makes sense.
#[derive(Debug, Clone, Copy)]
enum Pause {
    /// Not before this has passed.
    For(Duration),
    /// Not before then, in microseconds since 1970.
    Until(i64),
}

/// What nodes and `main` return.
///
/// ```
/// fn cents(text: &str) -> hapax::Result<u64> {
///     Ok(text.parse()?) // any error can be returned
/// }
/// assert!(cents("many").is_err());
/// ```
pub type Result<T, E = NodeError> = std::result::Result<T, E>;

impl NodeError {
    /// An error from a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self::coded(code::NODE_FAILED, message, true)
    }

    /// Says that another attempt would fail as well.
    pub fn fatal(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// Whether another attempt makes sense.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Says that another attempt makes no sense before this has passed. If the retry policy grants one it waits that
    /// long, or for the policy's own pause where that is longer. A wait of more than a second parks the run: it takes
    /// nothing of its budget, and a crash doesn't begin it anew.
    ///
    /// ```
    /// # use hapax::prelude::*;
    /// # use serde::{Serialize, Deserialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { receipt: Option<String> }
    /// # async fn pay(_key: &str) -> Result<String, Busy> { Err(Busy { seconds: 600 }) }
    /// # struct Busy { seconds: u64 }
    /// use hapax::NodeError;
    /// use std::time::Duration;
    /// async fn charge(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
    ///     let charge = async |call: hapax::Call| {
    ///         let later = |busy: Busy| NodeError::new("busy").retry_after(Duration::from_secs(busy.seconds));
    ///         pay(call.key()).await.map_err(later)
    ///     };
    ///     Ok(Order::delta().receipt(ctx.effect("charge", Write, &4200, charge).await?))
    /// }
    /// # let _ = charge;
    /// ```
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.pause = Some(Pause::For(pause));
        self
    }

    /// When the next attempt may begin, in microseconds since 1970.
    pub(crate) fn not_before_us(&self, now_us: i64) -> Option<i64> {
        self.pause.map(|pause| match pause {
            Pause::For(pause) => later(now_us, pause),
            Pause::Until(at_us) => at_us,
        })
    }

    pub(crate) fn coded(code: Code, message: impl Into<String>, retryable: bool) -> Self {
        Self { source: message.into().into(), code, retryable, pause: None }
    }

    /// The same error, under this code.
    #[cfg(feature = "http")]
    pub(crate) fn under(mut self, code: Code) -> Self {
        self.code = code;
        self
    }

    /// Whether it was made from an error of this type.
    pub(crate) fn is_from<E: std::error::Error + 'static>(&self) -> bool {
        self.source.is::<E>()
    }

    /// A failure as the journal has it.
    pub(crate) fn stored(failure: &NodeFailure) -> Self {
        let code = known(&failure.code).unwrap_or(code::NODE_FAILED);
        Self::coded(code, failure.message.clone(), failure.retryable)
    }

    /// The error with its causes, as one line.
    pub(crate) fn text(&self) -> String {
        let mut text = self.source.to_string();
        let mut cause = self.source.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        clip(text)
    }
}

impl Coded for NodeError {
    fn code(&self) -> Code {
        self.code
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for NodeError {
    fn from(error: E) -> Self {
        let any: &dyn Any = &error;
        let effect = any.downcast_ref::<EffectError>();
        let known = effect.map(|e| (known(&e.code).unwrap_or(code::EFFECT_FAILED), e.retryable));
        let known = known.or_else(|| any.downcast_ref::<Error>().map(|e| (e.code(), false)));
        #[cfg(feature = "http")]
        let known = known.or_else(|| any.downcast_ref::<crate::http::Error>().map(|e| (e.code(), false)));
        #[cfg(feature = "agents")]
        let known = known.or_else(|| {
            any.downcast_ref::<crate::agent::Error>().map(|error| (error.code(), error.is_retryable()))
        });
        let (code, retryable) = known.unwrap_or((code::NODE_FAILED, true));
        let pause = effect.and_then(|effect| effect.not_before_us).map(Pause::Until);
        Self { source: Box::new(error), code, retryable, pause }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// `fn main() -> hapax::Result<()>` prints this: the code first, since it leads to the page with the cure.
impl fmt::Debug for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.code, self.text())
    }
}

/// What a failed effect gives, live and replayed alike: text, never the caller's own error type.
///
/// ```
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { note: String }
/// async fn charge(mut ctx: hapax::Ctx<Order>) -> OrderDelta {
///     let declined = async |_: hapax::Call| Err::<(), _>("card declined");
///     match ctx.effect("charge", Write, &4200, declined).await {
///         Ok(()) => Order::delta().note("paid"),
///         Err(error) => Order::delta().note(error.message), // recorded: the same after a crash
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # const CHARGE: Node = Node::new("charge");
/// # let engine = Engine::open("memory:").await?;
/// # let orders = engine.register(Graph::new("orders", 1, CHARGE).node(CHARGE, charge), ()).await?;
/// # assert_eq!(orders.start("order-42", Order::default()).await?.wait().await?.note, "card declined");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{effect}: {message}")]
pub struct EffectError {
    /// The effect's name.
    pub effect: String,
    /// The error's code.
    pub code: String,
    /// The error's text.
    pub message: String,
    /// Whether another attempt makes sense.
    pub retryable: bool,
    /// The other side wants to be left alone until then, in microseconds since 1970; see [`NodeError::retry_after`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_us: Option<i64>,
}

impl EffectError {
    /// An error that another attempt would meet as well.
    pub(crate) fn fatal(effect: &str, code: &str, message: impl Into<String>) -> Self {
        let (effect, code, message) = (effect.into(), code.into(), message.into());
        Self { effect, code, message, retryable: false, not_before_us: None }
    }
}
