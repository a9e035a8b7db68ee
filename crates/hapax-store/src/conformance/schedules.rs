//! A time that is due starts one run, whoever fires, and however often.

use super::{
    Fixture,
    sample::{Sample, claimant, key},
};
use crate::{
    schedules::{Added, DueFilter, Fire, Fired, ScheduleRecord, Turn},
    store::{NewRun, Store},
};
use hapax_core::{
    id::Namespace,
    json::Json,
    schedule::{Overlap, Schedule, ScheduleKey},
};
use std::{sync::Arc, time::Duration};

const HOUR_US: i64 = 3_600_000_000;

/// A schedule of the graph of samples.
///
/// ```
/// use hapax_store::conformance::schedules::nightly;
/// assert_eq!((&*nightly("reports").key.name, &*nightly("reports").graph), ("reports", "sample"));
/// ```
pub fn nightly(name: &str) -> Schedule {
    Schedule {
        key: ScheduleKey { namespace: Namespace::default(), name: name.into() },
        graph: "sample".into(),
        input: Json::of(&["start"]).expect("plain data"),
        input_version: None,
        cron: "0 2 * * *".into(),
        zone: "Europe/Berlin".into(),
        overlap: Overlap::Skip,
        catch_up: 1,
    }
}

/// A time that has come by the store's clock.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::schedules::due_now};
/// let store = MemoryStore::shared();
/// assert!(due_now(&*store) < Some(store.clock().now_us()));
/// ```
pub fn due_now(store: &dyn Store) -> Option<i64> {
    Some(store.clock().now_us() - HOUR_US)
}

/// Adds a schedule that is due.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use hapax_store::{MemoryStore, conformance::schedules::{added, nightly}};
/// let record = added(&*MemoryStore::shared(), nightly("reports")).await;
/// assert!(record.next_us.is_some() && !record.paused);
/// # }
/// ```
pub async fn added(store: &dyn Store, schedule: Schedule) -> ScheduleRecord {
    match store.schedules().add(schedule, due_now(store)).await.expect("it is within every limit") {
        Added::New(record) => *record,
        Added::Exists(record) => panic!("{} exists already", record.schedule.key),
    }
}

async fn read(store: &dyn Store, name: &str) -> ScheduleRecord {
    store.schedules().get(nightly(name).key).await.expect("a read").expect("it is there")
}

/// The firing that is due, with a run of that name; it is due again at once.
fn firing(read: &ScheduleRecord, run: &str) -> Fire {
    let at_us = read.next_us.expect("it is due");
    Fire { run: Some(Sample::run(run).build()), ..Fire::of(read, at_us + 1) }
}

async fn fire(store: &dyn Store, fire: Fire) -> Fired {
    store.schedules().fire(fire).await.expect("an answer")
}

async fn is_there(store: &dyn Store, run: &str) -> bool {
    store.run(key(run)).await.expect("a read").is_some()
}

/// With everything that it says; its name is taken, in its namespace.
pub async fn a_schedule_is_kept_as_it_was_added(fixture: Fixture) {
    let (store, other) = (&*fixture.store, fixture.other_handle());
    let schedule = Schedule {
        overlap: Overlap::Queue,
        catch_up: 1000,
        input_version: Some(u32::MAX),
        input: Json::of(&[u64::MAX.to_string(), "é\u{0}\n".repeat(500)]).unwrap(),
        ..nightly("é")
    };
    let Added::New(new) = store.schedules().add(schedule.clone(), Some(i64::MAX)).await.unwrap() else {
        panic!("nothing was there")
    };
    assert_eq!((&new.schedule, new.next_us, new.paused), (&schedule, Some(i64::MAX), false));
    assert_eq!((new.started, new.skipped, new.missed, &new.last), (0, 0, 0, &None));
    assert_eq!(other.schedules().get(schedule.key.clone()).await.unwrap().as_ref(), Some(&*new));
    let again = store.schedules().add(nightly("é"), Some(1)).await.unwrap();
    assert_eq!(again, Added::Exists(new.clone()), "a name is taken once");
    let elsewhere = ScheduleKey { namespace: Namespace::new("other").unwrap(), ..schedule.key.clone() };
    store.schedules().add(Schedule { key: elsewhere.clone(), ..nightly("é") }, None).await.unwrap();
    let first = added(store, nightly("a")).await;
    assert_eq!(store.schedules().list(Namespace::default()).await.unwrap(), [first, *new]);
    assert!(store.schedules().remove(schedule.key.clone()).await.unwrap());
    assert!(!store.schedules().remove(schedule.key.clone()).await.unwrap(), "it is gone");
    assert_eq!(store.schedules().turn(schedule.key, Turn::Off).await.unwrap(), None);
    assert!(store.schedules().get(elsewhere).await.unwrap().is_some(), "another tenant's stays");
}

