//! The one place that reads the monotonic clock; what the time of day is, the store's clock says. Nothing that is
//! committed depends on either but timestamps.
#![allow(clippy::disallowed_methods, reason = "this is the clock that the others are handed")]

use hapax_core::limits::MAX_WAIT;
use std::time::{Duration, Instant};

/// A point on the monotonic clock: the runtime's, so that deadlines and timers agree also when a test stops it.
pub(crate) fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// That much later, in microseconds since 1970. A century at the most: sums of times stay far from the end of their type.
pub(crate) fn later(now_us: i64, by: Duration) -> i64 {
    now_us.saturating_add(by.min(MAX_WAIT).as_micros() as i64)
}

/// What has passed since.
pub(crate) fn since(start: Instant) -> Duration {
    instant().saturating_duration_since(start)
}
