//! Workers: one in a user's own binary, and what is seen of all of them.

use crate::common::{
    Order, Shop,
    tool::{Worker, tool_on, tool_with},
};
use rustix::process::Signal;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_takes_up_what_nobody_holds_until_it_is_asked_to_stop() {
    let shop = Shop::open().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let engine = shop.reopened().await;
    engine.submit("order-1", Order { sku: "anvil".into(), cents: 4200, ..Order::default() }).await.unwrap();
    let mut worker = Worker::start(&shop.url(), "worker");
    assert!(worker.until(" works on ").ends_with("works on orders"));
    worker.until("claimed  order-1  at step 0");
    worker.until("left     order-1  succeeded");
    assert_eq!(worker.stop(), 0);
    engine.submit("order-2", Order { sku: "anvil".into(), cents: 4200, ..Order::default() }).await.unwrap();
    let mut worker = Worker::start(&shop.url(), "worker --json --drain 5s");
    let left: serde_json::Value = serde_json::from_str(&worker.until("\"left\"")).unwrap();
    assert_eq!(
        (&left["v"], &left["run"], &left["status"]),
        (&1.into(), &"order-2".into(), &"succeeded".into())
    );
    assert_eq!(worker.stop(), 0);
}

/// The second time by another signal: two of a kind may arrive as one.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_twice_stops_at_once() {
    let shop = Shop::open().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let orders = shop.reopened().await;
    orders.submit("order-1", Order { sku: "slow".into(), cents: 4200, ..Order::default() }).await.unwrap();
    let mut worker = Worker::start(&shop.url(), "worker --drain 1h");
    worker.until("claimed  order-1  at step 0");
    worker.signal(Signal::TERM);
    worker.signal(Signal::INT);
    assert_eq!(worker.exit_code(), 130);
}

#[cfg(feature = "telemetry")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_shows_its_metrics_and_logs_when_it_is_told_to() {
    let shop = Shop::open().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let orders = shop.reopened().await;
    let error = tool_on(&shop, "worker --metrics nowhere").fails(2);
    assert!(error.contains("error[HX0141]: telemetry can't be set up"), "{error}");
    orders.submit("order-1", Order { sku: "anvil".into(), cents: 4200, ..Order::default() }).await.unwrap();
    let args = "worker --metrics 127.0.0.1:0 --otlp http://127.0.0.1:1 --log-format json";
    let mut worker = Worker::start(&shop.url(), args);
    worker.until("left     order-1  succeeded");
    assert_eq!(worker.stop(), 0, "a collector that is away stops nobody");
    // Connections to it are made, and nothing is ever read.
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    orders.submit("order-2", Order { sku: "anvil".into(), cents: 4200, ..Order::default() }).await.unwrap();
    let collector = format!("http://{}/v1/traces", hanging.local_addr().unwrap());
    let mut worker = Worker::start(&shop.url(), &format!("worker --drain 1s --otlp {collector}"));
    worker.until("left     order-2  succeeded");
    assert_eq!(worker.stop(), 0, "one that hangs is given the time to drain");
}

#[tokio::test]
async fn a_program_without_graphs_has_nothing_to_work_on() {
    let shop = Shop::open().await;
    let error = shop.hapax(&["worker"]).fails(1);
    assert!(error.starts_with("error[HX0034]: this program holds no graph"), "{error}");
    assert!(error.contains("start the program that registers your graphs"), "{error}");
    let error = tool_with(&shop, "worker", &[("HAPAX_TOOL_HOLDS_NOTHING", "1")]).fails(1);
    assert!(error.contains("register the graphs before `hapax_cli::run`"), "{error}");
}

#[tokio::test]
async fn who_holds_what_is_shown() {
    let shop = Shop::open().await;
    assert_eq!(shop.hapax(&["workers"]).ok(), "nobody holds a run\n");
    let run = shop.in_flight("order-1").await;
    let table = shop.hapax(&["workers"]).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["WORKER", "RUNS", "LEASE", "EPOCH"]);
    let pid = format!(":{}:", std::process::id());
    assert!(rows[1][0].contains(&pid) && rows[1][1] == "1" && rows[1][3] == "1", "{table}");
    let answer = tool_on(&shop, "workers --json").json();
    assert_eq!((&answer["workers"][0]["runs"], &answer["waiting"]), (&1.into(), &0.into()), "{answer}");
    assert!(answer["workers"][0]["lease_left_ms"].as_u64().unwrap() > 0, "{answer}");
    shop.world.parcel.notify_one();
    run.wait().await.unwrap();
    shop.engine.shutdown(Duration::from_secs(5)).await;
    shop.reopened().await.submit("order-2", Order::default()).await.unwrap();
    let waits = shop.hapax(&["workers"]).ok();
    assert!(waits.starts_with("nobody holds a run\n1 run waits for a worker, the first for "), "{waits}");
}
