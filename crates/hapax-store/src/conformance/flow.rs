//! No more runs go at a time, and no sooner, than their terms allow; and what a dead engine held is freed.
//!
//! All names begin alike, so that they belong together where a name says which database it is of.

use super::{
    Fixture,
    sample::{Holder, LONG, Sample, claimant, failed, key, ready},
};
use crate::{
    MemoryStore,
    error::StoreError,
    flow::{NameKind, Replaced},
    house::Mover,
    store::{Created, NewRun, RunRecord, Store},
};
use futures::future::join_all;
use hapax_core::{
    commit::{Status, StatusChange, WaitsOn, Wake, Write},
    flow::{Debounce, Key, Rate, Terms},
    id::{Namespace, RunKey},
};
use std::{sync::Arc, time::Duration};

const MINUTE: Duration = Duration::from_secs(60);

/// A run that starts on these terms.
///
/// ```
/// use hapax_core::flow::{Key, Terms};
/// use hapax_store::conformance::flow::on;
/// let terms = Terms { keys: vec![Key::new("customer-42", 2)], ..Terms::default() };
/// assert_eq!(on("order-1", &terms).terms.keys[0].most, 2);
/// ```
pub fn on(run: &str, terms: &Terms) -> NewRun {
    NewRun { terms: terms.clone(), ..Sample::run(run).build() }
}

/// Terms with these keys.
///
/// ```
/// use hapax_store::conformance::flow::keys;
/// assert!(keys(&[("customer-42", 2)]).parks());
/// ```
pub fn keys(keys: &[(&str, u32)]) -> Terms {
    Terms { keys: keys.iter().map(|(name, most)| Key::new(*name, *most)).collect(), ..Terms::default() }
}

async fn create(store: &dyn Store, run: &str, terms: &Terms) {
    let created = store.create(on(run, terms)).await.expect("it is within every limit");
    assert!(
        matches!(created, Created::New(None)),
        "nobody claims a run that its terms may park: {created:?}"
    );
}

async fn read(store: &dyn Store, run: &str) -> RunRecord {
    store.run(key(run)).await.expect("a read").expect("it is there")
}

async fn is_let_go(store: &dyn Store, run: &str) -> bool {
    match read(store, run).await.status {
        Status::Pending => true,
        status => {
            assert_eq!(status, Status::Waiting { on: WaitsOn::Key });
            false
        }
    }
}

async fn let_go(store: &dyn Store, runs: &[String]) -> Vec<String> {
    let mut free = vec![];
    for run in runs {
        if is_let_go(store, run).await {
            free.push(run.clone());
        }
    }
    free
}

/// Gives back what a run holds.
async fn release(store: &dyn Store, run: &str) -> Vec<RunKey> {
    let token = read(store, run).await.terms.token;
    store.flow().release(key(run), token).await.expect("an answer")
}

/// Claims a run and ends it, without giving back what it holds: as an engine that dies right then.
async fn end_and_die(store: &Arc<dyn Store>, run: &str) {
    let holder = Holder::claim(store, &key(run), "a").await.expect("it is pending");
    holder.finish().await;
}

async fn fail_and_die(store: &Arc<dyn Store>, run: &str) {
    let mut holder = Holder::claim(store, &key(run), "a").await.expect("it is pending");
    let change = holder.status(failed(), true);
    holder.write(Write::Status(change)).await.expect("it is ours");
}

/// Cancels a run that waits for a key, without giving back its place: as an engine that dies right then.
async fn cancel_and_die(store: &Arc<dyn Store>, run: &str) {
    store.request_cancel(key(run)).await.expect("it is there");
    let claimed = ready(store, "a", 10).await;
    let (_, lease) =
        claimed.into_iter().find(|(ready, _)| *ready == key(run)).expect("it is to be cancelled");
    let mut holder = Holder::load(store, &key(run), lease).await.expect("it is ours");
    let change = holder.status(Status::Cancelled, true);
    holder.write(Write::Status(change)).await.expect("it is ours");
}

/// How many wait for a key.
async fn waiting(store: &dyn Store, name: &str) -> u64 {
    let keys = store.flow().keys(Namespace::default()).await.expect("a read");
    keys.iter().find(|key| key.name == name).map_or(0, |key| key.waiting)
}

