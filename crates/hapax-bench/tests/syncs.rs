//! What a store says of its syncs, held against what SQLite asks of its file system.

use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
struct Count {
    #[state(sum)]
    turns: u64,
}

const TURN: Node = Node::new("turn");

async fn turn(_: hapax::Ctx<Count>) -> CountDelta {
    Count::delta().turns(1u64)
}

/// Alone in its process: the syncs of another test would be counted, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_commit_to_sqlite_is_a_sync_and_is_counted_as_one() {
    hapax_vfs::install().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(&format!("sqlite:{}", folder.path().join("runs.db").display())).await.unwrap();
    let graph = Graph::new("count", 1, TURN).node(TURN, turn);
    let graph = graph.edge_if(TURN, TURN, "again", |count: &Count| count.turns < 20).end(TURN);
    let flow = engine.register(graph, ()).await.unwrap();
    let (counted, synced) = (engine.metrics().store.syncs, hapax_vfs::syncs());
    for run in ["first", "second"] {
        flow.start(run, Count::default()).await.unwrap().wait().await.unwrap();
    }
    engine.shutdown(Duration::from_secs(60)).await;
    let (counted, synced) = (engine.metrics().store.syncs - counted, hapax_vfs::syncs() - synced);
    assert_ne!(counted, 0);
    // So few pages need no checkpoint but the one at the end, which syncs the log and the file.
    assert!((counted..=counted + 2).contains(&synced), "{counted} counted, {synced} made");
}
