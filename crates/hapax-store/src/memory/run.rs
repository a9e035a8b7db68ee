//! One run of the reference model, and what a write means to it.
//!
//! Invariant: [`Run::decide`] looks and never writes, [`Run::apply`] writes and never refuses. So a refused write
//! leaves nothing, and settling a lost answer gives the very decision that submitting would.

use super::outbox::RunOutbox;
use crate::{
    check::row_digest,
    error::StoreError,
    store::{Claimant, Lease, NewRun, RunRecord},
};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Append, Epoch, Status, StatusChange, StepCommit, Wake, Write},
    frontier::page_digests,
    id::RunKey,
    journal::{Entry, JournalRow},
    json::Json,
    key::{Digest, StepKey},
    limits::FRONTIER_PAGE,
    mailbox::{Letter, NewLetter, Posted},
    order::PathHash,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Everything that is stored of one run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) record: RunRecord,
    /// Counts the runs of the store: two of them may be created in one microsecond.
    pub(super) number: u64,
    pub(super) lease_until_us: i64,
    pub(super) keys: HashMap<StepKey, u64>,
    pub(super) checkpoints: BTreeMap<u64, Arc<Checkpoint>>,
    pub(super) journal: BTreeMap<u64, JournalRow>,
    pub(super) outbox: RunOutbox,
    pub(super) mailbox: Vec<Kept>,
}

/// A letter that arrived, number one first.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) letter: NewLetter,
    pub(super) sent_at_us: i64,
    pub(super) taken: bool,
}

/// What is to be done about a write that isn't refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It isn't there yet, and may be written.
    Apply,
    /// This very write is there.
    There,
}

impl Run {
    pub(super) fn new(new: NewRun, number: u64, now_us: i64) -> Self {
        let (checkpoint, journal) = (new.checkpoint, new.journal);
        let record = RunRecord {
            key: new.key,
            graph: new.graph,
            fingerprint: new.fingerprint,
            input: new.input,
            status: Status::Pending,
            step: checkpoint.step,
            digest: checkpoint.digest,
            epoch: Epoch { counter: 0, nonce: 0 },
            owner: None,
            next_seq: 0,
            cancel_requested: false,
            wake: Wake::default(),
            parent: new.parent,
            used_us: 0,
            tags: new.tags,
            terms: new.terms,
            created_at_us: now_us,
            updated_at_us: now_us,
        };
        let mut run = Self {
            record,
            number,
            lease_until_us: 0,
            keys: HashMap::from([(checkpoint.key, checkpoint.step)]),
            checkpoints: BTreeMap::from([(checkpoint.step, Arc::new(checkpoint))]),
            journal: BTreeMap::new(),
            outbox: RunOutbox::default(),
            mailbox: vec![],
        };
        run.insert_rows(0, &journal);
        run
    }

    // Leases.

    /// Whether a claim would be granted, and why not.
    pub(super) fn check_claim(&self, now_us: i64) -> Result<(), StoreError> {
        let record = &self.record;
        let due = record.wake.at_us.is_some_and(|at| at <= now_us);
        let parked = !record.status.is_runnable() && !record.cancel_requested && !due;
        if record.status.is_final() || parked {
            return Err(self.wrong_status());
        }
        match &record.owner {
            Some(owner) if self.lease_until_us > now_us => Err(StoreError::Held {
                run: record.key.clone(),
                owner: owner.clone(),
                left_ms: (self.lease_until_us - now_us).unsigned_abs().div_ceil(1000),
            }),
            _ => Ok(()),
        }
    }

    /// Since when a run that may be claimed could have gone on.
    pub(super) fn ready_since(&self) -> i64 {
        let record = &self.record;
        match (&record.owner, record.wake.at_us) {
            (Some(_), _) => self.lease_until_us,
            (None, Some(at)) if !record.status.is_runnable() && !record.cancel_requested => at,
            _ => record.updated_at_us,
        }
    }

    /// Takes the run over. The caller has asked [`Run::check_claim`].
    pub(super) fn claim(&mut self, by: &Claimant, now_us: i64) -> Lease {
        let taken_over = self.record.owner.is_some();
        self.record.epoch = self.next_epoch();
        self.record.owner = Some(by.owner.to_string());
        self.record.status = Status::Running;
        self.record.wake = Wake::default();
        self.record.updated_at_us = now_us;
        self.prolong(by, now_us);
        Lease { epoch: self.record.epoch, taken_over }
    }

    fn next_epoch(&self) -> Epoch {
        Epoch { counter: self.record.epoch.counter + 1, nonce: uuid::Uuid::new_v4().as_u128() }
    }

    /// Lets the lease last for the claimant's whole term again.
    pub(super) fn prolong(&mut self, by: &Claimant, now_us: i64) {
        let ttl = i64::try_from(by.ttl.as_micros()).unwrap_or(i64::MAX);
        self.lease_until_us = now_us.saturating_add(ttl);
    }

    // Writes.

