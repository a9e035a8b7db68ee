//! A cancel is durable, its holder sees it, and neither an intent nor any other end follows it.

use super::{
    Fixture,
    sample::{Holder, LONG, Picture, Sample, claimant, failed, key, step, submit},
};
use crate::error::StoreError;
use hapax_core::{
    commit::{Append, Status, WaitsOn, Write, Written},
    error::{Coded, code},
};

/// Only the holder sees it, again and again, and after a takeover the new one does.
pub async fn a_cancel_is_durable_and_its_holder_sees_it(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    Sample::run("another").hold(store).await;
    assert!(store.cancels("a".into()).await.unwrap().is_empty());
    for _ in 0..2 {
        store.request_cancel(holder.key.clone()).await.expect("asking twice is no error");
        assert_eq!(store.cancels("a".into()).await.unwrap(), std::slice::from_ref(&holder.key));
    }
    assert!(store.cancels("b".into()).await.unwrap().is_empty());
    let reopened = fixture.other_handle();
    assert!(reopened.run(holder.key.clone()).await.unwrap().unwrap().cancel_requested);
    submit(store, Write::Status(holder.status(Status::Running, true))).await.unwrap();
    assert!(store.cancels("a".into()).await.unwrap().is_empty());
    store.claim(holder.key.clone(), claimant("b", LONG)).await.unwrap();
    assert_eq!(reopened.cancels("b".into()).await.unwrap(), std::slice::from_ref(&holder.key));
    let missing = store.request_cancel(key("nobody")).await.unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
}

/// Results, steps on the way and the cancelled end itself still pass: what was done must be recorded.
pub async fn a_cancel_refuses_intents_and_the_end(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    fixture.store.request_cancel(holder.key.clone()).await.unwrap();
    let before = Picture::of(&fixture.store, &holder.key).await;
    let intent = Write::Append(Append { unless_cancelled: true, ..holder.append(1) });
    let failure = Write::Status(holder.status(failed(), true));
    for write in [intent, step(holder.last("end")), failure] {
        let refused = submit(&fixture.store, write.clone()).await.unwrap_err();
        assert!(matches!(refused, StoreError::CancelRequested { .. }), "{refused}");
        let refused = fixture.store.settle(write.into()).await.unwrap_err();
        assert!(matches!(refused, StoreError::CancelRequested { .. }), "{refused}");
    }
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
    assert_eq!(holder.write(Write::Append(holder.append(1))).await.unwrap(), Written::Committed);
    assert_eq!(holder.commit(holder.next("one")).await.unwrap(), Written::Committed);
    let end = Write::Status(holder.status(Status::Cancelled, true));
    assert_eq!(holder.write(end).await.unwrap(), Written::Committed);
    assert!(fixture.store.cancels("a".into()).await.unwrap().is_empty());
    let over = fixture.store.claim(holder.key.clone(), claimant("b", LONG)).await.unwrap_err();
    assert_eq!(over.code(), code::ALREADY_FINISHED, "{over}");
}

/// The answer says that it is over.
pub async fn a_finished_run_cannot_be_cancelled(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    let run = holder.key.clone();
    holder.finish().await;
    let refused = fixture.store.request_cancel(run.clone()).await.unwrap_err();
    assert_eq!(refused.code(), code::ALREADY_FINISHED, "{refused}");
    assert!(!fixture.store.run(run).await.unwrap().unwrap().cancel_requested);
}

/// Somebody must carry the cancel out.
pub async fn a_parked_run_to_be_cancelled_can_be_claimed(fixture: Fixture) {
    let store = &fixture.store;
    let holder = Sample::run("r").hold(store).await;
    let parked = Status::Waiting { on: WaitsOn::Signal };
    submit(store, Write::Status(holder.status(parked, true))).await.unwrap();
    store.request_cancel(holder.key.clone()).await.unwrap();
    let next = Holder::claim(store, &holder.key, "b").await.expect("to be cancelled, so claimable");
    assert_eq!(next.record().await.status, Status::Running);
}
