//! Replay of generated runs with the outside gone: every run is made again from its record alone, and changed code is
//! found where it is.
//!
//! All runs are executed first, each to its end, and once more cut off by a crash. One in ten calls a ledger, a process
//! of its own behind a socket; the others an outside that counts its calls in this process, since a connect and a sync
//! for each call would take minutes. Then the ledger is killed and its socket taken over, so that a connect would be
//! noticed, and all of them are replayed by fresh engines over the same stores. What reads, the clock and chance told
//! feeds later writes: only the record can repeat their keys. `HAPAX_LONG=1` does it ten times, with other graphs.

use hapax::{Divergence, Engine, Options, Replay, Rng};
use hapax_core::order::PathHash;
use hapax_sim::{
    generate::{At, Case, Feature, NAMES, case},
    kills::Party,
    life::{Life, RUN},
    mutate::Mutation,
    probe::Mode,
    stores::{Kind, Opened, open, quick_runtime},
    workload::graph,
    world::{Event, World},
};
use hapax_store::{Store, faulty::Fault};
use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc};

/// How many graphs are generated at a time.
const CASES: u64 = 1000;
/// One in so many calls a process, and is kept on SQLite.
const TENTH: u64 = 10;
/// One in so many is replayed with a mutation.
const MUTATED: u64 = 3;

/// A run that was executed, and where its record is.
struct Executed {
    case: Case,
    life: Life,
    /// Where each node first ended well, by the world's log.
    ended: BTreeMap<At, u64>,
}

/// Where the runs are kept.
struct Shelf {
    ledger: Party,
    /// SQLite keeps an open file for each engine that ever claimed through it.
    files: Vec<Opened>,
}

impl Shelf {
    fn store(&mut self, seed: u64) -> Arc<dyn Store> {
        if !seed.is_multiple_of(TENTH) {
            return open(Kind::Memory).store;
        }
        if seed.is_multiple_of(10 * TENTH) {
            self.files.push(open(Kind::Sqlite));
        }
        self.files.last().expect("the first seed opened one").store.clone()
    }

    fn life(&mut self, seed: u64, namespace: &str) -> Life {
        let (store, world) = (self.store(seed), World::new());
        let ledger = seed.is_multiple_of(TENTH).then(|| self.ledger.socket().to_owned());
        Life { ledger, ..Life::new(1, &store, &world, &format!("{namespace}-{seed}")) }
    }

    /// Executes a run to its end.
    fn whole(&mut self, seed: u64) -> Executed {
        let case = case(seed);
        let life = Life { at_most_once: true, ..self.life(seed, "whole") };
        assert!(life.live(&case).end.is_some(), "graph {seed}: nothing kills it");
        let last = record(&life).step;
        let mut ended = BTreeMap::new();
        for (_, event) in life.world.log() {
            if let Event::Executed { step, node, .. } = event
                && let Some(at) = NAMES.iter().position(|name| *name == node)
                && step < last
                && case.nodes[at].fails_first < case.nodes[at].attempts
            {
                ended.entry(at).or_insert(step);
            }
        }
        Executed { case, life, ended }
    }

    /// Executes a run until its engine dies at some call to its store.
    fn cut_off(&mut self, seed: u64) -> Option<Executed> {
        let mut rng = Rng::for_item(seed, 0, PathHash::ROOT, "crash");
        let fault = if rng.below(2) == 0 { Fault::Before } else { Fault::After };
        // Of steps that ran ahead some are lost, as with a process.
        let mode = if rng.below(2) == 0 { Mode::Direct } else { Mode::Lagging(rng.below(5) as u32) };
        let durability =
            if mode == Mode::Direct { hapax::Durability::Strict } else { hapax::Durability::Pipelined };
        let life = Life { fault: Some((rng.below(30), fault)), mode, durability, ..self.life(seed, "cut") };
        let case = case(seed);
        let died = life.live(&case).end.is_none();
        let begun = quick_runtime().block_on(life.store.run(life.key())).expect("readable").is_some();
        (died && begun).then_some(Executed { case, life, ended: BTreeMap::new() })
    }
}

fn record(life: &Life) -> hapax_store::RunRecord {
    quick_runtime().block_on(life.store.run(life.key())).expect("readable").expect("the run is there")
}

