//! From a step's results to the next frontier: routes, positions, coalescing, joins, and what stops a run.

mod common;

use common::{edges, fork, id, names, routed, start, step};
use hapax_core::{
    failure::NodeFailure,
    frontier::{Barriers, WorkItem},
    graph::{Graph, GraphBuilder},
    merge::{ItemResult, MergeError, Merged},
    order::{OrderKey, PathHash},
    route::SettledRoute,
    state::State,
};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, sync::Arc};

#[derive(hapax_macros::State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[state(crate = hapax_core)]
struct Count {
    #[state(sum)]
    n: u64,
    #[state(append)]
    log: Vec<String>,
}

type Builder = GraphBuilder<Count>;

/// A graph all of whose nodes may route; the first is the start.
fn graph(nodes: &[&str]) -> Builder {
    let builder = Builder::new("g", 1, nodes[0]);
    nodes.iter().fold(builder, |builder, node| builder.node(node, true, false))
}

fn over(limit: u64) -> Arc<dyn Fn(&Count) -> bool + Send + Sync> {
    Arc::new(move |count: &Count| count.n > limit)
}

/// The item that `parent` leads to.
fn child(parent: &WorkItem, index: u32, node: &str) -> (OrderKey, PathHash) {
    (OrderKey::of(parent.path_hash, index), parent.path_hash.child(node, index))
}

fn place(item: &WorkItem) -> (OrderKey, PathHash) {
    (item.order_key, item.path_hash)
}

fn find<'m>(merged: &'m Merged<Count>, node: &str) -> &'m WorkItem {
    let mut found = merged.frontier.iter().filter(|item| item.node.as_str() == node);
    let item = found.next().expect(node);
    assert!(found.next().is_none(), "{node} is there twice");
    item
}

fn wrote(n: u64) -> ItemResult<Count> {
    ItemResult::Done { delta: Count::delta().n(n), route: SettledRoute::Edges }
}

fn goto(node: &str) -> ItemResult<Count> {
    routed(SettledRoute::Goto(id(node)))
}

fn failure(node: &str) -> NodeFailure {
    NodeFailure { node: id(node), code: "E".into(), message: "broken".into(), retryable: false, attempt: 1 }
}

/// Step 0 of a graph whose start splits along its edges.
fn split(graph: &Graph<Count>) -> Merged<Count> {
    step(graph, 0, start(graph), |_| edges()).unwrap()
}

#[test]
fn the_start_item_hangs_from_the_root() {
    let graph = graph(&["a"]).build().unwrap();
    let item = WorkItem::start(&graph);
    assert_eq!(place(&item), (OrderKey(0), PathHash::ROOT.child("a", 0)));
    assert!(item.input.is_none());
}

#[test]
fn an_edge_keeps_its_position_whether_others_fire_or_not() {
    let builder = graph(&["a", "b", "c", "d"]).edge_if("a", "b", "big", over(9)).edge("a", "c");
    let graph = builder.edge_if("a", "d", "some", over(0)).build().unwrap();
    let before = start(&graph);
    let root = before.frontier[0].clone();
    let merged = step(&graph, 0, before, |_| wrote(5)).unwrap();
    assert_eq!(names(&merged), ["c", "d"]);
    assert_eq!(place(&merged.frontier[0]), child(&root, 1, "c"));
    assert_eq!(place(&merged.frontier[1]), child(&root, 2, "d"));
}

#[test]
fn conditions_see_the_merged_state() {
    let builder = graph(&["a", "b", "c", "d"]).edge("a", "b").edge("a", "c").end("b");
    let graph = builder.edge_if("b", "d", "both wrote", over(1)).build().unwrap();
    let merged = step(&graph, 1, split(&graph), |_| wrote(1)).unwrap();
    assert_eq!((merged.state.n, names(&merged)), (2, vec!["d"]));
}

#[test]
fn deltas_merge_in_frontier_order() {
    let graph = graph(&["a", "b", "c"]).edge("a", "c").edge("a", "b").build().unwrap();
    let named = |item: &WorkItem| ItemResult::Done {
        delta: Count::delta().log(item.node.as_str()),
        route: SettledRoute::Stop,
    };
    let merged = step(&graph, 1, split(&graph), named).unwrap();
    assert_eq!(merged.state.log, ["c", "b"]);
    assert!(merged.frontier.is_empty());
}

