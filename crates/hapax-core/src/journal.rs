//! The journal: what must be durable between two commits, in the order in which it happened.
//!
//! Invariant: a row names the digest of the checkpoint it builds on. Rows of any other base were left by steps
//! that ran ahead of the disk and were lost; recovery ignores them.

use crate::{
    failure::NodeFailure, json::Json, key::Digest, order::PathHash, outbox::Message, route::SettledRoute,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// One row.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    /// Its place in the run's journal.
    pub seq: u64,
    /// The digest of the checkpoint it builds on.
    pub base: Digest,
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The item.
    pub path_hash: PathHash,
    /// What happened.
    pub entry: Entry,
}

/// What a row says.
///
/// See [`by_item`] for an example.
// Tagged from outside: an inner tag makes serde buffer the entry, and a buffered [`Json`] can't be read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Entry {
    /// An attempt failed.
    AttemptFailed {
        /// What happened.
        failure: NodeFailure,
        /// The next attempt doesn't begin before this, in microseconds since 1970. Not part of the failure: a handler
        /// gets that as its input, and what is committed depends on no clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before_us: Option<i64>,
    },
    /// A call is about to leave.
    Intent(Intent),
    /// A call came back.
    Result {
        /// The call's scope.
        scope: Arc<str>,
        /// Its number in that scope.
        index: u32,
        /// The attempt that made it.
        attempt: u32,
        /// How it ended.
        outcome: EffectOutcome,
        /// When, in microseconds since 1970.
        at_us: i64,
    },
    /// Something the item saw of the outside, or of the clock, that asked for nothing.
    Seen(Seen),
    /// The item asks a person something.
    Question(Question),
    /// The item took a letter out of the run's mailbox; the entry that follows says what it made of it.
    Took {
        /// The letter's number.
        letter: u64,
    },
    /// An item of a multi-item step is done, for better or worse.
    ItemDone {
        /// How it ended.
        done: Done,
    },
    /// An operator asked for fresh attempts.
    Retried,
}

/// A call that is about to leave.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// The attempt that makes it.
    pub attempt: u32,
    /// What the user calls it.
    pub name: String,
    /// What kind of call.
    pub kind: EffectKind,
    /// The hash of the canonical request.
    pub request: Digest,
    /// The idempotency key the callee gets.
    pub key: String,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// A call that asked for nothing: it has no intent, only an end.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// The attempt that made it.
    pub attempt: u32,
    /// What the user calls it, or what it is.
    pub name: String,
    /// The hash of the canonical request.
    pub request: Digest,
    /// What it saw.
    pub outcome: EffectOutcome,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// A question to a person, until it is answered.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// The attempt that asked first.
    pub attempt: u32,
    /// The hash of question and schema.
    pub request: Digest,
    /// What the answer is addressed to.
    pub name: String,
    /// What is asked.
    pub text: String,
    /// The JSON schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Json>,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// What a call does to the world.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EffectKind {
    /// Changes nothing: repeated freely until an answer is recorded, then never again.
    Read,
    /// Changes something outside: the same key on every attempt.
    Write,
    /// Changes something outside that doesn't honour keys: never sent twice. When only a person can tell whether it
    /// took effect, the run is parked as in doubt.
    WriteAtMostOnce,
    /// Starts a run, once, and waits for its end.
    Child,
}

/// How a call ended. An error is a result like any other.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectOutcome {
    /// It answered.
    Ok {
        /// The answer.
        response: Json,
    },
    /// It failed.
    Err {
        /// The error's code.
        code: String,
        /// The error's text.
        message: String,
        /// Whether another attempt makes sense.
        retryable: bool,
        /// It is certain that nothing reached the other side.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unsent: bool,
        /// The other side wants to be left alone until then, in microseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before_us: Option<i64>,
    },
}

/// How an item ended.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// It returned.
    Ok {
        /// The fields it wrote.
        delta: Json,
        /// Where it leads.
        route: SettledRoute,
        /// What it sends, in the order in which it leaves.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        messages: Vec<Message>,
    },
    /// Its attempts are used up.
    Failed {
        /// What happened.
        failure: NodeFailure,
    },
}

/// The name of a timer among an item's calls.
pub const SLEEP: &str = "hapax.sleep";
/// The name of a question among an item's calls.
pub const ASK: &str = "hapax.ask";

