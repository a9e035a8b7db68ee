//! A request that is finished in the caller's own transaction, in a SQLite file; and files that several share.

use crate::kit::EFFECTS;
use hapax_core::{
    error::Coded,
    json::Json,
    request::{Completion, RecoveryPoint},
};
use hapax_store::{
    conformance::requests::{claim, dying, execute},
    requests::{Begun, Finished, Pointed, RequestStore, SqliteRequests},
    sqlite::{SqliteOptions, SqliteStore},
};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{path::PathBuf, sync::Arc};
use tempfile::TempDir;

struct Shop {
    store: Arc<SqliteRequests>,
    connection: Connection,
    file: PathBuf,
    _folder: TempDir,
}

impl Shop {
    async fn open() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("shop.db");
        let connection = Connection::open(&file).expect("a file");
        connection.execute_batch(EFFECTS).expect("a table");
        let store = SqliteRequests::open(&file, SqliteOptions::default()).await.expect("it opens");
        Self { store, connection, file, _folder: folder }
    }

    /// A transaction with an effect.
    fn effect(&mut self, number: i32) -> Transaction<'_> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO effects VALUES (?)", [number]).expect("an effect");
        tx
    }

    fn effects(&self) -> i64 {
        self.connection.query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap()
    }
}

fn done() -> Completion {
    Completion::succeeded(201, "charged")
}

#[tokio::test]
async fn effect_and_record_are_committed_together() {
    let mut shop = Shop::open().await;
    let store = shop.store.clone();
    let lease = execute(&*store, &claim("k")).await;
    assert_eq!(store.finish_in(shop.effect(1), &lease, &done()).unwrap(), Finished::Done);
    let Begun::Replay(record) = store.begin(&claim("k")).await.unwrap() else { panic!("no replay") };
    assert_eq!((record.completion, shop.effects()), (Some(done()), 1));
}

#[tokio::test]
async fn a_stale_workers_effect_is_rolled_back() {
    let mut shop = Shop::open().await;
    let store = shop.store.clone();
    let stale = execute(&*store, &dying("k")).await;
    let lease = execute(&*store, &claim("k")).await;
    assert_eq!(store.finish_in(shop.effect(1), &stale, &done()).unwrap(), Finished::Stale);
    assert_eq!(shop.effects(), 0);
    assert_eq!(store.finish_in(shop.effect(1), &lease, &done()).unwrap(), Finished::Done);
    assert_eq!(store.finish_in(shop.effect(2), &lease, &done()).unwrap(), Finished::Stale, "it has ended");
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn a_recovery_point_counts_with_its_transaction_alone() {
    let mut shop = Shop::open().await;
    let store = shop.store.clone();
    let point = RecoveryPoint::new("reserved", Json::of(&7).unwrap()).unwrap();
    let dead = execute(&*store, &dying("k")).await;
    let tx = shop.effect(1);
    let Pointed::Set(tx) = store.point_in(tx, &dead, &point).unwrap() else { panic!("stale") };
    tx.rollback().unwrap();
    assert_eq!(store.get(&dead.id).await.unwrap().unwrap().point, None);
    let tx = shop.effect(1);
    let Pointed::Set(tx) = store.point_in(tx, &dead, &point).unwrap() else { panic!("stale") };
    tx.commit().unwrap();
    assert_eq!(execute(&*store, &claim("k")).await.point, Some(point.clone()));
    assert!(matches!(store.point_in(shop.effect(2), &dead, &point).unwrap(), Pointed::Stale));
    assert_eq!(shop.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_share_a_file_with_runs() {
    let shop = Shop::open().await;
    let runs = SqliteStore::open(&shop.file, SqliteOptions::default()).await.expect("it opens");
    hapax_store::Store::close(&*runs).await;
    execute(&*shop.store, &claim("k")).await;
    let again = SqliteRequests::open(&shop.file, SqliteOptions::default().must_exist(true)).await.unwrap();
    assert!(matches!(again.begin(&claim("k")).await.unwrap(), Begun::InProgress { .. }));
}

#[tokio::test]
async fn a_file_without_requests_is_refused_where_they_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    for _ in 0..2 {
        let refused =
            SqliteRequests::open(&file, SqliteOptions::default().must_exist(true)).await.unwrap_err();
        assert_eq!(refused.code(), "HX0047", "{refused}");
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE IF NOT EXISTS t (n)").unwrap();
    }
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["shop.db"], "nothing was put beside it");
    let mode = Connection::open(&file).unwrap();
    let mode: String = mode.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete", "nothing was changed in it");
}
