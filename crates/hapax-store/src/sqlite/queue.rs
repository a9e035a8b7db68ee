//! The way to the writer: a queue that is bounded in bytes and in number.
//!
//! Invariant: room is granted in the order in which it was asked for, and between the grant and the send nothing
//! waits; so what one task submits is queued in its order.

use super::{
    prepare::Prepared,
    writer::{Closure, Job, Outcome, Shared, Tx, WriteJob, Writer},
};
use crate::{error::StoreError, store::Ticket};
use hapax_core::id::RunKey;
use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering, mpsc},
    thread::JoinHandle,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Bytes that may be queued. One permit of the semaphore is one byte.
const ROOM: u32 = 32 * 1024 * 1024;
/// What even the smallest write takes, so that the room bounds their number as well: 4096.
const SMALLEST: u32 = 8 * 1024;

/// The submitting end.
pub(super) struct Queue {
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
        let thread =
            std::thread::Builder::new().name("hapax-sqlite".into()).spawn(move || writer.run(&jobs))?;
        Ok(Self {
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

    /// Queues a write.
    pub(super) fn write(&self, prepared: Prepared, room: OwnedSemaphorePermit) -> Result<Ticket, StoreError> {
        let (reply, ticket) = Ticket::new();
        self.send(|number| Job::Write(Box::new(WriteJob { number, prepared, reply, answer: None, room })))?;
        Ok(ticket)
    }

    /// Runs `work` in a transaction of the writer; it may run again when the transaction doesn't commit.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        about: RunKey,
        work: impl FnMut(&Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(|number| Job::Call(number, Box::new(Closure { about, work, answer: None, reply })))?;
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::Unknown("the store's writer ended before it answered".into()))
        })
    }

    fn send(&self, job: impl FnOnce(u64) -> Job) -> Result<(), StoreError> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = &*sender else { return Err(closed()) };
        // Numbered under the lock, so that the numbers are in the order of the queue.
        let number = self.shared.submitted.fetch_add(1, Ordering::SeqCst) + 1;
        sender.send(job(number)).map_err(|_| StoreError::Retry("the store's writer has ended".into()))
    }

    /// Takes no more jobs; answers the thread, which ends when all are answered.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.room.close();
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
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
