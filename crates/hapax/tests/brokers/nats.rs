//! NATS JetStream.

use crate::shop::{EACH, IMPATIENT, Shop, Told, Trouble, assert_whole, befall, eager, message, rounds, told};
use async_nats::jetstream::{
    self, Context,
    stream::{Config, DiscardPolicy, Stream},
};
use hapax::{
    Coded,
    core::error::code,
    outbox::{Delivery, NatsSink, Sink},
    store::outbox::MessageState,
};
use hapax_servers::{Nats, Proxy};
use std::time::Duration;

async fn jetstream(url: &str) -> Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

fn config(name: &str) -> Config {
    Config { name: name.into(), subjects: vec![format!("{name}.>")], ..Config::default() }
}

/// All that a stream holds, in its order.
async fn held(stream: &Stream) -> Vec<Told> {
    let state = stream.get_info().await.unwrap().state;
    let mut all = vec![];
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let header = |name: &str| message.headers.get(name).unwrap().to_string();
        all.push(told(&header("Nats-Msg-Id"), header, &message.payload));
    }
    all
}

/// The stream drops what comes again: it holds every message once, and all of them in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_befalls_nats_a_stream_has_everything_once_and_in_order() {
    let mut server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    jetstream(&server.url()).await.create_stream(config("shop")).await.unwrap();
    let shop = Shop::open(&["shop.orders", "shop.mail"]).await;
    let sink = NatsSink::connect(&proxy.url(&server.url()).unwrap()).await.unwrap().timeout(IMPATIENT);
    let (relay, watch) = shop.relay(eager(), sink);
    let late = Trouble::Late("Nats-Msg-Id");
    let troubles =
        [Trouble::NoReplies, Trouble::Kill, Trouble::Cut, late, Trouble::Freeze, Trouble::NoRequests];
    for trouble in troubles.repeat(rounds()) {
        befall(&shop, &watch, &mut server, &proxy, trouble).await;
    }
    relay.stop().await;
    let stream = jetstream(&server.url()).await.get_stream("shop").await.unwrap();
    let held = held(&stream).await;
    assert_whole(&shop, &held).await;
    assert_eq!(held.len(), 6 * rounds() * shop.per_run(), "the stream took nothing twice");
}

/// One stream is full, one isn't there, and one topic can be no subject. None of it stops the fourth topic, and only what is
/// a message's own fault kills it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_nats_does_not_take_waits_alone_and_loses_nothing() {
    let server = Nats::start().unwrap();
    let jetstream = jetstream(&server.url()).await;
    let full = Config { max_messages: 3, discard: DiscardPolicy::New, ..config("full") };
    let (full, good) =
        (jetstream.create_stream(full).await.unwrap(), jetstream.create_stream(config("good")).await);
    let shop = Shop::open(&["full.a", "late.a", "no subject", "good.a"]).await;
    shop.sell("order").await;
    let sink = NatsSink::connect(&server.url()).await.unwrap().timeout(IMPATIENT);
    let (relay, watch) = shop.relay(eager(), sink);
    watch.until_sent("good.a", EACH as usize).await;
    watch.until_sent("full.a", 3).await;
    assert_eq!(held(&good.unwrap()).await.len(), EACH as usize);
    // More failures than a refused message may have, for both that wait.
    watch.until_said("maximum messages exceeded", 5).await;
    watch.until_said("no stream takes the subject `late.a` [HX0074]", 5).await;
    let late = jetstream.create_stream(config("late")).await.unwrap();
    for room in [6, 8] {
        assert_eq!(held(&full).await.len(), 3);
        full.purge().await.unwrap();
        watch.until_sent("full.a", room).await;
    }
    watch.until_sent("late.a", EACH as usize).await;
    let numbers: Vec<u64> = held(&late).await.iter().map(|told| told.number).collect();
    assert_eq!(numbers, (0..EACH).collect::<Vec<_>>());
    watch.until_said("cannot be a subject of NATS", 2 * EACH as usize).await;
    relay.stop().await;
    let dead = shop.in_state(MessageState::Dead).await;
    assert_eq!(dead.len(), EACH as usize);
    let unfit = |error: &str| error.contains("cannot be a subject of NATS") && error.ends_with("[HX0073]");
    assert!(dead.iter().all(|record| record.message.topic == "no subject"), "{dead:?}");
    assert!(dead.iter().all(|record| unfit(record.error.as_deref().unwrap())), "{dead:?}");
    assert!(shop.in_state(MessageState::Pending).await.is_empty());
}

