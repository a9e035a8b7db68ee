//! The contract of every store.
//!
//! Invariant: the database decides. Uniqueness, fencing and order rest on compare-and-set statements and unique
//! keys inside one transaction, never on a check that comes before.

pub use crate::{
    census::{Census, CensusFilter, Tally},
    fact::{Fact, Verdict},
    fleet::{Fleet, Hint, Holding, Outlook},
};
use crate::{
    clock::Clock,
    db::Statement,
    depot::{self, Rested},
    error::StoreError,
    flow::Flow,
    house::House,
    outbox::Outbox,
    recode::{self, PayloadKeys, Recoded},
    schedules::Schedules,
};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Append, Epoch, Status, Wake, Write, Written},
    flow::Terms,
    frontier::WorkItem,
    id::{Namespace, RunId, RunKey},
    journal::JournalRow,
    key::Digest,
    mailbox::{Letter, NewLetter, Posted},
};
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::{broadcast, oneshot};

/// A boxed future, so that `Store` can be a trait object.
///
/// ```
/// use hapax_store::BoxFuture;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// /// Futures of different types, behind one.
/// fn steps(known: Option<u64>) -> BoxFuture<'static, u64> {
///     match known {
///         Some(steps) => Box::pin(std::future::ready(steps)),
///         None => Box::pin(async { 0 }),
///     }
/// }
/// assert_eq!(steps(Some(7)).await + steps(None).await, 7);
/// # }
/// ```
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// What most calls answer.
///
/// ```
/// use hapax_store::{Answer, StoreError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// /// As a method of a store looks that is out of reach.
/// fn unreachable<'a>() -> Answer<'a, u64> {
///     Box::pin(async { Err(StoreError::Retry("connection refused".into())) })
/// }
/// assert!(matches!(unreachable().await, Err(StoreError::Retry(_))));
/// # }
/// ```
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Where runs live: commits, journals, leases.
///
/// Every store passes the suite in [`conformance`](crate::conformance). What each call makes durable stands in
/// its own doc; "durable" means that it survives a crash of the process and of the machine.
///
/// ```
/// # #[cfg(feature = "conformance")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_store::{
///     Claimant, Created, GcPolicy, ListFilter, MemoryStore, ReadyFilter, Renewal, Store, conformance::Sample,
/// };
/// use std::time::Duration;
///
/// let store = MemoryStore::shared();
/// let run = Sample::run("order-42").build();
/// let key = run.key.clone();
/// assert!(matches!(store.create(run.clone()).await?, Created::New(_)));
/// assert!(matches!(store.create(run).await?, Created::Exists(_)), "an id is taken once");
///
/// let engine = Claimant { owner: "engine-1".into(), ttl: Duration::from_secs(30) };
/// let lease = store.claim(key.clone(), engine.clone()).await?;
/// assert!(!lease.taken_over, "nobody held it");
/// let renewed = store.renew(vec![(key.clone(), lease.epoch)], engine.clone()).await?;
/// assert_eq!(renewed, [(key.clone(), Renewal::Kept)]);
/// let filter = ReadyFilter { namespace: key.namespace.clone(), graphs: vec![], limit: 10 };
/// assert!(store.claim_ready(filter, engine).await?.is_empty(), "of no graph, no run");
///
/// let namespace = key.namespace.clone();
/// let loaded = store.load(key).await?;
/// assert_eq!((loaded.record.step, loaded.checkpoint.step), (0, 0));
/// assert_eq!(store.list(ListFilter::default()).await?.len(), 1);
/// let policy = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 10, dry_run: false };
/// assert!(store.gc(policy).await?.deleted.is_empty(), "a live run stays");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "conformance"))]
/// # fn main() {}
/// ```
pub trait Store: Send + Sync + 'static {
    /// Creates a run with its step 0, claimed by its creator when `claim` says so. Durable when it answers.
    ///
    /// An id that is taken answers [`Created::Exists`] and changes nothing. A child whose parent was cancelled is to be
    /// cancelled from its beginning.
    ///
    /// Its [`Terms`] are met in the same transaction: its place in a key's queue, or its slot; its time in a bucket; its name.
    /// A run that these park is claimed by nobody. A singleton's name under which another run lives, and a debounce under
    /// which one hasn't begun, answer [`Created::Exists`] with that run, and change nothing either.
    fn create(&self, run: NewRun) -> Answer<'_, Created>;

    /// Takes over one run: raises its epoch, so that every later write of an earlier holder is refused. Durable
    /// when it answers. [`StoreError::Held`] while another holder's lease is alive;
    /// [`StoreError::WrongStatus`] when it isn't runnable (a run to be cancelled is, and one whose time has come).
    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease>;

    /// Takes over up to `limit` runnable runs that nobody holds, oldest first, as [`Store::claim`] does. A run of a
    /// [priority](Terms::priority) counts as so much older when it is created, woken by a letter or a slot, and retried.
    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>>;

    /// Prolongs leases by the store's clock. Answers, for each, whether it is still ours.
    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>>;

    /// The claimant's runs for which a cancel was requested.
    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>>;

    /// Accepts a write, in order: all writes of a run that one task submits become durable in that order, and
    /// none without those before it. Waits only for room in the queue; the [`Ticket`] tells the outcome. When the
    /// future is dropped before it answers, nothing was accepted.
    ///
    /// One transaction contains the fence (an update of the run's row that demands epoch, nonce, next sequence
    /// number, and for a step the step and digest before it), the unique key, the checkpoint, the journal's tail
    /// and the outbox rows. The outcome is one of
    /// `Ok(Committed)`: durable · `Ok(AlreadyCommitted)`: this very write is there, untouched ·
    /// `Fenced` · `Conflict` · `CancelRequested`: of an intent, of the step that ends a run, and of its failure ·
    /// `Retry`, `Full`: nothing was written, nor will be a write that
    /// was submitted after it · `Unknown`: call [`Store::settle`].
    ///
    /// The transaction that ends a run tells its parent, by a letter about [`end_of`](hapax_core::mailbox::end_of) it;
    /// the one that cancels it asks for the cancel of its children.
    ///
    /// With [`Pace::Alone`] the store may write on the caller's thread before it answers: the ticket is ready then.
    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket>;

    /// Finds out, under the run's own lock, what became of a write whose answer was lost: as [`Store::submit`]'s
    /// outcome; `Retry`: it isn't there and may be submitted again.
    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written>;

    /// What names its database, as [`Database::identity`](crate::db::Database::identity) does; `None`: nobody else has
    /// transactions in it.
    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The databases that the store lies in, by their [`identity`](Store::identity).
    fn databases(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(self.identity().await?.into_iter().collect()) })
    }

    /// The statements that append rows within another's transaction in the same database, the fence first: what
    /// [`Store::submit`] would write, and [`Store::settle`] finds.
    fn within<'a>(&'a self, _append: &'a Append) -> Answer<'a, Vec<Statement>> {
        let nowhere = StoreError::Retry("this store writes in no transaction but its own".into());
        Box::pin(std::future::ready(Err(nowhere)))
    }

    /// The run, its latest checkpoint and the journal that builds on it, read in one snapshot and checked against
    /// their digests. The frontier's first page only; [`Store::frontier_page`] has the others. No chunks: nothing rests on
    /// them, and there may be more of them than fit into memory; [`Store::journal`] has them.
    fn load(&self, run: RunKey) -> Answer<'_, Loaded>;

    /// The checkpoint of one step, checked against its digest.
    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>>;

    /// The checkpoints from a step on that are kept, in order, each checked against its digest; at most `limit`, and fewer
    /// where states are large. Empty: there are no more.
    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>>;

    /// One page of a frontier ([`FRONTIER_PAGE`](hapax_core::limits::FRONTIER_PAGE) items), checked. Empty when
    /// there is no such page, step or run.
    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>>;

    /// Journal rows from a sequence number on, at most `limit`. Empty when there is no such run.
    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>>;

    /// The run's row.
    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>>;

    /// Runs, newest first. [`StoreError::Corrupt`] names a run whose row can't be read; with it in
    /// [`ListFilter::except`] the others can be listed all the same.
    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>>;

    /// Asks for a cancel. Durable when it answers; whoever holds the run sees it through [`Store::cancels`].
    /// [`StoreError::WrongStatus`] when the run is over.
    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()>;

    /// Puts a letter into a run's mailbox. Durable when it answers. A run that is parked until a letter of this subject
    /// comes is pending again with the same transaction. [`StoreError::WrongStatus`] when the run is over.
    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted>;

    /// The oldest letter of a subject that isn't taken and has a number above `after`.
    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>>;

    /// Whether [`Store::claim_ready`] would find something, and when to look again. Changes nothing, and on a server is
    /// one question without a transaction: what idle workers ask.
    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook>;

    /// What other processes say has changed, as soon as they say it. `None`: nobody says anything here.
    ///
    /// Only hints: any of them may be lost, so whoever listens looks by itself as well.
    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        None
    }

    /// Who holds the runs of a namespace, and how many wait for someone.
    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet>;

    /// Where the runs of a namespace stand. Its cost is bounded: it counts
    /// [`MAX_COUNTED`](hapax_core::limits::MAX_COUNTED) of each status at the most, in an index.
    fn census(&self, filter: CensusFilter) -> Answer<'_, Census>;

    /// Makes a failed run pending again, with fresh attempts and all of its time; one with concurrency keys takes its place
    /// in their queues again. [`StoreError::WrongStatus`] when it isn't failed; [`StoreError::NameTaken`] when another run
    /// lives under its singleton's name.
    fn retry(&self, run: RunKey) -> Answer<'_, ()>;

    /// Deletes a finished run whole: row, checkpoints, keys, journal, tags. [`StoreError::WrongStatus`] for a live
    /// run or one with unsent messages.
    fn delete(&self, run: RunKey) -> Answer<'_, ()>;

    /// Deletes finished runs by age and count, never a live one, a live one's child, or one with an unsent message.
    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport>;

    /// Encodes payloads anew that its codec would encode otherwise today, a bounded number of them in one transaction. What
    /// they say stays the same, and nobody who works on the runs is in its way. A store that encodes nothing has nothing to do.
    fn recode(&self, _: recode::From) -> Answer<'_, Recoded> {
        Box::pin(std::future::ready(Ok(Recoded::default())))
    }

    /// Counts the payloads under each key.
    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        Box::pin(std::future::ready(Ok(PayloadKeys::default())))
    }

    /// Brings large payloads to rest in the object store that it was given, a bounded number of them, and deletes objects to
    /// which no run refers. Nobody who works on the runs is in its way. A store without one has nothing to do.
    fn rest(&self, _: depot::From) -> Answer<'_, Rested> {
        Box::pin(std::future::ready(Ok(Rested::default())))
    }

    /// The messages that steps have written, until they are delivered.
    fn outbox(&self) -> &dyn Outbox;

    /// Runs that start by the clock, once for each time.
    fn schedules(&self) -> &dyn Schedules;

    /// How runs come from other stores, and go to them.
    fn house(&self) -> &dyn House;
    /// How many runs go at a time, how soon, and under which names.
    fn flow(&self) -> &dyn Flow;

    /// What this store promises here and now, read from what is really in force, and what each fact means.
    /// A store that can't tell says nothing.
    fn health(&self) -> Answer<'_, Vec<Fact>> {
        Box::pin(std::future::ready(Ok(vec![])))
    }

    /// The clock by which it decides, and by which its runs tell the time.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// What the store did since it was opened.
    fn stats(&self) -> StoreStats;

    /// Waits until every accepted write has its answer, and gives up what the claimant held at the OS.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// How whoever submits a write goes on.
