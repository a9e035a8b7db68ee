//! Cancellation and time limits: a run that must stop does, and never says that it succeeded.

use crate::common::*;
use hapax::{
    Coded, EffectError, Error, Event, NodePolicy, Run, Status,
    core::{commit::Write as StoreWrite, error::code},
    prelude::*,
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const WORK: Node = Node::new("work");
const NEXT: Node = Node::new("next");

/// Tells when the node's future is dropped.
struct OnDrop(Diary);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

/// A node that never ends by itself.
fn stuck(diary: &Diary, reached: &Signal) -> Graph<Board> {
    let work = node!(
        [diary, reached] | ctx | {
            let _guard = OnDrop(diary.clone());
            diary.note("started");
            reached.give();
            forever().await;
        }
    );
    Graph::new("stuck", 1, WORK).node(WORK, work)
}

/// A node that ends as soon as it is asked to, and claims success.
fn obedient(reached: &Signal) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            reached.give();
            ctx.cancelled().cancelled().await;
        }
    );
    Graph::new("obedient", 1, WORK).node(WORK, work)
}

/// Two items side by side: one ends as soon as it is asked to, the other needs a while.
fn quick_and_slow(diary: &Diary, reached: &Signal) -> Graph<Board> {
    const QUICK: Node = Node::new("quick");
    const SLOW: Node = Node::new("slow");
    let quick = node!(
        [reached] | ctx | {
            reached.give();
            ctx.cancelled().cancelled().await;
        }
    );
    let slow = node!(
        [diary, reached] | ctx | {
            reached.give();
            ctx.cancelled().cancelled().await;
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            diary.note("tidied up");
        }
    );
    let work = node!([] | _ctx | {});
    Graph::new("both", 1, WORK)
        .node(WORK, work)
        .node(QUICK, quick)
        .node(SLOW, slow)
        .edge(WORK, QUICK)
        .edge(WORK, SLOW)
}

async fn is_cancelled(run: &Run<Board>) {
    assert!(matches!(run.wait().await, Err(Error::Cancelled { .. })));
    assert_eq!(run.status().await.unwrap(), Status::Cancelled);
}

#[tokio::test]
async fn the_token_is_set_at_once_and_a_cancelled_run_never_returns_ok() {
    let reached = Signal::default();
    let flow = engine(Options::default().cancel_grace(Duration::MAX))
        .register(obedient(&reached), ())
        .await
        .unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    run.cancel().await.unwrap();
    is_cancelled(&run).await;
}

