//! What only a SQLite store promises: about its file, its transactions, and the owners on one machine.

use hapax_core::{
    commit::{Epoch, StepCommit, Write, Written},
    error::{Code, Coded, code},
    id::RunKey,
    journal::{Entry, JournalRow},
    json::Json,
    key::Digest,
    mailbox::{NewLetter, Posted},
    schedule::Schedule,
};
use hapax_store::{
    Created, Pace, Store, StoreError,
    codec::{PayloadCodec, Place},
    conformance::{
        flow::{keys, on},
        sample::{Holder, LONG, Sample, claimant, key, message, ready, step, submit},
        schedules::{added, nightly},
    },
    error::Source,
    schedules::{DueFilter, Fire, Fired},
    sqlite::{SqliteOptions, SqliteStore},
};
use rusqlite::Connection;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    (folder, path)
}

async fn open(path: &Path) -> Arc<dyn Store> {
    SqliteStore::open(path, SqliteOptions::default()).await.unwrap()
}

async fn refusal(path: &Path) -> (Code, String) {
    let error = SqliteStore::open(path, SqliteOptions::default()).await.unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error}");
    (error.code(), error.to_string())
}

#[tokio::test]
async fn the_file_is_in_wal_mode() {
    let (_folder, path) = folder();
    let _store = open(&path).await;
    let outside = Connection::open(&path).unwrap();
    let mode: String = outside.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

#[tokio::test]
async fn a_newer_schema_is_left_alone_and_its_writer_named() {
    let (_folder, path) = folder();
    open(&path).await.close().await;
    let outside = Connection::open(&path).unwrap();
    outside.execute("UPDATE hapax_schema SET version = 99, program = 'hapax 7.1.0'", ()).unwrap();
    let (code, text) = refusal(&path).await;
    assert_eq!(code, code::SCHEMA_TOO_NEW);
    assert!(text.contains("hapax 7.1.0") && text.contains("99"), "{text}");
}

#[tokio::test]
async fn what_is_no_database_is_refused_and_left_alone() {
    let (_folder, path) = folder();
    let garbage = b"this is not a database, it only looks like a file ".repeat(100);
    std::fs::write(&path, &garbage).unwrap();
    assert_eq!(refusal(&path).await.0, code::CORRUPT);
    assert_eq!(std::fs::read(&path).unwrap(), garbage);
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let (folder, _) = folder();
    let (code, text) = refusal(&folder.path().join("nowhere").join("runs.db")).await;
    assert_eq!(code, code::CANNOT_OPEN);
    assert!(text.contains("nowhere") && text.contains("create it"), "{text}");
}

/// Root may write anywhere, so as root the test runs itself again as nobody.
#[tokio::test]
async fn a_read_only_folder_is_refused_with_its_cure() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    const FOLDER: &str = "HAPAX_TEST_READ_ONLY_FOLDER";
    if let Some(folder) = std::env::var_os(FOLDER) {
        let (code, text) = refusal(&Path::new(&folder).join("runs.db")).await;
        assert_eq!(code, code::READ_ONLY);
        assert!(text.contains("write permission"), "{text}");
        return;
    }
    let (folder, _) = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let mut again = std::process::Command::new("/proc/self/exe");
    again.args(["--exact", "a_read_only_folder_is_refused_with_its_cure", "--nocapture"]);
    again.env(FOLDER, folder.path()).current_dir("/");
    if rustix::process::geteuid().is_root() {
        again.uid(65534).gid(65534);
    }
    let output = again.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "it ran");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_openers_of_a_new_file_all_succeed() {
    let (_folder, path) = folder();
    let openers: Vec<_> = (0..10)
        .map(|n| {
            let path = path.clone();
            tokio::spawn(async move {
                let store = open(&path).await;
                Sample::run(&format!("r{n}")).create(&store).await;
            })
        })
        .collect();
    for opener in openers {
        opener.await.unwrap();
    }
    assert_eq!(open(&path).await.list(hapax_store::ListFilter::default()).await.unwrap().len(), 10);
}

