//! The process that is killed: pays the orders, whatever an earlier life has left of them, and says what it does.

use super::{
    Place,
    orders::{self, FraudDesk, Shop},
    process::ends_with_its_input,
};
use crate::{failure::Failure, signals::survive_file_limits};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use hapax::{Event, Flow};
use serde::{Deserialize, Serialize};
use std::{io::Write, path::PathBuf, time::Duration};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// Orders that are worked on at the same time.
const AT_ONCE: usize = 12;

/// What a worker must know.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The ledger's socket.
    #[arg(long)]
    ledger: PathBuf,
    /// The first part of every run's name.
    #[arg(long)]
    batch: String,
    /// How many orders there are.
    #[arg(long)]
    orders: u32,
    /// Which life of the worker this is.
    #[arg(long)]
    life: u32,
    /// Whether it ends when an answer is seen.
    #[arg(long, action = clap::ArgAction::Set)]
    dies_upon_answer: bool,
}

/// What the supervisor is told, one line of JSON for each thing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// A run is executed, from its beginning or from where an earlier life left it.
    Claimed,
    /// An order is shipped, in this life or an earlier one.
    Finished(u32),
    /// An order failed.
    Failed(String),
    /// It can't go on.
    Broke {
        /// Why.
        message: String,
        /// The error's code.
        code: String,
    },
    /// No order is left.
    Done,
}

fn say(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        // A supervisor that went away needs no reports; this process ends with its input.
        let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
    }
}

/// Pays all orders.
pub(super) fn run(args: Args, place: &Place) -> Result<(), Failure> {
    ends_with_its_input(|_| ());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::io("cannot start", &error))?;
    let worked = runtime.block_on(async {
        // Not to be told of a limit is no reason to stop.
        let _ = survive_file_limits();
        work(args, place).await
    });
    if let Err(error) = &worked
        && let Some(code) = error.code()
    {
        say(&Report::Broke { message: error.message(), code: code.to_owned() });
        return Err(Failure::Told);
    }
    worked
}

async fn work(args: Args, place: &Place) -> Result<(), Failure> {
    let Args { ledger, batch, orders, life, dies_upon_answer } = args;
    let engine = place.open().await?;
    tokio::spawn(report_claims(engine.events()));
    let shop = Shop { ledger, life, dies_upon_answer, desk: FraudDesk::open() };
    let flow = engine.register(orders::graph(&batch), shop).await?;
    let paid = stream::iter(1..=orders).map(|number| pay(&flow, &batch, number));
    paid.buffer_unordered(AT_ONCE).map_ok(|report| say(&report)).try_collect::<()>().await?;
    engine.shutdown(Duration::from_secs(5)).await;
    say(&Report::Done);
    Ok(())
}

/// Starts an order, or follows it when an earlier life has.
async fn pay(flow: &Flow<orders::Order, Shop>, batch: &str, number: u32) -> Result<Report, Failure> {
    let paid =
        async { flow.start(&orders::id(batch, number), orders::order(batch, number)).await?.wait().await };
    match paid.await {
        Ok(_) => Ok(Report::Finished(number)),
        Err(error @ hapax::Error::Store(_)) => Err(error.into()),
        Err(error) => Ok(Report::Failed(error.to_string())),
    }
}

async fn report_claims(mut events: Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(Event::RunClaimed { .. }) => say(&Report::Claimed),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
