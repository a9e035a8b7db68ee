use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

#[hapax::node]
async fn start(_: Ctx) -> OrderDelta {
    let shared = std::rc::Rc::new(1u64);
    tokio::task::yield_now().await;
    Order::delta().cents(*shared)
}

fn main() {
    drop(Graph::<Order>::new("orders", 1, START).node(START, start));
}
