//! Requests that start a run, or join the one that they started before: behind the feature `engine`.
//!
//! Invariant: a run's id follows from the request's name alone, and the run carries the hash of what was asked for. So
//! whatever crashes between claim, start and finish, whoever asks again joins the same run; and that holds even when the
//! record has expired, for as long as the run is kept.
//!
//! ```text
//! POST ──► Idempotency ──► start ─────► 202 is stored: which run it is
//!              │ a replay              │
//!              └────────► that run ◄───┘──► waited for, if the client or the service wants it: 200, or 202 with Location
//! GET  ──► that run, if it is the asker's
//! ```

mod answer;
mod prefer;

use crate::{
    IdempotencyLayer, KeyRule, LayerBody,
    answer::BoxError,
    claimed::Claimed,
    over_http::hash,
    policy::{Policy, uri},
    problem::Refusal,
};
use answer::{Standing, accepted, run_of, unknown_run, unreadable};
use bytes::Bytes;
use futures::future::BoxFuture;
use hapax::{
    Coded, Engine, Error, Flow, RunFailure, StartOptions, State,
    core::{
        canary,
        error::code,
        key::DigestBuilder,
        request::{RequestHash, RequestId},
    },
    store::RunRecord,
};
use http::{HeaderName, Request, Response, StatusCode, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full};
use prefer::Preference;
use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service};

/// Tags of a run: whose it is, and what was asked for.
const PRINCIPAL: &str = "request.principal";
const METHOD: &str = "request.method";
const KEY: &str = "request.key";
const HASH: &str = "request.hash";

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// The longest that a client may ask the service to wait, unless it says otherwise.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The id of the run that a request starts: `rq-` and 64 hex digits, the same whenever and wherever it is asked for. The
/// formula is v1 and never changed: a key that comes back must find its run.
///
/// ```
/// use hapax_core::{id::Namespace, request::RequestId};
/// use hapax_requests::run_id;
/// let id = |key| RequestId::new(Namespace::default(), "merchant-7", "POST /orders", key).unwrap();
/// assert_eq!(run_id(&id("8e03978e")), run_id(&id("8e03978e")));
/// assert_ne!(run_id(&id("8e03978e")), run_id(&id("8e03978f")));
/// assert_eq!(run_id(&id("8e03978e")).len(), 67);
/// ```
pub fn run_id(id: &RequestId) -> String {
    let mut digest = DigestBuilder::new("hapax.request.run.v1");
    digest.text(id.namespace().as_str()).text(id.principal()).text(id.method()).text(id.key());
    format!("rq-{}", digest.finish())
}

/// Lets requests start runs: each key starts one, and whoever asks again joins it.
///
/// ```
/// use axum::{Router, body::Body, routing::{get_service, post_service}};
/// use hapax::prelude::*;
/// use hapax_requests::{IdempotencyLayer, Requests, matched_path};
/// use hapax_store::requests::MemoryRequests;
/// use http::{Request, StatusCode};
/// use serde::{Deserialize, Serialize};
/// use std::{sync::Arc, time::Duration};
/// use tower::ServiceExt;
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Order { sku: String, #[serde(default)] shelf: u64 }
/// const RESERVE: Node = Node::new("reserve");
/// async fn reserve(_: hapax::Ctx<Order>) -> OrderDelta { Order::delta().shelf(7u64) }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::open("memory:").await?;
/// let flow = engine.register(Graph::new("orders", 1, RESERVE).node(RESERVE, reserve), ()).await?;
/// let merchant = |_: &http::request::Parts| Some("merchant-7".to_owned()); // yours is what authentication says
/// let layer = IdempotencyLayer::new(Arc::new(MemoryRequests::new()), merchant).route(matched_path);
/// let orders = Requests::new(layer, engine).run(&flow, |request| serde_json::from_slice(request.body()));
/// let service = Router::new()
///     .route("/orders", post_service(orders.start()))
///     .route("/orders/{run}", get_service(orders.status()));
///
/// let order = Request::post("/orders").header("idempotency-key", "8e03978e").body(Body::from(r#"{"sku":"anvil"}"#))?;
/// let begun = service.clone().oneshot(order).await?;
/// assert_eq!(begun.status(), StatusCode::ACCEPTED);
/// let place = begun.headers()["location"].to_str()?.to_owned();
///
/// let order = Request::post("/orders").header("idempotency-key", "8e03978e").header("prefer", "wait=10");
/// let joined = service.clone().oneshot(order.body(Body::from(r#"{"sku":"anvil"}"#))?).await?;
/// assert_eq!(joined.status(), StatusCode::OK);
/// assert_eq!(axum::body::to_bytes(joined.into_body(), 100).await?, r#"{"shelf":7,"sku":"anvil"}"#);
/// assert_eq!(service.oneshot(Request::get(place).body(Body::empty())?).await?.status(), StatusCode::OK);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Requests {
    layer: IdempotencyLayer,
    engine: Engine,
    wait: Duration,
    longest_wait: Duration,
}

