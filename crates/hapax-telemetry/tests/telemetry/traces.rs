//! Traces: what comes to a collector, how it hangs together, and when.

use crate::{CHARGE, Ctx, Order, OrderDelta, PLACE, at_once, collector::Collector};
use hapax::{Call, Child, Options, core::trace, prelude::*};
use hapax_telemetry::{Telemetry, opentelemetry};
use opentelemetry::trace::TraceContextExt;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Notify;

async fn place(_: Ctx) -> OrderDelta {
    Order::delta().total(1u64)
}

/// Fails once, after a call.
async fn charge(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let pay = async |call: Call| Ok::<_, NodeError>(call.traceparent().map(str::to_owned));
    let told: Option<String> = ctx.effect("pay", Read, "request", pay).await?;
    let current = opentelemetry::Context::current().span().span_context().clone();
    assert!(told.unwrap().contains(&current.trace_id().to_string()), "the node's span is the current one");
    if ctx.attempt() == 1 {
        return Err(NodeError::new("busy"));
    }
    Ok(Order::delta().total(1u64))
}

fn orders() -> Graph<Order> {
    Graph::new("orders", 1, PLACE)
        .node(PLACE, place)
        .node(CHARGE, charge)
        .edge(PLACE, CHARGE)
        .policy(CHARGE, at_once(2))
}

async fn run_once(telemetry: hapax_telemetry::Builder) {
    let engine = Engine::open("memory:").await.unwrap();
    let telemetry = telemetry.start(&engine).await.unwrap();
    let flow = engine.register(orders(), ()).await.unwrap();
    flow.start("order-42", Order::default()).await.unwrap().wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    let queue = telemetry.spans();
    assert_eq!((queue.dropped, queue.failed), (0, 0));
    telemetry.shutdown().await;
}

fn is_one_tree(collector: &Collector) {
    let id = |name: &str| {
        let spans = collector.named(name);
        assert_eq!(spans.len(), 1, "{name}");
        spans[0].span.span_id.clone()
    };
    let run = &collector.named("run orders")[0];
    assert!(run.span.parent_span_id.is_empty());
    assert_eq!(run.attribute("hapax.status").as_deref(), Some("succeeded"));
    let steps = collector.named("step");
    assert_eq!(steps.len(), 2);
    assert!(steps.iter().all(|step| step.span.parent_span_id == run.span.span_id));
    let step_of = |n: &str| {
        let step = steps.iter().find(|step| step.attribute("hapax.step_id").as_deref() == Some(n));
        step.unwrap().span.span_id.clone()
    };
    assert_eq!(collector.named("node place")[0].span.parent_span_id, step_of("0"));
    let attempts = collector.named("node charge");
    let (first, second) = (&attempts[0], &attempts[1]);
    assert_eq!((&first.span.parent_span_id, &second.span.parent_span_id), (&step_of("1"), &step_of("1")));
    assert_eq!(first.attribute("hapax.code").as_deref(), Some("HX0020"));
    assert_eq!(second.links(), [("retry".to_owned(), first.span.span_id.clone())]);
    let pay = &collector.named("effect pay")[0];
    assert_eq!(pay.span.parent_span_id, first.span.span_id, "the second attempt had it from the record");
    assert!(collector.all().iter().all(|received| received.span.trace_id == run.span.trace_id));
    assert_ne!(id("run orders"), id("effect pay"));
    assert_eq!(run.service, "orders");
}

#[tokio::test]
async fn a_collector_gets_the_whole_tree_of_a_run_in_grpc() {
    let collector = Collector::grpc().await;
    run_once(Telemetry::builder().service_name("orders").otlp(&collector.url())).await;
    is_one_tree(&collector);
}

#[tokio::test]
async fn a_collector_gets_the_whole_tree_of_a_run_in_http() {
    let collector = Collector::http().await;
    let url = format!("{}/v1/traces", collector.url());
    run_once(Telemetry::builder().service_name("orders").otlp(&url)).await;
    is_one_tree(&collector);
}

#[tokio::test]
async fn nothing_is_told_of_a_run_that_is_not_sampled() {
    let collector = Collector::grpc().await;
    let engine = Engine::open("memory:").await.unwrap();
    let builder = Telemetry::builder().otlp(&collector.url()).sample_ratio(0.0);
    let telemetry = builder.start(&engine).await.unwrap();
    let flow = engine.register(Graph::new("orders", 1, PLACE).node(PLACE, place), ()).await.unwrap();
    flow.start("order-42", Order::default()).await.unwrap().wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    telemetry.flush().await;
    assert_eq!((telemetry.spans().exported, collector.all().len()), (0, 0));
}

