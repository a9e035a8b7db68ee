//! Streams of Redis.

use crate::shop::{EACH, IMPATIENT, Shop, Told, Trouble, assert_whole, befall, eager, message, rounds, told};
use hapax::{
    Coded,
    core::error::code,
    outbox::{Delivery, RedisSink, Sink},
    store::outbox::MessageState,
};
use hapax_servers::{Proxy, Redis, redis_command};
use std::collections::BTreeMap;

/// What is answered for is on the disk.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

type Entries = Vec<(String, BTreeMap<String, String>)>;

async fn entries(url: &str, stream: &str) -> Vec<BTreeMap<String, String>> {
    let mut connection =
        ::redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let range: Entries =
        ::redis::cmd("XRANGE").arg(stream).arg("-").arg("+").query_async(&mut connection).await.unwrap();
    range.into_iter().map(|(_, fields)| fields).collect()
}

/// All that a stream holds, in its order.
async fn held(url: &str, stream: &str) -> Vec<Told> {
    let entries = entries(url, stream).await;
    let read = |fields: &BTreeMap<String, String>| {
        let headers: serde_json::Value = serde_json::from_str(&fields["headers"]).unwrap();
        let header = |name: &str| headers[name].as_str().unwrap().to_owned();
        assert_eq!((&fields["topic"], &*fields["key"]), (&header("hapax-topic"), "key"));
        told(&fields["id"], header, fields["payload"].as_bytes())
    };
    entries.iter().map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_befalls_redis_its_streams_have_everything_in_order() {
    let mut server = Redis::start_with(&DURABLE).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let shop = Shop::open(&["orders", "mail"]).await;
    let sink = RedisSink::new(&proxy.url(&server.url()).unwrap()).unwrap().prefix("shop:").timeout(IMPATIENT);
    let (relay, watch) = shop.relay(eager(), sink);
    let late = Trouble::Late("XADD");
    let troubles =
        [Trouble::NoReplies, Trouble::Kill, Trouble::Cut, late, Trouble::Freeze, Trouble::NoRequests];
    for trouble in troubles.repeat(rounds()) {
        befall(&shop, &watch, &mut server, &proxy, trouble).await;
    }
    relay.stop().await;
    let held = [held(&server.url(), "shop:orders").await, held(&server.url(), "shop:mail").await].concat();
    assert_whole(&shop, &held).await;
    assert!(
        held.len() > 6 * rounds() * shop.per_run(),
        "what was swallowed came twice, and both times with one id"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_takes_nothing_and_loses_nothing() {
    let server = Redis::start().unwrap();
    let url = server.url();
    let command = |words: &[&str]| redis_command(&url, words).unwrap();
    let shop = Shop::open(&["good", "taken"]).await;
    command(&["SET", "taken", "no stream"]);
    command(&["CONFIG", "SET", "maxmemory", "1"]);
    let (relay, watch) = shop.relay(eager(), RedisSink::new(&url).unwrap().timeout(IMPATIENT));
    shop.sell("order").await;
    watch.until_said("the sink cannot be reached", 5).await;
    let pending = shop.in_state(MessageState::Pending).await;
    let good = pending.iter().filter(|record| record.message.topic == "good");
    assert!(good.map(|record| record.attempts).all(|attempts| attempts == 0), "no message is to blame");
    command(&["CONFIG", "SET", "maxmemory", "0"]);
    watch.until_sent("good", EACH as usize).await;
    watch.until_said("WRONGTYPE", 5).await;
    command(&["DEL", "taken"]);
    watch.until_sent("taken", EACH as usize).await;
    relay.stop().await;
    assert_whole(&shop, &[held(&url, "good").await, held(&url, "taken").await].concat()).await;
}

/// It wants a login, or has no such database: `ERR` is its word for that, too.
#[tokio::test]
async fn only_what_is_its_own_fault_is_a_messages_fault_to_redis() {
    let locked = Redis::start().unwrap();
    redis_command(&locked.url(), &["CONFIG", "SET", "requirepass", "t0ps3cret"]).unwrap();
    let open = Redis::start().unwrap();
    let elsewhere = format!("{}/9999", open.url().trim_end_matches("/0").trim_end_matches('/'));
    for url in [locked.url(), elsewhere] {
        let sink = RedisSink::new(&url).unwrap().timeout(IMPATIENT);
        let error = sink.publish(&message("orders", 7)).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
}

#[tokio::test]
async fn redis_gets_the_trace_and_no_error_shows_the_password() {
    let url = hapax_servers::redis().unwrap();
    let sink = RedisSink::new(&url).unwrap().timeout(IMPATIENT);
    let event = Delivery { event_source: Some("/shop".into()), ..message("events", 7) };
    sink.publish(&event).await.unwrap();
    let entry = entries(&url, "events").await.remove(0);
    let headers: serde_json::Value = serde_json::from_str(&entry["headers"]).unwrap();
    assert_eq!(headers["traceparent"], event.traceparent());
    assert_eq!(headers["content-type"], "application/cloudevents+json");
    assert_eq!(entry["payload"].as_bytes(), serde_json::to_vec(&event).unwrap());
    let denied =
        RedisSink::new(&url.replace("redis://", "redis://me:t0ps3cret@")).unwrap().timeout(IMPATIENT);
    let denied = denied.publish(&event).await.unwrap_err();
    let unreadable = RedisSink::new("amqp://me:t0ps3cret@127.0.0.1").unwrap_err();
    assert_eq!(unreadable.code(), code::SINK_INVALID);
    for error in [denied, unreadable] {
        assert!(error.is_unavailable() && !format!("{error} {error:?}").contains("t0ps3cret"), "{error:?}");
    }
}
