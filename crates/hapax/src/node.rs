//! Nodes as plain functions, and what they may return.

use crate::{
    Ctx,
    error::{NodeError, Result},
};
use hapax_core::{
    json::Json,
    route::{IntoOutcome, Outcome},
    state::State,
};
use serde::de::DeserializeOwned;
use std::{future::Future, pin::Pin, sync::Arc};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
pub(crate) type BoxNode<S, A> =
    Arc<dyn Fn(Ctx<S, A>, Option<Json>) -> BoxFuture<Result<Outcome<S>>> + Send + Sync>;

/// Marks nodes of the shape `(ctx)`.
#[doc(hidden)]
#[derive(Debug)]
pub struct NoInput;
/// Marks nodes of the shape `(ctx, input)`.
#[doc(hidden)]
#[derive(Debug)]
pub struct WithInput;

/// An `async fn(Ctx)` or `async fn(Ctx, Input)`: what `Graph::node` takes.
///
/// ```
/// use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Sum { #[state(sum)] total: u64 }
/// const SPLIT: Node = Node::new("split");
/// const ADD: Node<u64> = Node::new("add");
///
/// async fn split(_: hapax::Ctx<Sum>) -> Outcome<Sum> {
///     Sum::delta().fork([ADD.with(1), ADD.with(2)])
/// }
/// async fn add(_: hapax::Ctx<Sum>, amount: u64) -> SumDelta {
///     Sum::delta().total(amount)
/// }
/// let graph = Graph::<Sum>::new("sums", 1, SPLIT).node(SPLIT, split).node(ADD, add);
/// assert!(graph.check().is_ok());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a node of this graph",
    label = "expected `async fn(Ctx<{S}, {A}>)` or `async fn(Ctx<{S}, {A}>, {I})`",
    note = "its future must be Send (`#[hapax::node]` on the function names the culprit), and it must return a delta, an outcome, `()` or a Result of one"
)]
pub trait IntoNode<S: State, A, I, M> {
    /// Whether it can route by itself.
    const ROUTES: bool;
    /// Whether it wants an input.
    const WANTS_INPUT: bool;
    #[doc(hidden)]
    fn into_node(self) -> BoxNode<S, A>;
}

impl<S, A, F, Fut> IntoNode<S, A, (), NoInput> for F
where
    S: State,
    A: Send + Sync + 'static,
    F: Fn(Ctx<S, A>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome<S, Error: Into<NodeError>>> + Send + 'static,
{
    const ROUTES: bool = <Fut::Output as IntoOutcome<S>>::ROUTES;
    const WANTS_INPUT: bool = false;
    fn into_node(self) -> BoxNode<S, A> {
        Arc::new(move |ctx, _| {
            let run = self(ctx);
            Box::pin(async move { run.await.into_outcome().map_err(Into::into) })
        })
    }
}

impl<S, A, I, F, Fut> IntoNode<S, A, I, WithInput> for F
where
    S: State,
    A: Send + Sync + 'static,
    I: DeserializeOwned,
    F: Fn(Ctx<S, A>, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome<S, Error: Into<NodeError>>> + Send + 'static,
{
    const ROUTES: bool = <Fut::Output as IntoOutcome<S>>::ROUTES;
    const WANTS_INPUT: bool = true;
    fn into_node(self) -> BoxNode<S, A> {
        Arc::new(move |ctx, input| match read_input(input.as_ref()) {
            Ok(input) => {
                let run = self(ctx, input);
                Box::pin(async move { run.await.into_outcome().map_err(Into::into) })
            }
            Err(error) => Box::pin(async move { Err(error) }),
        })
    }
}

fn read_input<I: DeserializeOwned>(input: Option<&Json>) -> Result<I> {
    let text = input.map_or("null", Json::as_str);
    serde_json::from_str(text).map_err(|e| {
        let message = format!("the stored input does not fit the node's type: {e}");
        NodeError::coded(hapax_core::error::code::STATE_SHAPE, message, false)
    })
}

/// A synchronous node, run where it may block.
///
/// ```
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Sum { #[state(sum)] total: u64 }
/// const ADD: Node = Node::new("add");
/// fn add(_: hapax::Ctx<Sum>) -> SumDelta {
///     Sum::delta().total((1..=100u64).sum::<u64>())
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let node: hapax::Blocking<fn(hapax::Ctx<Sum>) -> SumDelta> = hapax::blocking(add);
/// let graph = Graph::new("sums", 1, ADD).node(ADD, node);
/// let sums = Engine::open("memory:").await?.register(graph, ()).await?;
/// assert_eq!(sums.start("sum-1", Sum::default()).await?.wait().await?.total, 5050);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Blocking<F>(F);

/// Makes a node of a synchronous function: it runs on a thread where blocking is allowed.
///
/// A blocking call can't be dropped: after a cancel or a timeout it goes on in the background, and what it
/// returns is ignored.
///
/// ```
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Sum { #[state(sum)] total: u64 }
/// const ADD: Node = Node::new("add");
/// fn add(_: hapax::Ctx<Sum>) -> SumDelta {
///     Sum::delta().total((1..=100u64).sum::<u64>())
/// }
/// let graph = Graph::<Sum>::new("sums", 1, ADD).node(ADD, hapax::blocking(add));
/// assert!(graph.check().is_ok());
/// ```
pub fn blocking<F>(node: F) -> Blocking<F> {
    Blocking(node)
}

#[diagnostic::do_not_recommend]
impl<S, A, F, T> IntoNode<S, A, (), (NoInput, Blocking<T>)> for Blocking<F>
where
    S: State,
    A: Send + Sync + 'static,
    F: Fn(Ctx<S, A>) -> T + Send + Sync + 'static,
    T: IntoOutcome<S, Error: Into<NodeError>>,
{
    const ROUTES: bool = T::ROUTES;
    const WANTS_INPUT: bool = false;
    fn into_node(self) -> BoxNode<S, A> {
        let node = Arc::new(self.0);
        Arc::new(move |ctx, _| {
            let node = node.clone();
            on_a_blocking_thread(move || node(ctx).into_outcome().map_err(Into::into))
        })
    }
}

#[diagnostic::do_not_recommend]
impl<S, A, I, F, T> IntoNode<S, A, I, (WithInput, Blocking<T>)> for Blocking<F>
where
    S: State,
    A: Send + Sync + 'static,
    I: DeserializeOwned + Send + 'static,
    F: Fn(Ctx<S, A>, I) -> T + Send + Sync + 'static,
    T: IntoOutcome<S, Error: Into<NodeError>>,
{
    const ROUTES: bool = T::ROUTES;
    const WANTS_INPUT: bool = true;
    fn into_node(self) -> BoxNode<S, A> {
        let node = Arc::new(self.0);
        Arc::new(move |ctx, input| {
            let node = node.clone();
            on_a_blocking_thread(move || {
                node(ctx, read_input(input.as_ref())?).into_outcome().map_err(Into::into)
            })
        })
    }
}

fn on_a_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> BoxFuture<Result<T>> {
    Box::pin(async move {
        match tokio::task::spawn_blocking(work).await {
            Ok(outcome) => outcome,
            Err(gone) => match gone.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(NodeError::new("the runtime is shutting down")),
            },
        }
    })
}
