//! Leases, by a clock that stands still until it is moved.

use crate::{
    client::{charge, refusal},
    server::Server,
};
use hapax_store::{Clock, requests::MemoryRequests};
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_keeps_the_lease_of_a_slow_handler() {
    let clock = Clock::manual();
    let store = MemoryRequests::with_clock(clock.clone());
    let server = Server::with(store, |layer| layer.lease(LEASE)).await;
    let client = server.client().await;
    let first = client.asked("Slow", "k");
    server.world.started().await;
    for beats in 1..=3 {
        server.world.store.saw(|calls| calls.heartbeats >= beats).await;
        clock.advance(LEASE * 2 / 3);
        assert_eq!(refusal(&client.ask("Slow", "k").await).1, "IN_FLIGHT", "after {beats} beats");
        // One that was under way may have come before the clock moved on.
        let seen = server.world.store.calls().heartbeats;
        server.world.store.saw(|calls| calls.heartbeats >= seen + 2).await;
    }
    server.world.open(1);
    assert_eq!(charge(&first.await.expect("it was sent")), 1);
    assert_eq!((server.world.charges(), server.layer.stats().takeovers), (1, 0));
}