#[test]
fn edges_and_gotos_coalesce_under_the_lowest_producers_key() {
    let builder = graph(&["a", "b", "c", "d", "e"]).edge("a", "b").edge("a", "c").edge("a", "d");
    let graph = builder.edge("b", "b").edge("b", "e").edge("c", "e").build().unwrap();
    let before = split(&graph);
    let items = before.frontier.clone();
    let route = |item: &WorkItem| if item.node.as_str() == "d" { goto("e") } else { edges() };
    let merged = step(&graph, 1, before.clone(), route).unwrap();
    assert_eq!(merged.frontier.len(), 2);
    assert_eq!(place(find(&merged, "e")), child(&items[0], 1, "e"));
    let without_b = |item: &WorkItem| match item.node.as_str() {
        "b" => routed(SettledRoute::Stop),
        "c" => goto("e"),
        _ => edges(),
    };
    let merged = step(&graph, 1, before, without_b).unwrap();
    assert_eq!(place(find(&merged, "e")), child(&items[1], 0, "e"));
}

#[test]
fn two_edges_of_one_node_into_another_coalesce_to_the_first() {
    let builder = graph(&["a", "b"]).edge_if("a", "b", "never", over(9)).edge_if("a", "b", "x", over(0));
    let graph = builder.edge("a", "b").build().unwrap();
    let before = start(&graph);
    let root = before.frontier[0].clone();
    let merged = step(&graph, 0, before, |_| wrote(1)).unwrap();
    assert_eq!(place(find(&merged, "b")), child(&root, 1, "b"));
}

#[test]
fn fork_items_never_coalesce_and_carry_their_input() {
    let graph = graph(&["a", "b", "c"]).edge("a", "b").edge("a", "c").build().unwrap();
    let before = split(&graph);
    let (b, c) = (before.frontier[0].clone(), before.frontier[1].clone());
    let route = |item: &WorkItem| if item.node.as_str() == "b" { fork(&["b", "b"]) } else { goto("b") };
    let merged = step(&graph, 1, before, route).unwrap();
    let mut expected = vec![child(&b, 0, "b"), child(&b, 1, "b"), child(&c, 0, "b")];
    expected.sort();
    assert_eq!(merged.frontier.iter().map(place).collect::<Vec<_>>(), expected);
    let input = |at| merged.frontier.iter().find(|i| place(i) == child(&b, at, "b")).unwrap().input.clone();
    assert_eq!((input(0).unwrap().as_str(), input(1).unwrap().as_str()), ("0", "1"));
    let plain = merged.frontier.iter().find(|i| place(i) == child(&c, 0, "b")).unwrap();
    assert!(plain.input.is_none(), "input doesn't travel along edges or gotos");
}

#[test]
fn an_unknown_target_is_named_with_its_origin() {
    let graph = graph(&["a"]).build().unwrap();
    for route in [goto("x"), fork(&["a", "x"])] {
        let error = step(&graph, 3, start(&graph), |_| route.clone()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`a` leads to `x` in step 3, which is not a node of this graph; the route must name a declared node"
        );
    }
}

#[test]
fn conditions_that_all_fail_need_a_declared_end() {
    let builder = || graph(&["a", "b"]).edge_if("a", "b", "big", over(9));
    let open = builder().build().unwrap();
    let error = step(&open, 2, start(&open), |_| edges()).unwrap_err();
    assert_eq!(error, MergeError::NoRoute { step: 2, node: id("a") });
    assert!(error.to_string().ends_with("add `.end(\"a\")` or an edge for this case"));
    let ended = builder().end("a").build().unwrap();
    assert!(step(&ended, 2, start(&ended), |_| edges()).unwrap().frontier.is_empty());
    assert!(step(&open, 2, start(&open), |_| routed(SettledRoute::Stop)).unwrap().frontier.is_empty());
}

#[test]
fn a_node_without_edges_ends_its_branch() {
    let graph = graph(&["a"]).build().unwrap();
    assert!(step(&graph, 0, start(&graph), |_| edges()).unwrap().frontier.is_empty());
}

mod joins {
    use super::*;

