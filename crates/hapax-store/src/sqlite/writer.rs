//! The writer: whoever holds it owns the write connection. Mostly that is its thread, and whatever is queued shares
//! one physical transaction; a caller with a single write, while nothing is queued, takes it for a moment.
//!
//! Invariant: no job is answered before the COMMIT of its transaction, and no write of a run is attempted after
//! an earlier one of that run failed, unless it was submitted after that failure.

use super::{
    commit,
    connection::{self, BUSY_TIMEOUT, Place},
    error::{commit_left_nothing, is_busy, nothing_written},
    turn::{Turn, Turns},
};
use crate::{
    clock::{Clock, now_us},
    codec::{Codec, Encoders},
    error::StoreError,
    prepare::Prepared,
    store::StoreStats,
};
use hapax_core::{
    commit::{Write, Written},
    id::RunKey,
};
use rusqlite::{Connection, OptionalExtension, Params, Row};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Jobs that share a transaction at the most: beyond it the fsync is paid for anyway.
const BATCH_JOBS: usize = 1024;
/// Bytes that share a transaction at the most: SQLite keeps them in memory until the COMMIT.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// How often a COMMIT that finds the file busy is tried again; each try waits for the busy timeout.
const COMMIT_TRIES: usize = 3;

/// How often the writer looks for a job before it sleeps: some 30 microseconds.
const LOOKS: usize = 64;

/// What a job sees: the transaction, and the time at which it took the write lock.
pub(super) struct Tx<'c> {
    pub(super) connection: &'c Connection,
    /// Microseconds since 1970, read while the write lock was ours. SQLite would ask the same clock, but for
    /// milliseconds.
    pub(super) now: i64,
    pub(super) codec: &'c Codec,
    faults: &'c Faults,
}

impl Tx<'_> {
    /// Runs a statement that changes something; answers how many rows.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.faults.strike()?;
        self.connection.prepare_cached(sql)?.execute(params)
    }

    /// Reads at most one row.
    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.connection.prepare_cached(sql)?.query_row(params, read).optional()
    }
}

/// Why a job stops before its end.
pub(super) enum Halt<T> {
    /// Undo the job, and only the job: this is its answer.
    Settle(Result<T, StoreError>),
    /// Undo the whole transaction.
    Sql(rusqlite::Error),
}

impl<T> From<rusqlite::Error> for Halt<T> {
    fn from(error: rusqlite::Error) -> Self {
        Halt::Sql(error)
    }
}

impl<T> From<StoreError> for Halt<T> {
    fn from(error: StoreError) -> Self {
        Halt::Settle(Err(error))
    }
}

/// What a job's work answers.
pub(super) type Outcome<T> = Result<T, Halt<T>>;

/// Something to be done in a transaction, perhaps several times until one is committed.
pub(super) enum Job {
    /// A write to a run.
    Write(Box<WriteJob>),
    /// Anything else, with its number in the queue.
    Call(u64, Box<dyn Call>),
}

/// A write to a run.
pub(super) struct WriteJob {
    /// Its number in the queue.
    pub(super) number: u64,
    pub(super) prepared: Prepared,
    pub(super) reply: oneshot::Sender<Result<Written, StoreError>>,
    pub(super) answer: Option<Result<Written, StoreError>>,
    pub(super) room: OwnedSemaphorePermit,
}

/// A job that isn't a write of a run's holder.
pub(super) trait Call: Send {
    /// Does the work; answers whether to keep what it wrote.
    fn attempt(&mut self, tx: &Tx<'_>) -> rusqlite::Result<bool>;
    /// Tells the caller: the failure, or what the work answered.
    fn finish(self: Box<Self>, failure: Option<StoreError>);
    /// The run that errors name.
    fn about(&self) -> &RunKey;
}

/// [`Call`] from a closure.
pub(super) struct Closure<T, F> {
    pub(super) about: RunKey,
    pub(super) work: F,
    pub(super) answer: Option<Result<T, StoreError>>,
    pub(super) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&Tx<'_>) -> Outcome<T> + Send> Call for Closure<T, F> {
    fn attempt(&mut self, tx: &Tx<'_>) -> rusqlite::Result<bool> {
        keep(&mut self.answer, (self.work)(tx))
    }

