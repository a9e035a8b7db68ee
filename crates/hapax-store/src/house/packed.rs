//! Pieces of a run as the bytes of their rows, before a database is asked to take them.
//!
//! Invariant: a state builds on another one of the same batch or on none, so that what was written stands by itself
//! whatever becomes of the next batch.

use super::{Parcel, Piece};
use crate::{
    blobs::Blob,
    check::{check_checkpoint, check_message, check_rows},
    codec::{Codec, Encoders, Part, Place},
    error::{Source, StoreError},
    outbox::OutboxRecord,
    prepare::{CheckpointParts, checkpoint_parts, pack},
};
use hapax_core::{checkpoint::Checkpoint, commit::Epoch, id::RunKey, journal::JournalRow};

/// A piece and the bytes of its row.
pub(crate) enum Packed {
    Letter(Parcel, Vec<u8>),
    Row(JournalRow, Vec<u8>),
    Message(Box<OutboxRecord>, Vec<u8>),
    Checkpoint(Box<PackedStep>),
    Page { step: u64, page: u32, items: Vec<u8> },
}

/// A checkpoint and the bytes of its row.
pub(crate) struct PackedStep {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) parts: CheckpointParts,
    pub(crate) next_seq: u64,
}

/// Pieces with the bytes of their rows, and what is stored beside these.
pub(crate) struct Load {
    pub(crate) pieces: Vec<Packed>,
    pub(crate) blobs: Vec<Blob>,
}

/// Encodes pieces, which must be within every limit.
pub(crate) fn pack_all(
    run: &RunKey,
    epoch: Epoch,
    pieces: Vec<Piece>,
    codec: &Codec,
) -> Result<Load, StoreError> {
    let encoders = Encoders::new(codec.clone());
    let pieces = pieces.into_iter().map(|piece| pack_one(run, epoch, piece, codec, &encoders));
    let mut load = Load { pieces: pieces.collect::<Result<_, _>>()?, blobs: vec![] };
    load.pieces.iter_mut().for_each(|piece| set_aside(piece, codec, &mut load.blobs));
    Ok(load)
}

/// Leaves a reference where a piece is large.
fn set_aside(piece: &mut Packed, codec: &Codec, blobs: &mut Vec<Blob>) {
    match piece {
        Packed::Checkpoint(step) => codec.set_aside_of(&mut step.parts, blobs),
        Packed::Letter(_, cell) | Packed::Row(_, cell) | Packed::Message(_, cell) => {
            *cell = codec.set_aside(std::mem::take(cell), blobs);
        }
        Packed::Page { items, .. } => *items = codec.set_aside(std::mem::take(items), blobs),
    }
}

fn pack_one(
    run: &RunKey,
    epoch: Epoch,
    piece: Piece,
    codec: &Codec,
    encoders: &Encoders,
) -> Result<Packed, StoreError> {
    let plain = |packed: Result<Vec<u8>, Source>| packed.map_err(StoreError::Retry);
    match piece {
        Piece::Letter(letter) => {
            // What was taken says nothing any more.
            let place = Place::of(run, Part::Letter { id: &letter.id });
            let payload =
                letter.payload.as_ref().map(|payload| codec.pack(payload.as_bytes().to_vec(), &place));
            let payload = plain(payload.unwrap_or_else(|| Ok(vec![])))?;
            Ok(Packed::Letter(letter, payload))
        }
        Piece::Row(row) => {
            let row = JournalRow::from(row);
            check_rows(std::slice::from_ref(&row))?;
            let entry = plain(pack(&row.entry, codec, &Place::of(run, Part::Journal { seq: row.seq })))?;
            Ok(Packed::Row(row, entry))
        }
        Piece::Message(post) => {
            let record = post.record(run)?;
            check_message(&record.message)?;
            let part = Part::Message { step: record.place.step, position: record.place.position.into() };
            let payload =
                plain(codec.pack(record.message.payload.as_bytes().to_vec(), &Place::of(run, part)))?;
            Ok(Packed::Message(Box::new(record), payload))
        }
        Piece::Checkpoint(step) => {
            let (checkpoint, next_seq) = step.checkpoint(run)?;
            check_checkpoint(&checkpoint)?;
            let encode = || {
                let state = encoders.encode(run, epoch, checkpoint.step, &checkpoint.state)?;
                checkpoint_parts(run, &checkpoint, state, codec)
            };
            let parts = encode().map_err(StoreError::Retry)?;
            Ok(Packed::Checkpoint(Box::new(PackedStep { checkpoint, parts, next_seq })))
        }
        Piece::Page(page) => {
            let place = Place::of(run, Part::Frontier { step: page.step, page: page.page.into() });
            let items = plain(pack(&page.items, codec, &place))?;
            Ok(Packed::Page { step: page.step, page: page.page, items })
        }
    }
}
