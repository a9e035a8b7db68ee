//! Collectors and clients that do what they shouldn't: nothing waits for them, and nothing goes astray.

use crate::{Ctx, Order, OrderDelta, PLACE, collector::Collector};
use axum::{Router, body::Body, response::IntoResponse};
use futures::stream;
use hapax::prelude::*;
use hapax_telemetry::{
    SpanCounts, Telemetry,
    opentelemetry_sdk::{
        error::OTelSdkResult,
        trace::{SpanData, SpanExporter},
    },
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

async fn place(_: Ctx) -> OrderDelta {
    Order::delta().total(1u64)
}

/// A server that answers everything so.
async fn answering<R: IntoResponse + Send + 'static>(
    answer: impl Fn() -> R + Clone + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().fallback(async move |_: axum::body::Bytes| answer());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

/// What becomes of the three spans of a run.
async fn exported_to(telemetry: hapax_telemetry::Builder) -> SpanCounts {
    let engine = Engine::open("memory:").await.unwrap();
    let telemetry = telemetry.start(&engine).await.unwrap();
    let flow = engine.register(Graph::new("orders", 1, PLACE).node(PLACE, place), ()).await.unwrap();
    flow.start("order-42", Order::default()).await.unwrap().wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    telemetry.flush().await;
    telemetry.spans()
}

async fn sent_to(address: SocketAddr) -> (u64, u64) {
    let spans = exported_to(Telemetry::builder().otlp(&format!("http://{address}/v1/traces"))).await;
    (spans.exported, spans.failed)
}

#[tokio::test]
async fn spans_follow_no_redirection() {
    let elsewhere = Collector::http().await;
    let location = format!("{}/v1/traces", elsewhere.url());
    let collector =
        answering(move || (axum::http::StatusCode::TEMPORARY_REDIRECT, [("location", location.clone())]))
            .await;
    assert_eq!(sent_to(collector).await, (0, 3));
    assert!(elsewhere.all().is_empty());
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    let endless =
        || Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>("no end ".repeat(1000))));
    assert_eq!(sent_to(answering(endless).await).await, (3, 0));
}

#[tokio::test]
async fn spans_that_a_collector_rejects_are_counted_as_lost() {
    let partial = ExportTracePartialSuccess { rejected_spans: 2, error_message: "too old".into() };
    let answer = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    assert_eq!(sent_to(answering(move || answer.clone()).await).await, (1, 2));
}

/// By name: what is said of each span.
type Said = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Said>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let said = span.attributes.iter();
            let said = said.map(|said| (said.key.to_string(), said.value.to_string())).collect();
            self.0.lock().unwrap().insert(span.name.to_string(), said);
        }
        Ok(())
    }
}

#[tokio::test]
async fn an_exporter_of_ones_own_is_told_what_a_collector_is_told() {
    let (kept, collector) = (Kept::default(), Collector::grpc().await);
    assert_eq!(exported_to(Telemetry::builder().exporter(kept.clone())).await.exported, 3);
    assert_eq!(exported_to(Telemetry::builder().otlp(&collector.url())).await.exported, 3);
    let of_collector = |received: crate::collector::Received| {
        let keys = received.span.attributes.iter().map(|said| said.key.clone());
        let said = keys.map(|key| (key.clone(), received.attribute(&key).unwrap())).collect();
        (received.span.name.clone(), said)
    };
    let told: Said = collector.all().into_iter().map(of_collector).collect();
    assert_eq!(told.len(), 3);
    assert_eq!(*kept.0.lock().unwrap(), told);
}

/// More than are served at a time, and none of them ever asks to its end.
#[tokio::test]
async fn clients_that_never_ask_to_the_end_do_not_keep_others_from_the_metrics() {
    let engine = Engine::open("memory:").await.unwrap();
    let telemetry = Telemetry::builder().metrics("localhost:0").start(&engine).await.unwrap();
    let address = telemetry.metrics_address().unwrap();
    let mut clients = vec![];
    for _ in 0..40 {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        clients.push(client);
    }
    let scraper = reqwest::Client::builder().no_proxy().build().unwrap();
    let page = scraper.get(format!("http://{address}/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("hapax_fsyncs_total 0"), "{page}");
}
