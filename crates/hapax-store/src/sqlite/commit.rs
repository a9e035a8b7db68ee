//! Writes of a run's holder: the fence first, then the rows.
//!
//! Invariant: a row is only written after an update of the run's own row that demanded epoch, nonce and position
//! and changed exactly one row; what the update refused is looked into afterwards, never before.

use super::{
    blobs,
    error::is_duplicate,
    journal, mailbox, outbox,
    writer::{Halt, Outcome, Tx},
};
use crate::{
    error::StoreError,
    judge::{self, Answer, Head, Judgement},
    prepare::{CheckpointParts, Parts, Prepared, StepParts},
};
use hapax_core::{
    canary,
    checkpoint::Checkpoint,
    commit::{Epoch, Status, StatusChange, StepCommit, Write, Written},
    id::RunKey,
    json::Json,
    key::Digest,
};
use rusqlite::params;
use std::borrow::Cow;

/// The part of every fence that keeps a former holder out.
const OWNERSHIP: &str = " AND epoch = ?1 AND nonce = ?2";
/// The part of a step's fence that keeps steps and journal in order.
const POSITION: &str = " AND step_id = ?3 AND digest = ?4 AND next_seq = ?5";

/// For a run whose status stays `running`. The status is indexed: to set it anew would rewrite the index.
const FENCE: &str = "UPDATE hapax_runs SET step_id = ?6, digest = ?7, next_seq = next_seq + ?8, used_us = ?9, \
     updated_at = ?10 WHERE namespace = ?11 AND run_id = ?12 AND status = 'running' \
     AND epoch = ?1 AND nonce = ?2 AND step_id = ?3 AND digest = ?4 AND next_seq = ?5";
const FENCE_TO_RUNNING: &str = "UPDATE hapax_runs SET step_id = ?6, digest = ?7, next_seq = next_seq + ?8, used_us = ?9, \
     updated_at = ?10, status = 'running', status_json = ?13 WHERE namespace = ?11 AND run_id = ?12 \
     AND epoch = ?1 AND nonce = ?2 AND step_id = ?3 AND digest = ?4 AND next_seq = ?5";
/// The end of a run: its lease ends as well, and no cancel may have been requested.
const FENCE_TO_END: &str = "UPDATE hapax_runs SET step_id = ?6, digest = ?7, next_seq = next_seq + ?8, used_us = ?9, \
     updated_at = ?10, status = 'succeeded', status_json = ?13, owner = NULL, lease_until = 0 \
     WHERE namespace = ?11 AND run_id = ?12 AND cancel_requested = 0 \
     AND epoch = ?1 AND nonce = ?2 AND step_id = ?3 AND digest = ?4 AND next_seq = ?5";