impl Requests {
    /// Over a layer, which says who asks, and an engine, which has the runs.
    pub fn new(layer: IdempotencyLayer, engine: Engine) -> Self {
        // Without a key there is nothing that a run could be found by.
        let layer = layer.key_rule(|_| KeyRule::Required);
        Self { layer, engine, wait: Duration::ZERO, longest_wait: LONGEST_WAIT }
    }

    /// How long a run is waited for when the client doesn't say; not at all by default, so that the answer is a 202.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// How long a client may ask the service to wait, by `Prefer: wait=N`; 30 seconds by default.
    #[must_use]
    pub fn longest_wait(self, longest_wait: Duration) -> Self {
        Self { longest_wait, ..self }
    }

    /// Lets requests start runs of this graph: `read` makes the first state of what was asked for. What it refuses is
    /// answered with a 400, for good.
    ///
    /// It runs under the claim and should depend on the request alone; of a request that comes again, the run that is
    /// there counts.
    pub fn run<S, A, E>(
        &self,
        flow: &Flow<S, A>,
        read: impl Fn(&Request<Bytes>) -> Result<S, E> + Send + Sync + 'static,
    ) -> RunRequests<S, A>
    where
        S: State,
        A: Send + Sync + 'static,
        E: fmt::Display,
    {
        let read = move |request: &Request<Bytes>| read(request).map_err(|error| error.to_string());
        RunRequests {
            runs: Arc::new(Runs {
                requests: self.clone(),
                flow: flow.clone(),
                read: Arc::new(read),
                succeeded: Arc::new(answer::state::<S>),
                failed: Arc::new(answer::failure),
            }),
        }
    }
}

/// The services of requests that start runs of one graph: see [`Requests`].
///
/// ```
/// use bytes::Bytes;
/// use hapax::prelude::*;
/// use hapax_requests::{IdempotencyLayer, Requests};
/// use hapax_store::requests::MemoryRequests;
/// use http::Response;
/// # use serde::{Deserialize, Serialize};
/// # use std::sync::Arc;
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { sku: String }
/// # const RESERVE: Node = Node::new("reserve");
/// # async fn reserve(_: hapax::Ctx<Order>) {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let flow = engine.register(Graph::new("orders", 1, RESERVE).node(RESERVE, reserve), ()).await?;
/// # let layer = IdempotencyLayer::new(Arc::new(MemoryRequests::new()), |_| Some("merchant-7".into()));
/// let orders = Requests::new(layer, engine)
///     .run(&flow, |request| serde_json::from_slice::<Order>(request.body()))
///     .on_success(|order| Response::new(Bytes::from(format!("{} is on its way", order.sku))))
///     .on_failure(|failure| Response::builder().status(502).body(failure.code.to_string().into()).unwrap());
/// let (start, status) = (orders.start(), orders.status());
/// # Ok(())
/// # }
/// ```
pub struct RunRequests<S: State, A = ()> {
    runs: Arc<Runs<S, A>>,
}

impl<S: State, A: Send + Sync + 'static> RunRequests<S, A> {
    /// What is answered when a run has succeeded; by default a 200 with its state as JSON, without its secret fields.
    #[must_use]
    pub fn on_success(self, answer: impl Fn(&S) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|runs| runs.succeeded = Arc::new(answer))
    }

    /// What is answered when a run has failed; by default a 500 with a problem that has the failure's code and message.
    #[must_use]
    pub fn on_failure(self, answer: impl Fn(&RunFailure) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|runs| runs.failed = Arc::new(answer))
    }

    fn with(mut self, change: impl FnOnce(&mut Runs<S, A>)) -> Self {
        change(Arc::make_mut(&mut self.runs));
        self
    }

    /// The service for POST: starts a run, or joins the one that this key has started.
    pub fn start(&self) -> StartRun<S, A> {
        StartRun { runs: self.runs.clone() }
    }

    /// The service for GET, at the path of the other one, a slash and the run's id.
    pub fn status(&self) -> RunStatus<S, A> {
        RunStatus { runs: self.runs.clone() }
    }
}

