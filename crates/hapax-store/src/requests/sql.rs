//! The statements of requests, and what a row of theirs holds: the same for all databases.
//!
//! Invariant: a statement that takes or changes a record demands it as it was read, in its own WHERE, and goes by
//! `{now}`, the database's clock at that moment. `{sequence}` is the database's next number, `hapax_` how tables are named.

use super::{Claim, Listed, RequestFilter};
use crate::clock::micros;
use hapax_core::{
    canary,
    id::Namespace,
    json::Json,
    key::Digest,
    request::{Completion, Lease, Record, RecoveryPoint, RequestHash, RequestId, Status, Token},
};
use std::time::Duration;

/// The table of requests.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const TABLE: &str = "hapax_requests";

/// What makes a record unique.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const KEY: &[&str] = &["namespace", "principal", "method", "idempotency_key"];

/// Names one record.
macro_rules! key {
    () => {
        "namespace = ? AND principal = ? AND method = ? AND idempotency_key = ?"
    };
}

/// Names a record that is executed under one token.
macro_rules! held {
    () => {
        concat!(key!(), " AND status = 'IN_PROGRESS' AND sequence = ? AND nonce = ? AND updated_at = ?")
    };
}

/// Names a record that is still as it was read, and that nobody executes.
macro_rules! free {
    () => {
        concat!(
            key!(),
            " AND status = ? AND sequence = ? AND nonce = ? AND updated_at = ? \
             AND (status <> 'IN_PROGRESS' OR lease_until <= {now})"
        )
    };
}

/// Who begins an execution.
macro_rules! begins {
    () => {
        "status = 'IN_PROGRESS', sequence = {sequence}, nonce = ?, updated_at = {now}, lease_until = {now} + ?, \
         response_code = NULL, response_headers = NULL, response_payload = NULL, error_message = NULL"
    };
}

/// What is read of a record, in the order of [`Stored`].
macro_rules! columns {
    () => {
        "request_hash, status, sequence, nonce, updated_at, attempt, lease_until, origin, point_name, point_data, \
         response_code, response_headers, response_payload, error_message, created_at, expires_at"
    };
}

/// What a new record is made of, beside its answer.
macro_rules! born {
    () => {
        "INSERT INTO hapax_requests (namespace, principal, method, idempotency_key, request_hash, nonce, origin, \
         lease_until, expires_at, status, sequence, updated_at, attempt, created_at)"
    };
}

/// The record, and the time.
pub(crate) const LOOK: &str = concat!("SELECT {now}, ", columns!(), " FROM hapax_requests WHERE ", key!());

/// A new record, unless there is one: a duplicate is an error.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) const BEAR: &str = concat!(
    born!(),
    " VALUES (?, ?, ?, ?, ?, ?, ?, {now} + ?, {now} + ?, 'IN_PROGRESS', {now}, {now}, 1, {now})"
);

/// A new record, unless there is one, and the one or the other. No row: another's was committed in this moment.
///
/// Whoever sees a record inserts nothing, so that duplicates cost no write; of those who don't, the primary key lets one.
#[cfg(feature = "postgres")]
pub(crate) const BEAR_OR_LOOK: &str = concat!(
    "WITH born AS (",
    born!(),
    " SELECT ?, ?, ?, ?, ?, ?, ?, t.now + ?, t.now + ?, 'IN_PROGRESS', {sequence}, t.now, 1, t.now \
     FROM (SELECT {now} AS now) AS t WHERE NOT EXISTS (SELECT 1 FROM hapax_requests WHERE ",
    key!(),
    ") ON CONFLICT DO NOTHING RETURNING ",
    columns!(),
    ") SELECT {now}, ",
    columns!(),
    " FROM born UNION ALL SELECT {now}, ",
    columns!(),
    " FROM hapax_requests WHERE ",
    key!()
);

/// Goes on with what another left.
pub(crate) const TAKE_OVER: &str =
    concat!("UPDATE hapax_requests SET attempt = attempt + 1, ", begins!(), " WHERE ", free!());

/// Begins afresh in the place of what has expired.
pub(crate) const AFRESH: &str = concat!(
    "UPDATE hapax_requests SET request_hash = ?, origin = ?, attempt = 1, point_name = NULL, point_data = NULL, \
     created_at = {now}, expires_at = {now} + ?, ",
    begins!(),
    " WHERE ",
    free!(),
    " AND expires_at <= {now}"
);

