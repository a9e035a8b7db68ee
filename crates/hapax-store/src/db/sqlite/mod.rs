//! Transactions in a SQLite file of the user's.
//!
//! Invariant: one connection per transaction, used by one thread at a time; of those that write there is one at a
//! time, in the order of their coming, and it holds the file's write lock from its begin, so it never fails to get it
//! half-way. What is known to be quick is done on the caller's thread, everything else on one that may block: a way there
//! and back takes longer than a small statement.

mod quick;
mod transaction;

pub(crate) use transaction::{bound, value_of};

use super::{
    Database, DatabaseOptions, DbError, Kind, Refused, Transaction, TxOptions, guard::Allowed, known::Known,
    marker, result_of,
};
use crate::{
    sqlite::{
        connection::network_file_system,
        turn::{Turn, Turns},
    },
    store::BoxFuture,
};
use hapax_core::json::Json;
use quick::Quick;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use transaction::SqliteTransaction;

/// How long a transaction waits for one that doesn't end, in this process or another.
const BUSY: Duration = Duration::from_secs(5);
/// Connections that are kept.
const KEPT: usize = 8;
/// Statements that a connection keeps prepared.
const STATEMENTS: usize = 64;

/// A SQLite file of the user's.
///
/// ```
/// use hapax_store::db::{Database, SqliteDatabase};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("shop.db");
/// assert!(SqliteDatabase::open(&file).await.is_err(), "it must be there");
/// # std::fs::File::create(&file)?;
/// let shop = SqliteDatabase::open(&file).await?;
/// shop.prepare().await?;
/// # Ok(())
/// # }
/// ```
pub struct SqliteDatabase {
    file: PathBuf,
    what: String,
    idle: Mutex<Vec<Connection>>,
    /// What statements may do, and whether they are quick.
    known: Known<Result<(Allowed, Arc<Quick>), Refused>>,
    /// Whether our own statements are, and the end of a transaction.
    ours: Arc<Quick>,
    ends: Arc<Quick>,
    turns: Arc<Turns>,
}

impl std::fmt::Debug for SqliteDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteDatabase").field("file", &self.file).finish_non_exhaustive()
    }
}

impl SqliteDatabase {
    /// The database in this file, which must be there.
    pub async fn open(file: &Path) -> Result<Arc<Self>, DbError> {
        Self::open_with(file, &DatabaseOptions::default()).await
    }

    /// As [`open`](Self::open), with options. Every connection syncs each commit; a file system whose locks can't be
    /// trusted is refused.
    pub async fn open_with(file: &Path, options: &DatabaseOptions) -> Result<Arc<Self>, DbError> {
        let what = format!("sqlite:{}", file.display());
        let turns = Turns::of(file);
        let turns =
            turns.map_err(|error| DbError::Unusable { what: what.clone(), why: error.to_string() })?;
        let database = Arc::new(Self {
            file: file.to_owned(),
            what,
            idle: Mutex::default(),
            known: Known::default(),
            ours: Arc::default(),
            ends: Arc::default(),
            turns,
        });
        let (opened, allow_unsafe) = (database.clone(), options.allow_unsafe);
        blocking(move || {
            opened.check(allow_unsafe)?;
            opened.give_back(opened.connect()?);
            Ok(())
        })
        .await?;
        Ok(database)
    }

    fn unusable(&self, why: impl Into<String>) -> DbError {
        DbError::Unusable { what: self.what.clone(), why: why.into() }
    }

    /// Refuses what is no file, and a disk on which two processes could write at once.
    fn check(&self, allow_unsafe: bool) -> Result<(), DbError> {
        let found = std::fs::metadata(&self.file).map_err(|error| self.unusable(error.to_string()))?;
        if !found.is_file() {
            return Err(self.unusable("it is no file"));
        }
        let Ok(stat) = rustix::fs::statfs(&self.file) else { return Ok(()) };
        let Some(name) = network_file_system(stat.f_type as u64) else { return Ok(()) };
        let why = format!("it is on {name}, whose locks can't be trusted: use a local disk");
        if allow_unsafe {
            tracing::warn!(database = %self.what, "{why}");
            return Ok(());
        }
        Err(self.unusable(why))
    }

    fn connect(&self) -> Result<Connection, DbError> {
        let refuse = |error: rusqlite::Error| self.unusable(error.to_string());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.file, flags).map_err(refuse)?;
        // SQLite silently falls back to reading when it may not write.
        if connection.is_readonly("main").map_err(refuse)? {
            return Err(
                self.unusable(format!("this user may not write to it: chmod u+w {}", self.file.display()))
            );
        }
        let set_up = connection.busy_timeout(BUSY).and_then(|()| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "foreign_keys", true)
        });
        set_up.map_err(refuse)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(connection)
    }

    /// Begins to write on the caller's thread, unless that could take long: another process may hold the file, or a
    /// connection may have to be opened first.
    fn begin_at_once(&self) -> Option<Connection> {
        let connection = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let begun = connection.busy_timeout(Duration::ZERO).and_then(|()| begin(&connection, false));
        if connection.busy_timeout(BUSY).is_err() {
            return None;
        }
        if begun.is_err() {
            self.give_back(connection);
            return None;
        }
        Some(connection)
    }

    fn lend(&self) -> Result<Connection, DbError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.connect(), Ok)
    }

    /// Keeps a connection that is in no transaction, unless there are enough.
    fn give_back(&self, mut connection: Connection) {
        let is_as_new = connection.is_autocommit()
            && connection.progress_handler(0, None::<fn() -> bool>).is_ok()
            && connection.busy_timeout(BUSY).is_ok();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if is_as_new && idle.len() < KEPT {
            idle.push(connection);
        }
    }

    /// The right to write, for this process.
    async fn turn(&self) -> Result<Turn, DbError> {
        let turn = self.turns.take(BUSY).await;
        turn.ok_or_else(|| DbError::Away("another transaction in this file doesn't end".into()))
    }

    /// Does something outside of any transaction of the user's.
    async fn alone<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, DbError> {
        let database = self.clone();
        blocking(move || {
            let connection = database.lend()?;
            let done = work(&connection).map_err(|error| failed(&error));
            database.give_back(connection);
            done
        })
        .await
    }
}

