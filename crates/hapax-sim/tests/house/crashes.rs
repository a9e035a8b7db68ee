//! A mover that dies before or after any of its calls, or never hears the answer, on every pair of stores. Whatever it left,
//! no run is open in both stores, and the next mover brings it to its end.

use hapax::{
    Engine, Options,
    store::{Store, StoreError},
};
use hapax_core::{
    commit::{Status, Write},
    id::RunKey,
};
use hapax_sim::stores::{Kind, open};
use hapax_store::{
    conformance::{
        Sample,
        sample::{LONG, claimant, key, message},
    },
    faulty::{Fault, Faulty},
    house::Mover,
};
use std::sync::Arc;

/// Which of the two stores suffers the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

/// Whether somebody could go on with the run there.
async fn is_open(store: &Arc<dyn Store>, run: &RunKey) -> bool {
    let record = store.run(run.clone()).await.unwrap();
    record.is_some_and(|run| !run.status.is_moving() && !matches!(run.status, Status::Moved { .. }))
}

async fn furnish(store: &Arc<dyn Store>, name: &str) -> [RunKey; 2] {
    let mut parent = Sample::run(name).hold(store).await;
    parent.commit(parent.next_with("packed", 2, 1, vec![message("packed")])).await.unwrap();
    let parked = parent.status(Status::Pending, true);
    parent.write(Write::Status(parked)).await.unwrap();
    let child = format!("{name}/child");
    Sample::run(&child).child_of(&parent.key).create(store).await;
    [parent.key, key(&child)]
}

async fn cut_everywhere(old: &Arc<dyn Store>, new: &Arc<dyn Store>) {
    for side in [Side::Old, Side::New] {
        for fault in [Fault::Before, Fault::After, Fault::LoseReply] {
            let mut at = 0;
            while cut(old, new, side, fault, at).await {
                at += 1;
            }
            assert!(at >= 4, "{side:?} is called {at} times");
        }
    }
}

/// Moves a family with a fault at that call; answers whether the call was reached.
async fn cut(old: &Arc<dyn Store>, new: &Arc<dyn Store>, side: Side, fault: Fault, at: u64) -> bool {
    let family = furnish(old, &format!("{side:?}-{fault:?}-{at}")).await;
    let faulty = Faulty::new(if side == Side::Old { old.clone() } else { new.clone() }, at, fault);
    let mover = match side {
        Side::Old => Mover::new(faulty.clone(), new.clone(), "new"),
        Side::New => Mover::new(old.clone(), faulty.clone(), "new"),
    };
    let carried = mover.carry(family[0].clone()).await;
    for run in &family {
        assert!(!(is_open(old, run).await && is_open(new, run).await), "{run} is open twice: {carried:?}");
    }
    let again = Mover::new(old.clone(), new.clone(), "new").carry(family[1].clone()).await;
    assert!(again.is_ok(), "{side:?} {fault:?} {at}: {again:?} after {carried:?}");
    for run in &family {
        assert!(is_open(new, run).await && !is_open(old, run).await, "{run} is in one place");
        let loaded = new.load(run.clone()).await.unwrap();
        let refused = old.load(run.clone()).await;
        assert!(refused.is_err(), "nothing is left of it: {refused:?}");
        assert_eq!(loaded.record.status, Status::Pending);
    }
    let back = Mover::new(new.clone(), old.clone(), "old").carry(family[0].clone()).await;
    assert_eq!(back.unwrap().runs, 2, "it may come home");
    let gone = new.claim(family[0].clone(), claimant("b", LONG)).await;
    assert!(matches!(gone, Err(StoreError::Moved { .. })), "{gone:?}");
    faulty.fired()
}

async fn server(url: String) -> Arc<dyn Store> {
    let options = Options::default().finds_work(false);
    Engine::builder().options(options).open(&url).await.expect("the store opens").store()
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn a_mover_cut_at_any_call_leaves_a_run_in_one_place_from_memory_to_a_file() {
    let (memory, file) = (open(Kind::Memory), open(Kind::Sqlite));
    block_on(cut_everywhere(&memory.store, &file.store));
}

#[test]
fn a_mover_cut_at_any_call_leaves_a_run_in_one_place_from_a_file_to_postgres() {
    let file = open(Kind::Sqlite);
    block_on(async {
        cut_everywhere(&file.store, &server(hapax_servers::postgres().expect("a server")).await).await;
    });
}

#[test]
fn a_mover_cut_at_any_call_leaves_a_run_in_one_place_from_postgres_to_mariadb() {
    block_on(async {
        let old = server(hapax_servers::postgres().expect("a server")).await;
        let new = server(hapax_servers::mysql().expect("a server")).await;
        cut_everywhere(&old, &new).await;
    });
}
