//! The one place that reads the monotonic clock; what the time of day is, the store's clock says. Nothing that is
//! committed depends on either but timestamps.
#![allow(clippy::disallowed_methods, reason = "this is the clock that the others are handed")]

use hapax_core::limits::MAX_WAIT;
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior};

/// A point on the monotonic clock: the runtime's, so that deadlines and timers agree also when a test stops it.
pub(crate) fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What has passed since the machine started, also while it or this process stood still.
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Ticks that come so often; those that were missed don't come all at once.
pub(crate) fn ticks(often: Duration) -> Interval {
    let mut ticks = tokio::time::interval(often);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// What is left until then.
pub(crate) fn left_until(end: Instant) -> Duration {
    end.saturating_duration_since(instant())
}

/// That much later, in microseconds since 1970. A century at the most: sums of times stay far from the end of their type.
pub(crate) fn later(now_us: i64, by: Duration) -> i64 {
    now_us.saturating_add(by.min(MAX_WAIT).as_micros() as i64)
}

/// What has passed since.
pub(crate) fn since(start: Instant) -> Duration {
    instant().saturating_duration_since(start)
}
