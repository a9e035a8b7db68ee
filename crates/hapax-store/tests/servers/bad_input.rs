//! What is wrong with a server, or becomes wrong while it is used: a typed error with its code and its cure.

use crate::both::{Kind, name, on_both, sql};
use hapax_core::{
    commit::Written,
    error::{Coded, code},
};
use hapax_servers::{MariaDb, Postgres, fresh_database};
use hapax_store::{
    Store, StoreError,
    conformance::{
        Sample,
        sample::{key, ready, step, submit},
    },
};
use std::{fs, sync::Arc};

on_both! {
    a_wrong_password_is_refused_and_never_shown,
    a_database_that_is_not_there_is_refused_with_the_statement_that_makes_it,
    a_database_without_runs_stays_as_it_is_where_they_must_be_there,
    a_table_that_is_dropped_meanwhile_is_damage_that_is_named,
    a_server_that_takes_no_writes_any_more_loses_nothing,
    damaged_rows_in_front_keep_no_other_run_from_being_claimed,
}

/// A server of a test's own, and what keeps it.
fn server(kind: Kind) -> (String, Box<dyn std::any::Any + Send>) {
    match kind {
        Kind::Postgres => {
            let server = Postgres::start().expect("a server");
            // Others than the one need no password.
            let rules = "host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
            fs::write(server.folder().join("data/pg_hba.conf"), rules).expect("a file of the server");
            sql(&server.url(), "SELECT pg_reload_conf()");
            (fresh_database(&server.url()).expect("a database"), Box::new(server))
        }
        Kind::MySql => {
            let server = MariaDb::start().expect("a server");
            (fresh_database(&server.url()).expect("a database"), Box::new(server))
        }
    }
}

/// The database for a user who says a password.
fn guarded(url: &str, says: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a scheme");
    format!("{scheme}://guarded:{says}@{}", rest.split_once('@').expect("a user").1)
}

/// Makes the user, who has a password and may do everything in the database.
fn make_guarded(kind: Kind, url: &str) {
    let database = name(url);
    sql(
        url,
        &kind.pick(
            format!("CREATE ROLE guarded LOGIN PASSWORD 'right'; ALTER DATABASE {database} OWNER TO guarded"),
            format!(
                "CREATE USER guarded@'%' IDENTIFIED BY 'right'; GRANT ALL ON {database}.* TO guarded@'%'"
            ),
        ),
    );
}

