//! What is written to a run: each write whole or not at all, and only by the run's holder.

use crate::{
    checkpoint::Checkpoint, failure::NodeFailure, frontier::WorkItem, id::RunKey, journal::JournalRow,
    json::Json, key::Digest, outbox::Message,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, sync::Arc};

/// The fencing token of a run's lease. A counter alone would repeat after a restored backup, so each claim
/// draws a nonce as well.
///
/// ```
/// use hapax_core::commit::Epoch;
/// let (older, newer) = (Epoch { counter: 1, nonce: 9 }, Epoch { counter: 2, nonce: 3 });
/// assert!(older < newer);
/// assert_eq!(newer.to_string(), "2-00000000");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    /// Counts the claims.
    pub counter: u64,
    /// Drawn by the claim.
    pub nonce: u128,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", self.counter, self.nonce >> 96)
    }
}

/// A write to a run. All writes of a run become durable in the order in which they were submitted.
///
/// ```
/// use hapax_core::{commit::{Append, Epoch, Status, StatusChange, Wake, Write}, id::{Namespace, RunId, RunKey}};
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// let epoch = Epoch { counter: 1, nonce: 9 };
/// let rows = Append { run: run.clone(), epoch, first_seq: 0, rows: vec![], unless_cancelled: true };
/// assert_eq!(Write::Append(rows).run(), &run);
/// let change = StatusChange { run, epoch, status: Status::Cancelled, release: true, used_us: 0, wake: Wake::default() };
/// let write = Write::Status(change);
/// assert_eq!((write.run().run.as_str(), write.epoch()), ("order-42", epoch));
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Write {
    /// A step.
    Step(Box<StepCommit>),
    /// Rows between two steps.
    Append(Append),
    /// A change of status: parked, failed, cancelled; or the lease given back.
    Status(StatusChange),
}

/// Everything one step changes. Written whole or not at all.
///
/// ```
/// use hapax_core::{
///     checkpoint::{Draft, IoDigest, outbox_digest},
///     commit::{Epoch, StepCommit, Write},
///     frontier::Barriers,
///     id::{Namespace, RunId, RunKey},
/// };
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// let draft = |step, state: &str| Draft {
///     step,
///     state: state.as_bytes().into(),
///     state_version: 1,
///     frontier: vec![],
///     barriers: Barriers::default(),
///     seed: 7,
///     io: IoDigest::default().finish(),
///     outbox: outbox_digest(&[]),
///     label: None,
/// };
/// let before = draft(0, r#"{"paid":false}"#).seal(&run.run);
/// let step = StepCommit {
///     epoch: Epoch { counter: 1, nonce: 9 },
///     follows: before.step,
///     base: before.digest, // a step demands the very one before it
///     checkpoint: draft(1, r#"{"paid":true}"#).seal(&run.run),
///     first_seq: 0,
///     journal: vec![],
///     outbox: vec![],
///     ends: true,
///     fresh: None,
///     used_us: 250,
///     run,
/// };
/// assert_eq!(Write::Step(Box::new(step)).run().run.as_str(), "order-42");
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct StepCommit {
    /// The run.
    pub run: RunKey,
    /// Who writes.
    pub epoch: Epoch,
    /// The step that it follows.
    pub follows: u64,
    /// The digest of the checkpoint that it follows.
    pub base: Digest,
    /// What the step led to.
    pub checkpoint: Checkpoint,
    /// The number of the first journal row.
    pub first_seq: u64,
    /// The journal's tail.
    pub journal: Vec<JournalRow>,
    /// Messages to the outside.
    pub outbox: Vec<Message>,
    /// The run has no more to do: it succeeds with this commit, unless a cancel was requested.
    pub ends: bool,
    /// The run begins anew: the commit also deletes every earlier checkpoint, key and journal row, its own rows included, and
    /// binds the run to this shape. All earlier writes of the run are durable before it is submitted.
    pub fresh: Option<Digest>,
    /// The run's time used so far, in microseconds.
    pub used_us: u64,
}

/// Journal rows of a run.
///
/// ```
/// use hapax_core::{commit::{Append, Epoch, Write}, journal::{Entry, JournalRow}};
/// # use hapax_core::{id::{Namespace, RunId, RunKey}, key::sha256, order::PathHash};
/// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// # let row = |seq| JournalRow { seq, base: sha256(b""), step: 1, path_hash: PathHash(7), entry: Entry::Retried };
/// # let epoch = Epoch { counter: 1, nonce: 9 };
/// let append = Append { run, epoch, first_seq: 5, rows: vec![row(5), row(6)], unless_cancelled: false };
/// // Rows are numbered without gaps, so that a lost one would be noticed.
/// assert!(append.rows.iter().map(|row| row.seq).eq(append.first_seq..7));
/// assert!(Write::Append(append).weight() > 500);
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// The run.
    pub run: RunKey,
    /// Who writes.
    pub epoch: Epoch,
    /// The number of the first row.
    pub first_seq: u64,
    /// The rows.
    pub rows: Vec<JournalRow>,
    /// Refuse when a cancel was requested: an intent must not follow it.
    pub unless_cancelled: bool,
}

