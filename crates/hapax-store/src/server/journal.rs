//! The journal: rows between two steps, and how they are read.
//!
//! Invariant: the rows of a run are numbered without gaps, in the order in which they became durable.

use super::{
    blobs,
    commit::{fence_sql, head},
    error::{Halt, Outcome},
    mailbox,
    sql::{Fault, GROUP_BYTES, Row, Session, Value, groups, place_rows, values},
    writer::Tx,
};
use crate::{
    codec::{Codec, Part, Place},
    error::Source,
    judge::{self, Answer, Judgement},
    prepare::row_sum,
    store::RunRecord,
};
use hapax_core::{
    commit::{Append, Written},
    id::RunKey,
    journal::{Entry, JournalRow},
    key::Digest,
    order::PathHash,
};

/// Rows that one statement writes at the most.
const ROWS: usize = 200;
/// What a row is written into, and what each of its values is.
const INTO: &str =
    "INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, row_sum)";
#[cfg(feature = "postgres")]
pub(crate) const TYPES: [&str; 8] = ["text", "text", "int8", "bytea", "int8", "int8", "bytea", "bytea"];
/// Rows that are read at once.
const PAGE: usize = 1000;

/// Appends rows, or says why not.
pub(super) async fn append(tx: &mut Tx<'_>, append: &Append, entries: &[Vec<u8>]) -> Outcome<Written> {
    let base = append.rows.first().map(|row| row.base);
    let met = tx
        .execute(
            &fence_sql(
                "UPDATE hapax_runs SET next_seq = next_seq + ?, updated_at = {now} WHERE namespace = ? AND run_id = ? \
                 AND next_seq = ? AND (cancel_requested = 0 OR ? = 0) AND (? = 0 OR digest = ?) \
                 AND epoch = ? AND nonce = ?",
            ),
            values![
                append.rows.len(),
                append.run.namespace.as_str(),
                append.run.run.as_str(),
                append.first_seq,
                append.unless_cancelled,
                base.is_some(),
                // A step takes no numbers, so the rows behind a missing one are told by what they build on.
                &base.unwrap_or(Digest([0; 32])).0,
                append.epoch.counter,
                &append.epoch.nonce.to_be_bytes(),
            ],
        )
        .await?;
    if met == 0 {
        let refusal = append_refusal(tx, append).await?;
        return Err(Halt::Settle(refusal.unwrap_or_else(|| Err(judge::row_missing()))));
    }
    insert(tx, &append.run, append.first_seq, &append.rows, entries).await?;
    Ok(Written::Committed)
}

/// Why an append was refused; `None`: it wouldn't be.
pub(super) async fn append_refusal(tx: &mut Tx<'_>, append: &Append) -> Result<Option<Answer>, Fault> {
    let head = match head(tx, &append.run, append.epoch).await? {
        Ok(head) => head,
        Err(fenced) => return Ok(Some(Err(fenced))),
    };
    Ok(match judge::append(&head, append) {
        Judgement::Taken(seq) => {
            let stored = read(tx.session, tx.codec, &append.run, seq, append.rows.len()).await?;
            Some(judge::same_rows(append, &stored))
        }
        judgement => judgement.answer(),
    })
}

/// Writes rows whose numbers the fence has taken.
pub(super) async fn insert(
    tx: &mut Tx<'_>,
    run: &RunKey,
    first_seq: u64,
    rows: &[JournalRow],
    entries: &[Vec<u8>],
) -> Result<(), Fault> {
    let numbered: Vec<_> = rows.iter().zip(entries).zip(first_seq..).collect();
    for some in groups(&numbered, ROWS, GROUP_BYTES, |((_, entry), _)| entry.len()) {
        let sums: Vec<[u8; 8]> = some
            .iter()
            .map(|((row, entry), seq)| row_sum(*seq, &row.base, row.step, row.path_hash, entry))
            .collect();
        let mut values: Vec<Value<'_>> = Vec::with_capacity(some.len() * 8);
        for (((row, entry), seq), sum) in some.iter().zip(&sums) {
            values.extend_from_slice(values![
                run.namespace.as_str(),
                run.run.as_str(),
                *seq,
                &row.base.0,
                row.step,
                row.path_hash.0,
                *entry,
                sum,
            ]);
        }
        let sql = format!("{INTO} VALUES {}", place_rows(some.len(), 8));
        tx.execute(&sql, &values).await?;
    }
    for row in rows {
        if let Entry::Took { letter } = row.entry {
            mailbox::take(tx, run, letter).await?;
        }
    }
    Ok(())
}