/// The first ones go; the others are parked, and no claim finds them.
pub async fn a_key_lets_only_so_many_runs_go_at_a_time(fixture: Fixture) {
    let store = &*fixture.store;
    for run in ["f/a", "f/b", "f/c", "f/d"] {
        create(store, run, &keys(&[("f/k", 2)])).await;
    }
    create(store, "f/other", &keys(&[("f/another", 1)])).await;
    let claimed = ready(&fixture.store, "a", 10).await;
    let claimed: Vec<_> = claimed.iter().map(|(run, _)| run.run.as_str()).collect();
    assert_eq!(claimed, ["f/a", "f/b", "f/other"]);
    assert!(matches!(
        store.claim(key("f/c"), claimant("b", LONG)).await,
        Err(StoreError::WrongStatus { .. })
    ));
    let [first, second] = &store.flow().keys(Namespace::default()).await.unwrap()[..] else {
        panic!("two keys")
    };
    assert_eq!((&*first.name, first.held, first.waiting), ("f/another", 1, 0));
    assert_eq!((&*second.name, second.held, second.most, second.waiting), ("f/k", 2, 2, 2));
    let view = store.flow().key(Namespace::default(), "f/k".into()).await.unwrap();
    let held: Vec<_> = view.held.iter().map(|held| (held.slot, held.run.as_str())).collect();
    assert_eq!(held, [(0, "f/a"), (1, "f/b")]);
    assert_eq!(view.waiting, [key("f/c").run, key("f/d").run]);
}

/// In the order in which they came, and each slot once however often it is given back.
pub async fn a_slot_that_is_given_back_goes_to_the_next(fixture: Fixture) {
    let store = &*fixture.store;
    for run in ["f/a", "f/b", "f/c"] {
        create(store, run, &keys(&[("f/k", 1)])).await;
    }
    assert_eq!(release(store, "f/a").await, [key("f/b")]);
    assert_eq!(release(store, "f/a").await, [], "it had one slot");
    assert!(is_let_go(store, "f/b").await && !is_let_go(store, "f/c").await);
    let again = read(store, "f/b").await.terms;
    assert_eq!(
        store.flow().enrol(key("f/b"), again).await.unwrap(),
        [key("f/b")],
        "it holds the slot that it asks for"
    );
    assert_eq!(release(store, "f/b").await, [key("f/c")]);
    assert_eq!(release(store, "f/c").await, []);
    assert!(store.flow().keys(Namespace::default()).await.unwrap().is_empty(), "nothing is left of the key");
}

/// From two handles at once, as from two processes.
pub async fn however_many_come_at_once_no_key_lets_one_too_many_go(fixture: Fixture) {
    let (store, other) = (fixture.store.clone(), fixture.other_handle());
    let runs: Vec<String> = (0..16).map(|n| format!("f/run-{n:02}")).collect();
    let starts = runs.iter().enumerate().map(|(n, run)| {
        let store = if n % 2 == 0 { store.clone() } else { other.clone() };
        async move { create(&*store, run, &keys(&[("f/k", 3)])).await }
    });
    join_all(starts).await;
    let mut left = runs.clone();
    while !left.is_empty() {
        let free = let_go(&*store, &left).await;
        assert_eq!(free.len(), left.len().min(3), "neither too many nor too few");
        let ends = free.iter().enumerate().map(|(n, run)| {
            let store = if n % 2 == 0 { store.clone() } else { other.clone() };
            async move { release(&*store, run).await }
        });
        join_all(ends).await;
        left.retain(|run| !free.contains(run));
    }
    assert!(store.flow().keys(Namespace::default()).await.unwrap().is_empty());
}

/// It goes when it has a slot of each; all runs take them in one order.
pub async fn a_run_waits_for_all_of_its_keys(fixture: Fixture) {
    let store = &*fixture.store;
    create(store, "f/first", &keys(&[("f/b", 1)])).await;
    create(store, "f/both", &keys(&[("f/b", 1), ("f/a", 1)])).await;
    create(store, "f/last", &keys(&[("f/a", 1)])).await;
    assert!(!is_let_go(store, "f/both").await && !is_let_go(store, "f/last").await);
    let held = store.flow().key(Namespace::default(), "f/a".into()).await.unwrap();
    assert_eq!(held.held[0].run.as_str(), "f/both", "it has the first of its keys, and waits for the second");
    assert_eq!(release(store, "f/first").await, [key("f/both")]);
    assert_eq!(release(store, "f/both").await, [key("f/last")]);
}

