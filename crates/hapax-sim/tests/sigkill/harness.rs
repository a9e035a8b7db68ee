//! Victims, their lives and deaths: what is the same whatever they do.

use hapax::core::{order::PathHash, rng::Rng};
use hapax_sim::kills::{
    Aim, Mark, Party, Phase, Process, Report, Scene, Seen, Trigger,
    ledger::{self, Call},
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
/// In how many kills each kind of record must have been on its way.
const MARK_HITS: usize = 2;
/// Orders, or journeys, that a victim works on at the same time.
const BATCH: u32 = 6;
/// SIGKILL.
const KILL: i32 = 9;

/// What victims do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Orders,
    Journeys,
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Work::Orders => "orders",
            Work::Journeys => "journeys",
        }
    }
}

/// A folder with a database, and the outside party that its victims talk to.
pub(crate) struct World {
    work: Work,
    mode: &'static str,
    pub(crate) ledger: Party,
    folder: TempDir,
}

impl World {
    fn new(work: Work, mode: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the database");
        let ledger = Party::start(Path::new(env!("CARGO_BIN_EXE_hapax-ledger")), folder.path());
        Self { work, mode, ledger, folder }
    }

    /// Does the work without any kill.
    pub(crate) fn undisturbed(work: Work, mode: &'static str, numbers: Range<u32>) -> Self {
        let world = Self::new(work, mode);
        let (victim, said) = world.victim(&numbers, None);
        let scene = watch(said, None, || ());
        assert!(victim.wait().success() && scene.done, "the undisturbed execution failed");
        world
    }

    pub(crate) fn db(&self) -> PathBuf {
        self.folder.path().join("work.db")
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.ledger.calls()
    }

    fn victim(&self, numbers: &Range<u32>, hold: Option<u64>) -> (Process, BufReader<ChildStdout>) {
        let paths = [&self.db(), self.ledger.socket()].map(|path| path.display().to_string());
        let words = [self.work.word().to_owned(), self.mode.to_owned()];
        let numbers = [Some(numbers.start.into()), Some(numbers.end.into()), hold];
        let numbers = numbers.into_iter().flatten().map(|number: u64| number.to_string());
        let args = paths.into_iter().chain(words).chain(numbers);
        let program = Path::new(env!("CARGO_BIN_EXE_hapax-victim"));
        Process::start(program, args).expect("the victim starts")
    }
}

/// Whoever writes to the journeys of a life: a process beside the victim, which nobody kills.
struct Sender {
    process: Process,
    said: BufReader<ChildStdout>,
}

impl Sender {
    fn start(world: &World, numbers: &Range<u32>) -> Self {
        let db = world.db().display().to_string();
        let args = [db, numbers.start.to_string(), numbers.end.to_string()];
        let program = Path::new(env!("CARGO_BIN_EXE_hapax-sender"));
        let (process, said) = Process::start(program, args).expect("the sender starts");
        Self { process, said }
    }

