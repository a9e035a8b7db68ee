//! A read cache of finished requests in Redis, over any store.
//!
//! Invariant: the store below is the truth. Redis holds copies of finished records, each under a seal; it answers a claim only
//! with the record of that very request, sealed by one of us and not expired, and in every other case, down, slow, flushed
//! or lying, the store is asked as if there were no Redis. Nothing is decided in it.

mod clock;
mod link;
mod options;
mod sealed;

pub use options::CacheOptions;

use crate::stats::count;
use hapax_core::{
    canary,
    key::DigestBuilder,
    request::{Completion, Lease, Outcome, Record, RecoveryPoint, RequestId, Token},
};
use hapax_store::{
    Clock, StoreError,
    requests::{Begun, Claim, Finished, Listed, RequestFilter, RequestStore},
    store::Answer,
};
use link::{Link, Silence};
use redis::cmd;
use sealed::{Sealer, Unfit};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

/// So many records are on their way to Redis at a time; those that come meanwhile are cached when they are asked for again.
const FILLS: u32 = 64;

/// How often a cache was of use, since it was made.
///
/// ```
/// # use hapax_requests::{CacheOptions, CachedRequests};
/// # use hapax_store::requests::MemoryRequests;
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let options = CacheOptions::new("redis://127.0.0.1:6379/0", [7; 32])?;
/// let store = CachedRequests::new(Arc::new(MemoryRequests::new()), options);
/// let stats = store.stats();
/// assert_eq!((stats.hits, stats.misses, stats.errors), (0, 0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Claims that were answered by the cache: the store wasn't asked.
    pub hits: u64,
    /// Claims that went to the store, whatever the reason.
    pub misses: u64,
    /// Of these, those that were not put to Redis because it had failed a moment ago.
    pub rested: u64,
    /// Of these, those for which there was something that nobody who has the secret has written.
    pub forged: u64,
    /// Questions and records for Redis that failed or weren't answered in time.
    pub errors: u64,
    /// Records that were cached.
    pub filled: u64,
    /// Records that weren't: too large, about to expire, too many at a time, or Redis had failed a moment ago.
    pub skipped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    rested: AtomicU64,
    forged: AtomicU64,
    errors: AtomicU64,
    filled: AtomicU64,
    skipped: AtomicU64,
}

/// A store whose finished requests are answered from Redis, if that has them.
///
/// It is a store like any other, so no layer knows of it. Claims are decided by the store below.
///
/// ```
/// use hapax_requests::{CacheOptions, CachedRequests, IdempotencyLayer};
/// use hapax_store::requests::{Begun, Claim, MemoryRequests, RequestStore};
/// # use hapax_core::{id::Namespace, key::sha256, request::{RequestHash, RequestId}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let secret = [7; 32];
/// # let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// # let claim = Claim::new(id, RequestHash(sha256(b"4200")));
/// let truth = Arc::new(MemoryRequests::new()); // yours is a database
/// let store = CachedRequests::new(truth, CacheOptions::new("redis://127.0.0.1:6379/0", secret)?);
/// let layer = IdempotencyLayer::new(store.clone(), |_| Some("merchant-7".into()));
/// // Whether there is a Redis or not:
/// assert!(matches!(store.begin(&claim).await?, Begun::Execute(_)));
/// assert!(matches!(store.begin(&claim).await?, Begun::InProgress { .. }));
/// assert_eq!(store.stats().hits, 0, "it isn't finished");
/// # Ok(())
/// # }
/// ```
pub struct CachedRequests {
    store: Arc<dyn RequestStore>,
    cache: Arc<Cache>,
}

impl CachedRequests {
    /// A cache over a store.
    pub fn new(store: Arc<dyn RequestStore>, options: CacheOptions) -> Arc<Self> {
        Arc::new(Self { store, cache: Arc::new(Cache::new(options)) })
    }

    /// How often it was of use.
    pub fn stats(&self) -> CacheStats {
        let counters = &self.cache.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hits: read(&counters.hits),
            misses: read(&counters.misses),
            rested: read(&counters.rested),
            forged: read(&counters.forged),
            errors: read(&counters.errors),
            filled: read(&counters.filled),
            skipped: read(&counters.skipped),
        }
    }

    /// Waits until no record is on its way to Redis. Nothing depends on their arrival.
    pub async fn settled(&self) {
        // It is never closed.
        let _ = self.cache.fills.acquire_many(FILLS).await;
    }

    async fn claim(&self, claim: &Claim, retry: bool) -> Result<Begun, StoreError> {
        if canary::on("redis_decides") {
            return Ok(self.cache.decide(claim).await);
        }
        if let Some(record) = self.cache.get(claim).await {
            return Ok(Begun::Replay(Box::new(record)));
        }
        let begun = if retry { self.store.reacquire(claim).await? } else { self.store.begin(claim).await? };
        if let Begun::Replay(record) = &begun {
            let record = Record::clone(record);
            self.cache.fill(move |cache| async move { cache.put(&record).await });
        }
        Ok(begun)
    }

    /// What is cached is what the store has, so it is read there: how long it is kept is known to the database alone.
    fn finished(&self, id: &RequestId) {
        let (store, id) = (self.store.clone(), id.clone());
        self.cache.fill(move |cache| async move {
            if let Ok(Some(record)) = store.get(&id).await {
                cache.put(&record).await;
            }
        });
    }
}

