//! The relay: claims the messages of a run to a topic, delivers them in order, marks them.
//!
//! Invariant: of a run and topic nothing is delivered behind a message that wasn't, and nothing after the claim may have
//! ended: it is prolonged before each delivery that could outlast it. Polling is the truth; news only come sooner.

use super::{Delivery, OnPoison, RelayOptions, Sink, SinkError};
use crate::{Engine, Error, clock, worker::Shared};
use futures::future::join_all;
use hapax_core::{canary, error::Coded as _, failure::clip, outbox::Place};
use hapax_store::{
    Claimant, StoreError,
    outbox::{Batch, Claim, ClaimFilter, Failure, Fate, OutboxFilter, OutboxRecord},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How soon a mark is tried again that the store didn't take.
const MARK_AGAIN: Duration = Duration::from_millis(10);
/// The longest pause while the sink can't be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A relay at work. Dropping this leaves it to its work, until the engine ends.
///
/// ```
/// use hapax::{outbox::{RelayOptions, StdoutSink}, prelude::*, store::outbox::OutboxFilter};
/// # use serde::{Deserialize, Serialize};
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
/// let relay = engine.relay(RelayOptions::default(), StdoutSink)?;
/// relay.stop().await;
/// orders.start("order-42", Order::default()).await?.wait().await?; // sends a message
/// let left = engine.outbox(OutboxFilter::default()).await?;
/// assert_eq!((left.len(), left[0].state.word()), (1, "pending"), "it waits for the next relay");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Relay {
    /// Lets it finish the delivery that is under way, and waits for that. What it had taken is free for others at once.
    pub async fn stop(self) {
        self.stop.cancel();
        // It ends early only with the runtime, and then nobody waits.
        let _ = self.task.await;
    }
}

/// What became of the messages that were due.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = hapax::Engine::open("memory:").await?;
/// use hapax::outbox::{RelayOptions, StdoutSink};
/// let delivered = engine.deliver(RelayOptions::default(), &StdoutSink).await?;
/// assert_eq!((delivered.sent, delivered.dead), (0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Delivered {
    /// Delivered, and marked as such.
    pub sent: usize,
    /// Not taken; they are tried again later.
    pub refused: usize,
    /// Refused too often.
    pub dead: usize,
    /// The sink couldn't be reached, so the rest waits.
    pub unavailable: Option<SinkError>,
}

impl Delivered {
    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.refused += other.refused;
        self.dead += other.dead;
        self.unavailable = other.unavailable.or(self.unavailable.take());
    }

    fn is_nothing(&self) -> bool {
        self.sent + self.refused + self.dead == 0 && self.unavailable.is_none()
    }
}

impl Engine {
    /// Delivers the messages of all runs of this engine's namespace to a sink, whichever engine executes them, until it
    /// is stopped or the engine ends. Several relays, of many processes, may share the work.
    ///
    /// It is told at once of messages of this engine's own runs, and looks for others now and then. See
    /// [`Sink`](crate::outbox::Sink) for an example.
    pub fn relay(&self, options: RelayOptions, sink: impl Sink) -> Result<Relay, Error> {
        self.is_open()?;
        let stop = CancellationToken::new();
        let carrier = Carrier::new(self, options, stop.clone());
        let task = self.shared.tasks.spawn(async move { carrier.carry_on(&sink).await });
        Ok(Relay { stop, task })
    }

    /// Delivers what is due, and returns when nothing is any more or the sink can't be reached. [`Delivered`] has an
    /// example.
    pub async fn deliver(&self, options: RelayOptions, sink: &dyn Sink) -> Result<Delivered, Error> {
        self.is_open()?;
        let carrier = Carrier::new(self, options, CancellationToken::new());
        let mut all = Delivered::default();
        loop {
            let pass = carrier.pass(sink).await?;
            let over = pass.is_nothing() || pass.unavailable.is_some();
            all.add(pass);
            if over {
                return Ok(all);
            }
        }
    }
}

/// For operators.
impl Engine {
    /// Messages of this engine's namespace, by run and in the order in which they were written.
    pub async fn outbox(&self, mut filter: OutboxFilter) -> Result<Vec<OutboxRecord>, Error> {
        filter.namespace = self.shared.options.namespace.clone();
        Ok(self.shared.store.outbox().list(filter).await?)
    }

