//! The PostgreSQL store keeps every promise of a store, on a real server.

use futures::future::join_all;
use hapax_core::{commit::Written, error::Coded, id::RunKey};
use hapax_store::{
    Store, StoreError,
    conformance::{
        Damage, Fixture,
        sample::{Sample, message, step},
    },
    postgres::{Isolation, PostgresOptions, PostgresStore},
    store_conformance,
};
use std::sync::Arc;

mod sealed;
#[path = "triggers/postgres.rs"]
mod triggers;

/// Opens a database from a test's own thread.
fn open(url: &str) -> Arc<PostgresStore> {
    open_with(url, PostgresOptions::default())
}

fn open_with(url: &str, options: PostgresOptions) -> Arc<PostgresStore> {
    let open = PostgresStore::open(url, options);
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(open)).expect("it opens")
}

fn postgres() -> Fixture {
    fixture(PostgresOptions::default())
}

/// The same with all payloads encrypted.
fn encrypted() -> Fixture {
    fixture(PostgresOptions::default().payload_codec(sealed::codec(sealed::NEW)))
}

/// The same with nearly all payloads beside their rows.
fn blobs() -> Fixture {
    fixture(PostgresOptions::default().blobs_over(8))
}

fn fixture(options: PostgresOptions) -> Fixture {
    let url = hapax_servers::postgres().expect("a server");
    let store = open_with(&url, options.clone());
    let (again, damaged) = (url.clone(), url.clone());
    Fixture::new(store)
        .reopen(move || -> Arc<dyn Store> { open_with(&again, options.clone()) })
        .corrupt(move |run, damage| corrupt(&damaged, run, damage))
        .fail_at(move |n| triggers::fail_at(&url, n))
}

store_conformance!(postgres, postgres);
store_conformance!(postgres_encrypted, encrypted);
store_conformance!(postgres_blobs, blobs);
sealed::promises::promises!(keys, postgres_keys, || crate::keyed(None));
sealed::promises::promises!(keys, postgres_keys_and_blobs, || crate::keyed(Some(100)));
sealed::promises::promises!(large, postgres_large, || crate::keyed(Some(4096)));
sealed::promises::promises!(resting, postgres_resting, || crate::sealed::resting::Place::new(
    crate::keyed_as
));

/// A database that is opened with these keys and those.
fn keyed(blobs_over: Option<usize>) -> sealed::promises::Place {
    keyed_as(blobs_over, Arc::new(|| None))
}

/// The same, with what says where payloads rest.
fn keyed_as(blobs_over: Option<usize>, resting: sealed::resting::Where) -> sealed::promises::Place {
    let url = hapax_servers::postgres().expect("a server");
    let place = url.clone();
    let opened = move |codec| {
        let options =
            blobs_over.map_or(PostgresOptions::default(), |over| PostgresOptions::default().blobs_over(over));
        let options = resting().map_or(options.clone(), |resting| options.resting(resting));
        let with = |codec| options.clone().payload_codec(codec);
        open_with(&url, Option::map_or(codec, options.clone(), with)) as Arc<dyn Store>
    };
    sealed::promises::Place::new(opened, move |sql| hapax_servers::sql(&place, sql).expect("a statement"))
}

/// Damages a run through a connection of its own.
fn corrupt(url: &str, run: &RunKey, damage: Damage) -> bool {
    let of_run = format!("namespace = '{}' AND run_id = '{}'", run.namespace, run.run);
    let latest = format!("{of_run} AND step_id = (SELECT step_id FROM hapax_runs WHERE {of_run})");
    let flip = |table: &str, column: &str, which: &str, mask: u8| {
        let sql = format!(
            "UPDATE {table} SET {column} = set_byte({column}, length({column}) / 2, \
             get_byte({column}, length({column}) / 2) # {mask}) WHERE {which} RETURNING 1"
        );
        hapax_servers::sql(url, &sql).expect("an update").lines().any(|line| line == "1")
    };
    let last_page = format!("{latest} AND page = (SELECT max(page) FROM hapax_frontier WHERE {latest})");
    let last_row = format!("{of_run} AND seq = (SELECT max(seq) FROM hapax_journal WHERE {of_run})");
    match damage {
        Damage::State => flip("hapax_checkpoints", "state", &latest, 1),
        Damage::Frontier => flip("hapax_checkpoints", "frontier", &latest, 1),
        Damage::LastPage => flip("hapax_frontier", "items", &last_page, 1),
        Damage::Row => flip("hapax_runs", "digest", &of_run, 1),
        Damage::Digest => flip("hapax_checkpoints", "digest", &latest, 1),
        // No byte of a JSON text has its highest bit alone.
        Damage::Journal => flip("hapax_journal", "entry", &last_row, 0x80),
    }
}

/// One run that commits steps one after the other: each commit is one round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_is_one_round_trip() {
    let store = open(&hapax_servers::postgres().expect("a server"));
    let shared: Arc<dyn Store> = store.clone();
    let mut holder = Sample::run("r").hold(&shared).await;
    holder.commit(holder.next("\"a\"")).await.expect("a step");
    let before = store.round_trips();
    for _ in 0..10 {
        holder.commit(holder.next("\"a\"")).await.expect("a step");
    }
    assert_eq!(store.round_trips() - before, 10);
}

