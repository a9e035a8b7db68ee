//! The one place of the demo that reads clocks: how long recoveries take, and when a kill is due.
#![allow(clippy::disallowed_methods, reason = "this is the clock that the others are handed")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on the monotonic clock.
pub(super) fn now() -> Instant {
    Instant::now()
}

/// What has passed since.
pub(super) fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}

/// Milliseconds since 1970.
pub(super) fn stamp() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}
