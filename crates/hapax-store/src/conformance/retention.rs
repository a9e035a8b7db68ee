//! A run goes whole, and only when it is over and has nothing left to send.

use super::{
    Fixture,
    sample::{Picture, Sample, failed, key, message, shape, submit},
};
use crate::{
    error::StoreError,
    outbox::OutboxFilter,
    store::{GcPolicy, GcReport, ListFilter, Store},
};
use hapax_core::{
    commit::{Status, StepCommit, Write, Written},
    id::Namespace,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Nothing of it is left, and its id can be used for another run with the same steps and keys.
pub async fn a_finished_run_is_deleted_whole(fixture: Fixture) {
    let store = &fixture.store;
    let sample = || Sample::run("r").items(1100);
    let mut holder = sample().tag("k", "v").hold(store).await;
    holder.commit(holder.next_with("one", 1100, 3, vec![])).await.unwrap();
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    holder.finish().await;
    store.delete(key("r")).await.unwrap();
    assert_gone(store).await;
    let mut again = sample().hold(store).await;
    let record = again.record().await;
    assert_eq!((record.step, record.next_seq, record.epoch.counter), (0, 0, 1));
    assert_eq!(record.tags, BTreeMap::new());
    assert_eq!(store.checkpoint(key("r"), 1).await.unwrap(), None);
    assert_eq!(store.journal(key("r"), 0, 100).await.unwrap(), []);
    again.commit(again.next_with("one", 1100, 3, vec![])).await.unwrap();
    again.finish().await;
}

async fn assert_gone(store: &Arc<dyn Store>) {
    assert_eq!(store.run(key("r")).await.unwrap(), None);
    assert_eq!(store.checkpoint(key("r"), 0).await.unwrap(), None);
    assert_eq!(store.frontier_page(key("r"), 1, 1).await.unwrap(), []);
    assert_eq!(store.journal(key("r"), 0, 100).await.unwrap(), []);
    assert!(matches!(store.load(key("r")).await.unwrap_err(), StoreError::NotFound { .. }));
    let tags = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    assert_eq!(store.list(ListFilter { tags, ..ListFilter::default() }).await.unwrap(), []);
    assert!(matches!(store.delete(key("r")).await.unwrap_err(), StoreError::NotFound { .. }));
}

/// Held, pending or parked.
pub async fn a_live_run_is_not_deleted(fixture: Fixture) {
    let store = &fixture.store;
    Sample::run("pending").create(store).await;
    Sample::run("running").hold(store).await;
    let parked = Sample::run("parked").hold(store).await;
    submit(store, Write::Status(parked.status(Status::InDoubt, true))).await.unwrap();
    for name in ["pending", "running", "parked"] {
        let before = Picture::of(store, &key(name)).await;
        let refused = store.delete(key(name)).await.unwrap_err();
        assert!(matches!(refused, StoreError::WrongStatus { .. }), "{refused}");
        assert_eq!(Picture::of(store, &key(name)).await, before);
    }
    assert_eq!(store.gc(everything()).await.unwrap(), GcReport::default());
}

fn everything() -> GcPolicy {
    GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest: 0,
        limit: 1000,
        dry_run: false,
    }
}

/// Neither one by one nor by retention, however it ended.
pub async fn a_run_with_an_unsent_message_is_not_deleted(fixture: Fixture) {
    let store = &fixture.store;
    let mut sends = Sample::run("sends").hold(store).await;
    sends.commit(sends.next_with("one", 1, 0, vec![message("m")])).await.unwrap();
    sends.write(Write::Status(sends.status(failed(), true))).await.unwrap();
    let mut ends = Sample::run("ends").hold(store).await;
    let last = StepCommit { ends: true, ..ends.next_with("end", 0, 0, vec![message("m")]) };
    ends.commit(last).await.unwrap();
    for name in ["sends", "ends"] {
        let refused = store.delete(key(name)).await.unwrap_err();
        assert!(matches!(refused, StoreError::WrongStatus { .. }), "{refused}");
    }
    assert_eq!(store.gc(everything()).await.unwrap(), GcReport { deleted: vec![], unsent: 2 });
    store.load(key("sends")).await.expect("still there");
}

