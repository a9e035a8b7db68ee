//! The pure heart of Hapax: what a step means, without I/O, clock or runtime.
//!
//! | module | what it holds |
//! |---|---|
//! | [`graph`], [`route`] | the shape of the work: nodes, edges, joins; where a node leads |
//! | [`state`], [`crdt`] | states, deltas, reducers, conflicts |
//! | [`frontier`], [`merge`] | what runs next; from results to the next state |
//! | [`order`], [`rng`] | path hash and order key; the draws of an item |
//! | [`checkpoint`], [`journal`], [`commit`], [`outbox`], [`stream`] | the plain data of a step, and of what is written |
//! | [`schedule`] | runs that start by the clock; when, behind the feature `schedules` |
//! | [`flow`] | how many runs go at a time, how soon, and which first |
//! | [`request`] | requests that take effect once: names, hashes, records |
//! | [`canonical`], [`json`], [`key`] | canonical JSON; step, effect and command keys; digests |
//! | [`trace`] | the ids of a run's trace |
//! | [`id`], [`limits`], [`error`], [`failure`] | names, limits, error codes |
//!
//! Nothing in this crate awaits, sleeps, reads a clock or touches a file.

pub mod canary;
pub mod canonical;
pub mod checkpoint;
pub mod commit;
pub mod crdt;
pub mod dynamic;
pub mod error;
pub mod failure;
pub mod flow;
pub mod frontier;
pub mod graph;
pub mod id;
pub mod journal;
pub mod json;
pub mod key;
pub mod limits;
pub mod mailbox;
pub mod merge;
pub mod order;
pub mod outbox;
pub mod request;
pub mod rng;
pub mod route;
pub mod schedule;
pub mod state;
pub mod stream;
pub mod trace;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
