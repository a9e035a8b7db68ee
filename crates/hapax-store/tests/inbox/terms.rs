//! What an inbox demands of a consumer's transaction, and says when it isn't so.

use crate::kit::{Books, CONSUMER, Kind, connect_file, connect_mysql, connect_postgres};
use hapax_core::error::Coded;
use hapax_store::{
    StoreError,
    inbox::{InboxError, MySqlInbox, PostgresInbox, Received, SqliteInbox},
};
use mysql_async::{TxOpts, prelude::Queryable};
use tokio_postgres::IsolationLevel;

#[tokio::test]
async fn a_file_whose_connection_does_not_wait_for_the_disk_is_refused() {
    let books = Books::open(Kind::Sqlite).await;
    let inbox = SqliteInbox::open(&books.url, Default::default()).await.unwrap();
    let mut file = connect_file(&books.url.clone().into());
    for (level, refuses) in [("OFF", true), ("NORMAL", true), ("FULL", false), ("EXTRA", false)] {
        file.pragma_update(None, "synchronous", level).unwrap();
        let tx = file.transaction().unwrap();
        match inbox.first_in(&tx, CONSUMER, "msg:1") {
            Err(refused @ InboxError::NotDurable { .. }) if refuses => assert_eq!(refused.code(), "HX0151"),
            received => assert!(!refuses && received.unwrap() == Received::First, "{level}"),
        }
    }
}

#[tokio::test]
async fn a_file_without_the_table_or_its_key_is_refused() {
    let books = Books::open(Kind::Sqlite).await;
    let inbox = SqliteInbox::open(&books.url, Default::default()).await.unwrap();
    for broken in
        ["DROP TABLE hapax_inbox", "CREATE TABLE hapax_inbox (consumer TEXT, id TEXT, received_at INTEGER)"]
    {
        books.sql(broken);
        let mut file = connect_file(&books.url.clone().into());
        let refused = inbox.first_in(&file.transaction().unwrap(), CONSUMER, "msg:1").unwrap_err();
        assert_eq!(refused.code(), "HX0152", "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_without_the_key_or_the_table_is_refused() {
    let books = Books::open(Kind::Postgres).await;
    let inbox = PostgresInbox::open(&books.url, Default::default()).await.unwrap();
    let (mut client, _connection) = connect_postgres(&books.url).await;
    for broken in ["ALTER TABLE hapax_inbox DROP CONSTRAINT hapax_inbox_pkey", "DROP TABLE hapax_inbox"] {
        books.sql(broken);
        let tx = client.transaction().await.unwrap();
        let refused = inbox.first_in(&tx, CONSUMER, "msg:1").await.unwrap_err();
        assert_eq!(refused.code(), "HX0152", "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mysql_without_the_table_is_refused() {
    let books = Books::open(Kind::MySql).await;
    let inbox = MySqlInbox::open(&books.url, Default::default()).await.unwrap();
    books.sql("DROP TABLE hapax_inbox");
    let mut conn = connect_mysql(&books.url).await;
    let mut tx = conn.start_transaction(TxOpts::default()).await.unwrap();
    let refused = inbox.first_in(&mut tx, CONSUMER, "msg:1").await.unwrap_err();
    assert_eq!(refused.code(), "HX0152", "{refused}");
}

/// What the consumer's session looks for elsewhere, or doesn't wait for, is of no matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_session_that_does_not_wait_for_the_disk_does_so_for_its_message() {
    let books = Books::open(Kind::Postgres).await;
    let inbox = PostgresInbox::open(&books.url, Default::default()).await.unwrap();
    let (mut client, _connection) = connect_postgres(&books.url).await;
    client.batch_execute("SET search_path = pg_catalog; SET synchronous_commit = off").await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.first_in(&tx, CONSUMER, "msg:1").await.unwrap(), Received::First);
    let waits: String = tx.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
    assert_eq!(waits, "on");
    tx.commit().await.unwrap();
    let waits: String = client.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
    assert_eq!(waits, "off", "and then it is as before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stricter_transaction_of_postgres_that_saw_nothing_is_to_begin_anew() {
    let books = Books::open(Kind::Postgres).await;
    let inbox = PostgresInbox::open(&books.url, Default::default()).await.unwrap();
    let (mut client, _connection) = connect_postgres(&books.url).await;
    let strict = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let tx = strict.start().await.unwrap();
    tx.query("SELECT count(*) FROM effects", &[]).await.unwrap();
    assert_eq!(books.delivered("msg:1").await, Received::First);
    let refused = inbox.first_in(&tx, CONSUMER, "msg:1").await.unwrap_err();
    assert!(matches!(refused, InboxError::Store(StoreError::Retry(_))), "{refused}");
    tx.rollback().await.unwrap();
    let tx =
        client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    assert_eq!(inbox.first_in(&tx, CONSUMER, "msg:1").await.unwrap(), Received::Again);
}

/// A snapshot that was taken before the other committed doesn't hide its row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatable_transaction_of_mysql_that_saw_nothing_is_told_of_the_other() {
    let books = Books::open(Kind::MySql).await;
    let inbox = MySqlInbox::open(&books.url, Default::default()).await.unwrap();
    let mut conn = connect_mysql(&books.url).await;
    let mut tx = conn.start_transaction(TxOpts::default()).await.unwrap();
    tx.query_drop("SELECT count(*) FROM effects").await.unwrap();
    assert_eq!(books.delivered("msg:1").await, Received::First);
    match inbox.first_in(&mut tx, CONSUMER, "msg:1").await {
        Ok(received) => assert_eq!(received, Received::Again),
        // Newer servers tell it to begin anew.
        Err(refused) => assert!(matches!(refused, InboxError::Store(StoreError::Retry(_))), "{refused}"),
    }
}
