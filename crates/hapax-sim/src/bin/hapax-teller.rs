//! A process that books transfers: `hapax-teller STORE DATABASE marker|introspection transfers FROM TO` makes those of these
//! numbers, whatever an earlier life has left of them, says `done` and ends; `… works TTL_MS [amid|last|known]` takes up what
//! it finds until SIGTERM, and stands still at the point that is named until it gets a line.
//!
//! It says what it does, a line for each thing: see [`Teller`], and `claimed RUN new|taken-over` · `left RUN STATUS`. It ends
//! with its standard input, so that it can't outlive the test that started it.

use futures::future::try_join_all;
use hapax::{
    Builder, Engine, Event, Options, Run, Worker,
    store::db::{Strategy, TxOptions},
};
use hapax_sim::transfers::{self, BANK, Point, Teller, Transfer};
use std::{
    env,
    io::BufRead,
    ops::Range,
    process,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};
use tokio::sync::broadcast::{self, error::RecvError};

/// Longer than any life takes. A teller that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(240);

struct Args {
    store: String,
    database: String,
    strategy: Strategy,
    work: Work,
}

enum Work {
    Transfers(Range<u32>),
    Works { ttl: Duration, stands_at: Option<Point> },
}

fn args() -> Option<Args> {
    let mut args = env::args().skip(1);
    let (store, database) = (args.next()?, args.next()?);
    let strategy = match &*args.next()? {
        "marker" => Strategy::Marker,
        "introspection" => Strategy::Introspection,
        _ => return None,
    };
    let work = match &*args.next()? {
        "transfers" => Work::Transfers(args.next()?.parse().ok()?..args.next()?.parse().ok()?),
        "works" => {
            let ttl = Duration::from_millis(args.next()?.parse().ok()?);
            Work::Works { ttl, stands_at: args.next().as_deref().and_then(Point::named) }
        }
        _ => return None,
    };
    Some(Args { store, database, strategy, work })
}

fn main() -> hapax::Result<()> {
    let Some(args) = args() else {
        eprintln!(
            "usage: hapax-teller STORE DATABASE marker|introspection transfers FROM TO | works TTL_MS [POINT]"
        );
        process::exit(2);
    };
    let (sender, go_on) = mpsc::channel();
    thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            // One that doesn't stand still has nothing to be told.
            let _ = sender.send(());
        }
        // Whatever ends the input ends the teller.
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, live(args, go_on)).await });
    runtime.shutdown_background();
    done.unwrap_or_else(|_| {
        eprintln!("the teller is stuck: it wasn't done within {PATIENCE:?}");
        process::exit(4);
    })
}

async fn live(args: Args, go_on: Receiver<()>) -> hapax::Result<()> {
    let builder = Engine::builder().database(BANK.0, &args.database);
    let options = TxOptions { strategy: Some(args.strategy), ..TxOptions::default() };
    match args.work {
        Work::Transfers(numbers) => transfer(builder, &args.store, options, numbers).await,
        Work::Works { ttl, stands_at } => {
            let engine = builder.options(Options::default().lease_ttl(ttl)).open(&args.store).await?;
            tokio::spawn(tell(engine.events()));
            let teller = Teller::new(options, stands_at.map(|point| (point, go_on)));
            engine.register(transfers::graph(), teller).await?;
            println!("works");
            Worker::new(engine).run().await?;
            println!("stopped");
            Ok(())
        }
    }
}

async fn transfer(
    builder: Builder,
    store: &str,
    options: TxOptions,
    numbers: Range<u32>,
) -> hapax::Result<()> {
    let engine = builder.open(store).await?;
    let flow = engine.register(transfers::graph(), Teller::new(options, None)).await?;
    let start = async |number| {
        let transfer = Transfer { number, ..Transfer::default() };
        flow.start(&transfers::name(number), transfer).await
    };
    let runs = try_join_all(numbers.map(start)).await?;
    try_join_all(runs.iter().map(Run::wait)).await?;
    println!("done");
    Ok(())
}

async fn tell(mut events: broadcast::Receiver<Event>) {
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
