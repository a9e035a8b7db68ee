//! The way to the writer: a queue that is bounded in bytes and in number, and a way past it while it is empty.
//!
//! Invariant: jobs reach the writer in the order of their numbers. Room is granted in the order in which it was asked for, and between the grant and the send nothing
//! waits; so what one task submits is queued in its order.

use super::writer::{Closure, Job, Outcome, Shared, Tx, WriteJob, Writer};
use crate::{
    error::StoreError,
    prepare::Prepared,
    store::{Pace, Ticket},
};
use hapax_core::id::RunKey;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering, mpsc},
    thread::JoinHandle,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Bytes that may be queued. One permit of the semaphore is one byte.
const ROOM: u32 = 32 * 1024 * 1024;
/// What even the smallest write takes, so that the room bounds their number as well: 4096.
const SMALLEST: u32 = 8 * 1024;

/// A caller does its own write only while transactions take less than this, in microseconds: its thread does nothing
/// else meanwhile.
const QUICK_US: u64 = 2_000;

/// The submitting end.
pub(super) struct Queue {
    writer: Arc<Mutex<Writer>>,
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    /// `None`: closed.
    sender: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    /// Starts the thread.
    pub(super) fn start(writer: Writer) -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let shared = writer.shared.clone();
        let writer = Arc::new(Mutex::new(writer));
        let work = {
            let writer = writer.clone();
            move || Writer::run(&writer, &jobs)
        };
        let thread = std::thread::Builder::new().name("hapax-sqlite".into()).spawn(work)?;
        Ok(Self {
            writer,
            shared,
            room: Arc::new(Semaphore::new(ROOM as usize)),
            sender: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Waits for room.
    pub(super) async fn room(&self, weight: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let bytes = u32::try_from(weight).unwrap_or(ROOM).clamp(SMALLEST, ROOM);
        self.room.clone().acquire_many_owned(bytes).await.map_err(|_| closed())
    }

    /// Queues a write, or does it here and now when its caller is alone.
    pub(super) fn write(
        &self,
        prepared: Prepared,
        room: OwnedSemaphorePermit,
        pace: Pace,
    ) -> Result<Ticket, StoreError> {
        let (reply, ticket) = Ticket::new();
        let job = |number| Job::Write(Box::new(WriteJob { number, prepared, reply, answer: None, room }));
        let sender = lock(&self.sender);
        if sender.is_some()
            && let Some(mut writer) = self.idle(pace)
        {
            let job = job(self.next_number());
            // Whoever comes now is queued, and the thread waits for the writer.
            drop(sender);
            writer.commit_one(job);
        } else {
            self.send(sender.as_ref(), job)?;
        }
        Ok(ticket)
    }

    /// The writer with its transaction begun, when nothing is on its way to it, it is quick, and nobody else holds the
    /// file. Asked under the lock of the sender, so that nothing is queued meanwhile.
    fn idle(&self, pace: Pace) -> Option<MutexGuard<'_, Writer>> {
        let Shared { submitted, settled, latest_us, .. } = &*self.shared;
        let idle = submitted.load(Ordering::SeqCst) == settled.load(Ordering::SeqCst);
        let quick = latest_us.load(Ordering::Relaxed) < QUICK_US;
        let mut writer =
            (pace == Pace::Alone && idle && quick).then(|| self.writer.try_lock().ok()).flatten()?;
        writer.begin_at_once().then_some(writer)
    }

    /// Runs `work` in a transaction of the writer; it may run again when the transaction doesn't commit.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        about: RunKey,
        work: impl FnMut(&Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = |number| Job::Call(number, Box::new(Closure { about, work, answer: None, reply }));
        self.send(lock(&self.sender).as_ref(), job)?;
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::Unknown("the store's writer ended before it answered".into()))
        })
    }

    /// Queues a job. The sender is locked, so that the numbers are in the order of the queue.
    fn send(
        &self,
        sender: Option<&mpsc::Sender<Job>>,
        job: impl FnOnce(u64) -> Job,
    ) -> Result<(), StoreError> {
        let sender = sender.ok_or_else(closed)?;
        let ended = |_| StoreError::Retry("the store's writer has ended".into());
        sender.send(job(self.next_number())).map_err(ended)
    }

    fn next_number(&self) -> u64 {
        self.shared.submitted.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Takes no more jobs; answers the thread, which ends when all are answered.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        lock(&self.sender).take();
        self.room.close();
        lock(&self.thread).take()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> StoreError {
    StoreError::Retry("the store is closed".into())
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(thread) = self.close() {
            // Its panic has been reported by the panic hook; the tickets say `Unknown`.
            let _ = thread.join();
        }
    }
}
