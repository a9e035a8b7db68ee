//! Transfers between accounts in a database of the user's: two updates, two inserts and a question in one transaction.
//!
//! Invariant: bare or durable, each makes the same statements with the same driver over as many sessions, and at the end the
//! money is counted. The runs live where the accounts are: on a server in the same database, in SQLite in a file beside, unless
//! the transfers are to be committed with the runs.

mod bare;
mod durable;

use crate::{
    Result,
    args::Drive,
    clock,
    meter::{Meter, Tally, extra, transactions},
};
use bare::Bare;
use durable::Durable;
use hapax::store::{
    StoreStats,
    db::{DatabaseOptions, Kind, Strategy},
};
use hapax_servers::Proxy;
use std::{net::SocketAddr, sync::Arc};

/// Accounts; those of transfers that are in flight at the same time are all different.
const ACCOUNTS: u64 = 5_000;
const CENTS: i64 = 7;
/// Made before the timed part by each that is in flight, so that every session is open.
const WARM: u64 = 4;
/// Transfers whose round trips are counted.
const WATCHED: u64 = 50;

/// The statements of a transfer, as the database writes them.
struct Statements {
    take: &'static str,
    give: &'static str,
    note: &'static str,
    read: &'static str,
}

fn statements(kind: Kind) -> Statements {
    match kind {
        Kind::Postgres => Statements {
            take: "UPDATE accounts SET cents = cents - $2 WHERE id = $1",
            give: "UPDATE accounts SET cents = cents + $2 WHERE id = $1",
            note: "INSERT INTO entries (account, cents) VALUES ($1, $2)",
            read: "SELECT cents FROM accounts WHERE id = $1",
        },
        Kind::MySql | Kind::Sqlite => Statements {
            take: "UPDATE accounts SET cents = cents - ? WHERE id = ?",
            give: "UPDATE accounts SET cents = cents + ? WHERE id = ?",
            note: "INSERT INTO entries (account, cents) VALUES (?, ?)",
            read: "SELECT cents FROM accounts WHERE id = ?",
        },
    }
}

/// The accounts of a transfer, by its number.
fn accounts(number: u64) -> (i64, i64) {
    let giver = number * 2 % ACCOUNTS;
    (giver as i64, giver as i64 + 1)
}

fn kind(url: &str) -> Kind {
    match url.split(':').next() {
        Some("sqlite") => Kind::Sqlite,
        Some("mysql") => Kind::MySql,
        _ => Kind::Postgres,
    }
}

/// Where the accounts are.
fn bank_of(store: &str, strategy: Option<Strategy>) -> String {
    match (kind(store), strategy) {
        (Kind::Postgres | Kind::MySql, _) | (Kind::Sqlite, Some(Strategy::CoCommit)) => store.to_owned(),
        (Kind::Sqlite, _) => format!("{store}-bank"),
    }
}

/// As many as a durable transfer may use.
fn sessions() -> usize {
    DatabaseOptions::default().sessions
}

/// How transfers are made.
enum Till {
    Bare(Bare),
    Durable(Durable),
}

impl Till {
    async fn open(drive: &Drive, strategy: Option<Strategy>, step: u64, tally: &Arc<Tally>) -> Result<Self> {
        let kind = kind(&drive.store);
        let bank = bank_of(&drive.store, strategy);
        Ok(match strategy {
            None => Till::Bare(Bare::open(&bank, kind, tally.clone()).await?),
            Some(strategy) => {
                Till::Durable(Durable::open(drive, &bank, (kind, strategy, step), tally.clone()).await?)
            }
        })
    }

    /// Makes transfers, so many at a time.
    async fn transfer(&self, name: &str, count: u64, in_flight: u64) -> Result<()> {
        match self {
            Till::Bare(bare) => bare.transfer(count, in_flight).await,
            Till::Durable(durable) => durable.transfer(name, count, in_flight).await,
        }
    }

    fn stats(&self) -> StoreStats {
        match self {
            Till::Bare(_) => StoreStats::default(),
            Till::Durable(durable) => durable.stats(),
        }
    }

    async fn close(self) {
        if let Till::Durable(durable) = self {
            durable.close().await;
        }
    }
}

/// Makes transfers, so many at a time and so many in each step, and counts the money.
pub(super) async fn run(
    drive: &Drive,
    [count, in_flight, step]: [u64; 3],
    strategy: Option<Strategy>,
) -> Result<()> {
    let kind = kind(&drive.store);
    let bank = bank_of(&drive.store, strategy);
    bare::set_up(&bank, kind).await?;
    let (watched, round_trips) = match kind {
        Kind::Sqlite => (0, None),
        Kind::Postgres | Kind::MySql => (WARM + WATCHED, Some(round_trips(drive, strategy, step).await?)),
    };
    let (each, tally) = (count / in_flight, Tally::new(count));
    let till = Till::open(drive, strategy, step, &tally).await?;
    till.transfer("warm", WARM * in_flight, in_flight).await?;
    tally.forget();
    let before = till.stats();
    let meter = Meter::begin(tally);
    till.transfer("timed", each * in_flight, in_flight).await?;
    let mut extra = extra("transfers", "of a transfer");
    extra.extend(round_trips.map(|trips| ("round_trips".to_owned(), trips.into())));
    meter.end(each * in_flight, transactions(before, till.stats()), extra);
    till.close().await;
    bare::audit(&bank, kind, watched + (WARM + each) * in_flight).await
}

/// What one transfer by itself says to the server and waits for, all in all.
async fn round_trips(drive: &Drive, strategy: Option<Strategy>, step: u64) -> Result<f64> {
    let (_, rest) = drive.store.rsplit_once('@').ok_or("an address has a user")?;
    let address: SocketAddr = rest.split('/').next().unwrap_or_default().parse()?;
    let proxy = Proxy::start(address)?;
    let watched = Drive { store: proxy.url(&drive.store)?, ..drive.clone() };
    let till = Till::open(&watched, strategy, step, &Tally::new(WATCHED)).await?;
    till.transfer("first", WARM, 1).await?;
    let before = proxy.counts().turns;
    till.transfer("watched", WATCHED, 1).await?;
    let turns = proxy.counts().turns - before;
    till.close().await;
    Ok(turns as f64 / WATCHED as f64)
}

/// Takes the time of a transfer.
async fn timed<T>(tally: &Tally, transfer: impl Future<Output = T>) -> T {
    let start = clock::now();
    let done = transfer.await;
    tally.count();
    tally.record(start);
    done
}
