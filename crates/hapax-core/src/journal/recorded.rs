//! What a journal tells of each item: its calls, how far it came, how it ended.
//!
//! Invariant: pure, and the same for the same rows; recovery, replay and forks read a journal by nothing else.

use super::{ASK, Done, EffectKind, EffectOutcome, Entry, Intent, JournalRow, SLEEP, TxSaid};
use crate::{
    canary,
    failure::NodeFailure,
    json::Json,
    key::Digest,
    order::PathHash,
    stream::{CallAt, Execution},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// What is known of one call.
///
/// ```
/// use hapax_core::journal::{Entry, Intent, Recorded};
/// # use hapax_core::{journal::EffectKind, key::sha256};
/// # let intent = |attempt, at_us| {
/// #     let (name, kind, key) = ("charge".into(), EffectKind::Write, "fx:3b0f".into());
/// #     let (scope, index, request, anew) = ("".into(), 0, sha256(b""), false);
/// #     Entry::Intent(Intent { scope, index, attempt, name, kind, request, key, at_us, anew })
/// # };
/// let mut recorded = Recorded::default();
/// recorded.take(&intent(1, 100));
/// recorded.take(&intent(2, 900));
/// let call = recorded.call(&"".into(), 0).unwrap();
/// assert_eq!((call.attempt, call.since_us), (2, Some(100)), "the callee may know the key since the first attempt");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCall {
    /// What the user calls it.
    pub name: String,
    /// The hash of the canonical request.
    pub request: Digest,
    /// How it ended; `None`: it may or may not have reached the other side.
    pub outcome: Option<EffectOutcome>,
    /// The attempt that recorded it last.
    pub attempt: u32,
    /// Since when the callee may know its key, in microseconds since 1970; `None`: it can't.
    pub since_us: Option<i64>,
    /// What that was before the last attempt, of which may become known that it sent nothing.
    since_before_us: Option<i64>,
    /// The key that the callee was given, or is about to be; empty: there is none.
    pub key: Arc<str>,
    /// Of a timer: when it is due.
    pub due_us: Option<i64>,
    /// It must never be sent twice.
    pub at_most_once: bool,
    /// Of a transaction: what became of it so far.
    pub transaction: Option<RecordedTx>,
    /// Where it stands among the item's records.
    pub order: usize,
    /// How many records of the item there were when it was first begun.
    pub began: usize,
}

impl RecordedCall {
    /// Whether it only waited, in vain so far: an execution that gets by without it is no other one, since it may have
    /// lost to whatever it raced with before it was begun.
    pub fn only_waited(&self) -> bool {
        self.outcome.is_none() && self.key.is_empty()
    }

    /// Whether it is a transaction of which nobody but a person can tell whether it was committed.
    pub fn is_doubted(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.doubt.is_some())
    }
}

/// What is known of a transaction.
///
/// ```
/// use hapax_core::journal::RecordedTx;
/// let transaction = RecordedTx::default();
/// assert!(transaction.pre_commit.is_none(), "its COMMIT was never sent");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedTx {
    /// The name under which its database is registered.
    pub database: String,
    /// How its outcome is known; empty: it didn't begin.
    pub strategy: String,
    /// How often it was rolled back: each time another transaction takes its place.
    pub rolled_back: u32,
    /// By what the database knows it, and what it returns, once it was about to be committed.
    pub pre_commit: Option<(Json, Json)>,
    /// How often its database couldn't be used since it began, and why the last time.
    pub away: Option<(u32, String)>,
    /// Why nobody but a person can tell whether it was committed.
    pub doubt: Option<String>,
}

impl RecordedTx {
    fn take(&mut self, said: &TxSaid) {
        match said {
            TxSaid::Begins { database, strategy } => {
                let rolled_back = self.rolled_back;
                let (database, strategy) = (database.clone(), strategy.clone());
                *self = Self { database, strategy, rolled_back, ..Self::default() };
            }
            TxSaid::PreCommit { witness, response } => {
                self.pre_commit = Some((witness.clone(), response.clone()));
            }
            TxSaid::Away { why } => {
                let times = self.away.as_ref().map_or(0, |(times, _)| *times);
                self.away = Some((times + 1, why.clone()));
            }
            TxSaid::Doubt { why } => self.doubt = Some(why.clone()),
        }
    }
}

