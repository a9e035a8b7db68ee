//! What is written is what is read, to the last bit.

use super::{
    Fixture,
    sample::{LONG, Sample, claimant, failed, intent, json, key, message},
};
use hapax_core::{
    checkpoint::Draft,
    commit::{Append, StepCommit, Write},
    failure::NodeFailure,
    frontier::{Arrival, Barriers, WorkItem},
    id::NodeId,
    journal::{Done, EffectOutcome, Entry, JournalRow},
    key::sha256,
    order::{OrderKey, PathHash},
    route::SettledRoute,
    stream::{CallAt, Chunk, Execution, Streams},
};
use std::collections::{BTreeMap, VecDeque};

/// Checkpoints with every field in use, journal rows of every kind, and the run's row.
pub async fn what_is_committed_is_read_back(fixture: Fixture) {
    let mut holder = Sample::run("r ✓").tag("käse", "brot").hold(&fixture.store).await;
    let rows = Append { rows: every_entry(&holder.rows(1)[0]), ..holder.append(0) };
    holder.write(Write::Append(rows.clone())).await.unwrap();
    let reopened = fixture.other_handle();
    assert_eq!(reopened.load(holder.key.clone()).await.unwrap().journal, rows.rows);
    let commit = full(holder.next_with("ünï", 3, 2, vec![message("m")]), &holder.key.run);
    holder.commit(commit.clone()).await.unwrap();
    let loaded = reopened.load(holder.key.clone()).await.unwrap();
    assert_eq!(loaded.checkpoint, commit.checkpoint);
    assert_eq!(loaded.journal, [], "the rows of a step build on the one before");
    assert_eq!(reopened.checkpoint(holder.key.clone(), 1).await.unwrap(), Some(commit.checkpoint));
    let start = Sample::run("r ✓").build();
    let first = reopened.checkpoint(holder.key.clone(), 0).await.unwrap();
    assert_eq!(first, Some(start.checkpoint));
    let journal = reopened.journal(holder.key.clone(), 0, 100).await.unwrap();
    assert_eq!(journal, [rows.rows, commit.journal].concat());
    let record = loaded.record;
    assert_eq!((record.key, record.graph), (holder.key.clone(), "sample".into()));
    assert_eq!((record.fingerprint, record.input), (start.fingerprint, start.input));
    assert_eq!((record.step, record.digest), (1, holder.digest));
    assert_eq!((record.epoch, record.owner.as_deref()), (holder.epoch, Some("a")));
    assert_eq!((record.next_seq, record.used_us), (holder.next_seq, 1));
    assert_eq!(record.tags, BTreeMap::from([("käse".to_owned(), "brot".to_owned())]));
    assert!(record.created_at_us > 0 && record.updated_at_us >= record.created_at_us);
}

fn full(commit: StepCommit, run: &hapax_core::id::RunId) -> StepCommit {
    let arrival = Arrival { order_key: OrderKey(u64::MAX), path_hash: PathHash(u64::MAX), edge_index: 3 };
    let queues = vec![VecDeque::from([arrival, arrival]), VecDeque::new()];
    let checkpoint = commit.checkpoint;
    let draft = Draft {
        step: checkpoint.step,
        state: checkpoint.state,
        state_version: u32::MAX,
        frontier: checkpoint.frontier,
        barriers: Barriers(BTreeMap::from([(0, queues), (u32::MAX, vec![])])),
        seed: checkpoint.seed,
        io: sha256(b"io"),
        outbox: checkpoint.outbox,
        label: Some("a label".to_owned()),
    };
    StepCommit { checkpoint: draft.seal(run), ..commit }
}

fn every_entry(row: &JournalRow) -> Vec<JournalRow> {
    let node = NodeId::new("work").expect("a fine name");
    let (code, message) = ("HX0020".to_owned(), "broken \u{1f494}".to_owned());
    let instead_of = Some(Execution { attempt: 1, epoch: 1 });
    let streams = Streams { node: node.clone(), call: None, attempt: 1, epoch: 2, instead_of };
    let failure =
        NodeFailure { node, code: code.clone(), message: message.clone(), retryable: true, attempt: 2 };
    let result =
        |outcome| Entry::Result { scope: "s".into(), index: u32::MAX, attempt: 1, outcome, at_us: i64::MAX };
    let entries = [
        intent(u64::MAX),
        result(EffectOutcome::Ok { response: json("fine") }),
        result(EffectOutcome::Err {
            code,
            message,
            retryable: false,
            unsent: true,
            not_before_us: Some(i64::MAX),
        }),
        Entry::AttemptFailed { failure: failure.clone(), not_before_us: None },
        Entry::AttemptFailed { failure: failure.clone(), not_before_us: Some(i64::MAX) },
        Entry::ItemDone {
            done: Done::Ok { delta: json("delta"), route: SettledRoute::Edges, messages: vec![] },
        },
        Entry::ItemDone { done: Done::Failed { failure } },
        Entry::Retried,
        Entry::Streams(streams),
    ];
    let numbered = entries.into_iter().zip(row.seq..);
    numbered.map(|(entry, seq)| JournalRow { seq, entry, ..row.clone() }).collect()
}

