//! The one look at the clock: how long a server may take to become what it should.

#![allow(clippy::disallowed_methods, reason = "a wait for another process ends by the clock of the machine")]

use std::time::{Duration, Instant};

/// A moment after which nobody waits any longer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Deadline(Instant::now() + limit)
    }

    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}
