//! Whoever fires dies before or after any of its firings, or never hears of them.

use hapax::{
    Engine, Options,
    schedule::{Overlap, When},
};
use hapax_sim::ticks::{self, SCHEDULE, Tick};
use hapax_store::{
    Clock, ListFilter, MemoryStore, Store,
    faulty::{Fault, Faulty},
};
use std::{sync::Arc, time::Duration};

/// Five times are due. The first engine dies at each of its firings in turn; another one goes on.
#[tokio::test]
async fn whoever_dies_at_a_firing_each_time_starts_one_run() {
    for fault in [Fault::Before, Fault::After, Fault::LoseReply] {
        let mut at = 0;
        while fires_each_time_once(at, fault).await {
            at += 1;
        }
        assert!(at >= 5, "{fault:?} came at {at} moments only");
    }
}

/// Whether the fault came.
async fn fires_each_time_once(at: u64, fault: Fault) -> bool {
    let clock = Clock::manual();
    let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
    let faulty = Faulty::new(store.clone(), at, fault);
    let on = async |store: Arc<dyn Store>| {
        let engine = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
        let flow = engine.register(ticks::graph(), ()).await.expect("a sound graph");
        (engine, flow)
    };
    let (doomed, flow) = on(faulty.clone()).await;
    let when = When::cron("@hourly").overlap(Overlap::Cancel).catch_up(10);
    flow.schedule(SCHEDULE, when, Tick::default()).await.expect("it is added");
    clock.advance(Duration::from_secs(5 * 3600));
    // What it says is of no use to anybody.
    let _ = doomed.fire_due().await;
    let (engine, _) = on(store).await;
    engine.fire_due().await.expect("nothing is in its way");
    let record = engine.schedule(SCHEDULE).await.expect("it is there");
    assert_eq!((record.started, record.skipped, record.missed), (5, 0, 0), "{fault:?} at call {at}");
    let runs = engine.list(ListFilter::default()).await.expect("the store answers");
    assert_eq!(runs.len(), 5, "{fault:?} at call {at}: {runs:?}");
    faulty.fired()
}
