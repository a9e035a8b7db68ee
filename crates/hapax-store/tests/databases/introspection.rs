//! PostgreSQL is asked for the fate of a transaction by its number, and never tells that of another.

use crate::kit::{Place, begin, one, until, with_effect};
use futures::future::join_all;
use hapax_servers::{Postgres, Server};
use hapax_store::db::{Database, Fate, Kind, Strategy, TxOptions, Witness};
use std::sync::Arc;

async fn ready(place: &Place) -> Arc<dyn Database> {
    let database = place.open().await;
    database.prepare_introspection().await.expect("it can be asked");
    place.sql("CREATE TABLE IF NOT EXISTS effects (n bigint NOT NULL)");
    database
}

async fn ask(database: &Arc<dyn Database>, witness: &Witness) -> Fate {
    database.ask(witness).await.expect("an answer")
}

fn is_unknown(fate: &Fate) -> bool {
    matches!(fate, Fate::Unknown(_))
}

/// Uses up numbers of transactions, each of them committed.
fn use_numbers(server: &Server) {
    let many = "DO $$ BEGIN FOR i IN 1..300 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    hapax_servers::sql(&server.url(), many).expect("transactions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_in_progress_until_it_is_committed_or_aborted() {
    let place = Place::new(Kind::Postgres);
    let database = ready(&place).await;
    let mut tx = with_effect(&database, 1).await;
    let witness = tx.witness().await.expect("it is known");
    assert_eq!(ask(&database, &witness).await, Fate::InProgress);
    tx.commit().await.expect("a commit");
    assert_eq!(ask(&database, &witness).await, Fate::Committed);
    let mut tx = with_effect(&database, 2).await;
    let witness = tx.witness().await.expect("it is known");
    tx.rollback().await.expect("a rollback");
    assert_eq!(ask(&database, &witness).await, Fate::Aborted);
    assert_eq!(place.effects(), 1);
    assert_eq!(place.sql("SELECT to_regclass('hapax_transactions') IS NULL"), "t", "no table is needed");
}

/// A number costs little, and NOTIFY is sent by a transaction that wrote nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_wrote_nothing_has_a_number_as_well() {
    let place = Place::new(Kind::Postgres);
    let database = ready(&place).await;
    let strategy = Some(Strategy::Introspection);
    for read_only in [true, false] {
        let options = TxOptions { read_only, strategy, ..TxOptions::default() };
        let mut tx = database.begin(&options).await.expect("it begins");
        one(&mut *tx, "SELECT count(*) FROM effects", &[]).await;
        let witness = tx.witness().await.expect("it is known");
        assert_eq!(ask(&database, &witness).await, Fate::InProgress);
        tx.commit().await.expect("a commit");
        assert_eq!(ask(&database, &witness).await, Fate::Committed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_5_a_commit_whose_reply_is_lost_is_told_by_the_server() {
    let place = Place::new(Kind::Postgres);
    let near = ready(&place).await;
    let (proxy, far) = place.behind_proxy();
    let far = far.open().await;
    for (is_lost_on_its_way, fate) in [(false, Fate::Committed), (true, Fate::Aborted)] {
        let mut tx = with_effect(&far, 1).await;
        let witness = tx.witness().await.expect("it is known");
        let commit = if is_lost_on_its_way {
            proxy.swallow_requests(1);
            let commit = tokio::spawn(tx.commit());
            tokio::task::block_in_place(|| proxy.wait_for_loss());
            commit
        } else {
            proxy.swallow_replies(1);
            let commit = tokio::spawn(tx.commit());
            until("it is committed", || place.effects() == 1).await;
            commit
        };
        proxy.cut();
        proxy.pass();
        commit.await.expect("no panic").expect_err("it can't be known");
        let mut told = ask(&near, &witness).await;
        while told == Fate::InProgress {
            told = ask(&near, &witness).await;
        }
        assert_eq!(told, fate);
    }
    assert_eq!(place.effects(), 1);
}

/// One that waits for a standby is in progress, and terminating it doesn't abort it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_12_a_zombie_that_waits_for_a_standby_is_waited_for() {
    let primary = Postgres::start().expect("a server");
    let standby = primary.standby().expect("a standby");
    let place = Place::on(Kind::Postgres, &primary.url());
    let database = ready(&place).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    for is_ended in [false, true] {
        let mut tx = with_effect(&database, 1).await;
        // What makes the number durable waits for no standby.
        standby.stop().expect("it stands still");
        let witness = tx.witness().await.expect("it is known");
        let commit = tokio::spawn(tx.commit());
        until("the commit waits for the standby", || place.sql(waiting) == "1").await;
        assert_eq!(ask(&database, &witness).await, Fate::InProgress);
        if is_ended {
            assert!(database.end(&witness).await.expect("an answer"), "it is that very session");
            commit.await.expect("no panic").expect_err("it can't be known");
        } else {
            standby.cont().expect("it goes on");
            commit.await.expect("no panic").expect("a commit");
        }
        let mut told = ask(&database, &witness).await;
        while told == Fate::InProgress {
            told = ask(&database, &witness).await;
        }
        assert_eq!(told, Fate::Committed);
        standby.cont().expect("it goes on");
    }
    assert_eq!(place.effects(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_ended_only_if_it_is_the_very_one() {
    let place = Place::new(Kind::Postgres);
    let database = ready(&place).await;
    let mut tx = with_effect(&database, 1).await;
    let witness = tx.witness().await.expect("it is known");
    let another = Witness { started_us: witness.started_us + 1, ..witness.clone() };
    assert!(!database.end(&another).await.expect("an answer"), "its id was another's before");
    one(&mut *tx, "SELECT 1", &[]).await;
    assert!(database.end(&witness).await.expect("an answer"));
    let commit = tx.commit().await;
    commit.expect_err("its session is gone");
    let mut told = ask(&database, &witness).await;
    while told == Fate::InProgress {
        told = ask(&database, &witness).await;
    }
    assert_eq!(told, Fate::Aborted);
    assert!(!database.end(&witness).await.expect("an answer"), "there is none any more");
    assert_eq!(place.effects(), 0);
}

/// The server's own flushes are put off, so that only what is asked for is durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_after_a_crash_a_number_is_never_anothers() {
    let mut server = Postgres::start_with(&["wal_writer_delay=10s", "autovacuum=off"]).expect("a server");
    let place = Place::on(Kind::Postgres, &server.url());
    for _ in 0..2 {
        let database = ready(&place).await;
        let mut tx = with_effect(&database, 1).await;
        let witness = tx.witness().await.expect("it is known");
        server.kill().expect("a crash");
        server.restart().expect("it is back");
        use_numbers(&server);
        assert_eq!(ask(&database, &witness).await, Fate::Aborted);
        assert!(tx.commit().await.is_err(), "its session is gone");
        assert_eq!(place.effects(), 0);
    }
}

/// Committed before the crash, it still is afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_after_a_crash_what_was_committed_still_is() {
    let mut server = Postgres::start().expect("a server");
    let place = Place::on(Kind::Postgres, &server.url());
    let database = ready(&place).await;
    let mut tx = with_effect(&database, 1).await;
    let witness = tx.witness().await.expect("it is known");
    tx.commit().await.expect("a commit");
    server.restart().expect("it is back");
    assert_eq!(ask(&database, &witness).await, Fate::Committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_a_number_that_the_server_has_forgotten_or_not_yet_given_is_unknown() {
    let mut server = Postgres::start().expect("a server");
    let place = Place::on(Kind::Postgres, &server.url());
    let database = ready(&place).await;
    let mut tx = with_effect(&database, 1).await;
    let witness = tx.witness().await.expect("it is known");
    tx.commit().await.expect("a commit");
    let future = Witness { xid: witness.xid + 1_000_000, ..witness.clone() };
    assert!(is_unknown(&ask(&database, &future).await));
    assert_eq!(ask(&database, &witness).await, Fate::Committed);
    use_numbers(&server);
    hapax_servers::sql(&server.url(), "ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        .expect("a statement");
    let databases = hapax_servers::sql(&server.url(), "SELECT datname FROM pg_database").expect("names");
    for name in databases.lines() {
        let url = format!("{}{name}", server.url().trim_end_matches("postgres"));
        hapax_servers::sql(&url, "VACUUM FREEZE").expect("a vacuum");
    }
    // How far back it remembers is read when it starts.
    hapax_servers::sql(&server.url(), "CHECKPOINT").expect("a checkpoint");
    server.restart().expect("it is back");
    let told = ask(&database, &witness).await;
    assert!(is_unknown(&told), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_after_a_failover_and_on_another_server_it_is_unknown() {
    let mut primary = Postgres::start().expect("a server");
    let standby = primary.standby().expect("a standby");
    let place = Place::on(Kind::Postgres, &primary.url());
    let database = ready(&place).await;
    let mut tx = with_effect(&database, 1).await;
    let witness = tx.witness().await.expect("it is known");
    let other = ready(&Place::new(Kind::Postgres)).await;
    assert!(is_unknown(&ask(&other, &witness).await), "another server");
    tx.commit().await.expect("a commit");
    primary.kill().expect("it is lost");
    standby.promote().expect("the standby takes over");
    use_numbers(&standby);
    let port = |server: &Server| server.address().port().to_string();
    let promoted = place.at(place.url.replace(&port(&primary), &port(&standby)));
    let promoted = ready(&promoted).await;
    let told = ask(&promoted, &witness).await;
    assert!(matches!(&told, Fate::Unknown(why) if why.contains("timeline")), "{told:?}");
}

/// Each takes one session for itself, and all share one more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_25_a_pool_of_one_does_a_hundred_witnessed_transactions() {
    let place = Place::new(Kind::Postgres);
    ready(&place).await;
    let database = place.with_sessions(1).await;
    let transactions = (0..100).map(|n| {
        let database = database.clone();
        tokio::spawn(async move {
            let mut tx = with_effect(&database, n).await;
            let witness = tx.witness().await.expect("it is known");
            tx.commit().await.expect("a commit");
            assert_eq!(ask(&database, &witness).await, Fate::Committed);
        })
    });
    for done in join_all(transactions).await {
        done.expect("no panic");
    }
    assert_eq!(place.effects(), 100);
    begin(&database).await.rollback().await.expect("a rollback");
}