/// The fence as it is shipped, or as a mutant has it.
pub(super) fn fence_sql(sql: &'static str) -> Cow<'static, str> {
    if canary::on("fence") {
        sql.replace(OWNERSHIP, "").into()
    } else if canary::on("check_then_insert") {
        sql.replace(POSITION, "").into()
    } else {
        sql.into()
    }
}

/// The insert as it is shipped, or as a mutant has it.
pub(super) fn insert_sql(sql: &'static str) -> Cow<'static, str> {
    if canary::on("check_then_insert") {
        sql.replace("INSERT", "INSERT OR REPLACE").into()
    } else {
        sql.into()
    }
}

/// Writes, or says why not.
pub(super) fn write(tx: &Tx<'_>, prepared: &Prepared) -> Outcome<Written> {
    let written = rows(tx, prepared)?;
    blobs::insert(tx, prepared.write.run(), &prepared.blobs)?;
    Ok(written)
}

fn rows(tx: &Tx<'_>, prepared: &Prepared) -> Outcome<Written> {
    match (&*prepared.write, &prepared.parts) {
        (Write::Step(commit), Parts::Step(parts)) => step(tx, commit, parts),
        (Write::Append(append), Parts::Append(entries)) => journal::append(tx, append, entries),
        (Write::Status(change), Parts::Status(json)) => status(tx, change, json),
        _ => Err(StoreError::Retry("a write was prepared as another kind".into()).into()),
    }
}

/// What became of a write, without writing it.
pub(super) fn settle(tx: &Tx<'_>, write: &Write) -> Outcome<Written> {
    let refusal = match write {
        Write::Step(commit) => step_refusal(tx, commit)?,
        Write::Append(append) => journal::append_refusal(tx, append)?,
        Write::Status(change) => status_refusal(tx, change)?,
        _ => None,
    };
    Err(Halt::Settle(refusal.unwrap_or_else(|| Err(StoreError::Retry("it is not there".into())))))
}

/// Reads the run's row for a write of this epoch; the error when it isn't its holder any more.
pub(super) fn head(tx: &Tx<'_>, run: &RunKey, epoch: Epoch) -> rusqlite::Result<Result<Head, StoreError>> {
    let head = tx.one(
        "SELECT epoch, nonce, next_seq, cancel_requested, step_id, digest, status_json, owner IS NOT NULL \
         FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2",
        params![run.namespace.as_str(), run.run.as_str()],
        |row| {
            Ok(Head {
                epoch: Epoch {
                    counter: row.get::<_, i64>(0)?.cast_unsigned(),
                    nonce: u128::from_be_bytes(row.get(1)?),
                },
                next_seq: row.get::<_, i64>(2)?.cast_unsigned(),
                cancel_requested: row.get(3)?,
                step: row.get::<_, i64>(4)?.cast_unsigned(),
                digest: Digest(row.get(5)?),
                status_json: row.get(6)?,
                owned: row.get(7)?,
            })
        },
    )?;
    Ok(judge::held(run, epoch, head))
}

fn step(tx: &Tx<'_>, commit: &StepCommit, parts: &StepParts) -> Outcome<Written> {
    if !fence(tx, commit)? {
        let refusal = step_refusal(tx, commit)?;
        // Every demand of the fence is looked into, so an unexplained refusal is one of SQLite's own.
        return Err(Halt::Settle(refusal.unwrap_or_else(|| Err(judge::write_missing()))));
    }
    match insert_step(tx, commit, parts) {
        Err(error) if is_duplicate(&error) => Err(Halt::Settle(duplicate(tx, commit)?)),
        Err(error) => Err(Halt::Sql(error)),
        Ok(()) => {
            if let Some(shape) = &commit.fresh {
                begin_anew(tx, commit, shape)?;
            }
            if commit.ends {
                ended(tx, &commit.run, &Status::Succeeded)?;
            }
            Ok(Written::Committed)
        }
    }
}

/// Deletes the run's history before this step.
fn begin_anew(tx: &Tx<'_>, commit: &StepCommit, shape: &Digest) -> rusqlite::Result<()> {
    let (namespace, run) = (commit.run.namespace.as_str(), commit.run.run.as_str());
    let (step, seq) = (commit.checkpoint.step, commit.first_seq + commit.journal.len() as u64);
    for sql in [
        "DELETE FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id < ?3",
        "DELETE FROM hapax_frontier WHERE namespace = ?1 AND run_id = ?2 AND step_id < ?3",
        "DELETE FROM hapax_keys WHERE namespace = ?1 AND run_id = ?2 AND step_id < ?3",
    ] {
        tx.execute(sql, params![namespace, run, step.cast_signed()])?;
    }
    let sql = "DELETE FROM hapax_journal WHERE namespace = ?1 AND run_id = ?2 AND seq < ?3";
    tx.execute(sql, params![namespace, run, seq.cast_signed()])?;
    let sql = "UPDATE hapax_runs SET fingerprint = ?3 WHERE namespace = ?1 AND run_id = ?2";
    tx.execute(sql, params![namespace, run, shape.0])?;
    blobs::sweep(tx, &commit.run)
}

/// Tells those whom the end of a run concerns.
fn ended(tx: &Tx<'_>, run: &RunKey, status: &Status) -> Outcome<Written> {
    match mailbox::over(tx, run, status) {
        Ok(()) => Ok(Written::Committed),
        Err(Halt::Settle(answer)) => Err(Halt::Settle(answer.map(|()| Written::Committed))),
        Err(Halt::Sql(error)) => Err(Halt::Sql(error)),
    }
}

fn fence(tx: &Tx<'_>, commit: &StepCommit) -> rusqlite::Result<bool> {
    let checkpoint = &commit.checkpoint;
    let run = |sql, status: Option<&Status>| {
        let nonce = commit.epoch.nonce.to_be_bytes();
        let common = params![
            commit.epoch.counter.cast_signed(),
            nonce,
            commit.follows.cast_signed(),
            commit.base.0,
            commit.first_seq.cast_signed(),
            checkpoint.step.cast_signed(),
            checkpoint.digest.0,
            commit.journal.len() as i64,
            commit.used_us.cast_signed(),
            tx.now,
            commit.run.namespace.as_str(),
            commit.run.run.as_str(),
        ];
        let json = status.map(Status::to_json);
        let json = json.as_ref().map(Json::as_str);
        let with_status =
            common.iter().copied().chain(json.as_ref().map(|json| json as &dyn rusqlite::ToSql));
        tx.execute(&fence_sql(sql), rusqlite::params_from_iter(with_status)).map(|rows| rows == 1)
    };
    if commit.ends {
        return run(FENCE_TO_END, Some(&Status::Succeeded));
    }
    Ok(run(FENCE, None)? || run(FENCE_TO_RUNNING, Some(&Status::Running))?)
}

/// Why a step's fence refused; `None`: it wouldn't.
fn step_refusal(tx: &Tx<'_>, commit: &StepCommit) -> rusqlite::Result<Option<Answer>> {
    let head = match head(tx, &commit.run, commit.epoch)? {
        Ok(head) => head,
        Err(fenced) => return Ok(Some(Err(fenced))),
    };
    Ok(match judge::step(&head, commit) {
        Judgement::Taken(step) => Some(same_or_conflict(tx, commit, step)?),
        judgement => judgement.answer(),
    })
}

/// The step is there: is it this very one?
fn same_or_conflict(tx: &Tx<'_>, commit: &StepCommit, step: u64) -> rusqlite::Result<Answer> {
    let stored = tx.one(
        "SELECT digest FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3",
        params![commit.run.namespace.as_str(), commit.run.run.as_str(), step.cast_signed()],
        |row| row.get(0).map(Digest),
    )?;
    Ok(judge::same_step(commit, step, stored))
}

/// A primary key was taken although the fence let us pass: by this very step, or by another of the same key.
fn duplicate(tx: &Tx<'_>, commit: &StepCommit) -> rusqlite::Result<Answer> {
    let holder = tx.one(
        "SELECT step_id FROM hapax_keys WHERE namespace = ?1 AND run_id = ?2 AND key = ?3",
        params![commit.run.namespace.as_str(), commit.run.run.as_str(), commit.checkpoint.key.0],
        |row| row.get::<_, i64>(0).map(i64::cast_unsigned),
    )?;
    same_or_conflict(tx, commit, holder.unwrap_or(commit.checkpoint.step))
}

fn insert_step(tx: &Tx<'_>, commit: &StepCommit, parts: &StepParts) -> rusqlite::Result<()> {
    let next_seq = commit.first_seq + commit.journal.len() as u64;
    insert_checkpoint(tx, &commit.run, &commit.checkpoint, &parts.checkpoint, next_seq)?;
    journal::insert(tx, &commit.run, commit.first_seq, &commit.journal, &parts.journal)?;
    outbox::insert(tx, commit, &parts.outbox)
}

/// Writes a checkpoint with its key and its frontier's further pages.
pub(super) fn insert_checkpoint(
    tx: &Tx<'_>,
    run: &RunKey,
    checkpoint: &Checkpoint,
    parts: &CheckpointParts,
    next_seq: u64,
) -> rusqlite::Result<()> {
    let (namespace, id, step) = (run.namespace.as_str(), run.run.as_str(), checkpoint.step.cast_signed());
    tx.execute(
        &insert_sql("INSERT INTO hapax_keys (namespace, run_id, key, step_id) VALUES (?1, ?2, ?3, ?4)"),
        params![namespace, id, checkpoint.key.0, step],
    )?;
    let (first, rest) = parts.frontier.split_first().expect("a frontier has a first page");
    tx.execute(
        &insert_sql(
            "INSERT INTO hapax_checkpoints (namespace, run_id, step_id, key, digest, io, outbox, seed, next_seq, \
             state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, label, created_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        ),
        params![
            namespace,
            id,
            step,
            checkpoint.key.0,
            checkpoint.digest.0,
            checkpoint.io.0,
            checkpoint.outbox.0,
            checkpoint.seed.cast_signed(),
            next_seq.cast_signed(),
            checkpoint.state_version,
            parts.state.kind as i64,
            parts.state.base.map(u64::cast_signed),
            parts.state.bytes,
            first,
            checkpoint.frontier_len as i64,
            parts.pages,
            parts.barriers,
            checkpoint.label,
            tx.now,
        ],
    )?;
    for (page, items) in rest.iter().enumerate() {
        tx.execute(
            &insert_sql(
                "INSERT INTO hapax_frontier (namespace, run_id, step_id, page, items) VALUES (?1, ?2, ?3, ?4, ?5)",
            ),
            params![namespace, id, step, page as i64 + 1, items],
        )?;
    }
    Ok(())
}

fn status(tx: &Tx<'_>, change: &StatusChange, json: &str) -> Outcome<Written> {
    // What is there already isn't written again, so that an answer that was lost reads as `AlreadyCommitted`.
    let changed = tx.execute(
        &fence_sql(
            "UPDATE hapax_runs SET status = ?3, status_json = ?4, used_us = ?5, updated_at = ?6, \
             owner = iif(?7, NULL, owner), lease_until = iif(?7, 0, lease_until), wake_at = ?10, wake_letters = ?11 \
             WHERE namespace = ?8 AND run_id = ?9 AND (status_json <> ?4 OR (?7 AND owner IS NOT NULL)) \
             AND (cancel_requested = 0 OR ?3 <> 'failed') AND epoch = ?1 AND nonce = ?2",
        ),
        params![
            change.epoch.counter.cast_signed(),
            change.epoch.nonce.to_be_bytes(),
            change.status.word(),
            json,
            change.used_us.cast_signed(),
            tx.now,
            change.release,
            change.run.namespace.as_str(),
            change.run.run.as_str(),
            change.wake.at_us,
            mailbox::subjects_json(&change.wake.letters),
        ],
    )?;
    if changed == 1 {
        mailbox::wake_at_once(tx, change)?;
        if change.status.is_final() {
            ended(tx, &change.run, &change.status)?;
        }
        return Ok(Written::Committed);
    }
    let refusal = status_refusal(tx, change)?;
    Err(Halt::Settle(refusal.unwrap_or_else(|| Err(judge::write_missing()))))
}

/// Why a change of status was refused; `None`: it wouldn't be.
fn status_refusal(tx: &Tx<'_>, change: &StatusChange) -> rusqlite::Result<Option<Answer>> {
    Ok(match head(tx, &change.run, change.epoch)? {
        Ok(head) => judge::status(&head, change).answer(),
        Err(fenced) => Some(Err(fenced)),
    })
}
