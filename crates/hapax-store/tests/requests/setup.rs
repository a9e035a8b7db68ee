//! The table: made on demand by any number at once, or beforehand, and only with the rights that it takes.

use crate::kit::{Kind, on_both, open, sql};
use futures::future::join_all;
use hapax_core::{error::Coded, request::Completion};
use hapax_store::{
    conformance::requests::{claim, execute},
    mysql::MySqlOptions,
    postgres::PostgresOptions,
    requests::{Finished, MySqlRequests, PostgresRequests, RequestStore},
};

on_both! {
    ten_who_come_at_once_make_one_table,
    a_table_that_was_made_beforehand_is_used,
    rights_that_are_missing_are_named_by_the_statements_that_grant_them,
    who_may_not_make_the_table_is_told_what_it_takes,
    a_table_that_lets_two_have_the_same_key_is_refused,
    a_database_without_requests_is_refused_where_they_must_be_there,
    tables_of_another_prefix_are_others,
}

fn schema(kind: Kind) -> &'static str {
    kind.pick(
        include_str!("../../src/requests/schema/postgres.sql"),
        include_str!("../../src/requests/schema/mysql.sql"),
    )
}

fn name(url: &str) -> &str {
    url.rsplit_once('/').expect("a database").1
}

/// A user of this database alone who has no right in it; its name, and the database's address for it.
fn user(kind: Kind, url: &str) -> (String, String) {
    let user = format!("user_{}", &name(url)[name(url).len() - 8..]);
    sql(url, &kind.pick(format!("CREATE ROLE {user} LOGIN"), format!("CREATE USER {user}@'%'")));
    let (scheme, rest) = url.split_once("://").expect("a scheme");
    let address = format!("{scheme}://{user}@{}", rest.split_once('@').expect("a user").1);
    (kind.pick(user.clone(), format!("{user}@'%'")), address)
}

async fn refusal(url: &str) -> String {
    let Err(refused) = hapax_store::requests::open(url).await else { panic!("{url} was opened") };
    assert_eq!(refused.code(), "HX0047", "{refused}");
    refused.to_string()
}

/// The statements in a refusal.
fn grants(said: &str) -> &str {
    said.split_once("lacks rights: ").unwrap_or_else(|| panic!("{said}")).1
}

async fn works(store: &dyn RequestStore) {
    let lease = execute(store, &claim("k")).await;
    assert_eq!(store.finish(&lease, &Completion::succeeded(200, [])).await.unwrap(), Finished::Done);
    store.sweep(10).await.unwrap();
}

async fn ten_who_come_at_once_make_one_table(kind: Kind) {
    let url = kind.database();
    let stores = join_all((0..10).map(|_| open(&url))).await;
    works(&*stores[0]).await;
}

async fn a_table_that_was_made_beforehand_is_used(kind: Kind) {
    let url = kind.database();
    let (account, address) = user(kind, &url);
    sql(&url, schema(kind));
    sql(&url, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON hapax_requests TO {account}"));
    if kind == Kind::Postgres {
        sql(&url, &format!("GRANT USAGE ON SEQUENCE hapax_requests_sequence TO {account}"));
    }
    works(&*open(&address).await).await;
}

async fn rights_that_are_missing_are_named_by_the_statements_that_grant_them(kind: Kind) {
    let url = kind.database();
    let (account, address) = user(kind, &url);
    open(&url).await;
    sql(&url, &format!("GRANT SELECT, DELETE ON hapax_requests TO {account}"));
    let said = refusal(&address).await;
    assert!(grants(&said).starts_with("GRANT INSERT, UPDATE ON "), "{said}");
    sql(&url, grants(&said));
    works(&*open(&address).await).await;
}

async fn who_may_not_make_the_table_is_told_what_it_takes(kind: Kind) {
    let url = kind.database();
    let (account, address) = user(kind, &url);
    match kind {
        // Before PostgreSQL 15 everyone may.
        Kind::Postgres => sql(&url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC"),
        Kind::MySql => sql(&url, &format!("GRANT CREATE VIEW ON {}.* TO {account}", name(&url))),
    };
    sql(&url, grants(&refusal(&address).await));
    works(&*open(&address).await).await;
}

async fn a_table_that_lets_two_have_the_same_key_is_refused(kind: Kind) {
    let url = kind.database();
    open(&url).await;
    sql(
        &url,
        kind.pick(
            "ALTER TABLE hapax_requests DROP CONSTRAINT hapax_requests_pkey",
            "ALTER TABLE hapax_requests DROP PRIMARY KEY",
        ),
    );
    let said = refusal(&url).await;
    let cure = said.split_once("the same key: ").unwrap_or_else(|| panic!("{said}")).1;
    sql(&url, cure);
    works(&*open(&url).await).await;
}

async fn a_database_without_requests_is_refused_where_they_must_be_there(kind: Kind) {
    let url = kind.database();
    let refused = match kind {
        Kind::Postgres => {
            PostgresRequests::open(&url, PostgresOptions::default().must_exist(true)).await.err()
        }
        Kind::MySql => MySqlRequests::open(&url, MySqlOptions::default().must_exist(true)).await.err(),
    };
    let said = refused.expect("it isn't opened").to_string();
    assert!(said.contains("holds no requests"), "{said}");
}

async fn tables_of_another_prefix_are_others(kind: Kind) {
    let url = kind.database();
    works(&*open(&url).await).await;
    match kind {
        Kind::Postgres => {
            works(&*PostgresRequests::open(&url, PostgresOptions::default().prefix("eu_")).await.unwrap())
                .await;
        }
        Kind::MySql => {
            works(&*MySqlRequests::open(&url, MySqlOptions::default().prefix("eu_")).await.unwrap()).await;
        }
    }
    assert!(sql(&url, "SELECT idempotency_key FROM eu_requests").contains('k'));
}