/// Everything an item recorded so far.
///
/// ```
/// use hapax_core::journal::{Entry, Recorded, Seen};
/// # use hapax_core::{journal::EffectOutcome, json::Json, key::sha256};
/// # let seen = |index, name: &str| {
/// #     let outcome = EffectOutcome::Ok { response: Json::of(name).unwrap() };
/// #     let (name, request) = (name.into(), sha256(b""));
/// #     Entry::Seen(Seen { scope: "".into(), index, attempt: 1, name, request, outcome, at_us: 0, began: None })
/// # };
/// let mut recorded = Recorded::default();
/// recorded.take(&seen(0, "rate"));
/// recorded.take(&seen(1, "stock"));
/// let call = |index| recorded.call(&"".into(), index).unwrap();
/// assert!(recorded.nothing_rests_on(call(1)), "it was the last");
/// assert!(!recorded.nothing_rests_on(call(0)), "`stock` was asked with its answer in hand");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    calls: BTreeMap<(Arc<str>, u32), RecordedCall>,
    draws: BTreeMap<Arc<str>, u64>,
    rows: usize,
    /// Where each attempt's last call was begun.
    last_calls: BTreeMap<u32, usize>,
    /// Who streamed last: the item itself, and its calls.
    streams: BTreeMap<Option<CallAt>, Execution>,
    /// The turns in buckets that calls wait for, and haven't taken: which bucket, and when.
    turns: BTreeMap<(Arc<str>, u32), (String, i64)>,
}

impl Recorded {
    /// All calls, by scope and number.
    pub fn calls(&self) -> impl Iterator<Item = (&(Arc<str>, u32), &RecordedCall)> {
        self.calls.iter()
    }

    /// How many random numbers each lane drew that drew any.
    pub fn draws(&self) -> &BTreeMap<Arc<str>, u64> {
        &self.draws
    }

    /// One call.
    pub fn call(&self, scope: &Arc<str>, index: u32) -> Option<&RecordedCall> {
        self.calls.get(&(scope.clone(), index))
    }

    /// The streams of the item, its own and those of its calls, and the execution that streamed last in each.
    pub fn streams(&self) -> impl Iterator<Item = (&Option<CallAt>, Execution)> {
        self.streams.iter().map(|(call, by)| (call, *by))
    }

    /// The execution that streamed last: for the node itself, or for one of its calls.
    pub fn streamed_by(&self, call: Option<&CallAt>) -> Option<Execution> {
        self.streams.get(&call.cloned()).copied()
    }

    /// When a call's turn in a bucket is, if it waits for one that it hasn't taken, in microseconds since 1970.
    pub fn turn(&self, scope: &Arc<str>, index: u32, bucket: &str) -> Option<i64> {
        let turn = self.turns.get(&(scope.clone(), index));
        turn.filter(|(of, _)| of == bucket).map(|(_, due_us)| *due_us)
    }

    /// The calls that wait for a turn, by scope and number.
    pub fn turns(&self) -> impl Iterator<Item = &(Arc<str>, u32)> {
        self.turns.keys()
    }

    /// Whether the attempt that saw this call end began no other afterwards: then nothing that the item did can rest
    /// on how it ended. Later attempts don't count: they make the call again before they see it.
    pub fn nothing_rests_on(&self, call: &RecordedCall) -> bool {
        self.last_calls.get(&call.attempt).is_none_or(|at| *at <= call.order)
    }

    /// The calls that must never be sent twice, were begun and haven't ended: only a person can say how they did.
    pub fn doubts(&self) -> impl Iterator<Item = (&(Arc<str>, u32), &RecordedCall)> {
        let doubtful =
            |call: &RecordedCall| (call.at_most_once || call.is_doubted()) && call.outcome.is_none();
        self.calls.iter().filter(move |(_, call)| doubtful(call) && !canary::on("doubt_dropped"))
    }

