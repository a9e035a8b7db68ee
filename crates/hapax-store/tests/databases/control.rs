//! A transaction ends by its own COMMIT or ROLLBACK and by nothing else, whatever is said in it.

use crate::kit::{Place, begin, is_rolled_back, json, on_all, one, places, with_effect};
use hapax_store::db::{DbError, Kind, Marked, ToValue, TxOptions};
use std::{pin::pin, task::Poll, time::Duration};

on_all! {
    row_20_what_would_end_or_leave_the_transaction_is_refused_before_it_runs,
    what_fails_in_a_savepoint_is_undone_and_the_transaction_goes_on,
    a_statement_that_is_dropped_half_way_leaves_only_the_rollback,
    a_statement_that_takes_too_long_is_given_up,
    rule_an_update_counts_the_rows_that_it_meets,
    a_wrong_number_of_values_is_told_and_nothing_is_kept,
    several_statements_in_one_text_are_not_run,
}

const EVERYWHERE: [&str; 12] = [
    "BEGIN",
    "COMMIT",
    "/* quietly */ commit work",
    "-- quietly\nCOMMIT",
    "ROLLBACK",
    "ROLLBACK TO SAVEPOINT hapax_1",
    "SAVEPOINT mine",
    "RELEASE SAVEPOINT hapax_1",
    "END",
    "SET autocommit = 1",
    "XA START 'x'",
    "DELETE FROM hapax_transactions",
];

fn refused_on(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Postgres => &[
            "START TRANSACTION",
            "COMMIT AND CHAIN",
            "PREPARE TRANSACTION 'x'",
            "SET search_path = pg_temp",
            "SET LOCAL synchronous_commit = off",
            "SELECT set_config('synchronous_commit', 'off', true)",
            "SET LOCAL client_min_messages = error",
            "DISCARD ALL",
        ],
        Kind::MySql => &[
            "START TRANSACTION",
            "CREATE TABLE other (n int)",
            "DROP TABLE effects",
            "ALTER TABLE effects ADD m int",
            "TRUNCATE effects",
            "CALL ends()",
            "LOCK TABLES effects WRITE",
            "UNLOCK TABLES",
            "FLUSH TABLES",
            "SELECT 1 /*! INTO @x */",
            "/*M! COMMIT */",
            "PREPARE s FROM 'COMMIT'",
            "EXECUTE IMMEDIATE 'COMMIT'",
            "SET STATEMENT max_statement_time = 1 FOR COMMIT",
            "BEGIN NOT ATOMIC COMMIT; END",
            "USE mysql",
        ],
        Kind::Sqlite => &[
            "ATTACH 'other.db' AS other",
            "DETACH main",
            "VACUUM",
            "PRAGMA synchronous = OFF",
            "PRAGMA foreign_keys(0)",
            "END TRANSACTION",
        ],
    }
}

async fn row_20_what_would_end_or_leave_the_transaction_is_refused_before_it_runs(place: Place) {
    let database = place.ready().await;
    if place.kind == Kind::MySql {
        place.sql("CREATE PROCEDURE ends() COMMIT");
    }
    let mut tx = with_effect(&database, 1).await;
    for sql in EVERYWHERE.iter().chain(refused_on(place.kind)) {
        let outcome = tx.execute(sql, &[]).await;
        assert!(matches!(outcome, Err(DbError::Refused(_))), "{sql}: {outcome:?}");
        let outcome = tx.query(sql, &[]).await;
        assert!(matches!(outcome, Err(DbError::Refused(_))), "{sql}: {outcome:?}");
        assert_eq!(place.effects(), 0, "{sql} has committed");
    }
    // It is as good as new.
    assert_eq!(one(&mut *tx, "SELECT count(*) FROM effects", &[]).await.get::<i64>(0), Ok(1));
    tx.rollback().await.expect("a rollback");
    assert_eq!(place.effects(), 0);
}