/// Ends an execution. The answer is kept for as long as the record would have been, from now on.
pub(crate) const FINISH: &str = concat!(
    "UPDATE hapax_requests SET status = ?, response_code = ?, response_headers = ?, response_payload = ?, \
     error_message = ?, expires_at = GREATEST(expires_at, {now} + expires_at - created_at) WHERE ",
    held!()
);

pub(crate) const HEARTBEAT: &str =
    concat!("UPDATE hapax_requests SET lease_until = {now} + ? WHERE ", held!());

pub(crate) const POINT: &str =
    concat!("UPDATE hapax_requests SET point_name = ?, point_data = ? WHERE ", held!());

/// Whether a record is executed under a token.
#[cfg(feature = "mysql")]
pub(crate) const IS_HELD: &str = concat!("SELECT 1 FROM hapax_requests WHERE ", held!(), " FOR UPDATE");

pub(crate) const RELEASE: &str = concat!(
    "UPDATE hapax_requests SET status = ?, response_code = ?, response_headers = ?, response_payload = ?, \
     error_message = ?, sequence = {sequence}, nonce = ?, updated_at = {now}, lease_until = {now} WHERE ",
    key!(),
    " AND status = 'IN_PROGRESS'"
);

/// What may be deleted at this time, twice.
macro_rules! expired {
    () => {
        "expires_at <= ? AND (status <> 'IN_PROGRESS' OR lease_until <= ?)"
    };
}

/// So much of it.
macro_rules! over {
    () => {
        concat!(expired!(), " ORDER BY expires_at LIMIT ?")
    };
}

pub(crate) const EXPIRED: &str = concat!("SELECT count(*) FROM hapax_requests WHERE ", expired!());

#[cfg(feature = "postgres")]
pub(crate) const SWEEP_POSTGRES: &str = concat!(
    "DELETE FROM hapax_requests WHERE (namespace, principal, method, idempotency_key) IN \
     (SELECT namespace, principal, method, idempotency_key FROM hapax_requests WHERE ",
    over!(),
    " FOR UPDATE SKIP LOCKED)"
);

#[cfg(feature = "mysql")]
pub(crate) const SWEEP_MYSQL: &str = concat!("DELETE FROM hapax_requests WHERE ", over!());

#[cfg(feature = "sqlite")]
pub(crate) const SWEEP_SQLITE: &str = concat!(
    "DELETE FROM hapax_requests WHERE rowid IN (SELECT rowid FROM hapax_requests WHERE ",
    over!(),
    ")"
);

/// A value of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound<'a> {
    Int(i64),
    Text(Option<&'a str>),
    Blob(&'a [u8]),
}

impl From<i64> for Bound<'_> {
    fn from(value: i64) -> Self {
        Bound::Int(value)
    }
}

impl<'a> From<&'a str> for Bound<'a> {
    fn from(value: &'a str) -> Self {
        Bound::Text(Some(value))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Bound<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Bound::Blob(value)
    }
}

pub(crate) fn key(id: &RequestId) -> [Bound<'_>; 4] {
    [id.namespace().as_str(), id.principal(), id.method(), id.key()].map(Bound::from)
}

/// A token as statements hold it.
pub(crate) struct TokenBytes {
    sequence: i64,
    nonce: [u8; 16],
    updated_at: i64,
}

impl From<Token> for TokenBytes {
    fn from(token: Token) -> Self {
        Self { sequence: token.sequence, nonce: token.nonce.to_be_bytes(), updated_at: token.updated_at_us }
    }
}

impl TokenBytes {
    fn bound(&self) -> [Bound<'_>; 3] {
        [self.sequence.into(), (&self.nonce).into(), self.updated_at.into()]
    }
}

/// The values of [`BEAR`].
pub(crate) fn bear<'a>(claim: &'a Claim, nonce: &'a [u8; 16]) -> Vec<Bound<'a>> {
    let mut values = key(&claim.id).to_vec();
    values.extend([Bound::from(&claim.hash.0.0), nonce.into(), nonce.into()]);
    values.extend([claim.lease, claim.expiry].map(|time| Bound::Int(micros(time))));
    values
}

