//! Nothing leaves the process before it is durable: at the moment of a call its intent and all earlier steps are in
//! the store, and when the node sees an answer, so is that.
//!
//! The store applies writes many turns of the scheduler after it accepted them, so that an engine that doesn't wait
//! for them is certain to be seen.

use hapax::Durability;
use hapax_sim::{
    generate::{Case, Feature, case},
    life::Life,
    probe::Mode,
    stores::{Kind, open},
    world::{Event, World},
};

/// Turns between the acceptance of a write and its application.
const LATE: u32 = 50;

/// Runs a case over a late store; answers what its calls saw broken, and how many there were.
fn inspect(kind: Kind, case: &Case, durability: Durability) -> (Vec<String>, usize) {
    let (opened, world) = (open(kind), World::new());
    let life = Life::new(1, &opened.store, &world, "sim");
    let life = Life { durability, mode: Mode::Lagging(LATE), inspects: true, ..life };
    assert!(life.live(case).end.is_some(), "nothing kills it");
    let calls = world.log().iter().filter(|(_, event)| matches!(event, Event::Called { .. })).count();
    (world.violations(), calls)
}

fn cases(count: usize) -> impl Iterator<Item = Case> {
    (0..).map(case).filter(|case| case.has(Feature::Effects)).take(count)
}

/// Looks for one kind of violation in many cases.
fn none_says(what: &str) {
    let mut calls = 0;
    for case in cases(30) {
        for durability in [Durability::Strict, Durability::Pipelined] {
            let (violations, seen) = inspect(Kind::Memory, &case, durability);
            calls += seen;
            let broken: Vec<_> = violations.into_iter().filter(|text| text.contains(what)).collect();
            assert!(broken.is_empty(), "graph {}, {durability:?}: {broken:#?}", case.seed);
        }
    }
    assert!(calls > 100, "{calls} calls are too few to tell");
    println!("{calls} calls were looked at");
}

#[test]
fn a_call_leaves_only_after_its_intent_is_durable() {
    none_says("before its intent");
}

#[test]
fn a_call_leaves_only_after_all_earlier_steps_are_durable() {
    none_says("while only step");
}

#[test]
fn a_node_sees_an_answer_only_after_it_is_durable() {
    none_says("before it was durable");
}

#[test]
fn the_gate_holds_on_sqlite() {
    for case in cases(3) {
        let (violations, calls) = inspect(Kind::Sqlite, &case, Durability::Pipelined);
        assert!(violations.is_empty() && calls > 0, "graph {}: {violations:#?}", case.seed);
    }
}
