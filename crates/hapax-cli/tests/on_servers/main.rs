//! Stores in servers that restart, freeze, take no writes or refuse: what the commands make of them, and what they say.

#[path = "../cli/common/mod.rs"]
mod common;

use common::{Order, Said, World, said, shop, stock, tool::Worker};
use hapax::{
    Db, Engine, Flow, Graph, Node, Options,
    prelude::*,
    store::db::{Strategy, TxOptions},
};
use hapax_core::{
    id::Namespace,
    key::sha256,
    request::{Completion, RequestHash, RequestId},
};
use hapax_servers::{MariaDb, Postgres, Proxy, Server, fresh_database, sql};
use hapax_store::requests::{Begun, Claim, Finished};
use serde::{Deserialize, Serialize};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};

/// Not a test of its own: the program that the others start.
#[test]
fn tool() {
    common::tool::play();
}

/// The stock program on the store of this address.
fn hapax(url: &str, args: &[&str]) -> Said {
    let mut command = stock(args);
    command.env("HAPAX_STORE", url);
    said(command)
}

/// The shop's graph, on an engine that looks for no work.
async fn orders(url: &str) -> (Engine, Flow<Order, Arc<World>>) {
    let options = Options::default().finds_work(false);
    let engine = Engine::builder().options(options).open(url).await.unwrap();
    let flow = engine.register(shop(), Arc::default()).await.unwrap();
    (engine, flow)
}

fn order(sku: &str) -> Order {
    Order { sku: sku.into(), cents: 4200, ..Order::default() }
}

/// Two orders that are shipped.
async fn shipped(url: &str) {
    let (engine, flow) = orders(url).await;
    for run in ["order-1", "order-2"] {
        flow.start(run, order("anvil")).await.unwrap().wait().await.unwrap();
    }
    engine.shutdown(Duration::from_secs(5)).await;
}

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Story {
    text: Option<String>,
}

const TELL: Node = Node::new("tell");

async fn tell(mut ctx: hapax::Ctx<Story, Arc<Semaphore>>) -> hapax::Result<()> {
    for n in 0..100 {
        if n == 50 {
            ctx.app().acquire().await?.forget();
        }
        ctx.stream(&n).await?;
    }
    Ok(())
}

