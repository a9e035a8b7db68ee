//! What is so on PostgreSQL alone.

use crate::{
    kit::{Place, begin, is_rolled_back, json, one, until, why, with_effect},
    raw::Raw,
};
use futures::future::join;
use hapax_servers::Postgres;
use hapax_store::db::{CommitError, DatabaseOptions, DbError, Isolation, Kind, Marked, ToValue, TxOptions};

fn place() -> Place {
    Place::new(Kind::Postgres)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_the_commit_of_a_failed_transaction_is_a_rollback() {
    let place = place();
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    assert!(tx.execute("SELECT 1 / 0", &[]).await.is_err());
    let outcome = tx.commit().await;
    assert!(is_rolled_back(&outcome), "{outcome:?}");
    assert_eq!(place.effects(), 0);
    with_effect(&database, 2).await.commit().await.expect("others go on");
}

/// A wait for a standby that is cancelled is answered by COMMIT and a warning: the standby may lack it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_a_commit_that_was_warned_of_is_unknown() {
    let primary = Postgres::start().expect("a server");
    let standby = primary.standby().expect("a standby");
    let place = Place::on(Kind::Postgres, &primary.url());
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    tx.mark("k", &json("first")).await.expect("a marker");
    standby.stop().expect("it stands still");
    let commit = tokio::spawn(tx.commit());
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("the commit waits for the standby", || place.sql(cancel) == "1").await;
    let outcome = commit.await.expect("no panic");
    assert!(matches!(outcome, Err(CommitError::Unknown(_))), "{outcome:?}");
    assert_eq!(database.marker("k").await.expect("an answer"), Some(json("first")));
    standby.cont().expect("it goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_of_the_users_own_says_nothing_of_the_commit() {
    let place = place();
    let database = place.ready().await;
    let mut tx = with_effect(&database, 1).await;
    tx.execute("DO $$ BEGIN RAISE WARNING 'mine'; END $$", &[]).await.expect("a warning");
    tx.execute("DO $$ BEGIN RAISE NOTICE 'mine'; END $$", &[]).await.expect("a notice");
    tx.commit().await.expect("a commit");
    assert_eq!(place.effects(), 1);
}

/// What a routine says of it doesn't count: a trigger that is put off to the COMMIT tells what that goes by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_flushed_whatever_a_routine_has_set() {
    let place = place();
    let database = place.ready().await;
    place.sql(
        "CREATE TABLE heard (setting text); \
         CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO heard VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER hears AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION hear()",
    );
    let mut tx = with_effect(&database, 1).await;
    let off = "DO $$ BEGIN PERFORM set_config('synchronous_commit', 'off', true); END $$";
    tx.execute(off, &[]).await.expect("a routine");
    tx.commit().await.expect("a commit");
    assert_eq!(place.sql("SELECT setting FROM heard"), "on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_what_fails_at_commit_is_rolled_back() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE parents (n int PRIMARY KEY)");
    place.sql("CREATE TABLE children (n int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)");
    let mut tx = with_effect(&database, 1).await;
    tx.execute("INSERT INTO children VALUES (7)", &[]).await.expect("it is checked later");
    tx.mark("k", &json("x")).await.expect("a marker");
    match tx.commit().await {
        Err(CommitError::RolledBack(DbError::Statement { state, .. })) => {
            assert_eq!(state.as_deref(), Some("23503"));
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!((place.effects(), database.marker("k").await.expect("an answer")), (0, None));
}

/// Each reads what the other writes: one of both can be serialized.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_a_conflict_that_is_found_at_commit_is_tried_again() {
    let place = place();
    let database = place.ready().await;
    let options = TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() };
    let mut both = [
        database.begin(&options).await.expect("it begins"),
        database.begin(&options).await.expect("it begins"),
    ];
    for tx in &mut both {
        one(&mut **tx, "SELECT count(*) FROM effects", &[]).await;
    }
    for tx in &mut both {
        tx.execute("INSERT INTO effects VALUES (1)", &[]).await.expect("nobody has committed");
    }
    let [first, second] = both;
    first.commit().await.expect("it came first");
    match second.commit().await {
        Err(CommitError::RolledBack(DbError::Again(_))) => {}
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(place.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_of_two_who_wait_for_each_other_one_is_told_to_try_again() {
    let place = place();
    let database = place.ready().await;
    place.sql("INSERT INTO effects VALUES (1), (2)");
    let (mut a, mut b) = (begin(&database).await, begin(&database).await);
    let update = "UPDATE effects SET n = n WHERE n = $1";
    a.execute(update, &[1.to_value()]).await.expect("the first row");
    b.execute(update, &[2.to_value()]).await.expect("the second row");
    let (in_a, in_b) = ([2.to_value()], [1.to_value()]);
    let outcomes = join(a.execute(update, &in_a), async {
        let outcome = b.execute(update, &in_b).await;
        // Whoever lost lets the other go on.
        if outcome.is_err() {
            b.rollback().await.expect("a rollback");
        }
        outcome
    });
    let (a, b) = outcomes.await;
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    assert!(matches!(a.and(b), Err(DbError::Again(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_the_server_ends_sessions_that_do_nothing() {
    let place = place();
    let database = place.ready().await;
    let mut tx = begin(&database).await;
    for setting in ["idle_in_transaction_session_timeout", "idle_session_timeout"] {
        let row = one(&mut *tx, &format!("SELECT current_setting('{setting}')"), &[]).await;
        assert_eq!(row.get::<String>(0), Ok("10min".to_owned()), "{setting}");
    }
    assert_eq!(
        one(&mut *tx, "SHOW transaction_isolation", &[]).await.get(0),
        Ok("read committed".to_owned())
    );
}

/// The marker stays where it was made, wherever a transaction looks for its tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_is_left_in_the_table_that_was_prepared() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE SCHEMA other");
    place.sql(&hapax_store::db::marker_table(Kind::Postgres).replace("hapax_tr", "other.hapax_tr"));
    let mut tx = with_effect(&database, 1).await;
    tx.execute("SET LOCAL search_path = other", &[]).await.expect("it may look elsewhere");
    assert_eq!(tx.mark("k", &json("x")).await.expect("a marker"), Marked::Here);
    tx.commit().await.expect("a commit");
    assert!(database.marker("k").await.expect("an answer").is_some());
    assert_eq!(place.sql("SELECT count(*) FROM other.hapax_transactions"), "0");
}

/// As it would be had a statement ended it behind our back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_not_ours_any_more_is_in_doubt() {
    let place = place();
    let database = place.ready().await;
    for is_witnessed in [false, true] {
        let mut tx = with_effect(&database, 1).await;
        tx.execute("SET LOCAL hapax.open = ''", &[]).await.expect("a setting");
        let refused = if is_witnessed {
            tx.witness().await.map(drop)
        } else {
            tx.mark("k", &json("x")).await.map(drop)
        };
        assert!(matches!(refused, Err(DbError::Poisoned(_))), "{refused:?}");
        let outcome = tx.commit().await;
        assert!(matches!(outcome, Err(CommitError::Ended(_))), "{outcome:?}");
    }
    assert_eq!(database.marker("k").await.expect("an answer"), None);
}

/// What a session keeps beyond its transaction is nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_session_keeps_is_gone_with_its_transaction() {
    let place = place();
    let database = place.with_sessions(1).await;
    for _ in 0..2 {
        let mut tx = begin(&database).await;
        tx.execute("CREATE TEMP TABLE mine (n int)", &[]).await.expect("there is none yet");
        let row = one(&mut *tx, "SELECT pg_try_advisory_lock(7)", &[]).await;
        assert_eq!(row.get::<bool>(0), Ok(true), "nobody else has it");
        tx.commit().await.expect("a commit");
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
                    (SELECT oid FROM pg_database WHERE datname = current_database())";
        until("the lock is free", || place.sql(held) == "0").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_were_ended_while_they_rested_are_replaced() {
    let place = place();
    let database = place.ready().await;
    let ids: Vec<_> = (0..4).map(|_| begin(&database)).collect();
    for tx in futures::future::join_all(ids).await {
        tx.rollback().await.expect("a rollback");
    }
    Raw::connect(&place)
        .await
        .run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    with_effect(&database, 1).await.commit().await.expect("over a new session");
    assert_eq!(place.effects(), 1);
}

/// A user of this database alone.
fn user(place: &Place) -> (String, Place) {
    let user = format!("u_{}", crate::kit::name(&place.url));
    place.sql(&format!("CREATE ROLE {user} LOGIN"));
    let url = place.url.replace("postgres@", &format!("{user}@"));
    (user, place.at(url))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_a_user_without_rights_is_told_the_statements_that_grant_them() {
    let place = place();
    let (user, theirs) = user(&place);
    place.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let told = why(theirs.open().await.prepare().await);
    let (_, cure) = told.split_once("is made by: ").unwrap_or_else(|| panic!("{told}"));
    place.sql(cure);
    place.sql("CREATE TABLE effects (n bigint)");
    place.sql(&format!("GRANT SELECT, INSERT ON effects TO {user}"));
    let database = theirs.open().await;
    for right in ["SELECT", "INSERT", "DELETE", "SELECT, INSERT, DELETE"] {
        place.sql(&format!("REVOKE {right} ON hapax_transactions FROM {user}"));
        let told = why(database.prepare().await);
        let (_, cure) = told.split_once("lacks rights: ").unwrap_or_else(|| panic!("{told}"));
        assert_eq!(cure, format!("GRANT {right} ON public.hapax_transactions TO {user}"));
        place.sql(cure);
    }
    database.prepare().await.expect("it is mended");
    let mut tx = with_effect(&database, 1).await;
    tx.mark("k", &json("x")).await.expect("a marker");
    tx.commit().await.expect("a commit by a user with no more than these rights");
    place.sql(&format!("ALTER ROLE {user} SET default_transaction_read_only = on"));
    let told = why(theirs.try_open(&DatabaseOptions::default()).await);
    let (_, cure) = told.split_once("read-only: ").unwrap_or_else(|| panic!("{told}"));
    place.sql(cure);
    theirs.open().await.prepare().await.expect("it is mended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_an_unlogged_table_is_refused() {
    let place = place();
    let unlogged =
        hapax_store::db::marker_table(Kind::Postgres).replace("CREATE TABLE", "CREATE UNLOGGED TABLE");
    place.sql(&unlogged);
    let told = why(place.open().await.prepare().await);
    let (_, cure) = told.split_once("crash: ").unwrap_or_else(|| panic!("{told}"));
    place.sql(cure);
    place.open().await.prepare().await.expect("it is mended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_a_function_that_may_not_be_called_is_told_with_its_grant() {
    let place = place();
    let (_, theirs) = user(&place);
    let database = theirs.open().await;
    database.prepare_introspection().await.expect("anyone may");
    for function in
        ["pg_control_system()", "pg_xact_status(xid8)", "pg_logical_emit_message(boolean, text, text)"]
    {
        place.sql(&format!("REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC"));
        let told = why(database.prepare_introspection().await);
        let (_, cure) = told.split_once("lacks rights: ").unwrap_or_else(|| panic!("{told}"));
        place.sql(cure);
        database.prepare_introspection().await.expect("it is mended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_lose_commits_is_refused_unless_that_is_allowed() {
    let server = Postgres::start_with(&["fsync=off", "synchronous_commit=off"]).expect("a server");
    let place = Place::on(Kind::Postgres, &server.url());
    let told = why(place.try_open(&DatabaseOptions::default()).await);
    assert!(told.contains("fsync = on") && told.contains("synchronous_commit = on"), "{told}");
    let options = DatabaseOptions { allow_unsafe: true, ..DatabaseOptions::default() };
    place.try_open(&options).await.expect("it is allowed").prepare().await.expect("markers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_type_of_ours_is_read_as_it_is_written() {
    let place = place();
    place.sql("CREATE TYPE mood AS ENUM ('calm', 'wild')");
    let database = place.open().await;
    let mut tx = begin(&database).await;
    for (sql, written) in [
        ("SELECT '2024-02-29'::date", "2024-02-29"),
        ("SELECT '2024-02-29 23:59:59.25'::timestamp", "2024-02-29 23:59:59.25"),
        ("SELECT '1969-07-20 22:17:40+02'::timestamptz", "1969-07-20 20:17:40+00"),
        ("SELECT 'infinity'::timestamptz", "infinity"),
        ("SELECT '04:05:06'::time", "04:05:06"),
        ("SELECT 'wild'::mood", "wild"),
        ("SELECT 'a'::char(3)", "a  "),
        ("SELECT '{\"a\": 1}'::jsonb", "{\"a\": 1}"),
        ("SELECT '{\"a\":1}'::json", "{\"a\":1}"),
        ("SELECT '00000000-0000-0000-0000-000000000007'::uuid", "00000000-0000-0000-0000-000000000007"),
        ("SELECT 'NaN'::numeric", "NaN"),
    ] {
        assert_eq!(one(&mut *tx, sql, &[]).await.get::<String>(0).unwrap(), written, "{sql}");
    }
    let values = ["wild", "2024-02-29", "::1"].map(ToValue::to_value);
    let ask = "SELECT $1::mood = 'wild', $2::timestamptz < now(), $3::inet = '::1'";
    let row = one(&mut *tx, ask, &values).await;
    assert_eq!(hapax_store::db::FromRow::from_row(&row), Ok((true, true, true)));
    let unread = tx.query("SELECT ARRAY[1, 2]", &[]).await.unwrap_err().to_string();
    assert!(unread.contains("cast it in the statement"), "{unread}");
}

/// What a session has prepared is out of date when its table has changed: the transaction is undone and can be run again, in
/// whichever session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_may_change_between_two_transactions() {
    let place = place();
    place.sql("CREATE TABLE shelf (item text); INSERT INTO shelf VALUES ('anvil')");
    let database = place.with_sessions(1).await;
    let look = async || -> Result<usize, DbError> {
        let mut tx = begin(&database).await;
        let rows = tx.query("SELECT * FROM shelf", &[]).await;
        tx.rollback().await?;
        Ok(rows?[0].len())
    };
    for _ in 0..3 {
        assert_eq!(look().await.expect("a row"), 1);
    }
    place.sql("ALTER TABLE shelf ADD COLUMN free bigint");
    assert!(matches!(look().await, Err(DbError::Away(_))), "nothing but time is lost");
    for _ in 0..3 {
        assert_eq!(look().await.expect("a row"), 2);
    }
}

/// Values are bound the same way whether their statement is prepared or not, and few statements are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_is_kept_takes_the_same_values() {
    let place = place();
    place.sql("CREATE TABLE odd (n bigint, x float8, b bytea, t text, at timestamptz, flag bool)");
    let database = place.with_sessions(1).await;
    let into = "INSERT INTO odd VALUES ($1, $2, $3, $4, $5, $6)";
    let values = [
        7_i64.to_value(),
        0.5_f64.to_value(),
        vec![0_u8, 255, 92].to_value(),
        "it's".to_value(),
        "2026-01-01T00:00:00Z".to_value(),
        true.to_value(),
    ];
    for _ in 0..3 {
        let mut tx = begin(&database).await;
        assert_eq!(tx.execute(into, &values).await.expect("a row"), 1);
        tx.commit().await.expect("a commit");
    }
    let same = "SELECT count(*), count(DISTINCT odd::text), bool_and(b = '\\x00ff5c') FROM odd";
    assert_eq!(place.sql(same).split_whitespace().collect::<Vec<_>>().join(""), "3|1|t");
    let mut tx = begin(&database).await;
    for n in 0..80 {
        let ask = format!("SELECT {n}");
        tx.query(&ask, &[]).await.expect("a number");
        tx.query(&ask, &[]).await.expect("the same");
    }
    let kept = one(&mut *tx, "SELECT count(*) FROM pg_prepared_statements", &[]).await;
    assert!(kept.get::<i64>(0).expect("a number") <= 32);
    tx.rollback().await.expect("an end");
}
