//! The database of a service, with its records and its own table, of whichever kind.

use hapax_core::request::{Completion, Lease, RecoveryPoint};
use hapax_store::{
    StoreError,
    requests::{Finished, MySqlRequests, Pointed, PostgresRequests, RequestStore, SqliteRequests},
};
use mysql_async::{Conn, TxOpts, prelude::Queryable};
use rusqlite::{Connection, TransactionBehavior};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio_postgres::{Client, NoTls};

/// How long a file that is busy is waited for: as long as its records are.
const BUSY: Duration = Duration::from_secs(5);

/// Where effects and records are.
#[derive(Debug, Clone)]
pub enum Till {
    /// In a file.
    Sqlite(Arc<SqliteRequests>, PathBuf),
    /// In PostgreSQL, at this address.
    Postgres(Arc<PostgresRequests>, String),
    /// In MySQL or MariaDB, at this address.
    MySql(Arc<MySqlRequests>, String),
}

impl Till {
    /// Opens the database at `url`.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        if let Some(file) = url.strip_prefix("sqlite:") {
            return Ok(Till::Sqlite(SqliteRequests::open(file, Default::default()).await?, file.into()));
        }
        if url.starts_with("mysql:") {
            return Ok(Till::MySql(MySqlRequests::open(url, Default::default()).await?, url.into()));
        }
        Ok(Till::Postgres(PostgresRequests::open(url, Default::default()).await?, url.into()))
    }

    /// Its records.
    pub fn store(&self) -> Arc<dyn RequestStore> {
        match self {
            Till::Sqlite(store, _) => store.clone(),
            Till::Postgres(store, _) => store.clone(),
            Till::MySql(store, _) => store.clone(),
        }
    }

    /// An effect and a recovery point, in one transaction; stands still between them, where that is wanted.
    pub(super) async fn point(
        &self,
        lease: Lease,
        line: String,
        point: RecoveryPoint,
        stand: impl FnOnce() + Send + 'static,
    ) -> Result<Finished, StoreError> {
        match self {
            Till::Sqlite(store, file) => {
                let (store, file) = (store.clone(), file.clone());
                blocking(move || {
                    let mut file = opened(&file)?;
                    let tx = effect_in_file(&mut file, &line)?;
                    stand();
                    let Pointed::Set(tx) = store.point_in(tx, &lease, &point)? else {
                        return Ok(Finished::Stale);
                    };
                    tx.commit().map(|()| Finished::Done).map_err(retry)
                })
                .await
            }
            Till::Postgres(store, url) => {
                let mut client = postgres(url).await?;
                let tx = client.transaction().await.map_err(retry)?;
                tx.execute(&effect(&line), &[]).await.map_err(retry)?;
                stand();
                match store.point_in(tx, &lease, &point).await? {
                    Pointed::Set(tx) => tx.commit().await.map(|()| Finished::Done).map_err(retry),
                    Pointed::Stale => Ok(Finished::Stale),
                }
            }
            Till::MySql(store, url) => {
                let mut conn = Conn::from_url(url).await.map_err(retry)?;
                let mut tx = conn.start_transaction(TxOpts::default()).await.map_err(retry)?;
                tx.query_drop(effect(&line)).await.map_err(retry)?;
                stand();
                match store.point_in(tx, &lease, &point).await? {
                    Pointed::Set(tx) => tx.commit().await.map(|()| Finished::Done).map_err(retry),
                    Pointed::Stale => Ok(Finished::Stale),
                }
            }
        }
    }

    /// An effect and the end of its record, in one transaction; stands still between them, where that is wanted.
    pub(super) async fn finish(
        &self,
        lease: Lease,
        line: String,
        completion: Completion,
        stand: impl FnOnce() + Send + 'static,
    ) -> Result<Finished, StoreError> {
        match self {
            Till::Sqlite(store, file) => {
                let (store, file) = (store.clone(), file.clone());
                blocking(move || {
                    let mut file = opened(&file)?;
                    let tx = effect_in_file(&mut file, &line)?;
                    stand();
                    store.finish_in(tx, &lease, &completion)
                })
                .await
            }
            Till::Postgres(store, url) => {
                let mut client = postgres(url).await?;
                let tx = client.transaction().await.map_err(retry)?;
                tx.execute(&effect(&line), &[]).await.map_err(retry)?;
                stand();
                store.finish_in(tx, &lease, &completion).await
            }
            Till::MySql(store, url) => {
                let mut conn = Conn::from_url(url).await.map_err(retry)?;
                let mut tx = conn.start_transaction(TxOpts::default()).await.map_err(retry)?;
                tx.query_drop(effect(&line)).await.map_err(retry)?;
                stand();
                store.finish_in(tx, &lease, &completion).await
            }
        }
    }
}

/// The lines are the service's own, and hold no quotes.
fn effect(line: &str) -> String {
    format!("INSERT INTO effects VALUES ('{line}')")
}

/// Nothing was committed that rests on it; whoever asks again finds out.
fn retry(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Retry(error.into())
}

async fn blocking(
    work: impl FnOnce() -> Result<Finished, StoreError> + Send + 'static,
) -> Result<Finished, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|broken| Err(retry(broken)))
}

fn opened(file: &PathBuf) -> Result<Connection, StoreError> {
    let connection = Connection::open(file).map_err(retry)?;
    connection.busy_timeout(BUSY).map_err(retry)?;
    // As durable as the records.
    connection.pragma_update(None, "synchronous", "FULL").map_err(retry)?;
    Ok(connection)
}

fn effect_in_file<'c>(file: &'c mut Connection, line: &str) -> Result<rusqlite::Transaction<'c>, StoreError> {
    let tx = file.transaction_with_behavior(TransactionBehavior::Immediate).map_err(retry)?;
    tx.execute(&effect(line), []).map_err(retry)?;
    Ok(tx)
}

async fn postgres(url: &str) -> Result<Client, StoreError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(retry)?;
    // It ends with its client.
    tokio::spawn(connection);
    Ok(client)
}
