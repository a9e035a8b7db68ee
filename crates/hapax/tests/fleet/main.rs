//! Engines over one server: what an idle one asks, and how soon it hears of work.

mod starvation;

use hapax::{
    Ctx, Engine, Flow, Options, Status, Worker,
    core::{
        error::{Coded, code},
        id::Namespace,
    },
    prelude::*,
    store::{
        Hint, Outlook, ReadyFilter, Store, Verdict,
        mysql::{MySqlOptions, MySqlStore},
        postgres::{PostgresOptions, PostgresStore},
    },
};
use hapax_servers::{Postgres, Proxy, sql};
use serde::{Deserialize, Serialize};
use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Parcel {
    #[state(sum)]
    stamps: u32,
}

const STAMP: Node = Node::new("stamp");

/// What a node may wait for.
#[derive(Default)]
struct Office {
    began: Notify,
    opens: Option<Notify>,
}

async fn stamp(ctx: Ctx<Parcel, Arc<Office>>) -> ParcelDelta {
    let office = ctx.app();
    office.began.notify_one();
    if let Some(opens) = &office.opens {
        opens.notified().await;
    }
    Parcel::delta().stamps(1u32)
}

fn parcels() -> Graph<Parcel, Arc<Office>> {
    Graph::new("parcels", 1, STAMP).node(STAMP, stamp)
}

/// So rarely that nothing is found by looking.
const NEVER: Duration = Duration::from_secs(100_000);

async fn engine(
    store: Arc<dyn Store>,
    options: Options,
    office: Arc<Office>,
) -> (Engine, Flow<Parcel, Arc<Office>>) {
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(parcels(), office).await.unwrap();
    (engine, flow)
}

/// Whoever only submits.
async fn submitter(store: Arc<dyn Store>) -> Flow<Parcel, Arc<Office>> {
    engine(store, Options::default().finds_work(false), Arc::default()).await.1
}

async fn postgres(url: &str) -> Arc<dyn Store> {
    PostgresStore::open(url, PostgresOptions::default()).await.unwrap()
}

async fn mysql(url: &str) -> Arc<dyn Store> {
    MySqlStore::open(url, MySqlOptions::default()).await.unwrap()
}

/// A proxy before the server of a database, and the database's address behind it.
fn proxied(url: &str) -> (Proxy, String) {
    let proxy = Proxy::start(address(url)).unwrap();
    let through = proxy.url(url).unwrap();
    (proxy, through)
}

fn address(url: &str) -> SocketAddr {
    let rest = url.split_once("://").unwrap().1;
    let authority = rest.split('/').next().unwrap();
    let host = authority.rsplit('@').next().unwrap();
    host.to_socket_addrs().unwrap().next().unwrap()
}

/// When to look at what another process does, which wakes nobody.
fn looks() -> tokio::time::Interval {
    tokio::time::interval(Duration::from_millis(20))
}

/// Engines that never look by themselves: what reaches them was said.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_submitted_elsewhere_is_heard_of() {
    let url = hapax_servers::postgres().unwrap();
    let store = postgres(&url).await;
    let mut hints = store.hints().unwrap();
    let (worker, _) = engine(store, Options::default().scan_interval(NEVER), Arc::default()).await;
    let flow = submitter(postgres(&url).await).await;
    until_heard(&flow, &mut hints).await;
    let run = flow.submit("parcel-1", Parcel::default()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().stamps, 1);
    worker.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_given_back_is_heard_of() {
    let url = hapax_servers::postgres().unwrap();
    let busy = Arc::new(Office { opens: Some(Notify::new()), ..Office::default() });
    let (stops, flow) = engine(postgres(&url).await, Options::default(), busy.clone()).await;
    let run = flow.start("parcel-1", Parcel::default()).await.unwrap();
    busy.began.notified().await;
    let store = postgres(&url).await;
    let mut hints = store.hints().unwrap();
    let (goes_on, there) = engine(store, Options::default().scan_interval(NEVER), Arc::default()).await;
    // Where none of the two looks for work.
    let elsewhere = Options::default().finds_work(false).namespace(Namespace::new("elsewhere").unwrap());
    let (_, beside) = engine(postgres(&url).await, elsewhere, Arc::default()).await;
    until_heard(&beside, &mut hints).await;
    let report = Worker::new(stops).drain_within(Duration::ZERO).run_until(async {}).await;
    assert_eq!((report.finished, report.lost, report.handed_over), (0, 0, 1), "{report:?}");
    assert_eq!(there.attach(run.id().as_str()).await.unwrap().wait().await.unwrap().stamps, 1);
    goes_on.shutdown(Duration::from_secs(5)).await;
}

