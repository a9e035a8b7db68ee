//! An engine may die, or lose an answer, at any call to its store: what the run leaves behind stays the same.
//!
//! For each generated graph the undisturbed execution says what is right. Then every call boundary is troubled in
//! turn, until nothing fires any more: in memory and on SQLite alike. `HAPAX_LONG=1` takes all graphs where the tests at
//! the end take a share.

use hapax::Durability::{self, Pipelined, Strict};
use hapax_sim::{
    generate::{Case, FEATURES, case},
    life::{Life, key},
    probe::{Mode, Moment, Trouble},
    stores::{Kind, Opened, open, quick_runtime},
    verdict::{Left, broken_promises, left},
    world::World,
};
use hapax_store::faulty::Fault;

/// How many graphs are generated.
const GRAPHS: u64 = 210;
/// Calls after which a run would have to be endless.
const ENDLESS: u64 = 5000;

fn long() -> bool {
    std::env::var_os("HAPAX_LONG").is_some()
}

/// A generated case and what its undisturbed execution leaves.
struct Known {
    case: Case,
    left: Left,
}

fn known(seed: u64) -> Known {
    let (case, store, world) = (case(seed), open(Kind::Memory).store, World::new());
    let life = Life { inspects: true, ..Life::new(1, &store, &world, "sim") };
    let lived = life.live(&case);
    assert!(lived.end.is_some(), "nothing kills it");
    let left = quick_runtime().block_on(left(&store, &life.key(), &world));
    let broken = [broken_promises(&world, None), left.differences(&left)].concat();
    assert!(broken.is_empty(), "graph {seed}, undisturbed: {broken:#?}");
    assert!(left.status.is_final(), "graph {seed} ends: {:?}", left.status);
    Known { case, left }
}

/// Where a plan is tried, and how often it was.
struct Bench {
    kind: Kind,
    durability: Durability,
    shared: Option<Opened>,
    tried: u64,
}

impl Bench {
    fn new(kind: Kind, durability: Durability) -> Self {
        Self { kind, durability, shared: None, tried: 0 }
    }

    /// The next graph gets a file of its own: a store keeps the lock of every engine that ever claimed through it, and
    /// each is an open file.
    fn next_graph(&mut self) {
        self.shared = (self.kind == Kind::Sqlite).then(|| open(self.kind));
    }

    /// Runs one case: the first lives as planned, the last undisturbed. Answers whether the last plan fired.
    fn try_out(&mut self, known: &Known, plan: &[Plan]) -> bool {
        self.tried += 1;
        let (namespace, fresh) = match &self.shared {
            Some(_) => (format!("sim-{}", self.tried), None),
            None => ("sim".to_owned(), Some(open(self.kind))),
        };
        let store = self.shared.as_ref().or(fresh.as_ref()).expect("one of the two").store.clone();
        let world = World::new();
        let first = Life::new(1, &store, &world, &namespace);
        // Memory answers at once, so only a lag makes steps run ahead there; on SQLite it loses what a crash loses.
        let mode = if self.durability == Pipelined {
            Mode::Lagging(known.case.seed as u32 % 7)
        } else {
            Mode::Direct
        };
        // Looking into the store at every call costs more than the run itself: a share of the graphs does it.
        let inspects = self.kind == Kind::Memory && known.case.seed.is_multiple_of(4);
        let first = Life { durability: self.durability, mode, inspects, ..first };
        let (mut over, mut fired) = (false, false);
        for (number, plan) in (1..).zip(plan) {
            let lived =
                Life { number, fault: plan.fault, trouble: plan.trouble, ..first.clone() }.live(&known.case);
            (over, fired) = (lived.end.is_some(), lived.fired);
        }
        if !over {
            Life { number: 9, ..first }.live(&known.case);
        }
        let now = quick_runtime().block_on(left(&store, &key(&namespace), &world));
        let broken = [broken_promises(&world, None), now.differences(&known.left)].concat();
        let (seed, durability, kind) = (known.case.seed, self.durability, self.kind);
        assert!(broken.is_empty(), "graph {seed}, {kind:?}, {durability:?}, {plan:?}: {broken:#?}");
        fired
    }

    /// Tries every boundary until nothing fires.
    fn every(&mut self, known: &Known, plan: impl Fn(u64) -> Vec<Plan>) {
        let fired = |n: &u64| self.try_out(known, &plan(*n));
        let boundaries = (0..).take_while(fired).count() as u64;
        assert!(boundaries < ENDLESS);
    }
}

/// What happens to one life.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    fault: Option<(u64, Fault)>,
    trouble: Option<(Moment, Trouble)>,
}

fn fault(at: u64, fault: Fault) -> Plan {
    Plan { fault: Some((at, fault)), trouble: None }
}

fn trouble(at: u64, trouble: Trouble) -> Plan {
    Plan { fault: None, trouble: Some((Moment::Call(at as usize), trouble)) }
}

