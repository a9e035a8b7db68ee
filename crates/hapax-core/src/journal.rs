//! The journal: what must be durable between two commits, in the order in which it happened.
//!
//! Invariant: a row names the digest of the checkpoint it builds on. Rows of any other base were left by steps
//! that ran ahead of the disk and were lost; recovery ignores them.

mod recorded;
mod several;

pub use recorded::{ItemRecord, Recorded, RecordedCall, RecordedTx, by_item};

use crate::{
    failure::NodeFailure,
    json::Json,
    key::Digest,
    order::PathHash,
    outbox::Message,
    route::SettledRoute,
    stream::{Chunk, Streams},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One row.
///
/// ```
/// use hapax_core::{journal::{Entry, JournalRow, by_item}, key::sha256, order::PathHash};
/// let (base, lost) = (sha256(b"the last checkpoint"), sha256(b"one that never reached the disk"));
/// let row = |seq, base| {
///     JournalRow { seq, base, step: 1, path_hash: PathHash(seq), entry: Entry::Took { letter: seq } }
/// };
/// let items = by_item(base, [row(0, base), row(1, lost)]);
/// assert!(items.contains_key(&PathHash(0)) && !items.contains_key(&PathHash(1)));
/// ```
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
/// ```
/// use hapax_core::{failure::NodeFailure, journal::{Entry, JournalRow, by_item}};
/// # use hapax_core::{id::NodeId, key::sha256, order::PathHash};
/// # let (node, code, message) = (NodeId::new("charge")?, "HX0020".to_owned(), "card declined".to_owned());
/// # let failure = NodeFailure { node, code, message, retryable: true, attempt: 1 };
/// # let (base, item) = (sha256(b"checkpoint"), PathHash(7));
/// # let row = |(seq, entry)| JournalRow { seq, base, step: 1, path_hash: item, entry };
/// let entries = [Entry::AttemptFailed { failure, not_before_us: None }, Entry::Retried];
/// let items = by_item(base, (0..).zip(entries).map(row));
/// // An operator's word gives the item fresh attempts; the next one is number 2 all the same.
/// assert_eq!((items[&item].failed, items[&item].failed_since_retry), (1, 0));
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
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
    /// What becomes of a transaction between its intent and its end.
    Transaction(TxNote),
    /// Something the item saw of the outside, or of the clock, that asked for nothing.
    Seen(Seen),
    /// The item set a timer; its [`Entry::Result`] says that it went off.
    Timer(Timer),
    /// How much chance a lane of the item used, known when the item is done.
    Drew(Drew),
    /// The item asks a person something.
    Question(Question),
    /// The item waits for a letter; its [`Entry::Seen`] says that it came.
    Awaits(Awaits),
    /// A call waits for its turn in a bucket, or takes it.
    Turn(Turn),
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
    /// The item streams a chunk. Only readers of the stream want to know: recovery, replay and forks leave it out.
    Chunk(Chunk),
    /// Which execution of the item streams from here on.
    Streams(Streams),
    /// Several of these in one row, in their order; none of them is of this kind.
    Several(Vec<Entry>),
}

impl Entry {
    /// How the JSON of every [`Entry::Chunk`] begins, and that of no other: whoever leaves chunks out needn't read them.
    pub const CHUNK_TAG: &[u8] = br#"{"chunk":"#;

    /// The bytes of what it carries from outside, which no limit of the journal's own bounds.
    ///
    /// ```
    /// use hapax_core::journal::Entry;
    /// assert_eq!(Entry::Retried.answer_bytes(), 0);
    /// ```
    pub fn answer_bytes(&self) -> usize {
        match self {
            Entry::Result { outcome: EffectOutcome::Ok { response }, .. }
            | Entry::Seen(Seen { outcome: EffectOutcome::Ok { response }, .. }) => response.as_bytes().len(),
            Entry::Transaction(TxNote { said: TxSaid::PreCommit { response, .. }, .. }) => {
                response.as_bytes().len()
            }
            Entry::ItemDone { done: Done::Ok { delta, messages, .. } } => {
                delta.as_bytes().len() + messages.iter().map(Message::weight).sum::<usize>()
            }
            Entry::Chunk(chunk) => chunk.payload.as_bytes().len(),
            Entry::Several(entries) => entries.iter().map(Entry::answer_bytes).sum(),
            _ => 0,
        }
    }
}

