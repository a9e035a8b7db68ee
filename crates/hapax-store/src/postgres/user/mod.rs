//! Transactions in a PostgreSQL database of the user's.
//!
//! Invariant: a session is in one transaction at a time and is given back only after its own COMMIT or ROLLBACK was
//! answered; any other is closed. No zombie outlives its marker: a session that does nothing for ten minutes is ended
//! by the server. What sessions do outside of the user's transactions is READ COMMITTED.
//!
//! | file | what it holds |
//! |---|---|
//! | `session` | a session: set up, and checked for what may lose a commit |
//! | `prepare` | the table of markers, and the rights to it |
//! | `transaction`, `row`, `ride` | one transaction; its values; rows of the store's own in it |
//! | `witness` | the fate of a transaction, asked by its number |

mod prepare;
mod ride;
mod row;
mod session;
mod transaction;
mod witness;

use super::{
    IDENTITY, address,
    error::{deepest, ends_session, source_io},
};
use crate::{
    db::{
        Database, DatabaseOptions, DbError, Fate, Isolation, Kind, Refused, Transaction, TxOptions, Witness,
        guard::Allowed, known::Known, marker, result_of, standing::Standing,
    },
    server::address::hidden,
    store::BoxFuture,
};
use hapax_core::json::Json;
pub(super) use ride::together;
use session::UserSession;
use std::{
    sync::{Arc, Mutex, Once, OnceLock, PoisonError, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Config, error::SqlState, types::ToSql};
use tokio_postgres_rustls::MakeRustlsConnect;
use transaction::PgTransaction;

/// A PostgreSQL database of the user's.
///
/// ```no_run
/// use hapax_store::db::{Database, PostgresDatabase, TxOptions};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let shop = PostgresDatabase::open("postgres://localhost/shop", 16).await?;
/// shop.prepare().await?;
/// let mut tx = shop.begin(&TxOptions::default()).await?;
/// tx.execute("UPDATE stock SET anvils = anvils - 1", &[]).await?;
/// tx.rollback().await?;
/// # Ok(())
/// # }
/// ```
///
/// What isn't an address is refused, with what to do:
///
/// ```
/// use hapax_store::db::PostgresDatabase;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let refused = PostgresDatabase::open("postgres://me:p#ss@localhost/shop", 16).await;
/// assert!(refused.err().is_some_and(|error| error.to_string().contains("%23")));
/// # }
/// ```
pub struct PostgresDatabase {
    config: Config,
    tls: MakeRustlsConnect,
    what: String,
    allow_unsafe: bool,
    /// That it may lose commits is said once.
    said: Once,
    idle: Mutex<Vec<UserSession>>,
    room: Arc<Semaphore>,
    /// The table of markers with its schema, once it was found: a transaction may look elsewhere.
    table: OnceLock<String>,
    /// The session that makes numbers of transactions durable. It is none of the others, so that they can't wait for
    /// it.
    second: tokio::sync::Mutex<Second>,
    /// What statements may do.
    known: Known<Result<Allowed, Refused>>,
    /// How often statements had to be prepared anew.
    plans: AtomicU64,
    /// How often a flush was asked for.
    flushes: AtomicU64,
    /// How transactions are isolated where nothing else is said.
    isolation: OnceLock<String>,
}

impl std::fmt::Debug for PostgresDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresDatabase").field("server", &self.what).finish_non_exhaustive()
    }
}

/// The session beside those of transactions, and up to which request all that was logged before it is durable.
#[derive(Default)]
struct Second {
    session: Option<UserSession>,
    flushed: u64,
}

/// A session that was lent, and the room that it takes.
struct Lent {
    session: UserSession,
    /// It was opened just now.
    is_new: bool,
    room: OwnedSemaphorePermit,
}

impl PostgresDatabase {
    /// The database at this address, with so many sessions at the most.
    pub async fn open(url: &str, sessions: usize) -> Result<Arc<Self>, DbError> {
        Self::open_with(url, &DatabaseOptions { sessions, ..DatabaseOptions::default() }).await
    }

    /// As [`open`](Self::open), with options. Refuses a server that can't be reached, takes no writes, or may lose
    /// what it has committed.
    pub async fn open_with(url: &str, options: &DatabaseOptions) -> Result<Arc<Self>, DbError> {
        let what = hidden(url);
        let (config, tls) = address(url).map_err(|why| DbError::Unusable { what: what.clone(), why })?;
        let database = Arc::new(Self {
            config,
            tls,
            what,
            allow_unsafe: options.allow_unsafe,
            said: Once::new(),
            idle: Mutex::default(),
            room: Arc::new(Semaphore::new(options.sessions.max(1))),
            table: OnceLock::new(),
            second: tokio::sync::Mutex::default(),
            known: Known::default(),
            plans: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            isolation: OnceLock::new(),
        });
        database.give_back(database.connect().await?);
        Ok(database)
    }

    fn unusable(&self, why: impl Into<String>) -> DbError {
        DbError::Unusable { what: self.what.clone(), why: why.into() }
    }

