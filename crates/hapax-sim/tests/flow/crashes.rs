//! Whoever gives a slot back dies before or after it does, or never hears of it: another one frees it.

use hapax::{Engine, Flow, Options};
use hapax_sim::{
    doors::{self, Hall, MOST, Visit},
    kills::Waits,
};
use hapax_store::{
    MemoryStore, Store,
    faulty::{Fault, Faulty},
};
use std::{path::Path, sync::Arc, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);

async fn on(store: Arc<dyn Store>, folder: &Path) -> (Engine, Flow<Visit, Hall>) {
    let options = Options::default().lease_ttl(Duration::from_millis(100)).store_patience(Duration::ZERO);
    let engine = Engine::builder().options(options).with_store(store);
    let hall = Hall::new(folder).expect("a hall");
    let flow = engine.register(doors::graph(), hall).await.expect("a sound graph");
    (engine, flow)
}

/// The first engine dies at each of its calls in turn; another one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_an_engine_dies_every_run_ends_and_every_slot_is_free() {
    for fault in [Fault::Before, Fault::After, Fault::LoseReply] {
        let mut at = 0;
        while all_visits_end(at, fault).await {
            at += 3;
        }
        assert!(at >= 14, "{fault:?} came at {at} moments only");
    }
}

/// Starts runs, and waits for their ends.
async fn visits(store: Arc<dyn Store>, folder: &Path, runs: &[&str]) -> Result<(), hapax::Error> {
    let (_engine, flow) = on(store, folder).await;
    for run in runs {
        flow.start_with(run, Visit::default(), doors::through_the_door()).await?;
    }
    for run in runs {
        flow.attach(run).await?.wait().await?;
    }
    Ok(())
}

/// Whether the fault came.
async fn all_visits_end(at: u64, fault: Fault) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = MemoryStore::shared();
    let faulty = Faulty::new(store.clone(), at, fault);
    let runs = ["a", "b", "c"];
    tokio::select! {
        // What it says is of no use to anybody.
        _ = visits(faulty.clone(), folder.path(), &runs) => {}
        () = faulty.dead() => {}
    }
    let (engine, flow) = on(store.clone(), folder.path()).await;
    for run in runs {
        let started =
            flow.start_with(run, Visit::default(), doors::through_the_door()).await.expect("it starts");
        let visit = started.wait().await.expect("it ends");
        assert!(visit.seen.iter().all(|seen| *seen <= u64::from(MOST)), "{fault:?} at call {at}");
    }
    let waits = Waits::begin(PATIENCE);
    while !store.flow().keys(Default::default()).await.expect("it answers").is_empty() {
        tokio::task::block_in_place(|| waits.check("every slot is free"));
    }
    drop(engine);
    faulty.fired()
}