    /// How many rows of the item count as calls and their ends: what is begun now comes after them.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Takes the next row of the item.
    pub fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Intent(intent) => self.begin(intent),
            Entry::Seen(seen) => {
                let before = self.last_calls.get(&seen.attempt).copied();
                let waited = self.call(&seen.scope, seen.index).map(|call| call.began);
                let mut call = self.keyless(&seen.name, seen.request, seen.attempt);
                if let Some(began) = seen.began.filter(|_| !canary::on("began_forgotten")) {
                    // It ended now, but whatever ended since it began can't be what it rests on.
                    self.last_calls.insert(seen.attempt, before.map_or(began, |before| before.max(began)));
                }
                (call.outcome, call.began) =
                    (Some(seen.outcome.clone()), waited.or(seen.began).unwrap_or(call.began));
                self.calls.insert((seen.scope.clone(), seen.index), call);
            }
            Entry::Timer(timer) => {
                let call = self.keyless(SLEEP, timer.request, timer.attempt);
                let call = RecordedCall { due_us: Some(timer.due_us), ..call };
                self.calls.insert((timer.scope.clone(), timer.index), call);
            }
            Entry::Question(question) => {
                let call = self.keyless(ASK, question.request, question.attempt);
                self.calls.insert((question.scope.clone(), question.index), call);
            }
            Entry::Awaits(awaits) => {
                let call = self.keyless(&awaits.name, awaits.request, awaits.attempt);
                self.calls.insert((awaits.scope.clone(), awaits.index), call);
            }
            Entry::Turn(turn) => {
                let place = (turn.scope.clone(), turn.index);
                match turn.due_us {
                    Some(due_us) => drop(self.turns.insert(place, (turn.bucket.clone(), due_us))),
                    None => drop(self.turns.remove(&place)),
                }
            }
            Entry::Transaction(note) => {
                let call = self.calls.get_mut(&(note.scope.clone(), note.index));
                if let Some(transaction) = call.and_then(|call| call.transaction.as_mut()) {
                    transaction.take(&note.said);
                }
            }
            Entry::Drew(drew) => drop(self.draws.insert(drew.scope.clone(), drew.draws)),
            Entry::Streams(streams) => drop(self.streams.insert(streams.call.clone(), streams.by())),
            Entry::Result { scope, index, attempt, outcome, .. } => {
                if let Some(call) = self.calls.get_mut(&(scope.clone(), *index)) {
                    (call.outcome, call.attempt, call.order) = (Some(outcome.clone()), *attempt, self.rows);
                    if matches!(outcome, EffectOutcome::Err { unsent: true, .. }) {
                        call.since_us = call.since_before_us.filter(|_| !canary::on("sent_forgotten"));
                    }
                    if let (Some(transaction), EffectOutcome::Err { .. }) = (&mut call.transaction, outcome) {
                        let rolled_back = transaction.rolled_back + 1;
                        *transaction = RecordedTx { rolled_back, ..RecordedTx::default() };
                    }
                    self.rows += 1;
                }
            }
            Entry::Several(entries) => entries.iter().for_each(|entry| self.take(entry)),
            _ => {}
        }
    }

    /// A call is about to leave.
    fn begin(&mut self, intent: &Intent) {
        let call = self.calls.entry((intent.scope.clone(), intent.index)).or_insert_with(|| RecordedCall {
            name: intent.name.clone(),
            request: intent.request,
            outcome: None,
            attempt: intent.attempt,
            since_us: None,
            since_before_us: None,
            key: intent.key.as_str().into(),
            due_us: None,
            at_most_once: intent.kind == EffectKind::WriteAtMostOnce,
            transaction: (intent.kind == EffectKind::Transaction).then(RecordedTx::default),
            order: 0,
            began: self.rows,
        });
        // A repeated call may reach the other side again: the earlier error is no longer its last word, and a
        // fork that makes it makes it under a key of its own.
        (call.outcome, call.attempt, call.order) = (None, intent.attempt, self.rows);
        call.key = intent.key.as_str().into();
        if let Some(transaction) = call.transaction.as_mut().filter(|_| intent.anew) {
            // A person said that nothing of it was committed.
            *transaction = RecordedTx { rolled_back: transaction.rolled_back, ..RecordedTx::default() };
        }
        call.since_before_us = call.since_us.filter(|_| !intent.anew);
        call.since_us = call.since_before_us.or(Some(intent.at_us));
        self.last_calls.insert(intent.attempt, self.rows);
        self.rows += 1;
    }

    /// A call that is begun without an intent, as the item's next record.
    fn keyless(&mut self, name: &str, request: Digest, attempt: u32) -> RecordedCall {
        let order = self.rows;
        self.last_calls.insert(attempt, order);
        self.rows += 1;
        RecordedCall {
            name: name.to_owned(),
            request,
            outcome: None,
            attempt,
            since_us: None,
            since_before_us: None,
            key: "".into(),
            due_us: None,
            at_most_once: false,
            transaction: None,
            order,
            began: order,
        }
    }
}

