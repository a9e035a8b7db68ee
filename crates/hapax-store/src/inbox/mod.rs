//! Messages that take effect once, however often a broker delivers them: for consumers.
//!
//! Invariant: a consumer's primary key decides, in the consumer's own transaction. Which delivery is the first is said by
//! one INSERT, never by a look before it, and its row is committed with the effect or not at all.
//!
//! | file | what it holds |
//! |---|---|
//! | `sql`, `schema/` | the statements and the tables, for all databases |
//! | `server` | what PostgreSQL and MySQL have in common |
//!
//! What each database does in its own words is in `postgres/inbox`, `mysql/inbox` and `sqlite/inbox`. Whoever wants to make
//! the table beforehand finds it in `schema/`, one file for each.
//!
//! A consumer asks in the transaction of the effect, commits, and acknowledges only then:
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use hapax_store::inbox::{Received, SqliteInbox};
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! /// A message that a broker delivered, maybe not for the first time.
//! struct Message { id: &'static str, cents: i64 }
//!
//! fn receive(inbox: &SqliteInbox, books: &mut Connection, message: &Message) -> Result<(), Box<dyn std::error::Error>> {
//!     let tx = books.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     if inbox.first_in(&tx, "bookkeeper", message.id)? == Received::First {
//!         tx.execute("UPDATE balance SET cents = cents + ?", [message.cents])?;
//!     }
//!     tx.commit()?;
//!     Ok(()) // now tell the broker
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("books.db");
//! let inbox = SqliteInbox::open(&file, Default::default()).await?;
//! let mut books = Connection::open(&file)?;
//! books.execute_batch("CREATE TABLE balance (cents INTEGER); INSERT INTO balance VALUES (0)")?;
//! let paid = Message { id: "msg:3b0f", cents: 4200 };
//! receive(&inbox, &mut books, &paid)?;
//! receive(&inbox, &mut books, &paid)?; // the broker didn't hear of it
//! let cents: i64 = books.query_row("SELECT cents FROM balance", [], |row| row.get(0))?;
//! assert_eq!(cents, 4200);
//! # Ok(())
//! # }
//! # main().unwrap();
//! # }
//! ```
//!
//! Any error leaves the message to the next delivery: roll back, and acknowledge nothing. So does a COMMIT whose answer was
//! lost: if it took effect, the next delivery is told [`Received::Again`].

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod server;
pub(crate) mod sql;

use crate::error::StoreError;
use hapax_core::{
    error::{Code, Coded, code},
    id::{InvalidId, RunId},
};

#[cfg(feature = "mysql")]
pub use crate::mysql::MySqlInbox;
#[cfg(feature = "postgres")]
pub use crate::postgres::PostgresInbox;
#[cfg(feature = "sqlite")]
pub use crate::sqlite::SqliteInbox;

/// Which delivery of a message this is. The [module](self) shows what a consumer makes of it.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use hapax_store::inbox::{Received, SqliteInbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("books.db");
/// let inbox = SqliteInbox::open(&file, Default::default()).await?;
/// let mut books = rusqlite::Connection::open(&file)?;
/// let tx = books.transaction()?;
/// assert_eq!(inbox.first_in(&tx, "bookkeeper", "msg:3b0f")?, Received::First);
/// tx.rollback()?; // nothing has happened
/// let tx = books.transaction()?;
/// assert_eq!(inbox.first_in(&tx, "bookkeeper", "msg:3b0f")?, Received::First);
/// assert_eq!(inbox.first_in(&tx, "postman", "msg:3b0f")?, Received::First, "each consumer has its own");
/// tx.commit()?;
/// let tx = books.transaction()?;
/// assert_eq!(inbox.first_in(&tx, "bookkeeper", "msg:3b0f")?, Received::Again);
/// # Ok(())
/// # }
/// # main().unwrap();
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "only the first delivery may have an effect"]
pub enum Received {
    /// The first, if this transaction is committed: do what the message asks for in it.
    First,
    /// One before it was committed with its effect, or is in this very transaction: acknowledge, and do nothing else.
    Again,
}

/// Why an inbox can't say which delivery it is. Roll back, and leave the message to the next delivery.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use hapax_core::error::Coded;
/// use hapax_store::inbox::{InboxError, SqliteInbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("books.db");
/// let inbox = SqliteInbox::open(&file, Default::default()).await?;
/// let mut elsewhere = rusqlite::Connection::open_in_memory()?;
/// let refused = inbox.first_in(&elsewhere.transaction()?, "bookkeeper", "msg:3b0f").unwrap_err();
/// assert!(matches!(refused, InboxError::NotThere { .. }), "{refused}");
/// assert_eq!(refused.code(), "HX0152"); // docs/errors/HX0152.md
/// # Ok(())
/// # }
/// # main().unwrap();
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// A consumer's name or a message's id that can't be one: no delivery of the message will ever be taken.
    #[error("{0}")]
    Name(InvalidId),
    /// The transaction's connection doesn't wait for the disk, so a crash could lose an effect that was acknowledged.
    #[error(
        "the connection of this transaction doesn't wait for the disk (PRAGMA synchronous is {synchronous}), so a message \
         that was acknowledged could be lost: set PRAGMA synchronous = FULL before the transaction begins"
    )]
    NotDurable {
        /// What the connection says.
        synchronous: i64,
    },
    /// The database of the transaction has no inbox, or one that isn't as it was made.
    #[error(
        "the database of this transaction has no inbox that could be used ({what}): begin the transaction in the database \
         that the inbox was opened in"
    )]
    NotThere {
        /// What the database says.
        what: String,
    },
    /// What can go wrong with any store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Coded for InboxError {
    fn code(&self) -> Code {
        match self {
            InboxError::Name(_) => code::INBOX_NAME,
            InboxError::NotDurable { .. } => code::INBOX_NOT_DURABLE,
            InboxError::NotThere { .. } => code::INBOX_NOT_THERE,
            InboxError::Store(error) => error.code(),
        }
    }
}

/// Refuses what no inbox takes, in all databases alike.
pub(crate) fn check(consumer: &str, id: &str) -> Result<(), InboxError> {
    // One rule for all names.
    let named = |what, name| RunId::new(name).map_err(|error| InboxError::Name(InvalidId { what, ..error }));
    named("consumer", consumer)?;
    named("message id", id).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_name_is_refused_with_its_code() {
        for (consumer, id, what) in
            [("", "msg:1", "consumer"), ("a\nb", "msg:1", "consumer"), ("a", "", "message id")]
        {
            let refused = check(consumer, id).unwrap_err();
            assert_eq!(refused.code(), "HX0150");
            assert!(refused.to_string().starts_with(what), "{refused}");
        }
        assert!(check("a", &"x".repeat(256)).is_err());
        assert!(check("a", &"x".repeat(255)).is_ok());
    }
}
