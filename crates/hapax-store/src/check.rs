//! What every store asks before it writes: sizes, tags, and whether two rows are the same.
//!
//! Invariant: what passes here fits every store, so that a run never depends on which one it lives in.

use crate::{error::StoreError, store::NewRun};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Status, Write},
    flow::Terms,
    frontier::WorkItem,
    id::{RunId, check_name, check_tag},
    journal::{Done, EffectOutcome, Entry, JournalRow, Seen},
    json::Json,
    key::{Digest, DigestBuilder, sha256},
    limits::{MAX_CHUNK_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, MAX_STATE_BYTES, MAX_TAGS},
    mailbox::{self, NewLetter},
    outbox::Message,
};
use std::collections::BTreeMap;

/// Refuses a write with a state or a payload over its limit.
///
/// ```
/// use hapax_core::{commit::{Epoch, Status, StatusChange, Wake, Write}, id::{Namespace, RunId, RunKey}};
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// let epoch = Epoch { counter: 1, nonce: 9 };
/// let change = StatusChange { run, epoch, status: Status::Cancelled, release: true, used_us: 0, wake: Wake::default() };
/// assert!(hapax_store::check_limits(&Write::Status(change)).is_ok());
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
pub fn check_limits(write: &Write) -> Result<(), StoreError> {
    match write {
        Write::Step(step) => {
            check_checkpoint(&step.checkpoint)?;
            step.outbox.iter().try_for_each(check_message)?;
            check_rows(&step.journal)
        }
        Write::Append(append) => check_rows(&append.rows),
        _ => Ok(()),
    }
}

/// Refuses a run whose state, inputs or tags are over their limits, or whose tags aren't names.
///
/// ```
/// use hapax_store::{StoreError, check::check_new_run, conformance::Sample};
/// assert!(check_new_run(&Sample::run("order-42").tag("customer", "42").build()).is_ok());
/// let refused = check_new_run(&Sample::run("order-42").tag("customer", "two\nlines").build());
/// assert!(matches!(refused, Err(StoreError::Name(_))));
/// ```
pub fn check_new_run(run: &NewRun) -> Result<(), StoreError> {
    check_checkpoint(&run.checkpoint)?;
    check_rows(&run.journal)?;
    check_about(&run.tags, &run.terms)
}

/// Refuses tags and terms that no run has.
pub(crate) fn check_about(tags: &BTreeMap<String, String>, terms: &Terms) -> Result<(), StoreError> {
    within("the number of tags", tags.len(), MAX_TAGS)?;
    terms.check().map_err(StoreError::Terms)?;
    tags.iter().try_for_each(|(key, value)| check_tag(key, value)).map_err(StoreError::Name)
}

/// Refuses a letter over its limit, or whose id is no name.
///
/// ```
/// use hapax_core::{json::Json, mailbox::{NewLetter, signal}};
/// let payload = Json::from_text("null").unwrap();
/// let letter = NewLetter { id: String::new(), subject: signal("approved"), payload };
/// assert!(hapax_store::check::check_letter(&letter).is_err());
/// ```
pub fn check_letter(letter: &NewLetter) -> Result<(), StoreError> {
    check_name("letter id", &letter.id).map_err(StoreError::Name)?;
    payload("a letter", &letter.payload)
}

/// The letter by which a run's parent hears of its end. A run that is retried ends again, under another epoch.
pub(crate) fn end_letter(run: &RunId, epoch: u64, status: &Status) -> NewLetter {
    let id = sha256(format!("{epoch} {run}").as_bytes()).to_string();
    NewLetter { id, subject: mailbox::end_of(run.as_str()), payload: status.to_json() }
}

/// Binds a journal row, so that a conflict can name both sides.
///
/// ```
/// use hapax_core::{journal::{Entry, JournalRow}, key::sha256, order::PathHash};
/// use hapax_store::check::row_digest;
/// let row = JournalRow { seq: 0, base: sha256(b""), step: 0, path_hash: PathHash(7), entry: Entry::Retried };
/// assert_ne!(row_digest(&row), row_digest(&JournalRow { seq: 1, ..row.clone() }));
/// ```
pub fn row_digest(row: &JournalRow) -> Digest {
    let entry = Json::of(&row.entry).expect("an entry is plain data");
    let mut digest = DigestBuilder::new("hapax.row.v1");
    digest.u64(row.seq).bytes(&row.base.0).u64(row.step).u64(row.path_hash.0);
    digest.text(entry.as_str()).finish()
}

/// Whether a run is on its way, or has moved.
pub(crate) fn is_elsewhere(status: &Status) -> bool {
    status.is_moving() || matches!(status, Status::Moved { .. })
}

/// Whether a run has ended, and not merely gone elsewhere: only such a run may be deleted.
pub(crate) fn is_over(status: &Status) -> bool {
    status.is_final() && !matches!(status, Status::Moved { .. })
}

pub(crate) fn check_message(message: &Message) -> Result<(), StoreError> {
    message.check().map_err(StoreError::Name)?;
    payload("a message", &message.payload)
}

/// Refuses items whose inputs are over their limit.
pub(crate) fn check_items(items: &[WorkItem]) -> Result<(), StoreError> {
    items
        .iter()
        .filter_map(|item| item.input.as_ref())
        .try_for_each(|input| payload("an item's input", input))
}

pub(crate) fn check_checkpoint(checkpoint: &Checkpoint) -> Result<(), StoreError> {
    within("the state in bytes", checkpoint.state.len(), MAX_STATE_BYTES)?;
    check_items(&checkpoint.frontier)
}

pub(crate) fn check_rows(rows: &[JournalRow]) -> Result<(), StoreError> {
    rows.iter().flat_map(JournalRow::entries).try_for_each(|entry| match entry {
        Entry::Result { outcome: EffectOutcome::Ok { response }, .. }
        | Entry::Seen(Seen { outcome: EffectOutcome::Ok { response }, .. }) => {
            payload("a response", response)
        }
        Entry::Chunk(chunk) => within("a chunk in bytes", chunk.payload.as_bytes().len(), MAX_CHUNK_BYTES),
        Entry::Question(question) => {
            let schema = question.schema.as_ref().map_or(0, |schema| schema.as_bytes().len());
            within("a question in bytes", question.text.len() + schema, MAX_PAYLOAD_BYTES)
        }
        Entry::ItemDone { done: Done::Ok { delta, messages, .. } } => {
            payload("a delta", delta)?;
            let size = messages.iter().map(Message::weight).sum();
            within("an item's messages in bytes", size, MAX_MESSAGE_BYTES)
        }
        _ => Ok(()),
    })
}

fn payload(what: &str, json: &Json) -> Result<(), StoreError> {
    within(what, json.as_bytes().len(), MAX_PAYLOAD_BYTES)
}

fn within(what: &str, size: usize, limit: usize) -> Result<(), StoreError> {
    if size > limit { Err(StoreError::TooLarge { what: what.to_owned(), size, limit }) } else { Ok(()) }
}
