//! Values that JSON can't hold, and stored ones that no longer fit.

use crate::common::{Board, engine, failure};
use hapax::{Coded, Error, core::error::code, prelude::*};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Odd {
    number: f64,
    #[state(sum)]
    other: f64,
    map: BTreeMap<Vec<u8>, u64>,
}

const WORK: Node = Node::new("work");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");
const ITEM: Node<f64> = Node::new("item");
type Ctx = hapax::Ctx<Odd>;

async fn outcome(graph: Graph<Odd>, odd: Odd) -> Result<Odd, Error> {
    engine(Options::default()).register(graph, ()).await?.start("run", odd).await?.wait().await
}

fn keyed() -> BTreeMap<Vec<u8>, u64> {
    BTreeMap::from([(vec![1], 1)])
}

async fn quiet(_: Ctx) {}

#[tokio::test]
async fn an_initial_state_without_a_json_form_is_refused_before_anything_is_stored() {
    let engine = engine(Options::default());
    let flow = engine.register(Graph::new("odd", 1, WORK).node(WORK, quiet), ()).await.unwrap();
    for odd in [Odd { number: f64::NAN, ..Odd::default() }, Odd { map: keyed(), ..Odd::default() }] {
        let error = flow.start("run", odd).await.unwrap_err();
        assert_eq!(error.code(), code::NOT_SERIALISABLE);
        assert_eq!(engine.status("run").await.unwrap_err().code(), code::RUN_NOT_FOUND);
    }
}

#[tokio::test]
async fn a_node_that_writes_what_has_no_json_form_fails_the_run_and_not_the_engine() {
    for delta in [Odd::delta().number(f64::INFINITY), Odd::delta().map(keyed())] {
        let odd = move |_: Ctx| std::future::ready(delta.clone());
        let alone = Graph::new("alone", 1, WORK).node(WORK, odd.clone());
        assert_eq!(outcome(alone, Odd::default()).await.unwrap_err().code(), code::NOT_SERIALISABLE);
        let beside = Graph::new("beside", 1, WORK)
            .node(WORK, quiet)
            .node(LEFT, odd)
            .node(RIGHT, quiet)
            .edge(WORK, LEFT)
            .edge(WORK, RIGHT);
        let error = outcome(beside, Odd::default()).await.unwrap_err();
        assert_eq!(error.code(), code::NOT_SERIALISABLE);
        assert!(error.to_string().contains("`left`"), "{error}");
    }
}

#[tokio::test]
async fn a_sum_that_leaves_the_numbers_fails_the_run() {
    let add = |_: Ctx| std::future::ready(Odd::delta().other(f64::MAX));
    let graph = Graph::new("sum", 1, WORK).node(WORK, add).node(LEFT, add).edge(WORK, LEFT);
    let error = outcome(graph, Odd::default()).await.unwrap_err();
    assert_eq!((error.code(), failure(&error).step), (code::NOT_SERIALISABLE, 1));
}

#[tokio::test]
async fn a_branchs_input_without_a_json_form_names_the_branch() {
    let fork = |_: Ctx| std::future::ready(Odd::delta().fork([ITEM.with(f64::NAN)]));
    let item = |_: Ctx, _: f64| std::future::ready(());
    let graph = Graph::new("fork", 1, WORK).node(WORK, fork).node(ITEM, item);
    let error = outcome(graph, Odd::default()).await.unwrap_err();
    assert_eq!(error.code(), code::NOT_SERIALISABLE);
    assert!(error.to_string().contains("the input for `item`"), "{error}");
}

#[tokio::test]
async fn a_request_or_answer_without_a_json_form_fails_its_call() {
    let request = async |mut ctx: Ctx| -> hapax::Result<()> {
        let sent: u64 = ctx.effect("send", Write, &f64::NAN, async |_| Ok::<_, Error>(1)).await?;
        unreachable!("{sent} was sent")
    };
    let answer = async |mut ctx: Ctx| -> hapax::Result<()> {
        let got: f64 = ctx.effect("ask", Write, &1, async |_| Ok::<_, Error>(f64::NAN)).await?;
        unreachable!("{got} was seen")
    };
    let graph = Graph::new("request", 1, WORK).node(WORK, request);
    let error = outcome(graph, Odd::default()).await.unwrap_err();
    assert_eq!(error.code(), code::NOT_SERIALISABLE, "{error}");
    let graph = Graph::new("answer", 1, WORK).node(WORK, answer);
    let error = outcome(graph, Odd::default()).await.unwrap_err();
    assert_eq!(error.code(), code::NOT_SERIALISABLE, "{error}");
}

#[tokio::test]
async fn a_signal_without_a_json_form_says_what_it_is() {
    let error = engine(Options::default()).signal("run", "go", &f64::NAN).await.unwrap_err();
    assert_eq!(error.code(), code::NOT_SERIALISABLE);
    assert!(error.to_string().starts_with("the signal's payload cannot be written as JSON"), "{error}");
}

#[tokio::test]
async fn a_stored_state_that_no_longer_fits_says_where() {
    let engine = engine(Options::default());
    let quiet_board = |_: crate::common::Ctx| std::future::ready(());
    let boards = engine.register(Graph::new("same", 1, WORK).node(WORK, quiet_board), ()).await.unwrap();
    let board = Board { word: Some("word".into()), ..Board::default() };
    boards.start("run", board).await.unwrap().wait().await.unwrap();
    let odds = engine.register(Graph::new("same", 1, WORK).node(WORK, quiet), ()).await.unwrap();
    let error = odds.attach("run").await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::STATE_SHAPE);
    assert!(error.to_string().contains("number"), "{error}");
}
