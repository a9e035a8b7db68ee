//! Requests in PostgreSQL.
//!
//! Invariant: a first claim is one statement, so one round trip; a duplicate writes nothing.

use super::{
    PostgresOptions, connect,
    connection::{PgSession, Server},
    error::{ends_session, fault, refused},
    schema::{LOCK, missing_for_schema, texts},
};
use crate::{
    error::StoreError,
    requests::{
        Begun, Claim, Finished, Listed, Pointed, RequestFilter, RequestStore, check_completion, check_point,
        server::{Dialect, ServerRequests, reported},
        sql::{self, Bound, TokenBytes},
        storable,
    },
    server::{
        Isolation,
        options::Options,
        pool::Sessions,
        rights_missing,
        sql::{Fault, Session, one, values},
    },
    store::Answer,
};
use hapax_core::{
    error::code,
    request::{Completion, Lease, Record, RecoveryPoint, RequestId},
};
use std::{sync::Arc, time::Duration};
use tokio_postgres::{
    Transaction,
    error::SqlState,
    types::{ToSql, Type},
};

/// The tables, for whoever makes them beforehand.
const SCHEMA: &str = include_str!("../requests/schema/postgres.sql");

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
        prepare(&mut first, &server.what, must_exist).await?;
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
        if !self.met(&tx, sql::FINISH, &values, lease).await? {
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
        let durable = " RETURNING CASE current_setting('synchronous_commit') WHEN 'off' \
                       THEN set_config('synchronous_commit', 'on', true) END";
        let words = self.server.options.words(&format!("{text}{durable}"));
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

/// Makes the table where there is none, and refuses one that isn't fit for its purpose.
async fn prepare(session: &mut PgSession, what: &str, must_exist: bool) -> Result<(), StoreError> {
    let about = |fault: Fault| reported(fault.before_commit(), "*");
    let lacking = |grants: Vec<String>| match &*grants {
        [] => Ok(()),
        grants => Err(refused(what, rights_missing(grants), code::CANNOT_OPEN)),
    };
    lacking(missing_for_schema(session, "USAGE").await.map_err(about)?)?;
    if !is_there(session).await.map_err(about)? {
        if must_exist {
            let why = "it holds no requests of Hapax: check its address, or let the service open it first";
            return Err(refused(what, why, code::CANNOT_OPEN));
        }
        lacking(missing_for_schema(session, "CREATE").await.map_err(about)?)?;
        make(session).await.map_err(about)?;
    }
    if let Some(flaw) = flaw(session).await.map_err(about)? {
        return Err(refused(what, flaw, code::CANNOT_OPEN));
    }
    lacking(missing_rights(session).await.map_err(about)?)
}

/// Several who make it at once would get in each other's way without a lock.
async fn make(session: &mut PgSession) -> Result<(), Fault> {
    session.begin().await?;
    let made = match session.rows("SELECT 1 FROM pg_advisory_xact_lock(?)", values![LOCK]).await {
        Ok(_) => session.script(SCHEMA).await,
        Err(fault) => Err(fault),
    };
    match made {
        Ok(()) => session.commit().await,
        Err(fault) => {
            // A session that can't roll back is closed, which does the same.
            let _ = session.rollback().await;
            Err(fault)
        }
    }
}

async fn is_there(session: &mut PgSession) -> Result<bool, Fault> {
    let (sequence, schema) = (session.table("hapax_requests_sequence"), session.schema());
    // What is made last.
    let sql = "SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.relname = ? AND n.nspname = ?";
    Ok(one(session, sql, values![sequence.as_str(), schema.as_str()]).await?.is_some())
}

/// What is wrong with the table.
async fn flaw(session: &mut PgSession) -> Result<Option<String>, Fault> {
    let (table, schema) = (session.table(sql::TABLE), session.schema());
    let ask = "SELECT CASE WHEN c.relkind NOT IN ('r', 'p') THEN 'is no table' \
               WHEN c.relpersistence <> 'p' THEN format('doesn''t survive a crash: ALTER TABLE %I SET LOGGED', c.relname) \
               WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique \
                   AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 4 AND 4 = \
                   (SELECT count(*) FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid \
                   AND a.attnum = ANY (i.indkey::smallint[]) \
                   AND a.attname IN ('namespace', 'principal', 'method', 'idempotency_key'))) \
               THEN format('lets two have the same key: ALTER TABLE %I ADD PRIMARY KEY \
                    (namespace, principal, method, idempotency_key)', c.relname) END \
               FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.relname = ? AND n.nspname = ?";
    let row = one(session, ask, values![table.as_str(), schema.as_str()]).await?;
    let flaw = match &row {
        None => Some("is gone: restore it from a backup"),
        Some(row) => row.maybe_text(0)?,
    };
    Ok(flaw.map(|flaw| format!("its table {table} {flaw}")))
}

/// The statements that would grant what is done with the table and the sequence and isn't allowed.
async fn missing_rights(session: &mut PgSession) -> Result<Vec<String>, Fault> {
    let (table, sequence) = (session.table(sql::TABLE), session.table("hapax_requests_sequence"));
    let (schema, rights) = (session.schema(), session.rights().join(" "));
    let ask = "SELECT format('GRANT %s ON %I.%I TO %I', string_agg(r.word, ', ' ORDER BY r.n), n.nspname, c.relname, \
               current_user) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               CROSS JOIN unnest(string_to_array(?, ' ')) WITH ORDINALITY AS r(word, n) \
               WHERE n.nspname = ? AND c.relname = ? AND NOT has_table_privilege(c.oid, r.word) \
               GROUP BY n.nspname, c.relname UNION ALL \
               SELECT format('GRANT USAGE ON SEQUENCE %I.%I TO %I', n.nspname, c.relname, current_user) \
               FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = ? AND c.relname = ? AND ? <> 'SELECT' AND NOT has_sequence_privilege(c.oid, 'USAGE')";
    let (rights, schema) = (rights.as_str(), schema.as_str());
    let values = values![rights, schema, table.as_str(), schema, sequence.as_str(), rights];
    texts(&session.rows(ask, values).await?)
}

crate::requests::on_server!(PostgresRequests);