/// Its holder asks twice a second in any case; that it heard of it is seen in the hint.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_told_to_whoever_holds_the_run() {
    let url = hapax_servers::postgres().unwrap();
    let busy = Arc::new(Office { opens: Some(Notify::new()), ..Office::default() });
    let store = postgres(&url).await;
    let mut hints = store.hints().unwrap();
    let (holds, flow) = engine(store, Options::default(), busy.clone()).await;
    let elsewhere = submitter(postgres(&url).await).await;
    until_heard(&elsewhere, &mut hints).await;
    let run = flow.start("parcel-1", Parcel::default()).await.unwrap();
    busy.began.notified().await;
    elsewhere.attach("parcel-1").await.unwrap().cancel().await.unwrap();
    loop {
        match hints.recv().await.unwrap() {
            Hint::Cancel(key) => break assert_eq!(key.run.as_str(), "parcel-1"),
            _ => continue,
        }
    }
    run.wait().await.unwrap_err();
    assert_eq!(run.status().await.unwrap(), Status::Cancelled);
    holds.shutdown(Duration::from_secs(5)).await;
}

/// Submits runs until one is heard of: a listener may still be on its way.
async fn until_heard(flow: &Flow<Parcel, Arc<Office>>, hints: &mut tokio::sync::broadcast::Receiver<Hint>) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let id = format!("warm-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        flow.submit(&id, Parcel::default()).await.unwrap();
        if tokio::time::timeout(Duration::from_millis(500), hints.recv()).await.is_ok() {
            return;
        }
    }
}

/// Whoever waits for a run that is executed elsewhere bears a server that is away for a moment, and no longer than it says.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_through_a_restart_of_the_server() {
    let mut server = Postgres::start().unwrap();
    let url = hapax_servers::fresh_database(&server.url()).unwrap();
    let patient = Options::default().finds_work(false);
    let (waits, flow) = engine(postgres(&url).await, patient.clone(), Arc::default()).await;
    let hasty = patient.store_patience(Duration::ZERO);
    let (gives_up, hastily) = engine(postgres(&url).await, hasty, Arc::default()).await;
    let run = flow.submit("parcel-1", Parcel::default()).await.unwrap();
    let same = hastily.attach("parcel-1").await.unwrap();
    server.kill().unwrap();
    let waiting = tokio::spawn(async move { run.wait().await });
    for _ in 0..3 {
        assert_eq!(same.wait().await.unwrap_err().code(), code::STORE_RETRY);
    }
    server.restart().unwrap();
    let (works, _) = engine(postgres(&url).await, Options::default(), Arc::default()).await;
    assert_eq!(waiting.await.unwrap().unwrap().stamps, 1);
    for engine in [waits, gives_up, works] {
        engine.shutdown(Duration::from_secs(5)).await;
    }
}

/// Hints are lost with their session: work is found all the same, and they come again.
#[tokio::test(flavor = "multi_thread")]
async fn lost_hints_break_nothing() {
    let url = hapax_servers::postgres().unwrap();
    let (proxy, through) = proxied(&url);
    let store = postgres(&through).await;
    let mut hints = store.hints().unwrap();
    let options = Options::default().scan_interval(Duration::from_millis(50));
    let (worker, _) = engine(store, options, Arc::default()).await;
    let flow = submitter(postgres(&url).await).await;
    until_heard(&flow, &mut hints).await;
    for cut in 0..3 {
        proxy.cut();
        let run = flow.submit(&format!("parcel-{cut}"), Parcel::default()).await.unwrap();
        assert_eq!(run.wait().await.unwrap().stamps, 1, "found by looking");
    }
    while hints.try_recv().is_ok() {}
    until_heard(&flow, &mut hints).await;
    worker.shutdown(Duration::from_secs(5)).await;
}

