//! Markers go when nobody can need them any more, and not before.

use crate::{
    common::*,
    shop::{Kind, MARKER, PAY, Shop, Way, finish, paying},
};
use hapax::{Node, Options, core::id::Namespace, store::GcPolicy};
use std::time::Duration;

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
    let (shop, store, may_go) = (Shop::open(kind, MARKER), memory(), Signal::default());
    let hasty = Options::default().marker_retention(Duration::ZERO);
    let (way, doomed) = (Way { may_go: Some(may_go.clone()), ..Way::default() }, Process::doomed(&store));
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
    assert_eq!(finish(&store, &shop, &again).total, 2);
    assert_eq!((again.executed.len(), shop.effects()), (0, vec!["first".to_owned(), "run".to_owned()]));
}

/// Whoever left the marker is gone when its run is deleted: the run's journal tells of it.
#[test]
fn a_marker_goes_with_its_run_at_the_latest() {
    let (shop, store) = (Shop::open(Kind::Sqlite, MARKER), memory());
    let doomed = Process::doomed(&store);
    doomed.run(async {
        let flow = doomed.build(shop.builder()).register(paying(&shop, &Way::default()), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    });
    doomed.crash();
    assert_eq!(shop.markers(), "1");
    let process = Process::healthy(&store);
    process.run(async {
        let hasty = Options::default().marker_retention(Duration::ZERO);
        let engine = process.build(shop.builder().options(hasty));
        let namespace = Namespace::default();
        let all = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 10, dry_run: false };
        assert_eq!(engine.gc(all).await.unwrap().deleted.len(), 1);
    });
    assert_eq!(shop.markers(), "0");
}

/// The run fails behind the node: what that saw is nowhere but in the marker. The other one's is deleted afterwards.
#[test]
fn a_run_that_failed_keeps_its_marker_since_it_may_be_retried() {
    const DONE: Node = Node::new("done");
    let (shop, store) = (Shop::open(Kind::Sqlite, MARKER), memory());
    let (hasty, process) = (Options::default().marker_retention(Duration::ZERO), Process::healthy(&store));
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
