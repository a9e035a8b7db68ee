//! Runs that begin in code and go on as a value, or the other way round: what one form journaled, the other never reads as
//! something else.

use crate::common::*;
use hapax::{
    Coded, Error,
    core::{
        commit::Write as StoreWrite,
        error::code,
        journal::{Done, Entry, JournalRow},
    },
    dynamic::{Dynamic, DynamicDelta, Reduce, Registry, Returned},
    prelude::*,
    store::Store,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Its map could hold what the other form writes, if that weren't marked.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Pile {
    #[state(sum)]
    total: u64,
    #[state(merge)]
    sizes: BTreeMap<String, u64>,
}

const SPLIT: Node = Node::new("split");
const PART: Node<u64> = Node::new("part");
const EXCUSE: Node<NodeFailure> = Node::new("excuse");

/// What the parts tell, and when the first of them may end.
#[derive(Clone, Default)]
struct Parts {
    diary: Diary,
    first_may_end: CancellationToken,
}

impl Parts {
    /// None of them waits.
    fn at_once() -> Self {
        let parts = Self::default();
        parts.first_may_end.cancel();
        parts
    }

    async fn run(&self, n: u64) {
        self.diary.note(format!("part {n}"));
        if n == 1 {
            self.first_may_end.cancelled().await;
        }
    }
}

fn in_code(parts: &Parts) -> Graph<Pile> {
    let (parts, excuses) = (parts.clone(), parts.diary.clone());
    let split = |_: hapax::Ctx<Pile>| std::future::ready(Pile::delta().fork([PART.with(1), PART.with(2)]));
    let part = move |_: hapax::Ctx<Pile>, n: u64| {
        let parts = parts.clone();
        async move {
            parts.run(n).await;
            Pile::delta().total(n).sizes(format!("part {n}"), n)
        }
    };
    let excuse = move |_: hapax::Ctx<Pile>, _: NodeFailure| {
        excuses.note("excuse");
        std::future::ready(())
    };
    Graph::new("piles", 1, SPLIT)
        .node(SPLIT, split)
        .node(PART, part)
        .node(EXCUSE, excuse)
        .on_error(PART, EXCUSE)
}

fn from_a_value(parts: &Parts) -> Graph<Dynamic> {
    let (parts, excuses) = (parts.clone(), parts.diary.clone());
    let registry = Registry::<()>::new()
        .node("split", async |_, _| Ok(Returned::from(()).fork([("part", 1), ("part", 2)])))
        .node("part", move |_, n: Value| {
            let parts = parts.clone();
            async move {
                parts.run(n.as_u64().unwrap()).await;
                let name = format!("part {n}");
                Ok(json!({"total": n, "sizes": {name: n}}))
            }
        })
        .node("excuse", move |_, _| {
            excuses.note("excuse");
            std::future::ready(Ok(()))
        });
    let description = json!({
        "name": "piles",
        "start": "split",
        "fields": {"total": "sum", "sizes": "merge"},
        "nodes": [
            {"name": "split", "routes": true},
            {"name": "part", "input": true, "on_error": "excuse"},
            {"name": "excuse", "input": true}
        ]
    });
    registry.graph(&description).unwrap()
}

/// Both parts are done and journaled; the process dies before their step is committed.
fn commits_the_parts(write: &StoreWrite) -> bool {
    matches!(write, StoreWrite::Step(step) if step.checkpoint.step == 2)
}

/// The second part is done and journaled; the process dies before the end of the first, which waited for that, is.
fn ends_the_first(first_may_end: CancellationToken) -> impl Fn(&StoreWrite) -> bool + Send + Sync + 'static {
    move |write: &StoreWrite| {
        if ends(write, "part 2") {
            first_may_end.cancel();
        }
        ends(write, "part 1")
    }
}

fn ends(write: &StoreWrite, part: &str) -> bool {
    let StoreWrite::Append(append) = write else { return false };
    append.rows.iter().flat_map(JournalRow::entries).any(|entry| match entry {
        Entry::ItemDone { done: Done::Ok { delta, .. } } => delta.as_str().contains(part),
        _ => false,
    })
}