/// What names a file, whatever its path.
pub(crate) fn file_identity(file: &Path) -> std::io::Result<String> {
    let found = std::fs::metadata(file)?;
    Ok(format!("sqlite {} {}", found.dev(), found.ino()))
}

/// What is wrong with the table of markers that is there.
fn flaw(connection: &Connection) -> Result<Option<&'static str>, rusqlite::Error> {
    let ask = "SELECT (SELECT type FROM sqlite_schema WHERE name = ?1), \
               (SELECT group_concat(name) FROM pragma_table_info(?1) WHERE pk > 0), \
               (SELECT count(*) FROM pragma_table_info(?1) WHERE name IN ('id', 'result', 'created_at'))";
    connection.query_row(ask, [marker::TABLE], |row| {
        let (kind, key): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
        Ok(match (kind.as_deref(), key.as_deref(), row.get::<_, i64>(2)?) {
            (Some("table"), Some("id"), 3) => None,
            (Some("table"), _, 3) => Some("has another primary key than `id`"),
            _ => Some("is something else than the table of markers"),
        })
    })
}

impl Database for Arc<SqliteDatabase> {
    fn kind(&self) -> Kind {
        Kind::Sqlite
    }

    fn what(&self) -> &str {
        &self.what
    }

    fn identity(&self) -> BoxFuture<'_, Result<String, DbError>> {
        Box::pin(async move { file_identity(&self.file).map_err(|error| self.unusable(error.to_string())) })
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(async move {
            let turn = self.turn().await?;
            let make = marker::marker_table(Kind::Sqlite);
            let prepared = self.alone(move |connection| {
                let _turn = turn;
                // Read from the file: what the connection remembers of the tables may be old.
                let ask = "SELECT count(*) FROM sqlite_schema WHERE name = ?";
                if connection.query_row(ask, [marker::TABLE], |row| row.get::<_, i64>(0))? == 0 {
                    connection.execute_batch(&format!("BEGIN IMMEDIATE; {make}; COMMIT"))?;
                }
                flaw(connection)
            });
            match prepared.await {
                Ok(None) => Ok(()),
                Ok(Some(flaw)) => Err(self.unusable(format!(
                    "`{0}` {flaw}: rename it, and have {0} made by {make}",
                    marker::TABLE
                ))),
                Err(DbError::Away(why)) => Err(DbError::Away(why)),
                Err(error) => {
                    Err(self.unusable(format!("`{}` can't be made: {error}; {make}", marker::TABLE)))
                }
            }
        })
    }

    fn begin<'a>(&'a self, options: &'a TxOptions) -> BoxFuture<'a, Result<Box<dyn Transaction>, DbError>> {
        Box::pin(async move {
            let read_only = options.read_only;
            let turn = if read_only { None } else { Some(self.turn().await?) };
            let at_once = if read_only { None } else { self.begin_at_once() };
            let (connection, turn) = match at_once {
                Some(connection) => (connection, turn),
                None => {
                    let database = self.clone();
                    let begun = move || {
                        let connection = database.lend()?;
                        begin(&connection, read_only).map_err(|error| failed(&error))?;
                        Ok((connection, turn))
                    };
                    blocking(begun).await?
                }
            };
            let transaction = SqliteTransaction::new(self.clone(), connection, turn, options)?;
            Ok(Box::new(transaction) as Box<dyn Transaction>)
        })
    }

    fn marker<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Json>, DbError>> {
        let id = id.to_owned();
        Box::pin(async move {
            let found = self.alone(move |connection| {
                let mut statement =
                    connection.prepare_cached(&marker::select(Kind::Sqlite, marker::TABLE))?;
                let mut rows = statement.query_map([&id], |row| row.get::<_, String>(0))?;
                rows.next().transpose()
            });
            found.await?.map(|text| result_of(&text)).transpose()
        })
    }

    fn sweep(&self, ids: Vec<String>, age: Duration) -> BoxFuture<'_, Result<u64, DbError>> {
        Box::pin(async move {
            let mut deleted = 0;
            let age = age.as_millis().to_string();
            for batch in ids.chunks(marker::BATCH) {
                let turn = self.turn().await?;
                let values: Vec<String> = [&age].into_iter().chain(batch).cloned().collect();
                let delete = marker::delete(Kind::Sqlite, marker::TABLE, batch.len());
                let done = self.alone(move |connection| {
                    let _turn = turn;
                    connection.execute(&delete, rusqlite::params_from_iter(values))
                });
                deleted += done.await? as u64;
            }
            Ok(deleted)
        })
    }
}

/// Begins a transaction, with the write lock in hand unless it only reads.
fn begin(connection: &Connection, read_only: bool) -> rusqlite::Result<()> {
    if !read_only {
        return connection.prepare_cached("BEGIN IMMEDIATE")?.execute(()).map(drop);
    }
    connection.execute_batch("BEGIN DEFERRED")?;
    connection.pragma_update(None, "query_only", true)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DbError> + Send + 'static,
) -> Result<T, DbError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(DbError::Away(error.to_string())))
}

fn failed(error: &rusqlite::Error) -> DbError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DbError::Away(error.to_string()),
        code => {
            DbError::Statement { message: error.to_string(), state: code.map(|code| format!("{code:?}")) }
        }
    }
}