/// Two runs that want two keys in different orders don't wait for each other for ever.
pub async fn runs_that_share_keys_never_wait_for_each_other(fixture: Fixture) {
    let (store, other) = (fixture.store.clone(), fixture.other_handle());
    let runs: Vec<String> = (0..8).map(|n| format!("f/run-{n}")).collect();
    let starts = runs.iter().enumerate().map(|(n, run)| {
        let (store, terms) = if n % 2 == 0 {
            (store.clone(), keys(&[("f/a", 1), ("f/b", 1)]))
        } else {
            (other.clone(), keys(&[("f/b", 1), ("f/a", 1)]))
        };
        async move { create(&*store, run, &terms).await }
    });
    join_all(starts).await;
    let mut left = runs.clone();
    while !left.is_empty() {
        let free = let_go(&*store, &left).await;
        assert_eq!(free.len(), 1, "one at a time, and always one");
        release(&*store, &free[0]).await;
        left.retain(|run| *run != free[0]);
    }
}

/// A word on its end that comes late, after a retry, frees nothing.
pub async fn a_retried_run_takes_its_place_again(fixture: Fixture) {
    let store = &*fixture.store;
    for run in ["f/a", "f/b", "f/c"] {
        create(store, run, &keys(&[("f/k", 1)])).await;
    }
    fail_and_die(&fixture.store, "f/a").await;
    let late = read(store, "f/a").await.terms.token;
    assert_eq!(release(store, "f/a").await, [key("f/b")]);
    store.retry(key("f/a")).await.unwrap();
    assert!(!is_let_go(store, "f/a").await, "it waits behind those who came meanwhile");
    assert_eq!(release(store, "f/b").await, [key("f/c")]);
    assert_eq!(release(store, "f/c").await, [key("f/a")]);
    create(store, "f/d", &keys(&[("f/k", 1)])).await;
    assert_eq!(store.flow().release(key("f/a"), late).await.unwrap(), [], "that was its slot before");
    assert!(is_let_go(store, "f/a").await && !is_let_go(store, "f/d").await);
}

/// Nobody gave its slot back before it was retried: it has another place, and doesn't wait for itself.
pub async fn a_run_that_is_retried_never_waits_for_itself(fixture: Fixture) {
    let store = &*fixture.store;
    for run in ["f/a", "f/b"] {
        create(store, run, &keys(&[("f/k", 1)])).await;
    }
    fail_and_die(&fixture.store, "f/a").await;
    store.retry(key("f/a")).await.unwrap();
    assert!(is_let_go(store, "f/b").await && !is_let_go(store, "f/a").await);
    assert_eq!(release(store, "f/b").await, [key("f/a")]);
    assert_eq!(release(store, "f/a").await, []);
    assert!(store.flow().keys(Namespace::default()).await.unwrap().is_empty());
}

/// Only of runs that are over.
pub async fn what_a_dead_engine_did_not_give_back_is_swept(fixture: Fixture) {
    let store = &*fixture.store;
    let named = Terms { singleton: Some("f/s".into()), ..Terms::default() };
    assert!(matches!(store.create(on("f/named", &named)).await.unwrap(), Created::New(_)));
    for run in ["f/a", "f/b", "f/c"] {
        create(store, run, &keys(&[("f/k", 2)])).await;
    }
    assert_eq!(store.flow().sweep(Namespace::default()).await.unwrap(), 0, "all of them live");
    end_and_die(&fixture.store, "f/a").await;
    end_and_die(&fixture.store, "f/named").await;
    assert!(!is_let_go(store, "f/c").await);
    assert_eq!(store.flow().sweep(Namespace::new("other").unwrap()).await.unwrap(), 0);
    assert_eq!(fixture.other_handle().flow().sweep(Namespace::default()).await.unwrap(), 2);
    assert!(is_let_go(store, "f/c").await);
    assert!(store.flow().names(Namespace::default()).await.unwrap().is_empty());
    end_and_die(&fixture.store, "f/b").await;
    store.delete(key("f/b")).await.unwrap();
    assert_eq!(store.flow().sweep(Namespace::default()).await.unwrap(), 1, "of a run that is gone as well");
    assert_eq!(store.flow().sweep(Namespace::default()).await.unwrap(), 0);
}