/// What is known of one call.
///
/// See [`by_item`] for an example.
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
    /// When it was first about to leave, in microseconds since 1970: since then the callee may know its key.
    pub since_us: i64,
    /// Where it stands among the item's records.
    pub order: usize,
}

/// Everything an item recorded so far.
///
/// See [`by_item`] for an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    calls: BTreeMap<(Arc<str>, u32), RecordedCall>,
    rows: usize,
    /// Where each attempt's last call was begun.
    last_calls: BTreeMap<u32, usize>,
}

impl Recorded {
    /// All calls, by scope and number.
    pub fn calls(&self) -> impl Iterator<Item = (&(Arc<str>, u32), &RecordedCall)> {
        self.calls.iter()
    }

    /// One call.
    pub fn call(&self, scope: &Arc<str>, index: u32) -> Option<&RecordedCall> {
        self.calls.get(&(scope.clone(), index))
    }

    /// Whether the attempt that saw this call end began no other afterwards: then nothing that the item did can rest
    /// on how it ended. Later attempts don't count: they make the call again before they see it.
    pub fn nothing_rests_on(&self, call: &RecordedCall) -> bool {
        self.last_calls.get(&call.attempt).is_none_or(|at| *at <= call.order)
    }

    /// Takes the next row of the item.
    pub fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Intent(intent) => {
                let call =
                    self.calls.entry((intent.scope.clone(), intent.index)).or_insert_with(|| RecordedCall {
                        name: intent.name.clone(),
                        request: intent.request,
                        outcome: None,
                        attempt: intent.attempt,
                        since_us: intent.at_us,
                        order: 0,
                    });
                // A repeated call may reach the other side again: the earlier error is no longer its last word.
                (call.outcome, call.attempt, call.order) = (None, intent.attempt, self.rows);
                self.last_calls.insert(intent.attempt, self.rows);
                self.rows += 1;
            }
            Entry::Seen(seen) => {
                let call = RecordedCall {
                    name: seen.name.clone(),
                    request: seen.request,
                    outcome: Some(seen.outcome.clone()),
                    attempt: seen.attempt,
                    since_us: seen.at_us,
                    order: self.rows,
                };
                self.calls.insert((seen.scope.clone(), seen.index), call);
                self.last_calls.insert(seen.attempt, self.rows);
                self.rows += 1;
            }
            Entry::Question(question) => {
                let call = RecordedCall {
                    name: ASK.into(),
                    request: question.request,
                    outcome: None,
                    attempt: question.attempt,
                    since_us: question.at_us,
                    order: self.rows,
                };
                self.calls.insert((question.scope.clone(), question.index), call);
                self.last_calls.insert(question.attempt, self.rows);
                self.rows += 1;
            }
            Entry::Result { scope, index, attempt, outcome, .. } => {
                if let Some(call) = self.calls.get_mut(&(scope.clone(), *index)) {
                    (call.outcome, call.attempt, call.order) = (Some(outcome.clone()), *attempt, self.rows);
                    self.rows += 1;
                }
            }
            _ => {}
        }
    }
}

/// What the journal says about one item of the current step.
///
/// See [`by_item`] for an example.
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
    for row in rows.into_iter().filter(|row| row.base == base) {
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
        match row.entry {
            Entry::AttemptFailed { failure, not_before_us } => {
                item.failed += 1;
                item.failed_since_retry += 1;
                item.last_failure = Some(failure);
                item.not_before_us = not_before_us;
            }
            Entry::ItemDone { done } => item.done = Some(done),
            _ => {}
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_carries_json_reads_back_as_it_was_written() {
        let response = Json::of(&("a", 1)).unwrap();
        let delta = response.clone();
        let result = Entry::Result {
            scope: "".into(),
            index: 0,
            attempt: 1,
            outcome: EffectOutcome::Ok { response },
            at_us: 5,
        };
        let mail = Message { topic: "mail".into(), key: "k".into(), payload: delta.clone() };
        let done = |messages| {
            let (delta, route) = (delta.clone(), SettledRoute::Edges);
            Entry::ItemDone { done: Done::Ok { delta, route, messages } }
        };
        for entry in [result, done(vec![]), done(vec![mail.clone(), mail]), Entry::Retried] {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        }
    }
}
