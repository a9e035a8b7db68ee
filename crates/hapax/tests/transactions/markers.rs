//! Markers go when nobody can need them any more, and not before.

use crate::{
    common::*,
    shop::{Kind, MARKER, PAY, Runs, SHOP, Shop, Way, finish, paying},
};
use hapax::{
    Graph, Node, NodeError, Options, State,
    core::{
        error::{Coded, code},
        id::Namespace,
    },
    store::{
        GcPolicy, SqliteOptions, SqliteStore, Store,
        codec::{Encrypted, Keyring},
    },
};
use std::{env, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

#[test]
fn row_09_a_marker_is_deleted_once_its_step_is_durable_on_sqlite() {
    row_09_a_marker_is_deleted_once_its_step_is_durable(Kind::Sqlite);
}

#[test]
fn row_09_a_marker_is_deleted_once_its_step_is_durable_on_postgres() {
    row_09_a_marker_is_deleted_once_its_step_is_durable(Kind::Postgres);
}

#[test]
fn row_09_a_marker_is_deleted_once_its_step_is_durable_on_mysql() {
    row_09_a_marker_is_deleted_once_its_step_is_durable(Kind::MySql);
}

/// One run is over; of the other only the marker knows that its transaction was committed.
fn row_09_a_marker_is_deleted_once_its_step_is_durable(kind: Kind) {
    let (shop, runs, may_go) = (Shop::open(kind, MARKER), Runs::In(memory()), Signal::default());
    let hasty = Options::default().marker_retention(Duration::ZERO);
    let (way, doomed) =
        (Way { may_go: Some(may_go.clone()), ..Way::default() }, Process::doomed(&runs.open()));
    doomed.run(async {
        let engine = doomed.build(shop.builder().options(hasty));
        let flow = engine.register(paying(&shop, &way), ()).await.unwrap();
        let first = flow.start("first", Board::default()).await.unwrap();
        way.known.take().await;
        flow.start("run", Board::default()).await.unwrap();
        way.known.take().await;
        assert_eq!(shop.markers(), "2");
        may_go.give();
        first.wait().await.unwrap();
        while shop.markers() == "2" {
            tokio::task::yield_now().await;
        }
    });
    doomed.crash();
    let again = Way::default();
    assert_eq!(finish(&runs, &shop, &again).total, 2);
    assert_eq!((again.executed.len(), shop.effects()), (0, vec!["first".to_owned(), "run".to_owned()]));
}

/// Whoever left the marker is gone when its run is deleted: the run's journal tells of it.
#[test]
fn a_marker_goes_with_its_run_at_the_latest() {
    let (shop, runs) = (Shop::open(Kind::Sqlite, MARKER), Runs::In(memory()));
    let doomed = Process::doomed(&runs.open());
    doomed.run(async {
        let flow = doomed.build(shop.builder()).register(paying(&shop, &Way::default()), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    });
    doomed.crash();
    assert_eq!(shop.markers(), "1");
    let process = Process::healthy(&runs.open());
    process.run(async {
        let hasty = Options::default().marker_retention(Duration::ZERO);
        let engine = process.build(shop.builder().options(hasty));
        let namespace = Namespace::default();
        let all = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 10, dry_run: false };
        assert_eq!(engine.gc(all).await.unwrap().deleted.len(), 1);
    });
    assert_eq!(shop.markers(), "0");
}

/// Of a run whose journal can't be read nobody knows which markers it left: it goes, and they stay.
#[test]
fn a_run_with_a_damaged_journal_is_deleted_all_the_same() {
    let (shop, folder) = (Shop::open(Kind::Sqlite, MARKER), tempfile::tempdir().unwrap());
    let file = folder.path().join("runs.db");
    let runs = Runs::At(format!("sqlite:{}", file.display()));
    let doomed = Process::doomed(&runs.open());
    doomed.run(async {
        let flow = doomed.build(shop.builder()).register(paying(&shop, &Way::default()), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    });
    doomed.crash();
    let damaged =
        rusqlite::Connection::open(&file).unwrap().execute("UPDATE hapax_journal SET entry = x'00'", ());
    assert!(damaged.unwrap() > 0);
    let process = Process::healthy(&runs.open());
    process.run(async {
        let hasty = Options::default().marker_retention(Duration::ZERO);
        let engine = process.build(shop.builder().options(hasty));
        let namespace = Namespace::default();
        let all = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 10, dry_run: false };
        assert_eq!(engine.gc(all).await.unwrap().deleted.len(), 1);
    });
    assert_eq!(shop.markers(), "1");
}

/// It can be read one day, with the key, and nobody else knows of its markers.
#[test]
fn a_run_whose_journal_cannot_be_read_now_is_not_deleted() {
    let (shop, folder) = (Shop::open(Kind::Sqlite, MARKER), tempfile::tempdir().unwrap());
    let (file, beyond) = (folder.path().join("runs.db"), Runtime::new().unwrap());
    let open = |options| -> Arc<dyn Store> { beyond.block_on(SqliteStore::open(&file, options)).unwrap() };
    let keys = Keyring::parse("k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let keyed = open(SqliteOptions::default().payload_codec(Arc::new(Encrypted::new(keys))));
    let doomed = Process::doomed(&keyed);
    doomed.run(async {
        let flow = doomed.build(shop.builder()).register(paying(&shop, &Way::default()), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    });
    doomed.crash();
    let gc = |store| {
        let process = Process::healthy(&store);
        process.run(async {
            let hasty = Options::default().marker_retention(Duration::ZERO);
            let namespace = Namespace::default();
            let all = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 10, dry_run: false };
            process.build(shop.builder().options(hasty)).gc(all).await
        })
    };
    let refused = gc(open(SqliteOptions::default())).unwrap_err();
    assert_eq!((refused.code(), shop.markers()), (code::KEY_MISSING, "1".to_owned()), "{refused}");
    assert_eq!(gc(keyed).unwrap().deleted.len(), 1);
    assert_eq!(shop.markers(), "0");
}

/// The run fails behind the node: what that saw is nowhere but in the marker. The other one's is deleted afterwards.
#[test]
fn a_run_that_failed_keeps_its_marker_since_it_may_be_retried() {
    const DONE: Node = Node::new("done");
    let (shop, runs) = (Shop::open(Kind::Sqlite, MARKER), Runs::In(memory()));
    let (hasty, process) =
        (Options::default().marker_retention(Duration::ZERO), Process::healthy(&runs.open()));
    process.run(async {
        let engine = process.build(shop.builder().options(hasty));
        let done = node!([] | ctx | {});
        let graph = paying(&shop, &Way::default()).node(DONE, done);
        let graph = graph.edge_if(PAY, DONE, "second", |board: &Board| board.total > 1);
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
        flow.start("second", Board::default()).await.unwrap().wait().await.unwrap();
        while shop.markers() == "2" {
            tokio::task::yield_now().await;
        }
        assert_eq!(shop.markers(), "1");
        flow.retry("run").await.unwrap().wait().await.unwrap_err();
    });
    assert_eq!(shop.effects(), ["run", "second"]);
}

/// As many as a table that nobody sweeps would show.
#[test]
fn row_30_the_table_of_markers_stays_small() {
    let many: u64 = if env::var_os("HAPAX_LONG").is_some() { 1_000_000 } else { 2_000 };
    let (runs, shop) = (Runs::In(memory()), Shop::open(Kind::Postgres, MARKER));
    let process = Process::healthy(&runs.open());
    let most = process.run(async {
        let options = Options::default().marker_retention(Duration::ZERO);
        let engine = process.build(shop.builder().options(options));
        let pay = node!(
            [] | ctx | {
                let pay =
                    async |tx: &mut hapax::Tx| tx.execute("INSERT INTO effects VALUES ('run')", &[]).await;
                Ok::<_, NodeError>(Board::delta().total(ctx.transaction(&SHOP, "pay", pay).await?))
            }
        );
        let flow = engine.register(Graph::new("paying", 1, PAY).node(PAY, pay), ()).await.unwrap();
        let mut most = 0;
        for batch in (0..many).collect::<Vec<_>>().chunks(500) {
            let runs = batch.iter().map(async |number| {
                let run = flow.start(&format!("run-{number}"), Board::default()).await?;
                run.wait().await
            });
            futures::future::try_join_all(runs).await.unwrap();
            most = most.max(shop.markers().parse::<u64>().unwrap());
        }
        while shop.markers() != "0" {
            tokio::task::yield_now().await;
        }
        engine.shutdown(Duration::from_secs(60)).await;
        most
    });
    println!("{most} markers at the most, of {many} transactions");
    assert!(most < many, "{most} of {many} were there at once");
    assert_eq!(shop.sql("SELECT count(*) FROM effects"), many.to_string());
}
