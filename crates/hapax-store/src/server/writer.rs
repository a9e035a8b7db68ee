//! Transactions, and the lanes on which the writes of many runs share them.
//!
//! Invariant: the writes of a run travel on one lane, in their order. None is answered before the commit of its
//! transaction, and none is attempted after an earlier one of its run failed, unless it was submitted after that failure.

use super::{
    chain::{Chain, is_plain},
    commit,
    error::{Halt, Outcome, reported, unlent},
    pool::Sessions,
    sql::{Fault, Row, Session, Value, one},
};
use crate::{
    clock::now_us,
    codec::{Codec, Encoders},
    error::StoreError,
    prepare::Prepared,
    store::{Hint, StoreStats, Ticket},
};
use hapax_core::{
    commit::{Write, Written},
    id::RunKey,
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinHandle,
};

/// Writes that share a transaction at the most.
const BATCH_WRITES: usize = 1024;
/// Bytes that share a transaction at the most.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// How often a transaction that lost against another is tried again.
pub(crate) const TRIES: usize = 20;
/// Bytes that may be queued. One permit of the semaphore is one byte.
const ROOM: u32 = 32 * 1024 * 1024;
/// What even the smallest write takes, so that the room bounds their number as well: 4096.
const SMALLEST: u32 = 8 * 1024;

/// A transaction that writes.
pub(crate) struct Tx<'s> {
    pub(crate) session: &'s mut dyn Session,
    pub(crate) codec: &'s Codec,
    /// What others are told once it is committed: afterwards, since a transaction that tells keeps all others that do from
    /// committing beside it.
    pub(crate) hints: Vec<Hint>,
}

