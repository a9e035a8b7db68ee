//! The database of the service: accounts, the ledger, and the records of its requests beside them.
//!
//! Nothing in the tables keeps a charge from being booked twice.

use crate::{Result, service::Order};
use hapax_core::request::{Completion, Lease};
use hapax_store::requests::{Finished, RequestStore, SqliteRequests};
use rusqlite::TransactionBehavior;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};
#[cfg(feature = "mysql")]
use {
    hapax_store::requests::MySqlRequests,
    mysql_async::{TxOpts, prelude::Queryable},
};
#[cfg(feature = "postgres")]
use {
    hapax_store::requests::PostgresRequests,
    tokio_postgres::{Client, NoTls},
};

/// The shop's own account is number 0.
pub(crate) const ACCOUNTS: i64 = 10;
const CENTS: i64 = 100_000;

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS payments_accounts (id BIGINT PRIMARY KEY, cents BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS payments_ledger (payment VARCHAR(255) NOT NULL, cents BIGINT NOT NULL)",
];
const FIND: &str = "SELECT id FROM payments_accounts WHERE id = ? AND id <> 0";
const TAKE: &str = "UPDATE payments_accounts SET cents = cents - ? WHERE id = ?";
const NOTE: &str = "INSERT INTO payments_ledger VALUES (?, ?)";
const GIVE: &str = "UPDATE payments_accounts SET cents = cents + ? WHERE id = 0";

pub(crate) enum Till {
    Sqlite {
        requests: Arc<SqliteRequests>,
        file: Arc<Mutex<rusqlite::Connection>>,
    },
    #[cfg(feature = "postgres")]
    Postgres {
        requests: Arc<PostgresRequests>,
        url: String,
        idle: Mutex<Vec<Client>>,
    },
    #[cfg(feature = "mysql")]
    MySql {
        requests: Arc<MySqlRequests>,
        pool: mysql_async::Pool,
    },
}

