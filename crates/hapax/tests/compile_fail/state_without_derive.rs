use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

#[derive(Clone, Default, Serialize, Deserialize)]
struct Plain {
    cents: u64,
}

async fn start(_: hapax::Ctx<Plain>) {}

fn main() {
    drop(Graph::<Plain>::new("orders", 1, START).node(START, start));
}