impl Tx<'_> {
    pub(crate) async fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault> {
        self.session.execute(sql, values).await
    }

    pub(crate) async fn rows(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Fault> {
        self.session.rows(sql, values).await
    }

    pub(crate) async fn one(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Option<Row>, Fault> {
        one(self.session, sql, values).await
    }
}

/// Does `$work` with `$tx` in a transaction of `$session`; again when it lost against another. What it settles is answered
/// and undone. A macro, since no closure can say that the future which it answers may change its thread.
macro_rules! transact {
    ($session:expr, $codec:expr, |$tx:ident| $work:expr) => {{
        let session: &mut dyn $crate::server::sql::Session = $session;
        let mut tries = 0;
        loop {
            let outcome = match session.begin().await {
                Err(fault) => Err(fault.before_commit()),
                Ok(()) => {
                    let $tx =
                        &mut $crate::server::writer::Tx { session: &mut *session, codec: $codec, hints: vec![] };
                    let outcome = $work.await;
                    let hints = std::mem::take(&mut $tx.hints);
                    $crate::server::writer::finish(session, outcome, &hints).await
                }
            };
            match outcome {
                Err($crate::server::sql::Fault::Again(source))
                    if tries + 1 < $crate::server::writer::TRIES =>
                {
                    tracing::debug!(%source, "a transaction is tried again");
                    tries += 1;
                    $crate::server::writer::let_others_finish(tries).await;
                }
                outcome => break outcome,
            }
        }
    }};
}
pub(crate) use transact;

/// The pause before a try: none at first, then one that differs from session to session and grows to a tenth of a second.
pub(crate) async fn let_others_finish(tries: usize) {
    if tries > 3 {
        let most = 1_000 << tries.min(10) >> 3;
        tokio::time::sleep(Duration::from_micros(now_us().cast_unsigned() % most)).await;
    }
}

/// Commits what was done, and tells others of it; or undoes it.
pub(crate) async fn finish<T>(
    session: &mut dyn Session,
    outcome: Outcome<T>,
    hints: &[Hint],
) -> Result<Result<T, StoreError>, Fault> {
    match outcome {
        Ok(value) => {
            session.commit().await?;
            if !hints.is_empty() {
                // They are only hints: whoever misses one finds out by itself.
                let _ = session.tell(hints).await;
            }
            Ok(Ok(value))
        }
        Err(halt) => {
            // A session that can't even roll back is closed, which does the same.
            let _ = session.rollback().await;
            match halt {
                Halt::Settle(answer) => Ok(answer),
                Halt::Fault(fault) => Err(fault.before_commit()),
            }
        }
    }
}

/// Counters of a store.
#[derive(Default)]
pub(crate) struct Shared {
    steps: AtomicU64,
    writes: AtomicU64,
    transactions: AtomicU64,
}

impl Shared {
    pub(crate) fn stats(&self, syncs: u64) -> StoreStats {
        StoreStats {
            steps: self.steps.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs,
        }
    }
}

/// A write on its way.
struct Job {
    /// Its number on its lane.
    number: u64,
    prepared: Prepared,
    reply: oneshot::Sender<Result<Written, StoreError>>,
    room: OwnedSemaphorePermit,
}

/// The submitting ends.
pub(crate) struct Lanes {
    lanes: Vec<LaneEnd>,
    room: Arc<Semaphore>,
}

struct LaneEnd {
    submitted: Arc<AtomicU64>,
    /// `None`: closed.
    sender: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Lanes {
    pub(crate) fn start(
        count: usize,
        sessions: &Sessions,
        codec: &Codec,
        encoders: &Arc<Encoders>,
        shared: &Arc<Shared>,
    ) -> Self {
        let lane = |_| {
            let (sender, jobs) = mpsc::unbounded_channel();
            let submitted = Arc::<AtomicU64>::default();
            let lane = Lane {
                sessions: sessions.clone(),
                codec: codec.clone(),
                encoders: encoders.clone(),
                shared: shared.clone(),
                submitted: submitted.clone(),
                broken: HashMap::new(),
            };
            let task = tokio::spawn(lane.run(jobs));
            LaneEnd { submitted, sender: Mutex::new(Some(sender)), task: Mutex::new(Some(task)) }
        };
        Self { lanes: (0..count).map(lane).collect(), room: Arc::new(Semaphore::new(ROOM as usize)) }
    }

    /// Waits for room.
    pub(crate) async fn room(&self, weight: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let bytes = u32::try_from(weight).unwrap_or(ROOM).clamp(SMALLEST, ROOM);
        self.room.clone().acquire_many_owned(bytes).await.map_err(|_| closed())
    }

    /// Queues a write on its run's lane. Nothing is waited for, so what one task submits is queued in its order.
    pub(crate) fn write(&self, prepared: Prepared, room: OwnedSemaphorePermit) -> Result<Ticket, StoreError> {
        let partition = crate::sharded::partition(&prepared.write.run().run) as usize;
        let lane = &self.lanes[partition % self.lanes.len()];
        let (reply, ticket) = Ticket::new();
        // Locked, so that the numbers are in the order of the queue.
        let sender = lane.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = sender.as_ref().ok_or_else(closed)?;
        let number = lane.submitted.fetch_add(1, Ordering::SeqCst) + 1;
        sender.send(Job { number, prepared, reply, room }).map_err(|_| closed())?;
        Ok(ticket)
    }

    /// Takes no more writes; waits until all are answered.
    pub(crate) async fn close(&self) {
        self.room.close();
        for lane in &self.lanes {
            lane.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
            let task = lane.task.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(task) = task {
                // Its panic has been reported by the panic hook; the tickets say `Unknown`.
                let _ = task.await;
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::Retry("the store is closed".into())
}

/// One lane: what is queued on it shares transactions.
struct Lane {
    sessions: Sessions,
    codec: Codec,
    encoders: Arc<Encoders>,
    shared: Arc<Shared>,
    submitted: Arc<AtomicU64>,
    /// Runs of which an earlier write failed, and the number up to which later ones must fail as well.
    broken: HashMap<RunKey, u64>,
}

/// Where a write's answer goes.
struct Waiter {
    write: Arc<Write>,
    reply: oneshot::Sender<Result<Written, StoreError>>,
    room: OwnedSemaphorePermit,
}

/// The writes of one run, with who waits for each, in their order.
type Queue = VecDeque<(u64, Prepared, Waiter)>;

impl Lane {
    async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        while let Some(first) = jobs.recv().await {
            // Whoever is about to write shares the transaction; a lone commit doesn't wait for company.
            tokio::task::yield_now().await;
            let (mut bytes, mut batch) = (first.room.num_permits(), vec![first]);
            while batch.len() < BATCH_WRITES
                && bytes < BATCH_BYTES
                && let Ok(job) = jobs.try_recv()
            {
                bytes += job.room.num_permits();
                batch.push(job);
            }
            let last = batch.last().map_or(0, |job| job.number);
            self.commit(batch).await;
            if last == self.submitted.load(Ordering::SeqCst) {
                // Nothing is queued behind a failure any more.
                self.broken.clear();
            }
        }
    }

    async fn commit(&mut self, batch: Vec<Job>) {
        let mut runs: BTreeMap<RunKey, Queue> = BTreeMap::new();
        for Job { number, prepared, reply, room } in batch {
            let waiter = Waiter { write: prepared.write.clone(), reply, room };
            let run = prepared.write.run().clone();
            runs.entry(run).or_default().push_back((number, prepared, waiter));
        }
        // Sorted by run, so that two transactions lock rows in one order.
        while !runs.is_empty() {
            self.commit_chains(&mut runs).await;
            self.commit_single(&mut runs).await;
            runs.retain(|_, queue| !queue.is_empty());
        }
    }

    /// Takes from each run as many writes as make a chain, and commits all chains in one transaction.
    async fn commit_chains(&mut self, runs: &mut BTreeMap<RunKey, Queue>) {
        let (mut chains, mut waiting) = (vec![], vec![]);
        for (run, queue) in runs.iter_mut() {
            if let Some((chain, waiters)) = self.chain(run, queue) {
                chains.push(chain);
                waiting.push(waiters);
            }
        }
        if chains.is_empty() {
            return;
        }
        let outcome = self.write_chains(&chains).await;
        match outcome {
            Ok(passed) => {
                self.shared.transactions.fetch_add(1, Ordering::Relaxed);
                for ((chain, waiters), passed) in chains.into_iter().zip(waiting).zip(passed) {
                    if passed {
                        waiters.into_iter().for_each(|waiter| self.answer(waiter, Ok(Written::Committed)));
                    } else {
                        self.commit_each(chain, waiters).await;
                    }
                }
            }
            // One of them is to blame: the others deserve a transaction without it.
            Err(Fault::Duplicate(_) | Fault::Damage(..)) => {
                for (chain, waiters) in chains.into_iter().zip(waiting) {
                    self.commit_each(chain, waiters).await;
                }
            }
            Err(fault) => {
                for waiter in waiting.into_iter().flatten() {
                    let error = reported(fault.for_another(), waiter.write.run());
                    self.answer(waiter, Err(error));
                }
            }
        }
    }

    /// The next chain of a run, with those who wait for it.
    fn chain(&mut self, run: &RunKey, queue: &mut Queue) -> Option<(Chain, Vec<Waiter>)> {
        let mut found: Option<(Chain, Vec<Waiter>)> = None;
        while let Some((number, prepared, waiter)) = queue.pop_front() {
            if self.broken.get(run).is_some_and(|until| number <= *until) {
                self.answer(waiter, Err(StoreError::Retry("an earlier write of the run failed".into())));
                continue;
            }
            match &mut found {
                None if is_plain(&prepared) => found = Some((Chain::begin(prepared), vec![waiter])),
                Some((chain, waiters)) if chain.leads_to(&prepared) => {
                    chain.push(prepared);
                    waiters.push(waiter);
                }
                _ => {
                    queue.push_front((number, prepared, waiter));
                    break;
                }
            }
        }
        found
    }

    async fn write_chains(&self, chains: &[Chain]) -> Result<Vec<bool>, Fault> {
        let mut session = self.sessions.lend().await.map_err(unlent)?;
        let mut tries = 0;
        loop {
            match session.write_chains(chains).await {
                Err(Fault::Again(_)) if tries + 1 < TRIES && session.is_sound() => {
                    tries += 1;
                    let_others_finish(tries).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Commits the next write of each run that no chain takes.
    async fn commit_single(&mut self, runs: &mut BTreeMap<RunKey, Queue>) {
        for (run, queue) in runs.iter_mut() {
            if let Some((number, prepared, waiter)) = queue.pop_front() {
                if self.broken.get(run).is_some_and(|until| number <= *until) {
                    self.answer(waiter, Err(StoreError::Retry("an earlier write of the run failed".into())));
                    continue;
                }
                let answer = self.write_one(&prepared).await;
                self.answer(waiter, answer);
            }
        }
    }

    /// Commits the writes of a chain one by one: its fence refused it, or a key was taken.
    async fn commit_each(&mut self, chain: Chain, waiters: Vec<Waiter>) {
        let mut failed = false;
        for (prepared, waiter) in chain.writes.iter().zip(waiters) {
            let answer = if failed {
                Err(StoreError::Retry("an earlier write of the run failed".into()))
            } else {
                self.write_one(prepared).await
            };
            failed |= answer.is_err();
            self.answer(waiter, answer);
        }
    }

    async fn write_one(&self, prepared: &Prepared) -> Result<Written, StoreError> {
        let mut session = self.sessions.lend().await?;
        let outcome = match transact!(&mut **session, &self.codec, |tx| commit::write(tx, prepared)) {
            Err(Fault::Duplicate(_)) => {
                transact!(&mut **session, &self.codec, |tx| commit::settle_duplicate(tx, &prepared.write))
            }
            outcome => outcome,
        };
        self.shared.transactions.fetch_add(1, Ordering::Relaxed);
        outcome.map_err(|fault| reported(fault, prepared.write.run()))?
    }

    fn answer(&mut self, waiter: Waiter, answer: Result<Written, StoreError>) {
        let Waiter { write, reply, room } = waiter;
        match &answer {
            Ok(Written::Committed) => {
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                if matches!(&*write, Write::Step(_)) {
                    self.shared.steps.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(_) => {}
            Err(_) => {
                self.broken.insert(write.run().clone(), self.submitted.load(Ordering::SeqCst));
                // What it built on may never have been stored: the next state is a snapshot.
                self.encoders.forget(write.run());
            }
        }
        // Room first: whoever is woken by the answer may want to submit the next one.
        drop(room);
        let _ = reply.send(answer);
    }
}
