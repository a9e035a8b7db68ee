//! A store that fails once, at a moment that a test picks.
//!
//! Invariant: a dead store stays dead and applies nothing more, as a dead process does. Enumerate the moment from 0
//! until [`Faulty::fired`] stays false, and every crash point between two calls has been tried.

mod flow;
mod house;
mod schedules;

use crate::{
    clock::Clock,
    depot::{self, Rested},
    error::StoreError,
    flow::Flow,
    outbox::{Backlog, Batch, Claim, ClaimFilter, Failure, Fate, Outbox, OutboxFilter, OutboxRecord},
    recode::{self, PayloadKeys, Recoded},
    schedules::Schedules,
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fact, Fleet, GcPolicy, GcReport, Hint,
        Lease, ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreStats,
        Ticket,
    },
};
use futures::future::{Either, select};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, Write, Written},
    frontier::WorkItem,
    id::{Namespace, RunKey},
    journal::JournalRow,
    mailbox::{Letter, NewLetter, Posted},
    outbox::Place,
};
use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{broadcast, watch};

/// What happens at the picked call.
///
/// ```
/// use hapax_store::{MemoryStore, Store, StoreError, conformance::Sample, faulty::{Fault, Faulty}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = Faulty::new(MemoryStore::shared(), 0, Fault::LoseReply);
/// let answer = store.create(Sample::run("order-42").build()).await;
/// assert!(matches!(answer, Err(StoreError::Unknown(_))), "it is there, but who knows?");
/// assert!(!store.is_dead() && store.applied().len() == 1);
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies before the call is applied.
    Before,
    /// The process dies after the call became durable, and never sees the answer.
    After,
    /// The call is applied, its answer is lost, and the process lives on.
    LoseReply,
}

/// What kind of call was applied.
///
/// ```
/// use hapax_store::{MemoryStore, Store, faulty::{Fault, Faulty, Kind}};
/// use hapax_store::conformance::{Sample, sample::claimant};
/// # use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = Faulty::new(MemoryStore::shared(), u64::MAX, Fault::Before);
/// let run = Sample::run("order-42").build();
/// let key = run.key.clone();
/// store.create(run).await?;
/// store.claim(key, claimant("engine-1", Duration::from_secs(30))).await?;
/// assert!(store.applied().iter().map(|applied| applied.kind).eq([Kind::Create, Kind::Claim]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A run was created.
    Create,
    /// A run was claimed.
    Claim,
    /// A step was committed.
    Step,
    /// Journal rows were written.
    Append,
    /// A status was changed.
    Status,
    /// A letter arrived.
    Letter,
    /// Messages were claimed, or marked as sent or failed.
    Outbox,
}

/// A call that took effect.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::Sample, faulty::{Fault, Faulty}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = Faulty::new(MemoryStore::shared(), u64::MAX, Fault::Before);
/// let run = Sample::run("order-42").build();
/// store.create(run.clone()).await?;
/// store.create(run).await?; // the id is taken: this one takes no effect
/// let [created] = &store.applied()[..] else { unreachable!() };
/// assert_eq!((created.run.to_string().as_str(), created.step), ("order-42", Some(0)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The run.
    pub run: RunKey,
    /// What was done.
    pub kind: Kind,
    /// The step that was committed, or that the rows build on.
    pub step: Option<u64>,
}

