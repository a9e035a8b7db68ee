//! The user's own databases: transactions that take effect once, whatever crashes.
//!
//! A [`Database`] begins transactions; a [`Transaction`] runs the user's statements, leaves a marker as its last one
//! and commits. What its outcome is, when the answer to COMMIT is lost, the marker tells: its key lets one execution
//! commit.

#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "without a database there is nothing to guard")
)]

pub(crate) mod guard;
pub(crate) mod known;
pub(crate) mod marker;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod standing;
mod value;
mod witness;

#[cfg(feature = "mysql")]
pub use crate::mysql::MySqlDatabase;
#[cfg(feature = "postgres")]
pub use crate::postgres::PostgresDatabase;
pub use guard::Refused;
pub use marker::marker_table;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteDatabase;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::{bound, file_identity, value_of};
pub use value::{FromRow, FromValue, Mismatch, Row, ToValue, Value};
pub use witness::{Fate, Witness};

use crate::store::BoxFuture;
use hapax_core::{
    error::{Code, Coded, code},
    json::Json,
};
use std::time::Duration;

/// Which database it is.
///
/// ```
/// assert_ne!(hapax_store::db::Kind::Postgres, hapax_store::db::Kind::Sqlite);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

/// How it is known whether a transaction was committed.
///
/// ```
/// use hapax_store::db::{Strategy, TxOptions};
/// let options = TxOptions { strategy: Some(Strategy::Introspection), ..TxOptions::default() };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Its end is in the journal by the same commit: the database is the store's own.
    CoCommit,
    /// It left a marker in a table of ours.
    Marker,
    /// PostgreSQL remembers: asked by the transaction's number.
    Introspection,
}

/// How a transaction is isolated from others. SQLite has one isolation, and it is the strongest.
///
/// ```
/// use hapax_store::db::{Isolation, TxOptions};
/// let options = TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// As the database has it.
    #[default]
    Default,
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE.
    Serializable,
}

/// What a transaction is to be.
///
/// ```
/// use hapax_store::db::TxOptions;
/// use std::time::Duration;
/// let options = TxOptions { statement_timeout: Some(Duration::from_secs(5)), ..TxOptions::default() };
/// ```
#[derive(Debug, Clone, Default)]
pub struct TxOptions {
    /// How it is isolated.
    pub isolation: Isolation,
    /// It may not write. What it reads is recorded all the same. It leaves no marker: run again, it changes nothing.
    pub read_only: bool,
    /// How long one of its statements may take. The default is the database's.
    pub statement_timeout: Option<Duration>,
    /// How its outcome is known; `None`: the first that can be had.
    pub strategy: Option<Strategy>,
}

/// How a database is used.
///
/// ```
/// use hapax_store::db::DatabaseOptions;
/// let options = DatabaseOptions { sessions: 4, ..DatabaseOptions::default() };
/// assert!(!options.allow_unsafe);
/// ```
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// Sessions at the most, and so transactions at once; 16 by default. [Introspection](Strategy::Introspection)
    /// takes one more. SQLite has one writer whatever this says.
    pub sessions: usize,
    /// Warns about a database that may lose what it has committed, and uses it nevertheless.
    pub allow_unsafe: bool,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self { sessions: 16, allow_unsafe: false }
    }
}

/// Why something of a transaction failed.
///
/// ```
/// use hapax_store::db::DbError;
/// assert_eq!(DbError::Rows(2).to_string(), "2 rows came where one was asked for");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DbError {
    /// The statement may not run in a transaction; it didn't.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The database refused a statement: the transaction can only be rolled back.
    #[error("{message}{}", state.as_ref().map(|state| format!(" ({state})")).unwrap_or_default())]
    Statement {
        /// What it said.
        message: String,
        /// SQLSTATE or error number.
        state: Option<String>,
    },
    /// It lost against another transaction: try again.
    #[error("it lost against another transaction: {0}")]
    Again(String),
    /// What was read isn't what was asked for.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// There were more or fewer rows than asked for.
    #[error("{0} rows came where one was asked for")]
    Rows(usize),
    /// An earlier statement failed in a way that leaves only the rollback.
    #[error("an earlier statement failed, so the transaction can only be rolled back: {0}")]
    Poisoned(String),
    /// The database can't be reached, is busy, or gave no lock in time: later it may.
    #[error("the database can't be used now: {0}")]
    Away(String),
    /// It can't be used as it is: rights, settings, a table.
    #[error("{what}: {why}")]
    Unusable {
        /// The database, without its password.
        what: String,
        /// What is wrong, and the statement that mends it.
        why: String,
    },
}

