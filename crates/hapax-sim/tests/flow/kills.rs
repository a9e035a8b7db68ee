//! Two processes that work behind one door, or start runs under the same names. One of them is killed again and again, and
//! started anew.

use hapax::{
    Engine, Flow, Options, StartOptions, Status,
    core::{order::PathHash, rng::Rng},
};
use hapax_sim::{
    doors::{self, A_SECOND, Hall, MOST, Visit},
    kills::{Process, Waits},
};
use hapax_store::{ListFilter, RunRecord, flow::NameKind};
use std::{
    env,
    hash::{BuildHasher, Hasher, RandomState},
    io::{BufRead, BufReader},
    path::Path,
    process::ChildStdout,
    time::Duration,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often one of the two is killed.
const KILLS: u32 = 6;
/// Runs that want through the door for each kill.
const VISITS: u32 = 6;

/// Stands for a test's own folder in the address of a store.
const FOLDER: &str = "FOLDER";

const DOORMAN: &str = env!("CARGO_BIN_EXE_hapax-doorman");

/// Random numbers whose seed is printed, and may be given.
fn rng() -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, "flow")
}

fn kills() -> u32 {
    if env::var_os("HAPAX_LONG").is_some() { 5 * KILLS } else { KILLS }
}

/// A store, a hall, and whoever looks at them.
struct House {
    url: String,
    folder: TempDir,
    runtime: Runtime,
    engine: Engine,
    flow: Flow<Visit, Hall>,
    hall: Hall,
}

impl House {
    fn new(url: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let hall = Hall::new(&folder.path().join("hall")).expect("a hall");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let url = url.replace(FOLDER, &folder.path().display().to_string());
        let (engine, flow) = runtime.block_on(async {
            // It only looks, and starts.
            let options = Options::default().finds_work(false);
            let engine = Engine::builder().options(options).open(&url).await.expect("the store opens");
            let flow = engine.register(doors::graph(), hall.clone()).await.expect("a sound graph");
            (engine, flow)
        });
        Self { url, folder, runtime, engine, flow, hall }
    }

    fn process(&self, what: &[&str]) -> (Process, BufReader<ChildStdout>) {
        let hall = self.folder.path().join("hall").display().to_string();
        let args = [&self.url, &hall].into_iter().map(String::as_str).chain(what.iter().copied());
        Process::start(Path::new(DOORMAN), args).expect("it starts")
    }

    /// Starts a process that works, and waits until it does.
    fn worker(&self) -> Process {
        let (process, said) = self.process(&["work"]);
        assert_eq!(said.lines().next().and_then(Result::ok).as_deref(), Some("works"));
        process
    }

    fn runs(&self) -> Vec<RunRecord> {
        let filter = ListFilter { limit: usize::MAX, ..ListFilter::default() };
        self.runtime.block_on(self.engine.list(filter)).expect("the store answers")
    }

    fn over(&self) -> usize {
        self.runs().iter().filter(|run| run.status.is_final()).count()
    }

    /// Starts a run for each visit; each wants through the one door, and may be through others.
    fn start_visits(&self, count: u32, how: fn(u32) -> StartOptions) {
        for n in 0..count {
            let name = format!("visit-{n}");
            let visit = self.flow.start_with(&name, Visit::default(), how(n));
            self.runtime.block_on(visit).expect("it starts");
        }
    }

    /// Every run has ended well, none saw one too many inside, and no slot is taken.
    fn check_visits(&self) {
        for run in self.runs() {
            assert_eq!(run.status, Status::Succeeded, "{}", run.key);
            let visit = async { self.flow.attach(run.key.run.as_str()).await?.wait().await };
            let visit = self.runtime.block_on(visit).expect("it succeeded");
            assert!(visit.seen.iter().all(|seen| *seen <= u64::from(MOST)), "{}: {:?}", run.key, visit.seen);
        }
        assert_eq!(self.hall.inside().expect("a folder"), 0, "everybody has left");
        let waits = Waits::begin(PATIENCE);
        let store = self.engine.store();
        while !self.runtime.block_on(store.flow().keys(Default::default())).expect("it answers").is_empty() {
            waits.check("all slots are free in the end");
        }
    }
}

fn no_door_lets_one_too_many_in(url: &str) {
    visits_end_behind(url, |_| doors::through_the_door());
}

fn visits_end_behind(url: &str, how: fn(u32) -> StartOptions) {
    let (mut rng, house, kills) = (rng(), House::new(url), kills());
    let visits = kills * VISITS;
    house.start_visits(visits, how);
    let mut workers = [house.worker(), house.worker()];
    for kill in 1..=kills {
        let waits = Waits::begin(PATIENCE);
        // Somewhere in its share of the work.
        let share = (kill - 1) * VISITS + rng.below(u64::from(VISITS)) as u32;
        while house.over() < (share as usize).min(visits as usize - 1) {
            waits.check("the visits go on");
        }
        let victim = rng.below(2) as usize;
        workers[victim].kill();
        workers[victim].wait();
        workers[victim] = house.worker();
    }
    let waits = Waits::begin(PATIENCE);
    while house.over() < visits as usize {
        waits.check("every visit ends");
    }
    house.check_visits();
    println!("{visits} visits, {kills} kills");
}

