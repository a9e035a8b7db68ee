//! Rows of the table of faults that take the database itself: leases and answers are aged in it, by SQL, so that nothing waits
//! for a clock.

use crate::server::{PATIENCE, Reply, Server, send};
use futures::future::join_all;
use hapax_core::{
    id::Namespace,
    request::{Completion, Lease, RequestId},
};
use hapax_requests::OnConflict;
use hapax_store::requests::{Begun, Claim, Finished, RequestStore, open};
use std::{env, sync::Arc, time::Duration};
use tempfile::TempDir;

/// A database, and what is in it.
pub(crate) struct Database {
    url: String,
    store: Arc<dyn RequestStore>,
    _folder: Option<TempDir>,
}

impl Database {
    async fn at(url: String, folder: Option<TempDir>) -> Self {
        Self { store: open(&url).await.expect("it opens"), url, _folder: folder }
    }

    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::at(format!("sqlite:{}", folder.path().join("requests.db").display()), Some(folder)).await
    }

    async fn postgres() -> Self {
        Self::at(hapax_servers::postgres().expect("a server"), None).await
    }

    async fn mysql() -> Self {
        Self::at(hapax_servers::mysql().expect("a server"), None).await
    }

    /// The lease of another who takes over the request of this key: all leases are over.
    async fn taken_over(&self, key: &str) -> Lease {
        self.set("lease_until = 0");
        let id = RequestId::new(Namespace::default(), "ada", "POST /slow", key).expect("a name");
        let record = self.store.get(&id).await.expect("the store is there").expect("it is claimed");
        let taken = self.store.reacquire(&Claim::new(id, record.hash)).await.expect("the store is there");
        let Begun::Execute(lease) = taken else { panic!("{taken:?}") };
        lease
    }

    /// Changes records behind everybody's back.
    fn set(&self, change: &str) {
        let statement = format!("UPDATE hapax_requests SET {change}");
        tokio::task::block_in_place(|| match self.url.strip_prefix("sqlite:") {
            Some(file) => {
                let file = rusqlite::Connection::open(file).expect("a file");
                file.busy_timeout(PATIENCE).expect("a timeout can be set");
                file.execute_batch(&statement).expect("a statement");
            }
            None => drop(hapax_servers::sql(&self.url, &statement).expect("a statement")),
        });
    }
}

/// Each of the tests in each database.
macro_rules! in_each {
    ($($test:ident),* $(,)?) => {
        in_each!(@ sqlite, $($test),*);
        in_each!(@ postgres, $($test),*);
        in_each!(@ mysql, $($test),*);
    };
    (@ $database:ident, $($test:ident),*) => {
        mod $database {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Database::$database().await).await;
            })*
        }
    };
}

in_each! {
    row_01_two_hundred_at_once_for_each_of_many_keys_are_one_execution_each,
    row_07_who_was_overtaken_answers_what_the_record_says,
    row_07_who_was_overtaken_waits_for_the_others_answer,
    row_08_a_heartbeat_keeps_the_lease_of_a_slow_handler,
    row_10_an_expired_answer_is_executed_afresh_though_nobody_swept,
}

const DUPLICATES: usize = 200;