    /// Lets it end behind the journey at hand. Answers which letters were new.
    fn end(self) -> Vec<String> {
        let status = self.process.end();
        assert!(status.success(), "the sender failed: {status}");
        self.said.lines().map(|line| line.expect("the sender's output can be read")).collect()
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
pub(crate) struct Harness {
    pub(crate) world: World,
    seed: u64,
    rng: Rng,
    numbers: Range<u32>,
    seen: Seen,
    hits: BTreeMap<Phase, usize>,
    /// What the writes held that were on their way.
    marks: BTreeMap<Mark, usize>,
    /// Kills in a commit: the step was there afterwards, or it was not.
    in_commit: (usize, usize),
    /// From a victim's start to its first step, after a kill.
    recoveries: Vec<Duration>,
    /// The life before was ended by a kill.
    after_kill: bool,
    /// The letters that were new when they were sent.
    pub(crate) sent: Vec<String>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Harness {
    /// Kills victims that work in one mode until they were killed often enough, and lets a last one finish.
    pub(crate) fn finished(work: Work, mode: &'static str) -> Self {
        let kills = if env::var_os("HAPAX_LONG").is_some() { MANY_KILLS } else { KILLS };
        let mut harness = Self::new(work, mode);
        while harness.killed() < kills || (harness.missed() && harness.killed() < 2 * kills) {
            let aim = harness.aim(kills);
            harness.live(Some(aim));
        }
        harness.live(None);
        print!("{}", harness.summary());
        let missed = (harness.rarest(), harness.rarest_mark());
        assert_eq!(missed, (None, None), "not hit often enough; seed {}", harness.seed);
        harness
    }

    fn new(work: Work, mode: &'static str) -> Self {
        let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
        let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("{mode}: HAPAX_SEED={seed}");
        Self {
            world: World::new(work, mode),
            seed,
            rng: Rng::for_item(seed, 0, PathHash::ROOT, mode),
            numbers: 0..BATCH,
            seen: if work == Work::Journeys { Seen::of_restless_work() } else { Seen::default() },
            hits: BTreeMap::new(),
            marks: BTreeMap::new(),
            in_commit: (0, 0),
            recoveries: vec![],
            after_kill: false,
            sent: vec![],
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
        }
    }

    fn killed(&self) -> usize {
        self.hits.values().sum()
    }

    /// All orders, or journeys, so far.
    pub(crate) fn numbers(&self) -> Range<u32> {
        0..self.numbers.end
    }

    fn missed(&self) -> bool {
        self.rarest().is_some() || self.rarest_mark().is_some()
    }

    /// What was on its way in the fewest kills, while something was in too few. Orders have no use for most of it.
    fn rarest_mark(&self) -> Option<Mark> {
        let hits = |mark: &Mark| self.marks.get(mark).copied().unwrap_or(0);
        let aimed = Mark::ALL.into_iter().filter(|_| self.world.work == Work::Journeys);
        aimed.filter(|mark| hits(mark) < MARK_HITS).min_by_key(hits)
    }

    /// The phase that was hit most rarely, while one of them was not hit often enough.
    fn rarest(&self) -> Option<Phase> {
        let hits = |phase: &Phase| self.hits.get(phase).copied().unwrap_or(0);
        Phase::AIMED.into_iter().filter(|phase| hits(phase) < HITS).min_by_key(hits)
    }

    /// Any moment every other time, else a phase, or a write that holds something: one that was not hit often enough,
    /// if there is one.
    fn aim(&mut self, kills: usize) -> Aim {
        if let Some(mark) = self.rarest_mark()
            && self.rng.below(3) > 0
        {
            return Aim::at(&mut self.rng, mark);
        }
        let any_phase = Phase::AIMED[self.rng.below(Phase::AIMED.len() as u64) as usize];
        let any_moment = self.killed() < kills && self.rng.below(2) == 0;
        let phase = self.rarest().unwrap_or(any_phase);
        Aim::draw(&mut self.rng, (!any_moment).then_some(phase))
    }

    /// One life of a victim, and the checks after its death. When it was done before a kill, the next life has
    /// something new to do.
    fn live(&mut self, aim: Option<Aim>) {
        let hold = aim.filter(|aim| aim.phase == Some(Phase::Committed)).map(|aim| aim.nth);
        let (victim, said) = self.world.victim(&self.numbers, hold);
        let sender = (self.world.work == Work::Journeys).then(|| Sender::start(&self.world, &self.numbers));
        let (scene, called) = self.stalk(&victim, said, aim);
        let status = victim.wait();
        // The files are looked at when nobody writes.
        self.sent.extend(sender.map(Sender::end).unwrap_or_default());
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
            self.numbers = self.numbers.end..self.numbers.end + BATCH;
        }
    }

    /// Watches a victim and strikes when it is time. Answers also whether it died in a call that took effect.
    fn stalk(&self, victim: &Process, said: BufReader<ChildStdout>, aim: Option<Aim>) -> (Scene, bool) {
        let Some(Aim { nth, .. }) = aim.filter(|aim| aim.phase == Some(Phase::Calling)) else {
            return (watch(said, aim, || victim.kill()), false);
        };
        let held = ledger::hold(self.world.ledger.socket(), nth).expect("the ledger listens");
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
        for mark in scene.marks() {
            *self.marks.entry(mark).or_default() += 1;
        }
        if hit == Phase::InCommit {
            let is_there = |(run, step): (&str, u64)| self.seen.step(run).is_some_and(|there| there >= step);
            let any_lost = scene.in_commit().any(|commit| !is_there(commit));
            if any_lost { self.in_commit.1 += 1 } else { self.in_commit.0 += 1 }
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
            "{} {}: {} kills, {} of them, {} calls under {} keys\n{}  on their way: {:?}\n  in commit: {} were durable, {} were not\n  \
             from start to first step: median {median:?}, at most {slowest:?}\n",
            self.world.mode,
            self.world.work.word(),
            self.killed(),
            self.numbers().len(),
            calls.len(),
            keys.len(),
            hits.collect::<String>(),
            self.marks,
            self.in_commit.0,
            self.in_commit.1,
        )
    }
}
