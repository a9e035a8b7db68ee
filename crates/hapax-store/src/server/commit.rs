//! Writes of a run's holder, one at a time: the fence first, then the rows. Most writes go as a [`Chain`](super::chain::Chain)
//! instead, many at once; what is here takes those that need more, and those that a chain's fence has refused.
//!
//! Invariant: a row is only written after an update of the run's own row that demanded epoch, nonce and position
//! and met exactly one row; what the update refused is looked into afterwards, under the row's lock.

use super::{
    blobs,
    error::{Halt, Outcome},
    journal, mailbox, outbox,
    sql::{Fault, Inserts, Row, Session, Value, insert, values},
    writer::Tx,
};
use crate::{
    error::StoreError,
    judge::{self, Answer, Head, Judgement},
    prepare::{CheckpointParts, Parts, Prepared, StepParts},
    store::Hint,
};
use hapax_core::{
    canary,
    checkpoint::Checkpoint,
    commit::{Epoch, Status, StatusChange, StepCommit, Write, Written},
    id::RunKey,
    key::Digest,
};
use std::borrow::Cow;

/// The part of every fence that keeps a former holder out.
pub(crate) const OWNERSHIP: &str = " AND epoch = ? AND nonce = ?";

const FENCE: &str = "UPDATE hapax_runs SET step_id = ?, digest = ?, next_seq = next_seq + ?, used_us = ?, \
     updated_at = {now}, ready_at = CASE WHEN status = 'running' THEN ready_at ELSE lease_until END, \
     status = 'running', status_json = ? WHERE namespace = ? AND run_id = ? AND step_id = ? AND digest = ? \
     AND next_seq = ? AND epoch = ? AND nonce = ?";
/// The end of a run: its lease ends as well, and no cancel may have been requested.
const FENCE_TO_END: &str = "UPDATE hapax_runs SET step_id = ?, digest = ?, next_seq = next_seq + ?, used_us = ?, \
     updated_at = {now}, ready_at = NULL, status = 'succeeded', status_json = ?, owner = NULL, lease_until = 0 \
     WHERE namespace = ? AND run_id = ? AND step_id = ? AND digest = ? AND next_seq = ? AND cancel_requested = 0 \
     AND epoch = ? AND nonce = ?";

