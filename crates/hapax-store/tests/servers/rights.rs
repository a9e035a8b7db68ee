//! What a user may not do is found out when the store is opened, with the very statement that grants it.

use crate::both::{Kind, name, on_both, sql};
use futures::future::join_all;
use hapax_core::error::code;
use hapax_store::conformance::Sample;
use std::sync::Arc;

on_both! {
    a_right_that_is_missing_is_named_by_the_statement_that_grants_it,
    rights_that_come_with_a_role_are_enough,
    who_may_not_make_the_tables_is_told_what_it_takes,
    tables_that_are_gone_are_missed_at_once,
    runs_whose_version_is_lost_are_not_taken_for_an_empty_store,
    a_user_who_may_open_three_sessions_does_all_with_them,
}

/// A user of this database alone who has no right in it.
fn user(kind: Kind, url: &str) -> String {
    let user = format!("user_{}", &name(url)[name(url).len() - 8..]);
    sql(url, &kind.pick(format!("CREATE ROLE {user} LOGIN"), format!("CREATE USER {user}@'%'")));
    user
}

/// The same database for a user.
fn by(url: &str, user: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a scheme");
    format!("{scheme}://{user}@{}", rest.split_once('@').expect("a user").1)
}

/// How an account is named in a statement.
fn account(kind: Kind, user: &str) -> String {
    kind.pick(user.to_owned(), format!("{user}@'%'"))
}

const TABLES: [&str; 16] = [
    "runs",
    "keys",
    "checkpoints",
    "frontier",
    "journal",
    "outbox",
    "channels",
    "letters",
    "tags",
    "schedules",
    "blobs",
    "objects",
    "flow_slots",
    "flow_queue",
    "flow_names",
    "shards",
];

/// All that it takes to use tables which somebody else made.
fn grant_all(kind: Kind, url: &str, account: &str) {
    let (mut grants, to) = (String::new(), format!("TO {account};"));
    for table in TABLES {
        grants.push_str(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON hapax_{table} {to}"));
    }
    grants.push_str(&format!("GRANT SELECT ON hapax_schema {to}"));
    grants.push_str(&kind.pick(format!("GRANT USAGE ON SCHEMA public {to}"), String::new()));
    sql(url, &grants);
}

/// The statements in a refusal.
fn grants(said: &str) -> &str {
    said.split_once("lacks rights: ").unwrap_or_else(|| panic!("{said}")).1
}

async fn a_right_that_is_missing_is_named_by_the_statement_that_grants_it(kind: Kind) {
    let url = kind.database();
    kind.store(&url).await;
    let user = user(kind, &url);
    let (account, url_of_user) = (account(kind, &user), by(&url, &user));
    grant_all(kind, &url, &account);
    kind.store(&url_of_user).await;
    for (right, table) in [
        ("SELECT", "hapax_runs"),
        ("INSERT", "hapax_journal"),
        ("UPDATE", "hapax_letters"),
        ("DELETE", "hapax_outbox"),
        ("SELECT", "hapax_schema"),
        ("SELECT, INSERT, UPDATE, DELETE", "hapax_tags"),
    ] {
        sql(&url, &format!("REVOKE {right} ON {table} FROM {account}"));
        let (said, code) = kind.refusal(&url_of_user).await;
        assert_eq!(code, code::CANNOT_OPEN);
        let place = kind.pick(format!("public.{table}"), format!("`{}`.`{table}`", name(&url)));
        let to = kind.pick(user.clone(), format!("'{user}'@'%'"));
        assert_eq!(grants(&said), format!("GRANT {right} ON {place} TO {to}"));
        sql(&url, grants(&said));
        kind.store(&url_of_user).await;
    }
    sql(
        &url,
        &format!("REVOKE INSERT ON hapax_runs FROM {account}; REVOKE DELETE ON hapax_keys FROM {account}"),
    );
    let (said, _) = kind.refusal(&url_of_user).await;
    assert_eq!(grants(&said).split("; ").count(), 2, "all that is missing is said at once: {said}");
    sql(&url, grants(&said));
    let store = kind.store(&url_of_user).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("one")).await.expect("a step of a user with no more than these rights");
}

async fn rights_that_come_with_a_role_are_enough(kind: Kind) {
    let url = kind.database();
    kind.store(&url).await;
    let user = user(kind, &url);
    let role = format!("{user}_role");
    sql(&url, &format!("CREATE ROLE {role}"));
    grant_all(kind, &url, &role);
    sql(&url, &format!("GRANT {role} TO {}", account(kind, &user)));
    if kind == Kind::MySql {
        sql(&url, &format!("SET DEFAULT ROLE {role} FOR {user}@'%'"));
    }
    kind.store(&by(&url, &user)).await;
}

async fn who_may_not_make_the_tables_is_told_what_it_takes(kind: Kind) {
    let url = kind.database();
    let user = user(kind, &url);
    let url_of_user = by(&url, &user);
    match kind {
        // Before PostgreSQL 15 everyone may.
        Kind::Postgres => sql(&url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC"),
        Kind::MySql => sql(&url, &format!("GRANT SELECT ON {}.* TO {user}@'%'", name(&url))),
    };
    let (said, code) = kind.refusal(&url_of_user).await;
    assert_eq!(code, code::CANNOT_OPEN);
    sql(&url, grants(&said));
    let store = kind.store(&url_of_user).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("one")).await.expect("a step");
}

async fn tables_that_are_gone_are_missed_at_once(kind: Kind) {
    let url = kind.database();
    kind.store(&url).await;
    sql(&url, "DROP TABLE hapax_letters");
    let (said, code) = kind.refusal(&url).await;
    assert!(code == code::CANNOT_OPEN && said.contains("hapax_letters is gone"), "{said}");
}

async fn runs_whose_version_is_lost_are_not_taken_for_an_empty_store(kind: Kind) {
    for lost in [
        "UPDATE hapax_schema SET version = 0",
        "DELETE FROM hapax_schema",
        "DROP TABLE hapax_schema",
        "DROP TABLE hapax_keys",
    ] {
        let url = kind.database();
        Sample::run("r").hold(&kind.store(&url).await).await;
        sql(&url, "DROP TABLE IF EXISTS hapax_journal");
        sql(&url, lost);
        let (said, code) = kind.refusal(&url).await;
        assert!(code == code::CANNOT_OPEN && said.contains("restore"), "{lost}: {said}");
    }
}

/// Whoever comes fourth waits for one of the three.
async fn a_user_who_may_open_three_sessions_does_all_with_them(kind: Kind) {
    let url = kind.database();
    kind.store(&url).await;
    let user = user(kind, &url);
    let account = account(kind, &user);
    grant_all(kind, &url, &account);
    let few = kind.pick("CONNECTION LIMIT 3", "WITH MAX_USER_CONNECTIONS 3");
    sql(&url, &kind.pick(format!("ALTER ROLE {account} {few}"), format!("ALTER USER {account} {few}")));
    let store = kind.store(&by(&url, &user)).await;
    let steps = (0..24).map(async |number| {
        let mut holder = Sample::run(&format!("r{number}")).hold(&store).await;
        holder.commit(holder.next("one")).await.expect("a step");
        store.cancels(Arc::from("w")).await.expect("what is asked again and again");
    });
    join_all(steps).await;
}
