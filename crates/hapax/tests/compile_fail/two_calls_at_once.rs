use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

async fn start(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let first = ctx.effect("first", Write, &1, async |_| Ok::<u64, NodeError>(1));
    let second = ctx.effect("second", Write, &2, async |_| Ok::<u64, NodeError>(2));
    let (first, second) = (first.await?, second.await?);
    Ok(Order::delta().cents(first + second))
}

fn main() {
    drop(Graph::new("orders", 1, START).node(START, start));
}