/// A store with one fault in it.
///
/// It counts, from 0, the calls that write, decide or load: `create`, `delete`, `claim`, `claim_ready`, `submit`, `settle`,
/// `load`, `post`, `letter`, the outbox's `claim`, `mark_sent` and `mark_failed`, the schedules' `fire`, and whatever of the house or of flow control changes something. All others pass uncounted while it lives.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::Sample, faulty::{Fault, Faulty}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = Faulty::new(MemoryStore::shared(), 0, Fault::After);
/// assert!(store.create(Sample::run("r").build()).await.is_err());
/// assert!(store.fired() && store.is_dead());
/// assert_eq!(store.applied().len(), 1, "the run is there all the same");
/// # }
/// ```
pub struct Faulty {
    inner: Arc<dyn Store>,
    at: u64,
    fault: Fault,
    calls: Arc<AtomicU64>,
    fired: Arc<AtomicBool>,
    dead: watch::Sender<bool>,
    log: Arc<Mutex<Log>>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

/// What others do while a caller is slow.
type Meanwhile = BoxFuture<'static, ()>;

/// Calls in the order in which they were made; a write's entry counts once its outcome is known.
#[derive(Debug, Default)]
struct Log(Vec<(Applied, bool)>);

/// What the plan says about a call.
enum Turn {
    Pass,
    Slow(Meanwhile),
    Fault(Fault),
}

impl Faulty {
    /// Wraps a store: its call number `at`, counted from 0, suffers the fault.
    pub fn new(inner: Arc<dyn Store>, at: u64, fault: Fault) -> Arc<Self> {
        let [one] = Self::several([inner], at, fault);
        one
    }

    /// Wraps the databases of one process: call number `at` of all calls to any of them suffers the fault, and the process
    /// dies for all of them.
    ///
    /// ```
    /// use hapax_store::{MemoryStore, Store, conformance::Sample, faulty::{Fault, Faulty}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let databases = [MemoryStore::shared() as std::sync::Arc<dyn Store>, MemoryStore::shared()];
    /// let [one, other] = Faulty::several(databases, 1, Fault::Before);
    /// assert!(one.create(Sample::run("r").build()).await.is_ok());
    /// assert!(other.create(Sample::run("r").build()).await.is_err() && one.is_dead());
    /// # }
    /// ```
    pub fn several<const N: usize>(inner: [Arc<dyn Store>; N], at: u64, fault: Fault) -> [Arc<Self>; N] {
        let (calls, fired, log) = (Arc::default(), Arc::default(), Arc::default());
        let dead = watch::Sender::new(false);
        inner.map(|inner| {
            let (calls, fired, dead) = (Arc::clone(&calls), Arc::clone(&fired), dead.clone());
            let (log, meanwhile) = (Arc::clone(&log), Mutex::default());
            Arc::new(Self { inner, at, fault, calls, fired, dead, log, meanwhile })
        })
    }

    /// Wraps a store whose caller is slow: call number `at` is applied, and answered only after something else has happened.
    ///
    /// ```
    /// use hapax_store::{Created, MemoryStore, Store, conformance::{Sample, sample::key}, faulty::Faulty};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), hapax_store::StoreError> {
    /// let store = MemoryStore::shared();
    /// let other = store.clone();
    /// let slow = Faulty::slow(store, 0, async move {
    ///     other.request_cancel(key("r")).await.unwrap();
    /// });
    /// assert!(matches!(slow.create(Sample::run("r").build()).await?, Created::New(_)));
    /// assert!(slow.run(key("r")).await?.unwrap().cancel_requested);
    /// # Ok(())
    /// # }
    /// ```
    pub fn slow(
        inner: Arc<dyn Store>,
        at: u64,
        meanwhile: impl Future<Output = ()> + Send + 'static,
    ) -> Arc<Self> {
        let slow = Self::new(inner, at, Fault::LoseReply);
        *lock(&slow.meanwhile) = Some(Box::pin(meanwhile));
        slow
    }

    /// Whether the picked call was reached.
    pub fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// How many calls were counted.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Whether the process is dead.
    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// Waits until the process is dead: the moment to drop the engine. Lasts for ever when it doesn't die.
    pub fn dead(&self) -> impl Future<Output = ()> + Send + 'static {
        let dead = self.dead.subscribe();
        async move { until_dead(dead).await }
    }

