//! W1 and W2: trivial steps, one after the other, in one run or in many.

use super::{close, open, options, telemetry::Watched, watched};
use crate::{
    Result,
    args::Drive,
    clock,
    histogram::median,
    meter::{Meter, Tally, extra, transactions},
};
use futures::{StreamExt, TryStreamExt, stream};
use hapax::{Flow, prelude::*};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

const STEP: Node = Node::new("step");

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Chain {
    #[state(sum)]
    done: u64,
    of: u64,
}

async fn timed_step(ctx: hapax::Ctx<Chain, Arc<Tally>>) -> ChainDelta {
    ctx.app().tick();
    Chain::delta().done(1u64)
}

async fn counted_step(ctx: hapax::Ctx<Chain, Arc<Tally>>) -> ChainDelta {
    ctx.app().count();
    Chain::delta().done(1u64)
}

fn chain(graph: Graph<Chain, Arc<Tally>>) -> Graph<Chain, Arc<Tally>> {
    graph.edge_if(STEP, STEP, "more", |chain| chain.done < chain.of).end(STEP)
}

/// W1.
pub(super) async fn one_run(drive: &Drive, steps: u64) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(steps));
    let graph = chain(Graph::new("w1", 1, STEP).node(STEP, timed_step));
    let flow = engine.register(graph, tally.clone()).await?;
    let (store, before) = (engine.store(), engine.store().stats());
    let traced = watched(drive, &engine).await?;
    let meter = Meter::begin(tally);
    let end = finish(&flow, "w1", steps).await?;
    settle(traced).await?;
    let extra = extra("steps", "between the starts of two steps");
    meter.end(end, transactions(before, store.stats()), extra);
    close(&engine).await;
    Ok(())
}

/// W2, and the older runs that it may have to live with.
pub(super) async fn many_runs(
    drive: &Drive,
    name: &str,
    (runs, steps): (u64, u64),
    in_flight: usize,
) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(runs * steps));
    let graph = chain(Graph::new(name, 1, STEP).node(STEP, counted_step));
    let flow = engine.register(graph, tally.clone()).await?;
    let (store, before) = (engine.store(), engine.store().stats());
    if let Some(at_ns) = drive.begin_at_ns {
        tokio::time::sleep(Duration::from_nanos(at_ns.saturating_sub(clock::unix_ns()))).await;
    }
    let traced = watched(drive, &engine).await?;
    let meter = Meter::begin(tally.clone());
    // A database is used by several processes one after the other: the id keeps their runs apart.
    let process = std::process::id();
    let ends = stream::iter(0..runs).map(async |run| {
        let start = clock::now();
        let end = finish(&flow, &format!("{name}-{process}-{run}"), steps).await;
        tally.record(start);
        end
    });
    let done: u64 = ends.buffer_unordered(in_flight).try_fold(0, async |sum, end| Ok(sum + end)).await?;
    settle(traced).await?;
    meter.end(done, transactions(before, store.stats()), extra("steps", "of a run, from start to result"));
    close(&engine).await;
    Ok(())
}

/// W1 in short pieces, by turns with and without metrics: a difference of a hundredth shows only between neighbours.
pub(super) async fn by_turns(drive: &Drive, steps: u64, pairs: u64) -> Result<()> {
    let tally = Tally::new(steps * pairs);
    let engine =
        async |metrics| Engine::builder().options(options(drive).metrics(metrics)).open(&drive.store).await;
    let engines = [engine(true).await?, engine(false).await?];
    let graph = || chain(Graph::new("turns", 1, STEP).node(STEP, counted_step));
    let mut flows = vec![];
    for engine in &engines {
        flows.push(engine.register(graph(), tally.clone()).await?);
    }
    let meter = Meter::begin(tally.clone());
    let mut beside = vec![];
    for pair in 0..pairs {
        let mut cpu_s = [0.0; 2];
        // Whoever comes first in one pair comes last in the next.
        for which in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let before = clock::cpu_s();
            finish(&flows[which], &format!("turn-{pair}-{which}"), steps).await?;
            cpu_s[which] = clock::cpu_s() - before;
        }
        beside.push(cpu_s[0] / cpu_s[1]);
    }
    let mut extra = extra("steps", "none");
    extra.insert("cpu_beside".into(), median(beside).unwrap_or_default().into());
    meter.end(2 * steps * pairs, 0, extra);
    for engine in &engines {
        close(engine).await;
    }
    Ok(())
}

/// The export is part of what traces cost.
async fn settle(traced: Option<Watched>) -> Result<()> {
    match traced {
        Some(traced) => traced.end().await,
        None => Ok(()),
    }
}

async fn finish(flow: &Flow<Chain, Arc<Tally>>, run: &str, steps: u64) -> Result<u64> {
    let begin = Chain { done: 0, of: steps };
    Ok(flow.start(run, begin).await?.wait().await?.done)
}
