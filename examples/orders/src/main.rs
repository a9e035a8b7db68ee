//! The README's program: kill it anywhere, run it again: one charge.

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
    psp: Psp, // what nodes need and no checkpoint may hold
}
type Ctx = hapax::Ctx<Order, Shop>;

const RESERVE: Node = Node::new("reserve"); // names live in the store: written once
const FRAUD: Node<String> = Node::new("fraud"); // with the input that a fork must hand over
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");

async fn reserve(ctx: Ctx) -> Outcome<Order> {
    let order = ctx.state();
    Order::delta().log("reserved").fork([FRAUD.with(order.sku.clone()), TAX.with(order.cents)])
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
    let charge = async |call: hapax::Call| shop.psp.charge(call.key(), cents).await;
    let receipt = ctx.effect("charge", Write, &cents, charge).await?;
    Ok(Order::delta().receipt(receipt)) // the same key on every attempt; recorded before we see it
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    let graph = Graph::new("orders", 1, RESERVE)
        .node(RESERVE, reserve)
        .node(FRAUD, fraud)
        .node(TAX, tax)
        .node(CHARGE, charge)
        .join((FRAUD, TAX), CHARGE);
    let engine = Engine::open("sqlite:orders.db").await?;
    let orders = engine.register(graph, Shop { psp: Psp }).await?; // takes up what a crash left
    let order = Order { sku: "anvil".into(), cents: 4200, ..Order::default() };
    let order = orders.start("order-42", order).await?.wait().await?;
    println!("{order:?}"); // kill it anywhere, run it again: one charge
    Ok(())
}

// ---- your own world

fn vet(sku: &str) -> Result<String, Refused> {
    if sku == "bomb" { Err(Refused) } else { Ok("not fraud".into()) }
}

struct Psp; // your payment provider's client

impl Psp {
    async fn charge(&self, key: &str, cents: u64) -> Result<String, Refused> {
        Ok(format!("{cents} cents for {}", &key[..3]))
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
