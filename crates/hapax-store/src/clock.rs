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
pub struct Clock(Kind);

#[derive(Debug, Clone, Default)]
enum Kind {
    #[default]
    System,
    /// Its time.
    Manual(Arc<AtomicI64>),
    /// By how much it is ahead of the system's.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    Server(Arc<AtomicI64>),
}

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self(Kind::System)
    }

    /// One that stands still until it is told to go on; clones are the same clock. It begins at the system's time.
    pub fn manual() -> Self {
        Self(Kind::Manual(Arc::new(AtomicI64::new(now_us()))))
    }

    /// A server's, as far as it was [heard](Self::heard); the system's until then.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn of_server() -> Self {
        Self(Kind::Server(Arc::default()))
    }

    /// The server said this when it was asked at one time of the system's clock and had answered at the other. How long
    /// each way took isn't known, so a clock that was right is left alone.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn heard(&self, asked_us: i64, said_us: i64, answered_us: i64) {
        let Kind::Server(ahead) = &self.0 else { return };
        let (least, most) = (said_us.saturating_sub(answered_us), said_us.saturating_sub(asked_us));
        // The system's own clock may have been set back meanwhile.
        if least <= most && !hapax_core::canary::on("own_clock") {
            ahead.store(ahead.load(Ordering::SeqCst).clamp(least, most), Ordering::SeqCst);
        }
    }

    /// Whether it stands still by itself.
    pub fn is_manual(&self) -> bool {
        matches!(self.0, Kind::Manual(_))
    }

    /// Microseconds since 1970.
    pub fn now_us(&self) -> i64 {
        match &self.0 {
            Kind::System => now_us(),
            Kind::Manual(us) => us.load(Ordering::SeqCst),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            Kind::Server(ahead) => now_us().saturating_add(ahead.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock; others go their own way.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now_us().saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)));
    }

    /// Moves a manual clock to that time, never back.
    pub fn advance_to(&self, at_us: i64) {
        if let Kind::Manual(us) = &self.0 {
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

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn a_servers_clock_is_followed_as_far_as_it_is_known() {
        let ahead = |clock: &Clock| match &clock.0 {
            Kind::Server(ahead) => ahead.load(Ordering::SeqCst),
            _ => panic!("it is a server's"),
        };
        let clock = Clock::of_server();
        clock.heard(100, 150, 200);
        assert_eq!(ahead(&clock), 0, "it may be right");
        clock.heard(100, 1100, 120);
        assert_eq!(ahead(&clock), 980, "no more than is sure");
        clock.heard(100, 1050, 300);
        assert_eq!(ahead(&clock), 950, "and no less");
        clock.heard(300, 50, 100);
        assert_eq!(ahead(&clock), 950, "the system's clock was set back: nothing is known");
    }
}
