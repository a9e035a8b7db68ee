//! A session for the user's transactions.

use super::{PostgresDatabase, failed};
use crate::{
    db::DbError,
    error::StoreError,
    postgres::{CONNECT, connection::drive, error::cannot_connect},
};
use std::sync::{Arc, atomic::AtomicBool};
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow, Statement};

/// Not every version knows every setting.
const SESSION: &str = "SET application_name = 'hapax transactions'; SET lock_timeout = '10s'; \
     SET client_min_messages = 'warning'; \
     SELECT set_config(name, '10min', false) FROM pg_settings \
     WHERE name IN ('idle_in_transaction_session_timeout', 'idle_session_timeout'); \
     SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), \
     pg_is_in_recovery(), current_setting('default_transaction_read_only'), quote_ident(current_user), \
     current_setting('default_transaction_isolation'); \
     SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Statements that a session keeps at the most.
const STATEMENTS: usize = 32;

pub(super) struct UserSession {
    pub(super) client: Client,
    /// The server warned since this was last cleared.
    pub(super) warned: Arc<AtomicBool>,
    /// It may hold something beyond its transaction, so nobody else gets it.
    pub(super) stained: bool,
    /// How transactions are isolated where nothing else is said.
    pub(super) isolation: String,
    /// Statements that were run, the last one last; from the second time on they are prepared.
    statements: Vec<(String, Option<Statement>)>,
    /// How often statements had been prepared anew when these were.
    plans: u64,
    /// What its server and itself are known by, once it was asked for.
    pub(super) known_by: Option<KnownBy>,
}

/// What stays the same as long as a session lasts.
pub(super) struct KnownBy {
    pub(super) system: String,
    pub(super) timeline: String,
    pub(super) pid: i32,
    pub(super) started_us: i64,
}

impl UserSession {
    /// The statement as it was prepared, if it is worth that.
    pub(super) async fn kept(
        &mut self,
        sql: &str,
        plans: u64,
    ) -> Result<Option<Statement>, tokio_postgres::Error> {
        if plans != self.plans || self.stained {
            self.statements.clear();
            self.plans = plans;
        }
        let Some(at) = self.statements.iter().position(|(known, _)| known == sql) else {
            if self.statements.len() >= STATEMENTS {
                self.statements.remove(0);
            }
            self.statements.push((sql.to_owned(), None));
            return Ok(None);
        };
        let (known, mut prepared) = self.statements.remove(at);
        if prepared.is_none() {
            prepared = Some(self.client.prepare(sql).await?);
        }
        self.statements.push((known, prepared.clone()));
        Ok(prepared)
    }
}

impl PostgresDatabase {
    /// Opens a session on a server that takes writes and keeps what it has committed.
    pub(super) async fn connect(&self) -> Result<UserSession, DbError> {
        let hosts = u32::try_from(self.config.get_hosts().len()).unwrap_or(1).max(1);
        let limit = self.config.get_connect_timeout().copied().unwrap_or(CONNECT) * hosts;
        let connected = tokio::time::timeout(limit, self.config.connect(self.tls.clone())).await;
        let (client, connection) = connected
            .map_err(|_| DbError::Away("it doesn't answer".into()))?
            .map_err(|error| match cannot_connect(&self.what, &self.config, &error) {
                StoreError::Open { why, .. } if error.code().is_some() => self.unusable(why),
                refused => DbError::Away(refused.to_string()),
            })?;
        let warned = Arc::<AtomicBool>::default();
        tokio::spawn(drive(connection, warned.clone(), None));
        let answer = client.simple_query(SESSION).await.map_err(|error| failed(&error))?;
        let row = answer.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.ok_or_else(|| DbError::Away("it doesn't answer".into()))?;
        self.check(row)?;
        let isolation = row.get(6).unwrap_or("read committed").to_owned();
        let isolation = self.isolation.get_or_init(|| isolation).clone();
        let (statements, plans, known_by) = (vec![], 0, None);
        Ok(UserSession { client, warned, stained: false, isolation, statements, plans, known_by })
    }

    /// Refuses a server that takes no writes, or may lose what it has committed.
    fn check(&self, row: &SimpleQueryRow) -> Result<(), DbError> {
        let said = |column| row.get(column).unwrap_or_default();
        if said(3) == "t" {
            return Err(self.unusable("it is a standby, which takes no writes: name the primary"));
        }
        if said(4) == "on" {
            let user = said(5);
            let cure = format!("ALTER ROLE {user} SET default_transaction_read_only = off");
            return Err(self.unusable(format!("the transactions of this user are read-only: {cure}")));
        }
        let unsafe_settings: Vec<&str> = [
            (said(0) != "on", "fsync"),
            (said(1) != "on", "full_page_writes"),
            (said(2) == "off", "synchronous_commit"),
        ]
        .into_iter()
        .filter_map(|(is_unsafe, setting)| is_unsafe.then_some(setting))
        .collect();
        if unsafe_settings.is_empty() {
            return Ok(());
        }
        let why = format!("it may lose what it has committed: set {} = on", unsafe_settings.join(" = on, "));
        if self.allow_unsafe {
            self.said.call_once(|| tracing::warn!(database = %self.what, "{why}"));
            return Ok(());
        }
        Err(self.unusable(why))
    }
}
