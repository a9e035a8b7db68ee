//! Movers that are killed again and again while workers go on in both stores, and workers that wake up in a store that their
//! run has left.

use hapax::{
    Engine, Options,
    core::{
        json::Json,
        mailbox::{self, NewLetter},
        order::PathHash,
        rng::Rng,
    },
    store::{Store, StoreError},
};
use hapax_sim::{
    kills::{Party, Process, Waits, ledger},
    parcels::{self, GO, Office, Parcel},
};
use hapax_store::conformance::sample::key;
use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, Hasher, RandomState},
    io::{BufRead, BufReader, Lines},
    path::Path,
    process::ChildStdout,
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(400);
/// How often the mover between two stores is killed.
const KILLS: u64 = 6;

const LODGER: &str = env!("CARGO_BIN_EXE_hapax-lodger");
const MOVER: &str = env!("CARGO_BIN_EXE_hapax-mover");
const LEDGER: &str = env!("CARGO_BIN_EXE_hapax-ledger");

/// Random numbers whose seed is printed, and may be given.
fn rng() -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, "house")
}

/// Stores in a row, each a run's home for a while, and the outside party.
struct Street {
    folder: TempDir,
    runtime: Runtime,
    homes: Vec<(String, Arc<dyn Store>)>,
    party: Party,
}

type Said = Lines<BufReader<ChildStdout>>;

/// Starts a process, and what it says.
fn process(program: &str, args: &[&str]) -> (Process, Said) {
    let (process, said) = Process::start(Path::new(program), args).expect("it starts");
    (process, said.lines())
}

impl Street {
    fn new(kinds: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let party = Party::start(Path::new(LEDGER), folder.path());
        let mut street = Self { folder, runtime, homes: vec![], party };
        for kind in kinds {
            let url = street.url(kind);
            // It only looks.
            let options = Options::default().finds_work(false);
            let open = Engine::builder().options(options).open(&url);
            let store = street.runtime.block_on(open).expect("the store opens").store();
            street.homes.push((url, store));
        }
        street
    }

    fn url(&self, kind: &str) -> String {
        match kind {
            "postgres" => hapax_servers::postgres().expect("a server"),
            "mysql" => hapax_servers::mysql().expect("a server"),
            _ => format!(
                "sqlite:{}",
                self.folder.path().join(format!("home-{}.db", self.homes.len())).display()
            ),
        }
    }

    /// Starts a worker, and waits until it works.
    fn lodger(&self, home: usize, ttl_ms: u64) -> (Process, Said) {
        let socket = self.party.socket().display().to_string();
        let (process, mut said) = process(LODGER, &[&self.homes[home].0, &socket, &ttl_ms.to_string()]);
        assert_eq!(said.next().and_then(Result::ok).as_deref(), Some("works"));
        (process, said)
    }

    fn mover(&self, from: usize) -> (Process, Said) {
        process(MOVER, &[&self.homes[from].0, &self.homes[from + 1].0])
    }

    fn start(&self, parcels: u32) {
        (0..parcels).for_each(|number| self.submit(number));
    }

    /// Starts a parcel in the first home, for whoever works there.
    fn submit(&self, number: u32) {
        let options = Options::default().finds_work(false);
        self.runtime.block_on(async {
            let engine = Engine::builder().options(options).with_store(self.homes[0].1.clone());
            let flow = engine.register(parcels::graph(), Office("".into())).await.expect("a sound graph");
            let parcel = Parcel { number, receipts: vec![] };
            flow.submit(&parcels::name(number), parcel).await.expect("it is created");
        });
    }

