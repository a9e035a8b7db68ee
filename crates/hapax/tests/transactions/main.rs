//! Transactions in the user's databases take effect once, whatever crashes. Names carry the rows of the fault table.

#[path = "../common/mod.rs"]
mod common;
mod shop;

mod choice;
mod durable;
mod losses;
mod markers;
mod own_end;
mod recovery;
mod torn;
mod zombies;

use common::*;
use shop::{Runs, Shop, Way, finish, on_each, paying};

on_each! {
    a_transaction_takes_effect_once_and_its_result_is_recorded,
    row_03_a_crash_amid_the_statements_leaves_one_effect,
    row_07_a_crash_after_commit_runs_nothing_again,
}

fn a_transaction_takes_effect_once_and_its_result_is_recorded(shop: &Shop) {
    let (runs, way) = (shop.runs(), Way::default());
    let process = Process::healthy(&runs.open());
    process.run(async {
        let engine = process.build(shop.builder());
        let flow = engine.register(paying(shop, &way), ()).await.unwrap();
        for run in ["a", "b"] {
            let board = flow.start(run, Board::default()).await.unwrap().wait().await.unwrap();
            assert_eq!(board.total, if run == "a" { 1 } else { 2 });
        }
    });
    assert_eq!(shop.effects(), ["a", "b"]);
    assert_eq!(way.executed.len(), 2);
}

/// Starts the run in a process, and crashes it when the signal is given.
fn crash_at(runs: &Runs, shop: &Shop, way: &Way, at: &Signal) {
    let process = Process::doomed(&runs.open());
    process.run(async {
        let flow = process.build(shop.builder()).register(paying(shop, way), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        at.take().await;
    });
    process.crash();
}

fn row_03_a_crash_amid_the_statements_leaves_one_effect(shop: &Shop) {
    let (runs, way) = (shop.runs(), Way { may_end: Some(Signal::default()), ..Way::default() });
    crash_at(&runs, shop, &way, &way.paid);
    let board = finish(&runs, shop, &Way::default());
    assert_eq!((board.total, shop.effects()), (1, vec!["run".to_owned()]));
}

/// The end of the transaction rides with the next write, which never comes.
fn row_07_a_crash_after_commit_runs_nothing_again(shop: &Shop) {
    let (runs, way) = (shop.runs(), Way { may_go: Some(Signal::default()), ..Way::default() });
    crash_at(&runs, shop, &way, &way.known);
    assert_eq!(shop.effects(), ["run"]);
    shop.sql("INSERT INTO effects VALUES ('somebody else''s')");
    let again = Way::default();
    let board = finish(&runs, shop, &again);
    assert_eq!(board.total, 1, "the result of the execution that committed");
    assert_eq!(again.executed.len(), 0);
    assert_eq!(shop.effects().len(), 2);
}
