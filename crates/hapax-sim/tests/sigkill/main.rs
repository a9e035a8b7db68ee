//! The crash proof with real processes: work on SQLite, killed with SIGKILL again and again, ends as if nothing had
//! happened, and the outside party never saw a thing twice.
//!
//! The victim reports what it does. A kill is aimed by counting its reports, and counts for the phase that was
//! open when the victim died. What happened outside is read from the log of the outside party, a process of its
//! own, which is on the disk before any answer leaves.

mod harness;
mod journeys;
mod orders;

use harness::{Harness, Work, World};

/// Kills victims that work in one mode, and compares what they leave with an undisturbed execution in the other:
/// how far steps run ahead of the disk changes nothing that is stored.
fn orders_survive(mode: &'static str, other_mode: &'static str) {
    let harness = Harness::finished(Work::Orders, mode);
    orders::check(&harness, &World::undisturbed(Work::Orders, other_mode, harness.numbers()));
}

#[test]
fn strict_orders_survive_kills_in_every_phase() {
    orders_survive("strict", "pipelined");
}

#[test]
fn pipelined_orders_survive_kills_in_every_phase() {
    orders_survive("pipelined", "strict");
}

#[test]
fn strict_journeys_survive_kills_around_every_record() {
    journeys::check(&Harness::finished(Work::Journeys, "strict"));
}

#[test]
fn pipelined_journeys_survive_kills_around_every_record() {
    journeys::check(&Harness::finished(Work::Journeys, "pipelined"));
}
