//! A collector of the test's own: a real server of OTLP, in gRPC and in HTTP.

use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span as it came, and the name of the service that sent it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl Received {
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        attribute(&self.span.attributes, key)
    }

    /// Its links: what they are, and to which span.
    pub(crate) fn links(&self) -> Vec<(String, Vec<u8>)> {
        let links = self.span.links.iter();
        links.map(|link| (attribute(&link.attributes, "hapax.link").unwrap(), link.span_id.clone())).collect()
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

/// What was received so far.
#[derive(Clone)]
pub(crate) struct Collector {
    spans: Arc<Mutex<Vec<Received>>>,
    news: Arc<watch::Sender<()>>,
    pub(crate) address: SocketAddr,
}

impl Collector {
    async fn open() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self { spans: Arc::default(), news: Arc::default(), address }, listener)
    }

    /// One that speaks gRPC.
    pub(crate) async fn grpc() -> Self {
        let (collector, listener) = Self::open().await;
        let service = TraceServiceServer::new(collector.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        collector
    }

    /// One that speaks HTTP with protobuf.
    pub(crate) async fn http() -> Self {
        let (collector, listener) = Self::open().await;
        let take = async |State(collector): State<Collector>, body: Bytes| {
            collector.take(ExportTraceServiceRequest::decode(body).unwrap());
            ExportTraceServiceResponse::default().encode_to_vec()
        };
        let routes = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        collector
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn take(&self, request: ExportTraceServiceRequest) {
        let mut spans = self.spans.lock().unwrap();
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.unwrap_or_default();
            let service = attribute(&resource.attributes, "service.name").unwrap_or_default();
            let sent = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(sent.map(|span| Received { service: service.clone(), span }));
        }
        drop(spans);
        self.news.send_replace(());
    }

    pub(crate) fn all(&self) -> Vec<Received> {
        self.spans.lock().unwrap().clone()
    }

    /// Those of this name.
    pub(crate) fn named(&self, name: &str) -> Vec<Received> {
        self.all().into_iter().filter(|received| received.span.name == name).collect()
    }

    /// Waits for a span of this name.
    pub(crate) async fn wait_for(&self, name: &str) {
        let mut news = self.news.subscribe();
        while self.named(name).is_empty() {
            news.changed().await.unwrap();
        }
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
