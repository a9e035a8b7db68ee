//! Requests in MySQL or MariaDB.
//!
//! Invariant: a duplicate waits for no lock and writes nothing: it is found by a plain read, before anything is inserted.

use super::{
    MySqlOptions,
    beside::{Table, prepare},
    connect,
    connection::{Asking, Server},
    error::{at_commit, fault},
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
use mysql_async::{Params, Transaction, Value, prelude::Queryable};
use std::{sync::Arc, time::Duration};

/// The table, for whoever makes it beforehand.
const TABLE: Table = Table {
    name: sql::TABLE,
    holds: "requests",
    schema: include_str!("../requests/schema/mysql.sql"),
    key: sql::KEY,
    rights: &RIGHTS,
};

/// Requests in MySQL or MariaDB.
///
/// ```no_run
/// use hapax_store::{mysql::MySqlOptions, requests::{MySqlRequests, RequestStore}};
/// # async fn example() -> Result<(), hapax_store::StoreError> {
/// let store = MySqlRequests::open("mysql://root@localhost:3306/shop", MySqlOptions::default()).await?;
/// store.sweep(1000).await?;
/// # Ok(())
/// # }
/// ```
///
/// What keeps a store from opening is told with its cure:
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::{mysql::MySqlOptions, requests::MySqlRequests};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let refused = MySqlRequests::open("mysql://localhost:3306", MySqlOptions::default()).await.unwrap_err();
/// assert_eq!(refused.code(), "HX0050", "{refused}"); // docs/errors/HX0050.md
/// # }
/// ```
pub struct MySqlRequests {
    requests: ServerRequests,
    server: Arc<Server>,
}

impl std::fmt::Debug for MySqlRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlRequests").field("server", &self.server.what).finish_non_exhaustive()
    }
}

impl MySqlRequests {
    /// Connects, and creates the table where there is none. Each statement is READ COMMITTED, whatever the options say.
    ///
    /// Refuses, with [`StoreError::Open`], a server that can't be reached, is older than MySQL 8.0.1 or MariaDB 10.6,
    /// takes no writes or only small ones, or may lose what it has committed; and a user who lacks rights, with the
    /// statements that grant them.
    pub async fn open(url: &str, options: MySqlOptions) -> Result<Arc<Self>, StoreError> {
        let options = options.isolation(Isolation::ReadCommitted);
        let Options { sessions, answer_limit, must_exist, .. } = options.shared.clone();
        let (server, mut first) = connect(url, options).await?;
        prepare(&mut first, &server.what, must_exist, &TABLE).await?;
        let sessions = Sessions::new(Arc::new(Asking(server.clone())), sessions, answer_limit);
        Ok(Arc::new(Self { requests: ServerRequests::new(sessions, Dialect::MySql), server }))
    }

    /// Finishes a request in the transaction of its effect, and commits both; or rolls both back, when it is
    /// [stale](Finished::Stale).
    ///
    /// On any error but [`StoreError::Unknown`] nothing was committed. When it is unknown, [begin](RequestStore::begin)
    /// again: a replay means that both were. The tables of the effect must be InnoDB's.
    ///
    /// ```no_run
    /// use hapax_core::request::{Completion, Lease};
    /// use hapax_store::requests::{Finished, MySqlRequests};
    /// use mysql_async::{TxOpts, prelude::Queryable};
    /// # async fn example(
    /// #     store: &MySqlRequests, lease: &Lease, conn: &mut mysql_async::Conn,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = conn.start_transaction(TxOpts::default()).await?;
    /// tx.query_drop("UPDATE accounts SET cents = cents - 4200 WHERE id = 7").await?;
    /// match store.finish_in(tx, lease, &Completion::succeeded(201, "charged")).await? {
    ///     Finished::Done => println!("charged, once"),
    ///     Finished::Stale => println!("another has taken over, and nothing was charged here"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn finish_in(
        &self,
        mut tx: Transaction<'_>,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Finished, StoreError> {
        let checked = check_completion(completion);
        let completion = storable(completion);
        let (headers, token) =
            (sql::headers_text(&completion.response_headers), TokenBytes::from(lease.token));
        let values = sql::held(sql::answer(&completion, &headers), lease, &token);
        let met = match checked {
            Ok(()) => self.change(&mut tx, sql::FINISH, &values, lease).await,
            Err(error) => Err(error),
        };
        match met {
            Ok(0) if !canary::on("stale_commits") => roll_back(tx).await,
            Ok(_) => match tx.commit().await.map_err(at_commit) {
                Ok(()) => Ok(Finished::Done),
                Err(fault) => Err(reported(fault, &lease.id.to_string())),
            },
            Err(error) => roll_back(tx).await.and(Err(error)),
        }
    }

    /// Notes how far an execution came in the transaction of that phase, which goes on; or rolls it back, when it is
    /// [stale](Pointed::Stale).
    ///
    /// ```no_run
    /// use hapax_core::{json::Json, request::{Lease, RecoveryPoint}};
    /// use hapax_store::requests::{MySqlRequests, Pointed};
    /// use mysql_async::{TxOpts, prelude::Queryable};
    /// # async fn example(
    /// #     store: &MySqlRequests, lease: &Lease, conn: &mut mysql_async::Conn,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = conn.start_transaction(TxOpts::default()).await?;
    /// tx.query_drop("UPDATE stock SET reserved = reserved + 1").await?;
    /// let reserved = RecoveryPoint::new("reserved", Json::null())?;
    /// if let Pointed::Set(tx) = store.point_in(tx, lease, &reserved).await? {
    ///     tx.commit().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn point_in<'t>(
        &self,
        mut tx: Transaction<'t>,
        lease: &Lease,
        point: &RecoveryPoint,
    ) -> Result<Pointed<Transaction<'t>>, StoreError> {
        let token = TokenBytes::from(lease.token);
        let values = sql::held(sql::point(point), lease, &token);
        let set = async {
            check_point(point)?;
            // The caller's session may count no row that was as it should be.
            Ok(self.change(&mut tx, sql::POINT, &values, lease).await? > 0
                || self.change(&mut tx, sql::IS_HELD, &sql::held(vec![], lease, &token), lease).await? > 0)
        };
        match set.await {
            Ok(true) => Ok(Pointed::Set(tx)),
            Ok(false) => roll_back(tx).await.map(|_| Pointed::Stale),
            Err(error) => roll_back(tx).await.and(Err(error)),
        }
    }

    /// How many rows a statement in the caller's transaction changed, or found.
    async fn change(
        &self,
        tx: &mut Transaction<'_>,
        text: &str,
        values: &[Bound<'_>],
        lease: &Lease,
    ) -> Result<u64, StoreError> {
        let bound = values.iter().map(bound).collect();
        let done =
            tx.exec::<mysql_async::Row, _, _>(self.server.words(text), Params::Positional(bound)).await;
        let rows = done.map_err(|error| reported(fault(error).before_commit(), &lease.id.to_string()))?;
        Ok(tx.affected_rows().max(rows.len() as u64))
    }
}

fn bound(value: &Bound<'_>) -> Value {
    match value {
        Bound::Int(number) => (*number).into(),
        Bound::Text(text) => text.map(str::as_bytes).into(),
        Bound::Blob(bytes) => (*bytes).into(),
    }
}

/// Undoes what rests on a token that is over. A session that can't do so is closed, which does the same.
async fn roll_back(tx: Transaction<'_>) -> Result<Finished, StoreError> {
    tx.rollback().await.map_err(|error| StoreError::Retry(error.into()))?;
    Ok(Finished::Stale)
}

crate::requests::on_server!(MySqlRequests);
