//! A service with money in it, on a port of its own. Its messages are written by hand: no compiler of theirs is needed.

use crate::probe::Probe;
use futures::{StreamExt, future::BoxFuture, stream, stream::BoxStream};
use hapax_requests::{Claimed, GrpcIdempotency, GrpcIdempotencyLayer};
use hapax_store::requests::RequestStore;
use http_body::Body;
use prost::Message;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Code, Request, Response, Status, Streaming,
    codec::CompressionEncoding,
    metadata::MetadataValue,
    server::{ClientStreamingService, Grpc, NamedService, ServerStreamingService, UnaryService},
};
use tonic_prost::ProstCodec;
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};

/// Nothing takes so long: a test fails then, and doesn't hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Order {
    #[prost(uint64, tag = "1")]
    pub(crate) cents: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) note: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Receipt {
    #[prost(uint64, tag = "1")]
    pub(crate) charge: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) note: Vec<u8>,
}

/// What the handlers do and have done.
pub(crate) struct World {
    pub(crate) store: Arc<Probe>,
    /// Times that money was moved.
    pub(crate) charges: AtomicUsize,
    /// So many executions fail first.
    pub(crate) trouble: AtomicUsize,
    /// A permit for each slow handler that has started.
    started: Semaphore,
    /// A permit lets one slow handler go on.
    gate: Semaphore,
    /// A permit for each request whose connection has let go of it.
    left: Semaphore,
}

impl World {
    fn charge(&self) -> u64 {
        self.charges.fetch_add(1, SeqCst) as u64 + 1
    }

    /// Whether this execution is to fail.
    fn is_troubled(&self) -> bool {
        self.trouble.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    pub(crate) fn charges(&self) -> usize {
        self.charges.load(SeqCst)
    }

    pub(crate) fn open(&self, handlers: usize) {
        self.gate.add_permits(handlers);
    }

    /// Waits until one more slow handler has started.
    pub(crate) async fn started(&self) {
        take(&self.started).await;
    }

    pub(crate) async fn left(&self) {
        take(&self.left).await;
    }
}

async fn take(permits: &Semaphore) {
    let taken = timeout(PATIENCE, permits.acquire()).await.expect("it comes");
    taken.expect("it is never closed").forget();
}

/// One method of the service.
struct Handler {
    world: Arc<World>,
    method: String,
}

impl Handler {
    async fn receipt(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let world = &self.world;
        match self.method.as_str() {
            "Slow" => {
                world.started.add_permits(1);
                take(&world.gate).await;
            }
            "Panics" => assert!(!world.is_troubled(), "as it was asked to"),
            "Fails" if world.is_troubled() => return Err(failure(request.get_ref().cents)),
            "Large" => {
                world.charge();
                let note = vec![b'x'; request.get_ref().cents as usize];
                return Ok(Response::new(Receipt { charge: 0, note }));
            }
            "Own" => return self.own(&request).await,
            _ => {}
        }
        Ok(receipt(world.charge(), request.into_inner().note))
    }

    /// Ends its record by itself, as the layer would.
    async fn own(&self, request: &Request<Order>) -> Result<Response<Receipt>, Status> {
        let claimed = request.extensions().get::<Claimed>().expect("it is claimed");
        let response = receipt(self.world.charge(), b"own".to_vec());
        let encoded = response.get_ref().encode_to_vec();
        let (metadata, _, extensions) = response.into_parts();
        let completion =
            claimed.grpc_completion(&Response::from_parts(metadata.clone(), encoded, extensions.clone()));
        let _ = self.world.store.finish(claimed.lease(), &completion).await.expect("the store is there");
        let other = Receipt { charge: 0, note: b"not what was stored".to_vec() };
        Ok(Response::from_parts(metadata, other, extensions))
    }
}

fn receipt(charge: u64, note: Vec<u8>) -> Response<Receipt> {
    let mut response = Response::new(Receipt { charge, note });
    let metadata = response.metadata_mut();
    metadata.insert("x-receipt", charge.to_string().parse().expect("a value"));
    metadata.insert("x-session", format!("session {charge}").parse().expect("a value"));
    response
}

/// With words, details and metadata.
fn failure(code: u64) -> Status {
    let mut details = ErrorDetails::with_error_info("NO_LUCK", "the bank", []);
    details.add_help_link("the terms", "https://example.org/terms?a=1&b=ü");
    let code = Code::from_i32(code as i32);
    let mut status = Status::with_error_details(code, "no luck: 100% sure, née", details);
    status.metadata_mut().insert("x-account", "7".parse().expect("a value"));
    status.metadata_mut().insert_bin("x-trace-bin", MetadataValue::from_bytes(&[0, 255, 1]));
    status
}

impl UnaryService<Order> for Handler {
    type Response = Receipt;
    type Future = BoxFuture<'static, Result<Response<Receipt>, Status>>;

