//! The output gate: the writes of one run, in order, and the wait until they are durable.
//!
//! Invariant: steps may run ahead of the disk, but nothing leaves the process before [`Gate::passed`] says that
//! every write up to a mark is durable. Once a write is refused, the gate is shut for good.

use crate::{
    clock,
    trail::{Began, Trail},
};
use hapax_core::{
    canary,
    commit::{Epoch, RunFailure, Status, StatusChange, Wake, Write, Written},
    error::{Coded, code},
    flow::Terms,
    id::RunKey,
    limits::{WINDOW_BYTES, WINDOW_STEPS},
};
use hapax_store::{Pace, Store, StoreError, Ticket};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;

/// Why a run stops being executed here.
#[derive(Debug, Clone)]
pub(crate) enum Halt {
    /// Somebody else owns it now: touch nothing.
    Fenced,
    /// A cancel was requested.
    Cancelled,
    /// It failed.
    Failed(Box<RunFailure>),
    /// The store didn't answer for too long, or holds something that can't be.
    Store(Arc<StoreError>),
    /// The engine shuts down.
    Drained,
    /// It waits for something: its items can't go on.
    Parked(Box<Parking>),
}

/// A run to be parked: what it says of itself, and what wakes it.
#[derive(Debug, Clone)]
pub(crate) struct Parking {
    pub(crate) status: Status,
    pub(crate) wake: Wake,
}

/// The crew of an engine that has one run in its hands.
const LONE: usize = 2;

/// The right to hand over the next write. While this lives, nothing else of the run is accepted.
pub(crate) struct Turn {
    gate: Arc<Gate>,
    next_seq: OwnedMutexGuard<u64>,
}

/// A write that the store accepted. While this lives, nothing else of the run is accepted.
pub(crate) struct Accepted {
    pub(crate) mark: Mark,
    _turn: OwnedMutexGuard<u64>,
}

/// How many writes had been accepted at some point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

/// A write on its way to the disk.
struct Flying {
    write: Arc<Write>,
    /// `None`: it must be submitted again.
    ticket: Option<Ticket>,
    /// When the step began that it commits.
    began: Option<Began>,
}

/// The ordered writes of one run in the hands of one engine.
pub(crate) struct Gate {
    store: Arc<dyn Store>,
    run: RunKey,
    epoch: Epoch,
    patience: Duration,
    trail: Trail,
    /// Told when a step with messages is durable.
    mail: Arc<watch::Sender<()>>,
    /// One for each run in the engine's hands, and the engine's own.
    crew: Arc<()>,
    /// The next journal row's number; locked while a write is being accepted, so that order is order of acceptance.
    next_seq: Arc<tokio::sync::Mutex<u64>>,
    /// Held while waiting for the turn: whoever waits until all is quiet keeps others from coming in between.
    entry: tokio::sync::Mutex<()>,
    accepted: Mutex<VecDeque<Flying>>,
    /// The oldest writes, in the hands of whoever waits for them.
    settling: tokio::sync::Mutex<VecDeque<Flying>>,
    issued: AtomicU64,
    durable: AtomicU64,
    flying_bytes: AtomicUsize,
    trouble_since: Mutex<Option<Instant>>,
    halt: OnceLock<Halt>,
    halted: CancellationToken,
    /// Until when the run is ours for sure, in microseconds since the machine started.
    leased_until_us: AtomicU64,
    /// What the run's slots and names were taken under, if it has any.
    held_under: OnceLock<String>,
}