/// Steps that are queued while another transaction holds the file share the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_queued_shares_a_transaction() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    let before = store.stats();
    let outside = Connection::open(&path).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut tickets = vec![];
    for n in 0..200 {
        let write = step(holder.next(&n.to_string()));
        holder.passed(&write);
        tickets.push(store.submit(Arc::new(write), Pace::Ahead).await.unwrap());
    }
    outside.execute_batch("ROLLBACK").unwrap();
    for ticket in tickets {
        assert_eq!(ticket.await.unwrap(), Written::Committed);
    }
    let after = store.stats();
    assert_eq!((after.steps - before.steps, after.writes - before.writes), (200, 200));
    assert!(after.transactions - before.transactions <= 2, "{after:?}");
}

/// One run's refused write takes its later ones along, and nothing of any other run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_in_a_shared_transaction_harms_only_its_own_run() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut good = Sample::run("good").hold(&store).await;
    let mut bad = Sample::run("bad").hold(&store).await;
    let outside = Connection::open(&path).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut tickets = vec![];
    for n in 0..6 {
        let write = step(good.next(&n.to_string()));
        good.passed(&write);
        tickets.push(store.submit(Arc::new(write), Pace::Ahead).await.unwrap());
        let mut commit = bad.next(&n.to_string());
        bad.passed(&step(commit.clone()));
        if n == 2 {
            commit.base = Digest([9; 32]);
        }
        let write = if n == 4 {
            // It names no step, so only the failure before it can stop it.
            Write::Status(bad.status(hapax_core::commit::Status::InDoubt, true))
        } else {
            step(commit)
        };
        tickets.push(store.submit(Arc::new(write), Pace::Ahead).await.unwrap());
    }
    outside.execute_batch("ROLLBACK").unwrap();
    let mut outcomes = vec![];
    for ticket in tickets {
        outcomes.push(ticket.await);
    }
    for (n, pair) in outcomes.chunks(2).enumerate() {
        assert_eq!(*pair[0].as_ref().unwrap(), Written::Committed);
        match n {
            0 | 1 => assert_eq!(*pair[1].as_ref().unwrap(), Written::Committed),
            2 => assert!(matches!(pair[1], Err(StoreError::Conflict { .. })), "{:?}", pair[1]),
            _ => assert!(matches!(pair[1], Err(StoreError::Retry(_))), "{n}: {:?}", pair[1]),
        }
    }
    assert_eq!(store.run(key("bad")).await.unwrap().unwrap().step, 2);
    let last = store.load(key("good")).await.unwrap();
    assert_eq!((last.checkpoint.step, last.checkpoint.digest), (6, good.digest));
}

/// A statement that fails for another reason undoes the transaction; those who shared it are tried again alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_statement_costs_nobody_else_his_commit() {
    let (_folder, path) = folder();
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.unwrap();
    let shared: Arc<dyn Store> = store.clone();
    let mut holders = vec![];
    for n in 0..10 {
        holders.push(Sample::run(&format!("r{n}")).hold(&shared).await);
    }
    let outside = Connection::open(&path).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let fired = store.fail_at(8);
    let mut tickets = vec![];
    for holder in &holders {
        tickets.push(shared.submit(Arc::new(step(holder.next("one"))), Pace::Ahead).await.unwrap());
    }
    outside.execute_batch("ROLLBACK").unwrap();
    for ticket in tickets {
        assert_eq!(ticket.await.unwrap(), Written::Committed);
    }
    assert!(fired());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_on_one_file_fence_each_other() {
    let (_folder, path) = folder();
    let (one, two) = (open(&path).await, open(&path).await);
    let mut first = Sample::run("r").claimed_by("one", std::time::Duration::ZERO).hold(&one).await;
    first.commit(first.next("a")).await.unwrap();
    let mut second = Holder::claim(&two, &first.key, "two").await.unwrap();
    let refused = first.commit(first.next("b")).await.unwrap_err();
    let StoreError::Fenced { owner, .. } = refused else { panic!("{refused}") };
    assert_eq!(owner, Some(second.epoch));
    assert_eq!(second.commit(second.next("c")).await.unwrap(), Written::Committed);
    assert_eq!(one.load(first.key.clone()).await.unwrap().checkpoint.digest, second.digest);
}

