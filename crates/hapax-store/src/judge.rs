//! Why a write was refused, judged by the run's row: the same on every database.
//!
//! Invariant: pure. A fence has decided already, in the database; here its decision gets its name. Each demand of a fence
//! is looked into, in the order in which it matters to the caller: who holds the run, what is there, what is missing.

use crate::{check::row_digest, error::StoreError};
use hapax_core::{
    canary,
    commit::{Append, Epoch, Status, StatusChange, StepCommit, Written},
    id::RunKey,
    journal::JournalRow,
    key::Digest,
};

/// What every refusal is judged by: the run's row.
pub(crate) struct Head {
    pub(crate) epoch: Epoch,
    pub(crate) next_seq: u64,
    pub(crate) cancel_requested: bool,
    pub(crate) step: u64,
    pub(crate) digest: Digest,
    pub(crate) status_json: String,
    pub(crate) owned: bool,
}

/// What the row says of a write.
pub(crate) enum Judgement {
    /// The fence would let it pass.
    Passes,
    Refused(StoreError),
    /// This very change is there.
    There,
    /// What it would write is there, from this step or row on: by this very write?
    Taken(u64),
}

/// What a write is answered.
pub(crate) type Answer = Result<Written, StoreError>;

impl Judgement {
    /// The answer that needs no further look; `None`: it passes.
    pub(crate) fn answer(self) -> Option<Answer> {
        match self {
            Judgement::Refused(error) => Some(Err(error)),
            Judgement::There => Some(Ok(Written::AlreadyCommitted)),
            Judgement::Passes | Judgement::Taken(_) => None,
        }
    }
}

/// The row, if the run is still of this epoch; else who has it.
pub(crate) fn held(run: &RunKey, epoch: Epoch, head: Option<Head>) -> Result<Head, StoreError> {
    match head {
        Some(head) if head.epoch == epoch || canary::on("fence") => Ok(head),
        other => Err(StoreError::Fenced { run: run.clone(), owner: other.map(|head| head.epoch) }),
    }
}

/// A step upon the row.
pub(crate) fn step(head: &Head, commit: &StepCommit) -> Judgement {
    let conflict = |step, ours| {
        Judgement::Refused(StoreError::Conflict { run: commit.run.clone(), step, stored: head.digest, ours })
    };
    if head.step > commit.follows {
        return Judgement::Taken(commit.follows + 1);
    }
    if head.step == commit.follows && head.digest != commit.base {
        return conflict(commit.follows, commit.base);
    }
    if head.step < commit.follows || head.next_seq < commit.first_seq {
        return Judgement::Refused(write_missing());
    }
    // Rows that nobody else can have written: another execution of the same epoch.
    if head.next_seq > commit.first_seq {
        return conflict(commit.checkpoint.step, commit.checkpoint.digest);
    }
    if commit.ends && head.cancel_requested {
        return Judgement::Refused(StoreError::CancelRequested { run: commit.run.clone() });
    }
    Judgement::Passes
}

/// The step is there, with that digest if it still has one: is it this very one?
pub(crate) fn same_step(commit: &StepCommit, step: u64, stored: Option<Digest>) -> Answer {
    let (stored, ours) = (stored.unwrap_or(commit.base), commit.checkpoint.digest);
    if stored == ours {
        return Ok(Written::AlreadyCommitted);
    }
    Err(StoreError::Conflict { run: commit.run.clone(), step, stored, ours })
}

/// Journal rows upon the row.
pub(crate) fn append(head: &Head, append: &Append) -> Judgement {
    if append.unless_cancelled && head.cancel_requested {
        return Judgement::Refused(StoreError::CancelRequested { run: append.run.clone() });
    }
    if head.next_seq == append.first_seq {
        let builds_on_it = append.rows.first().is_none_or(|row| row.base == head.digest);
        return if builds_on_it { Judgement::Passes } else { Judgement::Refused(row_missing()) };
    }
    if head.next_seq < append.first_seq + append.rows.len().max(1) as u64 {
        return Judgement::Refused(row_missing());
    }
    Judgement::Taken(append.first_seq)
}

