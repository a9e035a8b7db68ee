//! The orders of the demo: reserve, fork to fraud check and tax, join, charge, ship.
//!
//! One thing is hard on purpose: every fraud check gives another case number, and the charge names it. So a charge
//! that left before the check was durable would be made again, after a kill, as another charge with another key.
//! That it never happens is the gate's doing, not the code's.
//!
//! And one thing is said that no order needs: when a node has seen an answer, it tells the bank so. An answer that was
//! shown before it was durable would be asked for again, after a kill in that moment, and the bank would know.

use super::ledger::{self, Answered, Charge};
use hapax::prelude::*;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::PathBuf,
    time::Duration,
};
use tokio::sync::watch;

/// An order.
#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Order {
    id: String,
    cents: u64,
    tax: u64,
    case: String,
    receipt: Option<String>,
    #[state(append)]
    log: Vec<String>,
}

/// What the nodes need.
#[derive(Debug)]
pub(super) struct Shop {
    /// The ledger's address.
    pub(super) ledger: PathBuf,
    /// Which life of the worker this is.
    pub(super) life: u32,
    /// This life ends when an answer is seen.
    pub(super) dies_upon_answer: bool,
    /// Who looks for fraud.
    pub(super) desk: FraudDesk,
}

/// Decides about orders by the batch, so that their charges come in bursts: while one is on its way to a disk, others
/// are on their way to the bank, and a kill finds all of them.
#[derive(Debug)]
pub(super) struct FraudDesk(watch::Sender<()>);

impl FraudDesk {
    /// Opens it; it closes with the runtime.
    pub(super) fn open() -> Self {
        let desk = watch::Sender::new(());
        let (batches, mut ticks) = (desk.clone(), tokio::time::interval(BATCH_EVERY));
        tokio::spawn(async move {
            loop {
                ticks.tick().await;
                batches.send_replace(());
            }
        });
        Self(desk)
    }

    async fn next_batch(&self) {
        // Its sender lives as long as this.
        let _ = self.0.subscribe().changed().await;
    }
}

type Ctx = hapax::Ctx<Order, Shop>;

/// How often the fraud desk decides.
const BATCH_EVERY: Duration = Duration::from_millis(380);

/// The graph's name.
pub(super) const GRAPH: &str = "demo-orders";

const RESERVE: Node = Node::new("reserve");
const FRAUD: Node<String> = Node::new("fraud");
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");
const SHIP: Node = Node::new("ship");

/// The run of this order.
pub(super) fn id(batch: &str, number: u32) -> String {
    format!("{batch}-{number:03}")
}

/// The order of this number, before its first step.
pub(super) fn order(batch: &str, number: u32) -> Order {
    Order { id: id(batch, number), cents: cents(number), ..Order::default() }
}

fn cents(number: u32) -> u64 {
    1000 + u64::from(number) * 7919 % 9000
}

/// What must be charged for it in the end.
pub(super) fn due(number: u32) -> u64 {
    cents(number) + tax_on(cents(number))
}

fn tax_on(cents: u64) -> u64 {
    cents / 5
}

/// The graph of an order. Each batch has a version of its own, so that two demos on one store leave each other's orders to
/// the bank that they belong to.
pub(super) fn graph(batch: &str) -> Graph<Order, Shop> {
    let [a, b, c, d, ..] = hapax_core::key::sha256(batch.as_bytes()).0;
    Graph::new(GRAPH, u32::from_be_bytes([a, b, c, d]), RESERVE)
        .node(RESERVE, reserve)
        .node(FRAUD, fraud)
        .node(TAX, tax)
        .node(CHARGE, charge)
        .node(SHIP, ship)
        .join((FRAUD, TAX), CHARGE)
        .edge(CHARGE, SHIP)
}

async fn reserve(mut ctx: Ctx) -> Outcome<Order> {
    work(&mut ctx, 30).await;
    let order = ctx.state();
    Order::delta().log("reserved").fork([FRAUD.with(order.id.clone()), TAX.with(order.cents)])
}

async fn fraud(ctx: Ctx, id: String) -> OrderDelta {
    ctx.app().desk.next_batch().await;
    // Not from `ctx.rng()`, which would repeat itself after a kill and make the demo easy.
    let case = format!("case-{:016x}", RandomState::new().build_hasher().finish());
    Order::delta().log(format!("{id} is no fraud")).case(case)
}

async fn tax(mut ctx: Ctx, cents: u64) -> OrderDelta {
    work(&mut ctx, 40).await;
    Order::delta().tax(tax_on(cents))
}

async fn charge(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let (order, shop) = (ctx.state(), ctx.app());
    let cents = order.cents + order.tax;
    let request = (&order.id, &order.case, cents);
    let mut answered = None;
    let charge = async |call: hapax::Call| {
        let (key, order, case) = (call.key().to_owned(), order.id.clone(), order.case.clone());
        let (receipt, line) = shop.charge(Charge { key, order, case, cents }).await?;
        answered = Some(line);
        Ok::<_, NodeError>(receipt)
    };
    let receipt = ctx.effect("charge", Write, &request, charge).await?;
    // A recorded answer was not asked for, so there is no line.
    if let Some(line) = answered {
        shop.seen(line)?;
    }
    Ok(Order::delta().receipt(receipt).log("charged"))
}

async fn ship(mut ctx: Ctx) -> OrderDelta {
    work(&mut ctx, 40).await;
    Order::delta().log("shipped")
}

impl Shop {
    async fn charge(&self, charge: Charge) -> hapax::Result<(String, Answered)> {
        let (ledger, life) = (self.ledger.clone(), self.life);
        Ok(tokio::task::spawn_blocking(move || ledger::charge(&ledger, life, charge)).await??)
    }

    /// The code has an answer before it. No other process could be told and strike within this moment, so here the
    /// worker is its own executioner: it gets the same signal, and as little time to put anything in order.
    fn seen(&self, line: Answered) -> io::Result<()> {
        line.seen()?;
        if self.dies_upon_answer {
            kill_process(getpid(), Signal::KILL)?;
        }
        Ok(())
    }
}

/// Takes a moment, as the real thing would: so that a kill can find it at work.
async fn work(ctx: &mut Ctx, longest_ms: u64) {
    let pause = longest_ms / 4 + ctx.rng().below(longest_ms);
    tokio::time::sleep(Duration::from_millis(pause)).await;
}
