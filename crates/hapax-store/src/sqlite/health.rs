//! What is really in force in a file: asked of the connection that writes, never remembered from its opening.

use super::{
    connection::{Place, network_file_system},
    schema,
    writer::Tx,
};
use crate::store::{Fact, Verdict};
use rusqlite::{Connection, Row};

/// Less than this may not last for the log of one busy minute.
const LITTLE_ROOM: u64 = 256 * 1024 * 1024;

/// All facts of the file, the most important first.
pub(super) fn facts(tx: &Tx<'_>, place: &Place) -> rusqlite::Result<Vec<Fact>> {
    let connection = tx.connection;
    let mut facts = vec![journal_mode(connection)?, synchronous(connection)?, library(), schema(connection)?];
    facts.extend(file_system(place));
    Ok(facts)
}

fn judged(name: &'static str, found: impl Into<String>, good: bool, meaning: impl Into<String>) -> Fact {
    let verdict = if good { Verdict::Good } else { Verdict::Unsafe };
    Fact { name, found: found.into(), verdict, meaning: meaning.into() }
}

fn journal_mode(connection: &Connection) -> rusqlite::Result<Fact> {
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let meaning = match mode.as_str() {
        "wal" => "a commit is one append to the log; readers and the writer don't wait for each other",
        _ => "not the mode that Hapax relies on: somebody changed it; reopen the file with one engine only",
    };
    Ok(judged("journal mode", &mode, mode == "wal", meaning))
}

fn synchronous(connection: &Connection) -> rusqlite::Result<Fact> {
    let level: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    let word = ["off", "normal", "full", "extra"].get(level as usize).copied().unwrap_or("unknown");
    let meaning = match level {
        2 | 3 => "every commit is synced before it is answered: it survives a crash of the machine",
        _ => "commits are answered before they are on the disk: a power cut can lose them",
    };
    Ok(judged("synchronous", word, level >= 2, meaning))
}

fn library() -> Fact {
    let meaning = "the library that is compiled in; versions before 3.51.3 can corrupt a log";
    judged("SQLite", rusqlite::version(), true, meaning)
}

fn schema(connection: &Connection) -> rusqlite::Result<Fact> {
    let (found, good) = match schema::version(connection)? {
        Some((version, program)) => (format!("{version} ({program})"), version == schema::ours()),
        None => ("none".to_owned(), false),
    };
    let meaning = if good {
        "the tables are this program's"
    } else {
        "the tables belong to another version of Hapax: use that version"
    };
    Ok(judged("schema", found, good, meaning))
}

/// The file system, and its room. A file that can't be asked about is no reason to fail.
fn file_system(place: &Place) -> Vec<Fact> {
    let Ok(stat) = rustix::fs::statfs(place.folder()) else { return vec![] };
    let kind = stat.f_type as u64;
    let network = network_file_system(kind);
    let name = network.map_or_else(|| local_file_system(kind), str::to_owned);
    let volatile = name == "tmpfs";
    let meaning = match (network, volatile) {
        (Some(_), _) => "its locks can't be trusted: two engines could corrupt the file; use a local disk",
        (None, true) => "the file lives in memory: it survives a crash of the process, not of the machine",
        (None, false) => "a local disk: its locks and syncs can be relied on",
    };
    let mut system = judged("file system", name, network.is_none(), meaning);
    if volatile {
        system.verdict = Verdict::Note;
    }
    let room = stat.f_bavail.saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(0));
    let (verdict, meaning) = if room < LITTLE_ROOM {
        (Verdict::Note, "little room is left: a full disk loses nothing, but runs stop until there is more")
    } else {
        (Verdict::Good, "there is room to grow; `gc` deletes finished runs")
    };
    let found = format!("{} MiB free", room / (1024 * 1024));
    vec![system, Fact { name: "room", found, verdict, meaning: meaning.into() }]
}

fn local_file_system(kind: u64) -> String {
    match kind & 0xffff_ffff {
        0xef53 => "ext4".into(),
        0x5846_5342 => "XFS".into(),
        0x9123_683e => "btrfs".into(),
        0x0102_1994 => "tmpfs".into(),
        0x794c_7630 => "overlay".into(),
        0x2fc1_2fc1 => "ZFS".into(),
        0x6573_5546 => "FUSE".into(),
        other => format!("unknown ({other:#x})"),
    }
}

