//! A run's writes become visible in the order in which they were submitted, and none without those before it.

use super::{
    Fixture,
    sample::{Holder, Sample, step, submit},
};
use crate::{
    error::StoreError,
    store::{Pace, Store},
};
use hapax_core::{
    commit::{StepCommit, Write, Written},
    id::RunKey,
};
use std::sync::Arc;

/// A worker that waits for nothing submits forty writes; a reader always sees a prefix of them.
pub async fn writes_become_visible_in_the_order_of_their_submission(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let reader = tokio::spawn(watch(fixture.other_handle(), holder.key.clone()));
    let mut tickets = vec![];
    for n in 0..20_u64 {
        for kind in 0..2 {
            let write = rows_or_step(&holder, kind, n);
            holder.passed(&write);
            tickets.push(fixture.store.submit(Arc::new(write), Pace::Ahead).await.expect("accepted"));
        }
    }
    for ticket in tickets {
        assert_eq!(ticket.await.unwrap(), Written::Committed);
    }
    let seen = reader.await.expect("the reader saw prefixes only");
    assert!(seen >= 1);
}

/// Two rows, then a step with one.
fn rows_or_step(holder: &Holder, kind: u64, n: u64) -> Write {
    match kind {
        0 => Write::Append(holder.append(2)),
        _ => step(holder.next_with(&n.to_string(), 1, 1, vec![])),
    }
}

/// Reads until step 20 is there: two rows and a step with one row, again and again.
async fn watch(store: Arc<dyn Store>, key: RunKey) -> usize {
    let mut reads = 0;
    loop {
        let record = store.run(key.clone()).await.unwrap().expect("the run is there");
        let whole = record.step * 3;
        assert!([whole, whole + 2].contains(&record.next_seq), "step {}: {}", record.step, record.next_seq);
        reads += 1;
        if record.step == 20 {
            return reads;
        }
        tokio::task::yield_now().await;
    }
}

/// The second of three steps is refused, so the third isn't applied either; then all of them pass in order.
pub async fn a_write_after_a_failed_one_is_not_applied(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let writes = chain(&mut holder);
    let first = submit(&fixture.store, writes[0].clone()).await.unwrap();
    assert_eq!(first, Written::Committed);
    for write in &writes[2..] {
        let refused = submit(&fixture.store, write.clone()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Retry(_)), "{refused}");
    }
    assert_eq!(holder.record().await.step, 1);
    for write in &writes[1..] {
        assert_eq!(submit(&fixture.store, write.clone()).await.unwrap(), Written::Committed);
    }
    assert_eq!(holder.record().await.step, holder.step);
}

/// A step takes no journal numbers, so rows behind a missing one have the number that is next all the same.
pub async fn rows_behind_a_missing_step_are_not_applied(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let missing = step(holder.next("one"));
    holder.passed(&missing);
    let rows = Write::Append(holder.append(1));
    let refused = submit(&fixture.store, rows.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Retry(_)), "{refused}");
    assert_eq!(holder.record().await.next_seq, 0);
    for write in [missing, rows] {
        assert_eq!(submit(&fixture.store, write.clone()).await.unwrap(), Written::Committed);
        assert_eq!(submit(&fixture.store, write).await.unwrap(), Written::AlreadyCommitted);
    }
}

/// A step, rows, and what needs both: a step, more rows, a last step.
fn chain(holder: &mut Holder) -> Vec<Write> {
    let mut writes = vec![];
    let mut push = |holder: &mut Holder, write: Write| {
        holder.passed(&write);
        writes.push(write);
    };
    push(holder, step(holder.next("one")));
    push(holder, Write::Append(holder.append(2)));
    push(holder, step(holder.next("two")));
    push(holder, Write::Append(holder.append(1)));
    push(holder, step(StepCommit { ends: true, ..holder.next_with("three", 0, 1, vec![]) }));
    writes
}
