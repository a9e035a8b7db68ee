//! The disk and SQLite alone.
//!
//! Invariant: the tables, the statements and the sizes of a step are the store's own; the test below compares
//! them, so that a limit can't fall behind what it limits.

use super::scattered;
use crate::{
    Result, clock,
    meter::{Meter, Tally, extra},
};
use rusqlite::{Connection, Statement, params};
use std::{fs::File, os::unix::fs::FileExt, path::Path, sync::Arc};

/// What the writer of the store appends for a small commit: one page.
const PAGE: usize = 4096;
/// Where SQLite starts its log anew.
const LOG_PAGES: u64 = 1000;
/// Bytes of a stored state, frontier and pages in a trivial step.
const STATE_BYTES: usize = 22;
const FRONTIER_BYTES: usize = 86;
const PAGES_BYTES: usize = 32;

const TABLES: &str = "
CREATE TABLE bare_runs (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL,
    graph TEXT NOT NULL, fingerprint BLOB NOT NULL, input BLOB NOT NULL,
    status TEXT NOT NULL, status_json TEXT NOT NULL,
    step_id INTEGER NOT NULL, digest BLOB NOT NULL, next_seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL, nonce BLOB NOT NULL,
    owner TEXT, lease_until INTEGER NOT NULL, lease_ttl INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL, used_us INTEGER NOT NULL,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, wake_at INTEGER, wake_letters TEXT, parent TEXT, terms TEXT, rank INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, run_id)
) WITHOUT ROWID;
CREATE TABLE bare_keys (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, key BLOB NOT NULL, step_id INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id, key)
) WITHOUT ROWID;
CREATE TABLE bare_checkpoints (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, step_id INTEGER NOT NULL,
    key BLOB NOT NULL, digest BLOB NOT NULL, io BLOB NOT NULL, outbox BLOB NOT NULL,
    seed INTEGER NOT NULL, next_seq INTEGER NOT NULL,
    state_version INTEGER NOT NULL, state_kind INTEGER NOT NULL, state_base INTEGER, state BLOB NOT NULL,
    frontier BLOB NOT NULL, frontier_len INTEGER NOT NULL, pages BLOB NOT NULL, barriers BLOB,
    label TEXT, created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id)
) WITHOUT ROWID;
";
const FENCE: &str = "UPDATE bare_runs SET step_id = ?6, digest = ?7, next_seq = next_seq + ?8, used_us = ?9, \
     updated_at = ?10 WHERE namespace = ?11 AND run_id = ?12 AND status = 'running' \
     AND epoch = ?1 AND nonce = ?2 AND step_id = ?3 AND digest = ?4 AND next_seq = ?5";
const KEY: &str = "INSERT INTO bare_keys (namespace, run_id, key, step_id) VALUES (?1, ?2, ?3, ?4)";
const CHECKPOINT: &str = "INSERT INTO bare_checkpoints (namespace, run_id, step_id, key, digest, io, outbox, seed, \
     next_seq, state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, label, \
     created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
const RUN: &str = "INSERT INTO bare_runs VALUES ('default', 'w1', 'w1', zeroblob(32), zeroblob(32), 'running', \
     '{\"status\":\"running\"}', 0, zeroblob(32), 0, 1, zeroblob(16), '0199f1c0-0000-7000-8000-000000000000', 0, \
     15000000, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0)";

fn path(store: &str) -> Result<&Path> {
    let path = store.strip_prefix("sqlite:").ok_or("a limit needs `--store sqlite:PATH`")?;
    Ok(Path::new(path))
}

fn open(store: &str) -> Result<Connection> {
    let connection = Connection::open(path(store)?)?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    Ok(connection)
}

/// Runs `commit` that often, and reports how many rows of what it wrote in all.
fn measure(
    commits: u64,
    each: u64,
    unit: &str,
    mut commit: impl FnMut(&Arc<Tally>) -> Result<()>,
) -> Result<()> {
    let tally = Tally::new(commits);
    let meter = Meter::begin(tally.clone());
    for _ in 0..commits {
        let start = clock::now();
        commit(&tally)?;
        tally.record(start);
    }
    meter.end(commits * each, commits, extra(unit, "of a commit"));
    Ok(())
}

/// The disk alone: one page and an fdatasync, again and again over a file of the size of SQLite's log.
pub(crate) fn fsync(store: &str, count: u64) -> Result<()> {
    let file = File::options().create(true).truncate(true).write(true).open(path(store)?)?;
    let page = [7u8; PAGE];
    for number in 0..LOG_PAGES {
        file.write_all_at(&page, number * PAGE as u64)?;
    }
    file.sync_all()?;
    let mut number = 0;
    measure(count, 1, "syncs", |tally| {
        tally.count();
        file.write_all_at(&page, (number % LOG_PAGES) * PAGE as u64)?;
        number += 1;
        tally.sync();
        Ok(file.sync_data()?)
    })
}

