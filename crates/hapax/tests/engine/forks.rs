//! Forks: another run from any step of a run, with what was recorded there, and never in the middle of a call.

use crate::common::*;
use hapax::{
    Child, Coded, EffectError, Error, Fork, ForkError, Status, core::error::code, prelude::*, testing::Lab,
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

const ADD: Node = Node::new("add");
const PAY: Node = Node::new("pay");
const END: Node = Node::new("end");

/// Adds, pays and ends. Whoever is paid notes the key.
fn graph(keys: &Diary) -> Graph<Board> {
    let add = node!([] | ctx | { Board::delta().total(1u64 + ctx.random() % 1000) });
    let pay = node!(
        [keys] | ctx | {
            let cents = ctx.state().total;
            let pay = async |call: hapax::Call| {
                keys.note(call.key());
                Ok::<u64, NodeError>(cents)
            };
            Ok::<_, NodeError>(
                Board::delta().log(format!("paid {}", ctx.effect("pay", Write, &cents, pay).await?)),
            )
        }
    );
    let end = node!([] | ctx | { Board::delta().word("done".to_owned()) });
    Graph::new("paying", 1, ADD).node(ADD, add).node(PAY, pay).node(END, end).edge(ADD, PAY).edge(PAY, END)
}

#[tokio::test]
async fn a_fork_goes_on_as_the_run_did_and_pays_nothing_again() {
    let (lab, keys) = (Lab::new(), Diary::default());
    let engine = lab.engine();
    let flow = engine.register(graph(&keys), ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    for step in 0..=3 {
        let fork = engine.fork(Fork::at("run", step)).await.unwrap();
        assert_eq!(fork.run.as_str(), format!("run@{step}"));
        let again = flow.attach(fork.run.as_str()).await.unwrap().wait().await.unwrap();
        assert_eq!(again, board, "the same seed, the same draws, the same answers");
        assert_eq!(engine.replay(fork.run.as_str()).await.unwrap().divergence, None);
        let record = engine.record(fork.run.as_str()).await.unwrap();
        assert_eq!(record.tags["forked_from"], format!("run@{step}"));
    }
    // From step 1 on the payment is recorded with the step or behind it; only the fork of step 0 pays for itself.
    let keys = keys.all();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1], "a fork has keys of its own");
}

