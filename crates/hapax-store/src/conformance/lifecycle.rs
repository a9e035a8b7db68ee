//! Runs begin once, and a failed one can go on from where it stood.

use super::{
    Fixture,
    sample::{Holder, Picture, Sample, failed, intent, key, ready, submit},
};
use crate::{error::StoreError, store::Created};
use hapax_core::{
    commit::{Status, Write, Written},
    journal::{Entry, JournalRow},
    order::PathHash,
};

/// A second start answers the first run's row and changes nothing, claim or not.
pub async fn a_taken_id_is_left_alone(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    holder.commit(holder.next("one")).await.unwrap();
    let before = Picture::of(&fixture.store, &holder.key).await;
    for again in [Sample::run("r"), Sample::run("r").graph("another").claimed_by("b", super::sample::LONG)] {
        let answer = fixture.other_handle().create(again.build()).await.unwrap();
        let Created::Exists(record) = answer else { panic!("created twice") };
        assert_eq!(*record, holder.record().await);
    }
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
}

/// Twenty at once, through two handles.
pub async fn of_many_concurrent_starts_one_creates(fixture: Fixture) {
    let handles = [fixture.store.clone(), fixture.other_handle()];
    let mut racers = tokio::task::JoinSet::new();
    for n in 0..20 {
        let store = handles[n % 2].clone();
        racers.spawn(async move { store.create(Sample::run("r").build()).await.expect("an answer") });
    }
    let answers = racers.join_all().await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Created::New(_))).count(), 1);
}

/// It is pending again, with all its time; its journal says so, and the next holder goes on from its last step.
pub async fn a_failed_run_can_be_retried(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    holder.commit(holder.next("one")).await.unwrap();
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    holder.write(Write::Status(holder.status(failed(), true))).await.unwrap();
    let record = holder.record().await;
    assert_eq!((record.status, record.used_us), (failed(), 1));
    store.retry(holder.key.clone()).await.unwrap();
    let record = holder.record().await;
    assert_eq!((record.status, record.used_us), (Status::Pending, 0));
    let loaded = store.load(holder.key.clone()).await.unwrap();
    let retried = loaded.journal.last().expect("a row");
    assert_eq!((retried.seq, retried.step, retried.base), (2, 1, holder.digest));
    assert_eq!((&retried.entry, loaded.journal.len()), (&Entry::Retried, 3));
    assert_eq!(loaded.record.next_seq, 3);
    let claimed = ready(store, "b", 10).await;
    assert_eq!(claimed.len(), 1, "workers that look for runs find it");
    let mut next = Holder::load(store, &holder.key, claimed[0].1).await.unwrap();
    assert_eq!((next.step, next.next_seq), (1, 3));
    assert_eq!(next.commit(next.next("two")).await.unwrap(), Written::Committed);
    next.finish().await;
}

/// A worker whose answer was lost says again that the run failed, or asks what became of that.
pub async fn a_failure_told_again_undoes_no_retry(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    holder.commit(holder.next("one")).await.unwrap();
    let failure = Write::Status(holder.status(failed(), true));
    submit(store, failure.clone()).await.unwrap();
    fixture.other_handle().retry(holder.key.clone()).await.unwrap();
    let retried = Picture::of(store, &holder.key).await;
    let refused = submit(store, failure.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    let refused = store.settle(failure.into()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    assert_eq!(Picture::of(store, &holder.key).await, retried);
    Holder::claim(store, &holder.key, "b").await.unwrap().finish().await;
}

/// Neither a live nor a finished nor a missing one.
pub async fn only_a_failed_run_can_be_retried(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    let run = holder.key.clone();
    let refused = store.retry(run.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::WrongStatus { .. }), "{refused}");
    holder.finish().await;
    let before = Picture::of(store, &run).await;
    let refused = store.retry(run.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::WrongStatus { .. }), "{refused}");
    assert_eq!(Picture::of(store, &run).await, before);
    let missing = store.retry(key("nobody")).await.unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
}

/// Another handle sees the same, and can go on.
pub async fn what_was_written_survives_a_reopening(fixture: Fixture) {
    let mut holder = Sample::run("r").tag("k", "v").hold(&fixture.store).await;
    holder.commit(holder.next_with("one", 1100, 2, vec![])).await.unwrap();
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    holder.write(Write::Status(holder.status(Status::Running, true))).await.unwrap();
    let before = Picture::of(&fixture.store, &holder.key).await;
    fixture.store.close().await;
    let reopened = fixture.other_handle();
    assert_eq!(Picture::of(&reopened, &holder.key).await, before);
    let next = Holder::claim(&reopened, &holder.key, "b").await.unwrap();
    assert_eq!((next.step, next.next_seq), (holder.step, holder.next_seq));
    next.finish().await;
}

/// A run that goes on from another's step brings what is recorded of it, and numbers its own rows behind that.
pub async fn a_run_may_begin_with_a_record(fixture: Fixture) {
    let store = &fixture.store;
    let mut new = Sample::run("r").at_step(5).build();
    let (base, step) = (new.checkpoint.digest, new.checkpoint.step);
    let row = |seq| JournalRow { seq, base, step, path_hash: PathHash(seq), entry: intent(seq) };
    new.journal = (0..3).map(row).collect();
    assert!(matches!(store.create(new.clone()).await.unwrap(), Created::New(None)));
    let mut holder = Holder::claim(store, &key("r"), "holder").await.unwrap();
    assert_eq!((holder.step, holder.next_seq), (5, 3));
    assert_eq!(store.load(key("r")).await.unwrap().journal, new.journal);
    holder.write(Write::Append(holder.append(1))).await.unwrap();
    assert_eq!(store.load(key("r")).await.unwrap().journal.len(), 4);
    holder.commit(holder.next("six")).await.unwrap();
}