///
/// ```
/// use hapax_store::{MemoryStore, Pace, Store};
/// # use hapax_core::commit::Written;
/// # use hapax_store::conformance::{Sample, sample::step};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// # let mut holder = Sample::run("order-42").hold(&store).await;
/// # let mut next = |state: &str| { let write = step(holder.next(state)); holder.passed(&write); Arc::new(write) };
/// let first = store.submit(next("reserved"), Pace::Ahead).await?; // does not wait
/// let second = store.submit(next("paid"), Pace::Alone).await?; // waits for this one, right below
/// assert_eq!(second.await?, Written::Committed);
/// assert_eq!(first.await?, Written::Committed, "it came first, so it is there as well");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// It doesn't wait for this write alone: others are queued with it, or come while it is on its way.
    Ahead,
    /// It waits for this very write, and knows of nobody else who has something to write. Two threads that hand
    /// such a write to and fro cost more than the write itself.
    Alone,
}

/// A run to be.
///
/// ```
/// use hapax_store::{Created, MemoryStore, NewRun, Store, conformance::Sample};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// let parent = Sample::run("order-42").build();
/// let child = NewRun { parent: Some(parent.key.run.clone()), ..Sample::run("payment-7").build() };
/// let key = child.key.clone();
/// store.create(parent).await?;
/// assert!(matches!(store.create(child).await?, Created::New(None)), "nobody has claimed it yet");
/// assert_eq!(store.run(key).await?.unwrap().parent.unwrap().as_str(), "order-42");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its name.
    pub key: RunKey,
    /// The graph's name.
    pub graph: Arc<str>,
    /// The graph's shape.
    pub fingerprint: Digest,
    /// Binds graph and input, to tell a repeated start from another one.
    pub input: Digest,
    /// Where it begins: step 0, unless it goes on from another run's.
    pub checkpoint: Checkpoint,
    /// For finding it again.
    pub tags: BTreeMap<String, String>,
    /// Claimed by its creator at once.
    pub claim: Option<Claimant>,
    /// The run, in the same namespace, that is told of its end and whose cancel is its own.
    pub parent: Option<RunId>,
    /// What is recorded already of the step that it begins with; numbered from 0.
    pub journal: Vec<JournalRow>,
    /// On which terms it starts.
    pub terms: Terms,
}

