//! The process that is killed: `hapax-victim DB LEDGER strict|pipelined FROM TO [HOLD_NTH]`.
//!
//! Ships the orders of the numbers FROM..TO, whatever an earlier life has left of them, and reports what it does on
//! its standard output. With HOLD_NTH it keeps the answer to its n-th durable step to itself. It ends with its
//! standard input, so that it can't outlive the test that started it.

use futures::future::try_join_all;
use hapax::{
    Durability, Engine, Options,
    store::sqlite::{SqliteOptions, SqliteStore},
};
use hapax_sim::{
    kills::{Observed, Report, Reporter},
    orders::{self, Shop},
};
use std::{env, io::Read, ops::Range, process, sync::Arc, thread, time::Duration};

/// Longer than any life takes. A victim that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

struct Args {
    db: String,
    ledger: String,
    durability: Durability,
    orders: Range<u32>,
    hold_nth: Option<u64>,
}

fn args() -> Option<Args> {
    let mut args = env::args().skip(1);
    Some(Args {
        db: args.next()?,
        ledger: args.next()?,
        durability: match args.next()?.as_str() {
            "strict" => Durability::Strict,
            "pipelined" => Durability::Pipelined,
            _ => return None,
        },
        orders: args.next()?.parse().ok()?..args.next()?.parse().ok()?,
        hold_nth: args.next().and_then(|nth| nth.parse().ok()),
    })
}

#[allow(clippy::disallowed_methods, reason = "it measures how long its recovery takes")]
fn main() -> hapax::Result<()> {
    let reports = Arc::new(Reporter::new(std::io::stdout(), std::time::Instant::now()));
    reports.say(&Report::Began);
    let Some(args) = args() else {
        eprintln!("usage: hapax-victim DB LEDGER strict|pipelined FROM TO [HOLD_NTH]");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the victim.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let shipped = async { tokio::time::timeout(PATIENCE, ship(args, reports)).await };
    match runtime.block_on(shipped) {
        Ok(result) => result,
        Err(_) => {
            eprintln!("the victim is stuck: not all orders were shipped within {PATIENCE:?}");
            process::exit(4);
        }
    }
}

async fn ship(args: Args, reports: Arc<Reporter>) -> hapax::Result<()> {
    let store = SqliteStore::open(&args.db, SqliteOptions::default()).await?;
    reports.say(&Report::Opened);
    let store = Observed::new(store, reports.clone(), args.hold_nth);
    let options = Options::default().durability(args.durability);
    let engine = Engine::builder().options(options).with_store(store);
    let shop = Shop { ledger: args.ledger.into(), reports: reports.clone() };
    let flow = engine.register(orders::graph(), shop).await?;
    let starts = args.orders.map(orders::order).map(|order| {
        let flow = flow.clone();
        async move { flow.start(&order.id.clone(), order).await }
    });
    let runs = try_join_all(starts).await?;
    try_join_all(runs.iter().map(hapax::Run::wait)).await?;
    reports.say(&Report::Done);
    Ok(())
}