/// The numbers of the rows are taken: by these very rows?
pub(crate) fn same_rows(append: &Append, stored: &[JournalRow]) -> Answer {
    for (ours, seq) in append.rows.iter().zip(append.first_seq..) {
        let ours = JournalRow { seq, ..ours.clone() };
        let stored = stored.iter().find(|row| row.seq == seq);
        if stored != Some(&ours) {
            let (step, stored) = stored.map_or((ours.step, ours.base), |row| (row.step, row_digest(row)));
            let run = append.run.clone();
            return Err(StoreError::Conflict { run, step, stored, ours: row_digest(&ours) });
        }
    }
    Ok(Written::AlreadyCommitted)
}

/// A change of status upon the row.
pub(crate) fn status(head: &Head, change: &StatusChange) -> Judgement {
    if head.status_json == change.status.to_json().as_str() && !(change.release && head.owned) {
        return Judgement::There;
    }
    if head.cancel_requested && matches!(change.status, Status::Failed { .. }) {
        return Judgement::Refused(StoreError::CancelRequested { run: change.run.clone() });
    }
    Judgement::Passes
}

/// A fence that refused what it should have let pass, or a write whose forerunner isn't there.
pub(crate) fn write_missing() -> StoreError {
    StoreError::Retry("an earlier write of the run is missing".into())
}

/// Rows whose forerunners aren't there.
pub(crate) fn row_missing() -> StoreError {
    StoreError::Retry("an earlier row of the journal is missing".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::key::sha256;

    fn head() -> Head {
        Head {
            epoch: Epoch { counter: 1, nonce: 7 },
            next_seq: 3,
            cancel_requested: false,
            step: 2,
            digest: sha256(b"two"),
            status_json: Status::Running.to_json().as_str().to_owned(),
            owned: true,
        }
    }

    fn run() -> RunKey {
        crate::conformance::sample::key("r")
    }

    fn rows(first_seq: u64, base: &[u8]) -> Append {
        let row = JournalRow {
            seq: first_seq,
            base: sha256(base),
            step: 2,
            path_hash: hapax_core::order::PathHash(1),
            entry: hapax_core::journal::Entry::Retried,
        };
        Append { run: run(), epoch: head().epoch, first_seq, rows: vec![row], unless_cancelled: true }
    }

    #[test]
    fn whoever_has_another_nonce_is_fenced_by_the_one_who_has_the_run() {
        let other = Epoch { counter: 1, nonce: 8 };
        assert!(held(&run(), head().epoch, Some(head())).is_ok());
        let fenced = held(&run(), other, Some(head())).err().unwrap();
        assert!(matches!(fenced, StoreError::Fenced { owner: Some(owner), .. } if owner == head().epoch));
        assert!(matches!(held(&run(), other, None), Err(StoreError::Fenced { owner: None, .. })));
    }

    #[test]
    fn rows_follow_those_that_are_there_and_build_on_the_last_step() {
        assert!(matches!(append(&head(), &rows(3, b"two")), Judgement::Passes));
        assert!(matches!(append(&head(), &rows(3, b"one")), Judgement::Refused(StoreError::Retry(_))));
        assert!(matches!(append(&head(), &rows(4, b"two")), Judgement::Refused(StoreError::Retry(_))));
        assert!(matches!(append(&head(), &rows(2, b"two")), Judgement::Taken(2)));
        let cancelled = Head { cancel_requested: true, ..head() };
        let refused = append(&cancelled, &rows(3, b"two"));
        assert!(matches!(refused, Judgement::Refused(StoreError::CancelRequested { .. })));
    }

    #[test]
    fn rows_that_are_there_are_the_same_or_a_conflict() {
        let ours = rows(2, b"two");
        assert_eq!(same_rows(&ours, &ours.rows).unwrap(), Written::AlreadyCommitted);
        assert!(matches!(same_rows(&ours, &rows(2, b"one").rows), Err(StoreError::Conflict { .. })));
        assert!(matches!(same_rows(&ours, &[]), Err(StoreError::Conflict { .. })));
    }
}
