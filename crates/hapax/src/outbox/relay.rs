//! The relay: claims the messages of a run to a topic, delivers them in order, marks them.
//!
//! Invariant: of a run and topic nothing is delivered behind a message that wasn't, and nothing after the claim may have
//! ended: it is prolonged before each delivery that could outlast it. Polling is the truth; news only come sooner.

use super::{Delivery, OnPoison, RelayOptions, Sink, SinkError, delivery::is_uri_reference};
use crate::{Engine, Error, clock, worker::Shared};
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use hapax_core::{canary, error::Coded as _, failure::clip, outbox::Place};
use hapax_store::{
    Claimant, StoreError,
    outbox::{Batch, Channel, Claim, ClaimFilter, Failure, Fate, OutboxFilter, OutboxRecord},
};
use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// How soon a mark is tried again that the store didn't take.
const MARK_AGAIN: Duration = Duration::from_millis(10);
/// The longest pause while the sink can't be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Of how many channels it is remembered that they were busy.
const MOST_BUSY: usize = 10_000;

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
}

impl Engine {
    /// Delivers the messages of all runs of this engine's namespace to a sink, whichever engine executes them, until it
    /// is stopped or the engine ends. Several relays, of many processes, may share the work.
    ///
    /// It is told at once of messages of this engine's own runs, and looks for others now and then. See
    /// [`Sink`](crate::outbox::Sink) for an example.
    pub fn relay(&self, options: RelayOptions, sink: impl Sink) -> Result<Relay, Error> {
        let stop = CancellationToken::new();
        let carrier = Carrier::new(self, options, stop.clone())?;
        let task = self.shared.tasks.spawn(async move { carrier.carry_on(&sink).await });
        Ok(Relay { stop, task })
    }

