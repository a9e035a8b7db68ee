//! Runs that begin in code and go on as a value, or the other way round: what one form journaled, the other never reads as
//! something else.

use crate::common::*;
use hapax::{
    Coded, Error,
    core::{commit::Write as StoreWrite, error::code},
    dynamic::{Dynamic, DynamicDelta, Reduce, Registry, Returned},
    prelude::*,
    store::Store,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

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

fn in_code(diary: &Diary) -> Graph<Pile> {
    let (parts, excuses) = (diary.clone(), diary.clone());
    let split = |_: hapax::Ctx<Pile>| std::future::ready(Pile::delta().fork([PART.with(1), PART.with(2)]));
    let part = move |_: hapax::Ctx<Pile>, n: u64| {
        parts.note("part");
        std::future::ready(Pile::delta().total(n).sizes(format!("part {n}"), n))
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

fn from_a_value(diary: &Diary) -> Graph<Dynamic> {
    let (parts, excuses) = (diary.clone(), diary.clone());
    let registry = Registry::<()>::new()
        .node("split", async |_, _| Ok(Returned::from(()).fork([("part", 1), ("part", 2)])))
        .node("part", move |_, n: Value| {
            parts.note("part");
            let name = format!("part {n}");
            std::future::ready(Ok(json!({"total": n, "sizes": {name: n}})))
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
fn left_in_a_fork<S: State>(store: &Arc<dyn Store>, graph: Graph<S>, start: S) {
    let merges = |write: &StoreWrite| matches!(write, StoreWrite::Step(step) if step.checkpoint.step == 2);
    let process = Process::dying_before(store, merges);
    let engine = process.engine(Options::default());
    process.run_to_death(async move {
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", start).await.unwrap();
    });
}

fn gone_on_with<S: State>(store: &Arc<dyn Store>, graph: Graph<S>, again: bool) -> Result<S, Error> {
    let process = Process::healthy(store);
    process.run(async {
        let flow = process.engine(Options::default()).register(graph, ()).await?;
        let run = if again { flow.retry("run").await? } else { flow.attach("run").await? };
        run.wait().await
    })
}

fn last_step(store: &Arc<dyn Store>) -> u64 {
    let checkpoints = Process::healthy(store).run(store.checkpoints(key("run"), 0, usize::MAX));
    checkpoints.unwrap().last().unwrap().step
}

fn handed_over<A: State, B: State>(
    begins: impl Fn(&Diary) -> Graph<A>,
    other: impl Fn(&Diary) -> Graph<B>,
    start: A,
) {
    let (store, diary) = (memory(), Diary::default());
    left_in_a_fork(&store, begins(&diary), start);
    let refused = gone_on_with(&store, other(&diary), false).err().expect("it can't read what is journaled");
    assert_eq!(refused.code(), code::STATE_SHAPE, "{refused}");
    assert!(
        failure(&refused).node.is_none() && refused.to_string().contains("what `part` wrote"),
        "{refused}"
    );
    assert_eq!(last_step(&store), 1, "nothing is committed");
    let end = gone_on_with(&store, begins(&diary), true).unwrap();
    let expected = json!({"total": 3, "sizes": {"part 1": 1, "part 2": 2}});
    assert_eq!(serde_json::to_value(end).unwrap(), expected);
    assert_eq!(diary.all(), ["part", "part"], "no part ran again, and no handler was asked");
}

#[test]
fn what_a_graph_in_code_journaled_halts_one_from_a_value() {
    handed_over(in_code, from_a_value, Pile::default());
}

#[test]
fn what_a_graph_from_a_value_journaled_halts_one_in_code() {
    handed_over(from_a_value, in_code, json!({"total": 0, "sizes": {}}).into());
}

/// Between two steps nothing is journaled that only one form can read.
#[test]
fn a_run_between_two_steps_goes_on_in_either_form() {
    let (store, diary) = (memory(), Diary::default());
    let begun = |write: &StoreWrite| matches!(write, StoreWrite::Append(_));
    let process = Process::dying_before(&store, begun);
    let engine = process.engine(Options::default());
    let graph = in_code(&diary);
    process.run_to_death(async move {
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", Pile::default()).await.unwrap();
    });
    let end = gone_on_with(&store, from_a_value(&diary), false).unwrap();
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