/// The fence as it is shipped, or as a mutant has it.
pub(crate) fn fence_sql(sql: &'static str) -> Cow<'static, str> {
    if canary::on("fence") {
        // The values stay, so that each finds its place.
        sql.replace(OWNERSHIP, " AND (epoch = ? OR nonce = ? OR 1 = 1)").into()
    } else {
        sql.into()
    }
}

/// Writes, or says why not.
pub(super) async fn write(tx: &mut Tx<'_>, prepared: &Prepared) -> Outcome<Written> {
    let written = rows(tx, prepared).await?;
    blobs::insert(tx, prepared.write.run(), &prepared.blobs).await?;
    Ok(written)
}

async fn rows(tx: &mut Tx<'_>, prepared: &Prepared) -> Outcome<Written> {
    match (&*prepared.write, &prepared.parts) {
        (Write::Step(commit), Parts::Step(parts)) => step(tx, commit, parts).await,
        (Write::Append(append), Parts::Append(entries)) => journal::append(tx, append, entries).await,
        (Write::Status(change), Parts::Status(json)) => status(tx, change, json).await,
        _ => Err(StoreError::Retry("a write was prepared as another kind".into()).into()),
    }
}

/// What became of a write, without writing it: read under the lock of the run's row, so that nothing of it is under way.
pub(super) async fn settle(tx: &mut Tx<'_>, write: &Write) -> Outcome<Written> {
    let refusal = match write {
        Write::Step(commit) => step_refusal(tx, commit).await?,
        Write::Append(append) => journal::append_refusal(tx, append).await?,
        Write::Status(change) => status_refusal(tx, change).await?,
        _ => None,
    };
    Err(Halt::Settle(refusal.unwrap_or_else(|| Err(StoreError::Retry("it is not there".into())))))
}

/// A unique key was taken although the fence would let it pass: by this very step, or by another of the same key.
pub(super) async fn settle_duplicate(tx: &mut Tx<'_>, write: &Write) -> Outcome<Written> {
    let Write::Step(commit) = write else { return settle(tx, write).await };
    if let Some(refusal) = step_refusal(tx, commit).await? {
        return Err(Halt::Settle(refusal));
    }
    let holder = tx
        .one(
            "SELECT step_id FROM hapax_keys WHERE namespace = ? AND run_id = ? AND step_key = ?",
            values![commit.run.namespace.as_str(), commit.run.run.as_str(), &commit.checkpoint.key.0],
        )
        .await?;
    let step = match holder {
        Some(row) => row.count(0)?,
        None => commit.checkpoint.step,
    };
    Err(Halt::Settle(same_or_conflict(tx, commit, step).await?))
}

/// Locks and reads the run's row for a write of this epoch; the error when it isn't its holder any more.
pub(super) async fn head(
    tx: &mut Tx<'_>,
    run: &RunKey,
    epoch: Epoch,
) -> Result<Result<Head, StoreError>, Fault> {
    let row = tx
        .one(
            "SELECT epoch, nonce, next_seq, cancel_requested, step_id, digest, status_json, owner \
             FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE",
            values![run.namespace.as_str(), run.run.as_str()],
        )
        .await?;
    let read = |row: Row| {
        Ok::<_, Fault>(Head {
            epoch: Epoch { counter: row.count(0)?, nonce: u128::from_be_bytes(row.bytes(1)?) },
            next_seq: row.count(2)?,
            cancel_requested: row.flag(3)?,
            step: row.count(4)?,
            digest: Digest(row.bytes(5)?),
            status_json: row.text(6)?.to_owned(),
            owned: row.maybe_text(7)?.is_some(),
        })
    };
    Ok(judge::held(run, epoch, row.map(read).transpose()?))
}

async fn step(tx: &mut Tx<'_>, commit: &StepCommit, parts: &StepParts) -> Outcome<Written> {
    if !fence(tx, commit).await? {
        let refusal = step_refusal(tx, commit).await?;
        // Every demand of the fence is looked into, so an unexplained refusal is one of the server's own.
        return Err(Halt::Settle(refusal.unwrap_or_else(|| Err(judge::write_missing()))));
    }
    insert_step(tx, commit, parts).await?;
    if let Some(shape) = &commit.fresh {
        begin_anew(tx, commit, shape).await?;
    }
    if commit.ends {
        ended(tx, &commit.run, &Status::Succeeded).await?;
    }
    Ok(Written::Committed)
}

/// Deletes the run's history before this step.
async fn begin_anew(tx: &mut Tx<'_>, commit: &StepCommit, shape: &Digest) -> Result<(), Fault> {
    let (namespace, run) = (commit.run.namespace.as_str(), commit.run.run.as_str());
    let (step, seq) = (commit.checkpoint.step, commit.first_seq + commit.journal.len() as u64);
    for sql in [
        "DELETE FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id < ?",
        "DELETE FROM hapax_frontier WHERE namespace = ? AND run_id = ? AND step_id < ?",
        "DELETE FROM hapax_keys WHERE namespace = ? AND run_id = ? AND step_id < ?",
    ] {
        tx.execute(sql, values![namespace, run, step]).await?;
    }
    let sql = "DELETE FROM hapax_journal WHERE namespace = ? AND run_id = ? AND seq < ?";
    tx.execute(sql, values![namespace, run, seq]).await?;
    let sql = "UPDATE hapax_runs SET fingerprint = ? WHERE namespace = ? AND run_id = ?";
    tx.execute(sql, values![&shape.0, namespace, run]).await?;
    blobs::sweep(tx, &commit.run).await
}

/// Tells those whom the end of a run concerns.
async fn ended(tx: &mut Tx<'_>, run: &RunKey, status: &Status) -> Outcome<Written> {
    match mailbox::over(tx, run, status).await {
        Ok(()) => Ok(Written::Committed),
        Err(Halt::Settle(answer)) => Err(Halt::Settle(answer.map(|()| Written::Committed))),
        Err(Halt::Fault(fault)) => Err(Halt::Fault(fault)),
    }
}

async fn fence(tx: &mut Tx<'_>, commit: &StepCommit) -> Result<bool, Fault> {
    let (sql, status) =
        if commit.ends { (FENCE_TO_END, Status::Succeeded) } else { (FENCE, Status::Running) };
    let met = tx
        .execute(
            &fence_sql(sql),
            values![
                commit.checkpoint.step,
                &commit.checkpoint.digest.0,
                commit.journal.len(),
                commit.used_us,
                status.to_json().as_str(),
                commit.run.namespace.as_str(),
                commit.run.run.as_str(),
                commit.follows,
                &commit.base.0,
                commit.first_seq,
                commit.epoch.counter,
                &commit.epoch.nonce.to_be_bytes(),
            ],
        )
        .await?;
    Ok(met == 1)
}

/// Why a step's fence refused; `None`: it wouldn't.
async fn step_refusal(tx: &mut Tx<'_>, commit: &StepCommit) -> Result<Option<Answer>, Fault> {
    let head = match head(tx, &commit.run, commit.epoch).await? {
        Ok(head) => head,
        Err(fenced) => return Ok(Some(Err(fenced))),
    };
    Ok(match judge::step(&head, commit) {
        Judgement::Taken(step) => Some(same_or_conflict(tx, commit, step).await?),
        judgement => judgement.answer(),
    })
}

/// The step is there: is it this very one?
async fn same_or_conflict(tx: &mut Tx<'_>, commit: &StepCommit, step: u64) -> Result<Answer, Fault> {
    let stored = tx
        .one(
            "SELECT digest FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id = ?",
            values![commit.run.namespace.as_str(), commit.run.run.as_str(), step],
        )
        .await?;
    let stored = stored.map(|row| row.bytes(0).map(Digest)).transpose()?;
    Ok(judge::same_step(commit, step, stored))
}

async fn insert_step(tx: &mut Tx<'_>, commit: &StepCommit, parts: &StepParts) -> Result<(), Fault> {
    let next_seq = commit.first_seq + commit.journal.len() as u64;
    let (run, checkpoint, parts_of) = (&commit.run, &commit.checkpoint, &parts.checkpoint);
    insert_checkpoint(tx.session, NewCheckpoint { run, checkpoint, parts: parts_of, next_seq }).await?;
    journal::insert(tx, &commit.run, commit.first_seq, &commit.journal, &parts.journal).await?;
    outbox::insert(tx, commit, &parts.outbox).await
}

/// A checkpoint to be written.
pub(crate) struct NewCheckpoint<'c> {
    pub(crate) run: &'c RunKey,
    pub(crate) checkpoint: &'c Checkpoint,
    pub(crate) parts: &'c CheckpointParts,
    pub(crate) next_seq: u64,
}