#[tokio::test]
async fn a_full_queue_drops_and_counts_and_the_run_goes_on() {
    let collector = Collector::grpc().await;
    let engine = Engine::open("memory:").await.unwrap();
    let builder =
        Telemetry::builder().otlp(&collector.url()).queue(2).export_every(Duration::from_secs(3600));
    let telemetry = builder.start(&engine).await.unwrap();
    let flow = engine.register(orders(), ()).await.unwrap();
    flow.start("order-42", Order::default()).await.unwrap().wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    telemetry.flush().await;
    let spans = telemetry.spans();
    assert_eq!((spans.exported, spans.dropped), (2, 5), "run, 2 steps, 3 attempts, 1 call");
}

#[tokio::test]
async fn a_second_watcher_is_refused() {
    let engine = Engine::open("memory:").await.unwrap();
    let builder = || Telemetry::builder().otlp("http://127.0.0.1:1");
    let _first = builder().start(&engine).await.unwrap();
    let error = builder().start(&engine).await.unwrap_err();
    assert_eq!(hapax::Coded::code(&error), "HX0140");
}

const BUY: Node = Node::new("buy");
const ORDER: Child<Order> = Child::new("parts");

async fn buy(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let part = ctx.child(ORDER, "part-1", &Order::default()).await?;
    Ok(Order::delta().total(part.total))
}

#[tokio::test]
async fn a_child_is_linked_to_the_call_that_started_it_and_back() {
    let collector = Collector::grpc().await;
    let engine = Engine::open("memory:").await.unwrap();
    let telemetry = Telemetry::builder().otlp(&collector.url()).start(&engine).await.unwrap();
    engine.register(Graph::new("parts", 1, PLACE).node(PLACE, place), ()).await.unwrap();
    let flow = engine.register(Graph::new("orders", 1, BUY).node(BUY, buy), ()).await.unwrap();
    flow.start("order-42", Order::default()).await.unwrap().wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    telemetry.shutdown().await;
    let (child, calls) = (&collector.named("run parts")[0], collector.named("child"));
    assert_eq!(calls.len(), 1, "from its begin to its end, whatever parked it");
    assert_eq!(child.links(), [("parent".to_owned(), calls[0].span.span_id.clone())]);
    assert_eq!(calls[0].links(), [("child".to_owned(), child.span.span_id.clone())]);
    assert_eq!(calls[0].attribute("hapax.child.run_id").as_deref(), Some("part-1"));
    assert_ne!(child.span.trace_id, calls[0].span.trace_id);
    assert!(calls[0].span.start_time_unix_nano <= child.span.start_time_unix_nano);
    let resumed = collector.named("node buy");
    assert!(resumed.len() > 1 && resumed[0].attribute("hapax.ended").as_deref() == Some("parked"));
    assert_eq!(resumed[1].links(), [("resume".to_owned(), resumed[0].span.span_id.clone())]);
}

/// Two nodes that wait until they are let go.
#[derive(Default)]
struct Doors {
    begun: Notify,
    open: Notify,
}

async fn wait_inside(ctx: Ctx<Arc<Doors>>) -> OrderDelta {
    ctx.app().begun.notify_one();
    ctx.app().open.notified().await;
    Order::delta().total(1u64)
}

/// Keeps what it is told.
#[derive(Default)]
struct Kept(Mutex<Vec<hapax::watch::Span>>);

impl hapax::watch::Watch for Kept {
    fn over(&self, span: hapax::watch::Span) {
        self.0.lock().unwrap().push(span);
    }
}

#[tokio::test]
async fn a_step_is_told_of_only_when_it_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.db");
    let engine = Engine::builder()
        .options(Options::default())
        .open(&format!("sqlite:{}", file.display()))
        .await
        .unwrap();
    let kept = Arc::new(Kept::default());
    engine.watch(kept.clone()).unwrap();
    let graph =
        Graph::new("orders", 1, PLACE).node(PLACE, wait_inside).node(CHARGE, wait_inside).edge(PLACE, CHARGE);
    let flow = engine.register(graph, Arc::new(Doors::default())).await.unwrap();
    let run = flow.start("order-42", Order::default()).await.unwrap();
    let doors = flow.app();
    doors.begun.notified().await;
    // Nobody else can write to the file now.
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    doors.open.notify_one();
    doors.begun.notified().await;
    let parents = || {
        let spans = kept.0.lock().unwrap();
        spans.iter().map(|span| span.parent.is_some_and(|parent| parent != span.id)).collect::<Vec<_>>()
    };
    let steps = || {
        let spans = kept.0.lock().unwrap();
        let step = |span: &&hapax::watch::Span| matches!(span.what, hapax::watch::What::Step { .. });
        spans.iter().filter(step).count()
    };
    assert_eq!((parents().len(), steps()), (1, 0), "the first attempt is over, its step isn't durable");
    other.execute_batch("ROLLBACK").unwrap();
    doors.open.notify_one();
    run.wait().await.unwrap();
    assert_eq!(steps(), 2);
    let trace = trace::TraceId::of(&engine.record("order-42").await.unwrap().key);
    assert!(kept.0.lock().unwrap().iter().all(|span| span.trace == trace));
}
