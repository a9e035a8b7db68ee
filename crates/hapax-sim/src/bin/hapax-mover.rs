//! Moves all runs of one store into another: `hapax-mover FROM TO`.
//!
//! It says `carried RUN` for each family, tries those again that are held, says `done` and ends. It is killed at any moment,
//! and ends with its standard input.

use futures::{StreamExt as _, stream};
use hapax::{
    Engine, Options,
    store::{RunRecord, Store, StoreError, house::Mover},
};
use hapax_sim::parcels;
use std::{env, io::Read, process, sync::Arc, thread, time::Duration};

/// Families that are on their way at once.
const AT_ONCE: usize = 8;
/// How long what is held is left alone.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> hapax::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [from, to] = &args[..] else {
        eprintln!("usage: hapax-mover FROM TO");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(carry_all(from, to))
}

async fn store(url: &str) -> hapax::Result<Arc<dyn Store>> {
    Ok(Engine::builder().options(Options::default().finds_work(false)).open(url).await?.store())
}

async fn carry_all(from: &str, to: &str) -> hapax::Result<()> {
    let (old, new) = (store(from).await?, store(to).await?);
    let mover = Mover::new(old.clone(), new, to);
    let runs = parcels::listed(&old).await?;
    let mut left: Vec<RunRecord> = runs.into_iter().filter(|run| run.parent.is_none()).collect();
    while !left.is_empty() {
        let carry = |run: RunRecord| async {
            let carried = mover.carry(run.key.clone()).await;
            (run, carried)
        };
        let mut carried = stream::iter(std::mem::take(&mut left)).map(carry).buffer_unordered(AT_ONCE);
        let mut held = vec![];
        while let Some((run, carried)) = carried.next().await {
            match carried {
                Ok(_) => println!("carried {}", run.key.run),
                // A worker has it, or another mover.
                Err(StoreError::Held { .. } | StoreError::Fenced { .. } | StoreError::Retry(_)) => {
                    held.push(run);
                }
                Err(error) => return Err(error.into()),
            }
        }
        drop(carried);
        left = held;
        tokio::time::sleep(PAUSE).await;
    }
    println!("done");
    Ok(())
}