    /// Makes a run's dead messages pending again, with fresh attempts; answers how many. They go out of their order.
    pub async fn retry_dead(&self, run: &str) -> Result<usize, Error> {
        self.is_open()?;
        let retried = self.shared.store.outbox().retry_dead(self.key(run)?).await?;
        self.shared.mail.send_replace(());
        Ok(retried)
    }

    /// Deletes a run's dead messages; answers how many. They are never delivered.
    pub async fn drop_dead(&self, run: &str) -> Result<usize, Error> {
        self.is_open()?;
        Ok(self.shared.store.outbox().drop_dead(self.key(run)?).await?)
    }
}

/// Why a channel is left.
enum Left {
    /// All that was taken of it is delivered.
    Done,
    /// A message of it was refused; whether it is dead.
    Refused(Fate),
    /// The sink takes nothing.
    Down(SinkError),
    /// It is somebody else's now, or the store can't be told: what isn't marked is delivered again.
    Lost,
}

/// What one relay works with.
struct Carrier {
    shared: Arc<Shared>,
    options: RelayOptions,
    stop: CancellationToken,
}

impl Carrier {
    fn new(engine: &Engine, options: RelayOptions, stop: CancellationToken) -> Self {
        Self { shared: engine.shared.clone(), options, stop }
    }

    /// Delivers until it is stopped.
    async fn carry_on(&self, sink: &dyn Sink) {
        let mut news = self.shared.mail.subscribe();
        let mut down = 0u32;
        while !self.is_stopped() {
            news.mark_unchanged();
            let pass = self.pass(sink).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot claim messages; trying again");
                Delivered::default()
            });
            down = if pass.unavailable.is_some() { down.saturating_add(1) } else { 0 };
            if let Some(error) = &pass.unavailable {
                // What a sink says isn't logged: its words may hold an address with a password, or the message itself.
                tracing::warn!(code = error.code(), "messages wait: their sink takes none; trying again");
            }
            let pause = match () {
                () if down > 0 => self.rest(down),
                () if pass.is_nothing() => self.options.poll_interval,
                () => continue,
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.shared.closing() => {}
                Ok(()) = news.changed(), if down == 0 => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The pause after so many passes in a row that found the sink down: the usual one, doubled up to the longest.
    fn rest(&self, down: u32) -> Duration {
        let usual = self.options.poll_interval;
        let factor = 1u32.checked_shl(down - 1).unwrap_or(u32::MAX);
        usual.saturating_mul(factor).min(LONGEST_PAUSE.max(usual))
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_cancelled() || self.shared.is_closing()
    }

    /// Claims what is due and delivers it, channel beside channel.
    async fn pass(&self, sink: &dyn Sink) -> Result<Delivered, StoreError> {
        let filter = ClaimFilter {
            namespace: self.shared.options.namespace.clone(),
            topics: self.options.topics.clone(),
            channels: self.options.channels,
            messages: self.options.batch,
        };
        let by = Claimant { owner: self.shared.owner.clone(), ttl: self.options.claim_ttl };
        // Before the store's own: our claim ends for us no later than for others.
        let since = clock::instant();
        let batches = self.shared.store.outbox().claim(filter, by).await?;
        let mut all = Delivered::default();
        for delivered in join_all(batches.into_iter().map(|batch| self.deliver(sink, batch, since))).await {
            all.add(delivered);
        }
        Ok(all)
    }

    /// Delivers one batch, up to the first message that isn't taken.
    async fn deliver(&self, sink: &dyn Sink, batch: Batch, since: Instant) -> Delivered {
        let mut held = Held { carrier: self, claim: batch.claim, since, unmarked: vec![], marked: 0 };
        let left = held.deliver_all(sink, &batch.messages).await;
        let mut delivered = Delivered { sent: held.marked, ..Delivered::default() };
        match left {
            Left::Done | Left::Lost => {}
            Left::Refused(Fate::Again) => delivered.refused = 1,
            Left::Refused(Fate::Dead) => delivered.dead = 1,
            Left::Down(error) => delivered.unavailable = Some(error),
        }
        delivered
    }

    fn failure(&self, record: &OutboxRecord, error: &SinkError) -> Failure {
        let RelayOptions { max_attempts, on_poison, backoff, .. } = &self.options;
        let (pause, text) = (backoff(record.attempts.saturating_add(1)), clip(error.to_string()));
        match error.asked_rest().filter(|_| !canary::on("busy_is_fatal")) {
            Some(rest) => {
                Failure { error: text, again_after: pause.min(LONGEST_PAUSE).max(rest), dead_after: None }
            }
            None => {
                let dead_after = (*on_poison == OnPoison::DeadLetter).then_some(*max_attempts);
                Failure { error: text, again_after: pause, dead_after }
            }
        }
    }
}

/// A channel in a relay's hands.
struct Held<'c> {
    carrier: &'c Carrier,
    claim: Claim,
    /// When the store last granted the whole term.
    since: Instant,
    /// Delivered, and the store doesn't know it yet.
    unmarked: Vec<Place>,
    marked: usize,
}

