//! Recorded calls of every kind: what is repeated, what never is, and what only a person can decide.

use crate::common::*;
use hapax::{
    Coded, EffectError, Effects, Error, NodePolicy, Resolution, Status, Unsent,
    core::{error::code, journal::Entry, json::Json},
    prelude::*,
    store::Store,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const WORK: Node = Node::new("work");

/// The outside changes its answer each time it is asked.
#[derive(Clone, Default)]
struct Fickle(Arc<AtomicU64>);

impl Fickle {
    fn read(&self) -> Result<u64, NodeError> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

/// A read whose answer changes between attempts feeds a write, which a crash cuts off.
fn reads_then_writes(
    outside: &Fickle,
    keys: &Diary,
    reached: &Signal,
    stuck: bool,
) -> impl Fn(Ctx) -> futures::future::BoxFuture<'static, Result<BoardDelta, EffectError>> + Send + Sync + 'static
{
    let (outside, keys, reached) = (outside.clone(), keys.clone(), reached.clone());
    move |mut ctx: Ctx| {
        let (outside, keys, reached) = (outside.clone(), keys.clone(), reached.clone());
        Box::pin(async move {
            let rate = ctx.effect("rate", Read, "EUR", async |_| outside.read()).await?;
            let pay = async |call: hapax::Call| {
                keys.note(call.key());
                stop_here(stuck, &reached).await;
                Ok::<u64, NodeError>(rate)
            };
            Ok(Board::delta().total(ctx.effect("pay", Write, &rate, pay).await?))
        })
    }
}

#[test]
fn a_read_that_a_write_rests_on_is_never_repeated() {
    for durability in [hapax::Durability::Pipelined, hapax::Durability::Strict] {
        let (outside, keys, reached) = (Fickle::default(), Diary::default(), Signal::default());
        let store = memory();
        let graph = |stuck| {
            Graph::new("fickle", 1, WORK).node(WORK, reads_then_writes(&outside, &keys, &reached, stuck))
        };
        let process = Process::doomed(&store);
        process.run(async {
            let options = Options::default().durability(durability);
            let flow = process.engine(options).register(graph(true), ()).await.unwrap();
            flow.start("run", Board::default()).await.unwrap();
            reached.take().await;
        });
        process.crash();
        assert_eq!(go_on(&store, graph(false)).unwrap().total, 0, "the first answer counts");
        assert_eq!(outside.0.load(Ordering::SeqCst), 1);
        let keys = keys.all();
        assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    }
}

#[tokio::test]
async fn a_read_is_repeated_until_it_is_recorded() {
    let (calls, diary) = (Fickle::default(), Diary::default());
    let work = node!(
        [calls, diary] | ctx | {
            let read = async |_: hapax::Call| {
                diary.note("asked");
                let answer = calls.read()?;
                if answer == 0 { Err(NodeError::new("not yet")) } else { Ok(answer) }
            };
            let read: u64 = ctx.effect("ask", Read, &(), read).await?;
            if ctx.attempt() < 3 {
                return Err(NodeError::new("again"));
            }
            Ok(Board::delta().total(read))
        }
    );
    let retry = NodePolicy::default().retry(Retry::standard().backoff(|_| Duration::ZERO));
    let graph = Graph::new("asking", 1, WORK).node(WORK, work).policy(WORK, retry);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    assert_eq!(flow.start("run", Board::default()).await.unwrap().wait().await.unwrap().total, 1);
    assert_eq!(diary.len(), 2, "once in vain, once for good");
}

#[test]
fn the_clock_and_fresh_ids_are_the_same_after_a_crash() {
    let (seen, reached, store) = (Diary::default(), Signal::default(), memory());
    let graph = |stuck: bool| {
        let work = node!(
            [seen, reached] | ctx | {
                seen.note(format!("{:?} {} {}", ctx.now(), ctx.uuid(), ctx.random()));
                let pay = async |_: hapax::Call| {
                    stop_here(stuck, &reached).await;
                    Ok::<u64, NodeError>(5)
                };
                ctx.effect("pay", Write, &42, pay).await.map(drop)
            }
        );
        Graph::new("telling", 1, WORK).node(WORK, work)
    };
    crash_in(&store, graph(true), &reached);
    go_on(&store, graph(false)).unwrap();
    let seen = seen.all();
    assert_eq!((seen.len(), &seen[0]), (2, &seen[1]));
}

/// Sends something that must not be sent twice, and gets stuck in it as long as it is told to.
fn sends_once(sent: &Diary, reached: &Signal, stuck: bool) -> Graph<Board> {
    let work = node!(
        [sent, reached] | ctx | {
            let send = async |_: hapax::Call| {
                sent.note("sent");
                stop_here(stuck, &reached).await;
                Ok::<u64, NodeError>(5)
            };
            let answer = ctx.effect("send", WriteAtMostOnce, &42, send).await?;
            Ok::<_, EffectError>(Board::delta().total(answer))
        }
    );
    Graph::new("sending", 1, WORK).node(WORK, work)
}

/// Goes on with what a crash left in doubt, and tells how the call ended.
fn resolve(store: &Arc<dyn Store>, graph: Graph<Board>, resolution: Resolution) -> Result<Board, Error> {
    let process = Process::healthy(store);
    process.run(async {
        let engine = process.engine(Options::default());
        let mut events = engine.events();
        let flow = engine.register(graph, ()).await?;
        hear(&mut events, |event| matches!(event, hapax::Event::RunEnded { status: Status::InDoubt, .. }))
            .await;
        assert_eq!(engine.status("run").await?, Status::InDoubt);
        engine.resolve("run", "send", resolution).await?;
        flow.attach("run").await?.wait().await
    })
}

#[test]
fn a_write_at_most_once_is_never_sent_again_by_itself() {
    let told = |total: u64| Resolution::Result(Json::of(&total).unwrap());
    for (resolution, sent_in_all, total) in
        [(told(7), 1, Some(7)), (Resolution::Retry, 2, Some(5)), (Resolution::Fail("lost".into()), 1, None)]
    {
        let (sent, reached, store) = (Diary::default(), Signal::default(), memory());
        crash_in(&store, sends_once(&sent, &reached, true), &reached);
        let outcome = resolve(&store, sends_once(&sent, &reached, false), resolution);
        assert_eq!(outcome.as_ref().ok().map(|board| board.total), total, "{outcome:?}");
        assert_eq!(sent.len(), sent_in_all);
    }
}

#[tokio::test]
async fn an_error_that_proves_nothing_parks_the_run_and_one_that_proves_it_does_not() {
    for (proof, sent_in_all) in [(true, 2), (false, 1)] {
        let sent = Diary::default();
        let work = node!(
            [sent] | ctx | {
                let send = async |_: hapax::Call| {
                    sent.note("sent");
                    match sent.len() {
                        1 if proof => Err(NodeError::from(Unsent::new("no route to host"))),
                        1 => Err(NodeError::new("timed out")),
                        _ => Ok(5u64),
                    }
                };
                ctx.effect("send", WriteAtMostOnce, &42, send).await.map(drop)
            }
        );
        let retry = NodePolicy::default().retry(Retry::standard().backoff(|_| Duration::ZERO));
        let graph = Graph::new("sending", 1, WORK).node(WORK, work).policy(WORK, retry);
        let engine = engine(Options::default());
        let mut events = engine.events();
        let flow = engine.register(graph, ()).await.unwrap();
        let run = flow.start("run", Board::default()).await.unwrap();
        let ended = hear(&mut events, |event| matches!(event, hapax::Event::RunEnded { .. })).await;
        let expected = if proof { Status::Succeeded } else { Status::InDoubt };
        assert!(matches!(ended.last(), Some(hapax::Event::RunEnded { status, .. }) if *status == expected));
        assert_eq!(run.status().await.unwrap(), expected);
        assert_eq!(sent.len(), sent_in_all);
    }
}

#[tokio::test]
async fn only_a_call_in_doubt_can_be_resolved() {
    let engine = engine(Options::default());
    let flow = engine.register(
        Graph::new("idle", 1, WORK).node(WORK, node!([] | ctx | { ctx.signal::<()>("go").await })),
        (),
    );
    let run = flow.await.unwrap().start("run", Board::default()).await.unwrap();
    let refused = engine.resolve("run", "send", Resolution::Retry).await.unwrap_err();
    assert_eq!(refused.code(), code::NOT_IN_DOUBT, "{refused}");
    engine.signal("run", "go", &()).await.unwrap();
    run.wait().await.unwrap();
    let refused = engine.resolve("run", "send", Resolution::Retry).await.unwrap_err();
    assert_eq!(refused.code(), code::ALREADY_FINISHED, "{refused}");
}

#[tokio::test]
async fn a_node_that_declares_no_effects_cannot_make_any() {
    for (allowed, kind, fits) in [
        (Effects::None, Read, false),
        (Effects::None, Write, false),
        (Effects::Reads, Read, true),
        (Effects::Reads, Write, false),
        (Effects::Reads, WriteAtMostOnce, false),
        (Effects::All, WriteAtMostOnce, true),
    ] {
        let calls = Diary::default();
        let work = node!(
            [calls] | ctx | {
                let call = async |_: hapax::Call| {
                    calls.note("called");
                    Ok::<u64, NodeError>(1)
                };
                // Swallowing the error doesn't help.
                let _ = ctx.effect("call", kind, &1, call).await;
            }
        );
        let policy = NodePolicy::default().effects(allowed);
        let graph = Graph::new("declared", 1, WORK).node(WORK, work).policy(WORK, policy);
        let flow = engine(Options::default()).register(graph, ()).await.unwrap();
        let outcome = flow.start("run", Board::default()).await.unwrap().wait().await;
        assert_eq!(outcome.is_ok(), fits, "{allowed:?} {kind:?}");
        assert_eq!(calls.len(), usize::from(fits));
        if let Err(error) = outcome {
            assert_eq!(error.code(), code::UNDECLARED_EFFECT, "{error}");
        }
    }
}

#[tokio::test]
async fn a_policy_can_give_calls_their_keys() {
    let keys = Diary::default();
    let work = node!(
        [keys] | ctx | {
            let pay = async |call: hapax::Call| {
                keys.note(call.key());
                Ok::<u64, NodeError>(1)
            };
            ctx.effect("pay", Write, &42, pay).await.map(drop)
        }
    );
    let policy =
        NodePolicy::default().idempotency(|call| format!("{}/{}/{}", call.run_id, call.name, call.request));
    let graph = Graph::new("paying", 1, WORK).node(WORK, work).policy(WORK, policy);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(keys.all(), ["run/pay/42"]);
}

/// What a step saw is in the journal of its own commit, in the order of the calls.
#[tokio::test]
async fn what_a_single_item_saw_is_committed_with_its_step() {
    let work = node!(
        [] | ctx | {
            ctx.now();
            ctx.effect("ask", Read, &1, async |_| Ok::<u64, NodeError>(1)).await?;
            ctx.uuid();
            Ok::<_, EffectError>(())
        }
    );
    let engine = engine(Options::default());
    let flow = engine.register(Graph::new("seeing", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let rows = engine.store().journal(key("run"), 0, 100).await.unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| match &row.entry {
            Entry::Seen(seen) => (row.seq, seen.index, seen.name.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, [(0, 0, "hapax.now"), (1, 1, "ask"), (2, 2, "hapax.uuid")]);
}
