//! The layer for tonic and its service.
//!
//! Invariant: a request either goes through the flow of `arrive` and `execute`, or to the service as it is.

use super::Grpc;
use crate::{
    answer::BoxError,
    arrive::{once, refuse},
    dialect::Whole,
    options::common_options,
    policy::{KeyRule, Policy},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use hapax_core::request::Outcome;
use hapax_store::requests::RequestStore;
use http::{HeaderName, Request, Response, request::Parts};
use std::{
    fmt,
    future::ready,
    mem,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{Code, body::Body, server::NamedService};
use tower::{Layer, Service};

/// Makes gRPC calls take effect once, by the `idempotency-key` of their metadata.
///
/// It wraps one service, or all of a server by `Server::builder().layer(…)`. The guide has
/// [a section on gRPC](https://github.com/hapax-rs/hapax/blob/main/docs/guide/requests.md#grpc).
///
/// ```
/// use hapax_core::request::Outcome;
/// use hapax_requests::{GrpcIdempotencyLayer, KeyRule, OnConflict, outcome_of_code};
/// use hapax_store::requests::MemoryRequests;
/// use std::{sync::Arc, time::Duration};
/// use tonic::Code;
///
/// let layer = GrpcIdempotencyLayer::new(Arc::new(MemoryRequests::new()), |parts| {
///     Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned()) // yours is what authentication says
/// })
/// .key_rule(|parts| match parts.uri.path() {
///     "/payments.v1.Payments/Balance" => KeyRule::Ignored, // it only reads
///     path => KeyRule::of_grpc(path),
/// })
/// .outcome(|code| match code {
///     Code::Aborted => Outcome::FailedFinal, // the bank said no
///     code => outcome_of_code(code),
/// })
/// .kept_metadata(["x-receipt"])
/// .on_conflict(OnConflict::Wait(Duration::from_secs(2)));
/// ```
#[derive(Clone)]
pub struct GrpcIdempotencyLayer {
    policy: Arc<Policy>,
    grpc: Grpc,
}

impl GrpcIdempotencyLayer {
    /// A layer over a store, and who asks: `None` is refused as `Unauthenticated`. Two principals never share a key, so
    /// this has no default; put the layer behind your authentication.
    pub fn new(
        store: Arc<dyn RequestStore>,
        principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let (grpc, method) = (Grpc::default(), |parts: &Parts| parts.uri.path().to_owned());
        let policy = Policy::new(store, Arc::new(grpc.clone()), Arc::new(principal), Arc::new(method));
        Self { policy: Arc::new(policy), grpc }.key_rule(|parts| KeyRule::of_grpc(parts.uri.path()))
    }

    fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    fn with_grpc(mut self, change: impl FnOnce(&mut Grpc)) -> Self {
        change(&mut self.grpc);
        let grpc = Arc::new(self.grpc.clone());
        self.with(|policy| policy.dialect = grpc)
    }

    /// Which codes are final, and which may be tried again; [`outcome_of_code`](crate::outcome_of_code) by default.
    #[must_use]
    pub fn outcome(self, outcome: impl Fn(Code) -> Outcome + Send + Sync + 'static) -> Self {
        self.with_grpc(|grpc| grpc.outcome = Arc::new(outcome))
    }

    /// The metadata at the beginning of an answer that is given again; none by default. What ends an answer, its status,
    /// details and trailers, is kept in any case. Panics if one is no name of metadata.
    #[must_use]
    pub fn kept_metadata(self, names: impl IntoIterator<Item = &'static str>) -> Self {
        let names = names.into_iter().map(HeaderName::from_static).collect();
        self.with_grpc(|grpc| grpc.kept_metadata = names)
    }

    common_options!();
}

impl fmt::Debug for GrpcIdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcIdempotencyLayer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GrpcIdempotencyLayer {
    type Service = GrpcIdempotency<S>;

    fn layer(&self, inner: S) -> GrpcIdempotency<S> {
        GrpcIdempotency { inner, policy: self.policy.clone() }
    }
}

/// A service whose calls take effect once; made by [`GrpcIdempotencyLayer`].
///
/// ```
/// use hapax_requests::{GrpcIdempotency, GrpcIdempotencyLayer};
/// use hapax_store::requests::MemoryRequests;
/// use std::sync::Arc;
/// use tower::Layer;
/// let layer = GrpcIdempotencyLayer::new(Arc::new(MemoryRequests::new()), |_| Some("merchant-7".into()));
/// let service: GrpcIdempotency<&str> = layer.layer("a service");
/// ```
#[derive(Clone)]
pub struct GrpcIdempotency<S> {
    inner: S,
    policy: Arc<Policy>,
}

impl<S: fmt::Debug> fmt::Debug for GrpcIdempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcIdempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A router finds it under the name of its service.
impl<S: NamedService> NamedService for GrpcIdempotency<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, R> Service<Request<B>> for GrpcIdempotency<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        match self.policy.name(&parts) {
            Ok(Some(id)) => {
                // The service that was asked whether it is ready is the one that is called.
                let clone = self.inner.clone();
                let mut inner = mem::replace(&mut self.inner, clone);
                let call = move |request: Request<Bytes>| {
                    inner.call(request.map(|body| Body::new(Whole::from(body))))
                };
                let answer = once(self.policy.clone(), id, parts, body, call);
                Box::pin(async { Ok(answer.await?.map(Body::new)) })
            }
            Ok(None) => {
                let passed = self.inner.call(Request::from_parts(parts, Body::new(body)));
                Box::pin(async { Ok(passed.await?.map(Body::new)) })
            }
            Err(refusal) => Box::pin(ready(Ok(refuse(&self.policy, &refusal).map(Body::new)))),
        }
    }
}
