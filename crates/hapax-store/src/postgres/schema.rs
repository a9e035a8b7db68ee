//! The tables, and how an older database gets them.
//!
//! Invariant: migrations run in one transaction behind an advisory lock, so that any number of processes may start at
//! once; a database of a newer program is left alone.

use super::{connection::PgSession, error::refused};
use crate::{
    error::StoreError,
    server::{
        NO_STORE, TABLES, VERSION_LOST,
        error::{all_runs, undone},
        rights_missing,
        sql::{Fault, Row, Session, one, values},
        tables_missing,
    },
};
use hapax_core::{canary, error::code, id::Namespace};

/// Each entry brings a database from the version that is its index to the next one. Entries are never changed, only
/// added.
const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5, V6, V7, V8];

/// Identifiers are compared byte by byte. A step's update of its run touches no indexed column, so that it is written
/// in place.
const V1: &str = r#"
CREATE TABLE hapax_runs (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, part BIGINT NOT NULL,
    graph TEXT COLLATE "C" NOT NULL, fingerprint BYTEA NOT NULL, input BYTEA NOT NULL,
    status TEXT COLLATE "C" NOT NULL, status_json TEXT NOT NULL,
    step_id BIGINT NOT NULL, digest BYTEA NOT NULL, next_seq BIGINT NOT NULL,
    epoch BIGINT NOT NULL, nonce BYTEA NOT NULL,
    owner TEXT COLLATE "C", lease_until BIGINT NOT NULL, lease_ttl BIGINT NOT NULL, ready_at BIGINT,
    cancel_requested BIGINT NOT NULL, used_us BIGINT NOT NULL,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
    wake_at BIGINT, wake_letters TEXT, parent TEXT COLLATE "C",
    PRIMARY KEY (namespace, run_id)
) WITH (fillfactor = 70);
CREATE INDEX hapax_runs_ready ON hapax_runs (namespace, graph, ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX hapax_runs_newest ON hapax_runs (namespace, created_at);
CREATE INDEX hapax_runs_owner ON hapax_runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX hapax_runs_parent ON hapax_runs (namespace, parent) WHERE parent IS NOT NULL;
CREATE INDEX hapax_runs_wake ON hapax_runs (namespace, graph, wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE hapax_keys (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, step_key BYTEA NOT NULL, step_id BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_key)
);

CREATE TABLE hapax_checkpoints (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, step_id BIGINT NOT NULL,
    step_key BYTEA NOT NULL, digest BYTEA NOT NULL, io BYTEA NOT NULL, outbox BYTEA NOT NULL,
    seed BIGINT NOT NULL, next_seq BIGINT NOT NULL,
    state_version BIGINT NOT NULL, state_kind BIGINT NOT NULL, state_base BIGINT, state BYTEA NOT NULL,
    frontier BYTEA NOT NULL, frontier_len BIGINT NOT NULL, pages BYTEA NOT NULL, barriers BYTEA,
    label TEXT, created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id)
);
ALTER TABLE hapax_checkpoints ALTER COLUMN state SET STORAGE EXTERNAL;

CREATE TABLE hapax_frontier (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, step_id BIGINT NOT NULL, page BIGINT NOT NULL,
    items BYTEA NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id, page)
);

CREATE TABLE hapax_journal (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL,
    base BYTEA NOT NULL, step_id BIGINT NOT NULL, path_hash BIGINT NOT NULL, entry BYTEA NOT NULL,
    row_sum BYTEA NOT NULL,
    PRIMARY KEY (namespace, run_id, seq)
);

CREATE TABLE hapax_outbox (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, step_id BIGINT NOT NULL, position BIGINT NOT NULL,
    topic TEXT COLLATE "C" NOT NULL, msg_key TEXT NOT NULL, payload BYTEA NOT NULL, status TEXT COLLATE "C" NOT NULL,
    attempts BIGINT NOT NULL, error BYTEA, written_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id, position)
);
CREATE INDEX hapax_outbox_unsent ON hapax_outbox (namespace, run_id, topic, step_id, position) WHERE status <> 'sent';

CREATE TABLE hapax_channels (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, topic TEXT COLLATE "C" NOT NULL,
    due_at BIGINT NOT NULL, token BYTEA, owner TEXT COLLATE "C",
    PRIMARY KEY (namespace, run_id, topic)
);
CREATE INDEX hapax_channels_due ON hapax_channels (namespace, due_at);

