//! From the outbox to the outside: what a relay delivers, and where to.
//!
//! Invariant: a message is delivered only after the step that sent it is durable, and marked as sent only after the sink
//! has said that it has it. So it arrives at least once, each time with the same id.
//!
//! | file | what it holds |
//! |---|---|
//! | `relay` | claims, delivers in order, marks |
//! | `file`, `stdout` | ready sinks |

mod file;
mod relay;
mod stdout;

pub use file::FileSink;
pub use relay::{Delivered, Relay};
pub use stdout::StdoutSink;

use futures::future::BoxFuture;
use hapax_core::{
    error::{Code, Coded, code},
    id::RunKey,
    json::Json,
    limits,
};
use hapax_store::outbox::OutboxRecord;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

/// A message on its way, as a [`Sink`] gets it. As JSON it has `id`, `topic`, `key`, `payload`, `namespace`, `run` and
/// `step`, and is the same on every delivery.
///
/// ```
/// use hapax::{core::json::Json, outbox::Delivery};
/// # use hapax::core::id::{Namespace, RunId, RunKey};
/// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// # let (id, topic, key) = ("msg:3b0f".into(), "orders".into(), "order-42".into());
/// let first = Delivery { id, topic, key, payload: Json::of("paid")?, run, step: 1, refused: 0 };
/// let again = Delivery { refused: 1, ..first.clone() };
/// assert_eq!(serde_json::to_value(&again)?, serde_json::to_value(&first)?);
/// assert_eq!(serde_json::to_value(&again)?["payload"], "paid");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The same on every delivery: receivers tell a repeated one by it.
    pub id: String,
    /// Where it goes.
    pub topic: String,
    /// The receiver's partition or routing key; may be empty.
    pub key: String,
    /// What it says.
    pub payload: Json,
    /// The run that sent it.
    pub run: RunKey,
    /// The step whose commit sent it.
    pub step: u64,
    /// Deliveries of it that were refused before this one.
    pub refused: u32,
}

impl Delivery {
    fn of(record: &OutboxRecord) -> Self {
        Self {
            id: record.id(),
            topic: record.message.topic.clone(),
            key: record.message.key.clone(),
            payload: record.message.payload.clone(),
            run: record.run.clone(),
            step: record.place.step,
            refused: record.attempts,
        }
    }

    /// The message as one line of JSON, ended.
    fn line(&self) -> Result<Vec<u8>, SinkError> {
        let mut line = serde_json::to_vec(self).map_err(SinkError::refused)?;
        line.push(b'\n');
        Ok(line)
    }
}

impl Serialize for Delivery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Delivery", 7)?;
        fields.serialize_field("id", &self.id)?;
        fields.serialize_field("topic", &self.topic)?;
        fields.serialize_field("key", &self.key)?;
        fields.serialize_field("payload", &self.payload)?;
        fields.serialize_field("namespace", &self.run.namespace)?;
        fields.serialize_field("run", &self.run.run)?;
        fields.serialize_field("step", &self.step)?;
        fields.end()
    }
}

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
}

impl<T: Sink + ?Sized> Sink for Arc<T> {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        (**self).publish(message)
    }
}

/// Why a message wasn't taken, named by what the relay does next.
///
/// ```
/// use hapax::{Coded, outbox::SinkError};
/// assert!(!SinkError::refused("no such topic").is_unavailable());
/// assert_eq!(SinkError::unavailable("connection refused").code(), "HX0071");
/// ```
#[derive(Debug)]
pub struct SinkError {
    source: Box<dyn StdError + Send + Sync>,
    unavailable: bool,
}

impl SinkError {
    /// The other side won't take this message: it is tried again later, and is dead after some attempts.
    pub fn refused(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { source: error.into(), unavailable: false }
    }

    /// The other side takes none: no message is to blame, and all of them wait.
    pub fn unavailable(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { source: error.into(), unavailable: true }
    }

    /// Whether no message is to blame.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.unavailable { "the sink cannot be reached" } else { "the message was refused" };
        write!(f, "{what}: {}", self.source)
    }
}

impl StdError for SinkError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

impl Coded for SinkError {
    fn code(&self) -> Code {
        code::SINK_FAILED
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
}