/// Its limits are those of its name, its expression and its catch-up.
pub async fn a_schedule_over_its_limits_is_refused(fixture: Fixture) {
    let long = "x".repeat(256);
    let cases = [
        nightly(&long[..201]),
        nightly("two\nlines"),
        Schedule { cron: long, ..nightly("s") },
        Schedule { catch_up: 0, ..nightly("s") },
        Schedule { catch_up: 1001, ..nightly("s") },
    ];
    for schedule in cases {
        fixture.store.schedules().add(schedule, None).await.expect_err("it can't be kept");
    }
    assert!(fixture.store.schedules().list(Namespace::default()).await.unwrap().is_empty());
}

/// Twenty fire what all of them have read, through two handles.
pub async fn of_many_concurrent_firings_one_starts_its_run(fixture: Fixture) {
    let read_before = added(&*fixture.store, nightly("s")).await;
    let handles = [fixture.store.clone(), fixture.other_handle()];
    let mut racers = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (store, order) = (handles[n % 2].clone(), firing(&read_before, &format!("s@{n}")));
        racers.spawn(async move { fire(&*store, order).await });
    }
    let mut fired = racers.join_all().await;
    fired.retain(|fired| *fired != Fired::NotNow);
    assert_eq!(fired, [Fired::Started]);
    let runs = fixture.store.list(crate::ListFilter::default()).await.unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    let after = read(&*fixture.store, "s").await;
    assert_eq!((after.started, after.skipped, after.missed), (1, 0, 0));
    assert_eq!(after.last.map(|last| last.run), Some(runs[0].key.run.clone()));
    assert_eq!(after.next_us, read_before.next_us.map(|at| at + 1));
}

/// Paused, resumed, removed, added anew, fired by another: what was worked out before is void, and leaves no run.
pub async fn a_schedule_that_changed_since_it_was_read_fires_nothing(fixture: Fixture) {
    let (store, other) = (&*fixture.store, fixture.other_handle());
    let void = async |order: Fire, why: &str| {
        assert_eq!(fire(store, order).await, Fired::NotNow, "{why}");
        assert!(!is_there(store, "s@void").await, "{why}");
    };
    let first = added(store, nightly("s")).await;
    let paused = other.schedules().turn(nightly("s").key, Turn::Off).await.unwrap().unwrap();
    assert!(paused.paused && paused.next_us == first.next_us);
    void(firing(&first, "s@void"), "it was paused").await;
    void(firing(&paused, "s@void"), "it is paused").await;
    assert_eq!(other.schedules().turn(nightly("s").key, Turn::Off).await.unwrap().unwrap(), paused);
    let on = Turn::On { token: paused.token, next_us: first.next_us, missed: 0 };
    let resumed = other.schedules().turn(nightly("s").key, on).await.unwrap().unwrap();
    void(firing(&first, "s@void"), "it was paused, and goes on").await;
    other.schedules().remove(nightly("s").key).await.unwrap();
    void(firing(&resumed, "s@void"), "it was removed").await;
    let anew = added(&*other, nightly("s")).await;
    void(firing(&resumed, "s@void"), "another one has its name").await;
    assert_eq!(fire(&*other, firing(&anew, "s@1")).await, Fired::Started);
    void(firing(&anew, "s@void"), "another was faster").await;
    let again = read(store, "s").await;
    let on = Turn::On { token: again.token, next_us: None, missed: 1 };
    let ignored = other.schedules().turn(nightly("s").key, on).await.unwrap();
    assert_eq!(ignored, Some(again), "who isn't paused goes on as it did");
}

/// Once: who has read a row that changed since has counted another time.
pub async fn what_was_due_while_a_schedule_was_paused_is_counted(fixture: Fixture) {
    let (store, other) = (&*fixture.store, fixture.other_handle());
    let turn = async |to: Turn| other.schedules().turn(nightly("s").key, to).await.unwrap().unwrap();
    let first = added(store, nightly("s")).await;
    let on = |read: &ScheduleRecord, missed| Turn::On { token: read.token, next_us: first.next_us, missed };
    let paused = turn(Turn::Off).await;
    assert_eq!(turn(on(&first, 7)).await, paused, "that was before the pause");
    let resumed = turn(on(&paused, 3)).await;
    assert_eq!((resumed.paused, resumed.missed, resumed.next_us), (false, 3, first.next_us));
    let again = turn(Turn::Off).await;
    assert_eq!(turn(on(&paused, 7)).await, again, "another pause");
    assert_eq!(turn(on(&again, 4)).await.missed, 7);
    assert_eq!(fire(store, firing(&read(store, "s").await, "s@1")).await, Fired::Started);
    assert_eq!(read(store, "s").await.missed, 7);
}

