//! Requests in a database server: what PostgreSQL and MySQL have in common.
//!
//! Invariant: every statement is a transaction by itself. One whose answer was lost is sent again with the same token or
//! nonce, and what is found then tells what became of the first.

use super::{
    Begun, Claim, Finished, Listed, RELEASED, RequestFilter, check_completion, check_point,
    judge::{Verdict, judge},
    nonce,
    sql::{self, Bound, ListedRow, Stored, TokenBytes},
    storable,
};
use crate::{
    error::StoreError,
    server::{
        pool::Sessions,
        sql::{Fault, Row, Session, Value, one},
    },
};
use hapax_core::{
    canary,
    request::{Completion, Lease, Record, RecoveryPoint, RequestId},
};
use std::{borrow::Cow, time::Duration};

/// How often a statement is sent again whose answer was lost.
const LOST: u32 = 3;
/// How often a claim looks again that others were faster than.
const OVERTAKEN: u32 = 16;
/// When to ask again after a record that is locked by a transaction of its executor's.
const LOCKED: Duration = Duration::from_secs(1);

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MySql,
}

impl Dialect {
    /// A statement with the server's word for the next number of a token.
    fn words(self, sql: &'static str) -> Cow<'static, str> {
        let next = match self {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => "nextval('hapax_requests_sequence')",
            #[cfg(feature = "mysql")]
            Dialect::MySql => "GREATEST(sequence + 1, {now})",
        };
        let words = match sql.contains("{sequence}") {
            true => Cow::Owned(sql.replace("{sequence}", next)),
            false => Cow::Borrowed(sql),
        };
        if canary::on("request_fence") {
            let token = "sequence = ? AND nonce = ? AND updated_at = ?";
            return Cow::Owned(
                words.replace(token, "(sequence = ? OR nonce = ? OR updated_at >= ? - 86400000000)"),
            );
        }
        if canary::on("request_clock") {
            return Cow::Owned(words.replace("{now}", &crate::clock::now_us().to_string()));
        }
        words
    }
}

/// Requests in a server.
pub(crate) struct ServerRequests {
    sessions: Sessions,
    dialect: Dialect,
}

/// What became of a statement.
struct Sent<T> {
    answer: T,
    /// It was sent before, and may have taken effect then.
    again: bool,
}

impl ServerRequests {
    pub(crate) fn new(sessions: Sessions, dialect: Dialect) -> Self {
        Self { sessions, dialect }
    }

    pub(crate) async fn claim(&self, claim: &Claim, retry: bool) -> Result<Begun, StoreError> {
        let (mut drawn, about) = (nonce(), claim.id.to_string());
        let (mut lost, mut overtaken) = (0, 0);
        loop {
            let mut session = self.sessions.lend().await.map_err(|error| unknown_after(lost, error))?;
            match self.try_claim(&mut **session, claim, drawn, retry).await {
                Ok(Some(begun)) => return Ok(begun),
                Ok(None) if overtaken < OVERTAKEN => overtaken += 1,
                Ok(None) => return Err(StoreError::Retry("others were faster again and again".into())),
                Err(Fault::Lost(_)) if lost < LOST => {
                    lost += 1;
                    if canary::on("nonce_anew") {
                        drawn = nonce();
                    }
                }
                Err(Fault::Again(_)) => return Ok(Begun::InProgress { retry_after: LOCKED }),
                Err(fault) => return Err(unknown_after(lost, reported(fault, &about))),
            }
        }
    }