/// The answer to a start.
///
/// ```
/// use hapax_store::{Created, MemoryStore, Store, conformance::Sample};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// let run = Sample::run("order-42").build();
/// store.create(run.clone()).await?;
/// let Created::Exists(there) = store.create(run.clone()).await? else { unreachable!() };
/// assert_eq!(there.input, run.input, "the same start again, not another one under its name");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub enum Created {
    /// It is there now; the lease when it was claimed.
    New(Option<Lease>),
    /// The id was taken; nothing was changed.
    Exists(Box<RunRecord>),
}

/// Who claims, and for how long.
///
/// ```
/// use hapax_store::{Claimant, MemoryStore, Store, StoreError};
/// # use hapax_store::conformance::{Sample, sample::key};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// # let store = MemoryStore::shared();
/// # store.create(Sample::run("order-42").build()).await?;
/// let [ours, theirs] = ["engine-1", "engine-2"]
///     .map(|owner| Claimant { owner: owner.into(), ttl: Duration::from_secs(15) });
/// store.claim(key("order-42"), ours).await?;
/// let refused = store.claim(key("order-42"), theirs).await;
/// assert!(matches!(refused, Err(StoreError::Held { owner, .. }) if owner == "engine-1"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Claimant {
    /// The engine's name. On SQLite a store-wide lock file of that name proves that it lives.
    pub owner: Arc<str>,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
}