/// The lease lasts for minutes, but its owner is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_owner_is_gone_is_claimed_at_once() {
    let (_folder, path) = folder();
    let (one, two) = (open(&path).await, open(&path).await);
    for name in ["dropped", "closed"] {
        Sample::run(name).claimed_by("owner/../one", LONG).create(&one).await;
    }
    let held = two.claim(key("dropped"), claimant("two", LONG)).await.unwrap_err();
    assert!(matches!(held, StoreError::Held { .. }), "{held}");
    drop(one);
    let lease = two.claim(key("dropped"), claimant("two", LONG)).await.unwrap();
    assert!(lease.taken_over);
    two.close().await;
    let three = open(&path).await;
    assert!(three.claim(key("closed"), claimant("three", LONG)).await.unwrap().taken_over);
    assert!(three.claim(key("dropped"), claimant("three", LONG)).await.unwrap().taken_over);
    let left = std::fs::read_dir(path.with_extension("db-locks")).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["three"]);
}

/// Whoever may write the file may lock in it, whoever opened it first: root, or another user of its group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_belong_to_those_who_share_the_file() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let (_folder, path) = folder();
    std::fs::File::create_new(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    // Only root can give it away; for others it is their own anyway.
    let _ = chown(&path, Some(65_534), Some(65_534));
    let store = open(&path).await;
    Sample::run("r").claimed_by("one", LONG).create(&store).await;
    let of = |path: &std::path::Path| {
        let there = std::fs::metadata(path).unwrap();
        (there.uid(), there.gid(), there.mode() & 0o777)
    };
    let (locks, (user, group, _)) = (path.with_extension("db-locks"), of(&path));
    assert_eq!(of(&locks), (user, group, 0o770));
    assert_eq!(of(&locks.join("one")), (user, group, 0o660));
}

/// A link is another name of the same file: who opens it by that name sees the same owners alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_is_alive_under_every_name_of_the_file() {
    let (folder, path) = folder();
    let (near, far) = (folder.path().join("near.db"), folder.path().join("elsewhere").join("far.db"));
    std::fs::create_dir(far.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("../near.db", &far).unwrap();
    std::os::unix::fs::symlink(&path, &near).unwrap();
    // The file isn't there yet: the first to open it creates it at the links' end.
    let stores = [open(&far).await, open(&near).await, open(&path).await];
    for (n, store) in stores.iter().enumerate() {
        let name = format!("run-{n}");
        Sample::run(&name).claimed_by(&name, LONG).create(store).await;
        for other in &stores {
            let held = other.claim(key(&name), claimant("thief", LONG)).await.unwrap_err();
            assert!(matches!(held, StoreError::Held { .. }), "{held}");
        }
    }
    assert!(path.with_extension("db-locks").is_dir() && !far.with_extension("db-locks").exists());
}