impl<'c> NewCheckpoint<'c> {
    fn key(&self) -> Vec<Value<'c>> {
        let Self { run, checkpoint, .. } = *self;
        values![run.namespace.as_str(), run.run.as_str(), &checkpoint.key.0, checkpoint.step].to_vec()
    }

    fn row(&self) -> Vec<Value<'c>> {
        let Self { run, checkpoint, parts, next_seq } = *self;
        values![
            run.namespace.as_str(),
            run.run.as_str(),
            checkpoint.step,
            &checkpoint.key.0,
            &checkpoint.digest.0,
            &checkpoint.io.0,
            &checkpoint.outbox.0,
            checkpoint.seed,
            next_seq,
            u64::from(checkpoint.state_version),
            parts.state.kind as i64,
            parts.state.base.map(u64::cast_signed),
            &parts.state.bytes,
            parts.frontier.first().map(Vec::as_slice).unwrap_or_default(),
            checkpoint.frontier_len,
            &parts.pages,
            parts.barriers.as_ref(),
            checkpoint.label.as_deref(),
        ]
        .to_vec()
    }

    /// The frontier's further pages.
    fn pages(&self) -> impl Iterator<Item = Vec<Value<'c>>> {
        let Self { run, checkpoint, parts, .. } = *self;
        (0_u64..).zip(&parts.frontier).skip(1).map(|(page, items)| {
            values![run.namespace.as_str(), run.run.as_str(), checkpoint.step, page, items].to_vec()
        })
    }
}