impl Executed {
    /// Replays it with a fresh engine, which executes nothing by itself. Nothing outside is called.
    fn replay(&self, case: &Case) -> Replay {
        let world = World::new();
        let life = Life { number: 2, world: world.clone(), ..self.life.clone() };
        let options: Options = life.options(case).finds_work(false);
        let replay = quick_runtime().block_on(async {
            let engine = Engine::builder().options(options).with_store(life.store.clone());
            engine.register(graph(case), life.outside()).await.expect("a graph");
            engine.replay(RUN).await.expect("the record can be read")
        });
        let called = |(_, event): &(u32, Event)| matches!(event, Event::Called { .. });
        let calls: Vec<_> = world.log().into_iter().filter(called).collect();
        assert!(calls.is_empty(), "graph {}: the outside was called: {calls:?}", case.seed);
        replay
    }
}

#[test]
fn generated_runs_are_replayed_without_the_outside() {
    let times = if std::env::var_os("HAPAX_LONG").is_some() { 10 } else { 1 };
    for time in 0..times {
        replay_all(time * CASES..(time + 1) * CASES);
    }
}

/// Executes the cases of these seeds, stops the outside, and replays them.
fn replay_all(seeds: Range<u64>) {
    let folder = tempfile::tempdir().expect("a folder for the socket");
    let ledger = Party::start(Path::new(env!("CARGO_BIN_EXE_hapax-ledger")), folder.path());
    let mut shelf = Shelf { ledger, files: vec![] };
    let whole: Vec<Executed> = seeds.clone().map(|seed| shelf.whole(seed)).collect();
    let cut_off: Vec<Executed> = seeds.filter_map(|seed| shelf.cut_off(seed)).collect();
    let stopped = shelf.ledger.stop();

    let (mut steps, mut items, mut calls) = (0, 0, 0);
    for run in &whole {
        let replay = run.replay(&run.case);
        assert_eq!(replay.divergence, None, "graph {}", run.case.seed);
        assert_eq!(replay.steps, record(&run.life).step, "graph {}: all steps", run.case.seed);
        (steps, items, calls) = (steps + replay.steps, items + replay.items, calls + replay.calls);
    }
    println!("{} runs replayed: {steps} steps, {items} items, {calls} calls", whole.len());
    let fickle = whole.iter().filter(|run| run.case.has(Feature::Reads) || run.case.has(Feature::Clock));
    println!("{} of them rest on what can't be repeated", fickle.count());

    let before = cut_off.len();
    for run in &cut_off {
        let replay = run.replay(&run.case);
        assert_eq!(replay.divergence, None, "graph {}, cut off", run.case.seed);
    }
    let open = cut_off.iter().filter(|run| !record(&run.life).status.is_final()).count();
    println!("{before} runs cut off by a crash replayed, {open} of them in flight");
    assert!(open as u64 * 2 >= CASES, "too few runs are cut off");

    check_mutations(whole.iter().filter(|run| run.case.seed % MUTATED == 1));
    stopped.expect_silence();
}

/// Each run is replayed with one change somewhere on its path.
fn check_mutations<'r>(runs: impl Iterator<Item = &'r Executed>) {
    let mut found = BTreeMap::<(&str, String), usize>::new();
    for run in runs {
        let mut rng = Rng::for_item(run.case.seed, 0, PathHash::ROOT, "mutation");
        let paths: Vec<(&At, &u64)> = run.ended.iter().collect();
        // A run that failed in its first step has nothing that could be changed.
        let Some((at, step)) = (!paths.is_empty()).then(|| paths[rng.below(paths.len() as u64) as usize])
        else {
            continue;
        };
        let mutation = Mutation::draw(&mut rng, &run.case, *at);
        let context = format!("graph {}, {} from step {step} on: {mutation:?}", run.case.seed, NAMES[*at]);
        let replay = run.replay(&mutation.apply(&run.case, *at));
        let Some(Divergence { step: at_step, node, field, .. }) = replay.divergence else {
            panic!("{context}: it isn't found");
        };
        let node = node.map(|node| node.to_string());
        assert_eq!((at_step, node.as_deref()), (*step, Some(NAMES[*at])), "{context}: {field}");
        assert_eq!(field.rsplit('/').next(), Some(mutation.field()), "{context}");
        *found.entry((mutation.word(), field)).or_default() += 1;
    }
    println!("mutations found: {found:?}");
    assert!(found.values().sum::<usize>() as u64 * 10 >= CASES * 2, "too few mutations: {found:?}");
    // A lone item's value shows in the state, that of one of several in its delta.
    assert_eq!(found.len(), 5, "a kind of mutation is missing: {found:?}");
}
