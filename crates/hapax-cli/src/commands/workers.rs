//! `hapax workers`: who holds what.

use crate::{
    failure::Failure,
    output::{BAD, GOOD},
    session::Session,
    table::{Cell, Table},
    view::{age, counted},
};
use clap::Args;
use hapax_store::{Fleet, Holding};
use serde::Serialize;

const AFTER_HELP: &str = "\
A worker's name is its machine and process, or the name that its program gave it, and something that makes it unique. Those \
that hold no run aren't seen: nothing in the store speaks of them. LEASE is how long the first of its leases still lasts; one \
that is over belongs to a worker that died or lost the store, and its run is taken over by the next that looks. EPOCH is how \
often one of its runs was claimed, at the most.

Examples:
  hapax workers
  hapax workers --json | jq '.waiting'
  hapax workers --json | jq '.workers[] | select(.lease_left_ms == 0)'";

/// Show who holds how many runs, and how many wait for a worker
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Workers {}

#[derive(Serialize)]
struct Answer<'a> {
    workers: Vec<WorkerView<'a>>,
    waiting: u64,
    lag_ms: u64,
}

#[derive(Serialize)]
pub(crate) struct WorkerView<'a> {
    name: &'a str,
    runs: u64,
    lease_left_ms: u64,
    epoch: u64,
}

impl Workers {
    #[allow(clippy::unused_self, reason = "every command is run alike")]
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let fleet = session.engine.fleet().await?;
        let answer = Answer {
            workers: fleet.holders.iter().map(WorkerView::of).collect(),
            waiting: fleet.waiting,
            lag_ms: millis(fleet.lag),
        };
        session.out.answer(&answer, || human(&fleet, session))
    }
}

impl<'a> WorkerView<'a> {
    pub(crate) fn of(holding: &'a Holding) -> Self {
        let Holding { owner, runs, lease_left, epoch } = holding;
        Self { name: owner, runs: *runs, lease_left_ms: millis(*lease_left), epoch: *epoch }
    }
}

pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn human(fleet: &Fleet, session: &Session<'_>) -> String {
    let mut text = if fleet.holders.is_empty() {
        "nobody holds a run\n".to_owned()
    } else {
        let mut table = Table::new(&["WORKER", "RUNS", "LEASE", "EPOCH"]);
        for holding in &fleet.holders {
            let lease = match holding.lease_left.is_zero() {
                true => Cell::styled("over", BAD),
                false => Cell::styled(age(holding.lease_left), GOOD),
            };
            let [runs, epoch] = [holding.runs, holding.epoch].map(|number| Cell::new(number.to_string()));
            table.row(vec![Cell::new(&holding.owner), runs, lease, epoch]);
        }
        table.render(session.out)
    };
    if fleet.waiting > 0 {
        let (runs, wait) = (counted(fleet.waiting, "run"), if fleet.waiting == 1 { "waits" } else { "wait" });
        text.push_str(&format!("{runs} {wait} for a worker, the first for {}\n", age(fleet.lag)));
    }
    text
}
