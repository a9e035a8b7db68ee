//! Two executions of one transaction, and answers that are lost: on servers, where both can be.

use crate::{
    kit::{Place, is_rolled_back, json, on_servers, one, until, with_effect},
    raw::Raw,
};
use hapax_servers::Proxy;
use hapax_store::db::{CommitError, Database, DbError, Isolation, Kind, Marked, TxOptions};
use std::{sync::Arc, time::Duration};

on_servers! {
    row_5_a_commit_whose_reply_is_lost_is_told_by_its_marker,
    row_6_a_commit_that_never_arrived_is_run_again_with_one_effect,
    row_11_the_second_of_two_executions_waits_for_the_first_and_gets_its_result,
    row_13_a_marker_that_another_holds_for_long_is_given_up_for_now,
    row_28_a_sweep_meets_no_marker_of_a_transaction_under_way,
    rule_recovery_reads_what_an_old_snapshot_does_not_see,
}

/// A transaction through the proxy whose COMMIT, or the answer to it, is lost with the connection.
async fn lose(
    place: &Place,
    lose: fn(&Proxy, u64),
    has_come: impl FnMut() -> bool,
) -> (Arc<dyn Database>, CommitError) {
    let near = place.ready().await;
    let (proxy, far) = place.behind_proxy();
    let far = far.open().await;
    far.prepare().await.expect("markers");
    let mut tx = with_effect(&far, 1).await;
    assert_eq!(tx.mark("k", &json("first")).await.expect("a marker"), Marked::Here);
    lose(&proxy, 1);
    let commit = tokio::spawn(tx.commit());
    tokio::task::block_in_place(|| proxy.wait_for_loss());
    until("it went as far as it could", has_come).await;
    proxy.cut();
    let Err(error) = commit.await.expect("no panic") else { panic!("it can't be known") };
    (near, error)
}

async fn row_5_a_commit_whose_reply_is_lost_is_told_by_its_marker(place: Place) {
    let (near, error) = lose(&place, Proxy::swallow_replies, || place.effects() == 1).await;
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    assert_eq!(near.marker("k").await.expect("an answer"), Some(json("first")));
    let mut again = with_effect(&near, 2).await;
    assert_eq!(again.mark("k", &json("second")).await.expect("an answer"), Marked::Taken);
    again.rollback().await.expect("a rollback");
    assert_eq!(place.effects(), 1);
}

async fn row_6_a_commit_that_never_arrived_is_run_again_with_one_effect(place: Place) {
    let (near, error) = lose(&place, Proxy::swallow_requests, || true).await;
    assert!(!matches!(error, CommitError::Ended(_)), "{error:?}");
    assert_eq!(near.marker("k").await.expect("an answer"), None);
    let mut again = with_effect(&near, 2).await;
    assert_eq!(again.mark("k", &json("second")).await.expect("the first one is gone"), Marked::Here);
    again.commit().await.expect("a commit");
    assert_eq!(near.marker("k").await.expect("an answer"), Some(json("second")));
    assert_eq!(place.effects(), 1);
}

/// How many wait for a lock.
fn waiting(place: &Place) -> String {
    place.sql(match place.kind {
        Kind::Postgres => {
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        }
        _ => {
            "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
             ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = database()"
        }
    })
}

async fn row_11_the_second_of_two_executions_waits_for_the_first_and_gets_its_result(place: Place) {
    let database = place.ready().await;
    let mut first = with_effect(&database, 1).await;
    first.mark("k", &json("first")).await.expect("a marker");
    let mut second = with_effect(&database, 2).await;
    let marking = tokio::spawn(async move {
        let marked = second.mark("k", &json("second")).await;
        (second, marked)
    });
    until("the second waits", || waiting(&place) == "1").await;
    first.commit().await.expect("the first commits");
    let (second, marked) = marking.await.expect("no panic");
    assert_eq!(marked.expect("an answer"), Marked::Taken);
    assert!(is_rolled_back(&second.commit().await));
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("first")));
    assert_eq!(place.effects(), 1);
}

async fn row_13_a_marker_that_another_holds_for_long_is_given_up_for_now(place: Place) {
    let database = place.ready().await;
    let mut zombie = with_effect(&database, 1).await;
    zombie.mark("k", &json("first")).await.expect("a marker");
    let mut recovery = with_effect(&database, 2).await;
    let marked = recovery.mark("k", &json("second")).await;
    assert!(matches!(marked, Err(DbError::Away(_))), "{marked:?}");
    assert!(is_rolled_back(&recovery.commit().await));
    zombie.commit().await.expect("the zombie commits");
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("first")));
    assert_eq!(place.effects(), 1);
}

async fn rule_recovery_reads_what_an_old_snapshot_does_not_see(place: Place) {
    let database = place.ready().await;
    let options = TxOptions { isolation: Isolation::RepeatableRead, ..TxOptions::default() };
    let mut old = database.begin(&options).await.expect("it begins");
    one(&mut *old, "SELECT count(*) FROM effects", &[]).await;
    let mut first = with_effect(&database, 1).await;
    first.mark("k", &json("first")).await.expect("a marker");
    first.commit().await.expect("a commit");
    let seen = one(&mut *old, "SELECT count(*) FROM effects", &[]).await;
    assert_eq!(seen.get::<i64>(0), Ok(0), "an old snapshot");
    assert_eq!(old.mark("k", &json("second")).await.expect("an answer"), Marked::Taken);
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("first")));
    old.rollback().await.expect("a rollback");
}

/// Under a stronger isolation it would lock the gaps between ids, and those who insert there would wait.
async fn row_28_a_sweep_meets_no_marker_of_a_transaction_under_way(place: Place) {
    let database = place.ready().await;
    let mut raw = Raw::connect(&place).await;
    raw.run("BEGIN").await;
    raw.run("INSERT INTO hapax_transactions VALUES ('c', 'null', now())").await;
    let ids = ["a", "b", "d"].map(str::to_owned).to_vec();
    assert_eq!(database.sweep(ids, Duration::ZERO).await.expect("nobody waits"), 0);
    raw.run("COMMIT").await;
    assert!(database.marker("c").await.expect("an answer").is_some());
}