/// A service that starts runs; made by [`RunRequests::start`].
///
/// ```
/// use hapax_requests::StartRun;
/// fn is_service<S: hapax::State, B>()
/// where
///     StartRun<S>: tower::Service<http::Request<B>>,
///     B: http_body::Body<Data = bytes::Bytes, Error = std::convert::Infallible> + Send + 'static,
/// {
/// }
/// ```
pub struct StartRun<S: State, A = ()> {
    runs: Arc<Runs<S, A>>,
}

/// A service that tells where a run stands; made by [`RunRequests::status`].
///
/// ```
/// use hapax_requests::RunStatus;
/// fn is_service<S: hapax::State, B: Send + 'static>()
/// where
///     RunStatus<S>: tower::Service<http::Request<B>>,
/// {
/// }
/// ```
pub struct RunStatus<S: State, A = ()> {
    runs: Arc<Runs<S, A>>,
}

/// What these have in common: one allocation that is shared.
macro_rules! shared {
    ($($name:ident),*) => {$(
        impl<S: State, A> Clone for $name<S, A> {
            fn clone(&self) -> Self {
                Self { runs: self.runs.clone() }
            }
        }

        impl<S: State, A> fmt::Debug for $name<S, A> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("flow", &self.runs.flow).finish_non_exhaustive()
            }
        }
    )*};
}
shared!(RunRequests, StartRun, RunStatus);

/// Makes a state of what was asked for.
type Read<S> = Arc<dyn Fn(&Request<Bytes>) -> Result<S, String> + Send + Sync>;
/// Makes an answer of how a run ended.
type Tell<T> = Arc<dyn Fn(&T) -> Response<Bytes> + Send + Sync>;

struct Runs<S: State, A> {
    requests: Requests,
    flow: Flow<S, A>,
    read: Read<S>,
    succeeded: Tell<S>,
    failed: Tell<RunFailure>,
}

impl<S: State, A> Clone for Runs<S, A> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            flow: self.flow.clone(),
            read: self.read.clone(),
            succeeded: self.succeeded.clone(),
            failed: self.failed.clone(),
        }
    }
}

impl<S: State, A: Send + Sync + 'static> Runs<S, A> {
    fn engine(&self) -> &Engine {
        &self.requests.engine
    }

    fn policy(&self) -> &Policy {
        self.requests.layer.policy()
    }

    /// Starts the run of a request that is claimed, or finds it started: what is stored as the answer.
    async fn begin(&self, claimed: &Claimed, request: &Request<Bytes>, hash: RequestHash) -> Response<Bytes> {
        let id = &claimed.lease().id;
        let run = match canary::on("run_id_anew") {
            true => format!("rq-{:032x}", claimed.lease().token.nonce),
            false => run_id(id),
        };
        let state = match (self.read)(request) {
            Ok(state) => state,
            Err(why) => return unreadable(&why),
        };
        let options = StartOptions::default()
            .tag(PRINCIPAL, id.principal())
            .tag(METHOD, id.method())
            .tag(KEY, id.key())
            .tag(HASH, hash.to_string());
        let started = self.flow.start_with(&run, state, options).await;
        // Whether or not it is new, the run says what it was asked for. It may be older than its record.
        match (self.engine().record(&run).await, started) {
            (Ok(record), _) if record.tags.get(HASH) == Some(&hash.to_string()) => accepted(&run, None),
            (Ok(_), _) if canary::on("run_hash_unchecked") => accepted(&run, None),
            (Ok(_), _) => Refusal::OtherRequest.response(),
            // A state that no run can begin with.
            (_, Err(error)) if [code::LIMIT, code::NOT_SERIALISABLE].contains(&error.code()) => {
                unreadable(&error.to_string())
            }
            (Err(error), _) => down(&error),
        }
    }

    /// Waits for a run's end; whatever keeps it from being known is told.
    async fn end(&self, run: &str) -> Response<Bytes> {
        match self.engine().wait(run).await {
            Ok(_) => self.standing(run).await,
            Err(error) => down(&error),
        }
    }

    /// Where a run stands, as its asker is told.
    async fn standing(&self, run: &str) -> Response<Bytes> {
        match self.engine().record(run).await {
            Ok(record) => self.told(record).await,
            Err(error) if error.code() == code::RUN_NOT_FOUND => unknown_run(),
            Err(error) => down(&error),
        }
    }

    async fn told(&self, record: RunRecord) -> Response<Bytes> {
        match Standing::of(&self.engine().store(), record).await {
            Ok(Standing::UnderWay(run)) => accepted(&run, None),
            Ok(Standing::Succeeded(state)) => (self.succeeded)(&state),
            Ok(Standing::Failed(failure)) => (self.failed)(&failure),
            Ok(Standing::Cancelled) => answer::cancelled(),
            Err(error) => down(&error),
        }
    }

    /// The run at this path, as far as the asker may know of it: of another's, nobody learns that it is there.
    async fn seen(&self, parts: &Parts) -> Response<Bytes> {
        let Some(principal) = (self.policy().principal)(parts) else {
            return Refusal::NoPrincipal.response();
        };
        let run = uri(parts).path().trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let is_ours = match self.flow.attach(run).await {
            // Another shape of the graph is still the graph.
            Ok(_) | Err(Error::GraphMismatch { .. }) => true,
            Err(Error::NotRegistered { .. } | Error::Id(_)) => false,
            Err(error) if error.code() == code::RUN_NOT_FOUND => false,
            Err(error) => return down(&error),
        };
        let is_asker = |record: &RunRecord| {
            record.tags.get(PRINCIPAL) == Some(&principal) || canary::on("run_seen_by_all")
        };
        match self.engine().record(run).await {
            Ok(record) if is_ours && is_asker(&record) => self.told(record).await,
            Err(error) if is_ours => down(&error),
            _ => unknown_run(),
        }
    }
}

