//! What is so on MySQL and MariaDB alone.

use crate::{
    kit::{Place, begin, is_rolled_back, json, name, one, why, with_effect},
    raw::Raw,
};
use futures::future::join;
use hapax_servers::{MariaDb, sql};
use hapax_store::db::{
    Database, DatabaseOptions, DbError, Kind, MySqlDatabase, Refused, ToValue, TxOptions, marker_table,
};

fn place() -> Place {
    Place::new(Kind::MySql)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_after_a_deadlock_nothing_more_is_done() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE stock (n int PRIMARY KEY, m int); INSERT INTO stock VALUES (1, 0), (2, 0)");
    let (mut a, mut b) = (with_effect(&database, 1).await, with_effect(&database, 2).await);
    let update = "UPDATE stock SET m = m + 1 WHERE n = ?";
    a.execute(update, &[1.to_value()]).await.expect("the first row");
    b.execute(update, &[2.to_value()]).await.expect("the second row");
    let (in_a, in_b) = ([2.to_value()], [1.to_value()]);
    let outcomes = join(a.execute(update, &in_a), b.execute(update, &in_b)).await;
    let (winner, mut loser) = match &outcomes {
        (Ok(1), Err(DbError::Again(_))) => (a, b),
        (Err(DbError::Again(_)), Ok(1)) => (b, a),
        outcomes => panic!("{outcomes:?}"),
    };
    let after = loser.execute("INSERT INTO effects VALUES (3)", &[]).await;
    assert!(matches!(after, Err(DbError::Poisoned(_))), "{after:?}");
    assert!(matches!(loser.mark("k", &json("x")).await, Err(DbError::Poisoned(_))));
    assert!(is_rolled_back(&loser.commit().await));
    winner.commit().await.expect("the other goes on");
    assert_eq!((place.effects(), database.marker("k").await.expect("an answer")), (1, None));
    assert_eq!(place.sql("SELECT sum(m) FROM stock"), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_after_a_lock_that_did_not_come_nothing_more_is_done() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE stock (n int PRIMARY KEY, m int); INSERT INTO stock VALUES (1, 0)");
    let mut raw = Raw::connect(&place).await;
    raw.run("BEGIN").await;
    raw.run("UPDATE stock SET m = 7").await;
    let mut tx = with_effect(&database, 1).await;
    let waited = tx.execute("UPDATE stock SET m = m + 1", &[]).await;
    assert!(matches!(waited, Err(DbError::Away(_))), "{waited:?}");
    raw.run("COMMIT").await;
    let after = tx.execute("INSERT INTO effects VALUES (2)", &[]).await;
    assert!(matches!(after, Err(DbError::Poisoned(_))), "{after:?}");
    assert!(matches!(tx.unsave(1, false).await, Err(DbError::Poisoned(_))));
    assert!(is_rolled_back(&tx.commit().await));
    assert_eq!((place.effects(), place.sql("SELECT m FROM stock")), (0, "7".to_owned()));
}

/// Any other error undoes its statement alone, and the transaction goes on, as MySQL has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_another_error_the_transaction_still_is_the_same() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE taken (n int PRIMARY KEY)");
    let mut tx = with_effect(&database, 1).await;
    let bad = tx.execute("INSERT INTO taken VALUES (1), (2), (1)", &[]).await;
    assert!(
        matches!(&bad, Err(DbError::Statement { state, .. }) if state.as_deref() == Some("1062")),
        "{bad:?}"
    );
    tx.execute("INSERT INTO effects VALUES (2)", &[]).await.expect("it goes on");
    assert_eq!(place.effects(), 0, "nothing was committed by itself");
    tx.commit().await.expect("a commit");
    assert_eq!((place.effects(), place.sql("SELECT count(*) FROM taken")), (2, "0".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_writes_to_tables_that_do_not_roll_back_are_refused() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE log (n int) ENGINE=MyISAM; INSERT INTO log VALUES (7)");
    place.sql("CREATE TABLE sound (n int) ENGINE=InnoDB");
    let mut tx = with_effect(&database, 1).await;
    let full = format!("INSERT INTO `{}`.log VALUES (1)", name(&place.url));
    for sql in [
        "INSERT INTO log VALUES (1)",
        "insert into `log` set n = 1",
        "INSERT INTO log SELECT * FROM sound",
        "REPLACE INTO log VALUES (1)",
        "UPDATE log SET n = 1",
        "UPDATE sound s JOIN log l ON l.n = s.n SET l.n = 2",
        "DELETE FROM log",
        "DELETE l FROM log l JOIN sound s ON s.n = l.n",
        "INSERT DELAYED INTO log VALUES (1)",
        &full,
    ] {
        let outcome = tx.execute(sql, &[]).await;
        assert!(matches!(outcome, Err(DbError::Refused(Refused::Stays(_)))), "{sql}: {outcome:?}");
    }
    tx.execute("INSERT INTO sound SELECT * FROM log", &[]).await.expect("it is only read");
    assert_eq!(one(&mut *tx, "SELECT n FROM log", &[]).await.get::<i64>(0), Ok(7));
    one(&mut *tx, "SELECT count(*) FROM information_schema.tables", &[]).await;
    tx.rollback().await.expect("a rollback");
    assert_eq!((place.effects(), place.sql("SELECT n FROM log")), (0, "7".to_owned()));
}

/// A trigger leads where no statement of the user's names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_that_left_something_behind_says_so() {
    let place = place();
    let database = place.ready().await;
    place.sql("CREATE TABLE log (n int) ENGINE=MyISAM");
    place.sql("CREATE TRIGGER t AFTER INSERT ON effects FOR EACH ROW INSERT INTO log VALUES (new.n)");
    let tx = with_effect(&database, 1).await;
    let outcome = tx.rollback().await;
    assert!(
        matches!(&outcome, Err(DbError::Statement { state, .. }) if state.as_deref() == Some("1196")),
        "{outcome:?}"
    );
    assert_eq!(place.effects(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_a_table_of_markers_that_does_not_roll_back_is_refused() {
    let place = place();
    place.sql(&marker_table(Kind::MySql).replace("InnoDB", "MyISAM"));
    let database = place.open().await;
    let told = why(database.prepare().await);
    let (_, cure) = told.split_once("roll back: ").unwrap_or_else(|| panic!("{told}"));
    place.sql(cure);
    database.prepare().await.expect("it is mended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_where_tables_do_not_roll_back_by_default_markers_do() {
    let settings = ["default-storage-engine=MyISAM", "innodb-flush-log-at-trx-commit=2"];
    let server = MariaDb::start_with(&settings).expect("a server");
    let place = Place::on(Kind::MySql, &server.url());
    let told = why(place.try_open(&DatabaseOptions::default()).await);
    assert!(told.contains("innodb_flush_log_at_trx_commit = 1"), "{told}");
    let options = DatabaseOptions { allow_unsafe: true, ..DatabaseOptions::default() };
    let database = place.try_open(&options).await.expect("it is allowed");
    database.prepare().await.expect("markers");
    let engine = "SELECT engine FROM information_schema.tables WHERE table_name = 'hapax_transactions'";
    assert_eq!(place.sql(engine), "InnoDB");
    place.sql("CREATE TABLE effects (n bigint)");
    let mut tx = begin(&database).await;
    let outcome = tx.execute("INSERT INTO effects VALUES (1)", &[]).await;
    assert!(matches!(outcome, Err(DbError::Refused(Refused::Stays(_)))), "{outcome:?}");
    place.sql("SET GLOBAL read_only = 1");
    assert!(why(place.try_open(&options).await).contains("read-only: name the primary"));
    // Once open, what can't be used may pass: a failover.
    let second = database.begin(&TxOptions::default()).await;
    assert!(matches!(second, Err(DbError::Away(_))), "another session");
    place.sql("SET GLOBAL read_only = 0");
    database.begin(&TxOptions::default()).await.expect("it has passed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_a_user_without_rights_is_told_the_statements_that_grant_them() {
    let place = place();
    let database_name = name(&place.url);
    let user = format!("u_{database_name}");
    place.sql(&format!("CREATE USER {user}@'%'; CREATE TABLE effects (n bigint)"));
    place.sql(&format!("GRANT SELECT, INSERT ON {database_name}.effects TO {user}@'%'"));
    let theirs = place.at(place.url.replace("root@", &format!("{user}@")));
    let database = theirs.open().await;
    let told = why(database.prepare().await);
    let (_, cure) = told.split_once("is made by: ").unwrap_or_else(|| panic!("{told}"));
    place.sql(cure);
    database.prepare().await.expect("it is mended");
    for right in ["SELECT", "INSERT", "DELETE", "INSERT, DELETE"] {
        place.sql(&format!("REVOKE {right} ON hapax_transactions FROM {user}@'%'"));
        let told = why(theirs.open().await.prepare().await);
        let (_, cure) = told.split_once("lacks rights: ").unwrap_or_else(|| panic!("{told}"));
        assert_eq!(cure, format!("GRANT {right} ON `{database_name}`.`hapax_transactions` TO '{user}'@'%'"));
        place.sql(cure);
    }
    let database = theirs.open().await;
    database.prepare().await.expect("it is mended");
    let mut tx = with_effect(&database, 1).await;
    tx.mark("k", &json("x")).await.expect("a marker");
    tx.commit().await.expect("a commit by a user with no more than these rights");
    assert_eq!(database.sweep(vec!["k".into()], std::time::Duration::ZERO).await.expect("a sweep"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_the_server_ends_sessions_that_do_nothing() {
    let place = place();
    let database = place.ready().await;
    let mut tx = begin(&database).await;
    let sql = "SELECT @@wait_timeout, @@idle_transaction_timeout, @@time_zone, @@autocommit";
    let row = one(&mut *tx, sql, &[]).await;
    let found: (i64, i64, String, i64) = hapax_store::db::FromRow::from_row(&row).expect("settings");
    assert_eq!(found, (600, 600, "+00:00".to_owned(), 1));
}

/// What is isolated as the database has it isn't as our own sessions rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_sees_one_moment_as_the_database_has_it() {
    let place = place();
    let database = place.ready().await;
    let mut tx = database.begin(&TxOptions::default()).await.expect("it begins");
    let count = "SELECT count(*) FROM effects";
    assert_eq!(one(&mut *tx, count, &[]).await.get::<i64>(0), Ok(0));
    with_effect(&database, 1).await.commit().await.expect("another commits");
    assert_eq!(one(&mut *tx, count, &[]).await.get::<i64>(0), Ok(0));
}

/// A server that is full of them refuses those of all its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_do_not_pile_up_on_the_server() {
    let server = MariaDb::start().expect("a server");
    let options = DatabaseOptions { sessions: 1, ..DatabaseOptions::default() };
    let database = MySqlDatabase::open_with(&server.url(), &options).await.expect("a database");
    for n in 0..100 {
        let mut tx = database.begin(&TxOptions::default()).await.expect("a transaction");
        tx.query(&format!("SELECT {n}"), &[]).await.expect("a number");
        tx.query("SELECT ?", &[n.to_value()]).await.expect("the same");
        tx.rollback().await.expect("an end");
    }
    let ask = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'PREPARED_STMT_COUNT'";
    let left: u64 = sql(&server.url(), ask).expect("an answer").trim().parse().expect("a number");
    assert!(left <= 32, "{left} are left");
}
