//! Metrics: what a scraper reads, and that it doesn't become more with the runs.

use crate::{CHARGE, Ctx, Order, OrderDelta, PLACE, at_once};
use hapax::prelude::*;
use hapax_telemetry::Telemetry;
use std::{collections::BTreeSet, process::Stdio};
use tokio::io::AsyncWriteExt;

async fn place(_: Ctx) -> OrderDelta {
    Order::delta().total(1u64)
}

/// Fails at first.
async fn charge(ctx: Ctx) -> hapax::Result<OrderDelta> {
    if ctx.attempt() == 1 { Err(NodeError::new("busy")) } else { Ok(Order::delta().total(1u64)) }
}

struct Scraped {
    engine: Engine,
    flow: hapax::Flow<Order>,
    telemetry: Telemetry,
    runs: u32,
}

impl Scraped {
    async fn new() -> Self {
        let engine = Engine::open("memory:").await.unwrap();
        let telemetry = Telemetry::builder().metrics("127.0.0.1:0").start(&engine).await.unwrap();
        let graph = Graph::new("orders", 1, PLACE)
            .node(PLACE, place)
            .node(CHARGE, charge)
            .edge(PLACE, CHARGE)
            .policy(CHARGE, at_once(2));
        let flow = engine.register(graph, ()).await.unwrap();
        Self { engine, flow, telemetry, runs: 0 }
    }

    async fn run(&mut self, runs: u32) {
        for _ in 0..runs {
            self.runs += 1;
            let id = format!("order-{}", self.runs);
            self.flow.start(&id, Order::default()).await.unwrap().wait().await.unwrap();
        }
    }

    async fn page(&self, accept: &str) -> String {
        let url = format!("http://{}/metrics", self.telemetry.metrics_address().unwrap());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.get(url).header("accept", accept).send().await.unwrap();
        assert!(answer.headers()["content-type"].to_str().unwrap().starts_with(accept));
        answer.text().await.unwrap()
    }
}

fn series(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

#[tokio::test]
async fn the_page_tells_what_happened() {
    let mut scraped = Scraped::new().await;
    scraped.run(3).await;
    let page = scraped.page("text/plain").await;
    assert_eq!(value(&page, r#"hapax_runs_started_total{graph="orders"}"#), 3.0);
    assert_eq!(value(&page, r#"hapax_runs_ended_total{graph="orders",status="succeeded"}"#), 3.0);
    assert_eq!(value(&page, r#"hapax_steps_total{graph="orders"}"#), 6.0);
    assert_eq!(value(&page, r#"hapax_step_latency_ms_count{graph="orders"}"#), 6.0);
    assert_eq!(value(&page, r#"hapax_retries_total{graph="orders",node="charge"}"#), 3.0);
    assert_eq!(value(&page, r#"hapax_retries_total{graph="orders",node="place"}"#), 0.0);
    assert_eq!(value(&page, "hapax_queue_depth"), 0.0);
    assert_eq!(value(&page, "hapax_inflight_nodes"), 0.0);
    assert_eq!(
        value(&page, "hapax_commit_batch_size_count"),
        scraped.engine.store().stats().transactions as f64
    );
    let open = scraped.page("application/openmetrics-text").await;
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE hapax_steps counter"));
}

/// Names that are older than this page end in a unit, in short.
const BY_CUSTOM: [&str; 2] = ["hapax_step_latency_ms", "hapax_gate_wait_ms"];

#[tokio::test]
async fn promtool_has_nothing_to_say_about_the_page() {
    let mut scraped = Scraped::new().await;
    scraped.run(1).await;
    let page = scraped.page("text/plain").await;
    let promtool = tokio::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = promtool.expect("promtool is in Debian's package `prometheus`: install it");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).await.unwrap();
    let output = promtool.wait_with_output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let by_custom =
        |line: &str| line.contains("abbreviated") && BY_CUSTOM.iter().any(|name| line.starts_with(name));
    let complaints: Vec<_> = said.lines().filter(|line| !by_custom(line)).collect();
    assert!(complaints.is_empty(), "{complaints:#?}\n{page}");
}

#[tokio::test]
async fn a_thousand_runs_have_the_series_of_ten() {
    let mut scraped = Scraped::new().await;
    scraped.run(10).await;
    // What is sampled may be there by now or not.
    let sampled = |series: &String| series.contains("outbox") || series == "hapax_in_doubt";
    let few: BTreeSet<_> =
        series(&scraped.page("text/plain").await).into_iter().filter(|s| !sampled(s)).collect();
    scraped.run(990).await;
    let page = scraped.page("text/plain").await;
    let many: BTreeSet<_> = series(&page).into_iter().filter(|s| !sampled(s)).collect();
    assert_eq!(few, many);
    assert_eq!(value(&page, r#"hapax_runs_started_total{graph="orders"}"#), 1000.0);
    assert!(!page.contains("order-"), "no run is named");
}

/// The names in the guide's table of metrics. `cargo xtask tidy` holds the dashboard and the alerts against the same table.
fn in_the_guide() -> BTreeSet<&'static str> {
    let rows = include_str!("../../../../docs/guide/observability.md").lines();
    let names = rows.filter_map(|row| row.strip_prefix("| `hapax_")?.split_once('`'));
    names.map(|(name, _)| name).collect()
}

#[tokio::test]
async fn the_guide_names_the_metrics_that_there_are() {
    let mut scraped = Scraped::new().await;
    scraped.run(1).await;
    let mut page = scraped.page("text/plain").await;
    // What only the store knows is there once it has been asked.
    while !page.contains("\nhapax_in_doubt ") || !page.contains("\nhapax_outbox_lag_seconds ") {
        tokio::task::yield_now().await;
        page = scraped.page("text/plain").await;
    }
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE hapax_")?.split_once(' '));
    assert_eq!(families.map(|(name, _)| name).collect::<BTreeSet<_>>(), in_the_guide());
}
