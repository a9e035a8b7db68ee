//! The tables, and how an older database gets them.
//!
//! Invariant: migrations run behind a lock of the server, so that any number of processes may start at once. Each statement
//! that makes a table commits by itself, so each may be repeated, and the version is written last. A database of a newer
//! program is left alone.

use super::{
    connection::{MySession, TextEnd},
    error::{at_open, is_denied, refused},
};
use crate::{
    error::StoreError,
    server::{
        NO_STORE, RIGHTS, TABLES, VERSION_LOST, rights_missing,
        sql::{Fault, Session, Value, one, places, values},
        tables_missing,
    },
};
use hapax_core::error::code;
use std::collections::BTreeMap;

/// Each entry brings a database from the version that is its index to the next one. Entries are never changed, only
/// added; each may run again where it has run before. What one adds to a table stands where the table is made as well: who
/// makes the tables anew needs no right to alter them.
const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5, V6, V7];

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
    terms LONGBLOB, head_start BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, run_id),
    KEY hapax_runs_ready (namespace, ready_at, created_at, run_id, graph, fingerprint),
    KEY hapax_runs_newest (namespace, created_at),
    KEY hapax_runs_owner (owner),
    KEY hapax_runs_parent (namespace, parent),
    KEY hapax_runs_wake (namespace, graph, wake_at),
    KEY hapax_runs_status (namespace, status, created_at)
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
    KEY hapax_outbox_unsent (namespace, run_id, topic, status, step_id, position),
    KEY hapax_outbox_backlog (namespace, status, written_at)
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

/// What isn't delivered, by age, and runs by where they stand, for whoever looks how many there are.
const V2: &str = "
CREATE INDEX hapax_outbox_backlog ON hapax_outbox (namespace, status, written_at);
CREATE INDEX hapax_runs_status ON hapax_runs (namespace, status, created_at);
";