/// Rows from a number on.
pub(super) async fn read(
    session: &mut dyn Session,
    codec: &Codec,
    run: &RunKey,
    from_seq: u64,
    limit: usize,
) -> Result<Vec<JournalRow>, Fault> {
    let (mut found, mut next) = (vec![], None);
    for row in page(session, run, from_seq, limit).await? {
        let stored = Stored::of(&row)?;
        if let Some(next) = next.filter(|next| *next != stored.seq) {
            let what = format!("row {next} of the journal is missing");
            return Err(Fault::Damage(Some(stored.step), what));
        }
        next = Some(stored.seq + 1);
        match stored.unpacked(session, codec, run).await {
            // So that all of it is fetched together.
            Err(_) if codec.wants() => {}
            entry => found.push(stored.read(&entry?)?),
        }
    }
    Ok(found)
}

async fn page(
    session: &mut dyn Session,
    run: &RunKey,
    from_seq: u64,
    limit: usize,
) -> Result<Vec<Row>, Fault> {
    session
        .rows(
            "SELECT seq, base, step_id, path_hash, entry, row_sum FROM hapax_journal \
             WHERE namespace = ? AND run_id = ? AND seq >= ? ORDER BY seq LIMIT ?",
            values![run.namespace.as_str(), run.run.as_str(), from_seq, limit],
        )
        .await
}

/// The rows that build on one checkpoint: from the number on at which its own journal ended, up to the next one. All
/// of them must be there. Chunks are passed over page by page: there may be any number of them.
pub(super) async fn read_based_on(
    session: &mut dyn Session,
    codec: &Codec,
    record: &RunRecord,
    from_seq: u64,
) -> Result<Vec<JournalRow>, Fault> {
    let (mut found, mut next) = (vec![], from_seq);
    let missing = || {
        let what = format!("rows are missing from its journal between {from_seq} and {}", record.next_seq);
        Fault::Damage(Some(record.step), what)
    };
    loop {
        let rows = page(session, &record.key, next, PAGE).await?;
        if rows.is_empty() {
            return if next == record.next_seq { Ok(found) } else { Err(missing()) };
        }
        for row in &rows {
            let stored = Stored::of(row)?;
            if stored.seq != next {
                return Err(missing());
            }
            next += 1;
            let entry = match stored.unpacked(session, codec, &record.key).await {
                // So that all of it is fetched together.
                Err(_) if codec.wants() => continue,
                entry => entry?,
            };
            if stored.base == record.digest && !entry.starts_with(Entry::CHUNK_TAG) {
                found.push(stored.read(&entry)?);
            }
        }
    }
}

/// A row as it is stored, of a sum that is right.
struct Stored<'r> {
    seq: u64,
    base: Digest,
    step: u64,
    path_hash: PathHash,
    entry: &'r [u8],
}

impl<'r> Stored<'r> {
    fn of(row: &'r Row) -> Result<Self, Fault> {
        let seq = row.count(0)?;
        let (base, step, path_hash) = (Digest(row.bytes(1)?), row.count(2)?, PathHash(row.bits(3)?));
        let entry = row.blob(4)?;
        if row.blob(5)? != row_sum(seq, &base, step, path_hash, entry) {
            let what = format!("row {seq} of the journal does not match its checksum");
            return Err(Fault::Damage(Some(step), what));
        }
        Ok(Self { seq, base, step, path_hash, entry })
    }

    async fn unpacked(
        &self,
        session: &mut dyn Session,
        codec: &Codec,
        run: &RunKey,
    ) -> Result<Vec<u8>, Fault> {
        let entry = blobs::whole(session, codec, run, self.entry).await?;
        let unpacked = codec.unpack(&entry, &Place::of(run, Part::Journal { seq: self.seq }));
        unpacked.map_err(|error| self.unreadable(error))
    }

    fn read(&self, entry: &[u8]) -> Result<JournalRow, Fault> {
        let Self { seq, base, step, path_hash, .. } = *self;
        let entry = serde_json::from_slice(entry).map_err(|error| self.unreadable(error.into()))?;
        Ok(JournalRow { seq, base, step, path_hash, entry })
    }

    fn unreadable(&self, error: Source) -> Fault {
        Fault::undecoded(Some(self.step), &format!("row {} of the journal", self.seq), error)
    }
}
