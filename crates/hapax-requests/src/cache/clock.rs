//! The one look at a clock: how long Redis is left alone.

use std::time::Duration;
use tokio::time::Instant;

/// A moment from which on Redis may be asked again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest(Instant);

impl Rest {
    pub(super) fn of(rest: Duration) -> Self {
        Self(Instant::now() + rest)
    }

    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}