/// A call that is about to leave.
///
/// ```
/// use hapax_core::{journal::{EffectKind, Entry, Intent, Recorded}, key::sha256};
/// let intent = Intent {
///     scope: "".into(),
///     index: 0,
///     attempt: 1,
///     name: "charge".into(),
///     kind: EffectKind::Write,
///     request: sha256(b"4200"),
///     key: "fx:3b0f".into(),
///     at_us: 1_800_000_000_000_000,
///     anew: false,
/// };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Intent(intent));
/// assert_eq!(recorded.call(&"".into(), 0).unwrap().outcome, None, "it may or may not have arrived");
/// ```
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
    /// A person said that nothing of it arrived before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
}

/// What becomes of a transaction between its intent and its end.
///
/// ```
/// use hapax_core::journal::{EffectKind, Entry, Intent, Recorded, TxNote, TxSaid};
/// # use hapax_core::key::sha256;
/// # let (name, kind, key) = ("pay".into(), EffectKind::Transaction, "fx:3b0f".into());
/// # let (scope, index, attempt, request, at_us) = ("".into(), 0, 1, sha256(b""), 0);
/// # let intent = Intent { scope, index, attempt, name, kind, request, key, at_us, anew: false };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Intent(intent));
/// let said = TxSaid::Begins { database: "shop".into(), strategy: "marker".into() };
/// recorded.take(&Entry::Transaction(TxNote { scope: "".into(), index: 0, said, at_us: 0 }));
/// let call = recorded.call(&"".into(), 0).unwrap();
/// assert_eq!(call.transaction.as_ref().unwrap().database, "shop");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxNote {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// What is to be known.
    pub said: TxSaid,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// What is said of a transaction.
///
/// ```
/// use hapax_core::journal::TxSaid;
/// let said = TxSaid::Away { why: "the connection was refused".into() };
/// assert_eq!(serde_json::to_string(&said)?, r#"{"away":{"why":"the connection was refused"}}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TxSaid {
    /// It is about to begin.
    Begins {
        /// The name under which its database is registered.
        database: String,
        /// How its outcome will be known.
        strategy: String,
    },
    /// It is about to be committed. Without this, its COMMIT was never sent.
    PreCommit {
        /// By what the database knows it.
        witness: Json,
        /// What it returns.
        response: Json,
    },
    /// Its database can't be used now.
    Away {
        /// Why not.
        why: String,
    },
    /// Whether it was committed, nobody but a person can tell.
    Doubt {
        /// Why not.
        why: String,
    },
}

/// A call that asked for nothing: it has no intent, only an end.
///
/// ```
/// use hapax_core::{journal::{EffectOutcome, Entry, Recorded, Seen}, json::Json, key::sha256};
/// let outcome = EffectOutcome::Ok { response: Json::of("1.08")? };
/// let seen = Seen {
///     scope: "".into(),
///     index: 0,
///     attempt: 1,
///     name: "rate".into(),
///     request: sha256(b"EUR"),
///     outcome: outcome.clone(),
///     at_us: 1_800_000_000_000_000,
///     began: None,
/// };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Seen(seen));
/// assert_eq!(recorded.call(&"".into(), 0).unwrap().outcome, Some(outcome), "one row says it all");
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
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
    /// How many rows of the item there were when it was begun; `None`: it took no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<usize>,
}

/// A timer, until it goes off.
///
/// ```
/// use hapax_core::{journal::{EffectOutcome, Entry, Recorded, Timer}, json::Json, key::sha256};
/// let (scope, index, attempt, at_us) = ("".into(), 0, 1, 1_800_000_000_000_000);
/// let (request, due_us) = (sha256(b"null"), at_us + 60_000_000);
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Timer(Timer { scope, index, attempt, request, due_us, at_us }));
/// assert_eq!(recorded.call(&"".into(), 0).unwrap().due_us, Some(due_us));
/// let (scope, outcome) = ("".into(), EffectOutcome::Ok { response: Json::null() });
/// recorded.take(&Entry::Result { scope, index, attempt, outcome, at_us: due_us });
/// assert!(recorded.call(&"".into(), 0).unwrap().outcome.is_some(), "it went off");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// The attempt that set it.
    pub attempt: u32,
    /// The hash of its request, which holds nothing: a changed duration changes no timer that was set.
    pub request: Digest,
    /// When it is due, in microseconds since 1970.
    pub due_us: i64,
    /// When it was set.
    pub at_us: i64,
}