/// Any number of chunks between two rows that count: reading the journal gives them, loading a run doesn't.
pub async fn chunks_are_read_back_and_not_loaded(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let mut append = holder.append(5);
    for (row, offset) in append.rows[1..4].iter_mut().zip(0..) {
        row.entry = chunk(offset, &"a part, of many ".repeat(1 << offset));
    }
    holder.write(Write::Append(append.clone())).await.unwrap();
    let reopened = fixture.other_handle();
    let loaded = reopened.load(holder.key.clone()).await.unwrap();
    assert_eq!(loaded.journal, [append.rows[0].clone(), append.rows[4].clone()]);
    assert_eq!(loaded.record.next_seq, 5, "they have their numbers all the same");
    assert_eq!(reopened.journal(holder.key.clone(), 0, 10).await.unwrap(), append.rows);
    assert_eq!(reopened.journal(holder.key.clone(), 2, 2).await.unwrap(), append.rows[2..4]);
    holder.commit(holder.next("one")).await.unwrap();
    assert_eq!(reopened.load(holder.key.clone()).await.unwrap().journal, []);
}

fn chunk(offset: u64, text: &str) -> Entry {
    let (node, payload) = (NodeId::new("work").expect("a fine name"), json(text));
    let call = (offset == 1).then(|| CallAt { scope: "s".into(), index: u32::MAX });
    Entry::Chunk(Chunk { node, call, attempt: u32::MAX, epoch: 1 << 40, offset, payload, at_us: i64::MAX })
}

/// Hash-like numbers use all 64 bits, a nonce 128; a counter goes up to `i64::MAX`.
pub async fn numbers_up_to_their_limits_survive(fixture: Fixture) {
    let almost = i64::MAX.unsigned_abs() - 1;
    let mut holder = Sample::run("r").seed(u64::MAX).at_step(almost).hold(&fixture.store).await;
    let mut commit = holder.next("one");
    commit.used_us = i64::MAX.unsigned_abs();
    let node = NodeId::new("work").expect("a fine name");
    let item = |order_key, path_hash| WorkItem {
        order_key: OrderKey(order_key),
        path_hash: PathHash(path_hash),
        node: node.clone(),
        input: None,
    };
    let edge = i64::MAX.unsigned_abs();
    let frontier = vec![item(0, u64::MAX), item(edge, edge), item(edge + 1, edge + 1), item(u64::MAX, 0)];
    let draft = Draft {
        step: commit.checkpoint.step,
        state: commit.checkpoint.state,
        state_version: 1,
        frontier,
        barriers: Barriers::default(),
        seed: u64::MAX,
        io: commit.checkpoint.io,
        outbox: commit.checkpoint.outbox,
        label: None,
    };
    commit.checkpoint = draft.seal(&holder.key.run);
    holder.commit(commit.clone()).await.unwrap();
    let mut rows = holder.append(2);
    (rows.rows[0].path_hash, rows.rows[1].path_hash) = (PathHash(u64::MAX), PathHash(edge + 1));
    holder.write(Write::Append(rows.clone())).await.unwrap();
    let reopened = fixture.other_handle();
    let loaded = reopened.load(holder.key.clone()).await.unwrap();
    assert_eq!(loaded.checkpoint, commit.checkpoint);
    assert_eq!(loaded.journal, rows.rows);
    assert_eq!((loaded.record.step, loaded.record.used_us), (edge, edge));
    assert_eq!(loaded.record.epoch, holder.epoch);
    assert_nonces_are_wide(&fixture).await;
}

/// A nonce that was cut or read as a signed number would come back as another one.
async fn assert_nonces_are_wide(fixture: &Fixture) {
    let mut bits = 0;
    for n in 0..40 {
        let name = format!("n{n}");
        let lease = Sample::run(&name).claimed_by("a", LONG).create(&fixture.store).await.expect("claimed");
        let renewed = vec![(super::sample::key(&name), lease.epoch)];
        let kept = fixture.store.renew(renewed, claimant("a", LONG)).await.unwrap();
        assert_eq!(kept[0].1, crate::store::Renewal::Kept);
        bits |= lease.epoch.nonce;
    }
    assert!(bits > u128::MAX / 2, "the nonces use all of their bits");
    let mut holder = Sample::run("failed").hold(&fixture.store).await;
    holder.write(Write::Status(holder.status(failed(), true))).await.unwrap();
    assert_eq!(holder.record().await.status, failed());
}

/// All that are kept, each as it was, whatever its state was written against.
pub async fn checkpoints_are_read_in_order_from_any_step(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").at_step(7).hold(store).await;
    for step in 0..20 {
        holder.commit(holder.next(&"state ".repeat(step))).await.unwrap();
    }
    let all = store.checkpoints(key("r"), 0, usize::MAX).await.unwrap();
    assert!(all.iter().map(|checkpoint| checkpoint.step).eq(7..=27));
    for one in &all {
        assert_eq!(store.checkpoint(key("r"), one.step).await.unwrap().as_ref(), Some(one));
    }
    assert_eq!(store.checkpoints(key("r"), 9, 3).await.unwrap(), all[2..5]);
    assert_eq!(store.checkpoints(key("r"), 28, 3).await.unwrap(), []);
    assert_eq!(store.checkpoints(key("nobody"), 0, 3).await.unwrap(), []);
}
