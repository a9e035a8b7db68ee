//! A write that comes again changes nothing and is told so: the database decides, never a check before.

use super::{
    Fixture,
    sample::{Picture, Sample, message, step, submit},
};
use crate::store::Pace;
use hapax_core::commit::{PausedBy, Status, Write, Written};
use std::sync::Arc;

/// The original stays byte for byte, its rows and messages are not doubled.
pub async fn a_refused_duplicate_leaves_the_original_unchanged(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let commit = holder.next_with("one", 1100, 3, vec![message("m")]);
    assert_eq!(holder.commit(commit.clone()).await.unwrap(), Written::Committed);
    let before = Picture::of(&fixture.store, &holder.key).await;
    assert_eq!(holder.commit(commit).await.unwrap(), Written::AlreadyCommitted);
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
}

/// One `Committed`, ninety-nine `AlreadyCommitted`, through two handles.
pub async fn of_a_hundred_concurrent_identical_commits_one_is_committed(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    let commit = step(holder.next_with("one", 3, 2, vec![]));
    let handles = [fixture.store.clone(), fixture.other_handle()];
    let mut racers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (store, commit) = (handles[n % 2].clone(), Arc::new(commit.clone()));
        let pace = if n % 4 < 2 { Pace::Ahead } else { Pace::Alone };
        racers.spawn(async move {
            let ticket = store.submit(commit, pace).await.expect("a duplicate is no error");
            ticket.await.expect("a duplicate is no error")
        });
    }
    let outcomes = racers.join_all().await;
    let count = |which| outcomes.iter().filter(|outcome| **outcome == which).count();
    assert_eq!((count(Written::Committed), count(Written::AlreadyCommitted)), (1, 99));
    assert_eq!(holder.record().await.next_seq, 2);
}

/// Steps 1 to 5, 5 again, then 6.
pub async fn a_repeated_step_does_not_stop_the_next_one(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let mut last = None;
    for n in 1..=5 {
        let commit = holder.next(&format!("state {n}"));
        assert_eq!(holder.commit(commit.clone()).await.unwrap(), Written::Committed);
        last = Some(commit);
    }
    let fifth = last.expect("five steps");
    assert_eq!(holder.commit(fifth).await.unwrap(), Written::AlreadyCommitted);
    assert_eq!(holder.commit(holder.next("state 6")).await.unwrap(), Written::Committed);
    assert_eq!(holder.record().await.step, 6);
}

/// Rows that come again are recognised, also when later rows and steps followed them.
pub async fn repeated_journal_rows_are_written_once(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let rows = Write::Append(holder.append(3));
    assert_eq!(holder.write(rows.clone()).await.unwrap(), Written::Committed);
    assert_eq!(submit(&fixture.store, rows.clone()).await.unwrap(), Written::AlreadyCommitted);
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    holder.commit(holder.next_with("one", 1, 1, vec![])).await.unwrap();
    assert_eq!(submit(&fixture.store, rows).await.unwrap(), Written::AlreadyCommitted);
    assert_eq!(fixture.store.journal(holder.key.clone(), 0, 100).await.unwrap().len(), 6);
}

/// With and without the lease given back.
pub async fn a_repeated_change_of_status_is_written_once(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let paused = Status::Paused { by: PausedBy::Backpressure };
    for release in [false, true] {
        let change = Write::Status(holder.status(paused.clone(), release));
        assert_eq!(holder.write(change.clone()).await.unwrap(), Written::Committed);
        assert_eq!(holder.write(change).await.unwrap(), Written::AlreadyCommitted);
    }
    assert_eq!(holder.record().await.owner, None);
}
