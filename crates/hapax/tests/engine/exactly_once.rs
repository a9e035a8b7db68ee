//! Exactly once: one run per id, one record per call, and no step twice, whatever crashes in between.

use crate::common::*;
use hapax::{
    Coded, EffectError, Error,
    core::{commit::Write as StoreWrite, error::code, journal::Entry},
    prelude::*,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::oneshot;

const WORK: Node = Node::new("work");
const NEXT: Node = Node::new("next");
const ITEM: Node<u64> = Node::new("item");

/// Notes that it ran, then waits for the signal.
fn noting(diary: &Diary, signal: &Signal) -> Graph<Board> {
    let work = node!(
        [diary, signal] | ctx | {
            diary.note("ran");
            signal.take().await;
            Board::delta().total(1u64)
        }
    );
    Graph::new("noting", 1, WORK).node(WORK, work)
}

#[tokio::test]
async fn starting_twice_attaches_to_the_run_that_is_there() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let flow = engine(Options::default()).register(noting(&diary, &signal), ()).await.unwrap();
    let first = flow.start("run", Board::default()).await.unwrap();
    let second = flow.start("run", Board::default()).await.unwrap();
    signal.give();
    assert_eq!(first.wait().await.unwrap(), second.wait().await.unwrap());
    let third = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(third.wait().await.unwrap().total, 1);
    assert_eq!(diary.all(), ["ran"]);
}

#[tokio::test]
async fn the_same_id_with_another_input_or_graph_is_refused() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(noting(&diary, &signal), ()).await.unwrap();
    signal.give();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let other_input = Board { total: 9, ..Board::default() };
    assert!(matches!(flow.start("run", other_input).await, Err(Error::RunExists { .. })));
    let other = Graph::new("other", 1, WORK).node(WORK, node!([] | ctx | {}));
    let other = engine.register(other, ()).await.unwrap();
    assert!(matches!(other.start("run", Board::default()).await, Err(Error::RunExists { .. })));
}

#[tokio::test]
async fn dropping_a_handle_never_cancels() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let flow = engine(Options::default()).register(noting(&diary, &signal), ()).await.unwrap();
    drop(flow.start("run", Board::default()).await.unwrap());
    signal.give();
    assert_eq!(flow.attach("run").await.unwrap().wait().await.unwrap().total, 1);
}

#[test]
fn a_call_without_a_recorded_answer_is_repeated_with_the_same_key() {
    let (keys, reached, store) = (Diary::default(), Signal::default(), memory());
    let graph = |stuck: bool| {
        let work = node!(
            [keys, reached] | ctx | {
                let pay = async |call: hapax::Call| {
                    keys.note(call.key());
                    stop_here(stuck, &reached).await;
                    Ok::<u64, NodeError>(5)
                };
                Ok::<_, EffectError>(Board::delta().total(ctx.effect("pay", Write, &42, pay).await?))
            }
        );
        Graph::new("paying", 1, WORK).node(WORK, work)
    };
    crash_in(&store, graph(true), &reached);
    assert_eq!(go_on(&store, graph(false)).unwrap().total, 5);
    let keys = keys.all();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

#[test]
fn a_recorded_answer_is_given_again_without_a_call() {
    let (calls, reached, store) = (Diary::default(), Signal::default(), memory());
    let graph = |stuck: bool| {
        let work = node!(
            [calls, reached] | ctx | {
                let pay = async |_| {
                    calls.note("paid");
                    Ok::<u64, NodeError>(calls.len() as u64)
                };
                let paid = ctx.effect("pay", Write, &42, pay).await?;
                stop_here(stuck, &reached).await;
                Ok::<_, EffectError>(Board::delta().total(paid))
            }
        );
        Graph::new("paid", 1, WORK).node(WORK, work)
    };
    crash_in(&store, graph(true), &reached);
    assert_eq!(go_on(&store, graph(false)).unwrap().total, 1);
    assert_eq!(calls.len(), 1);
}

/// An attempt that is over between its call and the disk has recorded the call all the same.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_on_its_way_to_the_disk_is_not_asked_for_again() {
    let (calls, signal) = (Diary::default(), Signal::default());
    let work = node!(
        [calls, signal] | ctx | {
            let pay = async |_| {
                calls.note("paid");
                Ok::<u64, NodeError>(5)
            };
            let first = ctx.attempt() == 1;
            let paid = tokio::select! {
                paid = ctx.effect("pay", Write, &42, pay) => paid?,
                () = pass(Duration::from_secs(5)), if first => return Err(NodeError::new("too long")),
            };
            signal.give();
            Ok(Board::delta().total(paid))
        }
    );
    let is_a_result = |write: &StoreWrite| match write {
        StoreWrite::Append(append) => matches!(append.rows[0].entry, Entry::Result { .. }),
        _ => false,
    };
    let retry = Retry::standard().backoff(|_| Duration::ZERO);
    let options = Options::default().retry(retry);
    let store = Arc::new(Mortal::slow_to_answer(memory(), is_a_result, &signal));
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(Graph::new("slow", 1, WORK).node(WORK, work), ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!((board.total, calls.len()), (5, 1));
}

#[test]
fn a_committed_step_and_a_finished_item_never_run_again() {
    let (diary, reached, store) = (Diary::default(), Signal::default(), memory());
    let graph = |stuck: bool| {
        let work = node!(
            [diary] | ctx | {
                diary.note("start");
                Board::delta().fork((0..3).map(|n| ITEM.with(n)))
            }
        );
        let item = node!([diary, reached] |ctx, n: u64| {
            // The last item waits for the others, so that they are journaled when the crash comes.
            if stuck && n == 2 {
                while diary.len() < 3 {
                    tokio::task::yield_now().await;
                }
                stop_here(true, &reached).await;
            }
            diary.note(n.to_string());
            Board::delta().total(n)
        });
        Graph::new("items", 1, WORK).node(WORK, work).node(ITEM, item)
    };
    let process = Process::doomed(&store);
    process.run(async {
        let engine = process.engine(Options::default());
        let mut events = engine.events();
        let flow = engine.register(graph(true), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        reached.take().await;
        let finished = |event: &hapax::Event| {
            matches!(event, hapax::Event::ItemFinished { node, .. } if node.as_str() == "item")
        };
        hear(&mut events, finished).await;
        hear(&mut events, finished).await;
    });
    process.crash();
    assert_eq!(go_on(&store, graph(false)).unwrap().total, 3);
    let mut calls = diary.all();
    calls.sort();
    assert_eq!(calls, ["0", "1", "2", "start"]);
}

/// A node that makes the given calls, and gets stuck behind them if told so.
fn calling(names: &'static [&'static str], stuck: bool, reached: &Signal) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            for name in names {
                ctx.effect(name, Write, name, async |_| Ok::<u64, NodeError>(1)).await?;
            }
            stop_here(stuck, &reached).await;
            Ok::<_, EffectError>(())
        }
    );
    Graph::new("calling", 1, WORK).node(WORK, work)
}