CREATE TABLE hapax_letters (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL,
    letter_id TEXT COLLATE "C" NOT NULL, subject TEXT COLLATE "C" NOT NULL, payload BYTEA NOT NULL, sent_at BIGINT NOT NULL,
    taken BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, number)
);
CREATE UNIQUE INDEX hapax_letters_id ON hapax_letters (namespace, run_id, letter_id);

CREATE TABLE hapax_tags (
    namespace TEXT COLLATE "C" NOT NULL, tag_key TEXT COLLATE "C" NOT NULL, tag_value TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, tag_key, tag_value, run_id)
);
CREATE INDEX hapax_tags_run ON hapax_tags (namespace, run_id);
"#;

/// Plans are made while the tables are empty, when the server takes any index that begins with the namespace for as good
/// as the primary key. These two hold all rows, and only who says that the time is above 0 can use them.
const V2: &str = "
DROP INDEX hapax_runs_newest;
CREATE INDEX hapax_runs_newest ON hapax_runs (namespace, created_at) WHERE created_at > 0;
DROP INDEX hapax_channels_due;
CREATE INDEX hapax_channels_due ON hapax_channels (namespace, due_at) WHERE due_at > 0;
";

/// What isn't delivered, by age, and runs by where they stand, for whoever looks how many there are. Again in words that no
/// other statement uses; none of these columns changes with a step.
const V3: &str = "
CREATE INDEX hapax_outbox_backlog ON hapax_outbox (namespace, status, written_at) WHERE status <> 'sent' AND written_at >= 0;
CREATE INDEX hapax_runs_status ON hapax_runs (namespace, status, created_at) WHERE part >= 0;
";

/// Runs that start by the clock: when the next one does.
const V4: &str = r#"
CREATE TABLE hapax_schedules (
    namespace TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL, graph TEXT COLLATE "C" NOT NULL,
    input BYTEA NOT NULL, input_version BIGINT, cron TEXT NOT NULL, zone_name TEXT NOT NULL, on_overlap TEXT NOT NULL,
    catch_up BIGINT NOT NULL, token BYTEA NOT NULL, paused BIGINT NOT NULL, next_at BIGINT, last_at BIGINT,
    last_run TEXT COLLATE "C", started BIGINT NOT NULL, skipped BIGINT NOT NULL, missed BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, name)
);
CREATE INDEX hapax_schedules_due ON hapax_schedules (namespace, next_at) WHERE next_at > 0;
"#;

/// Large payloads beside their rows, known by their hash within their run. They are compressed already, or encrypted.
const V5: &str = r#"
CREATE TABLE hapax_blobs (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, hash BYTEA NOT NULL, part BIGINT NOT NULL,
    bytes BYTEA NOT NULL,
    PRIMARY KEY (namespace, run_id, hash, part)
);
ALTER TABLE hapax_blobs ALTER COLUMN bytes SET STORAGE EXTERNAL;
"#;

/// Flow control: who holds which slot of a concurrency key, who waits for one, and what is known of a name. A run's head start
/// is how much earlier than it did it counts as having come. Only who asks by run says that `most` is above 0: others would take
/// these indexes for as good as the key's.
const V6: &str = r#"
ALTER TABLE hapax_runs ADD COLUMN terms TEXT;
ALTER TABLE hapax_runs ADD COLUMN head_start BIGINT NOT NULL DEFAULT 0;
CREATE TABLE hapax_flow_slots (
    namespace TEXT COLLATE "C" NOT NULL, flow_key TEXT COLLATE "C" NOT NULL, slot BIGINT NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL, token TEXT COLLATE "C" NOT NULL, most BIGINT NOT NULL, since BIGINT NOT NULL,
    PRIMARY KEY (namespace, flow_key, slot)
);
CREATE INDEX hapax_flow_slots_run ON hapax_flow_slots (namespace, run_id) WHERE most > 0;
CREATE TABLE hapax_flow_queue (
    namespace TEXT COLLATE "C" NOT NULL, flow_key TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL,
    position BIGINT NOT NULL, most BIGINT NOT NULL, token TEXT COLLATE "C" NOT NULL, rest TEXT NOT NULL,
    PRIMARY KEY (namespace, flow_key, run_id)
);
CREATE INDEX hapax_flow_queue_next ON hapax_flow_queue (namespace, flow_key, position, run_id);
CREATE INDEX hapax_flow_queue_run ON hapax_flow_queue (namespace, run_id) WHERE most > 0;
CREATE TABLE hapax_flow_names (
    namespace TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C", token TEXT COLLATE "C", at_us BIGINT NOT NULL,
    PRIMARY KEY (namespace, kind, name)
);
CREATE INDEX hapax_flow_names_run ON hapax_flow_names (namespace, run_id) WHERE run_id IS NOT NULL;
"#;

