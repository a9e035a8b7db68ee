//! What all runs of an engine share: the store, the limits, who holds what; and the loop that finds work.
//!
//! Invariant: a run is in `held` from its claim to its end, so that its lease is renewed and its cancel heard.

use crate::{
    Options, clock,
    drive::Claim,
    error::Error,
    gate::{Gate, Halt, lock},
    handle::LOOK,
    metrics::{Counters, Metrics},
    observe::{Event, Observer},
    outline::GraphOutline,
    replay::{Replay, Source},
    secrets::Secrets,
    testing::Script,
    trail::Trail,
    transaction::{Databases, Markers},
};
use futures::future::BoxFuture;
use hapax_core::{
    canary,
    commit::{PausedBy, Status, Wake},
    id::{Namespace, RunKey},
    key::Digest,
    order::PathHash,
    rng::Rng,
    state::StateShape,
    trace::{SpanId, TraceId},
};
use hapax_store::{Claimant, Clock, Hint, Lease, NewRun, ReadyFilter, RunRecord, Store, StoreError};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{
    Notify, OwnedSemaphorePermit, Semaphore,
    broadcast::{Receiver, error::RecvError},
    watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How a run left this engine.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// It succeeded with this state, of this version.
    Succeeded(Arc<[u8]>, u32),
    /// It failed or was cancelled.
    Over(Status),
    /// It waits, and nothing of it is left here.
    Parked(Status),
    /// It is somebody else's now.
    Elsewhere,
    /// It can go on: the engine shuts down, parked it, or gave up on the store.
    Stopped(Option<Arc<StoreError>>),
}

/// A graph's code without its types, so that one engine can hold many.
pub(crate) trait Drive: Send + Sync {
    fn drive(self: Arc<Self>, shared: Arc<Shared>, claim: Claim) -> BoxFuture<'static, End>;
    /// The shapes whose runs it can execute.
    fn fingerprints(&self) -> Vec<Digest>;
    /// A run of it that isn't there yet.
    fn new_run(&self, key: RunKey, state: Vec<u8>, state_version: u32, seed: Option<u64>) -> NewRun;
    /// Makes a run again from its record.
    fn replay<'r>(
        &'r self,
        source: Source,
        options: &'r Options,
        secrets: &'r Secrets,
        into: &'r mut Replay,
    ) -> BoxFuture<'r, Result<(), Error>>;
    /// Whether a state is one of this graph's.
    fn check_state(&self, json: &[u8], version: u32) -> Result<(), StateShape>;
    /// The state that a run begins with, and its version, from what was written down of it.
    #[cfg(feature = "schedules")]
    fn begin(&self, json: &[u8], version: Option<u32>) -> Result<(Vec<u8>, u32), StateShape>;
    /// The graph's shape, for people and drawings.
    fn outline(&self) -> GraphOutline;
}

/// A registered graph: its name and its code.
type Registered = (Arc<str>, Arc<dyn Drive>);

/// A run in this engine's hands.
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) gate: Arc<Gate>,
    pub(crate) end: watch::Receiver<Option<End>>,
}

/// What all runs of an engine share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    pub(crate) owner: Arc<str>,
    pub(crate) observer: Observer,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
    /// The user's own, for transactions.
    pub(crate) databases: Databases,
    /// What transactions have left in them.
    pub(crate) markers: Markers,
    /// In a test: what answers instead of the outside.
    pub(crate) script: Option<Arc<Script>>,
    /// The agents that its runs use.
    #[cfg(feature = "agents")]
    pub(crate) agents: crate::agent::Adopted,
    pub(crate) drain: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Told when a step with messages is durable.
    pub(crate) mail: Arc<watch::Sender<()>>,
    /// Told when a chunk is on its way to the disk.
    pub(crate) streamed: watch::Sender<()>,
    /// Told when a schedule is added or goes on.
    #[cfg(feature = "schedules")]
    pub(crate) scheduled: watch::Sender<()>,
    /// Nobody holds the engine any more.
    deserted: CancellationToken,
    /// It looks for work.
    pub(crate) hired: CancellationToken,
    /// What became of the runs that left it.
    pub(crate) tally: Tally,
    slots: Arc<Semaphore>,
    /// Cloned into each run's gate, so that a run can tell whether it is alone.
    crew: Arc<()>,
    held: Mutex<HashMap<RunKey, Held>>,
    /// Runs that this engine gave up because of the store, and why, until it takes them up again.
    given_up: Mutex<HashMap<RunKey, Arc<StoreError>>>,
    /// Registered graphs by name; several shapes of one may live side by side.
    flows: Mutex<Vec<Registered>>,
    work: Notify,
    /// A run was cancelled, and with it its children.
    cancelled: Notify,
    /// Something was left in the store because there was no room for it.
    crowded: AtomicBool,
    /// A run with a key or a name was seen, and who waits to hear so.
    pub(crate) controls_flow: AtomicBool,
    pub(crate) flow_seen: Notify,
}

