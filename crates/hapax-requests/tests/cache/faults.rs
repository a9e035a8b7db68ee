//! Redis down, slow, frozen and flushed: the same answers, only slower.

use crate::kit::{Scene, claim, execute, finish, mysql, paid, patient, postgres, replay, sqlite};
use hapax_requests::{CacheOptions, CachedRequests};
use hapax_servers::{Proxy, Redis};
use hapax_store::requests::{Begun, MemoryRequests, RequestStore};
use redis::Commands;
use std::{sync::Arc, time::Duration};

/// One that is asked again at once after a failure.
fn restless(url: &str) -> CacheOptions {
    patient(url).rest(Duration::ZERO)
}

/// Claims are decided below: whoever empties Redis, or fills it, changes nothing about that.
async fn a_flush_at_any_moment_executes_nothing_twice(below: crate::kit::Below) {
    let redis = hapax_servers::redis().expect("a server");
    let cached = || CachedRequests::new(below.store.clone(), patient(&redis));
    let (store, elsewhere) = (cached(), cached());
    let flush = || crate::kit::inside(&redis).flushdb::<()>().expect("Redis answers");
    let lease = execute(&*store, &claim("k")).await;
    for store in [&store, &elsewhere] {
        flush();
        let begun = store.reacquire(&claim("k")).await.expect("an answer");
        assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
    }
    flush();
    finish(&*store, &lease, &paid()).await;
    for store in [&store, &elsewhere] {
        flush();
        assert_eq!(replay(&**store, &claim("k")).await, paid());
    }
}

mod sqlite_below {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flush_at_any_moment_executes_nothing_twice() {
        super::a_flush_at_any_moment_executes_nothing_twice(super::sqlite().await).await;
    }
}

mod postgres_below {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flush_at_any_moment_executes_nothing_twice() {
        super::a_flush_at_any_moment_executes_nothing_twice(super::postgres().await).await;
    }
}

mod mysql_below {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flush_at_any_moment_executes_nothing_twice() {
        super::a_flush_at_any_moment_executes_nothing_twice(super::mysql().await).await;
    }
}

#[tokio::test]
async fn a_redis_that_was_never_there_costs_nothing_but_hits() {
    // A port that nobody listens on: it is bound and let go.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one").port();
    let options = restless(&format!("redis://127.0.0.1:{port}/0"));
    let store = CachedRequests::new(Arc::new(MemoryRequests::new()), options);
    let lease = execute(&*store, &claim("k")).await;
    finish(&*store, &lease, &paid()).await;
    store.settled().await;
    assert_eq!(replay(&*store, &claim("k")).await, paid());
    store.settled().await;
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses, stats.errors, stats.filled), (0, 2, 4, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_dies_and_comes_back_empty_is_used_again() {
    let mut server = Redis::start().expect("a server");
    let store = CachedRequests::new(Arc::new(MemoryRequests::new()), restless(&server.url()));
    let lease = execute(&*store, &claim("k")).await;
    finish(&*store, &lease, &paid()).await;
    store.settled().await;
    assert_eq!((replay(&*store, &claim("k")).await, store.stats().hits), (paid(), 1));
    server.kill().expect("it dies");
    assert_eq!((replay(&*store, &claim("k")).await, store.stats().hits), (paid(), 1));
    assert_eq!(execute(&*store, &claim("another")).await.attempt, 1, "work goes on");
    store.settled().await;
    assert!(store.stats().errors >= 2);
    server.restart().expect("it comes back");
    // The first may still find the connection of before.
    while store.stats().hits == 1 {
        assert_eq!(replay(&*store, &claim("k")).await, paid());
        store.settled().await;
    }
    assert_eq!((replay(&*store, &claim("k")).await, store.stats().hits), (paid(), 3));
}

/// Frozen: connections stay open and nothing is answered. Each answer of ours is held up for no longer than the limit, and
/// only one in a while is held up at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_is_left_alone_for_a_while() {
    let server = Redis::start().expect("a server");
    let hour = Duration::from_secs(3600);
    let options = CacheOptions::new(&server.url(), [7; 32]).expect("an address").rest(hour);
    let store = CachedRequests::new(Arc::new(MemoryRequests::new()), options);
    server.stop().expect("it stands still");
    let lease = execute(&*store, &claim("k")).await;
    finish(&*store, &lease, &paid()).await;
    store.settled().await;
    for _ in 0..100 {
        assert_eq!(replay(&*store, &claim("k")).await, paid());
    }
    store.settled().await;
    let stats = store.stats();
    assert_eq!((stats.errors, stats.hits, stats.misses), (1, 0, 101), "{stats:?}");
    assert_eq!((stats.rested, stats.skipped), (100, 101), "the others were not");
    server.cont().expect("it goes on");
}

/// The answer comes from the store although Redis holds its own for ever, and a later question has another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_never_comes_is_not_waited_for() {
    let redis = hapax_servers::redis().expect("a server");
    let proxy = Proxy::start(crate::kit::address(&redis)).expect("a proxy");
    let options = CacheOptions::new(&proxy.url(&redis).expect("a URL"), [7; 32]).expect("an address");
    let store = CachedRequests::new(Arc::new(MemoryRequests::new()), options.rest(Duration::ZERO));
    let lease = execute(&*store, &claim("k")).await;
    finish(&*store, &lease, &paid()).await;
    store.settled().await;
    proxy.hold_reply("GETRANGE");
    let hits = store.stats().hits;
    assert_eq!(replay(&*store, &claim("k")).await, paid());
    assert_eq!(store.stats().hits, hits, "it was held");
    // What is held stays held: only a connection of its own can bring a hit.
    while store.stats().hits == hits {
        assert_eq!(replay(&*store, &claim("k")).await, paid());
        store.settled().await;
    }
    proxy.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_at_any_moment_changes_no_answer() {
    let redis = hapax_servers::redis().expect("a server");
    let proxy = Proxy::start(crate::kit::address(&redis)).expect("a proxy");
    let store =
        CachedRequests::new(Arc::new(MemoryRequests::new()), restless(&proxy.url(&redis).expect("a URL")));
    for number in 0..20 {
        let claim = claim(&format!("k{number}"));
        let lease = execute(&*store, &claim).await;
        proxy.cut();
        finish(&*store, &lease, &paid()).await;
        assert_eq!(replay(&*store, &claim).await, paid());
        proxy.cut();
        assert_eq!(replay(&*store, &claim).await, paid());
    }
}

/// A store that is down is down, unless the answer is known.
#[tokio::test]
async fn a_cached_answer_outlives_its_database_and_nothing_else_does() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let (_, sealed) = scene.only();
    assert!(!sealed.is_empty());
    let down = hapax_servers::postgres().expect("a server");
    let proxy = Proxy::start(crate::kit::address(&down)).expect("a proxy");
    let below = hapax_store::requests::open(&proxy.url(&down).expect("a URL")).await.expect("it opens");
    let options = patient(&scene.redis).clock(scene.clock.clone());
    let store = CachedRequests::new(below, options);
    drop(proxy);
    assert_eq!(replay(&*store, &claim("k")).await, paid());
    assert!(store.reacquire(&claim("new")).await.is_err(), "nothing executes without a claim");
}