fn left_in_a_fork<S: State>(
    store: &Arc<dyn Store>,
    graph: Graph<S>,
    start: S,
    dies_before: impl Fn(&StoreWrite) -> bool + Send + Sync + 'static,
) {
    let process = Process::dying_before(store, dies_before);
    let engine = process.engine(Options::default());
    process.run_to_death(async move {
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", start).await.unwrap();
    });
}

fn gone_on_with<S: State>(store: &Arc<dyn Store>, graph: Graph<S>, again: bool) -> Result<S, Error> {
    let process = Process::healthy(store);
    // One part at a time: were the first one run, its end would be journaled before that of the second is looked at.
    let options = Options::default().max_concurrent_nodes(1);
    process.run(async {
        let flow = process.engine(options).register(graph, ()).await?;
        let run = if again { flow.retry("run").await? } else { flow.attach("run").await? };
        run.wait().await
    })
}

fn last_step(store: &Arc<dyn Store>) -> u64 {
    let checkpoints = Process::healthy(store).run(store.checkpoints(key("run"), 0, usize::MAX));
    checkpoints.unwrap().last().unwrap().step
}

fn journal(store: &Arc<dyn Store>) -> Vec<JournalRow> {
    Process::healthy(store).run(store.journal(key("run"), 0, usize::MAX)).unwrap()
}

/// The other form can't go on with what was left, and adds nothing to it; the form that began goes on.
fn handed_over<A: State, B: State>(
    parts: &Parts,
    begins: impl Fn(&Parts) -> Graph<A>,
    other: impl Fn(&Parts) -> Graph<B>,
    start: A,
    dies_before: impl Fn(&StoreWrite) -> bool + Send + Sync + 'static,
) {
    let store = memory();
    left_in_a_fork(&store, begins(parts), start, dies_before);
    let (told, journaled) = (parts.diary.all(), journal(&store));
    let refused = gone_on_with(&store, other(parts), false).err().expect("it can't read what is journaled");
    assert_eq!(refused.code(), code::STATE_SHAPE, "{refused}");
    assert!(
        failure(&refused).node.is_none() && refused.to_string().contains("what `part` wrote"),
        "{refused}"
    );
    assert_eq!(last_step(&store), 1, "nothing is committed");
    assert_eq!(parts.diary.all(), told, "nothing is run");
    assert_eq!(journal(&store), journaled, "nothing is journaled");
    let end = gone_on_with(&store, begins(parts), true).unwrap();
    let expected = json!({"total": 3, "sizes": {"part 1": 1, "part 2": 2}});
    assert_eq!(serde_json::to_value(end).unwrap(), expected);
}

fn with_both_done<A: State, B: State>(
    begins: impl Fn(&Parts) -> Graph<A>,
    other: impl Fn(&Parts) -> Graph<B>,
    start: A,
) {
    let parts = Parts::at_once();
    handed_over(&parts, begins, other, start, commits_the_parts);
    assert_eq!(parts.diary.len(), 2, "no part ran again, and no handler was asked");
}

fn with_one_done<A: State, B: State>(
    begins: impl Fn(&Parts) -> Graph<A>,
    other: impl Fn(&Parts) -> Graph<B>,
    start: A,
) {
    let parts = Parts::default();
    let dies_before = ends_the_first(parts.first_may_end.clone());
    handed_over(&parts, begins, other, start, dies_before);
    assert_eq!(parts.diary.all()[2..], ["part 1"], "the part that was done didn't run again");
}

#[test]
fn what_a_graph_in_code_journaled_halts_one_from_a_value() {
    with_both_done(in_code, from_a_value, Pile::default());
}

#[test]
fn what_a_graph_from_a_value_journaled_halts_one_in_code() {
    with_both_done(from_a_value, in_code, json!({"total": 0, "sizes": {}}).into());
}