/// How many runs left an engine, by how they did.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) finished: AtomicU64,
    pub(crate) handed_over: AtomicU64,
    pub(crate) lost: AtomicU64,
}

impl Tally {
    fn count(&self, end: &End) {
        let counter = match end {
            End::Succeeded(..) | End::Over(_) => &self.finished,
            End::Stopped(None) => &self.handed_over,
            End::Elsewhere | End::Stopped(Some(_)) => &self.lost,
            End::Parked(_) => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Characters of an engine's name that are kept.
const LONGEST_NAME: usize = 100;

/// The name under which an engine claims: for people, and like no other's.
fn owner(options: &Options) -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = options.name.clone().unwrap_or_else(|| format!("{}:{}", host(), std::process::id()));
    let shown: String = name.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
    let unique = uuid::Uuid::new_v4().simple().to_string();
    format!("{shown}:{}", &unique[..12])
}

/// A run that was claimed but not started yet: its end is announced even if it never starts.
pub(crate) struct Taken {
    pub(crate) claim: Claim,
    end: watch::Sender<Option<End>>,
}

impl Shared {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: Options,
        databases: Databases,
        script: Option<Arc<Script>>,
    ) -> Arc<Self> {
        let hired = CancellationToken::new();
        if options.finds_work {
            hired.cancel();
        }
        Arc::new(Self {
            clock: store.clock(),
            store,
            owner: owner(&options).into(),
            observer: Observer::default(),
            counters: Arc::new(Counters::new(options.metrics)),
            databases,
            markers: Markers::default(),
            script,
            #[cfg(feature = "agents")]
            agents: crate::agent::Adopted::default(),
            drain: CancellationToken::new(),
            tasks: TaskTracker::new(),
            mail: Arc::default(),
            streamed: watch::Sender::default(),
            #[cfg(feature = "schedules")]
            scheduled: watch::Sender::default(),
            deserted: CancellationToken::new(),
            hired,
            tally: Tally::default(),
            slots: Arc::new(Semaphore::new(options.max_active_runs.max(1))),
            crew: Arc::default(),
            held: Mutex::default(),
            given_up: Mutex::default(),
            flows: Mutex::default(),
            work: Notify::new(),
            cancelled: Notify::new(),
            crowded: AtomicBool::new(false),
            controls_flow: AtomicBool::new(false),
            flow_seen: Notify::new(),
            options,
        })
    }

    pub(crate) fn claimant(&self) -> Claimant {
        Claimant { owner: self.owner.clone(), ttl: self.options.lease_ttl }
    }

    pub(crate) fn add_flow(&self, graph: Arc<str>, flow: Arc<dyn Drive>) {
        let outline = flow.outline();
        self.counters.know(&graph, outline.nodes.iter().map(|node| node.id.as_str()));
        lock(&self.flows).push((graph, flow));
    }

    /// The code for a run: of its own shape, else of one that was declared compatible, else at least of that name; the
    /// latest registered.
    pub(crate) fn flow(&self, graph: &str, fingerprint: Digest) -> Option<Arc<dyn Drive>> {
        let flows = lock(&self.flows);
        let named = || flows.iter().rev().filter(|(name, _)| **name == *graph).map(|(_, flow)| flow);
        let own = named().find(|flow| flow.fingerprints().last() == Some(&fingerprint));
        let able = || named().find(|flow| flow.fingerprints().contains(&fingerprint));
        own.or_else(able).or_else(|| named().next()).cloned()
    }

    /// The runs whose code is registered here.
    pub(crate) fn ready(&self, limit: usize) -> ReadyFilter {
        let flows = lock(&self.flows);
        let shapes = flows.iter().flat_map(|(name, flow)| {
            flow.fingerprints().into_iter().map(|fingerprint| (name.clone(), fingerprint)).collect::<Vec<_>>()
        });
        ReadyFilter { namespace: self.options.namespace.clone(), graphs: shapes.collect(), limit }
    }

    /// The code for new runs of a graph: the latest registered.
    pub(crate) fn latest(&self, graph: &str) -> Option<Arc<dyn Drive>> {
        let flows = lock(&self.flows);
        flows.iter().rev().find(|(name, _)| **name == *graph).map(|(_, flow)| flow.clone())
    }

    /// All registered graphs, by name.
    pub(crate) fn outlines(&self) -> Vec<GraphOutline> {
        let mut outlines: Vec<_> = lock(&self.flows).iter().map(|(_, flow)| flow.outline()).collect();
        outlines.sort_by(|a, b| a.name.cmp(&b.name));
        outlines
    }

    /// The last handle is gone: no new work is taken.
    pub(crate) fn desert(&self) {
        self.tasks.close();
        self.deserted.cancel();
    }

    /// Waits until nobody holds the engine and the runs in its hands are over.
    pub(crate) async fn over(&self) {
        self.deserted.cancelled().await;
        self.tasks.wait().await;
    }

    /// Whether no new work is taken any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.drain.is_cancelled() || self.deserted.is_cancelled()
    }