/// Tries a fault at every boundary of every graph.
fn all_boundaries(kind: Kind, durability: Durability, what: Fault) {
    let mut bench = Bench::new(kind, durability);
    for known in (0..GRAPHS).map(known) {
        bench.next_graph();
        bench.every(&known, |n| vec![fault(n, what)]);
    }
    let tried = bench.tried;
    println!("{kind:?} {durability:?} {what:?}: every boundary of {GRAPHS} graphs: {tried} executions");
}

#[test]
fn generated_graphs_cover_every_feature() {
    let cases: Vec<Case> = (0..GRAPHS).map(case).collect();
    for feature in FEATURES {
        let share = cases.iter().filter(|case| case.has(feature)).count() as u64 * 100 / GRAPHS;
        println!("{feature:?}: {share} % of {GRAPHS} graphs");
        assert!(share >= 20, "{feature:?} is in {share} % only");
    }
    let ended: Vec<Left> = (0..GRAPHS).map(|seed| known(seed).left).collect();
    let failed = ended.iter().filter(|left| left.status.word() == "failed").count();
    let calls: usize = ended.iter().map(|left| left.calls.len()).sum();
    let steps: usize = ended.iter().map(|left| left.steps.len()).sum();
    println!("{failed} runs fail; {steps} steps and {calls} calls in all");
    assert!(failed as u64 * 5 >= GRAPHS);
}

#[test]
fn a_crash_before_any_call_changes_nothing_in_memory() {
    all_boundaries(Kind::Memory, Strict, Fault::Before);
}

#[test]
fn a_crash_after_any_call_changes_nothing_in_memory() {
    all_boundaries(Kind::Memory, Strict, Fault::After);
}

#[test]
fn a_lost_reply_to_any_call_changes_nothing_in_memory() {
    all_boundaries(Kind::Memory, Strict, Fault::LoseReply);
}

#[test]
fn a_crash_before_any_call_changes_nothing_when_steps_run_ahead_in_memory() {
    all_boundaries(Kind::Memory, Pipelined, Fault::Before);
}

#[test]
fn a_crash_after_any_call_changes_nothing_when_steps_run_ahead_in_memory() {
    all_boundaries(Kind::Memory, Pipelined, Fault::After);
}

#[test]
fn a_lost_reply_to_any_call_changes_nothing_when_steps_run_ahead_in_memory() {
    all_boundaries(Kind::Memory, Pipelined, Fault::LoseReply);
}

#[test]
fn a_crash_before_any_call_changes_nothing_on_sqlite() {
    all_boundaries(Kind::Sqlite, Strict, Fault::Before);
}

#[test]
fn a_crash_after_any_call_changes_nothing_on_sqlite() {
    all_boundaries(Kind::Sqlite, Strict, Fault::After);
}

#[test]
fn a_lost_reply_to_any_call_changes_nothing_on_sqlite() {
    all_boundaries(Kind::Sqlite, Strict, Fault::LoseReply);
}

#[test]
fn a_crash_before_any_call_changes_nothing_when_steps_run_ahead_on_sqlite() {
    all_boundaries(Kind::Sqlite, Pipelined, Fault::Before);
}

#[test]
fn a_crash_after_any_call_changes_nothing_when_steps_run_ahead_on_sqlite() {
    all_boundaries(Kind::Sqlite, Pipelined, Fault::After);
}

#[test]
fn a_lost_reply_to_any_call_changes_nothing_when_steps_run_ahead_on_sqlite() {
    all_boundaries(Kind::Sqlite, Pipelined, Fault::LoseReply);
}

#[test]
fn a_refused_or_vanished_write_changes_nothing() {
    let graphs = (0..GRAPHS).filter(|seed| long() || seed % 8 == 0);
    for durability in [Strict, Pipelined] {
        let mut bench = Bench::new(Kind::Memory, durability);
        for known in graphs.clone().map(known) {
            for what in [Trouble::Refused, Trouble::Vanished] {
                bench.every(&known, |n| vec![trouble(n, what)]);
            }
        }
        println!("{durability:?}, refused or vanished writes: {} executions", bench.tried);
    }
}

#[test]
fn a_second_trouble_during_recovery_changes_nothing() {
    let graphs = (0..GRAPHS).filter(|seed| long() || seed % 16 == 1);
    for durability in [Strict, Pipelined] {
        let mut bench = Bench::new(Kind::Memory, durability);
        for known in graphs.clone().map(known) {
            for what in [Fault::Before, Fault::After, Fault::LoseReply] {
                let first = fault(known.case.seed % 17, Fault::After);
                bench.every(&known, |n| vec![first, fault(n, what)]);
            }
            let first = fault(known.case.seed % 17, Fault::Before);
            bench.every(&known, |n| vec![first, trouble(n, Trouble::Unread)]);
        }
        println!("{durability:?}, trouble during recovery: {} executions", bench.tried);
    }
}