    fn finish(self: Box<Self>, failure: Option<StoreError>) {
        // Nobody may be waiting any more; what was done stays done.
        let Closure { answer, reply, .. } = *self;
        let _ = reply.send(failure.map_or_else(|| answered(answer), Err));
    }

    fn about(&self) -> &RunKey {
        &self.about
    }
}

/// Keeps a job's answer until the COMMIT. Answers whether what it wrote stays.
fn keep<T>(answer: &mut Option<Result<T, StoreError>>, outcome: Outcome<T>) -> rusqlite::Result<bool> {
    let (settled, keep) = match outcome {
        Ok(value) => (Ok(value), true),
        Err(Halt::Settle(settled)) => (settled, false),
        Err(Halt::Sql(error)) => return Err(error),
    };
    *answer = Some(settled);
    Ok(keep)
}

fn answered<T>(answer: Option<Result<T, StoreError>>) -> Result<T, StoreError> {
    answer.expect("every job of a committed transaction was attempted")
}

impl Job {
    fn weight(&self) -> usize {
        match self {
            Job::Write(job) => job.room.num_permits(),
            Job::Call(..) => 0,
        }
    }

    fn number(&self) -> u64 {
        match self {
            Job::Write(job) => job.number,
            Job::Call(number, _) => *number,
        }
    }

    fn about(&self) -> &RunKey {
        match self {
            Job::Write(job) => job.prepared.write.run(),
            Job::Call(_, call) => call.about(),
        }
    }
}

/// Counters that the store shares with its writer.
#[derive(Default)]
pub(super) struct Shared {
    /// The number of the latest job in the queue.
    pub(super) submitted: AtomicU64,
    /// The number of the latest job whose outcome is known.
    pub(super) settled: AtomicU64,
    /// How long the latest physical transaction took, in microseconds.
    pub(super) latest_us: AtomicU64,
    pub(super) steps: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) faults: Faults,
}

impl Shared {
    pub(super) fn stats(&self) -> StoreStats {
        StoreStats {
            steps: self.steps.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }
}

/// Makes a statement fail, so that tests can see what is left behind.
#[derive(Default)]
pub(super) struct Faults {
    /// Changing statements until the fault, counted from 1; 0: none.
    #[cfg(feature = "conformance")]
    pub(super) countdown: AtomicU64,
    /// The next COMMIT succeeds, and its answer is lost.
    #[cfg(feature = "conformance")]
    pub(super) lose_commit: std::sync::atomic::AtomicBool,
}

impl Faults {
    #[cfg(feature = "conformance")]
    fn strike(&self) -> rusqlite::Result<()> {
        let before = self.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if before != Ok(1) {
            return Ok(());
        }
        Err(failure(rusqlite::ffi::SQLITE_IOERR_READ, "a fault of the test"))
    }

    #[cfg(feature = "conformance")]
    fn lose_commit(&self) -> rusqlite::Result<()> {
        if self.lose_commit.swap(false, Ordering::SeqCst) {
            return Err(failure(rusqlite::ffi::SQLITE_IOERR_FSYNC, "a fault of the test"));
        }
        Ok(())
    }

    #[cfg(not(feature = "conformance"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the test's twin needs both")]
    #[inline(always)]
    fn strike(&self) -> rusqlite::Result<()> {
        Ok(())
    }

    #[cfg(not(feature = "conformance"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the test's twin needs both")]
    #[inline(always)]
    fn lose_commit(&self) -> rusqlite::Result<()> {
        Ok(())
    }
}

fn failure(code: i32, text: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(text.into()))
}