/// The rows of checkpoints with their keys and their frontiers' further pages.
pub(crate) fn checkpoint_rows<'c>(all: &[NewCheckpoint<'c>]) -> [Inserts<'c>; 3] {
    let keys = Inserts {
        into: "INSERT INTO hapax_keys (namespace, run_id, step_key, step_id)",
        row: "(?, ?, ?, ?)",
        end: "",
        rows: all.iter().map(NewCheckpoint::key).collect(),
    };
    let checkpoints = Inserts {
        into: "INSERT INTO hapax_checkpoints (namespace, run_id, step_id, step_key, digest, io, outbox, seed, next_seq, \
               state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, label, created_at)",
        row: "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now})",
        end: "",
        rows: all.iter().map(NewCheckpoint::row).collect(),
    };
    let pages = Inserts {
        into: "INSERT INTO hapax_frontier (namespace, run_id, step_id, page, items)",
        row: "(?, ?, ?, ?, ?)",
        end: "",
        rows: all.iter().flat_map(NewCheckpoint::pages).collect(),
    };
    [keys, checkpoints, pages]
}

/// Writes a checkpoint with its key and its frontier's further pages.
pub(super) async fn insert_checkpoint(
    session: &mut dyn Session,
    new: NewCheckpoint<'_>,
) -> Result<(), Fault> {
    for table in checkpoint_rows(&[new]) {
        insert(session, &table).await?;
    }
    Ok(())
}

async fn status(tx: &mut Tx<'_>, change: &StatusChange, json: &str) -> Outcome<Written> {
    // What is there already isn't written again, so that an answer that was lost reads as `AlreadyCommitted`.
    let letters = mailbox::subjects_json(&change.wake.letters);
    let met = tx
        .execute(
            &fence_sql(
                "UPDATE hapax_runs SET ready_at = CASE WHEN ? = 1 THEN NULL \
                 WHEN ? = 1 AND cancel_requested = 1 THEN {now} WHEN ? = 1 THEN {now} WHEN ? = 1 THEN lease_until \
                 ELSE ? END, status = ?, status_json = ?, used_us = ?, updated_at = {now}, \
                 lease_until = CASE WHEN ? = 1 THEN 0 ELSE lease_until END, wake_at = ?, wake_letters = ?, \
                 owner = CASE WHEN ? = 1 THEN NULL ELSE owner END WHERE namespace = ? AND run_id = ? \
                 AND (status_json <> ? OR (? = 1 AND owner IS NOT NULL)) AND (cancel_requested = 0 OR ? <> 'failed') \
                 AND epoch = ? AND nonce = ?",
            ),
            values![
                change.status.is_final(),
                change.release,
                change.release && change.status.is_runnable(),
                !change.release && change.status.is_runnable(),
                change.wake.at_us,
                change.status.word(),
                json,
                change.used_us,
                change.release,
                change.wake.at_us,
                letters.as_deref(),
                change.release,
                change.run.namespace.as_str(),
                change.run.run.as_str(),
                json,
                change.release,
                change.status.word(),
                change.epoch.counter,
                &change.epoch.nonce.to_be_bytes(),
            ],
        )
        .await?;
    if met == 1 {
        if change.release && change.status.is_runnable() {
            tx.hints.push(Hint::Ready(change.run.namespace.clone()));
        }
        mailbox::wake_at_once(tx, change).await?;
        if change.status.is_final() {
            ended(tx, &change.run, &change.status).await?;
        }
        return Ok(Written::Committed);
    }
    let refusal = status_refusal(tx, change).await?;
    Err(Halt::Settle(refusal.unwrap_or_else(|| Err(judge::write_missing()))))
}

/// Why a change of status was refused; `None`: it wouldn't be.
async fn status_refusal(tx: &mut Tx<'_>, change: &StatusChange) -> Result<Option<Answer>, Fault> {
    let head = head(tx, &change.run, change.epoch).await?;
    Ok(match head {
        Ok(head) => judge::status(&head, change).answer(),
        Err(fenced) => Some(Err(fenced)),
    })
}
