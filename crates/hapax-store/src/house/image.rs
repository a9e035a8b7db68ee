//! All that a store has of a run, as plain values: a head, and pieces.
//!
//! Invariant: a value has one text, whichever store it came from, so that two images are equal exactly when their texts
//! are. Nothing in it says how a store encodes it, and no lease is part of it.

use crate::{
    error::StoreError,
    outbox::{MessageState, OutboxRecord},
    store::RunRecord,
};
use hapax_core::{
    canonical::CanonicalError,
    checkpoint::Checkpoint,
    commit::{Epoch, Status, Wake},
    flow::Terms,
    frontier::{Barriers, WorkItem},
    id::{Namespace, RunId, RunKey},
    journal::{Entry, JournalRow},
    json::Json,
    key::{Digest, StepKey},
    order::PathHash,
    outbox::{Message, Place},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::mpsc;

/// A run's row, as it stands wherever it may be.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::key}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.create(Sample::run("order-42").tag("customer", "42").build()).await?;
/// let before = store.house().image(key("order-42")).await?.head;
/// store.house().leave(key("order-42"), "elsewhere".into()).await?;
/// let after = store.house().image(key("order-42")).await?.head;
/// assert_eq!(after.status.word(), "pending", "how it stood, not that it leaves");
/// assert_eq!((before.tags, before.epoch + 1), (after.tags, after.epoch));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The tenant.
    pub namespace: Namespace,
    /// Its name.
    pub run: RunId,
    /// The graph's name.
    pub graph: Arc<str>,
    /// The graph's shape.
    pub fingerprint: Digest,
    /// Binds graph and input.
    pub input: Digest,
    /// Where it stands.
    pub status: Status,
    /// The latest committed step.
    pub step: u64,
    /// The digest of that step.
    pub digest: Digest,
    /// How often it was claimed.
    pub epoch: u64,
    /// The next journal row's number.
    pub next_seq: u64,
    /// A cancel was requested.
    pub cancel_requested: bool,
    /// What it waits for while it is parked.
    pub wake: Wake,
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// On which terms it was started. What it holds by them it takes anew wherever it arrives.
    #[serde(default, skip_serializing_if = "Terms::is_plain")]
    pub terms: Terms,
    /// The run's time used so far, in microseconds.
    pub used_us: u64,
    /// For finding it again.
    pub tags: BTreeMap<String, String>,
    /// When it was created, in microseconds since 1970.
    pub created_at_us: i64,
    /// When it last changed.
    pub updated_at_us: i64,
}

impl Head {
    /// The head of a record: of a run on its way, as it stood. `None`: it isn't here any more.
    pub fn of(record: RunRecord) -> Result<Self, StoreError> {
        let (status, cancel_requested, wake) = match record.status {
            Status::Leaving { was, .. } | Status::Arriving { was, .. } => {
                (was.status, was.cancel_requested, was.wake)
            }
            Status::Moved { to, .. } => return Err(StoreError::Moved { run: record.key, to }),
            status => (status, record.cancel_requested, record.wake),
        };
        Ok(Self {
            namespace: record.key.namespace,
            run: record.key.run,
            graph: record.graph,
            fingerprint: record.fingerprint,
            input: record.input,
            status,
            step: record.step,
            digest: record.digest,
            epoch: record.epoch.counter,
            next_seq: record.next_seq,
            cancel_requested,
            wake,
            parent: record.parent,
            terms: Terms { token: String::new(), ..record.terms },
            used_us: record.used_us,
            tags: record.tags,
            created_at_us: record.created_at_us,
            updated_at_us: record.updated_at_us,
        })
    }

    /// The run.
    pub fn key(&self) -> RunKey {
        RunKey { namespace: self.namespace.clone(), run: self.run.clone() }
    }

    /// The record of this run where it arrives, under that epoch.
    pub(crate) fn arriving(self, epoch: Epoch) -> RunRecord {
        let was = Box::new(self.standing());
        RunRecord {
            key: self.key(),
            graph: self.graph,
            fingerprint: self.fingerprint,
            input: self.input,
            status: Status::Arriving { was, word: None },
            step: self.step,
            digest: self.digest,
            epoch,
            owner: None,
            next_seq: self.next_seq,
            cancel_requested: false,
            wake: Wake::default(),
            parent: self.parent,
            terms: self.terms,
            used_us: self.used_us,
            tags: self.tags,
            created_at_us: self.created_at_us,
            updated_at_us: self.updated_at_us,
        }
    }

