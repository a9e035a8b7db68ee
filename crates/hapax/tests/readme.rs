//! The README's program is the example that runs, and the fuller program behind it works.

use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Order {
    sku: String,
    cents: u64,
    #[state(sum)]
    tax: u64,
    #[state(append)]
    log: Vec<String>,
    receipt: Option<String>,
}
struct Shop {
    psp: Psp,
}
type Ctx = hapax::Ctx<Order, Shop>;

const RESERVE: Node = Node::new("reserve");
const FRAUD: Node<String> = Node::new("fraud");
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");

async fn reserve(ctx: Ctx) -> Outcome<Order> {
    let order = ctx.state();
    Order::delta().log("shelf 7").fork([FRAUD.with(order.sku.clone()), TAX.with(order.cents)])
}

async fn fraud(_: Ctx, sku: String) -> Result<OrderDelta, Refused> {
    Ok(Order::delta().log(vet(&sku)?))
}

async fn tax(_: Ctx, cents: u64) -> OrderDelta {
    Order::delta().tax(cents / 5)
}

async fn charge(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let (order, shop) = (ctx.state(), ctx.app());
    let cents = order.cents + order.tax;
    let receipt =
        ctx.effect("charge", Write, &cents, async |call| shop.psp.charge(call.key(), cents).await).await?;
    Ok(Order::delta().receipt(receipt))
}

fn vet(sku: &str) -> Result<String, Refused> {
    if sku == "bomb" { Err(Refused) } else { Ok("not fraud".into()) }
}

struct Psp;
impl Psp {
    async fn charge(&self, key: &str, cents: u64) -> Result<String, Refused> {
        tokio::task::yield_now().await;
        Ok(format!("{key}={cents}"))
    }
}

#[derive(Debug)]
struct Refused;
impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("refused")
    }
}
impl std::error::Error for Refused {}

async fn buy(engine: &Engine, sku: &str) -> hapax::Result<Order> {
    let graph = Graph::new("orders", 1, RESERVE)
        .node(RESERVE, reserve)
        .node(FRAUD, fraud)
        .node(TAX, tax)
        .node(CHARGE, charge)
        .join((FRAUD, TAX), CHARGE);
    let orders = engine.register(graph, Shop { psp: Psp }).await?;
    let order = Order { sku: sku.into(), cents: 4200, ..Order::default() };
    Ok(orders.start(&format!("order-{sku}"), order).await?.wait().await?)
}

#[tokio::test]
async fn the_program_of_the_readme_runs() -> hapax::Result<()> {
    let engine = Engine::open("memory:").await?;
    let order = buy(&engine, "anvil").await?;
    assert_eq!(order.log, ["shelf 7", "not fraud"]);
    assert!(order.receipt.is_some_and(|r| r.starts_with("fx:") && r.ends_with("=5040")));
    let refused = buy(&engine, "bomb").await.unwrap_err();
    assert_eq!(format!("{refused:?}"), "[HX0020] run `order-bomb` failed: `fraud` failed in step 1: refused");
    Ok(())
}

#[test]
fn the_readme_shows_the_example_that_runs() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    let example = std::fs::read_to_string(format!("{root}/examples/orders/src/main.rs")).unwrap();
    let shown = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(example.ends_with(shown), "copy examples/orders/src/main.rs into the README");
}