/// A run's new status.
///
/// ```
/// use hapax_core::commit::{Epoch, Status, StatusChange, WaitsOn, Wake};
/// # use hapax_core::id::{Namespace, RunId, RunKey};
/// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// # let epoch = Epoch { counter: 1, nonce: 9 };
/// let status = Status::Waiting { on: WaitsOn::Timer };
/// let wake = Wake { at_us: Some(1_800_000_000_000_000), ..Wake::default() };
/// let parked = StatusChange { run, epoch, status, release: true, used_us: 250, wake };
/// // Nobody holds a parked run: whoever is there when its time comes takes it up.
/// assert!(parked.release && !parked.status.is_runnable());
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct StatusChange {
    /// The run.
    pub run: RunKey,
    /// Who writes.
    pub epoch: Epoch,
    /// The new status.
    pub status: Status,
    /// Whether the lease ends with it.
    pub release: bool,
    /// The run's time used so far, in microseconds.
    pub used_us: u64,
    /// What a parked run waits for.
    pub wake: Wake,
}

/// What wakes a parked run: the first of these that happens.
///
/// ```
/// use hapax_core::{commit::Wake, mailbox::signal};
/// let wake = Wake { at_us: None, letters: [signal("approved")].into() };
/// assert!(wake.letters.contains(&signal("approved")));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// A time, in microseconds since 1970 by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_us: Option<i64>,
    /// Letters with one of these subjects. A run that has one of them already isn't parked: it is pending again at once.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub letters: BTreeSet<Arc<str>>,
}

impl Write {
    /// The run that it changes.
    pub fn run(&self) -> &RunKey {
        match self {
            Write::Step(step) => &step.run,
            Write::Append(append) => &append.run,
            Write::Status(change) => &change.run,
        }
    }

    /// Who writes.
    pub fn epoch(&self) -> Epoch {
        match self {
            Write::Step(step) => step.epoch,
            Write::Append(append) => append.epoch,
            Write::Status(change) => change.epoch,
        }
    }

    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        let item = |item: &WorkItem| 64 + item.input.as_ref().map_or(0, |i| i.as_bytes().len());
        match self {
            Write::Step(step) => {
                256 + step.checkpoint.state.len()
                    + step.checkpoint.frontier.iter().map(item).sum::<usize>()
                    + step.journal.iter().map(row_weight).sum::<usize>()
                    + step.outbox.iter().map(Message::weight).sum::<usize>()
            }
            Write::Append(append) => 128 + append.rows.iter().map(row_weight).sum::<usize>(),
            Write::Status(_) => 256,
        }
    }
}

fn row_weight(row: &JournalRow) -> usize {
    256 + row.entry.answer_bytes()
}

/// What became of a write that took effect.
///
/// ```
/// use hapax_core::commit::Written;
/// let told = |written| match written {
///     Written::Committed => "it is ours",
///     Written::AlreadyCommitted => "it was there",
/// };
/// assert_eq!(told(Written::AlreadyCommitted), "it was there");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Ours, durable.
    Committed,
    /// This very write was there already; the stored one is untouched.
    AlreadyCommitted,
}

/// Where a run stands.
///
/// ```
/// use hapax_core::commit::{Status, WaitsOn};
/// let status = Status::Waiting { on: WaitsOn::Timer };
/// assert!(!status.is_final() && Status::Succeeded.is_final());
/// assert_eq!(serde_json::to_string(&status)?, r#"{"status":"waiting","on":"timer"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// Not started yet.
    Pending,
    /// Somebody runs it, or will after a crash.
    Running,
    /// Parked until something happens.
    Waiting {
        /// What it waits for.
        on: WaitsOn,
    },
    /// Parked until there is room, or until an operator says so.
    Paused {
        /// Why.
        by: PausedBy,
    },
    /// Parked: only a person can tell whether a call took effect.
    InDoubt,
    /// It ended well.
    Succeeded,
    /// It ended with an error; `retry` goes on from its last step.
    Failed {
        /// What happened.
        error: RunFailure,
    },
    /// It was cancelled.
    Cancelled,
    /// It is on its way to another store: nobody takes it up, and nothing is taken in for it.
    Leaving {
        /// Where to.
        to: String,
        /// How it stood.
        was: Box<Standing>,
    },
    /// It is on its way from another store, and isn't whole yet.
    Arriving {
        /// How it will stand.
        was: Box<Standing>,
        /// The word of where it went that it takes the place of: it holds again if the run doesn't come.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        word: Option<Box<Word>>,
    },
    /// It lives in another store now.
    Moved {
        /// Where.
        to: String,
        /// How it stood, as long as this store keeps its rows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        was: Option<Box<Standing>>,
    },
}

