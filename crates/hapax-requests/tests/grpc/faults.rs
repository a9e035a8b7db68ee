//! A store that is down, or stumbles.

use crate::{
    client::{charge, is_replayed, refusal},
    server::Server,
};
use hapax_store::requests::RequestStore;
use std::{sync::Arc, time::Duration};
use tonic::Code;
use tonic_types::StatusExt;

type Store = Arc<dyn RequestStore>;

pub(crate) async fn nothing_executes_while_the_store_is_down(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    server.world.store.trouble(|trouble| trouble.claims = 3);
    for _ in 0..3 {
        let refused = client.ask("Charge", "k").await;
        assert_eq!(refusal(&refused), (Code::Unavailable, "STORE_DOWN".into()));
        assert!(refused.expect_err("it is refused").get_error_details().retry_info().is_some());
        assert_eq!(server.world.charges(), 0);
    }
    assert_eq!(server.layer.stats().store_errors, 3);
    assert_eq!(charge(&client.ask("Charge", "k").await), 1, "it is back");
}

pub(crate) async fn a_store_that_hangs_is_given_up_and_its_late_claim_ends_with_its_lease(store: Store) {
    let short = Duration::from_millis(200);
    let server = Server::with(store, |layer| layer.store_patience(short).lease(short)).await;
    let client = server.client().await;
    server.world.store.hang(true);
    assert_eq!(refusal(&client.ask("Charge", "k").await), (Code::Unavailable, "STORE_DOWN".into()));
    server.world.store.hang(false);
    server.world.store.saw(|calls| calls.granted == 1).await;
    assert_eq!((server.world.charges(), server.layer.stats().executed), (0, 0), "nobody uses the late claim");
    let answered = loop {
        match client.ask("Charge", "k").await {
            Err(refused) if matches!(refused.code(), Code::Aborted | Code::Unavailable) => {}
            answered => break answered,
        }
    };
    assert_eq!((charge(&answered), server.world.charges()), (1, 1));
}

pub(crate) async fn a_store_that_stumbles_is_told_again_how_it_ended(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    server.world.store.trouble(|trouble| trouble.finishes = 3);
    let (first, again) = (client.ask("Charge", "k").await, client.ask("Charge", "k").await);
    assert_eq!((charge(&first), charge(&again), is_replayed(&again)), (1, 1, true));
}

pub(crate) async fn what_the_store_never_heard_is_not_answered(store: Store) {
    let server = Server::with(store, |layer| layer.lease(Duration::from_millis(50))).await;
    server.world.store.trouble(|trouble| trouble.finishes = usize::MAX);
    let unknown = server.client().await.ask("Charge", "k").await;
    assert_eq!(refusal(&unknown), (Code::Unavailable, "STORE_DOWN".into()));
    assert_eq!(server.world.charges(), 1, "it was done, and only finish_in could have told the store");
}
