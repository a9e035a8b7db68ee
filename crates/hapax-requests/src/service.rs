//! The layer and its service.
//!
//! Invariant: the body is whole before a request is claimed, and from then on nothing depends on its client.

use crate::{
    answer::{BoxError, Unread, drain, read},
    execute::answer,
    policy::{KeyRule, OnConflict, Policy, uri},
    problem::Refusal,
    stats::{Stats, count},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use hapax_core::{
    canary,
    id::Namespace,
    request::{Asked, Outcome, RequestHash, RequestId},
};
use hapax_store::requests::{Claim, RequestStore};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use http_body::Body;
use http_body_util::{Either, Full};
use std::{
    fmt,
    future::{Future, ready},
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service};
use tracing::{Instrument, debug, field::Empty, info_span};

/// A body that was read whole, or one that goes by as it is. The service under the layer takes requests with such
/// bodies, and the layer answers with them.
///
/// ```
/// use hapax_requests::LayerBody;
/// use http_body_util::{BodyExt, Either, Empty};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let body: LayerBody<Empty<bytes::Bytes>> = Either::Left("whole".into());
/// assert_eq!(body.collect().await.unwrap().to_bytes(), "whole");
/// # }
/// ```
pub type LayerBody<B> = Either<Full<Bytes>, B>;

/// A lease must leave time for heartbeats.
const SHORTEST_LEASE: Duration = Duration::from_millis(30);

/// Makes requests take effect once, by their `Idempotency-Key`. The [crate](crate) shows a service with it.
///
/// ```
/// use hapax_core::request::Outcome;
/// use hapax_requests::{IdempotencyLayer, KeyRule, OnConflict, outcome_of};
/// use hapax_store::requests::MemoryRequests;
/// use http::{Method, StatusCode, header};
/// use std::{sync::Arc, time::Duration};
///
/// #[derive(Clone)]
/// struct Merchant(String); // from your authentication
///
/// let layer = IdempotencyLayer::new(Arc::new(MemoryRequests::new()), |parts| {
///     parts.extensions.get::<Merchant>().map(|merchant| merchant.0.clone())
/// })
/// .route(hapax_requests::matched_path)
/// .key_rule(|parts| match parts.method {
///     Method::POST => KeyRule::Required,
///     _ => KeyRule::Ignored,
/// })
/// .outcome(|status| match status {
///     StatusCode::BAD_GATEWAY => Outcome::FailedFinal, // the bank said no
///     status => outcome_of(status),
/// })
/// .kept_headers([header::CONTENT_TYPE, header::LOCATION])
/// .on_conflict(OnConflict::Wait(Duration::from_secs(2)))
/// .lease(Duration::from_secs(10))
/// .expiry(Duration::from_secs(7 * 24 * 3600))
/// .max_request_bytes(64 * 1024);
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    policy: Arc<Policy>,
}

impl IdempotencyLayer {
    /// A layer over a store, and who asks: `None` is refused with a 403. Two principals never share a key, so this has
    /// no default; put the layer behind your authentication.
    pub fn new(
        store: Arc<dyn RequestStore>,
        principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { policy: Arc::new(Policy::new(store, Arc::new(principal))) }
    }

    fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    /// The tenant; `default` by default.
    #[must_use]
    pub fn namespace(self, namespace: Namespace) -> Self {
        self.with(|policy| policy.namespace = namespace)
    }

    /// The template of a request's route, which is part of its name; the path itself by default. With axum it is
    /// `matched_path`, behind the feature `axum`.
    ///
    /// It is said here and not found out, since a name that changes between two releases makes old keys new.
    #[must_use]
    pub fn route(self, route: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.with(|policy| policy.route = Arc::new(route))
    }

    /// Which requests need a key; [`KeyRule::of_method`] by default.
    #[must_use]
    pub fn key_rule(self, rule: impl Fn(&Parts) -> KeyRule + Send + Sync + 'static) -> Self {
        self.with(|policy| policy.key_rule = Arc::new(rule))
    }

    /// Which answers are final, and which may be tried again; [`outcome_of`](crate::outcome_of) by default.
    #[must_use]
    pub fn outcome(self, outcome: impl Fn(StatusCode) -> Outcome + Send + Sync + 'static) -> Self {
        self.with(|policy| policy.outcome = Arc::new(outcome))
    }

