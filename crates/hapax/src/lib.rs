//! Durable execution: every step commits exactly once.
//!
#![doc = include_str!("docs/lib.md")]
//!
//! | module | what it holds |
//! |---|---|
//! | [`Graph`], [`Node`], [`IntoNode`] | the shape of the work, and its nodes as plain `async fn`s |
//! | [`Ctx`] | what a node sees: state, resources, effects |
//! | [`Engine`], [`Flow`], [`Run`] | opens a store, registers graphs, starts and follows runs |
//! | [`Worker`] | a process's part in a fleet: works until it is told to stop |
//! | [`control`] | how many runs go at a time, how soon, and which first |
//! | [`Tail`], [`StreamEvent`] | follows what a run streams |
//! | [`Replay`], [`Fork`] | a run again from its record; a new run from a step of another |
//! | [`GraphOutline`], [`Secrets`] | a registered graph for people and drawings, and what nobody may see of its runs |
//! | [`Options`], [`NodePolicy`], [`Retry`] | limits and what happens on failure |
//! | [`Error`], [`NodeError`], [`EffectError`] | what can go wrong, each with a code |
//! | [`metrics`], [`watch`] | what an engine counts; what its runs do and how long it takes, for traces |
//! | [`outbox`] | relays and sinks: how messages leave |
//! | `inbox` | how another program takes them in, once: with a store's feature |
//! | `http` | a ready HTTP effect, with the feature `http` |
//! | `agent` | programs that do work for nodes, once, with the feature `agents` |
//! | `schedule` | runs that start by the clock, with the feature `schedules` |
//! | [`dynamic`] | graphs that are described by a value |
//! | `rest` | large payloads brought to an object store while an engine looks for work |
//! | [`testing`] | for tests of your own: a clock that skips, scripted effects, recorded histories |
//! | [`core`], [`store`] | the pure heart, and the stores |

#[cfg(feature = "agents")]
pub mod agent;
mod child;
mod clock;
mod context;
pub mod control;
mod drive;
pub mod dynamic;
mod effects;
mod emit;
mod engine;
mod error;
mod fleet;
mod flow;
mod fork;
mod gate;
mod graph;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod item;
mod items;
mod lease;
mod letters;
pub mod metrics;
mod node;
mod observe;
mod options;
pub mod outbox;
mod outline;
mod question;
mod replay;
mod rest;
mod run_items;
#[cfg(feature = "schedules")]
pub mod schedule;
mod secrets;
mod step;
mod stream;
mod tail;
pub mod testing;
mod trail;
mod transaction;
mod wait;
pub mod watch;
mod worker;

pub use child::Child;
pub use context::{Call, Ctx};
pub use effects::{Resolution, Unsent};
pub use engine::{Builder, Engine};
pub use error::{EffectError, Error, NodeError, Result};
pub use fleet::{Worker, WorkerReport};
pub use flow::{Flow, StartOptions};
pub use fork::{Fork, ForkError};
pub use graph::{Graph, Sources};
pub use handle::Run;
pub use hapax_core as core;
pub use hapax_core::{
    canonical,
    commit::{PausedBy, RunFailure, Status, WaitsOn},
    crdt,
    error::Coded,
    failure::NodeFailure,
    journal::EffectKind,
    rng::Rng,
    route::{Branch, IntoOutcome, Node, Outcome, Route, RouteExt},
    state::{self, ConflictPolicy, Delta, OldState, State},
};
/// # Example
///
/// ```
/// use hapax::prelude::*;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
/// struct Order {
///     sku: String, // the last writer's value
///     #[state(sum)]
///     tax: u64,
///     #[state(append)]
///     log: Vec<String>,
///     #[state(secret)]
///     card: String,
/// }
///
/// let delta = Order::delta().sku("anvil").tax(840u64).log("reserved").card("4242");
/// assert!(!format!("{delta:?}").contains("4242"));
/// let mut order = Order { tax: 10, ..Order::default() };
/// order.apply(delta);
/// assert_eq!((order.tax, order.log.len()), (850, 1));
/// ```
pub use hapax_macros::State;
/// # Example
///
/// ```
/// # use hapax::prelude::*;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { #[state(append)] log: Vec<String> }
/// #[hapax::node]
/// async fn reserve(_: hapax::Ctx<Order>) -> OrderDelta {
///     Order::delta().log("reserved")
/// }
///
/// const RESERVE: Node = Node::new("reserve");
/// assert!(Graph::new("orders", 1, RESERVE).node(RESERVE, reserve).check().is_ok());
/// ```
pub use hapax_macros::node;
pub use hapax_store as store;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use hapax_store::inbox;
pub use letters::NotInDoubt;
pub use node::{Blocking, IntoNode, blocking};
pub use observe::Event;
pub use options::{CallSite, Durability, Effects, NodePolicy, Options, Retry};
pub use outline::{EdgeOutline, GraphOutline, NodeOutline};
pub use question::{AnswerError, OpenQuestion, Question};
pub use replay::{Divergence, Replay};
pub use secrets::Secrets;
pub use tail::{StreamChunk, StreamEvent, Superseded, Tail};
pub use transaction::{Db, Tx};

#[doc(hidden)]
pub use hapax_core::__private;

/// The program of the guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/moving-house.md")]
struct MovingHouse;

/// What nearly every program needs.
pub mod prelude {
    pub use crate::{
        EffectKind::{Read, Write, WriteAtMostOnce},
        Engine, Graph, Node, NodeError, NodeFailure, NodePolicy, Options, Outcome, Retry, RouteExt as _,
        State,
    };
}