/// The clock was set back by a day: the lease counts from when it was first seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_reaches_too_far_ends_one_term_after_it_was_seen() {
    let (_folder, path) = folder();
    let (one, two) = (open(&path).await, open(&path).await);
    let term = std::time::Duration::from_millis(30);
    let holder = Sample::run("r").claimed_by("one", term).hold(&one).await;
    let outside = Connection::open(&path).unwrap();
    outside.busy_timeout(LONG).unwrap();
    outside.execute("UPDATE hapax_runs SET lease_until = lease_until + 86400000000", ()).unwrap();
    let first = two.claim(holder.key.clone(), claimant("two", LONG)).await.unwrap_err();
    assert!(matches!(first, StoreError::Held { left_ms, .. } if left_ms <= 30), "{first}");
    loop {
        match two.claim(holder.key.clone(), claimant("two", LONG)).await {
            Ok(lease) => break assert!(lease.taken_over),
            Err(StoreError::Held { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

struct Xor;

impl PayloadCodec for Xor {
    fn encode(&self, plain: Vec<u8>, _: &Place<'_>) -> Result<Vec<u8>, Source> {
        Ok(plain.into_iter().map(|byte| byte ^ 0xa5).collect())
    }

    fn decode(&self, stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, Source> {
        self.encode(stored.to_vec(), place)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_codec_hides_what_is_stored() {
    let (_folder, path) = folder();
    let options = SqliteOptions::default().payload_codec(Arc::new(Xor));
    let store: Arc<dyn Store> = SqliteStore::open(&path, options.clone()).await.unwrap();
    let mut holder = Sample::run("r").hold(&store).await;
    let commit = holder.next_with("a secret state", 4, 2, vec![message("a secret message")]);
    holder.commit(commit.clone()).await.unwrap();
    let large = holder.next(&"a large secret ".repeat(500));
    holder.commit(large.clone()).await.unwrap();
    let input = Json::of("a secret input").unwrap();
    added(&*store, Schedule { input: input.clone(), ..nightly("s") }).await;
    store.close().await;
    let bytes = std::fs::read(&path).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));
    let store = SqliteStore::open(&path, options).await.unwrap();
    assert_eq!(store.checkpoint(holder.key.clone(), 1).await.unwrap(), Some(commit.checkpoint));
    assert_eq!(store.load(holder.key.clone()).await.unwrap().checkpoint, large.checkpoint);
    assert_eq!(store.journal(holder.key.clone(), 0, 9).await.unwrap(), commit.journal);
    let kept = store.schedules().get(nightly("s").key).await.unwrap().unwrap();
    assert_eq!(kept.schedule.input, input);
    let without = open(&path).await.load(holder.key.clone()).await.unwrap_err();
    assert!(matches!(without, StoreError::Corrupt { step: Some(2), .. }), "{without}");
}

fn large(n: u64) -> String {
    let mut x = 7_u64;
    let mut letter = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        char::from(b'a' + (x % 26) as u8)
    };
    let body: String = (0..100_000).map(|_| letter()).collect();
    format!("{n} {body}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_in_a_large_state_takes_few_bytes_a_step() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    let mut commits = vec![];
    for n in 0..100 {
        let commit = holder.next(&large(n));
        holder.commit(commit.clone()).await.unwrap();
        commits.push(commit);
    }
    for commit in [&commits[0], &commits[57], &commits[99]] {
        let read = store.checkpoint(holder.key.clone(), commit.checkpoint.step).await.unwrap();
        assert_eq!(read.as_ref(), Some(&commit.checkpoint));
    }
    store.close().await;
    drop(store);
    let outside = Connection::open(&path).unwrap();
    outside.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(())).unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size <= 500_000, "{size} bytes for 100 steps");
}

/// After a failure the same writes are submitted again; none may build on a snapshot that isn't there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patches_survive_the_failure_of_their_snapshot() {
    let (_folder, path) = folder();
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.unwrap();
    let shared: Arc<dyn Store> = store.clone();
    let mut holder = Sample::run("r").hold(&shared).await;
    let mut writes = vec![];
    for n in 0..5 {
        let write = step(holder.next(&large(n)));
        holder.passed(&write);
        writes.push(Arc::new(write));
    }
    let fired = store.fail_at(0);
    let first = submit(&shared, (*writes[0]).clone()).await.unwrap_err();
    assert!(matches!(first, StoreError::Retry(_)) && fired(), "{first}");
    for write in &writes[1..] {
        let refused = shared.submit(write.clone(), Pace::Alone).await.unwrap().await.unwrap_err();
        assert!(matches!(refused, StoreError::Retry(_)), "{refused}");
    }
    for write in writes.iter().chain(&writes) {
        shared.submit(write.clone(), Pace::Alone).await.unwrap().await.unwrap();
    }
    for write in &writes {
        let Write::Step(commit) = &**write else { unreachable!("all of them are steps") };
        let read = shared.checkpoint(holder.key.clone(), commit.checkpoint.step).await.unwrap();
        assert_eq!(read.as_ref(), Some(&commit.checkpoint));
    }
}

/// The runtime has one thread: a wait for the file would stand in the way of all its tasks.
#[tokio::test]
async fn a_lone_write_does_not_wait_for_the_file_on_its_callers_thread() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    // On a disk that is quick the caller's thread writes after a few steps; on any other it never does.
    for n in 0..100 {
        let write = Arc::new(step(holder.next(&n.to_string())));
        holder.passed(&write);
        let mut ticket = store.submit(write, Pace::Alone).await.unwrap();
        let at_once = ticket.try_take();
        let quick = at_once.is_some();
        let written = if let Some(written) = at_once { written } else { ticket.await };
        assert_eq!(written.unwrap(), Written::Committed);
        if quick {
            break;
        }
    }
    let mut outside = Connection::open(&path).unwrap();
    outside.busy_timeout(LONG).unwrap();
    let held = outside.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let write = Arc::new(step(holder.next("held")));
    let mut ticket = store.submit(write, Pace::Alone).await.unwrap();
    let early = ticket.try_take();
    assert!(early.is_none(), "somebody else holds the file: {early:?}");
    held.rollback().unwrap();
    assert_eq!(ticket.await.unwrap(), Written::Committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_store_answers_what_it_accepted_and_takes_no_more() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    let mut tickets = vec![];
    for n in 0..50 {
        let write = step(holder.next(&n.to_string()));
        holder.passed(&write);
        tickets.push(store.submit(Arc::new(write), Pace::Ahead).await.unwrap());
    }
    store.close().await;
    for mut ticket in tickets {
        assert_eq!(ticket.try_take().expect("answered").unwrap(), Written::Committed);
    }
    let refused = submit(&store, step(holder.next("more"))).await.unwrap_err();
    assert!(matches!(refused, StoreError::Retry(_)), "{refused}");
}

/// Hash-like numbers are stored as the bits of a signed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_beyond_the_signed_range_keep_their_bits() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let seed = u64::MAX - 6;
    Sample::run("r").seed(seed).create(&store).await;
    let outside = Connection::open(&path).unwrap();
    let stored: i64 = outside.query_row("SELECT seed FROM hapax_checkpoints", (), |row| row.get(0)).unwrap();
    assert_eq!(stored, -7);
    assert_eq!(store.load(key("r")).await.unwrap().checkpoint.seed, seed);
}

/// A write that doesn't fit is refused whole; once there is room it passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_is_reported_and_nothing_is_written() {
    let (_folder, path) = folder();
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.unwrap();
    let shared: Arc<dyn Store> = store.clone();
    let mut holder = Sample::run("r").hold(&shared).await;
    store.limit_pages(1).await;
    let large = holder.next(&large(1));
    let refused = holder.commit(large.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Full(_)), "{refused}");
    assert_eq!(holder.record().await.step, 0);
    store.limit_pages(1 << 30).await;
    assert_eq!(holder.commit(large).await.unwrap(), Written::Committed);
}

