//! A Redis that somebody got into: it can slow us down, and that is all.

use crate::kit::{Scene, claim, execute, id, other, paid, replay};
use hapax_core::request::Completion;
use hapax_store::requests::{Begun, Claim, RequestStore};
use redis::Commands;
use std::time::Duration;

#[tokio::test]
async fn what_was_altered_is_not_believed() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let (place, sealed) = scene.only();
    let at = sealed.windows(7).position(|bytes| bytes == b"charged").expect("the answer is in clear");
    let mut altered = sealed.clone();
    altered[at..at + 7].copy_from_slice(b"refused");
    for lie in
        [altered, sealed[..sealed.len() - 1].to_vec(), b"\0".to_vec(), b"claimed".to_vec(), vec![0xff; 9000]]
    {
        scene.plant(&place, &lie);
        let store = scene.another();
        assert_eq!(replay(&*store, &claim("k")).await, paid());
        store.settled().await;
        let stats = store.stats();
        assert_eq!((stats.hits, stats.forged), (0, 1));
        assert_eq!(scene.only().1, sealed, "what the store said is there again");
    }
}

#[tokio::test]
async fn anothers_record_is_no_answer() {
    let scene = Scene::in_memory();
    scene.finished(&Claim { id: id("bob", "k"), ..claim("k") }, &Completion::succeeded(201, "bob's")).await;
    let (bobs, sealed) = scene.only();
    scene.finished(&claim("k"), &paid()).await;
    let adas = scene.places().into_iter().find(|place| *place != bobs).expect("a second one");
    scene.plant(&adas, &sealed);
    let another = scene.another();
    assert_eq!(replay(&*another, &claim("k")).await, paid());
    // It puts the true record back, and must have done so before that place is emptied.
    another.settled().await;
    // A place that is nobody's yet.
    scene.inside().del::<_, ()>(&adas).expect("Redis answers");
    scene.finished(&claim("new"), &paid()).await;
    let new = scene.places().into_iter().find(|place| *place != bobs).expect("a second one");
    let fresh = Scene { below: std::sync::Arc::new(hapax_store::requests::MemoryRequests::new()), ..scene };
    fresh.plant(&new, &sealed);
    assert_eq!(execute(&*fresh.another(), &claim("new")).await.attempt, 1, "nothing was executed for it");
}

#[tokio::test]
async fn another_request_under_the_key_is_for_the_store_to_judge() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let store = scene.another();
    assert_eq!(store.reacquire(&other(&claim("k"))).await.expect("it is there"), Begun::HashMismatch);
    assert_eq!((store.stats().hits, store.stats().misses, store.stats().forged), (0, 1, 0));
}

#[tokio::test]
async fn an_old_record_that_is_played_again_is_no_answer() {
    let scene = Scene::in_memory();
    let old = Completion::succeeded(201, "yesterday's");
    let first = scene.finished(&claim("k"), &old).await;
    let (place, sealed) = scene.only();
    scene.clock.advance(Duration::from_secs(24 * 3600));
    // Redis would have forgotten it by itself, and this one didn't.
    scene.plant(&place, &sealed);
    let store = scene.another();
    let afresh = execute(&*store, &claim("k")).await;
    assert_eq!(afresh.attempt, 1);
    assert_ne!(afresh.origin, first.origin);
    crate::kit::finish(&*store, &afresh, &paid()).await;
    store.settled().await;
    scene.plant(&place, &sealed);
    assert_eq!(replay(&*scene.another(), &claim("k")).await, paid(), "today's");
}

/// The clock of this process may be behind the database's.
#[tokio::test]
async fn what_is_about_to_expire_is_asked_of_the_store() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let day = Duration::from_secs(24 * 3600);
    scene.clock.advance(day - Duration::from_secs(61));
    let store = scene.another();
    assert_eq!((replay(&*store, &claim("k")).await, store.stats().hits), (paid(), 1));
    scene.clock.advance(Duration::from_secs(2));
    assert_eq!(
        (replay(&*store, &claim("k")).await, store.stats().hits, store.stats().misses),
        (paid(), 1, 1)
    );
}

/// No more of it is read than a record may have.
#[tokio::test]
async fn huge_garbage_is_a_miss() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let (place, sealed) = scene.only();
    let (proxy, through) = through_a_proxy(&scene.redis);
    let store = hapax_requests::CachedRequests::new(
        scene.below.clone(),
        crate::kit::patient(&through).clock(scene.clock.clone()),
    );
    for garbage in [vec![b'x'; 64 << 20], [sealed.as_slice(), &vec![0; 1 << 20]].concat()] {
        scene.plant(&place, &garbage);
        let before = proxy.counts().bytes_down;
        assert_eq!(replay(&*store, &claim("k")).await, paid());
        assert!(proxy.counts().bytes_down - before < 100_000);
        store.settled().await;
        assert_eq!(scene.only().1, sealed);
    }
}

fn through_a_proxy(redis: &str) -> (hapax_servers::Proxy, String) {
    let proxy = hapax_servers::Proxy::start(crate::kit::address(redis)).expect("a proxy");
    let url = proxy.url(redis).expect("a URL");
    (proxy, url)
}

/// A list, where a string should be: Redis refuses, and is asked the next time all the same.
#[tokio::test]
async fn what_is_no_string_is_a_miss() {
    let scene = Scene::in_memory();
    scene.finished(&claim("k"), &paid()).await;
    let (place, _) = scene.only();
    let mut inside = scene.inside();
    inside.del::<_, ()>(&place).expect("Redis answers");
    inside.rpush::<_, _, ()>(&place, "an element").expect("Redis answers");
    let store = scene.another();
    assert_eq!(replay(&*store, &claim("k")).await, paid());
    store.settled().await;
    assert_eq!((store.stats().errors, store.stats().filled, store.stats().rested), (1, 1, 0));
    assert_eq!((replay(&*store, &claim("k")).await, store.stats().hits), (paid(), 1), "it was replaced");
}
