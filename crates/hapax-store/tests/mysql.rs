//! The MySQL store keeps every promise of a store, on a real MariaDB.

use hapax_core::{
    commit::{Write, Written},
    error::{Coded, code},
    id::RunKey,
    key::sha256,
    mailbox::{NewLetter, Posted, signal},
};
use hapax_servers::{MariaDb, Proxy, fresh_database};
use hapax_store::{
    ListFilter, Pace, Renewal, Store, StoreError, Verdict,
    codec::{PayloadCodec, Place},
    conformance::{
        Damage, Fixture, Holder, Sample,
        sample::{LONG, claimant, json, key, message, ready, step, submit},
    },
    error::Source,
    mysql::{Isolation, MySqlOptions, MySqlStore},
    store_conformance,
};
use std::sync::{Arc, OnceLock};

mod sealed;
#[path = "triggers/mysql.rs"]
mod triggers;

/// Waits for something from a test's own thread.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

fn open(url: &str) -> Arc<MySqlStore> {
    open_with(url, MySqlOptions::default())
}

fn open_with(url: &str, options: MySqlOptions) -> Arc<MySqlStore> {
    wait(MySqlStore::open(url, options)).expect("it opens")
}

fn database() -> String {
    hapax_servers::mysql().expect("a server")
}

fn sql(url: &str, statements: &str) -> String {
    hapax_servers::sql(url, statements).expect("a statement")
}

fn mysql() -> Fixture {
    fixture(MySqlOptions::default())
}

/// The same with all payloads encrypted.
fn encrypted() -> Fixture {
    fixture(MySqlOptions::default().payload_codec(sealed::codec(sealed::NEW)))
}

/// The same with nearly all payloads beside their rows.
fn blobs() -> Fixture {
    fixture(MySqlOptions::default().blobs_over(8))
}

fn fixture(options: MySqlOptions) -> Fixture {
    let url = database();
    let store = open_with(&url, options.clone());
    let (again, damaged, made) = (url.clone(), url.clone(), OnceLock::new());
    Fixture::new(store)
        .reopen(move || -> Arc<dyn Store> { open_with(&again, options.clone()) })
        .corrupt(move |run, damage| corrupt(&damaged, run, damage))
        .fail_at(move |n| {
            made.get_or_init(|| triggers::make(&url));
            triggers::fail_at(&url, n)
        })
}

store_conformance!(mysql, mysql);
store_conformance!(mysql_encrypted, encrypted);
store_conformance!(mysql_blobs, blobs);
sealed::promises::promises!(keys, mysql_keys, || crate::keyed(None));
sealed::promises::promises!(keys, mysql_keys_and_blobs, || crate::keyed(Some(100)));
sealed::promises::promises!(large, mysql_large, || crate::keyed(Some(4096)));
sealed::promises::promises!(resting, mysql_resting, || crate::sealed::resting::Place::new(crate::keyed_as));

/// A database that is opened with these keys and those.
fn keyed(blobs_over: Option<usize>) -> sealed::promises::Place {
    keyed_as(blobs_over, Arc::new(|| None))
}

/// The same, with what says where payloads rest.
fn keyed_as(blobs_over: Option<usize>, resting: sealed::resting::Where) -> sealed::promises::Place {
    let url = database();
    let place = url.clone();
    let opened = move |codec| {
        let options =
            blobs_over.map_or(MySqlOptions::default(), |over| MySqlOptions::default().blobs_over(over));
        let options = resting().map_or(options.clone(), |resting| options.resting(resting));
        let with = |codec| options.clone().payload_codec(codec);
        open_with(&url, Option::map_or(codec, options.clone(), with)) as Arc<dyn Store>
    };
    sealed::promises::Place::new(opened, move |sql| hapax_servers::sql(&place, sql).expect("a statement"))
}