/// The answer to a COMMIT is lost: the write is settled on a fresh connection, and the run goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_commit_is_unknown_until_it_is_settled() {
    let (_folder, path) = folder();
    let store = SqliteStore::open(&path, SqliteOptions::default()).await.unwrap();
    let shared: Arc<dyn Store> = store.clone();
    let mut holder = Sample::run("r").hold(&shared).await;
    let write = Arc::new(step(holder.next("one")));
    store.lose_next_commit();
    let lost = shared.submit(write.clone(), Pace::Alone).await.unwrap().await.unwrap_err();
    assert!(matches!(lost, StoreError::Unknown(_)), "{lost}");
    assert_eq!(shared.settle(write.clone()).await.unwrap(), Written::AlreadyCommitted);
    holder.passed(&write);
    assert_eq!(holder.commit(holder.next("two")).await.unwrap(), Written::Committed);
}

#[tokio::test]
async fn a_taken_name_is_told_with_its_record() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    Sample::run("r").tag("a", "b").create(&store).await;
    let Created::Exists(record) = store.create(Sample::run("r").build()).await.unwrap() else {
        panic!("the name is taken")
    };
    assert_eq!(record.tags.len(), 1);
}

#[tokio::test]
async fn a_write_of_nobody_is_fenced() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    let stale = Epoch { nonce: holder.epoch.nonce ^ 1, ..holder.epoch };
    let refused = holder.commit(StepCommit { epoch: stale, ..holder.next("a") }).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    let gone: RunKey = key("gone");
    let refused = holder.commit(StepCommit { run: gone, ..holder.next("a") }).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { owner: None, .. }), "{refused}");
}

