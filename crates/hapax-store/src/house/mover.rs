//! Carries runs from one store to another.
//!
//! Invariant: the order below. The old store is shut before the copy, the copy is read back before the old store says where
//! the run went, and the new one opens only after that. Each crash leaves a state from which the same call goes on.
//!
//! ```text
//! leave (old) ─► arrive, unpack (new) ─► read back (new) ─► close (old) ─► open (new) ─► clear (old)
//! ```

use super::{Head, Piece, gone, is_same};
use crate::{
    check::is_elsewhere,
    error::StoreError,
    store::{BoxFuture, RunRecord, Store},
};
use hapax_core::{
    canary,
    canonical::{CanonicalError, MAX_DEPTH},
    commit::{Epoch, Status},
    id::RunKey,
    json::Json,
    key::{Digest, DigestBuilder},
};
use std::sync::Arc;

/// What was carried.
///
/// ```
/// use hapax_store::house::Load;
/// let mut all = Load { runs: 1, steps: 3, bytes: 900 };
/// all += Load { runs: 1, steps: 1, bytes: 300 };
/// assert_eq!((all.runs, all.steps, all.bytes), (2, 4, 1200));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Runs.
    pub runs: u64,
    /// Their steps.
    pub steps: u64,
    /// Bytes of their text.
    pub bytes: u64,
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, more: Self) {
        self.runs += more.runs;
        self.steps += more.steps;
        self.bytes += more.bytes;
    }
}

/// Why something of a run has no text: a value that is nested as deep as any may be stands in others there. That is the run's
/// fault and no store's, and trying again won't help.
pub(super) fn no_text(error: CanonicalError) -> StoreError {
    match error {
        CanonicalError::TooDeep => StoreError::TooLarge {
            what: "the nesting of a value, with what it stands in on its way".into(),
            size: MAX_DEPTH + 1,
            limit: MAX_DEPTH,
        },
        error => StoreError::Retry(error.into()),
    }
}

/// What binds the text of a run, to tell a copy from what it is a copy of.
#[derive(Debug)]
pub(crate) struct Seal {
    digest: DigestBuilder,
    load: Load,
}

impl Seal {
    pub(crate) fn of(head: &Head) -> Result<Self, StoreError> {
        let mut seal =
            Self { digest: DigestBuilder::new("hapax.run.v1"), load: Load { runs: 1, ..Load::default() } };
        seal.line(Json::of(head).map_err(no_text)?.as_str());
        Ok(seal)
    }

    pub(crate) fn add(&mut self, piece: &Piece) -> Result<(), StoreError> {
        self.load.steps += u64::from(matches!(piece, Piece::Checkpoint(_)));
        self.line(piece.text().map_err(no_text)?.as_str());
        Ok(())
    }

    fn line(&mut self, text: &str) {
        self.load.bytes += text.len() as u64 + 1;
        self.digest.text(text);
    }

    pub(crate) fn finish(mut self) -> (Digest, Load) {
        (self.digest.finish(), self.load)
    }

    /// The seal of a run as a store has it, every checkpoint checked against its digest on the way.
    pub(crate) async fn read(store: &dyn Store, run: &RunKey) -> Result<(Digest, Load), StoreError> {
        let mut image = store.house().image(run.clone()).await?;
        let mut seal = Self::of(&image.head)?;
        while let Some(pieces) = image.next().await? {
            pieces.iter().try_for_each(|piece| seal.add(piece))?;
        }
        Ok(seal.finish())
    }

    /// Refuses a run that didn't arrive as it left, and takes back what has arrived of it.
    pub(crate) async fn demand(
        store: &dyn Store,
        (run, epoch): (&RunKey, Epoch),
        left: Digest,
    ) -> Result<(), StoreError> {
        if canary::on("unverified_copy") {
            return Ok(());
        }
        let arrived = Self::read(store, run).await;
        let what = match arrived {
            Ok((arrived, _)) if arrived == left => return Ok(()),
            Ok((arrived, _)) => format!("it left as {left} and arrived as {arrived}"),
            Err(StoreError::Corrupt { what, .. }) => what,
            Err(error) => return Err(error),
        };
        // Another mover may have gone on with it, to its end: then it differs because it goes on there.
        let owner = store.run(run.clone()).await?.map(|there| there.epoch);
        if owner != Some(epoch) {
            return Err(StoreError::Fenced { run: run.clone(), owner });
        }
        store.house().give_up(run.clone(), epoch).await?;
        Err(StoreError::CopyDiffers { run: run.clone(), what })
    }
}

