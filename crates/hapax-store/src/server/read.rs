//! Reads: records, checkpoints, frontiers, each in one snapshot of the database.
//!
//! Invariant: a checkpoint only leaves here when key, digest and the digests of all pages match its content.

use super::{
    blobs,
    error::undone,
    journal, mailbox,
    sql::{Fault, Row, Session, Value, one, places, values},
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
    id::{Namespace, RunId, RunKey},
    key::{Digest, StepKey},
    limits::WINDOW_BYTES,
};
use std::collections::{BTreeMap, HashMap};

/// The columns that [`record`] reads, in its order.
pub(super) const RECORD: &str = "run_id, graph, fingerprint, input, status_json, step_id, digest, epoch, nonce, owner, \
     next_seq, cancel_requested, used_us, created_at, updated_at, wake_at, wake_letters, parent, status, terms";

/// Runs whose tags are asked for at once.
const TAGGED: usize = 500;

/// Reads a run's row, without its tags.
pub(super) fn record(row: &Row, namespace: &Namespace) -> Result<RunRecord, Fault> {
    let status: Status = serde_json::from_str(row.text(4)?)
        .map_err(|error| Fault::damage(format!("its status cannot be read: {error}")))?;
    let found_as = row.text(18)?;
    if status.word() != found_as {
        return Err(Fault::damage(format!("it is {} and is listed as {found_as}", status.word())));
    }
    Ok(RunRecord {
        key: RunKey { namespace: namespace.clone(), run: RunId::new(row.text(0)?)? },
        graph: row.text(1)?.into(),
        fingerprint: Digest(row.bytes(2)?),
        input: Digest(row.bytes(3)?),
        status,
        step: row.count(5)?,
        digest: Digest(row.bytes(6)?),
        epoch: Epoch { counter: row.count(7)?, nonce: u128::from_be_bytes(row.bytes(8)?) },
        owner: row.maybe_text(9)?.map(str::to_owned),
        next_seq: row.count(10)?,
        cancel_requested: row.flag(11)?,
        used_us: row.count(12)?,
        tags: BTreeMap::new(),
        terms: read_terms(row.maybe_text(19)?).map_err(Fault::damage)?,
        created_at_us: row.int(13)?,
        updated_at_us: row.int(14)?,
        wake: Wake { at_us: row.maybe_int(15)?, letters: mailbox::subjects(row, 16)? },
        parent: row.maybe_text(17)?.map(RunId::new).transpose()?,
    })
}

/// A run's row with its tags.
pub(super) async fn run(session: &mut dyn Session, key: &RunKey) -> Result<Option<RunRecord>, Fault> {
    let sql = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ? AND run_id = ?");
    let row = one(session, &sql, values![key.namespace.as_str(), key.run.as_str()]).await?;
    let Some(row) = row else { return Ok(None) };
    let mut found = [record(&row, &key.namespace)?];
    add_tags(session, &key.namespace, &mut found).await?;
    let [found] = found;
    Ok(Some(found))
}

/// Reads the tags of runs.
pub(super) async fn add_tags(
    session: &mut dyn Session,
    namespace: &Namespace,
    runs: &mut [RunRecord],
) -> Result<(), Fault> {
    for some in runs.chunks_mut(TAGGED) {
        let sql = format!(
            "SELECT run_id, tag_key, tag_value FROM hapax_tags WHERE namespace = ? AND run_id IN {}",
            places(some.len())
        );
        let mut which: Vec<Value<'_>> = vec![namespace.as_str().into()];
        which.extend(some.iter().map(|run| Value::from(run.key.run.as_str())));
        let mut tags: HashMap<String, BTreeMap<String, String>> = HashMap::new();
        for row in session.rows(&sql, &which).await? {
            let (key, value) = (row.text(1)?.to_owned(), row.text(2)?.to_owned());
            tags.entry(row.text(0)?.to_owned()).or_default().insert(key, value);
        }
        for run in some {
            run.tags = tags.remove(run.key.run.as_str()).unwrap_or_default();
        }
    }
    Ok(())
}

/// What a worker needs to go on.
pub(super) async fn load(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
) -> Result<Loaded, StoreError> {
    let record = run(session, key).await.map_err(|fault| undone(fault, key))?;
    let record = record.ok_or_else(|| StoreError::NotFound { run: key.clone() })?;
    record.demand_here()?;
    let found = checkpoint(session, codec, key, record.step).await?;
    let Some((checkpoint, from_seq)) = found.filter(|(found, _)| found.digest == record.digest) else {
        let what = "its latest checkpoint is missing, or isn't the one its row names";
        return Err(corrupt(key, record.step, what));
    };
    let journal = journal::read_based_on(session, codec, &record, from_seq).await;
    Ok(Loaded { journal: journal.map_err(|fault| undone(fault, key))?, record, checkpoint })
}

