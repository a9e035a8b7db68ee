//! Small graphs and steps for the tests of the core.
#![allow(dead_code)]

use hapax_core::{
    frontier::{Barriers, WorkItem},
    graph::{Graph, GraphBuilder},
    id::NodeId,
    json::Json,
    merge::{ItemResult, MergeError, Merged, Merger},
    route::SettledRoute,
    state::{ConflictPolicy, Delta, State},
};

pub(crate) fn id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// A step's item that returned nothing but a route.
pub(crate) fn routed<S: State>(route: SettledRoute) -> ItemResult<S> {
    ItemResult::Done { delta: S::delta(), route }
}

pub(crate) fn edges<S: State>() -> ItemResult<S> {
    routed(SettledRoute::Edges)
}

pub(crate) fn fork<S: State>(branches: &[&str]) -> ItemResult<S> {
    let input = |at: usize| Json::of(&at).unwrap();
    routed(SettledRoute::Fork(branches.iter().enumerate().map(|(at, to)| (id(to), input(at))).collect()))
}

/// Merges one step: `result` says what became of each item.
pub(crate) fn step<S: State>(
    graph: &Graph<S>,
    number: u64,
    before: Merged<S>,
    result: impl Fn(&WorkItem) -> ItemResult<S>,
) -> Result<Merged<S>, MergeError> {
    let Merged { state, frontier, barriers, .. } = before;
    let mut merger = Merger::new(graph, number, state, barriers, ConflictPolicy::Fail, frontier.len());
    for item in &frontier {
        merger.push(item, result(item))?;
    }
    merger.finish()
}

/// What stands before step 0's frontier runs.
pub(crate) fn start<S: State + Default>(graph: &Graph<S>) -> Merged<S> {
    let (frontier, barriers) = (vec![WorkItem::start(graph)], Barriers::default());
    Merged { state: S::default(), frontier, barriers, fresh: false }
}

/// The names of a frontier's nodes, in order.
pub(crate) fn names<S>(merged: &Merged<S>) -> Vec<&str> {
    merged.frontier.iter().map(|item| item.node.as_str()).collect()
}

/// A graph that splits in two, and the two items.
pub(crate) fn branches<S: State + Default>() -> (Graph<S>, [WorkItem; 2]) {
    let graph = GraphBuilder::new("two", 1, "split")
        .node("split", false, false)
        .node("left", false, false)
        .node("right", false, false)
        .edge("split", "left")
        .edge("split", "right")
        .build()
        .unwrap();
    let merged = step(&graph, 0, start(&graph), |_| edges()).unwrap();
    let items = merged.frontier.try_into().unwrap();
    (graph, items)
}

/// Merges the deltas of two branches of one step.
pub(crate) fn merge_two<D: Delta>(policy: ConflictPolicy, left: D, right: D) -> Result<D::State, MergeError>
where
    D::State: Default,
{
    let (graph, items) = branches::<D::State>();
    let mut merger = Merger::new(&graph, 1, D::State::default(), Barriers::default(), policy, 2);
    for (item, delta) in items.iter().zip([left, right]) {
        merger.push(item, ItemResult::Done { delta, route: SettledRoute::Edges })?;
    }
    Ok(merger.finish()?.state)
}
