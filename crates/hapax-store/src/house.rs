//! Moving house: how a run leaves one store and arrives in another.
//!
//! Invariant: a run can be claimed in one store at the most. It is shut in its old store before anything of it is copied,
//! it stays shut in the new one until the old one has said where it went, and each of these is one transaction that
//! demands the mover's epoch. So a crash anywhere leaves it in one place, and the same call goes on from there.
//!
//! A run moves with its family: its ancestors and all their descendants. The end of a child is told to its parent in one
//! transaction, and there is none over two stores.

mod export;
mod image;
mod mover;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) mod packed;

pub use export::{Contents, ExportError, export, import, inspect};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use image::Stop;
pub use image::{Fragment, Head, Image, Parcel, Piece};
pub(crate) use image::{Sender, Step};
pub(crate) use mover::Seal;
pub use mover::{Load, Mover};

use crate::{
    check::is_over,
    error::StoreError,
    store::{Answer, RunRecord},
};
use hapax_core::{
    canary,
    commit::{Epoch, Standing, Status, Wake, Word},
    id::{RunId, RunKey},
    mailbox::child_of,
};
use std::sync::Arc;

/// A run that is shut in its store, and the epoch of whoever shut it.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::key}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.create(Sample::run("order-42").build()).await?;
/// let left: Vec<hapax_store::house::Left> = store.house().leave(key("order-42"), "memory:".into()).await?;
/// assert_eq!((left[0].0.run.as_str(), left[0].1.counter), ("order-42", 1));
/// # Ok(())
/// # }
/// ```
pub type Left = (RunKey, Epoch);

/// What is said of a database as one of several.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_store::{MemoryStore, Store, house::Sign};
/// let store = MemoryStore::shared();
/// assert_eq!(store.house().plate(None, None).await?, Sign { said: None, has_runs: false });
/// let first = store.house().plate(Some("the first".into()), None).await?;
/// let late = store.house().plate(Some("another".into()), None).await?;
/// assert_eq!((first.said.as_deref(), late), (Some("the first"), first.clone()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// What is said, if anything is.
    pub said: Option<String>,
    /// It holds runs, of any namespace.
    pub has_runs: bool,
}

/// The part of a [`Store`](crate::Store) that runs come and go by.
///
/// ```
/// use hapax_store::{MemoryStore, Store, StoreError, conformance::{Sample, sample::{LONG, claimant, key}}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// let (old, new) = (MemoryStore::shared(), MemoryStore::shared());
/// old.create(Sample::run("order-42").build()).await?;
///
/// let left = old.house().leave(key("order-42"), "the new one".into()).await?;
/// let mut image = old.house().image(key("order-42")).await?;
/// new.house().arrive(image.head.clone(), left[0].1).await?;
/// while let Some(pieces) = image.next().await? {
///     new.house().unpack(key("order-42"), left[0].1, pieces).await?;
/// }
/// let nobody = new.claim(key("order-42"), claimant("engine-1", LONG)).await;
/// assert!(matches!(nobody, Err(StoreError::Moving { .. })), "it isn't here before it has left there");
///
/// old.house().close(left.clone(), "the new one".into()).await?;
/// new.house().open(left).await?;
/// new.claim(key("order-42"), claimant("engine-1", LONG)).await?;
/// let gone = old.claim(key("order-42"), claimant("engine-1", LONG)).await;
/// assert!(matches!(gone, Err(StoreError::Moved { to, .. }) if to == "the new one"));
/// # Ok(())
/// # }
/// ```
pub trait House: Send + Sync {
    /// What is said of the database as one of several: which shard it is, of which map. Writes something else if it says
    /// `over` until now (`None`: nothing) and there is no run, and answers what is said then.
    fn plate(&self, write: Option<String>, over: Option<String>) -> Answer<'_, Sign>;

    /// All that the store has of a run but its leases, as of one moment. It is read as it is asked for, so a run may be
    /// larger than memory.
    fn image(&self, run: RunKey) -> Answer<'_, Image>;

    /// The run, its ancestors and all their descendants, by name.
    fn family(&self, run: RunKey) -> Answer<'_, Vec<RunKey>>;

    /// Shuts a run and its family: nobody takes them up and nothing is taken in for them. Raises their epochs, so that
    /// whatever a worker still has in flight is refused. Durable when it answers.
    ///
    /// [`Held`](crate::StoreError::Held) while a worker or a relay has one of them;
    /// [`Moved`](crate::StoreError::Moved) when they have left already. A family that was shut on its way to the same place
    /// is shut again, and whoever did it before is fenced.
    fn leave(&self, run: RunKey, to: Arc<str>) -> Answer<'_, Vec<Left>>;

    /// Lets a family that was shut go on here, as it stood. Whoever moves it is fenced by the epochs that it answers: what
    /// arrived of these runs under lower ones is nobody's any more.
    fn stay(&self, run: RunKey) -> Answer<'_, Vec<Left>>;