/// Moves runs between two stores.
///
/// ```
/// use hapax_store::{MemoryStore, Store, house::Mover, conformance::{Sample, sample::key}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let (old, new) = (MemoryStore::shared(), MemoryStore::shared());
/// old.create(Sample::run("order-42").build()).await?;
/// let mover = Mover::new(old.clone(), new.clone(), "the new store");
/// assert_eq!(mover.carry(key("order-42")).await?.runs, 1);
/// assert_eq!(new.run(key("order-42")).await?.unwrap().status.word(), "pending");
/// assert_eq!(old.run(key("order-42")).await?.unwrap().status.word(), "moved");
/// assert_eq!(mover.carry(key("order-42")).await?.runs, 0, "it is there already");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mover {
    from: Arc<dyn Store>,
    to: Arc<dyn Store>,
    place: Arc<str>,
    forget: bool,
    swept: bool,
    lost: bool,
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Mover {
    /// From one store to another, which the old one will name `place` to whoever asks. A move that broke off goes on only
    /// to a place of the same name.
    pub fn new(from: Arc<dyn Store>, to: Arc<dyn Store>, place: &str) -> Self {
        Self { from, to, place: place.into(), forget: false, swept: false, lost: false }
    }

    /// Keeps no word of where runs went: their names are free in the old store, and a worker that was taken for dead may
    /// start them again.
    #[must_use]
    pub fn forget(mut self, forget: bool) -> Self {
        self.forget = forget;
        self
    }

    /// Takes the caller's word that runs which had arrived, and are not in the new store any more, were over and were deleted
    /// there: the old store deletes what it still has of them. Without it they are kept, for the new store may have lost them.
    #[must_use]
    pub fn swept(mut self, swept: bool) -> Self {
        self.swept = swept;
        self
    }

    /// Takes the caller's word that runs which had arrived, and are not in the new store any more, were lost there: they arrive
    /// anew as they left. What they have done there since is done again, and whoever still has them in hand there must be gone.
    #[must_use]
    pub fn lost(mut self, lost: bool) -> Self {
        self.lost = lost;
        self
    }

    /// Moves a run with its family, or goes on with a move that broke off.
    pub fn carry(&self, run: RunKey) -> BoxFuture<'_, Result<Load, StoreError>> {
        Box::pin(async move {
            let mut load = Load::default();
            let closed = match self.from.house().leave(run.clone(), self.place.clone()).await {
                Ok(family) => {
                    for (key, epoch) in &family {
                        load += self.copy(key, *epoch).await?;
                    }
                    if canary::on("both_open") {
                        self.to.house().open(family.clone()).await?;
                    }
                    self.from.house().close(family.clone(), self.place.clone()).await?;
                    family.into_iter().map(|(key, _)| key).collect()
                }
                // It was closed before; what follows may be missing.
                Err(StoreError::Moved { to, .. }) if *to == *self.place => {
                    let family = self.from.house().family(run).await?;
                    if let Some(lost) = self.take_back(&family).await? {
                        load += self.carry(lost).await?;
                    }
                    family
                }
                Err(error) => return Err(error),
            };
            self.let_go_on(closed).await?;
            Ok(load)
        })
    }

    /// Shuts those of a family again that the new store has lost, and answers one of them.
    async fn take_back(&self, family: &[RunKey]) -> Result<Option<RunKey>, StoreError> {
        let mut lost = vec![];
        for key in family.iter().filter(|_| self.lost) {
            let Some(closed) = self.from.run(key.clone()).await? else { continue };
            let went_there = matches!(&closed.status, Status::Moved { to, .. } if **to == *self.place);
            if went_there && self.keeps_rows(key).await? && self.is_lost(&closed).await? {
                lost.push((closed.key, closed.epoch));
            }
        }
        let Some((first, _)) = lost.first().cloned() else { return Ok(None) };
        self.from.house().take_back(lost).await?;
        Ok(Some(first))
    }

    /// Whether a run that the old store has closed can be taken up nowhere in the new one. What arrives there still is given up
    /// before that is looked at, so that nobody lets it go on afterwards.
    async fn is_lost(&self, closed: &RunRecord) -> Result<bool, StoreError> {
        let there = self.to.run(closed.key.clone()).await?.filter(|there| is_same(closed, there));
        if let Some(RunRecord { key, epoch, status: Status::Arriving { .. }, .. }) = there
            && epoch.counter <= closed.epoch.counter
        {
            self.to.house().give_up(key, epoch).await?;
        }
        let there = self.to.run(closed.key.clone()).await?.filter(|there| is_same(closed, there));
        // A word of an earlier time, which a backup brought back.
        let is_over = |there: RunRecord| {
            matches!(there.status, Status::Moved { .. }) && there.epoch.counter < closed.epoch.counter
        };
        Ok(there.is_none_or(is_over))
    }

    /// What follows the old store's last word.
    async fn let_go_on(&self, family: Vec<RunKey>) -> Result<(), StoreError> {
        let (mut closed, mut arrived) = (vec![], vec![]);
        for key in family {
            let unknown = || StoreError::NotFound { run: key.clone() };
            let record = self.from.run(key.clone()).await?.ok_or_else(unknown)?;
            // Of a family some may have come home since, or have gone elsewhere before.
            if !matches!(&record.status, Status::Moved { to, .. } if **to == *self.place) {
                continue;
            }
            if self.keeps_rows(&key).await? && !(self.swept && self.is_gone(&record).await?) {
                arrived.push(record.clone());
            }
            closed.push(record);
        }
        self.to.house().open(arrived.iter().map(|run| (run.key.clone(), run.epoch)).collect()).await?;
        for run in &arrived {
            self.demand_there(run).await?;
        }
        for RunRecord { key, epoch, .. } in closed {
            self.from.house().clear(key, epoch, self.forget).await?;
        }
        Ok(())
    }

    /// Whether the old store has yet to delete what is left of a run that it has closed. If not, the new one has opened it
    /// before, whatever became of it there.
    async fn keeps_rows(&self, run: &RunKey) -> Result<bool, StoreError> {
        match self.from.checkpoints(run.clone(), 0, 1).await {
            Err(StoreError::Corrupt { .. }) => Ok(true),
            read => Ok(!read?.is_empty()),
        }
    }

    /// Whether the new store has nothing of a run that the old one has closed.
    async fn is_gone(&self, closed: &RunRecord) -> Result<bool, StoreError> {
        Ok(self.to.run(closed.key.clone()).await?.is_none_or(|there| !is_same(closed, &there)))
    }

    /// Refuses to delete the only copy of a run: the new store isn't the one that took it in, or has lost it, and another may
    /// have taken its name there.
    async fn demand_there(&self, closed: &RunRecord) -> Result<(), StoreError> {
        let there = self.to.run(closed.key.clone()).await?;
        let went_on =
            |there: &RunRecord| is_same(closed, there) && there.epoch.counter >= closed.epoch.counter;
        there.filter(went_on).map(drop).ok_or_else(|| gone(&closed.key))
    }

    /// Lets a run with its family stay where it was, if it hasn't left for good. One that is on its way to another place than
    /// this mover's is refused: what has arrived of it lies there.
    pub async fn call_back(&self, run: RunKey) -> Result<(), StoreError> {
        if let Some(RunRecord { key, status: Status::Leaving { to, .. }, .. }) =
            self.from.run(run.clone()).await?
            && *to != *self.place
        {
            return Err(StoreError::Moving { run: key, to: Some(to) });
        }
        for (key, stays) in self.from.house().stay(run).await? {
            let here = self.from.run(key.clone()).await?;
            let there = self.to.run(key.clone()).await?;
            // Who has shut the run again since will close the old store: what arrives for it isn't ours to take back.
            let ours = |(here, there): &(RunRecord, RunRecord)| {
                is_same(here, there) && there.epoch.counter < stays.counter
            };
            if let Some((_, there)) = here.zip(there).filter(ours) {
                // Of a run that isn't arriving nothing is taken back.
                self.to.house().give_up(key, there.epoch).await?;
            }
        }
        Ok(())
    }

    /// Gives up what is arriving of a run that goes on in the old store: whoever called it back died before it came to that.
    /// Answers whether there was anything. What arrives of a run that is shut, or that has moved, is left alone: a mover may still
    /// open it.
    ///
    /// ```
    /// # use hapax_store::{MemoryStore, Store, house::Mover, conformance::{Sample, sample::key}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), hapax_store::StoreError> {
    /// # let (old, new) = (MemoryStore::shared(), MemoryStore::shared());
    /// # old.create(Sample::run("order-42").build()).await?;
    /// let left = old.house().leave(key("order-42"), "the new store".into()).await?;
    /// let head = old.house().image(key("order-42")).await?.head;
    /// new.house().arrive(head, left[0].1).await?;
    /// let mover = Mover::new(old.clone(), new.clone(), "the new store");
    /// assert!(!mover.give_up_leftover(key("order-42")).await?, "it may still move");
    /// old.house().stay(key("order-42")).await?;
    /// assert!(mover.give_up_leftover(key("order-42")).await?);
    /// assert!(new.run(key("order-42")).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn give_up_leftover(&self, run: RunKey) -> Result<bool, StoreError> {
        let here = self.from.run(run.clone()).await?.filter(|here| !is_elsewhere(&here.status));
        let there = self.to.run(run.clone()).await?;
        let is_left = |(here, there): &(RunRecord, RunRecord)| {
            let arrives = matches!(there.status, Status::Arriving { .. });
            arrives && is_same(here, there) && there.epoch.counter < here.epoch.counter
        };
        let Some((_, there)) = here.zip(there).filter(is_left) else { return Ok(false) };
        self.to.house().give_up(run, there.epoch).await?;
        Ok(true)
    }

    /// Copies a run that is shut, and reads the copy back.
    async fn copy(&self, key: &RunKey, epoch: Epoch) -> Result<Load, StoreError> {
        let mut image = self.from.house().image(key.clone()).await?;
        if image.head.epoch != epoch.counter {
            // Another mover has shut it again since.
            let owner = self.from.run(key.clone()).await?.map(|run| run.epoch);
            return Err(StoreError::Fenced { run: key.clone(), owner });
        }
        self.to.house().arrive(image.head.clone(), epoch).await?;
        let mut seal = Seal::of(&image.head)?;
        while let Some(pieces) = image.next().await? {
            pieces.iter().try_for_each(|piece| seal.add(piece))?;
            if !pieces.is_empty() {
                self.to.house().unpack(key.clone(), epoch, pieces).await?;
            }
        }
        let (left, load) = seal.finish();
        Seal::demand(&*self.to, (key, epoch), left).await?;
        Ok(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::Parcel;

    #[test]
    fn what_is_nested_too_deep_to_move_is_the_fault_of_its_run() {
        let nested = |depth: usize| Json::from_text(&("[".repeat(depth) + &"]".repeat(depth))).unwrap();
        let letter = |depth| {
            let (id, subject, payload) = ("l-1".to_owned(), "signal:go".into(), Some(nested(depth)));
            Piece::Letter(Parcel { number: 1, id, subject, payload, sent_at_us: 7, taken: false })
        };
        let mut seal = Seal { digest: DigestBuilder::new("hapax.run.v1"), load: Load::default() };
        seal.add(&letter(MAX_DEPTH - 2)).unwrap();
        let refused = seal.add(&letter(MAX_DEPTH));
        assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    }
}
