//! One transaction in a PostgreSQL database.
//!
//! Invariant: what COMMIT says is read. A failed transaction answers it with the tag ROLLBACK and no error, and the
//! driver keeps the tag to itself: so a statement goes ahead of it in the same message, which a failed transaction
//! refuses; or the last one before it was ours, and its answer was that the transaction is open. A cancelled wait for a standby
//! answers with a warning, which the same statement makes sure to be told.

use super::{PostgresDatabase, UserSession, failed, row::row, witness::witness};
use crate::{
    db::{
        CommitError, DbError, Kind, Marked, Row, Statement, Transaction, Value, Witness, end_savepoint,
        guard, marker, savepoint, standing::Standing,
    },
    postgres::error::{deepest, ends_session},
    store::BoxFuture,
};
use futures::TryStreamExt;
use hapax_core::{canary, json::Json};
use std::{
    error::Error as StdError,
    pin::pin,
    sync::{Arc, atomic::Ordering},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::{
    Error,
    error::SqlState,
    types::{Format, IsNull, ToSql, Type, private::BytesMut, to_sql_checked},
};

/// A routine may have changed what is relied on.
const COMMIT: &str =
    "SET LOCAL client_min_messages = 'warning'; SET LOCAL synchronous_commit TO DEFAULT; COMMIT";

pub(super) struct PgTransaction {
    pub(super) session: UserSession,
    pub(super) database: Arc<PostgresDatabase>,
    pub(super) standing: Standing,
    pub(super) read_only: bool,
    /// The last statement was our own, and the transaction was open then.
    pub(super) is_sealed: bool,
    pub(super) _room: OwnedSemaphorePermit,
}

impl PgTransaction {
    /// Once a statement has failed, PostgreSQL takes nothing more but the end, or an undo.
    fn heard<T>(&mut self, answer: Result<T, Error>) -> Result<T, DbError> {
        match answer {
            Ok(value) => {
                self.standing.answered();
                Ok(value)
            }
            Err(error) => {
                let why = failed(&error);
                let is_known_there = error.code().is_some() && !ends_session(&error);
                let kind = if is_known_there { Standing::Failed } else { Standing::Poisoned };
                self.standing = kind(why.to_string());
                Err(why)
            }
        }
    }

    fn ended(&mut self) -> DbError {
        let why = "the transaction was ended by a statement".to_owned();
        self.standing = Standing::Ended(why.clone());
        DbError::Poisoned(why)
    }

    fn admit(&mut self, sql: &str) -> Result<(), DbError> {
        self.is_sealed = false;
        let allowed = self.database.known.of(sql, |sql| guard::check(Kind::Postgres, sql))?;
        self.session.stained |= allowed.stains;
        self.standing.sends()
    }

    /// Sends a statement; its rows, and how many it changed.
    async fn send(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> Result<(Vec<tokio_postgres::Row>, u64), DbError> {
        let plans = self.database.plans.load(Ordering::SeqCst);
        let kept = self.session.kept(sql, plans).await;
        let is_kept = matches!(kept, Ok(Some(_)));
        let answer = async {
            let client = &self.session.client;
            let rows = match kept? {
                Some(statement) => client.query_raw(&statement, values.iter().map(Bound)).await?,
                None => client.query_typed_raw(sql, untyped(values)).await?,
            };
            let mut rows = pin!(rows);
            let mut all = vec![];
            while let Some(row) = rows.try_next().await? {
                all.push(row);
            }
            Ok((all, rows.rows_affected().unwrap_or(0)))
        };
        let answer = answer.await;
        let is_outdated = |error: &Error| error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED);
        let is_outdated = is_kept && answer.as_ref().is_err_and(is_outdated);
        let heard = self.heard(answer);
        if is_outdated && !canary::on("stale_plans") {
            // A table has changed under a statement that was prepared: all of them are prepared anew.
            self.database.plans.fetch_add(1, Ordering::SeqCst);
            return heard.map_err(|error| DbError::Away(error.to_string()));
        }
        heard
    }
}

impl Transaction for PgTransaction {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, DbError>> {
        Box::pin(async move {
            self.admit(sql)?;
            Ok(self.send(sql, values).await?.1)
        })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, DbError>> {
        Box::pin(async move {
            self.admit(sql)?;
            self.send(sql, values).await?.0.iter().map(row).collect()
        })
    }

    fn save(&mut self, number: u32) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(async move {
            self.standing.sends()?;
            let saved = self.session.client.batch_execute(&savepoint(number)).await;
            self.heard(saved)
        })
    }

    fn unsave(&mut self, number: u32, keep: bool) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(async move {
            if keep {
                self.standing.sends()?;
            } else {
                self.standing.sends_undo()?;
            }
            let ended = self.session.client.batch_execute(&end_savepoint(number, keep)).await;
            self.heard(ended)
        })
    }

    fn ride<'a>(&'a mut self, statements: &'a [Statement]) -> BoxFuture<'a, Result<bool, DbError>> {
        Box::pin(async move {
            for Statement { sql, values, must_meet } in statements {
                self.standing.sends()?;
                if self.send(sql, values).await?.1 == 0 && *must_meet {
                    return Ok(false);
                }
            }
            self.is_sealed = true;
            Ok(true)
        })
    }

    fn mark<'a>(&'a mut self, id: &'a str, result: &'a Json) -> BoxFuture<'a, Result<Marked, DbError>> {
        Box::pin(async move {
            if self.read_only {
                return Ok(Marked::Here);
            }
            self.standing.sends()?;
            let insert = marker::insert(Kind::Postgres, self.database.table());
            let values = [Value::Text(id.to_owned()), Value::Text(result.as_str().to_owned())];
            let marked = self.send(&insert, &values).await.map(|(_, rows)| rows);
            let taken = SqlState::UNIQUE_VIOLATION.code();
            let is_taken =
                matches!(&marked, Err(DbError::Statement { state, .. }) if state.as_deref() == Some(taken));
            match marked {
                Ok(1) => {
                    self.is_sealed = true;
                    Ok(Marked::Here)
                }
                Ok(_) => Err(self.ended()),
                Err(error) => {
                    self.standing = Standing::Poisoned("it has no marker".into());
                    if is_taken { Ok(Marked::Taken) } else { Err(error) }
                }
            }
        })
    }

    fn witness(&mut self) -> BoxFuture<'_, Result<Witness, DbError>> {
        Box::pin(async move {
            self.standing.sends()?;
            let asked = witness(&mut self.session).await;
            let Some(witness) = self.heard(asked)? else { return Err(self.ended()) };
            self.database.flush().await?;
            Ok(witness)
        })
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), CommitError>> {
        Box::pin(async move {
            if let Some(refused) = self.standing.refuses_commit() {
                return Err(refused);
            }
            let PgTransaction { session, database, standing, is_sealed, .. } = *self;
            if session.client.is_closed() {
                return Err(CommitError::RolledBack(DbError::Away("its session was ended".into())));
            }
            session.warned.store(false, Ordering::SeqCst);
            let text = if is_sealed || canary::on("commit_tag_ignored") { "COMMIT" } else { COMMIT };
            match session.client.batch_execute(text).await {
                Ok(()) => {}
                Err(error) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
                    return Err(CommitError::RolledBack(DbError::Poisoned(standing.why())));
                }
                // A check that was put off, or a conflict that is found at the end.
                Err(error) if error.code().is_some() && !leaves_open(&error) => {
                    database.give_back(session);
                    return Err(CommitError::RolledBack(failed(&error)));
                }
                Err(error) => return Err(CommitError::Unknown(deepest(&error))),
            }
            if session.warned.swap(false, Ordering::SeqCst) && !canary::on("commit_tag_ignored") {
                return Err(CommitError::Unknown("the server warned while it committed".into()));
            }
            database.give_back(session);
            Ok(())
        })
    }

    fn rollback(mut self: Box<Self>) -> BoxFuture<'static, Result<(), DbError>> {
        Box::pin(async move {
            if self.standing.is_ended() {
                return Err(DbError::Poisoned(self.standing.why()));
            }
            // A session whose answer nobody read is closed, which does the same when its statement is over.
            if !self.standing.is_answered() {
                return Ok(());
            }
            self.session.warned.store(false, Ordering::SeqCst);
            if self.session.client.batch_execute("ROLLBACK").await.is_err() {
                return Ok(());
            }
            if self.session.warned.swap(false, Ordering::SeqCst) {
                // There was nothing to undo.
                return Err(self.ended());
            }
            self.database.give_back(self.session);
            Ok(())
        })
    }
}