/// Its earlier checkpoints, keys and rows are gone with the very commit, and it is of that shape from then on. A commit
/// that is sent again is recognised.
pub async fn a_run_that_begins_anew_keeps_only_what_follows(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").items(1100).hold(store).await;
    holder.commit(holder.next_with("one", 1100, 3, vec![message("m")])).await.unwrap();
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    let anew = StepCommit { fresh: Some(shape("newer")), ..holder.next_with("anew", 1, 1, vec![]) };
    holder.commit(anew.clone()).await.unwrap();
    let kept = store.checkpoints(key("r"), 0, 10).await.unwrap();
    assert_eq!(kept.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [2]);
    assert_eq!(store.frontier_page(key("r"), 1, 1).await.unwrap(), []);
    assert_eq!(store.journal(key("r"), 0, 100).await.unwrap(), []);
    let record = store.run(key("r")).await.unwrap().unwrap();
    assert_eq!((record.fingerprint, record.next_seq), (shape("newer"), 6), "rows are numbered on");
    let unsent = store.outbox().list(OutboxFilter::default()).await.unwrap();
    assert_eq!(unsent.len(), 1, "what was sent is still delivered");
    let again = submit(store, Write::Step(Box::new(anew))).await.unwrap();
    assert_eq!(again, Written::AlreadyCommitted);
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    // A state that the old ones can't help to read.
    holder.commit(holder.next("anew and on")).await.unwrap();
    assert_eq!(store.load(key("r")).await.unwrap().checkpoint.step, 3);
    assert_eq!(store.journal(key("r"), 0, 100).await.unwrap().len(), 2);
}

/// Oldest first, up to the limit; the newest are kept, and so are the young.
pub async fn retention_goes_by_age_and_count(fixture: Fixture) {
    let store = &fixture.store;
    for name in ["r1", "r2", "r3", "r4", "r5"] {
        Sample::run(name).hold(store).await.finish().await;
        end_of_this_microsecond(store, name).await;
    }
    Sample::run("live").hold(store).await;
    Sample::run("r1").namespace("elsewhere").hold(store).await.finish().await;
    let young = GcPolicy { older_than: Some(Duration::from_secs(3600)), ..everything() };
    assert_eq!(store.gc(young).await.unwrap(), GcReport::default());
    let two = GcPolicy { limit: 2, keep_newest: 2, ..everything() };
    let asked = GcPolicy { dry_run: true, ..two.clone() };
    assert_eq!(store.gc(asked.clone()).await.unwrap().deleted, [key("r1"), key("r2")]);
    assert_eq!(store.gc(asked).await.unwrap().deleted, [key("r1"), key("r2")], "asking deletes nothing");
    assert_eq!(store.gc(two).await.unwrap().deleted, [key("r1"), key("r2")]);
    let old = GcPolicy { older_than: Some(Duration::ZERO), keep_newest: 2, ..everything() };
    assert_eq!(store.gc(old.clone()).await.unwrap().deleted, [key("r3")]);
    assert_eq!(store.gc(old).await.unwrap().deleted, []);
    assert_eq!(store.gc(everything()).await.unwrap().deleted, [key("r4"), key("r5")]);
    store.load(key("live")).await.expect("a live run stays");
    let filter = ListFilter { namespace: Namespace::new("elsewhere").expect("a name"), ..Default::default() };
    assert_eq!(store.list(filter).await.unwrap().len(), 1);
}

/// Waits until the store's clock has passed the moment of the run's last change.
async fn end_of_this_microsecond(store: &Arc<dyn Store>, name: &str) {
    let changed = store.run(key(name)).await.unwrap().expect("the run is there").updated_at_us;
    while crate::clock::now_us() <= changed {
        tokio::task::yield_now().await;
    }
}