/// How a run stands while it is moved: what both stores need to let it go on as if nothing had been.
///
/// ```
/// use hapax_core::commit::{Standing, Status, Wake};
/// let was = Standing { status: Status::Pending, cancel_requested: false, wake: Wake::default() };
/// let leaving = Status::Leaving { to: "sqlite:new.db".into(), was: Box::new(was) };
/// assert!(leaving.is_moving() && !leaving.is_runnable() && !leaving.is_final());
/// assert_eq!(serde_json::from_str::<Status>(leaving.to_json().as_str())?, leaving);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its status.
    pub status: Status,
    /// A cancel was requested.
    pub cancel_requested: bool,
    /// What it waits for.
    pub wake: Wake,
}

/// What a store says of a run that has left it, while that run is on its way home.
///
/// ```
/// use hapax_core::commit::{Standing, Status, Wake, Word};
/// let was = Standing { status: Status::Pending, cancel_requested: false, wake: Wake::default() };
/// let word = Word { to: "sqlite:new.db".into(), epoch: 7 };
/// let comes_home = Status::Arriving { was: Box::new(was), word: Some(Box::new(word)) };
/// assert_eq!(serde_json::from_str::<Status>(comes_home.to_json().as_str())?, comes_home);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Where it went.
    pub to: String,
    /// Under which epoch, by its counter, it was closed here.
    pub epoch: u64,
}

/// What a parked run waits for.
///
/// ```
/// use hapax_core::commit::{Status, WaitsOn};
/// let parked = Status::Waiting { on: WaitsOn::Answer };
/// assert!(!parked.is_runnable() && !parked.is_final());
/// assert_eq!(parked.to_json().as_str(), r#"{"on":"answer","status":"waiting"}"#);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsOn {
    /// A time.
    Timer,
    /// A signal.
    Signal,
    /// A person's answer.
    Answer,
    /// A child run.
    Child,
    /// A slot of a concurrency key.
    Key,
}

/// Who paused a run.
///
/// ```
/// use hapax_core::commit::{PausedBy, Status};
/// let status = Status::Paused { by: PausedBy::Backpressure };
/// assert!(!status.is_final());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PausedBy {
    /// The engine had no room.
    Backpressure,
    /// An operator.
    Operator,
}

/// Why a run failed, as it is stored.
///
/// ```
/// use hapax_core::commit::{RunFailure, Status};
/// let (code, message) = ("HX0024".to_owned(), "the run took 10 steps, as many as it may".to_owned());
/// let error = RunFailure { code, message, step: 10, node: None };
/// assert_eq!(error.to_string(), "the run took 10 steps, as many as it may");
/// assert!(Status::Failed { error }.is_final());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RunFailure {
    /// The error's code.
    pub code: String,
    /// What happened, in words.
    pub message: String,
    /// The step that failed.
    pub step: u64,
    /// The node's failure, when it was a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeFailure>,
}

impl Status {
    /// The run is over, at least here.
    pub fn is_final(&self) -> bool {
        matches!(self, Status::Succeeded | Status::Failed { .. } | Status::Cancelled | Status::Moved { .. })
    }

    /// It is on its way between two stores.
    pub fn is_moving(&self) -> bool {
        matches!(self, Status::Leaving { .. } | Status::Arriving { .. })
    }

    /// A worker may take it up.
    pub fn is_runnable(&self) -> bool {
        matches!(self, Status::Pending | Status::Running | Status::Paused { by: PausedBy::Backpressure })
    }

    /// One word for it, as stores and people see it.
    pub fn word(&self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Running => "running",
            Status::Waiting { .. } => "waiting",
            Status::Paused { .. } => "paused",
            Status::InDoubt => "in_doubt",
            Status::Succeeded => "succeeded",
            Status::Failed { .. } => "failed",
            Status::Cancelled => "cancelled",
            Status::Leaving { .. } => "leaving",
            Status::Arriving { .. } => "arriving",
            Status::Moved { .. } => "moved",
        }
    }

    /// The status as the store keeps it.
    pub fn to_json(&self) -> Json {
        Json::of(self).expect("a status is plain data")
    }
}