/// A statement with its values, in the words of one database.
///
/// ```
/// use hapax_store::db::{Statement, Value};
/// let sql = "UPDATE stock SET free = free - 1 WHERE item = ? AND free > 0".into();
/// let statement = Statement { sql, values: vec![Value::Text("anvil".into())], must_meet: true };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// Its text, with a place for each value.
    pub sql: String,
    /// Its values.
    pub values: Vec<Value>,
    /// Unless it meets a row, nothing may be committed.
    pub must_meet: bool,
}

/// How a COMMIT ended that didn't succeed.
///
/// ```
/// use hapax_store::db::CommitError;
/// let lost = CommitError::Unknown("the connection broke".into());
/// assert!(lost.to_string().starts_with("it isn't known"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing was committed.
    #[error("nothing was committed: {0}")]
    RolledBack(DbError),
    /// The answer is lost.
    #[error("it isn't known whether it was committed: {0}")]
    Unknown(String),
    /// The transaction was ended by something else than this.
    #[error("the transaction was ended by something else: {0}")]
    Ended(String),
}

/// What became of a marker's insert.
///
/// ```
/// assert_ne!(hapax_store::db::Marked::Here, hapax_store::db::Marked::Taken);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// It is in the transaction.
    Here,
    /// Another execution committed first: roll back.
    Taken,
}

/// A database of the user's.
///
/// ```
/// use hapax_core::json::Json;
/// use hapax_store::db::{Database, Marked, SqliteDatabase, ToValue, TxOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("shop.db");
/// # std::fs::File::create(&file)?;
/// let shop = SqliteDatabase::open(&file).await?;
/// shop.prepare().await?;
/// let mut tx = shop.begin(&TxOptions::default()).await?;
/// tx.execute("CREATE TABLE orders (what TEXT)", &[]).await?;
/// tx.execute("INSERT INTO orders VALUES (?)", &["anvil".to_value()]).await?;
/// assert_eq!(tx.mark("order-7", &Json::of("ordered")?).await?, Marked::Here);
/// tx.commit().await?;
/// assert_eq!(shop.marker("order-7").await?, Some(Json::of("ordered")?));
/// # Ok(())
/// # }
/// ```
pub trait Database: Send + Sync {
    /// Which it is.
    fn kind(&self) -> Kind;

    /// Its address, without user and password.
    fn what(&self) -> &str;

    /// What names this very database, by whichever address it is reached: two with the same name share their
    /// transactions.
    fn identity(&self) -> BoxFuture<'_, Result<String, DbError>>;

    /// Whether a transaction fails when it changes a row that another has changed since it began. To leave a note in a row
    /// that changes by itself is nothing for such a one.
    fn fails_if_changed(&self, _isolation: Isolation) -> bool {
        false
    }

    /// Whether transactions can be marked: the table is there, or was made, and the user has the rights. Asked before
    /// any statement of the user's.
    fn prepare(&self) -> BoxFuture<'_, Result<(), DbError>>;