    /// What is to be done about a write: the whole contract of [`Store::submit`](crate::Store::submit).
    pub(super) fn decide(&self, write: &Write) -> Result<Decision, StoreError> {
        self.check_epoch(write.epoch())?;
        match write {
            Write::Step(step) => self.decide_step(step),
            Write::Append(append) => self.decide_append(append),
            Write::Status(change) => self.decide_status(change),
            _ => Err(StoreError::Retry("the memory store doesn't know this kind of write".into())),
        }
    }

    fn check_epoch(&self, epoch: Epoch) -> Result<(), StoreError> {
        if self.record.epoch == epoch {
            return Ok(());
        }
        Err(StoreError::Fenced { run: self.record.key.clone(), owner: Some(self.record.epoch) })
    }

    fn decide_step(&self, commit: &StepCommit) -> Result<Decision, StoreError> {
        let record = &self.record;
        if record.step > commit.follows {
            return self.same_step(commit.follows + 1, commit);
        }
        if record.step == commit.follows && record.digest != commit.base {
            return Err(self.conflict(record.step, record.digest, commit.base));
        }
        if record.step < commit.follows || record.next_seq < commit.first_seq {
            return Err(self.gap());
        }
        // Rows that nobody else can have written: another execution of the same epoch.
        if record.next_seq > commit.first_seq {
            return Err(self.conflict(commit.follows + 1, record.digest, commit.checkpoint.digest));
        }
        if commit.ends && record.cancel_requested {
            return Err(self.cancel_requested());
        }
        match self.keys.get(&commit.checkpoint.key) {
            Some(&step) => self.same_step(step, commit),
            None => Ok(Decision::Apply),
        }
    }

    /// The step is there: ours, or another one?
    fn same_step(&self, step: u64, commit: &StepCommit) -> Result<Decision, StoreError> {
        let ours = commit.checkpoint.digest;
        match self.checkpoints.get(&step) {
            Some(stored) if stored.digest == ours => Ok(Decision::There),
            stored => {
                let stored = stored.map_or(self.record.digest, |checkpoint| checkpoint.digest);
                Err(self.conflict(step, stored, ours))
            }
        }
    }

    fn decide_append(&self, append: &Append) -> Result<Decision, StoreError> {
        let record = &self.record;
        let end = append.first_seq + append.rows.len() as u64;
        if append.unless_cancelled && record.cancel_requested {
            return Err(self.cancel_requested());
        }
        if record.next_seq == append.first_seq {
            // A step takes no numbers, so the rows behind a missing one are told by what they build on.
            let builds_on_it = append.rows.first().is_none_or(|row| row.base == record.digest);
            return if builds_on_it { Ok(Decision::Apply) } else { Err(self.gap()) };
        }
        if record.next_seq < end {
            return Err(self.gap());
        }
        let stored = self.journal.range(append.first_seq..end).map(|(_, row)| row);
        match stored.zip(numbered(append.first_seq, &append.rows)).find(|(stored, ours)| *stored != ours) {
            Some((stored, ours)) => Err(self.conflict(stored.step, row_digest(stored), row_digest(&ours))),
            None => Ok(Decision::There),
        }
    }

    fn decide_status(&self, change: &StatusChange) -> Result<Decision, StoreError> {
        let released = !change.release || self.record.owner.is_none();
        if self.record.status == change.status && released {
            return Ok(Decision::There);
        }
        if self.record.cancel_requested && matches!(change.status, Status::Failed { .. }) {
            return Err(self.cancel_requested());
        }
        Ok(Decision::Apply)
    }

    /// Writes what [`Run::decide`] let pass.
    pub(super) fn apply(&mut self, write: &Write, now_us: i64) {
        match write {
            Write::Step(step) => self.apply_step(step, now_us),
            Write::Append(append) => self.insert_rows(append.first_seq, &append.rows),
            Write::Status(change) => {
                self.record.status = change.status.clone();
                self.record.used_us = change.used_us;
                self.record.wake = change.wake.clone();
                if change.release {
                    self.release();
                }
                if change.wake.letters.iter().any(|subject| self.letter(subject, 0).is_some()) {
                    self.wake();
                }
            }
            _ => unreachable!("decide() refuses what it doesn't know"),
        }
        self.record.updated_at_us = now_us;
    }

    fn apply_step(&mut self, commit: &StepCommit, now_us: i64) {
        let checkpoint = &commit.checkpoint;
        self.keys.insert(checkpoint.key, checkpoint.step);
        self.checkpoints.insert(checkpoint.step, Arc::new(checkpoint.clone()));
        self.insert_rows(commit.first_seq, &commit.journal);
        self.outbox.write(commit, now_us);
        self.record.step = checkpoint.step;
        self.record.digest = checkpoint.digest;
        self.record.used_us = commit.used_us;
        if let Some(shape) = commit.fresh {
            self.checkpoints = self.checkpoints.split_off(&checkpoint.step);
            self.keys.retain(|_, step| *step == checkpoint.step);
            self.journal.clear();
            self.record.fingerprint = shape;
        }
        self.record.status = if commit.ends { Status::Succeeded } else { Status::Running };
        if commit.ends {
            self.release();
        }
    }

