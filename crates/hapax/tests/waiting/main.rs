//! Waiting: durable timers and signals, parked runs, and what a crash leaves of them.

#[path = "../common/mod.rs"]
mod common;

use common::*;
use hapax::{
    Coded, Event, Status, WaitsOn,
    core::{error::code, mailbox::Posted},
    prelude::*,
    store::{Clock, MemoryStore, Store},
    testing::Lab,
};
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const DAY: Duration = Duration::from_secs(86_400);

/// Waits for a signal and writes down what it says.
fn listens() -> Graph<Board> {
    let work = node!(
        [] | ctx | {
            let word: String = ctx.signal("go").await?;
            Ok::<_, hapax::EffectError>(Board::delta().word(word))
        }
    );
    Graph::new("listens", 1, WORK).node(WORK, work)
}

fn is_parked(event: &Event) -> bool {
    matches!(event, Event::RunEnded { status: Status::Waiting { .. }, .. })
}

#[tokio::test]
async fn a_signal_wakes_a_parked_run() {
    let engine = engine(Options::default());
    let mut events = engine.events();
    let flow = engine.register(listens(), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, is_parked).await;
    assert_eq!(run.status().await.unwrap(), Status::Waiting { on: WaitsOn::Signal });
    engine.signal("run", "another", "no").await.unwrap();
    assert_eq!(run.status().await.unwrap(), Status::Waiting { on: WaitsOn::Signal });
    engine.signal("run", "go", "now").await.unwrap();
    assert_eq!(run.wait().await.unwrap().word.as_deref(), Some("now"));
}