    fn call(&mut self, request: Request<Order>) -> Self::Future {
        let handler = Handler { world: self.world.clone(), method: self.method.clone() };
        Box::pin(async move { handler.receipt(request).await })
    }
}

impl ClientStreamingService<Order> for Handler {
    type Response = Receipt;
    type Future = BoxFuture<'static, Result<Response<Receipt>, Status>>;

    fn call(&mut self, request: Request<Streaming<Order>>) -> Self::Future {
        let world = self.world.clone();
        Box::pin(async move {
            let (mut orders, mut note) = (request.into_inner(), vec![]);
            while let Some(order) = orders.message().await? {
                note.extend(order.note);
            }
            Ok(receipt(world.charge(), note))
        })
    }
}

impl ServerStreamingService<Order> for Handler {
    type Response = Receipt;
    type ResponseStream = BoxStream<'static, Result<Receipt, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Order>) -> Self::Future {
        let (world, order) = (self.world.clone(), request.into_inner());
        Box::pin(async move {
            let (charge, is_failing) = (world.charge(), order.note == b"fails");
            let each = (0..order.cents).map(move |_| Ok(Receipt { charge, note: order.note.clone() }));
            let end = is_failing.then(|| Err(failure(Code::FailedPrecondition as u64)));
            Ok(Response::new(stream::iter(each.chain(end)).boxed()))
        })
    }
}

/// The service, as a compiler of its messages would write it.
#[derive(Clone)]
pub(crate) struct Payments(pub(crate) Arc<World>);

impl NamedService for Payments {
    const NAME: &'static str = "payments.v1.Payments";
}

impl<B> Service<http::Request<B>> for Payments
where
    B: Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let handler = Handler { world: self.0.clone(), method };
        Box::pin(async move {
            // It compresses for whoever can read it.
            let codec = ProstCodec::<Receipt, Order>::default();
            let mut grpc = Grpc::new(codec).send_compressed(CompressionEncoding::Gzip);
            Ok(match handler.method.as_str() {
                "Sum" => grpc.client_streaming(handler, request).await,
                "Several" => grpc.server_streaming(handler, request).await,
                _ => grpc.unary(handler, request).await,
            })
        })
    }
}

/// Tells when a connection lets go of its request, answered or not.
#[derive(Clone)]
struct Watched<S>(S, Arc<World>);

impl<S: NamedService> NamedService for Watched<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<http::Request<B>> for Watched<S>
where
    S: Service<http::Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        struct Left(Arc<World>);
        impl Drop for Left {
            fn drop(&mut self) {
                self.0.left.add_permits(1);
            }
        }
        let (left, answer) = (Left(self.1.clone()), self.0.call(request));
        Box::pin(async move {
            let _left = left;
            answer.await
        })
    }
}

pub(crate) struct Server {
    pub(crate) world: Arc<World>,
    pub(crate) layer: GrpcIdempotencyLayer,
    pub(crate) address: String,
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Server {
    pub(crate) async fn over(store: Arc<dyn RequestStore>) -> Self {
        Self::with(store, |layer| layer).await
    }

    /// A server whose layer is told more.
    pub(crate) async fn with(
        store: Arc<dyn RequestStore>,
        told: impl FnOnce(GrpcIdempotencyLayer) -> GrpcIdempotencyLayer,
    ) -> Self {
        let (world, layer) = scene(store, told);
        let service: GrpcIdempotency<Payments> = layer.layer(Payments(world.clone()));
        let (listener, address) = listen().await;
        let router = tonic::transport::Server::builder().add_service(Watched(service, world.clone()));
        let serving = tokio::spawn(async move {
            router.serve_with_incoming(listener).await.expect("it serves");
        });
        Self { world, layer, address, serving }
    }
}

/// A world and a layer over a store.
pub(crate) fn scene(
    store: Arc<dyn RequestStore>,
    told: impl FnOnce(GrpcIdempotencyLayer) -> GrpcIdempotencyLayer,
) -> (Arc<World>, GrpcIdempotencyLayer) {
    let store = Probe::over(store);
    let merchant =
        |parts: &http::request::Parts| Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned());
    let layer = told(GrpcIdempotencyLayer::new(store.clone(), merchant));
    let world = Arc::new(World {
        store,
        charges: AtomicUsize::new(0),
        trouble: AtomicUsize::new(0),
        started: Semaphore::new(0),
        gate: Semaphore::new(0),
        left: Semaphore::new(0),
    });
    (world, layer)
}

pub(crate) async fn listen() -> (TcpListenerStream, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    (TcpListenerStream::new(listener), address)
}
