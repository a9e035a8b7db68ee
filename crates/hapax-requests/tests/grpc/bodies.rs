//! Messages of every kind, and what is kept of an answer.

use crate::{
    client::{charge, framed, is_replayed, refusal},
    server::{Order, Server},
};
use hapax_store::requests::RequestStore;
use std::sync::{Arc, atomic::Ordering::SeqCst};
use tonic::Code;
use tonic_types::StatusExt;

type Store = Arc<dyn RequestStore>;

const MIB: usize = 1024 * 1024;

/// Every byte there is, over and over.
fn binary(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn noted(note: Vec<u8>) -> Order {
    Order { cents: 4200, note }
}

pub(crate) async fn a_message_and_its_trailers_come_back_byte_for_byte(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    for (key, size) in [("a", 0), ("b", 1), ("c", 300_000), ("d", MIB - 100)] {
        let body = framed(&noted(binary(size)));
        let raw = || client.raw("Charge", vec![("idempotency-key", key.into())], body.clone());
        let ((head, first, end), (head_again, again, end_again)) = (raw().await, raw().await);
        assert_eq!((&first, &end), (&again, &end_again));
        assert!(first.len() > size);
        assert_eq!(end.get("grpc-status").expect("a status"), "0");
        assert_eq!(head.get("content-type"), head_again.get("content-type"));
        assert!(!head.contains_key("idempotency-replayed"));
        assert_eq!(head_again.get("idempotency-replayed").expect("it is marked"), "true");
    }
    assert_eq!(server.world.charges(), 4);
}

pub(crate) async fn a_failure_comes_back_with_its_details_and_trailers(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    server.world.trouble.store(1, SeqCst);
    let body = framed(&Order { cents: Code::FailedPrecondition as u64, note: vec![] });
    let raw = || client.raw("Fails", vec![("idempotency-key", "k".into())], body.clone());
    let ((first, _, _), (mut again, data, end)) = (raw().await, raw().await);
    assert_eq!(again.remove("idempotency-replayed").expect("it is marked"), "true");
    // It is put there by whoever sends it, and differs.
    let (mut first, date) = (first, again.remove("date"));
    assert_eq!(first.remove("date").is_some(), date.is_some());
    assert_eq!((first, data.len(), end.len()), (again, 0, 0), "all of it is in the head");
    let order = Order { cents: Code::FailedPrecondition as u64, note: vec![] };
    let status = client.order("Fails", "k", order).await.expect_err("it failed");
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "no luck: 100% sure, née"));
    let details = status.get_error_details();
    assert_eq!(details.error_info().expect("a reason").reason, "NO_LUCK");
    assert_eq!(details.help().expect("help").links.len(), 1);
    assert_eq!(status.metadata().get("x-account").expect("it is kept"), "7");
    let trace = status.metadata().get_bin("x-trace-bin").expect("it is kept").to_bytes().expect("bytes");
    assert_eq!(&trace[..], [0, 255, 1]);
}

pub(crate) async fn only_metadata_of_the_list_is_given_again(store: Store) {
    let server = Server::with(store, |layer| layer.kept_metadata(["x-receipt"])).await;
    let client = server.client().await;
    for kept in [[true, true], [true, false]] {
        let reply = client.ask("Charge", "k").await.expect("a receipt");
        assert_eq!(["x-receipt", "x-session"].map(|name| reply.metadata().contains_key(name)), kept);
    }
}

/// Some servers and clients compress, others can't; hash and answer are the same for all.
pub(crate) async fn however_a_client_compresses_it_asks_for_the_same(store: Store) {
    let server = Server::over(store).await;
    let plain = server.client().await;
    let gzip = plain.compressing();
    for (key, first, then) in [("a", &plain, &gzip), ("b", &gzip, &plain)] {
        let order = noted(binary(100_000));
        let replies = [
            first.order("Charge", key, order.clone()).await,
            then.order("Charge", key, order.clone()).await,
            first.order("Charge", key, order.clone()).await,
        ];
        assert_eq!(replies.each_ref().map(is_replayed), [false, true, true]);
        for reply in &replies {
            let receipt = reply.as_ref().expect("a receipt").get_ref();
            assert_eq!((receipt.charge, &receipt.note), (charge(&replies[0]), &order.note));
        }
        let other = Order { cents: 1, ..order };
        for client in [first, then] {
            assert_eq!(refusal(&client.order("Charge", key, other.clone()).await).1, "OTHER_REQUEST");
        }
    }
    assert_eq!(server.world.charges(), 2);
    let unknown = vec![("idempotency-key", "c".into()), ("grpc-encoding", "snappy".into())];
    let (head, _, _) = plain.raw("Charge", unknown, bytes::Bytes::from_static(&[1, 0, 0, 0, 1, 7])).await;
    assert_eq!(head.get("grpc-status").expect("a status"), "12");
    assert_eq!(head.get("grpc-accept-encoding").expect("which are known"), "identity,deflate,gzip,zstd");
    let broken = bytes::Bytes::from_static(&[0, 0, 0, 0, 9, 7]);
    let (head, _, _) = plain.raw("Charge", vec![("idempotency-key", "c".into())], broken).await;
    assert_eq!(head.get("grpc-status").expect("a status"), "3");
    assert_eq!((server.world.charges(), server.world.store.calls().granted), (2, 2));
}