/// Whatever the server believed of the tables when they were empty: a step finds its run by the primary key, alone or with
/// others, and so does a channel of its messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_looks_at_no_other_run() {
    const RUNS: usize = 40;
    const STEPS: usize = 5;
    let url = hapax_servers::postgres().expect("a server");
    let store: Arc<dyn Store> = open(&url);
    let mut holders = vec![];
    for run in 0..RUNS {
        holders.push(Sample::run(&format!("{run}")).hold(&store).await);
    }
    for holder in &mut holders {
        holder.commit(holder.next("\"alone\"")).await.expect("a step");
    }
    for _ in 1..STEPS {
        let commits = holders.iter_mut().map(|holder| {
            let commit = holder.next_with("\"together\"", 1, 0, vec![message("hello")]);
            holder.commit(commit)
        });
        for committed in join_all(commits).await {
            committed.expect("a step");
        }
    }
    store.close().await;
    drop((holders, store));
    let ask = |sql: &str| hapax_servers::sql(&url, sql).expect("an answer").trim().to_owned();
    // A session leaves its counts behind when it ends.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while ask(others) != "0" {
        tokio::task::yield_now().await;
    }
    let read = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('hapax_runs', 'hapax_channels')";
    let read: usize = ask(read).parse().expect("a number");
    assert!(read < 4 * RUNS * STEPS, "{read} rows were looked at for {} steps", RUNS * STEPS);
}

/// Ten processes that start at once on an empty database: each finds the tables, whoever made them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_open_an_empty_database_at_once() {
    let url = hapax_servers::postgres().expect("a server");
    let mut openers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let url = url.clone();
        openers.spawn(async move { PostgresStore::open(&url, PostgresOptions::default()).await.map(drop) });
    }
    for opened in openers.join_all().await {
        opened.expect("it opens");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_used_is_refused_with_its_cure() {
    let url = hapax_servers::postgres().expect("a server");
    let refused = async |url: &str, options: PostgresOptions| {
        let refused = PostgresStore::open(url, options).await.expect_err("it is refused");
        (refused.code(), refused.to_string())
    };
    let (base, _) = url.rsplit_once('/').expect("a database");
    let (code, why) = refused(&format!("{base}/nowhere"), PostgresOptions::default()).await;
    assert!(code == "HX0047" && why.contains("CREATE DATABASE"), "{code} {why}");
    let (code, why) = refused("postgres://127.0.0.1:1/a?user=a", PostgresOptions::default()).await;
    assert!(code == "HX0047" && why.contains("check that the server runs"), "{code} {why}");
    let (code, why) = refused("postgres://a:secret@host:port/a", PostgresOptions::default()).await;
    assert!(code == "HX0050" && !why.contains("secret"), "{code} {why}");
    let (code, why) = refused(&url, PostgresOptions::default().prefix("a b")).await;
    assert!(code == "HX0050" && why.contains("table's name"), "{code} {why}");
}

/// Tables under another name, in another schema, and transactions as if one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_prefix_and_isolation_are_the_users() {
    let url = hapax_servers::postgres().expect("a server");
    hapax_servers::sql(&url, "CREATE SCHEMA workflows").expect("a schema");
    let options =
        PostgresOptions::default().schema("workflows").prefix("w_").isolation(Isolation::Serializable);
    let store: Arc<dyn Store> = PostgresStore::open(&url, options).await.expect("it opens");
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("\"a\"")).await.expect("a step");
    assert_eq!(
        hapax_servers::sql(&url, "SELECT step_id FROM workflows.w_runs").expect("a table").trim(),
        "1"
    );
}

/// The answer to a commit is lost on its way: whether it took effect is found out, and it is never written twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_settled() {
    let url = hapax_servers::postgres().expect("a server");
    let address = url.split('@').next_back().and_then(|rest| rest.split('/').next()).expect("an address");
    let address = address.strip_prefix("postgres://").unwrap_or(address).parse().expect("an address");
    let proxy = hapax_servers::Proxy::start(address).expect("a proxy");
    let (near, far) = (open(&url), open(&proxy.url(&url).expect("a url")));
    let (near, far): (Arc<dyn Store>, Arc<dyn Store>) = (near, far);
    let mut holder = Sample::run("r").hold(&far).await;
    holder.commit(holder.next("\"a\"")).await.expect("a step");
    let commit = Arc::new(step(holder.next("\"b\"")));
    proxy.swallow_replies(1);
    let ticket = far.submit(commit.clone(), hapax_store::Pace::Alone).await.expect("it is queued");
    proxy.wait_for_loss();
    proxy.cut();
    let lost = ticket.await.expect_err("its answer was lost");
    assert!(matches!(lost, StoreError::Unknown(_)), "{lost}");
    assert_eq!(near.settle(commit.clone()).await.expect("it is there"), Written::AlreadyCommitted);
    let again = near.submit(commit, hapax_store::Pace::Alone).await.expect("it is queued").await;
    assert_eq!(again.expect("it is there"), Written::AlreadyCommitted);
}