fn corrupt(key: &RunKey, step: u64, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { run: key.clone(), step: Some(step), what: what.into() }
}

/// Whatever can't be read is damage of this step.
fn blamed(fault: Fault, key: &RunKey, step: u64) -> StoreError {
    match fault {
        Fault::Damage(_, what) => corrupt(key, step, what),
        fault => undone(fault, key),
    }
}

/// The columns that [`stored`] reads, in its order.
const STORED: &str = "step_key, digest, io, outbox, seed, next_seq, state_version, frontier, frontier_len, pages, \
     barriers, label, step_id, state_kind, state_base, state";

/// A checkpoint as its row has it, unchecked; its state as it is stored.
struct Stored {
    checkpoint: Checkpoint,
    next_seq: u64,
    state: StateRow,
}

/// How a state is stored.
struct StateRow {
    kind: StateKind,
    base: Option<u64>,
    bytes: Vec<u8>,
}

impl StateRow {
    fn read(row: &Row, from: usize) -> Result<Self, Fault> {
        let unknown = || Fault::damage("its state is of an unknown kind");
        let kind = StateKind::from_number(row.int(from)?).ok_or_else(unknown)?;
        let base = row.maybe_int(from + 1)?.map(i64::cast_unsigned);
        Ok(Self { kind, base, bytes: row.blob(from + 2)?.to_vec() })
    }
}

fn stored(row: &Row, codec: &Codec, key: &RunKey) -> Result<Stored, Fault> {
    let step = row.count(12)?;
    let barriers = match row.maybe_blob(10)? {
        Some(stored) => unpack(stored, codec, &Place::of(key, Part::Barriers { step }), "its barriers")?,
        None => Barriers::default(),
    };
    let checkpoint = Checkpoint {
        step,
        state: [].into(),
        state_version: u32::try_from(row.int(6)?)
            .map_err(|_| Fault::damage("its state's version can't be"))?,
        frontier: unpack(
            row.blob(7)?,
            codec,
            &Place::of(key, Part::Frontier { step, page: 0 }),
            "its frontier",
        )?,
        frontier_len: row.count(8)? as usize,
        pages: digests(row.blob(9)?)?,
        barriers,
        seed: row.bits(4)?,
        key: StepKey(row.bytes(0)?),
        io: Digest(row.bytes(2)?),
        outbox: Digest(row.bytes(3)?),
        digest: Digest(row.bytes(1)?),
        label: row.maybe_text(11)?.map(str::to_owned),
    };
    Ok(Stored { checkpoint, next_seq: row.count(5)?, state: StateRow::read(row, 13)? })
}

/// The checkpoint of one step, checked, and the number at which its journal ended.
pub(super) async fn checkpoint(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    step: u64,
) -> Result<Option<(Checkpoint, u64)>, StoreError> {
    let blame = |fault| blamed(fault, key, step);
    let sql =
        format!("SELECT {STORED} FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id = ?");
    let row =
        one(session, &sql, values![key.namespace.as_str(), key.run.as_str(), step]).await.map_err(blame)?;
    let Some(mut row) = row else { return Ok(None) };
    blobs::fill(session, codec, key, &mut row, &[7, 10, 15]).await.map_err(blame)?;
    let mut found = stored(&row, codec, key).map_err(blame)?;
    found.checkpoint.state = state(session, codec, key, step, found.state).await.map_err(blame)?.into();
    check(session, codec, key, &found.checkpoint).await?;
    Ok(Some((found.checkpoint, found.next_seq)))
}

/// The checkpoints from a step on, checked; no more than their states may fill of the memory.
pub(super) async fn checkpoints(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    from_step: u64,
    limit: usize,
) -> Result<Vec<Checkpoint>, StoreError> {
    let (mut found, mut bytes, mut next): (Vec<Checkpoint>, _, _) = (vec![], 0, Some(from_step));
    while let Some(from) = next.filter(|_| found.len() < limit && bytes <= WINDOW_BYTES) {
        let sql =
            "SELECT min(step_id) FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id >= ?";
        let row = one(session, sql, values![key.namespace.as_str(), key.run.as_str(), from]).await;
        let row = row.map_err(|fault| undone(fault, key))?;
        let step = row.map_or(Ok(None), |row| row.maybe_int(0)).map_err(|fault| undone(fault, key))?;
        let Some(step) = step.map(i64::cast_unsigned) else { break };
        if !found.is_empty() && step != from {
            return Err(corrupt(key, from, "its checkpoint is missing"));
        }
        next = step.checked_add(1);
        let checkpoint = match checkpoint(session, codec, key, step).await {
            // So that some of it are fetched together; nobody knows how large they are.
            Err(_) if codec.wants() && codec.wanted() < AT_A_TIME => continue,
            found => found?,
        };
        let Some((checkpoint, _)) = checkpoint else { break };
        bytes += checkpoint.state.len();
        found.push(checkpoint);
    }
    Ok(found)
}