/// Whether an error of COMMIT leaves open how it ended: the session is lost, or the server says so itself.
fn leaves_open(error: &Error) -> bool {
    ends_session(error) || error.code() == Some(&SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN)
}

/// Values whose types the server finds: a statement that says nothing of them needs no round trip to be prepared.
fn untyped(values: &[Value]) -> impl ExactSizeIterator<Item = (Bound<'_>, Type)> {
    values.iter().map(|value| (Bound(value), Type::UNKNOWN))
}

/// A value as it is written: the server reads it as whatever the statement wants in its place.
#[derive(Debug)]
struct Bound<'a>(&'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Bool(flag) => out.extend_from_slice(if *flag { b"t" } else { b"f" }),
            Value::Bytes(bytes) if *kind == Type::BYTEA => out.extend_from_slice(bytes),
            Value::Bytes(bytes) => {
                let digits =
                    |byte: &u8| [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]);
                out.extend_from_slice(b"\\x");
                out.extend(bytes.iter().flat_map(digits));
            }
            value => out.extend_from_slice(value.to_string().as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, kind: &Type) -> Format {
        let is_binary = matches!(self.0, Value::Bytes(_)) && *kind == Type::BYTEA;
        if is_binary { Format::Binary } else { Format::Text }
    }

    to_sql_checked!();
}
