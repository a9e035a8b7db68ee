//! From a write to the bytes of its rows, on the side of whoever submits it.
//!
//! Invariant: whoever writes to a database neither serialises nor compresses; it only binds what is prepared here.

use crate::{
    codec::{Codec, Encoders, StoredState},
    error::{Source, StoreError},
    store::NewRun,
};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{StepCommit, Write},
    frontier::WorkItem,
    journal::JournalRow,
    key::{Digest, DigestBuilder},
    limits::FRONTIER_PAGE,
    order::PathHash,
    outbox::Message,
};
use serde::Serialize;
use std::sync::Arc;

/// A write and the bytes of its rows.
pub(crate) struct Prepared {
    pub(crate) write: Arc<Write>,
    pub(crate) parts: Parts,
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
}

impl Birth {
    /// Encodes a run. Nothing was written when it fails.
    pub(crate) fn of(run: NewRun, codec: &Codec) -> Result<Self, StoreError> {
        let run = crate::flow::admitted(run);
        let encode = || {
            let state = codec.snapshot(&run.checkpoint.state)?;
            Ok((checkpoint_parts(&run.checkpoint, state, codec)?, entries(&run.journal, codec)?))
        };
        let (parts, entries) = encode().map_err(StoreError::Retry)?;
        Ok(Self { run: Arc::new(run), parts, entries })
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
        Write::Append(append) => entries(&append.rows, codec).map(Parts::Append),
        Write::Status(change) => {
            if change.release {
                encoders.forget(&change.run);
            }
            Ok(Parts::Status(change.status.to_json().as_str().to_owned()))
        }
        _ => Err("a write that this store does not know".into()),
    };
    Ok(Prepared { write: write.clone(), parts: parts.map_err(StoreError::Retry)? })
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
        checkpoint: checkpoint_parts(checkpoint, state, codec)?,
        journal: entries(&step.journal, codec)?,
        outbox: step.outbox.iter().map(|message| payload(message, codec)).collect::<Result<_, _>>()?,
    })
}

/// Encodes a checkpoint whose state is encoded already.
pub(crate) fn checkpoint_parts(
    checkpoint: &Checkpoint,
    state: StoredState,
    codec: &Codec,
) -> Result<CheckpointParts, Source> {
    let pages = checkpoint.frontier.chunks(FRONTIER_PAGE);
    let mut frontier = pages.map(|items| pack(items, codec)).collect::<Result<Vec<_>, _>>()?;
    if frontier.is_empty() {
        frontier.push(pack::<[WorkItem]>(&[], codec)?);
    }
    let barriers =
        (!checkpoint.barriers.is_empty()).then(|| pack(&checkpoint.barriers, codec)).transpose()?;
    let pages = checkpoint.pages.iter().flat_map(|digest| digest.0).collect();
    Ok(CheckpointParts { state, frontier, pages, barriers })
}

/// Encodes rows.
pub(crate) fn entries(rows: &[JournalRow], codec: &Codec) -> Result<Vec<Vec<u8>>, Source> {
    rows.iter().map(|row| pack(&row.entry, codec)).collect()
}

fn payload(message: &Message, codec: &Codec) -> Result<Vec<u8>, Source> {
    codec.pack(message.payload.as_bytes().to_vec())
}

pub(crate) fn pack<T: Serialize + ?Sized>(value: &T, codec: &Codec) -> Result<Vec<u8>, Source> {
    codec.pack(serde_json::to_vec(value)?)
}

/// Tells a damaged row of the journal from one that was written so.
pub(crate) fn row_sum(seq: u64, base: &Digest, step: u64, path_hash: PathHash, entry: &[u8]) -> [u8; 8] {
    let mut digest = DigestBuilder::new("hapax.row.v1");
    digest.u64(seq).bytes(&base.0).u64(step).u64(path_hash.0).bytes(entry);
    let [a, b, c, d, e, f, g, h, ..] = digest.finish().0;
    [a, b, c, d, e, f, g, h]
}
