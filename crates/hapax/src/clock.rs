//! The one place that reads the monotonic clock; what the time of day is, the store's clock says. Nothing that is
//! committed depends on either but timestamps.
#![allow(clippy::disallowed_methods, reason = "this is the clock that the others are handed")]

use std::time::{Duration, Instant};

/// A point on the monotonic clock: the runtime's, so that deadlines and timers agree also when a test stops it.
pub(crate) fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What has passed since.
pub(crate) fn since(start: Instant) -> Duration {
    instant().saturating_duration_since(start)
}