impl Gate {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        run: RunKey,
        epoch: Epoch,
        patience: Duration,
        trail: Trail,
        mail: Arc<watch::Sender<()>>,
        crew: Arc<()>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            run,
            epoch,
            patience,
            trail,
            mail,
            crew,
            next_seq: Arc::default(),
            entry: tokio::sync::Mutex::default(),
            accepted: Mutex::default(),
            settling: tokio::sync::Mutex::default(),
            issued: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            flying_bytes: AtomicUsize::new(0),
            trouble_since: Mutex::default(),
            halt: OnceLock::new(),
            halted: CancellationToken::new(),
            leased_until_us: AtomicU64::new(u64::MAX),
            held_under: OnceLock::new(),
        })
    }

    /// What is told of the run.
    pub(crate) fn trail(&self) -> &Trail {
        &self.trail
    }

    /// The terms on which the run was started.
    pub(crate) fn holds(&self, terms: &Terms) {
        if terms.holds() {
            // Asked for again, it is the same: a claim reads the terms that its run began with.
            let _ = self.held_under.set(terms.token.clone());
        }
    }

    /// What the run's slots and names were taken under; `None`: it has none.
    pub(crate) fn held_under(&self) -> Option<&str> {
        self.held_under.get().map(String::as_str)
    }

    /// Where the journal goes on, as loaded.
    pub(crate) async fn resume_at(&self, next_seq: u64) {
        *self.next_seq.lock().await = next_seq;
    }

    /// Stops the run; the first reason counts.
    pub(crate) fn shut(&self, halt: Halt) -> Halt {
        let halt = self.halt.get_or_init(|| halt).clone();
        self.halted.cancel();
        halt
    }

    /// The run is ours for so long, counted from then.
    pub(crate) fn leased(&self, from: Duration, ttl: Duration) {
        self.leased_until_us.store(micros(from + ttl), Ordering::Release);
    }

    /// Whether the lease can't have run out, also if this process stood still. What isn't fenced by the store must not be
    /// done without.
    pub(crate) fn is_leased(&self) -> bool {
        micros(clock::since_boot()) < self.leased_until_us.load(Ordering::Acquire)
    }

    /// Cancelled as soon as the run stops.
    pub(crate) fn halted(&self) -> &CancellationToken {
        &self.halted
    }

    pub(crate) fn halt(&self) -> Option<Halt> {
        self.halt.get().cloned()
    }

    fn check(&self) -> Result<(), Halt> {
        self.halt.get().map_or(Ok(()), |halt| Err(halt.clone()))
    }

    /// Hands a write to the store, behind all earlier ones. Doesn't wait for the disk, unless the caller would wait
    /// for it in any case and nothing else goes on in the engine that could share the wait.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        pace: Pace,
        build: impl FnOnce(u64) -> Write,
    ) -> Result<Accepted, Halt> {
        self.turn().await?.submit(pace, build).await
    }

    /// Waits until the next write may be handed over.
    pub(crate) async fn turn(self: &Arc<Self>) -> Result<Turn, Halt> {
        self.check()?;
        let _entry = match canary::on("gate_crowded") {
            true => None,
            false => Some(self.entry.lock().await),
        };
        Ok(self.next().await)
    }

    async fn next(self: &Arc<Self>) -> Turn {
        Turn { next_seq: self.next_seq.clone().lock_owned().await, gate: self.clone() }
    }

    /// The same once everything before it is durable.
    pub(crate) async fn quiet_turn(self: &Arc<Self>) -> Result<Turn, Halt> {
        self.check()?;
        let _entry = self.entry.lock().await;
        // Whoever has the turn may still submit. It isn't kept meanwhile: a write that is submitted again needs it.
        drop(self.next().await);
        self.flush().await?;
        Ok(self.next().await)
    }

    async fn accept(&self, write: &Arc<Write>, pace: Pace) -> Result<Ticket, Halt> {
        loop {
            match self.store.submit(write.clone(), pace).await {
                Ok(ticket) => return Ok(ticket),
                Err(error @ StoreError::TooLarge { .. }) => {
                    return Err(self.shut(run_failure(&error, step_of(write))));
                }
                Err(error) => self.bear(error).await?,
            }
        }
    }

    /// Waits until everything up to the mark is durable.
    pub(crate) async fn passed(&self, mark: Mark) -> Result<(), Halt> {
        let mut waited = None;
        while self.durable.load(Ordering::Acquire) < mark.0 {
            waited.get_or_insert_with(|| self.trail.counters.waits());
            self.check()?;
            let mut settling = self.settling.lock().await;
            if self.durable.load(Ordering::Acquire) < mark.0 {
                self.settle_oldest(&mut settling).await?;
            }
        }
        self.check()
    }

    /// Waits until everything accepted so far is durable.
    pub(crate) async fn flush(&self) -> Result<(), Halt> {
        self.passed(Mark(self.issued.load(Ordering::Acquire))).await
    }

    /// Waits while too much runs ahead of the disk.
    pub(crate) async fn window(&self) -> Result<(), Halt> {
        self.reap();
        let ahead = || {
            let writes = self.issued.load(Ordering::Acquire) - self.durable.load(Ordering::Acquire);
            writes as usize >= WINDOW_STEPS || self.flying_bytes.load(Ordering::Relaxed) >= WINDOW_BYTES
        };
        if ahead() {
            self.trail.counters.window.one_more();
        }
        while ahead() {
            self.check()?;
            let mut settling = self.settling.lock().await;
            if ahead() {
                self.settle_oldest(&mut settling).await?;
            }
        }
        self.check()
    }

    /// Takes the answers that are there already.
    fn reap(&self) {
        let Ok(mut settling) = self.settling.try_lock() else { return };
        settling.append(&mut lock(&self.accepted));
        while let Some(oldest) = settling.front_mut() {
            match oldest.ticket.as_mut().and_then(Ticket::try_take) {
                Some(Ok(_)) => self.arrived(&mut settling),
                // Left to whoever waits: the ticket is spent, so it is submitted again and answers the same.
                Some(Err(_)) => return oldest.ticket = None,
                None => return,
            }
        }
    }

    async fn settle_oldest(&self, settling: &mut VecDeque<Flying>) -> Result<(), Halt> {
        settling.append(&mut lock(&self.accepted));
        let Some(oldest) = settling.front_mut() else { return Ok(()) };
        let outcome = match &mut oldest.ticket {
            Some(ticket) => ticket.await,
            None => return self.resend(settling).await,
        };
        match outcome {
            Ok(_) => {
                self.arrived(settling);
                Ok(())
            }
            Err(error) => {
                oldest.ticket = None;
                self.mend(settling, error).await
            }
        }
    }

    fn arrived(&self, settling: &mut VecDeque<Flying>) {
        let Some(Flying { write, began, .. }) = settling.pop_front() else { return };
        *lock(&self.trouble_since) = None;
        self.flying_bytes.fetch_sub(write.weight(), Ordering::Relaxed);
        self.durable.fetch_add(1, Ordering::AcqRel);
        if let Write::Step(step) = &*write {
            if !step.outbox.is_empty() {
                self.mail.send_replace(());
            }
            self.trail.step_is_durable(step.checkpoint.step, began);
        }
    }

    /// The oldest write has no good answer: find out what became of it.
    async fn mend(&self, settling: &mut VecDeque<Flying>, error: StoreError) -> Result<(), Halt> {
        match error {
            StoreError::Unknown(_) => {
                let write = settling.front().expect("it was just there").write.clone();
                self.settle(write).await?;
                self.resend(settling).await
            }
            error @ StoreError::TooLarge { .. } => {
                let step = settling.front().map_or(0, |flying| step_of(&flying.write));
                Err(self.shut(run_failure(&error, step)))
            }
            error => {
                self.bear(error).await?;
                self.resend(settling).await
            }
        }
    }

    /// Asks until the store knows. Whether it is there or not, it may then be submitted again: a write that is
    /// there answers `AlreadyCommitted`.
    async fn settle(&self, write: Arc<Write>) -> Result<(), Halt> {
        loop {
            match self.store.settle(write.clone()).await {
                Ok(_) | Err(StoreError::Retry(_)) => return Ok(()),
                Err(error) => self.bear(error).await?,
            }
        }
    }

    /// Submits again what has no answer, in order, while nobody else submits. The writes behind a failed one
    /// failed too, since each demands the one before it.
    async fn resend(&self, settling: &mut VecDeque<Flying>) -> Result<(), Halt> {
        let _nobody_else = self.next_seq.lock().await;
        settling.append(&mut lock(&self.accepted));
        for flying in settling.iter_mut() {
            if let Some(ticket) = &mut flying.ticket {
                let _failed_or_there = ticket.await;
                flying.ticket = None;
            }
        }
        for flying in settling.iter_mut() {
            flying.ticket = Some(self.accept(&flying.write, Pace::Ahead).await?);
        }
        Ok(())
    }

    /// Backs off when the store may recover, else shuts the gate.
    pub(crate) async fn bear(&self, error: StoreError) -> Result<(), Halt> {
        let halt = match error {
            StoreError::Retry(_) | StoreError::Full(_) | StoreError::Unknown(_) => {
                let since = *lock(&self.trouble_since).get_or_insert_with(clock::instant);
                if clock::since(since) < self.patience {
                    // Longer pauses the longer it lasts: a tenth of what has passed, within bounds.
                    let pause =
                        (clock::since(since) / 10).clamp(Duration::from_millis(1), Duration::from_secs(1));
                    tokio::time::sleep(pause).await;
                    return Ok(());
                }
                Halt::Store(Arc::new(error))
            }
            StoreError::Fenced { .. } => Halt::Fenced,
            StoreError::CancelRequested { .. } => Halt::Cancelled,
            error => Halt::Store(Arc::new(error)),
        };
        Err(self.shut(halt))
    }

    /// Writes a status, also after the gate was shut: the last word on a run here.
    pub(crate) async fn conclude(&self, status: Status, used: Duration, wake: Wake) -> Result<Written, Halt> {
        let write = Arc::new(Write::Status(StatusChange {
            run: self.run.clone(),
            epoch: self.epoch,
            status,
            release: true,
            used_us: micros(used),
            wake,
        }));
        loop {
            let outcome = match self.store.submit(write.clone(), Pace::Ahead).await {
                Ok(ticket) => ticket.await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(written) => return Ok(written),
                Err(StoreError::Unknown(_)) => self.settle(write.clone()).await?,
                // The gate may be shut for another reason already; what the store says now counts.
                Err(StoreError::CancelRequested { .. }) => return Err(Halt::Cancelled),
                Err(error) => self.bear(error).await?,
            }
        }
    }
}

