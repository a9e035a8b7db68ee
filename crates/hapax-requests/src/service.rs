//! The layer and its service.
//!
//! Invariant: a request either goes through the flow of `arrive` and `execute`, or to the service as it is.

use crate::{
    answer::BoxError,
    arrive::{once, refuse},
    dialect::Whole,
    options::common_options,
    over_http::Http,
    policy::{Policy, path},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use hapax_core::request::Outcome;
use hapax_store::requests::RequestStore;
use http::{HeaderName, Request, Response, StatusCode, request::Parts};
use http_body::Body;
use http_body_util::{Either, Full};
use std::{
    fmt,
    future::ready,
    mem,
    sync::Arc,
    task::{Context, Poll},
};
use tower::{Layer, Service};

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
/// .store_patience(Duration::from_secs(3))
/// .expiry(Duration::from_secs(7 * 24 * 3600))
/// .max_request_bytes(64 * 1024);
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    policy: Arc<Policy>,
    http: Http,
}

impl IdempotencyLayer {
    /// A layer over a store, and who asks: `None` is refused with a 403. Two principals never share a key, so this has
    /// no default; put the layer behind your authentication.
    pub fn new(
        store: Arc<dyn RequestStore>,
        principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let http = Http::default();
        let method = |parts: &Parts| format!("{} {}", parts.method, path(parts));
        let policy = Policy::new(store, Arc::new(http.clone()), Arc::new(principal), Arc::new(method));
        Self { policy: Arc::new(policy), http }
    }

    fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    fn with_http(mut self, change: impl FnOnce(&mut Http)) -> Self {
        change(&mut self.http);
        let http = Arc::new(self.http.clone());
        self.with(|policy| policy.dialect = http)
    }

    /// The template of a request's route, which is part of its name; the path itself by default. With axum it is
    /// `matched_path`, behind the feature `axum`.
    ///
    /// It is said here and not found out, since a name that changes between two releases makes old keys new.
    #[must_use]
    pub fn route(self, route: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.with(|policy| {
            policy.method = Arc::new(move |parts| format!("{} {}", parts.method, route(parts)));
        })
    }

    /// Which answers are final, and which may be tried again; [`outcome_of`](crate::outcome_of) by default.
    #[must_use]
    pub fn outcome(self, outcome: impl Fn(StatusCode) -> Outcome + Send + Sync + 'static) -> Self {
        self.with_http(|http| http.outcome = Arc::new(outcome))
    }

    /// The headers of an answer that are given again; by default its type, encoding, language, places, links, tag and
    /// date of change. Never keep what is for one client only, such as cookies of a session.
    #[must_use]
    pub fn kept_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with_http(|http| http.kept_headers = names.into_iter().collect())
    }

    common_options!();

    #[cfg(feature = "engine")]
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
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
                let mut inner = mem::replace(&mut self.inner, clone);
                let call = move |request: Request<Bytes>| {
                    inner.call(request.map(|body| Either::Left(Full::new(body))))
                };
                let answer = once(self.policy.clone(), id, parts, body, call);
                Box::pin(async { Ok(answer.await?.map(whole)) })
            }
            Ok(None) => {
                let passed = self.inner.call(Request::from_parts(parts, Either::Right(body)));
                Box::pin(async { Ok(passed.await?.map(Either::Right)) })
            }
            Err(refusal) => Box::pin(ready(Ok(refuse(&self.policy, &refusal).map(whole)))),
        }
    }
}

fn whole<B>(answer: Whole) -> LayerBody<B> {
    Either::Left(Full::new(answer.data))
}
