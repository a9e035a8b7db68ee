//! Waits that end, for what other processes do: there is nothing to be woken by.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);

/// Since when something is waited for, and how long it may take.
#[derive(Debug)]
pub struct Waits(Instant, Duration);

impl Waits {
    /// From now on.
    #[allow(clippy::disallowed_methods, reason = "a test that is stuck must end")]
    pub fn begin(patience: Duration) -> Self {
        Self(Instant::now(), patience)
    }

    /// How long it has been.
    pub fn passed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Rests until the next look at what is waited for.
    ///
    /// # Panics
    ///
    /// If that takes too long: then it never comes.
    pub fn check(&self, what: &str) {
        assert!(self.passed() < self.1, "stuck: {what}");
        thread::sleep(LOOK);
    }
}
