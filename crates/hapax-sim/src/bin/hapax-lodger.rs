//! A worker that is at home in one store: `hapax-lodger STORE LEDGER TTL_MS`.
//!
//! It says `works` once it does. It ends with its standard input, so that it can't outlive the test that started it.

use hapax::{Engine, Options};
use hapax_sim::parcels::{self, Office};
use std::{env, io::Read, process, thread, time::Duration};

fn main() -> hapax::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [store, ledger, ttl] = &args[..] else {
        eprintln!("usage: hapax-lodger STORE LEDGER TTL_MS");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(work(store, ledger, Duration::from_millis(ttl.parse()?)))
}

async fn work(store: &str, ledger: &str, ttl: Duration) -> hapax::Result<()> {
    let options = Options::default().lease_ttl(ttl).store_patience(Duration::from_secs(90));
    let engine = Engine::builder().options(options).open(store).await?;
    engine.register(parcels::stamps(), Office(ledger.into())).await?;
    engine.register(parcels::graph(), Office(ledger.into())).await?;
    println!("works");
    std::future::pending().await
}
