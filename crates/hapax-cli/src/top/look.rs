//! One look at a store, and how a program is told of it.

use super::view::View;
use crate::{
    commands::workers::{WorkerView, millis},
    view::time,
};
use hapax::{Engine, Error};
use hapax_store::{Census, CensusFilter, Fleet, RunRecord, Tally, outbox::Backlog};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the store said.
#[derive(Debug)]
pub(crate) struct Look {
    pub(super) census: Census,
    pub(super) fleet: Fleet,
    pub(super) backlog: Backlog,
}

/// Asks the store. Each question is a snapshot by itself.
pub(super) async fn look(engine: &Engine, filter: CensusFilter) -> Result<Look, Error> {
    Ok(Look {
        census: engine.census(filter).await?,
        fleet: engine.fleet().await?,
        backlog: engine.backlog().await?,
    })
}

/// A look for programs.
#[derive(Serialize)]
pub(super) struct Answer<'a> {
    at: String,
    runs: BTreeMap<&'static str, TallyView>,
    /// Not known before the second look.
    rates: Option<RatesView>,
    queue: QueueView,
    workers: Vec<WorkerView<'a>>,
    outbox: OutboxView,
    /// Runs that aren't over, some of each status.
    shown: Vec<ShownView<'a>>,
}

/// Why there was nothing to see.
#[derive(Serialize)]
pub(super) struct Lost {
    pub(super) code: &'static str,
    pub(super) message: String,
}

#[derive(Serialize)]
struct TallyView {
    count: u64,
    or_more: bool,
}

#[derive(Serialize)]
struct RatesView {
    steps_per_s: f64,
    at_least: bool,
    created_per_s: f64,
    ended_per_s: Option<f64>,
}

#[derive(Serialize)]
struct QueueView {
    waiting: u64,
    lag_ms: u64,
}

#[derive(Serialize)]
struct OutboxView {
    pending: TallyView,
    dead: TallyView,
    lag_ms: u64,
}

#[derive(Serialize)]
struct ShownView<'a> {
    run: &'a str,
    graph: &'a str,
    status: &'a str,
    step: u64,
    steps_per_s: Option<f64>,
    owner: Option<&'a str>,
    updated_at: String,
}

impl From<Tally> for TallyView {
    fn from(tally: Tally) -> Self {
        Self { count: tally.count, or_more: tally.or_more }
    }
}

impl<'a> Answer<'a> {
    /// Of a view that has looked; of one that hasn't there is nothing but zeros.
    pub(super) fn of(view: &'a View) -> Self {
        let look = view.look();
        let rates = view.pulse().map(|pulse| RatesView {
            steps_per_s: pulse.steps_per_s,
            at_least: pulse.at_least,
            created_per_s: pulse.created_per_s,
            ended_per_s: pulse.ended_per_s,
        });
        let Look { census, fleet, backlog } = look;
        Self {
            at: time(census.at_us),
            runs: census.statuses.iter().map(|(word, tally)| (*word, (*tally).into())).collect(),
            rates,
            queue: QueueView { waiting: fleet.waiting, lag_ms: millis(fleet.lag) },
            workers: fleet.holders.iter().map(WorkerView::of).collect(),
            outbox: OutboxView {
                pending: backlog.pending.into(),
                dead: backlog.dead.into(),
                lag_ms: millis(backlog.lag()),
            },
            shown: view.runs().into_iter().map(|run| shown(run, view)).collect(),
        }
    }
}

fn shown<'a>(run: &'a RunRecord, view: &View) -> ShownView<'a> {
    ShownView {
        run: run.key.run.as_str(),
        graph: &run.graph,
        status: run.status.word(),
        step: run.step,
        steps_per_s: view.pulse().and_then(|pulse| pulse.of(&run.key.run)),
        owner: run.owner.as_deref(),
        updated_at: time(run.updated_at_us),
    }
}
