//! A lost answer can be found out: there, not there, fenced, or in conflict.

use super::{
    Fixture,
    sample::{Holder, Picture, Sample, intent, step},
};
use crate::error::StoreError;
use hapax_core::{
    commit::{PausedBy, Status, Write, Written},
    key::Digest,
};
use std::sync::Arc;

/// For each kind of write: before it, after it, and when another content is there.
pub async fn settling_tells_what_became_of_a_write(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    for kind in 0..3 {
        let (write, other) = (kind_of_write(&holder, kind, false), kind_of_write(&holder, kind, true));
        let missing = fixture.store.settle(write.clone().into()).await.unwrap_err();
        assert!(matches!(missing, StoreError::Retry(_)), "{missing}");
        assert_eq!(holder.write(write.clone()).await.unwrap(), Written::Committed);
        let settled = fixture.other_handle().settle(write.into()).await.unwrap();
        assert_eq!(settled, Written::AlreadyCommitted);
        let refused = fixture.store.settle(other.into()).await.unwrap_err();
        match kind {
            // Another status isn't a conflict: it may simply be written next.
            2 => assert!(matches!(refused, StoreError::Retry(_)), "{refused}"),
            _ => assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}"),
        }
    }
    let mut fenced = holder.clone();
    fenced.epoch.counter += 1;
    let refused = fixture.store.settle(step(fenced.next("next")).into()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    let mut astray = holder.next("next");
    astray.base = Digest([1; 32]);
    let refused = fixture.store.settle(step(astray).into()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
}

/// A step, rows, a status; and what differs from each.
fn kind_of_write(holder: &Holder, kind: usize, other: bool) -> Write {
    match kind {
        0 => step(holder.next_with(if other { "another" } else { "one" }, 2, 1, vec![])),
        1 => {
            let mut append = holder.append(2);
            if other {
                append.rows[1].entry = intent(99);
            }
            Write::Append(append)
        }
        _ => {
            let by = if other { PausedBy::Operator } else { PausedBy::Backpressure };
            Write::Status(holder.status(Status::Paused { by }, false))
        }
    }
}

/// Whatever it answers.
pub async fn settling_writes_nothing(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    let before = Picture::of(&fixture.store, &holder.key).await;
    for kind in 0..3 {
        let write = Arc::new(kind_of_write(&holder, kind, false));
        fixture.store.settle(write).await.expect_err("it isn't there");
        assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
    }
}