/// The store of the runs can't tell.
fn down(error: &Error) -> Response<Bytes> {
    tracing::warn!(%error, "a run could not be started or read");
    Refusal::StoreDown.response()
}

impl<S, A, B> Service<Request<B>> for StartRun<S, A>
where
    S: State,
    A: Send + Sync + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let runs = self.runs.clone();
        Box::pin(async move { Ok(start(&runs, request).await.map(Full::new)) })
    }
}

/// Claims and starts, or joins; then waits for as long as it is wanted.
async fn start<S, A, B>(runs: &Arc<Runs<S, A>>, request: Request<B>) -> Response<Bytes>
where
    S: State,
    A: Send + Sync + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let place = uri(&parts).path().trim_end_matches('/').to_owned();
    let preference = Preference::of(&parts.headers);
    // The handler is always ready, so nobody has to ask whether it is.
    let answer =
        runs.requests.layer.layer(Starter { runs: runs.clone() }).call(Request::from_parts(parts, body));
    let Ok(answer) = answer.await;
    let (parts, Either::Left(body) | Either::Right(body)) = answer.into_parts();
    let Ok(body) = body.collect().await;
    let stored = Response::from_parts(parts, body.to_bytes());
    let run = (stored.status() == StatusCode::ACCEPTED).then(|| run_of(stored.body())).flatten();
    let Some(run) = run else { return stored };
    let limit = preference.limit(runs.requests.wait, runs.requests.longest_wait);
    let ended = match limit.is_zero() {
        true => None,
        false => tokio::time::timeout(limit, runs.end(&run)).await.ok(),
    };
    let replayed = stored.headers().get("idempotency-replayed").cloned();
    let mut answer = ended.unwrap_or_else(|| accepted(&run, Some(&*format!("{place}/{run}"))));
    let headers = answer.headers_mut();
    headers.extend(replayed.map(|value| (HeaderName::from_static("idempotency-replayed"), value)));
    headers.extend(preference.applied(runs.requests.longest_wait).map(|value| (PREFERENCE_APPLIED, value)));
    answer
}

impl<S, A, B> Service<Request<B>> for RunStatus<S, A>
where
    S: State,
    A: Send + Sync + 'static,
    B: Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let runs = self.runs.clone();
        let (parts, _) = request.into_parts();
        Box::pin(async move { Ok(runs.seen(&parts).await.map(Full::new)) })
    }
}

/// The handler under the layer.
struct Starter<S: State, A> {
    runs: Arc<Runs<S, A>>,
}

impl<S: State, A> Clone for Starter<S, A> {
    fn clone(&self) -> Self {
        Self { runs: self.runs.clone() }
    }
}

impl<S, A, B> Service<Request<LayerBody<B>>> for Starter<S, A>
where
    S: State,
    A: Send + Sync + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<LayerBody<B>>) -> Self::Future {
        let runs = self.runs.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = match (parts.extensions.get::<Claimed>().cloned(), body.collect().await) {
                (Some(claimed), Ok(body)) => {
                    let body = body.to_bytes();
                    let hash = hash(&parts, &body);
                    runs.begin(&claimed, &Request::from_parts(parts, body), hash).await
                }
                (None, _) => Refusal::MissingKey.response(),
                (_, Err(_)) => Refusal::BrokenBody.response(),
            };
            Ok(answer.map(Full::new))
        })
    }
}
