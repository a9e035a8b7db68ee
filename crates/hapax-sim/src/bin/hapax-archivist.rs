//! Whoever works on scrolls, or puts their store under another key: `hapax-archivist work|rotate STORE KEYS OBJECTS`.
//!
//! It says `works` once it does; who rotates says `batch` for each one, and `done` at the end. It ends with its standard input,
//! so that it can't outlive the test that started it.

use hapax::{Engine, Options, store::recode::From};
use hapax_sim::archives;
use std::{env, io::Read, path::Path, process, thread, time::Duration};

/// Leases that end soon after their holder's death.
const QUICK: Duration = Duration::from_millis(1500);
/// Longer than anybody here reads.
const GRACE: Duration = Duration::from_secs(600);

fn main() -> hapax::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [what, url, keys, objects] = &args[..] else {
        eprintln!("usage: hapax-archivist work|rotate STORE KEYS OBJECTS");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match &**what {
        "rotate" => runtime.block_on(rotate(url, keys, objects.as_ref())),
        _ => runtime.block_on(work(url, keys, objects.as_ref())),
    }
}

async fn work(url: &str, keys: &str, objects: &Path) -> hapax::Result<()> {
    let options = Options::default().lease_ttl(QUICK).store_patience(Duration::from_secs(90));
    let engine =
        Engine::builder().options(options).with_store(archives::open(url, keys, objects, GRACE).await?);
    engine.register(archives::graph(), ()).await?;
    println!("works");
    std::future::pending().await
}

async fn rotate(url: &str, keys: &str, objects: &Path) -> hapax::Result<()> {
    let store = archives::open(url, keys, objects, GRACE).await?;
    println!("works");
    let mut next = Some(From::default());
    while let Some(from) = next {
        let batch = store.recode(from).await?;
        assert_eq!(batch.damaged, Vec::<String>::new());
        println!("batch {}", batch.rewritten);
        next = batch.next;
    }
    println!("done");
    Ok(())
}
