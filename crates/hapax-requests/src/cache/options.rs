//! How the cache is reached, and what it may cost.

use hapax_core::error::code;
use hapax_store::{Clock, StoreError};
use redis::Client;
use std::{fmt, time::Duration};

/// A cache is faster than a database, or it is of no use.
const ANSWER_LIMIT: Duration = Duration::from_millis(25);
const REST: Duration = Duration::from_secs(1);
const SKEW: Duration = Duration::from_secs(60);
const MAX_BYTES: usize = 64 * 1024;

/// How a cache is reached, and what it may cost.
///
/// ```
/// use hapax_requests::{CacheOptions, CachedRequests};
/// use hapax_store::requests::MemoryRequests;
/// use std::{sync::Arc, time::Duration};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let secret = [7; 32]; // yours is random, the same for all processes of the service, and not in the program
/// let options = CacheOptions::new("redis://127.0.0.1:6379/0", secret)?
///     .answer_limit(Duration::from_millis(10))
///     .rest(Duration::from_secs(5))
///     .skew(Duration::from_secs(300))
///     .max_bytes(16 * 1024)
///     .prefix("payments:");
/// let store = CachedRequests::new(Arc::new(MemoryRequests::new()), options);
/// assert!(CacheOptions::new("https://127.0.0.1", secret).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CacheOptions {
    pub(super) client: Client,
    pub(super) secret: [u8; 32],
    pub(super) answer_limit: Duration,
    pub(super) rest: Duration,
    pub(super) skew: Duration,
    pub(super) max_bytes: usize,
    pub(super) prefix: String,
    pub(super) clock: Clock,
}

impl CacheOptions {
    /// A cache at this address (`redis://user:password@host:port/database`), under this secret.
    ///
    /// Nothing is connected yet: a Redis that is down is no error, now or later. An address that is none is one.
    pub fn new(url: &str, secret: [u8; 32]) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(|error| StoreError::Open {
            what: "the cache of requests".into(),
            why: format!("its address is none of Redis: {error}"),
            code: code::BAD_URL,
        })?;
        Ok(Self {
            client,
            secret,
            answer_limit: ANSWER_LIMIT,
            rest: REST,
            skew: SKEW,
            max_bytes: MAX_BYTES,
            prefix: "hapax:rq:".into(),
            clock: Clock::system(),
        })
    }

    /// How long an answer of Redis is waited for; 25 milliseconds by default. Then the store is asked.
    #[must_use]
    pub fn answer_limit(mut self, limit: Duration) -> Self {
        self.answer_limit = limit;
        self
    }

    /// How long a Redis that didn't answer is left alone; a second by default. Then one request tries it.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// How far the clock of this process may be behind the database's; a minute by default. Records that expire in less
    /// time aren't answered from the cache.
    #[must_use]
    pub fn skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// The largest record that is cached, with its answer; 64 KiB by default.
    #[must_use]
    pub fn max_bytes(mut self, limit: usize) -> Self {
        self.max_bytes = limit;
        self
    }

    /// What the names of the cached records begin with; `hapax:rq:` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The clock by which records expire in this process; the system's by default. For tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the secret nor the address, which may hold a password.
        f.debug_struct("CacheOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