#[tokio::test]
async fn a_journal_that_was_tampered_with_is_damaged() {
    for (what, sql) in [
        ("a row's item", "UPDATE hapax_journal SET path_hash = path_hash + 1 WHERE seq = 1"),
        ("a row's base", "UPDATE hapax_journal SET base = zeroblob(32) WHERE seq = 1"),
        (
            "a row's entry",
            "UPDATE hapax_journal SET entry = (SELECT entry FROM hapax_journal WHERE seq = 0) WHERE seq = 1",
        ),
        ("a missing row", "DELETE FROM hapax_journal WHERE seq = 1"),
        ("a missing last row", "DELETE FROM hapax_journal WHERE seq = 2"),
        ("the seed", "UPDATE hapax_checkpoints SET seed = seed + 1"),
    ] {
        let (_folder, path) = folder();
        let store = open(&path).await;
        let mut holder = Sample::run("r").hold(&store).await;
        holder.write(Write::Append(holder.append(3))).await.unwrap();
        store.load(holder.key.clone()).await.unwrap();
        assert_eq!(Connection::open(&path).unwrap().execute(sql, ()).unwrap(), 1, "{what}");
        let error = store.load(holder.key.clone()).await.unwrap_err();
        assert_eq!(error.code(), code::CORRUPT, "{what}: {error}");
    }
}

#[tokio::test]
async fn a_damaged_row_is_named_by_the_list_and_hides_no_other() {
    for (what, sql) in [
        ("its status", "UPDATE hapax_runs SET status_json = '{' WHERE run_id = 'bad'"),
        ("its digest", "UPDATE hapax_runs SET digest = x'00' WHERE run_id = 'bad'"),
        ("its tags", "UPDATE hapax_tags SET tag_value = x'00' WHERE run_id = 'bad'"),
    ] {
        let (_folder, path) = folder();
        let store = open(&path).await;
        for name in ["old", "bad", "new"] {
            Sample::run(name).tag("k", "v").create(&store).await;
        }
        assert_eq!(Connection::open(&path).unwrap().execute(sql, ()).unwrap(), 1, "{what}");
        let error = store.list(hapax_store::ListFilter::default()).await.unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { run, .. } if *run == key("bad")), "{what}: {error}");
        let filter = hapax_store::ListFilter { except: vec![key("bad").run], ..Default::default() };
        let rest = store.list(filter).await.unwrap();
        let names: Vec<_> = rest.iter().map(|record| record.key.run.as_str()).collect();
        assert_eq!(names, ["new", "old"], "{what}");
    }
}

/// Nor is anybody told of a letter that a crash could still take back.
#[tokio::test]
async fn a_letter_is_durable_before_its_sender_is_answered() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    Sample::run("r").hold(&store).await;
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let letter = NewLetter { id: "1".into(), subject: "go".into(), payload: Json::of(&1).unwrap() };
    let mut posted = store.post(key("r"), letter);
    assert!(futures::poll!(&mut posted).is_pending(), "the file is another's, so nothing can be durable");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(posted.await.unwrap(), Posted::New);
    assert!(store.letter(key("r"), "go".into(), 0).await.unwrap().is_some());
}

