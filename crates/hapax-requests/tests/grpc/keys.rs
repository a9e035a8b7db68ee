//! What names a call, and what it may ask for.

use crate::{
    client::{charge, is_replayed, refusal},
    server::{Order, Server},
};
use hapax_requests::KeyRule;
use hapax_store::requests::RequestStore;
use std::sync::Arc;
use tonic::Code;

type Store = Arc<dyn RequestStore>;

pub(crate) async fn another_message_is_refused_in_flight_and_afterwards(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    let first = client.asked("Slow", "k");
    server.world.started().await;
    let other = || client.order("Slow", "k", Order { cents: 1, ..Order::default() });
    let mismatch = (Code::FailedPrecondition, "OTHER_REQUEST".to_owned());
    assert_eq!(refusal(&other().await), mismatch);
    server.world.open(1);
    assert_eq!(charge(&first.await.expect("it was sent")), 1);
    assert_eq!(refusal(&other().await), mismatch);
    assert!(is_replayed(&client.ask("Slow", "k").await), "the first one isn't harmed");
    assert_eq!((server.world.charges(), server.layer.stats().mismatches), (1, 2));
}

pub(crate) async fn a_key_that_is_missing_or_none_is_refused(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    assert_eq!(refusal(&client.ask("Charge", "").await), (Code::InvalidArgument, "MISSING_KEY".into()));
    let over = format!("\"{}\"", "k".repeat(256));
    for key in ["\"\"", "\"open", "\"a\"b", "a b", "a, b", "\"a\";p=1", &over] {
        let refused = client.ask("Charge", key).await;
        assert_eq!(refusal(&refused), (Code::InvalidArgument, "BAD_KEY".into()), "{key}");
    }
    let mut twice = client.request("a", Order::default());
    twice.metadata_mut().append("idempotency-key", "a".parse().expect("a value"));
    assert_eq!(refusal(&client.send("Charge", twice).await).1, "BAD_KEY");
    assert_eq!((server.world.charges(), server.world.store.calls().claims), (0, 0));
    assert_eq!(server.layer.stats().refused, 9);
    let (quoted, plain) = (client.ask("Charge", "\"8e03\"").await, client.ask("Charge", "8e03").await);
    assert_eq!((charge(&plain), is_replayed(&plain)), (charge(&quoted), true));
}

pub(crate) async fn who_is_nobody_is_refused(store: Store) {
    let server = Server::over(store).await;
    let nobody = server.client().await.of_merchant("");
    assert_eq!(refusal(&nobody.ask("Charge", "k").await), (Code::Unauthenticated, "NO_PRINCIPAL".into()));
    assert_eq!(server.world.charges(), 0);
}

pub(crate) async fn methods_that_only_read_are_left_alone(store: Store) {
    let told = |layer: hapax_requests::GrpcIdempotencyLayer| {
        layer.key_rule(|parts| match parts.uri.path() {
            "/payments.v1.Payments/Balance" => KeyRule::Ignored,
            "/payments.v1.Payments/Charge" => KeyRule::Required,
            _ => KeyRule::Optional,
        })
    };
    let server = Server::with(store, told).await;
    let client = server.client().await;
    for key in ["", "k", "k"] {
        assert!(!is_replayed(&client.ask("Balance", key).await));
    }
    assert_eq!(server.world.store.calls().claims, 0);
    assert_eq!(refusal(&client.ask("Charge", "").await).1, "MISSING_KEY");
    assert!(!is_replayed(&client.ask("Refund", "").await));
    let (first, again) = (client.ask("Refund", "k").await, client.ask("Refund", "k").await);
    assert_eq!((charge(&again), is_replayed(&again)), (charge(&first), true));
}

pub(crate) async fn methods_have_keys_of_their_own(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    let (one, two) = (client.ask("Charge", "k").await, client.ask("Refund", "k").await);
    assert_eq!((charge(&one), charge(&two), is_replayed(&two)), (1, 2, false));
}
