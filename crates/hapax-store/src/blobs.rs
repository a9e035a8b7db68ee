//! Large payloads beside their rows: a reference in the row, the bytes in a table of their own.
//!
//! Invariant: bytes and reference are written in one transaction, which holds the run's row; so does whoever deletes bytes.
//! A row never refers to what isn't there, and nothing is deleted that a row refers to. Bytes are known by their hash within
//! their run: the same twice is stored once, and they go with the run.
//!
//! A reference: eight bytes that tell it, the length, the SHA-256 of the stored bytes, and how they begin. The last tells under
//! which key they are without a look at them.

use crate::{
    codec::{Codec, payload::key_id_of},
    error::{Locked, Source},
    prepare::{CheckpointParts, Parts},
};
use hapax_core::{
    canary,
    key::{Digest, sha256},
};

/// What a reference begins with. As the length of a patch it is over every limit, and JSON doesn't begin so.
pub(crate) const MARK: [u8; 8] = *b"\x02hapaxb\x01";
/// How many of the first bytes a reference repeats: more than a key's mark has.
const HEAD: usize = 96;
/// Where in a reference, counted from 1, that is, the hash and the first bytes stand.
pub(crate) const HASH_AT: usize = 17;
pub(crate) const HEAD_AT: usize = 49;
/// So many of the first bytes of what a row holds tell under which key it is, wherever it lies.
pub(crate) const BEGINS: usize = HEAD_AT - 1 + HEAD;
/// Bytes of one row: far below what any server's packets may hold.
pub(crate) const PART: usize = 1024 * 1024;

/// Bytes that are stored beside their row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) hash: Digest,
    pub(crate) bytes: Vec<u8>,
}

impl Blob {
    /// Its rows, numbered from 0.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (i64, &[u8])> {
        (0..).zip(self.bytes.chunks(PART))
    }
}

impl Codec {
    /// What is stored in the row: the bytes, or a reference to them where they are large. Bytes that look like a reference
    /// are never stored in their row.
    pub(crate) fn set_aside(&self, stored: Vec<u8>, blobs: &mut Vec<Blob>) -> Vec<u8> {
        if self.aside.is_none_or(|over| stored.len() <= over) && !stored.starts_with(&MARK) {
            return stored;
        }
        refer(stored, blobs)
    }

    /// Whoever has no keys must not write in plain into a run that is encrypted: those who have them would refuse the whole run
    /// from then on. `begins` are the first [`BEGINS`] bytes of what it holds.
    pub(crate) fn demand_key(&self, begins: &[u8]) -> Result<(), Locked> {
        let begins = Reference::of(begins).map_or(begins, |reference| reference.head);
        match key_id_of(begins) {
            Some(key_id) if self.hook.is_none() && !canary::on("plain_into_sealed") => {
                Err(Locked::KeyMissing { key_id })
            }
            _ => Ok(()),
        }
    }

    /// Sets aside what is large of a checkpoint.
    pub(crate) fn set_aside_of(&self, parts: &mut CheckpointParts, blobs: &mut Vec<Blob>) {
        let CheckpointParts { state, frontier, barriers, .. } = parts;
        let cells = [&mut state.bytes].into_iter().chain(frontier).chain(barriers);
        cells.for_each(|cell| *cell = self.set_aside(std::mem::take(cell), blobs));
    }

    /// Sets aside what is large of a write.
    pub(crate) fn set_aside_all(&self, parts: &mut Parts) -> Vec<Blob> {
        let mut blobs = vec![];
        let cells = match parts {
            Parts::Step(step) => {
                self.set_aside_of(&mut step.checkpoint, &mut blobs);
                step.journal.iter_mut().chain(&mut step.outbox).collect()
            }
            Parts::Append(entries) => entries.iter_mut().collect(),
            Parts::Status(_) => Vec::new(),
        };
        cells.into_iter().for_each(|cell| *cell = self.set_aside(std::mem::take(cell), &mut blobs));
        blobs
    }
}

/// Sets bytes aside, however many they are; answers the reference to them.
pub(crate) fn refer(stored: Vec<u8>, blobs: &mut Vec<Blob>) -> Vec<u8> {
    let hash = sha256(&stored);
    let len = (stored.len() as u64).to_be_bytes();
    let head = &stored[..stored.len().min(HEAD)];
    let reference = [&MARK[..], &len, &hash.0, head].concat();
    if blobs.iter().all(|blob| blob.hash != hash) {
        blobs.push(Blob { hash, bytes: stored });
    }
    reference
}

/// Where bytes are that aren't in their row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference<'s> {
    len: u64,
    pub(crate) hash: Digest,
    head: &'s [u8],
}

impl<'s> Reference<'s> {
    /// The reference that a row holds; `None`: it holds the bytes themselves.
    pub(crate) fn of(stored: &'s [u8]) -> Option<Self> {
        let (len, rest) = stored.strip_prefix(&MARK)?.split_first_chunk::<8>()?;
        let (hash, head) = rest.split_first_chunk::<32>()?;
        Some(Self { len: u64::from_be_bytes(*len), hash: Digest(*hash), head })
    }

