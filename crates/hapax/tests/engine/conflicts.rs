//! Conflicts: what happens when two items of one step write one field.

use crate::common::{Board, engine, failure};
use hapax::{Coded, ConflictPolicy, Error, core::error::code, crdt::Crdt, prelude::*};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A high-water mark: merging it twice, in any order, changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct High(u64);
impl Crdt for High {
    fn merge(&mut self, other: Self) {
        self.0 = self.0.max(other.0);
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a reducer takes what was written")]
fn concat(value: &mut String, new: String) {
    *value += &new;
}

/// One field per reducer.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Fields {
    last: Option<String>,
    #[state(append)]
    append: Vec<u64>,
    #[state(sum)]
    sum: u64,
    #[state(min)]
    min: Option<u64>,
    #[state(max)]
    max: Option<u64>,
    #[state(union)]
    union: BTreeSet<u64>,
    #[state(merge)]
    merge: BTreeMap<String, u64>,
    #[state(crdt)]
    crdt: High,
    #[state(reduce = concat)]
    custom: String,
    #[state(reduce = concat, ordered)]
    ordered: String,
}

const START: Node = Node::new("start");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");

/// Two nodes write in one step.
async fn write_both(policy: ConflictPolicy, left: FieldsDelta, right: FieldsDelta) -> Result<Fields, Error> {
    write_all(policy, Fields::delta(), [(LEFT, left), (RIGHT, right)]).await
}

/// A node writes, and after it others in one step.
async fn write_all(
    policy: ConflictPolicy,
    first: FieldsDelta,
    others: impl IntoIterator<Item = (Node, FieldsDelta)>,
) -> Result<Fields, Error> {
    let writing = |delta: FieldsDelta| move |_: hapax::Ctx<Fields>| std::future::ready(delta.clone());
    let mut graph = Graph::new("all", 1, START).node(START, writing(first));
    for (node, delta) in others {
        graph = graph.node(node, writing(delta)).edge(START, node);
    }
    let flow = engine(Options::default().conflict_policy(policy)).register(graph, ()).await?;
    flow.start("run", Fields::default()).await?.wait().await
}

/// The run fails and the message names field and nodes.
async fn collide(policy: ConflictPolicy, left: FieldsDelta, right: FieldsDelta, field: &str) {
    let error = write_both(policy, left, right).await.unwrap_err();
    assert_eq!(error.code(), code::MERGE_CONFLICT);
    let message = &failure(&error).message;
    for name in [&format!("`{field}`"), "left", "right"] {
        assert!(message.contains(name), "{message}");
    }
}

#[tokio::test]
async fn fail_names_the_field_and_both_nodes() {
    let (left, right) = (Fields::delta().last("a".to_owned()), Fields::delta().last("b".to_owned()));
    collide(ConflictPolicy::Fail, left, right, "last").await;
}

#[tokio::test]
async fn the_last_writer_is_the_one_with_the_highest_order_key() {
    let (left, right) = (Fields::delta().last("a".to_owned()), Fields::delta().last("b".to_owned()));
    let fields = write_both(ConflictPolicy::LastWriterWins, left, right).await.unwrap();
    assert_eq!(fields.last.as_deref(), Some("b"));
}

#[tokio::test]
async fn the_last_writer_wins_over_what_a_custom_reducer_would_combine() {
    let custom = |text: &str| Fields::delta().custom(text).ordered(text);
    let third = Node::new("third");
    for (texts, expected) in [
        (["a", "b", "c"], "0c"),
        (["a", "b", "a"], "0a"),
        (["a", "a", "b"], "0b"),
        (["b", "a", "a"], "0a"),
        // Identical values don't conflict, so no policy keeps them from the reducer.
        (["a", "a", "a"], "0aaa"),
    ] {
        let writers = [LEFT, RIGHT, third].into_iter().zip(texts.map(custom));
        let fields = write_all(ConflictPolicy::LastWriterWins, custom("0"), writers).await.unwrap();
        assert_eq!(fields.custom, expected, "{texts:?}");
        assert_eq!(fields.ordered, format!("0{}", texts.concat()), "an ordered one wants every delta");
    }
}

#[tokio::test]
async fn identical_values_never_conflict() {
    let same = || Fields::delta().last("a".to_owned()).merge("k", 1u64);
    let fields = write_both(ConflictPolicy::Fail, same(), same()).await.unwrap();
    assert_eq!((fields.last.as_deref(), fields.merge["k"]), (Some("a"), 1));
}

#[tokio::test]
async fn reducers_that_combine_never_conflict() {
    let delta = |n: u64, key: &str, text: &str| {
        Fields::delta()
            .append(n)
            .sum(n)
            .min(n)
            .max(n)
            .union(BTreeSet::from([n]))
            .merge(key, 1u64)
            .crdt(High(n))
            .ordered(text)
    };
    let fields =
        write_both(ConflictPolicy::Fail, delta(3, "l", "left "), delta(4, "r", "right")).await.unwrap();
    assert_eq!((fields.append, fields.sum, fields.min, fields.max), (vec![3, 4], 7, Some(3), Some(4)));
    assert_eq!(fields.union, BTreeSet::from([3, 4]));
    assert_eq!(fields.merge.keys().collect::<Vec<_>>(), ["l", "r"]);
    assert_eq!((fields.crdt, fields.ordered.as_str()), (High(4), "left right"));
}

#[tokio::test]
async fn equal_keys_of_a_map_conflict() {
    let map = |value: u64| Fields::delta().merge("k", value);
    collide(ConflictPolicy::Fail, map(1), map(2), "merge").await;
}

#[tokio::test]
async fn a_custom_reducer_conflicts_unless_it_is_declared_ordered() {
    collide(ConflictPolicy::Fail, Fields::delta().custom("a"), Fields::delta().custom("b"), "custom").await;
    let fields =
        write_both(ConflictPolicy::Fail, Fields::delta().ordered("a"), Fields::delta().ordered("b")).await;
    assert_eq!(fields.unwrap().ordered, "ab");
}

#[tokio::test]
async fn the_crdt_policy_merges_crdt_fields_and_still_refuses_the_others() {
    let fields =
        write_both(ConflictPolicy::Crdt, Fields::delta().crdt(High(9)), Fields::delta().crdt(High(2))).await;
    assert_eq!(fields.unwrap().crdt, High(9));
    let (left, right) = (Fields::delta().last("a".to_owned()), Fields::delta().last("b".to_owned()));
    collide(ConflictPolicy::Crdt, left, right, "last").await;
}

#[tokio::test]
async fn writes_in_different_steps_never_conflict() {
    let say = |word: &'static str| {
        move |_: crate::common::Ctx| std::future::ready(Board::delta().word(word.to_owned()))
    };
    let graph = Graph::new("steps", 1, START).node(START, say("a")).node(LEFT, say("b")).edge(START, LEFT);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.word.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_conflict_leaves_the_step_before_it_untouched() {
    let word = |word: &'static str| {
        move |_: crate::common::Ctx| std::future::ready(Board::delta().total(1u64).word(word.to_owned()))
    };
    let graph = Graph::new("kept", 1, START)
        .node(START, word("start"))
        .node(LEFT, word("left"))
        .node(RIGHT, word("right"))
        .edge(START, LEFT)
        .edge(START, RIGHT);
    let engine = engine(Options::default());
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    let kept = engine.store().load(crate::common::key("run")).await.unwrap().checkpoint;
    assert_eq!(kept.step, 1);
    assert_eq!(&*kept.state, br#"{"log":[],"total":1,"word":"start"}"#);
}
