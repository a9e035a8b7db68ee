//! One worker of a fleet: `hapax-fleet URL LEDGER TTL_MS ACTIVE DRAIN_MS`.
//!
//! Takes up orders and naps until SIGTERM, and says what it does, a line for each event:
//! `works NAME` · `claimed RUN new|taken-over` · `left RUN STATUS` · `stopped FINISHED HANDED_OVER LOST`. It ends with its
//! standard input, so that it can't outlive the test that started it.

use hapax::{Engine, Event, Options, Worker};
use hapax_sim::{
    kills::Reporter,
    naps,
    orders::{self, Shop},
};
use std::{env, io::Read, process, sync::Arc, thread, time::Duration};
use tokio::sync::broadcast::{Receiver, error::RecvError};

struct Args {
    url: String,
    ledger: String,
    ttl: Duration,
    active: usize,
    drain: Duration,
}

fn args() -> Option<Args> {
    let mut args = env::args().skip(1);
    let (url, ledger) = (args.next()?, args.next()?);
    let mut number = || args.next()?.parse::<u32>().ok();
    let (ttl, active, drain) = (number()?, number()?, number()?);
    let millis = |number: u32| Duration::from_millis(number.into());
    Some(Args { url, ledger, ttl: millis(ttl), active: active as usize, drain: millis(drain) })
}

fn main() -> hapax::Result<()> {
    let Some(args) = args() else {
        eprintln!("usage: hapax-fleet URL LEDGER TTL_MS ACTIVE DRAIN_MS");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the worker.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(work(args));
    // A call that is still waited for keeps nobody.
    runtime.shutdown_background();
    done
}

#[allow(clippy::disallowed_methods, reason = "a reporter wants to know when its life began")]
async fn work(args: Args) -> hapax::Result<()> {
    let options = Options::default()
        .lease_ttl(args.ttl)
        .max_active_runs(args.active)
        .store_patience(Duration::from_secs(90));
    let engine = Engine::builder().options(options).open(&args.url).await?;
    tokio::spawn(tell(engine.events()));
    let reports = Arc::new(Reporter::new(std::io::sink(), std::time::Instant::now()));
    engine.register(orders::graph(), Shop { ledger: args.ledger.into(), reports }).await?;
    engine.register(naps::graph(), ()).await?;
    let worker = Worker::new(engine).drain_within(args.drain);
    println!("works {}", worker.name());
    let report = worker.run().await?;
    println!("stopped {} {} {}", report.finished, report.handed_over, report.lost);
    Ok(())
}

async fn tell(mut events: Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(Event::RunClaimed { run, taken_over, .. }) => {
                println!("claimed {} {}", run.run, if taken_over { "taken-over" } else { "new" });
            }
            Ok(Event::RunEnded { run, status }) => println!("left {} {}", run.run, status.word()),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
