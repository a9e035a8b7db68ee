//! A store that is watched, delayed, frozen or troubled on its way to the real one.
//!
//! Invariant: a write is noted in the world's log as applied after the store said so, and before the engine hears
//! of it. What lies in the queue of a lagging probe is lost when its engine dies, as the memory of a process is.

use crate::world::{Event, World, lock};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, Write, Written},
    frontier::WorkItem,
    id::{Namespace, RunKey},
    journal::JournalRow,
    mailbox::{Letter, NewLetter, Posted},
};
use hapax_store::{
    Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fleet, GcPolicy, GcReport, Lease, ListFilter,
    Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreError, StoreStats, Ticket,
    depot::{self, Rested},
    flow::Flow,
    house::House,
    outbox::Outbox,
    recode::{self, PayloadKeys, Recoded},
    schedules::Schedules,
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, oneshot, watch};

type Reply = oneshot::Sender<Result<Written, StoreError>>;

/// What a probe does to the calls that pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Hands them on.
    #[default]
    Direct,
    /// Accepts writes at once and applies them, one after the other, so many turns of the scheduler later.
    Lagging(u32),
}

/// What goes wrong at one call, besides the faults of [`Faulty`](hapax_store::faulty::Faulty).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A write is refused: nothing was written.
    Refused,
    /// A write is lost on its way, and nobody knows.
    Vanished,
    /// A read fails.
    Unread,
    /// Nothing passes from this call on, until the probe is thawed.
    FrozenBefore,
    /// This call is applied; its answer, and whatever follows, waits until the probe is thawed.
    FrozenAfter,
}

/// When it goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// At this call, counted from 0.
    Call(usize),
    /// At the commit of this step.
    Step(u64),
}

/// The store under watch.
pub struct Probe {
    inner: Arc<dyn Store>,
    world: Arc<World>,
    life: u32,
    mode: Mode,
    trouble: Option<(Moment, Trouble)>,
    calls: AtomicUsize,
    busy: Arc<AtomicUsize>,
    granted: AtomicUsize,
    fired: AtomicBool,
    stopped: AtomicBool,
    queue: Mutex<VecDeque<(Arc<Write>, Reply)>>,
    answers: Mutex<VecDeque<Pending>>,
    forwarding: Arc<AtomicUsize>,
    queued: Notify,
    frozen: watch::Sender<bool>,
}

/// A write whose answer is to be handed on.
struct Pending {
    write: Arc<Write>,
    ticket: Ticket,
    reply: Reply,
    trouble: Option<Trouble>,
    waiting: (Busy, Busy),
}

/// Counts a call in, and out again even when it is dropped.
struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How a write ends before it reaches the store.
fn intercept(trouble: Option<Trouble>) -> Option<StoreError> {
    match trouble {
        Some(Trouble::Refused) => Some(StoreError::Retry("nothing was written".into())),
        Some(Trouble::Vanished) => Some(StoreError::Unknown("no answer came".into())),
        _ => None,
    }
}

