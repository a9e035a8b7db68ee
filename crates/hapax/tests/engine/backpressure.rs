//! Backpressure: an engine takes what it can hold, and the rest waits where it is safe.

use crate::common::*;
use futures::{future::join_all, poll};
use hapax::{Error, Event, PausedBy, Run, Status, prelude::*};
use std::{pin::pin, time::Duration};

const WORK: Node = Node::new("work");
const ITEM: Node<u64> = Node::new("item");
const PAUSED: Status = Status::Paused { by: PausedBy::Backpressure };

/// A node that waits for the signal before it is done.
fn waiting(diary: &Diary, signal: &Signal) -> Graph<Board> {
    let work = node!(
        [diary, signal] | ctx | {
            diary.note(format!("{} starts", ctx.run_id()));
            signal.take().await;
            diary.note(format!("{} ends", ctx.run_id()));
        }
    );
    Graph::new("waiting", 1, WORK).node(WORK, work)
}

async fn done(run: Run<Board>) -> Board {
    run.wait().await.unwrap()
}

#[tokio::test]
async fn admission_blocks_while_the_engine_is_full_and_goes_on_when_a_run_ends() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default().max_active_runs(1));
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let first = flow.start("first", Board::default()).await.unwrap();
    let mut second = pin!(flow.start("second", Board::default()));
    assert!(poll!(&mut second).is_pending());
    signal.give();
    done(first).await;
    signal.give();
    done(second.await.unwrap()).await;
    assert_eq!(diary.all(), ["first starts", "first ends", "second starts", "second ends"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_without_room_is_parked_after_the_timeout_and_resumes_by_itself() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let options = Options::default().max_active_runs(1).backpressure_timeout(Duration::from_secs(5));
    let engine = engine(options);
    let mut events = engine.events();
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let first = flow.start("first", Board::default()).await.unwrap();
    let before = tokio::time::Instant::now();
    let second = flow.start("second", Board::default()).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 5);
    assert_eq!(second.status().await.unwrap(), PAUSED);
    let parked = |event: &Event| matches!(event, Event::RunEnded { status, .. } if *status == PAUSED);
    hear(&mut events, parked).await;
    signal.give();
    signal.give();
    done(first).await;
    done(second).await;
    assert_eq!(diary.all(), ["first starts", "first ends", "second starts", "second ends"]);
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_any_more_still_runs() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default().max_active_runs(1));
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let first = flow.start("first", Board::default()).await.unwrap();
    {
        let mut second = pin!(flow.start("second", Board::default()));
        assert!(poll!(&mut second).is_pending());
    }
    signal.give();
    signal.give();
    done(first).await;
    done(flow.attach("second").await.unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_wait_for_room() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default().max_active_runs(1));
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let _first = flow.start("first", Board::default()).await.unwrap();
    let mut second = pin!(flow.start("second", Board::default()));
    assert!(poll!(&mut second).is_pending());
    until_idle().await;
    let before = tokio::time::Instant::now();
    engine.cancel("second").await.unwrap();
    let second = second.await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(matches!(second.wait().await, Err(Error::Cancelled { .. })));
    assert!(!diary.all().contains(&"second starts".to_owned()));
}

#[tokio::test]
async fn a_shutdown_parks_what_waits_for_room_and_another_engine_runs_it() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let first_engine = engine(Options::default().max_active_runs(1));
    let flow = first_engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let _first = flow.start("first", Board::default()).await.unwrap();
    let mut second = pin!(flow.start("second", Board::default()));
    assert!(poll!(&mut second).is_pending());
    signal.give();
    tokio::join!(first_engine.shutdown(Duration::from_secs(60)), async { second.await.unwrap() });
    let next = Engine::builder().with_store(first_engine.store());
    let flow = next.register(waiting(&diary, &signal), ()).await.unwrap();
    signal.give();
    done(flow.attach("first").await.unwrap()).await;
    done(flow.attach("second").await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_far_beyond_the_queue_finishes_with_one_worker() {
    let start = node!([] | ctx | { Board::delta().fork((0..10_000).map(|n| ITEM.with(n))) });
    let item = node!([] |ctx, n: u64| { Board::delta().total(n) });
    let graph = Graph::new("huge", 1, WORK).node(WORK, start).node(ITEM, item);
    let engine = engine(Options::default().queue_depth(64).max_concurrent_nodes(1));
    let flow = engine.register(graph, ()).await.unwrap();
    let board = done(flow.start("run", Board::default()).await.unwrap()).await;
    assert_eq!(board.total, 49_995_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_runs_share_one_engine_within_its_limit() {
    let crowd = Crowd::default();
    let work = node!(
        [crowd] | ctx | {
            let _inside = crowd.enter();
            tokio::task::yield_now().await;
            Board::delta().total(1u64)
        }
    );
    let graph = Graph::new("small", 1, WORK).node(WORK, work);
    let flow = engine(Options::default().max_active_runs(64)).register(graph, ()).await.unwrap();
    let runs = (0..2_000).map(|n| {
        let flow = flow.clone();
        tokio::spawn(
            async move { done(flow.start(&format!("run-{n}"), Board::default()).await.unwrap()).await },
        )
    });
    let boards: Vec<Board> = join_all(runs).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(boards.iter().map(|board| board.total).sum::<u64>(), 2_000);
    assert!(crowd.peak() <= 64, "{} runs at once", crowd.peak());
}

#[tokio::test]
async fn no_more_nodes_than_allowed_run_at_once() {
    let crowd = Crowd::default();
    let start = node!([] | ctx | { Board::delta().fork((0..30).map(|n| ITEM.with(n))) });
    let item = node!([crowd] |ctx, n: u64| {
        let _inside = crowd.enter();
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    });
    let graph = Graph::new("bounded", 1, WORK).node(WORK, start).node(ITEM, item);
    let flow = engine(Options::default().max_concurrent_nodes(3)).register(graph, ()).await.unwrap();
    done(flow.start("run", Board::default()).await.unwrap()).await;
    assert_eq!(crowd.peak(), 3);
}

#[tokio::test(start_paused = true)]
async fn results_behind_a_slow_item_fill_the_queue_and_no_more() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let start = node!([] | ctx | { Board::delta().fork((0..100).map(|n| ITEM.with(n))) });
    let item = node!([diary, signal] |ctx, n: u64| {
        diary.note(n.to_string());
        if n == 0 {
            signal.take().await;
        }
    });
    let graph = Graph::new("slow", 1, WORK).node(WORK, start).node(ITEM, item);
    let engine = engine(Options::default().max_concurrent_nodes(2).queue_depth(4));
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    until_idle().await;
    assert_eq!(diary.len(), 5, "the slow one, and four results that wait for it");
    signal.give();
    done(run).await;
    assert_eq!(diary.len(), 100);
}
