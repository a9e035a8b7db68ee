//! The process that is killed: `hapax-victim DB LEDGER orders|journeys strict|pipelined FROM TO [HOLD_NTH]`.
//!
//! Ships the orders, or makes the journeys, of the numbers FROM..TO, whatever an earlier life has left of them, and
//! reports what it does on its standard output. Journeys wait for the letters of a `hapax-sender`; what they send is
//! delivered to a file beside the database. With HOLD_NTH it keeps the answer to its n-th durable step to itself. It ends
//! with its standard input, so that it can't outlive the test that started it.

use futures::future::try_join_all;
use hapax::{
    Durability, Engine, Flow, Options, Run, State,
    outbox::{FileSink, RelayOptions},
    store::{
        outbox::{MessageState, OutboxFilter},
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use hapax_sim::{
    journeys::{self, Agency},
    kills::{Observed, Report, Reporter},
    orders::{self, Shop},
};
use std::{env, io::Read, ops::Range, process, sync::Arc, thread, time::Duration};

/// Longer than any life takes. A victim that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a killed relay's claims last, and how often the next one looks.
const SOON: Duration = Duration::from_millis(20);

struct Args {
    db: String,
    ledger: String,
    journeys: bool,
    durability: Durability,
    numbers: Range<u32>,
    hold_nth: Option<u64>,
}

fn args() -> Option<Args> {
    let mut args = env::args().skip(1);
    Some(Args {
        db: args.next()?,
        ledger: args.next()?,
        journeys: match args.next()?.as_str() {
            "orders" => false,
            "journeys" => true,
            _ => return None,
        },
        durability: match args.next()?.as_str() {
            "strict" => Durability::Strict,
            "pipelined" => Durability::Pipelined,
            _ => return None,
        },
        numbers: args.next()?.parse().ok()?..args.next()?.parse().ok()?,
        hold_nth: args.next().and_then(|nth| nth.parse().ok()),
    })
}

#[allow(clippy::disallowed_methods, reason = "it measures how long its recovery takes")]
fn main() -> hapax::Result<()> {
    let reports = Arc::new(Reporter::new(std::io::stdout(), std::time::Instant::now()));
    reports.say(&Report::Began);
    let Some(args) = args() else {
        eprintln!("usage: hapax-victim DB LEDGER orders|journeys strict|pipelined FROM TO [HOLD_NTH]");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the victim.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = async { tokio::time::timeout(PATIENCE, live(args, reports)).await };
    match runtime.block_on(done) {
        Ok(result) => result,
        Err(_) => {
            eprintln!("the victim is stuck: it wasn't done within {PATIENCE:?}");
            process::exit(4);
        }
    }
}

async fn live(args: Args, reports: Arc<Reporter>) -> hapax::Result<()> {
    let store = SqliteStore::open(&args.db, SqliteOptions::default()).await?;
    reports.say(&Report::Opened);
    let store = Observed::new(store, reports.clone(), args.hold_nth);
    let options = Options::default().durability(args.durability);
    let engine = Engine::builder().options(options).with_store(store);
    if args.journeys {
        travel(&engine, args, &reports).await?;
    } else {
        ship(&engine, args, &reports).await?;
    }
    reports.say(&Report::Done);
    Ok(())
}

async fn ship(engine: &Engine, args: Args, reports: &Arc<Reporter>) -> hapax::Result<()> {
    let shop = Shop { ledger: args.ledger.into(), reports: reports.clone() };
    let flow = engine.register(orders::graph(), shop).await?;
    let runs = start(&flow, args.numbers.map(orders::order).map(|order| (order.id.clone(), order))).await?;
    try_join_all(runs.iter().map(Run::wait)).await?;
    Ok(())
}

async fn travel(engine: &Engine, args: Args, reports: &Arc<Reporter>) -> hapax::Result<()> {
    let agency = Agency { ledger: args.ledger.into(), reports: reports.clone() };
    engine.register(journeys::legs(), agency.clone()).await?;
    let flow = engine.register(journeys::graph(), agency).await?;
    // The claims of a relay that was killed end soon.
    let options = RelayOptions::default().claim_ttl(SOON).poll_interval(SOON);
    let relay = engine.relay(options, FileSink::open(format!("{}.messages", args.db))?)?;
    let runs = start(&flow, args.numbers.map(journeys::journey).map(|it| (it.id.clone(), it))).await?;
    try_join_all(runs.iter().map(Run::wait)).await?;
    let pending = OutboxFilter { states: vec![MessageState::Pending], ..OutboxFilter::default() };
    while !engine.outbox(pending.clone()).await?.is_empty() {
        tokio::time::sleep(SOON).await;
    }
    relay.stop().await;
    Ok(())
}

/// Starts runs, or goes on with them.
async fn start<S: State, A: Send + Sync + 'static>(
    flow: &Flow<S, A>,
    runs: impl Iterator<Item = (String, S)>,
) -> hapax::Result<Vec<Run<S>>> {
    let start = |(id, state): (String, S)| async move { flow.start(&id, state).await };
    Ok(try_join_all(runs.map(start)).await?)
}