impl Probe {
    /// Watches a store for one life of an engine.
    pub fn new(
        inner: Arc<dyn Store>,
        world: Arc<World>,
        life: u32,
        mode: Mode,
        trouble: Option<(Moment, Trouble)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            world,
            life,
            mode,
            trouble,
            calls: AtomicUsize::new(0),
            busy: Arc::default(),
            granted: AtomicUsize::new(0),
            fired: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            queue: Mutex::default(),
            answers: Mutex::default(),
            forwarding: Arc::default(),
            queued: Notify::new(),
            frozen: watch::Sender::new(false),
        })
    }

    /// Whether the troubled call was reached.
    pub fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// Whether no call is on its way.
    pub fn idle(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
    }

    /// Whether a run was granted to this life's engine, which heard of it unless the answer was lost.
    pub fn granted(&self) -> bool {
        self.granted.load(Ordering::SeqCst) > 0
    }

    fn grant(&self, runs: usize) {
        self.granted.fetch_add(runs, Ordering::SeqCst);
    }

    /// Lets everything pass again.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Waits until nothing is on its way to the disk. What still lies in the queue never gets there.
    pub async fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        while !self.idle() {
            tokio::task::yield_now().await;
        }
    }

    /// Ends the lease of whoever holds the run, as if its time had passed.
    pub async fn expire(&self, run: &RunKey) {
        let renew = async |epoch, owner: String| {
            let by = Claimant { owner: owner.into(), ttl: Duration::ZERO };
            self.inner.renew(vec![(run.clone(), epoch)], by).await.expect("the store itself is well");
        };
        // A renewal that finds nothing waits for its turn behind everything that is still in the store's queue.
        renew(Epoch { counter: 0, nonce: 0 }, "nobody".to_owned()).await;
        let record = self.inner.run(run.clone()).await.expect("the store itself is well");
        if let Some((epoch, owner)) = record.and_then(|record| Some((record.epoch, record.owner?))) {
            renew(epoch, owner).await;
        }
    }

    /// Counts a call; answers what goes wrong with it.
    async fn enter(&self, write: Option<&Write>) -> Option<Trouble> {
        let call = Moment::Call(self.calls.fetch_add(1, Ordering::SeqCst));
        let step = match write {
            Some(Write::Step(step)) => Some(Moment::Step(step.checkpoint.step)),
            _ => None,
        };
        let now = |at: Moment| at == call || Some(at) == step;
        let trouble = self.trouble.filter(|(at, _)| now(*at)).map(|(_, trouble)| trouble);
        if let Some(trouble) = trouble {
            self.fired.store(true, Ordering::SeqCst);
            if trouble == Trouble::FrozenBefore {
                self.frozen.send_replace(true);
            }
        }
        self.thawed().await;
        trouble
    }

    async fn thawed(&self) {
        // The sender lives as long as the probe, so this can't fail.
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    fn freeze_after(&self, trouble: Option<Trouble>) {
        if trouble == Some(Trouble::FrozenAfter) {
            self.frozen.send_replace(true);
        }
    }

    async fn leave(&self, trouble: Option<Trouble>) {
        self.freeze_after(trouble);
        self.thawed().await;
    }

    /// A counted call that isn't a write.
    async fn pass<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let trouble = self.enter(None).await;
        if trouble == Some(Trouble::Unread) {
            return Err(StoreError::Retry("the answer can't be read".into()));
        }
        let answer = {
            let _busy = Busy::new(&self.busy);
            call.await
        };
        self.leave(trouble).await;
        answer
    }

    /// Applies a write and notes it.
    async fn apply(&self, write: &Arc<Write>) -> Result<Written, StoreError> {
        let _busy = Busy::new(&self.busy);
        let outcome = match self.inner.submit(write.clone(), Pace::Alone).await {
            Ok(ticket) => ticket.await,
            Err(error) => Err(error),
        };
        self.noted(write, &outcome);
        outcome
    }

    fn noted(&self, write: &Write, outcome: &Result<Written, StoreError>) {
        match outcome {
            Ok(Written::Committed) => self.world.applied(self.life, write),
            Err(StoreError::Fenced { .. }) => self.world.note(self.life, Event::Fenced),
            _ => {}
        }
    }

    async fn submit_directly(&self, write: Arc<Write>, pace: Pace) -> Result<Ticket, StoreError> {
        let trouble = self.enter(Some(&write)).await;
        if let Some(error) = intercept(trouble) {
            return Ok(Ticket::ready(Err(error)));
        }
        let busy = Busy::new(&self.busy);
        let mut ticket = self.inner.submit(write.clone(), pace).await?;
        let alone = self.forwarding.load(Ordering::SeqCst) == 0;
        if let Some(outcome) = alone.then(|| ticket.try_take()).flatten() {
            self.noted(&write, &outcome);
            drop(busy);
            self.leave(trouble).await;
            return Ok(Ticket::ready(outcome));
        }
        let (reply, forwarded) = Ticket::new();
        let waiting = (Busy::new(&self.forwarding), busy);
        lock(&self.answers).push_back(Pending { write, ticket, reply, trouble, waiting });
        self.queued.notify_one();
        Ok(forwarded)
    }

    /// What the engine's own runtime must run beside it, to die with it.
    pub async fn pump(self: Arc<Self>) {
        match self.mode {
            Mode::Direct => self.forward().await,
            Mode::Lagging(turns) => self.apply_late(turns).await,
        }
    }

    /// Hands answers on, in the order of their writes, so that the log has that order too.
    async fn forward(self: Arc<Self>) {
        loop {
            let Some(pending) = lock(&self.answers).pop_front() else {
                self.queued.notified().await;
                continue;
            };
            let Pending { write, ticket, reply, trouble, waiting } = pending;
            let outcome = ticket.await;
            self.noted(&write, &outcome);
            drop(waiting);
            self.freeze_after(trouble);
            let probe = self.clone();
            tokio::spawn(async move {
                probe.thawed().await;
                // Whoever asked may be gone.
                let _ = reply.send(outcome);
            });
        }
    }

    /// Applies what lies in the queue, one write after the other.
    async fn apply_late(&self, turns: u32) {
        loop {
            if lock(&self.queue).is_empty() {
                self.queued.notified().await;
            }
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let Some((write, reply)) = lock(&self.queue).pop_front() else { continue };
            let trouble = self.enter(Some(&write)).await;
            let outcome = match intercept(trouble) {
                Some(error) => Err(error),
                None => self.apply(&write).await,
            };
            self.leave(trouble).await;
            // Whoever asked may be gone.
            let _ = reply.send(outcome);
        }
    }
}

