//! Several databases keep every promise of one store: files, and databases of every kind together.

mod flow;
mod left_behind;
mod members;

use hapax_core::{
    commit::Status,
    id::{Namespace, RunKey},
    limits::LEASE_TTL,
};
use hapax_store::{
    GcPolicy, Lease, ListFilter, MemoryStore, ShardedStore, Store, StoreError,
    codec::{Encrypted, Keyring},
    conformance::{
        Fixture, Sample,
        sample::{LONG, claimant, key, ready},
    },
    faulty::{Fault, Faulty},
    house::{self, Mover},
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    recode,
    sqlite::{SqliteOptions, SqliteStore},
    store_conformance,
};
use std::{io::Cursor, path::Path, sync::Arc};
use tempfile::TempDir;

/// Waits for something from a test's own thread.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

async fn file(folder: &Path, number: usize) -> Arc<dyn Store> {
    let path = folder.join(format!("shard-{number}.db"));
    SqliteStore::open(path, SqliteOptions::default()).await.expect("it opens")
}

async fn files(folder: &Path, count: usize) -> Vec<Arc<dyn Store>> {
    let mut files = vec![];
    for number in 0..count {
        files.push(file(folder, number).await);
    }
    files
}

fn three_files() -> Fixture {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().to_owned();
    let open = move || -> Arc<dyn Store> {
        wait(async { ShardedStore::open(files(&place, 3).await).await }).expect("they open")
    };
    Fixture::new(open()).reopen(open).keep(folder)
}

fn one_of_each() -> Fixture {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (postgres, mysql) =
        (hapax_servers::postgres().expect("a server"), hapax_servers::mysql().expect("a server"));
    let place = folder.path().to_owned();
    let open = move || -> Arc<dyn Store> {
        wait(async {
            let databases = every_kind(&place, &postgres, &mysql).await;
            ShardedStore::open(databases.to_vec()).await
        })
        .expect("they open")
    };
    Fixture::new(open()).reopen(open).keep(folder)
}

async fn every_kind(folder: &Path, postgres: &str, mysql: &str) -> [Arc<dyn Store>; 3] {
    let first = file(folder, 0).await;
    let second = PostgresStore::open(postgres, PostgresOptions::default()).await.expect("it opens");
    let third = MySqlStore::open(mysql, MySqlOptions::default()).await.expect("it opens");
    [first, second, third]
}

store_conformance!(three_files, three_files);
store_conformance!(one_of_each, one_of_each);

async fn folder() -> (TempDir, Vec<Arc<dyn Store>>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = files(folder.path(), 3).await;
    (folder, files)
}

#[tokio::test]
async fn a_run_never_spans_two_databases() {
    let (_folder, files) = folder().await;
    let store = ShardedStore::open(files.clone()).await.unwrap();
    let elsewhere =
        (0..).map(|n| format!("r{n}")).find(|name| store.shard_of(name) != store.shard_of("order-1"));
    let elsewhere = elsewhere.expect("names are spread");
    store.create(Sample::run("order-1").build()).await.unwrap();
    let refused = store.create(Sample::run(&elsewhere).child_of(&key("order-1")).build()).await;
    assert!(matches!(refused, Err(StoreError::ShardSplit { .. })), "{refused:?}");
    store.create(Sample::run("order-1/parcel").child_of(&key("order-1")).build()).await.unwrap();
    let homes = files.iter().filter(|file| wait_for_run(file));
    assert_eq!(homes.count(), 1);
}

fn wait_for_run(file: &Arc<dyn Store>) -> bool {
    let file = file.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let run = runtime.block_on(file.run(key("order-1/parcel"))).expect("a read");
        assert_eq!(run.is_some(), runtime.block_on(file.run(key("order-1"))).expect("a read").is_some());
        run.is_some()
    })
    .join()
    .expect("a thread")
}

/// A schedule's runs and a run's children are named after it, whatever its own name is.
#[tokio::test]
async fn what_is_named_after_another_lives_with_it_whatever_that_begins_with() {
    let (_folder, files) = folder().await;
    let store = ShardedStore::open(files).await.unwrap();
    for name in ["/", "@", "//", "@/x", "/nightly", "@daily", "order-42", "a/b@c", "ü/1", "/ü"] {
        let names = (0..8).flat_map(|n| [format!("{name}/{n}"), format!("{name}@{n}")]);
        for derived in names {
            assert_eq!(store.shard_of(&derived), store.shard_of(name), "{derived}");
        }
        store.create(Sample::run(name).build()).await.unwrap();
        let child = Sample::run(&format!("{name}/child")).child_of(&key(name)).build();
        store.create(child).await.unwrap();
    }
    assert_ne!(store.shard_of("/a"), store.shard_of("/b"), "they are spread all the same");
}

