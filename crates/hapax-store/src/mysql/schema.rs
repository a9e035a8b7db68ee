//! The tables, and how an older database gets them.
//!
//! Invariant: migrations run behind a lock of the server, so that any number of processes may start at once. Each statement
//! that makes a table commits by itself, so each may be repeated, and the version is written last. A database of a newer
//! program is left alone.

use super::{
    connection::{MySession, TextEnd},
    error::{at_open, refused},
};
use crate::{
    error::StoreError,
    server::sql::{Fault, Session, Value, one, places, values},
};
use hapax_core::error::code;

/// Each entry brings a database from the version that is its index to the next one. Entries are never changed, only
/// added; each may run again where it has run before.
const MIGRATIONS: &[&str] = &[V1];

/// Names are bytes, so that no collation takes two for one. What may be longer than a key is a blob. A step's update of its
/// run touches no indexed column. What is claimed in an order has an index in that order: a server locks all that it sorts.
const V1: &str = r"
CREATE TABLE IF NOT EXISTS hapax_runs (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, part BIGINT NOT NULL,
    graph VARBINARY(255) NOT NULL, fingerprint VARBINARY(32) NOT NULL, input VARBINARY(32) NOT NULL,
    status VARBINARY(32) NOT NULL, status_json LONGBLOB NOT NULL,
    step_id BIGINT NOT NULL, digest VARBINARY(32) NOT NULL, next_seq BIGINT NOT NULL,
    epoch BIGINT NOT NULL, nonce VARBINARY(16) NOT NULL,
    owner VARBINARY(1024), lease_until BIGINT NOT NULL, lease_ttl BIGINT NOT NULL, ready_at BIGINT,
    cancel_requested BIGINT NOT NULL, used_us BIGINT NOT NULL,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
    wake_at BIGINT, wake_letters LONGBLOB, parent VARBINARY(255),
    PRIMARY KEY (namespace, run_id),
    KEY hapax_runs_ready (namespace, ready_at, created_at, run_id, graph, fingerprint),
    KEY hapax_runs_newest (namespace, created_at),
    KEY hapax_runs_owner (owner),
    KEY hapax_runs_parent (namespace, parent),
    KEY hapax_runs_wake (namespace, graph, wake_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_keys (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, step_key VARBINARY(32) NOT NULL,
    step_id BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_checkpoints (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, step_id BIGINT NOT NULL,
    step_key VARBINARY(32) NOT NULL, digest VARBINARY(32) NOT NULL, io VARBINARY(32) NOT NULL,
    outbox VARBINARY(32) NOT NULL, seed BIGINT NOT NULL, next_seq BIGINT NOT NULL,
    state_version BIGINT NOT NULL, state_kind BIGINT NOT NULL, state_base BIGINT, state LONGBLOB NOT NULL,
    frontier LONGBLOB NOT NULL, frontier_len BIGINT NOT NULL, pages LONGBLOB NOT NULL, barriers LONGBLOB,
    label LONGBLOB, created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_frontier (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, step_id BIGINT NOT NULL, page BIGINT NOT NULL,
    items LONGBLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id, page)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_journal (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, seq BIGINT NOT NULL,
    base VARBINARY(32) NOT NULL, step_id BIGINT NOT NULL, path_hash BIGINT NOT NULL, entry LONGBLOB NOT NULL,
    row_sum VARBINARY(8) NOT NULL,
    PRIMARY KEY (namespace, run_id, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_outbox (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, step_id BIGINT NOT NULL,
    position BIGINT NOT NULL, topic VARBINARY(255) NOT NULL, msg_key VARBINARY(255) NOT NULL,
    payload LONGBLOB NOT NULL, status VARBINARY(32) NOT NULL, attempts BIGINT NOT NULL, error LONGBLOB,
    written_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id, position),
    KEY hapax_outbox_unsent (namespace, run_id, topic, status, step_id, position)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_channels (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, topic VARBINARY(255) NOT NULL,
    due_at BIGINT NOT NULL, token VARBINARY(16), owner VARBINARY(1024),
    PRIMARY KEY (namespace, run_id, topic),
    KEY hapax_channels_due (namespace, due_at, run_id, topic)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_letters (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, number BIGINT NOT NULL,
    letter_id VARBINARY(255) NOT NULL, subject LONGBLOB NOT NULL, payload LONGBLOB NOT NULL,
    sent_at BIGINT NOT NULL, taken BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, number),
    UNIQUE KEY hapax_letters_id (namespace, run_id, letter_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_tags (
    namespace VARBINARY(255) NOT NULL, tag_key VARBINARY(255) NOT NULL, tag_value VARBINARY(255) NOT NULL,
    run_id VARBINARY(255) NOT NULL,
    PRIMARY KEY (namespace, tag_key, tag_value, run_id),
    KEY hapax_tags_run (namespace, run_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
";

/// Which program made the tables.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS hapax_schema (version BIGINT PRIMARY KEY, program VARBINARY(255) NOT NULL) \
     ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4";

/// All tables.
const TABLES: [&str; 10] = [
    "hapax_runs",
    "hapax_keys",
    "hapax_checkpoints",
    "hapax_frontier",
    "hapax_journal",
    "hapax_outbox",
    "hapax_channels",
    "hapax_letters",
    "hapax_tags",
    "hapax_schema",
];

/// How long another process may migrate, in seconds.
const PATIENCE: i64 = 50;

/// Brings the database to our version.
pub(super) async fn migrate(session: &mut MySession, what: &str) -> Result<(), StoreError> {
    let about = |fault| at_open(what, fault);
    let found = version(session).await.map_err(about)?;
    check(what, found.as_ref())?;
    if found.is_none_or(|(version, _)| version < ours()) {
        lock(session).await.map_err(about)?;
        // Another process may have been faster, or newer.
        let found = version(session).await.map_err(about)?;
        check(what, found.as_ref())?;
        let applied = apply(session, found.map_or(0, |(version, _)| version)).await;
        // The lock of a session that can't give it back ends with the session.
        let unlocked = session.rows("SELECT RELEASE_LOCK(?)", values![lock_name(session).as_str()]).await;
        applied.and(unlocked.map(drop)).map_err(about)?;
    }
    demand_innodb(session, what).await
}

fn check(what: &str, found: Option<&(i64, String)>) -> Result<(), StoreError> {
    let Some((version, program)) = found.filter(|(version, _)| *version > ours()) else { return Ok(()) };
    let why = format!(
        "its tables were written by {program} (schema {version}); this is {} (schema {}): \
         use that version or a newer one",
        program_name(),
        ours()
    );
    Err(refused(what, why, code::SCHEMA_TOO_NEW))
}

/// Locks are the server's, not the database's. The name holds no more than 64 characters.
fn lock_name(session: &MySession) -> String {
    let place = session.place();
    format!("hapax {}", &hapax_core::key::sha256(place.as_bytes()).to_string()[..40])
}

async fn lock(session: &mut MySession) -> Result<(), Fault> {
    let name = lock_name(session);
    let row = one(session, "SELECT GET_LOCK(?, ?)", values![name.as_str(), PATIENCE]).await?;
    match row.map_or(Ok(None), |row| row.maybe_int(0))? {
        Some(1) => Ok(()),
        _ => Err(Fault::Again("another process makes the tables, and takes too long".into())),
    }
}

async fn apply(session: &mut MySession, from: i64) -> Result<(), Fault> {
    session.text(SCHEMA, TextEnd::Idle).await?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        for statement in migration.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            session.text(statement, TextEnd::Idle).await?;
        }
    }
    if from < ours() {
        session.begin().await?;
        session.execute("DELETE FROM hapax_schema", values![]).await?;
        let sql = "INSERT INTO hapax_schema (version, program) VALUES (?, ?)";
        session.execute(sql, values![ours(), program_name().as_str()]).await?;
        session.commit().await?;
    }
    Ok(())
}

/// Refuses tables that forget nothing when a transaction is undone.
async fn demand_innodb(session: &mut MySession, what: &str) -> Result<(), StoreError> {
    let about = |fault| at_open(what, fault);
    let tables = TABLES.map(|table| session.table(table));
    let names: Vec<Value<'_>> = tables.iter().map(|table| Value::from(table.as_str())).collect();
    let sql = format!(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() \
         AND ENGINE <> 'InnoDB' AND TABLE_NAME IN {}",
        places(names.len())
    );
    let Some(row) = one(session, &sql, &names).await.map_err(about)? else { return Ok(()) };
    let table = row.text(0).map_err(about)?;
    let why = format!("its table {table} has no transactions: ALTER TABLE {table} ENGINE=InnoDB");
    Err(refused(what, why, code::CANNOT_OPEN))
}

/// The version of this program's tables.
const fn ours() -> i64 {
    MIGRATIONS.len() as i64
}

/// The version of the database's tables, and the program that made them; `None` while they are being made.
async fn version(session: &mut MySession) -> Result<Option<(i64, String)>, Fault> {
    let table = session.table("hapax_schema");
    let sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?";
    if one(session, sql, values![table.as_str()]).await?.is_none() {
        return Ok(None);
    }
    let sql = "SELECT version, program FROM hapax_schema ORDER BY version DESC LIMIT 1";
    let row = one(session, sql, values![]).await?;
    row.map(|row| Ok((row.int(0)?, row.text(1)?.to_owned()))).transpose()
}

fn program_name() -> String {
    format!("hapax {}", env!("CARGO_PKG_VERSION"))
}
