//! The store's clock: the only place of this crate that asks for the time.

use hapax_core::limits::MAX_WAIT;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The clock by which leases end, parked runs wake and nodes tell the time.
///
/// ```
/// use hapax_store::Clock;
/// use std::time::Duration;
///
/// let clock = Clock::manual();
/// let before = clock.now_us();
/// clock.advance(Duration::from_secs(30 * 86_400));
/// assert_eq!(clock.now_us() - before, 30 * 86_400 * 1_000_000);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicI64>>);

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self(None)
    }

    /// One that stands still until it is told to go on; clones are the same clock. It begins at the system's time.
    pub fn manual() -> Self {
        Self(Some(Arc::new(AtomicI64::new(now_us()))))
    }

    /// Whether it stands still by itself.
    pub fn is_manual(&self) -> bool {
        self.0.is_some()
    }

    /// Microseconds since 1970.
    pub fn now_us(&self) -> i64 {
        self.0.as_ref().map_or_else(now_us, |us| us.load(Ordering::SeqCst))
    }

    /// Moves a manual clock; the system's goes its own way.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now_us().saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)));
    }

    /// Moves a manual clock to that time, never back.
    pub fn advance_to(&self, at_us: i64) {
        if let Some(us) = &self.0 {
            us.fetch_max(at_us, Ordering::SeqCst);
        }
    }
}

/// A duration as it is added to a time. A century at the most: sums of times stay far from the end of their type.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.min(MAX_WAIT).as_micros()).unwrap_or(i64::MAX)
}

/// How long it is from one time to a later one.
pub(crate) fn micros_left(until: i64, now: i64) -> Duration {
    Duration::from_micros(u64::try_from(until.saturating_sub(now)).unwrap_or(0))
}

/// Microseconds since 1970. A clock that is set before 1970 reads as 0.
///
/// ```
/// assert!(hapax_store::clock::now_us() > 1_700_000_000_000_000);
/// ```
#[allow(
    clippy::disallowed_methods,
    reason = "leases and retention need the wall clock, and this is its door"
)]
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
