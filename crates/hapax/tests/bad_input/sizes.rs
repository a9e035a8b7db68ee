//! Things that are larger than their limits.

use crate::common::*;
use hapax::{Coded, Status, core::error::code, prelude::*};

const WORK: Node = Node::new("work");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");
const TWENTY_MB: usize = 20 * 1024 * 1024;

fn large() -> String {
    "x".repeat(TWENTY_MB)
}

#[tokio::test]
async fn a_start_with_20_mb_is_refused_and_creates_nothing() {
    let engine = engine(Options::default());
    let graph = Graph::new("large", 1, WORK).node(WORK, node!([] | ctx | {}));
    let flow = engine.register(graph, ()).await.unwrap();
    let error = flow.start("run", Board { word: Some(large()), ..Board::default() }).await.unwrap_err();
    assert_eq!(error.code(), code::LIMIT);
    assert!(error.to_string().contains("over the limit of 16777216"), "{error}");
    assert_eq!(engine.status("run").await.unwrap_err().code(), code::RUN_NOT_FOUND);
}

#[tokio::test]
async fn a_node_that_grows_the_state_to_20_mb_fails_the_run_at_its_last_good_step() {
    let engine = engine(Options::default());
    let graph = Graph::new("grown", 1, WORK)
        .node(WORK, node!([] | ctx | { Board::delta().log("small") }))
        .node(LEFT, node!([] | ctx | { Board::delta().word(large()) }))
        .edge(WORK, LEFT);
    let flow = engine.register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!((error.code(), failure(&error).step), (code::LIMIT, 1));
    let record = engine.record("run").await.unwrap();
    assert_eq!(record.step, 1);
    assert!(matches!(record.status, Status::Failed { .. }));
}

#[tokio::test]
async fn a_delta_of_20_mb_beside_others_fails_the_run() {
    let graph = Graph::new("beside", 1, WORK)
        .node(WORK, node!([] | ctx | {}))
        .node(LEFT, node!([] | ctx | { Board::delta().word(large()) }))
        .node(RIGHT, node!([] | ctx | {}))
        .edge(WORK, LEFT)
        .edge(WORK, RIGHT);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::LIMIT, "{error}");
}

#[tokio::test]
async fn an_answer_of_20_mb_fails_the_run() {
    let ask = node!(
        [] | ctx | {
            let answer: String = ctx.effect("ask", Write, &1, async |_| Ok::<_, NodeError>(large())).await?;
            Ok::<_, NodeError>(Board::delta().word(answer))
        }
    );
    let flow = engine(Options::default()).register(Graph::new("answer", 1, WORK).node(WORK, ask), ()).await;
    let error = flow.unwrap().start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::LIMIT, "{error}");
}

#[tokio::test]
async fn a_message_of_20_mb_is_cut() {
    let fail = node!([] | ctx | { Err::<(), _>(NodeError::new(large())) });
    let flow = engine(Options::default()).register(Graph::new("error", 1, WORK).node(WORK, fail), ()).await;
    let error = flow.unwrap().start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert!(error.to_string().len() < 20_000);
}