/// A run that takes letters for ever, and begins anew now and then, keeps of them no more than their names.
#[tokio::test]
async fn a_taken_letter_leaves_only_its_id() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    let letter =
        NewLetter { id: "1".into(), subject: "go".into(), payload: Json::of(&"x".repeat(10_000)).unwrap() };
    store.post(key("r"), letter.clone()).await.unwrap();
    let mut step = holder.next("one");
    let row = holder.append(1).rows.remove(0);
    step.journal = vec![JournalRow { entry: Entry::Took { letter: 1 }, ..row }];
    holder.commit(step).await.unwrap();
    let size = "SELECT length(payload) FROM hapax_letters WHERE taken = 1";
    let size: i64 = Connection::open(&path).unwrap().query_row(size, [], |row| row.get(0)).unwrap();
    assert_eq!(size, 0);
    assert_eq!(store.post(key("r"), letter).await.unwrap(), Posted::Known);
}

fn claim_filter() -> hapax_store::outbox::ClaimFilter {
    hapax_store::outbox::ClaimFilter::default()
}

#[tokio::test]
async fn the_messages_of_a_relay_that_is_gone_are_claimed_at_once() {
    let (_folder, path) = folder();
    let (gone, store) = (open(&path).await, open(&path).await);
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next_with("one", 1, 0, vec![message("m")])).await.unwrap();
    assert_eq!(gone.outbox().claim(claim_filter(), claimant("gone", LONG)).await.unwrap().len(), 1);
    assert!(store.outbox().claim(claim_filter(), claimant("b", LONG)).await.unwrap().is_empty());
    gone.close().await;
    assert_eq!(store.outbox().claim(claim_filter(), claimant("b", LONG)).await.unwrap().len(), 1);
}

/// Makes a file one of a program that knew no flow control.
const WITHOUT_FLOW: &str = "
    DROP TABLE hapax_objects; DROP TABLE hapax_shards; DROP TABLE hapax_flow_slots; DROP TABLE hapax_flow_queue; DROP TABLE hapax_flow_names;
    DROP INDEX hapax_runs_ready; CREATE INDEX hapax_runs_ready ON hapax_runs (namespace, status, graph, created_at);
    ALTER TABLE hapax_runs DROP COLUMN terms; ALTER TABLE hapax_runs DROP COLUMN rank;
    UPDATE hapax_schema SET version = 6;";

#[tokio::test]
async fn a_file_of_an_older_program_gets_flow_control() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    Sample::run("old").create(&store).await;
    store.close().await;
    Connection::open(&path).unwrap().execute_batch(WITHOUT_FLOW).unwrap();
    let store = open(&path).await;
    for run in ["a", "b"] {
        store.create(on(run, &keys(&[("k", 1)]))).await.unwrap();
    }
    let claimed = ready(&store, "a", 10).await;
    let claimed: Vec<_> = claimed.iter().map(|(run, _)| run.run.as_str()).collect();
    assert_eq!(claimed, ["old", "a"], "the older first, and one of the key");
}

#[tokio::test]
async fn messages_of_an_older_file_are_delivered() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next_with("one", 1, 0, vec![message("m"), message("n")])).await.unwrap();
    store.close().await;
    let outside = Connection::open(&path).unwrap();
    outside.execute_batch(WITHOUT_FLOW).unwrap();
    outside
        .execute_batch(
            "DROP TABLE hapax_blobs; DROP TABLE hapax_schedules; DROP TABLE hapax_channels; DROP INDEX hapax_outbox_unsent; DROP INDEX hapax_outbox_backlog; \
             ALTER TABLE hapax_outbox DROP COLUMN attempts; ALTER TABLE hapax_outbox DROP COLUMN error; \
             ALTER TABLE hapax_outbox DROP COLUMN written_at; UPDATE hapax_schema SET version = 2;",
        )
        .unwrap();
    drop(outside);
    let store = open(&path).await;
    let batches = store.outbox().claim(claim_filter(), claimant("a", LONG)).await.unwrap();
    assert_eq!((batches.len(), batches[0].messages.len()), (1, 2));
}