/// A [`Probe`] as a store.
pub struct Probed(pub Arc<Probe>);

impl Store for Probed {
    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        Box::pin(self.0.pass(async move {
            let created = self.0.inner.create(run).await?;
            self.0.grant(usize::from(matches!(created, Created::New(Some(_)))));
            Ok(created)
        }))
    }

    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        Box::pin(self.0.pass(async move { self.0.inner.claim(run, by).await }))
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        Box::pin(self.0.pass(async move {
            let claimed = self.0.inner.claim_ready(filter, by).await?;
            self.0.grant(claimed.len());
            Ok(claimed)
        }))
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        Box::pin(self.0.pass(async move { self.0.inner.renew(leases, by).await }))
    }

    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        Box::pin(self.0.pass(async move { self.0.inner.cancels(owner).await }))
    }

    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket> {
        if self.0.mode == Mode::Direct {
            return Box::pin(self.0.submit_directly(write, pace));
        }
        Box::pin(async move {
            let (reply, ticket) = Ticket::new();
            lock(&self.0.queue).push_back((write, reply));
            self.0.queued.notify_one();
            Ok(ticket)
        })
    }

    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        Box::pin(self.0.pass(async move { self.0.inner.post(run, letter).await }))
    }

    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>> {
        Box::pin(self.0.pass(async move { self.0.inner.letter(run, subject, after).await }))
    }

    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        Box::pin(async move { self.0.inner.outlook(filter).await })
    }

    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        Box::pin(async move { self.0.inner.fleet(namespace).await })
    }

    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        Box::pin(async move { self.0.inner.census(filter).await })
    }

    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        Box::pin(self.0.pass(async move { self.0.inner.settle(write).await }))
    }

    fn load(&self, run: RunKey) -> Answer<'_, Loaded> {
        Box::pin(self.0.pass(async move { self.0.inner.load(run).await }))
    }

    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>> {
        Box::pin(self.0.pass(async move { self.0.inner.checkpoint(run, step).await }))
    }

    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>> {
        Box::pin(self.0.pass(async move { self.0.inner.checkpoints(run, from_step, limit).await }))
    }

    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>> {
        Box::pin(self.0.pass(async move { self.0.inner.frontier_page(run, step, page).await }))
    }

    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>> {
        Box::pin(self.0.pass(async move { self.0.inner.journal(run, from_seq, limit).await }))
    }

    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>> {
        Box::pin(self.0.pass(async move { self.0.inner.run(run).await }))
    }

    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        Box::pin(self.0.pass(async move { self.0.inner.list(filter).await }))
    }

    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.0.pass(async move { self.0.inner.request_cancel(run).await }))
    }

    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.0.pass(async move { self.0.inner.retry(run).await }))
    }

    fn delete(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.0.pass(async move { self.0.inner.delete(run).await }))
    }

    fn recode(&self, from: recode::From) -> Answer<'_, Recoded> {
        Box::pin(self.0.pass(async move { self.0.inner.recode(from).await }))
    }

    fn rest(&self, from: depot::From) -> Answer<'_, Rested> {
        Box::pin(self.0.pass(async move { self.0.inner.rest(from).await }))
    }

    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        Box::pin(self.0.pass(async move { self.0.inner.payload_keys().await }))
    }

    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        Box::pin(self.0.pass(async move { self.0.inner.gc(policy).await }))
    }

    fn outbox(&self) -> &dyn Outbox {
        self.0.inner.outbox()
    }

    fn house(&self) -> &dyn House {
        self.0.inner.house()
    }

    fn schedules(&self) -> &dyn Schedules {
        self.0.inner.schedules()
    }

    fn flow(&self) -> &dyn Flow {
        self.0.inner.flow()
    }

    fn stats(&self) -> StoreStats {
        self.0.inner.stats()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        // The store outlives the engines of a test.
        Box::pin(std::future::ready(()))
    }
}