    /// Delivers what is due, and returns when nothing is any more or the sink can't be reached. [`Delivered`] has an
    /// example.
    pub async fn deliver(&self, options: RelayOptions, sink: &dyn Sink) -> Result<Delivered, Error> {
        let carrier = Carrier::new(self, options, CancellationToken::new())?;
        let (mut lanes, mut all) = (FuturesUnordered::new(), Delivered::default());
        loop {
            if all.unavailable.is_none() && carrier.has_room(lanes.len()) {
                match carrier.claim(lanes.len()).await {
                    Ok((batches, since)) => {
                        lanes.extend(batches.into_iter().map(|batch| carrier.deliver(sink, batch, since)));
                    }
                    Err(error) => {
                        // The deliveries that are under way.
                        while ended(&mut lanes).await.is_some() {}
                        return Err(error.into());
                    }
                }
            }
            match ended(&mut lanes).await {
                Some(delivered) => all.add(delivered),
                None => return Ok(all),
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

    /// Makes a run's dead messages pending again, with fresh attempts; answers how many. They go out of their order. Those
    /// of its messages that rest are due now, too.
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

/// What became of the lanes that have ended: waits for one, and takes along those that have ended too.
async fn ended(lanes: &mut FuturesUnordered<impl Future<Output = Delivered>>) -> Option<Delivered> {
    let mut all = lanes.next().await?;
    while let Some(Some(another)) = lanes.next().now_or_never() {
        all.add(another);
    }
    Some(all)
}

/// What one relay works with.
struct Carrier {
    shared: Arc<Shared>,
    options: RelayOptions,
    stop: CancellationToken,
    /// How often in a row the head of a channel could not be taken, as far as this relay knows.
    busy: Mutex<HashMap<Channel, u32>>,
}

impl Carrier {
    fn new(engine: &Engine, options: RelayOptions, stop: CancellationToken) -> Result<Self, Error> {
        engine.is_open()?;
        match options.event_source.as_deref().filter(|source| !is_uri_reference(source)) {
            Some(source) => Err(Error::EventSource { text: source.into() }),
            None => Ok(Self { shared: engine.shared.clone(), options, stop, busy: Mutex::default() }),
        }
    }

    /// Delivers until it is stopped, each channel in a lane of its own: one that is slow holds up no other.
    async fn carry_on(&self, sink: &dyn Sink) {
        let (mut news, mut lanes, mut down) = (self.shared.mail.subscribe(), FuturesUnordered::new(), 0);
        while !self.is_stopped() {
            news.mark_unchanged();
            let (batches, since) = self.claim(lanes.len()).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot claim messages; trying again");
                (vec![], clock::instant())
            });
            lanes.extend(batches.into_iter().map(|batch| self.deliver(sink, batch, since)));
            if lanes.is_empty() {
                down = 0;
            }
            down = self.until_due(&mut lanes, &mut news, down).await;
        }
        // The deliveries that are under way.
        while ended(&mut lanes).await.is_some() {}
    }

    /// Waits until there may be something to claim, and room for it. Takes and answers how often in a row the sink was down.
    async fn until_due(
        &self,
        lanes: &mut FuturesUnordered<impl Future<Output = Delivered>>,
        news: &mut watch::Receiver<()>,
        mut down: u32,
    ) -> u32 {
        let mut is_down = false;
        let mut pause = pin!(tokio::time::sleep(self.rest(down)));
        loop {
            let can_claim = self.free(lanes.len()) > 0;
            tokio::select! {
                () = self.stop.cancelled() => return down,
                () = self.shared.closing() => return down,
                Some(delivered) = ended(lanes) => {
                    if let Some(error) = delivered.unavailable {
                        if !is_down {
                            (is_down, down) = (true, down.saturating_add(1));
                            // What a sink says isn't logged: its words may hold an address with a password, or the message.
                            tracing::warn!(code = error.code(), "messages wait: their sink takes none; trying again");
                            pause.set(tokio::time::sleep(self.rest(down)));
                        }
                    } else if delivered.sent + delivered.refused + delivered.dead > 0 {
                        down = 0;
                        if !is_down && self.has_room(lanes.len()) {
                            return down;
                        }
                    }
                }
                Ok(()) = news.changed(), if can_claim && !is_down && down == 0 => return down,
                () = &mut pause, if can_claim => return down,
            }
        }
    }

    /// How many lanes are free while so many are in use.
    fn free(&self, lanes: usize) -> usize {
        if canary::on("lanes_wait") && lanes > 0 { 0 } else { self.options.channels.saturating_sub(lanes) }
    }

    /// Whether another claim is worth its price as soon as a lane has ended: half of them are free.
    fn has_room(&self, lanes: usize) -> bool {
        self.free(lanes) * 2 >= self.options.channels
    }

    /// The pause after the sink was down so many times in a row: the usual one, doubled up to the longest.
    fn rest(&self, down: u32) -> Duration {
        let usual = self.options.poll_interval;
        let factor = 1u32.checked_shl(down.saturating_sub(1)).unwrap_or(u32::MAX);
        usual.saturating_mul(factor).min(LONGEST_PAUSE.max(usual))
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_cancelled() || self.shared.is_closing()
    }

    /// Claims what is due, for as many lanes as aren't in use; and since when it is ours.
    async fn claim(&self, lanes: usize) -> Result<(Vec<Batch>, Instant), StoreError> {
        // Before the store's own: our claim ends for us no later than for others.
        let since = clock::instant();
        let channels = self.free(lanes);
        if channels == 0 {
            return Ok((vec![], since));
        }
        let filter = ClaimFilter {
            namespace: self.shared.options.namespace.clone(),
            topics: self.options.topics.clone(),
            channels,
            messages: self.options.batch,
        };
        let by = Claimant { owner: self.shared.owner.clone(), ttl: self.options.claim_ttl };
        Ok((self.shared.store.outbox().claim(filter, by).await?, since))
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

    fn failure(&self, channel: &Channel, record: &OutboxRecord, error: &SinkError) -> Failure {
        let RelayOptions { max_attempts, on_poison, backoff, .. } = &self.options;
        let text = clip(error.to_string());
        match error.asked_rest().filter(|_| !canary::on("busy_is_fatal")) {
            Some(rest) => {
                let pause = backoff(self.busy_again(channel)).min(LONGEST_PAUSE).max(rest);
                Failure { error: text, again_after: pause, counts: false, dead_after: None }
            }
            None => {
                let pause = backoff(record.attempts.saturating_add(1));
                let dead_after = (*on_poison == OnPoison::DeadLetter).then_some(*max_attempts);
                Failure { error: text, again_after: pause, counts: true, dead_after }
            }
        }
    }

    /// Counts that a channel's head could not be taken. The store doesn't know: it may be the first time for another relay.
    fn busy_again(&self, channel: &Channel) -> u32 {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.len() >= MOST_BUSY {
            busy.clear();
        }
        let times = busy.entry(channel.clone()).or_default();
        *times = times.saturating_add(1);
        *times
    }

    fn was_taken(&self, channel: &Channel) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(channel);
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
            let watcher = self.carrier.shared.observer.watcher();
            let samples = |trace| watcher.is_some_and(|watcher| watcher.samples(trace));
            let delivery = Delivery::of(record, self.carrier.options.event_source.as_ref(), samples);
            let late = |_| Err(SinkError::refused(format!("it took longer than {slice:?}")));
            match tokio::time::timeout(slice, sink.publish(&delivery)).await.unwrap_or_else(late) {
                Ok(()) => self.unmarked.push(record.place),
                Err(error) if error.is_unavailable() => {
                    self.mark(false).await;
                    return Left::Down(error);
                }
                Err(error) => {
                    let left = self.refused(record, &error).await;
                    if matches!(left, Left::Refused(Fate::Dead)) {
                        sink.died(&delivery, &error);
                    }
                    return left;
                }
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
                    let marked = std::mem::take(&mut self.unmarked).len();
                    if marked > 0 {
                        self.carrier.was_taken(&self.claim.channel);
                    }
                    self.marked += marked;
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
        let failure = self.carrier.failure(&self.claim.channel, record, error);
        // Why is in the outbox.
        let (run_id, step_id, topic) = (&record.run, record.place.step, &record.message.topic);
        let (code, attempt) = (error.code(), record.attempts.saturating_add(u32::from(failure.counts)));
        tracing::warn!(%run_id, step_id, %topic, attempt, code, "a message was not taken");
        loop {
            let outbox = self.carrier.shared.store.outbox();
            match outbox.mark_failed(self.claim.clone(), record.place, failure.clone()).await {
                Ok(fate) => {
                    if fate == Fate::Dead {
                        tracing::error!(%run_id, step_id, %topic, attempt, code, "a message is dead");
                    }
                    return Left::Refused(fate);
                }
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
