//! The fence of many runs in one statement: what each run's row must say, and what it says afterwards.
//!
//! Invariant: a row that doesn't say what its chain demands is not updated. Rows are found and locked by their key, in the
//! order of their keys, and no others are looked at.
//!
//! A table of demands to be joined would be shorter, and takes MariaDB five times as long: it makes two temporary tables.

use super::script::Script;
use crate::server::{chain::Chain, sql::Value};
use hapax_core::{canary, commit::Status, json::Json};
use std::sync::LazyLock;

/// Chains of one statement at the most: each row is compared with each of them.
const TOGETHER: usize = 64;
/// A run that is held stays ready at the end of its lease; one that was parked is so again.
const READY: &str = "CASE WHEN status = 'running' THEN ready_at ELSE lease_until END";

static RUNNING: LazyLock<Json> = LazyLock::new(|| Status::Running.to_json());
static SUCCEEDED: LazyLock<Json> = LazyLock::new(|| Status::Succeeded.to_json());

/// What a column says after a chain.
#[derive(Clone, Copy, PartialEq)]
enum Left<'c> {
    Same,
    Words(&'static str),
    Value(Value<'c>),
}

/// Chains, sorted by their runs, in groups that one statement takes.
pub(super) fn groups<'g, 'c>(chains: &'g [&'c Chain]) -> impl Iterator<Item = &'g [&'c Chain]> {
    let of_one_namespace = chains.chunk_by(|one, next| one.run().namespace == next.run().namespace);
    of_one_namespace.flat_map(|some| some.chunks(TOGETHER))
}

/// Updates the rows of a group; `behind` another statement that must have met so many.
pub(super) fn update(script: &mut Script<'_>, chains: &[&Chain], behind: Option<usize>) {
    script.begin("UPDATE hapax_runs FORCE INDEX (PRIMARY) SET updated_at = {now}");
    for column in COLUMNS {
        set(script, chains, column);
    }
    demand(script, chains);
    if let Some(met) = behind {
        script.words(&format!(" AND ROW_COUNT() = {met}"));
    }
}

/// Asks which runs of a group meet what is demanded of them, and locks their rows.
pub(super) fn question(script: &mut Script<'_>, chains: &[&Chain]) {
    script.begin("SELECT run_id FROM hapax_runs FORCE INDEX (PRIMARY)");
    demand(script, chains);
    script.words(" FOR UPDATE");
}

/// A column is set after those that are computed from what it was: the server goes from left to right.
const COLUMNS: [&str; 9] =
    ["step_id", "digest", "next_seq", "used_us", "ready_at", "status", "status_json", "owner", "lease_until"];

/// What a column says after a chain.
fn left<'c>(chain: &'c Chain, column: &str) -> Left<'c> {
    let (demands, leaves) = (&chain.demands, &chain.leaves);
    let at_end = |at_end| if leaves.ends { at_end } else { Left::Same };
    if column == "next_seq" {
        let is_same = leaves.next_seq == demands.next_seq;
        return if is_same { Left::Same } else { Left::Value(leaves.next_seq.into()) };
    }
    let Some((step, digest, used_us)) = &leaves.step else { return Left::Same };
    match column {
        "step_id" => Left::Value((*step).into()),
        "digest" => Left::Value((&digest.0).into()),
        "used_us" => Left::Value((*used_us).into()),
        "ready_at" => Left::Words(if leaves.ends { "NULL" } else { READY }),
        "status" => Left::Words(if leaves.ends { "'succeeded'" } else { "'running'" }),
        "status_json" => Left::Value(if leaves.ends { &SUCCEEDED } else { &RUNNING }.as_str().into()),
        "owner" => at_end(Left::Words("NULL")),
        _ => at_end(Left::Words("0")),
    }
}

/// Sets a column: for all at once where it says the same afterwards.
fn set(script: &mut Script<'_>, chains: &[&Chain], column: &str) {
    let all: Vec<Left<'_>> = chains.iter().map(|chain| left(chain, column)).collect();
    let is_one = all.iter().all(|left| *left == all[0]);
    if is_one && all[0] == Left::Same {
        return;
    }
    script.words(", ").words(column).words(" = ");
    if is_one {
        return say(script, all[0]);
    }
    script.words("CASE run_id");
    for (chain, left) in chains.iter().zip(&all).filter(|(_, left)| **left != Left::Same) {
        script.words(" WHEN ").value(chain.run().run.as_str().into()).words(" THEN ");
        say(script, *left);
    }
    script.words(" ELSE ").words(column).words(" END");
}

fn say(script: &mut Script<'_>, left: Left<'_>) {
    match left {
        Left::Same => {}
        Left::Words(words) => drop(script.words(words)),
        Left::Value(value) => drop(script.value(value)),
    }
}

/// Names the rows of a group, and what each must say.
fn demand(script: &mut Script<'_>, chains: &[&Chain]) {
    let namespace = chains.first().map(|chain| chain.run().namespace.as_str());
    script.words(" WHERE namespace = ").value(namespace.into());
    for (number, chain) in chains.iter().enumerate() {
        script.words(if number == 0 { " AND (" } else { " OR " });
        demand_of(script, chain);
    }
    script.words(")");
}

fn demand_of(script: &mut Script<'_>, chain: &Chain) {
    let (demands, nonce) = (&chain.demands, chain.demands.epoch.nonce.to_be_bytes());
    script.words("run_id = ").value(chain.run().run.as_str().into());
    script.words(" AND next_seq = ").value(demands.next_seq.into());
    if let Some(step) = demands.step {
        script.words(" AND step_id = ").value(step.into());
    }
    if let Some(digest) = &demands.digest {
        script.words(" AND digest = ").value((&digest.0).into());
    }
    if !canary::on("fence") {
        script.words(" AND epoch = ").value(demands.epoch.counter.into());
        script.words(" AND nonce = ").value((&nonce).into());
    }
    if demands.no_cancel {
        script.words(" AND cancel_requested = 0");
    }
    if chain.leaves.ends {
        // A parent that waits for the end is told of it by another way.
        script.words(" AND parent IS NULL");
    }
}