/// Those that a single database leaves out, and the answer when one of several fails midway.
#[tokio::test]
async fn what_is_kept_is_counted_as_in_one_database() {
    let (_folder, files) = folder().await;
    let store: Arc<dyn Store> = ShardedStore::open(files).await.unwrap();
    let single: Arc<dyn Store> = MemoryStore::shared();
    let names = ["y0", "x0", "y1", "x1"];
    for store in [&store, &single] {
        store.create(Sample::run("parent").build()).await.unwrap();
        for name in names {
            Sample::run(name).hold(store).await.finish().await;
        }
        // The newest of all that are over.
        Sample::run("parent/child").child_of(&key("parent")).hold(store).await.finish().await;
    }
    for keep_newest in 0..=4 {
        let policy = GcPolicy {
            namespace: Namespace::default(),
            older_than: None,
            keep_newest,
            limit: 100,
            dry_run: true,
        };
        let of = async |store: &Arc<dyn Store>| store.gc(policy.clone()).await.unwrap().deleted;
        assert_eq!(of(&store).await, of(&single).await, "{keep_newest} are kept");
        assert_eq!(
            of(&store).await,
            names[..4 - keep_newest].iter().map(|name| key(name)).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn what_is_deleted_is_told_though_a_database_dies_meanwhile() {
    let (_folder, files) = folder().await;
    let whole: Arc<dyn Store> = ShardedStore::open(files.clone()).await.unwrap();
    for n in 0..8 {
        Sample::run(&format!("r{n}")).hold(&whole).await.finish().await;
    }
    let [one, two, three] = Faulty::several(files.try_into().ok().expect("three"), 3, Fault::Before);
    let mortal = ShardedStore::open(vec![one, two, three]).await.unwrap();
    let namespace = Namespace::default();
    let policy = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 100, dry_run: false };
    let told = mortal.gc(policy).await.unwrap().deleted;
    let left = whole.list(ListFilter::default()).await.unwrap();
    assert!(!told.is_empty() && told.len() + left.len() == 8, "{told:?}");
}

#[tokio::test]
async fn a_database_that_is_away_does_not_stop_the_runs_of_the_others() {
    let (_folder, files) = folder().await;
    let whole = ShardedStore::open(files.clone()).await.unwrap();
    for n in 0..30 {
        whole.create(Sample::run(&format!("r{n}")).build()).await.unwrap();
    }
    // It answers while the shards are opened, and dies of its first call.
    let away = Faulty::new(files[1].clone(), 0, Fault::Before);
    let store: Arc<dyn Store> =
        ShardedStore::open(vec![files[0].clone(), away, files[2].clone()]).await.unwrap();
    let claimed = ready(&store, "a", 100).await;
    let there = |shard| claimed.iter().filter(|(run, _)| whole.shard_of(run.run.as_str()) == shard).count();
    assert!(there(0) > 0 && there(1) == 0 && there(2) > 0);
    let missing = store.list(ListFilter::default()).await;
    assert!(matches!(missing, Err(StoreError::Retry(_))), "a list without them would be a lie: {missing:?}");
}

/// Its file is locked, and it answers later than any lease lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_hangs_does_not_stop_the_runs_of_the_others() {
    let (folder, files) = folder().await;
    let whole = ShardedStore::open(files).await.unwrap();
    for n in 0..30 {
        whole.create(Sample::run(&format!("r{n}")).build()).await.unwrap();
    }
    let store: Arc<dyn Store> = whole.clone();
    let of = |claimed: &[(RunKey, Lease)], shard| {
        claimed.iter().filter(|(run, _)| whole.shard_of(run.run.as_str()) == shard).count()
    };
    let held = ready(&store, "a", 6).await;
    assert_eq!([0, 1, 2].map(|shard| of(&held, shard)), [2, 2, 2]);
    let outside = rusqlite::Connection::open(folder.path().join("shard-1.db")).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = tokio::time::Instant::now();
    let leases = held.iter().map(|(run, lease)| (run.clone(), lease.epoch)).collect();
    let renewed = store.renew(leases, claimant("a", LONG)).await.unwrap();
    assert_eq!(renewed.len(), 4, "those of the others: {renewed:?}");
    let claimed = ready(&store, "a", 100).await;
    assert!(of(&claimed, 0) > 0 && of(&claimed, 1) == 0 && of(&claimed, 2) > 0, "{claimed:?}");
    let took = began.elapsed();
    assert!(took < LEASE_TTL / 2, "it isn't waited for twice: {took:?}");
    outside.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test]
async fn work_is_claimed_from_all_databases_in_turn() {
    let (_folder, files) = folder().await;
    let whole = ShardedStore::open(files).await.unwrap();
    for n in 0..60 {
        whole.create(Sample::run(&format!("r{n}")).build()).await.unwrap();
    }
    let store: Arc<dyn Store> = whole.clone();
    let claimed = ready(&store, "a", 6).await;
    for shard in 0..3 {
        let there = claimed.iter().filter(|(run, _)| whole.shard_of(run.run.as_str()) == shard).count();
        assert_eq!(there, 2, "shard {shard}");
    }
    assert_eq!(ready(&store, "a", 100).await.len(), 54, "who has more gives more");
}

#[tokio::test]
async fn runs_move_from_one_map_to_another() {
    let (_folder, old) = folder().await;
    let new_folder = tempfile::tempdir().expect("a temporary folder");
    let new = files(new_folder.path(), 5).await;
    let (old, new) = (ShardedStore::open(old).await.unwrap(), ShardedStore::open(new).await.unwrap());
    let names: Vec<_> = (0..40).map(|n| key(&format!("r{n}"))).collect();
    for name in &names {
        old.create(Sample::run(name.run.as_str()).build()).await.unwrap();
    }
    let text = async |store: &ShardedStore| {
        let mut text = vec![];
        house::export(store, names.clone(), &mut text, |_| {}).await.map(|load| (load, text))
    };
    let before = text(&old).await.unwrap();
    let mover = Mover::new(old.clone(), new.clone(), "five");
    for name in &names {
        mover.carry(name.clone()).await.unwrap();
    }
    let after = text(&new).await.unwrap();
    assert_eq!((before.0.runs, before.0.steps), (after.0.runs, after.0.steps));
    assert_eq!(new.list(ListFilter::default()).await.unwrap().len(), 40);
    assert!(matches!(text(&old).await, Err(house::ExportError::Store(StoreError::Moved { .. }))));
}

/// The databases are opened one after the other: whatever broke off in between, the same file brings the rest.
#[tokio::test]
async fn an_import_that_broke_off_anywhere_is_repeated() {
    let old: Arc<dyn Store> = MemoryStore::shared();
    let names: Vec<_> = (0..12).map(|n| key(&format!("r{n}"))).collect();
    for name in &names {
        Sample::run(name.run.as_str()).create(&old).await;
    }
    let mut file = vec![];
    house::export(&*old, names.clone(), &mut file, |_| {}).await.unwrap();
    let is_open = async |store: &ShardedStore| {
        let listed = store.list(ListFilter::default()).await.unwrap();
        listed.iter().filter(|run| run.status == Status::Pending).count() == names.len()
    };
    for (fault, first) in
        [(Fault::Before, false), (Fault::After, false), (Fault::Before, true), (Fault::After, true)]
    {
        let mut at = 0;
        loop {
            let databases: [Arc<dyn Store>; 2] = [MemoryStore::shared(), MemoryStore::shared()];
            let whole = ShardedStore::open(databases.to_vec()).await.unwrap();
            let [one, other] = databases.clone();
            let faulty = Faulty::new(if first { one.clone() } else { other.clone() }, at, fault);
            let dying: Vec<Arc<dyn Store>> =
                if first { vec![faulty.clone(), other] } else { vec![one, faulty.clone()] };
            let imported = match ShardedStore::open(dying).await {
                Ok(store) => house::import(&*store, &mut Cursor::new(&file), |_| {}).await.map(drop),
                Err(error) => Err(error.into()),
            };
            if !faulty.fired() {
                imported.unwrap();
                break;
            }
            let was_open = is_open(&whole).await;
            match house::import(&*whole, &mut Cursor::new(&file), |_| {}).await {
                Ok(_) => {}
                Err(house::ExportError::Store(StoreError::ArrivalTaken { .. })) if was_open => {}
                Err(error) => panic!("{fault:?} {at} {first}: {error}"),
            }
            assert!(is_open(&whole).await, "{fault:?} {at} {first}");
            at += 1;
        }
        assert!(at >= 5, "it makes room, unpacks and opens: {at}");
    }
}

#[tokio::test]
async fn a_rotation_reaches_every_database() {
    let old = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let new = "new:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = async |keys: &str| {
        let codec = Arc::new(Encrypted::new(Keyring::parse(keys).expect("keys")));
        let mut files: Vec<Arc<dyn Store>> = vec![];
        for number in 0..3 {
            let options = SqliteOptions::default().payload_codec(codec.clone());
            files.push(
                SqliteStore::open(folder.path().join(format!("{number}.db")), options)
                    .await
                    .expect("it opens"),
            );
        }
        ShardedStore::open(files).await.expect("they open")
    };
    let store = open(old).await;
    for n in 0..30 {
        store.create(Sample::run(&format!("r{n}")).build()).await.unwrap();
    }
    let before = store.payload_keys().await.unwrap();
    assert!(before.under["old"] >= 30 && before.under["old"] == before.payloads, "{before:?}");
    let store = open(&format!("{new},{old}")).await;
    let mut next = Some(recode::From::default());
    while let Some(from) = next {
        next = store.recode(from).await.unwrap().next;
    }
    let after = store.payload_keys().await.unwrap();
    assert_eq!((after.under["new"], after.stale), (before.payloads, 0), "{after:?}");
}
