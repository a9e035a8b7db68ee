use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

const TAX: Node<u64> = Node::new("tax");

async fn start(_: Ctx) {}

async fn tax(_: Ctx, cents: u64) -> OrderDelta {
    Order::delta().cents(cents / 5)
}

fn main() {
    drop(Graph::new("orders", 1, START).node(START, start).node(TAX, tax).edge(START, TAX));
}