async fn a_wrong_password_is_refused_and_never_shown(kind: Kind) {
    let (url, _server) = server(kind);
    make_guarded(kind, &url);
    let (said, code) = kind.refusal(&guarded(&url, "hunter2")).await;
    assert!(code == code::CANNOT_OPEN && said.contains("check user and password"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    kind.store(&guarded(&url, "right")).await;
}

async fn a_database_that_is_not_there_is_refused_with_the_statement_that_makes_it(kind: Kind) {
    let (url, _server) = server(kind);
    let nowhere = url.replace(name(&url), "nowhere");
    let (said, code) = kind.refusal(&nowhere).await;
    let cure = kind.pick("CREATE DATABASE \"nowhere\"", "CREATE DATABASE `nowhere`");
    assert!(code == code::CANNOT_OPEN && said.ends_with(cure), "{said}");
    sql(&url, cure);
    kind.store(&nowhere).await;
}

async fn a_database_without_runs_stays_as_it_is_where_they_must_be_there(kind: Kind) {
    let url = kind.database();
    let Err(error) = kind.open_existing(&url).await else { panic!("{url} was opened") };
    assert_eq!(error.code(), code::CANNOT_OPEN);
    assert!(error.to_string().contains("it holds no runs of Hapax"), "{error}");
    let own = kind.pick("current_schema()", "DATABASE()");
    let tables = format!("SELECT count(*) FROM information_schema.tables WHERE table_schema = {own}");
    assert_eq!(sql(&url, &tables), "0");
    kind.store(&url).await;
    kind.open_existing(&url).await.expect("it holds some now");
}

async fn a_table_that_is_dropped_meanwhile_is_damage_that_is_named(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("one")).await.expect("a step");
    sql(&url, "ALTER TABLE hapax_keys RENAME TO elsewhere");
    let gone = submit(&store, step(holder.next("two"))).await.expect_err("its table is gone");
    assert!(gone.code() == code::CORRUPT && gone.to_string().contains("hapax_keys"), "{gone}");
    sql(
        &url,
        "ALTER TABLE elsewhere RENAME TO hapax_keys; ALTER TABLE hapax_checkpoints RENAME TO elsewhere",
    );
    let gone = store.load(key("r")).await.expect_err("its table is gone");
    assert!(gone.code() == code::CORRUPT && gone.to_string().contains("hapax_checkpoints"), "{gone}");
    sql(&url, "ALTER TABLE elsewhere RENAME TO hapax_checkpoints");
    assert_eq!(holder.commit(holder.next("two")).await.expect("it goes on"), Written::Committed);
}

async fn a_server_that_takes_no_writes_any_more_loses_nothing(kind: Kind) {
    let (url, _server) = server(kind);
    make_guarded(kind, &url);
    let guarded = guarded(&url, "right");
    let store = kind.store(&guarded).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("one")).await.expect("a step");
    let read_only = |on: bool| {
        match kind {
            Kind::Postgres => {
                sql(&url, &format!("ALTER SYSTEM SET default_transaction_read_only = {on}"));
                sql(&url, "SELECT pg_reload_conf()")
            }
            Kind::MySql => sql(&url, &format!("SET GLOBAL read_only = {}", u8::from(on))),
        };
    };
    read_only(true);
    let refused = refused_write(&store, &holder).await;
    assert!(matches!(refused, StoreError::Retry(_)), "{refused}");
    assert_eq!(store.run(key("r")).await.expect("reads go on").expect("the run").step, 1);
    assert_eq!(kind.refusal(&guarded).await.1, code::READ_ONLY);
    read_only(false);
    let written = loop {
        match holder.commit(holder.next("two")).await {
            Err(StoreError::Retry(_)) => {}
            outcome => break outcome.expect("it goes on"),
        }
    };
    assert_eq!(written, Written::Committed);
}

/// A write after the server has heard that it must take none; sessions hear of it a little later.
async fn refused_write(store: &Arc<dyn Store>, holder: &hapax_store::conformance::Holder) -> StoreError {
    loop {
        if let Err(error) = store.post(holder.key.clone(), letter()).await {
            let refused = submit(store, step(holder.next("two"))).await;
            assert!(refused.is_err(), "{error}");
            return error;
        }
    }
}

fn letter() -> hapax_core::mailbox::NewLetter {
    let (id, payload) = ("again".to_owned(), hapax_store::conformance::sample::json("hello"));
    hapax_core::mailbox::NewLetter { id, subject: hapax_core::mailbox::signal("go"), payload }
}

/// A standby has all that its primary has, and takes none of it from us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_refused() {
    let primary = Postgres::start().expect("a server");
    let url = fresh_database(&primary.url()).expect("a database");
    Kind::Postgres.store(&url).await;
    let standby = primary.standby().expect("a standby");
    let of_standby = url.replace(&primary.address().to_string(), &standby.address().to_string());
    for url in [of_standby.clone(), format!("{of_standby}?target_session_attrs=read-write")] {
        let (said, code) = Kind::Postgres.refusal(&url).await;
        assert!(code == code::READ_ONLY && said.contains("name the primary"), "{said}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_waited_for_as_long_as_the_address_says() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("postgres://me@{}/orders?connect_timeout=1", silent.local_addr().expect("bound"));
    let (said, code) = Kind::Postgres.refusal(&url).await;
    assert!(code == code::CANNOT_OPEN && said.contains("it doesn't answer"), "{said}");
}

/// However few runs a worker asks for.
async fn damaged_rows_in_front_keep_no_other_run_from_being_claimed(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    for run in ["bad", "worse", "worst", "good", "better"] {
        Sample::run(run).create(&store).await;
    }
    sql(&url, "UPDATE hapax_runs SET status_json = '{' WHERE run_id IN ('bad', 'worse', 'worst')");
    for whole in ["good", "better"] {
        let claimed = ready(&store, "a", 1).await;
        assert_eq!(claimed.iter().map(|(run, _)| run).collect::<Vec<_>>(), [&key(whole)]);
    }
    assert!(ready(&store, "a", 1).await.is_empty());
}
