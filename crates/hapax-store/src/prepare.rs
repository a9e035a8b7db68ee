//! From a write to the bytes of its rows, on the side of whoever submits it.
//!
//! Invariant: whoever writes to a database neither serialises nor compresses; it only binds what is prepared here.

use crate::{
    blobs::Blob,
    codec::{Codec, Encoders, Part, Place, StoredState},
    error::{Source, StoreError},
    store::NewRun,
};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{StepCommit, Write},
    frontier::WorkItem,
    id::RunKey,
    journal::JournalRow,
    key::{Digest, DigestBuilder},
    limits::FRONTIER_PAGE,
    mailbox::NewLetter,
    order::PathHash,
    outbox::Message,
    schedule::Schedule,
};
use serde::Serialize;
use std::sync::Arc;

/// A write and the bytes of its rows.
pub(crate) struct Prepared {
    pub(crate) write: Arc<Write>,
    pub(crate) parts: Parts,
    /// What is stored beside the rows.
    pub(crate) blobs: Vec<Blob>,
}

/// The bytes of a write's rows.
pub(crate) enum Parts {
    Step(StepParts),
    /// One entry for each journal row.
    Append(Vec<Vec<u8>>),
    /// The status as JSON.
    Status(String),
}

/// The bytes of a step's rows.
pub(crate) struct StepParts {
    pub(crate) checkpoint: CheckpointParts,
    pub(crate) journal: Vec<Vec<u8>>,
    pub(crate) outbox: Vec<Vec<u8>>,
}

/// The bytes of a checkpoint's rows.
pub(crate) struct CheckpointParts {
    pub(crate) state: StoredState,
    /// At least one page, even of an empty frontier.
    pub(crate) frontier: Vec<Vec<u8>>,
    /// The digests of the pages, one after the other.
    pub(crate) pages: Vec<u8>,
    pub(crate) barriers: Option<Vec<u8>>,
}

/// A run to be created, and the bytes of its rows.
pub(crate) struct Birth {
    pub(crate) run: Arc<NewRun>,
    pub(crate) parts: CheckpointParts,
    pub(crate) entries: Vec<Vec<u8>>,
    /// What is stored beside the rows.
    pub(crate) blobs: Vec<Blob>,
}

impl Birth {
    /// Encodes a run. Nothing was written when it fails.
    pub(crate) fn of(run: NewRun, codec: &Codec) -> Result<Self, StoreError> {
        let run = crate::flow::admitted(run);
        let encode = || {
            let (key, checkpoint) = (&run.key, &run.checkpoint);
            let state = codec.snapshot(&checkpoint.state, &Place::state(key, checkpoint.step))?;
            Ok((checkpoint_parts(key, checkpoint, state, codec)?, entries(key, 0, &run.journal, codec)?))
        };
        let (mut parts, mut entries) = encode().map_err(StoreError::Retry)?;
        let mut blobs = vec![];
        codec.set_aside_of(&mut parts, &mut blobs);
        entries.iter_mut().for_each(|entry| *entry = codec.set_aside(std::mem::take(entry), &mut blobs));
        Ok(Self { run: Arc::new(run), parts, entries, blobs })
    }
}

/// Encodes a write. Nothing was written when it fails.
pub(crate) fn prepare(
    write: &Arc<Write>,
    encoders: &Encoders,
    codec: &Codec,
) -> Result<Prepared, StoreError> {
    let parts = match &**write {
        Write::Step(step) => step_parts(step, encoders, codec).map(Parts::Step),
        Write::Append(append) => {
            entries(&append.run, append.first_seq, &append.rows, codec).map(Parts::Append)
        }
        Write::Status(change) => {
            if change.release {
                encoders.forget(&change.run);
            }
            Ok(Parts::Status(change.status.to_json().as_str().to_owned()))
        }
        _ => Err("a write that this store does not know".into()),
    };
    let mut parts = parts.map_err(StoreError::Retry)?;
    let blobs = codec.set_aside_all(&mut parts);
    Ok(Prepared { write: write.clone(), parts, blobs })
}