    /// One look, and what follows from it; `None`: look again.
    async fn try_claim(
        &self,
        session: &mut dyn Session,
        claim: &Claim,
        nonce: u128,
        retry: bool,
    ) -> Result<Option<Begun>, Fault> {
        let drawn = nonce.to_be_bytes();
        let Some((now, found)) = self.bear_or_look(session, claim, &drawn).await? else { return Ok(None) };
        let (taken, text) = match judge(found, claim, nonce, retry, now) {
            Verdict::Answer(answer) => return Ok(Some(answer)),
            Verdict::TakeOver(record) => (record, sql::TAKE_OVER),
            Verdict::Afresh(record) => (record, sql::AFRESH),
        };
        let token = TokenBytes::from(taken.token);
        let values = match text == sql::AFRESH {
            true => sql::afresh(claim, &drawn, taken.status(), &token),
            false => sql::take_over(claim, &drawn, taken.status(), &token),
        };
        self.write(session, text, &values).await?;
        Ok(None)
    }

    /// The record, ours or another's, and the time; `None`: look again.
    async fn bear_or_look(
        &self,
        session: &mut dyn Session,
        claim: &Claim,
        nonce: &[u8; 16],
    ) -> Result<Option<(i64, Record)>, Fault> {
        let (born, key) = (sql::bear(claim, nonce), sql::key(&claim.id));
        let row = match self.dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let values = [&born[..], &key, &key].concat();
                let words = self.dialect.words(sql::BEAR_OR_LOOK);
                let words = match canary::on("check_then_insert") {
                    true => words.replace("DO NOTHING", UNREFUSED).into(),
                    false => words,
                };
                session.warned();
                let row = one(session, &words, &bound(&values)).await?;
                unless_warned(session)?;
                row
            }
            #[cfg(feature = "mysql")]
            Dialect::MySql => one(session, &self.dialect.words(sql::LOOK), &bound(&key)).await?,
        };
        match (row, self.dialect) {
            (Some(row), _) => read(&row, &claim.id).map(Some),
            #[cfg(feature = "postgres")]
            (None, Dialect::Postgres) => Ok(None),
            #[cfg(feature = "mysql")]
            (None, Dialect::MySql) => {
                let words = self.dialect.words(sql::BEAR);
                let words = match canary::on("check_then_insert") {
                    true => words.replace("INSERT INTO", "REPLACE INTO").into(),
                    false => words,
                };
                match session.execute(&words, &bound(&born)).await {
                    // Of those who saw none, the primary key lets one.
                    Ok(_) | Err(Fault::Duplicate(_)) => Ok(None),
                    Err(fault) => Err(fault),
                }
            }
        }
    }

    /// One statement that changes something; how many records.
    async fn write(
        &self,
        session: &mut dyn Session,
        text: &'static str,
        values: &[Bound<'_>],
    ) -> Result<u64, Fault> {
        session.warned();
        let changed = session.execute(&self.dialect.words(text), &bound(values)).await?;
        unless_warned(session)?;
        Ok(changed)
    }

    /// The same, sent again when its answer was lost: it must change nothing the second time.
    async fn send(
        &self,
        text: &'static str,
        values: &[Bound<'_>],
        about: &RequestId,
    ) -> Result<Sent<u64>, StoreError> {
        let mut lost = 0;
        loop {
            let mut session = self.sessions.lend().await.map_err(|error| unknown_after(lost, error))?;
            match self.write(&mut **session, text, values).await {
                Ok(answer) => return Ok(Sent { answer, again: lost > 0 }),
                Err(Fault::Lost(_)) if lost < LOST => lost += 1,
                Err(fault) => return Err(unknown_after(lost, reported(fault, &about.to_string()))),
            }
        }
    }

    pub(crate) async fn finish(
        &self,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Finished, StoreError> {
        check_completion(completion)?;
        let completion = storable(completion);
        let (headers, token) =
            (sql::headers_text(&completion.response_headers), TokenBytes::from(lease.token));
        let values = sql::held(sql::answer(&completion, &headers), lease, &token);
        if self.send(sql::FINISH, &values, &lease.id).await?.answer > 0 {
            return Ok(Finished::Done);
        }
        let found = self.get(&lease.id).await?;
        let is_there = found.is_some_and(|record| {
            record.token == lease.token && record.completion.as_ref() == Some(&*completion)
        });
        Ok(if is_there { Finished::Done } else { Finished::Stale })
    }

    pub(crate) async fn heartbeat(&self, lease: &Lease, ttl: Duration) -> Result<Finished, StoreError> {
        let token = TokenBytes::from(lease.token);
        self.change(sql::HEARTBEAT, &sql::held(sql::prolong(ttl), lease, &token), lease).await
    }

    pub(crate) async fn set_point(
        &self,
        lease: &Lease,
        point: &RecoveryPoint,
    ) -> Result<Finished, StoreError> {
        check_point(point)?;
        let token = TokenBytes::from(lease.token);
        self.change(sql::POINT, &sql::held(sql::point(point), lease, &token), lease).await
    }

    async fn change(
        &self,
        text: &'static str,
        values: &[Bound<'_>],
        lease: &Lease,
    ) -> Result<Finished, StoreError> {
        let met = self.send(text, values, &lease.id).await?.answer;
        Ok(if met > 0 { Finished::Done } else { Finished::Stale })
    }

    pub(crate) async fn get(&self, id: &RequestId) -> Result<Option<Record>, StoreError> {
        let about = |fault: Fault| reported(fault.before_commit(), &id.to_string());
        let mut session = self.sessions.lend().await?;
        let row = one(&mut **session, &self.dialect.words(sql::LOOK), &bound(&sql::key(id))).await;
        row.map_err(about)?.map(|row| read(&row, id).map(|(_, record)| record)).transpose().map_err(about)
    }

    pub(crate) async fn list(&self, filter: &RequestFilter) -> Result<Vec<Listed>, StoreError> {
        let (text, values) = sql::list(filter);
        let mut session = self.sessions.lend().await?;
        let rows = session.rows(&text, &bound(&values)).await.map_err(unwritten)?;
        let listed = |row: &Row| listed(row)?.listed(&filter.namespace).map_err(Fault::damage);
        rows.iter().map(listed).collect::<Result<_, _>>().map_err(unwritten)
    }

    pub(crate) async fn release(&self, id: &RequestId) -> Result<bool, StoreError> {
        let (nonce, released) = (nonce(), Completion::failed_retryable(0, RELEASED));
        let (drawn, mut values) = (nonce.to_be_bytes(), sql::answer(&released, "[]"));
        values.push((&drawn).into());
        values.extend(sql::key(id));
        let sent = self.send(sql::RELEASE, &values, id).await?;
        if sent.answer == 0 && sent.again {
            return Ok(self.get(id).await?.is_some_and(|record| record.token.nonce == nonce));
        }
        Ok(sent.answer > 0)
    }

    /// The time comes first: what isn't the same for all rows finds none by an index.
    pub(crate) async fn sweep(&self, limit: usize) -> Result<u64, StoreError> {
        let mut session = self.sessions.lend().await?;
        let now = self.time(&mut **session).await.map_err(unwritten)?;
        let text = match self.dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => sql::SWEEP_POSTGRES,
            #[cfg(feature = "mysql")]
            Dialect::MySql => sql::SWEEP_MYSQL,
        };
        let values = [now.into(), now.into(), i64::try_from(limit).unwrap_or(i64::MAX).into()];
        self.write(&mut **session, text, &values).await.map_err(|fault| reported(fault, "*"))
    }

    pub(crate) async fn expired(&self) -> Result<u64, StoreError> {
        let mut session = self.sessions.lend().await?;
        let now = self.time(&mut **session).await.map_err(unwritten)?;
        let row = one(&mut **session, sql::EXPIRED, &bound(&[now.into(), now.into()])).await;
        let count = row.and_then(|row| row.ok_or_else(|| Fault::damage("the server counts nothing"))?.int(0));
        Ok(count.map_err(unwritten)?.unsigned_abs())
    }

    pub(crate) async fn now_us(&self) -> Result<i64, StoreError> {
        let mut session = self.sessions.lend().await?;
        self.time(&mut **session).await.map_err(unwritten)
    }

    async fn time(&self, session: &mut dyn Session) -> Result<i64, Fault> {
        let row = one(session, &self.dialect.words("SELECT {now}"), &[]).await?;
        row.ok_or_else(|| Fault::damage("the server tells no time"))?.int(0)
    }
}

/// A fault of a statement that writes nothing.
fn unwritten(fault: Fault) -> StoreError {
    reported(fault.before_commit(), "*")
}

/// What the mutant does where the primary key refuses it.
#[cfg(feature = "postgres")]
const UNREFUSED: &str = "(namespace, principal, method, idempotency_key) DO UPDATE SET \
     sequence = excluded.sequence, nonce = excluded.nonce, updated_at = excluded.updated_at";

/// A commit that the server warned about may not be where it should be, and to find it there proves nothing.
fn unless_warned(session: &mut dyn Session) -> Result<(), Fault> {
    match session.warned() {
        true => Err(Fault::Warned),
        false => Ok(()),
    }
}

pub(crate) fn bound<'a>(values: &[Bound<'a>]) -> Vec<Value<'a>> {
    let one = |value: &Bound<'a>| match *value {
        Bound::Int(number) => Value::Int(Some(number)),
        Bound::Text(text) => Value::Text(text),
        Bound::Blob(bytes) => Value::Blob(Some(bytes)),
    };
    values.iter().map(one).collect()
}