impl Till {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        match url.split_once(':') {
            Some(("sqlite", path)) => {
                let requests = SqliteRequests::open(path, Default::default()).await?;
                let file = rusqlite::Connection::open(path)?;
                file.busy_timeout(std::time::Duration::from_secs(30))?;
                Ok(Self::Sqlite { requests, file: Arc::new(Mutex::new(file)) })
            }
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                let requests = PostgresRequests::open(url, Default::default()).await?;
                Ok(Self::Postgres { requests, url: url.into(), idle: Mutex::default() })
            }
            #[cfg(feature = "mysql")]
            Some(("mysql" | "mariadb", _)) => {
                let requests = MySqlRequests::open(url, Default::default()).await?;
                Ok(Self::MySql { requests, pool: mysql_async::Pool::from_url(url)? })
            }
            _ => Err(io::Error::other(
                "the address begins with sqlite:, postgres: or mysql:, with the feature of that name",
            )
            .into()),
        }
    }

    /// The records of the requests.
    pub(crate) fn requests(&self) -> Arc<dyn RequestStore> {
        match self {
            Self::Sqlite { requests, .. } => requests.clone(),
            #[cfg(feature = "postgres")]
            Self::Postgres { requests, .. } => requests.clone(),
            #[cfg(feature = "mysql")]
            Self::MySql { requests, .. } => requests.clone(),
        }
    }

    /// Moves the money, notes it in the ledger and ends the request, in one transaction. What a client has sent is bound, and
    /// never a part of a statement. The shop's account comes last: whoever waits for it holds nothing that others need.
    pub(crate) async fn book(&self, order: Order, lease: &Lease, end: &Completion) -> Result<Finished> {
        let Order { account, cents } = order;
        match self {
            Self::Sqlite { requests, file } => {
                let (requests, file) = (requests.clone(), file.clone());
                let (lease, end) = (lease.clone(), end.clone());
                // SQLite blocks its thread.
                tokio::task::spawn_blocking(move || -> Result<Finished> {
                    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                    let tx = file.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    tx.execute(TAKE, (cents, account))?;
                    tx.execute(NOTE, (lease.id.key(), cents))?;
                    tx.execute(GIVE, (cents,))?;
                    Ok(requests.finish_in(tx, &lease, &end)?)
                })
                .await?
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { requests, url, idle } => {
                let mut client = session(url, idle).await?;
                let tx = client.transaction().await?;
                tx.execute(&numbered(TAKE), &[&cents, &account]).await?;
                tx.execute(&numbered(NOTE), &[&lease.id.key(), &cents]).await?;
                tx.execute(&numbered(GIVE), &[&cents]).await?;
                let finished = requests.finish_in(tx, lease, end).await?;
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
                Ok(finished)
            }
            #[cfg(feature = "mysql")]
            Self::MySql { requests, pool } => {
                let mut session = pool.get_conn().await?;
                let mut tx = session.start_transaction(TxOpts::default()).await?;
                tx.exec_drop(TAKE, (cents, account)).await?;
                tx.exec_drop(NOTE, (lease.id.key(), cents)).await?;
                tx.exec_drop(GIVE, (cents,)).await?;
                Ok(requests.finish_in(tx, lease, end).await?)
            }
        }
    }

    /// Whether there is a customer's account of that number.
    pub(crate) async fn has(&self, account: i64) -> Result<bool> {
        match self {
            Self::Sqlite { file, .. } => {
                let file = file.clone();
                tokio::task::spawn_blocking(move || -> Result<bool> {
                    let file = file.lock().unwrap_or_else(PoisonError::into_inner);
                    Ok(file.prepare(FIND)?.exists((account,))?)
                })
                .await?
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { url, idle, .. } => {
                let client = session(url, idle).await?;
                let found = client.query_opt(&numbered(FIND), &[&account]).await?;
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
                Ok(found.is_some())
            }
            #[cfg(feature = "mysql")]
            Self::MySql { pool, .. } => {
                Ok(pool.get_conn().await?.exec_first::<i64, _, _>(FIND, (account,)).await?.is_some())
            }
        }
    }

    /// Makes the tables anew.
    pub(crate) async fn make(&self) -> Result<()> {
        self.execute("DROP TABLE IF EXISTS payments_accounts").await?;
        self.execute("DROP TABLE IF EXISTS payments_ledger").await?;
        self.make_missing().await
    }

    /// Makes the tables that aren't there, and the accounts if there are none. What is there stays as it is.
    pub(crate) async fn make_missing(&self) -> Result<()> {
        for table in TABLES {
            self.execute(table).await?;
        }
        let ids = self.column("SELECT CAST(id AS CHAR(20)) FROM payments_accounts").await?;
        if ids.is_empty() {
            let accounts: Vec<_> = (0..ACCOUNTS).map(|id| format!("({id}, {CENTS})")).collect();
            self.execute(&format!("INSERT INTO payments_accounts VALUES {}", accounts.join(", "))).await?;
        }
        Ok(())
    }

    async fn execute(&self, statement: &str) -> Result<()> {
        match self {
            Self::Sqlite { file, .. } => {
                file.lock().unwrap_or_else(PoisonError::into_inner).execute(statement, [])?;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { url, idle, .. } => {
                session(url, idle).await?.execute(statement, &[]).await?;
            }
            #[cfg(feature = "mysql")]
            Self::MySql { pool, .. } => pool.get_conn().await?.query_drop(statement).await?,
        }
        Ok(())
    }

    /// What all accounts have together.
    pub(crate) async fn sum(&self) -> Result<i64> {
        let cents = self.column("SELECT CAST(cents AS CHAR(20)) FROM payments_accounts").await?;
        cents.iter().map(|cents| -> Result<i64> { Ok(cents.trim().parse()?) }).sum()
    }

    /// The keys of all charges that were booked.
    pub(crate) async fn ledger(&self) -> Result<Vec<String>> {
        self.column("SELECT payment FROM payments_ledger").await
    }

    async fn column(&self, sql: &str) -> Result<Vec<String>> {
        match self {
            Self::Sqlite { file, .. } => {
                let file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let mut statement = file.prepare(sql)?;
                let rows = statement.query_map([], |row| row.get(0))?;
                Ok(rows.collect::<std::result::Result<_, _>>()?)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { url, idle, .. } => {
                let rows = session(url, idle).await?.query(sql, &[]).await?;
                Ok(rows.iter().map(|row| row.get(0)).collect())
            }
            #[cfg(feature = "mysql")]
            Self::MySql { pool, .. } => Ok(pool.get_conn().await?.query(sql).await?),
        }
    }
}

/// A session that nobody uses, or a new one.
#[cfg(feature = "postgres")]
async fn session(url: &str, idle: &Mutex<Vec<Client>>) -> Result<Client> {
    let found = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
    if let Some(client) = found.filter(|client| !client.is_closed()) {
        return Ok(client);
    }
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// PostgreSQL's places for values have numbers.
#[cfg(feature = "postgres")]
fn numbered(statement: &str) -> String {
    let mut parts = statement.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.zip(1..).fold(first, |text, (part, number)| format!("{text}${number}{part}"))
}
