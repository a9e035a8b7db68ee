//! The last entry of the journal is torn: what it said of a transaction is as if it had never been written.

use crate::{
    common::*,
    shop::{PAY, SHOP, Shop, Way, elsewhere},
};
use hapax::{
    Graph, NodeError, Options,
    core::journal::{Entry, JournalRow},
    prelude::*,
    store::{
        Store,
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use std::{fs, path::Path, sync::Arc, time::Duration};

elsewhere! {
    row_08_a_torn_last_entry_is_cut_and_the_database_tells,
}

/// Pays, and then makes a call whose intent takes the end of the transaction with it. Stuck, the call never ends.
fn paying_and_calling(shop: &Shop, way: &Way, called: &Signal, is_stuck: bool) -> Graph<Board> {
    let options = shop.options();
    let pay = node!(
        [way, options, called] | ctx | {
            let paid: i64 =
                ctx.transaction_with(&SHOP, "pay", options, async |tx| way.pay(tx, "run").await).await?;
            let call = async |_: hapax::Call| {
                stop_here(is_stuck, &called).await;
                Ok::<_, NodeError>(())
            };
            ctx.effect("call", Write, &(), call).await?;
            Ok::<_, NodeError>(Board::delta().total(paid as u64))
        }
    );
    Graph::new("calling", 1, PAY).node(PAY, pay)
}

fn open(process: &Process, file: &Path) -> Arc<dyn Store> {
    process.run(SqliteStore::open(file, SqliteOptions::default())).expect("the file opens")
}

/// Whether the record says how the transaction ended.
fn is_recorded(process: &Process, store: &Arc<dyn Store>) -> bool {
    let rows = process.run(store.journal(key("run"), 0, 100)).unwrap();
    rows.iter().flat_map(JournalRow::entries).any(|entry| matches!(entry, Entry::Result { .. }))
}

fn row_08_a_torn_last_entry_is_cut_and_the_database_tells(shop: &Shop) {
    let (folder, called) = (tempfile::tempdir().unwrap(), Signal::default());
    let (whole, torn) = (folder.path().join("whole.db"), folder.path().join("torn.db"));
    let process = Process::healthy(&memory());
    let store = open(&process, &whole);
    process.run(async {
        // No renewal of its lease comes in between.
        let options = Options::default().lease_ttl(Duration::from_secs(36_000));
        let engine = shop.builder().options(options).with_store(store.clone());
        let graph = paying_and_calling(shop, &Way::default(), &called, true);
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        called.take().await;
    });
    assert!(is_recorded(&process, &store), "the end is written with the next intent");
    // The files as they are on the disk now, without the last byte.
    fs::copy(&whole, &torn).unwrap();
    let log = fs::read(folder.path().join("whole.db-wal")).unwrap();
    fs::write(folder.path().join("torn.db-wal"), &log[..log.len() - 1]).unwrap();
    process.crash();

    let (process, again) = (Process::healthy(&memory()), Way::default());
    let store = open(&process, &torn);
    assert!(!is_recorded(&process, &store), "what was torn is cut");
    let board = process.run(async {
        let engine = shop.builder().with_store(store.clone());
        let graph = paying_and_calling(shop, &again, &called, false);
        let flow = engine.register(graph, ()).await.unwrap();
        let board = flow.resume("run").await.unwrap().wait().await.unwrap();
        engine.shutdown(Duration::from_secs(60)).await;
        board
    });
    assert_eq!((board.total, again.executed.len()), (1, 0), "the result of the execution that committed");
    assert_eq!(shop.effects(), ["run"]);
}