/// The values of [`TAKE_OVER`].
pub(crate) fn take_over<'a>(
    claim: &'a Claim,
    nonce: &'a [u8; 16],
    status: Status,
    token: &'a TokenBytes,
) -> Vec<Bound<'a>> {
    [nonce.into(), micros(claim.lease).into()].into_iter().chain(free(claim, status, token)).collect()
}

/// The values of [`AFRESH`].
pub(crate) fn afresh<'a>(
    claim: &'a Claim,
    nonce: &'a [u8; 16],
    status: Status,
    token: &'a TokenBytes,
) -> Vec<Bound<'a>> {
    let mut values = vec![Bound::from(&claim.hash.0.0), nonce.into(), micros(claim.expiry).into()];
    values.extend(take_over(claim, nonce, status, token));
    values
}

fn free<'a>(claim: &'a Claim, status: Status, token: &'a TokenBytes) -> impl Iterator<Item = Bound<'a>> {
    key(&claim.id).into_iter().chain([status.word().into()]).chain(token.bound())
}

/// The values of a statement on a record that is executed under a token, behind what it sets.
pub(crate) fn held<'a>(set: Vec<Bound<'a>>, lease: &'a Lease, token: &'a TokenBytes) -> Vec<Bound<'a>> {
    set.into_iter().chain(key(&lease.id)).chain(token.bound()).collect()
}

/// What [`FINISH`] and [`RELEASE`] set; `headers` is [`headers_text`].
pub(crate) fn answer<'a>(completion: &'a Completion, headers: &'a str) -> Vec<Bound<'a>> {
    vec![
        Status::from(completion.status).word().into(),
        i64::from(completion.response_code).into(),
        headers.into(),
        Bound::Blob(&completion.response_payload),
        Bound::Text(completion.error_message.as_deref()),
    ]
}

/// What [`POINT`] sets.
pub(crate) fn point(point: &RecoveryPoint) -> Vec<Bound<'_>> {
    vec![point.name.as_str().into(), point.data.as_str().into()]
}

/// What [`HEARTBEAT`] sets.
pub(crate) fn prolong(ttl: Duration) -> Vec<Bound<'static>> {
    let ttl = if canary::on("heartbeat_idle") { Duration::ZERO } else { ttl };
    vec![micros(ttl).into()]
}

/// Headers as text: JSON, in which each byte of a value is the character of that number.
pub(crate) fn headers_text(headers: &[(String, Vec<u8>)]) -> String {
    let latin: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.iter().map(|byte| char::from(*byte)).collect()))
        .collect();
    serde_json::to_string(&latin).expect("texts are JSON")
}

fn headers_of(text: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let latin: Vec<(String, String)> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let bytes = |text: String| text.chars().map(u8::try_from).collect::<Result<Vec<u8>, _>>();
    let header = |(name, value)| Ok((name, bytes(value).map_err(|error| error.to_string())?));
    latin.into_iter().map(header).collect()
}

/// A row of [`LOOK`], behind the time.
pub(crate) struct Stored {
    pub(crate) request_hash: Vec<u8>,
    pub(crate) status: String,
    pub(crate) sequence: i64,
    pub(crate) nonce: Vec<u8>,
    pub(crate) updated_at: i64,
    pub(crate) attempt: i64,
    pub(crate) lease_until: i64,
    pub(crate) origin: Vec<u8>,
    pub(crate) point_name: Option<String>,
    pub(crate) point_data: Option<String>,
    pub(crate) response_code: Option<i64>,
    pub(crate) response_headers: Option<String>,
    pub(crate) response_payload: Option<Vec<u8>>,
    pub(crate) error_message: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) expires_at: i64,
}

