//! Recorded calls, durable timers and replays: what the journal costs.

use super::{close, open};
use crate::{
    Result,
    args::Drive,
    clock,
    meter::{Meter, Tally, extra, transactions},
};
use futures::{StreamExt, TryStreamExt, stream};
use hapax::{EffectKind, prelude::*};
use serde::{Deserialize, Serialize};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

const STEP: Node = Node::new("step");
/// Runs that are started at a time.
const AT_ONCE: usize = 256;
/// How many timers can be set in a second, with room to spare.
const SET_PER_S: u64 = 3000;

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Calls {
    #[state(sum)]
    done: u64,
    of: u64,
    each: u64,
}

type Ctx = hapax::Ctx<Calls, Arc<Tally>>;

/// Makes the calls of one step. The outside answers at once: what is left is ours.
async fn call(mut ctx: Ctx, kind: EffectKind) -> hapax::Result<CallsDelta> {
    let (state, tally) = (ctx.state(), ctx.app());
    for number in 0..state.each {
        tally.tick();
        ctx.effect("call", kind, &number, async |_| Ok::<_, Infallible>(number)).await?;
    }
    Ok(Calls::delta().done(1u64))
}

fn graph(name: &str, kind: EffectKind) -> Graph<Calls, Arc<Tally>> {
    Graph::new(name, 1, STEP)
        .node(STEP, move |ctx: Ctx| call(ctx, kind))
        .edge_if(STEP, STEP, "more", |calls| calls.done < calls.of)
        .end(STEP)
}

/// So many runs at a time, each with so many steps of so many calls.
pub(super) async fn calls(
    drive: &Drive,
    kind: EffectKind,
    (runs, steps, each): (u64, u64, u64),
) -> Result<()> {
    let count = runs * steps * each;
    let (engine, tally) = (open(drive).await?, Tally::new(count));
    let flow = engine.register(graph("calls", kind), tally.clone()).await?;
    let (store, before) = (engine.store(), engine.store().stats());
    let meter = Meter::begin(tally);
    let ends = stream::iter(0..runs).map(async |run| {
        let begin = Calls { done: 0, of: steps, each };
        Ok::<_, hapax::Error>(flow.start(&format!("calls-{run}"), begin).await?.wait().await?.done)
    });
    let done: u64 = ends.buffer_unordered(runs as usize).try_fold(0, async |sum, end| Ok(sum + end)).await?;
    meter.end(done * each, transactions(before, store.stats()), extra("calls", "between two calls"));
    close(&engine).await;
    Ok(())
}

/// A run of trivial steps, made again from its record.
pub(super) async fn replay(drive: &Drive, steps: u64) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(steps));
    let flow = engine.register(graph("replayed", EffectKind::Read), tally.clone()).await?;
    flow.start("replayed", Calls { done: 0, of: steps, each: 0 }).await?.wait().await?;
    let (store, before) = (engine.store(), engine.store().stats());
    let meter = Meter::begin(tally);
    let replay = engine.replay("replayed").await?;
    if let Some(found) = replay.divergence {
        return Err(format!("the replay diverges: {found}").into());
    }
    meter.end(replay.steps, transactions(before, store.stats()), extra("steps", "none"));
    close(&engine).await;
    Ok(())
}

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Alarm {
    due_us: u64,
}

/// What all timers share.
struct Alarms {
    tally: Arc<Tally>,
    left: AtomicU64,
    none_left: Notify,
}

async fn sleep(mut ctx: hapax::Ctx<Alarm, Arc<Alarms>>) -> hapax::Result<()> {
    let (alarms, due_us) = (ctx.app(), ctx.state().due_us);
    ctx.sleep(Duration::from_micros(due_us.saturating_sub(now_us()))).await?;
    alarms.tally.late(Duration::from_micros(now_us().saturating_sub(due_us)));
    if alarms.left.fetch_sub(1, Ordering::AcqRel) == 1 {
        alarms.none_left.notify_one();
    }
    Ok(())
}

/// So many runs, each parked until a moment of its own within so many seconds; the latency is how late they wake.
pub(super) async fn timers(drive: &Drive, runs: u64, seconds: u64) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(runs));
    let alarms =
        Arc::new(Alarms { tally: tally.clone(), left: AtomicU64::new(runs), none_left: Notify::new() });
    let flow = engine.register(Graph::new("timers", 1, STEP).node(STEP, sleep), alarms.clone()).await?;
    let (store, before) = (engine.store(), engine.store().stats());
    let first_us = now_us() + (runs / SET_PER_S + 2) * 1_000_000;
    let set = stream::iter(0..runs).map(async |run| {
        let due_us = first_us + run * seconds * 1_000_000 / runs;
        flow.start(&format!("timer-{run}"), Alarm { due_us }).await.map(drop)
    });
    set.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    if now_us() > first_us {
        return Err("the timers went off before all of them were set".into());
    }
    tokio::time::sleep(Duration::from_micros(first_us - now_us())).await;
    let meter = Meter::begin(tally);
    alarms.none_left.notified().await;
    meter.end(runs, transactions(before, store.stats()), extra("timers", "from when it was due"));
    close(&engine).await;
    Ok(())
}

fn now_us() -> u64 {
    clock::unix_ns() / 1000
}