pub(crate) async fn a_message_over_the_limit_is_refused_before_it_executes(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    let exhausted = (Code::ResourceExhausted, "LARGE_BODY".to_owned());
    assert_eq!(refusal(&client.order("Charge", "k", noted(binary(MIB))).await), exhausted);
    // It is small until it is read.
    let zeros = client.compressing().order("Charge", "k", noted(vec![0; MIB * 2])).await;
    assert_eq!(refusal(&zeros), exhausted);
    assert_eq!((server.world.charges(), server.world.store.calls().claims), (0, 0));
    assert_eq!(charge(&client.order("Charge", "k", noted(binary(MIB - 100))).await), 1);
}

pub(crate) async fn an_answer_over_the_limit_is_refused_for_good(store: Store) {
    let server = Server::with(store, |layer| layer.max_response_bytes(2000)).await;
    let client = server.client().await;
    for (key, bytes) in [("a", 2001), ("b", 1_000_000)] {
        let order = Order { cents: bytes, note: vec![] };
        let replies =
            [client.order("Large", key, order.clone()).await, client.order("Large", key, order).await];
        for reply in &replies {
            assert_eq!(refusal(reply), (Code::ResourceExhausted, "LARGE_ANSWER".into()));
        }
        assert_eq!(replies.each_ref().map(is_replayed), [false, true]);
    }
    assert_eq!(server.world.charges(), 2, "what was done isn't done again");
    let fits = client.order("Large", "c", Order { cents: 1900, note: vec![] }).await.expect("a receipt");
    assert_eq!(fits.get_ref().note.len(), 1900);
}

pub(crate) async fn streams_are_read_to_their_end_and_given_again(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    let orders = || vec![noted(b"one ".to_vec()), noted(vec![]), noted(b"two".to_vec())];
    let (first, again) = (client.sum("k", orders()).await, client.compressing().sum("k", orders()).await);
    assert_eq!(first.as_ref().expect("a receipt").get_ref().note, b"one two");
    assert_eq!((charge(&again), is_replayed(&again)), (1, true));
    // The same bytes in other messages are another request.
    let moved = vec![noted(b"one t".to_vec()), noted(vec![]), noted(b"wo".to_vec())];
    assert_eq!(refusal(&client.sum("k", moved).await).1, "OTHER_REQUEST");
    let order = Order { cents: 50, note: binary(1000) };
    let (first, again) =
        (client.several("k", order.clone()).await, client.compressing().several("k", order).await);
    let ((replayed, first), (replayed_again, again)) = (first.expect("it flows"), again.expect("it flows"));
    assert_eq!((replayed, replayed_again, first.len()), (false, true, 50));
    assert_eq!(first, again);
    assert_eq!(server.world.charges(), 2);
}

/// Messages, and behind them a failure: its code, words, details and metadata are trailers.
pub(crate) async fn a_stream_that_fails_in_the_end_comes_back_with_its_end(store: Store) {
    let server = Server::over(store).await;
    let client = server.client().await;
    let body = framed(&Order { cents: 3, note: b"fails".to_vec() });
    let raw = || client.raw("Several", vec![("idempotency-key", "k".into())], body.clone());
    let ((head, first, end), (head_again, again, end_again)) = (raw().await, raw().await);
    assert_eq!((&first, &end), (&again, &end_again));
    assert_eq!(end.get("grpc-status").expect("a status"), "9");
    for name in ["grpc-message", "grpc-status-details-bin", "x-account", "x-trace-bin"] {
        assert!(end.contains_key(name), "{name}");
    }
    assert_eq!([head, head_again].map(|head| head.contains_key("idempotency-replayed")), [false, true]);
    assert_eq!((first.is_empty(), server.world.charges()), (false, 1));
}
