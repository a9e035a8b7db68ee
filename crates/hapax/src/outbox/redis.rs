//! A sink that appends to streams of Redis.
//!
//! Invariant: a message is acknowledged when Redis has told the place that it has in its stream. Redis keeps as much as it is
//! configured to; the docs of the sink say what that means.

use super::{Delivery, Sink, SinkError};
use futures::future::BoxFuture;
use hapax_core::{canary, error::code, limits};
use redis::{
    Client, RedisError,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use serde_json::{Map, Value};
use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Appends each message to a stream (`XADD`) with the fields `id`, `topic`, `key`, `payload` and `headers`, and waits until
/// Redis has answered. Behind the feature `redis`.
///
/// The stream is the topic, after the [prefix](Self::prefix) if there is one, and is made when it isn't there. `payload` is
/// JSON, or the CloudEvent; `headers` is a JSON object with `traceparent`, `content-type`, run, step and the rest.
///
/// Redis doesn't know ids: whoever receives must drop what comes again. What it answered for is in its memory; whether it
/// survives is up to its settings: a crash of the process with `appendonly yes`, one of the machine with `appendfsync always`
/// too, and a failover not at all, because replicas follow later. Nothing is trimmed; that is the receivers' to do. While its
/// memory is full all messages wait, as long as it is told not to make room by itself: `maxmemory-policy noeviction`.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::outbox::{RedisSink, RelayOptions};
/// # let engine = hapax::Engine::open("memory:").await?;
/// let sink = RedisSink::new("redis://me:secret@127.0.0.1:6379/0")?.prefix("shop:");
/// let relay = engine.relay(RelayOptions::default().topics(["orders"]), sink)?; // to the stream `shop:orders`
/// # relay.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct RedisSink {
    client: Client,
    prefix: String,
    timeout: Duration,
    line: Mutex<Option<ConnectionManager>>,
}

impl fmt::Debug for RedisSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSink").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RedisSink {
    /// A sink for `redis://user:password@host:port/database`, or `rediss://` with TLS. It connects when there is something
    /// to deliver, and again when the connection was lost.
    ///
    /// ```
    /// use hapax::{Coded, outbox::RedisSink};
    /// assert!(RedisSink::new("redis://127.0.0.1:6379/0").is_ok() && RedisSink::new("REDIS://127.0.0.1").is_ok());
    /// assert_eq!(RedisSink::new("http://127.0.0.1").unwrap_err().code(), "HX0072");
    /// ```
    pub fn new(url: &str) -> Result<Self, SinkError> {
        let unfit = || {
            SinkError::unavailable(
                "its address is not one of Redis, redis://user:password@host:port/database",
            )
        };
        let client = Client::open(url).map_err(|_| unfit().under(code::SINK_INVALID))?;
        Ok(Self { client, prefix: String::new(), timeout: limits::SINK_TIMEOUT, line: Mutex::default() })
    }

    /// What the names of streams begin with, before the topic. Default: nothing.
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
        let (body, headers) = (message.body()?, headers(message)?);
        let mut add = redis::cmd("XADD");
        add.arg(format!("{}{}", self.prefix, message.topic)).arg("*");
        add.arg("id").arg(&message.id).arg("topic").arg(&message.topic).arg("key").arg(&message.key);
        add.arg("payload").arg(&*body).arg("headers").arg(headers);
        let mut line = self.line()?;
        let answered = tokio::time::timeout(self.timeout, add.query_async::<String>(&mut line)).await;
        match answered {
            Ok(Ok(_place)) => Ok(()),
            Ok(Err(_)) if canary::on("redis_any_word") => Ok(()),
            Ok(Err(error)) => Err(self.failed(error)),
            Err(_) => {
                self.hang_up();
                Err(SinkError::unavailable(format!("Redis said nothing within {:?}", self.timeout)))
            }
        }
    }

    fn line(&self) -> Result<ConnectionManager, SinkError> {
        let mut line = self.held();
        if let Some(line) = &*line {
            return Ok(line.clone());
        }
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_number_of_retries(0);
        let made = ConnectionManager::new_lazy_with_config(self.client.clone(), config);
        Ok(line.insert(made.map_err(SinkError::unavailable)?).clone())
    }

    fn held(&self) -> MutexGuard<'_, Option<ConnectionManager>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that swallowed something may swallow more.
    fn hang_up(&self) {
        *self.held() = None;
    }

    fn failed(&self, error: RedisError) -> SinkError {
        match error.code() {
            // What is there under the name is no stream, or not for us.
            Some("WRONGTYPE" | "NOPERM") => SinkError::busy(error),
            Some("ERR") if canary::on("redis_err_refuses") || is_too_large(&error) => {
                // Redis closes the connection on which it was told too much.
                self.hang_up();
                SinkError::refused(error)
            }
            // It wants a login, has no such database, is full, loading, a replica, or without a disk: then it takes nothing
            // from anybody.
            Some(_) => SinkError::unavailable(error),
            None => {
                self.hang_up();
                SinkError::unavailable(error)
            }
        }
    }
}

/// `ERR` may mean anything; only in these words it means the message.
fn is_too_large(error: &RedisError) -> bool {
    let words = error.to_string();
    ["invalid bulk length", "exceeds maximum allowed size", "Elements are too large"]
        .iter()
        .any(|told| words.contains(told))
}

/// As one field: the fields of a stream's entries are the same for all of them.
fn headers(message: &Delivery) -> Result<String, SinkError> {
    let mut all: Map<String, Value> =
        message.headers().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    all.insert("content-type".into(), message.content_type().into());
    serde_json::to_string(&all).map_err(SinkError::refused)
}

impl Sink for RedisSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(self.hand_over(message))
    }
}
