//! What is quick enough to be done on the caller's thread.
//!
//! Invariant: nothing is, before it was done once elsewhere; and what took long is done elsewhere the next time.

use crate::clock::now_us;
use std::sync::atomic::{AtomicU64, Ordering};

/// As long as a caller's thread may do nothing else, in microseconds: as long as the store's own writes may take it.
const QUICK_US: u64 = 2_000;

/// How long something took the last time it was done, in microseconds.
#[derive(Debug)]
pub(super) struct Quick(AtomicU64);

impl Default for Quick {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Quick {
    pub(super) fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed) < QUICK_US
    }

    /// Does it, and looks how long it takes.
    pub(super) fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = now_us();
        let done = work();
        // A clock that was set back tells nothing.
        let took = u64::try_from(now_us() - began).unwrap_or(u64::MAX);
        self.0.store(took, Ordering::Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_long_is_not_quick_until_it_was_again() {
        let quick = Quick::default();
        assert!(!quick.is_quick(), "nothing is known of it");
        quick.timed(|| ());
        assert!(quick.is_quick());
        quick.0.store(QUICK_US, Ordering::Relaxed);
        assert!(!quick.is_quick());
    }
}
