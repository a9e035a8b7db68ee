//! Letters: sent to a run by anyone, taken by its holder.
//!
//! Invariant: a letter arrives, and wakes whoever waits for it, in one transaction that holds the lock of the run's row;
//! it is taken in the transaction of the journal row that says so.

use super::{
    blobs,
    error::{Halt, Outcome},
    runs::{demand_key, found_locked, wrong_status},
    sql::{Fault, Row, Session, one, values},
    writer::Tx,
};
use crate::{
    check::end_letter,
    codec::{Codec, Part, Place},
    error::StoreError,
    house::Parcel,
    prepare::{self, LetterParts},
    store::Hint,
};
use hapax_core::{
    commit::{Status, StatusChange},
    id::{RunId, RunKey},
    json::Json,
    mailbox::{Letter, NewLetter, Posted},
};
use std::{collections::BTreeSet, sync::Arc};

/// Children whose holders are told at once of their cancel; those of others find out by themselves.
const TOLD: usize = 100;

/// Puts a letter into a run's mailbox and wakes the run if it waits for it.
pub(super) async fn post(
    tx: &mut Tx<'_>,
    run: &RunKey,
    letter: &NewLetter,
    payload: &LetterParts,
) -> Outcome<Posted> {
    // The run's row is locked, so that its letters are numbered one after the other.
    let record = found_locked(tx, run).await?;
    let (namespace, id) = (run.namespace.as_str(), run.run.as_str());
    let known = tx
        .one(
            "SELECT 1 FROM hapax_letters WHERE namespace = ? AND run_id = ? AND letter_id = ?",
            values![namespace, id, letter.id.as_str()],
        )
        .await?;
    if known.is_some() {
        return Ok(Posted::Known);
    }
    if record.status.is_final() || record.status.is_moving() {
        return Err(wrong_status(record).into());
    }
    demand_key(tx, &record).await?;
    let latest = tx
        .one(
            "SELECT coalesce(max(number), 0) FROM hapax_letters WHERE namespace = ? AND run_id = ?",
            values![namespace, id],
        )
        .await?;
    let number = latest.map_or(Ok(0), |row| row.count(0))? + 1;
    tx.execute(
        "INSERT INTO hapax_letters (namespace, run_id, number, letter_id, subject, payload, sent_at, taken) \
         VALUES (?, ?, ?, ?, ?, ?, {now}, 0)",
        values![namespace, id, number, letter.id.as_str(), &*letter.subject, &payload.bytes],
    )
    .await
    // Another was faster, whom a transaction that began before doesn't see.
    .map_err(Fault::taken_is_again)?;
    blobs::insert(tx, run, &payload.blobs).await?;
    if record.wake.letters.contains(&letter.subject) {
        wake(tx, run).await?;
    }
    Ok(Posted::New)
}

/// The run is over: its parent is told, and a cancel is its children's too.
pub(super) async fn over(tx: &mut Tx<'_>, run: &RunKey, status: &Status) -> Outcome<()> {
    let (namespace, id) = (run.namespace.as_str(), run.run.as_str());
    let found = tx
        .one(
            "SELECT parent, epoch FROM hapax_runs WHERE namespace = ? AND run_id = ? AND parent IS NOT NULL",
            values![namespace, id],
        )
        .await?;
    if let Some(row) = found {
        let parent = RunId::new(row.text(0)?).map_err(Fault::from)?;
        let letter = end_letter(&run.run, row.count(1)?, status);
        let parent = RunKey { namespace: run.namespace.clone(), run: parent };
        let payload = prepare::letter(&parent, &letter, tx.codec)?;
        match Box::pin(post(tx, &parent, &letter, &payload)).await {
            Err(Halt::Settle(Err(locked @ StoreError::Locked { .. }))) => return Err(locked.into()),
            // A parent that is gone or over needs no word.
            Ok(_) | Err(Halt::Settle(_)) => {}
            Err(Halt::Fault(fault)) => return Err(Halt::Fault(fault)),
        }
    }
    if *status == Status::Cancelled {
        tx.execute(
            "UPDATE hapax_runs SET cancel_requested = 1, updated_at = {now}, \
             ready_at = CASE WHEN owner IS NULL THEN {now} ELSE lease_until END \
             WHERE namespace = ? AND parent = ? AND status NOT IN ('succeeded', 'failed', 'cancelled')",
            values![namespace, id],
        )
        .await?;
        tell_children(tx, run).await?;
    }
    Ok(())
}

/// Tells those who hold children of a run, or could take them up, that they are to be cancelled.
async fn tell_children(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let sql = "SELECT run_id, owner FROM hapax_runs WHERE namespace = ? AND parent = ? AND cancel_requested = 1 \
               AND status NOT IN ('succeeded', 'failed', 'cancelled') LIMIT ?";
    let rows = tx.rows(sql, values![run.namespace.as_str(), run.run.as_str(), TOLD]).await?;
    for row in &rows {
        let child = RunKey { namespace: run.namespace.clone(), run: RunId::new(row.text(0)?)? };
        tx.hints.push(match row.maybe_text(1)? {
            Some(_) => Hint::Cancel(child),
            None => Hint::Ready(run.namespace.clone()),
        });
    }
    Ok(())
}