#[tokio::test]
async fn every_item_of_a_cancelled_step_has_its_grace() {
    let (diary, reached) = (Diary::default(), Signal::default());
    let flow = engine(Options::default().cancel_grace(Duration::MAX))
        .register(quick_and_slow(&diary, &reached), ())
        .await
        .unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    reached.take().await;
    run.cancel().await.unwrap();
    is_cancelled(&run).await;
    assert_eq!(diary.all(), ["tidied up"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ignores_the_token_is_dropped_after_the_grace() {
    let (diary, reached) = (Diary::default(), Signal::default());
    let flow = engine(Options::default()).register(stuck(&diary, &reached), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    let before = Instant::now();
    run.cancel().await.unwrap();
    until_idle().await;
    assert_eq!(diary.all(), ["started"]);
    is_cancelled(&run).await;
    assert_eq!(before.elapsed().as_secs(), 1);
    assert_eq!(diary.all(), ["started", "dropped"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_by_another_process_is_heard_within_a_second() {
    let reached = Signal::default();
    let engine = engine(Options::default());
    let flow = engine.register(obedient(&reached), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    let before = Instant::now();
    engine.store().request_cancel(key("run")).await.unwrap();
    is_cancelled(&run).await;
    assert!(before.elapsed() <= Duration::from_secs(1));
}

#[test]
fn a_cancel_survives_the_crash_of_the_runs_holder() {
    let (diary, reached, store) = (Diary::default(), Signal::default(), memory());
    let first = Process::doomed(&store);
    first.run(async {
        let flow = first.engine(Options::default()).register(stuck(&diary, &reached), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        reached.take().await;
        store.request_cancel(key("run")).await.unwrap();
    });
    first.crash();
    let second = Process::healthy(&store);
    second.run(async {
        let flow = second.engine(Options::default()).register(stuck(&diary, &reached), ()).await.unwrap();
        is_cancelled(&flow.attach("run").await.unwrap()).await;
    });
    assert_eq!(diary.all().iter().filter(|note| *note == "started").count(), 1);
}

#[test]
fn a_run_that_nobody_holds_is_cancelled_by_whoever_asks() {
    let (diary, reached, store) = (Diary::default(), Signal::default(), memory());
    let first = Process::doomed(&store);
    first.run(async {
        let flow = first.engine(Options::default()).register(stuck(&diary, &reached), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        reached.take().await;
    });
    first.crash();
    let second = Process::healthy(&store);
    second.run(async {
        let engine = second.engine(Options::default());
        engine.cancel("run").await.unwrap();
        assert_eq!(engine.status("run").await.unwrap(), Status::Cancelled);
    });
}

#[tokio::test]
async fn a_cancel_ends_the_pause_between_two_attempts() {
    let work = node!([] | ctx | { Err::<(), _>(NodeError::new("busy")) });
    let hours = Retry::standard().backoff(|_| Duration::from_secs(3600));
    let engine = engine(Options::default().retry(hours));
    let mut events = engine.events();
    let flow = engine.register(Graph::new("pausing", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, |event| matches!(event, Event::Retrying { .. })).await;
    run.cancel().await.unwrap();
    is_cancelled(&run).await;
}

#[tokio::test]
async fn a_run_that_is_over_cannot_be_cancelled() {
    let reached = Signal::default();
    let engine = engine(Options::default());
    let done = Graph::new("done", 1, WORK).node(WORK, node!([] | ctx | {}));
    let done = engine.register(done, ()).await.unwrap();
    done.start("done", Board::default()).await.unwrap().wait().await.unwrap();
    let error = engine.cancel("done").await.unwrap_err();
    assert!(matches!(error, Error::AlreadyFinished { status: "succeeded", .. }), "{error}");
    let flow = engine.register(obedient(&reached), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    run.cancel().await.unwrap();
    is_cancelled(&run).await;
    assert!(matches!(run.cancel().await, Err(Error::AlreadyFinished { status: "cancelled", .. })));
}

#[tokio::test]
async fn a_cancel_that_comes_just_before_the_end_wins() {
    let engine = engine(Options::default());
    let store = engine.store();
    let work = node!(
        [store] | ctx | {
            store.request_cancel(key("run")).await.unwrap();
        }
    );
    let flow = engine.register(Graph::new("late", 1, WORK).node(WORK, work), ()).await.unwrap();
    is_cancelled(&flow.start("run", Board::default()).await.unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn no_call_leaves_after_a_cancel() {
    let (engine, diary) = (engine(Options::default()), Diary::default());
    let store = engine.store();
    let work = node!(
        [store, diary] | ctx | {
            store.request_cancel(key("run")).await.unwrap();
            let pay = async |_| {
                diary.note("paid");
                Ok::<_, NodeError>(1)
            };
            ctx.effect("pay", Write, &5, pay).await.map(|_: u64| ())
        }
    );
    let flow = engine.register(Graph::new("silent", 1, WORK).node(WORK, work), ()).await.unwrap();
    is_cancelled(&flow.start("run", Board::default()).await.unwrap()).await;
    assert!(diary.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_the_nodes_whole_time() {
    let (diary, reached, begun) = (Diary::default(), Signal::default(), Instant::now());
    let retry = Retry::standard().attempts(3).backoff(|_| Duration::ZERO);
    let policy = NodePolicy::default().timeout(Duration::from_secs(5)).retry(retry);
    let graph = stuck(&diary, &reached).policy(WORK, policy);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!((error.code(), begun.elapsed().as_secs()), (code::NODE_TIMEOUT, 15));
    assert_eq!(diary.all().iter().filter(|note| *note == "dropped").count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_used_up_its_budget_fails_whatever_its_nodes_may_take() {
    let begun = Instant::now();
    let slow = || {
        node!(
            [] | ctx | {
                pass(Duration::from_secs(8)).await;
            }
        )
    };
    let graph =
        Graph::new("slow", 1, WORK).node(WORK, slow()).node(NEXT, slow()).edge(WORK, NEXT).edge(NEXT, WORK);
    let flow =
        engine(Options::default().run_budget(Duration::from_secs(20))).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!((error.code(), begun.elapsed().as_secs()), (code::BUDGET_EXCEEDED, 20));
    assert_eq!(failure(&error).step, 2);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_the_nodes_or_the_runs_whichever_comes_first() {
    let left = |ctx: &Ctx| Instant::from_std(ctx.deadline()).duration_since(Instant::now()).as_secs();
    let work = node!(
        [] | ctx | {
            let before = left(&ctx);
            pass(Duration::from_secs(8)).await;
            Board::delta().log(before.to_string())
        }
    );
    let next = node!([] | ctx | { Board::delta().log(left(&ctx).to_string()) });
    let graph = Graph::new("deadline", 1, WORK).node(WORK, work).node(NEXT, next).edge(WORK, NEXT);
    let options =
        Options::default().run_budget(Duration::from_secs(20)).node_timeout(Duration::from_secs(15));
    let flow = engine(options).register(graph, ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.log, ["15", "12"]);
}

/// A store that stands still for a minute takes none of the five seconds that a node has for itself; its own six are too many.
#[tokio::test(start_paused = true)]
async fn what_a_node_waits_for_its_store_is_not_its_own_time() {
    let signal = Signal::default();
    let work = node!(
        [] | ctx | {
            let pause = Duration::from_millis(ctx.state().total);
            ctx.effect("write", Write, &1, async |_| Ok::<_, NodeError>(())).await?;
            pass(pause).await;
            Ok::<_, EffectError>(Board::delta().log("done"))
        }
    );
    let options = Options::default().node_timeout(Duration::from_secs(5));
    let is_journal = |write: &StoreWrite| matches!(write, StoreWrite::Append(_));
    let store = Arc::new(Mortal::slow_to_answer(memory(), is_journal, &signal));
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(Graph::new("slow", 1, WORK).node(WORK, work), ()).await.unwrap();
    let after = async |name: &str, pause: u64| {
        let begun = Instant::now();
        let board = Board { total: pause, ..Board::default() };
        let run = flow.start(name, board).await.unwrap();
        let minutely = async {
            loop {
                pass(Duration::from_secs(60)).await;
                signal.give();
            }
        };
        let ended = tokio::select! {
            ended = run.wait() => ended,
            () = minutely => unreachable!("it goes on for ever"),
        };
        (
            ended.map(|board| board.log).map_err(|error| failure(&error).node.clone()),
            begun.elapsed().as_secs(),
        )
    };
    let (ended, took) = after("quick", 4_900).await;
    assert_eq!((ended.unwrap(), took), (vec!["done".to_owned()], 124));
    let (ended, _) = after("slow", 6_000).await;
    assert_eq!(ended.unwrap_err().unwrap().code.as_str(), code::NODE_TIMEOUT);
}

/// A store that answers quickly takes none either: a lane that writes again and again hides no other that is stuck.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_stuck_beside_one_that_writes_is_out_of_time() {
    let signal = Signal::default();
    let work = node!(
        [] | ctx | {
            let mut lane = ctx.scope("writes");
            let writes = async {
                loop {
                    lane.effect("write", Write, &1, async |_| Ok::<_, NodeError>(())).await?;
                }
            };
            tokio::select! {
                ended = writes => ended,
                () = forever() => Ok::<_, EffectError>(Board::delta()),
            }
        }
    );
    let options = Options::default().node_timeout(Duration::from_secs(5));
    let is_journal = |write: &StoreWrite| matches!(write, StoreWrite::Append(_));
    let store = Arc::new(Mortal::slow_to_answer(memory(), is_journal, &signal));
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(Graph::new("stuck", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let quickly = async {
        loop {
            pass(Duration::from_millis(50)).await;
            signal.give();
        }
    };
    let error = tokio::select! {
        ended = run.wait() => ended.unwrap_err(),
        () = quickly => unreachable!("it goes on for ever"),
    };
    assert_eq!(failure(&error).node.as_ref().unwrap().code.as_str(), code::NODE_TIMEOUT);
}

#[tokio::test]
async fn a_panic_is_a_nodes_error_and_the_engine_lives_on() {
    let work = node!(
        [] | ctx | {
            assert!(ctx.attempt() > 1, "out of {}", "paper");
            Board::delta().total(1u64)
        }
    );
    let retry = Retry::standard().backoff(|_| Duration::ZERO);
    let engine = engine(Options::default());
    let graph = || Graph::new("panicking", 1, WORK).node(WORK, work);
    let flow = engine.register(graph(), ()).await.unwrap();
    let error = flow.start("once", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(
        (error.code(), failure(&error).node.as_ref().unwrap().message.as_str()),
        (code::NODE_PANICKED, "panicked: out of paper")
    );
    let flow = engine.register(graph().policy(WORK, NodePolicy::default().retry(retry)), ()).await.unwrap();
    assert_eq!(flow.start("twice", Board::default()).await.unwrap().wait().await.unwrap().total, 1);
}

#[tokio::test]
async fn a_panic_of_a_blocking_node_is_a_nodes_error() {
    let work = |ctx: Ctx| -> BoardDelta { panic!("no {}", ctx.node_id()) };
    let graph = Graph::new("blocking", 1, WORK).node(WORK, hapax::blocking(work));
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::NODE_PANICKED);
}

fn explode(_: &mut u64, _: u64) {
    panic!("a reducer's panic");
}

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Mined {
    #[state(reduce = explode)]
    field: u64,
}

#[tokio::test]
async fn a_panic_of_a_reducer_or_predicate_fails_its_run_and_no_other() {
    let engine = engine(Options::default());
    let mined = |_: hapax::Ctx<Mined>| std::future::ready(Mined::delta().field(1u64));
    let flow = engine.register(Graph::new("mined", 1, WORK).node(WORK, mined), ()).await.unwrap();
    let error = flow.start("mined", Mined::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::NODE_PANICKED);
    assert!(error.to_string().contains("a reducer's panic"), "{error}");
    let edge: Arc<dyn Fn(&Board) -> bool + Send + Sync> = Arc::new(|_| panic!("a predicate's panic"));
    let graph =
        Graph::new("edge", 1, WORK)
            .node(WORK, node!([] | ctx | {}))
            .edge_if(WORK, WORK, "again", move |b| edge(b));
    let flow = engine.register(graph, ()).await.unwrap();
    let error = flow.start("edge", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert!(error.to_string().contains("a predicate's panic"), "{error}");
}