/// A physical transaction that wasn't committed.
struct Abort {
    error: Arc<rusqlite::Error>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No job was attempted.
    Begin,
    /// A job is to blame, so the others deserve a transaction without it.
    Jobs,
    /// Nothing was written.
    Commit,
    /// The commit may have become durable.
    Lost,
}

impl Abort {
    fn error(&self, about: &RunKey) -> StoreError {
        if self.stage == Stage::Lost {
            return StoreError::Unknown(self.error.clone().into());
        }
        nothing_written(&self.error, about)
    }
}

/// Runs of which an earlier write failed, and the number up to which later ones must fail as well.
type Broken = HashMap<RunKey, u64>;

/// The write connection and what belongs to it.
pub(super) struct Writer {
    pub(super) place: Place,
    /// Whose turn it is to write to the file, and that it is ours.
    pub(super) turns: Arc<Turns>,
    pub(super) turn: Option<Turn>,
    /// `None` after a failure that leaves the connection in doubt.
    pub(super) connection: Option<Connection>,
    pub(super) shared: Arc<Shared>,
    pub(super) encoders: Arc<Encoders>,
    pub(super) codec: Codec,
    pub(super) clock: Clock,
    pub(super) broken: Broken,
    /// The next job's transaction has begun.
    pub(super) begun: bool,
}

impl Writer {
    /// The thread: works until the queue is closed and empty.
    pub(super) fn run(writer: &Mutex<Self>, jobs: &mpsc::Receiver<Job>) {
        let turns = Self::take(writer).turns.clone();
        while let Some(first) = next(jobs) {
            // Waited for before the others are collected: more of them come meanwhile.
            let turn = turns.wait(BUSY_TIMEOUT);
            let mut bytes = first.weight();
            let mut batch = vec![first];
            // Only what is there already: a lone commit doesn't wait for company.
            while batch.len() < BATCH_JOBS
                && bytes < BATCH_BYTES
                && let Ok(job) = jobs.try_recv()
            {
                bytes += job.weight();
                batch.push(job);
            }
            let mut writer = Self::take(writer);
            match turn {
                Some(_ours) => writer.commit(batch),
                None => writer.answer(batch, Some(&kept_out())),
            }
        }
        // The last connection to go folds the log into the file.
        Self::take(writer).connection = None;
    }

