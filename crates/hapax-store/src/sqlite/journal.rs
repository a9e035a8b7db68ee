//! The journal: rows between two steps, and how they are read.
//!
//! Invariant: the rows of a run are numbered without gaps, in the order in which they became durable.

use super::{
    blobs,
    commit::{fence_sql, head, insert_sql},
    error::{damaged_at, undecoded},
    mailbox,
    writer::{Halt, Outcome, Tx},
};
use crate::{
    codec::{Codec, Part, Place},
    db::{Statement, ToValue, Value},
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
use rusqlite::{Connection, Row, params};

const FENCE: &str = "UPDATE hapax_runs SET next_seq = next_seq + ?4, updated_at = ?5 \
     WHERE namespace = ?6 AND run_id = ?7 AND next_seq = ?3 AND (cancel_requested = 0 OR NOT ?8) \
     AND (?9 IS NULL OR digest = ?9) AND epoch = ?1 AND nonce = ?2";
pub(super) const ROW: &str = "INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, sum) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// What [`append`] writes, as statements for another's transaction in the same file.
pub(super) fn within(append: &Append, entries: &[Vec<u8>], now: i64) -> Vec<Statement> {
    let key = [append.run.namespace.as_str().to_value(), append.run.run.as_str().to_value()];
    let mut statements = vec![fence(append, now)];
    for ((row, entry), seq) in append.rows.iter().zip(entries).zip(append.first_seq..) {
        let sum = row_sum(seq, &row.base, row.step, row.path_hash, entry);
        let numbers = [seq.cast_signed().to_value(), Value::Bytes(row.base.0.to_vec())];
        let place = [row.step.cast_signed().to_value(), row.path_hash.0.cast_signed().to_value()];
        let bytes = [Value::Bytes(entry.clone()), Value::Bytes(sum.to_vec())];
        let values = key.iter().cloned().chain(numbers).chain(place).chain(bytes).collect();
        statements.push(Statement { sql: insert_sql(ROW).into_owned(), values, must_meet: true });
        if let Entry::Took { letter } = row.entry {
            let values = key.iter().cloned().chain([letter.cast_signed().to_value()]).collect();
            let sql = fence_sql(mailbox::TAKE).into_owned();
            statements.push(Statement { sql, values, must_meet: false });
        }
    }
    statements
}

fn fence(append: &Append, now: i64) -> Statement {
    let key = [append.run.namespace.as_str().to_value(), append.run.run.as_str().to_value()];
    let epoch = [
        append.epoch.counter.cast_signed().to_value(),
        Value::Bytes(append.epoch.nonce.to_be_bytes().to_vec()),
    ];
    let rows =
        [append.first_seq.cast_signed(), append.rows.len() as i64, now].map(|number| number.to_value());
    let base = append.rows.first().map_or(Value::Null, |row| Value::Bytes(row.base.0.to_vec()));
    let values =
        epoch.into_iter().chain(rows).chain(key).chain([append.unless_cancelled.to_value(), base]).collect();
    Statement { sql: fence_sql(FENCE).into_owned(), values, must_meet: true }
}

/// Appends rows, or says why not.
pub(super) fn append(tx: &Tx<'_>, append: &Append, entries: &[Vec<u8>]) -> Outcome<Written> {
    let changed = tx.execute(
        &fence_sql(FENCE),
        params![
            append.epoch.counter.cast_signed(),
            append.epoch.nonce.to_be_bytes(),
            append.first_seq.cast_signed(),
            append.rows.len() as i64,
            tx.now,
            append.run.namespace.as_str(),
            append.run.run.as_str(),
            append.unless_cancelled,
            // A step takes no numbers, so the rows behind a missing one are told by what they build on.
            append.rows.first().map(|row| row.base.0),
        ],
    )?;
    if changed == 0 {
        let refusal = append_refusal(tx, append)?;
        return Err(Halt::Settle(refusal.unwrap_or_else(|| Err(judge::row_missing()))));
    }
    insert(tx, &append.run, append.first_seq, &append.rows, entries)?;
    Ok(Written::Committed)
}

/// Why an append was refused; `None`: it wouldn't be.
pub(super) fn append_refusal(tx: &Tx<'_>, append: &Append) -> rusqlite::Result<Option<Answer>> {
    let head = match head(tx, &append.run, append.epoch)? {
        Ok(head) => head,
        Err(fenced) => return Ok(Some(Err(fenced))),
    };
    Ok(match judge::append(&head, append) {
        Judgement::Taken(seq) => {
            let stored = read(tx.connection, tx.codec, &append.run, seq, append.rows.len())?;
            Some(judge::same_rows(append, &stored))
        }
        judgement => judgement.answer(),
    })
}

/// Writes rows whose numbers the fence has taken.
pub(super) fn insert(
    tx: &Tx<'_>,
    run: &RunKey,
    first_seq: u64,
    rows: &[JournalRow],
    entries: &[Vec<u8>],
) -> rusqlite::Result<()> {
    for ((row, entry), seq) in rows.iter().zip(entries).zip(first_seq..) {
        tx.execute(
            &insert_sql(ROW),
            params![
                run.namespace.as_str(),
                run.run.as_str(),
                seq.cast_signed(),
                row.base.0,
                row.step.cast_signed(),
                row.path_hash.0.cast_signed(),
                entry,
                row_sum(seq, &row.base, row.step, row.path_hash, entry),
            ],
        )?;
        if let Entry::Took { letter } = row.entry {
            mailbox::take(tx, run, letter)?;
        }
    }
    Ok(())
}

/// Rows from a number on.
pub(super) fn read(
    connection: &Connection,
    codec: &Codec,
    run: &RunKey,
    from_seq: u64,
    limit: usize,
) -> rusqlite::Result<Vec<JournalRow>> {
    let (mut found, mut next) = (vec![], None);
    each(connection, run, from_seq, limit, |row| {
        if let Some(next) = next.filter(|next| *next != row.seq) {
            return Err(damaged_at(row.step, format!("row {next} of the journal is missing")));
        }
        next = Some(row.seq + 1);
        match row.unpacked(connection, codec, run) {
            // So that all of it is fetched together.
            Err(_) if codec.wants() => {}
            entry => found.push(row.read(&entry?)?),
        }
        Ok(())
    })?;
    Ok(found)
}

/// Hands out rows from a number on, one after the other.
fn each(
    connection: &Connection,
    run: &RunKey,
    from_seq: u64,
    limit: usize,
    mut take: impl FnMut(Stored<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, base, step_id, path_hash, entry, sum FROM hapax_journal \
         WHERE namespace = ?1 AND run_id = ?2 AND seq >= ?3 ORDER BY seq LIMIT ?4",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = params![run.namespace.as_str(), run.run.as_str(), from_seq.cast_signed(), limit];
    let mut rows = statement.query(from)?;
    while let Some(row) = rows.next()? {
        take(Stored::of(row)?)?;
    }
    Ok(())
}

/// The rows that build on one checkpoint: from the number on at which its own journal ended, up to the next one. All
/// of them must be there. Chunks are passed over one by one: there may be any number of them.
pub(super) fn read_based_on(
    connection: &Connection,
    codec: &Codec,
    record: &RunRecord,
    from_seq: u64,
) -> rusqlite::Result<Vec<JournalRow>> {
    let (mut found, mut next) = (vec![], from_seq);
    let missing = || {
        let what = format!("rows are missing from its journal between {from_seq} and {}", record.next_seq);
        damaged_at(record.step, what)
    };
    each(connection, &record.key, from_seq, usize::MAX, |row| {
        if row.seq != next {
            return Err(missing());
        }
        next += 1;
        let entry = match row.unpacked(connection, codec, &record.key) {
            // So that all of it is fetched together.
            Err(_) if codec.wants() => return Ok(()),
            entry => entry?,
        };
        if row.base == record.digest && !entry.starts_with(Entry::CHUNK_TAG) {
            found.push(row.read(&entry)?);
        }
        Ok(())
    })?;
    if next == record.next_seq { Ok(found) } else { Err(missing()) }
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
    fn of(row: &'r Row<'_>) -> rusqlite::Result<Self> {
        let seq = row.get::<_, i64>(0)?.cast_unsigned();
        let (base, step) = (Digest(row.get(1)?), row.get::<_, i64>(2)?.cast_unsigned());
        let path_hash = PathHash(row.get::<_, i64>(3)?.cast_unsigned());
        let entry = row.get_ref(4)?.as_blob()?;
        if row.get_ref(5)?.as_blob()? != row_sum(seq, &base, step, path_hash, entry) {
            return Err(damaged_at(step, format!("row {seq} of the journal does not match its checksum")));
        }
        Ok(Self { seq, base, step, path_hash, entry })
    }

    fn unpacked(&self, connection: &Connection, codec: &Codec, run: &RunKey) -> rusqlite::Result<Vec<u8>> {
        let entry = blobs::whole(connection, codec, run, self.entry)?;
        let unpacked = codec.unpack(&entry, &Place::of(run, Part::Journal { seq: self.seq }));
        unpacked.map_err(|error| self.unreadable(error))
    }

    fn read(&self, entry: &[u8]) -> rusqlite::Result<JournalRow> {
        let Self { seq, base, step, path_hash, .. } = *self;
        let entry = serde_json::from_slice(entry).map_err(|error| self.unreadable(error.into()))?;
        Ok(JournalRow { seq, base, step, path_hash, entry })
    }

    fn unreadable(&self, error: Source) -> rusqlite::Error {
        undecoded(Some(self.step), &format!("row {} of the journal", self.seq), error)
    }
}
