//! The contract of a store's outbox: messages that steps have written and relays deliver.
//!
//! Invariant: the messages of one run to one topic are a [`Channel`], and a channel has one claim at a time. Whoever
//! holds its token delivers in order; `sent`, `failed` and `dead` need the token, so a relay that was taken for dead can
//! change nothing.

use crate::{
    clock::micros_left,
    store::{Answer, Claimant, Tally},
};
use hapax_core::{
    canary,
    id::{Namespace, RunId, RunKey},
    outbox::{Message, Place, message_id},
};
use std::{sync::Arc, time::Duration};

/// The messages that steps have written, until they are delivered.
///
/// A message is `pending`, `sent` or `dead`. A run with a pending or dead message is never deleted: a dead one counts as
/// unsent until an operator drops it.
///
/// ```
/// # #[cfg(feature = "conformance")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_store::{
///     Claimant, MemoryStore, Store,
///     conformance::{Sample, sample::message},
///     outbox::{ClaimFilter, MessageState, OutboxFilter},
/// };
/// use std::{sync::Arc, time::Duration};
///
/// let store: Arc<dyn Store> = MemoryStore::shared();
/// let mut holder = Sample::run("order-42").hold(&store).await;
/// holder.commit(holder.next_with("paid", 1, 0, vec![message("paid"), message("packed")])).await?;
///
/// let relay = Claimant { owner: "relay-1".into(), ttl: Duration::from_secs(30) };
/// let batches = store.outbox().claim(ClaimFilter::default(), relay.clone()).await?;
/// assert_eq!((batches.len(), batches[0].messages.len()), (1, 2), "one run, one topic");
/// assert!(store.outbox().claim(ClaimFilter::default(), relay).await?.is_empty(), "it is claimed");
///
/// let first = batches[0].messages[0].place;
/// store.outbox().mark_sent(batches[0].claim.clone(), vec![first], None).await?;
/// let pending = OutboxFilter { states: vec![MessageState::Pending], ..OutboxFilter::default() };
/// assert_eq!(store.outbox().list(pending).await?.len(), 1);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "conformance"))]
/// # fn main() {}
/// ```
pub trait Outbox: Send + Sync {
    /// Takes over channels that nobody holds and that have a message to deliver, those first that have waited longest.
    /// Answers, of each, the oldest pending messages in their order. Durable when it answers.
    ///
    /// The claim lasts for the claimant's term by the store's clock. On SQLite it ends as soon as the claimant's process
    /// does.
    fn claim(&self, filter: ClaimFilter, by: Claimant) -> Answer<'_, Vec<Batch>>;

    /// Takes note that these were delivered; durable when it answers, and the same when it is told twice. With `keep` the
    /// claim goes on for so long; without, the channel is free at once, and so it is when nothing is left in it.
    /// [`StoreError::ClaimLost`](crate::StoreError::ClaimLost) when the token isn't the channel's: nothing was changed.
    fn mark_sent(&self, claim: Claim, sent: Vec<Place>, keep: Option<Duration>) -> Answer<'_, ()>;

    /// Takes note that a delivery failed, counts it if it counts, and ends the claim. The channel rests for `again_after` by the
    /// store's clock; a message that has failed too often is dead, and the rest of its channel goes on at once.
    /// [`StoreError::ClaimLost`](crate::StoreError::ClaimLost) when the token isn't the channel's: nothing was changed.
    fn mark_failed(&self, claim: Claim, place: Place, failure: Failure) -> Answer<'_, Fate>;

    /// Messages by run, in the order in which they were written.
    fn list(&self, filter: OutboxFilter) -> Answer<'_, Vec<OutboxRecord>>;

    /// How much is undelivered, and since when, by the store's clock. Its cost is bounded: it counts
    /// [`MAX_COUNTED`](hapax_core::limits::MAX_COUNTED) of each at the most, in an index.
    fn backlog(&self, namespace: Namespace) -> Answer<'_, Backlog>;

    /// Makes a run's dead messages pending again, with fresh attempts; answers how many. They go out of their order:
    /// later ones have left. And no channel of the run rests any longer. Refused with
    /// [`Moving`](crate::StoreError::Moving) or [`Moved`](crate::StoreError::Moved) while the run is between two stores: what is on
    /// its way, or has left, is its next home's to deliver.
    fn retry_dead(&self, run: RunKey) -> Answer<'_, usize>;

    /// Deletes a run's dead messages; answers how many. They are never delivered. Refused as
    /// [`retry_dead`](Outbox::retry_dead) is.
    fn drop_dead(&self, run: RunKey) -> Answer<'_, usize>;
}

