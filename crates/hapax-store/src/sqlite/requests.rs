//! Requests in a SQLite file.
//!
//! Invariant: whatever writes is one IMMEDIATE transaction, on the one connection that does so. A duplicate is found by a
//! plain read, and waits for no lock.

use super::{
    SqliteOptions,
    beside::{self, Beside, Table},
    connection::Readers,
    error::all_runs,
};
use crate::{
    error::StoreError,
    requests::{
        Begun, Claim, Finished, Listed, Pointed, RELEASED, RequestFilter, RequestStore, check_completion,
        check_point,
        judge::{Verdict, judge},
        nonce,
        sql::{self, Bound, ListedRow, Stored, TokenBytes},
        storable,
    },
    store::Answer,
};
use hapax_core::{
    canary,
    id::Namespace,
    request::{Completion, Lease, Record, RecoveryPoint, RequestId},
};
use rusqlite::{
    Connection, OptionalExtension, Row, ToSql, Transaction, params_from_iter,
    types::{ToSqlOutput, ValueRef},
};
use std::{path::Path, sync::Arc, time::Duration};

/// The table, for whoever makes it beforehand.
const TABLE: Table = Table {
    name: "hapax_requests",
    holds: "requests",
    schema: include_str!("../requests/schema/sqlite.sql"),
};

/// Requests in a SQLite file, which may hold the service's own tables as well.
///
/// Several stores, of one process or of many on one machine, may share a file. It is put into WAL mode.
///
/// ```
/// use hapax_store::{requests::{RequestStore, SqliteRequests}, sqlite::SqliteOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("shop.db");
/// let store = SqliteRequests::open(&file, SqliteOptions::default()).await?;
/// assert_eq!(store.sweep(100).await?, 0);
/// # Ok(())
/// # }
/// ```
pub struct SqliteRequests {
    file: Beside,
    readers: Arc<Readers>,
}

impl std::fmt::Debug for SqliteRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteRequests").field("file", &self.file.place.shown()).finish_non_exhaustive()
    }
}

impl SqliteRequests {
    /// Opens a file, and creates it with its table where there is none.
    ///
    /// Refuses, with [`StoreError::Open`], what can't be durable: a read-only folder, a network file system, a damaged
    /// file. See [`SqliteOptions::must_exist`] for a table that must be there.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Arc<Self>, StoreError> {
        let file = Beside::open(path, options, TABLE).await?;
        Ok(Arc::new(Self { readers: Arc::new(Readers::new(file.place.clone())), file }))
    }

    /// Finishes a request in the transaction of its effect, and commits both; or rolls both back, when it is
    /// [stale](Finished::Stale). The transaction must be one of this very file, best an IMMEDIATE one: another may fail to
    /// get the file's lock. It blocks as SQLite does.
    ///
    /// On any error but [`StoreError::Unknown`] nothing was committed. When it is unknown, [begin](RequestStore::begin)
    /// again: a replay means that both were.
    ///
    /// ```
    /// use hapax_store::requests::{Begun, Finished, RequestStore, SqliteRequests};
    /// # use hapax_core::{id::Namespace, key::sha256, request::{Completion, RequestHash, RequestId}};
    /// # use hapax_store::requests::Claim;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("shop.db");
    /// # let store = SqliteRequests::open(&file, Default::default()).await?;
    /// # let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
    /// # let claim = Claim::new(id, RequestHash(sha256(b"4200")));
    /// # let mut shop = rusqlite::Connection::open(&file)?;
    /// # shop.execute_batch("CREATE TABLE charges (cents INTEGER)")?;
    /// let Begun::Execute(lease) = store.begin(&claim).await? else { panic!("it is new") };
    /// let tx = shop.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO charges VALUES (4200)", [])?;
    /// assert_eq!(store.finish_in(tx, &lease, &Completion::succeeded(201, "charged"))?, Finished::Done);
    /// assert!(matches!(store.begin(&claim).await?, Begun::Replay(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish_in(
        &self,
        tx: Transaction<'_>,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Finished, StoreError> {
        check_completion(completion)?;
        match finish(&tx, self.file.clock.now_us(), lease, &storable(completion)).map_err(undone)? {
            0 if !canary::on("stale_commits") => tx.rollback().map(|()| Finished::Stale).map_err(undone),
            _ => beside::committed(tx).map(|()| Finished::Done),
        }
    }

    /// Notes how far an execution came in the transaction of that phase, which goes on; or rolls it back, when it is
    /// [stale](Pointed::Stale).
    ///
    /// ```
    /// use hapax_core::{json::Json, request::{Lease, RecoveryPoint}};
    /// use hapax_store::requests::{Pointed, SqliteRequests};
    /// fn reserve(
    ///     store: &SqliteRequests,
    ///     lease: &Lease,
    ///     shop: &mut rusqlite::Connection,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let tx = shop.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    ///     tx.execute("UPDATE stock SET reserved = reserved + 1", [])?;
    ///     if let Pointed::Set(tx) = store.point_in(tx, lease, &RecoveryPoint::new("reserved", Json::null())?)? {
    ///         tx.commit()?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn point_in<'t>(
        &self,
        tx: Transaction<'t>,
        lease: &Lease,
        point: &RecoveryPoint,
    ) -> Result<Pointed<Transaction<'t>>, StoreError> {
        check_point(point)?;
        let token = TokenBytes::from(lease.token);
        let values = sql::held(sql::point(point), lease, &token);
        match run(&tx, sql::POINT, self.file.clock.now_us(), &values).map_err(undone)? {
            0 => tx.rollback().map(|()| Pointed::Stale).map_err(undone),
            _ => Ok(Pointed::Set(tx)),
        }
    }

    /// Does `work` in a transaction that writes, and commits it.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.file.write(work).await.map_err(of_request)
    }

    /// Reads the record of a request, and the time.
    async fn look(&self, id: &RequestId) -> Result<(i64, Option<Record>), StoreError> {
        let (id, clock) = (id.clone(), self.file.clock.clone());
        let read = move |connection: &Connection| {
            let now = clock.now_us();
            look(connection, &id, now).map(|found| (now, found)).map_err(undone)
        };
        self.readers.read(all_runs(&Namespace::default()), read).await
    }

    async fn claim(&self, claim: &Claim, retry: bool) -> Result<Begun, StoreError> {
        let nonce = nonce();
        // Most of those who come are duplicates, and needn't wait for whoever writes.
        if let (now, Some(found)) = self.look(&claim.id).await?
            && let Verdict::Answer(answer) = judge(found, claim, nonce, retry, now)
        {
            return Ok(answer);
        }
        match self.take(claim, nonce, retry).await {
            // If it took effect, the record that is there has our nonce.
            Err(StoreError::Unknown(_)) => self.take(claim, nonce, retry).await,
            begun => begun,
        }
    }

    async fn take(&self, claim: &Claim, nonce: u128, retry: bool) -> Result<Begun, StoreError> {
        let claim = claim.clone();
        self.write(move |tx, now| take(tx, now, &claim, nonce, retry)).await
    }

    /// Changes a record under its lease.
    async fn change(
        &self,
        lease: &Lease,
        change: impl FnOnce(&Transaction<'_>, i64, &Lease) -> rusqlite::Result<usize> + Send + 'static,
    ) -> Result<Finished, StoreError> {
        let lease = lease.clone();
        let met = self.write(move |tx, now| change(tx, now, &lease)).await?;
        Ok(if met > 0 { Finished::Done } else { Finished::Stale })
    }
}

