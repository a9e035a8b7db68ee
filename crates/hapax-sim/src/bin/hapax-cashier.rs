//! A service that charges: `hapax-cashier DATABASE LEDGER LEASE_MS waits|refuses [POINT]`. Says `listens ADDRESS`, then what it
//! does, a line for each thing: see [`Cashier`]. It stands still at the point that is named until it gets a line, and ends
//! with its standard input, so that it can't outlive the test that started it.

use hapax_sim::charges::{Cashier, Point, Till};
use std::{
    env,
    error::Error,
    io::BufRead,
    process,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};
use tokio::net::TcpListener;

struct Args {
    database: String,
    ledger: String,
    lease: Duration,
    waits: bool,
    stands_at: Option<Point>,
}

fn args() -> Option<Args> {
    let mut args = env::args().skip(1);
    let (database, ledger) = (args.next()?, args.next()?);
    let lease = Duration::from_millis(args.next()?.parse().ok()?);
    let waits = args.next()? == "waits";
    let stands_at = match args.next() {
        Some(name) => Some(Point::named(&name)?),
        None => None,
    };
    Some(Args { database, ledger, lease, waits, stands_at })
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(args) = args() else {
        eprintln!("usage: hapax-cashier DATABASE LEDGER LEASE_MS waits|refuses [POINT]");
        process::exit(2);
    };
    let (sender, go_on) = mpsc::channel();
    thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            // One that doesn't stand still has nothing to be told.
            let _ = sender.send(());
        }
        // Whatever ends the input ends the service.
        process::exit(3);
    });
    // One of them may stand still.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    runtime.block_on(serve(args, go_on))
}

async fn serve(args: Args, go_on: Receiver<()>) -> Result<(), Box<dyn Error>> {
    let till = Till::open(&args.database).await?;
    let cashier = Cashier::new(till, args.ledger.into(), args.stands_at.map(|point| (point, go_on)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listens {}", listener.local_addr()?);
    Ok(axum::serve(listener, cashier.service(args.lease, args.waits)).await?)
}