    /// Sends a parcel its word, wherever it is.
    fn send(&self, number: u32) {
        let (run, waits) = (key(&parcels::name(number)), Waits::begin(PATIENCE));
        let payload = Json::of(&number).expect("a number");
        let letter = NewLetter { id: "word".into(), subject: mailbox::signal(GO), payload };
        loop {
            for (_, store) in &self.homes {
                match self.runtime.block_on(store.post(run.clone(), letter.clone())) {
                    Ok(_) => return,
                    Err(
                        StoreError::Moving { .. } | StoreError::Moved { .. } | StoreError::NotFound { .. },
                    ) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            waits.check("a parcel is in one of its homes");
        }
    }

    /// Kills movers after some families each, then lets one come to its end.
    fn move_on(&self, from: usize, parcels: u32, rng: &mut Rng) {
        for _ in 0..KILLS {
            let (mover, said) = self.mover(from);
            let families = rng.below(u64::from(parcels) / KILLS);
            let last = said.map_while(Result::ok).take(families as usize).last();
            mover.kill();
            mover.wait();
            if last.as_deref() == Some("done") {
                break;
            }
        }
        let (mover, said) = self.mover(from);
        assert_eq!(said.map_while(Result::ok).last().as_deref(), Some("done"));
        assert!(mover.wait().success());
    }

    /// Every run has ended in the last home, and each call was made once.
    fn check(&self, parcels: u32) {
        let stamps = (0..parcels).filter_map(parcels::stamp_of).count();
        let (last, waits) = (&self.homes.last().expect("there are homes").1, Waits::begin(PATIENCE));
        loop {
            let runs = self.runtime.block_on(parcels::listed(last)).expect("the store answers");
            let over = runs.iter().filter(|run| run.status.word() == "succeeded").count();
            if over == parcels as usize + stamps {
                break;
            }
            let odd = runs.iter().find(|run| matches!(run.status.word(), "failed" | "arriving" | "leaving"));
            assert!(odd.is_none(), "{odd:?}");
            waits.check("all parcels are shipped");
        }
        for (url, store) in &self.homes[..self.homes.len() - 1] {
            let runs = self.runtime.block_on(parcels::listed(store)).expect("the store answers");
            assert!(runs.iter().all(|run| run.status.word() == "moved"), "{url} has something left");
        }
        let mut calls = BTreeMap::new();
        for call in self.party.calls() {
            *calls.entry((call.key.clone(), call.request.to_string())).or_insert(0) += 1;
        }
        assert_eq!(calls.len(), parcels::calls(parcels), "no call is missing, and none has two keys");
        let twice: Vec<_> = calls.iter().filter(|(_, times)| **times != 1).collect();
        assert!(twice.is_empty(), "called more than once: {twice:?}");
    }
}

fn parcels_of(usual: u32) -> u32 {
    if env::var_os("HAPAX_LONG").is_some() { 1000 } else { usual }
}

#[test]
fn runs_that_move_through_three_stores_with_kills_are_neither_lost_nor_doubled() {
    let (street, parcels, mut rng) =
        (Street::new(&["sqlite", "postgres", "mysql", "sqlite"]), parcels_of(200), rng());
    street.start(parcels);
    let mut lodgers = vec![street.lodger(0, 15_000)];
    for from in 0..3 {
        lodgers.push(street.lodger(from + 1, 15_000));
        // A third of them is in the middle of its work while it is moved.
        (0..parcels).filter(|number| *number as usize % 3 == from).for_each(|number| street.send(number));
        street.move_on(from, parcels, &mut rng);
    }
    street.check(parcels);
}

#[test]
fn two_movers_at_once_move_each_run_once() {
    let (street, parcels) = (Street::new(&["sqlite", "postgres"]), 60);
    street.start(parcels);
    let _lodgers = [street.lodger(0, 15_000), street.lodger(1, 15_000)];
    let movers = [street.mover(0), street.mover(0)];
    (0..parcels).for_each(|number| street.send(number));
    for (mover, said) in movers {
        assert_eq!(said.map_while(Result::ok).last().as_deref(), Some("done"));
        assert!(mover.wait().success());
    }
    street.check(parcels);
}

/// A worker is frozen amid a call; its run moves when the lease is over, and ends elsewhere. What the worker writes when it
/// wakes up is refused.
fn a_frozen_worker_changes_nothing(kinds: [&str; 2]) {
    let street = Street::new(&kinds);
    let held = ledger::hold(street.party.socket(), 1).expect("the ledger listens");
    let (worker, _said) = street.lodger(0, 1_000);
    street.submit(0);
    assert!(held.applied(), "the call took effect");
    worker.freeze();
    street.send(0);
    let (mover, moved) = street.mover(0);
    assert_eq!(moved.map_while(Result::ok).last().as_deref(), Some("done"));
    assert!(mover.wait().success());
    let _successor = street.lodger(1, 15_000);
    let (run, waits) = (key(&parcels::name(0)), Waits::begin(PATIENCE));
    let status = |home: usize| {
        let record =
            street.runtime.block_on(street.homes[home].1.run(run.clone())).expect("the store answers");
        record.expect("it is known").status
    };
    while status(1).word() != "succeeded" {
        waits.check("the run ends in its new home");
    }
    let log = street.folder.path().join("ledger.log");
    let calls = ledger::read_log(&log).expect("the log can be read").len();
    assert_eq!(calls, 3 + 1, "the call without an answer was made again, under its key");
    worker.thaw();
    // It is awake once it has done something else.
    street.submit(1);
    let other = key(&parcels::name(1));
    let parked = || {
        let record =
            street.runtime.block_on(street.homes[0].1.run(other.clone())).expect("the store answers");
        record.expect("it is known").status.word() == "waiting"
    };
    while !parked() {
        waits.check("the worker has taken up another run");
    }
    assert_eq!((status(0).word(), status(1).word()), ("moved", "succeeded"));
    assert_eq!(
        ledger::read_log(&log).expect("the log can be read").len(),
        calls + 1,
        "and called for no other"
    );
    let left = street.runtime.block_on(street.homes[0].1.journal(run.clone(), 0, 10)).expect("a read");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_worker_that_wakes_up_in_a_file_which_its_run_has_left_changes_nothing() {
    a_frozen_worker_changes_nothing(["sqlite", "postgres"]);
}

#[test]
fn a_worker_that_wakes_up_in_a_server_which_its_run_has_left_changes_nothing() {
    a_frozen_worker_changes_nothing(["mysql", "sqlite"]);
}
