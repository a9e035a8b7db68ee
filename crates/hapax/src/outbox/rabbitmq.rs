//! A sink that publishes to RabbitMQ.
//!
//! Invariant: a message is acknowledged when the broker has confirmed it and has not sent it back. A channel has one message
//! under way at a time, because a message that comes back is known only by the confirmation that follows it.

use super::{Delivery, Sink, SinkError};
use futures::future::BoxFuture;
use hapax_core::{canary, error::code, limits};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Error, ErrorKind,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
    uri::AMQPUri,
};
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// Publishes each message as persistent, with its id as `message_id`, and waits until RabbitMQ has confirmed it. Behind the
/// feature `rabbitmq`.
///
/// The routing key is the topic, after the [prefix](Self::prefix) if there is one. It goes to the default exchange, which has
/// a route to every queue by its name, or to [another](Self::exchange). The body is the payload, or the CloudEvent;
/// `traceparent`, run, step and the rest are headers.
///
/// A message that no queue takes comes back; until one does, or while the queue is full, its topic waits and others go on.
/// RabbitMQ doesn't know ids: whoever receives must drop what comes again. Queues should be durable, best of all quorum
/// queues: then what was confirmed survives a crash.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::outbox::{RabbitSink, RelayOptions};
/// # let engine = hapax::Engine::open("memory:").await?;
/// let sink = RabbitSink::new("amqp://me:secret@127.0.0.1:5672/%2f")?.exchange("shop");
/// let relay = engine.relay(RelayOptions::default().topics(["orders"]), sink)?;
/// # relay.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct RabbitSink {
    address: AMQPUri,
    exchange: String,
    prefix: String,
    timeout: Duration,
    line: Mutex<Line>,
}

/// The connection, and those of its channels on which nothing is under way.
#[derive(Default)]
struct Line {
    connection: Option<Arc<Connection>>,
    idle: Vec<Channel>,
}

impl fmt::Debug for RabbitSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RabbitSink");
        shown.field("exchange", &self.exchange).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RabbitSink {
    /// A sink for `amqp://user:password@host:port/vhost`, or `amqps://` with TLS. It connects when there is something to
    /// deliver, and again when the connection was lost.
    ///
    /// ```
    /// use hapax::{Coded, outbox::RabbitSink};
    /// assert!(RabbitSink::new("amqp://127.0.0.1").is_ok() && RabbitSink::new("AMQPS://127.0.0.1").is_ok());
    /// assert_eq!(RabbitSink::new("http://127.0.0.1").unwrap_err().code(), "HX0072");
    /// ```
    pub fn new(url: &str) -> Result<Self, SinkError> {
        // The library's own words may repeat the address, and with it the password.
        let unfit = || {
            SinkError::unavailable("its address is not one of RabbitMQ, amqp://user:password@host:port/vhost")
        };
        let address = url.parse().map_err(|_| unfit().under(code::SINK_INVALID))?;
        let (exchange, prefix) = (String::new(), String::new());
        Ok(Self { address, exchange, prefix, timeout: limits::SINK_TIMEOUT, line: Mutex::default() })
    }

    /// The exchange, of at most 255 bytes. Default: the nameless one.
    pub fn exchange(mut self, exchange: &str) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// What routing keys begin with, before the topic. Default: nothing.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a delivery may take, with the connection if there is none. Default: 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    async fn hand_over(&self, message: &Delivery) -> Result<(), SinkError> {
        let place = [&self.exchange, &format!("{}{}", self.prefix, message.topic)].map(|name| short(name));
        let [exchange, key] = place;
        let (exchange, key, body) = (exchange?, key?, message.body()?);
        let sent = tokio::time::timeout(self.timeout, self.send(exchange, key, message, &body)).await;
        let confirmation = match sent {
            Ok(outcome) => outcome?,
            Err(_) => {
                self.hang_up();
                return Err(SinkError::unavailable(format!(
                    "RabbitMQ said nothing within {:?}",
                    self.timeout
                )));
            }
        };
        judged(confirmation)
    }

    async fn send(
        &self,
        exchange: ShortString,
        key: ShortString,
        message: &Delivery,
        body: &[u8],
    ) -> Result<Confirmation, SinkError> {
        // Whoever may not connect is told in the same words as whoever may not publish.
        let channel = self.channel().await.map_err(SinkError::unavailable)?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = channel.basic_publish(exchange, key, options, body, properties(message)).await;
        let confirmation = sent.map_err(failed)?.await.map_err(failed)?;
        self.line.lock().await.idle.push(channel);
        Ok(confirmation)
    }

    /// A channel with nothing under way. One that fails, or whose message is given up, is never used again.
    async fn channel(&self) -> Result<Channel, Error> {
        let mut line = self.line.lock().await;
        let connection = match line.connection.take().filter(|connection| connection.status().connected()) {
            Some(connection) => connection,
            None => {
                line.idle.clear();
                let properties = ConnectionProperties::default().with_connection_name("hapax relay".into());
                Arc::new(Connection::connect_uri(self.address.clone(), properties).await?)
            }
        };
        line.connection = Some(connection.clone());
        line.idle.retain(|channel| channel.status().connected());
        if let Some(channel) = line.idle.pop() {
            return Ok(channel);
        }
        drop(line);
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// A connection that swallowed something may swallow more. Whoever has the lock is about to make a new one.
    fn hang_up(&self) {
        if let Ok(mut line) = self.line.try_lock() {
            *line = Line::default();
        }
    }
}

fn short(name: &str) -> Result<ShortString, SinkError> {
    let long = |_| SinkError::refused(format!("{name:?} has more than 255 bytes")).under(code::TOPIC_UNFIT);
    ShortString::try_new(name).map_err(long)
}

fn properties(message: &Delivery) -> BasicProperties {
    const PERSISTENT: u8 = 2;
    let mut headers = FieldTable::default();
    for (name, value) in message.headers() {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    BasicProperties::default()
        .with_message_id(message.id.as_str().into())
        .with_delivery_mode(PERSISTENT)
        .with_content_type(message.content_type().into())
        .with_headers(headers)
}

fn judged(confirmation: Confirmation) -> Result<(), SinkError> {
    match confirmation {
        _ if canary::on("rabbitmq_any_word") => Ok(()),
        Confirmation::Ack(None) => Ok(()),
        // It is confirmed as well: the broker has dealt with it, by sending it back.
        Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back)) => {
            let text = format!(
                "no queue takes the routing key `{}`: {}",
                back.delivery.routing_key, back.reply_text
            );
            Err(SinkError::busy(text).under(code::NO_RECEIVER))
        }
        Confirmation::Nack(None) => Err(SinkError::busy("a queue is full or cannot keep it")),
        Confirmation::NotRequested => Err(SinkError::unavailable("the channel confirms nothing")),
    }
}

/// What closes a channel alone is about its message or its exchange; the rest is about the connection.
fn failed(error: Error) -> SinkError {
    let soft = match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.kind()),
        _ => None,
    };
    match soft {
        Some(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND)) => SinkError::busy(error).under(code::NO_RECEIVER),
        Some(AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED | AMQPSoftError::RESOURCELOCKED)) => {
            SinkError::busy(error)
        }
        Some(AMQPErrorKind::Soft(_)) => SinkError::refused(error),
        _ => SinkError::unavailable(error),
    }
}

impl Sink for RabbitSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(self.hand_over(message))
    }
}
