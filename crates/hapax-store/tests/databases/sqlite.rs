//! What is so on SQLite alone.

use crate::kit::{Place, begin, is_rolled_back, json, until, why, with_effect};
use hapax_store::db::{CommitError, DatabaseOptions, DbError, Kind};
use rusqlite::{Connection, ErrorCode};
use std::time::Duration;

fn place() -> Place {
    Place::new(Kind::Sqlite)
}

/// A connection that never waits.
fn impatient(place: &Place) -> Connection {
    let connection = Connection::open(&place.url).expect("a connection");
    connection.busy_timeout(Duration::ZERO).expect("a setting");
    connection
}

fn is_busy<T>(outcome: Result<T, rusqlite::Error>) -> bool {
    outcome.is_err_and(|error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy))
}

/// Whoever waits to commit lets no new readers in, and meets those that are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_commit_that_meets_readers_is_repeated() {
    let place = place();
    let database = place.ready().await;
    let reader = impatient(&place);
    reader.execute_batch("BEGIN; SELECT count(*) FROM effects").expect("a reader");
    let mut tx = with_effect(&database, 1).await;
    tx.mark("k", &json("x")).await.expect("a marker");
    let commit = tokio::spawn(tx.commit());
    until("the commit meets the reader", || {
        is_busy(impatient(&place).query_row("SELECT count(*) FROM effects", (), |row| row.get::<_, i64>(0)))
    })
    .await;
    assert!(!commit.is_finished());
    reader.execute_batch("COMMIT").expect("the reader goes");
    commit.await.expect("no panic").expect("a commit");
    assert_eq!(place.effects(), 1);
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("x")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_conflict_that_rolls_back_leaves_nothing_to_commit() {
    let place = place();
    let database = place.ready().await;
    place
        .sql("CREATE TABLE taken (n INTEGER PRIMARY KEY ON CONFLICT ROLLBACK); INSERT INTO taken VALUES (1)");
    place.sql("CREATE TRIGGER stop BEFORE INSERT ON effects WHEN new.n = 13 BEGIN SELECT raise(ROLLBACK, 'no'); END");
    for conflict in [
        "INSERT INTO taken VALUES (1)",
        "INSERT OR ROLLBACK INTO taken VALUES (1)",
        "INSERT INTO effects VALUES (13)",
    ] {
        let mut tx = with_effect(&database, 1).await;
        let outcome = tx.execute(conflict, &[]).await;
        assert!(matches!(outcome, Err(DbError::Statement { .. })), "{conflict}: {outcome:?}");
        let after = tx.execute("INSERT INTO effects VALUES (2)", &[]).await;
        assert!(matches!(after, Err(DbError::Poisoned(_))), "{conflict}: {after:?}");
        assert!(matches!(tx.mark("k", &json("x")).await, Err(DbError::Poisoned(_))));
        assert!(is_rolled_back(&tx.commit().await));
    }
    assert_eq!((place.effects(), database.marker("k").await.expect("an answer")), (0, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_what_fails_at_commit_is_rolled_back() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE parents (n INTEGER PRIMARY KEY)");
    place.sql("CREATE TABLE children (n INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)");
    let mut tx = with_effect(&database, 1).await;
    tx.execute("INSERT INTO children VALUES (7)", &[]).await.expect("it is checked later");
    tx.mark("k", &json("x")).await.expect("a marker");
    let outcome = tx.commit().await;
    assert!(matches!(outcome, Err(CommitError::RolledBack(DbError::Statement { .. }))), "{outcome:?}");
    assert_eq!((place.effects(), database.marker("k").await.expect("an answer")), (0, None));
    with_effect(&database, 2).await.commit().await.expect("others go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_a_transaction_has_the_lock_from_its_begin() {
    let place = place();
    let database = place.ready().await;
    let tx = begin(&database).await;
    assert!(is_busy(impatient(&place).execute_batch("BEGIN IMMEDIATE")));
    drop(tx);
    until("the lock is free", || impatient(&place).execute_batch("BEGIN IMMEDIATE").is_ok()).await;
}

/// Asked while another of this process writes: recovery has no turn to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_can_be_read_while_another_transaction_writes() {
    let place = place();
    let database = place.ready().await;
    let tx = with_effect(&database, 1).await;
    assert_eq!(database.marker("k").await.expect("an answer"), None);
    tx.commit().await.expect("a commit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_connection_syncs_each_commit() {
    let place = place();
    let database = place.ready().await;
    for _ in 0..2 {
        let mut tx = begin(&database).await;
        let row = crate::kit::one(&mut *tx, "PRAGMA synchronous", &[]).await;
        assert_eq!(row.get::<i64>(0), Ok(2));
        tx.rollback().await.expect("a rollback");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_what_is_no_database_is_refused() {
    let place = place();
    let folder = std::path::Path::new(&place.url).parent().expect("a folder").display().to_string();
    for odd in [":memory:", "", &folder] {
        why(place.at(odd.into()).try_open(&DatabaseOptions::default()).await);
    }
    std::fs::write(
        &place.url,
        "something else, and long enough to be no database of any kind, whatever it is",
    )
    .expect("a file");
    let outcome = place.try_open(&DatabaseOptions::default()).await;
    let refused = match outcome {
        Ok(database) => database.prepare().await,
        Err(error) => Err(error),
    };
    assert!(why(refused).contains("not a database"));
}
