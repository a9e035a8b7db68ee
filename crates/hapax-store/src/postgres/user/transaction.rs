//! One transaction in a PostgreSQL database.
//!
//! Invariant: what COMMIT says is read. A failed transaction answers it with the tag ROLLBACK and no error, and the
//! driver keeps the tag to itself: so a statement goes ahead of it in the same message, which a failed transaction
//! refuses. A cancelled wait for a standby answers with a warning, which the same statement makes sure to be told.

use super::{PostgresDatabase, UserSession, failed, row::row, witness::witness};
use crate::{
    db::{
        CommitError, DbError, Kind, Marked, Row, Transaction, Value, Witness, end_savepoint, guard, marker,
        savepoint, standing::Standing,
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

/// Whether the transaction is still ours; as long as a session of the store's may stand still in one.
const HURRY: &str = "SELECT coalesce(current_setting('hapax.open', true), '') = '1' \
     AND set_config('idle_in_transaction_session_timeout', '60s', true) <> ''";

pub(super) struct PgTransaction {
    pub(super) session: UserSession,
    pub(super) database: Arc<PostgresDatabase>,
    pub(super) standing: Standing,
    pub(super) read_only: bool,
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
        self.session.stained |= guard::check(Kind::Postgres, sql)?.stains;
        self.standing.sends()
    }
}

impl Transaction for PgTransaction {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, DbError>> {
        Box::pin(async move {
            self.admit(sql)?;
            let done = async {
                let rows = self.session.client.query_typed_raw(sql, untyped(values)).await?;
                let mut rows = pin!(rows);
                while rows.try_next().await?.is_some() {}
                Ok(rows.rows_affected().unwrap_or(0))
            };
            let done = done.await;
            self.heard(done)
        })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, DbError>> {
        Box::pin(async move {
            self.admit(sql)?;
            let rows = async {
                let rows = self.session.client.query_typed_raw(sql, untyped(values)).await?;
                pin!(rows).try_collect::<Vec<_>>().await
            };
            let rows = rows.await;
            self.heard(rows)?.iter().map(row).collect()
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

    fn hurry(&mut self) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(async move {
            self.standing.sends()?;
            let asked = self.session.client.query_typed_one(HURRY, &[]).await;
            let row = self.heard(asked)?;
            if row.try_get(0).unwrap_or(false) { Ok(()) } else { Err(self.ended()) }
        })
    }

    fn mark<'a>(&'a mut self, id: &'a str, result: &'a Json) -> BoxFuture<'a, Result<Marked, DbError>> {
        Box::pin(async move {
            if self.read_only {
                return Ok(Marked::Here);
            }
            self.standing.sends()?;
            let insert = marker::insert(Kind::Postgres, self.database.table());
            let values: [(&(dyn ToSql + Sync), Type); 2] =
                [(&id, Type::TEXT), (&result.as_str(), Type::TEXT)];
            // Typed, it needs no round trip to be prepared.
            let marked = self.session.client.execute_typed(&insert, &values).await;
            let is_taken =
                marked.as_ref().is_err_and(|error| error.code() == Some(&SqlState::UNIQUE_VIOLATION));
            match self.heard(marked) {
                Ok(1) => Ok(Marked::Here),
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
            let asked = witness(&self.session.client).await;
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
            let PgTransaction { session, database, standing, .. } = *self;
            if session.client.is_closed() {
                return Err(CommitError::RolledBack(DbError::Away("its session was ended".into())));
            }
            session.warned.store(false, Ordering::SeqCst);
            let text = if canary::on("commit_tag_ignored") { "COMMIT" } else { COMMIT };
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

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), DbError>> {
        Box::pin(async move {
            if self.standing.is_ended() {
                return Err(DbError::Poisoned(self.standing.why()));
            }
            // A session whose answer nobody read is closed, which does the same when its statement is over.
            if self.standing.is_answered() && self.session.client.batch_execute("ROLLBACK").await.is_ok() {
                self.database.give_back(self.session);
            }
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
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Bool(flag) => out.extend_from_slice(if *flag { b"t" } else { b"f" }),
            Value::Bytes(bytes) => {
                out.extend_from_slice(b"\\x");
                for byte in bytes {
                    out.extend_from_slice(format!("{byte:02x}").as_bytes());
                }
            }
            value => out.extend_from_slice(value.to_string().as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
