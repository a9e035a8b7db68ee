//! What becomes of a time while the run before it isn't over.

use crate::{common::*, *};
use hapax::{State as _, schedule::Overlap};

/// A graph whose runs wait until they may end, and say when they have begun.
fn slow(begun: &Signal, may_end: &Signal) -> Graph<Board> {
    let work = node!(
        [begun, may_end] | ctx | {
            begun.give();
            may_end.take().await;
            Board::delta().log("done")
        }
    );
    Graph::new("slow", 1, WORK).node(WORK, work)
}

async fn first_run_lives(overlap: Overlap, catch_up: u32) -> (Clock, Engine, Flow<Board>, Signal, Signal) {
    let (clock, store) = store();
    let (begun, may_end) = (Signal::default(), Signal::default());
    let (engine, flow) = on(&store, slow(&begun, &may_end)).await;
    flow.schedule("s", hourly().overlap(overlap).catch_up(catch_up), Board::default()).await.unwrap();
    clock.advance(HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 1);
    begun.take().await;
    (clock, engine, flow, begun, may_end)
}

#[tokio::test]
async fn a_skipped_time_is_counted_and_never_made_up_for() {
    let (clock, engine, flow, _, may_end) = first_run_lives(Overlap::Skip, 1).await;
    clock.advance(HOUR);
    let firings = engine.fire_due().await.unwrap();
    assert_eq!((firings.started, firings.skipped), (0, 1));
    may_end.give();
    flow.attach(&runs(&engine).await[0]).await.unwrap().wait().await.unwrap();
    assert_eq!(engine.fire_due().await.unwrap().started, 0, "it is passed over");
    clock.advance(HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 1);
    let record = engine.schedule("s").await.unwrap();
    assert_eq!((record.started, record.skipped, record.missed), (2, 1, 0));
    may_end.give();
}

#[tokio::test]
async fn a_queued_time_starts_when_the_run_before_it_is_over_and_no_more_wait_than_the_limit_says() {
    let (clock, engine, flow, begun, may_end) = first_run_lives(Overlap::Queue, 2).await;
    clock.advance(5 * HOUR);
    let firings = engine.fire_due().await.unwrap();
    assert_eq!((firings.started, firings.waiting, firings.missed), (0, 1, 0));
    let mut names = vec![];
    for left in [2, 1, 0] {
        may_end.give();
        names = runs(&engine).await;
        flow.attach(names.last().unwrap()).await.unwrap().wait().await.unwrap();
        let firings = engine.fire_due().await.unwrap();
        assert_eq!((firings.started, firings.waiting), (u64::from(left > 0), u64::from(left > 1)));
        if left > 0 {
            begun.take().await;
        }
    }
    let record = engine.schedule("s").await.unwrap();
    assert_eq!((record.started, record.skipped, record.missed), (3, 0, 3), "the latest two have waited");
    assert_eq!(names.len(), 3);
}

#[tokio::test]
async fn a_cancelling_time_ends_the_run_before_it_and_starts_at_once() {
    let (clock, engine, _, begun, may_end) = first_run_lives(Overlap::Cancel, 1).await;
    clock.advance(HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 1);
    begun.take().await;
    let names = runs(&engine).await;
    assert_eq!(engine.wait(&names[0]).await.unwrap(), hapax::Status::Cancelled);
    may_end.give();
    assert_eq!(engine.wait(&names[1]).await.unwrap(), hapax::Status::Succeeded);
}