/// The random numbers that a lane drew.
///
/// ```
/// use hapax_core::journal::{Drew, Entry, Recorded};
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Drew(Drew { scope: "".into(), draws: 3 }));
/// assert_eq!(recorded.draws()[""], 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drew {
    /// The lane.
    pub scope: Arc<str>,
    /// How many.
    pub draws: u64,
}

/// A question to a person, until it is answered.
///
/// ```
/// use hapax_core::{journal::{Entry, Question, Recorded}, key::sha256};
/// let question = Question {
///     scope: "".into(),
///     index: 0,
///     attempt: 1,
///     request: sha256(b"Refund 900 cents?"),
///     name: "refund".into(),
///     text: "Refund 900 cents?".into(),
///     schema: None,
///     at_us: 1_800_000_000_000_000,
/// };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Question(question));
/// assert_eq!(recorded.call(&"".into(), 0).unwrap().outcome, None, "asked, and not answered yet");
/// ```
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
    /// The name under which it is answered.
    pub name: String,
    /// What is asked.
    pub text: String,
    /// The JSON schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Json>,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// A wait for a letter, until it comes.
///
/// ```
/// use hapax_core::{journal::{Awaits, Entry, Recorded}, key::sha256};
/// let awaits = Awaits {
///     scope: "".into(),
///     index: 0,
///     attempt: 1,
///     name: "hapax.signal".into(),
///     request: sha256(b"signal:approved"),
///     at_us: 1_800_000_000_000_000,
/// };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Awaits(awaits));
/// assert_eq!(recorded.call(&"".into(), 0).unwrap().outcome, None, "the item came as far as here");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaits {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// The attempt that waited first.
    pub attempt: u32,
    /// What kind of letter.
    pub name: String,
    /// The hash of the letter's subject.
    pub request: Digest,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// A rate-limited call's turn in a bucket. Only one that is waited for is recorded. It is no call of its own: what is
/// committed depends on no clock, and so not on who had to wait.
///
/// ```
/// use hapax_core::journal::{Entry, Recorded, Turn};
/// let (scope, at_us) = ("".into(), 1_800_000_000_000_000);
/// let turn = Turn { scope, index: 0, attempt: 1, bucket: "mail".into(), due_us: Some(at_us + 60_000_000), at_us };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Turn(turn.clone()));
/// assert_eq!(recorded.turn(&"".into(), 0, "mail"), turn.due_us, "whoever wakes waits for the same");
/// recorded.take(&Entry::Turn(Turn { due_us: None, ..turn }));
/// assert_eq!(recorded.turn(&"".into(), 0, "mail"), None, "it is used up: a call that is repeated takes another one");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The call's scope.
    pub scope: Arc<str>,
    /// Its number in that scope.
    pub index: u32,
    /// The attempt that waits for it, or takes it.
    pub attempt: u32,
    /// The bucket.
    pub bucket: String,
    /// When it is, in microseconds since 1970; `None`: it is taken, and the call leaves now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_us: Option<i64>,
    /// When this was written, in microseconds since 1970.
    pub at_us: i64,
}

/// What a call does to the world.
///
/// ```
/// use hapax_core::journal::EffectKind;
/// // The journal tells, after a crash, what may be done with a call that was on its way.
/// let again = |kind| match kind {
///     EffectKind::Write => "with the same key",
///     EffectKind::WriteAtMostOnce => "when a person says so",
///     _ => "freely",
/// };
/// let kind: EffectKind = serde_json::from_str(r#""write_at_most_once""#)?;
/// assert_eq!(again(kind), "when a person says so");
/// # Ok::<(), serde_json::Error>(())
/// ```
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
    /// Runs a transaction in a database of the user's, which takes effect once.
    Transaction,
}

