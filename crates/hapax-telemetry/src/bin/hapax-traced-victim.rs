//! The process that is killed: `hapax-traced-victim DB COLLECTOR SERVICE`.
//!
//! Executes one run of two steps and tells a collector. In the second step it makes a call; where it has to make that itself,
//! it says `inside` and waits to be killed. Where it is recorded already, it goes on, and says `done` at the end. It ends with
//! its standard input, so that it can't outlive the test that started it.

use hapax::{Call, prelude::*};
use hapax_telemetry::Telemetry;
use serde::{Deserialize, Serialize};
use std::{
    env,
    io::Read,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    paid: bool,
}

const PLACE: Node = Node::new("place");
const CHARGE: Node = Node::new("charge");

async fn place(_: hapax::Ctx<Order, Arc<AtomicBool>>) {}

async fn charge(mut ctx: hapax::Ctx<Order, Arc<AtomicBool>>) -> hapax::Result<OrderDelta> {
    let made = ctx.app();
    let pay = async |_: Call| {
        made.store(true, Ordering::SeqCst);
        Ok::<_, NodeError>(true)
    };
    let paid = ctx.effect("pay", Write, &4200, pay).await?;
    if made.load(Ordering::SeqCst) {
        println!("inside");
        std::future::pending::<()>().await;
    }
    Ok(Order::delta().paid(paid))
}

fn main() -> hapax::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [db, collector, service] = &args[..] else {
        eprintln!("usage: hapax-traced-victim DB COLLECTOR SERVICE");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the victim.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(live(db, collector, service))
}

async fn live(db: &str, collector: &str, service: &str) -> hapax::Result<()> {
    let engine = Engine::open(&format!("sqlite:{db}")).await?;
    let telemetry = Telemetry::builder().service_name(service).otlp(collector);
    let telemetry = telemetry.export_every(Duration::from_millis(20)).start(&engine).await?;
    let graph = Graph::new("orders", 1, PLACE).node(PLACE, place).node(CHARGE, charge).edge(PLACE, CHARGE);
    let flow = engine.register(graph, Arc::default()).await?;
    flow.start("order-42", Order::default()).await?.wait().await?;
    engine.shutdown(Duration::from_secs(5)).await;
    telemetry.shutdown().await;
    println!("done");
    Ok(())
}