impl Stored {
    /// The record; what is wrong with the row.
    pub(crate) fn record(self, id: &RequestId) -> Result<Record, String> {
        let hash = self.request_hash.as_slice().try_into().map_err(|_| "its hash has another length")?;
        let point = match (self.point_name, self.point_data) {
            (Some(name), Some(data)) => {
                let data = Json::from_text(&data).map_err(|error| error.to_string())?;
                Some(RecoveryPoint { name, data })
            }
            _ => None,
        };
        let completion = match status(&self.status)?.outcome() {
            None => None,
            Some(status) => Some(Completion {
                status,
                response_code: code(self.response_code)?.ok_or("it has no response_code")?,
                response_headers: headers_of(self.response_headers.as_deref().unwrap_or("[]"))?,
                response_payload: self.response_payload.unwrap_or_default(),
                error_message: self.error_message,
            }),
        };
        Ok(Record {
            id: id.clone(),
            hash: RequestHash(Digest(hash)),
            token: token(self.sequence, &self.nonce, self.updated_at)?,
            attempt: attempt(self.attempt)?,
            lease_until_us: self.lease_until,
            point,
            origin: number(&self.origin)?,
            completion,
            created_at_us: self.created_at,
            expires_at_us: self.expires_at,
        })
    }
}

/// Asks for a list; and its values.
pub(crate) fn list(filter: &RequestFilter) -> (String, Vec<Bound<'_>>) {
    let mut sql = "SELECT principal, method, idempotency_key, status, sequence, nonce, updated_at, attempt, lease_until, \
                   point_name, response_code, error_message, created_at, expires_at \
                   FROM hapax_requests WHERE namespace = ?"
        .to_owned();
    let mut values = vec![Bound::from(filter.namespace.as_str())];
    for (column, wanted) in [("principal", &filter.principal), ("method", &filter.method)] {
        if let Some(wanted) = wanted {
            sql.push_str(&format!(" AND {column} = ?"));
            values.push(wanted.as_str().into());
        }
    }
    if !filter.statuses.is_empty() {
        let words: Vec<String> =
            filter.statuses.iter().map(|status| format!("'{}'", status.word())).collect();
        sql.push_str(&format!(" AND status IN ({})", words.join(", ")));
    }
    sql.push_str(" ORDER BY expires_at DESC, principal, method, idempotency_key LIMIT ?");
    values.push(i64::try_from(filter.limit).unwrap_or(i64::MAX).into());
    (sql, values)
}

/// A row of a list.
pub(crate) struct ListedRow {
    pub(crate) principal: String,
    pub(crate) method: String,
    pub(crate) idempotency_key: String,
    pub(crate) status: String,
    pub(crate) sequence: i64,
    pub(crate) nonce: Vec<u8>,
    pub(crate) updated_at: i64,
    pub(crate) attempt: i64,
    pub(crate) lease_until: i64,
    pub(crate) point_name: Option<String>,
    pub(crate) response_code: Option<i64>,
    pub(crate) error_message: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) expires_at: i64,
}

impl ListedRow {
    pub(crate) fn listed(self, namespace: &Namespace) -> Result<Listed, String> {
        let id = RequestId::new(namespace.clone(), self.principal, self.method, self.idempotency_key);
        Ok(Listed {
            id: id.map_err(|error| error.to_string())?,
            status: status(&self.status)?,
            token: token(self.sequence, &self.nonce, self.updated_at)?,
            attempt: attempt(self.attempt)?,
            lease_until_us: self.lease_until,
            point: self.point_name,
            response_code: code(self.response_code)?,
            error_message: self.error_message,
            created_at_us: self.created_at,
            expires_at_us: self.expires_at,
        })
    }
}

fn status(word: &str) -> Result<Status, String> {
    Status::read(word).ok_or_else(|| format!("its status is `{word}`"))
}

fn token(sequence: i64, nonce: &[u8], updated_at_us: i64) -> Result<Token, String> {
    Ok(Token { sequence, nonce: number(nonce)?, updated_at_us })
}

fn number(bytes: &[u8]) -> Result<u128, String> {
    let bytes = bytes.try_into().map_err(|_| "a number of it has another length")?;
    Ok(u128::from_be_bytes(bytes))
}

fn attempt(number: i64) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("its attempt is {number}"))
}

fn code(number: Option<i64>) -> Result<Option<i32>, String> {
    number.map(i32::try_from).transpose().map_err(|_| "its response_code is too large".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_header_is_read_back() {
        let headers = vec![("x".to_owned(), (0..=255).collect()), ("Ü".to_owned(), vec![])];
        assert_eq!(headers_of(&headers_text(&headers)).unwrap(), headers);
        assert!(headers_of(r#"[["x","€"]]"#).is_err(), "no byte has that number");
    }
}