/// What an idle engine asks costs one round trip, whatever was said before; it never claims in vain.
async fn one_question_is_one_round_trip(store: Arc<dyn Store>, proxy: &Proxy) {
    let flow = submitter(store.clone()).await;
    let filter = || ReadyFilter {
        namespace: Default::default(),
        graphs: vec![("parcels".into(), flow.fingerprint())],
        limit: 10,
    };
    // The first question opens the session and prepares the statement, also that of every fifth second.
    for _ in 0..3 {
        store.outlook(filter()).await.unwrap();
    }
    let before = proxy.counts().turns;
    for _ in 0..10 {
        assert_eq!(store.outlook(filter()).await.unwrap(), Outlook::default());
    }
    assert_eq!(proxy.counts().turns - before, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engines_question_is_one_round_trip_to_postgres() {
    let (proxy, url) = proxied(&hapax_servers::postgres().unwrap());
    one_question_is_one_round_trip(postgres(&url).await, &proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engines_question_is_one_round_trip_to_mysql() {
    let (proxy, url) = proxied(&hapax_servers::mysql().unwrap());
    one_question_is_one_round_trip(mysql(&url).await, &proxy).await;
}

const ENGINES: u32 = 50;

/// Fifty idle engines. In any span of time each asks once for each second of it, and once more at the most; one that is held
/// up asks less often, never more.
async fn at_most_once_a_second_each(open: impl AsyncFn() -> Arc<dyn Store>, proxy: &Proxy) {
    let mut engines = vec![];
    for _ in 0..ENGINES {
        engines.push(engine(open().await, Options::default(), Arc::default()).await.0);
    }
    let asked = async |times: u64| {
        let before = proxy.counts().turns;
        let mut looks = looks();
        while proxy.counts().turns < before + times * u64::from(ENGINES) {
            looks.tick().await;
        }
        proxy.counts().turns - before
    };
    // Until each has opened its sessions and looked so often that it has come to rest.
    asked(5).await;
    #[allow(clippy::disallowed_methods, reason = "it measures a rate")]
    let began = std::time::Instant::now();
    let (turns, seconds) = (asked(5).await, began.elapsed().as_secs_f64());
    println!(
        "{:.2} questions a second for each of {ENGINES} idle engines",
        turns as f64 / seconds / f64::from(ENGINES)
    );
    assert!(turns as f64 <= f64::from(ENGINES) * (seconds + 1.0), "{turns} in {seconds} s");
    for engine in engines {
        engine.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_idle_engines_ask_postgres_at_most_once_a_second_each() {
    let (proxy, url) = proxied(&hapax_servers::postgres().unwrap());
    let options = || PostgresOptions::default().sessions(2);
    let open = async || PostgresStore::open(&url, options()).await.unwrap() as Arc<dyn Store>;
    at_most_once_a_second_each(open, &proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_idle_engines_ask_mysql_at_most_once_a_second_each() {
    let url = hapax_servers::mysql().unwrap();
    let (proxy, through) = proxied(&url);
    let questions = || -> u64 {
        let said = sql(&url, "SHOW GLOBAL STATUS LIKE 'Questions'").unwrap();
        said.rsplit('|').next().unwrap().parse().unwrap()
    };
    let before = questions();
    at_most_once_a_second_each(async || mysql(&through).await, &proxy).await;
    println!("{} questions by the server's own count, with those of the start", questions() - before);
}

/// Synchronous, a failover loses nothing; asynchronous, it may, and whoever asks is told so.
#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_is_warned_of() {
    let primary = Postgres::start().unwrap();
    let _standby = primary.standby().unwrap();
    let store = postgres(&primary.url()).await;
    let standbys = async || {
        let facts = store.health().await.unwrap();
        facts.into_iter().find(|fact| fact.name == "standbys").unwrap()
    };
    assert_eq!(standbys().await.verdict, Verdict::Good);
    sql(&primary.url(), "ALTER SYSTEM SET synchronous_standby_names = ''").unwrap();
    sql(&primary.url(), "SELECT pg_reload_conf()").unwrap();
    // The server reads its settings in its own time.
    let (mut fact, mut looks) = (standbys().await, looks());
    while fact.found != "1, 0 synchronous" {
        looks.tick().await;
        fact = standbys().await;
    }
    assert_eq!(fact.verdict, Verdict::Note);
    assert!(fact.meaning.contains("a failover can lose steps that were acknowledged"), "{}", fact.meaning);
}
