//! Reads: records, checkpoints, frontiers, each in one snapshot of the file.
//!
//! Invariant: a checkpoint only leaves here when key, digest and the digests of all pages match its content.

use super::{
    blobs,
    error::{damaged, undecoded, unreadable},
    journal, mailbox,
};
use crate::{
    codec::{Codec, Part, Place, StateKind},
    depot::AT_A_TIME,
    error::StoreError,
    flow::read_terms,
    inspection::Inspection,
    store::{Loaded, RunRecord},
};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, Status, Wake},
    frontier::{Barriers, WorkItem, page_digest},
    id::{RunId, RunKey},
    key::{Digest, StepKey},
    limits::WINDOW_BYTES,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::BTreeMap;

/// The columns that [`record`] reads, in its order.
pub(super) const RECORD: &str = "run_id, graph, fingerprint, input, status_json, step_id, digest, epoch, nonce, owner, \
     next_seq, cancel_requested, used_us, created_at, updated_at, wake_at, wake_letters, parent, status, terms";

/// Reads a run's row, without its tags.
pub(super) fn record(row: &Row<'_>, namespace: &hapax_core::id::Namespace) -> rusqlite::Result<RunRecord> {
    let run = RunId::new(row.get_ref(0)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
    let status: Status = serde_json::from_str(row.get_ref(4)?.as_str()?)
        .map_err(|error| damaged(format!("its status cannot be read: {error}")))?;
    let found_as = row.get_ref(18)?.as_str()?;
    if status.word() != found_as {
        return Err(damaged(format!("it is {} and is listed as {found_as}", status.word())));
    }
    Ok(RunRecord {
        key: RunKey { namespace: namespace.clone(), run },
        graph: row.get::<_, String>(1)?.into(),
        fingerprint: Digest(row.get(2)?),
        input: Digest(row.get(3)?),
        status,
        step: count(row, 5)?,
        digest: Digest(row.get(6)?),
        epoch: Epoch { counter: count(row, 7)?, nonce: u128::from_be_bytes(row.get(8)?) },
        owner: row.get(9)?,
        next_seq: count(row, 10)?,
        cancel_requested: row.get(11)?,
        used_us: count(row, 12)?,
        tags: BTreeMap::new(),
        terms: read_terms(row.get_ref(19)?.as_str_or_null()?).map_err(damaged)?,
        created_at_us: row.get(13)?,
        updated_at_us: row.get(14)?,
        wake: Wake { at_us: row.get(15)?, letters: mailbox::subjects(row, 16)? },
        parent: row
            .get_ref(17)?
            .as_str_or_null()?
            .map(RunId::new)
            .transpose()
            .map_err(|error| damaged(error.to_string()))?,
    })
}

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let found: i64 = row.get(column)?;
    u64::try_from(found).map_err(|_| damaged(format!("{found} can't be a number of steps, rows or claims")))
}

/// A run's row with its tags.
pub(super) fn run(connection: &Connection, key: &RunKey) -> rusqlite::Result<Option<RunRecord>> {
    let sql = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement
        .query_row(params![key.namespace.as_str(), key.run.as_str()], |row| record(row, &key.namespace))
        .optional()?;
    let Some(mut found) = found else { return Ok(None) };
    found.tags = tags(connection, key)?;
    Ok(Some(found))
}

