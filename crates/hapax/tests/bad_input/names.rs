//! Names that can't live in a store.

use crate::common::*;
use hapax::{
    Coded, Question, StartOptions,
    core::{error::code, id::Namespace, limits::MAX_TAGS},
    prelude::*,
};

const WORK: Node = Node::new("work");

fn bad_names() -> [String; 5] {
    ["".into(), "x".repeat(256), "é".repeat(128), "two\nlines".into(), "nul\0".into()]
}

fn nothing() -> Graph<Board> {
    Graph::new("nothing", 1, WORK).node(WORK, node!([] | ctx | {}))
}

#[tokio::test]
async fn bad_run_ids_are_refused_and_shown() {
    let engine = engine(Options::default());
    let flow = engine.register(nothing(), ()).await.unwrap();
    for name in bad_names() {
        let error = flow.start(&name, Board::default()).await.unwrap_err();
        assert_eq!(error.code(), code::INVALID_ID, "{name:?}");
        assert!(error.to_string().contains("1 to 255 bytes"), "{error}");
        assert_eq!(flow.attach(&name).await.unwrap_err().code(), code::INVALID_ID);
        assert_eq!(engine.cancel(&name).await.unwrap_err().code(), code::INVALID_ID);
    }
    let longest = "é".repeat(127);
    flow.start(&longest, Board::default()).await.unwrap().wait().await.unwrap();
}

#[tokio::test]
async fn bad_tags_are_refused() {
    let flow = engine(Options::default()).register(nothing(), ()).await.unwrap();
    for name in bad_names() {
        for tag in [StartOptions::default().tag(&name, "v"), StartOptions::default().tag("k", &name)] {
            let error = flow.start_with("run", Board::default(), tag).await.unwrap_err();
            assert_eq!(error.code(), code::INVALID_ID, "{name:?}");
        }
    }
    let many = (0..=MAX_TAGS).fold(StartOptions::default(), |tags, n| tags.tag(n.to_string(), "v"));
    let error = flow.start_with("run", Board::default(), many).await.unwrap_err();
    assert_eq!(error.code(), code::LIMIT);
    assert!(flow.attach("run").await.is_err(), "nothing was created");
}

#[test]
fn bad_namespaces_are_refused() {
    for name in bad_names() {
        assert_eq!(Namespace::new(&name).unwrap_err().code(), code::INVALID_ID, "{name:?}");
    }
}

#[test]
fn bad_node_and_graph_names_are_refused_when_the_graph_is_checked() {
    for name in bad_names() {
        let node: Node = Node::new(name.clone().leak());
        let graph = Graph::<Board>::new("graph", 1, node).node(node, node!([] | ctx | {}));
        assert_eq!(graph.check().unwrap_err().code(), code::INVALID_ID, "{name:?}");
        let graph = Graph::<Board>::new(&name, 1, WORK).node(WORK, node!([] | ctx | {}));
        let error = graph.check().unwrap_err();
        assert!(error.to_string().starts_with("graph name"), "{error}");
    }
}

#[tokio::test]
async fn bad_signals_and_questions_are_refused_when_they_are_waited_for() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            let name = bad_names()[ctx.state().total as usize].clone();
            if ctx.state().word.is_some() {
                return ctx.ask::<BoardDelta>(&name, Question::new("Well?")).await;
            }
            ctx.signal::<BoardDelta>(&name).await
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    for (total, word) in (0..5).flat_map(|total| [(total, None), (total, Some("ask".to_owned()))]) {
        let (run, board) = (format!("{total} {word:?}"), Board { total, word, ..Board::default() });
        let error = flow.start(&run, board).await.unwrap().wait().await.unwrap_err();
        assert_eq!(error.code(), code::INVALID_ID, "{run}: {error}");
    }
}

#[tokio::test]
async fn a_route_to_a_name_that_is_none_fails_the_run() {
    for (name, expected) in [("nowhere", code::UNKNOWN_TARGET), ("a\tb", code::INVALID_ID)] {
        let lost = node!([] | ctx | { Board::delta().goto(Node::new(name)) });
        let flow =
            engine(Options::default()).register(Graph::new("lost", 1, WORK).node(WORK, lost), ()).await;
        let error = flow.unwrap().start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
        assert_eq!(error.code(), expected, "{error}");
        assert!(error.to_string().contains("`work`") || expected == code::INVALID_ID, "{error}");
    }
}

#[test]
fn an_unknown_node_in_a_graph_is_named_with_those_that_are_there() {
    let error = nothing().edge(WORK, Node::new("wrok")).check().unwrap_err();
    assert_eq!(error.code(), code::UNKNOWN_NODE);
    let text = error.to_string();
    assert!(text.contains("`wrok`") && text.contains("the nodes are: work"), "{text}");
}
