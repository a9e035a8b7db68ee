//! What the cache answers, and that nothing else is asked then.

use crate::kit::{
    Below, PATIENCE, Scene, claim, execute, finish, mysql, other, paid, patient, postgres, replay, sqlite,
};
use hapax_core::request::{Completion, Lease, Record, RecoveryPoint, RequestId};
use hapax_requests::CachedRequests;
use hapax_store::{
    StoreError,
    requests::{Begun, Claim, Finished, Listed, RequestFilter, RequestStore},
    store::Answer,
};
use redis::Commands;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// Counts whatever a store is asked.
struct Counted {
    below: Arc<dyn RequestStore>,
    calls: AtomicU64,
}

impl Counted {
    fn below(&self) -> &dyn RequestStore {
        self.calls.fetch_add(1, SeqCst);
        &*self.below
    }
}

impl RequestStore for Counted {
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        self.below().begin(claim)
    }

    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        self.below().reacquire(claim)
    }

    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
        self.below().finish(lease, completion)
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
        self.below().heartbeat(lease, ttl)
    }

    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
        self.below().set_point(lease, point)
    }

    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
        self.below().get(id)
    }

    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
        self.below().list(filter)
    }

    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
        self.below().release(id)
    }

    fn sweep(&self, limit: usize) -> Answer<'_, u64> {
        self.below().sweep(limit)
    }

    fn expired(&self) -> Answer<'_, u64> {
        self.below().expired()
    }

    fn now_us(&self) -> Answer<'_, i64> {
        self.below().now_us()
    }
}

/// How often the database was asked: by the calls to its store, and by the round trips to its server.
fn asked(counted: &Counted, below: &Below) -> (u64, u64) {
    let turns = below.proxy.as_ref().map_or(0, |proxy| proxy.counts().turns);
    (counted.calls.load(SeqCst), turns)
}

async fn a_hit_asks_the_database_nothing(below: Below) {
    let counted = Arc::new(Counted { below: below.store.clone(), calls: AtomicU64::new(0) });
    let redis = hapax_servers::redis().expect("a server");
    let cached = || CachedRequests::new(counted.clone(), patient(&redis));
    let (store, elsewhere) = (cached(), cached());
    let lease = execute(&*store, &claim("k")).await;
    let point = RecoveryPoint::new("charged", hapax_core::json::Json::null()).expect("a name");
    assert_eq!(store.set_point(&lease, &point).await.expect("it is there"), Finished::Done);
    finish(&*store, &lease, &paid()).await;
    store.settled().await;
    let record = below.store.get(&lease.id).await.expect("it is there").expect("a record");
    let before = asked(&counted, &below);
    for store in [&store, &elsewhere, &store] {
        for begun in [store.begin(&claim("k")).await, store.reacquire(&claim("k")).await] {
            assert_eq!(begun.expect("an answer"), Begun::Replay(Box::new(record.clone())), "all of it");
        }
    }
    assert_eq!(asked(&counted, &below), before, "not once");
    let stats = (store.stats(), elsewhere.stats());
    assert_eq!((stats.0.hits, stats.1.hits, stats.0.misses, stats.0.filled), (4, 2, 1, 1));
    assert_eq!(store.begin(&other(&claim("k"))).await.expect("an answer"), Begun::HashMismatch);
    assert!(asked(&counted, &below) > before, "another request is for the database to judge");
}

async fn what_the_cache_lost_comes_back_with_the_next_answer(below: Below) {
    let redis = hapax_servers::redis().expect("a server");
    let store = CachedRequests::new(below.store.clone(), patient(&redis));
    let lease = execute(&*below.store, &claim("k")).await;
    finish(&*below.store, &lease, &paid()).await;
    for (hits, misses) in [(0, 1), (1, 1)] {
        assert_eq!(replay(&*store, &claim("k")).await, paid());
        store.settled().await;
        assert_eq!((store.stats().hits, store.stats().misses), (hits, misses));
    }
    crate::kit::inside(&redis).flushdb::<()>().expect("Redis answers");
    for (hits, misses) in [(1, 2), (2, 2)] {
        assert_eq!(replay(&*store, &claim("k")).await, paid());
        store.settled().await;
        assert_eq!((store.stats().hits, store.stats().misses), (hits, misses));
    }
}

/// Each of the tests on each of the databases.
macro_rules! on_each {
    ($($test:ident),*) => { on_each! { @ sqlite: $($test),* } on_each! { @ postgres: $($test),* } on_each! { @ mysql: $($test),* } };
    (@ $database:ident: $($test:ident),*) => {
        mod $database {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::$database().await).await;
            })*
        }
    };
}
on_each!(a_hit_asks_the_database_nothing, what_the_cache_lost_comes_back_with_the_next_answer);