/// Somebody listens to one subject, and no stream takes it: nobody acknowledges what goes there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_where_nobody_acknowledges_waits_alone() {
    let server = Nats::start().unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let _listener = client.subscribe("heard.a").await.unwrap();
    client.flush().await.unwrap();
    jetstream::new(client).create_stream(config("good")).await.unwrap();
    let shop = Shop::open(&["heard.a", "good.a"]).await;
    let sink = NatsSink::connect(&server.url()).await.unwrap().timeout(IMPATIENT);
    let (relay, watch) = shop.relay(eager(), sink);
    for run in ["one", "two"] {
        shop.sell(run).await;
        watch.until_said("nobody acknowledged what went to `heard.a`", watch.failures().len() + 1).await;
    }
    watch.until_sent("good.a", 2 * EACH as usize).await;
    assert!(
        watch.failures().iter().all(|text| text.contains("cannot be taken now")),
        "{:?}",
        watch.failures()
    );
    relay.stop().await;
    let waiting = shop.in_state(MessageState::Pending).await;
    assert_eq!((waiting.len(), waiting[0].attempts), (2 * EACH as usize, 0));
}

/// Twice by hand: once as it is and once as a CloudEvent, which is another body under the same id.
#[tokio::test]
async fn nats_stores_an_id_once_with_its_trace_and_says_how_long_it_knows_it() {
    let server = Nats::start_with(&["--user", "me", "--pass", "s3cr3t"]).unwrap();
    let url = server.url().replace("nats://", "nats://me:s3cr3t@");
    let options = async_nats::ConnectOptions::with_user_and_password("me".into(), "s3cr3t".into());
    let jetstream = jetstream::new(options.connect(server.url()).await.unwrap());
    let short = Config { duplicate_window: Duration::from_secs(5), ..config("short") };
    let (stream, _) = (
        jetstream.create_stream(config("shop")).await.unwrap(),
        jetstream.create_stream(short).await.unwrap(),
    );
    let sink = NatsSink::connect(&url.replace("nats://", "NATS://"))
        .await
        .unwrap()
        .prefix("shop.")
        .timeout(IMPATIENT);
    let message = message("a", 7);
    let event = Delivery { event_source: Some("/shop".into()), ..message.clone() };
    for delivery in [&event, &message, &event] {
        sink.publish(delivery).await.unwrap();
    }
    assert_eq!(stream.get_info().await.unwrap().state.messages, 1);
    let stored = stream.get_raw_message(1).await.unwrap();
    let header = |name: &str| stored.headers.get(name).unwrap().to_string();
    assert_eq!((header("traceparent"), header("hapax-key")), (message.traceparent(), "key".into()));
    assert_eq!(header("content-type"), "application/cloudevents+json");
    assert_eq!(stored.payload, serde_json::to_vec(&event).unwrap());
    assert!(sink.stream("a").await.unwrap().remembers_enough());
    let other = sink.clone().prefix("");
    assert!(!other.stream("short.a").await.unwrap().remembers_enough());
    assert_eq!(other.stream("nobody.a").await.unwrap_err().code(), code::NO_RECEIVER);
    let refused = NatsSink::connect(&url.replace("s3cr3t", "t0ps3cret")).await.unwrap().timeout(IMPATIENT);
    let denied = refused.publish(&message).await.unwrap_err();
    assert!(denied.to_string().contains("authorization violation"), "{denied}");
    let unreadable = NatsSink::connect("http://me:t0ps3cret@127.0.0.1:4222").await.unwrap_err();
    assert_eq!(unreadable.code(), code::SINK_INVALID);
    for error in [denied, unreadable] {
        assert!(error.is_unavailable() && !format!("{error} {error:?}").contains("t0ps3cret"), "{error:?}");
    }
}
