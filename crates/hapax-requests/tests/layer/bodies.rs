//! Bodies of every kind, and what is kept of an answer.

use crate::{
    probe::Probe,
    server::{Reply, Server, client, layer, send},
};
use bytes::Bytes;
use futures::stream;
use hapax_requests::LayerBody;
use hapax_store::requests::RequestStore;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

type Store = Arc<dyn RequestStore>;

const MIB: usize = 1024 * 1024;

/// Every byte there is, over and over.
fn binary(size: usize) -> Bytes {
    (0..size).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn streamed(body: &Bytes) -> reqwest::Body {
    let pieces: Vec<_> =
        body.chunks(7919).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
    reqwest::Body::wrap_stream(stream::iter(pieces))
}

pub(crate) async fn large_binary_and_streamed_bodies_come_back_byte_for_byte(store: Store) {
    // The answer's weight counts its headers.
    let server = Server::with(store, |layer| layer.max_response_bytes(MIB + 1000)).await;
    for (key, body) in [("a", binary(MIB)), ("b", binary(300_000)), ("c", binary(1))] {
        let whole = || send(server.post("/echo", key).header("content-type", "image/x").body(body.clone()));
        let pieces =
            || send(server.post("/echo", key).header("content-type", "image/x").body(streamed(&body)));
        let (first, again, streamed) = (whole().await, whole().await, pieces().await);
        assert_eq!((first.status, &first.body), (200, &body));
        assert_eq!(first.header("content-type"), Some("image/x"));
        assert_eq!((again.kept(), again.is_replayed()), (first.kept(), true));
        assert_eq!(
            (streamed.kept(), streamed.is_replayed()),
            (first.kept(), true),
            "the same bytes ask for the same"
        );
    }
    let streamed = send(server.post("/echo", "d").body(streamed(&binary(500_000)))).await;
    assert_eq!((streamed.status, streamed.body), (200, binary(500_000)));
    assert_eq!(server.world.charges(), 4);
}

pub(crate) async fn empty_bodies_are_bodies(store: Store) {
    let server = Server::over(store).await;
    let (first, again) = (server.ask("/nothing", "k").await, server.ask("/nothing", "k").await);
    assert_eq!((first.status, first.body.len(), first.is_replayed()), (204, 0, false));
    assert_eq!((again.kept(), again.is_replayed()), (first.kept(), true));
    assert_eq!(server.ask("/echo", "k").await.body.len(), 0);
    assert_eq!(server.world.charges(), 2);
}

pub(crate) async fn a_request_over_the_limit_is_refused_before_it_executes(store: Store) {
    let server = Server::over(store).await;
    let over = binary(MIB + 1);
    for body in [reqwest::Body::from(over.clone()), streamed(&over)] {
        let refused = send(server.post("/echo", "k").body(body)).await;
        assert_eq!((refused.status, refused.refusal().as_str()), (413, "large-body"));
    }
    assert_eq!((server.world.charges(), server.world.store.calls().claims), (0, 0));
    assert_eq!(
        send(server.post("/nothing", "k").body(binary(MIB))).await.status,
        204,
        "the limit itself fits"
    );
}

pub(crate) async fn an_answer_over_the_limit_is_refused_for_good(store: Store) {
    let server = Server::with(store, |layer| layer.max_response_bytes(2000)).await;
    // The second is over it only with its headers.
    for (key, path) in [("a", "/large/2001"), ("b", "/large/2000"), ("c", "/large/1000000")] {
        let (first, again) = (server.ask(path, key).await, server.ask(path, key).await);
        assert_eq!((first.status, first.refusal().as_str()), (500, "large-answer"), "{path}");
        assert_eq!((again.kept(), again.is_replayed()), (first.kept(), true));
    }
    assert_eq!(server.world.charges(), 3, "what was done isn't done again");
    assert_eq!(server.ask("/large/1900", "d").await.body.len(), 1900);
}

pub(crate) async fn only_headers_of_the_list_are_given_again(store: Store) {
    let server = Server::over(store).await;
    let (first, again) = (server.ask("/charges", "k").await, server.ask("/charges", "k").await);
    let of =
        |reply: &Reply| ["location", "set-cookie", "x-request-id"].map(|name| reply.header(name).is_some());
    assert_eq!((of(&first), of(&again)), ([true; 3], [true, false, false]));
    assert!(again.is_replayed() && !first.is_replayed());
}

/// Without axum: the layer around a plain service of hyper's.
pub(crate) async fn plain_hyper_is_served_too(store: Store) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let service = service_fn(move |request: Request<LayerBody<Incoming>>| {
        counted.fetch_add(1, SeqCst);
        async {
            Ok::<_, Infallible>(Response::new(Full::new(request.collect().await.expect("a body").to_bytes())))
        }
    });
    let service = TowerToHyperService::new(layer(Probe::over(store)).layer(service));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}/notes", listener.local_addr().expect("an address"));
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    let client = client();
    let ask = || {
        send(client.post(&address).header("idempotency-key", "k").header("x-merchant", "ada").body("note"))
    };
    let (first, again) = (ask().await, ask().await);
    assert_eq!((first.status, &first.body[..], count.load(SeqCst)), (200, &b"note"[..], 1));
    assert_eq!((again.kept(), again.is_replayed()), (first.kept(), true));
    serving.abort();
}
