//! A worker that was cut off in the middle of a transaction, and goes on when another has taken its run over.

use crate::{
    common::*,
    shop::{Kind, MARKER, Shop, Way, end_of, on_each, paying},
};
use hapax::store::Store;
use std::{sync::Arc, thread};

on_each! {
    row_11_a_zombie_and_its_successor_have_one_effect,
    row_11_a_zombie_cannot_commit_what_its_successor_rolled_back,
}

/// A process whose store is gone while its transaction is open.
fn zombie(store: &Arc<dyn Store>, shop: &Shop, way: &Way) -> Process {
    let process = Process::doomed(store);
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
        if shop.strategy == MARKER {
            shop.until_over();
        }
        end
    })
}

fn row_11_a_zombie_and_its_successor_have_one_effect(shop: &Shop) {
    let may_end = Signal::default();
    let way = Way { may_end: Some(may_end.clone()), ..Way::default() };
    let store = memory();
    let zombie = zombie(&store, shop, &way);
    let board = beside(shop, &may_end, || end_of(&store, shop, &Way::default()).unwrap());
    zombie.crash();
    assert_eq!((board.total, shop.effects()), (1, vec!["run".to_owned()]));
}

/// The successor's closure fails: that is recorded, so the zombie's must not take effect any more. Where the zombie commits
/// first, the successor learns that it did.
fn row_11_a_zombie_cannot_commit_what_its_successor_rolled_back(shop: &Shop) {
    let may_end = Signal::default();
    let way = Way { may_end: Some(may_end.clone()), ..Way::default() };
    let store = memory();
    let zombie = zombie(&store, shop, &way);
    let failing = Way { fails: true, ..Way::default() };
    let end = beside(shop, &may_end, || end_of(&store, shop, &failing));
    zombie.crash();
    assert_eq!(shop.effects().len(), usize::from(end.is_ok()), "{end:?}");
}