/// Of runs that are over and of those that are gone; nobody behind it waits for ever.
pub async fn a_place_in_a_queue_that_nobody_gave_back_is_swept(fixture: Fixture) {
    let store = &*fixture.store;
    create(store, "f/holds", &keys(&[("f/k", 3)])).await;
    create(store, "f/over", &keys(&[("f/k", 1)])).await;
    create(store, "f/gone", &keys(&[("f/k", 1)])).await;
    create(store, "f/behind", &keys(&[("f/k", 3)])).await;
    assert_eq!(store.flow().sweep(Namespace::default()).await.unwrap(), 0, "all of them live");
    cancel_and_die(&fixture.store, "f/over").await;
    cancel_and_die(&fixture.store, "f/gone").await;
    store.delete(key("f/gone")).await.unwrap();
    assert_eq!(store.flow().sweep(Namespace::new("other").unwrap()).await.unwrap(), 0);
    assert_eq!(waiting(store, "f/k").await, 3);
    assert!(fixture.other_handle().flow().sweep(Namespace::default()).await.unwrap() > 0);
    assert!(is_let_go(store, "f/behind").await);
    assert_eq!(waiting(store, "f/k").await, 0);
    assert_eq!(store.flow().sweep(Namespace::default()).await.unwrap(), 0);
}

/// Neither a place in a queue, with which it would go without its other keys, nor a slot, that others wait for.
pub async fn what_a_run_had_before_it_was_deleted_is_not_its_own(fixture: Fixture) {
    let store = &*fixture.store;
    create(store, "f/a", &keys(&[("f/ka", 1)])).await;
    create(store, "f/b", &keys(&[("f/kb", 1)])).await;
    create(store, "f/again", &keys(&[("f/ka", 1)])).await;
    cancel_and_die(&fixture.store, "f/again").await;
    store.delete(key("f/again")).await.unwrap();
    create(store, "f/again", &keys(&[("f/ka", 1), ("f/kb", 1)])).await;
    assert_eq!(release(store, "f/a").await, []);
    assert!(!is_let_go(store, "f/again").await, "f/b holds the second of its keys");
    assert_eq!(release(store, "f/b").await, [key("f/again")]);
    end_and_die(&fixture.store, "f/again").await;
    store.delete(key("f/again")).await.unwrap();
    create(store, "f/again", &keys(&[("f/kc", 1)])).await;
    create(store, "f/next", &keys(&[("f/ka", 1), ("f/kb", 1)])).await;
    assert!(!is_let_go(store, "f/next").await);
    assert_eq!(store.flow().sweep(Namespace::default()).await.unwrap(), 1);
    assert!(is_let_go(store, "f/next").await && is_let_go(store, "f/again").await);
}

/// It was the first of them, and could not go for want of a slot below its own number.
pub async fn a_run_that_leaves_a_queue_lets_those_behind_it_go(fixture: Fixture) {
    let store = &*fixture.store;
    create(store, "f/holds", &keys(&[("f/k", 5)])).await;
    create(store, "f/first", &keys(&[("f/k", 1)])).await;
    create(store, "f/second", &keys(&[("f/k", 5)])).await;
    assert!(!is_let_go(store, "f/first").await && !is_let_go(store, "f/second").await);
    cancel_and_die(&fixture.store, "f/first").await;
    assert_eq!(release(store, "f/first").await, [key("f/second")]);
    assert!(is_let_go(store, "f/second").await);
}