impl Held<'_> {
    async fn deliver_all(&mut self, sink: &dyn Sink, messages: &[OutboxRecord]) -> Left {
        let slice = self.carrier.options.claim_ttl / 3;
        for record in messages {
            if self.carrier.is_stopped() {
                break;
            }
            // A delivery takes a third of the term at the most, so it ends within two.
            if clock::since(self.since) > slice && !self.mark(true).await {
                return Left::Lost;
            }
            if canary::on("sent_early") {
                self.unmarked.push(record.place);
                self.mark(true).await;
            }
            let delivery = Delivery::of(record, self.carrier.options.event_source.as_ref());
            let late = |_| Err(SinkError::refused(format!("it took longer than {slice:?}")));
            match tokio::time::timeout(slice, sink.publish(&delivery)).await.unwrap_or_else(late) {
                Ok(()) => self.unmarked.push(record.place),
                Err(error) if error.is_unavailable() => {
                    self.mark(false).await;
                    return Left::Down(error);
                }
                Err(error) => return self.refused(record, &error).await,
            }
        }
        if self.mark(false).await { Left::Done } else { Left::Lost }
    }

    /// Marks what was delivered, and goes on with the claim or gives it back. False: the claim is over.
    async fn mark(&mut self, keep: bool) -> bool {
        let store = &self.carrier.shared.store;
        let keep = keep.then_some(self.carrier.options.claim_ttl);
        loop {
            let now = clock::instant();
            match store.outbox().mark_sent(self.claim.clone(), self.unmarked.clone(), keep).await {
                Ok(()) => {
                    self.marked += std::mem::take(&mut self.unmarked).len();
                    self.since = now;
                    return true;
                }
                Err(error) => {
                    if !self.bear(&error).await {
                        return false;
                    }
                }
            }
        }
    }

    /// Marks what was delivered, then that this one was not.
    async fn refused(&mut self, record: &OutboxRecord, error: &SinkError) -> Left {
        if !self.unmarked.is_empty() && !self.mark(true).await {
            return Left::Lost;
        }
        let failure = self.carrier.failure(record, error);
        // Why is in the outbox.
        tracing::warn!(run_id = %record.run, topic = %record.message.topic, "a message was not taken");
        loop {
            let outbox = self.carrier.shared.store.outbox();
            match outbox.mark_failed(self.claim.clone(), record.place, failure.clone()).await {
                Ok(fate) => return Left::Refused(fate),
                Err(error) => {
                    if !self.bear(&error).await {
                        return Left::Lost;
                    }
                }
            }
        }
    }

    /// Waits before a mark is tried again; false: the claim is over, or will be before the store recovers.
    async fn bear(&self, error: &StoreError) -> bool {
        let passing = matches!(error, StoreError::Retry(_) | StoreError::Unknown(_) | StoreError::Full(_));
        if !passing || clock::since(self.since) > self.carrier.options.claim_ttl {
            tracing::warn!(%error, "what was delivered cannot be marked; it is delivered again");
            return false;
        }
        tokio::time::sleep(MARK_AGAIN).await;
        true
    }
}