    /// What took effect, in the order of the calls; not what was there already.
    pub fn applied(&self) -> Vec<Applied> {
        self.log().0.iter().filter(|(_, took_effect)| *took_effect).map(|(call, _)| call.clone()).collect()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Counts a call and looks it up in the plan.
    fn turn(&self) -> Result<Turn, StoreError> {
        self.alive()?;
        if self.calls.fetch_add(1, Ordering::SeqCst) != self.at {
            return Ok(Turn::Pass);
        }
        self.fired.store(true, Ordering::SeqCst);
        Ok(lock(&self.meanwhile).take().map_or(Turn::Fault(self.fault), Turn::Slow))
    }

    fn alive(&self) -> Result<(), StoreError> {
        if self.is_dead() { Err(death()) } else { Ok(()) }
    }

    fn die(&self) -> StoreError {
        self.dead.send_replace(true);
        death()
    }

    /// Makes a counted call that answers when it is durable.
    async fn counted<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match self.turn()? {
            Turn::Pass => {
                let answer = call.await;
                self.alive()?;
                answer
            }
            Turn::Slow(meanwhile) => {
                let answer = call.await;
                meanwhile.await;
                answer
            }
            Turn::Fault(Fault::Before) => Err(self.die()),
            Turn::Fault(Fault::After) => {
                // The process dies whatever the answer would have been.
                let _ = call.await;
                Err(self.die())
            }
            Turn::Fault(Fault::LoseReply) => {
                let _ = call.await;
                Err(lost())
            }
        }
    }

    /// Makes a call that isn't counted.
    async fn uncounted<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.alive()?;
        let answer = call.await;
        self.alive()?;
        answer
    }

    fn note(&self, run: &RunKey, kind: Kind, step: Option<u64>) {
        self.log().0.push((Applied { run: run.clone(), kind, step }, true));
    }

    /// Hands a write on; its place in the log is taken before it can take effect.
    async fn hand_on(&self, write: Arc<Write>, pace: Pace) -> Result<(Ticket, usize), StoreError> {
        let place = self.log().open(&write);
        Ok((self.inner.submit(write, pace).await?, place))
    }

    async fn submit_counted(&self, write: Arc<Write>, pace: Pace) -> Result<Ticket, StoreError> {
        match self.turn()? {
            Turn::Pass => {
                let (ticket, place) = self.hand_on(write, pace).await?;
                Ok(self.forward(ticket, place))
            }
            Turn::Slow(meanwhile) => {
                let (ticket, place) = self.hand_on(write, pace).await?;
                let outcome = ticket.await;
                self.log().close(place, &outcome);
                meanwhile.await;
                Ok(Ticket::ready(outcome))
            }
            Turn::Fault(Fault::Before) => Err(self.die()),
            Turn::Fault(fault) => {
                if let Ok((ticket, place)) = self.hand_on(write, pace).await {
                    let outcome = ticket.await;
                    self.log().close(place, &outcome);
                }
                if fault == Fault::After { Err(self.die()) } else { Ok(Ticket::ready(Err(lost()))) }
            }
        }
    }

    /// A ticket that tells the outcome, unless the process dies first.
    fn forward(&self, mut ticket: Ticket, place: usize) -> Ticket {
        if let Some(outcome) = ticket.try_take() {
            self.log().close(place, &outcome);
            return Ticket::ready(self.alive().and(outcome));
        }
        let (sender, forwarded) = Ticket::new();
        let (log, dead) = (self.log.clone(), self.dead.subscribe());
        tokio::spawn(async move {
            // Nobody may be waiting for the answer any more, and that is fine.
            match select(ticket, pin!(until_dead(dead))).await {
                Either::Left((outcome, _)) => {
                    lock(&log).close(place, &outcome);
                    let _ = sender.send(outcome);
                }
                Either::Right(((), ticket)) => {
                    let _ = sender.send(Err(death()));
                    // What was handed on before the death may still take effect: the log must know.
                    let outcome = ticket.await;
                    lock(&log).close(place, &outcome);
                }
            }
        });
        forwarded
    }
}

impl Log {
    fn open(&mut self, write: &Write) -> usize {
        let (kind, step) = match write {
            Write::Step(commit) => (Kind::Step, Some(commit.checkpoint.step)),
            Write::Append(append) => (Kind::Append, append.rows.first().map(|row| row.step)),
            _ => (Kind::Status, None),
        };
        self.0.push((Applied { run: write.run().clone(), kind, step }, false));
        self.0.len() - 1
    }

