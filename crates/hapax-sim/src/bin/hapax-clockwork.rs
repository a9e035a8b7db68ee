//! Whoever fires: an engine and its scheduler, as a process that is killed: `hapax-clockwork STORE`.
//!
//! Adds the schedule, which anybody may have added before, fires it, and works on its runs. It says `works` once it does.
//! It ends with its standard input, so that it can't outlive the test that started it.

use hapax::{Engine, Options, schedule::SchedulerOptions};
use hapax_sim::ticks::{self, Tick};
use std::{env, io::Read, process, thread, time::Duration};

/// Leases that end soon after their holder's death.
const QUICK: Duration = Duration::from_millis(1500);

fn main() -> hapax::Result<()> {
    let Some(store) = env::args().nth(1) else {
        eprintln!("usage: hapax-clockwork STORE");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(fire(&store))
}

async fn fire(store: &str) -> hapax::Result<()> {
    let options = Options::default().lease_ttl(QUICK).store_patience(Duration::from_secs(90));
    let engine = Engine::builder().options(options).open(store).await?;
    let flow = engine.register(ticks::graph(), ()).await?;
    flow.schedule(ticks::SCHEDULE, ticks::every_second(), Tick::default()).await?;
    let _scheduler = engine.scheduler(SchedulerOptions::default())?;
    println!("works");
    std::future::pending().await
}
