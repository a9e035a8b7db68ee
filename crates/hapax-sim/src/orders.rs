//! The work that is killed: orders with a fork, a join, a loop and two kinds of calls to the outside.
//!
//! Invariant: what an order leads to depends on its number alone, so that a disturbed execution can be compared
//! with an undisturbed one, key by key.

use crate::kills::{Report, Reporter, ledger};
use hapax::{core::key::sha256, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::Arc};

/// How often an order goes round its loop.
pub const ROUNDS: u32 = 3;
/// Calls to the outside that one order makes: the charge, and one label in each round.
pub const CALLS: usize = 1 + ROUNDS as usize;

/// An order.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Its name, which is its run's name too.
    pub id: String,
    /// What it costs.
    pub cents: u64,
    /// What the state takes of it.
    #[state(sum)]
    pub tax: u64,
    /// What happened, in order.
    #[state(append)]
    pub log: Vec<String>,
    /// What the outside party answered, in order.
    #[state(append)]
    pub receipts: Vec<String>,
    /// Parcels that have their label.
    #[state(sum)]
    pub packed: u32,
}

/// What the nodes need.
#[derive(Debug)]
pub struct Shop {
    /// The outside party's address.
    pub ledger: PathBuf,
    /// Who hears of bodies that begin and end.
    pub reports: Arc<Reporter>,
}

type Ctx = hapax::Ctx<Order, Shop>;

const RESERVE: Node = Node::new("reserve");
const FRAUD: Node<String> = Node::new("fraud");
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");
const WEIGH: Node = Node::new("weigh");
const PACK: Node = Node::new("pack");
const SHIP: Node = Node::new("ship");

/// The order of this number, before its first step.
pub fn order(number: u32) -> Order {
    Order { id: format!("order-{number:04}"), cents: 1000 + u64::from(number), ..Order::default() }
}

/// What the order leads to, given the answers from outside.
pub fn shipped(number: u32, receipts: Vec<String>) -> Order {
    let before = order(number);
    let tax = before.cents / 5;
    let mut log = vec!["reserved".to_owned(), format!("{} is no fraud", before.id)];
    log.extend([format!("{tax} for the state"), "charged".into()]);
    log.extend((0..ROUNDS).flat_map(|round| [format!("weighed {round}"), format!("packed {round}")]));
    log.push("shipped".into());
    Order { tax, log, receipts, packed: ROUNDS, ..before }
}

/// What the order asks of the outside, in order.
pub fn requests(number: u32) -> Vec<Value> {
    let Order { id, cents, .. } = order(number);
    let labels = (0..ROUNDS).map(|round| json!({ "order": id, "label": round }));
    let charge = json!({ "order": id, "charge": cents + cents / 5 });
    [charge].into_iter().chain(labels).collect()
}

/// The graph of an order.
pub fn graph() -> Graph<Order, Shop> {
    Graph::new("orders", 1, RESERVE)
        .node(RESERVE, reserve)
        .node(FRAUD, fraud)
        .node(TAX, tax)
        .node(CHARGE, charge)
        .node(WEIGH, weigh)
        .node(PACK, pack)
        .node(SHIP, ship)
        .join((FRAUD, TAX), CHARGE)
        .edge(CHARGE, WEIGH)
        .edge(WEIGH, PACK)
        .edge_if(PACK, WEIGH, "more", |order: &Order| order.packed < ROUNDS)
        .edge_if(PACK, SHIP, "all packed", |order: &Order| order.packed >= ROUNDS)
}

async fn reserve(ctx: Ctx) -> Outcome<Order> {
    let (order, shop) = (ctx.state(), ctx.app());
    let _body = shop.reports.body();
    Order::delta().log("reserved").fork([FRAUD.with(order.id.clone()), TAX.with(order.cents)])
}

async fn fraud(ctx: Ctx, id: String) -> OrderDelta {
    let shop = ctx.app();
    let _body = shop.reports.body();
    think();
    Order::delta().log(format!("{id} is no fraud"))
}

async fn tax(ctx: Ctx, cents: u64) -> OrderDelta {
    let shop = ctx.app();
    let _body = shop.reports.body();
    think();
    Order::delta().tax(cents / 5).log(format!("{} for the state", cents / 5))
}

async fn charge(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let (order, shop) = (ctx.state(), ctx.app());
    let _body = shop.reports.body();
    let request = json!({ "order": order.id, "charge": order.cents + order.tax });
    let receipt =
        ctx.effect("charge", Write, &request, async |call| shop.call(call.key(), &request).await).await?;
    shop.reports.say(&Report::Saw(receipt.clone()));
    Ok(Order::delta().log("charged").receipts(receipt))
}

async fn weigh(ctx: Ctx) -> OrderDelta {
    let (order, shop) = (ctx.state(), ctx.app());
    let _body = shop.reports.body();
    think();
    Order::delta().log(format!("weighed {}", order.packed))
}

async fn pack(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let (order, shop) = (ctx.state(), ctx.app());
    let _body = shop.reports.body();
    let request = json!({ "order": order.id, "label": order.packed });
    let receipt =
        ctx.effect("label", Write, &request, async |call| shop.call(call.key(), &request).await).await?;
    shop.reports.say(&Report::Saw(receipt.clone()));
    Ok(Order::delta().log(format!("packed {}", order.packed)).packed(1u32).receipts(receipt))
}

async fn ship(ctx: Ctx) -> OrderDelta {
    let shop = ctx.app();
    let _body = shop.reports.body();
    Order::delta().log("shipped")
}

impl Shop {
    async fn call(&self, key: &str, request: &Value) -> hapax::Result<String> {
        Ok(ledger::call(&self.ledger, key, request).await?)
    }
}

/// Keeps a body busy for a moment, so that a kill can find it running.
fn think() {
    let mut thought = [0; 32];
    for _ in 0..500 {
        thought = sha256(&thought).0;
    }
    std::hint::black_box(thought);
}
