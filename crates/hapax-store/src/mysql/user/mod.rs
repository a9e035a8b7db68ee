//! Transactions in a MySQL or MariaDB database of the user's.
//!
//! Invariant: a session is in one transaction at a time and is given back only after its own COMMIT or ROLLBACK was
//! answered; any other is closed. No zombie outlives its marker: a session that does nothing for ten minutes is ended
//! by the server. What sessions do outside of the user's transactions is READ COMMITTED, and each statement of it
//! commits by itself: a session that is lent for that is told so.
//!
//! | file | what it holds |
//! |---|---|
//! | `prepare` | the table of markers, and the rights to it; which tables roll back |
//! | `transaction`, `row`, `ride` | one transaction; its values; rows of the store's own in it |
//! | `written` | which tables a statement may write to |

mod prepare;
mod ride;
mod row;
mod transaction;
mod written;

use super::{
    address,
    connection::{CONNECT, connect},
    error::{cannot_connect, ends_session},
    health::{ASK, Settings},
    identity,
};
use crate::{
    db::{
        Database, DatabaseOptions, DbError, Isolation, Kind, Refused, Transaction, TxOptions, guard::Allowed,
        known::Known, marker, result_of, standing::Standing,
    },
    error::StoreError,
    server::{address::hidden, tls::Mode},
    store::BoxFuture,
};
use hapax_core::{canary, json::Json};
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, Value as Bound, prelude::Queryable};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, Once, OnceLock, PoisonError},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use transaction::MyTransaction;

const SESSION: &str = "SET SESSION autocommit = 1, \
     wait_timeout = 600, innodb_lock_wait_timeout = 10, lock_wait_timeout = 60, completion_type = 'NO_CHAIN', \
     sql_safe_updates = 0, sql_select_limit = 18446744073709551615, time_zone = '+00:00' \
     /*M! , idle_transaction_timeout = 600 */";

/// As long as a session may stand still in a transaction that isn't about to end.
const PATIENT: &str = "SET SESSION wait_timeout = 600 /*M! , idle_transaction_timeout = 600 */; ";
/// Statements that a session keeps prepared. A server has room for some 16,000, of all its clients together.
const STATEMENTS: usize = 32;

/// A MySQL or MariaDB database of the user's.
///
/// ```no_run
/// use hapax_store::db::{Database, MySqlDatabase, TxOptions};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let shop = MySqlDatabase::open("mysql://root@localhost:3306/shop", 16).await?;
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
/// use hapax_store::db::MySqlDatabase;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let refused = MySqlDatabase::open("mysql://me:p#ss@localhost/shop", 16).await;
/// assert!(refused.err().is_some_and(|error| error.to_string().contains("%23")));
/// # }
/// ```
pub struct MySqlDatabase {
    address: Opts,
    mode: Mode,
    what: String,
    allow_unsafe: bool,
    /// That it may lose commits is said once.
    said: Once,
    idle: Mutex<Vec<UserSession>>,
    room: Arc<Semaphore>,
    /// What statements may do, and which tables they write to.
    known: Known<Result<Writes, Refused>>,
    /// Tables that are known to roll back.
    sound: Mutex<HashSet<String>>,
    /// Whether a transaction that reads repeatably where nothing else is said, and one that asks for that, fails when a row
    /// that it changes was changed since.
    strict: OnceLock<(bool, bool)>,
}

/// A statement that may run, and the tables that it may write to.
type Writes = (Allowed, Arc<[String]>);

struct UserSession {
    conn: Conn,
    /// How transactions are isolated where nothing else is said.
    isolation: String,
    /// It was told how the next one is, which may have been none of the user's.
    was_told: bool,
    /// It may hold something beyond its transaction, so nobody else gets it.
    stained: bool,
    /// It may not stand still for as long as others.
    hurries: bool,
}

impl std::fmt::Debug for MySqlDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlDatabase").field("server", &self.what).finish_non_exhaustive()
    }
}

impl MySqlDatabase {
    /// The database at this address, with so many sessions at the most.
    pub async fn open(url: &str, sessions: usize) -> Result<Arc<Self>, DbError> {
        Self::open_with(url, &DatabaseOptions { sessions, ..DatabaseOptions::default() }).await
    }

