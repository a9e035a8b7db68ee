//! Keys and rates are one for the runs of all databases, wherever they live.

use super::{folder, one_of_each, three_files};
use futures::future::join_all;
use hapax_core::{
    commit::{Status, WaitsOn, Write},
    error::Coded as _,
    flow::{Debounce, Rate, Terms},
    id::{Namespace, RunKey},
    limits::LEASE_TTL,
};
use hapax_store::{
    Created, MemoryStore, ShardedStore, Store, StoreError,
    conformance::{
        Fixture, Sample,
        flow::{keys, on},
        sample::{Holder, LONG, claimant, failed, key},
    },
    faulty::{Fault, Faulty},
    house::Mover,
};
use std::{sync::Arc, time::Duration};

pub(super) const PARKED: Status = Status::Waiting { on: WaitsOn::Key };
const MINUTE: Duration = Duration::from_secs(60);

/// Three databases in memory, and the store that they are.
pub(super) async fn three() -> ([Arc<dyn Store>; 3], Arc<ShardedStore>) {
    let databases: [Arc<dyn Store>; 3] = std::array::from_fn(|_| MemoryStore::shared() as Arc<dyn Store>);
    let store = ShardedStore::open(databases.to_vec()).await.expect("they open");
    (databases, store)
}

/// A name that begins so and is of this database.
pub(super) fn of(store: &ShardedStore, prefix: &str, shard: usize) -> String {
    let mut names = (0..).map(|n| format!("{prefix}{n}"));
    names.find(|name| store.shard_of(name) == shard).expect("names are spread")
}

pub(super) async fn status(store: &dyn Store, run: &str) -> Status {
    store.run(key(run)).await.expect("a read").expect("it is there").status
}

pub(super) async fn goes(store: &dyn Store, run: &str) -> bool {
    let status = status(store, run).await;
    assert!(matches!(status, Status::Pending | PARKED), "{run}: {status:?}");
    status == Status::Pending
}

async fn token(store: &dyn Store, run: &str) -> String {
    store.run(key(run)).await.expect("a read").expect("it is there").terms.token
}

/// Ends a run, without giving back what it holds.
pub(super) async fn end(store: &Arc<dyn Store>, run: &str) {
    Holder::claim(store, &key(run), "a").await.expect("it is pending").finish().await;
}

pub(super) async fn give_back(store: &dyn Store, run: &str) -> Vec<RunKey> {
    store.flow().release(key(run), token(store, run).await).await.expect("an answer")
}

async fn sweep(store: &dyn Store) -> u64 {
    store.flow().sweep(Namespace::default()).await.expect("an answer")
}

async fn is_free(store: &dyn Store) -> bool {
    store.flow().keys(Namespace::default()).await.expect("an answer").is_empty()
}