    /// The old store's last word: the family has moved there. One transaction that demands the mover's epochs.
    fn close(&self, family: Vec<Left>, to: Arc<str>) -> Answer<'_, ()>;

    /// Shuts runs again that were closed under these epochs, as they stood, under later ones: their new store has lost them. All
    /// in one transaction, and only while their rows are here. [`Fenced`](crate::StoreError::Fenced): one of them isn't so.
    fn take_back(&self, family: Vec<Left>) -> Answer<'_, ()>;

    /// Deletes what a run that was closed under this epoch left behind; with `forget` also the word of where it went.
    /// [`Fenced`](crate::StoreError::Fenced): it has come home since and left again, or another has its name.
    fn clear(&self, run: RunKey, epoch: Epoch, forget: bool) -> Answer<'_, ()>;

    /// Makes room for a run that can't be seen as one yet. What has arrived of it under an epoch that isn't later is given up:
    /// it arrives anew. [`ArrivalTaken`](crate::StoreError::ArrivalTaken): a run of that name is there.
    fn arrive(&self, head: Head, epoch: Epoch) -> Answer<'_, ()>;

    /// Takes in pieces of a run that arrives, each of them once.
    fn unpack(&self, run: RunKey, epoch: Epoch, pieces: Vec<Piece>) -> Answer<'_, ()>;

    /// Takes back what has arrived of a run: what is left is the word of where it went, if there was one before it came. Nothing
    /// when it isn't arriving.
    fn give_up(&self, run: RunKey, epoch: Epoch) -> Answer<'_, ()>;

    /// Lets runs that have arrived go on, all of them in one transaction that demands that they arrived under these
    /// epochs, and that each has its latest checkpoint. One that waits for a child which is over, or isn't here, is pending. A run that is open already is left alone;
    /// [`CopyDiffers`](crate::StoreError::CopyDiffers): one of them isn't there.
    fn open(&self, family: Vec<Left>) -> Answer<'_, ()>;
}

