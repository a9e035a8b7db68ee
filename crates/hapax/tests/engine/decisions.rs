//! One decision, one effect: of people who decide at the same time, of errors that nothing rests on, of forks in doubt.

use crate::common::*;
use futures::future::BoxFuture;
use hapax::{
    Coded, EffectError, Error, Fork, NodePolicy, Options, Question, Resolution, Retry, Status,
    core::{commit::WaitsOn, error::code, json::Json},
    prelude::*,
    store::{Clock, MemoryStore},
    testing::Lab,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");

/// A policy with so many attempts and no pauses.
fn attempts(count: u32) -> NodePolicy {
    NodePolicy::default().retry(Retry::standard().attempts(count).backoff(|_| Duration::ZERO))
}

fn asks(status: &Status) -> bool {
    matches!(status, Status::Waiting { on: WaitsOn::Answer })
}

/// The second question of a name is judged by its own schema, and the first is asked no more.
#[tokio::test]
async fn a_name_that_is_asked_again_is_another_question() {
    let lab = Lab::new();
    let engine = lab.engine();
    let work = node!(
        [] | ctx | {
            let number: u64 =
                ctx.ask("q", Question::new("How many?").schema(json!({ "type": "integer" }))).await?;
            let why: String = ctx.ask("q", Question::new("Why?").schema(json!({ "type": "string" }))).await?;
            Ok::<_, EffectError>(Board::delta().total(number).word(why))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    lab.until("run", asks).await.unwrap();
    let (one, two) = tokio::join!(engine.answer("run", "q", &3), engine.answer("run", "q", &4));
    let refused = one.err().or(two.err()).expect("one of two answers to one question is refused");
    assert_eq!(refused.code(), code::NO_QUESTION);
    lab.until("run", asks).await.unwrap();
    let texts: Vec<String> =
        engine.inbox().await.unwrap().into_iter().map(|question| question.text).collect();
    assert_eq!(texts, ["Why?"]);
    assert_eq!(engine.answer("run", "q", &5).await.unwrap_err().code(), code::ANSWER_REJECTED);
    engine.answer("run", "q", "because").await.unwrap();
    assert_eq!(lab.finish(&run).await.unwrap().word.as_deref(), Some("because"));
}

/// Open questions of one name, in several items and lanes, are each judged by their own schema and answered once.
#[tokio::test]
async fn questions_of_one_name_are_answered_one_by_one() {
    let lab = Lab::new();
    let engine = lab.engine();
    let start = node!([] | ctx | { Board::delta().fork([LEFT.with(()), RIGHT.with(())]) });
    let ask = node!(
        [] | ctx | {
            let (mut one, mut two) = (ctx.scope("one"), ctx.scope("two"));
            let (number, why) = tokio::join!(
                one.ask::<u64>("q", Question::new("How many?").schema(json!({ "type": "integer" }))),
                two.ask::<String>("q", Question::new("Why?").schema(json!({ "type": "string" }))),
            );
            Ok::<_, EffectError>(Board::delta().total(number?).log(why?))
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, start).node(LEFT, ask).node(RIGHT, ask);
    let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
    for left in (1..=4).rev() {
        lab.until("run", asks).await.unwrap();
        let open = engine.inbox().await.unwrap();
        assert_eq!(open.len(), left);
        let (right, wrong) = if open[0].schema == Some(json!({ "type": "integer" })) {
            (json!(3), json!("because"))
        } else {
            (json!("because"), json!(3))
        };
        assert_eq!(engine.answer("run", "q", &wrong).await.unwrap_err().code(), code::ANSWER_REJECTED);
        engine.answer("run", "q", &right).await.unwrap();
    }
    let board = lab.finish(&run).await.unwrap();
    assert_eq!((board.total, &board.log[..]), (6, &["because".to_owned(), "because".to_owned()][..]));
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
}

/// An answer whose question has lost its race meanwhile doesn't answer the next question of that name.
#[tokio::test]
async fn an_answer_that_comes_too_late_answers_nothing_else() {
    let clock = Clock::manual();
    let store = MemoryStore::with_clock(clock.clone());
    let engine = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
    let race = node!(
        [] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let agreed = Question::new("Refund a cent?").schema(json!({ "type": "boolean" }));
            let word = tokio::select! {
                biased;
                slept = right.sleep(Duration::from_secs(60)) => slept.map(|()| "late".to_owned()),
                agreed = left.ask::<bool>("q", agreed) => agreed.map(|agreed| agreed.to_string()),
            };
            Ok::<_, EffectError>(Board::delta().log(word?).goto(RIGHT))
        }
    );
    let ask = node!(
        [] | ctx | {
            let many = Question::new("How many millions?").schema(json!({ "type": "integer" }));
            Ok::<_, EffectError>(Board::delta().total(ctx.ask::<u64>("q", many).await?))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, race).node(RIGHT, ask), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    let asked = async |text: &str| {
        while engine.inbox().await.unwrap().iter().all(|question| question.text != text) {
            tokio::task::yield_now().await;
        }
    };
    asked("Refund a cent?").await;
    engine.answer("run", "q", &true).await.unwrap();
    clock.advance(Duration::from_secs(60));
    engine.resume("run").await.unwrap();
    asked("How many millions?").await;
    engine.answer("run", "q", &0).await.unwrap();
    engine.resume("run").await.unwrap();
    let board = flow.attach("run").await.unwrap().wait().await.unwrap();
    assert_eq!((board.total, &board.log[..]), (0, &["late".to_owned()][..]));
}

/// Two who decide at once about one doubt make one decision.
#[tokio::test]
async fn a_doubt_is_decided_once() {
    let (lab, calls) = (Lab::new(), Diary::default());
    let engine = lab.engine();
    let work = node!(
        [calls] | ctx | {
            let pay = async |call: hapax::Call| {
                calls.note(call.key());
                Err::<u64, _>(NodeError::new("no answer"))
            };
            Ok::<_, EffectError>(Board::delta().total(ctx.effect("pay", WriteAtMostOnce, "x", pay).await?))
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(10));
    let flow = engine.register(graph, ()).await.unwrap();
    let _run = flow.start("run", Board::default()).await.unwrap();
    let in_doubt = |status: &Status| matches!(status, Status::InDoubt);
    lab.until("run", in_doubt).await.unwrap();
    for fork in
        [Fork::at("run", 0).named("as-it-is"), Fork::at("run", 0).named("set").set("word", "x").unwrap()]
    {
        assert_eq!(engine.fork(fork).await.unwrap_err().code(), code::CANNOT_FORK);
    }
    let decide = || engine.resolve("run", "pay", Resolution::Retry);
    let (one, two) = tokio::join!(decide(), decide());
    assert_eq!(one.err().or(two.err()).expect("one is too late").code(), code::NOT_IN_DOUBT);
    lab.until("run", |status| in_doubt(status) && calls.len() > 1).await.unwrap();
    assert_eq!(calls.len(), 2, "one decision, one call");
}

/// A second engine over the store of the first, with whom the first decides whenever it is about to post its word.
fn overtaken(
    engine: &Engine,
    decide: impl Fn(Engine) -> BoxFuture<'static, ()> + Send + Sync + 'static,
) -> Engine {
    let (store, first) = (engine.store(), engine.clone());
    let slow = Mortal::posting_while(store, move || decide(first.clone()));
    Engine::builder().options(Options::default().finds_work(false)).with_store(Arc::new(slow))
}

/// Whoever is overtaken between looking and deciding is told so: the next doubt, or question, isn't theirs.
#[tokio::test]
async fn who_is_overtaken_decides_nothing() {
    let lab = Lab::new();
    let engine = lab.engine();
    let work = node!(
        [] | ctx | {
            let one: u64 = ctx.ask("q", Question::new("How many?")).await?;
            let two: u64 = ctx.ask("q", Question::new("How many more?")).await?;
            let lost = async |_: hapax::Call| Err::<u64, _>(NodeError::new("no answer"));
            let paid = ctx.effect("pay", WriteAtMostOnce, &(one + two), lost).await?;
            Ok::<_, EffectError>(Board::delta().total(one + two + paid))
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(10));
    let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
    lab.until("run", asks).await.unwrap();
    let second =
        overtaken(engine, |first| Box::pin(async move { first.answer("run", "q", &1).await.unwrap() }));
    assert_eq!(second.answer("run", "q", &100).await.unwrap_err().code(), code::NO_QUESTION);
    lab.until("run", asks).await.unwrap();
    engine.answer("run", "q", &2).await.unwrap();
    lab.until("run", |status| matches!(status, Status::InDoubt)).await.unwrap();
    let told = |total: u64| Resolution::Result(Json::of(&total).unwrap());
    let second = overtaken(engine, move |first| {
        Box::pin(async move { first.resolve("run", "pay", told(3)).await.unwrap() })
    });
    assert_eq!(second.resolve("run", "pay", told(100)).await.unwrap_err().code(), code::NOT_IN_DOUBT);
    assert_eq!(lab.finish(&run).await.unwrap().total, 6);
}

/// A read that was under way when a call failed can't rest on the failure: the call is made again.
#[tokio::test]
async fn a_passing_error_beside_a_slower_read_is_not_final() {
    for kind in [Write, Read] {
        let (lab, calls, failed) = (Lab::new(), Diary::default(), Signal::default());
        let (engine, began) = (lab.engine(), Signal::default());
        let work = node!(
            [calls, failed, began] | ctx | {
                let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
                let flaky = async |_: hapax::Call| {
                    if calls.len() == 0 {
                        began.take().await;
                    }
                    calls.note("flaky");
                    if calls.len() < 4 { Err(NodeError::new("503")) } else { Ok(1_u64) }
                };
                let slow = async |_: hapax::Call| {
                    began.give();
                    failed.take().await;
                    Ok::<_, NodeError>(2_u64)
                };
                let (one, two) = futures::join!(
                    async {
                        let one = left.effect("flaky", kind, "x", flaky).await;
                        failed.give();
                        one
                    },
                    right.effect("slow", Read, "y", slow)
                );
                Ok::<_, EffectError>(Board::delta().total(one? + two?))
            }
        );
        let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(10));
        let flow = engine.register(graph, ()).await.unwrap();
        let run = flow.start("run", Board::default()).await.unwrap();
        assert_eq!(lab.finish(&run).await.unwrap().total, 3, "{kind:?}");
        assert_eq!(calls.len(), 4);
        assert!(engine.replay("run").await.unwrap().divergence.is_none());
    }
}

/// What would be waited for longer than anything is an error, and so is a question that no store would take.
#[tokio::test]
async fn absurd_waits_and_questions_are_refused() {
    let lab = Lab::new();
    let engine = lab.engine();
    let work = node!(
        [] | ctx | {
            let name = ctx.run_id().to_string();
            let pause = if name == "asked" { Duration::MAX } else { Duration::ZERO };
            if name == "question" {
                ctx.ask::<u64>("q", Question::new("x".repeat(17 << 20))).await?;
            }
            Err::<BoardDelta, _>(NodeError::new("busy").retry_after(pause))
        }
    );
    let for_ever = || Retry::standard().attempts(3).backoff(|_| Duration::MAX);
    for (name, retry, code) in [
        ("asked", Retry::standard(), code::BAD_DURATION),
        ("backoff", for_ever(), code::BAD_DURATION),
        ("question", Retry::standard(), code::LIMIT),
    ] {
        let graph = Graph::new(name, 1, WORK).node(WORK, work);
        let flow = engine.register(graph.policy(WORK, NodePolicy::default().retry(retry)), ()).await.unwrap();
        let run = flow.start(name, Board::default()).await.unwrap();
        let Err(Error::Failed { failure, .. }) = lab.finish(&run).await else { panic!("{name} is no error") };
        assert_eq!(failure.code, code, "{name}: {}", failure.message);
    }
}

/// A fork that sets what isn't there would change nothing and call the outside all the same.
#[tokio::test]
async fn a_fork_sets_only_what_is_there() {
    let lab = Lab::new();
    let engine = lab.engine();
    let work = node!([] | ctx | { Board::delta().word("done".to_owned()) });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    lab.finish(&flow.start("run", Board::default()).await.unwrap()).await.unwrap();
    for path in ["nonsense", "", "/", "word.deeper"] {
        let fork = Fork::at("run", 0).named("typo").set(path, "x").unwrap();
        assert_eq!(engine.fork(fork).await.unwrap_err().code(), code::CANNOT_FORK, "{path}");
        assert!(engine.record("typo").await.is_err(), "{path}: nothing was created");
    }
}

/// A run that sleeps came past whatever stands before its sleep: new code there stays on the old side.
#[tokio::test]
async fn a_version_before_a_sleep_under_way_is_the_old_one() {
    let lab = Lab::new();
    let old = node!(
        [] | ctx | {
            ctx.sleep(Duration::from_secs(86_400)).await?;
            Ok::<_, EffectError>(Board::delta().word("old".to_owned()))
        }
    );
    let new = node!(
        [] | ctx | {
            if ctx.version("change", 1, 2)? == 1 {
                ctx.sleep(Duration::from_secs(86_400)).await?;
                return Ok::<_, EffectError>(Board::delta().word("old".to_owned()));
            }
            Ok(Board::delta().word("new".to_owned()))
        }
    );
    let engine = lab.engine();
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, old), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    lab.until("run", |status| matches!(status, Status::Waiting { on: WaitsOn::Timer })).await.unwrap();
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, new), ()).await.unwrap();
    assert!(engine.replay("run").await.unwrap().divergence.is_none());
    let run = flow.attach("run").await.unwrap();
    assert_eq!(lab.finish(&run).await.unwrap().word.as_deref(), Some("old"));
    let fresh = flow.start("fresh", Board::default()).await.unwrap();
    assert_eq!(lab.finish(&fresh).await.unwrap().word.as_deref(), Some("new"));
}

/// A call that must not be sent twice was cut off, and no attempt is left: a person is asked all the same.
#[tokio::test]
async fn a_call_cut_off_by_the_last_attempt_is_in_doubt() {
    let (lab, calls) = (Lab::new(), Diary::default());
    let engine = lab.engine();
    let work = node!(
        [calls] | ctx | {
            let pay = async |call: hapax::Call| {
                calls.note(call.key());
                if calls.len() == 1 {
                    panic!("cut off");
                }
                Ok::<u64, NodeError>(0)
            };
            Ok::<_, EffectError>(Board::delta().total(ctx.effect("pay", WriteAtMostOnce, "x", pay).await?))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    lab.until("run", |status| matches!(status, Status::InDoubt)).await.unwrap();
    engine.resolve("run", "pay", Resolution::Result(Json::of(&7_u64).unwrap())).await.unwrap();
    assert_eq!(lab.finish(&run).await.unwrap().total, 7);
    assert_eq!(calls.len(), 1);
    assert!(engine.replay("run").await.unwrap().divergence.is_none());
}

/// A run that waits for a signal came past whatever stands before its wait, as one that sleeps did.
#[tokio::test]
async fn a_version_before_a_signal_waited_for_is_the_old_one() {
    let lab = Lab::new();
    let old = node!(
        [] | ctx | {
            let word: String = ctx.signal("go").await?;
            Ok::<_, EffectError>(Board::delta().word(word))
        }
    );
    let new = node!(
        [] | ctx | {
            let version = ctx.version("change", 1, 2)?;
            let word: String = ctx.signal(if version == 1 { "go" } else { "go-2" }).await?;
            Ok::<_, EffectError>(Board::delta().word(word))
        }
    );
    let engine = lab.engine();
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, old), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    lab.until("run", |status| matches!(status, Status::Waiting { on: WaitsOn::Signal })).await.unwrap();
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, new), ()).await.unwrap();
    assert!(engine.replay("run").await.unwrap().divergence.is_none());
    let (run, fresh) =
        (flow.attach("run").await.unwrap(), flow.start("fresh", Board::default()).await.unwrap());
    for run in ["run", "fresh"] {
        engine.signal(run, "go", "old").await.unwrap();
        engine.signal(run, "go-2", "new").await.unwrap();
    }
    assert_eq!(lab.finish(&run).await.unwrap().word.as_deref(), Some("old"));
    assert_eq!(lab.finish(&fresh).await.unwrap().word.as_deref(), Some("new"));
}

/// A call that never comes back, and a sleep in another lane that wins; polled first, so that a replay sees its record
/// before the call that lost was asked for.
async fn race(ctx: &mut hapax::Ctx<Board>, calls: &Diary) -> Result<BoardDelta, EffectError> {
    let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
    let hang = async |call: hapax::Call| {
        calls.note(call.key());
        std::future::pending::<Result<u64, NodeError>>().await
    };
    tokio::select! {
        biased;
        slept = right.sleep(Duration::from_millis(20)) => slept?,
        paid = left.effect("pay", Write, "x", hang) => drop(paid?),
    }
    Ok(Board::delta().word("slept".to_owned()))
}

#[tokio::test]
async fn a_write_that_lost_against_a_sleep_loses_again_and_is_not_sent_again() {
    let calls = Diary::default();
    let engine = Engine::open("memory:").await.unwrap();
    let work = node!(
        [calls] | ctx | {
            let delta = race(&mut ctx, &calls).await?;
            // The second attempt finds the race as it was decided.
            if ctx.attempt() == 1 {
                return Err(NodeError::new("once more"));
            }
            Ok::<_, NodeError>(delta)
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(2));
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().word.as_deref(), Some("slept"));
    assert_eq!(calls.len(), 1);
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
}

/// What it lost against isn't recorded: a replay lets it happen again.
#[tokio::test]
async fn a_write_that_lost_against_something_unrecorded_is_replayed() {
    let calls = Diary::default();
    let engine = Engine::open("memory:").await.unwrap();
    let work = node!(
        [calls] | ctx | {
            let hang = async |call: hapax::Call| {
                calls.note(call.key());
                std::future::pending::<Result<u64, NodeError>>().await
            };
            let pay = ctx.effect("pay", Write, "x", hang);
            assert!(tokio::time::timeout(Duration::from_millis(20), pay).await.is_err());
            Ok::<_, NodeError>(Board::delta().word("late".to_owned()))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().word.as_deref(), Some("late"));
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
    assert_eq!(calls.len(), 1);
}

/// A question that lost against a timer isn't missed when the race is made again.
#[tokio::test]
async fn a_question_that_lost_a_race_is_not_missed() {
    let lab = Lab::new();
    let engine = lab.engine();
    let work = node!(
        [] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let word = tokio::select! {
                biased;
                slept = right.sleep(Duration::from_secs(60)) => slept.map(|()| "late".to_owned()),
                word = left.ask::<String>("q", Question::new("Well?")) => word,
            };
            Ok::<_, EffectError>(Board::delta().word(word?))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(lab.finish(&run).await.unwrap().word.as_deref(), Some("late"));
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
}

/// Sleeping isn't working: a sleep of less than a second takes nothing of a node's time either.
#[tokio::test]
async fn a_short_sleep_is_not_cut_off_by_the_nodes_timeout() {
    let engine = Engine::open("memory:").await.unwrap();
    let work = node!(
        [] | ctx | {
            ctx.sleep(Duration::from_millis(500)).await?;
            Ok::<_, EffectError>(Board::delta().word("slept".to_owned()))
        }
    );
    let policy = attempts(1).timeout(Duration::from_millis(300));
    let flow =
        engine.register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().word.as_deref(), Some("slept"));
}

/// While another lane's call is under way the run isn't parked, and what another lane waits for is heard all the same.
#[tokio::test]
async fn a_long_wait_ends_while_another_call_is_under_way() {
    let (engine, begun) = (Engine::open("memory:").await.unwrap(), Signal::default());
    let work = node!(
        [begun] | ctx | {
            let signalled = ctx.state().total == 1;
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let hang = async |_: hapax::Call| {
                begun.give();
                std::future::pending::<Result<u64, NodeError>>().await
            };
            let waited = async {
                if signalled {
                    return right.signal::<String>("stop").await;
                }
                right.sleep(Duration::from_millis(1100)).await.map(|()| "slept".to_owned())
            };
            let word = tokio::select! {
                word = waited => word?,
                paid = left.effect("pay", Write, "x", hang) => format!("paid {}", paid?),
            };
            Ok::<_, EffectError>(Board::delta().word(word))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let sleeps = flow.start("sleeps", Board::default()).await.unwrap();
    let waits = flow.start("waits", Board { total: 1, ..Board::default() }).await.unwrap();
    begun.take().await;
    begun.take().await;
    engine.signal("waits", "stop", "stopped").await.unwrap();
    assert_eq!(waits.wait().await.unwrap().word.as_deref(), Some("stopped"));
    assert_eq!(sleeps.wait().await.unwrap().word.as_deref(), Some("slept"));
}

/// Calls that won against a timer, with a computation between them that takes longer when they are made again: the timer
/// is over by then, and wins nothing.
fn calls_against_a_timer(reached: &Signal, dies: bool) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let answer = async |_: hapax::Call| Ok::<u64, NodeError>(1);
            let computed = Duration::from_millis(if dies { 1 } else { 600 });
            let both = async {
                let one: u64 = left.effect("one", Write, "1", answer).await?;
                // Nothing comes: it stands for a computation that takes this long.
                let nothing = move || std::sync::mpsc::channel::<()>().1.recv_timeout(computed);
                tokio::task::spawn_blocking(nothing).await.unwrap().unwrap_err();
                left.effect("two", Write, "2", answer).await.map(|two: u64| one + two)
            };
            let total = tokio::select! {
                total = both => total?,
                slept = right.sleep(Duration::from_millis(500)) => slept.map(|()| 0)?,
            };
            let stuck = async |_: hapax::Call| {
                stop_here(dies, &reached).await;
                Ok::<u64, NodeError>(total)
            };
            let total: u64 = ctx.effect("tell", Write, &total, stuck).await?;
            Ok::<_, EffectError>(Board::delta().total(total))
        }
    );
    Graph::new("g", 1, WORK).node(WORK, work)
}

#[test]
fn a_race_is_made_again_however_long_its_winner_takes() {
    let (reached, store) = (Signal::default(), memory());
    crash_in(&store, calls_against_a_timer(&reached, true), &reached);
    assert_eq!(go_on(&store, calls_against_a_timer(&reached, false)).unwrap().total, 2);
}

/// A call that must not be sent twice was cut off by a node that fails before it comes to the call again: a person is
/// asked, once, and the node has one more attempt.
#[tokio::test]
async fn a_doubt_that_no_attempt_comes_to_again_is_a_persons_to_decide() {
    for word in [Resolution::Result(Json::of(&7_u64).unwrap()), Resolution::Fail("no".into())] {
        let (lab, calls, tries) = (Lab::new(), Diary::default(), Diary::default());
        let engine = lab.engine();
        let work = node!(
            [calls, tries] | ctx | {
                tries.note("attempt");
                let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
                let begun = Signal::default();
                let hang = async |call: hapax::Call| {
                    calls.note(call.key());
                    begun.give();
                    std::future::pending::<Result<u64, NodeError>>().await
                };
                let fails = async |_: hapax::Call| {
                    if tries.len() == 1 {
                        begun.take().await;
                    }
                    Err::<u64, _>(NodeError::new("no stock").fatal())
                };
                let stock = right.effect("stock", Read, "x", fails);
                let (stock, paid) = tokio::try_join!(stock, left.effect("pay", WriteAtMostOnce, "x", hang))?;
                Ok::<_, EffectError>(Board::delta().total(stock + paid))
            }
        );
        let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(1));
        let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
        lab.until("run", |status| matches!(status, Status::InDoubt)).await.unwrap();
        assert_eq!((tries.len(), calls.len()), (1, 1), "{word:?}");
        engine.resolve("run", "pay", word.clone()).await.unwrap();
        assert!(lab.finish(&run).await.is_err(), "{word:?}: the stock is still missing");
        assert_eq!((tries.len(), calls.len()), (2, 1), "{word:?}");
    }
}