    /// Resolves when no new work is taken any more.
    pub(crate) async fn closing(&self) {
        tokio::select! {
            () = self.drain.cancelled() => {}
            () = self.deserted.cancelled() => {}
        }
    }

    /// Wakes the loop that looks for work.
    pub(crate) fn look_for_work(&self) {
        self.work.notify_one();
    }

    /// Resolves when a run was cancelled since the last time.
    pub(crate) async fn cancelled_one(&self) {
        self.cancelled.notified().await;
    }

    /// Waits until what a run in this engine's hands has written so far is durable.
    pub(crate) async fn flushed(&self, run: &RunKey) {
        let gate = lock(&self.held).get(run).map(|held| held.gate.clone());
        if let Some(gate) = gate {
            // Why it can't be is told by the run itself.
            let _ = gate.flush().await;
        }
    }

    /// Follows a run that is in this engine's hands.
    pub(crate) fn watch(&self, run: &RunKey) -> Option<watch::Receiver<Option<End>>> {
        lock(&self.held).get(run).map(|held| held.end.clone())
    }

    /// Waits until a run left this engine's hands, and tells how. `None`: it isn't there.
    pub(crate) async fn left(&self, run: &RunKey) -> Option<End> {
        let mut watch = self.watch(run)?;
        let end = watch.wait_for(Option::is_some).await;
        end.ok().and_then(|end| end.clone())
    }

    /// Why this engine gave a run up, if it did and hasn't taken it up since.
    pub(crate) fn given_up(&self, run: &RunKey) -> Option<Arc<StoreError>> {
        lock(&self.given_up).get(run).cloned()
    }

    /// All runs in this engine's hands.
    pub(crate) fn holding(&self) -> Vec<(RunKey, Lease)> {
        lock(&self.held).iter().map(|(run, held)| (run.clone(), held.lease)).collect()
    }

    /// Stops a run that is in this engine's hands.
    pub(crate) fn stop(&self, run: &RunKey, halt: Halt) -> bool {
        let held = lock(&self.held);
        held.get(run).map(|held| held.gate.shut(halt)).is_some()
    }

    /// A run's lease was renewed, asked for then.
    pub(crate) fn renewed(&self, run: &RunKey, asked: Duration) {
        if let Some(held) = lock(&self.held).get(run) {
            held.gate.leased(asked, self.options.lease_ttl);
        }
    }