    /// Waits for the writer. Whoever panicked with it in hand may have left a transaction open.
    fn take(writer: &Mutex<Self>) -> MutexGuard<'_, Self> {
        writer.lock().unwrap_or_else(|poisoned| {
            writer.clear_poison();
            let mut writer = poisoned.into_inner();
            (writer.begun, writer.connection, writer.turn) = (false, None, None);
            writer
        })
    }

    /// Begins a transaction on the thread of whoever took the writer, unless that could take long: somebody else may
    /// hold the file, or the connection may have to be opened first. Both are waited for by the writer's thread.
    pub(super) fn begin_at_once(&mut self) -> bool {
        let Some(connection) = &self.connection else { return false };
        let Some(turn) = self.turns.take_at_once() else { return false };
        let begun = connection.busy_timeout(Duration::ZERO).and_then(|()| begin(connection));
        self.begun = begun.is_ok();
        if connection.busy_timeout(BUSY_TIMEOUT).is_err() {
            // A connection that doesn't wait must not be left to the thread; the transaction goes with it.
            (self.begun, self.connection) = (false, None);
        }
        self.turn = self.begun.then_some(turn);
        self.begun
    }

    /// Commits a single job in the transaction that was begun at once.
    pub(super) fn commit_one(&mut self, job: Job) {
        let _ours = self.turn.take();
        self.commit(vec![job]);
    }

    fn commit(&mut self, mut batch: Vec<Job>) {
        match self.transaction(&mut batch) {
            Err(abort) if abort.stage == Stage::Jobs && batch.len() > 1 => {
                for job in batch {
                    self.commit(vec![job]);
                }
            }
            outcome => self.answer(batch, outcome.err().as_ref()),
        }
    }

    fn transaction(&mut self, batch: &mut [Job]) -> Result<(), Abort> {
        let began = now_us();
        let outcome = self.attempt_transaction(batch);
        let took = u64::try_from(now_us() - began).unwrap_or(u64::MAX);
        self.shared.latest_us.store(took, Ordering::Relaxed);
        outcome
    }

    /// A connection as the store's codec wants it.
    pub(super) fn set_up(&self, connection: Connection) -> rusqlite::Result<Connection> {
        if self.codec.hook.is_some() {
            connection::overwrite_deleted(&connection)?;
        }
        Ok(connection)
    }

    fn attempt_transaction(&mut self, batch: &mut [Job]) -> Result<(), Abort> {
        let abort = |stage| move |error| Abort { error: Arc::new(error), stage };
        if self.connection.is_none() {
            let opened = connection::open_writer(&self.place).map_err(|refusal| {
                let source = StoreError::from(refusal).into();
                abort(Stage::Begin)(rusqlite::Error::ToSqlConversionFailure(source))
            })?;
            self.connection = Some(self.set_up(opened).map_err(abort(Stage::Begin))?);
        }
        let connection = self.connection.as_ref().expect("it was opened just now");
        if !std::mem::take(&mut self.begun) {
            begin(connection).map_err(abort(Stage::Begin))?;
        }
        let tx = Tx { connection, now: self.clock.now_us(), codec: &self.codec, faults: &self.shared.faults };
        let outcome = attempt_all(&tx, batch, &self.broken, &self.shared)
            .map_err(abort(Stage::Jobs))
            .and_then(|ending| match ending {
                Ending::Commit => {
                    end(&tx).inspect(|()| _ = self.shared.syncs.fetch_add(1, Ordering::Relaxed))
                }
                Ending::Nothing => Ok(()),
            });
        if outcome.is_err() && !connection.is_autocommit() && connection.execute_batch("ROLLBACK").is_err() {
            // Dropping it is the surest rollback.
            self.connection = None;
        }
        if outcome.as_ref().is_err_and(|abort| abort.stage == Stage::Lost) {
            self.connection = None;
        }
        outcome
    }

    fn answer(&mut self, batch: Vec<Job>, abort: Option<&Abort>) {
        if abort.is_none() {
            self.shared.transactions.fetch_add(1, Ordering::Relaxed);
        }
        let last = batch.last().map_or(0, Job::number);
        // Known before it is told: whoever is told may find the writer free for the next one.
        self.shared.settled.store(last, Ordering::SeqCst);
        for job in batch {
            let failure = abort.map(|abort| abort.error(job.about()));
            match job {
                Job::Write(job) => self.answer_write(job, failure),
                Job::Call(_, call) => call.finish(failure),
            }
        }
        if last == self.shared.submitted.load(Ordering::SeqCst) {
            // Nothing is queued behind a failure any more.
            self.broken.clear();
        }
    }

    fn answer_write(&mut self, job: Box<WriteJob>, failure: Option<StoreError>) {
        let WriteJob { prepared, reply, answer, room, .. } = *job;
        let answer = failure.map_or_else(|| answered(answer), Err);
        match &answer {
            Ok(Written::Committed) => {
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                if matches!(&*prepared.write, Write::Step(_)) {
                    self.shared.steps.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(_) => {}
            Err(_) => {
                let run = prepared.write.run();
                self.broken.insert(run.clone(), self.shared.submitted.load(Ordering::SeqCst));
                // What it built on may never have been stored: the next state is a snapshot.
                self.encoders.forget(run);
            }
        }
        // Room first: whoever is woken by the answer may want to submit the next one.
        drop(room);
        let _ = reply.send(answer);
    }
}

/// The next job. Whoever was answered just now often has the next one ready in less time than it takes to put a
/// thread to sleep and to wake it, so we look a few times before we sleep.
fn next(jobs: &mpsc::Receiver<Job>) -> Option<Job> {
    for _ in 0..LOOKS {
        if let Ok(job) = jobs.try_recv() {
            return Some(job);
        }
        std::thread::yield_now();
    }
    jobs.recv().ok()
}

/// A transaction of the user's has held the file for too long.
fn kept_out() -> Abort {
    let error = failure(rusqlite::ffi::SQLITE_BUSY, "a transaction in the same file hasn't ended");
    Abort { error: Arc::new(error), stage: Stage::Begin }
}

/// Begins a transaction with the write lock in hand, as soon as the connection's busy timeout lets it.
fn begin(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute(()).map(drop)
}

fn end(tx: &Tx<'_>) -> Result<(), Abort> {
    let connection = tx.connection;
    let abort = |stage| move |error| Abort { error: Arc::new(error), stage };
    if connection.is_autocommit() {
        // SQLite rolled back by itself, so a COMMIT would succeed and mean nothing.
        let error = failure(rusqlite::ffi::SQLITE_ABORT_ROLLBACK, "SQLite rolled the transaction back");
        return Err(abort(Stage::Jobs)(error));
    }
    let mut outcome = commit_once(tx);
    for _ in 1..COMMIT_TRIES {
        match &outcome {
            Err(error) if is_busy(error) && !connection.is_autocommit() => outcome = commit_once(tx),
            _ => break,
        }
    }
    outcome.map_err(|error| {
        let stage = if commit_left_nothing(&error) { Stage::Commit } else { Stage::Lost };
        abort(stage)(error)
    })
}

fn commit_once(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.connection.prepare_cached("COMMIT")?.execute(())?;
    tx.faults.lose_commit()
}

/// What is left to do after all jobs were attempted.
enum Ending {
    Commit,
    /// The only job undid itself.
    Nothing,
}

/// Attempts each job in a savepoint of its own; a lone one needs none, since the transaction is its own.
fn attempt_all(tx: &Tx<'_>, batch: &mut [Job], broken: &Broken, shared: &Shared) -> rusqlite::Result<Ending> {
    let control = |sql: &str| tx.connection.prepare_cached(sql)?.execute(()).map(drop);
    let mut failed = Broken::new();
    if let [job] = batch {
        if attempt(tx, job, broken, &mut failed, shared)? {
            return Ok(Ending::Commit);
        }
        return control("ROLLBACK").map(|()| Ending::Nothing);
    }
    for job in batch {
        control("SAVEPOINT job")?;
        if !attempt(tx, job, broken, &mut failed, shared)? {
            control("ROLLBACK TO job")?;
        }
        control("RELEASE job")?;
    }
    Ok(Ending::Commit)
}

/// Attempts a job; answers whether to keep what it wrote.
fn attempt(
    tx: &Tx<'_>,
    job: &mut Job,
    broken: &Broken,
    failed: &mut Broken,
    shared: &Shared,
) -> rusqlite::Result<bool> {
    match job {
        Job::Write(job) => {
            let keep = attempt_write(tx, job, broken, failed)?;
            if let Some(Err(_)) = &job.answer {
                let until = shared.submitted.load(Ordering::SeqCst);
                failed.insert(job.prepared.write.run().clone(), until);
            }
            Ok(keep)
        }
        Job::Call(_, call) => call.attempt(tx),
    }
}

fn attempt_write(
    tx: &Tx<'_>,
    job: &mut WriteJob,
    broken: &Broken,
    failed: &Broken,
) -> rusqlite::Result<bool> {
    let run = job.prepared.write.run();
    let until = [broken, failed].into_iter().filter_map(|runs| runs.get(run)).max();
    if until.is_some_and(|until| job.number <= *until) {
        job.answer = Some(Err(StoreError::Retry("an earlier write of the run failed".into())));
        return Ok(false);
    }
    keep(&mut job.answer, commit::write(tx, &job.prepared))
}
