//! Spans on their way out: a queue with an end, and the task that empties it.
//!
//! Invariant: whoever puts a span in never waits. Spans are made ready for the collector by the task, not by runs.

use futures::future::BoxFuture;
use hapax::watch::Span;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
};

/// Spans that are sent together at the most, and as soon as there are so many.
const BATCH: usize = 512;
/// How long a collector may take for them, connecting included.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// An exporter of any kind.
pub(crate) trait Export: Send + Sync {
    fn send<'a>(&'a self, batch: &'a [Span]) -> BoxFuture<'a, Taken>;
}

/// What a collector said to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    All,
    /// So many it doesn't have.
    Without(usize),
}

/// What became of spans.
///
/// ```
/// let counts = hapax_telemetry::SpanCounts::default();
/// assert_eq!((counts.exported, counts.dropped, counts.failed), (0, 0, 0));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanCounts {
    /// The collector has them.
    pub exported: u64,
    /// The queue was full.
    pub dropped: u64,
    /// The collector didn't take them.
    pub failed: u64,
}

/// Spans that wait for their export.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Vec<Span>>,
    room: usize,
    /// A batch is full.
    full: Notify,
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Queue {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            room,
            full: Notify::new(),
            exported: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    pub(crate) fn push(&self, span: Span) {
        let mut waiting = self.lock();
        if waiting.len() >= self.room {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push(span);
        if waiting.len() == BATCH {
            self.full.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Span>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        SpanCounts {
            exported: self.exported.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}

/// The task that empties a queue; it ends with this.
#[derive(Debug)]
pub(crate) struct Exporting {
    flush: mpsc::Sender<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Drop for Exporting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Exporting {
    pub(crate) fn start(queue: Arc<Queue>, exporter: Arc<dyn Export>, every: Duration) -> Self {
        let (flush, asked) = mpsc::channel(1);
        Self { flush, task: tokio::spawn(empty(queue, exporter, every, asked)) }
    }

    /// Resolves when what was queued is exported, or lost.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.flush.send(done).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

async fn empty(
    queue: Arc<Queue>,
    exporter: Arc<dyn Export>,
    every: Duration,
    mut asked: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut is_well = true;
    loop {
        let flush = tokio::select! {
            () = queue.full.notified() => None,
            () = tokio::time::sleep(every) => None,
            flush = asked.recv() => flush,
        };
        let waiting = std::mem::take(&mut *queue.lock());
        let mut hangs = false;
        for batch in waiting.chunks(BATCH) {
            // Whoever didn't answer once isn't waited for again and again: a flush comes to its end.
            let failed = match hangs {
                true => batch.len(),
                false => send(&*exporter, batch, &mut hangs).await,
            };
            queue.exported.fetch_add((batch.len() - failed) as u64, Ordering::Relaxed);
            queue.failed.fetch_add(failed as u64, Ordering::Relaxed);
            if is_well && failed > 0 {
                // Why isn't said: the reason may hold the collector's address, and that a password.
                tracing::warn!(spans = failed, "the collector doesn't take spans; they are lost");
            }
            is_well = failed == 0;
        }
        if let Some(done) = flush {
            let _ = done.send(());
        }
    }
}

/// How many of a batch the collector doesn't have.
async fn send(exporter: &dyn Export, batch: &[Span], hangs: &mut bool) -> usize {
    let taken = tokio::time::timeout(PATIENCE, exporter.send(batch)).await;
    *hangs = taken.is_err();
    match taken {
        Ok(Taken::All) => 0,
        Ok(Taken::Without(spans)) => spans.min(batch.len()),
        Err(_) => batch.len(),
    }
}
