//! The layer around all services of a server, gRPC's own among them.

use crate::{
    client::{Client, charge, is_replayed, refusal},
    server::{Payments, listen, scene},
};
use hapax_store::requests::MemoryRequests;
use std::{convert::Infallible, sync::Arc, task::Poll};
use tonic::{body::Body, server::NamedService};

/// Answers as gRPC's health service does, as far as the layer is concerned.
#[derive(Clone)]
struct Health;

impl NamedService for Health {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl tower::Service<http::Request<Body>> for Health {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        std::future::ready(Ok(tonic::Status::ok("it is well").into_http()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_may_be_around_all_services() {
    let (world, layer) = scene(Arc::new(MemoryRequests::new()), |layer| layer);
    let (listener, address) = listen().await;
    let router = tonic::transport::Server::builder()
        .layer(layer.clone())
        .add_service(Payments(world.clone()))
        .add_service(Health);
    let serving = tokio::spawn(async move { router.serve_with_incoming(listener).await.expect("it serves") });
    let client = Client::of(&address).await;
    let (first, again) = (client.ask("Charge", "k").await, client.ask("Charge", "k").await);
    assert_eq!((charge(&first), charge(&again), is_replayed(&again)), (1, 1, true));
    assert_eq!(refusal(&client.ask("Charge", "").await).1, "MISSING_KEY");
    let (checked, _, _) = client.raw("/grpc.health.v1.Health/Check", vec![], bytes::Bytes::new()).await;
    assert_eq!(checked.get("grpc-status").expect("a status"), "0");
    assert_eq!((layer.stats().refused, world.charges()), (1, 1));
    serving.abort();
}
