//! One transaction in a MySQL or MariaDB database.
//!
//! Invariant: after every statement the server says whether the transaction still is. One that it has ended by itself
//! (a deadlock, a statement that commits) takes no further statement: outside of it each would commit by itself.

use super::{MySqlDatabase, UserSession, failed, ride::together, row::row, written::written};
use crate::{
    db::{
        CommitError, DbError, Kind, Marked, Row, Statement, Transaction, Value, end_savepoint, guard, marker,
        savepoint, standing::Standing,
    },
    mysql::error::ends_session,
    store::BoxFuture,
};
use hapax_core::json::Json;
use mysql_async::{Conn, Error, OkPacket, Params, consts::StatusFlags, prelude::Queryable};
use std::{sync::Arc, time::Duration};
use tokio::sync::OwnedSemaphorePermit;

/// Set where a backslash in a text is nothing but that.
const NO_BACKSLASHES: StatusFlags = StatusFlags::SERVER_STATUS_NO_BACKSLASH_ESCAPES;
/// What ROLLBACK warns of when it left something behind.
const NOT_ROLLED_BACK: u16 = 1196;

pub(super) struct MyTransaction {
    pub(super) session: UserSession,
    pub(super) database: Arc<MySqlDatabase>,
    pub(super) standing: Standing,
    pub(super) limit: Option<Duration>,
    pub(super) read_only: bool,
    pub(super) _room: OwnedSemaphorePermit,
}

/// Whether the server's last answer came from within a transaction.
fn is_in_transaction(conn: &Conn) -> bool {
    let answer = conn.last_ok_packet();
    answer.is_some_and(|answer| answer.status_flags().contains(StatusFlags::SERVER_STATUS_IN_TRANS))
}

impl MyTransaction {
    /// What an answer leaves of the transaction. A deadlock has rolled all of it back, and a lock that didn't come
    /// only the statement: either way nothing more may follow.
    async fn heard<T>(&mut self, answer: mysql_async::Result<T>) -> Result<T, DbError> {
        let error = match answer {
            Ok(value) if is_in_transaction(&self.session.conn) => {
                self.standing.answered();
                return Ok(value);
            }
            Ok(_) => {
                let why = "the server ended the transaction by itself".to_owned();
                self.standing = Standing::Ended(why.clone());
                return Err(DbError::Poisoned(why));
            }
            Err(error) => error,
        };
        let why = failed(&error);
        let is_lost = matches!(why, DbError::Again(_) | DbError::Away(_)) || ends_session(&error);
        // An error says nothing of the transaction, so the server is asked.
        if !is_lost && self.session.conn.ping().await.is_ok() && is_in_transaction(&self.session.conn) {
            self.standing.answered();
        } else {
            self.standing = Standing::Poisoned(why.to_string());
        }
        Err(why)
    }

    /// Runs a statement of the user's, if it may run here.
    async fn run(&mut self, sql: &str, values: &[Value]) -> Result<(Vec<mysql_async::Row>, u64), DbError> {
        let (allowed, written) = self.database.known.of(sql, |sql| {
            guard::check(Kind::MySql, sql).map(|allowed| (allowed, Arc::from(written(sql))))
        })?;
        self.standing.sends()?;
        self.session.stained |= allowed.stains;
        let conn = &mut self.session.conn;
        match self.database.demand_sound(conn, &written).await {
            Ok(()) => self.standing.answered(),
            Err(refused) => {
                match &refused {
                    DbError::Refused(_) => self.standing.answered(),
                    lost => self.standing = Standing::Poisoned(lost.to_string()),
                }
                return Err(refused);
            }
        }
        self.exec(sql, values).await
    }

    /// Runs a statement; its rows, and how many rows it met.
    async fn exec(&mut self, sql: &str, values: &[Value]) -> Result<(Vec<mysql_async::Row>, u64), DbError> {
        self.standing.sends()?;
        let values: Vec<mysql_async::Value> = values.iter().map(bound).collect();
        let values = if values.is_empty() { Params::Empty } else { Params::Positional(values) };
        let statement = self.session.conn.exec::<mysql_async::Row, _, _>(sql, values);
        let answer = match self.limit {
            None => statement.await,
            Some(limit) => match tokio::time::timeout(limit, statement).await {
                Ok(answer) => answer,
                // Not every server has a limit of its own. The statement goes on, and is rolled back with its session.
                Err(_) => {
                    let message = format!("a statement took longer than {limit:?}");
                    return Err(DbError::Statement { message, state: None });
                }
            },
        };
        let rows = self.heard(answer).await?;
        Ok((rows, self.session.conn.affected_rows()))
    }

