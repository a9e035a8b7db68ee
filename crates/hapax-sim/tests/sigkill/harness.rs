//! The crash proof with real processes: orders on SQLite, killed with SIGKILL again and again, end as if nothing
//! had happened, and the outside party never saw an order twice.
//!
//! The victim reports what it does. A kill is aimed by counting its reports, and counts for the phase that was
//! open when the victim died. What happened outside is read from the log of the outside party, a process of its
//! own, which is on the disk before any answer leaves.

use hapax::core::{order::PathHash, rng::Rng};
use hapax_sim::{
    kills::{
        Aim, History, Phase, Process, Report, Scene, Seen, Trigger, histories,
        ledger::{self, Call},
    },
    orders::{self, CALLS},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    hash::{BuildHasher, Hasher, RandomState},
    io::{BufRead, BufReader},
    ops::Range,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::ChildStdout,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Kills in each mode.
const KILLS: usize = 30;
/// The same with `HAPAX_LONG`.
const MANY_KILLS: usize = 500;
/// How often each phase must be hit.
const HITS: usize = 5;
/// Orders that a victim works on at the same time.
const BATCH: u32 = 6;
/// SIGKILL.
const KILL: i32 = 9;

#[test]
fn strict_orders_survive_kills_in_every_phase() {
    survives("strict", "pipelined");
}

#[test]
fn pipelined_orders_survive_kills_in_every_phase() {
    survives("pipelined", "strict");
}

/// Kills victims that work in one mode, and compares what they leave with an undisturbed execution in the other:
/// how far steps run ahead of the disk changes nothing that is stored.
fn survives(mode: &'static str, other_mode: &'static str) {
    let kills = if env::var_os("HAPAX_LONG").is_some() { MANY_KILLS } else { KILLS };
    let mut harness = Harness::new(mode);
    while harness.killed() < kills || (harness.rarest().is_some() && harness.killed() < 2 * kills) {
        let aim = harness.aim(kills);
        harness.live(Some(aim));
    }
    harness.live(None);
    print!("{}", harness.summary());
    harness.check_outcome(&World::undisturbed(other_mode, harness.orders()));
    assert_eq!(harness.rarest(), None, "hit fewer than {HITS} times; seed {}", harness.seed);
}

/// A folder with a database, and the outside party that its victims talk to.
struct World {
    mode: &'static str,
    _ledger: Process,
    folder: TempDir,
}

impl World {
    fn new(mode: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the database");
        let (socket, log) = (folder.path().join("ledger"), folder.path().join("ledger.log"));
        let program = Path::new(env!("CARGO_BIN_EXE_hapax-ledger"));
        let (ledger, mut said) = Process::start(program, [socket, log]).expect("the ledger starts");
        let mut ready = String::new();
        said.read_line(&mut ready).expect("the ledger speaks");
        assert_eq!(ready, "ready\n");
        Self { mode, _ledger: ledger, folder }
    }

    /// Ships the orders without any kill.
    fn undisturbed(mode: &'static str, orders: Range<u32>) -> Self {
        let world = Self::new(mode);
        let (victim, said) = world.victim(&orders, None);
        let scene = watch(said, None, || ());
        assert!(victim.wait().success() && scene.done, "the undisturbed execution failed");
        world
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn db(&self) -> PathBuf {
        self.file("orders.db")
    }

    fn calls(&self) -> Vec<Call> {
        ledger::read_log(&self.file("ledger.log")).expect("the ledger's log can be read")
    }

    fn victim(&self, orders: &Range<u32>, hold: Option<u64>) -> (Process, BufReader<ChildStdout>) {
        let paths = [self.db(), self.file("ledger")].map(|path| path.display().to_string());
        let numbers = [Some(orders.start.into()), Some(orders.end.into()), hold];
        let numbers = numbers.into_iter().flatten().map(|number: u64| number.to_string());
        let args = paths.into_iter().chain([self.mode.to_owned()]).chain(numbers);
        let program = Path::new(env!("CARGO_BIN_EXE_hapax-victim"));
        Process::start(program, args).expect("the victim starts")
    }
}

/// Reads the victim's reports until it is dead. At the report that the aim waits for, `strike` is called.
fn watch(said: BufReader<ChildStdout>, aim: Option<Aim>, strike: impl Fn()) -> Scene {
    let mut scene = Scene::default();
    let mut trigger = aim.map(Trigger::new);
    for line in said.lines() {
        let line = line.expect("the victim's output can be read");
        let report = serde_json::from_str::<Report>(&line).expect("a report");
        if trigger.as_mut().is_some_and(|trigger| trigger.is_pulled_by(&report)) {
            strike();
        }
        scene.see(&report);
    }
    scene
}

/// A world in which victims are killed, and what is known about it.
struct Harness {
    world: World,
    seed: u64,
    rng: Rng,
    orders: Range<u32>,
    seen: Seen,
    hits: BTreeMap<Phase, usize>,
    /// Kills in a commit: the step was there afterwards, or it was not.
    in_commit: (usize, usize),
    /// From a victim's start to its first step, after a kill.
    recoveries: Vec<Duration>,
    /// The life before was ended by a kill.
    after_kill: bool,
    runtime: tokio::runtime::Runtime,
}

impl Harness {
    fn new(mode: &'static str) -> Self {
        let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
        let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("{mode}: HAPAX_SEED={seed}");
        Self {
            world: World::new(mode),
            seed,
            rng: Rng::for_item(seed, 0, PathHash::ROOT, mode),
            orders: 0..BATCH,
            seen: Seen::default(),
            hits: BTreeMap::new(),
            in_commit: (0, 0),
            recoveries: vec![],
            after_kill: false,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
        }
    }

    fn killed(&self) -> usize {
        self.hits.values().sum()
    }

    /// All orders so far.
    fn orders(&self) -> Range<u32> {
        0..self.orders.end
    }

    /// The phase that was hit most rarely, while one of them was not hit often enough.
    fn rarest(&self) -> Option<Phase> {
        let hits = |phase: &Phase| self.hits.get(phase).copied().unwrap_or(0);
        Phase::AIMED.into_iter().filter(|phase| hits(phase) < HITS).min_by_key(hits)
    }

    /// Any moment every other time, else a phase: one that was not hit often enough, if there is one.
    fn aim(&mut self, kills: usize) -> Aim {
        let any_phase = Phase::AIMED[self.rng.below(Phase::AIMED.len() as u64) as usize];
        let any_moment = self.killed() < kills && self.rng.below(2) == 0;
        let phase = self.rarest().unwrap_or(any_phase);
        Aim::draw(&mut self.rng, (!any_moment).then_some(phase))
    }

    /// One life of a victim, and the checks after its death. When it shipped all its orders before a kill, the
    /// next life has new ones.
    fn live(&mut self, aim: Option<Aim>) {
        let hold = aim.filter(|aim| aim.phase == Some(Phase::Committed)).map(|aim| aim.nth);
        let (victim, said) = self.world.victim(&self.orders, hold);
        let (scene, called) = self.stalk(&victim, said, aim);
        let status = victim.wait();
        self.runtime.block_on(self.seen.check(&self.world.db(), &self.world.calls(), &scene));
        let recovery = scene.recovered_us.filter(|_| self.after_kill);
        self.recoveries.extend(recovery.map(Duration::from_micros));
        self.after_kill = status.signal() == Some(KILL);
        if self.after_kill && aim.is_some() {
            let aimed = aim.and_then(|aim| aim.phase);
            let hit = if called { Phase::Calling } else { scene.hit(aimed) };
            return self.count(&scene, hit);
        }
        assert!(status.success() && scene.done, "the victim failed by itself: {status}; seed {}", self.seed);
        if aim.is_some() {
            self.orders = self.orders.end..self.orders.end + BATCH;
        }
    }

    /// Watches a victim and strikes when it is time. Answers also whether it died in a call that took effect.
    fn stalk(&self, victim: &Process, said: BufReader<ChildStdout>, aim: Option<Aim>) -> (Scene, bool) {
        let Some(Aim { nth, .. }) = aim.filter(|aim| aim.phase == Some(Phase::Calling)) else {
            return (watch(said, aim, || victim.kill()), false);
        };
        let held = ledger::hold(&self.world.file("ledger"), nth).expect("the ledger listens");
        let called = AtomicBool::new(false);
        let scene = thread::scope(|scope| {
            scope.spawn(|| {
                if held.applied() {
                    called.store(true, Ordering::Relaxed);
                    victim.kill();
                }
            });
            let _hold = held.until_dropped();
            watch(said, None, || ())
        });
        (scene, called.into_inner())
    }

    fn count(&mut self, scene: &Scene, hit: Phase) {
        *self.hits.entry(hit).or_default() += 1;
        if hit == Phase::InCommit {
            let is_there = |(run, step): (&str, u64)| self.seen.step(run).is_some_and(|there| there >= step);
            let any_lost = scene.in_commit().any(|commit| !is_there(commit));
            if any_lost { self.in_commit.1 += 1 } else { self.in_commit.0 += 1 }
        }
    }

    /// Nothing is lost, nothing is doubled, and every step is the one of the undisturbed execution.
    fn check_outcome(&self, undisturbed: &World) {
        let ours = self.runtime.block_on(histories(&self.world.db()));
        let theirs = self.runtime.block_on(histories(&undisturbed.db()));
        assert_eq!(ours.len(), self.orders().len(), "orders are missing");
        for (run, (history, status, state)) in &ours {
            let (expected, _, expected_state) = &theirs[run];
            assert_same_steps(run, history, expected);
            assert_eq!(status.word(), "succeeded", "{run}");
            assert_eq!(state, expected_state, "{run}: the undisturbed execution ends otherwise");
        }
        let calls = self.world.calls();
        let keys = |calls: &[Call]| calls.iter().map(|call| call.key.clone()).collect::<BTreeSet<_>>();
        assert_eq!(keys(&calls), keys(&undisturbed.calls()), "other keys than undisturbed");
        assert_eq!(keys(&calls).len(), self.orders().len() * CALLS, "lost or doubled calls");
        for number in self.orders() {
            let (_, _, state) = &ours[&orders::order(number).id];
            check_order(number, state, &calls);
        }
    }

    fn summary(&self) -> String {
        let calls = self.world.calls();
        let keys: BTreeSet<_> = calls.iter().map(|call| &call.key).collect();
        let hits = self.hits.iter().map(|(phase, hits)| format!("  {phase:<32}{hits:>5}\n"));
        let mut recoveries = self.recoveries.clone();
        recoveries.sort_unstable();
        let median = recoveries.get(recoveries.len() / 2).copied().unwrap_or_default();
        let slowest = recoveries.last().copied().unwrap_or_default();
        format!(
            "{}: {} kills, {} orders, {} calls under {} keys\n{}  in commit: {} were durable, {} were not\n  \
             from start to first step: median {median:?}, at most {slowest:?}\n",
            self.world.mode,
            self.killed(),
            self.orders().len(),
            calls.len(),
            keys.len(),
            hits.collect::<String>(),
            self.in_commit.0,
            self.in_commit.1,
        )
    }
}

fn assert_same_steps(run: &str, ours: &History, undisturbed: &History) {
    let first = ours.iter().zip(undisturbed).position(|(ours, theirs)| ours != theirs);
    assert_eq!(first, None, "{run}: the first step that differs from the undisturbed execution");
    assert_eq!(ours.len(), undisturbed.len(), "{run}: another number of steps");
}

/// Each thing that an order asks of the outside has exactly one key, and its receipt is in the order.
fn check_order(number: u32, state: &[u8], calls: &[Call]) {
    let receipts = orders::requests(number).into_iter().map(|request| {
        let asked = calls.iter().filter(|call| call.request == request);
        let by_key: BTreeMap<_, _> = asked.map(|call| (&call.key, call.receipt())).collect();
        assert_eq!(by_key.len(), 1, "{request} was asked for under these keys: {by_key:?}");
        by_key.into_values().next().expect("there is one")
    });
    let expected = orders::shipped(number, receipts.collect());
    let order: orders::Order = serde_json::from_slice(state).expect("the state is an order");
    assert_eq!(order, expected);
}