/// Which shard the database is, if it is one of several.
const V7: &str = r#"
CREATE TABLE hapax_shards (namespace TEXT COLLATE "C" PRIMARY KEY, plate BYTEA NOT NULL);
"#;

/// Large payloads that rest in an object store: what it holds of ours, and whether a run refers to it.
const V8: &str = r#"
CREATE TABLE hapax_objects (
    namespace TEXT COLLATE "C" NOT NULL, run_id TEXT COLLATE "C" NOT NULL, hash BYTEA NOT NULL, name TEXT COLLATE "C" NOT NULL,
    state BIGINT NOT NULL, since BIGINT NOT NULL,
    PRIMARY KEY (namespace, run_id, hash, name)
);
CREATE INDEX hapax_objects_due ON hapax_objects (since) WHERE state <> 1;
"#;

/// Whoever migrates holds this lock: the first bytes of "hapax" as a number.
pub(super) const LOCK: i64 = 0x68_61_70_61_78;

/// Brings the database to our version.
pub(super) async fn migrate(session: &mut PgSession, what: &str, must_exist: bool) -> Result<(), StoreError> {
    let about = |fault: Fault| undone(fault, &all_runs(&Namespace::default()));
    let lacking = |grants: Vec<String>| match &*grants {
        [] => Ok(()),
        grants => Err(refused(what, rights_missing(grants), code::CANNOT_OPEN)),
    };
    lacking(missing_for_schema(session, "USAGE").await.map_err(about)?)?;
    if has_tables(session).await.map_err(about)? {
        lacking(missing_for_tables(session).await.map_err(about)?)?;
        let found = version(session).await.map_err(about)?;
        found.iter().try_for_each(|found| check(what, found))?;
        if found.is_some_and(|(version, _)| version == ours()) {
            return demand_tables(session, what).await;
        }
    } else if must_exist {
        return Err(refused(what, NO_STORE, code::CANNOT_OPEN));
    }
    lacking(missing_for_schema(session, "CREATE").await.map_err(about)?)?;
    session.begin().await.map_err(about)?;
    let applied = apply(session).await.map_err(about);
    if let Ok(true) = applied {
        return session.commit().await.map_err(about);
    }
    // A session that can't roll back is closed, which does the same.
    let _ = session.rollback().await;
    applied.and_then(|_| Err(refused(what, VERSION_LOST, code::CANNOT_OPEN)))
}

fn check(what: &str, (version, program): &(i64, String)) -> Result<(), StoreError> {
    if *version <= ours() {
        return Ok(());
    }
    let why = format!(
        "its tables were written by {program} (schema {version}); this is {} (schema {}): \
         use that version or a newer one",
        program_name(),
        ours()
    );
    Err(refused(what, why, code::SCHEMA_TOO_NEW))
}

/// Makes the tables, behind the lock, all of them or none. `false`: some are there, and nobody knows of which version.
async fn apply(session: &mut PgSession) -> Result<bool, Fault> {
    session.rows("SELECT 1 FROM pg_advisory_xact_lock(?)", values![LOCK]).await?;
    let found = if has_tables(session).await? { version(session).await? } else { None };
    let from = found.map_or(0, |(version, _)| version);
    if from < 1 {
        if missing(session).await?.len() < TABLES.len() {
            return Ok(false);
        }
        let sql =
            "CREATE TABLE IF NOT EXISTS hapax_schema (version BIGINT PRIMARY KEY, program TEXT NOT NULL)";
        session.script(sql).await?;
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        let planned = migration.replace(" WHERE created_at > 0", "");
        session.script(if canary::on("any_index") { &planned } else { migration }).await?;
    }
    if from < ours() {
        session.execute("DELETE FROM hapax_schema", values![]).await?;
        let sql = "INSERT INTO hapax_schema (version, program) VALUES (?, ?)";
        session.execute(sql, values![ours(), program_name().as_str()]).await?;
    }
    Ok(true)
}