/// What the journal says about one item of the current step.
///
/// ```
/// use hapax_core::journal::{Entry, JournalRow, by_item};
/// # use hapax_core::{failure::NodeFailure, id::NodeId, key::sha256, order::PathHash};
/// # let (base, item) = (sha256(b"checkpoint"), PathHash(7));
/// # let failed = |attempt, message: &str| {
/// #     let (node, code) = (NodeId::new("charge").unwrap(), "HX0020".into());
/// #     let failure = NodeFailure { node, code, message: message.into(), retryable: true, attempt };
/// #     Entry::AttemptFailed { failure, not_before_us: None }
/// # };
/// # let row = |(seq, entry)| JournalRow { seq, base, step: 1, path_hash: item, entry };
/// let entries = [failed(1, "timeout"), failed(2, "card declined")];
/// let record = &by_item(base, (0..).zip(entries).map(row))[&item];
/// assert_eq!((record.failed, record.done.is_some()), (2, false));
/// assert_eq!(record.last_failure.as_ref().unwrap().message, "card declined");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemRecord {
    /// Its calls.
    pub recorded: Recorded,
    /// Attempts that failed, in all: the next one has this number plus one.
    pub failed: u32,
    /// Attempts that failed since an operator last asked for fresh ones.
    pub failed_since_retry: u32,
    /// The latest of those.
    pub last_failure: Option<NodeFailure>,
    /// The next attempt doesn't begin before this, in microseconds since 1970.
    pub not_before_us: Option<i64>,
    /// How it ended, when it did.
    pub done: Option<Done>,
    /// Something was said to it since an attempt failed last: another has begun, whatever the policy says.
    pub told: bool,
}

/// Sorts the journal's tail by item, leaving out the rows of any other base.
///
/// ```
/// use hapax_core::{
///     journal::{EffectKind, EffectOutcome, Entry, Intent, JournalRow, by_item},
///     json::Json,
///     key::sha256,
///     order::PathHash,
/// };
/// let (base, item) = (sha256(b"checkpoint"), PathHash(7));
/// let intent = Intent {
///     scope: "".into(),
///     index: 0,
///     attempt: 1,
///     name: "charge".into(),
///     kind: EffectKind::Write,
///     request: sha256(b"4200"),
///     key: "fx:1".into(),
///     at_us: 0,
///     anew: false,
/// };
/// let outcome = EffectOutcome::Ok { response: Json::of("paid")? };
/// let result = Entry::Result { scope: "".into(), index: 0, attempt: 1, outcome: outcome.clone(), at_us: 5 };
/// let row = |seq, entry| JournalRow { seq, base, step: 0, path_hash: item, entry };
/// let items = by_item(base, [row(0, Entry::Intent(intent)), row(1, result)]);
/// let call = items[&item].recorded.call(&"".into(), 0).unwrap();
/// assert_eq!((call.name.as_str(), &call.outcome), ("charge", &Some(outcome)));
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub fn by_item(base: Digest, rows: impl IntoIterator<Item = JournalRow>) -> HashMap<PathHash, ItemRecord> {
    let mut items: HashMap<PathHash, ItemRecord> = HashMap::new();
    let counts = |row: &JournalRow| row.base == base && !matches!(row.entry, Entry::Chunk(_));
    for row in rows.into_iter().filter(counts) {
        if row.entry == Entry::Retried {
            for item in items.values_mut() {
                item.failed_since_retry = 0;
                item.last_failure = None;
                item.not_before_us = None;
                if matches!(item.done, Some(Done::Failed { .. })) {
                    item.done = None;
                }
            }
            continue;
        }
        let item = items.entry(row.path_hash).or_default();
        item.recorded.take(&row.entry);
        row.entries().iter().for_each(|entry| item.take(entry));
    }
    items
}

impl ItemRecord {
    /// What the item did beside its calls.
    fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::AttemptFailed { failure, not_before_us } => {
                self.failed += 1;
                self.failed_since_retry += 1;
                self.last_failure = Some(failure.clone());
                self.not_before_us = *not_before_us;
                self.told = false;
            }
            Entry::ItemDone { done } => self.done = Some(done.clone()),
            Entry::Took { .. } => self.told = true,
            _ => {}
        }
    }
}
