use hapax::{Db, prelude::*};
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

async fn start(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let changed: u64 = ctx
        .transaction(&Db("shop"), "pay", async |tx| {
            let cents: u64 = ctx.effect("charge", Write, &1, async |_| Ok::<u64, NodeError>(1)).await?;
            Ok::<u64, NodeError>(cents + tx.execute("UPDATE stock SET free = free - 1", &[]).await?)
        })
        .await?;
    Ok(Order::delta().cents(changed))
}

fn main() {
    drop(Graph::new("orders", 1, START).node(START, start));
}