fn step_parts(step: &StepCommit, encoders: &Encoders, codec: &Codec) -> Result<StepParts, Source> {
    let checkpoint = &step.checkpoint;
    if step.fresh.is_some() {
        // Nothing is left that its state could build on.
        encoders.forget(&step.run);
    }
    let state = encoders.encode(&step.run, step.epoch, checkpoint.step, &checkpoint.state)?;
    if step.ends {
        encoders.forget(&step.run);
    }
    Ok(StepParts {
        checkpoint: checkpoint_parts(&step.run, checkpoint, state, codec)?,
        journal: entries(&step.run, step.first_seq, &step.journal, codec)?,
        outbox: messages(step, codec)?,
    })
}

/// Encodes a checkpoint whose state is encoded already.
pub(crate) fn checkpoint_parts(
    run: &RunKey,
    checkpoint: &Checkpoint,
    state: StoredState,
    codec: &Codec,
) -> Result<CheckpointParts, Source> {
    let step = checkpoint.step;
    let page = |(items, page): (&[WorkItem], u64)| {
        pack(items, codec, &Place::of(run, Part::Frontier { step, page }))
    };
    let pages = checkpoint.frontier.chunks(FRONTIER_PAGE);
    let mut frontier = pages.zip(0..).map(page).collect::<Result<Vec<_>, _>>()?;
    if frontier.is_empty() {
        frontier.push(page((&[], 0))?);
    }
    let waiting = || pack(&checkpoint.barriers, codec, &Place::of(run, Part::Barriers { step }));
    let barriers = (!checkpoint.barriers.is_empty()).then(waiting).transpose()?;
    let pages = checkpoint.pages.iter().flat_map(|digest| digest.0).collect();
    Ok(CheckpointParts { state, frontier, pages, barriers })
}

/// Encodes rows that are numbered from there on.
pub(crate) fn entries(
    run: &RunKey,
    first_seq: u64,
    rows: &[JournalRow],
    codec: &Codec,
) -> Result<Vec<Vec<u8>>, Source> {
    let entry =
        |(row, seq): (&JournalRow, u64)| pack(&row.entry, codec, &Place::of(run, Part::Journal { seq }));
    rows.iter().zip(first_seq..).map(entry).collect()
}

fn messages(commit: &StepCommit, codec: &Codec) -> Result<Vec<Vec<u8>>, Source> {
    let step = commit.checkpoint.step;
    let payload = |(message, position): (&Message, u64)| {
        let place = Place::of(&commit.run, Part::Message { step, position });
        codec.pack(message.payload.as_bytes().to_vec(), &place)
    };
    commit.outbox.iter().zip(0..).map(payload).collect()
}

pub(crate) fn pack<T: Serialize + ?Sized>(
    value: &T,
    codec: &Codec,
    place: &Place<'_>,
) -> Result<Vec<u8>, Source> {
    codec.pack(serde_json::to_vec(value)?, place)
}

/// The bytes of a letter.
pub(crate) struct LetterParts {
    pub(crate) bytes: Vec<u8>,
    /// What is stored beside its row.
    pub(crate) blobs: Vec<Blob>,
}

/// Encodes a letter.
pub(crate) fn letter(run: &RunKey, letter: &NewLetter, codec: &Codec) -> Result<LetterParts, StoreError> {
    let place = Place::of(run, Part::Letter { id: &letter.id });
    let packed = codec.pack(letter.payload.as_bytes().to_vec(), &place).map_err(StoreError::Retry)?;
    let mut blobs = vec![];
    Ok(LetterParts { bytes: codec.set_aside(packed, &mut blobs), blobs })
}

/// The input of a schedule as it is stored.
pub(crate) fn input(schedule: &Schedule, codec: &Codec) -> Result<Vec<u8>, StoreError> {
    let place = Place::input(&schedule.key.namespace, &schedule.key.name);
    codec.pack(schedule.input.as_bytes().to_vec(), &place).map_err(StoreError::Retry)
}

/// Tells a damaged row of the journal from one that was written so.
pub(crate) fn row_sum(seq: u64, base: &Digest, step: u64, path_hash: PathHash, entry: &[u8]) -> [u8; 8] {
    let mut digest = DigestBuilder::new("hapax.row.v1");
    digest.u64(seq).bytes(&base.0).u64(step).u64(path_hash.0).bytes(entry);
    let [a, b, c, d, e, f, g, h, ..] = digest.finish().0;
    [a, b, c, d, e, f, g, h]
}