/// Names that fall into databases of their own: twelve runs, one key, two at a time.
async fn so_many_go_over_all(fixture: Fixture) {
    let store = &fixture.store;
    let two = keys(&[("customer-42", 2)]);
    let mut left: Vec<String> = (0..12).map(|n| format!("order-{n}")).collect();
    let starts = left.iter().map(|run| store.create(on(run, &two)));
    for created in join_all(starts).await {
        assert!(matches!(created.expect("any run may name any key"), Created::New(None)));
    }
    let [one] = &store.flow().keys(Namespace::default()).await.unwrap()[..] else { panic!("one key") };
    assert_eq!((&*one.name, one.held, one.most, one.waiting), ("customer-42", 2, 2, 10));
    while !left.is_empty() {
        let mut free = vec![];
        for run in &left {
            if goes(&**store, run).await {
                free.push(run.clone());
            }
        }
        assert_eq!(free.len(), left.len().min(2), "neither too many nor too few");
        let view = store.flow().key(Namespace::default(), "customer-42".into()).await.unwrap();
        let mut held: Vec<_> = view.held.iter().map(|held| held.run.to_string()).collect();
        held.sort();
        free.sort();
        assert_eq!(held, free);
        end(store, &free[0]).await;
        give_back(&**store, &free[0]).await;
        left.retain(|run| *run != free[0]);
    }
    assert!(is_free(&**store).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_lets_so_many_go_over_all_databases() {
    so_many_go_over_all(three_files()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_lets_so_many_go_over_databases_of_every_kind() {
    so_many_go_over_all(one_of_each()).await;
}

/// It has the first, waits for the second, and goes when it has both.
#[tokio::test]
async fn a_run_holds_keys_of_several_databases() {
    for home in 0..3 {
        let (databases, store) = three().await;
        let (a, b) = (of(&store, "a", 0), of(&store, "b", 1));
        let (first, both, last) = (of(&store, "first", 2), of(&store, "both", home), of(&store, "last", 2));
        store.create(on(&first, &keys(&[(&b, 1)]))).await.unwrap();
        store.create(on(&both, &keys(&[(&b, 1), (&a, 1)]))).await.unwrap();
        store.create(on(&last, &keys(&[(&a, 1)]))).await.unwrap();
        assert!(!goes(&*store, &both).await && !goes(&*store, &last).await);
        let held = store.flow().key(Namespace::default(), a.clone()).await.unwrap().held;
        assert_eq!(held[0].run.as_str(), both, "it has the first of its keys, and waits for the second");
        assert_eq!(sweep(&*store).await, 0, "all of them live");
        for database in &databases {
            assert_eq!(sweep(&**database).await, 0, "and no database takes them for gone");
        }
        assert_eq!(give_back(&*store, &first).await, [key(&both)]);
        assert!(goes(&*store, &both).await && !goes(&*store, &last).await);
        assert_eq!(give_back(&*store, &both).await, [key(&last)]);
        assert_eq!(give_back(&*store, &last).await, []);
        assert!(is_free(&*store).await);
    }
}

#[tokio::test]
async fn runs_with_crossing_keys_never_wait_for_each_other() {
    let (_folder, files) = folder().await;
    let store = ShardedStore::open(files).await.unwrap();
    let (a, b, c) = (of(&store, "a", 0), of(&store, "b", 1), of(&store, "c", 2));
    let mut left: Vec<String> = (0..9).map(|n| of(&store, &format!("run-{n}-"), n % 3)).collect();
    let orders = [[&a, &b, &c], [&c, &b, &a], [&b, &c, &a]];
    let starts = left.iter().enumerate().map(|(n, run)| {
        let terms = keys(&orders[n % 3].map(|name| (name.as_str(), 1)));
        let store = store.clone();
        async move { store.create(on(run, &terms)).await.unwrap() }
    });
    join_all(starts).await;
    while !left.is_empty() {
        let mut free = vec![];
        for run in &left {
            if goes(&*store, run).await {
                free.push(run.clone());
            }
        }
        assert_eq!(free.len(), 1, "one at a time, and always one");
        give_back(&*store, &free[0]).await;
        left.retain(|run| *run != free[0]);
    }
}

#[tokio::test]
async fn in_a_keys_queue_a_higher_priority_goes_first_wherever_it_lives() {
    let (_, store) = three().await;
    let k = of(&store, "k", 0);
    let terms = keys(&[(&k, 1)]);
    let urgent = Terms { priority: 2, ..terms.clone() };
    let names: Vec<_> = ["holds", "first", "second", "hurries", "hurries-too"].map(String::from).to_vec();
    let names: Vec<_> = names.iter().enumerate().map(|(n, name)| of(&store, name, (n + 1) % 3)).collect();
    for (run, terms) in names.iter().zip([&terms, &terms, &terms, &urgent, &urgent]) {
        store.create(on(run, terms)).await.unwrap();
    }
    let mut order = vec![];
    let mut holder = names[0].clone();
    while let [next] = &give_back(&*store, &holder).await[..] {
        holder = next.run.to_string();
        order.push(holder.clone());
    }
    assert_eq!(order, [3, 4, 1, 2].map(|n| names[n].clone()));
}

/// The times of all of them are apart, and a start that is repeated reserves nothing.
#[tokio::test]
async fn a_rate_is_one_for_the_runs_of_all_databases() {
    let (_, store) = three().await;
    let rate = of(&store, "imports", 1);
    let terms = Terms { rate: Some(Rate::new(rate, 1, MINUTE)), ..Terms::default() };
    let mut times = vec![];
    for n in 0..6 {
        let run = of(&store, &format!("r{n}-"), n % 3);
        store.create(on(&run, &terms)).await.unwrap();
        assert!(matches!(store.create(on(&run, &terms)).await.unwrap(), Created::Exists(_)));
        let record = store.run(key(&run)).await.unwrap().unwrap();
        assert_eq!(record.status == Status::Pending, n == 0, "{:?}", record.status);
        times.push(record.terms.not_before_us.expect("it was given a time"));
    }
    let minute = MINUTE.as_micros() as i64;
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == minute), "{times:?}");
    // With a key as well: it has its slot, and waits for its time.
    let both = of(&store, "both", 0);
    let k = of(&store, "k", 2);
    store.create(on(&both, &Terms { rate: terms.rate, ..keys(&[(&k, 1)]) })).await.unwrap();
    assert_eq!(status(&*store, &both).await, Status::Waiting { on: WaitsOn::Timer });
}

/// A single database gives a start that joins another no time either.
#[tokio::test]
async fn a_start_that_joins_another_reserves_no_time() {
    let (_, store) = three().await;
    let rate = Rate::new(of(&store, "imports", 1), 1, MINUTE);
    let name = of(&store, "alone", 0);
    let alone = Terms { rate: Some(rate.clone()), singleton: Some(name.clone()), ..Terms::default() };
    for n in 0..5 {
        let created = store.create(on(&format!("{name}/{n}"), &alone)).await.unwrap();
        assert_eq!(matches!(created, Created::New(_)), n == 0);
    }
    let next = store.flow().reserve(Namespace::default(), rate).await.unwrap();
    let first = store.run(key(&format!("{name}/0"))).await.unwrap().unwrap().terms.not_before_us.unwrap();
    assert_eq!(next.at_us - first, MINUTE.as_micros() as i64, "one time was taken");
}

/// What lives under one name only is placed by it.
#[tokio::test]
async fn singletons_and_debounces_are_named_after_their_run() {
    let (_, store) = three().await;
    let (run, name) = (of(&store, "run", 0), of(&store, "name", 1));
    let alone = Terms { singleton: Some(name.clone()), ..Terms::default() };
    let calm = Terms { debounce: Some(Debounce::new(&*name, MINUTE)), ..Terms::default() };
    for terms in [alone, calm] {
        let refused = store.create(on(&run, &terms)).await.unwrap_err();
        assert_eq!(refused.code(), "HX0186", "{refused}");
    }
    // With keys from elsewhere the name is free all the same once the run is over.
    let alone = Terms { singleton: Some(of(&store, "name", 0)), ..keys(&[(&of(&store, "k", 2), 1)]) };
    store.create(on(&run, &alone)).await.unwrap();
    assert!(matches!(store.create(on(&of(&store, "other", 0), &alone)).await, Ok(Created::Exists(_))));
    let store: Arc<dyn Store> = store;
    end(&store, &run).await;
    give_back(&*store, &run).await;
    assert!(store.flow().names(Namespace::default()).await.unwrap().is_empty() && is_free(&*store).await);
}

/// Two runs behind one key: a run of each database but the key's.
async fn two_behind_one_key() -> (Arc<dyn Store>, [String; 2], Terms) {
    let (_, store) = three().await;
    let terms = keys(&[(&of(&store, "a", 0), 1), (&of(&store, "b", 1), 1)]);
    let runs = [of(&store, "first", 1), of(&store, "second", 2)];
    for run in &runs {
        store.create(on(run, &terms)).await.unwrap();
    }
    (store, runs, terms)
}

async fn fail(store: &Arc<dyn Store>, run: &str) {
    let mut holder = Holder::claim(store, &key(run), "a").await.expect("it is pending");
    let change = holder.status(failed(), true);
    holder.write(Write::Status(change)).await.expect("it is ours");
}

/// Behind those who came meanwhile; a late word on its end frees nothing.
#[tokio::test]
async fn a_retried_run_takes_its_slots_in_all_databases_again() {
    let (store, [first, second], _) = two_behind_one_key().await;
    fail(&store, &first).await;
    let late = token(&*store, &first).await;
    store.retry(key(&first)).await.unwrap();
    assert!(!goes(&*store, &first).await && goes(&*store, &second).await, "what it held went to the next");
    assert_ne!(token(&*store, &first).await, late);
    assert_eq!(give_back(&*store, &second).await, [key(&first)]);
    assert_eq!(store.flow().release(key(&first), late).await.unwrap(), []);
    assert_eq!(sweep(&*store).await, 0);
    assert_eq!(store.flow().keys(Namespace::default()).await.unwrap().len(), 2, "it holds both");
}

/// Cancels a run that waits, and gives nothing back.
async fn cancel(store: &Arc<dyn Store>, run: &str) {
    store.request_cancel(key(run)).await.unwrap();
    let lease = store.claim(key(run), claimant("a", LONG)).await.expect("it is to be cancelled");
    let mut holder = Holder::load(store, &key(run), lease).await.unwrap();
    let change = holder.status(Status::Cancelled, true);
    holder.write(Write::Status(change)).await.unwrap();
}

#[tokio::test]
async fn a_run_that_waits_for_a_key_elsewhere_can_be_cancelled() {
    let (store, [first, second], terms) = two_behind_one_key().await;
    store.create(on("third", &terms)).await.unwrap();
    cancel(&store, &second).await;
    assert_eq!(give_back(&*store, &second).await, []);
    assert_eq!(give_back(&*store, &first).await, [key("third")], "nobody is before it any more");
}

/// No database sweeps it by itself: the one that has the queue doesn't know the run.
#[tokio::test]
async fn a_place_in_a_queue_elsewhere_that_nobody_gave_back_is_swept() {
    let (store, [first, second], terms) = two_behind_one_key().await;
    store.create(on("third", &terms)).await.unwrap();
    let waiting = async || -> u64 {
        let keys = store.flow().keys(Namespace::default()).await.unwrap();
        keys.iter().map(|key| key.waiting).sum()
    };
    assert_eq!((sweep(&*store).await, waiting().await), (0, 2), "all of them live");
    cancel(&store, &second).await;
    assert!(sweep(&*store).await > 0);
    assert_eq!((sweep(&*store).await, waiting().await), (0, 1));
    assert_eq!(give_back(&*store, &first).await, [key("third")]);
}

/// Its name may be taken again, by a run of other terms.
#[tokio::test]
async fn what_a_deleted_run_held_is_swept() {
    let (store, [first, second], _) = two_behind_one_key().await;
    end(&store, &first).await;
    store.delete(key(&first)).await.unwrap();
    store.create(Sample::run(&first).build()).await.unwrap();
    assert!(!goes(&*store, &second).await);
    assert_eq!(sweep(&*store).await, 3, "its two slots, and the one who goes");
    assert!(goes(&*store, &second).await);
    assert_eq!(sweep(&*store).await, 0);
}

/// Each of them has something damaged.
#[tokio::test]
async fn what_is_spread_is_swept_though_no_database_can_sweep_by_itself() {
    let (folder, files) = folder().await;
    let sharded = ShardedStore::open(files).await.unwrap();
    let (here, there) = (of(&sharded, "here", 0), of(&sharded, "there", 1));
    let [first, second] = ["first", "second"].map(|run| of(&sharded, run, 2));
    let store: Arc<dyn Store> = sharded;
    for run in [&first, &second] {
        store.create(on(run, &keys(&[(&here, 1), (&there, 1)]))).await.unwrap();
    }
    end(&store, &first).await;
    for shard in 0..3 {
        let outside = rusqlite::Connection::open(folder.path().join(format!("shard-{shard}.db"))).unwrap();
        let columns = "namespace, flow_key, run_id, position, most, token, rest";
        let damaged = "'default', 'k', 'r' || char(10), 1, 1, 't', '[]'";
        let sql = format!("INSERT INTO hapax_flow_queue ({columns}) VALUES ({damaged})");
        assert_eq!(outside.execute(&sql, ()).unwrap(), 1);
    }
    let swept = store.flow().sweep(Namespace::default()).await;
    assert!(swept.is_err(), "it is told: {swept:?}");
    assert!(goes(&*store, &second).await);
}

/// There its keys may fall together, or apart.
#[tokio::test]
async fn a_run_that_moves_house_takes_its_slots_there_again() {
    let (store, [first, second], _) = two_behind_one_key().await;
    let five: Vec<_> = (0..5).map(|_| MemoryStore::shared() as Arc<dyn Store>).collect();
    let five = ShardedStore::open(five).await.unwrap();
    let elsewhere: [Arc<dyn Store>; 2] = [MemoryStore::shared(), five];
    let mut from = store;
    for to in elsewhere {
        let mover = Mover::new(from.clone(), to.clone(), "there");
        for run in [&second, &first] {
            mover.carry(key(run)).await.unwrap();
        }
        assert!(goes(&*to, &second).await && !goes(&*to, &first).await, "the one that came first goes");
        // One leaves its slot to the next, which is gone as well.
        while sweep(&*from).await > 0 {}
        assert!(is_free(&*from).await, "what they held there is free");
        Mover::new(to.clone(), from.clone(), "back").carry(key(&second)).await.unwrap();
        assert!(goes(&*from, &second).await);
        sweep(&*to).await;
        assert!(goes(&*to, &first).await);
        mover.carry(key(&second)).await.unwrap();
        while sweep(&*from).await > 0 {}
        assert_eq!(give_back(&*to, &first).await, [key(&second)]);
        give_back(&*to, &second).await;
        for run in [&first, &second] {
            let terms = to.run(key(run)).await.unwrap().unwrap().terms;
            to.flow().enrol(key(run), terms).await.unwrap();
        }
        from = to;
    }
}

/// It was given its first slot while it was shut, and nobody could take it further.
#[tokio::test]
async fn a_run_that_stays_after_all_goes_on_to_its_keys() {
    let (store, [first, second], _) = two_behind_one_key().await;
    store.house().leave(key(&second), "elsewhere".into()).await.unwrap();
    assert_eq!(give_back(&*store, &first).await, []);
    assert_eq!(sweep(&*store).await, 0, "nor can a sweep");
    store.house().stay(key(&second)).await.unwrap();
    assert_eq!(sweep(&*store).await, 1);
    assert!(goes(&*store, &second).await);
}

/// The run is there, parked, and goes on when the database is back. Those who don't use it go.
#[tokio::test]
async fn a_start_whose_keys_database_is_away_waits_for_it() {
    let (databases, whole) = three().await;
    let away = Faulty::new(databases[1].clone(), 0, Fault::Before);
    let [first, _, last] = databases.clone();
    let store = ShardedStore::open(vec![first, away, last]).await.unwrap();
    let (here, there) = (of(&store, "here", 0), of(&store, "there", 1));
    let (run, other) = (of(&store, "run", 2), of(&store, "other", 2));
    store.create(on(&run, &keys(&[(&here, 1), (&there, 1)]))).await.unwrap();
    store.create(on(&other, &keys(&[(&of(&store, "third", 0), 1)]))).await.unwrap();
    assert!(goes(&*store, &other).await && !goes(&*store, &run).await);
    sweep(&*store).await;
    assert!(!goes(&*store, &run).await);
    assert_eq!(sweep(&*whole).await, 1);
    assert!(goes(&*whole, &run).await);
}

/// Its file is locked, and it answers later than any lease lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_hangs_holds_up_no_start_no_release_and_no_sweep() {
    let (folder, files) = folder().await;
    let whole = ShardedStore::open(files.clone()).await.unwrap();
    let sharded = ShardedStore::open(files).await.unwrap();
    let (here, there) = (of(&whole, "here", 0), of(&whole, "there", 1));
    let [both, next, late] = ["both", "next", "late"].map(|run| of(&whole, run, 2));
    let store: Arc<dyn Store> = sharded;
    store.create(on(&both, &keys(&[(&here, 1), (&there, 1)]))).await.unwrap();
    store.create(on(&next, &keys(&[(&here, 1)]))).await.unwrap();
    let outside = rusqlite::Connection::open(folder.path().join("shard-1.db")).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = tokio::time::Instant::now();
    store.create(on(&late, &keys(&[(&there, 1)]))).await.unwrap();
    end(&store, &both).await;
    let token = token(&*store, &both).await;
    let released = store.flow().release(key(&both), token).await;
    assert!(matches!(released, Err(StoreError::Retry(_))), "what isn't given back is told: {released:?}");
    assert!(goes(&*store, &next).await && !goes(&*store, &late).await);
    sweep(&*store).await;
    let took = began.elapsed();
    assert!(took < LEASE_TTL / 2, "it isn't waited for twice: {took:?}");
    outside.execute_batch("ROLLBACK").unwrap();
    while !goes(&*whole, &late).await {
        sweep(&*whole).await;
    }
}

#[tokio::test]
async fn a_start_whose_buckets_database_is_away_is_none() {
    let (databases, _) = three().await;
    let away = Faulty::new(databases[1].clone(), 0, Fault::Before);
    let [first, _, last] = databases;
    let store = ShardedStore::open(vec![first, away, last]).await.unwrap();
    let run = of(&store, "run", 2);
    let terms = Terms { rate: Some(Rate::new(of(&store, "mail", 1), 1, MINUTE)), ..Terms::default() };
    assert!(matches!(store.create(on(&run, &terms)).await, Err(StoreError::Retry(_))));
    assert!(store.run(key(&run)).await.unwrap().is_none());
}
