//! What can go wrong in a store, named by what the caller must do next.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::depot::Away;
use crate::outbox::Channel;
use hapax_core::{
    commit::{Epoch, Status},
    error::{Code, Coded, code},
    flow::BadTerms,
    id::{InvalidId, RunId, RunKey},
    key::Digest,
    schedule::BadSchedule,
};

/// The driver's own error, boxed behind ours.
///
/// ```
/// use hapax_store::{StoreError, error::Source};
/// use std::{error::Error, io};
/// let full: Source = io::Error::from(io::ErrorKind::StorageFull).into();
/// let error = StoreError::Full(full);
/// let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>()).unwrap();
/// assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
/// ```
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A store's answer when it can't say yes.
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::StoreError;
/// let busy = StoreError::Retry("locked".into());
/// assert_eq!(busy.code(), "HX0040");
/// assert_eq!(busy.to_string(), "the store is busy or out of reach, nothing was written: locked");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was written: back off, then again.
    #[error("the store is busy or out of reach, nothing was written: {0}")]
    Retry(#[source] Source),
    /// Nothing was written, because there is no room: make room, then again.
    #[error("the disk is full, nothing was written: {0}")]
    Full(#[source] Source),
    /// The reply was lost: ask [`Store::settle`](crate::Store::settle), never send again blindly.
    #[error("the store's answer was lost, so it is not known whether the write took effect: {0}")]
    Unknown(#[source] Source),
    /// A newer epoch owns the run: stop at once, touch nothing.
    #[error("run `{run}` belongs to another worker now (epoch {})", owner.map_or_else(|| "gone".to_owned(), |e| e.to_string()))]
    Fenced {
        /// The run.
        run: RunKey,
        /// Who owns it; `None`: the run is gone.
        owner: Option<Epoch>,
    },
    /// The step is there with another content: two executions diverged. Stop and report both.
    #[error(
        "step {step} of run `{run}` is already committed with other content: stored {stored}, ours {ours}"
    )]
    Conflict {
        /// The run.
        run: RunKey,
        /// The step.
        step: u64,
        /// The digest that is stored.
        stored: Digest,
        /// The digest that was refused.
        ours: Digest,
    },
    /// What is stored doesn't match its digest, or can't be read.
    #[error("run `{run}`{} is damaged: {what}", step.map(|s| format!(", step {s},")).unwrap_or_default())]
    Corrupt {
        /// The run.
        run: RunKey,
        /// The step, when one is to blame.
        step: Option<u64>,
        /// What is wrong.
        what: String,
    },
    /// Large payloads of the run rest in an object store that wasn't given.
    #[error("large payloads of run `{run}` rest in an object store, and none was given")]
    NoDepot {
        /// The run.
        run: RunKey,
    },
    /// What is stored can't be read with the keys that were given. Nothing is lost: give the key, then again.
    #[error("what is stored of run `{run}` cannot be read: {locked}")]
    Locked {
        /// The run.
        run: RunKey,
        /// What is lacking.
        #[source]
        locked: Locked,
    },
    /// What is stored of a request can't be read.
    #[error("the record of request {request} is damaged: {what}")]
    CorruptRequest {
        /// The request.
        request: String,
        /// What is wrong.
        what: String,
    },
    /// A cancel was requested, so no intent and no end may follow.
    #[error("run `{run}` is to be cancelled")]
    CancelRequested {
        /// The run.
        run: RunKey,
    },
    /// There is no such run.
    #[error("there is no run `{run}`")]
    NotFound {
        /// The run.
        run: RunKey,
    },
    /// Somebody else holds the run.
    #[error("run `{run}` is held by another engine ({owner}) for {left_ms} ms more, unless it renews")]
    Held {
        /// The run.
        run: RunKey,
        /// The holder.
        owner: String,
        /// What is left of its lease.
        left_ms: u64,
    },
    /// The run's status doesn't allow it.
    #[error("run `{run}` is {}, so this cannot be done", status.word())]
    WrongStatus {
        /// The run.
        run: RunKey,
        /// Where it stands.
        status: Box<Status>,
    },
    /// The run is on its way between two stores: it can be done once it has arrived, there.
    #[error("run `{run}` is being moved{}: run `hapax migrate` to its end, then ask the store that it went to", towards(to.as_deref()))]
    Moving {
        /// The run.
        run: RunKey,
        /// Where it goes, as far as this store knows.
        to: Option<String>,
    },
    /// The run lives in another store.
    #[error("run `{run}` was moved: it is in {to} now")]
    Moved {
        /// The run.
        run: RunKey,
        /// Where it is.
        to: String,
    },
    /// What has arrived of a run isn't what left. Nothing was closed: its old store still has it.
    #[error("run `{run}` didn't arrive as it left: {what}")]
    CopyDiffers {
        /// The run.
        run: RunKey,
        /// What differs.
        what: String,
    },
    /// The store that a run is to move into has one of that name.
    #[error("the store has another run `{run}` already")]
    ArrivalTaken {
        /// The run.
        run: RunKey,
    },
    /// A run would belong to another shard than those that it is bound to.
    #[error(
        "run `{run}` belongs to shard {shard}, and {what} to shard {other}: a run and all that it is bound to share one"
    )]
    ShardSplit {
        /// The run.
        run: RunKey,
        /// Where it belongs.
        shard: usize,
        /// What it is bound to.
        what: String,
        /// Where that belongs.
        other: usize,
    },
    /// The messages are in the hands of another relay, or none of them is left: deliver no more of them.
    #[error("the claim on the messages of run `{}` to `{}` is over", channel.run, channel.topic)]
    ClaimLost {
        /// The messages.
        channel: Channel,
    },
    /// Larger than its limit.
    #[error("{what}: {size} is over the limit of {limit}")]
    TooLarge {
        /// What.
        what: String,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A tag that can't be a name.
    #[error(transparent)]
    Name(InvalidId),
    /// A schedule that no store keeps.
    #[error(transparent)]
    Schedule(BadSchedule),
    /// Terms of flow control that no store keeps.
    #[error(transparent)]
    Terms(BadTerms),
    /// Another run lives under a singleton's name.
    #[error("run `{holder}` lives under the name `{name}`, and only one may")]
    NameTaken {
        /// The name.
        name: String,
        /// The run that lives.
        holder: RunId,
    },
    /// The store can't be opened.
    #[error("cannot open {what}: {why}")]
    Open {
        /// The store's address.
        what: String,
        /// Why, and what to do.
        why: String,
        /// Which of the reasons.
        code: Code,
    },
}

