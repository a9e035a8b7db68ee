//! The SQLite store keeps every promise of a store, on real files.

mod sealed;

use hapax_core::id::RunKey;
use hapax_store::{
    Store,
    conformance::{Damage, Fixture, Sample, sample::key},
    sqlite::{SqliteOptions, SqliteStore},
    store_conformance,
};
use rusqlite::{Connection, params};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Opens a file from a test's own thread.
fn open(path: &Path, options: SqliteOptions) -> Arc<SqliteStore> {
    let open = SqliteStore::open(path, options);
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(open)).expect("it opens")
}

fn sqlite() -> Fixture {
    fixture(SqliteOptions::default())
}

/// The same with all payloads encrypted.
fn encrypted() -> Fixture {
    fixture(SqliteOptions::default().payload_codec(sealed::codec(sealed::NEW)))
}

/// The same with nearly all payloads beside their rows.
fn blobs() -> Fixture {
    fixture(SqliteOptions::default().blobs_over(8))
}

fn fixture(options: SqliteOptions) -> Fixture {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("runs.db");
    let store = open(&path, options.clone());
    let (again, damaged, faulty) = (path.clone(), path, store.clone());
    Fixture::new(store)
        .reopen(move || -> Arc<dyn Store> { open(&again, options.clone()) })
        .corrupt(move |run, damage| corrupt(&damaged, run, damage))
        .fail_at(move |n| Box::new(faulty.fail_at(n)))
        .keep(folder)
}

store_conformance!(sqlite, sqlite);
store_conformance!(sqlite_encrypted, encrypted);
store_conformance!(sqlite_blobs, blobs);
sealed::promises::promises!(keys, sqlite_keys, || crate::keyed(None));
sealed::promises::promises!(keys, sqlite_keys_and_blobs, || crate::keyed(Some(100)));
sealed::promises::promises!(large, sqlite_large, || crate::keyed(Some(4096)));
sealed::promises::promises!(resting, sqlite_resting, || crate::sealed::resting::Place::new(crate::keyed_as));

/// A file that is opened with these keys and those.
fn keyed(blobs_over: Option<usize>) -> sealed::promises::Place {
    keyed_as(blobs_over, Arc::new(|| None))
}

/// The same, with what says where payloads rest.
fn keyed_as(blobs_over: Option<usize>, resting: sealed::resting::Where) -> sealed::promises::Place {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("runs.db");
    let file = path.clone();
    let opened = move |codec| {
        let _kept = &folder;
        let options =
            blobs_over.map_or(SqliteOptions::default(), |over| SqliteOptions::default().blobs_over(over));
        let options = resting().map_or(options.clone(), |resting| options.resting(resting));
        let with = |codec| options.clone().payload_codec(codec);
        open(&path, Option::map_or(codec, options.clone(), with)) as Arc<dyn Store>
    };
    sealed::promises::Place::new(opened, move |sql| {
        let outside = Connection::open(&file).expect("the file is there");
        outside.busy_timeout(std::time::Duration::from_secs(30)).expect("a pragma");
        if sql.starts_with("SELECT") {
            return outside.query_row(sql, (), |row| row.get::<_, i64>(0)).expect("a number").to_string();
        }
        outside.execute(sql, ()).expect("a change").to_string()
    })
}

/// What is replaced or deleted is overwritten. What a program without keys had freed before is not, and is cleared here first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_rotation_the_file_holds_nothing_in_plain() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("runs.db");
    let secret = "the secret number of";
    let is_there = || {
        let file = std::fs::read(&path).expect("the file");
        file.windows(secret.len()).any(|window| window == secret.as_bytes())
    };
    let plain: Arc<dyn Store> = open(&path, SqliteOptions::default());
    for run in ["rotated", "deleted"] {
        let mut holder = Sample::run(run).hold(&plain).await;
        for n in 0..100 {
            holder.commit(holder.next(&format!("{secret} {n}"))).await.expect("a step");
        }
        holder.finish().await;
    }
    plain.close().await;
    Connection::open(&path).expect("the file is there").execute_batch("VACUUM").expect("nobody else has it");
    assert!(is_there());
    let codec = sealed::codec(&format!("{} plain", sealed::NEW));
    let keyed: Arc<dyn Store> = open(&path, SqliteOptions::default().payload_codec(codec));
    keyed.delete(key("deleted")).await.expect("it is over");
    assert!(sealed::promises::rotate(&keyed).await > 100);
    keyed.close().await;
    assert!(!is_there());
}

/// Damages a run through a connection of its own.
fn corrupt(path: &PathBuf, run: &RunKey, damage: Damage) -> bool {
    let connection = Connection::open(path).expect("the file is there");
    let latest = "namespace = ?1 AND run_id = ?2 AND step_id = \
                  (SELECT step_id FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2)";
    let flip = |table: &str, column: &str, which: &str, mask: u8| {
        let at = params![run.namespace.as_str(), run.run.as_str()];
        let sql = format!("SELECT {column} FROM {table} WHERE {which}");
        let Ok(mut bytes) = connection.query_row(&sql, at, |row| row.get::<_, Vec<u8>>(0)) else {
            return false;
        };
        let middle = bytes.len() / 2;
        bytes[middle] ^= mask;
        let sql = format!("UPDATE {table} SET {column} = ?3 WHERE {which}");
        let changed = connection.execute(&sql, params![run.namespace.as_str(), run.run.as_str(), bytes]);
        changed.expect("an update") == 1
    };
    let last_page = format!("{latest} AND page = (SELECT max(page) FROM hapax_frontier WHERE {latest})");
    let last_row = "namespace = ?1 AND run_id = ?2 AND seq = \
                    (SELECT max(seq) FROM hapax_journal WHERE namespace = ?1 AND run_id = ?2)";
    match damage {
        Damage::State => flip("hapax_checkpoints", "state", latest, 1),
        Damage::Frontier => flip("hapax_checkpoints", "frontier", latest, 1),
        Damage::LastPage => flip("hapax_frontier", "items", &last_page, 1),
        Damage::Row => flip("hapax_runs", "digest", "namespace = ?1 AND run_id = ?2", 1),
        Damage::Digest => flip("hapax_checkpoints", "digest", latest, 1),
        // No byte of a JSON text has its highest bit alone.
        Damage::Journal => flip("hapax_journal", "entry", last_row, 0x80),
    }
}