/// The store's clock says so, whatever whoever fires takes for the time.
pub async fn a_schedule_does_not_fire_before_its_time(fixture: Fixture) {
    let store = &*fixture.store;
    let later = store.clock().now_us() + HOUR_US;
    let Added::New(early) = store.schedules().add(nightly("s"), Some(later)).await.unwrap() else {
        panic!("nothing was there")
    };
    assert_eq!(fire(store, firing(&early, "s@void")).await, Fired::NotNow);
    assert!(!is_there(store, "s@void").await);
    assert_eq!(read(store, "s").await, *early, "nothing was changed");
}

/// Until it is over, or gone.
pub async fn a_firing_is_skipped_while_the_run_before_it_lives(fixture: Fixture) {
    let store = &*fixture.store;
    let first = added(store, nightly("s")).await;
    assert_eq!(fire(store, firing(&first, "s@1")).await, Fired::Started);
    let second = read(store, "s").await;
    assert_eq!(fire(store, firing(&second, "s@2")).await, Fired::Skipped);
    assert!(!is_there(store, "s@2").await);
    let third = read(store, "s").await;
    assert_eq!((third.started, third.skipped, &third.last), (1, 1, &second.last));
    finish(&fixture.store, "s@1").await;
    assert_eq!(fire(store, firing(&third, "s@3")).await, Fired::Started);
    finish(&fixture.store, "s@3").await;
    store.delete(key("s@3")).await.unwrap();
    assert_eq!(fire(store, firing(&read(store, "s").await, "s@4")).await, Fired::Started);
}

/// It changes nothing until then.
pub async fn a_queued_firing_waits_for_the_run_before_it(fixture: Fixture) {
    let store = &*fixture.store;
    let first = added(store, Schedule { overlap: Overlap::Queue, ..nightly("s") }).await;
    assert_eq!(fire(store, firing(&first, "s@1")).await, Fired::Started);
    let waiting = read(store, "s").await;
    assert_eq!(fire(store, firing(&waiting, "s@2")).await, Fired::Waits);
    assert_eq!(read(store, "s").await, waiting);
    assert!(!is_there(store, "s@2").await);
    finish(&fixture.store, "s@1").await;
    assert_eq!(fire(store, firing(&waiting, "s@2")).await, Fired::Started, "it is the same firing");
}

/// And starts at once.
pub async fn a_cancelling_firing_asks_for_the_cancel_of_the_run_before_it(fixture: Fixture) {
    let store = &*fixture.store;
    let first = added(store, Schedule { overlap: Overlap::Cancel, ..nightly("s") }).await;
    assert_eq!(fire(store, firing(&first, "s@1")).await, Fired::Started);
    assert_eq!(fire(store, firing(&read(store, "s").await, "s@2")).await, Fired::Started);
    assert!(store.run(key("s@1")).await.unwrap().unwrap().cancel_requested);
    assert!(!store.run(key("s@2")).await.unwrap().unwrap().cancel_requested);
    store.claim(key("s@1"), claimant("a", Duration::ZERO)).await.expect("its cancel can be carried out");
}

/// For good, with or without a run behind it; what comes is told in the end as well.
pub async fn what_is_passed_over_is_counted(fixture: Fixture) {
    let store = &*fixture.store;
    let first = added(store, nightly("s")).await;
    let passed = Fire { missed: 10_000, ..Fire::of(&first, first.next_us.unwrap() + 7) };
    assert_eq!(fire(store, passed).await, Fired::Skipped);
    let second = read(store, "s").await;
    assert_eq!((second.missed, second.skipped, second.started), (10_000, 0, 0));
    assert_eq!(second.next_us, first.next_us.map(|at| at + 7));
    let last = Fire { missed: 2, next_us: None, ..firing(&second, "s@1") };
    assert_eq!(fire(store, last).await, Fired::Started);
    let over = read(store, "s").await;
    assert_eq!((over.missed, over.started, over.next_us), (10_002, 1, None));
    let filter = DueFilter { graphs: vec!["sample".into()], ..DueFilter::default() };
    assert!(store.schedules().due(filter).await.unwrap().is_empty(), "it is over");
}