/// It is found by a claim, and leaves the queue with its end.
pub async fn a_run_that_waits_for_a_key_can_be_cancelled(fixture: Fixture) {
    let store = &*fixture.store;
    for run in ["f/a", "f/b", "f/c"] {
        create(store, run, &keys(&[("f/k", 1)])).await;
    }
    store.request_cancel(key("f/b")).await.unwrap();
    let claimed = ready(&fixture.store, "a", 10).await;
    assert_eq!(claimed.len(), 2, "the one that has the slot, and the one to be cancelled");
    let (_, lease) = claimed.into_iter().find(|(run, _)| *run == key("f/b")).expect("it is to be cancelled");
    let mut holder = Holder::load(&fixture.store, &key("f/b"), lease).await.unwrap();
    let change = holder.status(Status::Cancelled, true);
    holder.write(Write::Status(change)).await.unwrap();
    assert_eq!(release(store, "f/b").await, []);
    assert_eq!(release(store, "f/a").await, [key("f/c")], "nobody is before it any more");
}

/// In a claim and in a key's queue.
pub async fn a_run_of_higher_priority_goes_first(fixture: Fixture) {
    let store = &*fixture.store;
    let urgent = |terms: Terms| Terms { priority: 2, ..terms };
    store.create(Sample::run("f/plain").build()).await.unwrap();
    store.create(on("f/urgent", &urgent(Terms::default()))).await.unwrap();
    create(store, "f/holds", &keys(&[("f/k", 1)])).await;
    create(store, "f/waits", &keys(&[("f/k", 1)])).await;
    create(store, "f/hurries", &urgent(keys(&[("f/k", 1)]))).await;
    let claimed = ready(&fixture.store, "a", 1).await;
    assert_eq!(claimed[0].0, key("f/urgent"));
    assert_eq!(read(store, "f/urgent").await.terms.priority, 2);
    assert_eq!(release(store, "f/holds").await, [key("f/hurries")]);
    let claimed = ready(&fixture.store, "a", 1).await;
    assert_eq!(claimed[0].0, key("f/hurries"), "also when it was woken");
    assert!(store.fleet(Namespace::default()).await.unwrap().lag < MINUTE / 3, "a head start is no delay");
}

/// Whoever asks.
pub async fn a_bucket_is_one_for_all_who_share_it(fixture: Fixture) {
    let (store, other) = (fixture.store.clone(), fixture.other_handle());
    let rate = Rate::new("f/mail", 1, MINUTE).burst(2);
    let asks = (0..6).map(|n| {
        let (store, rate) = (if n % 2 == 0 { store.clone() } else { other.clone() }, rate.clone());
        async move { store.flow().reserve(Namespace::default(), rate).await.unwrap() }
    });
    let mut times: Vec<i64> = join_all(asks).await.iter().map(|reserved| reserved.at_us).collect();
    times.sort_unstable();
    let minute = MINUTE.as_micros() as i64;
    for (n, time) in times.iter().enumerate().skip(2) {
        let least = (n as i64 - 1) * minute;
        assert!(time - times[0] >= least - minute / 10, "{times:?}");
    }
    assert!(times[1] - times[0] < minute / 2, "two at once: {times:?}");
    let names = store.flow().names(Namespace::default()).await.unwrap();
    assert_eq!(
        names.iter().map(|name| (name.kind, &*name.name)).collect::<Vec<_>>(),
        [(NameKind::Rate, "f/mail")]
    );
    let none = store.flow().reserve(Namespace::default(), Rate::new("f/mail", 0, MINUTE)).await;
    assert!(matches!(none, Err(StoreError::Terms(_))));
}

/// The first goes at once, the second is parked until its time; a start that is repeated reserves nothing.
pub async fn a_rate_parks_a_start_until_its_time(fixture: Fixture) {
    let store = &*fixture.store;
    let terms = Terms { rate: Some(Rate::new("f/imports", 1, MINUTE)), ..Terms::default() };
    create(store, "f/a", &terms).await;
    create(store, "f/b", &terms).await;
    assert_eq!(read(store, "f/a").await.status, Status::Pending);
    let b = read(store, "f/b").await;
    assert_eq!(b.status, Status::Waiting { on: WaitsOn::Timer });
    assert_eq!(b.wake.at_us, b.terms.not_before_us);
    assert!(matches!(store.create(on("f/b", &terms)).await.unwrap(), Created::Exists(_)));
    create(store, "f/c", &terms).await;
    let apart = read(store, "f/c").await.wake.at_us.unwrap() - b.wake.at_us.unwrap();
    assert_eq!(apart, MINUTE.as_micros() as i64, "the one that was there reserved nothing again");
    let both = Terms { keys: vec![Key::new("f/k", 1)], ..terms };
    create(store, "f/d", &both).await;
    assert_eq!(read(store, "f/d").await.status, Status::Waiting { on: WaitsOn::Timer }, "it has its slot");
    let claimed = ready(&fixture.store, "a", 10).await;
    assert_eq!(claimed.len(), 1);
}

