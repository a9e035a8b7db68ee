//! What names a request, and what it may ask for.

use crate::server::{Server, send};
use hapax_store::requests::RequestStore;
use std::sync::Arc;

type Store = Arc<dyn RequestStore>;

pub(crate) async fn another_payload_is_refused_in_flight_and_afterwards(store: Store) {
    let server = Server::over(store).await;
    let first = server.asked("/slow", "\"k\"");
    server.world.started().await;
    let other = || send(server.post("/slow", "\"k\"").body("something else"));
    let refused = other().await;
    assert_eq!((refused.status, refused.refusal().as_str()), (422, "other-request"));
    let asks_more = send(server.post("/slow?fast", "\"k\"")).await;
    assert_eq!(asks_more.status, 422);
    server.world.open(1);
    let first = first.await.expect("it was sent");
    assert_eq!((first.status, other().await.status), (201, 422));
    assert_eq!(server.ask("/slow", "\"k\"").await.kept(), first.kept(), "the first one isn't harmed");
    assert_eq!(server.world.charges(), 1);
}

pub(crate) async fn json_that_differs_in_a_digit_or_its_version_is_another_request(store: Store) {
    let server = Server::over(store).await;
    let json = async |key, parameters, body: &'static str| {
        let content_type = format!("application/json{parameters}");
        send(server.post("/charges", key).header("content-type", content_type).body(body)).await
    };
    let written = json("a", "", r#"{"a":1,"b":100}"#).await;
    let otherwise = json("a", "; Charset=UTF-8", r#"{ "b": 1e2, "a": 1.0 }"#).await;
    assert_eq!((otherwise.kept(), otherwise.is_replayed()), (written.kept(), true), "it asks for the same");
    assert_eq!(json("b", "", "90071992547409.93").await.status, 201);
    assert_eq!(json("b", "", "90071992547409.94").await.refusal(), "other-request");
    assert!(json("b", "", "90071992547409.93").await.is_replayed());
    assert_eq!(json("c", "; v=1", "{}").await.status, 201);
    assert_eq!(json("c", "; v=2", "{}").await.refusal(), "other-request");
    assert_eq!(server.world.charges(), 3);
}

pub(crate) async fn a_key_that_is_missing_or_none_is_refused(store: Store) {
    let server = Server::over(store).await;
    let missing = send(server.request(reqwest::Method::POST, "/charges")).await;
    assert_eq!((missing.status, missing.refusal().as_str()), (400, "missing-key"));
    let over = format!("\"{}\"", "k".repeat(256));
    for key in ["", "\"\"", "\"open", "\"a\"b", "a b", "a, b", "\"a\";p=1", "\"t\tab\"", &over] {
        let refused = server.ask("/charges", key).await;
        assert_eq!((refused.status, refused.refusal().as_str()), (400, "bad-key"), "{key}");
    }
    let twice = send(server.post("/charges", "a").header("idempotency-key", "a")).await;
    assert_eq!((twice.status, twice.refusal().as_str()), (400, "bad-key"));
    assert_eq!((server.world.charges(), server.world.store.calls().claims), (0, 0));
    assert_eq!(server.layer.stats().refused, 11);
    assert_eq!(server.ask("/charges", &"k".repeat(255)).await.status, 201);
}

pub(crate) async fn a_quoted_key_and_a_plain_one_are_the_same(store: Store) {
    let server = Server::over(store).await;
    let (quoted, plain) = (server.ask("/charges", "\"8e03\"").await, server.ask("/charges", "8e03").await);
    assert_eq!((plain.kept(), plain.is_replayed()), (quoted.kept(), true));
    let escaped = server.ask("/charges", r#""8\"03""#).await;
    assert!(!escaped.is_replayed());
}

pub(crate) async fn who_is_nobody_is_refused(store: Store) {
    let server = Server::over(store).await;
    let mut request = server.post("/charges", "k").build().expect("a request");
    request.headers_mut().remove("x-merchant");
    let nobody = send(reqwest::RequestBuilder::from_parts(crate::server::client(), request)).await;
    assert_eq!((nobody.status, nobody.refusal().as_str()), (403, "no-principal"));
    let long = send(server.post("/charges", "k").header("x-merchant", "late")).await;
    assert_eq!(long.status, 201, "the first header counts");
    assert_eq!(server.world.charges(), 1);
}

pub(crate) async fn a_nested_route_counts_whole(store: Store) {
    let server = Server::over(store).await;
    let one = server.ask("/accounts/1/charges", "k").await;
    assert_eq!(one.status, 201);
    let two = server.ask("/accounts/2/charges", "k").await;
    assert_eq!(two.refusal(), "other-request", "the same template, but another account");
    assert!(server.ask("/accounts/1/charges", "k").await.is_replayed());
    let top = server.ask("/charges", "k").await;
    assert_eq!((top.status, top.is_replayed()), (201, false), "another template");
}
