//! Requests that take effect once: a service in a process of its own, and its clients in this one, over the loopback.
//!
//! Invariant: the handler, the connections and the requests are the same with the layer and without, and every answer is
//! checked: who should get one again does, and nobody else.

mod client;
mod service;

use crate::{
    Result,
    args::{Asks, Drive},
    clock,
    meter::{Meter, Tally, extra},
};
use client::Connection;
use futures::future::try_join_all;
use hapax_servers::{Redis, sql};
use service::Service;
use std::sync::Arc;

pub(super) use service::serve;

/// Requests of each connection before the timed part.
const WARM: u64 = 8;
/// Requests whose commits are counted.
const WATCHED: u64 = 50;
/// Keys of each connection that are asked for again and again.
const KEYS: u64 = 16;

/// The keys of one connection.
struct Keys {
    asks: Asks,
    connection: u64,
    asked: u64,
}

impl Keys {
    /// The next key, and whether its answer was given before.
    fn next(&mut self) -> (String, bool) {
        self.asked += 1;
        match self.asks {
            Asks::Bare | Asks::First => (format!("c{}-{}", self.connection, self.asked), false),
            Asks::Replay => (format!("c{}-{}", self.connection, self.asked % KEYS), self.asked > KEYS),
        }
    }

    /// How many are asked before the timed part.
    fn warm(&self) -> u64 {
        if self.asks == Asks::Replay { KEYS + WARM } else { WARM }
    }
}

/// One after the other, over one connection.
struct Client {
    connection: Connection,
    keys: Keys,
}

impl Client {
    async fn connect(service: &Service, asks: Asks, number: u64) -> Result<Self> {
        let connection = Connection::open(&service.address).await?;
        let mut client = Self { connection, keys: Keys { asks, connection: number, asked: 0 } };
        for _ in 0..client.keys.warm() {
            client.ask().await?;
        }
        Ok(client)
    }

    async fn ask(&mut self) -> Result<()> {
        let (key, replayed) = self.keys.next();
        if self.connection.ask(&key).await? == replayed {
            return Ok(());
        }
        Err(format!("the answer to {key} {}", if replayed { "wasn't given again" } else { "was old" }).into())
    }

    async fn ask_timed(&mut self, count: u64, tally: &Tally) -> Result<()> {
        for _ in 0..count {
            let start = clock::now();
            self.ask().await?;
            tally.count();
            tally.record(start);
        }
        Ok(())
    }
}

/// Asks, so many times over so many connections.
pub(super) async fn run(
    drive: &Drive,
    [count, connections]: [u64; 2],
    asks: Asks,
    cached: bool,
) -> Result<()> {
    let redis = cached.then(Redis::start).transpose()?;
    let cache = redis.as_ref().map(|redis| redis.url());
    let service = Arc::new(Service::start(&drive.store, asks != Asks::Bare, cache.as_deref())?);
    let commits = commits_each(&drive.store, &service, asks).await?;
    let connected = (1..=connections).map(|number| Client::connect(&service, asks, number));
    let mut clients = try_join_all(connected).await?;
    let (each, tally) = ((count / connections).max(1), Tally::new(count));
    let meter = Meter::begin(tally.clone());
    try_join_all(clients.iter_mut().map(|client| client.ask_timed(each, &tally))).await?;
    let mut extra = extra("requests", "of a request");
    extra.extend(commits.map(|commits| ("commits".to_owned(), commits.into())));
    meter.end(each * connections, 0, extra);
    Ok(())
}

/// What one request by itself commits.
async fn commits_each(store: &str, service: &Arc<Service>, asks: Asks) -> Result<Option<f64>> {
    let mut client = Client::connect(service, asks, 0).await?;
    let Some(before) = commits(store, service).await? else { return Ok(None) };
    for _ in 0..WATCHED {
        client.ask().await?;
    }
    let after = commits(store, service).await?.unwrap_or_default();
    // To look at PostgreSQL's counter is to count.
    let looks = u64::from(store.starts_with("postgres"));
    Ok(Some((after.saturating_sub(before + looks)) as f64 / WATCHED as f64))
}

/// Transactions that wrote something, so far; `None`: nobody counts.
async fn commits(store: &str, service: &Arc<Service>) -> Result<Option<u64>> {
    let (store, service) = (store.to_owned(), service.clone());
    let count = move || match store.split(':').next() {
        Some("sqlite") => service.syncs().map(Some),
        Some("postgres") => Ok(Some(sql(&store, "SELECT txid_current()")?.parse()?)),
        Some("mysql") => {
            sql(&store, "SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'")?;
            let ask = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rw_commits'";
            Ok(Some(sql(&store, ask)?.parse()?))
        }
        _ => Ok(None),
    };
    tokio::task::spawn_blocking(count).await?
}
