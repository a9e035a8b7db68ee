//! Whoever writes to journeys, as a process of its own beside the one that is killed: `hapax-sender DB FROM TO`.
//!
//! Sends the journeys of the numbers FROM..TO their letters, in their order, as soon as they are there, each twice: as a
//! sender does that doesn't know whether it arrived. Says which of them were new, a line for each. It ends when all are
//! sent, or behind the journey at hand when its standard input ends.

use hapax::{
    Coded, Engine, Options,
    core::{error::code, mailbox::Posted},
    store::sqlite::{SqliteOptions, SqliteStore},
};
use hapax_sim::journeys::{self, GO, LETTERS};
use std::{
    env,
    io::Read,
    ops::Range,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// How soon it looks again for journeys that aren't there yet.
const SOON: Duration = Duration::from_millis(1);

fn args() -> Option<(String, Range<u32>)> {
    let mut args = env::args().skip(1);
    Some((args.next()?, args.next()?.parse().ok()?..args.next()?.parse().ok()?))
}

fn main() -> hapax::Result<()> {
    let Some((db, numbers)) = args() else {
        eprintln!("usage: hapax-sender DB FROM TO");
        process::exit(2);
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    thread::spawn(move || {
        // Whatever ends the input ends the sender.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        stopped.store(true, Ordering::SeqCst);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = SqliteStore::open(&db, SqliteOptions::default()).await?;
        let engine = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
        send_all(&engine, numbers, &stop).await?;
        // The store isn't closed: that would repair what the victim has left, which is the work of its next life.
        process::exit(0)
    })
}

/// Sends until all letters are sent, or it is to stop.
async fn send_all(engine: &Engine, numbers: Range<u32>, stop: &AtomicBool) -> hapax::Result<()> {
    let mut left: Vec<String> = numbers.map(|number| journeys::journey(number).id).collect();
    while !left.is_empty() {
        let mut waiting = vec![];
        for journey in left {
            if stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            if !send(engine, &journey).await? {
                waiting.push(journey);
            }
        }
        left = waiting;
        tokio::time::sleep(SOON).await;
    }
    Ok(())
}

/// Sends a journey its letters. False: they are to be sent again, under the same ids.
async fn send(engine: &Engine, journey: &str) -> hapax::Result<bool> {
    for letter in LETTERS.into_iter().flat_map(|letter| [letter, letter]) {
        match engine.signal_as(journey, &format!("letter-{letter}"), GO, &letter).await {
            Ok(Posted::New) => println!("{journey} {letter}"),
            Ok(Posted::Known) => {}
            Err(error) => match error.code() {
                // A journey that is over had its letters.
                code::ALREADY_FINISHED => return Ok(true),
                code::RUN_NOT_FOUND | code::STORE_RETRY | code::STORE_UNKNOWN => return Ok(false),
                _ => return Err(error.into()),
            },
        }
    }
    Ok(true)
}