    fn standing(&self) -> hapax_core::commit::Standing {
        let (status, wake) = (self.status.clone(), self.wake.clone());
        hapax_core::commit::Standing { status, cancel_requested: self.cancel_requested, wake }
    }
}

/// A part of a run.
///
/// ```
/// use hapax_store::{MemoryStore, Store, house::Piece, conformance::{Sample, sample::key}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.create(Sample::run("order-42").build()).await?;
/// let pieces = store.house().image(key("order-42")).await?.next().await?.unwrap();
/// assert!(matches!(&pieces[..], [Piece::Checkpoint(first)] if first.step == 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// A letter, taken or not.
    Letter(Parcel),
    /// A row of the journal.
    Row(Row),
    /// A message, delivered or not.
    Message(Post),
    /// A step, with the first page of its frontier.
    Checkpoint(Box<Step>),
    /// A further page of a step's frontier.
    Page(Fragment),
}

/// A letter as it is moved.
///
/// ```
/// use hapax_core::json::Json;
/// use hapax_store::house::Parcel;
/// let payload = Some(Json::null());
/// let letter = Parcel { number: 1, id: "l-1".into(), subject: "signal approved".into(), payload, sent_at_us: 7, taken: false };
/// assert!(Json::of(&letter).unwrap().as_str().contains(r#""taken":false"#));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parcel {
    /// Its place in the mailbox.
    pub number: u64,
    /// The sender's name for it.
    pub id: String,
    /// What it is about.
    pub subject: Arc<str>,
    /// What it says; `None` once it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    /// When it came.
    pub sent_at_us: i64,
    /// Whether the run has taken it.
    pub taken: bool,
}

/// A journal row as it is moved.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    seq: u64,
    base: Digest,
    step: u64,
    path_hash: PathHash,
    entry: Entry,
}

impl Row {
    /// Its number.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }
}

impl From<JournalRow> for Row {
    fn from(JournalRow { seq, base, step, path_hash, entry }: JournalRow) -> Self {
        Self { seq, base, step, path_hash, entry }
    }
}

impl From<Row> for JournalRow {
    fn from(Row { seq, base, step, path_hash, entry }: Row) -> Self {
        Self { seq, base, step, path_hash, entry }
    }
}

/// A message as it is moved.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Post {
    step: u64,
    position: u32,
    message: Message,
    state: String,
    attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    written_at_us: i64,
}

impl Post {
    /// Its step, and its place within.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.step, self.position.into())
    }
}

impl From<OutboxRecord> for Post {
    fn from(record: OutboxRecord) -> Self {
        let OutboxRecord { place, message, state, attempts, error, written_at_us, .. } = record;
        let state = state.word().to_owned();
        Self { step: place.step, position: place.position, message, state, attempts, error, written_at_us }
    }
}

impl Post {
    /// The message of that run.
    pub(crate) fn record(self, run: &RunKey) -> Result<OutboxRecord, StoreError> {
        let state = match &*self.state {
            "pending" => MessageState::Pending,
            "sent" => MessageState::Sent,
            "dead" => MessageState::Dead,
            other => {
                let what = format!("a message is `{other}`");
                return Err(StoreError::CopyDiffers { run: run.clone(), what });
            }
        };
        Ok(OutboxRecord {
            run: run.clone(),
            place: Place { step: self.step, position: self.position },
            message: self.message,
            state,
            attempts: self.attempts,
            error: self.error,
            written_at_us: self.written_at_us,
        })
    }
}

/// A step as it is moved.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The step.
    pub step: u64,
    state: Json,
    state_version: u32,
    frontier: Vec<WorkItem>,
    frontier_len: usize,
    pages: Vec<Digest>,
    #[serde(default, skip_serializing_if = "Barriers::is_empty")]
    barriers: Barriers,
    /// A text, since a number of JSON may lose its last digits.
    seed: String,
    key: StepKey,
    io: Digest,
    outbox: Digest,
    digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// The number at which its journal ended.
    next_seq: u64,
}