/// Damages a run through a connection of its own.
fn corrupt(url: &str, run: &RunKey, damage: Damage) -> bool {
    let of_run = format!("namespace = '{}' AND run_id = '{}'", run.namespace, run.run);
    let latest = format!("{of_run} AND step_id = (SELECT step_id FROM hapax_runs WHERE {of_run})");
    let flip = |table: &str, column: &str, which: &str, mask: u8| {
        let middle = format!("(length({column}) DIV 2 + 1)");
        let statement = format!(
            "UPDATE {table} SET {column} = insert({column}, {middle}, 1, \
             char(ascii(substring({column}, {middle}, 1)) ^ {mask})) WHERE {which}; SELECT row_count()"
        );
        sql(url, &statement) == "1"
    };
    match damage {
        Damage::State => flip("hapax_checkpoints", "state", &latest, 1),
        Damage::Frontier => flip("hapax_checkpoints", "frontier", &latest, 1),
        Damage::LastPage => {
            flip("hapax_frontier", "items", &format!("{latest} ORDER BY page DESC LIMIT 1"), 1)
        }
        Damage::Row => flip("hapax_runs", "digest", &of_run, 1),
        Damage::Digest => flip("hapax_checkpoints", "digest", &latest, 1),
        // No byte of a JSON text has its highest bit alone.
        Damage::Journal => {
            flip("hapax_journal", "entry", &format!("{of_run} ORDER BY seq DESC LIMIT 1"), 0x80)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_step_takes_two_round_trips() {
    let url = database();
    let proxy = Proxy::start(url_address(&url)).expect("a proxy");
    let mysql = open(&proxy.url(&url).expect("a URL"));
    let store: Arc<dyn Store> = mysql.clone();
    let mut holder = Sample::run("r").hold(&store).await;
    for warm in ["one", "two"] {
        holder.commit(holder.next(warm)).await.expect("a step");
    }
    let (trips, turns) = (mysql.round_trips(), proxy.counts().turns);
    holder.commit(holder.next("three")).await.expect("a step");
    assert_eq!(mysql.round_trips() - trips, 2, "fence, keys and checkpoints in one text; COMMIT");
    assert_eq!(proxy.counts().turns - turns, 2, "and that is what went over the wire");
}

/// The address in a database's URL.
fn url_address(url: &str) -> std::net::SocketAddr {
    let (_, rest) = url.rsplit_once('@').expect("a user");
    let (address, _) = rest.split_once('/').expect("a database");
    address.parse().expect("an address")
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_many_runs_share_transactions_and_a_fenced_one_takes_no_other_with_it() {
    let store: Arc<dyn Store> = open(&database());
    let mut holders = vec![];
    for n in 0..150 {
        holders.push(Sample::run(&format!("r{n}")).hold(&store).await);
    }
    // Of every tenth run somebody else has become the holder.
    for holder in holders.iter_mut().step_by(10) {
        holder.epoch.counter += 7;
    }
    let before = store.stats().transactions;
    let commits = holders.iter().map(|holder| {
        let write = step(holder.next_with("one", 2, 3, vec![]));
        let store = store.clone();
        async move { store.submit(Arc::new(write), Pace::Ahead).await?.await }
    });
    let outcomes = futures::future::join_all(commits).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(Written::Committed) => assert_ne!(n % 10, 0, "r{n} was fenced"),
            Err(StoreError::Fenced { .. }) => assert_eq!(n % 10, 0, "r{n} was not fenced"),
            other => panic!("r{n}: {other:?}"),
        }
    }
    let transactions = store.stats().transactions - before;
    assert!(transactions < 75, "{transactions} transactions for 150 runs");
}

/// Steps with messages, letters to one run, renewals, claims: whatever locks rows meets at once.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_meet_never_fail_each_other() {
    let url = database();
    let stores: Vec<Arc<dyn Store>> = (0..3).map(|_| open(&url) as Arc<dyn Store>).collect();
    Sample::run("hub").claimed_by("nobody", LONG).create(&stores[0]).await;
    let workers = (0..24).map(|n| tokio::spawn(work(stores[n % 3].clone(), n)));
    for worker in futures::future::join_all(workers).await {
        worker.expect("no worker fails");
    }
    let letters = sql(&url, "SELECT count(*), max(number) FROM hapax_letters");
    assert_eq!(letters, "240|240", "each letter has a number of its own");
    assert_eq!(sql(&url, "SELECT count(*) FROM hapax_outbox"), "240");
    assert_eq!(sql(&url, "SELECT count(*) FROM hapax_runs WHERE status <> 'succeeded'"), "1");
}

async fn work(store: Arc<dyn Store>, n: usize) {
    let owner = format!("worker {n}");
    let mut holder = Sample::run(&format!("own {n}")).claimed_by(&owner, LONG).hold(&store).await;
    for round in 0..10 {
        let commit = holder.next_with(&format!("state {round}"), 2, 2, vec![message("m")]);
        assert_eq!(holder.commit(commit).await.expect("a step"), Written::Committed);
        let (id, payload) = (format!("{n} {round}"), json("hello"));
        let letter = NewLetter { id, subject: signal("go"), payload };
        assert_eq!(store.post(key("hub"), letter).await.expect("a letter"), Posted::New);
        let lease = (holder.key.clone(), holder.epoch);
        let renewed = store.renew(vec![lease.clone()], claimant(&owner, LONG)).await.expect("an answer");
        assert_eq!(renewed, [(lease.0, Renewal::Kept)]);
        Sample::run(&format!("ready {n} {round}")).create(&store).await;
    }
    holder.finish().await;
    finish_what_is_ready(&store, &owner).await;
}

/// Until nothing is left that another worker doesn't hold.
async fn finish_what_is_ready(store: &Arc<dyn Store>, owner: &str) {
    loop {
        let claimed = ready(store, owner, 5).await;
        for (run, lease) in &claimed {
            Holder::load(store, run, *lease).await.expect("a run").finish().await;
        }
        let all = ListFilter { statuses: vec!["pending".into()], ..ListFilter::default() };
        if claimed.is_empty() && store.list(all).await.expect("an answer").is_empty() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_may_make_the_tables_at_once() {
    let url = database();
    let opens = (0..10).map(|_| MySqlStore::open(&url, MySqlOptions::default()));
    for store in futures::future::join_all(opens).await {
        let store: Arc<dyn Store> = store.expect("each of them opens");
        assert!(store.run(key("r")).await.expect("tables").is_none());
    }
    assert_eq!(sql(&url, "SELECT version FROM hapax_schema"), "7");
}

async fn refusal(url: &str) -> (String, &'static str) {
    let error = MySqlStore::open(url, MySqlOptions::default()).await.expect_err("it is refused");
    (error.to_string(), error.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_store_from_opening_is_named_with_its_cure() {
    let url = database();
    let (said, code) = refusal(&url.replace("root@", "root:wrong-secret@")).await;
    assert!(said.contains("1045") && said.contains("check user and password"), "{said}");
    assert!(code == code::CANNOT_OPEN && !said.contains("secret"), "{said}");
    let (base, name) = url.rsplit_once('/').expect("a database");
    let (said, code) = refusal(&format!("{base}/nowhere")).await;
    assert!(code == code::CANNOT_OPEN && said.contains("CREATE DATABASE"), "{said}");
    assert_eq!(refusal(base).await.1, code::BAD_URL);
    assert_eq!(refusal("mysql://").await.1, code::BAD_URL);
    let user = format!("u{}", &name[name.len() - 8..]);
    sql(&url, &format!("CREATE USER {user}@'%'"));
    let (said, _) = refusal(&url.replace("root@", &format!("{user}@"))).await;
    assert!(said.contains("1044") && said.contains("GRANT CREATE, SELECT"), "{said}");
    sql(&url, &format!("GRANT SELECT ON {name}.* TO {user}@'%'"));
    let (said, _) = refusal(&url.replace("root@", &format!("{user}@"))).await;
    let grant = format!("GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `{name}`.* TO '{user}'@'%'");
    assert!(said.contains(&grant), "{said}");
    let (said, _) = refusal("mysql://root@127.0.0.1:1/orders").await;
    assert!(said.contains("check that the server runs"), "{said}");
}

/// The right to make indexes is asked only of who brings older tables up to date.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_database_gets_its_indexes() {
    let url = database();
    let (_, name) = url.rsplit_once('/').expect("a database");
    let user = format!("m{}", &name[name.len() - 8..]);
    sql(&url, &format!("CREATE USER {user}@'%'"));
    sql(&url, &format!("GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}@'%'"));
    let theirs = url.replace("root@", &format!("{user}@"));
    open(&theirs);
    sql(&url, "ALTER TABLE hapax_runs DROP INDEX hapax_runs_status");
    sql(&url, "UPDATE hapax_schema SET version = 1");
    let (said, code) = refusal(&theirs).await;
    assert!(code == code::CANNOT_OPEN && said.contains("GRANT CREATE, ALTER, INDEX, SELECT"), "{said}");
    sql(&url, &format!("GRANT INDEX ON {name}.* TO {user}@'%'"));
    open(&theirs);
    let there = "SELECT count(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS \
                 WHERE TABLE_SCHEMA = DATABASE() AND INDEX_NAME IN ('hapax_runs_status', 'hapax_outbox_backlog')";
    assert_eq!(sql(&url, there), "2");
    assert_eq!(sql(&url, "SELECT version FROM hapax_schema"), "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_a_newer_program_or_without_transactions_are_refused() {
    let url = database();
    open(&url);
    sql(&url, "ALTER TABLE hapax_frontier ENGINE=MyISAM");
    let (said, _) = refusal(&url).await;
    assert!(said.contains("ALTER TABLE hapax_frontier ENGINE=InnoDB"), "{said}");
    sql(&url, "ALTER TABLE hapax_frontier ENGINE=InnoDB");
    open(&url);
    sql(&url, "UPDATE hapax_schema SET version = 99, program = 'hapax 9.9'");
    let (said, code) = refusal(&url).await;
    assert!(code == code::SCHEMA_TOO_NEW && said.contains("hapax 9.9"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_or_may_lose_them_is_refused() {
    let server = MariaDb::start().expect("a server");
    let url = fresh_database(&server.url()).expect("a database");
    sql(&url, "SET GLOBAL read_only = ON");
    assert_eq!(refusal(&url).await.1, code::READ_ONLY);
    sql(&url, "SET GLOBAL read_only = OFF; SET GLOBAL tx_read_only = ON");
    assert_eq!(refusal(&url).await.1, code::READ_ONLY);
    sql(&url, "SET GLOBAL tx_read_only = OFF; SET GLOBAL max_allowed_packet = 1048576");
    let (said, _) = refusal(&url).await;
    assert!(said.contains("max_allowed_packet"), "{said}");
    sql(&url, "SET GLOBAL max_allowed_packet = 16777216; SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    let (said, _) = refusal(&url).await;
    assert!(said.contains("set innodb_flush_log_at_trx_commit = 1"), "{said}");
    let warned = MySqlStore::open(&url, MySqlOptions::default().allow_unsafe(true)).await;
    let facts = warned.expect("it was allowed").health().await.expect("facts");
    assert!(facts.iter().any(|fact| fact.verdict == Verdict::Unsafe), "{facts:?}");
}

/// What others set for all sessions is not for ours.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_server_that_change_what_statements_do_are_not_taken_over() {
    let server = MariaDb::start().expect("a server");
    let url = fresh_database(&server.url()).expect("a database");
    sql(
        &url,
        "SET GLOBAL sql_safe_updates = ON; SET GLOBAL completion_type = 'RELEASE'; SET GLOBAL sql_select_limit = 1; \
         SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'; SET GLOBAL autocommit = OFF; \
         SET GLOBAL sql_big_selects = 0; SET GLOBAL max_join_size = 1",
    );
    let store: Arc<dyn Store> = open(&url);
    for name in ["r1", "r2"] {
        let mut holder = Sample::run(name).hold(&store).await;
        holder.commit(holder.next("one")).await.expect("a step");
        holder.commit(holder.next("two")).await.expect("a step on the same session");
    }
    assert_eq!(store.list(ListFilter::default()).await.expect("a list").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_commit_is_unknown_and_one_before_it_wrote_nothing() {
    let url = database();
    let proxy = Proxy::start(url_address(&url)).expect("a proxy");
    let store: Arc<dyn Store> = open(&proxy.url(&url).expect("a URL"));
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("one")).await.expect("a step");
    for (lost, committed) in [(1, false), (2, true)] {
        // The session that takes it is a fresh one.
        holder.commit(holder.next(&format!("warm {lost}"))).await.expect("a step");
        let write = Arc::new(step(holder.next(&format!("lost {lost}"))));
        proxy.swallow_replies(lost);
        let ticket = store.submit(write.clone(), Pace::Ahead).await.expect("room");
        tokio::task::block_in_place(|| proxy.wait_for_loss());
        proxy.cut();
        proxy.pass();
        let error = ticket.await.expect_err("the answer was lost");
        assert_eq!(matches!(error, StoreError::Unknown(_)), committed, "{error}");
        assert_eq!(matches!(error, StoreError::Retry(_)), !committed, "{error}");
        let settled = store.settle(write.clone()).await;
        if committed {
            assert_eq!(settled.expect("it is there"), Written::AlreadyCommitted);
        } else {
            assert!(matches!(settled, Err(StoreError::Retry(_))), "{settled:?}");
            let again = store.submit(write.clone(), Pace::Ahead).await.expect("room").await;
            assert_eq!(again.expect("nothing was there"), Written::Committed);
        }
        holder.passed(&write);
    }
}

/// Makes of every byte a thousand, as no codec should.
struct Bloated;

impl PayloadCodec for Bloated {
    fn encode(&self, plain: Vec<u8>, _: &Place<'_>) -> Result<Vec<u8>, Source> {
        Ok(plain.into_iter().flat_map(|byte| [byte; 1000]).collect())
    }

    fn decode(&self, stored: &[u8], _: &Place<'_>) -> Result<Vec<u8>, Source> {
        Ok(stored.iter().step_by(1000).copied().collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_packet_holds_is_refused_alone_and_passes_where_packets_are_larger() {
    let server = MariaDb::start().expect("a server");
    let url = fresh_database(&server.url()).expect("a database");
    let bloated = || async {
        let options = MySqlOptions::default().payload_codec(Arc::new(Bloated));
        MySqlStore::open(&url, options).await.expect("it opens") as Arc<dyn Store>
    };
    let store = bloated().await;
    let mut small = Sample::run("small").hold(&store).await;
    let mut large = Sample::run("large").hold(&store).await;
    let noise: String = (0..1000_u32).map(|n| sha256(&n.to_be_bytes()).to_string()).collect();
    let refused = large.commit(large.next(&noise)).await.expect_err("32 MB are too much");
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
    small.commit(small.next("one")).await.expect("it fits");
    sql(&url, "SET GLOBAL max_allowed_packet = 67108864");
    let store = bloated().await;
    submit(&store, step(large.next(&noise))).await.expect("now it fits");
    assert_eq!(store.load(key("large")).await.expect("it is read").record.step, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_survives_a_killed_server_and_the_store_goes_on() {
    let mut server = MariaDb::start().expect("a server");
    let url = fresh_database(&server.url()).expect("a database");
    let store: Arc<dyn Store> = open(&url);
    let mut holder = Sample::run("r").hold(&store).await;
    for n in 0..20 {
        holder.commit(holder.next_with(&format!("state {n}"), 2, 1, vec![])).await.expect("a step");
    }
    server.kill().expect("a kill");
    let gone = submit(&store, step(holder.next("gone"))).await.expect_err("nobody is there");
    assert!(matches!(gone, StoreError::Retry(_)), "{gone}");
    let gone = store.run(key("r")).await.expect_err("nobody is there");
    assert!(matches!(gone, StoreError::Retry(_)), "{gone}");
    server.restart().expect("it is there again");
    while let Err(error) = store.load(key("r")).await {
        assert!(matches!(error, StoreError::Retry(_)), "{error}");
    }
    assert_eq!(holder.record().await.step, 20);
    holder.commit(holder.next("on")).await.expect("it goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_midway_leaves_no_lock_behind() {
    let url = database();
    let proxy = Proxy::start(url_address(&url)).expect("a proxy");
    let options = MySqlOptions::default().sessions(1);
    let store = MySqlStore::open(&proxy.url(&url).expect("a URL"), options).await.expect("it opens");
    let store: Arc<dyn Store> = store;
    Sample::run("r").create(&store).await;
    for answers in 1..4 {
        proxy.swallow_replies(answers);
        let cancel = tokio::spawn({
            let store = store.clone();
            async move { store.request_cancel(key("r")).await }
        });
        tokio::task::block_in_place(|| proxy.wait_for_loss());
        cancel.abort();
        assert!(cancel.await.is_err_and(|ended| ended.is_cancelled()));
        proxy.cut();
        proxy.pass();
        store.request_cancel(key("r")).await.expect("another session, and no lock");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_may_be_serializable_and_have_another_prefix() {
    let url = database();
    let options = MySqlOptions::default().prefix("shop_").isolation(Isolation::Serializable);
    let store: Arc<dyn Store> = MySqlStore::open(&url, options).await.expect("it opens");
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next_with("one", 3, 2, vec![])).await.expect("a step");
    holder.write(Write::Append(holder.append(2))).await.expect("rows");
    assert_eq!(sql(&url, "SELECT step_id FROM shop_runs"), "1");
    let refused = MySqlStore::open(&url, MySqlOptions::default().prefix("a`b")).await.unwrap_err();
    assert_eq!(refused.code(), code::BAD_URL);
}
