//! The limits: the same folder and the same databases with the same settings, without Hapax.

mod mysql;
mod postgres;
mod sqlite;

use crate::{
    Result, clock,
    meter::{Meter, Tally, extra},
};
pub(crate) use sqlite::{fsync, rows};
use std::{future::Future, sync::Arc};

/// The very statements of a step, on one run: so many steps in each commit.
pub(crate) fn steps(store: &str, commits: u64, steps: u64) -> Result<()> {
    if !is_server(store) {
        return sqlite::steps(store, commits, steps);
    }
    if steps != 1 {
        return Err("on a server the bare statements of a step are committed one by one".into());
    }
    block_on(async {
        if store.starts_with("mysql:") {
            mysql::steps(store, commits).await
        } else {
            postgres::steps(store, commits).await
        }
    })
}

/// Commits of one row each, over so many connections to a server.
pub(crate) fn inserts(store: &str, commits: u64, connections: u64) -> Result<()> {
    if !is_server(store) {
        return Err("`limit-inserts` needs a server; `limit-rows` is for SQLite".into());
    }
    block_on(async {
        if store.starts_with("mysql:") {
            mysql::inserts(store, commits, connections).await
        } else {
            postgres::inserts(store, commits, connections).await
        }
    })
}

fn is_server(store: &str) -> bool {
    ["postgres:", "postgresql:", "mysql:"].iter().any(|scheme| store.starts_with(scheme))
}

fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// What the single-row commits insert.
const BODY: [u8; 100] = [7; 100];

/// Commits until there were so many, each timed.
async fn commit_all<F: Future<Output = Result<()>>>(
    tally: &Tally,
    commits: u64,
    mut commit: impl FnMut() -> F,
) -> Result<()> {
    for _ in 0..commits {
        let start = clock::now();
        tally.count();
        commit().await?;
        tally.record(start);
    }
    Ok(())
}

/// Times what connections that are open already do at the same time, each its share.
async fn measure<C, F>(
    commits: u64,
    connections: Vec<C>,
    work: impl Fn(Arc<Tally>, u64, C) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let (tally, each) = (Tally::new(commits), commits / connections.len() as u64);
    let done = each * connections.len() as u64;
    let meter = Meter::begin(tally.clone());
    let tasks: Vec<_> = connections
        .into_iter()
        .map(|connection| tokio::spawn(work(tally.clone(), each, connection)))
        .collect();
    for task in tasks {
        task.await??;
    }
    meter.end(done, done, extra("commits", "of a commit"));
    Ok(())
}

/// 32 bytes as scattered as a hash, without the price of one.
fn scattered(number: i64, salt: u64) -> [u8; 32] {
    let mut mixed = number.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (salt << 56);
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_mut(8) {
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 32;
        chunk.copy_from_slice(&mixed.to_be_bytes());
    }
    bytes
}
