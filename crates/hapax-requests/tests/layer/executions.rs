//! Who executes, who is refused, and who gets the same bytes.

use crate::{
    probe::Probe,
    server::{PATIENCE, Reply, Server, layer, send},
};
use futures::{StreamExt, stream::FuturesUnordered};
use hapax_requests::{LayerBody, OnConflict};
use hapax_store::requests::RequestStore;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use reqwest::Method;
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tower::{Layer, ServiceExt, service_fn};
use tracing::{
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{layer::Context, prelude::*};

type Store = Arc<dyn RequestStore>;

pub(crate) async fn of_many_at_once_one_executes_and_the_rest_are_refused(store: Store) {
    let server = Server::over(store).await;
    let mut asked: FuturesUnordered<_> = (0..40).map(|_| server.asked("/slow", "\"k\"")).collect();
    for _ in 1..40 {
        let refused = asked.next().await.expect("one more").expect("it was sent");
        assert_eq!((refused.status, refused.refusal().as_str()), (409, "in-flight"));
        let seconds: u64 = refused.header("retry-after").expect("when").parse().expect("seconds");
        assert!((1..=5).contains(&seconds));
    }
    server.world.open(1);
    let first = asked.next().await.expect("the last").expect("it was sent");
    assert_eq!((first.status, first.is_replayed()), (201, false));
    let again = server.ask("/slow", "\"k\"").await;
    assert_eq!((again.kept(), again.is_replayed()), (first.kept(), true));
    assert_eq!(server.world.charges(), 1);
}

pub(crate) async fn of_many_at_once_one_executes_and_the_rest_get_its_bytes(store: Store) {
    let server = Server::with(store, |layer| layer.on_conflict(OnConflict::Wait(PATIENCE))).await;
    let asked: Vec<_> = (0..20).map(|_| server.asked("/slow", "\"k\"")).collect();
    server.world.store.saw(|calls| calls.claims >= 20).await;
    server.world.open(1);
    let mut replies: Vec<Reply> = vec![];
    for reply in asked {
        replies.push(reply.await.expect("it was sent"));
    }
    let first = replies.iter().find(|reply| !reply.is_replayed()).expect("who executed it");
    assert_eq!(first.status, 201);
    assert!(replies.iter().all(|reply| reply.kept() == first.kept()));
    assert_eq!(replies.iter().filter(|reply| reply.is_replayed()).count(), 19);
    assert_eq!(server.world.charges(), 1);
}

pub(crate) async fn who_has_waited_long_enough_is_refused(store: Store) {
    let short = Duration::from_millis(40);
    let server = Server::with(store, |layer| layer.on_conflict(OnConflict::Wait(short))).await;
    let first = server.asked("/slow", "\"k\"");
    server.world.started().await;
    assert_eq!(server.ask("/slow", "\"k\"").await.refusal(), "in-flight");
    server.world.open(1);
    assert_eq!(first.await.expect("it was sent").status, 201);
}

pub(crate) async fn a_client_that_goes_away_ends_nothing(store: Store) {
    let server =
        Server::with(store, |layer| layer.on_conflict(OnConflict::Wait(Duration::from_secs(5)))).await;
    let client = server.asked("/slow", "\"k\"");
    server.world.started().await;
    client.abort();
    server.world.left().await;
    assert_eq!(server.world.charges(), 0, "it was still at work");
    server.world.open(1);
    let again = server.ask("/slow", "\"k\"").await;
    assert_eq!((again.status, again.is_replayed(), server.world.charges()), (201, true, 1));
}

pub(crate) async fn a_handler_that_panics_leaves_a_request_that_can_be_tried_again(store: Store) {
    let server = Server::over(store).await;
    server.world.trouble.store(2, SeqCst);
    for _ in 0..2 {
        let broken = server.ask("/panics", "\"k\"").await;
        assert_eq!((broken.status, broken.refusal().as_str()), (500, "lost"));
    }
    let done = server.ask("/panics", "\"k\"").await;
    assert_eq!((done.status, done.is_replayed(), server.world.charges()), (201, false, 1));
    assert_eq!(server.layer.stats().takeovers, 2);
}

pub(crate) async fn a_failure_that_may_pass_is_executed_again(store: Store) {
    let server = Server::over(store).await;
    for code in [408, 409, 425, 429, 500, 503] {
        server.world.trouble.store(1, SeqCst);
        let (path, key) = (format!("/fails/{code}"), format!("\"k{code}\""));
        let failed = server.ask(&path, &key).await;
        assert_eq!((failed.status, &failed.body[..]), (code, &b"no luck"[..]), "the handler's own words");
        let (again, later) = (server.ask(&path, &key).await, server.ask(&path, &key).await);
        assert_eq!((again.status, again.is_replayed()), (201, false));
        assert_eq!((later.kept(), later.is_replayed()), (again.kept(), true));
    }
    assert_eq!(server.world.charges(), 6);
}

pub(crate) async fn of_many_who_try_again_at_once_one_executes(store: Store) {
    let server = Server::over(store).await;
    server.world.trouble.store(1, SeqCst);
    assert_eq!(server.ask("/retried", "\"k\"").await.status, 503);
    let mut asked: FuturesUnordered<_> = (0..8).map(|_| server.asked("/retried", "\"k\"")).collect();
    for _ in 1..8 {
        let refused = asked.next().await.expect("one more").expect("it was sent");
        assert_eq!((refused.status, refused.refusal().as_str()), (409, "in-flight"));
    }
    server.world.open(1);
    let winner = asked.next().await.expect("the last").expect("it was sent");
    assert_eq!((winner.status, winner.is_replayed()), (201, false));
    let stats = server.layer.stats();
    assert_eq!((server.world.charges(), stats.executed, stats.takeovers), (1, 2, 1));
}

pub(crate) async fn a_failure_that_is_final_is_not(store: Store) {
    let server = Server::over(store).await;
    for code in [400, 402, 404, 422] {
        server.world.trouble.store(1, SeqCst);
        let (path, key) = (format!("/fails/{code}"), format!("\"k{code}\""));
        let (failed, again) = (server.ask(&path, &key).await, server.ask(&path, &key).await);
        assert_eq!((failed.status, failed.is_replayed()), (code, false));
        assert_eq!((again.kept(), again.is_replayed()), (failed.kept(), true));
    }
    assert_eq!(server.world.charges(), 0);
}

pub(crate) async fn two_principals_have_keys_of_their_own(store: Store) {
    let server = Server::over(store).await;
    let ada = server.ask("/charges", "\"k\"").await;
    let mut bob = server.post("/charges", "\"k\"").build().expect("a request");
    bob.headers_mut().insert("x-merchant", "bob".parse().expect("a value"));
    let bob = send(reqwest::RequestBuilder::from_parts(crate::server::client(), bob)).await;
    assert_eq!((bob.status, bob.is_replayed()), (201, false));
    assert_ne!(ada.body, bob.body);
    assert_eq!(server.ask("/charges", "\"k\"").await.body, ada.body);
    assert_eq!(server.world.charges(), 2);
}

pub(crate) async fn reads_are_left_alone_and_other_methods_may_have_a_key(store: Store) {
    let server = Server::over(store).await;
    let ask = async |method: Method, path: &str, key: Option<&str>| {
        let request = server.request(method, path);
        send(key.into_iter().fold(request, |request, key| request.header("idempotency-key", key))).await
    };
    for method in [Method::GET, Method::HEAD] {
        for key in [None, Some("\"k\""), Some("\"open")] {
            let reply = ask(method.clone(), "/charges", key).await;
            assert_eq!((reply.status, reply.is_replayed()), (201, false));
        }
    }
    assert_eq!((server.world.charges(), server.world.store.calls().claims), (6, 0), "the store wasn't asked");
    for _ in 0..2 {
        assert_eq!(ask(Method::PUT, "/put", None).await.status, 201);
    }
    assert_eq!((server.world.charges(), server.world.store.calls().claims), (8, 0));
    let (put, again) = (ask(Method::PUT, "/put", Some("k")).await, ask(Method::PUT, "/put", Some("k")).await);
    assert_eq!((put.kept(), again.is_replayed(), server.world.charges()), (again.kept(), true, 9));
    assert_eq!(ask(Method::PUT, "/put", Some("\"open")).await.refusal(), "bad-key");
}

pub(crate) async fn a_handler_that_ends_its_record_is_believed(store: Store) {
    let server = Server::over(store).await;
    let (first, again) = (server.ask("/own", "\"k\"").await, server.ask("/own", "\"k\"").await);
    assert_eq!((first.status, &first.body[..], first.is_replayed()), (202, &b"own 1"[..], false));
    assert_eq!((again.kept(), again.is_replayed()), (first.kept(), true));
    assert_eq!((server.world.charges(), server.layer.stats().stale), (1, 0));
}

pub(crate) async fn a_handler_that_ends_its_record_as_the_layer_would_keeps_its_whole_answer(store: Store) {
    let server = Server::over(store).await;
    let (first, again) = (server.ask("/same", "\"k\"").await, server.ask("/same", "\"k\"").await);
    assert_eq!((first.status, first.header("x-request-id")), (201, Some("1")));
    assert_eq!((again.kept(), again.header("x-request-id")), (first.kept(), None));
}

/// Without sockets: no server hands an error on.
pub(crate) async fn an_error_of_the_service_is_handed_on_and_may_be_tried_again(store: Store) {
    let tries = Arc::new(AtomicUsize::new(0));
    let service = service_fn(move |_: Request<LayerBody<Empty<bytes::Bytes>>>| {
        let tries = tries.fetch_add(1, SeqCst);
        async move {
            if tries == 0 { Err("out of order") } else { Ok(Response::new(Full::new(bytes::Bytes::new()))) }
        }
    });
    let service = layer(Probe::over(store)).layer(service);
    let ask = || {
        let request = Request::post("/").header("idempotency-key", "k").header("x-merchant", "ada");
        service.clone().oneshot(request.body(Empty::new()).expect("a request"))
    };
    assert_eq!(ask().await.expect_err("the service's own"), "out of order");
    assert_eq!(ask().await.expect("it works now").status(), 200);
}

/// What the fields of spans were.
#[derive(Clone, Default)]
struct Fields(Arc<Mutex<Vec<String>>>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().expect("nobody panics with it").push(format!("{field}={value:?}"));
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Fields {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "idempotent_request" {
            attributes.record(&mut self.clone());
        }
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }
}

pub(crate) async fn what_was_decided_is_counted_and_traced(store: Store) {
    // One for the whole process, which may have other tests whose spans it sees too.
    static FIELDS: OnceLock<Fields> = OnceLock::new();
    let fields = FIELDS.get_or_init(|| {
        let fields = Fields::default();
        tracing_subscriber::registry().with(fields.clone()).init();
        fields
    });
    let server = Server::over(store).await;
    server.ask("/charges", "\"traced\"").await;
    server.ask("/charges", "\"traced\"").await;
    send(server.post("/charges", "\"traced\"").body("other")).await;
    server.ask("/charges", "\"").await;
    let stats = server.layer.stats();
    assert_eq!((stats.executed, stats.replayed, stats.mismatches, stats.refused), (1, 1, 1, 1));
    let seen = fields.0.lock().expect("nobody panics with it").join("\n");
    for field in ["method=\"POST /charges\"", "decision=\"executed\"", "attempt=1", "decision=\"replayed\""] {
        assert!(seen.contains(field), "{field} in {seen}");
    }
    assert!(!seen.contains("ada") && !seen.contains("traced"), "who asked, and the key, stay out of logs");
}
