//! A run's outcome depends on its input, its graph and its recorded effects: not on how many nodes run at once, not
//! on which of them finishes first, and not on the store.

use futures::future::BoxFuture;
use hapax::{Durability, Rng};
use hapax_sim::{
    generate::{Behaviour, Case, case},
    life::Life,
    stores::{Kind, Opened, open, quick_runtime},
    verdict::{Left, broken_promises, left},
    workload::{AtOnce, Pace},
    world::{Site, World, lock},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

const CASES: u64 = 110;

/// Each attempt gives way a random number of times before it returns.
struct GiveWay(u64);

impl Pace for GiveWay {
    fn wait(&self, site: Site) -> BoxFuture<'_, ()> {
        let mut rng = Rng::for_item(self.0, site.step, site.path_hash, "pace");
        Box::pin(async move {
            for _ in 0..rng.below(40) {
                tokio::task::yield_now().await;
            }
        })
    }
}

/// The items of a step return in the order of a script, whatever order they started in.
struct Script {
    /// Items of the scripted step, in the order in which they return.
    order: Vec<Site>,
    returned: Mutex<usize>,
}

impl Pace for Script {
    fn wait(&self, site: Site) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(turn) = self.order.iter().position(|scripted| *scripted == site) else { return };
            while *lock(&self.returned) != turn {
                tokio::task::yield_now().await;
            }
            *lock(&self.returned) += 1;
        })
    }
}

/// Executes a case on many threads.
fn execute(
    kind: Kind,
    shared: Option<&Opened>,
    namespace: &str,
    life: &dyn Fn(Life) -> Life,
    case: &Case,
) -> Left {
    let fresh = shared.is_none().then(|| open(kind));
    let store = &shared.or(fresh.as_ref()).expect("one of the two").store;
    let world = World::new();
    let life = life(Life::new(1, store, &world, namespace));
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let lived = threads.expect("a runtime").block_on(life.live_here(case));
    assert!(lived.end.is_some());
    let broken = broken_promises(&world, None);
    assert!(broken.is_empty(), "graph {}: {broken:#?}", case.seed);
    quick_runtime().block_on(left(store, &life.key(), &world))
}

/// A step that fails starts no more items, so which of its calls were made is left to chance; all else is not.
fn without_failed_step(mut left: Left) -> Left {
    if left.status.word() == "failed" {
        let last = left.steps.len() as u64 - 1;
        left.calls.retain(|(site, _)| site.step < last);
        left.answers.retain(|site, _| site.step < last);
    }
    left
}

fn same(ours: Left, wanted: &Left, context: &str) {
    let differences = without_failed_step(ours).differences(wanted);
    assert!(differences.is_empty(), "{context}: {differences:#?}");
}

fn wanted(case: &Case) -> Left {
    without_failed_step(execute(Kind::Memory, None, "sim", &|life| life, case))
}

#[test]
fn the_outcome_does_not_depend_on_concurrency_or_finish_order() {
    for case in (0..CASES).map(case) {
        let wanted = wanted(&case);
        for concurrent in [1, 2, 8, 64] {
            let pace: Arc<dyn Pace> = Arc::new(GiveWay(case.seed * 100 + concurrent as u64));
            let life =
                |life| Life { concurrent, pace: pace.clone(), durability: Durability::Pipelined, ..life };
            let ours = execute(Kind::Memory, None, "sim", &life, &case);
            same(ours, &wanted, &format!("graph {}, {concurrent} at a time", case.seed));
        }
    }
    println!("{CASES} graphs, each with 1, 2, 8 and 64 nodes at a time in another finish order");
}

#[test]
fn the_outcome_does_not_depend_on_the_store() {
    let sqlite = open(Kind::Sqlite);
    for case in (0..CASES).map(case) {
        let wanted = wanted(&case);
        for durability in [Durability::Strict, Durability::Pipelined] {
            let pace: Arc<dyn Pace> = Arc::new(GiveWay(case.seed));
            let life = |life| Life { durability, pace: pace.clone(), ..life };
            let namespace = format!("sim-{}-{durability:?}", case.seed);
            let ours = execute(Kind::Sqlite, Some(&sqlite), &namespace, &life, &case);
            same(ours, &wanted, &format!("graph {}, {durability:?} on SQLite", case.seed));
        }
    }
    println!("{CASES} graphs, strict and running ahead, on SQLite as in memory");
}

/// A start that forks into six, which do nothing but write.
fn fan() -> Case {
    let mut fan = case(0);
    let plain = |reached| Behaviour { reached, attempts: 1, draws: true, ..Behaviour::default() };
    fan.nodes =
        vec![plain(hapax_sim::generate::Reached::Plainly), plain(hapax_sim::generate::Reached::ByFork)];
    fan.nodes[0].forks = (0..6).map(|input| (1, input * 10)).collect();
    (fan.edges, fan.joins, fan.handlers) = (vec![], vec![], vec![]);
    fan
}

/// The items of step 1, as the world saw them start.
fn items_of_the_fan(case: &Case) -> Vec<Site> {
    let (store, world) = (open(Kind::Memory).store, World::new());
    Life { pace: Arc::new(AtOnce), ..Life::new(1, &store, &world, "sim") }.live(case);
    let frontier = quick_runtime().block_on(store.checkpoint(hapax_sim::life::key("sim"), 1));
    let frontier = frontier.expect("readable").expect("there").frontier;
    let site = |item: &hapax_core::frontier::WorkItem| Site {
        step: 1,
        path_hash: item.path_hash,
        scope: String::new(),
        index: 1,
    };
    frontier.iter().map(site).collect()
}

#[test]
fn results_merge_in_order_key_order_whichever_finished_first() {
    let case = fan();
    let wanted = wanted(&case);
    let items = items_of_the_fan(&case);
    assert_eq!(items.iter().collect::<BTreeSet<_>>().len(), 6);
    for seed in 0..20 {
        let mut order = items.clone();
        if seed == 0 {
            order.reverse();
        } else {
            Rng::for_item(seed, 0, hapax_core::order::PathHash::ROOT, "script").shuffle(&mut order);
        }
        let pace: Arc<dyn Pace> = Arc::new(Script { order, returned: Mutex::new(0) });
        let life = |life| Life { pace: pace.clone(), ..life };
        let ours = execute(Kind::Memory, None, "sim", &life, &case);
        same(ours, &wanted, &format!("script {seed}"));
    }
}