fn read(row: &Row, id: &RequestId) -> Result<(i64, Record), Fault> {
    let text = |column| Ok::<_, Fault>(row.maybe_text(column)?.map(str::to_owned));
    let stored = Stored {
        request_hash: row.blob(1)?.to_vec(),
        status: row.text(2)?.to_owned(),
        sequence: row.int(3)?,
        nonce: row.blob(4)?.to_vec(),
        updated_at: row.int(5)?,
        attempt: row.int(6)?,
        lease_until: row.int(7)?,
        origin: row.blob(8)?.to_vec(),
        point_name: text(9)?,
        point_data: text(10)?,
        response_code: row.maybe_int(11)?,
        response_headers: text(12)?,
        response_payload: row.maybe_blob(13)?.map(<[u8]>::to_vec),
        error_message: text(14)?,
        created_at: row.int(15)?,
        expires_at: row.int(16)?,
    };
    Ok((row.int(0)?, stored.record(id).map_err(Fault::damage)?))
}

fn listed(row: &Row) -> Result<ListedRow, Fault> {
    let text = |column| Ok::<_, Fault>(row.text(column)?.to_owned());
    Ok(ListedRow {
        principal: text(0)?,
        method: text(1)?,
        idempotency_key: text(2)?,
        status: text(3)?,
        sequence: row.int(4)?,
        nonce: row.blob(5)?.to_vec(),
        updated_at: row.int(6)?,
        attempt: row.int(7)?,
        lease_until: row.int(8)?,
        point_name: row.maybe_text(9)?.map(str::to_owned),
        response_code: row.maybe_int(10)?,
        error_message: row.maybe_text(11)?.map(str::to_owned),
        created_at: row.int(12)?,
        expires_at: row.int(13)?,
    })
}

/// A fault as the store reports it.
pub(crate) fn reported(fault: Fault, request: &str) -> StoreError {
    match fault {
        Fault::Damage(_, what) => StoreError::CorruptRequest { request: request.into(), what },
        fault => crate::server::error::reported(fault, &crate::server::error::all_runs(&Default::default())),
    }
}

/// Once an answer was lost, it isn't known that nothing was written.
fn unknown_after(lost: u32, error: StoreError) -> StoreError {
    match error {
        StoreError::Retry(source) if lost > 0 => StoreError::Unknown(source),
        error => error,
    }
}
