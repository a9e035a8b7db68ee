//! Starts that nobody executes: what the terms of flow control cost beside a plain one.

use super::{close, options};
use crate::{
    Result,
    args::{Drive, Start},
    clock,
    meter::{Meter, Tally, extra, transactions},
};
use futures::{StreamExt, TryStreamExt, stream};
use hapax::{StartOptions, control::Rate, prelude::*};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const STEP: Node = Node::new("step");

/// Runs that share a key: as a customer's.
const A_KEY: u64 = 10;

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Idle {
    done: bool,
}

async fn step(_: hapax::Ctx<Idle>) -> IdleDelta {
    Idle::delta().done(true)
}

fn on(start: Start, run: u64) -> StartOptions {
    let plain = StartOptions::default().unheld();
    match start {
        Start::Plain => plain,
        Start::Key => plain.key(format!("customer-{}", run / A_KEY), 2),
        Start::Rate => plain.rate(Rate::new("starts", 1_000_000, Duration::from_secs(1)).burst(1000)),
        Start::Priority => plain.priority(3),
        Start::Singleton => plain.singleton(format!("one-{run}")),
    }
}

/// So many starts, so many at a time.
pub(super) async fn run(drive: &Drive, count: u64, in_flight: usize, start: Start) -> Result<()> {
    let engine = Engine::builder().options(options(drive).finds_work(false)).open(&drive.store).await?;
    let flow = engine.register(Graph::new("starts", 1, STEP).node(STEP, step), ()).await?;
    let (tally, store, before) = (Tally::new(count), engine.store(), engine.store().stats());
    let meter = Meter::begin(tally.clone());
    // A database is used by several processes one after the other: the id keeps their runs apart.
    let process = std::process::id();
    let starts = stream::iter(0..count).map(async |run| {
        let began = clock::now();
        let name = format!("{start:?}-{process}-{run}");
        let started = flow.start_with(&name, Idle::default(), on(start, run)).await;
        tally.count();
        tally.record(began);
        started.map(|_| 1)
    });
    let done: u64 = starts.buffer_unordered(in_flight).try_fold(0, async |sum, one| Ok(sum + one)).await?;
    meter.end(done, transactions(before, store.stats()), extra("starts", "of a start"));
    close(&engine).await;
    Ok(())
}
