//! What is missing is told before any statement of the user's, with the statement that mends it.

use crate::kit::{Place, json, name, on_all, why, with_effect};
use futures::future::join_all;
use hapax_store::db::{DatabaseOptions, Kind, Marked, TxOptions, marker_table};
use std::sync::Arc;

on_all! {
    row_23_a_table_that_lets_two_commit_is_refused,
    row_23_a_table_that_is_something_else_is_refused,
    row_24_a_hundred_first_time_creators_at_once_all_succeed,
    row_25_a_pool_of_one_does_a_hundred_transactions,
    two_names_of_one_database_are_the_same_and_two_databases_are_not,
    only_postgres_can_be_asked_for_the_fate_of_a_transaction,
    what_can_not_be_reached_is_told,
}

async fn row_23_a_table_that_lets_two_commit_is_refused(place: Place) {
    let keyless = marker_table(place.kind).replace(" PRIMARY KEY", "").replace(" WITHOUT ROWID", "");
    place.sql(&keyless);
    let database = place.open().await;
    let told = why(database.prepare().await);
    assert!(told.contains("hapax_transactions"), "{told}");
    match place.kind {
        Kind::Sqlite => {
            place.sql("ALTER TABLE hapax_transactions RENAME TO old");
        }
        _ => {
            let (_, cure) = told.split_once("id: ").unwrap_or_else(|| panic!("{told}"));
            place.sql(cure);
        }
    }
    database.prepare().await.expect("it is mended");
}

async fn row_23_a_table_that_is_something_else_is_refused(place: Place) {
    place.sql("CREATE TABLE hapax_transactions (other integer PRIMARY KEY)");
    let outcome = place.open().await.prepare().await;
    assert!(outcome.unwrap_err().to_string().contains("hapax_transactions") || place.kind == Kind::MySql);
}

async fn row_24_a_hundred_first_time_creators_at_once_all_succeed(place: Place) {
    let databases = join_all((0..100).map(|_| place.with_sessions(1))).await;
    for prepared in join_all(databases.iter().map(|database| database.prepare())).await {
        prepared.expect("whoever comes first, it is there");
    }
    assert_eq!(place.sql("SELECT count(*) FROM hapax_transactions"), "0");
}

async fn row_25_a_pool_of_one_does_a_hundred_transactions(place: Place) {
    place.ready().await;
    let database = place.with_sessions(1).await;
    database.prepare().await.expect("markers");
    let transactions = (0..100i64).map(|n| {
        let database = database.clone();
        tokio::spawn(async move {
            let mut tx = with_effect(&database, n).await;
            let id = (n / 2).to_string();
            let marked = tx.mark(&id, &json("x")).await.expect("an answer");
            match marked {
                Marked::Here => tx.commit().await.expect("a commit"),
                Marked::Taken => tx.rollback().await.expect("a rollback"),
            }
            assert!(database.marker(&id).await.expect("an answer").is_some());
        })
    });
    for done in join_all(transactions).await {
        done.expect("no panic");
    }
    assert_eq!(place.effects(), 50);
}

async fn two_names_of_one_database_are_the_same_and_two_databases_are_not(place: Place) {
    let identity = async |place: &Place| place.open().await.identity().await.expect("a name");
    let other = match place.kind {
        Kind::Sqlite => {
            let link = format!("{}-link", place.url);
            std::os::unix::fs::symlink(&place.url, &link).expect("a link");
            place.at(link)
        }
        _ => place.at(place.url.replace("127.0.0.1", "localhost")),
    };
    assert_eq!(identity(&place).await, identity(&other).await);
    assert_ne!(identity(&place).await, identity(&Place::new(place.kind)).await);
}

async fn only_postgres_can_be_asked_for_the_fate_of_a_transaction(place: Place) {
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    if place.kind == Kind::Postgres {
        database.prepare_introspection().await.expect("it can");
        tx.witness().await.expect("it is known");
    } else {
        assert!(why(database.prepare_introspection().await).contains("use a marker"));
        assert!(why(tx.witness().await).contains("use a marker"));
    }
    tx.commit().await.expect("nothing has happened to it");
}

async fn what_can_not_be_reached_is_told(place: Place) {
    let nowhere = match place.kind {
        Kind::Sqlite => format!("{}-not-there", place.url),
        _ => place.url.replace(name(&place.url), "not_there"),
    };
    let outcome = place.at(nowhere).try_open(&DatabaseOptions::default()).await;
    let told = why(outcome);
    assert!(place.kind == Kind::Sqlite || told.contains("CREATE DATABASE"), "{told}");
    let broken: Arc<_> = place.open().await;
    broken.begin(&TxOptions::default()).await.expect("it begins").rollback().await.expect("a rollback");
}
