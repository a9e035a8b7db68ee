//! A worker that was cut off in the middle of a transaction, and goes on when another has taken its run over.

use crate::{
    common::*,
    shop::{CO_COMMIT, INTROSPECTION, Kind, Runs, Shop, Way, end_of, finish, on_each, paying},
};
use std::thread;

on_each! {
    row_11_a_zombie_and_its_successor_have_one_effect,
    row_11_a_zombie_cannot_commit_what_its_successor_rolled_back,
}

/// A process whose store is gone while its transaction is open.
fn zombie(runs: &Runs, shop: &Shop, way: &Way) -> Process {
    let process = Process::doomed(&runs.open());
    process.run(async {
        let flow = process.build(shop.builder()).register(paying(shop, way), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        way.paid.take().await;
    });
    process.cut_off();
    process
}

/// Lets the successor end beside the zombie, which goes on before that where it holds the only lock, else afterwards.
fn beside<T: Send>(shop: &Shop, may_end: &Signal, succeed: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let successor = scope.spawn(succeed);
        if shop.kind == Kind::Sqlite {
            may_end.give();
        }
        let end = successor.join().unwrap();
        may_end.give();
        // One by introspection stands still before its COMMIT, since its note of that can't be written.
        if shop.strategy != INTROSPECTION {
            shop.until_over();
        }
        end
    })
}

fn row_11_a_zombie_and_its_successor_have_one_effect(shop: &Shop) {
    let may_end = Signal::default();
    let way = Way { may_end: Some(may_end.clone()), ..Way::default() };
    let runs = shop.runs();
    let zombie = zombie(&runs, shop, &way);
    let board = beside(shop, &may_end, || end_of(&runs, shop, &Way::default()).unwrap());
    zombie.crash();
    assert_eq!((board.total, shop.effects()), (1, vec!["run".to_owned()]));
}

/// The successor's closure fails: that is recorded, so the zombie's must not take effect any more. Where the zombie commits
/// first, the successor learns that it did.
fn row_11_a_zombie_cannot_commit_what_its_successor_rolled_back(shop: &Shop) {
    let may_end = Signal::default();
    let way = Way { may_end: Some(may_end.clone()), ..Way::default() };
    let runs = shop.runs();
    let zombie = zombie(&runs, shop, &way);
    let failing = Way { fails: true, ..Way::default() };
    let end = beside(shop, &may_end, || end_of(&runs, shop, &failing));
    zombie.crash();
    assert_eq!(shop.effects().len(), usize::from(end.is_ok()), "{end:?}");
}

/// No row of the successor's stands in the zombie's way yet: the fence alone keeps it from committing.
#[test]
fn row_11_a_zombie_is_fenced_before_its_successor_has_written_anything() {
    let shop = Shop::open(Kind::Postgres, CO_COMMIT);
    let (may_end, successor_may_end) = (Signal::default(), Signal::default());
    let runs = shop.runs();
    let zombie = zombie(&runs, &shop, &Way { may_end: Some(may_end.clone()), ..Way::default() });
    let way = Way { may_end: Some(successor_may_end.clone()), ..Way::default() };
    let board = thread::scope(|scope| {
        let successor = scope.spawn(|| finish(&runs, &shop, &way));
        zombie.run(way.paid.take());
        may_end.give();
        let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' \
                    AND application_name = 'hapax transactions' AND datname = current_database()";
        while shop.sql(open) != "1" {
            thread::yield_now();
        }
        assert!(shop.effects().is_empty(), "what the zombie did");
        successor_may_end.give();
        successor.join().unwrap()
    });
    zombie.crash();
    assert_eq!((board.total, shop.effects()), (1, vec!["run".to_owned()]));
}
