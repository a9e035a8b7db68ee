//! Leases and expiry, by a clock that stands still until it is moved.

use crate::server::Server;
use hapax_store::{Clock, requests::MemoryRequests};
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(300);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn server() -> (Server, Clock) {
    let clock = Clock::manual();
    let store = MemoryRequests::with_clock(clock.clone());
    (Server::with(store, |layer| layer.lease(LEASE)).await, clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_keeps_the_lease_of_a_slow_handler() {
    let (server, clock) = server().await;
    let first = server.asked("/slow", "k");
    server.world.started().await;
    for beats in 1..=5 {
        server.world.store.saw(|calls| calls.heartbeats >= beats).await;
        clock.advance(LEASE * 2 / 3);
        assert_eq!(server.ask("/slow", "k").await.refusal(), "in-flight", "after {beats} beats");
        // One that was under way may have come before the clock moved on.
        let seen = server.world.store.calls().heartbeats;
        server.world.store.saw(|calls| calls.heartbeats >= seen + 2).await;
    }
    server.world.open(1);
    assert_eq!(first.await.expect("it was sent").status, 201);
    assert_eq!((server.world.charges(), server.layer.stats().takeovers), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_overtaken_answers_what_the_record_says() {
    let (server, clock) = server().await;
    server.world.store.trouble(|trouble| trouble.heartbeats = usize::MAX);
    let first = server.asked("/slow", "k");
    server.world.started().await;
    clock.advance(LEASE * 2);
    let second = server.asked("/slow", "k");
    server.world.started().await;
    // Both are at work; whoever goes on first is the one without a lease, or the other: both must agree in the end.
    server.world.open(2);
    let (first, second) = (first.await.expect("it was sent"), second.await.expect("it was sent"));
    assert_eq!((second.status, second.is_replayed()), (201, false), "it has the lease");
    match first.status {
        201 => assert_eq!((first.kept(), first.is_replayed()), (second.kept(), true)),
        _ => assert_eq!(first.refusal(), "in-flight"),
    }
    assert_eq!(server.ask("/slow", "k").await.kept(), second.kept());
    let stats = server.layer.stats();
    assert_eq!((stats.executed, stats.takeovers, stats.stale), (2, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_kept_for_a_day_and_then_executed_afresh() {
    let (server, clock) = server().await;
    let first = server.ask("/charges", "k").await;
    clock.advance(DAY - Duration::from_secs(1));
    assert_eq!(server.ask("/charges", "k").await.kept(), first.kept());
    clock.advance(Duration::from_secs(1));
    let afresh = server.ask("/charges", "k").await;
    assert_eq!((afresh.status, afresh.is_replayed(), server.world.charges()), (201, false, 2));
    assert_ne!(afresh.body, first.body);
    assert_eq!(server.layer.stats().takeovers, 0, "it is a first attempt");
}