    /// Claims a run, unless it is over, or waits, or came into our hands meanwhile. A lease of our own that nothing executes
    /// under any more, because the store failed when the run was given up, is waited for.
    pub(crate) async fn claim_back(&self, key: RunKey) -> Result<Option<Taken>, StoreError> {
        loop {
            let asked = clock::since_boot();
            match self.store.claim(key.clone(), self.claimant()).await {
                Ok(lease) => return Ok(Some(self.take(key, lease, asked))),
                Err(StoreError::WrongStatus { status, .. })
                    if (status.is_final() || matches!(*status, Status::Waiting { .. }))
                        && !canary::on("resume_refused") =>
                {
                    return Ok(None);
                }
                Err(StoreError::Held { owner, left_ms, .. }) if *owner == *self.owner => {
                    if self.watch(&key).is_some() && !canary::on("resume_refused") {
                        return Ok(None);
                    }
                    tokio::time::sleep(Duration::from_millis(left_ms).min(LOOK)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a freshly claimed run into this engine's hands. Its lease lasts from when it was asked for: the answer may have been
    /// on its way for longer than that.
    pub(crate) fn take(&self, key: RunKey, lease: Lease, asked: Duration) -> Taken {
        let Options { store_patience, .. } = self.options;
        let (store, mail, crew) = (self.store.clone(), self.mail.clone(), self.crew.clone());
        let (observer, counters, clock) = (self.observer.clone(), self.counters.clone(), self.clock.clone());
        let trail = Trail::new(observer, counters, clock, key.clone(), lease.epoch.counter);
        let gate = Gate::new(store, key.clone(), lease.epoch, store_patience, trail, mail, crew);
        let asked = if canary::on("leased_when_heard") { clock::since_boot() } else { asked };
        gate.leased(asked, self.options.lease_ttl);
        let (end, ended) = watch::channel(None);
        lock(&self.given_up).remove(&key);
        let held = Held { lease, gate: gate.clone(), end: ended };
        if let Some(before) = lock(&self.held).insert(key.clone(), held) {
            // Our own lease had run out and we claimed it again: what still executes under it must stop.
            before.gate.shut(Halt::Fenced);
        }
        Taken { claim: Claim { key, lease, gate, fresh: None, used: Duration::ZERO }, end }
    }

    /// The run leaves this engine's hands.
    fn let_go(&self, run: &RunKey, sender: &watch::Sender<Option<End>>, end: End) {
        self.tally.count(&end);
        let cancelled = matches!(end, End::Over(Status::Cancelled));
        if let End::Stopped(Some(error)) = &end {
            lock(&self.given_up).insert(run.clone(), error.clone());
        }
        let epoch_is_ours = |held: &Held| held.end.same_channel(&sender.subscribe());
        let mut held = lock(&self.held);
        if held.get(run).is_some_and(epoch_is_ours) {
            held.remove(run);
        }
        drop(held);
        sender.send_replace(Some(end));
        if cancelled {
            // Its children are to be cancelled now: those that wait are taken up, those in our hands stopped.
            self.look_for_work();
            self.cancelled.notify_one();
        }
    }

    /// Executes a claimed run as soon as there is room; parks it when there is none in time. The wait is the
    /// engine's own: a caller that stops listening leaves the run in good hands.
    pub(crate) async fn admit(self: &Arc<Self>, flow: Arc<dyn Drive>, taken: Taken) {
        if let Ok(room) = self.slots.clone().try_acquire_owned() {
            return self.run(flow, taken, room);
        }
        self.counters.admission.one_more();
        let shared = self.clone();
        let admission = self.tasks.spawn(async move {
            match shared.room(&taken.claim.gate).await {
                Some(room) => shared.run(flow, taken, room),
                None => shared.park(taken).await,
            }
        });
        // It ends early only with the runtime, and then nobody asks.
        let _ = admission.await;
    }

    /// Waits for room to execute a run; `None`: there was none in time, or the run or the engine was stopped.
    async fn room(&self, gate: &Gate) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            room = self.slots.clone().acquire_owned() => room.ok(),
            () = gate.halted().cancelled() => None,
            () = self.drain.cancelled() => None,
            () = tokio::time::sleep(self.options.backpressure_timeout) => None,
        }
    }

    /// Executes a claimed run in a task of its own.
    pub(crate) fn run(self: &Arc<Self>, flow: Arc<dyn Drive>, taken: Taken, room: OwnedSemaphorePermit) {
        let shared = self.clone();
        let key = &taken.claim.key;
        let trace = TraceId::of(key);
        let span =
            tracing::info_span!("run", run_id = %key, trace_id = %trace, span_id = %SpanId::of_run(trace));
        self.tasks.spawn(tracing::Instrument::instrument(
            async move {
                let Taken { claim, end: sender } = taken;
                let (key, gate) = (claim.key.clone(), claim.gate.clone());
                shared.give_back_early(&key, gate.held_under()).await;
                let end = flow.drive(shared.clone(), claim).await;
                let parked = matches!(end, End::Parked(_));
                let status = match &end {
                    End::Succeeded(..) => Status::Succeeded,
                    End::Over(status) | End::Parked(status) => status.clone(),
                    End::Elsewhere | End::Stopped(_) => Status::Running,
                };
                gate.trail().left(&status);
                shared.let_go(&key, &sender, end);
                drop(room);
                shared.observer.emit(|| Event::RunEnded { run: key.clone(), status: status.clone() });
                // A parked run may have to be woken before anything else.
                if parked || shared.crowded.swap(false, Ordering::AcqRel) {
                    shared.look_for_work();
                }
                // Last: what it held may be in a database that doesn't answer, and its end is durable.
                shared.give_back(&key, gate.held_under(), &status).await;
            },
            span,
        ));
    }

    /// Parks a claimed run for which there was no room; it is taken up again by itself.
    pub(crate) async fn park(&self, taken: Taken) {
        match taken.claim.gate.halt() {
            Some(Halt::Cancelled) => self.cancel_unstarted(taken).await,
            Some(Halt::Fenced) => self.forget(&taken),
            _ => {
                self.counters.parked.one_more();
                self.leave(taken, Status::Paused { by: PausedBy::Backpressure }, End::Stopped(None)).await;
                self.crowded.store(true, Ordering::Release);
                if self.slots.available_permits() > 0 {
                    self.look_for_work();
                }
            }
        }
    }

    /// Marks a claimed run as cancelled without executing it.
    pub(crate) async fn cancel_unstarted(&self, taken: Taken) {
        self.leave(taken, Status::Cancelled, End::Over(Status::Cancelled)).await;
    }

    /// Writes the last word on a run that was never executed here.
    async fn leave(&self, mut taken: Taken, status: Status, end: End) {
        if status.is_final()
            && !taken.claim.gate.trail().is_known()
            && let Some(record) = self.try_look_up(&mut taken).await
        {
            taken.claim.gate.trail().is_of(&record);
        }
        let Claim { gate, key, used, .. } = &taken.claim;
        if gate.conclude(status.clone(), *used, Wake::default()).await.is_err() {
            return self.forget(&taken);
        }
        gate.trail().left(&status);
        self.let_go(key, &taken.end, end);
        self.observer.emit(|| Event::RunEnded { run: key.clone(), status: status.clone() });
        self.give_back(key, gate.held_under(), &status).await;
    }

    /// Reads what a claimed run is and holds: under its lease, since before it and behind its end its name may be another's.
    pub(crate) async fn look_up(&self, taken: &mut Taken) -> Result<RunRecord, StoreError> {
        let run = taken.claim.key.clone();
        let found = self.store.run(run.clone()).await;
        let record = found.and_then(|record| record.ok_or(StoreError::NotFound { run }))?;
        taken.claim.used = Duration::from_micros(record.used_us);
        self.holds(&taken.claim.gate, &record.terms);
        Ok(record)
    }

    /// The same of a run that goes its way without.
    pub(crate) async fn try_look_up(&self, taken: &mut Taken) -> Option<RunRecord> {
        let found = self.look_up(taken).await;
        let unknown = |error: &StoreError| {
            tracing::warn!(%error, run_id = %taken.claim.key, "what it holds isn't known; a sweep frees it later");
        };
        found.inspect_err(unknown).ok()
    }

    /// What was counted since the engine was opened.
    pub(crate) fn metrics(&self) -> Metrics {
        let active = lock(&self.held).len();
        self.counters.snapshot(active, self.store.stats())
    }

    /// Lets a claimed run be found by others once its lease ends, without a word to the store.
    pub(crate) fn forget(&self, taken: &Taken) {
        self.let_go(&taken.claim.key, &taken.end, End::Elsewhere);
    }
}

/// How soon the engine looks again after it was told of work; twice as long each time, up to `scan_interval`. The
/// process that held a run may take a moment to die.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// How much later than planned the engine may look, of each pause and after a hint, so that many engines don't look all at
/// once.
const JITTER: f64 = 0.1;
const HINT_SPREAD: Duration = Duration::from_millis(20);

/// Looks for runs that nobody holds: what a crash left, what was parked, what waits for its first step. It asks the store
/// at the latest every `scan_interval`, and at once when a hint comes; whatever a hint says, the store's word counts.
pub(crate) async fn find_work(shared: Arc<Shared>) {
    tokio::select! {
        () = shared.hired.cancelled() => {}
        () = shared.closing() => return,
    }
    let mut hints = shared.store.hints();
    let mut jitter = Rng::for_jitter(uuid::Uuid::new_v4().as_u128() as u64, 0, PathHash::ROOT, 0);
    let mut pause = FIRST_LOOK;
    loop {
        let until = match look(&shared).await {
            Look::Again => Duration::ZERO,
            Look::In(next) => next.min(pause.mul_f64(1.0 + JITTER * jitter.f64())),
        };
        tokio::select! {
            () = shared.drain.cancelled() => return,
            () = shared.deserted.cancelled() => return,
            () = shared.work.notified() => pause = FIRST_LOOK,
            () = of_work(&mut hints, &shared.options.namespace) => {
                tokio::time::sleep(HINT_SPREAD.mul_f64(jitter.f64())).await;
            }
            () = tokio::time::sleep(until) => pause = (pause * 2).min(shared.options.scan_interval),
        }
    }
}

/// Resolves when a hint says that a run may be taken up.
async fn of_work(hints: &mut Option<Receiver<Hint>>, namespace: &Namespace) {
    loop {
        match next_hint(hints).await {
            Some(Hint::Ready(of)) if of == *namespace => return,
            // Some were missed: there is no telling what they said.
            None => return,
            Some(_) => {}
        }
    }
}

/// The next hint; `None`: some were missed. Where none come this never resolves.
pub(crate) async fn next_hint(hints: &mut Option<Receiver<Hint>>) -> Option<Hint> {
    let Some(receiver) = hints else { return std::future::pending().await };
    match receiver.recv().await {
        Ok(hint) => Some(hint),
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => {
            *hints = None;
            std::future::pending().await
        }
    }
}

/// When the engine looks for work the next time.
enum Look {
    /// At once: there was something, so there may be more.
    Again,
    /// When the store says that something comes; `Duration::MAX`: it knows of nothing.
    In(Duration),
}

/// Asks whether there is work, and takes it. Without room for it there is no hurry: whoever leaves calls.
async fn look(shared: &Arc<Shared>) -> Look {
    let room = shared.slots.available_permits();
    let filter = shared.ready(room);
    if filter.graphs.is_empty() || room == 0 {
        shared.crowded.fetch_or(room == 0, Ordering::AcqRel);
        return Look::In(Duration::MAX);
    }
    // A question may go unanswered for as long as its server likes; a claim that was made must be known.
    let outlook = tokio::select! {
        outlook = shared.store.outlook(filter) => outlook,
        () = shared.closing() => return Look::In(Duration::MAX),
    };
    match outlook {
        Ok(outlook) if outlook.ready && take_what_fits(shared).await => Look::Again,
        Ok(outlook) => Look::In(outlook.next.unwrap_or(Duration::MAX)),
        Err(error) => {
            tracing::warn!(%error, "cannot look for work; trying again");
            Look::In(Duration::MAX)
        }
    }
}

/// Claims as many runs as there is room for. Answers whether there were any.
async fn take_what_fits(shared: &Arc<Shared>) -> bool {
    let limit = shared.slots.available_permits();
    if limit == 0 {
        shared.crowded.store(true, Ordering::Release);
        return false;
    }
    let asked = clock::since_boot();
    let claimed = match shared.store.claim_ready(shared.ready(limit), shared.claimant()).await {
        Ok(claimed) => claimed,
        Err(error) => {
            tracing::warn!(%error, "cannot take up work; trying again");
            return false;
        }
    };
    shared.crowded.fetch_or(claimed.len() == limit, Ordering::AcqRel);
    let any = !claimed.is_empty();
    for (key, lease) in claimed {
        let taken = shared.take(key, lease, asked);
        let room = shared.slots.clone().try_acquire_owned().ok();
        // In a task of its own: of several databases one that doesn't answer keeps the others' runs waiting no longer.
        shared.tasks.spawn(take_up(shared.clone(), taken, room));
    }
    any
}

/// Executes a claimed run; parks it when there is no room for it, or its code isn't here.
async fn take_up(shared: Arc<Shared>, mut taken: Taken, room: Option<OwnedSemaphorePermit>) {
    let Ok(record) = shared.look_up(&mut taken).await else { return shared.forget(&taken) };
    match (shared.flow(&record.graph, record.fingerprint), room) {
        (Some(flow), Some(room)) => shared.run(flow, taken, room),
        (_, room) => {
            drop(room);
            shared.park(taken).await;
        }
    }
}
