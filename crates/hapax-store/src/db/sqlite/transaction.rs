//! One transaction in a SQLite file.
//!
//! Invariant: whether SQLite still is in the transaction is asked after every statement: `ON CONFLICT ROLLBACK` and
//! some errors end it without a word. A COMMIT that meets readers leaves it open, and is repeated.

use super::{SqliteDatabase, blocking, failed, quick::Quick};
use crate::{
    db::{
        CommitError, DbError, Kind, Marked, Row, Statement, Transaction, TxOptions, Value, end_savepoint,
        guard, marker, savepoint, standing::Standing,
    },
    sqlite::turn::Turn,
    store::BoxFuture,
};
use hapax_core::json::Json;
use rusqlite::{Connection, ErrorCode, ffi, types::ValueRef};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::runtime::{Handle, RuntimeFlavor};

/// SQLite's own instructions between two looks whether a statement is to end.
const INSTRUCTIONS: i32 = 1000;
/// Between two attempts of a COMMIT that met readers.
const BETWEEN_COMMITS: Duration = Duration::from_millis(20);
/// Such attempts at the most: a minute of them.
const COMMITS: usize = 3000;

pub(super) struct SqliteTransaction {
    /// `None` while a statement runs.
    connection: Option<Connection>,
    /// Set when what runs is to end.
    stop: Arc<AtomicBool>,
    database: Arc<SqliteDatabase>,
    standing: Standing,
    /// How long a statement of the user's may take.
    limit: Option<Duration>,
    read_only: bool,
    stained: bool,
    /// Held as long as the connection.
    turn: Option<Turn>,
}

impl SqliteTransaction {
    pub(super) fn new(
        database: Arc<SqliteDatabase>,
        mut connection: Connection,
        turn: Option<Turn>,
        options: &TxOptions,
    ) -> Result<Self, DbError> {
        let stop = Arc::<AtomicBool>::default();
        let asked = stop.clone();
        // An interrupt would be lost on a statement that hasn't begun.
        let watched = connection.progress_handler(INSTRUCTIONS, Some(move || asked.load(Ordering::Relaxed)));
        watched.map_err(|error| failed(&error))?;
        Ok(Self {
            stop,
            connection: Some(connection),
            database,
            standing: Standing::Open,
            limit: options.statement_timeout,
            read_only: options.read_only,
            stained: false,
            turn,
        })
    }

    /// Does something with the connection: here, if it is quick, else on a thread that may block. Dropped half-way, it is
    /// interrupted and the connection closed, and only then is it another's turn.
    async fn with<T: Send + 'static>(
        &mut self,
        quick: &Arc<Quick>,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, rusqlite::Error> {
        let Some(connection) = self.connection.take() else { return Err(rusqlite::Error::InvalidQuery) };
        if quick.is_quick() && self.limit.is_none() {
            let done = quick.timed(|| work(&connection));
            self.connection = Some(connection);
            return done;
        }
        let (turn, watch) = (self.turn.take(), Watch(Some(self.stop.clone())));
        let quick = quick.clone();
        let done = blocking(move || {
            let done = quick.timed(|| work(&connection));
            Ok((connection, turn, done))
        });
        let mut done = std::pin::pin!(done);
        let finished = match self.limit {
            None => done.await,
            Some(limit) => match tokio::time::timeout(limit, &mut done).await {
                Ok(finished) => finished,
                Err(_) => {
                    self.stop.store(true, Ordering::Relaxed);
                    let finished = done.await;
                    self.stop.store(false, Ordering::Relaxed);
                    finished
                }
            },
        };
        watch.ends();
        let Ok((connection, turn, done)) = finished else { return Err(rusqlite::Error::InvalidQuery) };
        (self.connection, self.turn) = (Some(connection), turn);
        done
    }

    /// Runs a statement in the transaction.
    async fn run<T: Send + 'static>(
        &mut self,
        quick: &Arc<Quick>,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, DbError> {
        self.standing.sends()?;
        let done = self.with(quick, work).await;
        self.standing = match (&done, self.connection.as_ref().map(Connection::is_autocommit)) {
            (_, Some(false)) => Standing::Open,
            (Ok(_), Some(true)) => Standing::Ended("by a statement".into()),
            (Err(error), Some(true)) => Standing::Poisoned(error.to_string()),
            (_, None) => Standing::Poisoned("its thread is gone".into()),
        };
        done.map_err(|error| failed(&error))
    }