/// SQLite alone: rows of a number and a few bytes.
pub(crate) fn rows(store: &str, commits: u64, rows: u64) -> Result<()> {
    let connection = open(store)?;
    connection.execute_batch("CREATE TABLE bare_rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")?;
    let mut insert = connection.prepare("INSERT INTO bare_rows (body) VALUES (?1)")?;
    let body = [7u8; 100];
    measure(commits, rows, "rows", |tally| {
        in_transaction(&connection, || {
            for _ in 0..rows {
                tally.count();
                insert.execute(params![body])?;
            }
            Ok(())
        })
    })
}

/// SQLite alone, with the very statements of a step, on one run.
pub(crate) fn steps(store: &str, commits: u64, steps: u64) -> Result<()> {
    let connection = open(store)?;
    connection.execute_batch(TABLES)?;
    connection.execute(RUN, ())?;
    let mut bare = BareSteps {
        fence: connection.prepare(FENCE)?,
        key: connection.prepare(KEY)?,
        checkpoint: connection.prepare(CHECKPOINT)?,
        step: 0,
        digest: [0; 32],
    };
    measure(commits, steps, "steps", |tally| {
        in_transaction(&connection, || {
            for _ in 0..steps {
                tally.count();
                bare.write()?;
            }
            Ok(())
        })
    })
}

fn in_transaction(connection: &Connection, work: impl FnOnce() -> Result<()>) -> Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute(())?;
    work()?;
    connection.prepare_cached("COMMIT")?.execute(())?;
    Ok(())
}

/// The statements of a step, prepared once, and where the run stands.
struct BareSteps<'c> {
    fence: Statement<'c>,
    key: Statement<'c>,
    checkpoint: Statement<'c>,
    step: i64,
    digest: [u8; 32],
}

impl BareSteps<'_> {
    fn write(&mut self) -> Result<()> {
        let (namespace, run, next) = ("default", "w1", self.step + 1);
        let (digest, key) = (scattered(next, 1), scattered(next, 2));
        let (now, none) = (1_700_000_000_000_000_i64 + next, None::<i64>);
        let fenced = self.fence.execute(params![
            1,
            [0u8; 16],
            self.step,
            self.digest,
            0,
            next,
            digest,
            0,
            next * 50,
            now,
            namespace,
            run
        ])?;
        if fenced != 1 {
            return Err("the bare fence refused".into());
        }
        self.key.execute(params![namespace, run, key, next])?;
        let (state, frontier, pages) = ([7u8; STATE_BYTES], [7u8; FRONTIER_BYTES], [7u8; PAGES_BYTES]);
        let (io, outbox, seed) = (scattered(0, 3), scattered(0, 4), 0x1234_5678_9abc_i64);
        self.checkpoint.execute(params![
            namespace, run, next, key, digest, io, outbox, seed, 0, 1, 0, none, state, frontier, 1, pages,
            none, none, now
        ])?;
        (self.step, self.digest) = (next, digest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of the store and one run of trivial steps in them.
    fn of_the_store(folder: &Path) -> Connection {
        let path = folder.join("store.db");
        let line = format!("--store sqlite:{} w1 40", path.display());
        let Ok(crate::args::Command::Drive(drive)) = crate::args::parse(line.split(' ').map(str::to_owned))
        else {
            panic!("{line}")
        };
        crate::workloads::run(&drive).unwrap();
        Connection::open(path).unwrap()
    }

    fn bare(folder: &Path) -> Connection {
        let path = folder.join("bare.db");
        steps(&format!("sqlite:{}", path.display()), 20, 2).unwrap();
        Connection::open(path).unwrap()
    }

    fn text(connection: &Connection, sql: &str) -> String {
        connection.query_row(sql, (), |row| row.get(0)).unwrap()
    }

    #[test]
    fn the_bare_tables_are_the_tables_of_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let (store, bare) = (of_the_store(folder.path()), bare(folder.path()));
        for table in ["runs", "keys", "checkpoints"] {
            let sql = |prefix: &str| format!("SELECT sql FROM sqlite_schema WHERE name = '{prefix}_{table}'");
            let ours = text(&bare, &sql("bare"));
            assert_eq!(ours.replace("bare_", "hapax_"), text(&store, &sql("hapax")), "{table}");
        }
    }

    #[test]
    fn a_bare_step_weighs_what_a_step_of_the_store_weighs() {
        let folder = tempfile::tempdir().unwrap();
        let (store, bare) = (of_the_store(folder.path()), bare(folder.path()));
        let weights = |connection: &Connection, table: &str| {
            ["state", "frontier", "pages", "key", "digest", "io", "outbox"].map(|column| {
                let sql = format!("SELECT AVG(LENGTH({column})) FROM {table} WHERE step_id BETWEEN 1 AND 39");
                connection.query_row(&sql, (), |row| row.get::<_, f64>(0)).unwrap()
            })
        };
        let (theirs, ours) = (weights(&store, "hapax_checkpoints"), weights(&bare, "bare_checkpoints"));
        for (theirs, ours) in theirs.iter().zip(ours) {
            assert!((theirs - ours).abs() <= 8.0 + theirs * 0.1, "{theirs} is not {ours}");
        }
    }
}