/// An error after which nothing of the transaction is in the file.
fn undone(error: rusqlite::Error) -> StoreError {
    of_request(beside::undone(error))
}

fn of_request(error: StoreError) -> StoreError {
    match error {
        StoreError::Corrupt { what, .. } => StoreError::CorruptRequest { request: "*".into(), what },
        error => error,
    }
}

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Bound::Int(number) => ValueRef::Integer(*number),
            Bound::Text(text) => text.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())),
            Bound::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// A statement in SQLite's words.
fn words(text: &str, now: i64) -> String {
    text.replace("{sequence}", "max(sequence + 1, {now})")
        .replace("{now}", &now.to_string())
        .replace("GREATEST", "max")
}

fn run(tx: &Connection, text: &str, now: i64, values: &[Bound<'_>]) -> rusqlite::Result<usize> {
    tx.execute(&words(text, now), params_from_iter(values))
}

fn look(connection: &Connection, id: &RequestId, now: i64) -> rusqlite::Result<Option<Record>> {
    let mut statement = connection.prepare(&words(sql::LOOK, now))?;
    let stored = statement.query_row(params_from_iter(sql::key(id)), stored).optional()?;
    stored.map(|stored| stored.record(id)).transpose().map_err(super::error::damaged)
}

fn take(tx: &Transaction<'_>, now: i64, claim: &Claim, nonce: u128, retry: bool) -> rusqlite::Result<Begun> {
    let drawn = nonce.to_be_bytes();
    match look(tx, &claim.id, now)?.map(|found| judge(found, claim, nonce, retry, now)) {
        Some(Verdict::Answer(answer)) => return Ok(answer),
        None => run(tx, sql::BEAR, now, &sql::bear(claim, &drawn))?,
        Some(Verdict::TakeOver(record)) => {
            let token = TokenBytes::from(record.token);
            run(tx, sql::TAKE_OVER, now, &sql::take_over(claim, &drawn, record.status(), &token))?
        }
        Some(Verdict::Afresh(record)) => {
            let token = TokenBytes::from(record.token);
            run(tx, sql::AFRESH, now, &sql::afresh(claim, &drawn, record.status(), &token))?
        }
    };
    let taken = look(tx, &claim.id, now)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    Ok(Begun::Execute(taken.lease()))
}

fn finish(tx: &Connection, now: i64, lease: &Lease, completion: &Completion) -> rusqlite::Result<usize> {
    let (headers, token) = (sql::headers_text(&completion.response_headers), TokenBytes::from(lease.token));
    run(tx, sql::FINISH, now, &sql::held(sql::answer(completion, &headers), lease, &token))
}

/// Ends an execution, or finds that it has ended just so.
fn finish_once(tx: &Connection, now: i64, lease: &Lease, completion: &Completion) -> rusqlite::Result<usize> {
    let met = finish(tx, now, lease, completion)?;
    if met > 0 {
        return Ok(met);
    }
    let is_there = look(tx, &lease.id, now)?
        .is_some_and(|record| record.token == lease.token && record.completion.as_ref() == Some(completion));
    Ok(is_there.into())
}

/// Behind the time.
fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored {
        request_hash: row.get(1)?,
        status: row.get(2)?,
        sequence: row.get(3)?,
        nonce: row.get(4)?,
        updated_at: row.get(5)?,
        attempt: row.get(6)?,
        lease_until: row.get(7)?,
        origin: row.get(8)?,
        point_name: row.get(9)?,
        point_data: row.get(10)?,
        response_code: row.get(11)?,
        response_headers: row.get(12)?,
        response_payload: row.get(13)?,
        error_message: row.get(14)?,
        created_at: row.get(15)?,
        expires_at: row.get(16)?,
    })
}

