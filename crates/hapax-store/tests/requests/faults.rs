//! Lost requests and replies, servers that die, transactions that stand in the way.

use crate::kit::{Kind, address, on_both, one_session, open, sql, until};
use hapax_core::request::{Completion, Lease};
use hapax_servers::{MariaDb, Postgres, Proxy, Server, fresh_database};
use hapax_store::{
    StoreError,
    conformance::requests::{claim, execute, id},
    requests::{Begun, Finished, RequestStore},
};
use std::sync::Arc;

on_both! {
    a_claim_whose_messages_are_lost_is_ours_or_nobodys,
    a_finish_whose_messages_are_lost_is_done_once,
    of_two_who_both_saw_nothing_one_executes,
    a_transaction_that_stands_in_the_way_is_not_waited_for_for_ever,
}

/// Does something whose messages are lost from the n-th on, and then the connection; `None`: it has fewer.
async fn lose<T: Send + 'static>(
    proxy: &Proxy,
    set: impl Fn(&Proxy),
    act: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let before = proxy.counts().bytes_lost;
    set(proxy);
    let act = tokio::spawn(act);
    while !act.is_finished() && proxy.counts().bytes_lost == before {
        tokio::task::yield_now().await;
    }
    let is_lost = proxy.counts().bytes_lost > before;
    proxy.pass();
    if is_lost {
        proxy.cut();
    }
    let done = act.await.expect("no panic");
    is_lost.then_some(done)
}

/// A store behind a proxy, whose statements are prepared.
async fn far(url: &str, proxy: &Proxy, kind: Kind) -> Arc<dyn RequestStore> {
    let far = one_session(kind, &proxy.url(url).expect("a URL")).await;
    let lease = execute(&*far, &claim(&format!("warm {}", uuid::Uuid::new_v4()))).await;
    assert_eq!(far.finish(&lease, &done()).await.unwrap(), Finished::Done);
    far
}

fn done() -> Completion {
    Completion::succeeded(201, "charged")
}

/// What the proxy loses.
const LOSSES: [fn(&Proxy, u64); 2] = [Proxy::swallow_requests, Proxy::swallow_replies];

async fn a_claim_whose_messages_are_lost_is_ours_or_nobodys(kind: Kind) {
    let url = kind.database();
    let (proxy, near) = (Proxy::start(address(&url)).expect("a proxy"), open(&url).await);
    let mut cases = 0;
    for (which, loss) in LOSSES.into_iter().enumerate() {
        for n in 1.. {
            let far = far(&url, &proxy, kind).await;
            let claimed = claim(&format!("{which} {n}"));
            let mine = claimed.clone();
            let begin = async move { far.begin(&mine).await };
            let Some(begun) = lose(&proxy, |proxy| loss(proxy, n), begin).await else { break };
            let Ok(Begun::Execute(lease)) = begun else { panic!("{which} {n}: {begun:?}") };
            assert_eq!(lease.attempt, 1, "{which} {n}");
            let other = near.begin(&claimed).await.unwrap();
            assert!(matches!(other, Begun::InProgress { .. }), "{which} {n}: {other:?}");
            assert_eq!(near.finish(&lease, &done()).await.unwrap(), Finished::Done, "{which} {n}");
            cases += 1;
        }
    }
    assert!(cases >= 2, "only {cases} messages were lost");
}

async fn a_finish_whose_messages_are_lost_is_done_once(kind: Kind) {
    let url = kind.database();
    let (proxy, near) = (Proxy::start(address(&url)).expect("a proxy"), open(&url).await);
    let mut cases = 0;
    for (which, loss) in LOSSES.into_iter().enumerate() {
        for n in 1.. {
            let far = far(&url, &proxy, kind).await;
            let lease: Lease = execute(&*near, &claim(&format!("{which} {n}"))).await;
            let mine = lease.clone();
            let finish = async move { far.finish(&mine, &done()).await };
            let Some(finished) = lose(&proxy, |proxy| loss(proxy, n), finish).await else { break };
            assert_eq!(finished.unwrap(), Finished::Done, "{which} {n}");
            let found = near.get(&lease.id).await.unwrap().unwrap();
            assert_eq!((found.completion, found.token), (Some(done()), lease.token), "{which} {n}");
            cases += 1;
        }
    }
    assert!(cases >= 2, "only {cases} messages were lost");
}

