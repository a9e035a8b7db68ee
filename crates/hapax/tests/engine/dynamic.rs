//! Graphs that are described by values: the same engine, keys, recovery and replay as those in code.

use crate::common::engine;
use hapax::{
    Coded, Ctx, Engine, Error,
    core::checkpoint::Checkpoint,
    dynamic::{Dynamic, Registry, Returned},
    prelude::*,
    store::{MemoryStore, Store},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Order {
    sku: String,
    cents: u64,
    #[state(sum)]
    tax: u64,
    #[state(append)]
    log: Vec<String>,
}

const RESERVE: Node = Node::new("reserve");
const FRAUD: Node<String> = Node::new("fraud");
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");
const SHIP: Node = Node::new("ship");

/// What is asked of the outside, by both.
async fn price(call: hapax::Call) -> Result<String, std::io::Error> {
    Ok(call.key().len().to_string())
}

fn typed() -> Graph<Order> {
    let reserve = |ctx: Ctx<Order>| async move {
        let order = ctx.state();
        Order::delta().log("reserved").fork([FRAUD.with(order.sku.clone()), TAX.with(order.cents)])
    };
    let fraud = |_: Ctx<Order>, sku: String| async move { Order::delta().log(format!("{sku} is no fraud")) };
    let tax = |_: Ctx<Order>, cents: u64| async move { Order::delta().tax(cents / 5) };
    let charge = |mut ctx: Ctx<Order>| async move {
        let receipt: String = ctx.effect("charge", Write, &4200, price).await?;
        Ok::<_, NodeError>(Order::delta().log(receipt))
    };
    let ship = |_: Ctx<Order>| async move { Order::delta().log("shipped") };
    Graph::new("orders", 1, RESERVE)
        .node(RESERVE, reserve)
        .node(FRAUD, fraud)
        .node(TAX, tax)
        .node(CHARGE, charge)
        .node(SHIP, ship)
        .join((FRAUD, TAX), CHARGE)
        .edge_if(CHARGE, SHIP, "/cents > 0", |order: &Order| order.cents > 0)
        .end(CHARGE)
}

fn registry(charged: Arc<AtomicUsize>) -> Registry {
    Registry::new()
        .node("reserve", async |ctx: Ctx<Dynamic>, _| {
            let state = ctx.state().value();
            let branches = [("fraud", state["sku"].clone()), ("tax", state["cents"].clone())];
            Ok(Returned::wrote(json!({"log": "reserved"})).fork(branches))
        })
        .node("fraud", async |_, sku: Value| {
            Ok(json!({"log": format!("{} is no fraud", sku.as_str().unwrap())}))
        })
        .node("tax", async |_, cents: Value| Ok(json!({"tax": cents.as_u64().unwrap() / 5})))
        .node("charge by card", move |mut ctx: Ctx<Dynamic>, _| {
            let charged = charged.clone();
            async move {
                let receipt: String = ctx.effect("charge", Write, &4200, price).await?;
                charged.fetch_add(1, Ordering::SeqCst);
                Ok(json!({"log": receipt}))
            }
        })
        .node("ship", async |_, _| Ok(json!({"log": "shipped"})))
}

fn described() -> Value {
    json!({
        "name": "orders",
        "version": 1,
        "start": "reserve",
        "fields": {"sku": "last", "cents": "last", "tax": "sum", "log": "append"},
        "nodes": [
            {"name": "reserve", "routes": true},
            {"name": "fraud", "input": true},
            {"name": "tax", "input": true},
            {"name": "charge", "use": "charge by card"},
            {"name": "ship"}
        ],
        "edges": [{"from": "charge", "to": "ship", "if": {"path": "/cents", "op": ">", "value": 0}}],
        "joins": [{"from": ["fraud", "tax"], "to": "charge"}],
        "ends": ["charge"]
    })
}

async fn checkpoints(engine: &Engine) -> Vec<Checkpoint> {
    let key = engine.record("order-42").await.unwrap().key;
    engine.store().checkpoints(key, 0, usize::MAX).await.unwrap()
}

#[tokio::test]
async fn a_described_graph_has_the_shape_the_keys_and_the_digests_of_its_typed_twin() {
    let graph = registry(Arc::default()).graph(&described()).unwrap();
    assert_eq!(graph.check().unwrap(), typed().check().unwrap());
    let (one, other) = (engine(Options::default()), engine(Options::default()));
    let order = Order { sku: "anvil".into(), cents: 4200, ..Order::default() };
    let start = serde_json::to_value(&order).unwrap();
    let flow = one.register(typed(), ()).await.unwrap();
    let end = flow.start("order-42", order).await.unwrap().wait().await.unwrap();
    let flow = other.register(registry(Arc::default()).graph(&described()).unwrap(), ()).await.unwrap();
    let told = flow.start("order-42", start.into()).await.unwrap().wait().await.unwrap();
    assert_eq!(told.value(), serde_json::to_value(end).unwrap());
    let digests =
        |all: Vec<Checkpoint>| all.into_iter().map(|at| (at.key, at.digest, at.io)).collect::<Vec<_>>();
    assert_eq!(digests(checkpoints(&one).await), digests(checkpoints(&other).await));
}

#[tokio::test]
async fn a_described_graph_is_replayed_from_its_record() {
    let charged = Arc::<AtomicUsize>::default();
    let engine = engine(Options::default());
    let flow = engine.register(registry(charged.clone()).graph(&described()).unwrap(), ()).await.unwrap();
    let start = json!({"sku": "anvil", "cents": 4200});
    flow.start("order-42", start.into()).await.unwrap().wait().await.unwrap();
    engine.replay("order-42").await.unwrap().expect_same();
}

/// The first engine has a node that fails behind the call; the second, with a mended description, goes on from there.
#[tokio::test]
async fn a_described_run_goes_on_elsewhere_and_makes_no_call_again() {
    let (store, charged): (Arc<dyn Store>, _) = (MemoryStore::shared(), Arc::<AtomicUsize>::default());
    let first = Engine::builder().with_store(store.clone());
    let mut broken = described();
    broken["nodes"][4]["use"] = "fails".into();
    let fails = async |_, _| Err::<Value, _>(NodeError::new("no parcel").fatal());
    let graph = registry(charged.clone()).node("fails", fails).graph(&broken).unwrap();
    let flow = first.register(graph, ()).await.unwrap();
    let start = json!({"sku": "anvil", "cents": 4200});
    flow.start("order-42", start.into()).await.unwrap().wait().await.unwrap_err();
    first.shutdown(Duration::from_secs(60)).await;
    let second = Engine::builder().with_store(store);
    let flow = second.register(registry(charged.clone()).graph(&described()).unwrap(), ()).await.unwrap();
    let end = flow.retry("order-42").await.unwrap().wait().await.unwrap().value();
    assert_eq!((&end["tax"], end["log"].as_array().unwrap().len()), (&json!(840), 4));
    assert_eq!(charged.load(Ordering::SeqCst), 1);
}

async fn failure_of(nodes: Registry, description: Value, start: Value) -> String {
    let engine = engine(Options::default());
    let flow = engine.register(nodes.graph(&description).unwrap(), ()).await.unwrap();
    let failed = flow.start("run", start.into()).await.unwrap().wait().await.unwrap_err();
    let Error::Failed { failure, .. } = failed else { panic!("{failed}") };
    format!("{} {}", failure.code, failure.message)
}

#[tokio::test]
async fn what_a_field_cannot_take_fails_the_run_and_names_the_field() {
    let one = |wrote: Value| Registry::new().node("work", move |_, _| std::future::ready(Ok(wrote.clone())));
    let graph = json!({"name": "g", "start": "work", "fields": {"tax": "sum"}, "nodes": [{"name": "work"}]});
    for (wrote, start, says) in [
        (json!({"tax": "many"}), json!({}), "takes numbers (its reducer is `sum`), not a text"),
        (json!({"tax": 1}), json!({"tax": []}), "takes numbers (its reducer is `sum`), not a list"),
        (json!({"tex": 1}), json!({}), "the field `tex`, which its graph's `fields` don't name"),
        (json!([1]), json!({}), "a node writes an object"),
    ] {
        let failure = failure_of(one(wrote), graph.clone(), start).await;
        assert!(failure.starts_with("HX0012") && failure.contains(says), "{failure}");
    }
    let leaves = Registry::new().node("work", async |_, _| Ok(Returned::from(()).stop()));
    assert!(failure_of(leaves, graph, json!({})).await.contains("doesn't say `\"routes\": true`"));
}

#[tokio::test]
async fn a_sum_that_is_not_finite_fails_its_step_as_in_a_typed_state() {
    let large = Registry::new().node("work", async |_, _| Ok(json!({"sum": f64::MAX})));
    let graph = json!({"name": "g", "start": "work", "fields": {"sum": "sum"}, "nodes": [{"name": "work"}]});
    let failure = failure_of(large, graph, json!({"sum": f64::MAX})).await;
    assert!(failure.starts_with("HX0013") && failure.contains("the sum `sum` is not finite"), "{failure}");
}

#[tokio::test]
async fn two_branches_that_write_one_field_conflict_as_in_a_typed_state() {
    let both = Registry::new()
        .node("split", async |_, _| Ok(Returned::from(()).fork([("one", 1), ("one", 2)])))
        .node("one", async |_, n: Value| Ok(json!({"word": n})));
    let graph = json!({"name": "g", "start": "split", "fields": {"word": "last"},
        "nodes": [{"name": "split", "routes": true}, {"name": "one", "input": true}]});
    let failure = failure_of(both, graph, json!({})).await;
    assert!(failure.starts_with("HX0009") && failure.contains("word"), "{failure}");
}

#[test]
fn a_description_that_is_none_is_refused_with_what_is_wrong_in_it() {
    let nodes = Registry::<()>::new().node("work", async |_, _| Ok(()));
    let whole = json!({"name": "g", "start": "work", "nodes": [{"name": "work"}]});
    assert!(nodes.graph(&whole).is_ok());
    for (at, value, says) in [
        ("/start", json!(7), "invalid type"),
        ("/nodes/0/retries", json!(3), "unknown field `retries`"),
        ("/nodes/0/use", json!("toil"), "no node `toil` is registered; there are work"),
        ("/fields", json!({"tax": "add"}), "the field `tax` has no reducer `add`; there are last, append"),
        (
            "/edges",
            json!([{"from": "work", "to": "work", "if": "large"}]),
            "no condition `large` is registered; there are none",
        ),
        (
            "/edges",
            json!([{"from": "work", "to": "work", "if": {"path": "x", "op": "==", "value": 1}}]),
            "begins with `/`",
        ),
        (
            "/edges",
            json!([{"from": "work", "to": "work", "if": {"path": "/x", "op": "~", "value": 1}}]),
            "unknown variant `~`, expected one of `==`, `!=`, `<`, `<=`, `>`, `>=`",
        ),
        (
            "/edges",
            json!([{"from": "work", "to": "work", "if": {"path": "/x", "op": "<", "value": [1]}}]),
            "the edge from `work` to `work` compares by `<` with [1], which has no order",
        ),
        ("/edges", json!([{"from": "work", "to": "work", "if": null}]), "not null"),
        ("/edges", json!([{"from": "work", "to": "work", "label": "large"}]), "it needs an `if`"),
        ("/nodes/0/attempts", json!(0), "the node `work` can't run with `attempts` of 0"),
        ("/nodes/0/timeout_ms", json!(0), "the node `work` can't run with `timeout_ms` of 0"),
    ] {
        let mut broken = whole.clone();
        let (parent, key) = at.rsplit_once('/').unwrap();
        broken.pointer_mut(parent).unwrap()[key] = value;
        let refused = nodes.graph(&broken).err().unwrap();
        assert_eq!(refused.code(), "HX0166");
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

#[test]
fn what_leads_to_a_node_with_an_input_without_having_one_is_refused_and_names_the_node() {
    let nodes = Registry::<()>::new().node("work", async |_, _| Ok(())).node("part", async |_, _| Ok(()));
    let whole = json!({"name": "g", "start": "work", "nodes": [
        {"name": "work", "routes": true, "on_error": "part"}, {"name": "part", "input": true}
    ]});
    assert!(nodes.graph(&whole).is_ok(), "a handler's input is the failure");
    for (word, value, says) in [
        ("start", json!("part"), "its `start` leads there"),
        ("edges", json!([{"from": "work", "to": "part"}]), "an edge leads there"),
        ("joins", json!([{"from": ["work"], "to": "part"}]), "a join leads there"),
    ] {
        let mut broken = whole.clone();
        broken[word] = value;
        let refused = nodes.graph(&broken).err().unwrap();
        assert_eq!(refused.code(), "HX0166");
        let text = refused.to_string();
        assert!(text.contains("the node `part` takes an input") && text.contains(says), "{text}");
    }
}

#[test]
fn a_registry_with_two_things_of_one_name_describes_nothing() {
    let one = || Registry::<()>::new().node("work", async |_, _| Ok(())).condition("large", |_| true);
    let whole = json!({"name": "g", "start": "work", "nodes": [{"name": "work"}]});
    assert!(one().graph(&whole).is_ok());
    for (twice, says) in [
        (one().node("work", async |_, _| Ok(())), "the node `work` is registered twice"),
        (one().condition("large", |_| false), "the condition `large` is registered twice"),
    ] {
        let refused = twice.graph(&whole).err().unwrap();
        assert_eq!(refused.code(), "HX0166");
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

/// What is compared has been stored, where 1 and 1.0 are one text.
#[tokio::test]
async fn an_edge_compares_numbers_as_they_are_stored_also_inside_of_lists() {
    let work = Registry::<()>::new()
        .node("work", async |_, _| Ok(()))
        .node("same", async |_, _| Ok(json!({"log": "same"})))
        .node("other", async |_, _| Ok(json!({"log": "other"})));
    let whole = json!({
        "name": "g",
        "start": "work",
        "fields": {"log": "append"},
        "nodes": [{"name": "work"}, {"name": "same"}, {"name": "other"}],
        "edges": [
            {"from": "work", "to": "same", "if": {"path": "/ones", "op": "==", "value": [1, {"one": 1}]}},
            {"from": "work", "to": "other", "if": {"path": "/ones", "op": "!=", "value": [1.0, {"one": 1.0}]}}
        ]
    });
    let flow = engine(Options::default()).register(work.graph(&whole).unwrap(), ()).await.unwrap();
    let end =
        flow.start("run", json!({"ones": [1.0, {"one": 1}]}).into()).await.unwrap().wait().await.unwrap();
    assert_eq!(end.value()["log"], json!(["same"]));
}
