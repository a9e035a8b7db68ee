//! The one place that reads clocks. Nothing that is committed depends on them but timestamps.
#![allow(clippy::disallowed_methods, reason = "this is the clock that the others are handed")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
pub(crate) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A point on the monotonic clock: the runtime's, so that deadlines and timers agree also when a test stops it.
pub(crate) fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What has passed since.
pub(crate) fn since(start: Instant) -> Duration {
    instant().saturating_duration_since(start)
}