/// How a call ended. An error is a result like any other.
///
/// ```
/// use hapax_core::journal::EffectOutcome;
/// let (code, message) = ("HX0036".to_owned(), "card declined".to_owned());
/// let declined = EffectOutcome::Err { code, message, retryable: false, unsent: false, not_before_us: None };
/// let stored = serde_json::to_string(&declined)?;
/// assert_eq!(stored, r#"{"err":{"code":"HX0036","message":"card declined","retryable":false}}"#);
/// assert_eq!(serde_json::from_str::<EffectOutcome>(&stored)?, declined);
/// # Ok::<(), serde_json::Error>(())
/// ```
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
/// ```
/// use hapax_core::{journal::{Done, Entry, JournalRow, by_item}, json::Json, route::SettledRoute};
/// # use hapax_core::{key::sha256, order::PathHash};
/// # let (base, item) = (sha256(b"checkpoint"), PathHash(7));
/// let (delta, route) = (Json::from_text(r#"{"tax":3}"#)?, SettledRoute::Edges);
/// let done = Done::Ok { delta, route, messages: vec![] };
/// let entry = Entry::ItemDone { done: done.clone() };
/// let row = JournalRow { seq: 0, base, step: 1, path_hash: item, entry };
/// // After a crash its siblings go on, and the item itself is not executed again.
/// assert_eq!(by_item(base, [row])[&item].done, Some(done));
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
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
///
/// ```
/// use hapax_core::journal::{Entry, Recorded, SLEEP, Timer};
/// # let (scope, request) = ("".into(), hapax_core::key::sha256(b""));
/// let timer = Timer { scope, index: 0, attempt: 1, request, due_us: 60_000_000, at_us: 0 };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Timer(timer));
/// assert_eq!(recorded.calls().filter(|(_, call)| call.name == SLEEP).count(), 1, "timers of this item");
/// ```
pub const SLEEP: &str = "hapax.sleep";

/// The name of a decision about a change of the code among an item's calls.
///
/// ```
/// use hapax_core::journal::{Entry, Recorded, Seen, VERSION};
/// # use hapax_core::{journal::EffectOutcome, json::Json, key::sha256};
/// # let outcome = EffectOutcome::Ok { response: Json::from_text("2")? };
/// # let request = sha256(b"");
/// // Decisions have lanes of their own, so they don't shift the numbers of other calls.
/// let (scope, name) = ("//quotes-by-post".into(), VERSION.into());
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Seen(Seen { scope, index: 0, attempt: 1, name, request, outcome, at_us: 0, began: None }));
/// assert!(recorded.call(&"".into(), 0).is_none());
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub const VERSION: &str = "hapax.version";

/// The name of a question among an item's calls.
///
/// ```
/// use hapax_core::journal::{ASK, Entry, Question, Recorded};
/// # use hapax_core::key::sha256;
/// # let (scope, name, text) = ("".into(), "refund".into(), "Refund 900 cents?".into());
/// # let question = Question { scope, index: 0, attempt: 1, request: sha256(b""), name, text, schema: None, at_us: 0 };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Question(question));
/// assert_eq!(recorded.call(&"".into(), 0).unwrap().name, ASK);
/// ```
pub const ASK: &str = "hapax.ask";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::NodeId,
        stream::{CallAt, Execution},
    };

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
        let (node, by) = (NodeId::new("draft").unwrap(), Execution { attempt: 1, epoch: 1 });
        let Execution { attempt, epoch } = by;
        let (call, payload) = (Some(CallAt { scope: "s".into(), index: 0 }), delta.clone());
        let chunk =
            Chunk { node: node.clone(), call: call.clone(), attempt, epoch, offset: 7, payload, at_us: 5 };
        let streams = Streams { node, call, attempt: 2, epoch, instead_of: Some(by) };
        let entries = [
            result,
            done(vec![]),
            done(vec![mail.clone(), mail]),
            Entry::Retried,
            Entry::Streams(streams),
            Entry::Chunk(chunk),
        ];
        for entry in entries {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
            assert_eq!(
                text.as_bytes().starts_with(Entry::CHUNK_TAG),
                matches!(entry, Entry::Chunk(_)),
                "{text}"
            );
        }
    }
}
