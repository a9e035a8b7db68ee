//! Letters arrive once, wake whoever waits for them, and are taken with the row that says so; parked runs are woken
//! when their time comes.

use super::{
    Fixture,
    sample::{Holder, Sample, failed, key, ready, shape, submit},
};
use crate::{
    error::StoreError,
    store::{GcPolicy, ListFilter, Outlook, ReadyFilter, Store},
};
use hapax_core::{
    commit::{Append, Status, StatusChange, WaitsOn, Wake, Write, Written},
    error::{Coded, code},
    id::{Namespace, RunKey},
    journal::{Entry, JournalRow},
    json::Json,
    limits::MAX_PAYLOAD_BYTES,
    mailbox::{Letter, NewLetter, Posted},
    order::PathHash,
};
use std::sync::Arc;

/// A letter that says its own id.
fn letter(id: &str, subject: &str) -> NewLetter {
    NewLetter { id: id.into(), subject: subject.into(), payload: Json::of(&id).expect("a text") }
}

/// The holder parks its run until one of these happens.
fn park(holder: &Holder, at_us: Option<i64>, subjects: &[&str]) -> Write {
    let letters = subjects.iter().map(|subject| Arc::from(*subject)).collect();
    let status = Status::Waiting { on: WaitsOn::Signal };
    Write::Status(StatusChange { wake: Wake { at_us, letters }, ..holder.status(status, true) })
}

/// The row by which an item takes a letter.
fn took(holder: &Holder, letter: u64) -> Append {
    let row = JournalRow {
        seq: holder.next_seq,
        base: holder.digest,
        step: holder.step,
        path_hash: PathHash(1),
        entry: Entry::Took { letter },
    };
    Append { rows: vec![row], ..holder.append(0) }
}

async fn waiting(store: &Arc<dyn Store>, run: &RunKey, after: u64) -> Option<Letter> {
    store.letter(run.clone(), "go".into(), after).await.expect("a read")
}

async fn status(store: &Arc<dyn Store>, run: &RunKey) -> Status {
    store.run(run.clone()).await.expect("a read").expect("the run is there").status
}

/// Only a letter of a subject that it waits for, and in the letter's own transaction.
pub async fn a_letter_wakes_whoever_waits_for_it(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    submit(store, park(&holder, None, &["go", "stop"])).await.unwrap();
    assert!(ready(store, "b", 10).await.is_empty(), "a parked run isn't ready");
    let refused = Holder::claim(store, &holder.key, "b").await.err().expect("it is parked");
    assert!(matches!(refused, StoreError::WrongStatus { .. }), "{refused}");
    store.post(holder.key.clone(), letter("1", "another")).await.unwrap();
    assert_eq!(status(store, &holder.key).await, Status::Waiting { on: WaitsOn::Signal });
    store.post(holder.key.clone(), letter("2", "go")).await.unwrap();
    let reopened = fixture.other_handle();
    assert_eq!(status(&reopened, &holder.key).await, Status::Pending);
    assert_eq!(holder.record().await.wake, Wake::default());
    assert_eq!(ready(&reopened, "b", 10).await.len(), 1);
}

/// Else it would wait for what lies in its mailbox already.
pub async fn a_letter_that_came_first_keeps_the_run_awake(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    store.post(holder.key.clone(), letter("1", "go")).await.unwrap();
    assert_eq!(submit(store, park(&holder, None, &["go"])).await.unwrap(), Written::Committed);
    assert_eq!(status(store, &holder.key).await, Status::Pending);
    let mut holder = Holder::claim(store, &holder.key, "b").await.expect("it is pending");
    holder.write(Write::Append(took(&holder, 1))).await.unwrap();
    submit(store, park(&holder, None, &["go"])).await.unwrap();
    assert_eq!(status(store, &holder.key).await, Status::Waiting { on: WaitsOn::Signal });
}

/// Whatever it says the second time, and also after it was taken and the run is over.
pub async fn a_letter_sent_twice_arrives_once(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    let run = holder.key.clone();
    assert_eq!(store.post(run.clone(), letter("1", "go")).await.unwrap(), Posted::New);
    assert_eq!(store.post(run.clone(), letter("1", "other")).await.unwrap(), Posted::Known);
    assert_eq!(waiting(store, &run, 0).await.unwrap().number, 1);
    assert_eq!(waiting(store, &run, 1).await, None);
    holder.write(Write::Append(took(&holder, 1))).await.unwrap();
    assert_eq!(store.post(run.clone(), letter("1", "go")).await.unwrap(), Posted::Known);
    assert_eq!(waiting(store, &run, 0).await, None);
    holder.finish().await;
    assert_eq!(store.post(run, letter("1", "go")).await.unwrap(), Posted::Known);
}

/// In the order in which they arrived.
pub async fn letters_of_a_subject_keep_their_order(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    for id in ["b", "a", "c"] {
        store.post(holder.key.clone(), letter(id, "go")).await.unwrap();
        store.post(holder.key.clone(), letter(&format!("{id}'"), "noise")).await.unwrap();
    }
    let (mut after, mut read) = (0, vec![]);
    while let Some(letter) = waiting(&fixture.other_handle(), &holder.key, after).await {
        after = letter.number;
        read.push(letter.payload.read::<String>().unwrap());
    }
    assert_eq!(read, ["b", "a", "c"]);
}