async fn is_followed_through_a_restart(server: &mut Server) {
    let url = fresh_database(&server.url()).unwrap();
    let (engine, more) = (Engine::open(&url).await.unwrap(), Arc::new(Semaphore::new(0)));
    let flow = engine.register(Graph::new("stories", 1, TELL).node(TELL, tell), more.clone()).await.unwrap();
    let run = flow.start("story-1", Story::default()).await.unwrap();
    let mut follow = stock(&["tail", "story-1", "--follow"]);
    let mut follow = follow.env("HAPAX_STORE", &url).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut seen: Vec<String> = lines.by_ref().take(50).collect();
    server.restart().unwrap();
    more.add_permits(1);
    seen.extend(lines);
    assert_eq!(seen, (0..100).map(|n| n.to_string()).collect::<Vec<_>>(), "each once, in its order");
    assert_eq!(follow.wait().unwrap().code(), Some(0));
    run.wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_followed_through_a_restart_of_postgres() {
    is_followed_through_a_restart(&mut Postgres::start().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_followed_through_a_restart_of_mariadb() {
    is_followed_through_a_restart(&mut MariaDb::start().unwrap()).await;
}

/// What is known, and what may go on.
#[derive(Default)]
struct Till {
    known: Notify,
    may_go: Notify,
}

async fn pay(mut ctx: hapax::Ctx<Story, Arc<Till>>) -> hapax::Result<StoryDelta> {
    let by_number = TxOptions { strategy: Some(Strategy::Introspection), ..TxOptions::default() };
    let pay = async |tx: &mut hapax::Tx| tx.query_one::<String>("SELECT 'paid'", &[]).await;
    let said = ctx.transaction_with(&Db("shop"), "pay", by_number, pay).await?;
    ctx.app().known.notify_one();
    ctx.app().may_go.notified().await;
    Ok(Story::delta().text(said))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_noted_of_a_transaction_before_its_commit_is_shown() {
    let server = Postgres::start().unwrap();
    let url = fresh_database(&server.url()).unwrap();
    let engine = Engine::builder().database("shop", &url).open(&url).await.unwrap();
    let till = Arc::new(Till::default());
    let flow = engine.register(Graph::new("sales", 1, TELL).node(TELL, pay), till.clone()).await.unwrap();
    let run = flow.start("sale-1", Story::default()).await.unwrap();
    till.known.notified().await;
    let shown =
        || hapax(&url, &["transactions", "show", "sale-1", "--json"]).json()["transactions"][0].take();
    let open = shown();
    assert_eq!((&open["state"], &open["strategy"]), (&"begun".into(), &"introspection".into()));
    assert_eq!((&open["noted"]["result"], &open["marker"]), (&"paid".into(), &serde_json::Value::Null));
    assert!(open["noted"]["witness"]["xid"].as_u64().is_some_and(|xid| xid > 0), "{open}");
    till.may_go.notify_one();
    run.wait().await.unwrap();
    let (over, told) = (shown(), hapax(&url, &["transactions", "show", "sale-1"]).ok());
    assert_eq!((&over["state"], &over["result"]), (&"committed".into(), &"paid".into()));
    assert!(told.contains("\nnoted    {") && told.contains("\nreturns  \"paid\"\n"), "{told}");
    engine.shutdown(Duration::from_secs(5)).await;
}

/// Waits until something was sent so often.
async fn speaks(proxy: &Proxy, times: u64) {
    let (before, mut looks) = (proxy.counts().flushes, tokio::time::interval(Duration::from_millis(20)));
    while proxy.counts().flushes < before + times {
        looks.tick().await;
    }
}

/// Nothing that it asked is ever answered.
async fn stops_while_frozen(server: &Server) {
    let url = fresh_database(&server.url()).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let mut idle = Worker::start(&proxy.url(&url).unwrap(), "worker --drain 52w");
    idle.until(" works on ");
    // Its session is open, and it has looked for work.
    speaks(&proxy, 20).await;
    server.stop().unwrap();
    speaks(&proxy, 1).await;
    assert_eq!(idle.stop(), 0, "it holds no run");
    server.cont().unwrap();
    let (engine, flow) = orders(&url).await;
    flow.submit("order-1", order("slow")).await.unwrap();
    let mut busy = Worker::start(&url, "worker --drain 1s");
    busy.until("claimed  order-1");
    server.stop().unwrap();
    assert_eq!(busy.stop(), 0, "it can't give its run back");
    server.cont().unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stops_while_postgres_is_frozen() {
    stops_while_frozen(&Postgres::start().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stops_while_mariadb_is_frozen() {
    stops_while_frozen(&MariaDb::start().unwrap()).await;
}

const LOOKS: [&[&str]; 11] = [
    &["transactions", "list"],
    &["transactions", "show", "order-1"],
    &["list"],
    &["show", "order-1"],
    &["tail", "order-1"],
    &["graph", "--run", "order-1"],
    &["inbox"],
    &["outbox"],
    &["schedule", "list"],
    &["workers"],
    &["doctor"],
];

const CHANGES: [&[&str]; 5] = [
    &["cancel", "order-1"],
    &["retry", "order-1"],
    &["signal", "order-1", "go", "1"],
    &["outbox", "drop", "order-1"],
    &["schedule", "remove", "nightly"],
];

/// Every command that only looks works, and every other says that it can't.
fn can_only_be_looked_at(url: &str) {
    for args in LOOKS {
        let looked = hapax(url, args);
        assert_eq!(looked.code, 0, "{args:?}: {}{}", looked.out, looked.err);
    }
    let doctor = hapax(url, &["doctor"]).ok();
    assert!(doctor.contains("none: it is read-only"), "{doctor}");
    for args in CHANGES {
        let error = hapax(url, args).fails(3);
        assert!(error.starts_with("error[HX0049]"), "{args:?}: {error}");
        assert!(error.contains("cure: name the server that takes writes"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_of_postgres_can_be_looked_at() {
    let primary = Postgres::start().unwrap();
    let url = fresh_database(&primary.url()).unwrap();
    shipped(&url).await;
    let standby = primary.standby().unwrap();
    can_only_be_looked_at(&url.replace(&primary.address().to_string(), &standby.address().to_string()));
    sql(&url, &format!("ALTER DATABASE {} SET default_transaction_read_only = on", database(&url))).unwrap();
    for args in LOOKS {
        assert_eq!(hapax(&url, args).code, 0, "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_mariadb_can_be_looked_at() {
    let server = MariaDb::start().unwrap();
    let url = fresh_database(&server.url()).unwrap();
    shipped(&url).await;
    let grant = format!("CREATE USER reader@'%'; GRANT SELECT ON {}.* TO reader@'%'", database(&url));
    sql(&url, &format!("{grant}; SET GLOBAL read_only = ON")).unwrap();
    can_only_be_looked_at(&url);
    can_only_be_looked_at(&url.replace("root@", "reader@"));
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

/// The server's words once, and what they mean once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_session_is_told_of_once() {
    let url = hapax_servers::postgres().unwrap();
    shipped(&url).await;
    let user = format!("crowd_{}", database(&url));
    sql(&url, &format!("CREATE ROLE {user} LOGIN CONNECTION LIMIT 0")).unwrap();
    let error = hapax(&url.replace("postgres@", &format!("{user}@")), &["list"]).fails(4);
    assert!(error.starts_with("error[HX0040]: the store is busy or out of reach"), "{error}");
    for once in ["busy or out of reach", "53300", "too many connections"] {
        assert_eq!(error.matches(once).count(), 1, "{error}");
    }
    assert!(error.contains("allows one more session") && !error.contains("file"), "{error}");
}

/// Damage hides nothing of the rest, and what is said of it speaks of no file.
async fn damage_is_told_of(url: &str) {
    shipped(url).await;
    sql(url, "UPDATE hapax_checkpoints SET seed = 1 WHERE run_id = 'order-1' AND step_id = 2").unwrap();
    let found = hapax(url, &["doctor"]);
    assert_eq!((found.code, found.err.as_str()), (1, ""), "{}", found.out);
    let column = found.out.lines().find_map(|line| line.find("[HX0044] run `order-1`, step 2")).unwrap();
    let digests = found.out.lines().find(|line| line.starts_with("good    digests")).unwrap();
    assert_eq!(digests.find("9 checkpoints in 2 runs"), Some(column), "{}", found.out);
    let is_aligned =
        |line: &str| line.is_empty() || line.get(..column).is_some_and(|head| head.ends_with("  "));
    assert!(found.out.lines().rev().skip(1).all(is_aligned), "{}", found.out);
    let error = hapax(url, &["show", "order-1", "--step", "2"]).fails(3);
    assert!(error.contains("cure: restore the database from a backup"), "{error}");
    assert!(!found.out.contains("file") && !error.contains("file"), "{}{error}", found.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_postgres_is_told_of_beside_what_is_whole() {
    damage_is_told_of(&hapax_servers::postgres().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_mariadb_is_told_of_beside_what_is_whole() {
    damage_is_told_of(&hapax_servers::mysql().unwrap()).await;
}

/// Mistakes in an address, and what is said of each.
const MISTAKES: [(&str, &str); 12] = [
    ("postgres://db/orders?sslmode=maybe", "`sslmode` must be one of disable, prefer"),
    ("mysql://db/orders?ssl-mode=maybe", "`ssl-mode` must be one of DISABLED, PREFERRED"),
    ("postgres://db:port/orders", "port"),
    ("mysql://db:port/orders", "port"),
    ("postgres://db/orders?sslrootcert=/not/there.pem", "`/not/there.pem`, which can't be read"),
    ("mysql://db/orders?ssl-ca=/not/there.pem", "`/not/there.pem`, which can't be read"),
    ("mysql://db/orders?sslmode=require", "here it is `ssl-mode`"),
    ("postgres://db/orders?ssl-ca=ca.pem", "here it is `sslrootcert`"),
    ("postgres://me:p@ss@db/orders", "%40"),
    ("postgres://me:p#ss@db/orders", "%23"),
    ("mysql://db/orders#runs", "%23"),
    ("mysql://db", "it names no database"),
];

#[test]
fn a_mistake_in_an_address_is_told_with_how_it_is_written() {
    for (url, told) in MISTAKES {
        let error = hapax(url, &["list"]).fails(2);
        assert!(error.starts_with("error[HX0050]: cannot open ") && error.contains(told), "{url}: {error}");
        let form = url.split_once("://").unwrap().0;
        assert!(error.contains(&format!("cure: mend what the message names: `{form}://user:")), "{error}");
        assert!(!error.contains("p@ss") && !error.contains("p#ss"), "{error}");
    }
}

/// However an address is misspelt.
#[test]
fn a_password_is_never_shown() {
    for url in [
        "postgres:/u:SECRET@127.0.0.1:1/t",
        "postgres:u:SECRET@127.0.0.1:1/t",
        "postgres//u:SECRET@127.0.0.1:1/t",
        "postgres://u:SECRET%40127.0.0.1:1/t",
        "postgres://u:SECRET",
        "postgres://u:SECRET@127.0.0.1:1/t",
        "mysql:u:SECRET@127.0.0.1:1/t",
        "mysql://u:SECRET%40127.0.0.1:1/t",
        "mysql://u:SECRET@127.0.0.1:1/t",
        "host=127.0.0.1 password=SECRET",
        "jdbc:postgresql://127.0.0.1:1/t?user=u&password=SECRET",
    ] {
        for args in [&["list"][..], &["list", "--json"], &["doctor"]] {
            let said = hapax(url, args);
            assert!(
                !said.out.contains("SECRET") && !said.err.contains("SECRET"),
                "{url}: {} {}",
                said.out,
                said.err
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheme_is_the_same_in_any_case_and_mariadb_is_one() {
    let (postgres, mysql) = (hapax_servers::postgres().unwrap(), hapax_servers::mysql().unwrap());
    for url in [postgres.replace("postgres://", "POSTGRES://"), mysql.replace("mysql://", "MariaDB://")] {
        shipped(&url).await;
        assert!(hapax(&url, &["list"]).ok().contains("order-2"));
    }
}

/// A request that is under way, one that is over and one that has expired.
async fn asked(url: &str) {
    let store = hapax_store::requests::open(url).await.unwrap();
    for (key, expiry, end) in [("under way", 3600, false), ("over", 3600, true), ("expired", 0, true)] {
        let id = RequestId::new(Namespace::default(), "ada", "POST /charges", key).unwrap();
        let claim = Claim { expiry: Duration::from_secs(expiry), ..Claim::new(id, RequestHash(sha256(b""))) };
        let Begun::Execute(lease) = store.begin(&claim).await.unwrap() else { panic!("it is new") };
        if end {
            let done = Completion::succeeded(201, r#"{"charge":1}"#);
            assert_eq!(store.finish(&lease, &done).await.unwrap(), Finished::Done);
        }
    }
}

async fn requests_are_seen_and_decided(url: String) {
    for args in [&["requests", "list"][..], &["requests", "sweep"]] {
        let error = hapax(&url, args).fails(3);
        assert!(
            error.starts_with("error[HX0047]") && error.contains("holds no requests of Hapax"),
            "{error}"
        );
    }
    asked(&url).await;
    let listed = hapax(&url, &["requests", "list", "--json", "--status", "in-progress"]).json();
    let left = listed["requests"][0]["lease_left_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&left), "by the server's clock: {listed}");
    let shown = hapax(&url, &["requests", "show", "ada", "POST /charges", "over", "--json"]).json();
    assert_eq!(shown["answer"]["payload"]["text"], r#"{"charge":1}"#);
    let release = ["requests", "release", "ada", "POST /charges", "under way"];
    assert_eq!(hapax(&url, &release).ok(), "under way was in progress; it may be tried again\n");
    assert_eq!(hapax(&url, &release).code, 1);
    assert_eq!(hapax(&url, &["requests", "sweep", "--dry-run"]).ok(), "would delete 1 expired request\n");
    assert_eq!(hapax(&url, &["requests", "sweep"]).ok(), "deleted 1 expired request\n");
    let left = hapax(&url, &["requests", "list", "--json"]).json();
    assert_eq!(left["requests"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_postgres_are_seen_and_decided() {
    requests_are_seen_and_decided(hapax_servers::postgres().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_mariadb_are_seen_and_decided() {
    requests_are_seen_and_decided(hapax_servers::mysql().unwrap()).await;
}

async fn is_watched_through_a_restart(server: &mut Server) {
    let url = fresh_database(&server.url()).unwrap();
    shipped(&url).await;
    let frame = hapax(&url, &["top", "--once"]).ok();
    assert!(frame.contains("succeeded 2\n") && frame.contains("nobody holds a run"), "{frame}");
    let look = hapax(&url, &["top", "--once", "--json"]).json();
    assert_eq!((&look["runs"]["succeeded"]["count"], &look["outbox"]["lag_ms"]), (&2.into(), &0.into()));
    let mut watch = stock(&["top", "--json", "--interval", "100ms"]);
    let mut watch = watch.env("HAPAX_STORE", &url).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut looks = lines.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
    assert!(looks.any(|look| look["rates"]["steps_per_s"] == 0.0), "the second look has rates");
    server.kill().unwrap();
    let lost = looks.find(|look| !look["error"].is_null()).unwrap();
    assert!(lost["error"]["code"].as_str().unwrap().starts_with("HX"), "{lost}");
    server.restart().unwrap();
    assert!(looks.any(|look| look["runs"]["succeeded"]["count"] == 2), "it goes on");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_watched_through_a_restart_of_postgres() {
    is_watched_through_a_restart(&mut Postgres::start().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_watched_through_a_restart_of_mariadb() {
    is_watched_through_a_restart(&mut MariaDb::start().unwrap()).await;
}
