//! The database with the accounts, as whoever owns it sees it.

use hapax::{
    Db,
    store::db::{Database, FromRow, SqliteDatabase, TxOptions},
};
use std::{fs::OpenOptions, io, path::Path};

pub(crate) const BANK: Db = Db("bank");

const ACCOUNTS: i64 = 10;
const CENTS: i64 = 100_000;

pub(crate) struct Bank {
    url: String,
    database: Box<dyn Database>,
}

impl Bank {
    /// Opens the database, and fills it.
    pub(crate) async fn open(url: String) -> hapax::Result<Self> {
        if let Some(file) = url.strip_prefix("sqlite:") {
            OpenOptions::new().create(true).append(true).open(file)?;
        }
        let bank = Self { database: open(&url).await?, url };
        bank.make().await?;
        Ok(bank)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    async fn make(&self) -> hapax::Result<()> {
        #[cfg(feature = "mysql")]
        if self.url.starts_with("mysql:") {
            use mysql_async::prelude::Queryable;
            // There each of them commits by itself, so that none may be part of a transaction.
            let mut session = mysql_async::Conn::from_url(&self.url).await?;
            for statement in tables() {
                session.query_drop(statement).await?;
            }
            return Ok(session.disconnect().await?);
        }
        let mut tx = self.database.begin(&TxOptions::default()).await?;
        for statement in tables() {
            tx.execute(&statement, &[]).await?;
        }
        Ok(tx.commit().await?)
    }

    /// What all accounts have together.
    pub(crate) async fn sum(&self) -> hapax::Result<i64> {
        Ok(self.column("SELECT cents FROM transfer_accounts").await?.into_iter().sum())
    }

    /// The transfers that took effect.
    pub(crate) async fn booked(&self) -> hapax::Result<Vec<i64>> {
        self.column("SELECT transfer FROM transfer_bookings").await
    }

    async fn column(&self, sql: &str) -> hapax::Result<Vec<i64>> {
        let reads = TxOptions { read_only: true, ..TxOptions::default() };
        let mut tx = self.database.begin(&reads).await?;
        let rows = tx.query(sql, &[]).await?;
        tx.rollback().await?;
        Ok(rows.iter().map(i64::from_row).collect::<Result<_, _>>()?)
    }
}

fn tables() -> [String; 5] {
    let accounts: Vec<_> = (0..ACCOUNTS).map(|id| format!("({id}, {CENTS})")).collect();
    [
        "DROP TABLE IF EXISTS transfer_accounts".into(),
        "DROP TABLE IF EXISTS transfer_bookings".into(),
        "CREATE TABLE transfer_accounts (id INTEGER PRIMARY KEY, cents BIGINT NOT NULL)".into(),
        format!("INSERT INTO transfer_accounts VALUES {}", accounts.join(", ")),
        // No key keeps a transfer from being booked twice.
        "CREATE TABLE transfer_bookings (transfer BIGINT NOT NULL)".into(),
    ]
}

async fn open(url: &str) -> hapax::Result<Box<dyn Database>> {
    match url.split_once(':') {
        Some(("sqlite", file)) => Ok(Box::new(SqliteDatabase::open(Path::new(file)).await?)),
        #[cfg(feature = "postgres")]
        Some(("postgres", _)) => Ok(Box::new(hapax::store::db::PostgresDatabase::open(url, 2).await?)),
        #[cfg(feature = "mysql")]
        Some(("mysql", _)) => Ok(Box::new(hapax::store::db::MySqlDatabase::open(url, 2).await?)),
        _ => Err(io::Error::other(
            "the address begins with sqlite:, postgres: or mysql:, with the feature of that name",
        )
        .into()),
    }
}