    /// The headers of an answer that are given again; by default its type, encoding, language, places, links, tag and
    /// date of change. Never keep what is for one client only, such as cookies of a session.
    #[must_use]
    pub fn kept_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|policy| policy.kept_headers = names.into_iter().collect())
    }

    /// What a request gets whose key is being executed; a 409 by default.
    #[must_use]
    pub fn on_conflict(self, on_conflict: OnConflict) -> Self {
        self.with(|policy| policy.on_conflict = on_conflict)
    }

    /// How long a crash keeps a key busy; 30 seconds by default, and at least 30 milliseconds. A handler may take
    /// longer: a heartbeat comes three times in it.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|policy| policy.lease = lease.max(SHORTEST_LEASE))
    }

    /// How long an answer is kept; a day by default.
    #[must_use]
    pub fn expiry(self, expiry: Duration) -> Self {
        self.with(|policy| policy.expiry = expiry)
    }

    /// The largest body of a request with a key; 1 MiB by default. A larger one is refused with a 413.
    #[must_use]
    pub fn max_request_bytes(self, limit: usize) -> Self {
        self.with(|policy| policy.max_request_bytes = limit)
    }

    /// The largest answer that is kept, with its kept headers; 1 MiB by default, and
    /// [`MAX_RESPONSE_BYTES`](hapax_core::limits::MAX_RESPONSE_BYTES) at the most. When a handler gives a larger one
    /// its work is done: everybody is told that, with a 500, and it isn't done again.
    #[must_use]
    pub fn max_response_bytes(self, limit: usize) -> Self {
        self.with(|policy| policy.max_response_bytes = limit)
    }

    #[cfg(feature = "engine")]
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How often each decision was made, by all services of this layer.
    pub fn stats(&self) -> Stats {
        self.policy.counters.snapshot()
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency { inner, policy: self.policy.clone() }
    }
}

/// A service whose requests take effect once; made by [`IdempotencyLayer`].
///
/// ```
/// use hapax_requests::{Idempotency, IdempotencyLayer};
/// use hapax_store::requests::MemoryRequests;
/// use std::sync::Arc;
/// use tower::Layer;
/// let layer = IdempotencyLayer::new(Arc::new(MemoryRequests::new()), |_| Some("merchant-7".into()));
/// let service: Idempotency<&str> = layer.layer("a service");
/// ```
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    policy: Arc<Policy>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<LayerBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<LayerBody<R>>;
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
                let inner = mem::replace(&mut self.inner, clone);
                Box::pin(once(self.policy.clone(), inner, id, parts, body))
            }
            Ok(None) => {
                let passed = self.inner.call(Request::from_parts(parts, Either::Right(body)));
                Box::pin(async { Ok(passed.await?.map(Either::Right)) })
            }
            Err(refusal) => Box::pin(ready(Ok(refuse(&self.policy, &refusal).map(whole)))),
        }
    }
}

/// Reads a request to its end, then hands it to a task that no client can end.
async fn once<S, B, R>(
    policy: Arc<Policy>,
    mut inner: S,
    id: RequestId,
    mut parts: Parts,
    body: B,
) -> Result<Response<LayerBody<R>>, S::Error>
where
    S: Service<Request<LayerBody<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    let limit = policy.max_request_bytes;
    let body = match read(body.as_mut(), limit).await {
        Ok(body) => body,
        Err(Unread::Broken) => return Ok(refuse(&policy, &Refusal::BrokenBody).map(whole)),
        Err(Unread::Large) => {
            drain(body.as_mut(), limit.saturating_mul(2)).await;
            return Ok(refuse(&policy, &Refusal::LargeBody { limit }).map(whole));
        }
    };
    let span = info_span!("idempotent_request", method = id.method(), decision = Empty, attempt = Empty);
    let claim = Claim { id, hash: hash(&parts, &body), lease: policy.lease, expiry: policy.expiry };
    let start = move |claimed| {
        parts.extensions.insert(claimed);
        inner.call(Request::from_parts(parts, whole(body)))
    };
    let answer = detached(answer(policy, claim, start).instrument(span)).await;
    Ok(answer.unwrap_or_else(|| Ok(Refusal::Lost.response()))?.map(whole))
}

/// Runs to its end, whether or not anybody waits for it. `None`: the runtime is going down.
async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    if canary::on("client_ends_work") {
        return Some(work.await);
    }
    tokio::spawn(work).await.ok()
}

pub(crate) fn hash(parts: &Parts, body: &[u8]) -> RequestHash {
    let (uri, content_type) = (uri(parts), parts.headers.get(CONTENT_TYPE));
    // Byte by byte: other bytes are another request, whatever they mean.
    let content_type: String =
        content_type.into_iter().flat_map(HeaderValue::as_bytes).map(|byte| char::from(*byte)).collect();
    RequestHash::of(&Asked {
        method: parts.method.as_str(),
        path: uri.path(),
        query: uri.query().unwrap_or_default(),
        content_type: &content_type,
        body,
    })
}

fn refuse(policy: &Policy, refusal: &Refusal) -> Response<Bytes> {
    count(&policy.counters.refused);
    debug!(decision = refusal.word(), "a request is refused");
    refusal.response()
}

fn whole<B>(body: Bytes) -> LayerBody<B> {
    Either::Left(Full::new(body))
}