#[test]
fn one_part_that_a_graph_in_code_journaled_halts_one_from_a_value_before_it_runs_the_other() {
    with_one_done(in_code, from_a_value, Pile::default());
}

#[test]
fn one_part_that_a_graph_from_a_value_journaled_halts_one_in_code_before_it_runs_the_other() {
    with_one_done(from_a_value, in_code, json!({"total": 0, "sizes": {}}).into());
}

/// Between two steps nothing is journaled that only one form can read.
#[test]
fn a_run_between_two_steps_goes_on_in_either_form() {
    let (store, parts) = (memory(), Parts::at_once());
    let begun = |write: &StoreWrite| matches!(write, StoreWrite::Append(_));
    let process = Process::dying_before(&store, begun);
    let engine = process.engine(Options::default());
    let graph = in_code(&parts);
    process.run_to_death(async move {
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", Pile::default()).await.unwrap();
    });
    let end = gone_on_with(&store, from_a_value(&parts), false).unwrap();
    assert_eq!(end.value(), json!({"total": 3, "sizes": {"part 1": 1, "part 2": 2}}));
}

#[test]
fn a_delta_is_read_by_its_own_form_alone() {
    let typed = serde_json::to_value(Pile::delta().sizes("sum", 3u64)).unwrap();
    let described =
        serde_json::to_value(Dynamic::delta().write("sizes", Reduce::Merge, json!({"sum": 3})).unwrap());
    let described = described.unwrap();
    assert_eq!(
        (&typed, &described),
        (&json!({"sizes": {"sum": 3}}), &json!({"$by": {"sizes": {"merge": {"sum": 3}}}}))
    );
    assert!(serde_json::from_value::<DynamicDelta>(typed).is_err());
    assert!(serde_json::from_value::<PileDelta>(described).is_err());
}

/// What only the form in code calls secret.
#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Safe {
    #[state(secret)]
    pin: String,
    #[state(sum)]
    doors: u64,
}

const PINS: [&str; 3] = ["1234", "5678", "9876"];

fn safe_in_code() -> Graph<Safe> {
    let split = |_: hapax::Ctx<Safe>| async { Safe::delta().pin(PINS[0]).fork([PART.with(1), PART.with(2)]) };
    let part = |_: hapax::Ctx<Safe>, n: u64| async move {
        if n == 1 { Safe::delta().pin(PINS[1]) } else { Safe::delta().doors(n) }
    };
    Graph::new("safes", 1, SPLIT).node(SPLIT, split).node(PART, part)
}

fn safe_from_a_value(first: &'static str, then: &'static str) -> Graph<Dynamic> {
    let registry = Registry::<()>::new()
        .node("split", move |_, _| async move {
            Ok(Returned::wrote(json!({"pin": first})).fork([("part", 1), ("part", 2)]))
        })
        .node("part", move |_, n: Value| async move {
            Ok(if n == 1 { json!({"pin": then}) } else { json!({"doors": n}) })
        });
    let description = json!({
        "name": "safes",
        "start": "split",
        "fields": {"pin": "last", "doors": "sum"},
        "nodes": [{"name": "split", "routes": true}, {"name": "part", "input": true}]
    });
    registry.graph(&description).unwrap()
}

/// Of a state that differs, and of a delta, which each form writes in its own way.
#[tokio::test]
async fn a_replay_by_the_other_form_shows_nothing_that_is_secret() {
    for (first, then, field) in [(PINS[2], PINS[1], "state/pin"), (PINS[0], PINS[2], "delta/$by")] {
        let engine = engine(Options::default());
        let flow = engine.register(safe_in_code(), ()).await.unwrap();
        flow.start("run", Safe::default()).await.unwrap().wait().await.unwrap();
        engine.register(safe_from_a_value(first, then), ()).await.unwrap();
        let found = engine.replay("run").await.unwrap().divergence.unwrap();
        assert_eq!(found.field, field);
        let told = format!("{found:?}");
        assert!(!PINS.iter().any(|pin| told.contains(pin)), "{told}");
    }
}