async fn what_fails_in_a_savepoint_is_undone_and_the_transaction_goes_on(place: Place) {
    let database = place.ready().await;
    place.sql("CREATE TABLE taken (n integer PRIMARY KEY)");
    let mut tx = with_effect(&database, 1).await;
    tx.save(1).await.expect("a savepoint");
    tx.execute("INSERT INTO taken VALUES (1)", &[]).await.expect("it is free");
    tx.save(2).await.expect("another");
    tx.execute("INSERT INTO effects VALUES (2)", &[]).await.expect("an effect");
    let twice = tx.execute("INSERT INTO taken VALUES (1)", &[]).await;
    assert!(matches!(twice, Err(DbError::Statement { .. })), "{twice:?}");
    tx.unsave(2, false).await.expect("undone");
    tx.unsave(1, true).await.expect("kept");
    assert_eq!(tx.mark("k", &json("done")).await.expect("a marker"), Marked::Here);
    tx.commit().await.expect("a commit");
    assert_eq!((place.effects(), place.sql("SELECT count(*) FROM taken")), (1, "1".to_owned()));
}

/// The longest statement that each knows.
fn slow(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => "SELECT pg_sleep(30)",
        Kind::MySql => "SELECT sleep(30)",
        Kind::Sqlite => {
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c WHERE n < 0 OR n > 0"
        }
    }
}

async fn a_statement_that_is_dropped_half_way_leaves_only_the_rollback(place: Place) {
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    {
        let mut late = pin!(tx.query(slow(place.kind), &[]));
        assert!(std::future::poll_fn(|cx| Poll::Ready(late.as_mut().poll(cx).is_pending())).await);
    }
    let next = tx.execute("INSERT INTO effects VALUES (3)", &[]).await;
    assert!(matches!(next, Err(DbError::Poisoned(_))), "{next:?}");
    assert!(matches!(tx.mark("k", &json("x")).await, Err(DbError::Poisoned(_))));
    assert!(is_rolled_back(&tx.commit().await));
    with_effect(&database, 4).await.commit().await.expect("others go on");
    assert_eq!(place.effects(), 1);
}

async fn a_statement_that_takes_too_long_is_given_up(place: Place) {
    let database = place.ready().await;
    let options = TxOptions { statement_timeout: Some(Duration::from_millis(300)), ..TxOptions::default() };
    let mut tx = database.begin(&options).await.expect("it begins");
    tx.execute("INSERT INTO effects VALUES (1)", &[]).await.expect("it is quick");
    let late = tx.query(slow(place.kind), &[]).await;
    assert!(matches!(late, Err(DbError::Statement { .. })), "{late:?}");
    tx.rollback().await.expect("a rollback");
    assert_eq!(place.effects(), 0);
    with_effect(&database, 2).await.commit().await.expect("others go on");
}

/// MySQL counts those that it changes, unless it is told otherwise.
async fn rule_an_update_counts_the_rows_that_it_meets(place: Place) {
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    let update = places(place.kind, "UPDATE effects SET n = ? WHERE n = 1");
    assert_eq!(tx.execute(&update, &[1.to_value()]).await.expect("an update"), 1);
    assert_eq!(tx.execute("DELETE FROM effects WHERE n = 7", &[]).await.expect("none"), 0);
    assert_eq!(tx.execute("INSERT INTO effects SELECT 5 UNION SELECT 6", &[]).await.expect("two"), 2);
}

async fn a_wrong_number_of_values_is_told_and_nothing_is_kept(place: Place) {
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    let insert = places(place.kind, "INSERT INTO effects VALUES (?)");
    for values in [vec![], vec![1.to_value(), 2.to_value()]] {
        let outcome = tx.execute(&insert, &values).await;
        let told = matches!(outcome, Err(DbError::Statement { .. } | DbError::Poisoned(_)));
        assert!(told, "{outcome:?}");
    }
    tx.rollback().await.expect("a rollback");
    assert_eq!(place.effects(), 0);
}

async fn several_statements_in_one_text_are_not_run(place: Place) {
    let database = place.ready().await;
    let mut tx = begin(&database).await;
    let outcome = tx.execute("INSERT INTO effects VALUES (1); COMMIT", &[]).await;
    assert!(matches!(outcome, Err(DbError::Statement { .. })), "{outcome:?}");
    tx.rollback().await.expect("a rollback");
    assert_eq!(place.effects(), 0);
}
