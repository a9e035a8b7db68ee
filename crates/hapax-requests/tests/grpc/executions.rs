//! Who executes, who is refused, and who gets the same bytes.

use crate::{
    client::{charge, is_replayed, refusal},
    server::{Order, Server},
};
use futures::{StreamExt, stream::FuturesUnordered};
use hapax_requests::OnConflict;
use hapax_store::requests::RequestStore;
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};
use tonic::Code;
use tonic_types::StatusExt;

type Store = Arc<dyn RequestStore>;

const WAIT: OnConflict = OnConflict::Wait(Duration::from_secs(15));

pub(crate) async fn of_many_at_once_one_executes_and_the_rest_are_refused(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    let mut asked: FuturesUnordered<_> = (0..40).map(|_| client.asked("Slow", "k")).collect();
    for _ in 1..40 {
        let refused = asked.next().await.expect("one more").expect("it was sent");
        assert_eq!(refusal(&refused), (Code::Aborted, "IN_FLIGHT".into()));
        let details = refused.expect_err("it is refused").get_error_details();
        let delay = details.retry_info().and_then(|info| info.retry_delay).expect("when");
        assert!((1..=5).contains(&delay.as_secs()), "{delay:?}");
    }
    server.world.open(1);
    let first = asked.next().await.expect("the last").expect("it was sent");
    assert_eq!((charge(&first), is_replayed(&first)), (1, false));
    let again = client.ask("Slow", "k").await;
    assert_eq!((charge(&again), is_replayed(&again), server.world.charges()), (1, true, 1));
}

pub(crate) async fn of_many_at_once_one_executes_and_the_rest_get_its_bytes(store: Store) {
    let server = Server::with(store, |layer| layer.on_conflict(WAIT)).await;
    let client = server.client().await;
    let asked: Vec<_> = (0..20).map(|_| client.asked("Slow", "k")).collect();
    server.world.started().await;
    server.world.open(1);
    let mut firsts = 0;
    for reply in asked {
        let reply = reply.await.expect("it was sent");
        assert_eq!(charge(&reply), 1);
        firsts += usize::from(!is_replayed(&reply));
    }
    assert_eq!((firsts, server.world.charges()), (1, 1));
}

pub(crate) async fn a_client_that_goes_away_ends_nothing(store: Store) {
    let server = Server::with(store, |layer| layer.on_conflict(WAIT)).await;
    let client = server.client().await;
    let asked = client.asked("Slow", "k");
    server.world.started().await;
    asked.abort();
    server.world.left().await;
    assert_eq!(server.world.charges(), 0, "it was still at work");
    server.world.open(1);
    let again = client.ask("Slow", "k").await;
    assert_eq!((charge(&again), is_replayed(&again), server.world.charges()), (1, true, 1));
}

pub(crate) async fn a_handler_that_panics_leaves_a_request_that_can_be_tried_again(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    server.world.trouble.store(2, SeqCst);
    for _ in 0..2 {
        assert_eq!(refusal(&client.ask("Panics", "k").await), (Code::Internal, "LOST".into()));
    }
    let done = client.ask("Panics", "k").await;
    assert_eq!((charge(&done), is_replayed(&done), server.world.charges()), (1, false, 1));
    assert_eq!(server.layer.stats().takeovers, 2);
}

async fn fails(server: &Server, code: Code) -> [crate::client::Reply; 3] {
    let client = server.client().await;
    server.world.trouble.store(1, SeqCst);
    let (key, order) = (format!("k{}", code as i32), Order { cents: code as u64, ..Order::default() });
    let ask = || client.order("Fails", &key, order.clone());
    [ask().await, ask().await, ask().await]
}

pub(crate) async fn a_failure_that_may_pass_is_executed_again(store: Store) {
    let server = Server::over(store).await;
    let passing = [
        Code::Cancelled,
        Code::Unknown,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
        Code::Aborted,
        Code::Internal,
        Code::Unavailable,
        Code::Unauthenticated,
    ];
    for code in passing {
        let [failed, again, later] = fails(&server, code).await;
        let failed = failed.expect_err("it fails");
        assert_eq!((failed.code(), failed.message()), (code, "no luck: 100% sure, née"), "its own words");
        assert_eq!((charge(&again), is_replayed(&again)), (charge(&later), false));
        assert!(is_replayed(&later));
    }
    assert_eq!(server.world.charges(), passing.len());
}

pub(crate) async fn a_failure_that_is_final_is_not(store: Store) {
    let server = Server::over(store).await;
    for code in [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::DataLoss,
    ] {
        let replies = fails(&server, code).await;
        assert_eq!(replies.each_ref().map(is_replayed), [false, true, true]);
        for reply in replies {
            assert_eq!(reply.expect_err("it failed").code(), code);
        }
    }
    assert_eq!(server.world.charges(), 0);
}

pub(crate) async fn two_principals_have_keys_of_their_own(store: Store) {
    let server = Server::over(store).await;
    let ada = server.client().await;
    let bob = ada.of_merchant("bob");
    let (first, second) = (ada.ask("Charge", "k").await, bob.ask("Charge", "k").await);
    assert_eq!((charge(&first), charge(&second), is_replayed(&second)), (1, 2, false));
    assert_eq!((charge(&ada.ask("Charge", "k").await), charge(&bob.ask("Charge", "k").await)), (1, 2));
}

pub(crate) async fn a_handler_that_ends_its_record_is_believed(store: Store) {
    let server = Server::with(store, |layer| layer.kept_metadata(["x-receipt"])).await;
    let client = server.client().await;
    let (first, again) = (client.ask("Own", "k").await, client.ask("Own", "k").await);
    for reply in [&first, &again] {
        let response = reply.as_ref().expect("a receipt");
        assert_eq!((response.get_ref().charge, response.get_ref().note.as_slice()), (1, &b"own"[..]));
        assert_eq!(response.metadata().get("x-receipt").expect("it is kept"), "1");
    }
    assert_eq!((is_replayed(&first), is_replayed(&again), server.world.charges()), (false, true, 1));
}
