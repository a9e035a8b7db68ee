//! A request that is finished in the caller's own transaction, on PostgreSQL.

use crate::kit::{EFFECTS, Kind, address, effects, sql};
use hapax_core::{
    json::Json,
    request::{Completion, Lease, RecoveryPoint},
};
use hapax_servers::Proxy;
use hapax_store::{
    StoreError,
    conformance::requests::{claim, dying, execute},
    postgres::PostgresOptions,
    requests::{Begun, Finished, Pointed, PostgresRequests, RequestStore},
};
use std::sync::Arc;
use tokio_postgres::{Client, NoTls, Transaction};

async fn shop() -> (String, Arc<PostgresRequests>, Client) {
    let url = Kind::Postgres.database();
    sql(&url, EFFECTS);
    let store = PostgresRequests::open(&url, PostgresOptions::default()).await.expect("it opens");
    (url.clone(), store, connect(&url).await)
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// A transaction with an effect.
async fn effect(client: &mut Client, number: i32) -> Transaction<'_> {
    let tx = client.transaction().await.expect("a transaction");
    tx.execute("INSERT INTO effects VALUES ($1)", &[&number]).await.expect("an effect");
    tx
}

fn done() -> Completion {
    Completion::succeeded(201, "charged")
}

fn point() -> RecoveryPoint {
    RecoveryPoint::new("reserved", Json::of(&7).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_and_record_are_committed_together() {
    let (url, store, mut client) = shop().await;
    // What the caller's session looks for elsewhere, or doesn't wait for, is of no matter.
    client.batch_execute("SET search_path = pg_catalog; SET synchronous_commit = off").await.unwrap();
    let lease = execute(&*store, &claim("k")).await;
    let tx = client.transaction().await.unwrap();
    tx.execute("INSERT INTO public.effects VALUES (1)", &[]).await.unwrap();
    assert_eq!(store.finish_in(tx, &lease, &done()).await.unwrap(), Finished::Done);
    let Begun::Replay(record) = store.begin(&claim("k")).await.unwrap() else { panic!("no replay") };
    assert_eq!((record.completion, effects(&url)), (Some(done()), 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_workers_effect_is_rolled_back() {
    let (url, store, mut client) = shop().await;
    let stale = execute(&*store, &dying("k")).await;
    let tx = effect(&mut client, 1).await;
    let lease = execute(&*store, &claim("k")).await;
    assert_eq!(store.finish_in(tx, &stale, &done()).await.unwrap(), Finished::Stale);
    assert_eq!(effects(&url), 0);
    let tx = effect(&mut client, 1).await;
    assert_eq!(store.finish_in(tx, &lease, &done()).await.unwrap(), Finished::Done);
    let tx = effect(&mut client, 2).await;
    assert_eq!(store.finish_in(tx, &lease, &done()).await.unwrap(), Finished::Stale, "it has ended");
    assert_eq!(effects(&url), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_point_counts_with_its_transaction_alone() {
    let (url, store, mut client) = shop().await;
    let dead = execute(&*store, &dying("k")).await;
    let tx = effect(&mut client, 1).await;
    let Pointed::Set(tx) = store.point_in(tx, &dead, &point()).await.unwrap() else { panic!("stale") };
    tx.rollback().await.unwrap();
    assert_eq!(store.get(&dead.id).await.unwrap().unwrap().point, None);
    let tx = effect(&mut client, 1).await;
    let Pointed::Set(tx) = store.point_in(tx, &dead, &point()).await.unwrap() else { panic!("stale") };
    tx.commit().await.unwrap();
    let lease = execute(&*store, &claim("k")).await;
    assert_eq!(lease.point, Some(point()));
    let tx = effect(&mut client, 2).await;
    assert!(matches!(store.point_in(tx, &dead, &point()).await.unwrap(), Pointed::Stale));
    assert_eq!(effects(&url), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_failed_finishes_nothing() {
    let (url, store, mut client) = shop().await;
    let lease = execute(&*store, &claim("k")).await;
    let tx = effect(&mut client, 1).await;
    tx.execute("INSERT INTO effects VALUES (1)", &[]).await.unwrap_err();
    let failed = store.finish_in(tx, &lease, &done()).await.unwrap_err();
    assert!(matches!(failed, StoreError::Retry(_)), "{failed}");
    // A check that is put off to the COMMIT.
    sql(&url, "CREATE TABLE late (n INT UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO late VALUES (1)");
    let tx = effect(&mut client, 1).await;
    tx.execute("INSERT INTO late VALUES (1)", &[]).await.unwrap();
    let failed = store.finish_in(tx, &lease, &done()).await.unwrap_err();
    assert!(matches!(failed, StoreError::Retry(_)), "{failed}");
    assert_eq!((store.get(&lease.id).await.unwrap().unwrap().completion, effects(&url)), (None, 0));
    let tx = effect(&mut client, 1).await;
    assert_eq!(store.finish_in(tx, &lease, &done()).await.unwrap(), Finished::Done);
}

/// The reply to COMMIT, or COMMIT itself, is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_commit_whose_answer_is_lost_the_next_begin_tells() {
    let (url, store, _) = shop().await;
    let proxy = Arc::new(Proxy::start(address(&url)).expect("a proxy"));
    for (number, arrives) in [(1, true), (2, false)] {
        let key = format!("k{number}");
        let lease: Lease = execute(&*store, &claim(&key)).await;
        let mut client = connect(&proxy.url(&url).expect("a URL")).await;
        let tx = effect(&mut client, number).await;
        match arrives {
            true => proxy.hold_reply("COMMIT"),
            false => proxy.hold_request("COMMIT"),
        }
        let held = proxy.clone();
        let cut = tokio::task::spawn_blocking(move || {
            held.wait_for_hold();
            held.cut();
            held.release();
        });
        let finished = store.finish_in(tx, &lease, &done()).await;
        cut.await.expect("no panic");
        assert!(matches!(finished, Err(StoreError::Unknown(_))), "{finished:?}");
        // What never arrived is rolled back once the server has noticed; until then its row is locked.
        let found = store.get(&lease.id).await.unwrap().unwrap();
        assert_eq!(found.completion.is_some(), arrives);
        assert_eq!(effects(&url), 1);
        let begun = store.begin(&claim(&key)).await.unwrap();
        assert_eq!(matches!(begun, Begun::Replay(_)), arrives, "{begun:?}");
    }
}
