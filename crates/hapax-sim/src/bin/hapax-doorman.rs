//! Whoever works on visits, or starts them, as a process that is killed: `hapax-doorman STORE HALL work`, `start NAME`, or
//! `visit NAME`.
//!
//! A worker says `works` once it does. A starter starts one run after the other, at a rate, under a singleton's name and
//! under a debounce's, and says a line for each round; or visits behind several doors, at a rate, each under one more name.
//! All of them end with their standard input, so that they can't outlive the
//! test that started them.

use hapax::{Engine, Flow, Options};
use hapax_sim::doors::{self, Hall, Visit};
use std::{collections::VecDeque, env, io::Read, path::Path, process, thread, time::Duration};

/// Leases that end soon after their holder's death.
const QUICK: Duration = Duration::from_millis(1500);

fn main() -> hapax::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match words[..] {
        [store, hall, "work"] => runtime.block_on(work(store, hall)),
        [store, hall, "start", name] => runtime.block_on(start(store, hall, name)),
        [store, hall, "visit", name] => runtime.block_on(visit(store, hall, name)),
        _ => {
            eprintln!("usage: hapax-doorman STORE HALL work, or hapax-doorman STORE HALL start|visit NAME");
            process::exit(2);
        }
    }
}

async fn open(store: &str, hall: &str, options: Options) -> hapax::Result<(Engine, Flow<Visit, Hall>)> {
    let options = options.lease_ttl(QUICK).store_patience(Duration::from_secs(90));
    let engine = Engine::builder().options(options).open(store).await?;
    let flow = engine.register(doors::graph(), Hall::new(Path::new(hall))?).await?;
    Ok((engine, flow))
}

async fn work(store: &str, hall: &str) -> hapax::Result<()> {
    let _working = open(store, hall, Options::default()).await?;
    println!("works");
    std::future::pending().await
}

async fn start(store: &str, hall: &str, name: &str) -> hapax::Result<()> {
    let (_engine, flow) = open(store, hall, Options::default().finds_work(false)).await?;
    for n in 0_u64.. {
        let run = |kind: &str| format!("{kind}-{name}-{n}");
        flow.start_with(&run("turn"), Visit::default(), doors::in_turn()).await?;
        flow.start_with(&run("alone"), Visit::default(), doors::alone()).await?;
        let latest = Visit { seen: vec![n] };
        flow.start_with(&run("quiet"), latest, doors::when_quiet()).await?;
        println!("{n}");
    }
    Ok(())
}

/// Visits of which so many are under way that this process has begun.
const GUESTS: usize = 4;

async fn visit(store: &str, hall: &str, name: &str) -> hapax::Result<()> {
    let (_engine, flow) = open(store, hall, Options::default().finds_work(false)).await?;
    let mut guests = VecDeque::new();
    for n in 0_u32.. {
        let options = doors::at_the_rate(doors::through_several_doors(n));
        guests.push_back(flow.start_with(&format!("visit-{name}-{n}"), Visit::default(), options).await?);
        println!("{n}");
        if guests.len() > GUESTS
            && let Some(first) = guests.pop_front()
        {
            first.wait().await?;
        }
    }
    Ok(())
}