    /// The bytes from their rows, which came in their order. What is missing or changed is found here.
    pub(crate) fn whole(&self, parts: &[Vec<u8>]) -> Result<Vec<u8>, Source> {
        if parts.is_empty() {
            return Err("what it refers to is missing".into());
        }
        let bytes = parts.concat();
        if bytes.len() as u64 != self.len || sha256(&bytes) != self.hash || !bytes.starts_with(self.head) {
            return Err("what it refers to is damaged".into());
        }
        Ok(bytes)
    }
}

/// Whether to write them; a mutant thinks that what it wrote once is there for good.
pub(crate) fn is_new(blob: &Blob) -> bool {
    use std::{
        collections::HashSet,
        sync::{LazyLock, Mutex, PoisonError},
    };
    static WRITTEN: LazyLock<Mutex<HashSet<Digest>>> = LazyLock::new(Mutex::default);
    !canary::on("blob_remembered") || WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).insert(blob.hash)
}

/// The object as which bytes rest: one that is to be deleted is there as long as somebody may read of it.
pub(crate) const OBJECT: &str = "SELECT name FROM hapax_objects WHERE namespace = ? AND run_id = ? AND hash = ? AND state > 0 \
                                 ORDER BY state, name LIMIT 1";

/// Ends the objects of a run that is deleted, behind the lock of its row.
pub(crate) fn end_objects_sql(now: &str) -> String {
    format!(
        "UPDATE hapax_objects SET state = 2, since = {now} WHERE namespace = ? AND run_id = ? AND state <> 2{}",
        if canary::on("objects_forgotten") { " AND 0 = 1" } else { "" }
    )
}

/// Deletes the bytes of a run that no row of it refers to, wherever they lie, behind the lock of its row. The values of each are
/// tenant and run, so often.
pub(crate) fn sweep_sql(now: &str) -> [(String, usize); 2] {
    let columns = [
        ("hapax_checkpoints", "state"),
        ("hapax_checkpoints", "frontier"),
        ("hapax_checkpoints", "barriers"),
        ("hapax_frontier", "items"),
        ("hapax_journal", "entry"),
        ("hapax_letters", "payload"),
        ("hapax_outbox", "payload"),
    ];
    let kept = if canary::on("blob_deleted_while_referred") { &columns[..6] } else { &columns };
    let hash = |column| format!("substr({column}, {HASH_AT}, 32)");
    // A subquery for each column, so that an index over the run's rows serves it. None may answer a NULL, as SQLite does for a part of
    // what is empty: nothing would be "not in" it.
    let unless = kept.iter().map(|(table, column)| {
        format!(
            " AND hash NOT IN (SELECT {} FROM {table} WHERE namespace = ? AND run_id = ? AND length({column}) > 0)",
            hash(column)
        )
    });
    let unless = unless.collect::<String>();
    let beside = format!("DELETE FROM hapax_blobs WHERE namespace = ? AND run_id = ?{unless}");
    let resting = format!("{}{unless}", end_objects_sql(now));
    [beside, resting].map(|sql| (sql, 1 + kept.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codec(over: usize) -> Codec {
        Codec { aside: Some(over), ..Codec::default() }
    }

    #[test]
    fn what_is_small_stays_in_its_row_and_what_is_large_comes_back_whole() {
        let mut blobs = vec![];
        assert_eq!(codec(4).set_aside(b"four".to_vec(), &mut blobs), b"four");
        assert!(blobs.is_empty() && Reference::of(b"four").is_none());
        let large: Vec<u8> = (0..3 * PART + 7).map(|n| n as u8).collect();
        let stored = codec(4).set_aside(large.clone(), &mut blobs);
        assert!(stored.len() < 200);
        assert_eq!(&stored[HASH_AT - 1..HEAD_AT - 1], sha256(&large).0);
        assert_eq!(&stored[HEAD_AT - 1..], &large[..HEAD]);
        let parts = blobs[0].parts().map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>();
        assert_eq!(parts.len(), 4);
        assert_eq!(Reference::of(&stored).unwrap().whole(&parts).unwrap(), large);
    }

    #[test]
    fn the_same_twice_is_stored_once() {
        let mut blobs = vec![];
        let one = codec(4).set_aside(b"the same".to_vec(), &mut blobs);
        assert_eq!(codec(4).set_aside(b"the same".to_vec(), &mut blobs), one);
        assert_eq!(blobs.len(), 1);
    }

    #[test]
    fn bytes_that_look_like_a_reference_are_never_taken_for_one() {
        let (odd, mut blobs) = ([&MARK[..], &[7; 60]].concat(), vec![]);
        let stored = Codec::default().set_aside(odd.clone(), &mut blobs);
        assert_eq!(Reference::of(&stored).unwrap().whole(&[blobs[0].bytes.clone()]).unwrap(), odd);
    }

    #[test]
    fn what_is_missing_or_changed_is_found() {
        let mut blobs = vec![];
        let stored = codec(0).set_aside(b"content".to_vec(), &mut blobs);
        let reference = Reference::of(&stored).unwrap();
        for parts in [vec![], vec![b"Content".to_vec()], vec![b"conten".to_vec()]] {
            assert!(reference.whole(&parts).is_err());
        }
        assert!(Reference::of(&stored[..30]).is_none());
        let mut head = stored.clone();
        *head.last_mut().unwrap() ^= 1;
        assert!(Reference::of(&head).unwrap().whole(&[b"content".to_vec()]).is_err());
    }
}
