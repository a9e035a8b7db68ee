//! Two processes that fire the same schedule of every second. Each second one of them is killed, close to the moment of the
//! firing, and started again.

use hapax::{
    Engine, Flow, Options,
    core::{order::PathHash, rng::Rng},
    schedule::{ScheduleRecord, Timetable},
};
use hapax_sim::{
    kills::{Process, Waits},
    ticks::{self, SCHEDULE, Tick},
};
use hapax_store::ListFilter;
use std::{
    collections::BTreeSet,
    env,
    hash::{BuildHasher, Hasher, RandomState},
    io::BufRead,
    path::Path,
    thread,
    time::Duration,
};
use tokio::runtime::Runtime;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often one of the two is killed.
const KILLS: u32 = 12;
/// A kill comes so long before a firing at the earliest, and within twice that time.
const BEFORE_US: u64 = 30_000;
const SECOND_US: i64 = 1_000_000;

const CLOCKWORK: &str = env!("CARGO_BIN_EXE_hapax-clockwork");

/// Random numbers whose seed is printed, and may be given.
fn rng() -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, "schedules")
}

/// A store, and whoever looks at it.
struct Tower {
    url: String,
    runtime: Runtime,
    engine: Engine,
    flow: Flow<Tick>,
}

impl Tower {
    fn new(url: String) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (engine, flow) = runtime.block_on(async {
            // It only looks.
            let options = Options::default().finds_work(false);
            let engine = Engine::builder().options(options).open(&url).await.expect("the store opens");
            let flow = engine.register(ticks::graph(), ()).await.expect("a sound graph");
            flow.schedule(SCHEDULE, ticks::every_second(), Tick::default()).await.expect("it is added");
            (engine, flow)
        });
        Self { url, runtime, engine, flow }
    }

    /// Starts a process that fires, and waits until it does.
    fn clockwork(&self) -> Process {
        let (process, said) = Process::start(Path::new(CLOCKWORK), [&self.url]).expect("it starts");
        let mut lines = said.lines();
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("works"));
        process
    }

    fn schedule(&self) -> ScheduleRecord {
        self.runtime.block_on(self.engine.schedule(SCHEDULE)).expect("the store answers")
    }

    /// Waits until a firing is about to come, or has just come, by the store's clock.
    fn until_close_to_a_firing(&self, rng: &mut Rng) {
        let shift_us = rng.below(2 * BEFORE_US).cast_signed() - BEFORE_US.cast_signed();
        let waits = Waits::begin(PATIENCE);
        let next_us = self.schedule().next_us.expect("it never ends");
        let now_us = || self.engine.store().clock().now_us();
        while now_us() < next_us - BEFORE_US.cast_signed() {
            waits.check("the next firing comes");
        }
        while now_us() < next_us + shift_us {
            thread::yield_now();
        }
    }

    /// Ends the schedule, waits until all its runs are over, and checks that each second since it began has one.
    fn check(&self, first_us: i64) -> u64 {
        let ended = self.runtime.block_on(self.engine.pause_schedule(SCHEDULE)).expect("it is there");
        let last_us = ended.last.as_ref().expect("it has fired").at_us;
        let seconds = (first_us..=last_us).step_by(SECOND_US as usize);
        let expected: BTreeSet<String> =
            seconds.map(|at_us| format!("{SCHEDULE}@{}", Timetable::shown(at_us))).collect();
        let filter = ListFilter { limit: usize::MAX, ..ListFilter::default() };
        let listed = self.runtime.block_on(self.engine.list(filter)).expect("the store answers");
        let runs: BTreeSet<String> = listed.iter().map(|run| run.key.run.to_string()).collect();
        assert_eq!(runs, expected, "each second has one run");
        assert_eq!(ended.started, runs.len() as u64, "and the schedule has started it: {ended:?}");
        assert_eq!((ended.skipped, ended.missed), (0, 0));
        for run in &runs {
            let tick = self.runtime.block_on(async { self.flow.attach(run).await?.wait().await });
            assert_eq!(tick.expect("it succeeds"), Tick { taken: 1 }, "{run}");
        }
        ended.started
    }
}

fn each_second_starts_one_run(url: String) {
    let kills = if env::var_os("HAPAX_LONG").is_some() { 5 * KILLS } else { KILLS };
    let (mut rng, tower) = (rng(), Tower::new(url));
    let first_us = tower.schedule().next_us.expect("it never ends");
    let mut clockworks = [tower.clockwork(), tower.clockwork()];
    for _ in 0..kills {
        tower.until_close_to_a_firing(&mut rng);
        let victim = rng.below(2) as usize;
        clockworks[victim].kill();
        clockworks[victim].wait();
        clockworks[victim] = tower.clockwork();
    }
    let (waits, so_far) = (Waits::begin(PATIENCE), tower.schedule().started);
    while tower.schedule().started < so_far + 2 {
        waits.check("it goes on after all kills");
    }
    println!("{} runs, {kills} kills", tower.check(first_us));
}

mod sqlite {
    #[test]
    fn with_a_kill_every_second_each_second_starts_one_run() {
        let folder = tempfile::tempdir().expect("a folder");
        super::each_second_starts_one_run(format!("sqlite:{}", folder.path().join("runs.db").display()));
    }
}

mod postgres {
    #[test]
    fn with_a_kill_every_second_each_second_starts_one_run() {
        super::each_second_starts_one_run(hapax_servers::postgres().expect("a server"));
    }
}

mod mysql {
    #[test]
    fn with_a_kill_every_second_each_second_starts_one_run() {
        super::each_second_starts_one_run(hapax_servers::mysql().expect("a server"));
    }
}
