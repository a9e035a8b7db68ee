//! What a graph must be to be built: each refusal says what is wrong and how to mend it.

use hapax_core::graph::{Graph, GraphBuilder, GraphError, Join};
use std::sync::Arc;

type Builder = GraphBuilder<u32>;

/// A graph whose nodes don't route by themselves; the first is the start.
fn graph(nodes: &[&str]) -> Builder {
    let builder = Builder::new("g", 1, nodes[0]);
    nodes.iter().fold(builder, |builder, node| builder.node(node, false, false))
}

fn refused(builder: Builder) -> String {
    builder.build().unwrap_err().to_string()
}

fn names(graph: &Graph<u32>) -> Vec<&str> {
    graph.nodes().iter().map(|node| node.id.as_str()).collect()
}

#[test]
fn a_bad_name_is_refused() {
    let rule = "use 1 to 255 bytes of UTF-8 without control characters";
    assert_eq!(refused(graph(&["a", ""])), format!("node id \"\" is empty; {rule}"));
    let control = Builder::new("g\n", 1, "a").node("a", false, false);
    assert_eq!(refused(control), format!("graph name \"g\\n\" holds a control character; {rule}"));
    assert!(matches!(graph(&["a", ""]).build(), Err(GraphError::Id(_))));
}

#[test]
fn the_start_must_be_a_node() {
    let error = refused(Builder::new("g", 1, "b").node("a", false, false));
    assert_eq!(error, "graph `g` starts at `b`, which is not one of its nodes; add `.node(\"b\", …)`");
}

#[test]
fn every_mention_must_be_a_node() {
    let unknown = |builder: Builder| match builder.build().unwrap_err() {
        GraphError::UnknownNode { node, mention, known, .. } => (node, mention, known),
        other => panic!("{other}"),
    };
    let expect = |mention: &str| ("x".to_owned(), mention.to_owned(), "a, b".to_owned());
    let ab = || graph(&["a", "b"]).edge("a", "b");
    assert_eq!(unknown(ab().edge("a", "x")), expect("the edge a -> x"));
    assert_eq!(unknown(ab().edge("x", "a")), expect("the edge x -> a"));
    assert_eq!(unknown(ab().join(["a", "x"], "b")), expect("the join into b"));
    assert_eq!(unknown(ab().join(["a"], "x")), expect("the join into x"));
    assert_eq!(unknown(ab().end("x")), expect("an end"));
    assert_eq!(unknown(ab().on_error("x", "a")), expect("on_error"));
    assert_eq!(unknown(ab().on_error("a", "x")), expect("on_error of a"));
    assert_eq!(
        refused(ab().edge("a", "x")),
        "graph `g`: the edge a -> x names `x`, which is not a node; the nodes are: a, b. \
         Add `.node(\"x\", …)` or mend the name"
    );
}

#[test]
fn nothing_is_declared_twice() {
    let twice = |what: &str| {
        format!("graph `g`: {what} is declared twice; remove one or give it another name or label")
    };
    let always = || Arc::new(|_: &u32| true);
    let ab = || graph(&["a", "b"]).edge("a", "b");
    assert_eq!(refused(graph(&["a", "a"])), twice("node `a`"));
    assert_eq!(refused(ab().edge("a", "b")), twice("the edge a -> b"));
    let labelled = ab().edge_if("a", "b", "big", always()).edge_if("a", "b", "big", always());
    assert_eq!(refused(labelled), twice("the edge a -> b (big)"));
    assert_eq!(refused(ab().join(["a", "a"], "b")), twice("a source of the join into b"));
    assert_eq!(refused(ab().join(["a", "b"], "b").join(["b", "a"], "b")), twice("the join into b"));
    assert_eq!(refused(ab().on_error("a", "b").on_error("a", "a")), twice("on_error of a"));
    assert!(ab().edge_if("a", "b", "big", always()).edge_if("a", "b", "small", always()).build().is_ok());
}

