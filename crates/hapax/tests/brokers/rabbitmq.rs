//! RabbitMQ.

use crate::shop::{EACH, Shop, Told, Trouble, assert_whole, befall, eager, message, rounds, told};
use hapax::{
    Coded,
    core::error::code,
    outbox::{Delivery, RabbitSink, Sink},
    store::outbox::MessageState,
};
use hapax_servers::{Proxy, RabbitMq};
use lapin::{
    Channel, Connection, ConnectionProperties,
    message::BasicGetMessage,
    options::{BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use std::time::Duration;

/// A connection takes its time on a busy machine.
const PATIENT: Duration = Duration::from_secs(2);

async fn channel(url: &str) -> Channel {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    connection.create_channel().await.unwrap()
}

async fn declare(channel: &Channel, queue: &str, arguments: FieldTable) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, arguments).await.unwrap();
}

/// Takes the next message from a queue.
async fn take(channel: &Channel, queue: &str) -> Option<BasicGetMessage> {
    channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
}

fn header(message: &BasicGetMessage, name: &str) -> String {
    let headers = message.properties.headers().as_ref().unwrap();
    match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    }
}

/// Takes all that a queue holds, in its order.
async fn drained(channel: &Channel, queue: &str) -> Vec<Told> {
    let mut all = vec![];
    while let Some(message) = take(channel, queue).await {
        let id = message.properties.message_id().as_ref().unwrap().to_string();
        assert_eq!(*message.properties.delivery_mode(), Some(2), "persistent");
        all.push(told(&id, |name| header(&message, name), &message.data));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_befalls_rabbitmq_its_queues_have_everything_in_order() {
    let mut server = tokio::task::block_in_place(|| RabbitMq::start().unwrap());
    let proxy = Proxy::start(server.address()).unwrap();
    let queues = channel(&server.url()).await;
    for queue in ["orders", "mail"] {
        declare(&queues, queue, FieldTable::default()).await;
    }
    let shop = Shop::open(&["orders", "mail"]).await;
    let sink = RabbitSink::new(&proxy.url(&server.url()).unwrap()).unwrap().timeout(PATIENT);
    let (relay, watch) = shop.relay(eager(), sink);
    let late = Trouble::Late("msg:");
    let troubles = [Trouble::NoReplies, Trouble::Kill, Trouble::Cut, late];
    for trouble in troubles.repeat(rounds()) {
        befall(&shop, &watch, &mut server, &proxy, trouble).await;
    }
    relay.stop().await;
    let queues = channel(&server.url()).await;
    let held = [drained(&queues, "orders").await, drained(&queues, "mail").await].concat();
    assert_whole(&shop, &held).await;
}

/// One queue is full and one isn't there: neither stops the third, and no message dies of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_rabbitmq_does_not_take_waits_alone_and_loses_nothing() {
    let url = tokio::task::block_in_place(|| hapax_servers::rabbitmq().unwrap());
    let queues = channel(&url).await;
    // The server is shared: no other test has queues with these names.
    let prefix = format!("brokers.{}.", std::process::id());
    let [full, good, late] = ["full", "good", "late"].map(|name| format!("{prefix}{name}"));
    let mut limit = FieldTable::default();
    limit.insert("x-max-length".into(), AMQPValue::LongLongInt(3));
    limit.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    declare(&queues, &full, limit).await;
    declare(&queues, &good, FieldTable::default()).await;
    let shop = Shop::open(&["full", "good", "late"]).await;
    let sink = || RabbitSink::new(&url).unwrap().timeout(PATIENT).prefix(&prefix);
    let (relay, watch) = shop.relay(eager(), sink());
    shop.sell("order").await;
    watch.until_sent("good", EACH as usize).await;
    watch.until_said("a queue is full or cannot keep it", 5).await;
    watch.until_said(&format!("no queue takes the routing key `{late}`: NO_ROUTE [HX0074]"), 5).await;
    assert!(shop.in_state(MessageState::Dead).await.is_empty());
    declare(&queues, &late, FieldTable::default()).await;
    let mut held = vec![];
    while held.len() < EACH as usize {
        held.extend(drained(&queues, &full).await);
    }
    watch.until_taken(shop.per_run()).await;
    relay.stop().await;
    held.extend(drained(&queues, &good).await);
    held.extend(drained(&queues, &late).await);
    assert_whole(&shop, &held).await;

    let event = Delivery { event_source: Some("/shop".into()), ..message("good", 7) };
    sink().publish(&event).await.unwrap();
    let taken = take(&queues, &good).await.unwrap();
    assert_eq!(header(&taken, "traceparent"), event.traceparent());
    assert_eq!(taken.properties.content_type().as_ref().unwrap().as_str(), "application/cloudevents+json");
    assert_eq!(taken.data, serde_json::to_vec(&event).unwrap());
    let nowhere = sink().exchange("brokers.no.such.exchange").publish(&event).await.unwrap_err();
    assert!(nowhere.is_busy() && nowhere.code() == code::NO_RECEIVER, "{nowhere:?}");
    let long = sink().publish(&message(&"x".repeat(255), 8)).await.unwrap_err();
    assert!(!long.is_busy() && long.code() == code::TOPIC_UNFIT, "{long:?}");
    let denied = RabbitSink::new(&url.replace("guest:guest", "guest:t0ps3cret")).unwrap().timeout(PATIENT);
    let denied = denied.publish(&event).await.unwrap_err();
    let unreadable = RabbitSink::new("http://me:t0ps3cret@127.0.0.1").unwrap_err();
    assert_eq!(unreadable.code(), code::SINK_INVALID);
    for error in [denied, unreadable] {
        assert!(error.is_unavailable() && !format!("{error} {error:?}").contains("t0ps3cret"), "{error:?}");
    }
}
