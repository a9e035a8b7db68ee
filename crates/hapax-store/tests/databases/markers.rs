//! A marker lets one execution of a transaction commit, and says afterwards what it returned.

use crate::kit::{Place, begin, is_rolled_back, json, on_all, one, places, with_effect};
use hapax_store::db::{DbError, Kind, Marked, ToValue, TxOptions};
use std::time::Duration;

on_all! {
    a_marker_says_what_its_transaction_returned,
    what_was_not_marked_leaves_no_marker,
    rule_a_failed_marker_is_never_followed_by_a_commit,
    rule_a_marker_is_swept_by_its_exact_id_and_only_when_it_is_old,
    a_transaction_that_only_reads_leaves_no_marker,
}

async fn a_marker_says_what_its_transaction_returned(place: Place) {
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    assert_eq!(tx.mark("k", &json("ä 🦀")).await.expect("a marker"), Marked::Here);
    assert_eq!(place.effects(), 0, "nothing is seen before the COMMIT");
    tx.commit().await.expect("a commit");
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("ä 🦀")));
    assert_eq!(database.marker("K").await.expect("an answer"), None, "another id");
    assert_eq!(place.effects(), 1);
}

async fn what_was_not_marked_leaves_no_marker(place: Place) {
    let database = place.ready().await;
    let mut undone = with_effect(&database, 1).await;
    undone.mark("k", &json("undone")).await.expect("a marker");
    undone.rollback().await.expect("a rollback");
    let mut dropped = with_effect(&database, 1).await;
    dropped.mark("k", &json("dropped")).await.expect("the rolled back one is gone");
    drop(dropped);
    let mut third = with_effect(&database, 1).await;
    assert_eq!(third.mark("k", &json("third")).await.expect("the dropped one is gone"), Marked::Here);
    third.commit().await.expect("a commit");
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("third")));
    assert_eq!(place.effects(), 1);
}

async fn rule_a_failed_marker_is_never_followed_by_a_commit(place: Place) {
    let database = place.ready().await;
    for n in 0..2 {
        let mut tx = with_effect(&database, n).await;
        let marked = tx.mark("k", &json(&n.to_string())).await.expect("an answer");
        assert_eq!(marked, if n == 0 { Marked::Here } else { Marked::Taken });
        let refused = tx.execute("DELETE FROM effects", &[]).await;
        assert_eq!(matches!(refused, Err(DbError::Poisoned(_))), n > 0, "{refused:?}");
        if n == 0 {
            let insert = places(place.kind, "INSERT INTO effects VALUES (?)");
            tx.execute(&insert, &[n.to_value()]).await.expect("an effect");
        }
        assert_eq!(is_rolled_back(&tx.commit().await), n > 0);
    }
    // Of another kind: the marker doesn't fit.
    let too_long = "k".repeat(300);
    let mut tx = with_effect(&database, 2).await;
    if let Err(error) = tx.mark(&too_long, &json("x")).await {
        assert!(matches!(error, DbError::Statement { .. }), "{error:?}");
        assert!(is_rolled_back(&tx.commit().await));
    } else {
        tx.rollback().await.expect("a rollback");
    }
    assert_eq!(place.effects(), 1);
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("0")));
}

async fn rule_a_marker_is_swept_by_its_exact_id_and_only_when_it_is_old(place: Place) {
    let database = place.ready().await;
    for id in ["a", "a%", "A", "b"] {
        let mut tx = begin(&database).await;
        tx.mark(id, &json(id)).await.expect("a marker");
        tx.commit().await.expect("a commit");
    }
    let sweep = async |ids: &[&str], age| {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        database.sweep(ids, age).await.expect("a sweep")
    };
    assert_eq!(sweep(&["a", "b"], Duration::from_secs(900)).await, 0, "they are young");
    assert_eq!(sweep(&["a%", "", "c"], Duration::ZERO).await, 1, "one has this name");
    assert_eq!(sweep(&["a"], Duration::ZERO).await, 1);
    assert_eq!(database.marker("A").await.expect("an answer"), Some(json("A")));
    let aged = match place.kind {
        Kind::Postgres => "created_at - interval '16 min'",
        Kind::MySql => "created_at - INTERVAL 16 MINUTE",
        Kind::Sqlite => "created_at - 16 * 60000",
    };
    place.sql(&format!("UPDATE hapax_transactions SET created_at = {aged} WHERE id = 'b'"));
    let mut many: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    many.extend(["A".to_owned(), "b".to_owned()]);
    assert_eq!(database.sweep(many, Duration::from_secs(900)).await.expect("a sweep in batches"), 1);
    assert_eq!(database.marker("b").await.expect("an answer"), None);
    assert_eq!(sweep(&[], Duration::ZERO).await, 0);
}

async fn a_transaction_that_only_reads_leaves_no_marker(place: Place) {
    let database = place.ready().await;
    let options = TxOptions { read_only: true, ..TxOptions::default() };
    let mut tx = database.begin(&options).await.expect("it begins");
    one(&mut *tx, "SELECT count(*) FROM effects", &[]).await;
    assert_eq!(tx.mark("k", &json("read")).await.expect("nothing to do"), Marked::Here);
    tx.commit().await.expect("a commit");
    assert_eq!(database.marker("k").await.expect("an answer"), None);
    let mut tx = database.begin(&options).await.expect("it begins");
    assert!(tx.execute("INSERT INTO effects VALUES (1)", &[]).await.is_err(), "it may not write");
    tx.rollback().await.expect("a rollback");
    with_effect(&database, 1).await.commit().await.expect("the session takes writes again");
    assert_eq!(place.effects(), 1);
}