/// The schedule goes on, and counts it.
pub async fn a_run_that_is_there_already_is_not_started_again(fixture: Fixture) {
    let store = &*fixture.store;
    Sample::run("s@1").tag("whose", "ours").create(&fixture.store).await;
    let first = added(store, nightly("s")).await;
    assert_eq!(fire(store, firing(&first, "s@1")).await, Fired::Exists);
    let after = read(store, "s").await;
    assert_eq!((after.started, after.skipped), (0, 1));
    assert_eq!(after.last.map(|last| last.run), Some(key("s@1").run));
    assert_eq!(store.run(key("s@1")).await.unwrap().unwrap().tags["whose"], "ours");
}

/// Of the asker's graphs and namespace, unless they are paused; the longest due first.
pub async fn only_what_is_due_is_told(fixture: Fixture) {
    let store = &*fixture.store;
    let now = store.clock().now_us();
    let add = async |schedule: Schedule, next_us: Option<i64>| {
        store.schedules().add(schedule, next_us).await.expect("it is added");
    };
    add(nightly("second"), Some(now - HOUR_US)).await;
    add(nightly("first"), Some(now - 2 * HOUR_US)).await;
    add(nightly("later"), Some(now + HOUR_US)).await;
    add(nightly("never"), None).await;
    add(nightly("paused"), Some(now - HOUR_US)).await;
    store.schedules().turn(nightly("paused").key, Turn::Off).await.unwrap();
    add(Schedule { graph: "other".into(), ..nightly("other graph") }, Some(now - HOUR_US)).await;
    let elsewhere = ScheduleKey { namespace: Namespace::new("other").unwrap(), name: "s".into() };
    add(Schedule { key: elsewhere, ..nightly("s") }, Some(now - HOUR_US)).await;
    let due = async |graphs: &[&str], within| {
        let graphs = graphs.iter().map(|graph| (*graph).into()).collect();
        let filter = DueFilter { graphs, within, ..DueFilter::default() };
        let due = store.schedules().due(filter).await.expect("an answer");
        due.into_iter().map(|record| record.schedule.key.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(due(&["sample"], Duration::ZERO).await, ["first", "second"]);
    let within = Duration::from_secs(2 * 3600);
    assert_eq!(due(&["sample"], within).await, ["first", "second", "later"]);
    assert_eq!(due(&["other", "unknown"], within).await, ["other graph"]);
    assert!(due(&[], within).await.is_empty());
}

/// Neither a run nor a mark in the row; then the very same firing passes.
pub async fn a_failure_at_any_statement_of_a_firing_leaves_nothing(fixture: Fixture) {
    let Some(fail_at) = &fixture.fail_at else { return };
    let store = &*fixture.store;
    let first = added(store, Schedule { overlap: Overlap::Cancel, ..nightly("s") }).await;
    assert_eq!(fire(store, firing(&first, "s@1")).await, Fired::Started);
    let before = read(store, "s").await;
    let run = NewRun { tags: [("schedule".into(), "s".into())].into(), ..Sample::run("s@2").build() };
    let order = Fire { run: Some(run), ..firing(&before, "s@2") };
    let mut n = 0;
    loop {
        let fired = fail_at(n);
        let outcome = store.schedules().fire(order.clone()).await;
        if !fired() {
            assert_eq!(outcome.expect("nothing failed"), Fired::Started);
            break;
        }
        outcome.expect_err("a failed statement cannot commit");
        assert_eq!(read(store, "s").await, before, "after statement {n}");
        assert!(!is_there(store, "s@2").await, "after statement {n}");
        assert!(!store.run(key("s@1")).await.unwrap().unwrap().cancel_requested, "after statement {n}");
        n += 1;
    }
    assert!(n >= 5, "a firing takes more than {n} statements");
}

/// Ends a run that nobody holds.
async fn finish(store: &Arc<dyn Store>, run: &str) {
    use hapax_core::commit::{Status, StatusChange, Wake, Write};
    let lease =
        store.claim(key(run), claimant("a", Duration::from_secs(600))).await.expect("nobody holds it");
    let (status, wake) = (Status::Cancelled, Wake::default());
    let change = StatusChange { run: key(run), epoch: lease.epoch, status, release: true, used_us: 0, wake };
    super::sample::submit(store, Write::Status(change)).await.expect("it ends");
}