    /// As [`open`](Self::open), with options. Refuses a server that can't be reached, takes no writes, or may lose
    /// what it has committed.
    pub async fn open_with(url: &str, options: &DatabaseOptions) -> Result<Arc<Self>, DbError> {
        let what = hidden(url);
        let (address, mode) = address(url).map_err(|why| DbError::Unusable { what: what.clone(), why })?;
        // The driver closes a statement only when another takes its place.
        let address = OptsBuilder::from_opts(address).stmt_cache_size(STATEMENTS).into();
        let database = Arc::new(Self {
            address,
            mode,
            what,
            allow_unsafe: options.allow_unsafe,
            said: Once::new(),
            idle: Mutex::default(),
            room: Arc::new(Semaphore::new(options.sessions.max(1))),
            known: Known::default(),
            sound: Mutex::default(),
            strict: OnceLock::new(),
        });
        database.give_back(database.connect().await?);
        Ok(database)
    }

    fn unusable(&self, why: impl Into<String>) -> DbError {
        DbError::Unusable { what: self.what.clone(), why: why.into() }
    }

    /// Opens a session on a server that takes writes and keeps what it has committed.
    async fn connect(&self) -> Result<UserSession, DbError> {
        let connected = tokio::time::timeout(CONNECT, connect(&self.address, self.mode)).await;
        let mut conn =
            connected.map_err(|_| DbError::Away("it doesn't answer".into()))?.map_err(|error| {
                match cannot_connect(&self.what, &self.address, &error) {
                    StoreError::Open { why, .. } if matches!(error, Error::Server(_)) => self.unusable(why),
                    refused => DbError::Away(refused.to_string()),
                }
            })?;
        conn.query_drop(SESSION).await.map_err(|error| failed(&error))?;
        let settings = Settings::of(conn.query(ASK).await.map_err(|error| failed(&error))?);
        self.check(&settings)?;
        // A transaction of which nothing else is said needs say nothing itself.
        let isolation = settings.isolation();
        let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}");
        conn.query_drop(set).await.map_err(|error| failed(&error))?;
        let strict = settings.is_snapshot_strict();
        self.strict.get_or_init(|| (strict && isolation == "REPEATABLE READ", strict));
        Ok(UserSession { conn, isolation, stained: false, hurries: false, was_told: false })
    }

    fn check(&self, settings: &Settings) -> Result<(), DbError> {
        if settings.is_read_only() {
            return Err(self.unusable("it is read-only: name the primary"));
        }
        if settings.logs_statements() {
            let why = "its binary log has the format STATEMENT, which can't hold what is written here: \
                       set binlog_format = ROW";
            return Err(self.unusable(why));
        }
        let Some(cure) = settings.loses_commits() else { return Ok(()) };
        let why = format!("it may lose what it has committed: {cure}");
        if self.allow_unsafe {
            self.said.call_once(|| tracing::warn!(database = %self.what, "{why}"));
            return Ok(());
        }
        Err(self.unusable(why))
    }

    /// A session that answers, for a statement outside of the user's transactions, and the room that it takes.
    async fn lend(&self) -> Result<(UserSession, OwnedSemaphorePermit), DbError> {
        let (mut session, room) =
            self.lend_after(|_| "SET TRANSACTION ISOLATION LEVEL READ COMMITTED".into()).await?;
        session.was_told = true;
        Ok((session, room))
    }

    /// A session that did this first. One that has rested may have been ended meanwhile: then another does it.
    async fn lend_after(
        &self,
        first: impl Fn(&UserSession) -> String,
    ) -> Result<(UserSession, OwnedSemaphorePermit), DbError> {
        let room =
            self.room.clone().acquire_owned().await.map_err(|error| DbError::Away(error.to_string()))?;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let (mut session, is_new) = match idle {
                Some(session) => (session, false),
                None => (self.connect().await.map_err(DbError::for_now)?, true),
            };
            let text = first(&session);
            match session.conn.query_drop(text).await {
                Ok(()) => return Ok((session, room)),
                Err(error) if !is_new && ends_session(&error) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    fn give_back(&self, session: UserSession) {
        if !session.stained {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }
}

impl Database for Arc<MySqlDatabase> {
    fn kind(&self) -> Kind {
        Kind::MySql
    }

    fn what(&self) -> &str {
        &self.what
    }

    fn identity(&self) -> BoxFuture<'_, Result<String, DbError>> {
        Box::pin(async move {
            let (mut session, _room) = self.lend().await?;
            let settings = Settings::of(session.conn.query(ASK).await.map_err(|error| failed(&error))?);
            self.give_back(session);
            Ok(identity(&settings, &self.address))
        })
    }

    fn fails_if_changed(&self, isolation: Isolation) -> bool {
        let (by_default, if_asked) = self.strict.get().copied().unwrap_or_default();
        match isolation {
            Isolation::Default if !canary::on("snapshots_ignored") => by_default,
            _ if canary::on("snapshots_ignored") => false,
            isolation => if_asked && isolation == Isolation::RepeatableRead,
        }
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.prepare_marker())
    }

    fn begin<'a>(&'a self, options: &'a TxOptions) -> BoxFuture<'a, Result<Box<dyn Transaction>, DbError>> {
        Box::pin(async move {
            let (mut session, room) = self.lend_after(|session| begin(session, options)).await?;
            (session.hurries, session.was_told) = (false, false);
            Ok(Box::new(MyTransaction {
                session,
                database: self.clone(),
                standing: Standing::Open,
                limit: options.statement_timeout,
                read_only: options.read_only,
                _room: room,
            }) as Box<dyn Transaction>)
        })
    }

    fn marker<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Json>, DbError>> {
        Box::pin(async move {
            let (mut session, _room) = self.lend().await?;
            let found = session.conn.exec_first(marker::select(Kind::MySql, marker::TABLE), (id,)).await;
            let found: Option<String> = found.map_err(|error| failed(&error))?;
            self.give_back(session);
            found.map(|text| result_of(&text)).transpose()
        })
    }

    fn sweep(&self, ids: Vec<String>, age: Duration) -> BoxFuture<'_, Result<u64, DbError>> {
        Box::pin(async move {
            let age = Bound::from(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
            let mut deleted = 0;
            for batch in ids.chunks(marker::BATCH) {
                let (mut session, _room) = self.lend().await?;
                let values = std::iter::once(age.clone()).chain(batch.iter().map(Bound::from)).collect();
                let delete = marker::delete(Kind::MySql, marker::TABLE, batch.len());
                let done = session.conn.exec_drop(delete, Params::Positional(values)).await;
                done.map_err(|error| failed(&error))?;
                deleted += session.conn.affected_rows();
                self.give_back(session);
            }
            Ok(deleted)
        })
    }
}