    fn close(&mut self, place: usize, outcome: &Result<Written, StoreError>) {
        self.0[place].1 = matches!(outcome, Ok(Written::Committed));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no call panics while it holds a lock")
}

async fn until_dead(mut dead: watch::Receiver<bool>) {
    // A wrapper that was dropped alive never dies.
    if dead.wait_for(|dead| *dead).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn death() -> StoreError {
    StoreError::Retry("the process is dead".into())
}

fn lost() -> StoreError {
    StoreError::Unknown("the reply was lost on its way".into())
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, fault, calls) = (self.at, self.fault, self.calls());
        write!(f, "Faulty {{ at: {at}, fault: {fault:?}, calls: {calls}, dead: {} }}", self.is_dead())
    }
}

impl Store for Faulty {
    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        Box::pin(self.counted(async move {
            let (key, step, claimed) = (run.key.clone(), run.checkpoint.step, run.claim.is_some());
            let created = self.inner.create(run).await?;
            if matches!(created, Created::New(_)) {
                self.note(&key, Kind::Create, Some(step));
                if claimed {
                    self.note(&key, Kind::Claim, None);
                }
            }
            Ok(created)
        }))
    }

    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        Box::pin(self.counted(async move {
            let lease = self.inner.claim(run.clone(), by).await?;
            self.note(&run, Kind::Claim, None);
            Ok(lease)
        }))
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        Box::pin(self.counted(async move {
            let claimed = self.inner.claim_ready(filter, by).await?;
            claimed.iter().for_each(|(run, _)| self.note(run, Kind::Claim, None));
            Ok(claimed)
        }))
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        Box::pin(self.uncounted(async move { self.inner.renew(leases, by).await }))
    }

    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        Box::pin(self.counted(async move {
            let posted = self.inner.post(run.clone(), letter).await?;
            if posted == Posted::New {
                self.note(&run, Kind::Letter, None);
            }
            Ok(posted)
        }))
    }

    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>> {
        Box::pin(self.counted(async move { self.inner.letter(run, subject, after).await }))
    }

    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        Box::pin(self.uncounted(async move { self.inner.outlook(filter).await }))
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        self.inner.hints()
    }

    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        Box::pin(self.uncounted(async move { self.inner.fleet(namespace).await }))
    }

    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        Box::pin(self.uncounted(async move { self.inner.census(filter).await }))
    }

    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        Box::pin(self.uncounted(async move { self.inner.cancels(owner).await }))
    }

    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket> {
        Box::pin(self.submit_counted(write, pace))
    }

    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        Box::pin(self.counted(async move { self.inner.settle(write).await }))
    }

    fn load(&self, run: RunKey) -> Answer<'_, Loaded> {
        Box::pin(self.counted(async move { self.inner.load(run).await }))
    }

    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>> {
        Box::pin(self.uncounted(async move { self.inner.checkpoint(run, step).await }))
    }

    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>> {
        Box::pin(self.uncounted(async move { self.inner.checkpoints(run, from_step, limit).await }))
    }

    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>> {
        Box::pin(self.uncounted(async move { self.inner.frontier_page(run, step, page).await }))
    }

    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>> {
        Box::pin(self.uncounted(async move { self.inner.journal(run, from_seq, limit).await }))
    }

    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>> {
        Box::pin(self.uncounted(async move { self.inner.run(run).await }))
    }

    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        Box::pin(self.uncounted(async move { self.inner.list(filter).await }))
    }

    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.uncounted(async move { self.inner.request_cancel(run).await }))
    }

    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.uncounted(async move { self.inner.retry(run).await }))
    }

    fn delete(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.delete(run).await }))
    }

    fn recode(&self, from: recode::From) -> Answer<'_, Recoded> {
        Box::pin(self.uncounted(async move { self.inner.recode(from).await }))
    }

    fn rest(&self, from: depot::From) -> Answer<'_, Rested> {
        Box::pin(self.uncounted(async move { self.inner.rest(from).await }))
    }

    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        Box::pin(self.uncounted(async move { self.inner.payload_keys().await }))
    }

    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        Box::pin(self.uncounted(async move { self.inner.gc(policy).await }))
    }

    fn outbox(&self) -> &dyn Outbox {
        self
    }

    fn house(&self) -> &dyn crate::house::House {
        self
    }

    fn schedules(&self) -> &dyn Schedules {
        self
    }

    fn flow(&self) -> &dyn Flow {
        self
    }

    fn health(&self) -> Answer<'_, Vec<Fact>> {
        self.inner.health()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        // A dead process closes nothing.
        if self.is_dead() { Box::pin(std::future::ready(())) } else { self.inner.close() }
    }
}