/// A run that is ours until the lease ends.
///
/// ```
/// use hapax_store::{Clock, MemoryStore, Store};
/// # use hapax_store::conformance::{Sample, sample::{claimant, key}};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let clock = Clock::manual();
/// let store = MemoryStore::with_clock(clock.clone());
/// # store.create(Sample::run("order-42").build()).await?;
/// # let claim = |owner| store.claim(key("order-42"), claimant(owner, Duration::from_secs(15)));
/// let first = claim("engine-1").await?;
/// clock.advance(Duration::from_secs(16)); // it hasn't renewed
/// let second = claim("engine-2").await?;
/// assert!(second.taken_over && second.epoch > first.epoch, "whatever engine-1 still writes is refused");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The fencing token.
    pub epoch: Epoch,
    /// Whether an earlier holder's lease had to be broken: a takeover.
    pub taken_over: bool,
}

/// The answer to a renewal.
///
/// ```
/// use hapax_store::{Clock, MemoryStore, Renewal, Store};
/// # use hapax_store::conformance::{Sample, sample::{claimant, key}};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let clock = Clock::manual();
/// # let store = MemoryStore::with_clock(clock.clone());
/// # store.create(Sample::run("order-42").build()).await?;
/// # let [ours, theirs] = ["engine-1", "engine-2"].map(|owner| claimant(owner, Duration::from_secs(15)));
/// let lease = store.claim(key("order-42"), ours.clone()).await?;
/// clock.advance(Duration::from_secs(16));
/// store.claim(key("order-42"), theirs).await?;
/// let renewed = store.renew(vec![(key("order-42"), lease.epoch)], ours).await?;
/// assert_eq!(renewed[0].1, Renewal::Lost, "stop at once: somebody else goes on");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours.
    Kept,
    /// Somebody else's, or gone.
    Lost,
}

