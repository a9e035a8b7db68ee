//! Two workers hold one run, one of them stale: whatever it had in flight is refused, and the other one's result
//! stands.
//!
//! Worker A freezes at a call to its store. Its lease ends, B claims the run and finishes it, A wakes up. Every call
//! of A is such a moment, before the call reaches the store and after.

use hapax::{Durability, Engine, Event as Seen, Status};
use hapax_sim::{
    generate::{Case, case},
    ledger::Ledger,
    life::{Life, RUN, key},
    probe::{Mode, Moment, Probe, Probed, Trouble},
    stores::{Kind, Opened, open, quick_runtime},
    verdict::{Left, broken_promises, left},
    workload::graph,
    world::{Event, World},
};
use hapax_store::Store;
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;

const GRAPHS: u64 = 40;
const STALE: u32 = 1;

fn undisturbed(case: &Case) -> Left {
    let (store, world) = (open(Kind::Memory).store, World::new());
    let life = Life::new(1, &store, &world, "sim");
    life.live(case);
    quick_runtime().block_on(left(&store, &life.key(), &world))
}

/// Worker A, which freezes.
struct Stale {
    engine: Engine,
    probe: Arc<Probe>,
    events: Receiver<Seen>,
}

impl Stale {
    /// Starts the run; answers when A is frozen, or `None` when it finished first.
    async fn start(life: &Life, case: &Case) -> Option<Self> {
        let probe = life.probe();
        tokio::spawn(probe.clone().pump());
        let store = Arc::new(Probed(probe.clone()));
        let engine = Engine::builder().options(life.options(case)).with_store(store);
        let events = engine.events();
        let flow = engine.register(graph(case), life.outside()).await.expect("a graph");
        let run = tokio::spawn(async move { flow.start(RUN, Ledger::default()).await?.wait().await });
        while !probe.fired() && !run.is_finished() {
            tokio::task::yield_now().await;
        }
        let over = run.is_finished();
        // The others of A's tasks go on until they reach the store as well.
        let mut quiet = 0;
        while quiet < 100 {
            quiet = if probe.idle() { quiet + 1 } else { 0 };
            tokio::task::yield_now().await;
        }
        (!over).then_some(Self { engine, probe, events })
    }

    /// Wakes A up and lets it do what it still can. Answers how its run left it.
    async fn wake(mut self) -> (Option<Status>, Vec<u64>) {
        self.probe.thaw();
        let (mut ended, mut committed) = (None, vec![]);
        let mut quiet = 0;
        while quiet < 300 {
            match self.events.try_recv() {
                Ok(Seen::RunEnded { status, .. }) => ended = Some(status),
                Ok(Seen::StepCommitted { step, .. }) => committed.push(step),
                Ok(_) => {}
                Err(_) => {
                    quiet = if self.probe.idle() { quiet + 1 } else { 0 };
                    tokio::task::yield_now().await;
                }
            }
        }
        drop(self.engine);
        (ended, committed)
    }
}

