//! Makes a statement fail, so that tests can see what is left behind. Without the feature `conformance` it does nothing.

use super::sql::Fault;
#[cfg(feature = "conformance")]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Changing statements until the fault, counted from 1; 0: none.
    #[cfg(feature = "conformance")]
    countdown: AtomicU64,
    /// The next commit succeeds, and its answer is lost.
    #[cfg(feature = "conformance")]
    lose_commit: AtomicBool,
}

#[cfg(feature = "conformance")]
impl Faults {
    /// Makes the n-th changing statement from now, counted from 0, fail.
    pub(crate) fn fail_at(&self, n: u64) {
        self.countdown.store(n + 1, Ordering::SeqCst);
    }

    /// Fails no more; answers whether it did.
    pub(crate) fn disarm(&self) -> bool {
        self.countdown.swap(0, Ordering::SeqCst) == 0
    }

    /// Loses the answer to the next commit.
    pub(crate) fn lose_next_commit(&self) {
        self.lose_commit.store(true, Ordering::SeqCst);
    }

    pub(crate) fn strike(&self) -> Result<(), Fault> {
        let before = self.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if before == Ok(1) { Err(Fault::Again("a fault of the test".into())) } else { Ok(()) }
    }

    pub(crate) fn after_commit(&self) -> Result<(), Fault> {
        let lost = self.lose_commit.swap(false, Ordering::SeqCst);
        if lost { Err(Fault::Lost("a fault of the test".into())) } else { Ok(()) }
    }
}

#[cfg(not(feature = "conformance"))]
#[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the test's twin needs both")]
impl Faults {
    #[inline(always)]
    pub(crate) fn strike(&self) -> Result<(), Fault> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn after_commit(&self) -> Result<(), Fault> {
        Ok(())
    }
}