/// The version of this program's tables.
const fn ours() -> i64 {
    MIGRATIONS.len() as i64
}

/// Whether somebody has made the tables.
async fn has_tables(session: &mut PgSession) -> Result<bool, Fault> {
    let (table, schema) = (session.table("hapax_schema"), session.schema());
    // Read from the catalogue's own rows: a name that was looked up before is cached, also that it wasn't there.
    let sql = "SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.relname = ? AND n.nspname = ?";
    Ok(one(session, sql, values![table.as_str(), schema.as_str()]).await?.is_some())
}

/// The version of the database's tables, and the program that made them; `None`: its row is gone.
async fn version(session: &mut PgSession) -> Result<Option<(i64, String)>, Fault> {
    let sql = "SELECT version, program FROM hapax_schema ORDER BY version DESC LIMIT 1";
    let row = one(session, sql, values![]).await?;
    row.map(|row| Ok((row.int(0)?, row.text(1)?.to_owned()))).transpose()
}

/// Refuses a database that has lost tables.
async fn demand_tables(session: &mut PgSession, what: &str) -> Result<(), StoreError> {
    let about = |fault: Fault| undone(fault, &all_runs(&Namespace::default()));
    let missing = missing(session).await.map_err(about)?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(refused(what, tables_missing(&missing), code::CANNOT_OPEN))
}

/// Our tables that aren't there.
async fn missing(session: &mut PgSession) -> Result<Vec<String>, Fault> {
    let (names, schema) = (TABLES.map(|table| session.table(table)), session.schema());
    let sql = "SELECT t.name FROM unnest(string_to_array(?, ' ')) AS t(name) WHERE NOT EXISTS \
               (SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.relname = t.name AND n.nspname = ?)";
    texts(&session.rows(sql, values![names.join(" ").as_str(), schema.as_str()]).await?)
}

/// The statements that would grant what is done with the tables and isn't allowed; of the program's own only reading is.
async fn missing_for_tables(session: &mut PgSession) -> Result<Vec<String>, Fault> {
    let (own, schema) = (session.table("hapax_schema"), session.schema());
    let names =
        [&TABLES.map(|table| session.table(table))[..], std::slice::from_ref(&own)].concat().join(" ");
    let sql = "SELECT format('GRANT %s ON %I.%I TO %I', string_agg(r.word, ', ' ORDER BY r.n), n.nspname, c.relname, \
               current_user) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               CROSS JOIN unnest(string_to_array(?, ' ')) WITH ORDINALITY AS r(word, n) \
               WHERE n.nspname = ? AND c.relname = ANY (string_to_array(?, ' ')) AND (c.relname <> ? OR r.n = 1) \
               AND NOT has_table_privilege(c.oid, r.word) GROUP BY n.nspname, c.relname ORDER BY c.relname";
    let rights = session.rights().join(" ");
    let values = values![rights.as_str(), schema.as_str(), names.as_str(), own.as_str()];
    texts(&session.rows(sql, values).await?)
}

/// The statements that would grant a right on the schema that is missing, or make the schema.
pub(super) async fn missing_for_schema(session: &mut PgSession, right: &str) -> Result<Vec<String>, Fault> {
    let schema = session.schema();
    let sql = "SELECT CASE WHEN n.oid IS NULL THEN format('CREATE SCHEMA %I AUTHORIZATION %I', s.name, current_user) \
               ELSE format('GRANT %s ON SCHEMA %I TO %I', s.word, s.name, current_user) END \
               FROM (SELECT ?::text AS name, ?::text AS word) AS s \
               LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = s.name \
               WHERE n.oid IS NULL OR NOT has_schema_privilege(n.oid, s.word)";
    texts(&session.rows(sql, values![schema.as_str(), right]).await?)
}

pub(super) fn texts(rows: &[Row]) -> Result<Vec<String>, Fault> {
    rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
}

fn program_name() -> String {
    format!("hapax {}", env!("CARGO_PKG_VERSION"))
}
