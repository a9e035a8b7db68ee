//! A service with money in it, on a port of its own, and its client.

use crate::probe::Probe;
use axum::{
    Extension, Json, Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post, put},
};
use futures::{StreamExt, stream};
use hapax_core::{error::code, request::Completion};
use hapax_requests::{Claimed, IdempotencyLayer, matched_path};
use hapax_store::requests::RequestStore;
use serde_json::json;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle, time::timeout};

/// Nothing takes so long: a test fails then, and doesn't hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The layer's refusals, by the headings of the guide.
const WORDS: [(&str, &str); 11] = [
    (code::REQUEST_KEY_MISSING, "missing-key"),
    (code::REQUEST_KEY_INVALID, "bad-key"),
    (code::REQUEST_NO_PRINCIPAL, "no-principal"),
    (code::REQUEST_NAME_INVALID, "bad-name"),
    (code::REQUEST_BODY_BROKEN, "broken-body"),
    (code::REQUEST_BODY_TOO_LARGE, "large-body"),
    (code::REQUEST_MISMATCH, "other-request"),
    (code::REQUEST_IN_FLIGHT, "in-flight"),
    (code::REQUEST_STORE_DOWN, "store-down"),
    (code::REQUEST_ANSWER_TOO_LARGE, "large-answer"),
    (code::REQUEST_LOST, "lost"),
];

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
    fn charge(&self) -> usize {
        self.charges.fetch_add(1, SeqCst) + 1
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

type Shared = State<Arc<World>>;

fn receipt(number: usize) -> Response {
    let headers = [
        ("location", format!("/charges/{number}")),
        ("set-cookie", format!("session={number}")),
        ("x-request-id", number.to_string()),
    ];
    (StatusCode::CREATED, headers, Json(json!({ "charge": number }))).into_response()
}

async fn charge(State(world): Shared) -> Response {
    receipt(world.charge())
}

async fn slow(State(world): Shared) -> Response {
    world.started.add_permits(1);
    take(&world.gate).await;
    receipt(world.charge())
}

async fn panics(State(world): Shared) -> Response {
    assert!(!world.is_troubled(), "as it was asked to");
    receipt(world.charge())
}

/// The first answers have this status.
async fn fails(State(world): Shared, Path(code): Path<u16>) -> Response {
    let code = StatusCode::from_u16(code).expect("a status");
    if world.is_troubled() { (code, "no luck").into_response() } else { receipt(world.charge()) }
}

/// Fails at first, and is slow then.
async fn retried(State(world): Shared) -> Response {
    if world.is_troubled() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    slow(State(world)).await
}

/// The body, in pieces.
async fn echo(State(world): Shared, headers: HeaderMap, body: Bytes) -> Response {
    world.charge();
    let pieces: Vec<_> =
        body.chunks(1000).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
    let content_type = headers.get("content-type").cloned();
    let mut response = Body::from_stream(stream::iter(pieces).boxed()).into_response();
    response.headers_mut().extend(content_type.map(|value| (http::header::CONTENT_TYPE, value)));
    response
}

async fn large(State(world): Shared, Path(bytes): Path<usize>) -> Vec<u8> {
    world.charge();
    vec![b'x'; bytes]
}

async fn nothing(State(world): Shared) -> StatusCode {
    world.charge();
    StatusCode::NO_CONTENT
}

/// Ends its record by itself, and answers something else.
async fn own(State(world): Shared, Extension(claimed): Extension<Claimed>) -> Response {
    let own = Completion::succeeded(202, format!("own {}", world.charge()));
    let _ = world.store.finish(claimed.lease(), &own).await.expect("the store is there");
    (StatusCode::OK, "the handler's").into_response()
}

/// Ends its record by itself, as the layer would.
async fn same(State(world): Shared, Extension(claimed): Extension<Claimed>) -> Response {
    let (parts, body) = receipt(world.charge()).into_parts();
    let body = axum::body::to_bytes(body, 1000).await.expect("it is small");
    let response = Response::from_parts(parts, body);
    let completion = claimed.completion(&response);
    let _ = world.store.finish(claimed.lease(), &completion).await.expect("the store is there");
    response.map(Body::from)
}

/// Tells when a connection lets go of its request, answered or not.
async fn watched(State(world): Shared, request: Request, next: Next) -> Response {
    struct Left(Arc<World>);
    impl Drop for Left {
        fn drop(&mut self) {
            self.0.left.add_permits(1);
        }
    }
    let _left = Left(world);
    next.run(request).await
}

pub(crate) fn router(world: Arc<World>, layer: IdempotencyLayer) -> Router {
    let accounts = Router::new().route("/charges", post(charge)).layer(layer.clone());
    Router::new()
        .route("/charges", get(charge).post(charge))
        .route("/put", put(charge))
        .route("/slow", post(slow))
        .route("/panics", post(panics))
        .route("/fails/{code}", post(fails))
        .route("/retried", post(retried))
        .route("/echo", post(echo))
        .route("/large/{bytes}", post(large))
        .route("/nothing", any(nothing))
        .route("/own", post(own))
        .route("/same", post(same))
        .layer(layer)
        .nest("/accounts/{account}", accounts)
        .layer(middleware::from_fn_with_state(world.clone(), watched))
        .with_state(world)
}

pub(crate) struct Server {
    pub(crate) world: Arc<World>,
    pub(crate) layer: IdempotencyLayer,
    address: String,
    client: reqwest::Client,
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
        told: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        let store = Probe::over(store);
        let layer = told(layer(store.clone()));
        let world = Arc::new(World {
            store,
            charges: AtomicUsize::new(0),
            trouble: AtomicUsize::new(0),
            started: Semaphore::new(0),
            gate: Semaphore::new(0),
            left: Semaphore::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let router = router(world.clone(), layer.clone());
        let serving = tokio::spawn(async { axum::serve(listener, router).await.expect("it serves") });
        Self { world, layer, address, client: client(), serving }
    }

    /// A request with a key, sent by one merchant.
    pub(crate) fn post(&self, path: &str, key: &str) -> reqwest::RequestBuilder {
        self.request(reqwest::Method::POST, path).header("idempotency-key", key)
    }

    pub(crate) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.address)).header("x-merchant", "ada")
    }

    /// Sends a request with a key, without a body.
    pub(crate) async fn ask(&self, path: &str, key: &str) -> Reply {
        send(self.post(path, key)).await
    }

    /// The same in a task of its own.
    pub(crate) fn asked(&self, path: &str, key: &str) -> JoinHandle<Reply> {
        tokio::spawn(send(self.post(path, key)))
    }
}

pub(crate) fn layer(store: Arc<Probe>) -> IdempotencyLayer {
    let merchant =
        |parts: &http::request::Parts| Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned());
    IdempotencyLayer::new(store, merchant).route(matched_path)
}

pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

/// An answer as a client has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Which refusal of the layer's it is.
    pub(crate) fn refusal(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        assert_eq!(problem["status"], self.status);
        let code = problem["code"].as_str().expect("a code");
        assert!(problem["type"].as_str().is_some_and(|page| page.ends_with(&format!("/errors/{code}.md"))));
        let word = WORDS.iter().find(|(known, _)| *known == code);
        word.unwrap_or_else(|| panic!("{code} is no refusal")).1.to_owned()
    }

    /// What must be the same for all who ask: the status, the headers of the list, and the body.
    pub(crate) fn kept(&self) -> (u16, [Option<&str>; 2], &Bytes) {
        (self.status, [self.header("content-type"), self.header("location")], &self.body)
    }
}

pub(crate) async fn send(request: reqwest::RequestBuilder) -> Reply {
    let answer = timeout(PATIENCE, request.send()).await.expect("an answer comes").expect("it arrives");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Reply { status, headers, body: answer.bytes().await.expect("a body") }
}