impl Step {
    /// A checkpoint as it was read, with the first page of its frontier.
    pub(crate) fn of(run: &RunKey, read: Checkpoint, next_seq: u64) -> Result<Self, StoreError> {
        let step = read.step;
        let no_json = |error: &dyn std::fmt::Display| {
            let what = format!("its state isn't JSON: {error}");
            StoreError::Corrupt { run: run.clone(), step: Some(step), what }
        };
        let state = std::str::from_utf8(&read.state).map_err(|error| no_json(&error))?;
        let state = serde_json::from_str(state).map_err(|error| no_json(&error))?;
        let Checkpoint { state_version, frontier, frontier_len, pages, barriers, seed, key, .. } = read;
        let Checkpoint { io, outbox, digest, label, .. } = read;
        let seed = seed.to_string();
        Ok(Self {
            step,
            state,
            state_version,
            frontier,
            frontier_len,
            pages,
            barriers,
            seed,
            key,
            io,
            outbox,
            digest,
            label,
            next_seq,
        })
    }

    /// The checkpoint, and the number at which its journal ended.
    pub(crate) fn checkpoint(self, run: &RunKey) -> Result<(Checkpoint, u64), StoreError> {
        let seed = self.seed.parse().map_err(|_| {
            let what = format!("the seed of step {} is `{}`", self.step, self.seed);
            StoreError::CopyDiffers { run: run.clone(), what }
        })?;
        let checkpoint = Checkpoint {
            step: self.step,
            state: self.state.as_bytes().into(),
            state_version: self.state_version,
            frontier: self.frontier,
            frontier_len: self.frontier_len,
            pages: self.pages,
            barriers: self.barriers,
            seed,
            key: self.key,
            io: self.io,
            outbox: self.outbox,
            digest: self.digest,
            label: self.label,
        };
        Ok((checkpoint, self.next_seq))
    }
}

/// A page of a frontier as it is moved.
///
/// ```
/// use hapax_core::json::Json;
/// use hapax_store::house::Fragment;
/// let page = Fragment { step: 3, page: 1, items: vec![] };
/// assert_eq!(Json::of(&page).unwrap().as_str(), r#"{"items":[],"page":1,"step":3}"#);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fragment {
    /// The step.
    pub step: u64,
    /// Its number; the first page lies with its step.
    pub page: u32,
    /// What runs next.
    pub items: Vec<WorkItem>,
}

impl Piece {
    /// About how many bytes it holds.
    pub(crate) fn weight(&self) -> usize {
        let items = |items: &[WorkItem]| {
            items.iter().map(|item| 128 + item.input.as_ref().map_or(0, |input| input.as_bytes().len())).sum()
        };
        let more: usize = match self {
            Piece::Letter(letter) => letter.payload.as_ref().map_or(0, |payload| payload.as_bytes().len()),
            Piece::Row(row) => row.entry.answer_bytes(),
            Piece::Message(post) => post.message.weight(),
            Piece::Checkpoint(step) => step.state.as_bytes().len() + items(&step.frontier),
            Piece::Page(page) => items(&page.items),
        };
        256 + more
    }

    /// Its one text.
    pub fn text(&self) -> Result<Json, CanonicalError> {
        Json::of(self)
    }
}

/// A run that is being read: its head, and its pieces as they come.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::key}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.create(Sample::run("order-42").build()).await?;
/// let mut image = store.house().image(key("order-42")).await?;
/// assert_eq!(image.head.step, 0);
/// assert_eq!(image.next().await?.unwrap().len(), 1);
/// assert!(image.next().await?.is_none(), "that was all of it");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Image {
    /// Its row.
    pub head: Head,
    parts: mpsc::Receiver<Result<Part, StoreError>>,
}

enum Part {
    Head(Box<Head>),
    Pieces(Vec<Piece>),
    /// Without it, whoever reads has died.
    End,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Part")
    }
}