/// Two processes that start runs, each killed now and then and started anew, and both in the end.
fn start_and_die(house: &House, what: &str) {
    let mut rng = rng();
    let mut starters = [0, 1].map(|n| house.process(&[what, &format!("p{n}")]));
    for kill in 0..kills() {
        for (_, said) in &mut starters {
            for _ in 0..=rng.below(4) {
                let mut line = String::new();
                assert_ne!(said.read_line(&mut line).expect("it is heard"), 0, "a starter ended by itself");
            }
        }
        let victim = rng.below(2) as usize;
        starters[victim].0.kill();
        starters[victim].0.wait();
        starters[victim] = house.process(&[what, &format!("p{}", kill + 2)]);
    }
    for (starter, _) in &starters {
        starter.kill();
        starter.wait();
    }
}

/// Starts under one name from two processes that are killed: at a rate, as a singleton, debounced.
fn names_hold_whoever_starts_and_dies(url: &str) {
    let house = House::new(url);
    start_and_die(&house, "start");
    let runs = house.runs();
    let of =
        |kind: &str| runs.iter().filter(|run| run.key.run.as_str().starts_with(kind)).collect::<Vec<_>>();
    check_rate(of("turn-").iter().map(|run| run.terms.not_before_us.expect("it was given a time")).collect());
    assert_eq!(of("alone-").len(), 1, "one run lives under a singleton's name");
    assert_eq!(of("quiet-").len(), 1, "all starts became one run");
    let names =
        house.runtime.block_on(house.engine.store().flow().names(Default::default())).expect("it answers");
    let kinds: Vec<NameKind> = names.iter().map(|name| name.kind).collect();
    assert_eq!(kinds, [NameKind::Debounce, NameKind::Rate, NameKind::Singleton]);
}

/// Starters are killed between any two of their calls to several databases: what they have begun is a visit like any other.
fn what_a_killed_starter_began_goes_on(url: &str) {
    let house = House::new(url);
    let _worker = house.worker();
    start_and_die(&house, "visit");
    let (waits, visits) = (Waits::begin(PATIENCE), house.runs());
    while house.over() < visits.len() {
        waits.check("every visit ends");
    }
    check_rate(visits.iter().map(|run| run.terms.not_before_us.expect("it was given a time")).collect());
    house.check_visits();
}

/// No window of time holds more starts than the bucket allows.
fn check_rate(mut times: Vec<i64>) {
    times.sort_unstable();
    let interval = 1_000_000 / i64::from(A_SECOND);
    for (first, from) in times.iter().enumerate() {
        for (last, to) in times.iter().enumerate().skip(first) {
            let allowed = 2 + (to - from) / interval;
            assert!(
                (last - first + 1) as i64 <= allowed,
                "{} starts within {} us",
                last - first + 1,
                to - from
            );
        }
    }
    println!("{} starts at a rate", times.len());
}

mod sqlite {
    #[test]
    fn while_workers_are_killed_no_door_lets_one_too_many_in() {
        super::no_door_lets_one_too_many_in("sqlite:FOLDER/runs.db");
    }

    #[test]
    fn while_starters_are_killed_rates_and_names_hold() {
        super::names_hold_whoever_starts_and_dies("sqlite:FOLDER/runs.db");
    }
}

mod postgres {
    #[test]
    fn while_workers_are_killed_no_door_lets_one_too_many_in() {
        super::no_door_lets_one_too_many_in(&hapax_servers::postgres().expect("a server"));
    }

    #[test]
    fn while_starters_are_killed_rates_and_names_hold() {
        super::names_hold_whoever_starts_and_dies(&hapax_servers::postgres().expect("a server"));
    }
}

mod mysql {
    #[test]
    fn while_workers_are_killed_no_door_lets_one_too_many_in() {
        super::no_door_lets_one_too_many_in(&hapax_servers::mysql().expect("a server"));
    }

    #[test]
    fn while_starters_are_killed_rates_and_names_hold() {
        super::names_hold_whoever_starts_and_dies(&hapax_servers::mysql().expect("a server"));
    }
}

/// Keys, a bucket and runs that are spread over three databases, each for itself.
mod sharded {
    use super::{doors, visits_end_behind, what_a_killed_starter_began_goes_on};

    const FILES: &str = "sharded:sqlite:FOLDER/a.db,sqlite:FOLDER/b.db,sqlite:FOLDER/c.db";

    fn of_every_kind() -> String {
        let (postgres, mysql) = (hapax_servers::postgres(), hapax_servers::mysql());
        let (postgres, mysql) = (postgres.expect("a server"), mysql.expect("a server"));
        format!("sharded:sqlite:FOLDER/a.db,{postgres},{mysql}")
    }

    #[test]
    fn while_workers_are_killed_no_door_of_any_file_lets_one_too_many_in() {
        visits_end_behind(FILES, doors::through_several_doors);
    }

    #[test]
    fn while_workers_are_killed_no_door_of_any_database_lets_one_too_many_in() {
        visits_end_behind(&of_every_kind(), doors::through_several_doors);
    }

    #[test]
    fn while_starters_are_killed_visits_to_doors_of_any_file_go_on() {
        what_a_killed_starter_began_goes_on(FILES);
    }

    #[test]
    fn while_starters_are_killed_visits_to_doors_of_any_database_go_on() {
        what_a_killed_starter_began_goes_on(&of_every_kind());
    }
}