impl Turn {
    /// The number of the next row.
    pub(crate) fn first_seq(&self) -> u64 {
        *self.next_seq
    }

    /// So many rows were written by another way than the store's.
    pub(crate) fn wrote(&mut self, rows: usize) {
        *self.next_seq += rows as u64;
    }

    /// As [`Gate::submit`].
    pub(crate) async fn submit(self, pace: Pace, build: impl FnOnce(u64) -> Write) -> Result<Accepted, Halt> {
        let Self { gate, mut next_seq } = self;
        let write = Arc::new(build(*next_seq));
        let pace = if Arc::strong_count(&gate.crew) == LONE { pace } else { Pace::Ahead };
        let ticket = gate.accept(&write, pace).await?;
        // From here on nothing awaits, so a dropped future can't leave the write half-accepted.
        *next_seq += rows(&write);
        gate.flying_bytes.fetch_add(write.weight(), Ordering::Relaxed);
        let began = if matches!(&*write, Write::Step(_)) { gate.trail.step_leaves() } else { None };
        if let Some(began) = began.filter(|_| canary::on("span_before_its_step")) {
            gate.trail.tell_step(step_of(&write), began, Duration::ZERO);
        }
        lock(&gate.accepted).push_back(Flying { write, ticket: Some(ticket), began });
        let mark = Mark(gate.issued.fetch_add(1, Ordering::AcqRel) + 1);
        Ok(Accepted { mark, _turn: next_seq })
    }
}