const COLUMNS: &str =
    "request_hash, status, sequence, nonce, updated_at, attempt, lease_until, origin, created_at, expires_at";

/// A copy of the record `model` under the key `k`.
fn copied() -> String {
    format!(
        "INSERT INTO hapax_requests (namespace, principal, method, idempotency_key, {COLUMNS}) \
         SELECT namespace, principal, method, 'k', {COLUMNS} FROM hapax_requests WHERE idempotency_key = 'model'"
    )
}

/// A session whose transaction the test begins and ends.
enum Raw {
    Postgres(tokio_postgres::Client),
    MySql(mysql_async::Conn),
}

impl Raw {
    async fn connect(kind: Kind, url: &str) -> Self {
        match kind {
            Kind::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(connection);
                Raw::Postgres(client)
            }
            Kind::MySql => Raw::MySql(mysql_async::Conn::from_url(url).await.expect("a connection")),
        }
    }

    async fn run(&mut self, sql: &str) {
        use mysql_async::prelude::Queryable;
        match self {
            Raw::Postgres(client) => client.batch_execute(sql).await.expect("a statement"),
            Raw::MySql(conn) => conn.query_drop(sql).await.expect("a statement"),
        }
    }
}

/// The other has inserted its record and not committed it yet, so that neither sees one.
async fn of_two_who_both_saw_nothing_one_executes(kind: Kind) {
    let url = kind.database();
    let store = open(&url).await;
    execute(&*store, &claim("model")).await;
    let mut other = Raw::connect(kind, &url).await;
    other.run("BEGIN").await;
    other.run(&copied()).await;
    let begin = tokio::spawn({
        let store = store.clone();
        async move { store.begin(&claim("k")).await }
    });
    let waits = kind.pick(
        "SELECT 'waits' FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        "SELECT 'waits' FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p \
         ON p.id = t.trx_mysql_thread_id WHERE p.db = database() AND t.trx_state = 'LOCK WAIT'",
    );
    until("waits for the other", || sql(&url, waits).contains("waits")).await;
    other.run("COMMIT").await;
    let begun = begin.await.expect("no panic").unwrap();
    assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
    let (model, there) =
        (store.get(&id("model")).await.unwrap().unwrap(), store.get(&id("k")).await.unwrap().unwrap());
    assert_eq!(there.token, model.token, "it is the other's");
}

async fn a_transaction_that_stands_in_the_way_is_not_waited_for_for_ever(kind: Kind) {
    let url = kind.database();
    let store = open(&url).await;
    execute(&*store, &claim("model")).await;
    let mut other = Raw::connect(kind, &url).await;
    other.run("BEGIN").await;
    other.run(&copied()).await;
    let begun = store.begin(&claim("k")).await.unwrap();
    assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
    other.run("ROLLBACK").await;
    execute(&*store, &claim("k")).await;
}

/// Nothing is executed while the server is away; what was committed is there when it is back.
async fn dies_and_comes_back(server: &mut Server) {
    let url = fresh_database(&server.url()).expect("a database");
    let store = open(&url).await;
    let (held, ended) = (execute(&*store, &claim("held")).await, execute(&*store, &claim("ended")).await);
    assert_eq!(store.finish(&ended, &done()).await.unwrap(), Finished::Done);
    server.kill().expect("a kill");
    for key in ["new", "held", "ended"] {
        let refused = store.begin(&claim(key)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Retry(_) | StoreError::Unknown(_)), "{key}: {refused}");
    }
    store.finish(&held, &done()).await.unwrap_err();
    server.restart().expect("it is there again");
    assert!(matches!(store.begin(&claim("ended")).await.unwrap(), Begun::Replay(_)));
    assert!(matches!(store.begin(&claim("held")).await.unwrap(), Begun::InProgress { .. }));
    assert_eq!(store.finish(&held, &done()).await.unwrap(), Finished::Done);
    assert_eq!(execute(&*store, &claim("new")).await.attempt, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_was_killed_has_all_that_was_told() {
    dies_and_comes_back(&mut Postgres::start().expect("PostgreSQL starts")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mysql_that_was_killed_has_all_that_was_told() {
    dies_and_comes_back(&mut MariaDb::start().expect("MariaDB starts")).await;
}