#[tokio::test]
async fn the_same_fork_twice_is_one_run_and_another_under_its_name_is_refused() {
    let (lab, keys) = (Lab::new(), Diary::default());
    let engine = lab.engine();
    let flow = engine.register(graph(&keys), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let fork = || Fork::at("run", 2).named("fork");
    assert_eq!(engine.fork(fork()).await.unwrap(), engine.fork(fork()).await.unwrap());
    let other = engine.fork(Fork::at("run", 1).named("fork")).await.unwrap_err();
    assert!(matches!(other, Error::RunExists { .. }), "{other}");
}

#[tokio::test]
async fn fields_can_be_set_and_the_step_is_made_anew() {
    let (lab, keys) = (Lab::new(), Diary::default());
    let engine = lab.engine();
    let flow = engine.register(graph(&keys), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let fork = Fork::at("run", 1).set("total", &7).unwrap().set("/log", &["what if"]).unwrap();
    let fork = engine.fork(fork).await.unwrap();
    let board = flow.attach(fork.run.as_str()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.log, ["what if", "paid 7"]);
    assert_eq!(keys.len(), 2);

    let refused = async |path: &str, value: &str| {
        engine.fork(Fork::at("run", 1).named("refused").set(path, value).unwrap()).await.unwrap_err()
    };
    assert_eq!(refused("log.7", "x").await.code(), code::CANNOT_FORK);
    assert_eq!(refused("total.x", "x").await.code(), code::CANNOT_FORK);
    assert_eq!(refused("total", "many").await.code(), code::STATE_SHAPE);
    assert_eq!(engine.status("refused").await.unwrap_err().code(), code::RUN_NOT_FOUND);
}

#[tokio::test]
async fn no_fork_in_the_middle_of_a_write() {
    let lab = Lab::new();
    let engine = lab.engine();
    let stuck = node!(
        [] | ctx | {
            let never = async |_: hapax::Call| {
                forever().await;
                Ok::<(), NodeError>(())
            };
            ctx.effect("pay", Write, &1, never).await.map_err(NodeError::from)
        }
    );
    let flow = engine.register(Graph::new("stuck", 1, ADD).node(ADD, stuck), ()).await.unwrap();
    flow.start("open", Board::default()).await.unwrap();
    let begun = async || !engine.store().journal(key("open"), 0, 1).await.unwrap().is_empty();
    while !begun().await {
        tokio::task::yield_now().await;
    }
    match engine.fork(Fork::at("open", 0)).await.unwrap_err() {
        Error::Fork(error) => {
            assert!(matches!(&*error, ForkError::Unfinished { calls, .. } if calls == "`pay`"));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_failed_run_is_tried_again_in_its_fork() {
    let (lab, mended) = (Lab::new(), Arc::new(AtomicBool::new(false)));
    let work = node!(
        [mended] | ctx | {
            if mended.load(Ordering::SeqCst) {
                Ok(Board::delta().word("mended".to_owned()))
            } else {
                Err(NodeError::new("broken"))
            }
        }
    );
    let flow = lab.engine().register(Graph::new("broken", 1, ADD).node(ADD, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    mended.store(true, Ordering::SeqCst);
    let fork = lab.engine().fork(Fork::at("run", 0)).await.unwrap();
    let board = flow.attach(fork.run.as_str()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.word.as_deref(), Some("mended"));
    assert!(
        matches!(lab.engine().status("run").await.unwrap(), Status::Failed { .. }),
        "the run itself stays"
    );
}

/// A parent whose child has a fixed id, or one that holds the parent's.
async fn parents(engine: &Engine) -> hapax::Flow<Board> {
    let kid = node!([] | ctx | { Board::delta().total(1u64) });
    engine.register(Graph::new("child", 1, PAY).node(PAY, kid), ()).await.unwrap();
    let add = node!([] | ctx | {});
    let pay = node!(
        [] | ctx | {
            let id = if ctx.state().word.is_some() { format!("{}-kid", ctx.run_id()) } else { "kid".into() };
            let kid = ctx.child(Child::<Board>::new("child"), &id, &Board::default()).await?;
            Ok::<_, EffectError>(Board::delta().total(kid.total))
        }
    );
    let graph = Graph::new("parent", 1, ADD).node(ADD, add).node(PAY, pay).edge(ADD, PAY);
    engine.register(graph, ()).await.unwrap()
}

/// A child belongs to one parent: a fork from before it needs another id, one from behind its start the same.
#[tokio::test]
async fn a_fork_of_a_parent_says_why_it_cannot_have_the_child() {
    let lab = Lab::new();
    let flow = parents(lab.engine()).await;
    for (run, word, steps) in [
        ("fixed", None, [Err((code::RUN_EXISTS, "as the child of `fixed`")), Ok(1)]),
        ("own", Some("own".to_owned()), [Ok(1), Err((code::REPLAY_MISMATCH, "request: expected"))]),
    ] {
        let board = Board { word, ..Board::default() };
        lab.finish(&flow.start(run, board).await.unwrap()).await.unwrap();
        for (step, expected) in (0..).zip(steps) {
            let fork = lab.engine().fork(Fork::at(run, step)).await.unwrap();
            let ended = lab.finish(&flow.attach(fork.run.as_str()).await.unwrap()).await;
            match (ended, expected) {
                (Ok(board), Ok(total)) => assert_eq!(board.total, total, "{fork}"),
                (Err(error), Err((code, text))) => {
                    assert!(
                        failure(&error).code == code && error.to_string().contains(text),
                        "{fork}: {error}"
                    );
                }
                (ended, _) => panic!("{fork}: {ended:?}"),
            }
        }
    }
    // With a field set, what was recorded stays behind.
    let fork = Fork::at("own", 1).named("set").set("word", "anew").unwrap();
    let fork = lab.engine().fork(fork).await.unwrap();
    lab.finish(&flow.attach(fork.run.as_str()).await.unwrap()).await.unwrap();
}
