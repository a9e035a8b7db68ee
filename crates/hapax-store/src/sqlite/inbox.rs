//! An inbox in a SQLite file.
//!
//! Invariant: the row of a delivery is written in the consumer's own transaction, which waits for the disk.

use super::{
    SqliteOptions,
    beside::{Beside, Table, undone},
};
use crate::{
    clock::micros,
    error::StoreError,
    inbox::{InboxError, Received, check, sql},
};
use hapax_core::canary;
use rusqlite::{Transaction, ffi, params};
use std::{path::Path, time::Duration};

/// The table, for whoever makes it beforehand.
const TABLE: Table =
    Table { name: "hapax_inbox", holds: "inbox", schema: include_str!("../inbox/schema/sqlite.sql") };

/// What `PRAGMA synchronous` says of a connection that waits for the disk.
const FULL: i64 = 2;

/// An inbox in a SQLite file, which holds the tables of the effects as well. It is put into WAL mode.
///
/// The [module](crate::inbox) shows a consumer.
///
/// ```
/// use hapax_store::inbox::SqliteInbox;
/// use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("books.db");
/// let inbox = SqliteInbox::open(&file, Default::default()).await?;
/// let swept = inbox.sweep(Duration::from_secs(90 * 24 * 3600)).await?;
/// assert_eq!(swept, 0);
/// # Ok(())
/// # }
/// ```
pub struct SqliteInbox(Beside);

impl std::fmt::Debug for SqliteInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteInbox").field("file", &self.0.place.shown()).finish_non_exhaustive()
    }
}

impl SqliteInbox {
    /// Opens a file, and creates it with its table where there is none.
    ///
    /// Refuses, with [`StoreError::Open`], what can't be durable: a read-only folder, a network file system, a damaged
    /// file. See [`SqliteOptions::must_exist`] for a table that must be there.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        Ok(Self(Beside::open(path, options, TABLE).await?))
    }

    /// Whether a message is delivered for the first time, to this consumer: if so, its effect belongs into the same
    /// transaction. Best an IMMEDIATE one, which waits for another delivery's to end: a transaction that has read before
    /// it asks may fail, with [`StoreError::Retry`], to get the file's lock. It blocks as SQLite does.
    ///
    /// ```
    /// use hapax_store::inbox::{Received, SqliteInbox};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("books.db");
    /// # let inbox = SqliteInbox::open(&file, Default::default()).await?;
    /// # let mut books = rusqlite::Connection::open(&file)?;
    /// # books.execute_batch("CREATE TABLE paid (cents INTEGER)")?;
    /// let tx = books.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// if inbox.first_in(&tx, "bookkeeper", "msg:3b0f")? == Received::First {
    ///     tx.execute("INSERT INTO paid VALUES (4200)", [])?;
    /// }
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn first_in(&self, tx: &Transaction<'_>, consumer: &str, id: &str) -> Result<Received, InboxError> {
        check(consumer, id)?;
        let waits = tx.pragma_query_value(None, "synchronous", |row| row.get(0)).map_err(refused)?;
        if waits < FULL {
            return Err(InboxError::NotDurable { synchronous: waits });
        }
        let now = self.0.clock.now_us();
        let receive = || {
            let words = sql::RECEIVE_ONCE.replace("{now}", "?");
            let met = tx.prepare_cached(&words)?.execute(params![consumer, id, now])?;
            if canary::on("inbox_row_apart") {
                tx.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
            }
            Ok(if met > 0 { Received::First } else { Received::Again })
        };
        receive().map_err(refused)
    }

    /// Deletes what was received longer ago than that, some at a time; answers how much. A message that is delivered once
    /// more after that takes effect once more: keep ids for longer than any redelivery may come, dead letters that an
    /// operator retries among them.
    pub async fn sweep(&self, older_than: Duration) -> Result<u64, InboxError> {
        let mut all = 0;
        loop {
            let batch = move |tx: &Transaction<'_>, now: i64| {
                tx.execute(sql::SWEEP, [now.saturating_sub(micros(older_than)), sql::BATCH])
            };
            let swept = self.0.write(batch).await.map_err(reported)? as u64;
            all += swept;
            if swept < sql::BATCH.unsigned_abs() {
                return Ok(all);
            }
        }
    }
}

/// An error of a statement in the consumer's transaction. One that SQLite finds in the words alone is the table's fault.
fn refused(error: rusqlite::Error) -> InboxError {
    match &error {
        rusqlite::Error::SqliteFailure(said, Some(what)) if said.extended_code == ffi::SQLITE_ERROR => {
            InboxError::NotThere { what: what.clone() }
        }
        _ => reported(undone(error)),
    }
}

fn reported(error: StoreError) -> InboxError {
    match error {
        StoreError::Corrupt { what, .. } => InboxError::NotThere { what },
        error => error.into(),
    }
}