/// What became known of the last attempt says nothing of those before it.
#[tokio::test]
async fn a_write_that_was_sent_a_day_ago_is_in_doubt_though_it_was_not_sent_since() {
    let (lab, calls) = (Lab::new(), Diary::default());
    let work = node!(
        [calls] | ctx | {
            let pay = async |call: hapax::Call| {
                calls.note(call.key());
                match calls.len() {
                    1 => Err(NodeError::new("it may have arrived").retry_after(Duration::from_secs(3600))),
                    2 => {
                        let unsent = NodeError::from(hapax::Unsent::new("no route"));
                        Err(unsent.retry_after(Duration::from_secs(24 * 3600)))
                    }
                    // By a person's word it is as if it had never been sent: an error is an error again.
                    3 => Err(NodeError::new("busy")),
                    _ => Ok(1_u64),
                }
            };
            Ok::<_, EffectError>(Board::delta().total(ctx.effect("pay", Write, "x", pay).await?))
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(9));
    let engine = lab.engine();
    let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
    lab.until("run", |status| matches!(status, Status::InDoubt)).await.unwrap();
    assert_eq!(calls.len(), 2);
    engine.resolve("run", "pay", Resolution::Retry).await.unwrap();
    assert_eq!(lab.finish(&run).await.unwrap().total, 1);
    assert_eq!(calls.len(), 4, "nobody was asked again");
}
