//! Merge order: what a step leads to depends on the order keys of its items, never on who finished first.

use crate::common::*;
use hapax::{core::order::OrderKey, prelude::*};
use std::sync::{Arc, Mutex};

const START: Node = Node::new("start");
const ITEM: Node<u64> = Node::new("item");
const NEST: Node<u64> = Node::new("nest");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");
const MIDDLE: Node = Node::new("middle");
const AFTER: Node = Node::new("after");

/// Forks into `count` items that all run `ITEM`.
fn fan_out(count: u64) -> impl Fn(Ctx) -> std::future::Ready<Outcome<Board>> + Send + Sync + 'static {
    move |_| std::future::ready(Board::delta().fork((0..count).map(|n| ITEM.with(n))))
}

#[tokio::test]
async fn deltas_merge_in_order_even_when_the_last_item_finishes_first() {
    let turn: Arc<Vec<Signal>> = Arc::new((0..9).map(|_| Signal::default()).collect());
    let finished = Diary::default();
    turn[8].give();
    let item = node!([turn, finished] |ctx, n: u64| {
        turn[n as usize + 1].take().await;
        finished.note(n.to_string());
        turn[n as usize].give();
        Board::delta().log(n.to_string())
    });
    let graph = Graph::new("reverse", 1, START).node(START, fan_out(8)).node(ITEM, item);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(finished.all(), ["7", "6", "5", "4", "3", "2", "1", "0"]);
    assert_eq!(board.log, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

/// All committed steps of a run that forks twice, executed with a given concurrency.
async fn steps_with(concurrency: usize) -> Vec<(String, String)> {
    let dawdle = node!([] |ctx, n: u64| {
        for _ in 0..(n * 7) % 5 {
            tokio::task::yield_now().await;
        }
        Board::delta().log(format!("item {n}")).total(n)
    });
    let nest = node!([] |ctx, n: u64| {
        for _ in 0..(n * 3) % 4 {
            tokio::task::yield_now().await;
        }
        Board::delta().log(format!("nest {n}")).fork((0..n).map(|m| ITEM.with(n * 10 + m)))
    });
    let start = node!([] | ctx | { Board::delta().fork((0..9).map(|n| NEST.with(n))) });
    let graph = Graph::new("wide", 1, START).node(START, start).node(NEST, nest).node(ITEM, dawdle);
    let engine = engine(Options::default().max_concurrent_nodes(concurrency));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let last = engine.record("run").await.unwrap().step;
    let mut steps = vec![];
    for step in 0..=last {
        let checkpoint = engine.store().checkpoint(key("run"), step).await.unwrap().unwrap();
        let state = String::from_utf8(checkpoint.state.to_vec()).unwrap();
        steps.push((state, checkpoint.digest.to_string()));
    }
    steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outcome_does_not_depend_on_max_concurrent_nodes() {
    let alone = steps_with(1).await;
    assert_eq!(alone.len(), 4);
    for concurrency in [2, 3, 8, 64] {
        assert_eq!(steps_with(concurrency).await, alone, "with {concurrency} at a time");
    }
}

#[tokio::test]
async fn items_start_in_order_key_order() {
    let started: Arc<Mutex<Vec<(OrderKey, u64)>>> = Arc::default();
    let item = node!([started] |ctx, n: u64| { started.lock().unwrap().push((ctx.order_key(), n)); });
    let nest = node!([] |ctx, n: u64| { Board::delta().fork((0..3).map(|m| ITEM.with(n * 10 + m))) });
    let start = node!([] | ctx | { Board::delta().fork((0..5).map(|n| NEST.with(n))) });
    let graph = Graph::new("order", 1, START).node(START, start).node(NEST, nest).node(ITEM, item);
    let engine = engine(Options::default().max_concurrent_nodes(1));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let started = started.lock().unwrap().clone();
    assert_eq!(started.len(), 15);
    assert!(started.is_sorted_by_key(|(order, _)| *order), "{started:?}");
    for siblings in started.chunks(3) {
        assert!(siblings.is_sorted_by_key(|(_, n)| *n), "siblings start as declared: {siblings:?}");
    }
}

#[tokio::test]
async fn edges_are_taken_in_declaration_order() {
    let say = |word: &'static str| node!([] | ctx | { Board::delta().log(word) });
    let graph = Graph::new("edges", 1, START)
        .node(START, say("start"))
        .node(LEFT, say("left"))
        .node(MIDDLE, say("middle"))
        .node(RIGHT, say("right"))
        .edge(START, RIGHT)
        .edge_if(START, LEFT, "always", |_| true)
        .edge_if(START, AFTER, "never", |board: &Board| board.log.is_empty())
        .edge(START, MIDDLE)
        .node(AFTER, say("after"));
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.log, ["start", "right", "left", "middle"]);
}

#[tokio::test]
async fn edges_into_one_node_coalesce_and_forked_items_never_do() {
    let say = |word: &'static str| node!([] | ctx | { Board::delta().log(word) });
    let count = node!([] |ctx, n: u64| { Board::delta().total(n).goto(AFTER) });
    let start = node!([] | ctx | { Board::delta().fork((0..3).map(|_| ITEM.with(5))) });
    let graph = Graph::new("coalesce", 1, START)
        .node(START, start)
        .node(ITEM, count)
        .node(AFTER, say("after"))
        .node(LEFT, say("left"))
        .node(RIGHT, say("right"))
        .node(MIDDLE, say("middle"))
        .edge(AFTER, LEFT)
        .edge(AFTER, RIGHT)
        .edge(LEFT, MIDDLE)
        .edge(RIGHT, MIDDLE);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.total, 15, "three forked items with the same input ran");
    assert_eq!(board.log, ["after", "left", "right", "middle"]);
}

#[tokio::test]
async fn all_items_of_a_step_see_the_state_before_it() {
    let item = node!([] |ctx, n: u64| { Board::delta().log(ctx.state().total.to_string()).total(n) });
    let graph = Graph::new("snapshot", 1, START).node(START, fan_out(4)).node(ITEM, item);
    let flow = engine(Options::default().max_concurrent_nodes(1)).register(graph, ()).await.unwrap();
    let board =
        flow.start("run", Board { total: 7, ..Board::default() }).await.unwrap().wait().await.unwrap();
    assert_eq!(board.log, ["7", "7", "7", "7"]);
    assert_eq!(board.total, 13);
}

#[tokio::test]
async fn a_join_waits_for_the_longer_branch_and_runs_once() {
    let say = |word: &'static str| node!([] | ctx | { Board::delta().log(word) });
    let graph = Graph::new("join", 1, START)
        .node(START, say("start"))
        .node(LEFT, say("left"))
        .node(RIGHT, say("right"))
        .node(MIDDLE, say("middle"))
        .node(AFTER, say("after"))
        .edge(START, LEFT)
        .edge(START, RIGHT)
        .edge(RIGHT, MIDDLE)
        .join((LEFT, MIDDLE), AFTER);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.log, ["start", "left", "right", "middle", "after"]);
}