    /// Whether transactions can be [witnessed](Transaction::witness), which needs no table. Asked before any
    /// statement of the user's.
    fn prepare_introspection(&self) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(std::future::ready(Err(no_introspection(self.what()))))
    }

    /// Begins a transaction.
    fn begin<'a>(&'a self, options: &'a TxOptions) -> BoxFuture<'a, Result<Box<dyn Transaction>, DbError>>;

    /// What the marked transaction returned; `None`: none such was committed, so far.
    fn marker<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Json>, DbError>>;

    /// Deletes those of these markers that are at least this old, by the database's clock; answers how many. A marker
    /// may go only when the end of its transaction is durable in the journal, and no zombie can commit any more.
    fn sweep(&self, ids: Vec<String>, age: Duration) -> BoxFuture<'_, Result<u64, DbError>>;

    /// What became of a transaction. An error says that it can't be asked now, and nothing about the transaction.
    fn ask<'a>(&'a self, _witness: &'a Witness) -> BoxFuture<'a, Result<Fate, DbError>> {
        Box::pin(std::future::ready(Err(no_introspection(self.what()))))
    }

    /// Ends the session of a transaction, if it still is that very session; answers whether it was. [Ask](Self::ask)
    /// again afterwards: one that waits for a standby commits nevertheless.
    fn end<'a>(&'a self, _witness: &'a Witness) -> BoxFuture<'a, Result<bool, DbError>> {
        Box::pin(std::future::ready(Err(no_introspection(self.what()))))
    }
}

/// A transaction that is under way. Dropped, it is rolled back.
///
/// ```
/// use hapax_store::db::{DbError, ToValue, Transaction};
/// async fn pay(tx: &mut dyn Transaction, from: i64, cents: i64) -> Result<bool, DbError> {
///     let sql = "UPDATE accounts SET cents = cents - ?1 WHERE id = ?2 AND cents >= ?1";
///     Ok(tx.execute(sql, &[cents.to_value(), from.to_value()]).await? == 1)
/// }
/// ```
pub trait Transaction: Send {
    /// Runs a statement; answers how many rows it changed, or on MySQL met.
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, DbError>>;

    /// Runs a question.
    fn query<'a>(&'a mut self, sql: &'a str, values: &'a [Value])
    -> BoxFuture<'a, Result<Vec<Row>, DbError>>;

    /// Sets a savepoint, by number.
    fn save(&mut self, number: u32) -> BoxFuture<'_, Result<(), DbError>>;

    /// Keeps, or undoes, what came after a savepoint.
    fn unsave(&mut self, number: u32, keep: bool) -> BoxFuture<'_, Result<(), DbError>>;

    /// Runs statements of the store's own behind the user's; answers whether the one that must has met a row, and none
    /// after it is run unless it has. Others wait for what the first of them holds, so a session that stands still from then
    /// on is ended by the server soon.
    fn ride<'a>(&'a mut self, statements: &'a [Statement]) -> BoxFuture<'a, Result<bool, DbError>>;

    /// Leaves the marker: the last statement. Once it has failed, or is [taken](Marked::Taken), nothing can be
    /// committed.
    fn mark<'a>(&'a mut self, id: &'a str, result: &'a Json) -> BoxFuture<'a, Result<Marked, DbError>>;

    /// Says by what the database knows this transaction: after the last statement, and durable in the journal before
    /// COMMIT.
    fn witness(&mut self) -> BoxFuture<'_, Result<Witness, DbError>> {
        Box::pin(std::future::ready(Err(no_introspection("this database"))))
    }

    /// Commits.
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), CommitError>>;

    /// Undoes all of it.
    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), DbError>>;
}

fn no_introspection(what: &str) -> DbError {
    let why = "only PostgreSQL 13 and newer can be asked for the fate of a transaction: use a marker".into();
    DbError::Unusable { what: what.to_owned(), why }
}

impl DbError {
    /// What keeps a session of a database from opening that was open before may pass: a failover, a setting.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn for_now(self) -> Self {
        match self {
            DbError::Unusable { why, .. } => DbError::Away(why),
            error => error,
        }
    }
}

pub(crate) fn savepoint(number: u32) -> String {
    format!("SAVEPOINT hapax_{number}")
}

pub(crate) fn end_savepoint(number: u32, keep: bool) -> String {
    let undo = if keep { String::new() } else { format!("ROLLBACK TO SAVEPOINT hapax_{number}; ") };
    format!("{undo}RELEASE SAVEPOINT hapax_{number}")
}

/// What a marker says that its transaction returned.
pub(crate) fn result_of(text: &str) -> Result<Json, DbError> {
    Json::from_text(text).map_err(|error| DbError::Statement {
        message: format!("a marker can't be read: {error}"),
        state: None,
    })
}

impl Coded for DbError {
    fn code(&self) -> Code {
        code::EFFECT_FAILED
    }
}
