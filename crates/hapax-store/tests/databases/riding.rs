//! Rows of the store's own behind the user's statements: who holds the run's row may not stand still.

use crate::kit::{Place, begin, on_servers, one};
use hapax_store::{
    Store,
    conformance::sample::Sample,
    db::Kind,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
};
use std::sync::Arc;

on_servers! {
    a_session_that_holds_the_runs_row_is_ended_after_a_minute_and_not_after_ten,
}

async fn runs_in(place: &Place) -> Arc<dyn Store> {
    match place.kind {
        Kind::Postgres => {
            PostgresStore::open(&place.url, PostgresOptions::default()).await.expect("it opens")
        }
        _ => MySqlStore::open(&place.url, MySqlOptions::default()).await.expect("it opens"),
    }
}

async fn a_session_that_holds_the_runs_row_is_ended_after_a_minute_and_not_after_ten(place: Place) {
    let store = runs_in(&place).await;
    let holder = Sample::run("riding").hold(&store).await;
    let statements = store.within(&holder.append(1)).await.expect("statements");
    let (ask, patient, hurried) = match place.kind {
        Kind::Postgres => ("SELECT current_setting('idle_in_transaction_session_timeout')", "10min", "1min"),
        _ => ("SELECT concat(@@wait_timeout, ' ', @@idle_transaction_timeout)", "600 600", "60 60"),
    };
    let database = place.with_sessions(1).await;
    for _ in 0..2 {
        let mut tx = begin(&database).await;
        assert_eq!(one(&mut *tx, ask, &[]).await.get::<String>(0).expect("a text"), patient);
        assert!(tx.ride(&statements).await.expect("an answer"), "the run is its holder's");
        assert_eq!(one(&mut *tx, ask, &[]).await.get::<String>(0).expect("a text"), hurried);
        tx.rollback().await.expect("it is undone");
    }
}
