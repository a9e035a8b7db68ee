//! A write is there whole, or nothing of it is.

use super::{
    Fixture,
    sample::{Holder, Picture, Sample, message, step},
};
use crate::error::StoreError;
use hapax_core::commit::{Append, StepCommit, Write, Written};

/// Every statement of a step with rows, messages and a frontier of several pages fails in turn; each time nothing
/// is left, and in the end the very same commit passes.
pub async fn a_failure_at_any_statement_leaves_nothing(fixture: Fixture) {
    let Some(fail_at) = &fixture.fail_at else { return };
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let commit = holder.next_with("one", 2500, 5, vec![message("m"), message("n")]);
    let before = Picture::of(&fixture.store, &holder.key).await;
    let mut n = 0;
    loop {
        let fired = fail_at(n);
        let outcome = holder.commit(commit.clone()).await;
        if !fired() {
            assert_eq!(outcome.expect("nothing failed"), Written::Committed);
            break;
        }
        let error = outcome.expect_err("a failed statement cannot commit");
        assert!(nothing_written(&error), "statement {n} failed with {error}");
        assert_eq!(Picture::of(&fixture.store, &holder.key).await, before, "after statement {n}");
        n += 1;
    }
    assert!(n >= 4, "a step with rows and messages takes more than {n} statements");
    let record = holder.record().await;
    assert_eq!((record.step, record.next_seq), (1, 5));
}

fn nothing_written(error: &StoreError) -> bool {
    matches!(error, StoreError::Retry(_) | StoreError::Full(_))
}

/// Whatever the reason of a refusal, the run stays as it was, and no message of a refused step is left behind.
pub async fn a_refused_write_leaves_nothing(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    holder.commit(holder.next_with("one", 2, 2, vec![])).await.expect("the first step");
    let before = Picture::of(&fixture.store, &holder.key).await;
    for (why, write) in refused(&holder) {
        super::sample::submit(&fixture.store, write).await.expect_err(why);
        assert_eq!(Picture::of(&fixture.store, &holder.key).await, before, "{why}");
    }
    let key = holder.key.clone();
    holder.finish().await;
    fixture.store.delete(key).await.expect("no message was left behind");
}

fn refused(holder: &Holder) -> Vec<(&'static str, Write)> {
    let good = holder.next_with("two", 1500, 3, vec![message("m")]);
    let stale = hapax_core::commit::Epoch { counter: 0, ..good.epoch };
    let mut ahead = holder.clone();
    ahead.passed(&step(good.clone()));
    let mut elsewhere = good.base;
    elsewhere.0[0] ^= 1;
    vec![
        ("a stale epoch", step(StepCommit { epoch: stale, ..good.clone() })),
        ("another base", step(StepCommit { base: elsewhere, ..good.clone() })),
        ("a missing step", step(ahead.next_with("three", 1, 1, vec![message("n")]))),
        (
            "a missing step without rows",
            step(StepCommit { first_seq: good.first_seq, ..ahead.next("three") }),
        ),
        ("missing rows", step(StepCommit { first_seq: good.first_seq + 1, ..good.clone() })),
        ("rows of a stale epoch", Write::Append(Append { epoch: stale, ..holder.append(2) })),
        ("rows after a gap", Write::Append(Append { first_seq: good.first_seq + 1, ..holder.append(2) })),
    ]
}