/// What begins a transaction.
fn begin(session: &UserSession, options: &TxOptions) -> String {
    let isolation = match options.isolation {
        Isolation::Default if !session.was_told => None,
        Isolation::Default => Some(&*session.isolation),
        Isolation::ReadCommitted => Some("READ COMMITTED"),
        Isolation::RepeatableRead => Some("REPEATABLE READ"),
        Isolation::Serializable => Some("SERIALIZABLE"),
    };
    let isolation = isolation.map(|level| format!("SET TRANSACTION ISOLATION LEVEL {level}; "));
    let isolation = isolation.unwrap_or_default();
    let access = if options.read_only { "READ ONLY" } else { "READ WRITE" };
    let patience = if session.hurries { PATIENT } else { "" };
    format!("{patience}{isolation}START TRANSACTION {access}")
}

fn failed(error: &Error) -> DbError {
    match error {
        Error::Server(said) if matches!(said.code, 1020 | 1213) => DbError::Again(said.message.clone()),
        Error::Server(said) if said.code == 1205 => DbError::Away(said.message.clone()),
        // Written to in a transaction that only reads.
        Error::Server(said) if said.code == 1792 || !ends_session(error) => {
            DbError::Statement { message: said.message.clone(), state: Some(said.code.to_string()) }
        }
        // It doesn't fit the statement, so it was never sent.
        Error::Driver(mysql_async::DriverError::StmtParamsMismatch { .. }) => {
            DbError::Statement { message: error.to_string(), state: None }
        }
        error => DbError::Away(error.to_string()),
    }
}
