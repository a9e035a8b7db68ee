//! Letters: sent to a run by anyone, taken by its holder.
//!
//! Invariant: a letter arrives, and wakes whoever waits for it, in one transaction; it is taken in the transaction of
//! the journal row that says so.

use super::{
    blobs,
    commit::fence_sql,
    error::{damaged, undecoded},
    runs::{demand_key, found, wrong_status},
    writer::{Halt, Outcome, Tx},
};
use crate::{
    check::end_letter,
    codec::{Codec, Part, Place},
    error::StoreError,
    house::Parcel,
    prepare::{self, LetterParts},
};
use hapax_core::{
    commit::{Status, StatusChange},
    id::{RunId, RunKey},
    json::Json,
    mailbox::{Letter, NewLetter, Posted},
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::{collections::BTreeSet, sync::Arc};

/// Puts a letter into a run's mailbox and wakes the run if it waits for it.
pub(super) fn post(tx: &Tx<'_>, run: &RunKey, letter: &NewLetter, payload: &LetterParts) -> Outcome<Posted> {
    let record = found(tx, run)?;
    let (namespace, id) = (run.namespace.as_str(), run.run.as_str());
    let known = tx.one(
        "SELECT 1 FROM hapax_letters WHERE namespace = ?1 AND run_id = ?2 AND letter_id = ?3",
        params![namespace, id, letter.id],
        |_| Ok(()),
    )?;
    if known.is_some() {
        return Ok(Posted::Known);
    }
    if record.status.is_final() || record.status.is_moving() {
        return Err(wrong_status(record).into());
    }
    demand_key(tx, &record)?;
    tx.execute(
        "INSERT INTO hapax_letters (namespace, run_id, number, letter_id, subject, payload, sent_at, taken) \
         SELECT ?1, ?2, coalesce(max(number), 0) + 1, ?3, ?4, ?5, ?6, 0 FROM hapax_letters \
         WHERE namespace = ?1 AND run_id = ?2",
        params![namespace, id, letter.id, &*letter.subject, payload.bytes, tx.now],
    )?;
    blobs::insert(tx, run, &payload.blobs)?;
    if record.wake.letters.contains(&letter.subject) {
        wake(tx, run)?;
    }
    Ok(Posted::New)
}

/// The run is over: its parent is told, and a cancel is its children's too.
pub(super) fn over(tx: &Tx<'_>, run: &RunKey, status: &Status) -> Outcome<()> {
    let (namespace, id) = (run.namespace.as_str(), run.run.as_str());
    let found = tx.one(
        "SELECT parent, epoch FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2 AND parent IS NOT NULL",
        params![namespace, id],
        |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)),
    )?;
    if let Some((parent, epoch)) = found {
        let parent = RunId::new(&parent).map_err(|error| Halt::Sql(damaged(error.to_string())))?;
        let letter = end_letter(&run.run, epoch.cast_unsigned(), status);
        let parent = RunKey { namespace: run.namespace.clone(), run: parent };
        let payload = prepare::letter(&parent, &letter, tx.codec)?;
        match post(tx, &parent, &letter, &payload) {
            Err(Halt::Settle(Err(locked @ StoreError::Locked { .. }))) => return Err(locked.into()),
            // A parent that is gone or over needs no word.
            Ok(_) | Err(Halt::Settle(_)) => {}
            Err(Halt::Sql(error)) => return Err(Halt::Sql(error)),
        }
    }
    if *status == Status::Cancelled {
        tx.execute(
            "UPDATE hapax_runs SET cancel_requested = 1, updated_at = ?3 WHERE namespace = ?1 AND parent = ?2 \
             AND status NOT IN ('succeeded', 'failed', 'cancelled')",
            params![namespace, id, tx.now],
        )?;
    }
    Ok(())
}

/// A parked run is pending again.
fn wake(tx: &Tx<'_>, run: &RunKey) -> rusqlite::Result<()> {
    tx.execute(
        "UPDATE hapax_runs SET status = 'pending', status_json = ?3, wake_at = NULL, wake_letters = NULL, \
         updated_at = ?4 WHERE namespace = ?1 AND run_id = ?2 AND status IN ('waiting', 'in_doubt')",
        params![run.namespace.as_str(), run.run.as_str(), Status::Pending.to_json().as_str(), tx.now],
    )?;
    Ok(())
}