/// A failure of the run itself rather than of a node.
pub(crate) fn run_failure(error: &(impl Coded + std::fmt::Display), step: u64) -> Halt {
    Halt::Failed(Box::new(RunFailure {
        code: error.code().into(),
        message: error.to_string(),
        step,
        node: None,
    }))
}

/// The run used up its time.
pub(crate) fn budget_exceeded(budget: Duration, step: u64) -> Halt {
    Halt::Failed(Box::new(RunFailure {
        code: code::BUDGET_EXCEEDED.into(),
        message: format!("the run used up its budget of {budget:?} in step {step}"),
        step,
        node: None,
    }))
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The step that a write belongs to.
fn step_of(write: &Write) -> u64 {
    match write {
        Write::Step(step) => step.follows,
        Write::Append(append) => append.rows.first().map_or(0, |row| row.step),
        _ => 0,
    }
}

fn rows(write: &Write) -> u64 {
    match write {
        Write::Step(step) => step.journal.len() as u64,
        Write::Append(append) => append.rows.len() as u64,
        _ => 0,
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use hapax_core::id::{Namespace, RunId};
    use hapax_store::MemoryStore;
    use std::task::Poll;

    /// A gate, with a write on its way to the disk, and the end that says that it is there.
    fn with_a_write() -> (Arc<Gate>, impl FnOnce()) {
        let run = RunKey { namespace: Namespace::default(), run: RunId::new("run").unwrap() };
        let (epoch, mail) = (Epoch { counter: 1, nonce: 1 }, Arc::new(watch::Sender::new(())));
        let (status, wake) = (Status::Running, Wake::default());
        let change = StatusChange { run: run.clone(), epoch, status, release: false, used_us: 0, wake };
        let (patience, crew) = (Duration::from_secs(1), Arc::new(()));
        let gate = Gate::new(MemoryStore::shared(), run.clone(), epoch, patience, Trail::of(run), mail, crew);
        let (reply, ticket) = Ticket::new();
        let write = Arc::new(Write::Status(change));
        gate.flying_bytes.fetch_add(write.weight(), Ordering::Relaxed);
        lock(&gate.accepted).push_back(Flying { write, ticket: Some(ticket), began: None });
        gate.issued.fetch_add(1, Ordering::AcqRel);
        (gate, move || reply.send(Ok(Written::Committed)).unwrap())
    }

    #[tokio::test]
    async fn who_waits_until_all_is_quiet_lets_nobody_come_in_between() {
        let (gate, is_durable) = with_a_write();
        let (mut quiet, mut other) = (Box::pin(gate.quiet_turn()), Box::pin(gate.turn()));
        assert!(poll!(&mut quiet).is_pending(), "a write is on its way");
        assert!(poll!(&mut other).is_pending(), "it would have to wait for this one as well");
        is_durable();
        let Poll::Ready(Ok(turn)) = poll!(&mut quiet) else { panic!("all is quiet") };
        assert!(poll!(&mut other).is_pending());
        drop(turn);
        assert!(matches!(poll!(&mut other), Poll::Ready(Ok(_))));
    }
}