impl StoreError {
    /// Stored bytes that can't be decoded: for lack of a key, or because they can't be what was written.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn undecoded(run: RunKey, step: Option<u64>, what: &str, error: Source) -> Self {
        let error = match error.downcast::<Away>() {
            Ok(away) => return away.of(&run),
            Err(error) => error,
        };
        match error.downcast::<Locked>() {
            Ok(locked) => StoreError::Locked { run, locked: *locked },
            Err(error) => StoreError::Corrupt { run, step, what: format!("{what} cannot be read: {error}") },
        }
    }

    /// Why a run's status doesn't allow something: because of where it stands, or because it stands elsewhere.
    pub(crate) fn of_status(run: RunKey, status: Status) -> Self {
        match status {
            Status::Moved { to, .. } => StoreError::Moved { run, to },
            Status::Leaving { to, .. } => StoreError::Moving { run, to: Some(to) },
            Status::Arriving { .. } => StoreError::Moving { run, to: None },
            status => StoreError::WrongStatus { run, status: Box::new(status) },
        }
    }
}

fn towards(to: Option<&str>) -> String {
    to.map_or_else(String::new, |to| format!(" to {to}"))
}

impl Coded for StoreError {
    fn code(&self) -> Code {
        match self {
            StoreError::Retry(_) => code::STORE_RETRY,
            StoreError::Full(_) => code::STORE_FULL,
            StoreError::Unknown(_) => code::STORE_UNKNOWN,
            StoreError::Fenced { .. } => code::FENCED,
            StoreError::Conflict { .. } => code::CONFLICT,
            StoreError::Corrupt { .. } | StoreError::CorruptRequest { .. } => code::CORRUPT,
            StoreError::Locked { locked, .. } => locked.code(),
            StoreError::NoDepot { .. } => code::NO_DEPOT,
            StoreError::CancelRequested { .. } => code::CANCELLED,
            StoreError::NotFound { .. } => code::RUN_NOT_FOUND,
            StoreError::Held { .. } => code::RUN_HELD,
            StoreError::WrongStatus { status, .. } if status.is_final() => code::ALREADY_FINISHED,
            StoreError::WrongStatus { .. } => code::NOT_FAILED,
            StoreError::Moving { .. } => code::RUN_MOVING,
            StoreError::Moved { .. } => code::RUN_MOVED,
            StoreError::CopyDiffers { .. } => code::COPY_DIFFERS,
            StoreError::ArrivalTaken { .. } => code::ARRIVAL_TAKEN,
            StoreError::ShardSplit { .. } => code::SHARD_SPLIT,
            StoreError::ClaimLost { .. } => code::CLAIM_LOST,
            StoreError::TooLarge { .. } => code::LIMIT,
            StoreError::Name(_) => code::INVALID_ID,
            StoreError::Schedule(error) => error.code(),
            StoreError::Terms(error) => error.code(),
            StoreError::NameTaken { .. } => code::SINGLETON_TAKEN,
            StoreError::Open { code, .. } => code,
        }
    }
}

/// Stored bytes that can't be read with the keys that were given.
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::error::Locked;
/// let locked = Locked::KeyMissing { key_id: "2026-05".into() };
/// assert_eq!(locked.code(), "HX0190");
/// assert!(locked.to_string().contains("`2026-05`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Locked {
    /// The key isn't there.
    #[error(
        "it is encrypted under key `{key_id}`, which was not given: add that key, in HAPAX_KEYS for commands"
    )]
    KeyMissing {
        /// The key's name.
        key_id: String,
    },
    /// The key of that name is another one.
    #[error(
        "it is encrypted under another key than the `{key_id}` that was given: give the key that had this name"
    )]
    WrongKey {
        /// The key's name.
        key_id: String,
    },
    /// It isn't encrypted, and must be.
    #[error(
        "it is not encrypted, and keys were given: unless the store is on its way to be, find out who wrote it (keys that end with `plain` read both)"
    )]
    Plain,
}

impl Coded for Locked {
    fn code(&self) -> Code {
        match self {
            Locked::KeyMissing { .. } => code::KEY_MISSING,
            Locked::WrongKey { .. } => code::KEY_WRONG,
            Locked::Plain => code::NOT_ENCRYPTED,
        }
    }
}