fn listed(row: &Row<'_>) -> rusqlite::Result<ListedRow> {
    Ok(ListedRow {
        principal: row.get(0)?,
        method: row.get(1)?,
        idempotency_key: row.get(2)?,
        status: row.get(3)?,
        sequence: row.get(4)?,
        nonce: row.get(5)?,
        updated_at: row.get(6)?,
        attempt: row.get(7)?,
        lease_until: row.get(8)?,
        point_name: row.get(9)?,
        response_code: row.get(10)?,
        error_message: row.get(11)?,
        created_at: row.get(12)?,
        expires_at: row.get(13)?,
    })
}

fn list(connection: &Connection, filter: &RequestFilter) -> rusqlite::Result<Vec<Listed>> {
    let (text, values) = sql::list(filter);
    let mut statement = connection.prepare_cached(&text)?;
    let rows = statement.query_map(params_from_iter(&values), listed)?;
    rows.map(|row| row?.listed(&filter.namespace).map_err(super::error::damaged)).collect()
}

impl RequestStore for SqliteRequests {
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(self.claim(claim, false))
    }

    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(self.claim(claim, true))
    }

    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
        Box::pin(async move {
            check_completion(completion)?;
            let completion = storable(completion).into_owned();
            self.change(lease, move |tx, now, lease| finish_once(tx, now, lease, &completion)).await
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
        Box::pin(self.change(lease, move |tx, now, lease| {
            let token = TokenBytes::from(lease.token);
            run(tx, sql::HEARTBEAT, now, &sql::held(sql::prolong(ttl), lease, &token))
        }))
    }

    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
        Box::pin(async move {
            check_point(point)?;
            let point = point.clone();
            let set = move |tx: &Transaction<'_>, now, lease: &Lease| {
                let token = TokenBytes::from(lease.token);
                run(tx, sql::POINT, now, &sql::held(sql::point(&point), lease, &token))
            };
            self.change(lease, set).await
        })
    }

    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
        Box::pin(async move { Ok(self.look(id).await?.1) })
    }

    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
        let filter = filter.clone();
        let read = move |connection: &Connection| list(connection, &filter).map_err(undone);
        Box::pin(self.readers.read(all_runs(&Namespace::default()), read))
    }

    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
        let (id, drawn) = (id.clone(), nonce().to_be_bytes());
        Box::pin(self.write(move |tx, now| {
            let released = Completion::failed_retryable(0, RELEASED);
            let mut values = sql::answer(&released, "[]");
            values.push((&drawn).into());
            values.extend(sql::key(&id));
            Ok(run(tx, sql::RELEASE, now, &values)? > 0)
        }))
    }

    fn sweep(&self, limit: usize) -> Answer<'_, u64> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Box::pin(self.write(move |tx, now| {
            Ok(run(tx, sql::SWEEP_SQLITE, now, &[now.into(), now.into(), limit.into()])? as u64)
        }))
    }

    fn expired(&self) -> Answer<'_, u64> {
        let clock = self.file.clock.clone();
        let read = move |connection: &Connection| {
            let now = clock.now_us();
            let count: rusqlite::Result<i64> =
                connection.query_row(sql::EXPIRED, [now, now], |row| row.get(0));
            count.map(i64::unsigned_abs).map_err(undone)
        };
        Box::pin(self.readers.read(all_runs(&Namespace::default()), read))
    }

    fn now_us(&self) -> Answer<'_, i64> {
        Box::pin(std::future::ready(Ok(self.file.clock.now_us())))
    }
}