impl RunRecord {
    /// Refuses a run whose steps aren't here: it has moved, or is still arriving.
    ///
    /// ```
    /// use hapax_store::{MemoryStore, Store, StoreError, house::Mover, conformance::{Sample, sample::key}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), StoreError> {
    /// let (old, new) = (MemoryStore::shared(), MemoryStore::shared());
    /// old.create(Sample::run("order-42").build()).await?;
    /// Mover::new(old.clone(), new.clone(), "the new store").carry(key("order-42")).await?;
    /// let gone = old.run(key("order-42")).await?.unwrap().demand_here();
    /// assert!(matches!(gone, Err(StoreError::Moved { to, .. }) if to == "the new store"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn demand_here(&self) -> Result<(), StoreError> {
        match &self.status {
            Status::Moved { .. } | Status::Arriving { .. } => {
                Err(StoreError::of_status(self.key.clone(), self.status.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// The children that a run waits for which has arrived.
pub(crate) fn awaited(record: &RunRecord) -> Vec<RunKey> {
    let Status::Arriving { was, .. } = &record.status else { return vec![] };
    if !matches!(was.status, Status::Waiting { .. } | Status::InDoubt) {
        return vec![];
    }
    let children = was.wake.letters.iter().filter_map(|subject| child_of(subject));
    // A subject that names no run is nobody's end.
    let children = children.filter_map(|child| RunId::new(child).ok());
    children.map(|run| RunKey { namespace: record.key.namespace.clone(), run }).collect()
}

/// Whether nobody will tell of a child's end any more: it is over, or isn't here. So it is when the runs of an export were
/// written down one after the other, and the child ended in between.
pub(crate) fn tells_no_more(child: Option<&RunRecord>) -> bool {
    child.is_none_or(|child| match &child.status {
        Status::Arriving { was, .. } => is_over(&was.status),
        status => is_over(status),
    })
}

/// A run that arrives looks for itself what became of what it waits for.
pub(crate) fn look_again(record: &mut RunRecord) {
    if let Status::Arriving { was, .. } = &mut record.status {
        (was.status, was.wake) = (Status::Pending, Wake::default());
    }
}

/// Whether a run may be shut on its way to a place, as far as its status goes. `true`: unless somebody holds it; `false`: it is
/// shut already.
pub(crate) fn may_leave(record: &RunRecord, to: &str) -> Result<bool, StoreError> {
    match &record.status {
        Status::Leaving { to: before, .. } if before == to => Ok(false),
        Status::Leaving { .. } | Status::Arriving { .. } | Status::Moved { .. } => {
            Err(StoreError::of_status(record.key.clone(), record.status.clone()))
        }
        _ => Ok(true),
    }
}

/// Those of a run's family that are here: one that has moved is but a word of where it went.
pub(crate) fn still_here(family: Vec<RunRecord>, run: &RunKey) -> Result<Vec<RunRecord>, StoreError> {
    let has_moved = |record: &RunRecord| matches!(record.status, Status::Moved { .. });
    match family.iter().find(|record| record.key == *run && has_moved(record)) {
        Some(moved) => Err(StoreError::of_status(run.clone(), moved.status.clone())),
        None => Ok(family.into_iter().filter(|record| !has_moved(record)).collect()),
    }
}

/// Whether both are one run, whichever stores they are of: a name alone may have been taken again. A run that waits for
/// calm has the input of its latest start.
pub(crate) fn is_same(one: &RunRecord, other: &RunRecord) -> bool {
    let waits_for_calm = one.terms.debounce.is_some() || other.terms.debounce.is_some();
    one.key == other.key
        && one.graph == other.graph
        && one.parent == other.parent
        && one.created_at_us == other.created_at_us
        && (one.input == other.input || waits_for_calm)
}

/// The status of a run that was shut under this epoch and lives elsewhere from now on.
pub(crate) fn closed(record: &RunRecord, epoch: Epoch, to: &str) -> Result<Status, StoreError> {
    match &record.status {
        Status::Leaving { was, .. } if record.epoch == epoch => {
            Ok(Status::Moved { to: to.to_owned(), was: Some(was.clone()) })
        }
        _ => Err(StoreError::Fenced { run: record.key.clone(), owner: Some(record.epoch) }),
    }
}

/// The status of a run that was closed under this epoch, whose rows are here, and that is shut again.
pub(crate) fn taken_back(record: &RunRecord, epoch: Epoch) -> Result<Status, StoreError> {
    match &record.status {
        Status::Moved { to, was: Some(was) } if record.epoch == epoch => {
            Ok(Status::Leaving { to: to.clone(), was: was.clone() })
        }
        _ => Err(StoreError::Fenced { run: record.key.clone(), owner: Some(record.epoch) }),
    }
}

/// What is left of a run whose rows are deleted: a word of where it is. Refuses what was not closed under this epoch: no two runs
/// of a name have one, nor has a run that left twice.
pub(crate) fn cleared(record: RunRecord, epoch: Epoch) -> Result<RunRecord, StoreError> {
    match record.status {
        Status::Moved { to, .. } if record.epoch == epoch => {
            Ok(RunRecord { status: Status::Moved { to, was: None }, ..record })
        }
        Status::Moved { .. } => Err(StoreError::Fenced { run: record.key, owner: Some(record.epoch) }),
        status => Err(StoreError::of_status(record.key, status)),
    }
}

/// A run that had arrived, and was lost, deleted or given up since.
pub(crate) fn gone(run: &RunKey) -> StoreError {
    let what = "it had arrived, and is not there any more; the old store keeps its rows".to_owned();
    StoreError::CopyDiffers { run: run.clone(), what }
}

/// The status of a run that is shut: it knows how the run stood.
pub(crate) fn leaving(record: &RunRecord, to: &str) -> Status {
    if record.status.is_moving() {
        return record.status.clone();
    }
    let (status, wake) = (record.status.clone(), record.wake.clone());
    let was = Box::new(Standing { status, cancel_requested: record.cancel_requested, wake });
    Status::Leaving { to: to.to_owned(), was }
}

/// The record of a run that arrives where one of its name is: it may take the place of its own word of where it went, which it
/// keeps, and of what broke off when it arrived before. Another run is left alone.
pub(crate) fn arrives_over(mut new: RunRecord, there: &RunRecord) -> Result<RunRecord, StoreError> {
    let replaced = match &there.status {
        _ if !is_same(&new, there) => None,
        Status::Moved { to, .. } if there.epoch.counter < new.epoch.counter => {
            Some(Some(Box::new(Word { to: to.clone(), epoch: there.epoch.counter })))
        }
        // Who shut it in its old store before the one that is here would take the arrival from whoever will close that store.
        Status::Arriving { .. } if there.epoch.counter > new.epoch.counter => {
            return Err(StoreError::Fenced { run: there.key.clone(), owner: Some(there.epoch) });
        }
        Status::Arriving { word, .. } => Some(word.clone()),
        _ => None,
    };
    match (&mut new.status, replaced) {
        (Status::Arriving { word, .. }, Some(replaced)) => *word = replaced,
        _ => return Err(StoreError::ArrivalTaken { run: new.key }),
    }
    Ok(new)
}

/// What takes the place of a run that arrives and is given up: the word of where it is, unless there was none.
pub(crate) fn given_up(arriving: RunRecord) -> Option<RunRecord> {
    let Status::Arriving { word: Some(word), .. } = &arriving.status else { return None };
    if canary::on("word_given_up") {
        return None;
    }
    let Word { to, epoch } = (**word).clone();
    let epoch = Epoch { counter: epoch, nonce: arriving.epoch.nonce };
    Some(RunRecord { status: Status::Moved { to, was: None }, epoch, ..arriving })
}