#[test]
fn code_that_asks_for_something_else_than_its_record_is_a_replay_mismatch() {
    let (reached, store) = (Signal::default(), memory());
    crash_in(&store, calling(&["reserve", "pay"], true, &reached), &reached);
    let error = go_on(&store, calling(&["reserve", "refund"], false, &reached)).unwrap_err();
    assert_eq!(error.code(), code::REPLAY_MISMATCH);
    for word in ["`work`", "step 0", "call 1 pay", "expected pay", "got refund"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_record_that_nobody_asks_for_is_a_replay_mismatch() {
    let (reached, store) = (Signal::default(), memory());
    crash_in(&store, calling(&["reserve", "pay"], true, &reached), &reached);
    let error = go_on(&store, calling(&["reserve"], false, &reached)).unwrap_err();
    assert_eq!(error.code(), code::REPLAY_MISMATCH);
    assert!(error.to_string().contains("call 1 pay"), "{error}");
}

#[test]
fn mended_code_goes_on_after_a_replay_mismatch() {
    let (reached, store) = (Signal::default(), memory());
    crash_in(&store, calling(&["reserve", "pay"], true, &reached), &reached);
    go_on(&store, calling(&["reserve"], false, &reached)).unwrap_err();
    let process = Process::healthy(&store);
    process.run(async {
        let graph = calling(&["reserve", "pay"], false, &reached);
        let flow = process.engine(Options::default()).register(graph, ()).await.unwrap();
        flow.retry("run").await.unwrap().wait().await.unwrap();
    });
}

#[tokio::test]
async fn a_scope_name_can_be_used_once() {
    let work = node!(
        [] | ctx | {
            let (_first, _second) = (ctx.scope("lane"), ctx.scope("lane"));
        }
    );
    let graph = Graph::new("lanes", 1, WORK).node(WORK, work);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::REPLAY_MISMATCH);
    assert!(error.to_string().contains("`lane`"), "{error}");
}

#[tokio::test]
async fn calls_of_different_lanes_have_different_keys() {
    let keys = Diary::default();
    let work = node!(
        [keys] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let note = |call: hapax::Call| {
                keys.note(call.key());
                Ok::<u64, NodeError>(1)
            };
            let (a, b) = tokio::join!(
                left.effect("ask", Write, &1, async |call| note(call)),
                right.effect("ask", Write, &1, async |call| note(call)),
            );
            Ok::<_, EffectError>(Board::delta().total(a? + b?))
        }
    );
    let flow =
        engine(Options::default()).register(Graph::new("lanes", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_ne!(keys.all()[0], keys.all()[1]);
}

#[tokio::test]
async fn the_context_of_an_ended_attempt_is_dead() {
    let (sender, answer) = oneshot::channel();
    let (sender, ended, calls) = (Arc::new(Mutex::new(Some(sender))), Signal::default(), Diary::default());
    let work = node!(
        [sender, ended, calls] | ctx | {
            let sender = sender.lock().unwrap().take().unwrap();
            tokio::spawn(async move {
                ended.take().await;
                let call = async |_| {
                    calls.note("called");
                    Ok::<u64, NodeError>(1)
                };
                // The test may have failed and gone.
                let _ = sender.send(ctx.effect("late", Write, &1, call).await);
            });
        }
    );
    let flow =
        engine(Options::default()).register(Graph::new("late", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    ended.give();
    assert_eq!(answer.await.unwrap().unwrap_err().code, code::DEAD_HANDLE);
    assert!(calls.all().is_empty());
}

#[tokio::test]
async fn starting_a_live_run_of_another_shape_is_refused_and_a_finished_one_gives_its_result() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let first = engine(Options::default());
    let flow = first.register(noting(&diary, &signal), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let second = Engine::builder().with_store(first.store());
    let changed = noting(&diary, &signal).node(NEXT, node!([] | ctx | {})).edge(WORK, NEXT);
    let changed = second.register(changed, ()).await.unwrap();
    let error = changed.start("run", Board::default()).await.unwrap_err();
    assert_eq!(error.code(), code::GRAPH_MISMATCH);
    signal.give();
    run.wait().await.unwrap();
    assert_eq!(changed.start("run", Board::default()).await.unwrap().wait().await.unwrap().total, 1);
}