/// Which runs a worker can execute.
///
/// ```
/// use hapax_store::{MemoryStore, ReadyFilter, Store};
/// # use hapax_core::key::sha256;
/// # use hapax_store::conformance::{Sample, sample::claimant};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store = MemoryStore::shared();
/// let run = Sample::run("order-42").build();
/// let filter = |shape| {
///     let namespace = run.key.namespace.clone();
///     ReadyFilter { namespace, graphs: vec![(run.graph.clone(), shape)], limit: 10 }
/// };
/// store.create(run.clone()).await?;
/// let record = store.run(run.key.clone()).await?.unwrap();
/// assert!(filter(run.fingerprint).admits(&record));
/// assert!(!filter(sha256(b"another shape")).admits(&record), "its code could not go on with it");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReadyFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Graphs by name, and the shapes of each that this worker's code can go on with.
    pub graphs: Vec<(Arc<str>, Digest)>,
    /// How many at the most.
    pub limit: usize,
}

impl ReadyFilter {
    /// Whether a run is one of these.
    pub fn admits(&self, record: &RunRecord) -> bool {
        record.key.namespace == self.namespace
            && self.graphs.iter().any(|(g, shape)| *g == record.graph && *shape == record.fingerprint)
    }
}

/// A run's row.
///
/// ```
/// use hapax_core::commit::Status;
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::key}};
/// # use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store: Arc<dyn Store> = MemoryStore::shared();
/// let mut holder = Sample::run("order-42").tag("customer", "42").hold(&store).await;
/// holder.commit(holder.last("paid")).await?;
/// let record = store.run(key("order-42")).await?.unwrap();
/// assert_eq!((record.step, record.status, record.owner), (1, Status::Succeeded, None));
/// assert_eq!(record.tags["customer"], "42");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Its name.
    pub key: RunKey,
    /// The graph's name.
    pub graph: Arc<str>,
    /// The graph's shape.
    pub fingerprint: Digest,
    /// Binds graph and input.
    pub input: Digest,
    /// Where it stands.
    pub status: Status,
    /// The latest committed step.
    pub step: u64,
    /// The digest of that step.
    pub digest: Digest,
    /// The fencing token of the latest claim.
    pub epoch: Epoch,
    /// Who holds it, if anyone does.
    pub owner: Option<String>,
    /// The next journal row's number.
    pub next_seq: u64,
    /// A cancel was requested.
    pub cancel_requested: bool,
    /// What it waits for while it is parked.
    pub wake: Wake,
    /// The run that started it.
    pub parent: Option<RunId>,
    /// The run's time used so far, in microseconds.
    pub used_us: u64,
    /// For finding it again.
    pub tags: BTreeMap<String, String>,
    /// On which terms it was started.
    pub terms: Terms,
    /// When it was created, in microseconds since 1970 by the store's clock.
    pub created_at_us: i64,
    /// When it last changed.
    pub updated_at_us: i64,
}

/// What a worker needs to go on.
///
/// ```
/// use hapax_core::commit::Write;
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::key}};
/// # use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store: Arc<dyn Store> = MemoryStore::shared();
/// let mut holder = Sample::run("order-42").hold(&store).await;
/// holder.commit(holder.next("reserved")).await?;
/// holder.write(Write::Append(holder.append(2))).await?;
/// let loaded = store.load(key("order-42")).await?;
/// assert_eq!((loaded.checkpoint.step, loaded.journal.len()), (1, 2));
/// assert!(loaded.journal.iter().all(|row| row.base == loaded.checkpoint.digest));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The run's row.
    pub record: RunRecord,
    /// The latest step.
    pub checkpoint: Checkpoint,
    /// The journal rows that build on it, in order, without chunks.
    pub journal: Vec<JournalRow>,
}

/// Which runs to list.
///
/// ```
/// use hapax_store::{ListFilter, MemoryStore, Store, conformance::Sample};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.create(Sample::run("order-1").tag("customer", "42").build()).await?;
/// store.create(Sample::run("order-2").tag("customer", "43").build()).await?;
/// let tags = [("customer".to_owned(), "42".to_owned())].into();
/// let found = store.list(ListFilter { tags, ..ListFilter::default() }).await?;
/// assert_eq!((found.len(), found[0].key.run.as_str()), (1, "order-1"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ListFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Only with all of these tags.
    pub tags: BTreeMap<String, String>,
    /// Only with one of these status words; empty: all.
    pub statuses: Vec<String>,
    /// Only of this graph.
    pub graph: Option<Arc<str>>,
    /// None of these, not even looked at: the damaged runs that are known already. `*`, by which an error names a run
    /// whose own name can't be read, stands for all of those.
    pub except: Vec<RunId>,
    /// How many at the most.
    pub limit: usize,
}