impl Outbox for Faulty {
    fn claim(&self, filter: ClaimFilter, by: Claimant) -> Answer<'_, Vec<Batch>> {
        Box::pin(self.counted(async move {
            let batches = self.inner.outbox().claim(filter, by).await?;
            batches.iter().for_each(|batch| self.note(&batch.claim.channel.run, Kind::Outbox, None));
            Ok(batches)
        }))
    }

    fn mark_sent(&self, claim: Claim, sent: Vec<Place>, keep: Option<Duration>) -> Answer<'_, ()> {
        Box::pin(self.counted(async move {
            let run = claim.channel.run.clone();
            self.inner.outbox().mark_sent(claim, sent, keep).await?;
            self.note(&run, Kind::Outbox, None);
            Ok(())
        }))
    }

    fn mark_failed(&self, claim: Claim, place: Place, failure: Failure) -> Answer<'_, Fate> {
        Box::pin(self.counted(async move {
            let run = claim.channel.run.clone();
            let fate = self.inner.outbox().mark_failed(claim, place, failure).await?;
            self.note(&run, Kind::Outbox, None);
            Ok(fate)
        }))
    }

    fn list(&self, filter: OutboxFilter) -> Answer<'_, Vec<OutboxRecord>> {
        Box::pin(self.uncounted(async move { self.inner.outbox().list(filter).await }))
    }

    fn backlog(&self, namespace: Namespace) -> Answer<'_, Backlog> {
        Box::pin(self.uncounted(async move { self.inner.outbox().backlog(namespace).await }))
    }

    fn retry_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(self.uncounted(async move { self.inner.outbox().retry_dead(run).await }))
    }

    fn drop_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(self.uncounted(async move { self.inner.outbox().drop_dead(run).await }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, conformance::Sample};

    async fn pending(faulty: &Faulty) -> (tokio::sync::oneshot::Sender<Result<Written, StoreError>>, Ticket) {
        let store: Arc<dyn Store> = MemoryStore::shared();
        let holder = Sample::run("r").hold(&store).await;
        let place = faulty.log().open(&Write::Append(holder.append(1)));
        let (sender, ticket) = Ticket::new();
        (sender, faulty.forward(ticket, place))
    }

    #[tokio::test]
    async fn a_late_answer_is_told_and_logged() {
        let faulty = Faulty::new(MemoryStore::shared(), 0, Fault::Before);
        let (sender, ticket) = pending(&faulty).await;
        assert_eq!(faulty.applied(), []);
        sender.send(Ok(Written::Committed)).expect("somebody waits");
        assert_eq!(ticket.await.expect("alive"), Written::Committed);
        assert_eq!(faulty.applied().len(), 1);
    }

    #[tokio::test]
    async fn whoever_waits_for_a_ticket_learns_of_the_death() {
        let faulty = Faulty::new(MemoryStore::shared(), 0, Fault::Before);
        let (sender, ticket) = pending(&faulty).await;
        faulty.die();
        let refused = ticket.await.expect_err("dead");
        assert!(refused.to_string().contains("the process is dead"), "{refused}");
        sender.send(Ok(Written::Committed)).expect("the log still listens");
        while faulty.applied().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
