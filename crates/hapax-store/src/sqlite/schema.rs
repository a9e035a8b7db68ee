//! The tables, and how an older file gets them.
//!
//! Invariant: migrations run in one transaction that holds the write lock from its first statement, so that
//! several processes may open a file at once; a file of a newer program is left alone.

use super::error::{Refusal, cannot_open, damaged};
use hapax_core::error::code;
use rusqlite::{Connection, params};
use std::collections::HashSet;

/// Each entry brings a file from the version that is its index to the next one. Entries are never changed, only
/// added.
const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5, V6, V7, V8, V9];

/// Which version the tables have.
const SCHEMA: &str =
    "CREATE TABLE hapax_schema (version INTEGER PRIMARY KEY, program TEXT NOT NULL) WITHOUT ROWID";

/// All tables are clustered by their literal primary key: a run's rows lie together, and the random step keys are
/// only random within their run.
const V1: &str = "
CREATE TABLE hapax_runs (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL,
    graph TEXT NOT NULL, fingerprint BLOB NOT NULL, input BLOB NOT NULL,
    status TEXT NOT NULL, status_json TEXT NOT NULL,
    step_id INTEGER NOT NULL, digest BLOB NOT NULL, next_seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL, nonce BLOB NOT NULL,
    owner TEXT, lease_until INTEGER NOT NULL, lease_ttl INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL, used_us INTEGER NOT NULL,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id)
) WITHOUT ROWID;
CREATE INDEX hapax_runs_ready ON hapax_runs (namespace, status, graph, created_at);
CREATE INDEX hapax_runs_newest ON hapax_runs (namespace, created_at);
CREATE INDEX hapax_runs_owner ON hapax_runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX hapax_runs_cancel ON hapax_runs (namespace, graph, status) WHERE cancel_requested = 1;

CREATE TABLE hapax_keys (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, key BLOB NOT NULL, step_id INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id, key)
) WITHOUT ROWID;

CREATE TABLE hapax_checkpoints (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, step_id INTEGER NOT NULL,
    key BLOB NOT NULL, digest BLOB NOT NULL, io BLOB NOT NULL, outbox BLOB NOT NULL,
    seed INTEGER NOT NULL, next_seq INTEGER NOT NULL,
    state_version INTEGER NOT NULL, state_kind INTEGER NOT NULL, state_base INTEGER, state BLOB NOT NULL,
    frontier BLOB NOT NULL, frontier_len INTEGER NOT NULL, pages BLOB NOT NULL, barriers BLOB,
    label TEXT, created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id)
) WITHOUT ROWID;

CREATE TABLE hapax_frontier (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, step_id INTEGER NOT NULL, page INTEGER NOT NULL,
    items BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id, page)
) WITHOUT ROWID;

CREATE TABLE hapax_journal (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL,
    base BLOB NOT NULL, step_id INTEGER NOT NULL, path_hash INTEGER NOT NULL, entry BLOB NOT NULL,
    sum BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, seq)
) WITHOUT ROWID;

CREATE TABLE hapax_outbox (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, step_id INTEGER NOT NULL, position INTEGER NOT NULL,
    topic TEXT NOT NULL, msg_key TEXT NOT NULL, payload BLOB NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (namespace, run_id, step_id, position)
) WITHOUT ROWID;

CREATE TABLE hapax_tags (
    namespace TEXT NOT NULL, tag_key TEXT NOT NULL, tag_value TEXT NOT NULL, run_id TEXT NOT NULL,
    PRIMARY KEY (namespace, tag_key, tag_value, run_id)
) WITHOUT ROWID;
CREATE INDEX hapax_tags_run ON hapax_tags (namespace, run_id);
";

