//! A transaction that writes its own end: what else goes on in its run meanwhile, and in its file.

use crate::{
    common::*,
    shop::{CO_COMMIT, Kind, PAY, SHOP, Shop, Way, known_by, on_each},
};
use hapax::{
    EffectKind::Write,
    Event, Graph, NodeError, NodePolicy, State, Tx,
    core::{
        error::code,
        journal::{Entry, JournalRow},
        limits::MAX_PAYLOAD_BYTES,
    },
};
use std::time::Duration;
use tokio::sync::broadcast::error::TryRecvError;

/// Looks for an event that must not come.
const LOOKS: usize = 50;

on_each! {
    a_result_that_is_too_large_is_rolled_back,
}

/// Nothing of it is committed: the journal couldn't take what it returned.
fn a_result_that_is_too_large_is_rolled_back(shop: &Shop) {
    let (options, runs) = (shop.options(), shop.runs());
    let process = Process::healthy(&runs.open());
    let pay = node!(
        [options] | ctx | {
            let pay = async |tx: &mut Tx| {
                tx.execute("INSERT INTO effects VALUES ('run')", &[]).await?;
                Ok::<_, NodeError>("x".repeat(MAX_PAYLOAD_BYTES))
            };
            let paid: String = ctx.transaction_with(&SHOP, "pay", options, pay).await?;
            Ok::<_, NodeError>(Board::delta().total(paid.len() as u64))
        }
    );
    let end = process.run(async {
        let engine = process.build(shop.builder());
        let flow = engine.register(Graph::new("paying", 1, PAY).node(PAY, pay), ()).await.unwrap();
        let end = flow.start("run", Board::default()).await.unwrap().wait().await;
        engine.shutdown(Duration::from_secs(60)).await;
        end
    });
    assert_eq!(failure(&end.unwrap_err()).code, code::LIMIT);
    assert!(shop.effects().is_empty(), "{:?}", shop.effects());
}

/// The node goes on without the transaction while its COMMIT is on its way: what that records is part of the item, which ends
/// behind it.
#[test]
fn an_item_ends_behind_a_transaction_for_which_its_node_did_not_wait() {
    let shop = Shop::open(Kind::Postgres, CO_COMMIT);
    let ((proxy, url), options, store) = (shop.proxy(), shop.options(), shop.runs().open());
    let (way, leave, left) = (Way::default(), Signal::default(), Signal::default());
    let process = Process::healthy(&store);
    let pay = node!(
        [way, leave, left, options] | ctx | {
            {
                let pay = async |tx: &mut Tx| way.pay(tx, "run").await;
                let paying = ctx.transaction_with::<i64, _, _>(&SHOP, "pay", options, pay);
                tokio::select! {
                    paid = paying => drop(paid?),
                    () = leave.take() => {}
                }
            }
            left.give();
            Ok::<_, NodeError>(Board::delta().total(7u64))
        }
    );
    process.run(async {
        let engine = process.build(known_by(&url));
        let flow = engine.register(Graph::new("leaving", 1, PAY).node(PAY, pay), ()).await.unwrap();
        let mut events = engine.events();
        proxy.hold_request("\u{b}COMMIT");
        let run = flow.start("run", Board::default()).await.unwrap();
        way.paid.take().await;
        proxy.wait_for_hold();
        leave.give();
        left.take().await;
        for _ in 0..LOOKS {
            assert!(shop.effects().is_empty());
            loop {
                match events.try_recv() {
                    Ok(Event::ItemFinished { .. }) => panic!("it ended beside its transaction"),
                    Err(TryRecvError::Empty) => break,
                    _ => {}
                }
            }
        }
        proxy.release();
        assert_eq!(run.wait().await.unwrap().total, 7);
        let journal = store.journal(key("run"), 0, 100).await.unwrap();
        let told = |is_it: fn(&Entry) -> bool| {
            journal.iter().flat_map(JournalRow::entries).filter(|entry| is_it(entry)).count()
        };
        assert_eq!(told(|entry| matches!(entry, Entry::Intent(_))), 1);
        assert_eq!(told(|entry| matches!(entry, Entry::Result { .. })), 1);
        engine.shutdown(Duration::from_secs(60)).await;
    });
    assert_eq!(shop.effects(), ["run"]);
}

/// Another lane waits for the run's turn meanwhile, and so seems to wait for the store, which is nobody's time: the closure's
/// own time ends it.
#[test]
fn a_closure_that_hangs_gives_its_file_back_when_its_time_is_over() {
    let (shop, way) = (Shop::open(Kind::Sqlite, CO_COMMIT), Way::default());
    let (options, runs) = (shop.options(), shop.runs());
    let process = Process::healthy(&runs.open());
    let pay = node!(
        [way, options] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let pay = async |tx: &mut Tx| {
                let paid = way.pay(tx, "run").await;
                forever().await;
                paid
            };
            let call = async {
                way.paid.take().await;
                right.effect("call", Write, &(), async |_: hapax::Call| Ok::<_, NodeError>(())).await
            };
            let (paid, called) =
                tokio::join!(left.transaction_with::<i64, _, _>(&SHOP, "pay", options, pay), call);
            called?;
            Ok::<_, NodeError>(Board::delta().total(paid? as u64))
        }
    );
    let policy = NodePolicy::default().timeout(Duration::from_millis(300));
    let graph = Graph::new("hanging", 1, PAY).node(PAY, pay).policy(PAY, policy);
    let end = process.run(async {
        let engine = process.build(shop.builder());
        let flow = engine.register(graph, ()).await.unwrap();
        let run = flow.start("run", Board::default()).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), run.wait()).await;
        ended.expect("the file isn't held for ever")
    });
    assert_eq!(failure(&end.unwrap_err()).code, code::NODE_TIMEOUT);
    assert!(shop.effects().is_empty(), "{:?}", shop.effects());
}