    /// Runs a statement of the user's; its rows, and how many rows it changed.
    async fn user(&mut self, sql: &str, values: &[Value]) -> Result<(Vec<Row>, u64), DbError> {
        let check = |sql: &str| guard::check(Kind::Sqlite, sql).map(|allowed| (allowed, Arc::default()));
        let (allowed, quick) = self.database.known.of(sql, check)?;
        self.stained |= allowed.stains;
        let (sql, values) = (sql.to_owned(), bound(values));
        self.run(&quick, move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let columns = statement.column_count();
            let rows = statement.query_map(rusqlite::params_from_iter(values), |row| {
                let values = (0..columns).map(|column| row.get_ref(column).map(value_of));
                values.collect::<Result<_, _>>().map(Row::new)
            })?;
            let rows = rows.collect::<Result<_, _>>()?;
            let changed = if statement.readonly() { 0 } else { connection.changes() };
            Ok((rows, changed))
        })
        .await
    }

    /// Gives the connection to whoever comes next.
    fn give_back(&mut self) {
        let Some(connection) = self.connection.take().filter(|_| !self.stained) else { return };
        if !self.read_only || connection.pragma_update(None, "query_only", false).is_ok() {
            self.database.give_back(connection);
        }
    }

    /// How quick the end of a transaction is. Where there is one thread for everything, it doesn't wait for the disk.
    fn ends(&self) -> Arc<Quick> {
        let has_others =
            Handle::try_current().is_ok_and(|it| it.runtime_flavor() != RuntimeFlavor::CurrentThread);
        if has_others { self.database.ends.clone() } else { Arc::default() }
    }

    /// Runs a statement of our own in the transaction.
    async fn own<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, DbError> {
        let quick = self.database.ours.clone();
        self.run(&quick, work).await
    }

    async fn commit_now(&mut self) -> Result<(), CommitError> {
        let ends = self.ends();
        for _ in 0..COMMITS {
            let done = self.with(&ends, |connection| {
                // Waiting is up to us, so that no thread is held.
                connection.busy_timeout(Duration::ZERO)?;
                connection.prepare_cached("COMMIT")?.execute(()).map(drop)
            });
            let Err(error) = done.await else { return Ok(()) };
            let is_open = self.connection.as_ref().is_some_and(|connection| !connection.is_autocommit());
            match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) if is_open => {
                    tokio::time::sleep(BETWEEN_COMMITS).await;
                }
                // A check that was put off to the end.
                Some(ErrorCode::ConstraintViolation) if is_open => {
                    return Err(CommitError::RolledBack(failed(&error)));
                }
                // What the disk did with the last pages isn't known.
                _ => return Err(CommitError::Unknown(error.to_string())),
            }
        }
        Err(CommitError::RolledBack(DbError::Away("readers never let the COMMIT through".into())))
    }
}

/// Ends what runs when nobody waits for it any more.
struct Watch(Option<Arc<AtomicBool>>);

impl Watch {
    fn ends(mut self) {
        self.0 = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Transaction for SqliteTransaction {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, DbError>> {
        Box::pin(async move { Ok(self.user(sql, values).await?.1) })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, DbError>> {
        Box::pin(async move { Ok(self.user(sql, values).await?.0) })
    }

    fn save(&mut self, number: u32) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.own(move |connection| connection.execute_batch(&savepoint(number))))
    }

    fn unsave(&mut self, number: u32, keep: bool) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.own(move |connection| connection.execute_batch(&end_savepoint(number, keep))))
    }

    fn ride<'a>(&'a mut self, statements: &'a [Statement]) -> BoxFuture<'a, Result<bool, DbError>> {
        let statements: Vec<_> = statements.iter().map(|one| (one.clone(), bound(&one.values))).collect();
        // Between them nothing is to be decided elsewhere, so they share the way to the thread.
        Box::pin(self.own(move |connection| {
            for (statement, values) in statements {
                let mut prepared = connection.prepare_cached(&statement.sql)?;
                if prepared.execute(rusqlite::params_from_iter(values))? == 0 && statement.must_meet {
                    return Ok(false);
                }
            }
            Ok(true)
        }))
    }

    fn mark<'a>(&'a mut self, id: &'a str, result: &'a Json) -> BoxFuture<'a, Result<Marked, DbError>> {
        let (id, result) = (id.to_owned(), result.as_str().to_owned());
        Box::pin(async move {
            if self.read_only {
                return Ok(Marked::Here);
            }
            let marked = self.own(move |connection| {
                let insert = marker::insert(Kind::Sqlite, marker::TABLE);
                match connection.prepare_cached(&insert)?.execute((id, result)) {
                    Ok(_) => Ok(Marked::Here),
                    Err(error) if is_taken(&error) => Ok(Marked::Taken),
                    Err(error) => Err(error),
                }
            });
            let marked = marked.await;
            if !matches!(marked, Ok(Marked::Here)) && !self.standing.is_ended() {
                // The transaction is still open, and a COMMIT would keep what it did.
                self.standing = Standing::Poisoned("it has no marker".into());
            }
            marked
        })
    }

    fn commit(mut self: Box<Self>) -> BoxFuture<'static, Result<(), CommitError>> {
        Box::pin(async move {
            if let Some(refused) = self.standing.refuses_commit() {
                return Err(refused);
            }
            self.limit = None;
            self.commit_now().await?;
            self.give_back();
            Ok(())
        })
    }

    fn rollback(mut self: Box<Self>) -> BoxFuture<'static, Result<(), DbError>> {
        Box::pin(async move {
            if self.standing.is_ended() {
                return Err(DbError::Poisoned(self.standing.why()));
            }
            self.limit = None;
            let ends = self.ends();
            let rolled_back = self.with(&ends, |connection| match connection.is_autocommit() {
                true => Ok(()),
                false => connection.execute_batch("ROLLBACK"),
            });
            // A connection that can't is closed, which does the same.
            if rolled_back.await.is_ok() {
                self.give_back();
            }
            Ok(())
        })
    }
}

/// Whether another row has the same key.
fn is_taken(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_UNIQUE))
}

pub(crate) fn bound(values: &[Value]) -> Vec<rusqlite::types::Value> {
    use rusqlite::types::Value as Bound;
    let one = |value: &Value| match value {
        Value::Null => Bound::Null,
        Value::Bool(flag) => Bound::Integer((*flag).into()),
        Value::Int(number) => Bound::Integer(*number),
        Value::Float(number) => Bound::Real(*number),
        Value::Text(text) => Bound::Text(text.clone()),
        Value::Bytes(bytes) => Bound::Blob(bytes.clone()),
    };
    values.iter().map(one).collect()
}

pub(crate) fn value_of(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Real(number) => Value::Float(number),
        ValueRef::Text(bytes) => String::from_utf8(bytes.to_vec())
            .map_or_else(|error| Value::Bytes(error.into_bytes()), Value::Text),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}