#[tokio::test]
async fn only_what_is_finished_for_good_is_cached() {
    let scene = Scene::in_memory();
    let lease = execute(&*scene.store, &claim("k")).await;
    scene.store.settled().await;
    assert_eq!(scene.places(), [""; 0], "it is being executed");
    let failed = Completion::failed_retryable(503, "the bank is closed");
    finish(&*scene.store, &lease, &failed).await;
    scene.store.settled().await;
    assert_eq!(scene.places(), [""; 0], "it may be tried again");
    let again = execute(&*scene.store, &claim("k")).await;
    assert_eq!(again.attempt, 2);
    let refused = Completion::failed_final(402, "no cover", "declined");
    finish(&*scene.store, &again, &refused).await;
    scene.store.settled().await;
    assert_eq!(scene.places().len(), 1);
    assert_eq!(replay(&*scene.another(), &claim("k")).await, refused);
}

#[tokio::test]
async fn a_finish_that_came_too_late_caches_nothing() {
    let scene = Scene::in_memory();
    let stale = execute(&*scene.store, &Claim { lease: Duration::ZERO, ..claim("k") }).await;
    let lease = execute(&*scene.store, &claim("k")).await;
    assert_eq!(scene.store.finish(&stale, &paid()).await.expect("it is there"), Finished::Stale);
    scene.store.settled().await;
    assert_eq!(scene.places(), [""; 0]);
    let second = Completion::succeeded(201, "the second's");
    finish(&*scene.store, &lease, &second).await;
    scene.store.settled().await;
    assert_eq!(replay(&*scene.another(), &claim("k")).await, second);
}

#[tokio::test]
async fn what_is_in_redis_goes_when_the_record_does() {
    let scene = Scene::in_memory();
    scene.finished(&Claim { expiry: Duration::from_secs(600), ..claim("k") }, &paid()).await;
    let left_ms: i64 = scene.inside().pttl(scene.only().0).expect("Redis answers");
    assert!((1..=600_000).contains(&left_ms), "{left_ms}");
    // A record that is about to expire isn't worth its way.
    scene.finished(&Claim { expiry: Duration::from_secs(59), ..claim("soon") }, &paid()).await;
    assert_eq!((scene.places().len(), scene.store.stats().skipped), (1, 1));
}

#[tokio::test]
async fn a_large_answer_is_not_cached() {
    let scene = Scene::in_memory();
    let large = Completion::succeeded(200, vec![b'x'; 64 * 1024]);
    scene.finished(&claim("k"), &large).await;
    assert_eq!((scene.places().len(), scene.store.stats().skipped), (0, 1));
    assert_eq!(replay(&*scene.store, &claim("k")).await, large);
    let fits = Completion::succeeded(200, vec![b'x'; 60 * 1024]);
    scene.finished(&claim("fits"), &fits).await;
    assert_eq!(replay(&*scene.another(), &claim("fits")).await, fits);
    assert_eq!(scene.store.stats().filled, 1);
}

#[tokio::test]
async fn names_in_redis_tell_nothing_of_who_asked() {
    let scene = Scene::in_memory();
    scene.finished(&claim("the-clients-key"), &paid()).await;
    let (place, _) = scene.only();
    let digest = place.strip_prefix("hapax:rq:").expect("the prefix");
    assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{place}");
}

/// Several services share a Redis.
#[tokio::test]
async fn services_with_other_secrets_or_prefixes_do_not_hear_each_other() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let clock = || scene.clock.clone();
    let options = || hapax_requests::CacheOptions::new(&scene.redis, [8; 32]).expect("an address");
    let stranger = CachedRequests::new(scene.below.clone(), options().answer_limit(PATIENCE).clock(clock()));
    assert_eq!(replay(&*stranger, &claim("k")).await, paid(), "the store has it");
    assert_eq!((stranger.stats().hits, stranger.stats().forged), (0, 1));
    let apart =
        CachedRequests::new(scene.below.clone(), patient(&scene.redis).prefix("apart:").clock(clock()));
    assert_eq!(replay(&*apart, &claim("k")).await, paid());
    assert_eq!((apart.stats().hits, apart.stats().forged), (0, 0));
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    for url in ["", "localhost", "postgres://127.0.0.1", "redis://"] {
        let refused = hapax_requests::CacheOptions::new(url, [7; 32]);
        assert!(matches!(refused, Err(StoreError::Open { code: "HX0050", .. })), "{url}: {refused:?}");
    }
    let options = hapax_requests::CacheOptions::new("redis://:hunter2@127.0.0.1/0", [7; 32]).expect("one");
    assert!(!format!("{options:?}").contains("hunter2"));
}
