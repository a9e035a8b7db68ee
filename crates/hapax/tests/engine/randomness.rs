//! Randomness: a node's draws belong to its place in the run, not to the moment in which they are made.

use crate::common::*;
use hapax::{StartOptions, prelude::*};
use std::{collections::HashSet, time::Duration};

const WORK: Node = Node::new("work");
const ITEM: Node<u64> = Node::new("item");

fn draw(ctx: &mut Ctx) -> String {
    format!("{:x}", ctx.rng().next_u64())
}

/// Draws twice on every attempt and succeeds at the last one.
fn drawing(diary: &Diary, failures: u32) -> Graph<Board> {
    let work = node!(
        [diary] | ctx | {
            let draws = format!("{} {}", draw(&mut ctx), draw(&mut ctx));
            diary.note(draws.clone());
            if ctx.attempt() <= failures {
                Err(NodeError::new("busy"))
            } else {
                Ok(Board::delta().log(draws))
            }
        }
    );
    Graph::new("drawing", 1, WORK).node(WORK, work)
}

async fn drawn(run: &str, retry: Retry, failures: u32, start: StartOptions) -> Vec<String> {
    let diary = Diary::default();
    let flow = engine(Options::default().retry(retry)).register(drawing(&diary, failures), ()).await.unwrap();
    flow.start_with(run, Board::default(), start).await.unwrap().wait().await.unwrap();
    diary.all()
}

#[tokio::test(start_paused = true)]
async fn every_attempt_sees_the_same_draws() {
    let drawn = drawn("run", Retry::standard(), 3, StartOptions::default()).await;
    assert_eq!(drawn.len(), 4);
    assert!(drawn.iter().all(|draws| *draws == drawn[0]), "{drawn:?}");
}

#[tokio::test(start_paused = true)]
async fn the_jitter_of_retries_does_not_touch_the_draws() {
    let calm = drawn("run", Retry::none(), 0, StartOptions::default()).await;
    let jittered = drawn("run", Retry::standard(), 2, StartOptions::default()).await;
    let fixed = Retry::standard().backoff(|_| Duration::ZERO);
    let unjittered = drawn("run", fixed, 2, StartOptions::default()).await;
    assert_eq!((&calm[0], &jittered[2], &unjittered[2]), (&jittered[0], &unjittered[0], &calm[0]));
}

#[tokio::test]
async fn draws_follow_the_run_id_or_the_given_seed() {
    let draws = async |run: &str, start| drawn(run, Retry::none(), 0, start).await[0].clone();
    let seeded = |seed| StartOptions::default().seed(seed);
    assert_eq!(draws("a", StartOptions::default()).await, draws("a", StartOptions::default()).await);
    assert_ne!(draws("a", StartOptions::default()).await, draws("b", StartOptions::default()).await);
    assert_eq!(draws("a", seeded(7)).await, draws("b", seeded(7)).await);
    assert_ne!(draws("a", seeded(7)).await, draws("a", seeded(8)).await);
}

/// Draws in a fork of items, in the root and in two lanes of each.
async fn lanes(concurrency: usize) -> Vec<String> {
    let item = node!([] |ctx, n: u64| {
        let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
        for _ in 0..(n * 5) % 3 {
            tokio::task::yield_now().await;
        }
        let right = draw(&mut right);
        Board::delta().log(draw(&mut ctx)).log(draw(&mut left)).log(right)
    });
    let start = node!([] | ctx | { Board::delta().fork((0..6).map(|n| ITEM.with(n))) });
    let graph = Graph::new("lanes", 1, WORK).node(WORK, start).node(ITEM, item);
    let engine = engine(Options::default().max_concurrent_nodes(concurrency));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap().log
}

#[tokio::test]
async fn draws_differ_by_item_and_scope_and_not_by_concurrency() {
    let alone = lanes(1).await;
    assert_eq!(alone.iter().collect::<HashSet<_>>().len(), 18, "no two are equal: {alone:?}");
    assert_eq!(lanes(4).await, alone);
}

#[tokio::test]
async fn draws_differ_from_step_to_step() {
    let work = node!([] | ctx | { Board::delta().log(draw(&mut ctx)) });
    let graph = Graph::new("loop", 1, WORK)
        .node(WORK, work)
        .edge_if(WORK, WORK, "again", |board: &Board| board.log.len() < 5)
        .end(WORK);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let log = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap().log;
    assert_eq!(log.iter().collect::<HashSet<_>>().len(), 5, "{log:?}");
}

#[test]
fn draws_are_the_same_after_a_crash() {
    let (diary, reached) = (Diary::default(), Signal::default());
    let graph = |stuck: bool| {
        let work = node!(
            [diary, reached] | ctx | {
                let draws = draw(&mut ctx);
                diary.note(draws.clone());
                if stuck {
                    reached.give();
                    forever().await;
                }
                Board::delta().log(draws)
            }
        );
        Graph::new("crash", 1, WORK).node(WORK, work)
    };
    let store = memory();
    let first = Process::doomed(&store);
    first.run(async {
        let flow = first.engine(Options::default()).register(graph(true), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        reached.take().await;
    });
    first.crash();
    let second = Process::healthy(&store);
    let board = second.run(async {
        let flow = second.engine(Options::default()).register(graph(false), ()).await.unwrap();
        flow.attach("run").await.unwrap().wait().await.unwrap()
    });
    let draws = diary.all();
    assert_eq!((draws.len(), &draws[0], &board.log[0]), (2, &draws[1], &draws[0]));
}
