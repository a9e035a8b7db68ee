//! From the outbox to the outside: what a relay delivers, and where to.
//!
//! Invariant: a message is delivered only after the step that sent it is durable, and marked as sent only after the sink
//! has said that it has it. So it arrives at least once, each time with the same id.
//!
//! | file | what it holds |
//! |---|---|
//! | `relay` | claims, delivers in order, marks |
//! | `delivery` | a message on its way, as itself or as a CloudEvent |
//! | `failed` | why a message wasn't taken, and what the relay does then |
//! | `turns` | writes that nobody can call off, one after the other |
//! | `file`, `stdout`, `nats`, `rabbitmq`, `redis`, `webhook` | ready sinks; those of brokers behind a feature each |
//!
//! # Receiving
//!
//! A message may come more than once, each time with its id. A program that changes a database asks its `inbox` there, in
//! the transaction of the change. One whose messages start runs needs none: the id is the run's, and names one run.
//!
//! ```
//! use hapax::{Flow, prelude::*, store::ListFilter};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(State, Clone, Default, Serialize, Deserialize)]
//! struct Invoice { cents: u64, sent: bool }
//! # const SEND: Node = Node::new("send");
//! # async fn send(_: hapax::Ctx<Invoice>) -> InvoiceDelta { Invoice::delta().sent(true) }
//!
//! /// The run is durable when this returns: now the broker may be told.
//! async fn receive(invoices: &Flow<Invoice>, id: &str, cents: u64) -> hapax::Result<()> {
//!     invoices.start(id, Invoice { cents, sent: false }).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> hapax::Result<()> {
//! let engine = Engine::open("memory:").await?;
//! let invoices = engine.register(Graph::new("invoices", 1, SEND).node(SEND, send), ()).await?;
//! for _delivery in 0..2 {
//!     receive(&invoices, "msg:3b0f", 4200).await?;
//! }
//! assert_eq!(engine.list(ListFilter::default()).await?.len(), 1);
//! # Ok(())
//! # }
//! ```

mod delivery;
mod failed;
mod file;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod relay;
mod stdout;
mod turns;
#[cfg(feature = "webhook")]
mod webhook;

pub use delivery::Delivery;
pub use failed::SinkError;
pub use file::FileSink;
#[cfg(feature = "nats")]
pub use nats::{NatsSink, NatsStream};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::RabbitSink;
#[cfg(feature = "redis")]
pub use redis::RedisSink;
pub use relay::{Delivered, Relay};
pub use stdout::StdoutSink;
#[cfg(feature = "webhook")]
pub use webhook::WebhookSink;

use futures::future::BoxFuture;
use hapax_core::limits;
use std::{fmt, sync::Arc, time::Duration};

/// Where messages go: a broker, a queue, a file.
///
/// ```
/// use futures::future::BoxFuture;
/// use hapax::{outbox::{Delivery, RelayOptions, Sink, SinkError}, prelude::*};
/// use serde::{Deserialize, Serialize};
/// use std::sync::mpsc;
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Order { paid: bool }
/// const PAY: Node = Node::new("pay");
/// async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
///     ctx.emit("orders", "order-42", "paid")?;
///     Ok(Order::delta().paid(true))
/// }
///
/// struct Queue(mpsc::Sender<Delivery>);
/// impl Sink for Queue {
///     fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
///         Box::pin(async move { self.0.send(message.clone()).map_err(SinkError::unavailable) })
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// let engine = Engine::open("memory:").await?;
/// let orders = engine.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
/// let (queue, arrived) = mpsc::channel();
/// let relay = engine.relay(RelayOptions::default(), Queue(queue))?;
/// orders.start("order-42", Order::default()).await?.wait().await?;
/// let message = tokio::task::spawn_blocking(move || arrived.recv()).await??;
/// assert_eq!((message.topic.as_str(), message.payload.as_str()), ("orders", r#""paid""#));
/// relay.stop().await;
/// # Ok(())
/// # }
/// ```
pub trait Sink: Send + Sync + 'static {
    /// Hands a message over, and answers when the other side has it for good. It may be called again for a message that
    /// it has taken already, with the same id. A future that takes too long is dropped.
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>>;

    /// A message was refused too often, last with this error: it is dead, and waits in the outbox for a person. For whoever
    /// wants to be told; it is in the log anyway.
    fn died(&self, _message: &Delivery, _error: &SinkError) {}
}

impl<T: Sink + ?Sized> Sink for Arc<T> {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        (**self).publish(message)
    }

    fn died(&self, message: &Delivery, error: &SinkError) {
        (**self).died(message, error);
    }
}

