//! What is promised of payloads that lie beside their rows, on every store that has them.

use super::{
    NEW,
    promises::{Place, rotate},
};
use hapax_core::{
    commit::{Epoch, StepCommit, Write},
    error::Coded,
    id::Namespace,
    journal::Entry,
    mailbox::{NewLetter, signal},
};
use hapax_store::{
    GcPolicy, Store, StoreError,
    conformance::{
        Holder, Sample,
        sample::{json, message, shape},
    },
    outbox::OutboxFilter,
};
use std::sync::Arc;

/// A text that doesn't compress.
pub(crate) fn noise(seed: u64, len: usize) -> String {
    let mut x = seed | 1;
    let mut letter = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        char::from(b'!' + (x % 90) as u8)
    };
    (0..len).map(|_| letter()).filter(|c| !matches!(c, '"' | '\\')).collect()
}

pub(crate) const LARGE: usize = 3 << 20;

pub(crate) fn rows(place: &Place) -> u64 {
    place.count("SELECT count(*) FROM hapax_blobs")
}

/// A run with a large state, a large message and a large letter.
pub(crate) async fn large(store: &Arc<dyn Store>, name: &str) -> Holder {
    let mut holder = Sample::run(name).hold(store).await;
    let sent = vec![message(&noise(7, 10_000)), message(&noise(7, 10_000)), message("small")];
    holder.commit(holder.next_with(&noise(3, LARGE), 2, 2, sent)).await.expect("a step");
    let letter = NewLetter { id: "l".into(), subject: signal("s"), payload: json(&noise(9, 10_000)) };
    store.post(holder.key.clone(), letter).await.expect("a letter");
    holder
}

pub(crate) async fn messages(store: &Arc<dyn Store>) -> Vec<String> {
    let listed = store.outbox().list(OutboxFilter::default()).await.expect("messages");
    listed.into_iter().map(|record| record.message.payload.as_str().to_owned()).collect()
}

pub(crate) async fn what_is_large_lies_beside_its_row_and_is_read_as_ever(place: Place) {
    let store = place.plain();
    let run = large(&store, "r").await.key;
    let loaded = place.plain().load(run.clone()).await.expect("it is whole");
    assert_eq!(&*loaded.checkpoint.state, json(&noise(3, LARGE)).as_bytes());
    let sent = messages(&store).await;
    assert_eq!((sent[0] == sent[1], &*sent[2]), (true, "\"small\""));
    let letter = store.letter(run.clone(), signal("s"), 0).await.expect("a look").expect("a letter");
    assert_eq!(letter.payload, json(&noise(9, 10_000)));
    let longest = place.count("SELECT max(length(state)) FROM hapax_checkpoints");
    assert!(longest < 1_000, "{longest} bytes are in a row");
    let found = place.count("SELECT count(*) FROM (SELECT DISTINCT hash FROM hapax_blobs) AS hashes");
    let twice = place.count("SELECT count(*) FROM hapax_blobs WHERE length(bytes) BETWEEN 7000 AND 11000");
    assert!(found >= 3 && twice == 2, "the same message is stored once: {found} {twice}");
}

pub(crate) async fn what_is_large_goes_with_its_run(place: Place) {
    let store = place.plain();
    for name in ["a", "b"] {
        let mut holder = large(&store, name).await;
        holder.commit(holder.last("end")).await.expect("its end");
        place.run("UPDATE hapax_outbox SET status = 'sent'");
    }
    let both = rows(&place);
    let policy = GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest: 1,
        limit: 9,
        dry_run: false,
    };
    assert_eq!(store.gc(policy.clone()).await.expect("a sweep").deleted.len(), 1);
    assert_eq!(rows(&place) * 2, both, "what the other run has is its own");
    store.gc(GcPolicy { keep_newest: 0, ..policy }).await.expect("a sweep");
    assert_eq!(rows(&place), 0);
}

pub(crate) async fn a_fresh_history_keeps_what_is_referred_to_and_nothing_else(place: Place) {
    let store = place.plain();
    let mut holder = large(&store, "r").await;
    holder.commit(holder.next(&noise(5, LARGE))).await.expect("a step");
    let before = rows(&place);
    let fresh = StepCommit { fresh: Some(shape("sample")), ..holder.next(&noise(6, LARGE)) };
    holder.commit(fresh).await.expect("it begins anew");
    assert!(rows(&place) < before, "the states before are gone");
    let loaded = place.plain().load(holder.key.clone()).await.expect("it is whole");
    assert_eq!(&*loaded.checkpoint.state, json(&noise(6, LARGE)).as_bytes());
    assert_eq!(messages(&store).await[0], json(&noise(7, 10_000)).as_str());
    let letter = store.letter(holder.key.clone(), signal("s"), 0).await.expect("a look").expect("a letter");
    assert_eq!(letter.payload, json(&noise(9, 10_000)));
}

pub(crate) async fn bytes_that_nothing_refers_to_any_more_outlast_no_rotation(place: Place) {
    let store = place.plain();
    let mut holder = Sample::run("r").hold(&store).await;
    let sent = vec![message(&noise(7, 10_000))];
    holder.commit(holder.next_with("sends", 1, 0, sent)).await.expect("a step");
    let letter = NewLetter { id: "l".into(), subject: signal("s"), payload: json(&noise(9, 10_000)) };
    store.post(holder.key.clone(), letter).await.expect("a letter");
    assert_eq!(rows(&place), 2);
    place.run("UPDATE hapax_outbox SET status = 'dead'");
    assert_eq!(store.outbox().drop_dead(holder.key.clone()).await.expect("it is dropped"), 1);
    assert_eq!(rows(&place), 1, "a message takes its bytes along");
    let mut took = holder.append(1);
    took.rows[0].entry = Entry::Took { letter: 1 };
    holder.write(Write::Append(took)).await.expect("its letter is taken");
    rotate(&place.with(&format!("{NEW} plain"))).await;
    assert_eq!(rows(&place), 0, "they would lie there in plain");
    place.with(NEW).load(holder.key).await.expect("it is whole");
}

pub(crate) async fn what_is_missing_or_damaged_is_told_with_its_run(place: Place) {
    let store = place.plain();
    let run = large(&store, "r").await.key;
    for harm in ["DELETE FROM hapax_blobs WHERE part = 1", "DELETE FROM hapax_blobs"] {
        place.run(harm);
        let error = store.load(run.clone()).await.expect_err("it is damaged");
        assert_eq!(error.code(), "HX0044", "{error}");
        assert!(
            matches!(&error, StoreError::Corrupt { run: of, step: Some(1), .. } if *of == run),
            "{error}"
        );
    }
}

pub(crate) async fn a_write_that_comes_to_nothing_leaves_no_bytes_and_is_written_whole_again(place: Place) {
    let store = place.plain();
    let mut holder = large(&store, "r").await;
    let before = rows(&place);
    let commit = holder.next(&noise(11, LARGE));
    let stale = StepCommit { epoch: Epoch { counter: 9, nonce: 9 }, ..commit.clone() };
    let fenced = holder.commit(stale).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
    assert_eq!(rows(&place), before);
    holder.commit(commit).await.expect("the holder's own");
    let loaded = place.plain().load(holder.key.clone()).await.expect("it is whole");
    assert_eq!(&*loaded.checkpoint.state, json(&noise(11, LARGE)).as_bytes());
}