impl Default for ListFilter {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            tags: BTreeMap::new(),
            statuses: vec![],
            graph: None,
            except: vec![],
            limit: 1000,
        }
    }
}

impl ListFilter {
    /// All runs that can still go on: those that aren't over, and failed ones, which can be retried.
    pub fn in_flight() -> Self {
        let statuses = ["pending", "running", "waiting", "paused", "in_doubt", "failed"];
        Self { statuses: statuses.map(str::to_owned).to_vec(), limit: usize::MAX, ..Self::default() }
    }
}

/// What may be deleted.
///
/// ```
/// use hapax_store::{GcPolicy, MemoryStore, Store};
/// # use hapax_core::id::Namespace;
/// # use hapax_store::conformance::{Sample, sample::key};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// Sample::run("order-1").hold(&store).await.finish().await;
/// let namespace = Namespace::default();
/// let all = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 100, dry_run: true };
/// assert_eq!(store.gc(all.clone()).await?.deleted, [key("order-1")], "it would be deleted");
/// assert!(store.run(key("order-1")).await?.is_some(), "it is there still");
/// assert!(store.gc(GcPolicy { keep_newest: 1, ..all }).await?.deleted.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GcPolicy {
    /// The tenant.
    pub namespace: Namespace,
    /// Finished runs that last changed longer ago than this.
    pub older_than: Option<Duration>,
    /// Keep this many of the newest finished runs, whatever their age.
    pub keep_newest: usize,
    /// How many at the most in one call.
    pub limit: usize,
    /// Only tell what would be deleted.
    pub dry_run: bool,
}

/// What was deleted.
///
/// ```
/// use hapax_store::{GcPolicy, GcReport, MemoryStore, Store};
/// # use hapax_core::id::Namespace;
/// # use hapax_store::conformance::{Sample, sample::message};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// let mut holder = Sample::run("order-1").hold(&store).await;
/// holder.commit(holder.next_with("paid", 1, 0, vec![message("paid")])).await?;
/// holder.finish().await;
/// # let namespace = Namespace::default();
/// # let policy = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 100, dry_run: false };
/// let report = store.gc(policy).await?;
/// assert_eq!(report, GcReport { deleted: vec![], unsent: 1 }, "its message has not left yet");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcReport {
    /// The runs.
    pub deleted: Vec<RunKey>,
    /// Finished runs that stay because a message of theirs isn't sent yet.
    pub unsent: usize,
}

/// Counters since the store was opened. Batching is honest only when it is shown.
///
/// ```
/// use hapax_store::{MemoryStore, Store, StoreStats};
/// assert_eq!(MemoryStore::shared().stats(), StoreStats::default());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Steps that were committed.
    pub steps: u64,
    /// Writes of any kind that took effect.
    pub writes: u64,
    /// Physical transactions.
    pub transactions: u64,
    /// Commits that waited for the database's disk. SQLite syncs its log for each, and besides at its checkpoints; a server may
    /// serve several with one sync.
    pub syncs: u64,
}

/// The pending outcome of a write. Dropping it doesn't take the write back.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_core::commit::Written;
/// use hapax_store::Ticket;
/// let (answer, ticket) = Ticket::new();
/// answer.send(Ok(Written::Committed)).unwrap();
/// assert_eq!(ticket.await?, Written::Committed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ticket(oneshot::Receiver<Result<Written, StoreError>>);

impl Ticket {
    /// A ticket and the end that answers it.
    pub fn new() -> (oneshot::Sender<Result<Written, StoreError>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }

    /// A ticket that is answered already.
    pub fn ready(outcome: Result<Written, StoreError>) -> Self {
        let (sender, ticket) = Self::new();
        // The receiver is in our hands, so the send can't fail.
        let _ = sender.send(outcome);
        ticket
    }

    /// The answer, when it is there already.
    pub fn try_take(&mut self) -> Option<Result<Written, StoreError>> {
        match self.0.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(gone())),
        }
    }
}

impl Future for Ticket {
    type Output = Result<Written, StoreError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|answer| answer.unwrap_or_else(|_| Err(gone())))
    }
}

/// A writer that ended without an answer may have written.
fn gone() -> StoreError {
    StoreError::Unknown("the store's writer ended before it answered".into())
}
