//! Requests in PostgreSQL.
//!
//! Invariant: a first claim is one statement, so one round trip; a duplicate writes nothing.

use super::{
    PostgresOptions,
    beside::{DURABLE, Table, prepare},
    connect,
    connection::Server,
    error::{ends_session, fault},
};
use crate::{
    error::StoreError,
    requests::{
        Begun, Claim, Finished, Listed, Pointed, RequestFilter, RequestStore, check_completion, check_point,
        server::{Dialect, ServerRequests, reported},
        sql::{self, Bound, TokenBytes},
        storable,
    },
    server::{Isolation, RIGHTS, options::Options, pool::Sessions},
    store::Answer,
};
use hapax_core::{
    canary,
    request::{Completion, Lease, Record, RecoveryPoint, RequestId},
};
use std::{sync::Arc, time::Duration};
use tokio_postgres::{
    Transaction,
    error::SqlState,
    types::{ToSql, Type},
};

/// The tables, for whoever makes them beforehand.
const TABLES: Table = Table {
    name: sql::TABLE,
    holds: "requests",
    schema: include_str!("../requests/schema/postgres.sql"),
    last: "hapax_requests_sequence",
    sequence: Some("hapax_requests_sequence"),
    key: sql::KEY,
    rights: &RIGHTS,
};

/// Requests in PostgreSQL.
///
/// ```no_run
/// use hapax_store::{postgres::PostgresOptions, requests::{PostgresRequests, RequestStore}};
/// # async fn example() -> Result<(), hapax_store::StoreError> {
/// let store = PostgresRequests::open("postgres://localhost/shop", PostgresOptions::default()).await?;
/// store.sweep(1000).await?;
/// # Ok(())
/// # }
/// ```
///
/// What can't be used is refused when it is opened, with what to do:
///
/// ```
/// use hapax_store::{postgres::PostgresOptions, requests::PostgresRequests};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let nobody = PostgresRequests::open("postgres://127.0.0.1:1/shop?user=a", PostgresOptions::default()).await;
/// assert!(nobody.unwrap_err().to_string().contains("check that the server runs"));
/// # }
/// ```
pub struct PostgresRequests {
    requests: ServerRequests,
    server: Arc<Server>,
}

impl std::fmt::Debug for PostgresRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresRequests").field("server", &self.server.what).finish_non_exhaustive()
    }
}