#[tokio::test]
async fn an_early_signal_is_kept_and_a_resent_one_delivered_once() {
    let engine = engine(Options::default());
    let (reached, leave) = (Signal::default(), Signal::default());
    let work = node!(
        [reached, leave] | ctx | {
            reached.give();
            leave.take().await;
            let (mut log, mut ctx) = (vec![], ctx);
            for _ in 0..2 {
                log.push(ctx.signal::<String>("go").await?);
            }
            Ok::<_, hapax::EffectError>(Board::delta().log(log.join(" ")))
        }
    );
    let flow = engine.register(Graph::new("late", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    assert_eq!(engine.signal_as("run", "1", "go", "one").await.unwrap(), Posted::New);
    assert_eq!(engine.signal_as("run", "1", "go", "one").await.unwrap(), Posted::Known);
    assert_eq!(engine.signal_as("run", "2", "go", "two").await.unwrap(), Posted::New);
    leave.give();
    assert_eq!(run.wait().await.unwrap().log, ["one two"]);
}

#[tokio::test]
async fn a_signal_to_nobody_or_to_a_finished_run_is_refused() {
    let engine = engine(Options::default());
    let flow = engine.register(listens(), ()).await.unwrap();
    let refused = engine.signal("nobody", "go", "now").await.unwrap_err();
    assert_eq!(refused.code(), code::RUN_NOT_FOUND, "{refused}");
    let run = flow.start("run", Board::default()).await.unwrap();
    let refused = engine.signal("run", "two\nlines", "now").await.unwrap_err();
    assert_eq!(refused.code(), code::INVALID_ID, "{refused}");
    engine.signal("run", "go", "now").await.unwrap();
    run.wait().await.unwrap();
    let refused = engine.signal("run", "go", "again").await.unwrap_err();
    assert_eq!(refused.code(), code::ALREADY_FINISHED, "{refused}");
}

/// Sleeps for a month between two looks at the clock.
fn sleeps(ran: &Diary) -> Graph<Board> {
    let work = node!(
        [ran] | ctx | {
            ran.note("ran");
            let before = ctx.now();
            ctx.sleep(30 * DAY).await?;
            let after = ctx.now();
            Ok::<_, hapax::EffectError>(Board::delta().total(after.duration_since(before).unwrap().as_secs()))
        }
    );
    Graph::new("sleeps", 1, WORK).node(WORK, work)
}

#[tokio::test]
async fn a_run_that_sleeps_for_a_month_costs_nothing_meanwhile() {
    let (lab, ran) = (Lab::new(), Diary::default());
    let flow = lab.engine().register(sleeps(&ran), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let total = lab.finish(&run).await.unwrap().total;
    assert_eq!(total, 30 * 86_400);
    assert_eq!(ran.len(), 2, "once until it slept, once from its start");
}

#[tokio::test]
async fn an_absurd_sleep_is_refused() {
    let lab = Lab::new();
    let work = node!([] | ctx | { ctx.sleep(Duration::MAX).await });
    let flow = lab.engine().register(Graph::new("absurd", 1, WORK).node(WORK, work), ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::BAD_DURATION, "{error}");
}

/// Starts a run that sleeps, in a process that dies meanwhile.
fn fall_asleep_and_crash(store: &Arc<dyn Store>, ran: &Diary) {
    let process = Process::doomed(store);
    process.run(async {
        let engine = process.engine(Options::default());
        let mut events = engine.events();
        let flow = engine.register(sleeps(ran), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        hear(&mut events, is_parked).await;
    });
    process.crash();
}

/// A crash neither begins the sleep anew nor ends it.
#[test]
fn a_timer_survives_a_crash() {
    let (clock, ran) = (Clock::manual(), Diary::default());
    let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
    fall_asleep_and_crash(&store, &ran);
    clock.advance(29 * DAY);
    let process = Process::healthy(&store);
    process.run(async {
        let engine = process.engine(Options::default());
        let flow = engine.register(sleeps(&ran), ()).await.unwrap();
        let run = flow.attach("run").await.unwrap();
        assert_eq!(run.status().await.unwrap(), Status::Waiting { on: WaitsOn::Timer });
        clock.advance(DAY);
        assert_eq!(run.wait().await.unwrap().total, 30 * 86_400);
    });
    assert_eq!(ran.len(), 2);
}

/// The claim that a due timer led to is lost with its process; the run isn't.
#[test]
fn a_woken_run_whose_worker_dies_is_woken_again() {
    let (clock, ran) = (Clock::manual(), Diary::default());
    let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
    fall_asleep_and_crash(&store, &ran);
    clock.advance(30 * DAY);
    let process = Process::dying_before(&store, |write| matches!(write, hapax::core::commit::Write::Step(_)));
    let engine = process.engine(Options::default());
    process.run_to_death(async {
        engine.register(sleeps(&ran), ()).await.unwrap();
        engine.resume("run").await.unwrap();
    });
    let process = Process::healthy(&store);
    process.run(async {
        let flow = process.engine(Options::default()).register(sleeps(&ran), ()).await.unwrap();
        assert_eq!(flow.attach("run").await.unwrap().wait().await.unwrap().total, 30 * 86_400);
    });
}

#[tokio::test]
async fn a_parked_item_holds_its_step_and_the_others_run_once() {
    const ITEM: Node<u64> = Node::new("item");
    let (ran, engine) = (Diary::default(), engine(Options::default()));
    let mut events = engine.events();
    let fork = node!([] | ctx | { Board::delta().fork((0..5).map(|n| ITEM.with(n))) });
    let item = node!(
        [ran] | ctx,
        n: u64 | {
            if n == 2 {
                ctx.signal::<()>("go").await?;
            }
            ran.note(n.to_string());
            Ok::<_, hapax::EffectError>(Board::delta().log(n.to_string()))
        }
    );
    let graph = Graph::new("fork", 1, WORK).node(WORK, fork).node(ITEM, item);
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, is_parked).await;
    let mut so_far = ran.all();
    so_far.sort();
    assert_eq!(so_far, ["0", "1", "3", "4"]);
    engine.signal("run", "go", &()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().log, ["0", "1", "2", "3", "4"]);
    assert_eq!(ran.len(), 5);
}

#[tokio::test]
async fn whichever_comes_first_wakes_a_run_that_waits_for_both() {
    for signalled in [true, false] {
        let lab = Lab::new();
        let work = node!(
            [] | ctx | {
                let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
                let word = tokio::select! {
                    word = left.signal::<String>("go") => word?,
                    slept = right.sleep(DAY) => slept.map(|()| "too late".to_owned())?,
                };
                Ok::<_, hapax::EffectError>(Board::delta().word(word))
            }
        );
        let flow = lab.engine().register(Graph::new("both", 1, WORK).node(WORK, work), ()).await.unwrap();
        let mut events = lab.engine().events();
        let run = flow.start("run", Board::default()).await.unwrap();
        hear(&mut events, is_parked).await;
        if signalled {
            lab.engine().signal("run", "go", "in time").await.unwrap();
            assert_eq!(run.wait().await.unwrap().word.as_deref(), Some("in time"));
        } else {
            assert_eq!(lab.finish(&run).await.unwrap().word.as_deref(), Some("too late"));
        }
    }
}

#[tokio::test]
async fn a_parked_run_can_be_cancelled() {
    let engine = engine(Options::default());
    let mut events = engine.events();
    let flow = engine.register(listens(), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, is_parked).await;
    run.cancel().await.unwrap();
    assert_eq!(run.wait().await.unwrap_err().code(), code::CANCELLED);
}
