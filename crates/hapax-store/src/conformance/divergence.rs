//! Two executions that differ are told apart: the later one is a conflict and leaves the stored one untouched.

use super::{
    Fixture,
    sample::{Picture, Sample, intent, submit},
};
use crate::error::StoreError;
use hapax_core::{
    commit::{Append, StepCommit, Write},
    key::Digest,
};

/// The conflict names the step and both digests.
pub async fn a_divergent_commit_of_a_step_is_a_conflict(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let (one, other) = (holder.next("one"), holder.next("another"));
    let (stored_digest, our_digest) = (one.checkpoint.digest, other.checkpoint.digest);
    holder.commit(one).await.unwrap();
    let before = Picture::of(&fixture.store, &holder.key).await;
    let refused = holder.clone().commit(other.clone()).await.unwrap_err();
    let StoreError::Conflict { run, step, stored, ours } = refused else { panic!("{refused}") };
    assert_eq!((run, step), (holder.key.clone(), 1));
    assert_eq!((stored, ours), (stored_digest, our_digest));
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
    // Also when the run has gone on since.
    holder.commit(holder.next("two")).await.unwrap();
    let refused = holder.clone().commit(other).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { step: 1, .. }), "{refused}");
}

/// The step before it isn't the one that is stored.
pub async fn a_commit_upon_another_base_is_a_conflict(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    holder.commit(holder.next("one")).await.unwrap();
    let base = Digest([7; 32]);
    let commit = StepCommit { base, ..holder.next("two") };
    let before = Picture::of(&fixture.store, &holder.key).await;
    let refused = holder.clone().commit(commit).await.unwrap_err();
    let StoreError::Conflict { step, stored, ours, .. } = refused else { panic!("{refused}") };
    assert_eq!((step, stored, ours), (1, holder.digest, base));
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
}

/// The same numbers, other rows.
pub async fn divergent_journal_rows_are_a_conflict(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let mut other = holder.append(3);
    other.rows[2].entry = intent(99);
    holder.write(Write::Append(holder.append(3))).await.unwrap();
    let before = Picture::of(&fixture.store, &holder.key).await;
    let refused = submit(&fixture.store, Write::Append(other)).await.unwrap_err();
    let StoreError::Conflict { stored, ours, .. } = refused else { panic!("{refused}") };
    assert_ne!(stored, ours);
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
}

/// A step that would number its rows over stored ones is no duplicate and must not replace them.
pub async fn a_step_whose_rows_collide_is_refused(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let behind = holder.next_with("one", 1, 2, vec![]);
    holder.write(Write::Append(Append { unless_cancelled: true, ..holder.append(1) })).await.unwrap();
    let before = Picture::of(&fixture.store, &holder.key).await;
    let refused = holder.clone().commit(behind).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
}

/// The unique key stands beside the step's number: a key that the run has used up commits nothing more.
pub async fn a_used_key_is_refused(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let first = holder.next("one");
    let used = first.checkpoint.key;
    holder.commit(first).await.unwrap();
    let mut second = holder.next_with("two", 1100, 1, vec![]);
    second.checkpoint.key = used;
    let before = Picture::of(&fixture.store, &holder.key).await;
    let refused = holder.clone().commit(second).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
    holder.commit(holder.next("two")).await.expect("a fresh key passes");
}