#[tokio::test]
async fn a_file_of_an_older_program_gets_schedules() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    Sample::run("old").create(&store).await;
    store.close().await;
    let outside = Connection::open(&path).unwrap();
    outside.execute_batch(WITHOUT_FLOW).unwrap();
    let before = "DROP TABLE hapax_blobs; DROP TABLE hapax_schedules; UPDATE hapax_schema SET version = 4;";
    outside.execute_batch(before).unwrap();
    drop(outside);
    let store = open(&path).await;
    let due = added(&*store, nightly("s")).await;
    let fire = Fire { run: Some(Sample::run("new").build()), ..Fire::of(&due, 1) };
    assert_eq!(store.schedules().fire(fire).await.unwrap(), Fired::Started);
    assert!(store.run(key("old")).await.unwrap().is_some() && store.run(key("new")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_keeps_no_other_from_firing() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    added(&*store, nightly("bad")).await;
    let good = added(&*store, nightly("good")).await;
    let outside = Connection::open(&path).unwrap();
    outside.execute("UPDATE hapax_schedules SET input = x'80' WHERE name = 'bad'", ()).unwrap();
    let filter = DueFilter { graphs: vec!["sample".into()], ..DueFilter::default() };
    assert_eq!(store.schedules().due(filter).await.unwrap(), [good]);
    let damaged = store.schedules().get(nightly("bad").key).await.unwrap_err();
    assert!(damaged.to_string().contains("schedule `bad`"), "{damaged}");
    assert!(store.schedules().remove(nightly("bad").key).await.unwrap(), "it can be removed");
}

#[tokio::test]
async fn a_message_that_cannot_be_read_stops_its_own_topic_only() {
    let (_folder, path) = folder();
    let store = open(&path).await;
    for run in ["bad", "good"] {
        let mut holder = Sample::run(run).hold(&store).await;
        holder.commit(holder.next_with("one", 1, 0, vec![message("m")])).await.unwrap();
    }
    let outside = Connection::open(&path).unwrap();
    outside.execute("UPDATE hapax_outbox SET payload = x'80' WHERE run_id = 'bad'", ()).unwrap();
    let batches = store.outbox().claim(claim_filter(), claimant("a", LONG)).await.unwrap();
    let runs: Vec<_> = batches.iter().map(|batch| batch.claim.channel.run.clone()).collect();
    assert_eq!(runs, [key("good")]);
    let damaged = store.outbox().list(hapax_store::outbox::OutboxFilter::default()).await.unwrap_err();
    assert!(matches!(&damaged, StoreError::Corrupt { run, .. } if *run == key("bad")), "{damaged}");
}

/// What a crash left is taken up, whatever happened to one of its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_keeps_no_other_from_being_claimed() {
    for (what, sql) in [
        ("its owner", "UPDATE hapax_runs SET owner = x'ff' WHERE run_id = 'bad'"),
        ("its lease", "UPDATE hapax_runs SET lease_until = 'soon' WHERE run_id = 'bad'"),
        ("its name", "UPDATE hapax_runs SET run_id = 'b' || char(10) || 'd' WHERE run_id = 'bad'"),
    ] {
        let (_folder, path) = folder();
        let store = open(&path).await;
        for name in ["old", "bad", "new"] {
            Sample::run(name).create(&store).await;
        }
        assert_eq!(Connection::open(&path).unwrap().execute(sql, ()).unwrap(), 1, "{what}");
        let claimed = ready(&store, "one", 10).await;
        let names: Vec<_> = claimed.iter().map(|(key, _)| key.run.as_str()).collect();
        assert_eq!(names, ["old", "new"], "{what}");
    }
}

/// However few runs a worker asks for, and also among those that wait for their time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_rows_in_front_keep_no_other_run_from_being_claimed() {
    for sql in ["", "UPDATE hapax_runs SET status = 'waiting', wake_at = created_at"] {
        let (_folder, path) = folder();
        let store = open(&path).await;
        for name in ["bad", "worse", "good"] {
            Sample::run(name).create(&store).await;
        }
        let outside = Connection::open(&path).unwrap();
        let damage = "UPDATE hapax_runs SET run_id = run_id || char(10) WHERE run_id IN ('bad', 'worse')";
        outside.execute_batch(&format!("{damage}; {sql}")).unwrap();
        let claimed = ready(&store, "one", 1).await;
        assert_eq!(claimed.iter().map(|(run, _)| run).collect::<Vec<_>>(), [&key("good")], "{sql}");
    }
}