/// A run's tags.
pub(super) fn tags(connection: &Connection, key: &RunKey) -> rusqlite::Result<BTreeMap<String, String>> {
    let sql = "SELECT tag_key, tag_value FROM hapax_tags WHERE namespace = ?1 AND run_id = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let tags = statement
        .query_map(params![key.namespace.as_str(), key.run.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    tags.collect()
}

/// What a worker needs to go on.
pub(super) fn load(connection: &Connection, codec: &Codec, key: &RunKey) -> Result<Loaded, StoreError> {
    let unreadable = |error| unreadable(error, key);
    let record =
        run(connection, key).map_err(unreadable)?.ok_or_else(|| StoreError::NotFound { run: key.clone() })?;
    record.demand_here()?;
    let found = checkpoint(connection, codec, key, record.step)?;
    let Some((checkpoint, from_seq)) = found.filter(|(found, _)| found.digest == record.digest) else {
        let what = "its latest checkpoint is missing, or isn't the one its row names";
        return Err(corrupt(key, record.step, what));
    };
    let journal = journal::read_based_on(connection, codec, &record, from_seq).map_err(unreadable)?;
    Ok(Loaded { record, checkpoint, journal })
}

fn corrupt(key: &RunKey, step: u64, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { run: key.clone(), step: Some(step), what: what.into() }
}

/// The columns that [`stored`] reads, in its order.
const STORED: &str =
    "key, digest, io, outbox, seed, next_seq, state_version, frontier, frontier_len, pages, barriers, label";

/// A checkpoint as its row has it, unchecked.
struct Stored {
    checkpoint: Checkpoint,
    next_seq: u64,
}

/// The checkpoint of one step, checked, and the number at which its journal ended.
pub(super) fn checkpoint(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    step: u64,
) -> Result<Option<(Checkpoint, u64)>, StoreError> {
    let stored = stored_checkpoint(connection, codec, key, step);
    let Some(stored) = stored.map_err(|error| blamed(error, key, step))? else { return Ok(None) };
    let Stored { checkpoint, next_seq } = stored;
    check(connection, codec, key, &checkpoint)?;
    Ok(Some((checkpoint, next_seq)))
}

/// Whatever can't be read is damage of this step.
fn blamed(error: rusqlite::Error, key: &RunKey, step: u64) -> StoreError {
    match unreadable(error, key) {
        StoreError::Corrupt { run, what, .. } => StoreError::Corrupt { run, step: Some(step), what },
        other => other,
    }
}

/// The checkpoints from a step on, checked; no more than their states may fill of the memory.
pub(super) fn checkpoints(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    from_step: u64,
    limit: usize,
) -> Result<Vec<Checkpoint>, StoreError> {
    let (mut found, mut bytes) = (vec![], 0);
    each_checkpoint(connection, codec, key, (from_step, limit), |checkpoint, _| {
        bytes += checkpoint.state.len();
        found.push(checkpoint);
        Ok::<_, StoreError>(bytes <= WINDOW_BYTES)
    })?;
    Ok(found)
}

/// Hands out the checkpoints from a step on, so many at the most, each checked and with the number at which its journal
/// ended; as long as they are wanted.
pub(super) fn each_checkpoint<E: From<StoreError>>(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    (from_step, limit): (u64, usize),
    mut take: impl FnMut(Checkpoint, u64) -> Result<bool, E>,
) -> Result<(), E> {
    let sql = format!(
        "SELECT {STORED}, step_id, state_kind, state_base, state FROM hapax_checkpoints \
         WHERE namespace = ?1 AND run_id = ?2 AND step_id >= ?3 ORDER BY step_id LIMIT ?4"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = params![key.namespace.as_str(), key.run.as_str(), from_step.cast_signed(), limit];
    let mut statement = connection.prepare_cached(&sql).map_err(|error| unreadable(error, key))?;
    let mut rows = statement.query(from).map_err(|error| unreadable(error, key))?;
    let (mut last, mut base) = (None, None);
    while let Some(row) = rows.next().map_err(|error| unreadable(error, key))? {
        let step = row.get::<_, i64>(12).map_err(|error| unreadable(error, key))?.cast_unsigned();
        let mut read = || {
            let mut stored = stored(connection, row, codec, key, step)?;
            stored.checkpoint.state = scanned_state(connection, codec, key, row, &mut base)?.into();
            Ok(stored)
        };
        let Stored { checkpoint, next_seq } = match read() {
            // So that some of it are fetched together; nobody knows how large they are.
            Err(_) if codec.wants() && codec.wanted() < AT_A_TIME => {
                last = Some(step);
                continue;
            }
            found => found.map_err(|error| blamed(error, key, step))?,
        };
        check(connection, codec, key, &checkpoint)?;
        if let Some(before) = last.filter(|before| before + 1 != step) {
            return Err(corrupt(key, before + 1, "its checkpoint is missing").into());
        }
        last = Some(step);
        if !take(checkpoint, next_seq)? {
            break;
        }
    }
    Ok(())
}

/// The state of a scanned row. Neighbours are patches of one base, so that is read once.
fn scanned_state(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    row: &Row<'_>,
    base: &mut Option<(u64, Vec<u8>)>,
) -> rusqlite::Result<Vec<u8>> {
    let unknown = || damaged("its state is of an unknown kind");
    let kind = StateKind::from_number(row.get(13)?).ok_or_else(unknown)?;
    let at = row.get::<_, Option<i64>>(14)?.map(i64::cast_unsigned);
    if let Some(at) = at
        && base.as_ref().is_none_or(|(step, _)| *step != at)
    {
        *base = Some((at, state(connection, codec, key, at)?));
    }
    let on = at.and(base.as_ref()).map(|(_, state)| state.as_slice());
    let place = Place::state(key, row.get::<_, i64>(12)?.cast_unsigned());
    let stored = blobs::whole(connection, codec, key, row.get_ref(15)?.as_blob()?)?;
    let read = codec.read_state(kind, &stored, on, &place);
    read.map_err(|error| undecoded(None, "its state", error))
}

/// Checks content against digests.
fn check(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    checkpoint: &Checkpoint,
) -> Result<(), StoreError> {
    let (step, mut inspection) = (checkpoint.step, Inspection::default());
    for page in 0..checkpoint.pages.len() as u32 {
        let items = match page {
            0 => None,
            page => match read_page(connection, codec, key, step, page) {
                // So that all of it is fetched together.
                Err(_) if codec.wants() => continue,
                items => Some(items?),
            },
        };
        let items = items.as_deref().unwrap_or(&checkpoint.frontier);
        inspection.page(checkpoint, page, items).map_err(|what| corrupt(key, step, what))?;
    }
    inspection.verdict(&key.run, checkpoint).map_err(|what| corrupt(key, step, what))
}

/// One page of a frontier, checked; nothing when there is no such page.
pub(super) fn frontier_page(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    step: u64,
    page: u32,
) -> Result<Vec<WorkItem>, StoreError> {
    let sql = "SELECT pages FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3";
    let pages = connection
        .prepare_cached(sql)
        .and_then(|mut statement| {
            let at = params![key.namespace.as_str(), key.run.as_str(), step.cast_signed()];
            statement.query_row(at, |row| digests(row.get_ref(0)?.as_blob()?)).optional()
        })
        .map_err(|error| unreadable(error, key))?;
    let Some(digest) = pages.and_then(|pages| pages.get(page as usize).copied()) else { return Ok(vec![]) };
    let items = read_page(connection, codec, key, step, page)?;
    if page_digest(&items) != digest {
        return Err(corrupt(key, step, format!("page {page} of its frontier doesn't match its digest")));
    }
    Ok(items)
}

pub(super) fn read_page(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    step: u64,
    page: u32,
) -> Result<Vec<WorkItem>, StoreError> {
    // The first page lies with its checkpoint: most frontiers have no other.
    let sql = if page == 0 {
        "SELECT frontier FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND ?4 = 0"
    } else {
        "SELECT items FROM hapax_frontier WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND page = ?4"
    };
    let read = || {
        let mut statement = connection.prepare_cached(sql)?;
        let at = params![key.namespace.as_str(), key.run.as_str(), step.cast_signed(), page];
        let place = Place::of(key, Part::Frontier { step, page: page.into() });
        let read = |row: &Row<'_>| {
            unpack(connection, codec, &place, key, row.get_ref(0)?.as_blob()?, "its frontier")
        };
        statement.query_row(at, read).optional()
    };
    match read() {
        Ok(Some(items)) => Ok(items),
        Ok(None) => Err(corrupt(key, step, format!("page {page} of its frontier is missing"))),
        Err(error) => match unreadable(error, key) {
            StoreError::Corrupt { what, .. } => Err(corrupt(key, step, what)),
            other => Err(other),
        },
    }
}

fn stored_checkpoint(
    connection: &Connection,
    codec: &Codec,
    key: &RunKey,
    step: u64,
) -> rusqlite::Result<Option<Stored>> {
    let sql = format!(
        "SELECT {STORED} FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let at = params![key.namespace.as_str(), key.run.as_str(), step.cast_signed()];
    let found = statement.query_row(at, |row| stored(connection, row, codec, key, step)).optional()?;
    let Some(mut found) = found else { return Ok(None) };
    found.checkpoint.state = state(connection, codec, key, step)?.into();
    Ok(Some(found))
}

/// Reads the columns of [`STORED`]; the state comes separately.
fn stored(
    connection: &Connection,
    row: &Row<'_>,
    codec: &Codec,
    key: &RunKey,
    step: u64,
) -> rusqlite::Result<Stored> {
    let barriers = match row.get_ref(10)?.as_blob_or_null()? {
        Some(stored) => {
            let place = Place::of(key, Part::Barriers { step });
            unpack(connection, codec, &place, key, stored, "its barriers")?
        }
        None => Barriers::default(),
    };
    let first = Place::of(key, Part::Frontier { step, page: 0 });
    let frontier = row.get_ref(7)?.as_blob()?;
    let checkpoint = Checkpoint {
        step,
        state: [].into(),
        state_version: row.get(6)?,
        frontier: unpack(connection, codec, &first, key, frontier, "its frontier")?,
        frontier_len: row.get::<_, i64>(8)?.cast_unsigned() as usize,
        pages: digests(row.get_ref(9)?.as_blob()?)?,
        barriers,
        seed: row.get::<_, i64>(4)?.cast_unsigned(),
        key: StepKey(row.get(0)?),
        io: Digest(row.get(2)?),
        outbox: Digest(row.get(3)?),
        digest: Digest(row.get(1)?),
        label: row.get(11)?,
    };
    Ok(Stored { checkpoint, next_seq: row.get::<_, i64>(5)?.cast_unsigned() })
}

fn unpack<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    codec: &Codec,
    place: &Place<'_>,
    key: &RunKey,
    stored: &[u8],
    what: &str,
) -> rusqlite::Result<T> {
    let stored = blobs::whole(connection, codec, key, stored)?;
    let read = codec.unpack(&stored, place).and_then(|json| Ok(serde_json::from_slice(&json)?));
    read.map_err(|error| undecoded(None, what, error))
}

fn digests(stored: &[u8]) -> rusqlite::Result<Vec<Digest>> {
    let (digests, rest) = stored.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(damaged("the digests of its frontier cannot be read"));
    }
    Ok(digests.iter().copied().map(Digest).collect())
}

/// A step's state. A patch needs the state that it builds on, which may be a patch itself: a step that was
/// committed twice keeps its first encoding.
fn state(connection: &Connection, codec: &Codec, key: &RunKey, step: u64) -> rusqlite::Result<Vec<u8>> {
    let mut chain: Vec<(u64, StateKind, Vec<u8>)> = vec![];
    let mut at = Some(step);
    while let Some(step) = at {
        let (kind, base, bytes) = state_row(connection, key, step)?;
        if base.is_some_and(|base| base >= step) {
            return Err(damaged("its state builds on a later one"));
        }
        chain.push((step, kind, bytes));
        at = base;
    }
    let mut state: Option<Vec<u8>> = None;
    for (step, kind, bytes) in chain.into_iter().rev() {
        let bytes = blobs::whole(connection, codec, key, &bytes)?;
        let next = codec.read_state(kind, &bytes, state.as_deref(), &Place::state(key, step));
        state = Some(next.map_err(|error| undecoded(None, "its state", error))?);
    }
    Ok(state.unwrap_or_default())
}

fn state_row(
    connection: &Connection,
    key: &RunKey,
    step: u64,
) -> rusqlite::Result<(StateKind, Option<u64>, Vec<u8>)> {
    let mut statement = connection.prepare_cached(
        "SELECT state_kind, state_base, state FROM hapax_checkpoints \
         WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3",
    )?;
    let at = params![key.namespace.as_str(), key.run.as_str(), step.cast_signed()];
    let row = statement.query_row(at, |row| {
        let kind =
            StateKind::from_number(row.get(0)?).ok_or_else(|| damaged("its state is of an unknown kind"))?;
        Ok((kind, row.get::<_, Option<i64>>(1)?.map(i64::cast_unsigned), row.get(2)?))
    });
    row.optional()?.ok_or_else(|| damaged(format!("the state of step {step} is missing")))
}
