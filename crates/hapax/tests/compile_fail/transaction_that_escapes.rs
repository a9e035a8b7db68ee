use hapax::{Db, Tx, prelude::*};
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    cents: u64,
}
type Ctx = hapax::Ctx<Order>;

const START: Node = Node::new("start");

async fn start(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let mut kept: Option<&mut Tx> = None;
    ctx.transaction(&Db("shop"), "pay", async |tx| {
        kept = Some(tx);
        Ok::<(), NodeError>(())
    })
    .await?;
    let changed = kept.expect("it was kept").execute("UPDATE stock SET free = free - 1", &[]).await?;
    Ok(Order::delta().cents(changed))
}

fn main() {
    drop(Graph::new("orders", 1, START).node(START, start));
}