/// The messages of one run to one topic.
///
/// ```
/// use hapax_store::{StoreError, conformance::sample::key, outbox::Channel};
/// let channel = Channel { run: key("order-42"), topic: "mail".into() };
/// let lost = StoreError::ClaimLost { channel };
/// assert_eq!(lost.to_string(), "the claim on the messages of run `order-42` to `mail` is over");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The run that sends.
    pub run: RunKey,
    /// Where they go.
    pub topic: Arc<str>,
}

/// A channel that is ours until the claim ends.
///
/// ```
/// use hapax_store::{MemoryStore, Store, StoreError, outbox::{Claim, ClaimFilter}};
/// # use hapax_store::conformance::{Sample, sample::{claimant, message}};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// # let relay = claimant("relay-1", Duration::from_secs(30));
/// let batch = store.outbox().claim(ClaimFilter::default(), relay).await?.remove(0);
/// let (place, claim) = (batch.messages[0].place, batch.claim);
/// let stale = Claim { token: claim.token ^ 1, ..claim.clone() };
/// let refused = store.outbox().mark_sent(stale, vec![place], None).await;
/// assert!(matches!(refused, Err(StoreError::ClaimLost { .. })), "only its token moves a channel");
/// store.outbox().mark_sent(claim, vec![place], None).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The channel.
    pub channel: Channel,
    /// Drawn by the claim.
    pub token: u128,
}

/// What a claim brings.
///
/// ```
/// use hapax_store::{MemoryStore, Store, outbox::ClaimFilter};
/// # use hapax_store::conformance::{Sample, sample::{claimant, message}};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # let three = ["paid", "packed", "sent"].map(message).to_vec();
/// # holder.commit(holder.next_with("done", 1, 0, three)).await?;
/// # let relay = claimant("relay-1", Duration::from_secs(30));
/// let two_at_a_time = ClaimFilter { messages: 2, ..ClaimFilter::default() };
/// let batch = store.outbox().claim(two_at_a_time, relay).await?.remove(0);
/// assert_eq!((batch.messages.len(), batch.more), (2, true));
/// assert!(batch.messages[0].place < batch.messages[1].place);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The claim.
    pub claim: Claim,
    /// The oldest messages of the channel, in order.
    pub messages: Vec<OutboxRecord>,
    /// There are more behind them.
    pub more: bool,
}

/// Which channels a relay takes, and how much of each.
///
/// ```
/// use hapax_store::{MemoryStore, Store, outbox::ClaimFilter};
/// # use hapax_store::conformance::{Sample, sample::{claimant, message}};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// # let relay = claimant("relay-1", Duration::from_secs(30));
/// let elsewhere = ClaimFilter { topics: vec!["invoices".into()], ..ClaimFilter::default() };
/// assert!(store.outbox().claim(elsewhere, relay.clone()).await?.is_empty());
/// assert_eq!(store.outbox().claim(ClaimFilter::default(), relay).await?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ClaimFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Only these topics; empty: all.
    pub topics: Vec<Arc<str>>,
    /// How many channels at the most.
    pub channels: usize,
    /// How many messages of each at the most.
    pub messages: usize,
}

impl Default for ClaimFilter {
    fn default() -> Self {
        Self { namespace: Namespace::default(), topics: vec![], channels: 16, messages: 100 }
    }
}

/// Where a message stands.
///
/// ```
/// use hapax_store::outbox::MessageState;
/// assert_eq!(MessageState::Dead.word(), "dead");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageState {
    /// To be delivered.
    Pending,
    /// Delivered, and the receiver said so.
    Sent,
    /// Given up after too many failures, until an operator decides.
    Dead,
}

impl MessageState {
    /// One word for it, as stores and people see it.
    pub fn word(self) -> &'static str {
        match self {
            MessageState::Pending => "pending",
            MessageState::Sent => "sent",
            MessageState::Dead => "dead",
        }
    }
}

/// A message as the store has it.
///
/// ```
/// use hapax_store::{MemoryStore, Store, outbox::{MessageState, OutboxFilter}};
/// # use hapax_core::outbox::message_id;
/// # use hapax_store::conformance::{Sample, sample::message};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// let record = store.outbox().list(OutboxFilter::default()).await?.remove(0);
/// assert_eq!((record.state, record.attempts), (MessageState::Pending, 0));
/// assert_eq!(record.id(), message_id(&record.run, record.place), "its place is its identity");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRecord {
    /// The run that sends it.
    pub run: RunKey,
    /// Its place in the run.
    pub place: Place,
    /// The message itself.
    pub message: Message,
    /// Where it stands.
    pub state: MessageState,
    /// Deliveries that failed by its own fault.
    pub attempts: u32,
    /// Why the latest one failed.
    pub error: Option<String>,
    /// When it was written, in microseconds since 1970 by the store's clock; 0: before that was kept.
    pub written_at_us: i64,
}

