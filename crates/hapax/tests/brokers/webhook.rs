//! Webhooks, at a server over real sockets.

use crate::{
    server::{Received, Reply, Server, answer},
    shop::{EACH, IMPATIENT, Shop, Told, assert_whole, eager, message},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hapax::{
    http::Client,
    outbox::{Delivery, Sink, WebhookSink},
    store::outbox::MessageState,
};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
};

const NEW: [u8; 24] = *b"a new secret of 24 bytes";
const OLD: [u8; 24] = *b"an old one has 24, too!!";

fn sink(url: &str) -> WebhookSink {
    let secret = |bytes: &[u8]| format!("whsec_{}", BASE64_STANDARD.encode(bytes));
    let client = Client::builder().no_proxy().no_system_roots().build().unwrap();
    let sink = WebhookSink::new(url).unwrap().timeout(IMPATIENT).client(client);
    sink.secret(&secret(&NEW)).unwrap().secret(&secret(&OLD)).unwrap()
}

/// As a receiver would: by either secret alone.
fn verify(request: &Received) {
    let header = |name: &str| request.header(name).unwrap();
    let signatures: Vec<&str> = header("webhook-signature").split(' ').collect();
    assert_eq!(signatures.len(), 2);
    for (secret, signature) in [NEW, OLD].iter().zip(signatures) {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
        mac.update(&request.body);
        let given = BASE64_STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
        mac.verify_slice(&given).unwrap();
    }
}

fn read(request: &Received) -> Told {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let text = |name: &str| body[name].as_str().unwrap().to_owned();
    assert_eq!(request.header("webhook-id").unwrap(), text("id"));
    Told { id: text("id"), topic: text("topic"), run: text("run"), number: body["payload"].as_u64().unwrap() }
}

/// A server that keeps what it answers for, and behaves badly at every third request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_fails_in_every_way_gets_everything_in_order() {
    let bad = [
        answer(503, &[("retry-after", "0")], ""),
        Reply::Cut(vec![]),
        answer(429, &[], "slowly"),
        Reply::Silence,
        Reply::Cut(b"HTTP/1.1 20".to_vec()),
        answer(502, &[], ""),
        answer(500, &[], ""),
        answer(302, &[("location", "/elsewhere")], ""),
        answer(504, &[], ""),
    ];
    let kept: Arc<Mutex<Vec<Told>>> = Arc::default();
    let keep = kept.clone();
    let server = Server::new(move |nth, request| {
        verify(request);
        assert_eq!(request.target, "/hooks", "no redirect is followed");
        if nth % 3 == 1 {
            return bad[nth / 3 % bad.len()].clone();
        }
        keep.lock().unwrap().push(read(request));
        answer(204, &[], "")
    });
    let shop = Shop::open(&["orders", "mail"]).await;
    // Every failure is another message's: none fails as often as may be.
    let (relay, watch) = shop.relay(eager().max_attempts(10), sink(&server.url("/hooks")));
    for run in ["a", "b"] {
        shop.sell(run).await;
    }
    watch.until_taken(2 * shop.per_run()).await;
    relay.stop().await;
    let kept = kept.lock().unwrap().clone();
    assert_whole(&shop, &kept).await;
}

/// Only what the receiver has looked at and won't have dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_refuses_with_a_status_and_whoever_is_not_there_costs_no_attempt() {
    // A port that nobody listens on until later.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let shop = Shop::open(&["gone", "busy", "good"]).await;
    let (relay, watch) = shop.relay(eager(), sink(&format!("http://me:t0ps3cret@{address}/t0ps3cret")));
    shop.sell("order").await;
    watch.until_said("the sink cannot be reached", 5).await;
    assert!(watch.failures().iter().all(|text| !text.contains("t0ps3cret")), "{:?}", watch.failures());
    assert!(shop.in_state(MessageState::Pending).await.iter().all(|record| record.attempts == 0));
    let is_busy = Arc::new(Mutex::new(true));
    let busy = is_busy.clone();
    let listener = TcpListener::bind(address).unwrap();
    let server = Server::over(listener, "http", Ok, move |_, request| match read(request).topic.as_str() {
        "gone" => answer(410, &[], ""),
        "busy" if *busy.lock().unwrap() => answer(503, &[], ""),
        _ => answer(200, &[], "ok"),
    });
    watch.until_sent("good", EACH as usize).await;
    watch.until_said("answered 410 Gone; it wants no more messages", 2 * EACH as usize).await;
    watch.until_said("answered 503", 5).await;
    *is_busy.lock().unwrap() = false;
    watch.until_sent("busy", EACH as usize).await;
    relay.stop().await;
    let dead = shop.in_state(MessageState::Dead).await;
    assert_eq!(dead.len(), EACH as usize);
    assert!(dead.iter().all(|record| record.message.topic == "gone"), "{dead:?}");
    assert!(server.received().iter().all(|request| request.header("authorization").is_some()));
}

/// Four times it can't be taken, once it is refused, and then it is taken: three refusals would have been too many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_dies_of_refusals_alone() {
    let server = Server::new(|nth, _| answer([503, 503, 500, 503, 503, 200][nth.min(5)], &[], ""));
    let shop = Shop::open(&["orders"]).await;
    shop.sell("order").await;
    let (relay, watch) = shop.relay(eager().max_attempts(3), sink(&server.url("/")));
    watch.until_taken(EACH as usize).await;
    relay.stop().await;
    let sent = shop.in_state(MessageState::Sent).await;
    assert_eq!((sent.len(), sent[0].attempts), (EACH as usize, 1), "{:?}", sent[0]);
}

#[tokio::test]
async fn a_webhook_gets_the_trace_and_events() {
    let server = Server::new(|_, _| answer(200, &[], ""));
    let event = Delivery { event_source: Some("/shop".into()), ..message("events", 7) };
    let sink = sink(&server.url("/")).header("x-shop", "7").unwrap();
    sink.publish(&event).await.unwrap();
    let request = server.received().remove(0);
    verify(&request);
    let header = |name: &str| request.header(name).unwrap().to_owned();
    assert_eq!((header("traceparent"), header("x-shop")), (event.traceparent(), "7".into()));
    assert_eq!(header("content-type"), "application/cloudevents+json");
    assert_eq!(request.body, serde_json::to_vec(&event).unwrap());
}
