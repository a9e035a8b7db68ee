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

async fn start(_: Ctx) -> Outcome<Order> {
    Order::delta().fork([TAX.with("4200")])
}

fn main() {
    drop(start);
}
