//! The one place that reads clocks: the bench is about them, but only what is asked for is timed.
#![allow(clippy::disallowed_methods, reason = "this is the clock that the others are handed")]

use rustix::time::{ClockId, clock_gettime};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A point on the monotonic clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds of CPU that all threads of this process have used, user and system.
pub(crate) fn cpu_s() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
