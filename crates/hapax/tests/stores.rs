//! The same runs on every store: the same keys and digests, step by step.

use hapax::{
    Engine, Graph, Node, Options, Outcome, RouteExt as _, State,
    core::{
        checkpoint::Checkpoint,
        id::{Namespace, RunId, RunKey},
    },
    prelude::*,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Order {
    cents: u64,
    #[state(sum)]
    tax: u64,
    #[state(append)]
    log: Vec<String>,
}
type Ctx = hapax::Ctx<Order>;

const RESERVE: Node = Node::new("reserve");
const TAX: Node<u64> = Node::new("tax");
const CHARGE: Node = Node::new("charge");
const SHIP: Node = Node::new("ship");

async fn reserve(ctx: Ctx) -> Outcome<Order> {
    let cents = ctx.state().cents;
    Order::delta().log("reserved").fork([TAX.with(cents), TAX.with(cents / 2)])
}

async fn tax(mut ctx: Ctx, cents: u64) -> hapax::Result<OrderDelta> {
    let rate =
        ctx.effect("rate", Read, &cents, async |_: hapax::Call| Ok::<_, std::io::Error>(5_u64)).await?;
    Ok(Order::delta().tax(cents / rate))
}

async fn charge(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    let cents = ctx.state().cents + ctx.state().tax;
    let receipt =
        ctx.effect("charge", Write, &cents, async |_: hapax::Call| Ok::<_, std::io::Error>(cents)).await?;
    ctx.emit("receipts", "order", &receipt)?;
    Ok(Order::delta().log(format!("charged {receipt}")))
}

async fn ship(_: Ctx) -> OrderDelta {
    Order::delta().log("shipped")
}

fn orders() -> Graph<Order> {
    Graph::new("orders", 1, RESERVE)
        .node(RESERVE, reserve)
        .node(TAX, tax)
        .node(CHARGE, charge)
        .node(SHIP, ship)
        .edge(TAX, CHARGE)
        .edge(CHARGE, SHIP)
}

/// All steps of a few runs, executed on the store of this address.
async fn steps(url: &str, options: Options) -> Vec<Checkpoint> {
    let engine = Engine::builder().options(options).open(url).await.unwrap();
    let flow = engine.register(orders(), ()).await.unwrap();
    let mut steps = vec![];
    for number in 1..=3_u64 {
        let run = format!("order-{number}");
        flow.start(&run, Order { cents: 1000 * number, ..Order::default() })
            .await
            .unwrap()
            .wait()
            .await
            .unwrap();
        let key = RunKey { namespace: Namespace::default(), run: RunId::new(run).unwrap() };
        steps.extend(engine.store().checkpoints(key, 0, 100).await.unwrap());
    }
    engine.shutdown(Duration::from_secs(5)).await;
    steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_has_the_same_keys_and_digests_on_every_store() {
    let expected = steps("memory:", Options::default()).await;
    assert_eq!(expected.len(), 15, "three runs of four steps, and their starts");
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("runs.db").display());
    assert_eq!(steps(&sqlite, Options::default()).await, expected);
    for durability in [hapax::Durability::Pipelined, hapax::Durability::Strict] {
        for url in [hapax_servers::postgres().expect("a server"), hapax_servers::mysql().expect("a server")] {
            assert_eq!(
                steps(&url, Options::default().durability(durability)).await,
                expected,
                "{durability:?}"
            );
        }
    }
}
