//! What the proofs of Hapax are made of: workloads, a recorded world around them, and engines that die on cue.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ledger`] | the one state that all generated graphs share |
//! | [`generate`] | graphs and the behaviour of their nodes, from a seed |
//! | [`mutate`] | one node of a case does one thing otherwise |
//! | [`workload`] | a generated case as a graph with code |
//! | [`world`] | the outside, and the one log in which everything gets its place |
//! | [`stores`] | the stores that the proofs run on |
//! | [`probe`] | a store that is watched, delayed, frozen or troubled on its way to the real one |
//! | [`life`] | one engine from its start to its end or its death |
//! | [`boundaries`] | every call to the store as the place where a life ends, for graphs of a proof's own |
//! | [`verdict`] | what a run left behind, and whether it is what it should be |
//! | [`kills`], [`orders`], [`journeys`], [`naps`], [`transfers`], [`charges`], [`crafts`], [`mails`], [`ticks`], [`doors`] | real processes that are killed, and the work that they do |

pub mod boundaries;
pub mod charges;
pub mod crafts;
pub mod doors;
pub mod generate;
pub mod journeys;
pub mod kills;
pub mod ledger;
pub mod life;
pub mod mails;
pub mod mutate;
pub mod naps;
pub mod orders;
pub mod probe;
pub mod stores;
pub mod ticks;
pub mod transfers;
pub mod verdict;
pub mod workload;
pub mod world;
