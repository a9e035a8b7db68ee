//! Deadlocks: what can never go on says so and names the nodes; what can, does, with any limit.

use crate::common::*;
use hapax::{Coded, Error, NodePolicy, core::error::code, prelude::*};

const START: Node = Node::new("start");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");
const AFTER: Node = Node::new("after");
const ITEM: Node<u64> = Node::new("item");
const OTHER: Node<u64> = Node::new("other");

async fn outcome(options: Options, graph: Graph<Board>) -> Result<Board, Error> {
    let flow = engine(options).register(graph, ()).await?;
    flow.start("run", Board::default()).await?.wait().await
}

fn say(word: &'static str) -> impl Fn(Ctx) -> std::future::Ready<BoardDelta> + Send + Sync + 'static {
    move |_| std::future::ready(Board::delta().log(word))
}

#[tokio::test]
async fn a_join_that_one_branch_never_reaches_is_no_progress_with_its_nodes() {
    let stop = node!([] | ctx | { Board::delta().stop() });
    let graph = Graph::new("unfilled", 1, START)
        .node(START, say("start"))
        .node(LEFT, say("left"))
        .node(RIGHT, stop)
        .node(AFTER, say("after"))
        .edge(START, LEFT)
        .edge(START, RIGHT)
        .join((LEFT, RIGHT), AFTER);
    let error = outcome(Options::default(), graph).await.unwrap_err();
    assert_eq!(error.code(), code::NO_PROGRESS);
    assert!(failure(&error).message.contains("`after` waits for right"), "{error}");
}

#[tokio::test]
async fn a_node_none_of_whose_edges_holds_is_no_route_with_its_name() {
    let graph = || {
        Graph::new("nowhere", 1, START).node(START, say("start")).node(AFTER, say("after")).edge_if(
            START,
            AFTER,
            "rich",
            |board: &Board| board.total > 0,
        )
    };
    let error = outcome(Options::default(), graph()).await.unwrap_err();
    assert_eq!(error.code(), code::NO_ROUTE);
    assert!(failure(&error).message.contains("`start`"), "{error}");
    assert_eq!(outcome(Options::default(), graph().end(START)).await.unwrap().log, ["start"]);
}

#[tokio::test]
async fn a_join_that_can_never_fill_is_refused_when_it_is_registered() {
    let graph = Graph::new("circle", 1, START)
        .node(START, say("start"))
        .node(LEFT, say("left"))
        .node(AFTER, say("after"))
        .edge(START, LEFT)
        .edge(AFTER, RIGHT)
        .node(RIGHT, say("right"))
        .join((LEFT, RIGHT), AFTER);
    let error = outcome(Options::default(), graph).await.unwrap_err();
    assert_eq!(error.code(), code::JOIN_CANNOT_FILL);
    assert!(error.to_string().contains("`right`"), "{error}");
}

/// A fork whose branches meet in a join, as often as there are pairs.
fn pairs(count: u64) -> Graph<Board> {
    let start = node!(
        [] | ctx | {
            let both = |n| [ITEM.with(n), OTHER.with(n)];
            Board::delta().fork((0..count).flat_map(both))
        }
    );
    let item = node!([] |ctx, n: u64| {
        tokio::task::yield_now().await;
        Board::delta().total(n)
    });
    Graph::new("pairs", 1, START)
        .node(START, start)
        .node(ITEM, item)
        .node(OTHER, item)
        .node(AFTER, say("met"))
        .join((ITEM, OTHER), AFTER)
}

#[tokio::test]
async fn forks_and_joins_finish_with_one_node_at_a_time() {
    let options = Options::default().max_concurrent_nodes(1).queue_depth(1);
    let board = outcome(options, pairs(20)).await.unwrap();
    assert_eq!((board.total, board.log.len()), (380, 20));
}

#[tokio::test]
async fn a_limit_per_node_is_kept_and_ends_in_no_deadlock() {
    let (items, others) = (Crowd::default(), Crowd::default());
    let start = node!(
        [] | ctx | {
            Board::delta().fork((0..30).map(|n| if n % 3 == 0 { OTHER.with(n) } else { ITEM.with(n) }))
        }
    );
    let crowded = |crowd: &Crowd| {
        node!([crowd] |ctx, n: u64| {
            let _inside = crowd.enter();
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            Board::delta().total(1u64)
        })
    };
    let graph = Graph::new("limited", 1, START)
        .node(START, start)
        .node(ITEM, crowded(&items))
        .node(OTHER, crowded(&others))
        .policy(OTHER, NodePolicy::default().max_concurrency(1));
    let board = outcome(Options::default().max_per_node_concurrency(Some(2)), graph).await.unwrap();
    assert_eq!((board.total, items.peak(), others.peak()), (30, 2, 1));
}

fn endless() -> Graph<Board> {
    let work = node!([] | ctx | { Board::delta().total(1u64) });
    Graph::new("endless", 1, START)
        .node(START, work)
        .edge_if(START, START, "again", |b: &Board| b.total < 7)
        .end(START)
}

#[tokio::test]
async fn a_loop_ends_at_max_steps_and_can_be_taken_up_with_more() {
    let first = engine(Options::default().max_steps(Some(5)));
    let flow = first.register(endless(), ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!((error.code(), failure(&error).step), (code::MAX_STEPS, 5));
    let second = Engine::builder().options(Options::default().max_steps(Some(7))).with_store(first.store());
    let flow = second.register(endless(), ()).await.unwrap();
    assert_eq!(flow.retry("run").await.unwrap().wait().await.unwrap().total, 7);
}