impl PostgresRequests {
    /// Connects, and creates the table where there is none. Each statement is READ COMMITTED, whatever the options say.
    ///
    /// Refuses, with [`StoreError::Open`], a server that can't be reached, is older than 13, takes no writes, or may
    /// lose what it has committed; and a user who lacks rights, with the statements that grant them.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Arc<Self>, StoreError> {
        let options = options.isolation(Isolation::ReadCommitted);
        let Options { sessions, answer_limit, must_exist, .. } = options.shared.clone();
        let (server, mut first) = connect(url, options).await?;
        prepare(&mut first, &server.what, must_exist, &TABLES).await?;
        let sessions = Sessions::new(Arc::new(server.clone()), sessions, answer_limit);
        Ok(Arc::new(Self { requests: ServerRequests::new(sessions, Dialect::Postgres), server }))
    }

    /// Finishes a request in the transaction of its effect, and commits both; or rolls both back, when it is
    /// [stale](Finished::Stale). The transaction must be the outermost one, and READ COMMITTED: a stricter one fails
    /// when a heartbeat came since it began.
    ///
    /// On any error but [`StoreError::Unknown`] nothing was committed. When it is unknown, [begin](RequestStore::begin)
    /// again: a replay means that both were.
    ///
    /// ```no_run
    /// use hapax_core::request::{Completion, Lease};
    /// use hapax_store::requests::{Finished, PostgresRequests};
    /// # async fn example(
    /// #     store: &PostgresRequests, lease: &Lease, client: &mut tokio_postgres::Client,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let tx = client.transaction().await?;
    /// tx.execute("UPDATE accounts SET cents = cents - 4200 WHERE id = 7", &[]).await?;
    /// match store.finish_in(tx, lease, &Completion::succeeded(201, "charged")).await? {
    ///     Finished::Done => println!("charged, once"),
    ///     Finished::Stale => println!("another has taken over, and nothing was charged here"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn finish_in(
        &self,
        tx: Transaction<'_>,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Finished, StoreError> {
        check_completion(completion)?;
        let completion = storable(completion);
        let (headers, token) =
            (sql::headers_text(&completion.response_headers), TokenBytes::from(lease.token));
        let values = sql::held(sql::answer(&completion, &headers), lease, &token);
        if !self.met(&tx, sql::FINISH, &values, lease).await? && !canary::on("stale_commits") {
            return roll_back(tx).await;
        }
        // It has just taken a statement, so it hasn't failed: COMMIT can't mean a rollback.
        match tx.commit().await {
            Ok(()) => Ok(Finished::Done),
            Err(error) if error.code().is_none() || leaves_open(&error) => {
                Err(StoreError::Unknown(error.into()))
            }
            Err(error) => Err(StoreError::Retry(error.into())),
        }
    }

    /// Notes how far an execution came in the transaction of that phase, which goes on; or rolls it back, when it is
    /// [stale](Pointed::Stale).
    ///
    /// ```no_run
    /// use hapax_core::{json::Json, request::{Lease, RecoveryPoint}};
    /// use hapax_store::requests::{Pointed, PostgresRequests};
    /// # async fn example(
    /// #     store: &PostgresRequests, lease: &Lease, client: &mut tokio_postgres::Client,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let tx = client.transaction().await?;
    /// tx.execute("UPDATE stock SET reserved = reserved + 1", &[]).await?;
    /// let reserved = RecoveryPoint::new("reserved", Json::null())?;
    /// if let Pointed::Set(tx) = store.point_in(tx, lease, &reserved).await? {
    ///     tx.commit().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn point_in<'t>(
        &self,
        tx: Transaction<'t>,
        lease: &Lease,
        point: &RecoveryPoint,
    ) -> Result<Pointed<Transaction<'t>>, StoreError> {
        check_point(point)?;
        let token = TokenBytes::from(lease.token);
        let values = sql::held(sql::point(point), lease, &token);
        if self.met(&tx, sql::POINT, &values, lease).await? {
            return Ok(Pointed::Set(tx));
        }
        roll_back(tx).await.map(|_| Pointed::Stale)
    }

    /// Whether a statement in the caller's transaction met its record. A commit that doesn't wait for the disk would lose
    /// what is promised.
    async fn met(
        &self,
        tx: &Transaction<'_>,
        text: &str,
        values: &[Bound<'_>],
        lease: &Lease,
    ) -> Result<bool, StoreError> {
        let words = self.server.options.words(&format!("{text}{DURABLE}"));
        let typed: Vec<_> = values.iter().map(typed).collect();
        let rows = tx.query_typed(&words, &typed).await;
        let rows = rows.map_err(|error| reported(fault(error).before_commit(), &lease.id.to_string()))?;
        Ok(!rows.is_empty())
    }
}

fn typed<'a>(value: &'a Bound<'_>) -> (&'a (dyn ToSql + Sync), Type) {
    match value {
        Bound::Int(number) => (number, Type::INT8),
        Bound::Text(text) => (text, Type::TEXT),
        Bound::Blob(bytes) => (bytes, Type::BYTEA),
    }
}

/// Undoes what rests on a token that is over. A session that can't do so is closed, which does the same.
async fn roll_back(tx: Transaction<'_>) -> Result<Finished, StoreError> {
    tx.rollback().await.map_err(|error| StoreError::Retry(error.into()))?;
    Ok(Finished::Stale)
}

/// Whether an error of COMMIT leaves open how it ended.
fn leaves_open(error: &tokio_postgres::Error) -> bool {
    ends_session(error) || error.code() == Some(&SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN)
}

crate::requests::on_server!(PostgresRequests);