    #[test]
    fn a_join_fires_once_under_its_lowest_arrival_numbered_after_all_edges() {
        let builder = graph(&["a", "b", "c", "d", "e"]).edge("a", "c").edge("a", "b");
        let builder = builder.edge_if("c", "e", "never", over(9)).edge_if("c", "a", "never", over(9));
        let graph = builder.join(["c"], "e").join(["b", "c"], "d").build().unwrap();
        let before = split(&graph);
        let c = before.frontier[0].clone();
        let merged = step(&graph, 1, before, |_| edges()).unwrap();
        assert_eq!(names(&merged), ["e", "d"]);
        assert_eq!(place(find(&merged, "e")), child(&c, 2, "e"));
        assert_eq!(place(find(&merged, "d")), child(&c, 3, "d"));
        assert!(merged.barriers.is_empty());
    }

    #[test]
    fn a_join_does_not_coalesce_with_an_edge() {
        let builder = graph(&["a", "b", "c", "d"]).edge("a", "b").edge("a", "c").edge("b", "d");
        let graph = builder.join(["b", "c"], "d").build().unwrap();
        let before = split(&graph);
        let b = before.frontier[0].clone();
        let merged = step(&graph, 1, before, |_| edges()).unwrap();
        let places: Vec<_> = merged.frontier.iter().map(place).collect();
        assert_eq!(places, [child(&b, 0, "d"), child(&b, 1, "d")]);
    }

    /// `a` forks into two `quick` and a `slow`; `slow` needs another step before its `late` arrives.
    fn unequal() -> Graph<Count> {
        let builder = graph(&["a", "quick", "slow", "late", "sum"]).edge("slow", "late");
        builder.join(["quick", "late"], "sum").build().unwrap()
    }

    #[test]
    fn arrivals_wait_in_the_checkpoint_and_the_kth_firing_takes_the_kth_of_each() {
        let graph = unequal();
        let merged = step(&graph, 0, start(&graph), |_| fork(&["quick", "slow", "quick", "late"])).unwrap();
        let items = merged.frontier.clone();
        let merged = step(&graph, 1, merged, |_| edges()).unwrap();
        assert_eq!(place(find(&merged, "sum")), child(&items[0], 0, "sum"), "1st quick with the 1st late");
        let kept = serde_json::to_string(&merged.barriers).unwrap();
        assert_eq!(merged.barriers, serde_json::from_str::<Barriers>(&kept).unwrap());
        assert_eq!(merged.barriers.0[&0].iter().map(VecDeque::len).collect::<Vec<_>>(), [1, 0]);

        let late = find(&merged, "late").clone();
        let merged = step(&graph, 2, merged, |_| edges()).unwrap();
        let lowest = [&items[2], &late].into_iter().min_by_key(|item| place(item)).unwrap();
        assert_eq!(place(find(&merged, "sum")), child(lowest, 0, "sum"), "2nd quick with the 2nd late");
        assert!(merged.barriers.is_empty());
    }

