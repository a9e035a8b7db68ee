//! Runs that start by the clock: each time starts one, whoever fires, whoever dies, whatever is in its way.
//!
//! The store's clock stands still until a test moves it, so that nothing here waits for time to pass.

#[path = "../common/mod.rs"]
mod common;

mod overlap;
mod refusals;
mod times;

use common::*;
use hapax::{
    Engine, Flow, Graph, Node, Options, State as _,
    schedule::When,
    store::{Clock, ListFilter, MemoryStore, ShardedStore, Store},
};
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const HOUR: Duration = Duration::from_secs(3600);

/// A store with its clock, which stands still.
fn store() -> (Clock, Arc<dyn Store>) {
    let clock = Clock::manual();
    (clock.clone(), MemoryStore::with_clock(clock))
}

/// A graph of one step, which notes that it was taken.
fn quick() -> Graph<Board> {
    Graph::new("quick", 1, WORK).node(WORK, node!([] | ctx | { Board::delta().log("done") }))
}

async fn on(store: &Arc<dyn Store>, graph: Graph<Board>) -> (Engine, Flow<Board>) {
    let engine = Engine::builder().options(Options::default()).with_store(store.clone());
    let flow = engine.register(graph, ()).await.expect("a sound graph");
    (engine, flow)
}

fn hourly() -> When {
    When::cron("@hourly")
}

/// The runs of all schedules, oldest first.
async fn runs(engine: &Engine) -> Vec<String> {
    let runs = engine.list(ListFilter::default()).await.expect("the store answers");
    runs.iter().rev().map(|run| run.key.run.to_string()).collect()
}