    fn insert_rows(&mut self, first_seq: u64, rows: &[JournalRow]) {
        self.journal.extend(numbered(first_seq, rows).map(|row| (row.seq, row)));
        for row in rows {
            if let Entry::Took { letter } = row.entry
                && let Some(kept) = self.mailbox.get_mut(letter as usize - 1)
            {
                kept.taken = true;
                kept.letter.payload = Json::null();
            }
        }
        self.record.next_seq += rows.len() as u64;
    }

    fn release(&mut self) {
        self.record.owner = None;
        self.lease_until_us = 0;
    }

    /// Takes a letter in, and wakes the run if it waits for it.
    pub(super) fn post(&mut self, letter: NewLetter, now_us: i64) -> Result<Posted, StoreError> {
        if self.mailbox.iter().any(|kept| kept.letter.id == letter.id) {
            return Ok(Posted::Known);
        }
        if self.record.status.is_final() || self.record.status.is_moving() {
            return Err(self.wrong_status());
        }
        let wakes = self.record.wake.letters.contains(&letter.subject);
        self.mailbox.push(Kept { letter, sent_at_us: now_us, taken: false });
        if wakes {
            self.wake();
            self.record.updated_at_us = now_us;
        }
        Ok(Posted::New)
    }

    fn wake(&mut self) {
        self.record.status = Status::Pending;
        self.record.wake = Wake::default();
    }

    /// The oldest letter of a subject that isn't taken and has a number above `after`.
    pub(super) fn letter(&self, subject: &str, after: u64) -> Option<Letter> {
        let numbered = self.mailbox.iter().zip(1..).skip(usize::try_from(after).unwrap_or(usize::MAX));
        let mut waiting = numbered.filter(|(kept, _)| !kept.taken && *kept.letter.subject == *subject);
        waiting.next().map(|(kept, number)| Letter { number, payload: kept.letter.payload.clone() })
    }

    /// Makes a failed run pending again, in an epoch of its own: the one who let it fail may say so again, as its answer was
    /// lost.
    pub(super) fn retry(&mut self, now_us: i64) {
        let base = self.record.digest;
        let (seq, step) = (self.record.next_seq, self.record.step);
        let row = JournalRow { seq, base, step, path_hash: PathHash::ROOT, entry: Entry::Retried };
        self.insert_rows(seq, &[row]);
        self.record.epoch = self.next_epoch();
        self.record.status = Status::Pending;
        self.record.used_us = 0;
        self.record.updated_at_us = now_us;
    }

    // Reads.

    /// The rows that build on the checkpoint of that digest, without chunks.
    pub(super) fn tail(&self, base: Digest) -> Vec<JournalRow> {
        let counts = |row: &&JournalRow| row.base == base && !matches!(row.entry, Entry::Chunk(_));
        self.journal.values().filter(counts).cloned().collect()
    }

    pub(super) fn rows_from(&self, seq: u64, limit: usize) -> Vec<JournalRow> {
        self.journal.range(seq..).take(limit).map(|(_, row)| row.clone()).collect()
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.outbox.has_unsent()
    }

    // Refusals.

    pub(super) fn wrong_status(&self) -> StoreError {
        StoreError::of_status(self.record.key.clone(), self.record.status.clone())
    }

    fn cancel_requested(&self) -> StoreError {
        StoreError::CancelRequested { run: self.record.key.clone() }
    }

    fn conflict(&self, step: u64, stored: Digest, ours: Digest) -> StoreError {
        StoreError::Conflict { run: self.record.key.clone(), step, stored, ours }
    }

    fn gap(&self) -> StoreError {
        StoreError::Retry(format!("an earlier write of run `{}` is missing", self.record.key).into())
    }
}

/// The rows as they are stored: numbered from `first_seq` on.
fn numbered(first_seq: u64, rows: &[JournalRow]) -> impl Iterator<Item = JournalRow> {
    rows.iter().zip(first_seq..).map(|(row, seq)| JournalRow { seq, ..row.clone() })
}

/// Checks a stored checkpoint with its whole frontier, and answers it as it is read back: with the first page.
pub(super) fn read_back(run: &RunKey, stored: &Checkpoint) -> Result<Checkpoint, StoreError> {
    let pages = page_digests(&stored.frontier) == stored.pages;
    if !pages || !stored.is_intact(&run.run, &stored.frontier) {
        let what = "its content doesn't match its digest".to_owned();
        return Err(StoreError::Corrupt { run: run.clone(), step: Some(stored.step), what });
    }
    let first = stored.frontier.len().min(FRONTIER_PAGE);
    Ok(Checkpoint {
        step: stored.step,
        state: stored.state.clone(),
        state_version: stored.state_version,
        frontier: stored.frontier[..first].to_vec(),
        frontier_len: stored.frontier_len,
        pages: stored.pages.clone(),
        barriers: stored.barriers.clone(),
        seed: stored.seed,
        key: stored.key,
        io: stored.io,
        outbox: stored.outbox,
        digest: stored.digest,
        label: stored.label.clone(),
    })
}