    #[test]
    fn a_join_fires_several_times_in_one_step() {
        let graph = unequal();
        let merged = step(&graph, 0, start(&graph), |_| fork(&["quick", "late", "quick", "late"])).unwrap();
        let items = merged.frontier.clone();
        let merged = step(&graph, 1, merged, |_| edges()).unwrap();
        let mut expected = vec![child(&items[0], 0, "sum"), child(&items[2], 0, "sum")];
        expected.sort();
        assert_eq!(merged.frontier.iter().map(place).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn leftovers_when_nothing_can_run_are_no_progress() {
        let graph = unequal();
        let merged = step(&graph, 0, start(&graph), |_| fork(&["quick", "slow"])).unwrap();
        let stop_slow = |item: &WorkItem| match item.node.as_str() {
            "slow" => routed(SettledRoute::Stop),
            _ => edges(),
        };
        let error = step(&graph, 1, merged, stop_slow).unwrap_err();
        assert_eq!(error, MergeError::NoProgress { step: 1, waiting: "`sum` waits for late".into() });
        assert_eq!(
            error.to_string(),
            "nothing can run after step 1, but joins wait: `sum` waits for late; \
             every branch must reach its join or none"
        );
    }

    #[test]
    fn a_join_is_a_route_where_no_condition_holds() {
        let builder = graph(&["a", "b"]).edge_if("a", "b", "big", over(9)).join(["a"], "b");
        let graph = builder.build().unwrap();
        let merged = step(&graph, 0, start(&graph), |_| edges()).unwrap();
        assert_eq!(names(&merged), ["b"]);
    }
}

mod failures {
    use super::*;

    #[test]
    fn a_failed_item_goes_to_its_handler_with_the_failure_as_input() {
        let builder = graph(&["a", "b", "c", "h"]).edge("a", "b").edge("a", "c");
        let graph = builder.on_error("b", "h").on_error("c", "h").build().unwrap();
        let before = split(&graph);
        let items = before.frontier.clone();
        let failed = |item: &WorkItem| ItemResult::Failed(failure(item.node.as_str()));
        let merged = step(&graph, 1, before, failed).unwrap();
        let mut expected = vec![child(&items[0], 0, "h"), child(&items[1], 0, "h")];
        expected.sort();
        assert_eq!(merged.frontier.iter().map(place).collect::<Vec<_>>(), expected);
        let first = merged.frontier.iter().find(|i| place(i) == child(&items[0], 0, "h")).unwrap();
        assert_eq!(first.input.as_ref().unwrap().read::<NodeFailure>().unwrap(), failure("b"));
    }

    #[test]
    fn a_failed_item_without_handler_fails_the_step() {
        let graph = graph(&["a"]).build().unwrap();
        let error = step(&graph, 4, start(&graph), |_| ItemResult::Failed(failure("a"))).unwrap_err();
        assert_eq!(error.to_string(), "`a` failed in step 4: broken");
    }

    #[test]
    fn a_failed_item_does_not_arrive_at_its_joins() {
        let builder = graph(&["a", "b", "c", "d", "h"]).edge("a", "b").edge("a", "c");
        let graph = builder.join(["b", "c"], "d").on_error("b", "h").build().unwrap();
        let result = |item: &WorkItem| match item.node.as_str() {
            "b" => ItemResult::Failed(failure("b")),
            _ => edges(),
        };
        let merged = step(&graph, 1, split(&graph), result).unwrap();
        assert_eq!(names(&merged), ["h"]);
        let error = step(&graph, 2, merged, |_| edges()).unwrap_err();
        assert_eq!(error, MergeError::NoProgress { step: 2, waiting: "`d` waits for b".into() });
    }
}

mod order {
    use super::*;

    fn item(order_key: u64, path_hash: u64, node: &str) -> WorkItem {
        WorkItem {
            order_key: OrderKey(order_key),
            path_hash: PathHash(path_hash),
            node: id(node),
            input: None,
        }
    }

    #[test]
    fn ties_of_the_order_key_break_by_path_hash_then_by_node() {
        let mut items = [item(1, 2, "a"), item(1, 1, "c"), item(1, 1, "b"), item(0, 9, "z")];
        items.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        assert_eq!(items.each_ref().map(|i| i.node.as_str()), ["z", "b", "c", "a"]);
    }

    #[test]
    fn producers_whose_prefixes_collide_still_sort() {
        let graph = graph(&["a", "b"]).build().unwrap();
        let producers = [item(5, 0x0100_0001, "a"), item(5, 0x0100_0002, "a")];
        let before = Merged {
            state: Count::default(),
            frontier: producers.to_vec(),
            barriers: Barriers::default(),
            fresh: false,
        };
        let merged = step(&graph, 1, before, |_| fork(&["b"])).unwrap();
        let keys: Vec<_> = merged.frontier.iter().map(|item| item.order_key).collect();
        assert_eq!(keys, [OrderKey(0x0100_0000); 2]);
        assert!(merged.frontier[0].path_hash < merged.frontier[1].path_hash);
    }

    #[test]
    fn equal_path_hashes_in_one_frontier_are_an_error() {
        let graph = graph(&["a", "b"]).build().unwrap();
        let frontier = vec![item(1, 7, "a"), item(2, 7, "a")];
        let before =
            Merged { state: Count::default(), frontier, barriers: Barriers::default(), fresh: false };
        let error = step(&graph, 1, before, |_| fork(&["b"])).unwrap_err();
        assert_eq!(error, MergeError::PathCollision { step: 1, path_hash: PathHash(7).child("b", 0) });
    }
}