/// Checks content against digests.
async fn check(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    checkpoint: &Checkpoint,
) -> Result<(), StoreError> {
    let (step, mut inspection) = (checkpoint.step, Inspection::default());
    for page in 0..checkpoint.pages.len() as u32 {
        let items = match page {
            0 => None,
            page => match read_page(session, codec, key, step, page).await {
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
pub(super) async fn frontier_page(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    step: u64,
    page: u32,
) -> Result<Vec<WorkItem>, StoreError> {
    let sql = "SELECT pages FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id = ?";
    let row = one(session, sql, values![key.namespace.as_str(), key.run.as_str(), step]).await;
    let pages = row.and_then(|row| row.map_or(Ok(vec![]), |row| digests(row.blob(0)?)));
    let pages = pages.map_err(|fault| blamed(fault, key, step))?;
    let Some(digest) = pages.get(page as usize) else { return Ok(vec![]) };
    let items = read_page(session, codec, key, step, page).await?;
    if page_digest(&items) != *digest {
        return Err(corrupt(key, step, format!("page {page} of its frontier doesn't match its digest")));
    }
    Ok(items)
}

pub(super) async fn read_page(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    step: u64,
    page: u32,
) -> Result<Vec<WorkItem>, StoreError> {
    // The first page lies with its checkpoint: most frontiers have no other.
    let sql = if page == 0 {
        "SELECT frontier FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id = ? AND ? = 0"
    } else {
        "SELECT items FROM hapax_frontier WHERE namespace = ? AND run_id = ? AND step_id = ? AND page = ?"
    };
    let at = values![key.namespace.as_str(), key.run.as_str(), step, u64::from(page)];
    let row = one(session, sql, at).await.map_err(|fault| blamed(fault, key, step))?;
    let mut row = row.ok_or_else(|| corrupt(key, step, format!("page {page} of its frontier is missing")))?;
    blobs::fill(session, codec, key, &mut row, &[0]).await.map_err(|fault| blamed(fault, key, step))?;
    row.blob(0)
        .and_then(|stored| {
            let place = Place::of(key, Part::Frontier { step, page: page.into() });
            unpack(stored, codec, &place, "its frontier")
        })
        .map_err(|fault| blamed(fault, key, step))
}

fn unpack<T: serde::de::DeserializeOwned>(
    stored: &[u8],
    codec: &Codec,
    place: &Place<'_>,
    what: &str,
) -> Result<T, Fault> {
    let read = codec.unpack(stored, place).and_then(|json| Ok(serde_json::from_slice(&json)?));
    read.map_err(|error| Fault::undecoded(None, what, error))
}

fn digests(stored: &[u8]) -> Result<Vec<Digest>, Fault> {
    let (digests, rest) = stored.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(Fault::damage("the digests of its frontier cannot be read"));
    }
    Ok(digests.iter().copied().map(Digest).collect())
}

/// A step's state. A patch needs the state that it builds on, which may be a patch itself: a step that was
/// committed twice keeps its first encoding.
async fn state(
    session: &mut dyn Session,
    codec: &Codec,
    key: &RunKey,
    step: u64,
    stored: StateRow,
) -> Result<Vec<u8>, Fault> {
    let (mut chain, mut at) = (vec![(step, stored)], step);
    while let Some(base) = chain.last().and_then(|(_, row)| row.base) {
        if base >= at {
            return Err(Fault::damage("its state builds on a later one"));
        }
        let sql = "SELECT state_kind, state_base, state FROM hapax_checkpoints \
                   WHERE namespace = ? AND run_id = ? AND step_id = ?";
        let row = one(session, sql, values![key.namespace.as_str(), key.run.as_str(), base]).await?;
        let mut row = row.ok_or_else(|| Fault::damage(format!("the state of step {base} is missing")))?;
        blobs::fill(session, codec, key, &mut row, &[2]).await?;
        chain.push((base, StateRow::read(&row, 0)?));
        at = base;
    }
    let mut state: Option<Vec<u8>> = None;
    for (step, StateRow { kind, bytes, .. }) in chain.into_iter().rev() {
        let next = codec.read_state(kind, &bytes, state.as_deref(), &Place::state(key, step));
        state = Some(next.map_err(|error| Fault::undecoded(None, "its state", error))?);
    }
    Ok(state.unwrap_or_default())
}