/// A parked run is pending again.
async fn wake(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    tx.execute(
        "UPDATE hapax_runs SET ready_at = CASE WHEN owner IS NULL THEN {now} - head_start ELSE lease_until END, \
         status = 'pending', status_json = ?, wake_at = NULL, wake_letters = NULL, updated_at = {now} \
         WHERE namespace = ? AND run_id = ? AND status IN ('waiting', 'in_doubt')",
        values![Status::Pending.to_json().as_str(), run.namespace.as_str(), run.run.as_str()],
    )
    .await?;
    tx.hints.push(Hint::Ready(run.namespace.clone()));
    Ok(())
}

/// A run is being parked: what it waits for may have come meanwhile.
pub(super) async fn wake_at_once(tx: &mut Tx<'_>, change: &StatusChange) -> Result<(), Fault> {
    for subject in &change.wake.letters {
        if is_waiting(tx, &change.run, subject).await? {
            return wake(tx, &change.run).await;
        }
    }
    Ok(())
}

/// Whether there is a letter of a subject that isn't taken. What it says may be large, or rest where nobody can read it now.
async fn is_waiting(tx: &mut Tx<'_>, run: &RunKey, subject: &str) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM hapax_letters WHERE namespace = ? AND run_id = ? AND subject = ? AND taken = 0 LIMIT 1";
    let found = tx.one(sql, values![run.namespace.as_str(), run.run.as_str(), subject]).await?;
    Ok(found.is_some())
}

/// The oldest letter of a subject that isn't taken.
pub(super) async fn waiting(
    session: &mut dyn Session,
    codec: &Codec,
    run: &RunKey,
    subject: &str,
    after: u64,
) -> Result<Option<Letter>, Fault> {
    let row = one(
        session,
        "SELECT number, payload, letter_id FROM hapax_letters WHERE namespace = ? AND run_id = ? AND subject = ? \
         AND number > ? AND taken = 0 ORDER BY number LIMIT 1",
        values![run.namespace.as_str(), run.run.as_str(), subject, after],
    )
    .await?;
    let Some(mut row) = row else { return Ok(None) };
    blobs::fill(session, codec, run, &mut row, &[1]).await?;
    read_letter(&row, codec, run).map(Some)
}

/// Letters above a number, taken or not.
pub(super) async fn all(
    session: &mut dyn Session,
    codec: &Codec,
    run: &RunKey,
    after: u64,
    limit: usize,
) -> Result<Vec<Parcel>, Fault> {
    let sql = "SELECT number, payload, letter_id, subject, sent_at, taken FROM hapax_letters \
               WHERE namespace = ? AND run_id = ? AND number > ? ORDER BY number LIMIT ?";
    let rows = session.rows(sql, values![run.namespace.as_str(), run.run.as_str(), after, limit]).await?;
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        blobs::fill(session, codec, run, &mut row, &[1]).await?;
        let taken = row.flag(5)?;
        let payload = if taken { None } else { Some(read_letter(&row, codec, run)?.payload) };
        found.push(Parcel {
            number: row.count(0)?,
            id: row.text(2)?.to_owned(),
            subject: row.text(3)?.into(),
            payload,
            sent_at_us: row.int(4)?,
            taken,
        });
    }
    Ok(found)
}

fn read_letter(row: &Row, codec: &Codec, run: &RunKey) -> Result<Letter, Fault> {
    let number = row.count(0)?;
    let payload = codec
        .unpack(row.blob(1)?, &Place::of(run, Part::Letter { id: row.text(2)? }))
        .and_then(|bytes| Ok(serde_json::from_slice::<Json>(&bytes)?))
        .map_err(|error| Fault::undecoded(None, &format!("letter {number}"), error))?;
    Ok(Letter { number, payload })
}

/// Takes a letter, behind the fence of the row that says so. The row stays, since a letter that is sent again is known by
/// its id; what it said is in the journal.
pub(super) async fn take(tx: &mut Tx<'_>, run: &RunKey, letter: u64) -> Result<(), Fault> {
    tx.execute(
        "UPDATE hapax_letters SET taken = 1, payload = ? WHERE namespace = ? AND run_id = ? AND number = ?",
        values![&[], run.namespace.as_str(), run.run.as_str(), letter],
    )
    .await?;
    Ok(())
}

/// The subjects in a column of a run's row.
pub(super) fn subjects(row: &Row, column: usize) -> Result<BTreeSet<Arc<str>>, Fault> {
    let Some(json) = row.maybe_text(column)? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(json)
        .map_err(|error| Fault::damage(format!("what it waits for cannot be read: {error}")))
}

/// Subjects as they are stored.
pub(super) fn subjects_json(subjects: &BTreeSet<Arc<str>>) -> Option<String> {
    (!subjects.is_empty()).then(|| Json::of(subjects).expect("names are plain data").as_str().to_owned())
}
