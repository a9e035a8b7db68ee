//! Durable execution: every step commits exactly once.
//!
#![doc = include_str!("docs/lib.md")]
//!
//! | module | what it holds |
//! |---|---|
//! | [`Graph`], [`Node`], [`IntoNode`] | the shape of the work, and its nodes as plain `async fn`s |
//! | [`Ctx`] | what a node sees: state, resources, effects |
//! | [`Engine`], [`Flow`], [`Run`] | opens a store, registers graphs, starts and follows runs |
//! | [`GraphOutline`] | a registered graph for people and drawings |
//! | [`Options`], [`NodePolicy`], [`Retry`] | limits and what happens on failure |
//! | [`Error`], [`NodeError`], [`EffectError`] | what can go wrong, each with a code |
//! | [`testing`] | a clock that skips, for tests of your own |
//! | [`core`], [`store`] | the pure heart, and the stores |

mod clock;
mod context;
mod drive;
mod effects;
mod engine;
mod error;
mod flow;
mod gate;
mod graph;
mod handle;
mod items;
mod lease;
mod letters;
mod node;
mod observe;
mod options;
mod outline;
mod run_items;
mod step;
pub mod testing;
mod wait;
mod worker;

pub use context::{Call, Ctx};
pub use effects::{Resolution, Unsent};
pub use engine::{Builder, Engine};
pub use error::{EffectError, Error, NodeError, Result};
pub use flow::{Flow, StartOptions};
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
pub use hapax_macros::{State, node};
pub use hapax_store as store;
pub use letters::NotInDoubt;
pub use node::{Blocking, IntoNode, blocking};
pub use observe::Event;
pub use options::{CallSite, Durability, Effects, NodePolicy, Options, Retry};
pub use outline::{EdgeOutline, GraphOutline, NodeOutline};

#[doc(hidden)]
pub use hapax_core::__private;

/// What nearly every program needs.
pub mod prelude {
    pub use crate::{
        EffectKind::{Read, Write, WriteAtMostOnce},
        Engine, Graph, Node, NodeError, NodeFailure, NodePolicy, Options, Outcome, Retry, RouteExt as _,
        State,
    };
}
