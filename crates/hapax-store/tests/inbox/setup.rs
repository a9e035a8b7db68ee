//! The table: made on demand by any number at once, or beforehand, and only with the rights that it takes.

use futures::future::join_all;
use hapax_core::error::Coded;
use hapax_store::{
    StoreError,
    inbox::{MySqlInbox, PostgresInbox, SqliteInbox},
    mysql::MySqlOptions,
    postgres::PostgresOptions,
    sqlite::SqliteOptions,
};
use std::time::Duration;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    MySql,
}

impl Kind {
    fn database(self) -> String {
        match self {
            Kind::Postgres => hapax_servers::postgres(),
            Kind::MySql => hapax_servers::mysql(),
        }
        .expect("a server")
    }

    /// The one or the other.
    fn pick<T>(self, postgres: T, mysql: T) -> T {
        match self {
            Kind::Postgres => postgres,
            Kind::MySql => mysql,
        }
    }

    /// Opens an inbox, and does with it what is done with one.
    async fn open(self, url: &str) -> Result<(), StoreError> {
        match self {
            Kind::Postgres => {
                let inbox = PostgresInbox::open(url, PostgresOptions::default()).await?;
                inbox.sweep(Duration::ZERO).await.expect("it sweeps");
            }
            Kind::MySql => {
                let inbox = MySqlInbox::open(url, MySqlOptions::default()).await?;
                inbox.sweep(Duration::ZERO).await.expect("it sweeps");
            }
        }
        Ok(())
    }
}

/// Each of the tests on each of the servers.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Kind::Postgres).await;
            })*
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Kind::MySql).await;
            })*
        }
    };
}

on_both! {
    ten_who_come_at_once_make_one_table,
    a_table_that_was_made_beforehand_is_used_with_three_rights,
    rights_that_are_missing_are_named_by_the_statement_that_grants_them,
    a_table_that_lets_two_have_the_same_key_is_refused,
    a_database_without_an_inbox_is_refused_where_it_must_be_there,
}

fn sql(url: &str, statements: &str) -> String {
    hapax_servers::sql(url, statements).expect("a statement")
}

/// A user of this database alone who has no right in it; its name, and the database's address for it.
fn user(kind: Kind, url: &str) -> (String, String) {
    let name = url.rsplit_once('/').expect("a database").1;
    let user = format!("user_{}", &name[name.len() - 8..]);
    sql(url, &kind.pick(format!("CREATE ROLE {user} LOGIN"), format!("CREATE USER {user}@'%'")));
    let (scheme, rest) = url.split_once("://").expect("a scheme");
    let address = format!("{scheme}://{user}@{}", rest.split_once('@').expect("a user").1);
    (kind.pick(user.clone(), format!("{user}@'%'")), address)
}

/// Why it isn't opened, behind these words.
async fn refusal(kind: Kind, url: &str, words: &str) -> String {
    let refused = kind.open(url).await.expect_err("it is opened");
    assert_eq!(refused.code(), "HX0047", "{refused}");
    let said = refused.to_string();
    said.split_once(words).unwrap_or_else(|| panic!("{said}")).1.to_owned()
}

async fn ten_who_come_at_once_make_one_table(kind: Kind) {
    let url = kind.database();
    assert!(join_all((0..10).map(|_| kind.open(&url))).await.into_iter().all(|opened| opened.is_ok()));
}

async fn a_table_that_was_made_beforehand_is_used_with_three_rights(kind: Kind) {
    let url = kind.database();
    let (account, address) = user(kind, &url);
    sql(
        &url,
        kind.pick(
            include_str!("../../src/inbox/schema/postgres.sql"),
            include_str!("../../src/inbox/schema/mysql.sql"),
        ),
    );
    sql(&url, &format!("GRANT SELECT, INSERT, DELETE ON hapax_inbox TO {account}"));
    kind.open(&address).await.expect("it opens");
}

async fn rights_that_are_missing_are_named_by_the_statement_that_grants_them(kind: Kind) {
    let url = kind.database();
    let (account, address) = user(kind, &url);
    kind.open(&url).await.expect("it opens");
    sql(&url, &format!("GRANT SELECT, DELETE ON hapax_inbox TO {account}"));
    let grant = refusal(kind, &address, "lacks rights: ").await;
    assert!(grant.starts_with("GRANT INSERT ON "), "{grant}");
    sql(&url, &grant);
    kind.open(&address).await.expect("it opens");
}

async fn a_table_that_lets_two_have_the_same_key_is_refused(kind: Kind) {
    let url = kind.database();
    kind.open(&url).await.expect("it opens");
    sql(
        &url,
        kind.pick(
            "ALTER TABLE hapax_inbox DROP CONSTRAINT hapax_inbox_pkey",
            "ALTER TABLE hapax_inbox DROP PRIMARY KEY",
        ),
    );
    sql(&url, &refusal(kind, &url, "the same key: ").await);
    kind.open(&url).await.expect("it opens");
}

async fn a_database_without_an_inbox_is_refused_where_it_must_be_there(kind: Kind) {
    let url = kind.database();
    let refused = match kind {
        Kind::Postgres => PostgresInbox::open(&url, PostgresOptions::default().must_exist(true)).await.err(),
        Kind::MySql => MySqlInbox::open(&url, MySqlOptions::default().must_exist(true)).await.err(),
    };
    let said = refused.expect("it isn't opened").to_string();
    assert!(said.contains("holds no inbox"), "{said}");
}

#[tokio::test]
async fn a_file_without_an_inbox_is_refused_where_it_must_be_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("books.db");
    rusqlite::Connection::open(&file).unwrap().execute_batch("CREATE TABLE t (n)").unwrap();
    let refused = SqliteInbox::open(&file, SqliteOptions::default().must_exist(true)).await.unwrap_err();
    assert!(refused.to_string().contains("holds no inbox"), "{refused}");
    SqliteInbox::open(&file, SqliteOptions::default()).await.expect("it opens");
    SqliteInbox::open(&file, SqliteOptions::default().must_exist(true)).await.expect("it is there");
}
