//! The fate of a transaction, asked of PostgreSQL by the transaction's number.
//!
//! Invariant: a number is said to nobody before it is durable in the server's log. A server that crashes earlier
//! gives it out again, and then it is another transaction's fate that is told.

use super::{PostgresDatabase, UserSession, failed, session::KnownBy};
use crate::{
    db::{DbError, Fate, Witness},
    postgres::error::ends_session,
};
use hapax_core::canary;
use std::sync::atomic::Ordering;
use tokio_postgres::error::SqlState;

/// Asked inside the transaction. The number is taken here if the transaction has none yet.
const WITNESS: &str =
    "SELECT pg_current_xact_id()::text, coalesce(current_setting('hapax.open', true), '') = '1'";

/// Asked once: a server that was promoted, or started again, has other sessions.
const KNOWN_BY: &str = "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
     substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), pid, \
     (extract(epoch FROM backend_start) * 1000000)::bigint \
     FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// A commit of its own, which takes with it to the disk all that was logged before. A standby needn't have it: after a
/// failover nothing is told of the number anyway.
const FLUSH: &str = "SET synchronous_commit = local; SELECT pg_logical_emit_message(true, 'hapax', '')";

/// In one statement, so that all of it is true at the same time.
const FATE: &str = "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
     substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), pg_xact_status($1::text::xid8)";

const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
     WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2";

const FUNCTIONS: [&str; 6] = [
    "pg_current_xact_id",
    "pg_xact_status",
    "pg_logical_emit_message",
    "pg_control_system",
    "pg_walfile_name",
    "pg_current_wal_lsn",
];

/// What the transaction of this session is known by; `None`: the session is in none of ours.
pub(super) async fn witness(session: &mut UserSession) -> Result<Option<Witness>, tokio_postgres::Error> {
    // Typed, they need no round trip to be prepared.
    let row = session.client.query_typed_one(WITNESS, &[]).await?;
    let number: String = row.try_get(0)?;
    if !row.try_get::<_, bool>(1)? {
        return Ok(None);
    }
    let known_by = match session.known_by.take() {
        Some(known_by) => known_by,
        None => {
            let row = session.client.query_typed_one(KNOWN_BY, &[]).await?;
            let (system, timeline) = (row.try_get(0)?, row.try_get(1)?);
            KnownBy { system, timeline, pid: row.try_get(2)?, started_us: row.try_get(3)? }
        }
    };
    let KnownBy { system, timeline, pid, started_us } = session.known_by.insert(known_by);
    let (system, timeline) = (system.clone(), timeline.clone());
    let xid = number.parse().unwrap_or_default();
    Ok(Some(Witness { xid, system, timeline, pid: *pid, started_us: *started_us }))
}

impl PostgresDatabase {
    /// Refuses a server whose transactions can't be asked about.
    pub(super) async fn prepare_witness(&self) -> Result<(), DbError> {
        let ask = "SELECT count(DISTINCT proname), string_agg(oid::regprocedure::text, ', ') \
                   FILTER (WHERE NOT has_function_privilege(oid, 'EXECUTE')), quote_ident(current_user) \
                   FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY ($1)";
        let rows = self.alone(ask, &[&&FUNCTIONS[..]]).await?;
        let row = rows.first().ok_or_else(|| self.unusable("it doesn't say which functions it has"))?;
        if row.get::<_, i64>(0) < FUNCTIONS.len() as i64 {
            return Err(self.unusable(
                "it is older than PostgreSQL 13, which can't be asked for the fate of a transaction: use a marker",
            ));
        }
        if let Some(functions) = row.get::<_, Option<&str>>(1) {
            let user: &str = row.get(2);
            let cure = format!("GRANT EXECUTE ON FUNCTION {functions} TO {user}");
            return Err(self.unusable(format!("this user lacks rights: {cure}")));
        }
        tracing::info!(database = %self.what, "introspection: beside the sessions of transactions there is one more");
        self.flush().await
    }

    /// Makes durable what the server has logged so far. Those that come while another's flush is under way share the next.
    pub(super) async fn flush(&self) -> Result<(), DbError> {
        if canary::on("unflushed_xid") {
            return Ok(());
        }
        let asked = self.flushes.fetch_add(1, Ordering::SeqCst) + 1;
        let mut second = self.second.lock().await;
        if second.flushed >= asked {
            return Ok(());
        }
        // All of these have their numbers, so whatever is sent from here on comes behind them.
        let shared = self.flushes.load(Ordering::SeqCst);
        let kept = second.session.take();
        second.session = Some(self.flush_over(kept).await?);
        second.flushed = shared;
        Ok(())
    }

    /// A flush over that session, or over a new one when it was ended while it rested.
    async fn flush_over(&self, kept: Option<UserSession>) -> Result<UserSession, DbError> {
        if let Some(session) = kept.filter(|session| !session.client.is_closed()) {
            match session.client.batch_execute(FLUSH).await {
                Ok(()) => return Ok(session),
                Err(error) if ends_session(&error) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        let session: UserSession = self.connect().await.map_err(DbError::for_now)?;
        session.client.batch_execute(FLUSH).await.map_err(|error| failed(&error))?;
        Ok(session)
    }

    pub(super) async fn fate(&self, witness: &Witness) -> Result<Fate, DbError> {
        let rows = match self.alone(FATE, &[&witness.xid.to_string()]).await {
            // It lies in the future of this server.
            Err(DbError::Statement { state: Some(state), message })
                if state == SqlState::INVALID_PARAMETER_VALUE.code() =>
            {
                return Ok(Fate::Unknown(message));
            }
            // A standby has no log of its own to name a timeline by.
            Err(DbError::Statement { state: Some(state), message })
                if state == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE.code() =>
            {
                return Err(DbError::Away(message));
            }
            rows => rows?,
        };
        let row = rows.first().ok_or_else(|| DbError::Away("it doesn't answer".into()))?;
        let (system, timeline): (&str, &str) = (row.get(0), row.get(1));
        if system != witness.system {
            return Ok(Fate::Unknown("the transaction was another server's".into()));
        }
        if timeline != witness.timeline {
            let why =
                format!("the transaction was of timeline {}, and now it is {timeline}", witness.timeline);
            return Ok(Fate::Unknown(why));
        }
        Ok(match row.get::<_, Option<&str>>(2) {
            Some("committed") => Fate::Committed,
            Some("aborted") => Fate::Aborted,
            Some(_) if canary::on("in_progress_is_aborted") => Fate::Aborted,
            Some(_) => Fate::InProgress,
            None => Fate::Unknown("the transaction is so old that the server has forgotten it".into()),
        })
    }

    pub(super) async fn terminate(&self, witness: &Witness) -> Result<bool, DbError> {
        let rows = self.alone(END, &[&witness.pid, &witness.started_us]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}
