//! The books of whoever applies messages, in any database: one effect for each message, and their sum, in the transaction
//! that its inbox is asked in.

use super::Raw;
use hapax_store::inbox::{InboxError, MySqlInbox, PostgresInbox, Received, SqliteInbox};
use mysql_async::{Conn, TxOpts, prelude::Queryable};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{error::Error, time::Duration};
use tokio_postgres::{Client, NoTls};

/// The name under which messages are received.
pub const CONSUMER: &str = "bookkeeper";

/// What the books are, in all databases.
const TABLES: [&str; 2] = [
    "CREATE TABLE effects (id VARCHAR(80) NOT NULL, run VARCHAR(80) NOT NULL, number BIGINT NOT NULL)",
    "CREATE TABLE books (messages BIGINT NOT NULL, total BIGINT NOT NULL)",
];
const EMPTY: &str = "INSERT INTO books VALUES (0, 0)";

/// Somebody else of this process writes for longer than that only if it is stuck.
const BUSY: Duration = Duration::from_secs(60);

type Failed = Box<dyn Error + Send + Sync>;

/// Books in a database, with their inbox.
pub enum Books {
    /// In a file.
    Sqlite(SqliteInbox, Box<Connection>),
    /// In PostgreSQL.
    Postgres(PostgresInbox, Client),
    /// In MySQL or MariaDB.
    MySql(MySqlInbox, Conn),
}

impl std::fmt::Debug for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Books").finish_non_exhaustive()
    }
}

impl Books {
    /// Opens them, at an address as stores have it.
    pub async fn open(url: &str) -> Result<Self, Failed> {
        if let Some(file) = url.strip_prefix("sqlite:") {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY)?;
            return Ok(Books::Sqlite(
                SqliteInbox::open(file, Default::default()).await?,
                Box::new(connection),
            ));
        }
        if url.starts_with("mysql:") {
            let conn = Conn::from_url(url).await?;
            return Ok(Books::MySql(MySqlInbox::open(url, Default::default()).await?, conn));
        }
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Books::Postgres(PostgresInbox::open(url, Default::default()).await?, client))
    }

    /// Makes the tables, with nothing in them.
    pub async fn create(&mut self) -> Result<(), Failed> {
        for statement in TABLES.into_iter().chain([EMPTY]) {
            match self {
                Books::Sqlite(_, connection) => connection.execute_batch(statement)?,
                Books::Postgres(_, client) => client.batch_execute(statement).await?,
                Books::MySql(_, conn) => conn.query_drop(statement).await?,
            }
        }
        Ok(())
    }

    /// Applies messages in one transaction, each if it is delivered for the first time. Answers how many were.
    pub async fn apply(&mut self, messages: &[Raw]) -> Result<usize, Failed> {
        let mut firsts = 0;
        match self {
            Books::Sqlite(inbox, connection) => {
                let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                for message in messages {
                    firsts += usize::from(apply_in_file(inbox, &tx, message)?);
                }
                tx.commit()?;
            }
            Books::Postgres(inbox, client) => {
                let tx = client.transaction().await?;
                for message in messages {
                    if inbox.first_in(&tx, CONSUMER, &message.id).await? == Received::First {
                        let number = message.mail.number.cast_signed();
                        let insert = "INSERT INTO effects VALUES ($1, $2, $3)";
                        tx.execute(insert, &[&message.id, &message.mail.run, &number]).await?;
                        let add = "UPDATE books SET messages = messages + 1, total = total + $1";
                        tx.execute(add, &[&number]).await?;
                        firsts += 1;
                    }
                }
                tx.commit().await?;
            }
            Books::MySql(inbox, conn) => {
                let mut tx = conn.start_transaction(TxOpts::default()).await?;
                for message in messages {
                    if inbox.first_in(&mut tx, CONSUMER, &message.id).await? == Received::First {
                        let (mail, number) = (&message.mail, message.mail.number);
                        let insert = "INSERT INTO effects VALUES (?, ?, ?)";
                        tx.exec_drop(insert, (&message.id, &mail.run, number)).await?;
                        let add = "UPDATE books SET messages = messages + 1, total = total + ?";
                        tx.exec_drop(add, (number,)).await?;
                        firsts += 1;
                    }
                }
                tx.commit().await?;
            }
        }
        Ok(firsts)
    }

    /// What a statement says, which asks for one number.
    pub async fn number(&mut self, ask: &str) -> Result<i64, Failed> {
        Ok(match self {
            Books::Sqlite(_, connection) => connection.query_row(ask, [], |row| row.get(0))?,
            Books::Postgres(_, client) => client.query_one(ask, &[]).await?.get(0),
            Books::MySql(_, conn) => conn.query_first(ask).await?.ok_or("the server says nothing")?,
        })
    }
}

/// Applies a message if it is delivered for the first time; whether it was.
fn apply_in_file(inbox: &SqliteInbox, tx: &Transaction<'_>, message: &Raw) -> Result<bool, Failed> {
    let received: Result<_, InboxError> = inbox.first_in(tx, CONSUMER, &message.id);
    if received? == Received::Again {
        return Ok(false);
    }
    let number = message.mail.number.cast_signed();
    let insert = "INSERT INTO effects VALUES (?, ?, ?)";
    tx.prepare_cached(insert)?.execute((&message.id, &message.mail.run, number))?;
    let add = "UPDATE books SET messages = messages + 1, total = total + ?";
    tx.prepare_cached(add)?.execute([number])?;
    Ok(true)
}