    async fn text(&mut self, sql: String) -> Result<(), DbError> {
        self.standing.sends()?;
        let answer = self.session.conn.query_drop(sql).await;
        self.heard(answer).await
    }
}

impl Transaction for MyTransaction {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, DbError>> {
        Box::pin(async move { Ok(self.run(sql, values).await?.1) })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, DbError>> {
        Box::pin(async move { Ok(self.run(sql, values).await?.0.into_iter().map(row).collect()) })
    }

    fn save(&mut self, number: u32) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.text(savepoint(number)))
    }

    fn unsave(&mut self, number: u32, keep: bool) -> BoxFuture<'_, Result<(), DbError>> {
        Box::pin(self.text(end_savepoint(number, keep)))
    }

    fn ride<'a>(&'a mut self, statements: &'a [Statement]) -> BoxFuture<'a, Result<bool, DbError>> {
        Box::pin(async move {
            self.session.hurries = true;
            let status = self.session.conn.last_ok_packet().map(OkPacket::status_flags);
            let is_plain = status.is_some_and(|status| status.contains(NO_BACKSLASHES));
            self.text(together(statements, is_plain)).await?;
            Ok(self.session.conn.affected_rows() > 0)
        })
    }

    fn mark<'a>(&'a mut self, id: &'a str, result: &'a Json) -> BoxFuture<'a, Result<Marked, DbError>> {
        Box::pin(async move {
            if self.read_only {
                return Ok(Marked::Here);
            }
            self.standing.sends()?;
            let insert = marker::insert(Kind::MySql, marker::TABLE);
            let answer = self.session.conn.exec_drop(insert, (id, result.as_str())).await;
            let is_taken = matches!(&answer, Err(Error::Server(said)) if matches!(said.code, 1062 | 1586));
            match self.heard(answer).await {
                Ok(()) => Ok(Marked::Here),
                Err(error) => {
                    if !self.standing.is_ended() {
                        // The transaction may still be open, and a COMMIT would keep what it did.
                        self.standing = Standing::Poisoned("it has no marker".into());
                    }
                    if is_taken { Ok(Marked::Taken) } else { Err(error) }
                }
            }
        })
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), CommitError>> {
        Box::pin(async move {
            if let Some(refused) = self.standing.refuses_commit() {
                return Err(refused);
            }
            let MyTransaction { mut session, database, .. } = *self;
            match session.conn.query_drop("COMMIT").await {
                Ok(()) => {
                    database.give_back(session);
                    Ok(())
                }
                // A cluster finds a conflict only then, and says that nothing is left.
                Err(Error::Server(said)) if said.code == 1213 => {
                    Err(CommitError::RolledBack(DbError::Again(said.message)))
                }
                Err(error) => Err(CommitError::Unknown(error.to_string())),
            }
        })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), DbError>> {
        Box::pin(async move {
            let MyTransaction { mut session, database, standing, .. } = *self;
            if standing.is_ended() {
                return Err(DbError::Poisoned(standing.why()));
            }
            // A session whose answer nobody read is closed, which does the same when its statement is over.
            if !standing.is_answered() || session.conn.query_drop("ROLLBACK").await.is_err() {
                return Ok(());
            }
            let left = left_behind(&mut session.conn).await;
            database.give_back(session);
            left
        })
    }
}

/// Whether ROLLBACK couldn't undo all of it: a trigger or a view led to a table that doesn't roll back.
async fn left_behind(conn: &mut Conn) -> Result<(), DbError> {
    if conn.get_warnings() == 0 {
        return Ok(());
    }
    let warnings: Vec<(String, u16, String)> =
        conn.query("SHOW WARNINGS").await.map_err(|error| failed(&error))?;
    match warnings.into_iter().find(|(_, code, _)| *code == NOT_ROLLED_BACK) {
        Some((_, code, message)) => Err(DbError::Statement { message, state: Some(code.to_string()) }),
        None => Ok(()),
    }
}

pub(super) fn bound(value: &Value) -> mysql_async::Value {
    match value {
        Value::Null => mysql_async::Value::NULL,
        Value::Bool(flag) => mysql_async::Value::Int((*flag).into()),
        Value::Int(number) => mysql_async::Value::Int(*number),
        Value::Float(number) => mysql_async::Value::Double(*number),
        Value::Text(text) => mysql_async::Value::Bytes(text.clone().into_bytes()),
        Value::Bytes(bytes) => mysql_async::Value::Bytes(bytes.clone()),
    }
}