/// A row that is refused leaves the letter where it was.
pub async fn a_letter_is_taken_with_its_row(fixture: Fixture) {
    let store = &fixture.store;
    let stale = Sample::run("r").hold(store).await;
    store.post(stale.key.clone(), letter("1", "go")).await.unwrap();
    submit(store, Write::Status(stale.status(Status::Running, true))).await.unwrap();
    let mut holder = Holder::claim(store, &stale.key, "b").await.unwrap();
    let refused = submit(store, Write::Append(took(&stale, 1))).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    assert_eq!(waiting(store, &stale.key, 0).await.unwrap().number, 1);
    let mut step = holder.next("one");
    step.journal = took(&holder, 1).rows;
    holder.commit(step).await.unwrap();
    assert_eq!(waiting(store, &stale.key, 0).await, None);
}

/// Nor does a run that isn't there, or a letter that is too large.
pub async fn a_letter_that_cannot_arrive_is_refused(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    let large =
        NewLetter { payload: Json::of(&"x".repeat(MAX_PAYLOAD_BYTES)).unwrap(), ..letter("large", "go") };
    let refused = store.post(holder.key.clone(), large).await.unwrap_err();
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
    let refused = store.post(key("nobody"), letter("1", "go")).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotFound { .. }), "{refused}");
    let run = holder.key.clone();
    submit(store, Write::Status(holder.status(failed(), true))).await.unwrap();
    let refused = store.post(run.clone(), letter("1", "go")).await.unwrap_err();
    assert_eq!(refused.code(), code::ALREADY_FINISHED, "{refused}");
    assert_eq!(waiting(store, &run, 0).await, None);
}

/// Not before, and those of other graphs not at all.
pub async fn a_parked_run_is_ready_when_its_time_comes(fixture: Fixture) {
    let store = &fixture.store;
    let far = i64::MAX / 4;
    for (run, at_us) in [("late", far), ("due", 1), ("overdue", 0)] {
        let holder = Sample::run(run).hold(store).await;
        submit(store, park(&holder, Some(at_us), &["go"])).await.unwrap();
    }
    let filter = |graph: &str| ReadyFilter {
        namespace: Namespace::default(),
        graphs: vec![(graph.into(), shape(graph))],
        limit: 10,
    };
    assert_eq!(store.outlook(filter("another")).await.unwrap(), Outlook::default());
    let outlook = store.outlook(filter("sample")).await.unwrap();
    assert!(outlook.ready && outlook.next.is_some(), "{outlook:?}");
    let claimed = ready(store, "b", 10).await;
    let names: Vec<_> = claimed.iter().map(|(key, _)| key.run.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(!names.contains(&"late"));
    let outlook = store.outlook(filter("sample")).await.unwrap();
    assert!(!outlook.ready && outlook.next.is_some_and(|next| !next.is_zero()), "{outlook:?}");
    assert_eq!(status(store, &key("due")).await, Status::Running);
    // Its timer is gone, so a claim that is lost with its process must leave it ready.
    let running = ListFilter { statuses: vec!["running".into()], ..ListFilter::default() };
    assert_eq!(store.list(running).await.unwrap().len(), 2);
}

/// However it ends, and again when it is retried and ends anew.
pub async fn the_end_of_a_child_wakes_its_parent(fixture: Fixture) {
    let store = &fixture.store;
    let mut parent = Sample::run("parent").hold(store).await;
    let child = Sample::run("parent/child").child_of(&parent.key).hold(store).await;
    assert_eq!(child.record().await.parent.as_ref(), Some(&parent.key.run));
    submit(store, park(&parent, None, &["end:parent/child"])).await.unwrap();
    submit(store, Write::Status(child.status(failed(), true))).await.unwrap();
    assert_eq!(status(store, &parent.key).await, Status::Pending);
    parent = Holder::claim(store, &parent.key, "a").await.unwrap();
    let letter = store.letter(parent.key.clone(), "end:parent/child".into(), 0).await.unwrap().unwrap();
    assert_eq!(letter.payload.read::<Status>().unwrap(), failed());
    parent.write(Write::Append(took(&parent, letter.number))).await.unwrap();

    store.retry(child.key.clone()).await.unwrap();
    submit(store, park(&parent, None, &["end:parent/child"])).await.unwrap();
    Holder::claim(store, &child.key, "b").await.unwrap().finish().await;
    assert_eq!(status(&fixture.other_handle(), &parent.key).await, Status::Pending);
}

/// Of its own and of no other run; those that are over stay as they are.
pub async fn a_cancel_reaches_the_children(fixture: Fixture) {
    let store = &fixture.store;
    let parent = Sample::run("parent").hold(store).await;
    let child = Sample::run("parent/child").child_of(&parent.key).hold(store).await;
    let finished = Sample::run("parent/finished").child_of(&parent.key).hold(store).await;
    let (stranger, over) = (Sample::run("stranger").hold(store).await, finished.key.clone());
    finished.finish().await;
    store.request_cancel(parent.key.clone()).await.unwrap();
    submit(store, Write::Status(parent.status(Status::Cancelled, true))).await.unwrap();
    assert!(child.record().await.cancel_requested);
    assert!(!stranger.record().await.cancel_requested);
    assert_eq!(status(store, &over).await, Status::Succeeded);
    // A holder that was taken for dead may start one only now.
    let late = Sample::run("parent/late").child_of(&parent.key).hold(store).await;
    assert!(late.record().await.cancel_requested);
}

/// It may not have looked yet how the child ended.
pub async fn a_live_runs_child_is_not_swept(fixture: Fixture) {
    let store = &fixture.store;
    let parent = Sample::run("parent").hold(store).await;
    let child = Sample::run("parent/child").child_of(&parent.key).hold(store).await;
    child.finish().await;
    let policy = GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest: 0,
        limit: 10,
        dry_run: false,
    };
    assert!(store.gc(policy.clone()).await.unwrap().deleted.is_empty());
    parent.finish().await;
    assert_eq!(store.gc(policy).await.unwrap().deleted.len(), 2);
}