/// Parked runs and what wakes them.
const V2: &str = "
ALTER TABLE hapax_runs ADD COLUMN wake_at INTEGER;
ALTER TABLE hapax_runs ADD COLUMN wake_letters TEXT;
ALTER TABLE hapax_runs ADD COLUMN parent TEXT;
CREATE INDEX hapax_runs_parent ON hapax_runs (namespace, parent) WHERE parent IS NOT NULL;
CREATE INDEX hapax_runs_wake ON hapax_runs (namespace, graph, wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE hapax_letters (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER NOT NULL,
    letter_id TEXT NOT NULL, subject TEXT NOT NULL, payload BLOB NOT NULL, sent_at INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX hapax_letters_id ON hapax_letters (namespace, run_id, letter_id);
CREATE INDEX hapax_letters_waiting ON hapax_letters (namespace, run_id, subject, number) WHERE taken = 0;
";

/// Messages on their way: who delivers them, and how often that failed. What was written before waits as it did.
const V3: &str = "
ALTER TABLE hapax_outbox ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hapax_outbox ADD COLUMN error TEXT;
ALTER TABLE hapax_outbox ADD COLUMN written_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX hapax_outbox_unsent ON hapax_outbox (namespace, run_id, topic, step_id, position) WHERE status <> 'sent';

CREATE TABLE hapax_channels (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, topic TEXT NOT NULL,
    due_at INTEGER NOT NULL, token BLOB, owner TEXT,
    PRIMARY KEY (namespace, run_id, topic)
) WITHOUT ROWID;
CREATE INDEX hapax_channels_due ON hapax_channels (namespace, due_at);
CREATE INDEX hapax_channels_held ON hapax_channels (namespace, owner) WHERE owner IS NOT NULL;
INSERT INTO hapax_channels (namespace, run_id, topic, due_at)
    SELECT DISTINCT namespace, run_id, topic, 0 FROM hapax_outbox WHERE status = 'pending';
";

/// What isn't delivered, by age, for whoever looks how much that is. In words that no other question uses: for those the
/// index above is the better one.
const V4: &str = "
CREATE INDEX hapax_outbox_backlog ON hapax_outbox (namespace, status, written_at) WHERE status <> 'sent' AND written_at >= 0;
";

/// Runs that start by the clock: when the next one does.
const V5: &str = "
CREATE TABLE hapax_schedules (
    namespace TEXT NOT NULL, name TEXT NOT NULL, graph TEXT NOT NULL, input BLOB NOT NULL, input_version INTEGER,
    cron TEXT NOT NULL, zone_name TEXT NOT NULL, on_overlap TEXT NOT NULL, catch_up INTEGER NOT NULL,
    token BLOB NOT NULL, paused INTEGER NOT NULL, next_at INTEGER, last_at INTEGER, last_run TEXT,
    started INTEGER NOT NULL, skipped INTEGER NOT NULL, missed INTEGER NOT NULL, created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
CREATE INDEX hapax_schedules_due ON hapax_schedules (namespace, next_at) WHERE paused = 0;
";

/// Large payloads beside their rows, known by their hash within their run.
const V6: &str = "
CREATE TABLE hapax_blobs (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, hash BLOB NOT NULL, part INTEGER NOT NULL, bytes BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id, hash, part)
) WITHOUT ROWID;
";

/// Flow control: who holds which slot of a concurrency key, who waits for one, and what is known of a name. A run's rank is
/// its age as its priority makes it.
const V7: &str = "
ALTER TABLE hapax_runs ADD COLUMN terms TEXT;
ALTER TABLE hapax_runs ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
UPDATE hapax_runs SET rank = created_at;
DROP INDEX hapax_runs_ready;
CREATE INDEX hapax_runs_ready ON hapax_runs (namespace, status, graph, rank);

CREATE TABLE hapax_flow_slots (
    namespace TEXT NOT NULL, flow_key TEXT NOT NULL, slot INTEGER NOT NULL,
    run_id TEXT NOT NULL, token TEXT NOT NULL, most INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (namespace, flow_key, slot)
) WITHOUT ROWID;
CREATE INDEX hapax_flow_slots_run ON hapax_flow_slots (namespace, run_id);

CREATE TABLE hapax_flow_queue (
    namespace TEXT NOT NULL, flow_key TEXT NOT NULL, run_id TEXT NOT NULL,
    position INTEGER NOT NULL, most INTEGER NOT NULL, token TEXT NOT NULL, rest TEXT NOT NULL,
    PRIMARY KEY (namespace, flow_key, run_id)
) WITHOUT ROWID;
CREATE INDEX hapax_flow_queue_next ON hapax_flow_queue (namespace, flow_key, position, run_id);
CREATE INDEX hapax_flow_queue_run ON hapax_flow_queue (namespace, run_id);

CREATE TABLE hapax_flow_names (
    namespace TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, run_id TEXT, token TEXT, at_us INTEGER NOT NULL,
    PRIMARY KEY (namespace, kind, name)
) WITHOUT ROWID;
CREATE INDEX hapax_flow_names_run ON hapax_flow_names (namespace, run_id) WHERE run_id IS NOT NULL;
";

/// Which shard the file is, if it is one of several.
const V8: &str = "
CREATE TABLE hapax_shards (namespace TEXT PRIMARY KEY, plate TEXT NOT NULL) WITHOUT ROWID;
";

/// Large payloads that rest in an object store: what it holds of ours, and whether a run refers to it.
const V9: &str = "
CREATE TABLE hapax_objects (
    namespace TEXT NOT NULL, run_id TEXT NOT NULL, hash BLOB NOT NULL, name TEXT NOT NULL, state INTEGER NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (namespace, run_id, hash, name)
) WITHOUT ROWID;
CREATE INDEX hapax_objects_due ON hapax_objects (since) WHERE state <> 1;
";

/// Brings the file to our version. A file that has it is only read: whoever looks at runs waits for no writer.
pub(super) fn migrate(connection: &mut Connection, what: &str) -> Result<(), Refusal> {
    let refuse = |error| cannot_open(what, &error);
    if let Some((version, program)) = version(connection).map_err(refuse)? {
        if version > ours() {
            let why = format!(
                "it was written by {program} (schema {version}); this is {} (schema {}): \
                 use that version or a newer one",
                program_name(),
                ours()
            );
            return Err(Refusal { what: what.into(), why, code: code::SCHEMA_TOO_NEW });
        }
        if version == ours() {
            return check_whole(connection).map_err(refuse);
        }
    }
    apply(connection).map_err(refuse)
}

/// Runs the migrations that the file lacks.
fn apply(connection: &mut Connection) -> rusqlite::Result<()> {
    // The write lock first: two openers that both read an empty file would both create the tables.
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let from = version(&transaction)?.map_or(0, |(version, _)| version);
    if from == 0 {
        transaction.execute_batch(SCHEMA)?;
    }
    for migration in MIGRATIONS.iter().skip(from) {
        transaction.execute_batch(migration)?;
    }
    transaction.execute("DELETE FROM hapax_schema", ())?;
    transaction.execute(
        "INSERT INTO hapax_schema (version, program) VALUES (?1, ?2)",
        params![ours() as i64, program_name()],
    )?;
    transaction.commit()
}

/// A table that is gone took its rows with it, and without its unique index it would take a duplicate.
fn check_whole(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT name FROM sqlite_master")?;
    let there = statement.query_map((), |row| row.get(0))?.collect::<Result<HashSet<String>, _>>()?;
    let created = MIGRATIONS.iter().flat_map(|sql| sql.lines()).filter(|line| line.starts_with("CREATE "));
    let mut names =
        created.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("hapax_")));
    match names.find(|name| !there.contains(*name)) {
        Some(gone) => Err(damaged(format!("`{gone}` is missing from its tables"))),
        None => Ok(()),
    }
}

/// The version of this program's tables.
pub(super) const fn ours() -> usize {
    MIGRATIONS.len()
}

/// Whether the file has tables of ours, of whatever version.
pub(super) fn is_there(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare("SELECT 1 FROM sqlite_master WHERE name = 'hapax_schema'")?.exists(())
}

/// The version of the file's tables, and the program that made them.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<Option<(usize, String)>> {
    if !is_there(connection)? {
        return Ok(None);
    }
    let sql = "SELECT version, program FROM hapax_schema ORDER BY version DESC LIMIT 1";
    let found = connection.query_row(sql, (), |row| {
        let version = usize::try_from(row.get::<_, i64>(0)?).ok().filter(|version| *version > 0);
        Ok((version.ok_or_else(|| damaged("its version can't be"))?, row.get(1)?))
    });
    match found {
        // The version comes with its table, in one transaction.
        Err(rusqlite::Error::QueryReturnedNoRows) => Err(damaged("its version is missing")),
        found => found.map(Some),
    }
}

fn program_name() -> String {
    format!("hapax {}", env!("CARGO_PKG_VERSION"))
}