/// What becomes of a message that is refused again and again.
///
/// ```
/// use hapax::{outbox::{Delivery, OnPoison, RelayOptions, Sink, SinkError}, prelude::*};
/// # use futures::future::BoxFuture;
/// # use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// # async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
/// #     ctx.emit("orders", "", "paid")?;
/// #     Ok(Order::delta().paid(true))
/// # }
/// # struct Picky; // refuses everything
/// # impl Sink for Picky {
/// #     fn publish<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
/// #         Box::pin(async { Err(SinkError::refused("no such topic")) })
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let orders = engine.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
/// let once = RelayOptions::default().max_attempts(1).backoff(|_| Duration::from_secs(60));
/// orders.start("order-1", Order::default()).await?.wait().await?; // sends a message
/// let blocked = engine.deliver(once.clone().on_poison(OnPoison::Block), &Picky).await?;
/// assert_eq!((blocked.refused, blocked.dead), (1, 0), "it is tried again in a minute");
/// orders.start("order-2", Order::default()).await?.wait().await?;
/// let buried = engine.deliver(once.on_poison(OnPoison::DeadLetter), &Picky).await?;
/// assert_eq!((buried.refused, buried.dead), (0, 1), "an operator decides about it");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnPoison {
    /// It is dead until an operator decides, and the rest of its run and topic goes on: the order has a gap.
    #[default]
    DeadLetter,
    /// It is tried for ever, and the rest of its run and topic waits: the order has none.
    Block,
}

type Backoff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

/// How a relay delivers. The defaults suit most programs.
///
/// ```
/// use hapax::{outbox::{OnPoison, RelayOptions, StdoutSink}, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// # async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
/// #     ctx.emit("orders", "", "paid")?;
/// #     Ok(Order::delta().paid(true))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let orders = engine.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
/// orders.start("order-42", Order::default()).await?.wait().await?; // sends a message to `orders`
/// let options = RelayOptions::default()
///     .max_attempts(5)
///     .on_poison(OnPoison::Block)
///     .poll_interval(Duration::from_millis(200));
/// let mail = engine.deliver(options.clone().topics(["mail"]), &StdoutSink).await?;
/// let all = engine.deliver(options, &StdoutSink).await?;
/// assert_eq!((mail.sent, all.sent), (0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RelayOptions {
    topics: Vec<Arc<str>>,
    batch: usize,
    channels: usize,
    poll_interval: Duration,
    claim_ttl: Duration,
    max_attempts: u32,
    on_poison: OnPoison,
    backoff: Backoff,
    event_source: Option<Arc<str>>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            topics: vec![],
            batch: limits::RELAY_BATCH,
            channels: 16,
            poll_interval: limits::RELAY_POLL,
            claim_ttl: limits::RELAY_TTL,
            max_attempts: limits::RELAY_ATTEMPTS,
            on_poison: OnPoison::default(),
            backoff: Arc::new(doubled),
            event_source: None,
        }
    }
}

impl fmt::Debug for RelayOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayOptions")
            .field("topics", &self.topics)
            .field("batch", &self.batch)
            .field("max_attempts", &self.max_attempts)
            .field("on_poison", &self.on_poison)
            .finish_non_exhaustive()
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// 100 ms after the first failure, doubled up to ten minutes.
fn doubled(failures: u32) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

impl RelayOptions {
    /// Only messages to these topics. Default: all.
    pub fn topics<T: AsRef<str>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics = topics.into_iter().map(|topic| topic.as_ref().into()).collect();
        self
    }

    /// Messages of one run to one topic that are taken at a time; a crash delivers at most these again. Default: 100.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages.max(1);
        self
    }

    /// Pairs of run and topic that are delivered side by side. Default: 16.
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels.max(1);
        self
    }

    /// How often it looks for messages that nobody told it of: those of other engines, and those whose rest is over.
    /// Default: 1 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// How long it owns what it took without a word to the store; one delivery may take a third of that. Default: 30 s.
    pub fn claim_ttl(mut self, ttl: Duration) -> Self {
        self.claim_ttl = ttl;
        self
    }

    /// Deliveries of a message that may be refused before it counts as poison. Default: 20.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// What becomes of poison. Default: it is dead.
    pub fn on_poison(mut self, what: OnPoison) -> Self {
        self.on_poison = what;
        self
    }

    /// The rest after the n-th refusal of a message, counted from 1. Default: 100 ms, doubled up to ten minutes.
    pub fn backoff(mut self, pause: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.backoff = Arc::new(pause);
        self
    }

    /// Messages leave as [CloudEvents](https://cloudevents.io) 1.0 in JSON, whatever the sink. This says whose events they
    /// are: a URI, or a part of one such as `/shop` (a relay of any other is refused); when it is empty, `hapax:` and the namespace. [`Delivery`] shows one.
    /// Default: as they are.
    pub fn cloud_events(mut self, source: &str) -> Self {
        self.event_source = Some(source.into());
        self
    }
}
