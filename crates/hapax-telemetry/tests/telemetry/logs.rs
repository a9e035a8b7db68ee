//! Logs: what a line holds, and what never comes into one.

use crate::{CHARGE, Ctx, Order, OrderDelta, PLACE, at_once, collector::Collector};
use hapax::{http, prelude::*};
use hapax_telemetry::{Telemetry, json_logs};
use serde_json::Value;
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing_subscriber::layer::SubscriberExt;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Whatever is logged on this thread from now on.
fn listen() -> (Written, tracing::subscriber::DefaultGuard) {
    let written = Written::default();
    let subscriber = tracing_subscriber::registry().with(json_logs(written.clone()));
    (written, tracing::subscriber::set_default(subscriber))
}

async fn place(ctx: Ctx) -> hapax::Result<OrderDelta> {
    tracing::info!(sku = "anvil", "placing");
    if ctx.attempt() == 1 { Err(NodeError::new("busy")) } else { Ok(Order::delta().total(1u64)) }
}

#[tokio::test]
async fn a_line_names_the_run_the_step_the_node_the_attempt_and_the_trace() {
    let (written, _listening) = listen();
    let engine = Engine::open("memory:").await.unwrap();
    let graph = Graph::new("orders", 1, PLACE).node(PLACE, place).policy(PLACE, at_once(2));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("order-42", Order::default()).await.unwrap().wait().await.unwrap();
    let key = engine.record("order-42").await.unwrap().key;
    let lines = written.lines();
    let placing: Vec<_> = lines.iter().filter(|line| line["message"] == "placing").collect();
    assert_eq!(placing.len(), 2);
    for (line, attempt) in placing.iter().zip(1..) {
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["run_id"], key.to_string());
        assert_eq!((&line["step_id"], &line["node_id"]), (&0.into(), &"place".into()));
        assert_eq!(line["attempt"], attempt);
        assert!(line["order_key"].is_string(), "a float would corrupt it");
        assert_eq!(line["trace_id"], hapax::core::trace::TraceId::of(&key).to_string());
        assert_eq!(line["fields"]["sku"], "anvil");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }
    assert_ne!(placing[0]["span_id"], placing[1]["span_id"], "each attempt has its own");
    let retry = lines.iter().find(|line| line["message"] == "attempt failed; another follows").unwrap();
    assert_eq!((&retry["level"], &retry["fields"]["code"]), (&"WARN".into(), &"HX0020".into()));
}

const SECRET: &str = "s3cr3t-7f2a";

/// Meets the secret wherever a node may.
async fn charge(mut ctx: Ctx<http::Client>) -> hapax::Result<OrderDelta> {
    let (order, client) = (ctx.state(), ctx.app());
    ctx.effect("pay", Write, &order.card, async |_| Ok::<_, io::Error>(())).await?;
    let url = format!("http://user:{SECRET}@127.0.0.1:1/charges?token={SECRET}");
    let sent = ctx.http("charge", &client, http::Request::get(&url)).await;
    if ctx.attempt() == 1 {
        sent?;
    }
    Err(NodeError::new(format!("the card {} was refused", order.card)))
}

#[tokio::test]
async fn a_secret_is_in_no_log_no_span_and_no_metric() {
    let (written, _listening) = listen();
    let collector = Collector::grpc().await;
    let engine = Engine::open("memory:").await.unwrap();
    let telemetry = Telemetry::builder().otlp(&collector.url()).metrics("127.0.0.1:0");
    let telemetry = telemetry.start(&engine).await.unwrap();
    let client = http::Client::builder().no_proxy().no_system_roots().build().unwrap();
    let graph = Graph::new("orders", 1, CHARGE).node(CHARGE, charge).policy(CHARGE, at_once(3));
    let flow = engine.register(graph, client).await.unwrap();
    let order = Order { card: SECRET.into(), ..Order::default() };
    flow.start("order-42", order).await.unwrap().wait().await.unwrap_err();
    engine.shutdown(Duration::from_secs(5)).await;
    let address = telemetry.metrics_address().unwrap();
    let scraper = reqwest::Client::builder().no_proxy().build().unwrap();
    let page = scraper.get(format!("http://{address}/metrics")).send().await.unwrap().text().await.unwrap();
    telemetry.shutdown().await;
    // Addresses of a store and of a collector that aren't there.
    let store = Engine::open(&format!("postgres://user:{SECRET}@127.0.0.1:1/runs?password={SECRET}")).await;
    assert!(store.is_err());
    let other = Engine::open("memory:").await.unwrap();
    let away = format!("http://user:{SECRET}@127.0.0.1:1/v1/traces?token={SECRET}");
    let away = Telemetry::builder().otlp(&away).start(&other).await.unwrap();
    let graph = Graph::new("orders", 1, PLACE).node(PLACE, place).policy(PLACE, at_once(2));
    let flow = other.register(graph, ()).await.unwrap();
    flow.start("order-43", Order::default()).await.unwrap().wait().await.unwrap();
    away.flush().await;
    assert_ne!(away.spans().failed, 0);
    let (log, spans) = (written.text(), format!("{:?}", collector.all()));
    assert!(log.contains("attempt failed") && log.contains("the run leaves this engine"), "{log}");
    assert!(log.contains("the collector doesn't take spans"), "{log}");
    assert!(spans.contains("effect charge") && page.contains("hapax_steps_total"));
    for (what, text) in [("log", &log), ("span", &spans), ("page", &page)] {
        assert!(!text.contains(SECRET), "a {what} holds the secret: {text}");
    }
}