impl OutboxRecord {
    /// The id that it carries on every delivery.
    pub fn id(&self) -> String {
        message_id(&self.run, self.place)
    }
}

/// What a tenant's runs have sent and nobody has received.
///
/// ```
/// use hapax_store::{Clock, MemoryStore, Store, Tally, outbox::Backlog};
/// # use hapax_core::id::Namespace;
/// # use hapax_store::conformance::{Sample, sample::message};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let clock = Clock::manual();
/// let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// clock.advance(Duration::from_secs(90)); // no relay is at work
/// let backlog = store.outbox().backlog(Namespace::default()).await?;
/// assert_eq!((backlog.pending, backlog.dead), (Tally::exactly(1), Tally::exactly(0)));
/// assert_eq!(backlog.lag(), Duration::from_secs(90));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Backlog {
    /// Messages to be delivered.
    pub pending: Tally,
    /// Messages that were given up, and wait for an operator.
    pub dead: Tally,
    /// When the oldest pending one was written, in microseconds since 1970 by the store's clock. `None`: there is none, or
    /// it is of a time when that wasn't kept.
    pub oldest_pending_at_us: Option<i64>,
    /// The store's time at this look.
    pub at_us: i64,
}

impl Backlog {
    /// How long the oldest pending message has waited.
    pub fn lag(&self) -> Duration {
        self.oldest_pending_at_us.map_or(Duration::ZERO, |oldest| micros_left(self.at_us, oldest))
    }
}

/// Which messages to list.
///
/// ```
/// use hapax_store::{MemoryStore, Store, outbox::{MessageState, OutboxFilter}};
/// # use hapax_store::conformance::{Sample, sample::message};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// let dead = OutboxFilter { states: vec![MessageState::Dead], ..OutboxFilter::default() };
/// assert!(store.outbox().list(dead).await?.is_empty(), "nothing for an operator to do");
/// assert_eq!(store.outbox().list(OutboxFilter::default()).await?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct OutboxFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Only of this run.
    pub run: Option<RunId>,
    /// Only those that stand there; empty: all.
    pub states: Vec<MessageState>,
    /// How many at the most.
    pub limit: usize,
}

impl Default for OutboxFilter {
    fn default() -> Self {
        Self { namespace: Namespace::default(), run: None, states: vec![], limit: 1000 }
    }
}

/// A delivery that failed, and what follows from it.
///
/// ```
/// use hapax_store::outbox::Failure;
/// use std::time::Duration;
/// let (error, again_after) = ("refused".to_owned(), Duration::from_secs(1));
/// let failure = Failure { error, again_after, counts: true, dead_after: Some(3) };
/// assert!(!failure.is_last(2) && failure.is_last(3));
/// assert!(!Failure { dead_after: None, ..failure.clone() }.is_last(u32::MAX), "it blocks its channel");
/// assert!(!Failure { counts: false, ..failure }.is_last(3), "nobody dies of what isn't his fault");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What happened, in words.
    pub error: String,
    /// How long the channel rests.
    pub again_after: Duration,
    /// Whether it is the message's own fault. Otherwise nothing is counted, and the message doesn't die of it.
    pub counts: bool,
    /// The message is dead once so many failures count; `None`: it is tried for ever, and what is behind it waits.
    pub dead_after: Option<u32>,
}

impl Failure {
    /// How many more failures there are after this one.
    pub(crate) fn count(&self) -> u32 {
        u32::from(self.counts || canary::on("busy_counts"))
    }

    /// Whether a message is dead that has failed so often, this time included.
    pub fn is_last(&self, attempts: u32) -> bool {
        self.counts && self.dead_after.is_some_and(|most| attempts >= most)
    }
}

/// What became of a message that couldn't be delivered.
///
/// ```
/// use hapax_store::{MemoryStore, Store, outbox::{ClaimFilter, Failure, Fate}};
/// # use hapax_store::conformance::{Sample, sample::{claimant, message}};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// # let relay = claimant("relay-1", Duration::from_secs(30));
/// let (error, again_after) = ("refused".to_owned(), Duration::ZERO);
/// let failure = Failure { error, again_after, counts: true, dead_after: Some(2) };
/// for fate in [Fate::Again, Fate::Dead] {
///     let batch = store.outbox().claim(ClaimFilter::default(), relay.clone()).await?.remove(0);
///     let place = batch.messages[0].place;
///     assert_eq!(store.outbox().mark_failed(batch.claim, place, failure.clone()).await?, fate);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays at the head of its channel.
    Again,
    /// It is dead, and the rest of its channel goes on.
    Dead,
}