/// All of them are there before the first is answered.
async fn row_01_two_hundred_at_once_for_each_of_many_keys_are_one_execution_each(database: Database) {
    let keys = if env::var_os("HAPAX_LONG").is_some() { 500 } else { 20 };
    let server =
        Server::with(database.store.clone(), |layer| layer.on_conflict(OnConflict::Wait(PATIENCE))).await;
    for key in 1..=keys {
        let before = server.world.store.calls().claims;
        let asked: Vec<_> = (0..DUPLICATES).map(|_| server.asked("/slow", &format!("k{key}"))).collect();
        server.world.store.saw(|calls| calls.claims >= before + DUPLICATES).await;
        server.world.open(1);
        let replies: Vec<Reply> =
            join_all(asked).await.into_iter().map(|reply| reply.expect("it was sent")).collect();
        let first = replies.iter().find(|reply| !reply.is_replayed()).expect("who executed it");
        assert_eq!((first.status, &first.body[..]), (201, format!(r#"{{"charge":{key}}}"#).as_bytes()));
        assert!(replies.iter().all(|reply| reply.kept() == first.kept()), "k{key}");
        assert_eq!(replies.iter().filter(|reply| reply.is_replayed()).count(), DUPLICATES - 1, "k{key}");
    }
    let stats = server.layer.stats();
    assert_eq!((server.world.charges(), stats.executed, stats.takeovers), (keys, keys as u64, 0));
    println!("{} requests with {keys} keys: {keys} executions", keys * DUPLICATES);
}

/// As any other request with its key does where the service says so.
async fn row_07_who_was_overtaken_waits_for_the_others_answer(database: Database) {
    let server =
        Server::with(database.store.clone(), |layer| layer.on_conflict(OnConflict::Wait(PATIENCE))).await;
    let asked = server.asked("/slow", "k");
    server.world.started().await;
    let lease = database.taken_over("k").await;
    server.world.open(1);
    server.world.store.saw(|calls| calls.gets > 1).await;
    let finished = database.store.finish(&lease, &Completion::succeeded(202, "the other's")).await;
    assert_eq!(finished.expect("the store is there"), Finished::Done);
    let late = asked.await.expect("it was sent");
    assert_eq!((late.status, &late.body[..], late.is_replayed()), (202, &b"the other's"[..], true));
}

/// While another executes it, and when that has finished.
async fn row_07_who_was_overtaken_answers_what_the_record_says(database: Database) {
    let server = Server::over(database.store.clone()).await;
    for (key, finished) in [("a", false), ("b", true)] {
        let asked = server.asked("/slow", key);
        server.world.started().await;
        let lease = database.taken_over(key).await;
        let other = Completion::succeeded(202, "the other's");
        let finish = async || database.store.finish(&lease, &other).await.expect("the store is there");
        if finished {
            assert_eq!(finish().await, Finished::Done);
        }
        server.world.open(1);
        let late = asked.await.expect("it was sent");
        if finished {
            assert_eq!((late.status, &late.body[..], late.is_replayed()), (202, &b"the other's"[..], true));
        } else {
            assert_eq!((late.status, late.refusal().as_str()), (409, "in-flight"));
            assert_eq!(finish().await, Finished::Done, "who has the lease isn't harmed");
        }
        assert_eq!(server.ask("/slow", key).await.body, "the other's");
    }
    assert_eq!((server.layer.stats().executed, server.layer.stats().stale), (2, 2));
}

/// Long enough for a busy machine. Three heartbeats come in it.
const LEASE: Duration = Duration::from_secs(3);

async fn row_08_a_heartbeat_keeps_the_lease_of_a_slow_handler(database: Database) {
    let server = Server::with(database.store.clone(), |layer| layer.lease(LEASE)).await;
    let first = server.asked("/slow", "k");
    server.world.started().await;
    for _ in 0..2 {
        database.set("lease_until = 0");
        // One that was under way may have come before.
        let seen = server.world.store.calls().heartbeats;
        server.world.store.saw(|calls| calls.heartbeats >= seen + 2).await;
        assert_eq!(server.ask("/slow", "k").await.refusal(), "in-flight");
    }
    server.world.open(1);
    assert_eq!(first.await.expect("it was sent").status, 201);
    assert_eq!((server.world.charges(), server.layer.stats().takeovers), (1, 0));
}

async fn row_10_an_expired_answer_is_executed_afresh_though_nobody_swept(database: Database) {
    let server = Server::over(database.store.clone()).await;
    let first = server.ask("/charges", "k").await;
    assert!(server.ask("/charges", "k").await.is_replayed());
    database.set("expires_at = 1");
    let afresh = server.ask("/charges", "k").await;
    assert_eq!((afresh.status, afresh.is_replayed(), server.world.charges()), (201, false, 2));
    assert_ne!(afresh.body, first.body);
    assert_eq!(server.ask("/charges", "k").await.kept(), afresh.kept());
    assert_eq!(server.layer.stats().takeovers, 0, "it is a first attempt");
    database.set("expires_at = 1");
    let other = send(server.post("/charges", "k").body("something else")).await;
    assert_eq!((other.status, other.is_replayed()), (201, false), "the key may be used for something else");
}