impl Image {
    /// The image of a run that somebody reads with the [`Sender`]; waits for its head.
    pub(crate) async fn of(mut parts: Parts) -> Result<Self, StoreError> {
        match parts.0.recv().await {
            Some(Ok(Part::Head(head))) => Ok(Self { head: *head, parts: parts.0 }),
            Some(Err(error)) => Err(error),
            _ => Err(died()),
        }
    }

    /// The next pieces; `None`: there are no more.
    pub async fn next(&mut self) -> Result<Option<Vec<Piece>>, StoreError> {
        match self.parts.recv().await {
            Some(Ok(Part::Pieces(pieces))) => Ok(Some(pieces)),
            Some(Ok(Part::End)) => Ok(None),
            Some(Err(error)) => Err(error),
            _ => Err(died()),
        }
    }
}

fn died() -> StoreError {
    StoreError::Retry("whoever read the run ended before its end".into())
}

/// What arrives of an image.
pub(crate) struct Parts(mpsc::Receiver<Result<Part, StoreError>>);

/// Bytes of pieces that are handed over at once.
const BATCH_BYTES: usize = 1 << 20;
/// Pieces that are handed over at once.
const BATCH: usize = 256;

/// Hands over what is read of a run, some at a time.
pub(crate) struct Sender {
    parts: mpsc::Sender<Result<Part, StoreError>>,
    batch: Vec<Piece>,
    bytes: usize,
}

/// Why the reading of an image ends before its end.
pub(crate) enum Stop {
    /// Nobody reads the image any more.
    Unread,
    /// It can't be read.
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Failed(error)
    }
}

impl Stop {
    /// Whom nobody reads owes nothing.
    fn as_failure(sent: Result<(), Self>) -> Result<(), StoreError> {
        match sent {
            Err(Stop::Failed(error)) => Err(error),
            Ok(()) | Err(Stop::Unread) => Ok(()),
        }
    }
}

impl Sender {
    pub(crate) fn new() -> (Self, Parts) {
        let (parts, received) = mpsc::channel(2);
        (Self { parts, batch: vec![], bytes: 0 }, Parts(received))
    }

    /// Takes a piece; answers what is to be handed over now.
    fn add(&mut self, piece: Piece) -> Option<Part> {
        self.bytes += piece.weight();
        self.batch.push(piece);
        (self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH).then(|| self.take())
    }

    fn take(&mut self) -> Part {
        self.bytes = 0;
        Part::Pieces(std::mem::take(&mut self.batch))
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn head_blocking(&self, head: Head) -> Result<(), Stop> {
        self.parts.blocking_send(Ok(Part::Head(Box::new(head)))).map_err(|_| Stop::Unread)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn push_blocking(&mut self, piece: Piece) -> Result<(), Stop> {
        self.add(piece).map_or(Ok(()), |part| self.parts.blocking_send(Ok(part)).map_err(|_| Stop::Unread))
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn end_blocking(mut self, read: Result<(), Stop>) {
        let last = self.take();
        // Who doesn't read any more needs no end.
        let _ = match Stop::as_failure(read) {
            Ok(()) => {
                self.parts.blocking_send(Ok(last)).and_then(|()| self.parts.blocking_send(Ok(Part::End)))
            }
            Err(error) => self.parts.blocking_send(Err(error)),
        };
    }

    pub(crate) async fn head(&self, head: Head) -> Result<(), Stop> {
        self.parts.send(Ok(Part::Head(Box::new(head)))).await.map_err(|_| Stop::Unread)
    }

    pub(crate) async fn push(&mut self, piece: Piece) -> Result<(), Stop> {
        match self.add(piece) {
            Some(part) => self.parts.send(Ok(part)).await.map_err(|_| Stop::Unread),
            None => Ok(()),
        }
    }

    pub(crate) async fn end(mut self, read: Result<(), Stop>) {
        let last = self.take();
        // Who doesn't read any more needs no end.
        let _ = match Stop::as_failure(read) {
            Ok(()) if self.parts.send(Ok(last)).await.is_ok() => self.parts.send(Ok(Part::End)).await,
            Ok(()) => Ok(()),
            Err(error) => self.parts.send(Err(error)).await,
        };
    }
}