    async fn lend(&self) -> Result<Lent, DbError> {
        let room =
            self.room.clone().acquire_owned().await.map_err(|error| DbError::Away(error.to_string()))?;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(session) if session.client.is_closed() => {}
                Some(session) => return Ok(Lent { session, is_new: false, room }),
                None => {
                    let session = self.connect().await.map_err(DbError::for_now)?;
                    return Ok(Lent { session, is_new: true, room });
                }
            }
        }
    }

    fn give_back(&self, session: UserSession) {
        if !session.stained && !session.client.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }

    /// One statement by itself. A session that has rested may have been ended meanwhile: then another does it.
    async fn alone(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, DbError> {
        loop {
            let Lent { session, is_new, room: _room } = self.lend().await?;
            match session.client.query(sql, values).await {
                Ok(rows) => {
                    self.give_back(session);
                    return Ok(rows);
                }
                Err(error) if !is_new && ends_session(&error) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    fn table(&self) -> &str {
        self.table.get().map_or(marker::TABLE, String::as_str)
    }
}

impl Database for Arc<PostgresDatabase> {
    fn kind(&self) -> Kind {
        Kind::Postgres
    }

    fn what(&self) -> &str {
        &self.what
    }

    fn identity(&self) -> BoxFuture<'_, Result<String, DbError>> {
        Box::pin(async move {
            let rows = self.alone(IDENTITY, &[]).await?;
            rows.first().map(|row| row.get(0)).ok_or_else(|| self.unusable("it has no name"))
        })
    }

    fn fails_if_changed(&self, isolation: Isolation) -> bool {
        match isolation {
            Isolation::Default => self.isolation.get().is_some_and(|default| default != "read committed"),
            isolation => isolation != Isolation::ReadCommitted,
        }
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.prepare_marker())
    }

    fn prepare_introspection(&self) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.prepare_witness())
    }

    fn begin<'a>(&'a self, options: &'a TxOptions) -> BoxFuture<'a, Result<Box<dyn Transaction>, DbError>> {
        Box::pin(async move {
            loop {
                let Lent { session, is_new, room } = self.lend().await?;
                match session.client.batch_execute(&begin(&session.isolation, options)).await {
                    Ok(()) => {
                        return Ok(Box::new(PgTransaction {
                            session,
                            database: self.clone(),
                            standing: Standing::Open,
                            read_only: options.read_only,
                            is_sealed: false,
                            _room: room,
                        }) as Box<dyn Transaction>);
                    }
                    // It was ended while it rested.
                    Err(error) if !is_new && ends_session(&error) => {}
                    Err(error) => return Err(failed(&error)),
                }
            }
        })
    }

    fn marker<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Json>, DbError>> {
        Box::pin(async move {
            let rows = self.alone(&marker::select(Kind::Postgres, self.table()), &[&id]).await?;
            rows.first().map(|row| result_of(row.get::<_, &str>(0))).transpose()
        })
    }

    fn sweep(&self, ids: Vec<String>, age: Duration) -> BoxFuture<'_, Result<u64, DbError>> {
        Box::pin(async move {
            let delete = format!("{} RETURNING 1", marker::delete(Kind::Postgres, self.table(), 0));
            let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            let mut deleted = 0;
            for batch in ids.chunks(marker::BATCH) {
                deleted += self.alone(&delete, &[&age, &batch]).await?.len() as u64;
            }
            Ok(deleted)
        })
    }

    fn ask<'a>(&'a self, witness: &'a Witness) -> BoxFuture<'a, Result<Fate, DbError>> {
        Box::pin(self.fate(witness))
    }

    fn end<'a>(&'a self, witness: &'a Witness) -> BoxFuture<'a, Result<bool, DbError>> {
        Box::pin(self.terminate(witness))
    }
}

/// What begins a transaction. A setting that is gone when it is over tells whether it still is.
fn begin(default: &str, options: &TxOptions) -> String {
    let isolation = match options.isolation {
        Isolation::Default => default,
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    };
    let access = if options.read_only { "READ ONLY" } else { "READ WRITE" };
    let limit = options.statement_timeout.map(|limit| limit.as_millis().clamp(1, i32::MAX as u128));
    let limit = limit.map(|limit| format!("; SET LOCAL statement_timeout = {limit}")).unwrap_or_default();
    format!("BEGIN ISOLATION LEVEL {isolation} {access}; SET LOCAL hapax.open = '1'{limit}")
}

fn failed(error: &tokio_postgres::Error) -> DbError {
    let Some(said) = error.as_db_error() else {
        return if error.is_closed() || source_io(error).is_some() {
            DbError::Away(deepest(error))
        } else {
            // It doesn't fit the statement, so it was never sent.
            DbError::Statement { message: deepest(error), state: None }
        };
    };
    let (message, state) = (said.message().to_owned(), Some(said.code().code().to_owned()));
    match *said.code() {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => DbError::Again(message),
        SqlState::LOCK_NOT_AVAILABLE | SqlState::TOO_MANY_CONNECTIONS => DbError::Away(message),
        // So many values don't fit the statement.
        SqlState::READ_ONLY_SQL_TRANSACTION | SqlState::PROTOCOL_VIOLATION => {
            DbError::Statement { message, state }
        }
        _ if ends_session(error) => DbError::Away(message),
        _ => DbError::Statement { message, state },
    }
}
