//! A shop whose orders are runs, on a port of its own, and its client.

use axum::{
    Router,
    routing::{get_service, post_service},
};
use bytes::Bytes;
use hapax::{Durability, Flow, prelude::*, store::ListFilter};
use hapax_requests::{IdempotencyLayer, OnConflict, Requests, matched_path};
use hapax_store::requests::RequestStore;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle, time::timeout};

/// Nothing takes so long: a test fails then, and doesn't hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    sku: String,
    #[serde(default)]
    #[state(secret)]
    card: String,
    #[serde(default)]
    shelf: u64,
    #[serde(default)]
    shipped: bool,
}

/// What the nodes do and have done.
pub(crate) trait World: Send + Sync + 'static {
    /// A node begins its work: it may have to wait.
    fn at(&self, node: &'static str, sku: &str) -> futures::future::BoxFuture<'_, ()>;
    /// It has done it.
    fn done(&self, node: &'static str);
}

pub(crate) type Shared = Arc<dyn World>;
type Ctx = hapax::Ctx<Order, Shared>;

const RESERVE: Node = Node::new("reserve");
const SHIP: Node = Node::new("ship");

async fn reserve(ctx: Ctx) -> hapax::Result<OrderDelta> {
    let order = ctx.state();
    if order.sku == "bomb" {
        return Err(NodeError::new("we sell no bombs").fatal());
    }
    ctx.app().at("reserve", &order.sku).await;
    ctx.app().done("reserve");
    Ok(Order::delta().shelf(7u64))
}

async fn ship(ctx: Ctx) -> OrderDelta {
    ctx.app().at("ship", &ctx.state().sku).await;
    ctx.app().done("ship");
    Order::delta().shipped(true)
}

pub(crate) async fn orders(engine: &Engine, world: Shared) -> Flow<Order, Shared> {
    let graph = Graph::new("orders", 1, RESERVE).node(RESERVE, reserve).node(SHIP, ship).edge(RESERVE, SHIP);
    engine.register(graph, world).await.expect("a graph")
}

pub(crate) fn layer(store: Arc<dyn RequestStore>) -> IdempotencyLayer {
    let merchant =
        |parts: &http::request::Parts| Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned());
    IdempotencyLayer::new(store, merchant).route(matched_path).on_conflict(OnConflict::Wait(PATIENCE))
}

/// Orders that are read as they should be, after `first`.
pub(crate) fn router(
    requests: &Requests,
    flow: &Flow<Order, Shared>,
    first: impl Fn() + Send + Sync + 'static,
) -> Router {
    let orders = requests.run(flow, move |request| {
        first();
        serde_json::from_slice::<Order>(request.body())
    });
    Router::new()
        .route("/orders", post_service(orders.start()))
        .route("/orders/{run}", get_service(orders.status()))
}

/// An engine that notices soon that another one has died. A step begins when the one before it is durable, so that a kill
/// between two of them leaves the first.
pub(crate) async fn engine(url: &str) -> Engine {
    let options = Options::default()
        .durability(Durability::Strict)
        .lease_ttl(Duration::from_secs(2))
        .lease_renewal(Duration::from_millis(500))
        .scan_interval(Duration::from_millis(100));
    Engine::builder().options(options).open(url).await.expect("an engine")
}

/// A world in which an order for something slow waits at its first node.
#[derive(Default)]
pub(crate) struct Watched {
    done: Mutex<Vec<&'static str>>,
    gate: Gate,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Watched {
    pub(crate) fn done(&self) -> Vec<&'static str> {
        self.done.lock().expect("nobody panics with it").clone()
    }

    pub(crate) fn open(&self) {
        self.gate.0.add_permits(1);
    }
}

impl World for Watched {
    fn at(&self, node: &'static str, sku: &str) -> futures::future::BoxFuture<'_, ()> {
        let waits = node == "reserve" && sku == "slow";
        Box::pin(async move {
            if waits {
                self.gate.0.acquire().await.expect("it is never closed").forget();
            }
        })
    }

    fn done(&self, node: &'static str) {
        self.done.lock().expect("nobody panics with it").push(node);
    }
}

/// A shop in this process.
pub(crate) struct Shop {
    pub(crate) world: Arc<Watched>,
    pub(crate) engine: Engine,
    pub(crate) client: Client,
    serving: JoinHandle<()>,
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shop {
    pub(crate) async fn open(url: &str) -> Self {
        Self::with(url, |layer| layer, |requests| requests).await
    }

    pub(crate) async fn with(
        url: &str,
        told: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
        waits: impl FnOnce(Requests) -> Requests,
    ) -> Self {
        let store = hapax_store::requests::open(url).await.expect("it opens");
        let (engine, world) = (engine(url).await, Arc::new(Watched::default()));
        let flow = orders(&engine, world.clone()).await;
        let requests = waits(Requests::new(told(layer(store)), engine.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client = Client::of(format!("http://{}", listener.local_addr().expect("an address")));
        let router = router(&requests, &flow, || ());
        let serving = tokio::spawn(async { axum::serve(listener, router).await.expect("it serves") });
        Self { world, engine, client, serving }
    }

    pub(crate) async fn runs(&self) -> usize {
        runs(&self.engine).await
    }
}

/// How many runs there are.
pub(crate) async fn runs(engine: &Engine) -> usize {
    engine.list(ListFilter { limit: 100, ..ListFilter::default() }).await.expect("a list").len()
}

#[derive(Clone)]
pub(crate) struct Client {
    address: String,
    http: reqwest::Client,
}

impl Client {
    pub(crate) fn of(address: String) -> Self {
        Self { address, http: reqwest::Client::builder().no_proxy().build().expect("a client") }
    }

    /// An order of one merchant's.
    pub(crate) fn order(&self, key: &str, sku: &str) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}/orders", self.address)).header("x-merchant", "ada");
        let request = request.header("idempotency-key", key).header("content-type", "application/json");
        request.body(format!(r#"{{"sku":"{sku}","card":"4242"}}"#))
    }

    /// The same, waited for.
    pub(crate) async fn ordered(&self, key: &str, sku: &str) -> Reply {
        send(self.order(key, sku).header("prefer", "wait=30")).await.expect("an answer")
    }

    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.http.get(format!("{}{path}", self.address))
    }

    /// Where a run stands, for the merchant whose it is.
    pub(crate) async fn status(&self, path: &str) -> Reply {
        send(self.get(path).header("x-merchant", "ada")).await.expect("an answer")
    }
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

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        let code = problem["code"].as_str().expect("a code").to_owned();
        let page = problem["type"].as_str().expect("a page");
        assert!(page.ends_with(&format!("/docs/errors/{code}.md")), "{page}");
        code
    }
}

pub(crate) async fn send(request: reqwest::RequestBuilder) -> reqwest::Result<Reply> {
    let answer = timeout(PATIENCE, request.send()).await.expect("an answer comes")?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Ok(Reply { status, headers, body: answer.bytes().await? })
}