/// What a whole history has, and how many runs without it are named at the most.
const HISTORIES: [(&str, &str); 5] = [
    (
        "lacks its row, though its steps are there",
        "SELECT DISTINCT namespace, run_id FROM hapax_checkpoints EXCEPT SELECT namespace, run_id FROM hapax_runs",
    ),
    (
        "lacks the checkpoint that its row names",
        "SELECT namespace, run_id FROM hapax_runs AS r WHERE status NOT IN ('moved', 'arriving') \
         AND NOT EXISTS (SELECT 1 FROM hapax_checkpoints AS c \
         WHERE c.namespace = r.namespace AND c.run_id = r.run_id AND c.step_id = r.step_id AND c.digest = r.digest)",
    ),
    (
        "lacks a checkpoint between its first and its latest",
        "SELECT namespace, run_id FROM hapax_checkpoints GROUP BY namespace, run_id \
         HAVING count(*) <> max(step_id) - min(step_id) + 1",
    ),
    (
        "has a step whose key is not there to refuse a duplicate, or a key without its step",
        "SELECT namespace, run_id FROM (SELECT namespace, run_id, step_id, key FROM hapax_checkpoints EXCEPT \
         SELECT namespace, run_id, step_id, key FROM hapax_keys) UNION SELECT namespace, run_id FROM \
         (SELECT namespace, run_id, step_id, key FROM hapax_keys EXCEPT \
         SELECT namespace, run_id, step_id, key FROM hapax_checkpoints)",
    ),
    (
        // The first step that is there says where the journal begins, the run's row where it ends.
        "lacks rows of its journal",
        "SELECT r.namespace, r.run_id FROM hapax_runs AS r JOIN hapax_checkpoints AS c ON c.namespace = r.namespace \
         AND c.run_id = r.run_id AND c.step_id = (SELECT min(step_id) FROM hapax_checkpoints AS f \
         WHERE f.namespace = r.namespace AND f.run_id = r.run_id) WHERE r.next_seq - c.next_seq <> \
         (SELECT count(*) FROM hapax_journal AS j WHERE j.namespace = r.namespace AND j.run_id = r.run_id \
         AND j.seq >= c.next_seq AND j.seq < r.next_seq)",
    ),
];
const NAMED: usize = 5;

/// Whether the rows of each run belong together.
fn histories(connection: &Connection) -> rusqlite::Result<Vec<Fact>> {
    let mut facts = vec![];
    for (fault, sql) in HISTORIES {
        let mut statement = connection.prepare(&format!("{sql} LIMIT {NAMED}"))?;
        let name = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        for run in statement.query_map((), name)? {
            let (namespace, run) = run?;
            let meaning = "rows were lost or removed by hand: restore the file from a backup";
            facts.push(judged("history", format!("run `{namespace}/{run}` {fault}"), false, meaning));
        }
    }
    if facts.is_empty() {
        facts.push(judged("history", "whole", true, "no run lacks a step, a key or a row of its journal"));
    }
    Ok(facts)
}

/// What the file holds: it is read whole, so it is asked of a reader.
pub(super) fn rows(connection: &Connection) -> rusqlite::Result<Vec<Fact>> {
    let pages = pages(connection)?;
    // From damaged pages anything may be missing.
    let histories = if pages.verdict == Verdict::Good { histories(connection)? } else { vec![] };
    Ok([vec![pages], histories].concat())
}

/// Whether SQLite finds its own structure intact.
fn pages(connection: &Connection) -> rusqlite::Result<Fact> {
    let mut statement = connection.prepare("PRAGMA quick_check(3)")?;
    let lines = statement.query_map((), |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    let good = lines == ["ok"];
    let meaning = if good {
        "SQLite finds its own structure intact"
    } else {
        "the file is damaged: stop all engines and restore a backup"
    };
    Ok(judged("pages", lines.join("; "), good, meaning))
}
