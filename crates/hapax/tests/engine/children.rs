//! Child runs: started once, waited for without cost; result, failure and cancel reach the other side.

use crate::common::*;
use hapax::{
    Child, Coded, EffectError, Event, Status, WaitsOn,
    core::{commit::Write as StoreWrite, error::code, journal::Entry},
    prelude::*,
    store::{ListFilter, Store},
};
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const CHILD: Child<Board> = Child::new("child");

/// Starts a child and writes down what it came to.
fn parent(ran: &Diary) -> Graph<Board> {
    let work = node!(
        [ran] | ctx | {
            ran.note("parent");
            let child = ctx.child(CHILD, "kid", &Board { total: 20, ..Board::default() }).await?;
            Ok::<_, EffectError>(Board::delta().total(child.total))
        }
    );
    Graph::new("parent", 1, WORK).node(WORK, work)
}

/// Waits for its signal, then adds one; the word "no" makes it fail.
fn child(ran: &Diary) -> Graph<Board> {
    let work = node!(
        [ran] | ctx | {
            let word: String = ctx.signal("go").await?;
            ran.note("child");
            if word == "no" {
                return Err(NodeError::new("it said no").fatal());
            }
            Ok(Board::delta().total(1u64))
        }
    );
    Graph::new("child", 1, WORK).node(WORK, work)
}

/// A run that waits for its child, which waits for its signal.
async fn family(ran: &Diary) -> (Engine, hapax::Run<Board>) {
    let engine = engine(Options::default());
    let mut events = engine.events();
    engine.register(child(ran), ()).await.unwrap();
    let flow = engine.register(parent(ran), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let parked = |event: &Event| matches!(event, Event::RunEnded { status: Status::Waiting { .. }, .. });
    hear(&mut events, parked).await;
    hear(&mut events, parked).await;
    assert_eq!(engine.status("run").await.unwrap(), Status::Waiting { on: WaitsOn::Child });
    assert_eq!(engine.status("kid").await.unwrap(), Status::Waiting { on: WaitsOn::Signal });
    (engine, run)
}

#[tokio::test]
async fn a_childs_result_reaches_its_parent() {
    let ran = Diary::default();
    let (engine, run) = family(&ran).await;
    engine.signal("kid", "go", "yes").await.unwrap();
    assert_eq!(run.wait().await.unwrap().total, 21);
    assert_eq!(ran.all(), ["parent", "child", "parent"]);
    assert_eq!(engine.list(ListFilter::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_childs_failure_reaches_its_parent_and_a_retry_of_both_mends_it() {
    let ran = Diary::default();
    let (engine, run) = family(&ran).await;
    engine.signal("kid", "go", "no").await.unwrap();
    let error = run.wait().await.unwrap_err();
    assert!(error.to_string().contains("it said no"), "{error}");
    // The word was recorded, so only another one can help: the child fails again by itself.
    engine.retry("kid").await.unwrap();
    assert!(matches!(engine.wait("kid").await.unwrap(), Status::Failed { .. }));
    engine.retry("run").await.unwrap();
    assert!(run.wait().await.unwrap_err().to_string().contains("it said no"));
}

#[tokio::test]
async fn a_cancelled_parent_takes_its_children_along() {
    let ran = Diary::default();
    let (engine, run) = family(&ran).await;
    run.cancel().await.unwrap();
    assert_eq!(run.wait().await.unwrap_err().code(), code::CANCELLED);
    assert_eq!(engine.wait("kid").await.unwrap(), Status::Cancelled);
}

/// Nobody looks for work by itself here: each cancel calls for the next.
#[tokio::test]
async fn a_cancel_goes_down_to_the_last_descendant_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("runs.db").display());
    let options = Options::default().scan_interval(Duration::from_secs(3600));
    let engine = Engine::builder().options(options).open(&url).await.unwrap();
    let mut events = engine.events();
    let work = node!(
        [] | ctx | {
            let Some(left) = ctx.state().total.checked_sub(1) else { return ctx.signal("go").await };
            let (id, state) = (format!("{}+", ctx.run_id()), Board { total: left, ..Board::default() });
            ctx.child(CHILD, &id, &state).await.map(|_| Board::delta())
        }
    );
    let flow = engine.register(Graph::new("child", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board { total: 20, ..Board::default() }).await.unwrap();
    let last = format!("run{}", "+".repeat(20));
    let left = |event: &Event, with: Status| matches!(event, Event::RunEnded { run, status } if run.run.as_str() == last && *status == with);
    hear(&mut events, |event| left(event, Status::Waiting { on: WaitsOn::Signal })).await;
    run.cancel().await.unwrap();
    hear(&mut events, |event| left(event, Status::Cancelled)).await;
}

#[tokio::test]
async fn a_child_of_an_unknown_graph_or_a_taken_id_is_an_error() {
    let (ran, engine) = (Diary::default(), engine(Options::default()));
    let flow = engine.register(parent(&ran), ()).await.unwrap();
    let error = flow.start("first", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::NOT_REGISTERED, "{error}");
    let kids = engine.register(child(&ran), ()).await.unwrap();
    kids.start("kid", Board::default()).await.unwrap();
    let error = flow.start("second", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::RUN_EXISTS, "{error}");
}

/// The parent dies at every write; the child is there once, and neither loses anything.
#[test]
fn a_parent_that_dies_around_the_start_has_one_child() {
    let fatal: [fn(&StoreWrite) -> bool; 3] = [
        |write| matches!(write, StoreWrite::Append(a) if matches!(a.rows[0].entry, Entry::Intent(_))),
        |write| matches!(write, StoreWrite::Status(_)),
        |write| matches!(write, StoreWrite::Step(_)),
    ];
    for fatal in fatal {
        let (ran, store) = (Diary::default(), memory());
        let process = Process::dying_before(&store, fatal);
        let engine = process.engine(Options::default());
        // The doomed process doesn't take up the child; where nothing kills it, it waits as it should.
        let parked = process.run(async {
            let mut events = engine.events();
            engine.register(child(&ran), ()).await.unwrap();
            let flow = engine.register(parent(&ran), ()).await.unwrap();
            flow.start("run", Board::default()).await.unwrap();
            let parked = |event: &Event| matches!(event, Event::RunEnded { .. });
            tokio::select! {
                _ = hear(&mut events, parked) => true,
                () = process.died() => false,
            }
        });
        process.crash();
        let _ = parked;
        finish(&store, &ran);
    }
}

fn finish(store: &Arc<dyn Store>, ran: &Diary) {
    let process = Process::healthy(store);
    process.run(async {
        let engine = process.engine(Options::default());
        engine.register(child(ran), ()).await.unwrap();
        let flow = engine.register(parent(ran), ()).await.unwrap();
        let run = flow.attach("run").await.unwrap();
        loop {
            match engine.signal_as("kid", "1", "go", "yes").await {
                Ok(_) => break,
                Err(error) => assert_eq!(error.code(), code::RUN_NOT_FOUND, "{error}"),
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(run.wait().await.unwrap().total, 21);
        assert_eq!(engine.list(ListFilter::default()).await.unwrap().len(), 2);
    });
    assert_eq!(ran.all().iter().filter(|who| *who == "child").count(), 1);
}