/// A run is being parked: what it waits for may have come meanwhile.
pub(super) fn wake_at_once(tx: &Tx<'_>, change: &StatusChange) -> rusqlite::Result<()> {
    for subject in &change.wake.letters {
        if is_waiting(tx, &change.run, subject)? {
            return wake(tx, &change.run);
        }
    }
    Ok(())
}

/// Whether there is a letter of a subject that isn't taken. What it says may be large, or rest where nobody can read it now.
fn is_waiting(tx: &Tx<'_>, run: &RunKey, subject: &str) -> rusqlite::Result<bool> {
    let found = tx.one(
        "SELECT 1 FROM hapax_letters WHERE namespace = ?1 AND run_id = ?2 AND subject = ?3 AND taken = 0 LIMIT 1",
        params![run.namespace.as_str(), run.run.as_str(), subject],
        |_| Ok(()),
    )?;
    Ok(found.is_some())
}

/// The oldest letter of a subject that isn't taken.
pub(super) fn waiting(
    connection: &Connection,
    codec: &Codec,
    run: &RunKey,
    subject: &str,
    after: u64,
) -> rusqlite::Result<Option<Letter>> {
    let mut statement = connection.prepare_cached(
        "SELECT number, payload, letter_id FROM hapax_letters WHERE namespace = ?1 AND run_id = ?2 AND subject = ?3 \
         AND number > ?4 AND taken = 0 ORDER BY number LIMIT 1",
    )?;
    let place = params![run.namespace.as_str(), run.run.as_str(), subject, after.cast_signed()];
    statement.query_row(place, |row| read_letter(connection, row, codec, run)).optional()
}

/// Letters above a number, taken or not.
pub(super) fn all(
    connection: &Connection,
    codec: &Codec,
    run: &RunKey,
    after: u64,
    limit: usize,
) -> rusqlite::Result<Vec<Parcel>> {
    let mut statement = connection.prepare_cached(
        "SELECT number, payload, letter_id, subject, sent_at, taken FROM hapax_letters \
         WHERE namespace = ?1 AND run_id = ?2 AND number > ?3 ORDER BY number LIMIT ?4",
    )?;
    let place = params![run.namespace.as_str(), run.run.as_str(), after.cast_signed(), limit as i64];
    let letters = statement.query_map(place, |row| {
        let taken: bool = row.get(5)?;
        let payload = if taken { None } else { Some(read_letter(connection, row, codec, run)?.payload) };
        Ok(Parcel {
            number: row.get::<_, i64>(0)?.cast_unsigned(),
            id: row.get(2)?,
            subject: row.get::<_, String>(3)?.into(),
            payload,
            sent_at_us: row.get(4)?,
            taken,
        })
    })?;
    letters.collect()
}

fn read_letter(
    connection: &Connection,
    row: &Row<'_>,
    codec: &Codec,
    run: &RunKey,
) -> rusqlite::Result<Letter> {
    let number = row.get::<_, i64>(0)?.cast_unsigned();
    let place = Place::of(run, Part::Letter { id: row.get_ref(2)?.as_str()? });
    let stored = blobs::whole(connection, codec, run, row.get_ref(1)?.as_blob()?)?;
    let payload = codec
        .unpack(&stored, &place)
        .and_then(|bytes| Ok(serde_json::from_slice::<Json>(&bytes)?))
        .map_err(|error| undecoded(None, &format!("letter {number}"), error))?;
    Ok(Letter { number, payload })
}

pub(super) const TAKE: &str =
    "UPDATE hapax_letters SET taken = 1, payload = x'' WHERE namespace = ?1 AND run_id = ?2 AND number = ?3";

/// Takes a letter, behind the fence of the row that says so. The row stays, since a letter that is sent again is known by
/// its id; what it said is in the journal, as long as somebody may ask for it.
pub(super) fn take(tx: &Tx<'_>, run: &RunKey, letter: u64) -> rusqlite::Result<()> {
    tx.execute(&fence_sql(TAKE), params![run.namespace.as_str(), run.run.as_str(), letter.cast_signed()])?;
    Ok(())
}

/// The subjects in a column of a run's row.
pub(super) fn subjects(row: &Row<'_>, column: usize) -> rusqlite::Result<BTreeSet<Arc<str>>> {
    let Some(json) = row.get_ref(column)?.as_str_or_null()? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(json).map_err(|error| damaged(format!("what it waits for cannot be read: {error}")))
}

/// Subjects as they are stored.
pub(super) fn subjects_json(subjects: &BTreeSet<Arc<str>>) -> Option<String> {
    (!subjects.is_empty()).then(|| Json::of(subjects).expect("names are plain data").as_str().to_owned())
}
