//! A store that fails, and executions that were overtaken.

use crate::server::Server;
use hapax_core::{id::Namespace, request::RequestId};
use hapax_store::requests::RequestStore;
use std::{sync::Arc, time::Duration};

type Store = Arc<dyn RequestStore>;

pub(crate) async fn nothing_executes_while_the_store_is_down(store: Store) {
    let server = Server::over(store).await;
    server.world.store.trouble(|trouble| trouble.claims = 3);
    for _ in 0..3 {
        let refused = server.ask("/charges", "k").await;
        assert_eq!(server.world.charges(), 0);
        assert_eq!((refused.status, refused.refusal().as_str()), (503, "store-down"));
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(server.layer.stats().store_errors, 3);
    assert_eq!(server.ask("/charges", "k").await.status, 201, "it is back");
}

pub(crate) async fn a_store_that_hangs_is_given_up_and_its_late_claim_ends_with_its_lease(store: Store) {
    let short = Duration::from_millis(200);
    let server = Server::with(store, |layer| layer.store_patience(short).lease(short)).await;
    server.world.store.hang(true);
    let refused = server.ask("/charges", "k").await;
    assert_eq!((refused.status, refused.refusal().as_str()), (503, "store-down"));
    assert!(refused.header("retry-after").is_some());
    server.world.store.hang(false);
    server.world.store.saw(|calls| calls.granted == 1).await;
    assert_eq!((server.world.charges(), server.layer.stats().executed), (0, 0), "nobody uses the late claim");
    let answered = loop {
        match server.ask("/charges", "k").await {
            refused if matches!(refused.status, 409 | 503) => {}
            answered => break answered,
        }
    };
    assert_eq!((answered.status, server.world.charges()), (201, 1));
}

pub(crate) async fn a_store_that_stumbles_is_told_again_how_it_ended(store: Store) {
    let server = Server::over(store).await;
    server.world.store.trouble(|trouble| trouble.finishes = 3);
    let (first, again) = (server.ask("/charges", "k").await, server.ask("/charges", "k").await);
    assert_eq!((first.status, again.kept(), again.is_replayed()), (201, first.kept(), true));
    assert_eq!(server.world.charges(), 1);
}

pub(crate) async fn what_the_store_never_heard_is_not_answered(store: Store) {
    let server = Server::with(store, |layer| layer.lease(Duration::from_millis(50))).await;
    server.world.store.trouble(|trouble| trouble.finishes = usize::MAX);
    let unknown = server.ask("/charges", "k").await;
    assert_eq!((unknown.status, unknown.refusal().as_str()), (503, "store-down"));
    assert_eq!(server.world.charges(), 1, "it was done, and only finish_in could have told the store");
}

pub(crate) async fn a_request_that_an_operator_released_is_not_answered_by_its_old_execution(store: Store) {
    let server = Server::over(store).await;
    let first = server.asked("/slow", "k");
    server.world.started().await;
    let id = RequestId::new(Namespace::default(), "ada", "POST /slow", "k").expect("a name");
    assert!(server.world.store.release(&id).await.expect("the store is there"));
    server.world.open(1);
    let first = first.await.expect("it was sent");
    assert_eq!((first.status, first.refusal().as_str()), (409, "in-flight"));
    server.world.open(1);
    let second = server.ask("/slow", "k").await;
    assert_eq!(
        (second.status, second.is_replayed(), &second.body[..]),
        (201, false, &br#"{"charge":2}"#[..])
    );
    assert_eq!(server.layer.stats().stale, 1);
}
