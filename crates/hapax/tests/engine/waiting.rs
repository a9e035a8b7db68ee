//! Waiting: durable timers and signals, parked runs, and what a crash leaves of them.

use crate::common::*;
use hapax::{
    Coded, Event, Question, Status, WaitsOn,
    core::{error::code, mailbox::Posted},
    prelude::*,
    store::{Clock, MemoryStore, Store},
    testing::Lab,
};
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const HOUR: Duration = Duration::from_secs(3600);
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

#[tokio::test]
async fn an_answer_of_another_form_is_refused_and_the_question_stays() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            let question =
                Question::new("How many?").schema(serde_json::json!({ "type": "integer", "minimum": 1 }));
            let total: u64 = ctx.ask("count", question).await?;
            Ok::<_, hapax::EffectError>(Board::delta().total(total))
        }
    );
    let mut events = engine.events();
    let flow = engine.register(Graph::new("asks", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, is_parked).await;
    for unfit in [serde_json::json!("many"), serde_json::json!(0), serde_json::json!(null)] {
        let refused = engine.answer("run", "count", &unfit).await.unwrap_err();
        assert_eq!(refused.code(), code::ANSWER_REJECTED, "{refused}");
        assert_eq!(run.status().await.unwrap(), Status::Waiting { on: WaitsOn::Answer });
    }
    engine.answer("run", "count", &3).await.unwrap();
    assert_eq!(run.wait().await.unwrap().total, 3);
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

/// Moves a clock on, over the lease of whoever has crashed too.
fn pass_by(clock: &Clock, time: Duration) {
    clock.advance_to(clock.now_us() + time.as_micros() as i64);
}

/// Races a timer, which is asked first, against a signal; then pays for what won.
fn races(stuck: bool, reached: &Signal) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            let (mut timer, mut signal) = (ctx.scope("timer"), ctx.scope("signal"));
            let word = tokio::select! {
                biased;
                _ = timer.sleep(HOUR) => "too late".to_owned(),
                word = signal.signal::<String>("go") => word?,
            };
            let pay = async |_: hapax::Call| {
                stop_here(stuck, &reached).await;
                Ok::<(), NodeError>(())
            };
            ctx.effect("pay", Write, &word, pay).await?;
            Ok::<_, NodeError>(Board::delta().word(word))
        }
    );
    Graph::new("races", 1, WORK).node(WORK, work)
}

/// Lets one side win the race, crashes while it is paid for, and goes on two hours later.
fn raced(win: impl AsyncFnOnce(&Engine, &Clock)) -> Option<String> {
    let (reached, clock) = (Signal::default(), Clock::manual());
    let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
    let process = Process::doomed(&store);
    process.run(async {
        let engine = process.engine(Options::default());
        let flow = engine.register(races(true, &reached), ()).await.unwrap();
        let mut events = engine.events();
        flow.start("run", Board::default()).await.unwrap();
        hear(&mut events, is_parked).await;
        win(&engine, &clock).await;
        engine.resume("run").await.unwrap();
        reached.take().await;
        let _ = engine.signal("run", "go", "after all").await;
    });
    process.crash();
    pass_by(&clock, 2 * HOUR);
    go_on(&store, races(false, &reached)).unwrap().word
}

#[test]
fn what_won_a_race_before_a_crash_wins_it_again_whatever_has_happened_since() {
    let signal = async |engine: &Engine, _: &Clock| engine.signal("run", "go", "in time").await.unwrap();
    assert_eq!(raced(signal).as_deref(), Some("in time"), "although the timer has run out");
    let timer = async |_: &Engine, clock: &Clock| pass_by(clock, HOUR);
    assert_eq!(raced(timer).as_deref(), Some("too late"), "although the signal has come");
}

#[tokio::test]
async fn whoever_lost_a_race_is_waited_for_no_more() {
    let work = node!(
        [] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let total = tokio::select! {
                biased;
                never = left.signal::<u64>("never") => never?,
                read = right.effect("read", Read, &(), async |_| {
                    tokio::task::yield_now().await;
                    Ok::<u64, NodeError>(1)
                }) => read?,
            };
            // Not a recorded wait: nothing could be parked for it.
            tokio::task::spawn_blocking(|| ()).await.map_err(|gone| NodeError::new(gone.to_string()))?;
            Ok::<_, NodeError>(Board::delta().total(total))
        }
    );
    let engine = engine(Options::default());
    let flow = engine.register(Graph::new("loses", 1, WORK).node(WORK, work), ()).await.unwrap();
    assert_eq!(flow.start("run", Board::default()).await.unwrap().wait().await.unwrap().total, 1);
}

/// What the node does once its code was changed, for items that were under way and for fresh ones.
fn changed(reached: &Signal, stuck: bool, change: bool) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            let version = if change { ctx.version("pay-by-card", 1, 2)? } else { 1 };
            let name = if version == 1 { "pay" } else { "pay-by-card" };
            let _: () = ctx.effect("look", Write, &(), async |_| Ok::<(), NodeError>(())).await?;
            let pay = async |_: hapax::Call| {
                stop_here(stuck, &reached).await;
                Ok::<(), NodeError>(())
            };
            ctx.effect(name, Write, &(), pay).await?;
            Ok::<_, NodeError>(Board::delta().word(name.to_owned()))
        }
    );
    Graph::new("changed", 1, WORK).node(WORK, work)
}

#[test]
fn an_item_that_began_under_the_old_code_goes_on_with_it() {
    let (reached, store) = (Signal::default(), memory());
    crash_in(&store, changed(&reached, true, false), &reached);
    assert_eq!(go_on(&store, changed(&reached, false, true)).unwrap().word.as_deref(), Some("pay"));
}

#[test]
fn an_item_that_began_under_the_new_code_stays_with_it() {
    let (reached, store) = (Signal::default(), memory());
    crash_in(&store, changed(&reached, true, true), &reached);
    assert_eq!(go_on(&store, changed(&reached, false, true)).unwrap().word.as_deref(), Some("pay-by-card"));
}

#[tokio::test]
async fn a_run_of_the_old_code_replays_with_the_new() {
    let engine = engine(Options::default());
    let reached = Signal::default();
    let flow = engine.register(changed(&reached, false, false), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let flow = engine.register(changed(&reached, false, true), ()).await.unwrap();
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
    let fresh = flow.start("fresh", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(fresh.word.as_deref(), Some("pay-by-card"));
    assert_eq!(engine.replay("fresh").await.unwrap().divergence, None);
}