#[test]
fn no_node_handles_its_own_failures() {
    let own = graph(&["a", "h"]).on_error("a", "h").on_error("h", "h");
    assert_eq!(
        refused(own),
        "graph `g`: `h` is its own error handler, so a failure that stays would repeat it without end; \
         give it a `Retry`, or another node as its handler"
    );
    assert!(graph(&["a", "h", "i"]).on_error("a", "h").on_error("h", "i").on_error("i", "h").build().is_ok());
}

#[test]
fn every_node_must_be_reachable() {
    let error = refused(graph(&["a", "b", "c", "d"]).edge("a", "b").edge("c", "d"));
    assert_eq!(error, "graph `g`: nothing leads to `c`, `d`; add an edge to it, or remove it");
}

#[test]
fn edges_handlers_and_joins_reach() {
    let builder = graph(&["a", "b", "c", "d", "e"]).edge("a", "b").edge("a", "c");
    let built = builder.join(["b", "c"], "d").on_error("d", "e").build().unwrap();
    assert_eq!(names(&built), ["a", "b", "c", "d", "e"]);
}

#[test]
fn past_a_node_that_routes_all_is_reachable() {
    let builder = |routes| Builder::new("g", 1, "a").node("a", false, false).node("b", routes, false);
    let with = |routes| builder(routes).node("c", false, true).edge("a", "b").build();
    assert!(with(true).is_ok());
    assert!(matches!(with(false), Err(GraphError::Unreachable { nodes, .. }) if nodes == "`c`"));
    let unreached = Builder::new("g", 1, "a").node("a", false, false).node("b", true, false).build();
    assert!(matches!(unreached, Err(GraphError::Unreachable { nodes, .. }) if nodes == "`b`"));
}

#[test]
fn a_join_that_waits_for_its_own_target_is_refused() {
    let error = refused(graph(&["a", "b", "c"]).join(["a", "b"], "c").edge("c", "b"));
    assert_eq!(
        error,
        "graph `g`: the join into `c` can never fire, because `b` cannot run before it; \
         join only nodes that run without it"
    );
}

#[test]
fn a_join_needs_sources() {
    let error = refused(graph(&["a", "b"]).edge("a", "b").join(Vec::<String>::new(), "b"));
    assert_eq!(
        error,
        "graph `g`: the join into `b` waits for no node, so it can never fire; name its sources, or remove it"
    );
}

#[test]
fn nodes_know_their_joins_by_number() {
    let builder = graph(&["a", "b", "c", "d"]).edge("a", "b").edge("a", "c");
    let built = builder.join(["b", "c"], "d").join(["c"], "a").build().unwrap();
    let joins: Vec<_> = built.nodes().iter().map(|node| node.joins.clone()).collect();
    assert_eq!(joins, [vec![], vec![0], vec![0, 1], vec![]]);
    let Join { sources, to } = &built.joins()[0];
    assert_eq!((sources.len(), sources[1].as_str(), to.as_str()), (2, "c", "d"));
}

#[test]
fn the_fingerprint_binds_nodes_edges_labels_joins_and_version() {
    let base = || graph(&["a", "b"]).edge("a", "b");
    let print = |builder: Builder| builder.build().unwrap().fingerprint();
    assert_eq!(print(base()), print(base()));
    let version = Builder::new("g", 2, "a").node("a", false, false).node("b", false, false).edge("a", "b");
    let labelled = |label| base().edge_if("b", "a", label, Arc::new(|_| true));
    let others = [
        version,
        graph(&["b", "a"]).edge("b", "a"),
        base().edge("b", "a"),
        labelled("x"),
        labelled("y"),
        base().join(["a"], "b"),
        base().end("b"),
        base().on_error("a", "b"),
    ];
    let mut prints: Vec<_> = others.into_iter().map(print).chain([print(base())]).collect();
    let count = prints.len();
    prints.sort_by_key(ToString::to_string);
    prints.dedup();
    assert_eq!(prints.len(), count);
}
