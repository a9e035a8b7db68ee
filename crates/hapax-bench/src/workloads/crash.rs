//! W5: a run whose process is killed, and the process that goes on with it.
//!
//! What counts is the file: each body appends a line before anything else can know of it.

use super::{close, open};
use crate::{
    Result,
    args::Drive,
    clock,
    meter::{Meter, Tally, extra, transactions},
};
use hapax::{Flow, prelude::*, store::StoreStats};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::Arc,
};

const STEP: Node = Node::new("step");
const RUN: &str = "w5";

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Chain {
    #[state(sum)]
    done: u64,
    of: u64,
}

struct Witness {
    tally: Arc<Tally>,
    file: File,
    die_at: Option<u64>,
}

async fn step(ctx: hapax::Ctx<Chain, Witness>) -> hapax::Result<ChainDelta> {
    let (witness, number) = (ctx.app(), ctx.state().done + 1);
    witness.tally.tick();
    let line = format!("{number} {} {}\n", std::process::id(), clock::unix_ns());
    (&witness.file).write_all(line.as_bytes())?;
    if witness.die_at == Some(number) {
        kill_process(getpid(), Signal::KILL)?;
    }
    Ok(Chain::delta().done(1u64))
}

async fn register(
    engine: &Engine,
    tally: &Arc<Tally>,
    file: &Path,
    die_at: Option<u64>,
) -> Result<Flow<Chain, Witness>> {
    let file = File::options().create(true).append(true).open(file)?;
    let graph = Graph::new("w5", 1, STEP)
        .node(STEP, step)
        .edge_if(STEP, STEP, "more", |chain: &Chain| chain.done < chain.of)
        .end(STEP);
    Ok(engine.register(graph, Witness { tally: tally.clone(), file, die_at }).await?)
}

/// The life that is killed, or isn't.
pub(super) async fn run(drive: &Drive, steps: u64, file: &Path, die_at: Option<u64>) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(steps));
    let flow = register(&engine, &tally, file, die_at).await?;
    let (store, before) = (engine.store(), engine.store().stats());
    let meter = Meter::begin(tally);
    let end = flow.start(RUN, Chain { done: 0, of: steps }).await?.wait().await?;
    let extra = extra("steps", "between the starts of two steps");
    meter.end(end.done, transactions(before, store.stats()), extra);
    close(&engine).await;
    Ok(())
}

/// The next life: the same program, started again. Opening the store is part of what is timed.
pub(super) async fn resume(drive: &Drive, steps: u64, file: &Path) -> Result<()> {
    let tally = Tally::new(steps);
    let meter = Meter::begin(tally.clone());
    let engine = open(drive).await?;
    let committed = engine.record(RUN).await.map_or(0, |record| record.step);
    let flow = register(&engine, &tally, file, None).await?;
    let end = flow.start(RUN, Chain { done: 0, of: steps }).await?.wait().await?;
    let lines = fs::read_to_string(file)?;
    let (twice, committed_twice) = executed_twice(&lines, committed);
    let mut extra = extra("steps", "between the starts of two steps");
    extra.insert("committed_before".into(), json!(committed));
    extra.insert("executed_twice".into(), json!(twice));
    extra.insert("committed_executed_twice".into(), json!(committed_twice));
    meter.end(end.done, transactions(StoreStats::default(), engine.store().stats()), extra);
    close(&engine).await;
    Ok(())
}

/// How many steps have more than one line, and how many of those had been committed before the restart.
fn executed_twice(lines: &str, committed: u64) -> (u64, u64) {
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let steps = lines.lines().filter_map(|line| line.split(' ').next()?.parse().ok());
    steps.for_each(|step| *seen.entry(step).or_default() += 1);
    let twice: Vec<u64> = seen.into_iter().filter(|(_, times)| *times > 1).map(|(step, _)| step).collect();
    (twice.len() as u64, twice.iter().filter(|step| **step <= committed).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_with_two_lines_count_and_committed_ones_apart() {
        let lines = "1 10 5\n2 10 6\n3 10 7\n4 10 8\n2 11 9\n4 11 10\n5 11 11\n";
        assert_eq!(executed_twice(lines, 3), (2, 1));
        assert_eq!(executed_twice(lines, 1), (2, 0));
        assert_eq!(executed_twice("", 1), (0, 0));
    }
}
