//! Every call to the store as the place where a life ends or an answer is lost: the frame of proofs with graphs of their own.
//!
//! Invariant: a proof is made for each fault at each call, until there is no such call any more; on both stores and with
//! both kinds of durability.

use hapax::{Engine, Options, testing::Lab};
use hapax_store::{
    Clock, MemoryStore, Store,
    faulty::{Fault, Faulty},
    sqlite::{SqliteOptions, SqliteStore},
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::runtime::{Builder, Runtime};

/// A store in which every life begins.
pub enum Place {
    /// In memory.
    Memory(Arc<MemoryStore>),
    /// In a file, by this clock.
    File(PathBuf, Clock),
}

impl Place {
    /// Opens it for another process.
    pub async fn open(&self) -> Arc<dyn Store> {
        match self {
            Place::Memory(store) => store.clone(),
            Place::File(path, clock) => {
                let options = SqliteOptions::default().clock(clock.clone());
                SqliteStore::open(path, options).await.expect("the file is ours")
            }
        }
    }

    /// A process beside, which executes nothing.
    pub async fn desk(&self) -> Engine {
        Engine::builder().options(Options::default().finds_work(false)).with_store(self.open().await)
    }
}

/// A runtime of its own for each life.
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Lets time pass, so that a claim whose answer was lost comes to its end. Each time it waits twice as long: however slow
/// the machine, minutes pass and not days, so that a run's own times stay what they are.
pub async fn pass_slowly(clock: &Clock) {
    let mut turns = 5000;
    loop {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(20));
        turns *= 2;
    }
}

/// Lives until the fault ends it, or to the end. Whether the fault was reached; whatever the dead process held is free.
pub fn cut_short(
    place: &Place,
    options: &Options,
    (at, fault): (u64, Fault),
    live: impl AsyncFnOnce(&Lab, &Clock),
) -> (bool, Clock) {
    let first = runtime();
    let (fired, clock) = first.block_on(async {
        let store = place.open().await;
        let clock = store.clock();
        let faulty = Faulty::new(store, at, fault);
        let lab = Lab::on(faulty.clone(), options.clone());
        tokio::select! {
            () = live(&lab, &clock) => {}
            () = faulty.dead() => {}
        }
        (faulty.fired(), clock)
    });
    first.shutdown_timeout(Duration::from_secs(10));
    clock.advance(Duration::from_secs(3600));
    (fired, clock)
}

/// Proves something at every boundary: `with_fault` answers whether there was such a call.
pub fn every_boundary(on_file: bool, with_fault: impl Fn(&Place, u64) -> bool) {
    let folder = tempfile::tempdir().expect("a folder");
    for at in 0.. {
        let place = if on_file {
            Place::File(folder.path().join(format!("{at}.db")), Clock::manual())
        } else {
            Place::Memory(MemoryStore::with_clock(Clock::manual()))
        };
        if !with_fault(&place, at) {
            assert!(at > 20, "only {at} boundaries");
            return;
        }
    }
}

/// The tests of a proof `fn(&Place, Durability, u64, Fault) -> bool`: each fault, store and durability.
#[macro_export]
macro_rules! every_boundary {
    ($with_fault:path) => {
        $crate::every_boundary! { $with_fault;
            dying_before_a_call_in_memory_strict: Strict, Before, false;
            dying_after_a_call_in_memory_strict: Strict, After, false;
            losing_a_reply_in_memory_strict: Strict, LoseReply, false;
            dying_before_a_call_in_memory: Pipelined, Before, false;
            dying_after_a_call_in_memory: Pipelined, After, false;
            losing_a_reply_in_memory: Pipelined, LoseReply, false;
            dying_before_a_call_on_sqlite_strict: Strict, Before, true;
            dying_after_a_call_on_sqlite_strict: Strict, After, true;
            losing_a_reply_on_sqlite_strict: Strict, LoseReply, true;
            dying_before_a_call_on_sqlite: Pipelined, Before, true;
            dying_after_a_call_on_sqlite: Pipelined, After, true;
            losing_a_reply_on_sqlite: Pipelined, LoseReply, true;
        }
    };
    ($with_fault:path; $($name:ident: $durability:ident, $fault:ident, $on_file:literal;)*) => {
        $(#[test]
        fn $name() {
            let (durability, fault) =
                (hapax::Durability::$durability, hapax::store::faulty::Fault::$fault);
            $crate::boundaries::every_boundary($on_file, |place, at| $with_fault(place, durability, at, fault));
        })*
    };
}