/// However many start it at once.
pub async fn one_run_lives_under_a_singletons_name(fixture: Fixture) {
    let (store, other) = (fixture.store.clone(), fixture.other_handle());
    let terms = Terms { singleton: Some("f/nightly".into()), ..Terms::default() };
    let starts = (0..8).map(|n| {
        let (store, run) =
            (if n % 2 == 0 { store.clone() } else { other.clone() }, on(&format!("f/run-{n}"), &terms));
        async move { store.create(run).await.unwrap() }
    });
    let mut holders: Vec<RunKey> = vec![];
    let mut new = 0;
    for (n, created) in join_all(starts).await.into_iter().enumerate() {
        match created {
            Created::New(_) => {
                new += 1;
                holders.push(key(&format!("f/run-{n}")));
            }
            Created::Exists(record) => holders.push(record.key),
        }
    }
    holders.dedup();
    assert_eq!((new, holders.len()), (1, 1), "one is new, and all are told of it");
    let left = store.list(crate::store::ListFilter::default()).await.unwrap();
    assert_eq!(left.len(), 1, "nothing is left of the others");
    let holder =
        async |kind| store.flow().holder(Namespace::default(), kind, "f/nightly".into()).await.unwrap();
    assert_eq!(holder(NameKind::Singleton).await.as_ref(), Some(&holders[0].run));
    assert_eq!(holder(NameKind::Debounce).await, None);
    fail_and_die(&store, holders[0].run.as_str()).await;
    assert!(matches!(store.create(on("f/next", &terms)).await.unwrap(), Created::New(_)), "it is free again");
    let refused = store.retry(holders[0].clone()).await;
    assert!(matches!(refused, Err(StoreError::NameTaken { .. })), "{refused:?}");
}

/// With the latest input, as long as nobody has claimed it.
pub async fn debounced_starts_become_one_run(fixture: Fixture) {
    let store = &*fixture.store;
    let terms = Terms { debounce: Some(Debounce::new("f/index", MINUTE)), ..Terms::default() };
    create(store, "f/first", &terms).await;
    let first = read(store, "f/first").await;
    assert_eq!(first.status, Status::Waiting { on: WaitsOn::Timer });
    let Created::Exists(holder) = store.create(on("f/second", &terms)).await.unwrap() else {
        panic!("one is there")
    };
    assert_eq!(holder.key, key("f/first"));
    assert!(store.run(key("f/second")).await.unwrap().is_none());
    let other = NewRun { terms: terms.clone(), ..Sample::run("f/first").items(3).build() };
    assert_eq!(store.flow().replace(other.clone()).await.unwrap(), Replaced::Done);
    let again = store.load(key("f/first")).await.unwrap();
    assert_eq!(again.checkpoint.digest, other.checkpoint.digest, "it begins with the latest");
    assert!(again.record.wake.at_us > first.wake.at_us, "and waits anew");
    let elsewhere = on("f/second", &terms);
    assert_eq!(
        store.flow().replace(elsewhere).await.unwrap(),
        Replaced::TooLate,
        "it isn't the one of that name"
    );
    store.request_cancel(key("f/first")).await.unwrap();
    assert_eq!(store.flow().replace(other).await.unwrap(), Replaced::TooLate);
    create(store, "f/third", &terms).await;
    assert_eq!(read(store, "f/third").await.status, Status::Waiting { on: WaitsOn::Timer });
}