/// One moment at which A freezes. Answers whether it came.
async fn freeze(
    store: &Arc<dyn Store>,
    namespace: &str,
    case: &Case,
    wanted: &Left,
    (at, trouble): (usize, Trouble),
    durability: Durability,
) -> bool {
    let world = World::new();
    let mode = if durability == Durability::Pipelined { Mode::Lagging(3) } else { Mode::Direct };
    let a = Life { durability, mode, ..Life::new(STALE, store, &world, namespace) };
    let a = Life { trouble: Some((Moment::Call(at), trouble)), ..a };
    let Some(stale) = Stale::start(&a, case).await else { return false };
    let run = key(namespace);
    let record = store.run(run.clone()).await.expect("readable");
    if record.as_ref().is_some_and(|record| record.status.is_final()) {
        return true;
    }
    stale.probe.expire(&run).await;
    let mut seen = stale.events.resubscribe();
    Life { number: 2, ..Life::new(2, store, &world, namespace) }.live_here(case).await;
    let finished = left(store, &run, &world).await;
    let fenced_before = world.log().len();
    while seen.try_recv().is_ok() {}
    let (ended, _) = stale.wake().await;
    let context = format!("graph {}, {namespace}, {durability:?}, {trouble:?} at {at}", case.seed);
    assert_ne!(ended, Some(Status::Succeeded), "{context}: A reports a success of its own");
    let written = |(life, event): &(u32, Event)| {
        *life == STALE
            && matches!(event, Event::Committed { .. } | Event::Done { .. } | Event::Answered { .. })
    };
    let late = world.log()[fenced_before..].iter().filter(|logged| written(logged)).count();
    assert_eq!(late, 0, "{context}: a write of A was applied after B's claim");
    let now = left(store, &run, &world).await;
    let broken = [broken_promises(&world, Some(STALE)), now.differences(wanted)].concat();
    assert!(broken.is_empty(), "{context}: {broken:#?}");
    assert_eq!(now.steps, finished.steps, "{context}: the result is B's");
    true
}

fn every_moment(kind: Kind, trouble: Trouble, durability: Durability, graphs: impl Iterator<Item = u64>) {
    let shared: Option<Opened> = (kind == Kind::Sqlite).then(|| open(kind));
    let mut tried = 0;
    for seed in graphs {
        let case = case(seed);
        let wanted = undisturbed(&case);
        for at in 0.. {
            tried += 1;
            let fresh = shared.is_none().then(|| open(kind));
            let store = &shared.as_ref().or(fresh.as_ref()).expect("one of the two").store;
            let namespace = if shared.is_some() { format!("sim-{tried}") } else { "sim".to_owned() };
            let moment = freeze(store, &namespace, &case, &wanted, (at, trouble), durability);
            if !quick_runtime().block_on(moment) {
                break;
            }
        }
    }
    println!("{kind:?} {durability:?} {trouble:?}: {tried} executions");
}

#[test]
fn a_worker_that_froze_before_any_call_changes_nothing_when_it_wakes() {
    for durability in [Durability::Strict, Durability::Pipelined] {
        every_moment(Kind::Memory, Trouble::FrozenBefore, durability, 0..GRAPHS);
    }
}

#[test]
fn a_worker_that_froze_after_any_call_changes_nothing_when_it_wakes() {
    for durability in [Durability::Strict, Durability::Pipelined] {
        every_moment(Kind::Memory, Trouble::FrozenAfter, durability, 0..GRAPHS);
    }
}

#[test]
fn a_frozen_worker_changes_nothing_on_sqlite() {
    for trouble in [Trouble::FrozenBefore, Trouble::FrozenAfter] {
        every_moment(Kind::Sqlite, trouble, Durability::Strict, (0..GRAPHS).filter(|seed| seed % 20 == 0));
    }
}

/// A freezes with the commit of its first step in its hand.
fn refused(kind: Kind) {
    let opened = open(kind);
    let (store, world, case) = (&opened.store, World::new(), case(0));
    let frozen = Some((Moment::Step(1), Trouble::FrozenBefore));
    let life = Life { trouble: frozen, ..Life::new(STALE, store, &world, "sim") };
    quick_runtime().block_on(async {
        let stale = Stale::start(&life, &case).await.expect("it freezes");
        stale.probe.expire(&key("sim")).await;
        Life::new(2, store, &world, "sim").live_here(&case).await;
        let (ended, committed) = stale.wake().await;
        let fenced = world.log().iter().filter(|logged| **logged == (STALE, Event::Fenced)).count();
        assert_eq!(fenced, 1, "the commit of A is refused");
        assert_eq!((ended, committed), (Some(Status::Running), vec![]), "and A reports nothing as its own");
    });
}

#[test]
fn a_stale_workers_commit_is_refused_in_memory() {
    refused(Kind::Memory);
}

#[test]
fn a_stale_workers_commit_is_refused_on_sqlite() {
    refused(Kind::Sqlite);
}
