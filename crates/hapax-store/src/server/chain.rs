//! Writes of one run that follow each other, as one compare-and-set of the run's row.
//!
//! Invariant: a chain demands what its first write demands and leaves what its last one leaves; each write between
//! builds on the one before it. So the whole chain is written, or nothing of it.

use crate::prepare::{Parts, Prepared};
use hapax_core::{
    commit::{Append, Epoch, StepCommit, Write},
    id::RunKey,
    journal::{Entry, JournalRow},
    key::Digest,
};

/// Consecutive writes of one run.
pub(crate) struct Chain {
    pub(crate) writes: Vec<Prepared>,
    pub(crate) demands: Demands,
    pub(crate) leaves: Leaves,
}

/// What the run's row must say.
pub(crate) struct Demands {
    pub(crate) epoch: Epoch,
    /// `None`: journal rows that build on nothing in particular.
    pub(crate) step: Option<u64>,
    pub(crate) digest: Option<Digest>,
    pub(crate) next_seq: u64,
    /// No cancel may have been requested.
    pub(crate) no_cancel: bool,
}

/// What the run's row says afterwards.
pub(crate) struct Leaves {
    /// The latest step and its digest, and the time that the run has used; `None`: no step.
    pub(crate) step: Option<(u64, Digest, u64)>,
    pub(crate) next_seq: u64,
    pub(crate) ends: bool,
}

impl Chain {
    /// The run.
    pub(crate) fn run(&self) -> &RunKey {
        self.writes[0].write.run()
    }

    /// Begins a chain with a write that [is plain](is_plain).
    pub(crate) fn begin(first: Prepared) -> Self {
        let (demands, leaves) = ends_of(&first.write);
        Self { writes: vec![first], demands, leaves }
    }

    /// Adds a write of the same run that [the chain leads to](Chain::leads_to).
    pub(crate) fn push(&mut self, next: Prepared) {
        let (demands, leaves) = ends_of(&next.write);
        // What the first write didn't ask for, a later one may.
        self.demands.no_cancel |= demands.no_cancel;
        if self.leaves.step.is_none() {
            self.demands.step = self.demands.step.or(demands.step);
            self.demands.digest = self.demands.digest.or(demands.digest);
        }
        self.leaves = Leaves { step: leaves.step.or(self.leaves.step), ..leaves };
        self.writes.push(next);
    }

    /// Whether a write of the same run builds on what the chain leaves.
    pub(crate) fn leads_to(&self, next: &Prepared) -> bool {
        is_plain(next) && self.goes_on_with(&next.write)
    }

    fn goes_on_with(&self, next: &Write) -> bool {
        if self.leaves.ends || next.epoch() != self.demands.epoch {
            return false;
        }
        let at = self.leaves.step.map(|(_, digest, _)| digest).or(self.demands.digest);
        match next {
            Write::Step(commit) => {
                commit.first_seq == self.leaves.next_seq
                    && at.is_none_or(|at| commit.base == at)
                    && self.leaves.step.is_none_or(|(step, ..)| commit.follows == step)
            }
            Write::Append(append) => {
                let base = append.rows.first().map(|row| row.base);
                append.first_seq == self.leaves.next_seq && (base.is_none() || at.is_none() || base == at)
            }
            _ => false,
        }
    }
}

/// What a write demands and leaves.
fn ends_of(write: &Write) -> (Demands, Leaves) {
    match write {
        Write::Step(commit) => (of_step(commit), after_step(commit)),
        Write::Append(append) => (of_append(append), after_append(append)),
        _ => unreachable!("only plain writes make a chain"),
    }
}

fn of_step(commit: &StepCommit) -> Demands {
    Demands {
        epoch: commit.epoch,
        step: Some(commit.follows),
        digest: Some(commit.base),
        next_seq: commit.first_seq,
        no_cancel: commit.ends,
    }
}

fn after_step(commit: &StepCommit) -> Leaves {
    Leaves {
        step: Some((commit.checkpoint.step, commit.checkpoint.digest, commit.used_us)),
        next_seq: commit.first_seq + commit.journal.len() as u64,
        ends: commit.ends,
    }
}

fn of_append(append: &Append) -> Demands {
    Demands {
        epoch: append.epoch,
        step: None,
        digest: append.rows.first().map(|row| row.base),
        next_seq: append.first_seq,
        no_cancel: append.unless_cancelled,
    }
}

fn after_append(append: &Append) -> Leaves {
    Leaves { step: None, next_seq: append.first_seq + append.rows.len() as u64, ends: false }
}

/// Whether it only adds rows of its own run, none of them large: nothing is deleted, no letter is taken, no status set.
pub(crate) fn is_plain(prepared: &Prepared) -> bool {
    if !prepared.blobs.is_empty() {
        return false;
    }
    match (&*prepared.write, &prepared.parts) {
        (Write::Step(commit), Parts::Step(_)) => commit.fresh.is_none() && takes_none(&commit.journal),
        (Write::Append(append), Parts::Append(_)) => takes_none(&append.rows),
        _ => false,
    }
}

fn takes_none(rows: &[JournalRow]) -> bool {
    !rows.iter().any(|row| matches!(row.entry, Entry::Took { .. }))
}