impl fmt::Debug for CachedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedRequests").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

struct Cache {
    link: Link,
    sealer: Sealer,
    clock: Clock,
    skew: Duration,
    max_bytes: usize,
    prefix: String,
    /// A permit for each record that is on its way.
    fills: Arc<Semaphore>,
    counters: Counters,
}

impl Cache {
    fn new(options: CacheOptions) -> Self {
        Self {
            link: Link::new(options.client, options.answer_limit, options.rest),
            sealer: Sealer::new(options.secret),
            clock: options.clock,
            skew: options.skew,
            max_bytes: options.max_bytes,
            prefix: options.prefix,
            fills: Arc::new(Semaphore::new(FILLS as usize)),
            counters: Counters::default(),
        }
    }

    /// Where a record is. A digest, so that neither principals nor keys are read from the names.
    fn place(&self, id: &RequestId) -> String {
        let mut digest = DigestBuilder::new("hapax.request.cache.v1");
        digest.text(id.namespace().as_str()).text(id.principal()).text(id.method()).text(id.key());
        format!("{}{}", self.prefix, digest.finish())
    }

    /// The record that answers a claim.
    async fn get(&self, claim: &Claim) -> Option<Record> {
        let found = self.look(claim).await;
        count(if found.is_some() { &self.counters.hits } else { &self.counters.misses });
        found
    }

    async fn look(&self, claim: &Claim) -> Option<Record> {
        // One byte more than may be there: whatever lies there, no more of it is sent.
        let mut question = cmd("GETRANGE");
        question.arg(self.place(&claim.id)).arg(0).arg(self.max_bytes);
        let bytes: Vec<u8> = match self.link.ask(&question).await {
            Ok(bytes) => bytes,
            Err(silence) => {
                let counters = &self.counters;
                count(if silence == Silence::Resting { &counters.rested } else { &counters.errors });
                return None;
            }
        };
        if bytes.is_empty() {
            return None;
        }
        let now_us = self.clock.now_us().saturating_add(micros(self.skew));
        match self.sealer.open(&bytes, claim, now_us) {
            Ok(record) => Some(record),
            Err(Unfit::Other) => None,
            Err(Unfit::Forged) => {
                count(&self.counters.forged);
                None
            }
        }
    }

    /// Does something that nobody waits for, unless too much of it is under way.
    fn fill<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        match self.fills.clone().try_acquire_owned() {
            Ok(permit) => {
                let work = work(self.clone());
                tokio::spawn(async move {
                    work.await;
                    drop(permit);
                });
            }
            Err(_) => count(&self.counters.skipped),
        }
    }

    /// Puts a record there that the store has, until it expires.
    async fn put(&self, record: &Record) {
        let Some(sealed) = self.sealer.seal(record) else { return };
        let left_ms = record.expires_at_us.saturating_sub(self.clock.now_us()) / 1000;
        if sealed.len() > self.max_bytes || left_ms <= micros(self.skew) / 1000 {
            return count(&self.counters.skipped);
        }
        let mut order = cmd("SET");
        order.arg(self.place(&record.id)).arg(sealed).arg("PX").arg(left_ms);
        count(match self.link.ask::<()>(&order).await {
            Ok(()) => &self.counters.filled,
            Err(Silence::Resting) => &self.counters.skipped,
            Err(Silence::Failed) => &self.counters.errors,
        });
    }

    /// For a canary: whoever is first in Redis executes.
    async fn decide(&self, claim: &Claim) -> Begun {
        let mut order = cmd("SET");
        order.arg(self.place(&claim.id)).arg("claimed").arg("NX");
        let token = Token { sequence: 0, nonce: 0, updated_at_us: 0 };
        match self.link.ask::<Option<String>>(&order).await.ok().flatten() {
            Some(_) => Begun::Execute(Lease {
                id: claim.id.clone(),
                token,
                attempt: 1,
                lease_until_us: 0,
                point: None,
                origin: 0,
            }),
            None => Begun::InProgress { retry_after: claim.lease },
        }
    }
}

fn micros(duration: Duration) -> i64 {
    duration.as_micros().try_into().unwrap_or(i64::MAX)
}

impl RequestStore for CachedRequests {
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(self.claim(claim, false))
    }

    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(self.claim(claim, true))
    }

    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
        Box::pin(async {
            let finished = self.store.finish(lease, completion).await?;
            if finished == Finished::Done && completion.status != Outcome::FailedRetryable {
                self.finished(&lease.id);
            }
            Ok(finished)
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
        self.store.heartbeat(lease, ttl)
    }

    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
        self.store.set_point(lease, point)
    }

    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
        self.store.get(id)
    }

    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
        self.store.list(filter)
    }

    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
        self.store.release(id)
    }

    fn sweep(&self, limit: usize) -> Answer<'_, u64> {
        self.store.sweep(limit)
    }

    fn expired(&self) -> Answer<'_, u64> {
        self.store.expired()
    }

    fn now_us(&self) -> Answer<'_, i64> {
        self.store.now_us()
    }
}
