//! How often each decision was made.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a layer made each decision, since it was made.
///
/// ```
/// use hapax_requests::{IdempotencyLayer, Stats};
/// use hapax_store::requests::MemoryRequests;
/// use std::sync::Arc;
/// let layer = IdempotencyLayer::new(Arc::new(MemoryRequests::new()), |_| Some("merchant-7".into()));
/// assert_eq!(layer.stats(), Stats::default());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Handlers that were started.
    pub executed: u64,
    /// Of these, those that were started before: they failed, or whoever executed them died.
    pub takeovers: u64,
    /// Answers that were given again.
    pub replayed: u64,
    /// Requests that were under way already.
    pub conflicts: u64,
    /// Keys that were used for another request.
    pub mismatches: u64,
    /// Requests that weren't fit to be claimed: no key, a bad one, a body that is too large.
    pub refused: u64,
    /// Executions whose right to end was lost meanwhile.
    pub stale: u64,
    /// Calls to the store that failed.
    pub store_errors: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) executed: AtomicU64,
    pub(crate) takeovers: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) mismatches: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) store_errors: AtomicU64,
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            executed: read(&self.executed),
            takeovers: read(&self.takeovers),
            replayed: read(&self.replayed),
            conflicts: read(&self.conflicts),
            mismatches: read(&self.mismatches),
            refused: read(&self.refused),
            stale: read(&self.stale),
            store_errors: read(&self.store_errors),
        }
    }
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
