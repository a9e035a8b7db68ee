//! The life of a run: events, tags, attaching, resuming, shutting down, and who may execute it.

use crate::common::*;
use hapax::{
    Coded, Error, Event, Flow, StartOptions, Status,
    core::{error::code, id::Namespace},
    prelude::*,
    store::{GcPolicy, ListFilter, StoreError},
};
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const NEXT: Node = Node::new("next");

fn two_steps(reached: &Signal, signal: &Signal) -> Graph<Board> {
    let work = node!(
        [reached, signal] | ctx | {
            reached.give();
            signal.take().await;
            Board::delta().total(1u64)
        }
    );
    let next = node!([] | ctx | { Board::delta().total(10u64) });
    Graph::new("two", 1, WORK).node(WORK, work).node(NEXT, next).edge(WORK, NEXT)
}

async fn registered(engine: &Engine) -> (Flow<Board>, Signal, Signal) {
    let (reached, signal) = (Signal::default(), Signal::default());
    (engine.register(two_steps(&reached, &signal), ()).await.unwrap(), reached, signal)
}

fn word(event: &Event) -> String {
    match event {
        Event::RunClaimed { step, taken_over, .. } => format!("claimed at {step}, taken over: {taken_over}"),
        Event::StepStarted { step, items, .. } => format!("step {step} of {items}"),
        Event::ItemStarted { node, attempt, .. } => format!("{node} starts, attempt {attempt}"),
        Event::ItemFinished { node, error, .. } => format!("{node} finished, error: {}", error.is_some()),
        Event::StepCommitted { step, .. } => format!("step {step} committed"),
        Event::RunEnded { status, .. } => status.word().to_owned(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn events_tell_a_run_in_the_order_in_which_it_happens() {
    let engine = engine(Options::default());
    let mut events = engine.events();
    let (flow, _, signal) = registered(&engine).await;
    signal.give();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let heard = hear(&mut events, |event| matches!(event, Event::RunEnded { .. })).await;
    let expected = [
        "claimed at 0, taken over: false",
        "step 0 of 1",
        "work starts, attempt 1",
        "work finished, error: false",
        "step 1 committed",
        "step 1 of 1",
        "next starts, attempt 1",
        "next finished, error: false",
        "step 2 committed",
        "succeeded",
    ];
    assert_eq!(heard.iter().map(word).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_shutdown_finishes_the_current_step_and_another_engine_goes_on() {
    let first = engine(Options::default());
    let mut events = first.events();
    let (flow, reached, signal) = registered(&first).await;
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    let shutdown = first.shutdown(Duration::from_secs(600));
    tokio::join!(shutdown, async { signal.give() });
    let heard = hear(&mut events, |event| matches!(event, Event::RunEnded { .. })).await;
    assert!(!heard.iter().any(|event| word(event).starts_with("next starts")), "{heard:?}");
    assert_eq!(run.wait().await.unwrap_err().code(), code::SHUT_DOWN);
    assert_eq!(flow.start("more", Board::default()).await.unwrap_err().code(), code::SHUT_DOWN);
    let record = first.record("run").await.unwrap();
    assert_eq!((record.step, record.owner, record.status), (1, None, Status::Running));
    let second = Engine::builder().with_store(first.store());
    let (flow, ..) = registered(&second).await;
    assert_eq!(flow.attach("run").await.unwrap().wait().await.unwrap().total, 11);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_drops_what_is_not_done_by_its_deadline_and_loses_nothing() {
    let store = memory();
    let first = Engine::builder().with_store(Arc::new(Mortal::new(store.clone())));
    let (flow, reached, _) = registered(&first).await;
    flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    let before = tokio::time::Instant::now();
    first.shutdown(Duration::from_secs(3)).await;
    assert_eq!(before.elapsed().as_secs(), 3);
    let second = Engine::builder().with_store(store);
    let (flow, _, signal) = registered(&second).await;
    signal.give();
    assert_eq!(flow.attach("run").await.unwrap().wait().await.unwrap().total, 11);
}

/// A run that waits inside its first node, of an engine that nobody holds any more.
async fn deserted(engine: Engine) -> Signal {
    let (flow, reached, signal) = registered(&engine).await;
    flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    signal
}

#[tokio::test]
async fn a_run_whose_engine_is_dropped_goes_on_to_its_end() {
    let store = memory();
    let first = Engine::builder().with_store(store.clone());
    let mut events = first.events();
    let signal = deserted(first).await;
    signal.give();
    let heard = hear(&mut events, |event| matches!(event, Event::RunEnded { .. })).await;
    assert_eq!(heard.last().map(word).as_deref(), Some("succeeded"));
    let end = async { while events.recv().await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(60), end).await.expect("the engine ends after its last run");
    assert_eq!(Arc::strong_count(&store), 1, "and lets go of the store");
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_run_whose_engine_is_dropped_is_renewed() {
    let store = memory();
    // A lease that has ended at once can be taken by anybody; a renewal notices that.
    let options = Options::default().lease_ttl(Duration::ZERO).finds_work(false);
    let first = Engine::builder().options(options).with_store(store.clone());
    let (mut events, begun) = (first.events(), tokio::time::Instant::now());
    let _signal = deserted(first).await;
    let thief = hapax::store::Claimant { owner: "thief".into(), ttl: Duration::from_secs(600) };
    store.claim(key("run"), thief).await.unwrap();
    hear(&mut events, |event| matches!(event, Event::RunEnded { status: Status::Running, .. })).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "not by its node's timeout");
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_engine_is_dropped_hears_of_a_cancel() {
    let store = memory();
    let first = Engine::builder().with_store(store.clone());
    let begun = tokio::time::Instant::now();
    let _signal = deserted(first).await;
    let second = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
    second.cancel("run").await.unwrap();
    assert_eq!(second.wait("run").await.unwrap(), Status::Cancelled);
    assert!(begun.elapsed() < Duration::from_secs(5), "not by its node's timeout");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_claims_its_own_run_again_stops_the_execution_before() {
    let work = node!(
        [] | ctx | {
            forever().await;
        }
    );
    let engine = engine(Options::default().lease_ttl(Duration::ZERO));
    let mut events = engine.events();
    let flow = engine.register(Graph::new("stalled", 1, WORK).node(WORK, work), ()).await.unwrap();
    let begun = tokio::time::Instant::now();
    flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, |event| matches!(event, Event::RunEnded { status: Status::Running, .. })).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "not by its node's timeout");
}

#[tokio::test]
async fn runs_are_found_by_tag_status_and_graph_newest_first() {
    let engine = engine(Options::default());
    let (flow, _, signal) = registered(&engine).await;
    let tagged = |customer: &str| StartOptions::default().tag("customer", customer).tag("kind", "test");
    for (run, customer) in [("a", "1"), ("b", "2"), ("c", "1")] {
        signal.give();
        let run = flow.start_with(run, Board::default(), tagged(customer)).await.unwrap();
        run.wait().await.unwrap();
    }
    let live = flow.start("d", Board::default()).await.unwrap();
    let names = async |filter: ListFilter| {
        let found = engine.list(filter).await.unwrap();
        found.iter().map(|record| record.key.run.to_string()).collect::<Vec<_>>()
    };
    let ones = ListFilter { tags: [("customer".into(), "1".into())].into(), ..ListFilter::default() };
    assert_eq!(names(ones).await, ["c", "a"]);
    let running = ListFilter { statuses: vec!["running".into()], ..ListFilter::default() };
    assert_eq!(names(running).await, ["d"]);
    let other = ListFilter { graph: Some("other".into()), ..ListFilter::default() };
    assert!(names(other).await.is_empty());
    assert_eq!(names(ListFilter { limit: 2, ..ListFilter::default() }).await, ["d", "c"]);
    signal.give();
    live.wait().await.unwrap();
}

#[tokio::test]
async fn namespaces_do_not_see_each_other() {
    let first = engine(Options::default());
    let (flow, _, signal) = registered(&first).await;
    signal.give();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let tenant = Options::default().namespace(Namespace::new("tenant").unwrap());
    let second = Engine::builder().options(tenant).with_store(first.store());
    let (flow, _, signal) = registered(&second).await;
    assert_eq!(second.status("run").await.unwrap_err().code(), code::RUN_NOT_FOUND);
    assert!(second.list(ListFilter::default()).await.unwrap().is_empty());
    signal.give();
    flow.start("run", Board { total: 5, ..Board::default() }).await.unwrap().wait().await.unwrap();
}

#[tokio::test]
async fn a_run_that_another_engine_holds_can_be_followed_but_not_taken() {
    let first = engine(Options::default());
    let (flow, reached, signal) = registered(&first).await;
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    let second = Engine::builder().with_store(first.store());
    let (other, ..) = registered(&second).await;
    let error = other.resume("run").await.unwrap_err();
    assert_eq!(error.code(), code::RUN_HELD);
    assert!(matches!(&error, Error::Store(error) if matches!(**error, StoreError::Held { .. })));
    let followed = other.attach("run").await.unwrap();
    signal.give();
    assert_eq!(followed.wait().await.unwrap(), run.wait().await.unwrap());
    assert_eq!(other.resume("run").await.unwrap().wait().await.unwrap().total, 11);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_resumed_twice_at_once_is_there_for_both() {
    let first = engine(Options::default());
    let (flow, reached, signal) = registered(&first).await;
    flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    tokio::join!(first.shutdown(Duration::from_secs(600)), async { signal.give() });
    let second = Engine::builder().with_store(first.store());
    let (flow, ..) = registered(&second).await;
    let begun = tokio::time::Instant::now();
    let (one, other) = tokio::join!(flow.resume("run"), flow.resume("run"));
    assert_eq!(one.unwrap().wait().await.unwrap(), other.unwrap().wait().await.unwrap());
    assert!(begun.elapsed() < Duration::from_secs(5), "not only once its own lease had run out");
}

#[tokio::test]
async fn a_run_is_bound_to_its_graphs_shape_unless_a_new_one_declares_itself_compatible() {
    let first = engine(Options::default());
    let (flow, reached, signal) = registered(&first).await;
    let old_shape = flow.fingerprint();
    flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    tokio::join!(first.shutdown(Duration::from_secs(600)), async { signal.give() });
    let changed = || {
        two_steps(&reached, &signal)
            .node(Node::new("more"), node!([] | ctx | {}))
            .edge(NEXT, Node::new("more"))
    };
    let second = Engine::builder().with_store(first.store());
    let flow = second.register(changed(), ()).await.unwrap();
    assert_eq!(flow.resume("run").await.unwrap_err().code(), code::GRAPH_MISMATCH);
    assert_eq!(flow.attach("run").await.unwrap_err().code(), code::GRAPH_MISMATCH);
    let flow = second.register(changed().compatible(old_shape), ()).await.unwrap();
    assert_eq!(flow.attach("run").await.unwrap().wait().await.unwrap().total, 11);
}

#[tokio::test]
async fn only_a_failed_run_can_be_retried() {
    let engine = engine(Options::default());
    let (flow, reached, signal) = registered(&engine).await;
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    assert_eq!(flow.retry("run").await.unwrap_err().code(), code::NOT_FAILED);
    signal.give();
    run.wait().await.unwrap();
    assert_eq!(flow.retry("run").await.unwrap_err().code(), code::ALREADY_FINISHED);
}

#[tokio::test]
async fn finished_runs_can_be_deleted_and_live_ones_stay() {
    let engine = engine(Options::default());
    let (flow, _, signal) = registered(&engine).await;
    for run in ["a", "b"] {
        signal.give();
        flow.start(run, Board::default()).await.unwrap().wait().await.unwrap();
    }
    let _live = flow.start("c", Board::default()).await.unwrap();
    let policy = GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest: 1,
        limit: 100,
        dry_run: false,
    };
    assert_eq!(engine.gc(policy).await.unwrap().deleted, [key("a")]);
    assert_eq!(engine.status("a").await.unwrap_err().code(), code::RUN_NOT_FOUND);
    assert!(engine.status("c").await.is_ok());
}