/// Runs that start by the clock: when the next one does.
const V3: &str = r"
CREATE TABLE IF NOT EXISTS hapax_schedules (
    namespace VARBINARY(255) NOT NULL, name VARBINARY(255) NOT NULL, graph VARBINARY(255) NOT NULL,
    input LONGBLOB NOT NULL, input_version BIGINT, cron VARBINARY(255) NOT NULL, zone_name VARBINARY(255) NOT NULL,
    on_overlap VARBINARY(32) NOT NULL, catch_up BIGINT NOT NULL, token VARBINARY(16) NOT NULL, paused BIGINT NOT NULL,
    next_at BIGINT, last_at BIGINT, last_run VARBINARY(255), started BIGINT NOT NULL, skipped BIGINT NOT NULL,
    missed BIGINT NOT NULL, created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, name),
    KEY hapax_schedules_due (namespace, next_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
";

/// Large payloads beside their rows, known by their hash within their run.
const V4: &str = r"
CREATE TABLE IF NOT EXISTS hapax_blobs (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, hash VARBINARY(32) NOT NULL, part BIGINT NOT NULL,
    bytes LONGBLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, hash, part)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
";

/// Flow control: who holds which slot of a concurrency key, who waits for one, and what is known of a name. A run's head start
/// is how much earlier than it did it counts as having come.
const V5: &str = r"
ALTER TABLE hapax_runs ADD COLUMN terms LONGBLOB;
ALTER TABLE hapax_runs ADD COLUMN head_start BIGINT NOT NULL DEFAULT 0;
CREATE TABLE IF NOT EXISTS hapax_flow_slots (
    namespace VARBINARY(255) NOT NULL, flow_key VARBINARY(255) NOT NULL, slot BIGINT NOT NULL,
    run_id VARBINARY(255) NOT NULL, token VARBINARY(64) NOT NULL, most BIGINT NOT NULL, since BIGINT NOT NULL,
    PRIMARY KEY (namespace, flow_key, slot),
    KEY hapax_flow_slots_run (namespace, run_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS hapax_flow_queue (
    namespace VARBINARY(255) NOT NULL, flow_key VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL,
    position BIGINT NOT NULL, most BIGINT NOT NULL, token VARBINARY(64) NOT NULL, rest LONGBLOB NOT NULL,
    PRIMARY KEY (namespace, flow_key, run_id),
    KEY hapax_flow_queue_next (namespace, flow_key, position, run_id),
    KEY hapax_flow_queue_run (namespace, run_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS hapax_flow_names (
    namespace VARBINARY(255) NOT NULL, kind VARBINARY(32) NOT NULL, name VARBINARY(255) NOT NULL,
    run_id VARBINARY(255), token VARBINARY(64), at_us BIGINT NOT NULL,
    PRIMARY KEY (namespace, kind, name),
    KEY hapax_flow_names_run (namespace, run_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
";

/// Which shard the database is, if it is one of several.
const V6: &str = r"
CREATE TABLE IF NOT EXISTS hapax_shards (
    namespace VARBINARY(255) NOT NULL PRIMARY KEY, plate LONGBLOB NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
";

/// Large payloads that rest in an object store: what it holds of ours, and whether a run refers to it.
const V7: &str = r"
CREATE TABLE IF NOT EXISTS hapax_objects (
    namespace VARBINARY(255) NOT NULL, run_id VARBINARY(255) NOT NULL, hash VARBINARY(32) NOT NULL, name VARBINARY(255) NOT NULL,
    state BIGINT NOT NULL, since BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, hash, name),
    KEY hapax_objects_due (state, since)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;
";

/// Which program made the tables.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS hapax_schema (version BIGINT PRIMARY KEY, program VARBINARY(255) NOT NULL) \
     ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4";

/// How long another process may migrate, in seconds.
const PATIENCE: i64 = 50;

/// Brings the database to our version.
pub(super) async fn migrate(session: &mut MySession, what: &str, must_exist: bool) -> Result<(), StoreError> {
    let found = match version(session).await {
        // Tables that may not be read are there.
        Err(fault) if is_denied(&fault) => return Err(rights_or(session, what, fault).await),
        found => found.map_err(|fault| at_open(what, fault))?,
    };
    check(what, found.as_ref())?;
    if must_exist && found.is_none() {
        return Err(refused(what, NO_STORE, code::CANNOT_OPEN));
    }
    if found.is_none_or(|(version, _)| version < ours())
        && let Err(fault) = make(session, what).await?
    {
        return Err(may_not_create(session, what, fault).await);
    }
    demand_innodb(session, what).await?;
    demand_rights(session, what).await
}

/// Makes the tables, behind the lock.
async fn make(session: &mut MySession, what: &str) -> Result<Result<(), Fault>, StoreError> {
    let about = |fault| at_open(what, fault);
    lock(session).await.map_err(about)?;
    // Another process may have been faster, or newer.
    let found = version(session).await.map_err(about)?;
    check(what, found.as_ref())?;
    let from = found.map_or(0, |(version, _)| version);
    // Tables without a version are what whoever made them was killed in, unless they hold something.
    if from < 1 && holds_anything(session).await.map_err(about)? {
        return Err(refused(what, VERSION_LOST, code::CANNOT_OPEN));
    }
    let applied = apply(session, from).await;
    // The lock of a session that can't give it back ends with the session.
    let unlocked = session.rows("SELECT RELEASE_LOCK(?)", values![lock_name(session).as_str()]).await;
    Ok(applied.and(unlocked.map(drop)))
}

/// Whether any of our tables has a row.
async fn holds_anything(session: &mut MySession) -> Result<bool, Fault> {
    for table in TABLES {
        let name = session.table(table);
        if is_there(session, &name).await?
            && one(session, &format!("SELECT 1 FROM {table} LIMIT 1"), values![]).await?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
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
            if !has_index(session, statement).await? && !has_column(session, statement).await? {
                session.text(statement, TextEnd::Idle).await?;
            }
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

/// Whether it makes an index that is there already. Not all servers know "unless it is there" of an index, and who made it
/// with its table needs no right to make it now.
async fn has_index(session: &mut MySession, statement: &str) -> Result<bool, Fault> {
    let name = statement.strip_prefix("CREATE INDEX ").and_then(|rest| rest.split(' ').next());
    let Some(name) = name.map(|name| session.table(name)) else { return Ok(false) };
    let sql = "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND INDEX_NAME = ? LIMIT 1";
    Ok(one(session, sql, values![name.as_str()]).await?.is_some())
}

/// Whether it adds a column that is there already.
async fn has_column(session: &mut MySession, statement: &str) -> Result<bool, Fault> {
    let added = statement.strip_prefix("ALTER TABLE ").and_then(|rest| rest.split_once(" ADD COLUMN "));
    let Some((table, column)) = added else { return Ok(false) };
    let (table, column) = (session.table(table), column.split(' ').next().unwrap_or_default());
    let sql = "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? \
               AND COLUMN_NAME = ? LIMIT 1";
    Ok(one(session, sql, values![table.as_str(), column]).await?.is_some())
}

/// Refuses a database that has lost tables, and tables that forget nothing when a transaction is undone.
async fn demand_innodb(session: &mut MySession, what: &str) -> Result<(), StoreError> {
    let about = |fault| at_open(what, fault);
    let tables = TABLES.map(|table| session.table(table));
    let names: Vec<Value<'_>> = tables.iter().map(|table| Value::from(table.as_str())).collect();
    let sql = format!(
        "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN {}",
        places(names.len())
    );
    let mut engines = BTreeMap::new();
    for row in session.rows(&sql, &names).await.map_err(about)? {
        let engine = row.maybe_text(1).map_err(about)?.unwrap_or_default().to_owned();
        engines.insert(row.text(0).map_err(about)?.to_owned(), engine);
    }
    // A table that the user may do nothing with isn't shown, so it is the rights that are missing.
    let missing: Vec<String> = tables.iter().filter(|table| !engines.contains_key(*table)).cloned().collect();
    if !missing.is_empty() {
        demand_rights(session, what).await?;
        return Err(refused(what, tables_missing(&missing), code::CANNOT_OPEN));
    }
    let Some((table, _)) = engines.iter().find(|(_, engine)| *engine != "InnoDB") else { return Ok(()) };
    let why = format!("its table {table} has no transactions: ALTER TABLE {table} ENGINE=InnoDB");
    Err(refused(what, why, code::CANNOT_OPEN))
}

/// What is done with a table, without doing it. A statement that is only explained needs the same rights: no list of
/// grants tells of roles and patterns.
pub(super) fn probe(table: &str, right: &str) -> String {
    match right {
        "INSERT" => format!("EXPLAIN INSERT INTO {table} () VALUES ()"),
        "UPDATE" => format!("EXPLAIN UPDATE {table} SET namespace = '' WHERE 1 = 0"),
        "DELETE" => format!("EXPLAIN DELETE FROM {table} WHERE 1 = 0"),
        _ => format!("EXPLAIN SELECT * FROM {table}"),
    }
}

/// Refuses a user who may not do with the tables what is done with them; of the program's own only reading is.
async fn demand_rights(session: &mut MySession, what: &str) -> Result<(), StoreError> {
    let about = |fault| at_open(what, fault);
    let rights = session.rights();
    let each = TABLES.iter().flat_map(|table| rights.iter().map(|right| (*table, *right)));
    let all: Vec<_> = each.chain([("hapax_schema", RIGHTS[0])]).collect();
    let together: Vec<String> = all.iter().map(|(table, right)| probe(table, right)).collect();
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    match session.text(&together.join("; "), TextEnd::InTransaction).await {
        // A table that is gone is another's to report.
        Err(fault) if is_denied(&fault) || matches!(fault, Fault::Damage(..)) => {}
        explained => {
            explained.map_err(about)?;
            return session.rollback().await.map_err(about);
        }
    }
    for (table, right) in all {
        let explained = session.text(&probe(table, right), TextEnd::InTransaction).await;
        if explained.is_err_and(|fault| is_denied(&fault)) {
            missing.entry(table).or_default().push(right);
        }
    }
    session.rollback().await.map_err(about)?;
    let mut grants = vec![];
    for (table, rights) in missing {
        let table = session.table(table);
        grants.push(grant(session, &rights.join(", "), &format!("`{table}`")).await.map_err(about)?);
    }
    if grants.is_empty() { Ok(()) } else { Err(refused(what, rights_missing(&grants), code::CANNOT_OPEN)) }
}

/// The statement that grants this user rights on what is in the database.
pub(super) async fn grant(session: &mut MySession, rights: &str, on: &str) -> Result<String, Fault> {
    let row = one(session, "SELECT CURRENT_USER(), DATABASE()", values![]).await?;
    let row = row.ok_or_else(|| Fault::damage("the server names no user"))?;
    let (user, host) = row.text(0)?.rsplit_once('@').unwrap_or((row.text(0)?, "%"));
    Ok(format!("GRANT {rights} ON `{}`.{on} TO '{user}'@'{host}'", row.text(1)?))
}

/// Tables that may not even be read: which rights are missing, or what the server said.
async fn rights_or(session: &mut MySession, what: &str, fault: Fault) -> StoreError {
    // The statement that was refused has begun a transaction.
    let undone = session.rollback().await;
    match undone.map_err(|fault| at_open(what, fault)) {
        Ok(()) => demand_rights(session, what).await.err().unwrap_or_else(|| at_open(what, fault)),
        Err(error) => error,
    }
}

/// A table with which a user may do nothing looks as if it weren't there. Where another of ours is, they are all there.
async fn demand_those_seen(session: &mut MySession, what: &str) -> Result<(), StoreError> {
    let table = session.table("hapax_runs");
    match is_there(session, &table).await.map_err(|fault| at_open(what, fault))? {
        true => demand_rights(session, what).await,
        false => Ok(()),
    }
}

pub(super) async fn is_there(session: &mut MySession, table: &str) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?";
    Ok(one(session, sql, values![table]).await?.is_some())
}

/// Why the tables can't be made.
async fn may_not_create(session: &mut MySession, what: &str, fault: Fault) -> StoreError {
    if !is_denied(&fault) {
        return at_open(what, fault);
    }
    if let Err(error) = demand_those_seen(session, what).await {
        return error;
    }
    // Tables that are there lack a column or an index, or one of them lacks all.
    let table = session.table("hapax_runs");
    let rights = match is_there(session, &table).await {
        Ok(true) => format!("CREATE, ALTER, INDEX, {}", RIGHTS.join(", ")),
        _ => format!("CREATE, {}", RIGHTS.join(", ")),
    };
    match grant(session, &rights, "*").await {
        Ok(grant) => refused(what, rights_missing(&[grant]), code::CANNOT_OPEN),
        Err(fault) => at_open(what, fault),
    }
}

/// The version of this program's tables.
const fn ours() -> i64 {
    MIGRATIONS.len() as i64
}

/// The version of the database's tables, and the program that made them; `None` while they are being made.
async fn version(session: &mut MySession) -> Result<Option<(i64, String)>, Fault> {
    let table = session.table("hapax_schema");
    if !is_there(session, &table).await? {
        return Ok(None);
    }
    let sql = "SELECT version, program FROM hapax_schema ORDER BY version DESC LIMIT 1";
    let row = one(session, sql, values![]).await?;
    row.map(|row| Ok((row.int(0)?, row.text(1)?.to_owned()))).transpose()
}

fn program_name() -> String {
    format!("hapax {}", env!("CARGO_PKG_VERSION"))
}