/// A run that was claimed keeps its input.
pub async fn a_run_that_was_claimed_is_not_replaced(fixture: Fixture) {
    let store = &*fixture.store;
    let terms =
        Terms { debounce: Some(Debounce::new("f/index", Duration::from_micros(1))), ..Terms::default() };
    create(store, "f/first", &terms).await;
    let read = store.run(key("f/first")).await.unwrap().unwrap();
    let (run, lease) = loop {
        match ready(&fixture.store, "a", 1).await.pop() {
            Some(claimed) => break claimed,
            None => {
                assert!(store.clock().now_us() >= read.created_at_us, "its time comes by the store's clock");
            }
        }
    };
    let other = NewRun { terms: terms.clone(), ..Sample::run("f/first").items(3).build() };
    assert_eq!(store.flow().replace(other.clone()).await.unwrap(), Replaced::TooLate);
    // It has begun, and sleeps in its first step.
    let mut holder = Holder::load(&fixture.store, &run, lease).await.unwrap();
    let wake = Wake { at_us: Some(i64::MAX / 2), ..Wake::default() };
    let sleeps = StatusChange { wake, ..holder.status(Status::Waiting { on: WaitsOn::Timer }, true) };
    holder.write(Write::Status(sleeps)).await.unwrap();
    assert_eq!(store.flow().replace(other).await.unwrap(), Replaced::TooLate);
    create(store, "f/second", &terms).await;
}

/// Neither being shut nor another home is a beginning: its epoch says nothing about whether it was claimed.
pub async fn a_debounced_run_is_one_run_wherever_it_moves(fixture: Fixture) {
    let (home, away): (_, Arc<dyn Store>) = (fixture.store.clone(), MemoryStore::shared());
    let terms = Terms { debounce: Some(Debounce::new("f/index", MINUTE)), ..Terms::default() };
    let again = || NewRun { terms: terms.clone(), ..Sample::run("f/first").items(3).build() };
    let is_the_one = async |store: &dyn Store| {
        let Created::Exists(holder) = store.create(on("f/second", &terms)).await.unwrap() else {
            panic!("two of one name wait");
        };
        assert_eq!(holder.key, key("f/first"));
    };
    create(&*home, "f/first", &terms).await;
    home.house().leave(key("f/first"), "away".into()).await.unwrap();
    is_the_one(&*home).await;
    let shut = home.flow().replace(again()).await;
    assert!(matches!(shut, Err(StoreError::Moving { .. })), "whoever starts it tries again: {shut:?}");
    home.house().stay(key("f/first")).await.unwrap();
    for (from, to) in [(&home, &away), (&away, &home)] {
        is_the_one(&**from).await;
        assert_eq!(from.flow().replace(again()).await.unwrap(), Replaced::Done);
        Mover::new(from.clone(), to.clone(), "there").carry(key("f/first")).await.unwrap();
    }
    is_the_one(&*home).await;
    assert_eq!(home.load(key("f/first")).await.unwrap().checkpoint.digest, again().checkpoint.digest);
}

/// With an error that says what is wrong, before anything is written.
pub async fn terms_over_their_limits_are_refused(fixture: Fixture) {
    let store = &*fixture.store;
    let bad = [
        keys(&[("f/a", 1), ("f/b", 1), ("f/c", 1), ("f/d", 1), ("f/e", 1)]),
        keys(&[("f/a", 0)]),
        keys(&[("", 1)]),
        Terms { priority: 101, ..Terms::default() },
    ];
    for terms in bad {
        let refused = store.create(on("f/run", &terms)).await;
        assert!(matches!(refused, Err(StoreError::Terms(_))), "{refused:?}");
    }
    assert!(store.run(key("f/run")).await.unwrap().is_none());
}

/// As if it had never been tried.
pub async fn a_failure_at_any_statement_of_a_release_leaves_nothing(fixture: Fixture) {
    let Some(fail_at) = &fixture.fail_at else { return };
    let store = &*fixture.store;
    for run in ["f/a", "f/b"] {
        create(store, run, &keys(&[("f/k", 1)])).await;
    }
    for statement in 0.. {
        let disarm = fail_at(statement);
        let token = read(store, "f/a").await.terms.token;
        let answer = store.flow().release(key("f/a"), token).await;
        if !disarm() {
            assert_eq!(answer.unwrap(), [key("f/b")], "after {statement} failures it takes effect");
            assert!(is_let_go(store, "f/b").await);
            return;
        }
        assert!(answer.is_err() && !is_let_go(store, "f/b").await, "at {statement}");
        let held = store.flow().key(Namespace::default(), "f/k".into()).await.unwrap().held;
        assert_eq!(held.len(), 1, "at {statement}");
    }
}
