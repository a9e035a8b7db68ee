use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

const LEFT: Node = Node::new("left");

async fn start(ctx: Ctx) -> OrderDelta {
    ctx.effect("pay", Write, &1, async |_| Ok::<u64, NodeError>(1)).await.unwrap();
    Order::delta()
}

fn main() {
    drop(Graph::new("orders", 1, START).node(START, start).edge(START, LEFT));
}
