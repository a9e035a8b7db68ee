//! What the shared code knows of a database server: sessions, values, rows, and what can go wrong.
//!
//! Invariant: statements are written once, in words that all servers understand. A [`Session`] puts its own for what
//! differs: `?` for a value, `{now}` for the server's clock in microseconds, `{writable}` for whether it takes writes,
//! `hapax_` for the configured tables.

use crate::{
    depot::Away,
    error::{Locked, Source},
    store::{BoxFuture, Hint},
};
use hapax_core::id::InvalidId;

/// What became of a statement that failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A unique key is taken; nothing of the statement is written.
    Duplicate(Source),
    /// Nothing was written, because another transaction was in the way: a deadlock, a lock that wasn't free.
    Again(Source),
    /// Nothing was written.
    Nothing(Source),
    /// Nothing was written: there is no room.
    Full(Source),
    /// Nothing was written: a statement of so many bytes is more than the server takes.
    #[cfg_attr(
        not(feature = "mysql"),
        expect(dead_code, reason = "PostgreSQL takes whatever passes our limits")
    )]
    TooLarge { size: usize, limit: usize },
    /// The answer was lost: the transaction may have been committed.
    Lost(Source),
    /// It was committed, and the server warned: it may be lost with the machine.
    Warned,
    /// What is stored can't be what we wrote, with the step when one is to blame.
    Damage(Option<u64>, String),
    /// What is stored can't be read with the keys that were given.
    Locked(Locked),
    /// What is stored rests where it can't be had.
    Away(Away),
}

impl Fault {
    pub(crate) fn damage(what: impl Into<String>) -> Self {
        Fault::Damage(None, what.into())
    }

    /// Stored bytes that can't be decoded: for lack of a key, or because they can't be what we wrote.
    pub(crate) fn undecoded(step: Option<u64>, what: &str, error: Source) -> Self {
        let error = match error.downcast::<Away>() {
            Ok(away) => return Fault::Away(*away),
            Err(error) => error,
        };
        match error.downcast::<Locked>() {
            Ok(locked) => Fault::Locked(*locked),
            Err(error) => Fault::Damage(step, format!("{what} cannot be read: {error}")),
        }
    }

    /// The same for another who waits for the statement.
    pub(crate) fn for_another(&self) -> Self {
        match self {
            Fault::Duplicate(source) => Fault::Duplicate(source.to_string().into()),
            Fault::Again(source) => Fault::Again(source.to_string().into()),
            Fault::Nothing(source) => Fault::Nothing(source.to_string().into()),
            Fault::Full(source) => Fault::Full(source.to_string().into()),
            Fault::TooLarge { size, limit } => Fault::TooLarge { size: *size, limit: *limit },
            Fault::Lost(source) => Fault::Lost(source.to_string().into()),
            Fault::Warned => Fault::Warned,
            Fault::Damage(step, what) => Fault::Damage(*step, what.clone()),
            Fault::Locked(locked) => Fault::Locked(locked.clone()),
            Fault::Away(away) => Fault::Away(away.for_another()),
        }
    }

    /// A key that is taken will be found by whoever looks again.
    pub(crate) fn taken_is_again(self) -> Self {
        match self {
            Fault::Duplicate(source) if !hapax_core::canary::on("taken_is_refused") => Fault::Again(source),
            fault => fault,
        }
    }

    /// The same failure of a statement whose transaction can't have been committed.
    pub(crate) fn before_commit(self) -> Self {
        match self {
            Fault::Lost(source) => Fault::Nothing(source),
            fault => fault,
        }
    }
}

impl From<InvalidId> for Fault {
    fn from(error: InvalidId) -> Self {
        Fault::damage(error.to_string())
    }
}

/// What a statement answers.
pub(crate) type Done<'a, T> = BoxFuture<'a, Result<T, Fault>>;

/// A value that is bound to a statement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    Int(Option<i64>),
    Text(Option<&'a str>),
    Blob(Option<&'a [u8]>),
}

impl Value<'_> {
    /// What it takes in a packet, at the most.
    pub(crate) fn size(&self) -> usize {
        let bytes = match self {
            Value::Int(_) => 8,
            Value::Text(text) => text.map_or(0, str::len),
            Value::Blob(bytes) => bytes.map_or(0, <[u8]>::len),
        };
        bytes + 12
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Value::Int(Some(value))
    }
}

impl From<u64> for Value<'_> {
    fn from(value: u64) -> Self {
        Value::Int(Some(value.cast_signed()))
    }
}

impl From<usize> for Value<'_> {
    fn from(value: usize) -> Self {
        Value::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Int(Some(value.into()))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(value: Option<i64>) -> Self {
        Value::Int(value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Value::Text(Some(value))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Value::Text(value)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(value: &'a [u8]) -> Self {
        Value::Blob(Some(value))
    }
}

impl<'a> From<&'a Vec<u8>> for Value<'a> {
    fn from(value: &'a Vec<u8>) -> Self {
        Value::Blob(Some(value))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Value::Blob(Some(value))
    }
}

impl<'a> From<Option<&'a Vec<u8>>> for Value<'a> {
    fn from(value: Option<&'a Vec<u8>>) -> Self {
        Value::Blob(value.map(Vec::as_slice))
    }
}

/// The values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::server::sql::Value::from($value)),*]
    };
}
pub(crate) use values;

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "MySQL keeps texts as bytes"))]
    Text(String),
    Blob(Vec<u8>),
}

/// A row that was read.
#[derive(Debug, Clone)]
pub(crate) struct Row(pub(crate) Vec<Cell>);

impl Row {
    fn cell(&self, column: usize) -> &Cell {
        self.0.get(column).unwrap_or(&Cell::Null)
    }

    fn odd(&self, column: usize, wanted: &str) -> Fault {
        Fault::damage(format!("column {column} is {:?} where {wanted} belongs", self.cell(column)))
    }

    pub(crate) fn int(&self, column: usize) -> Result<i64, Fault> {
        self.maybe_int(column)?.ok_or_else(|| self.odd(column, "a number"))
    }

    pub(crate) fn maybe_int(&self, column: usize) -> Result<Option<i64>, Fault> {
        match self.cell(column) {
            Cell::Null => Ok(None),
            Cell::Int(value) => Ok(Some(*value)),
            _ => Err(self.odd(column, "a number")),
        }
    }

    /// A number whose bits are those of an unsigned one.
    pub(crate) fn bits(&self, column: usize) -> Result<u64, Fault> {
        Ok(self.int(column)?.cast_unsigned())
    }

    /// A number that counts something.
    pub(crate) fn count(&self, column: usize) -> Result<u64, Fault> {
        u64::try_from(self.int(column)?).map_err(|_| self.odd(column, "a count"))
    }

    pub(crate) fn flag(&self, column: usize) -> Result<bool, Fault> {
        Ok(self.int(column)? != 0)
    }

    pub(crate) fn text(&self, column: usize) -> Result<&str, Fault> {
        self.maybe_text(column)?.ok_or_else(|| self.odd(column, "a text"))
    }

    pub(crate) fn maybe_text(&self, column: usize) -> Result<Option<&str>, Fault> {
        match self.cell(column) {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            Cell::Blob(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|_| self.odd(column, "a text")),
            Cell::Int(_) => Err(self.odd(column, "a text")),
        }
    }

    pub(crate) fn blob(&self, column: usize) -> Result<&[u8], Fault> {
        self.maybe_blob(column)?.ok_or_else(|| self.odd(column, "bytes"))
    }

    pub(crate) fn maybe_blob(&self, column: usize) -> Result<Option<&[u8]>, Fault> {
        match self.cell(column) {
            Cell::Null => Ok(None),
            Cell::Blob(bytes) => Ok(Some(bytes)),
            _ => Err(self.odd(column, "bytes")),
        }
    }

    pub(crate) fn bytes<const N: usize>(&self, column: usize) -> Result<[u8; N], Fault> {
        self.blob(column)?.try_into().map_err(|_| self.odd(column, "bytes of another length"))
    }
}

/// One connection to a server, with what its server calls things.
///
/// A session that is dropped, or given back, within a transaction is closed: the server rolls it back.
pub(crate) trait Session: Send {
    /// Runs a statement; answers how many rows it changed or, of an update, met.
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, u64>;

    /// Runs a question.
    fn rows<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, Vec<Row>>;

    /// Begins a transaction that writes.
    fn begin(&mut self) -> Done<'_, ()>;

    /// Begins a transaction that sees one snapshot of everything.
    fn begin_reading(&mut self) -> Done<'_, ()>;

    /// Commits; [`Fault::Lost`] when it can't be known.
    fn commit(&mut self) -> Done<'_, ()>;

    /// Undoes the transaction.
    fn rollback(&mut self) -> Done<'_, ()>;

    /// Writes chains in one transaction of its own; answers for each whether its fence let it pass. A chain whose fence
    /// didn't has left nothing.
    fn write_chains<'a>(&'a mut self, chains: &'a [super::chain::Chain]) -> Done<'a, Vec<bool>>;

    /// Inserts rows into tables in one transaction of its own; all of them, or none.
    fn insert_all<'a>(&'a mut self, tables: &'a [Inserts<'a>]) -> Done<'a, ()>;

    /// How "insert unless it is there" ends here: after `INSERT INTO … VALUES (…)`.
    fn unless_there(&self) -> &'static str;

    /// Whether the server has warned since this was last asked.
    fn warned(&mut self) -> bool {
        false
    }

    /// Tells all who listen. A server that can't do so says nothing.
    fn tell<'a>(&'a mut self, _: &'a [Hint]) -> Done<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// At most one row.
pub(crate) async fn one(
    session: &mut dyn Session,
    sql: &str,
    values: &[Value<'_>],
) -> Result<Option<Row>, Fault> {
    Ok(session.rows(sql, values).await?.into_iter().next())
}

/// So many places for values, in brackets.
pub(crate) fn places(count: usize) -> String {
    format!("({})", vec!["?"; count].join(", "))
}

/// So many rows of so many places.
pub(crate) fn place_rows(rows: usize, columns: usize) -> String {
    vec![places(columns); rows].join(", ")
}

/// Rows in groups that one statement takes: so many rows, and bytes, at the most. A row that is larger goes alone.
pub(crate) fn groups<T>(rows: &[T], most: usize, bytes: usize, size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut groups, mut from, mut sum) = (vec![], 0, 0);
    for (at, row) in rows.iter().enumerate() {
        let size = size(row);
        if at > from && (at - from >= most || sum + size > bytes) {
            groups.push(&rows[from..at]);
            (from, sum) = (at, 0);
        }
        sum += size;
    }
    if from < rows.len() {
        groups.push(&rows[from..]);
    }
    groups
}

/// Rows of one statement at the most.
const ROWS: usize = 256;

/// Rows that the next statement takes of so many. Few different numbers, so that few statements are prepared.
fn portion(left: usize) -> usize {
    match left {
        ROWS.. => ROWS,
        128.. => 128,
        64.. => 64,
        9.. => left - left % 8,
        few => few,
    }
}

/// Takes rows from the front, portion by portion.
pub(crate) fn portions<T>(mut rest: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let (some, others) = rest.split_at(portion(rest.len()));
        rest = others;
        (!some.is_empty()).then_some(some)
    })
}

/// Rows of one table.
pub(crate) struct Inserts<'v> {
    /// The table and its columns.
    pub(crate) into: &'static str,
    /// The places of a row's values.
    pub(crate) row: &'static str,
    /// What follows the rows.
    pub(crate) end: &'static str,
    pub(crate) rows: Vec<Vec<Value<'v>>>,
}

impl Inserts<'_> {
    /// What its values take in a packet, at the most.
    #[cfg_attr(
        not(feature = "mysql"),
        expect(dead_code, reason = "PostgreSQL takes whatever passes our limits")
    )]
    pub(crate) fn size(&self) -> usize {
        self.rows.iter().flatten().map(Value::size).sum()
    }
}

/// Inserts rows by as few statements as their number and their bytes allow.
pub(crate) async fn insert(session: &mut dyn Session, table: &Inserts<'_>) -> Result<(), Fault> {
    let Inserts { into, row, end, rows } = table;
    let size = |row: &Vec<Value<'_>>| row.iter().map(Value::size).sum();
    for some in groups(rows, ROWS, GROUP_BYTES, size).into_iter().flat_map(portions) {
        let sql = format!("{into} VALUES {}{end}", vec![*row; some.len()].join(", "));
        session.execute(&sql, &some.concat()).await?;
    }
    Ok(())
}

/// Inserts rows table by table, in a transaction.
pub(crate) async fn insert_each(session: &mut dyn Session, tables: &[Inserts<'_>]) -> Result<(), Fault> {
    session.begin().await.map_err(Fault::before_commit)?;
    for table in tables {
        if let Err(fault) = insert(session, table).await {
            // A session that can't even roll back is closed, which does the same.
            let _ = session.rollback().await;
            return Err(fault.before_commit());
        }
    }
    session.commit().await
}

/// Bytes of rows that one statement takes at the most: far below what any server's packets may hold.
pub(crate) const GROUP_BYTES: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_hold_every_row_once_and_have_few_sizes() {
        for count in 0..600 {
            let rows: Vec<usize> = (0..count).collect();
            assert_eq!(portions(&rows).collect::<Vec<_>>().concat(), rows);
            assert!(
                portions(&rows)
                    .all(|some| matches!(some.len(), 1..=8 | 16 | 24 | 32 | 40 | 48 | 56 | 64 | 128 | 256))
            );
        }
    }

    #[test]
    fn groups_hold_every_row_once_and_no_more_than_they_may() {
        let sizes = [1, 9, 4, 4, 4, 50, 1, 1, 1, 1];
        let grouped = groups(&sizes, 3, 10, |size| *size);
        assert_eq!(grouped.concat(), sizes);
        assert_eq!(grouped, [&[1, 9][..], &[4, 4], &[4], &[50], &[1, 1, 1], &[1]]);
        assert!(groups(&[0; 0], 3, 10, |size| *size).is_empty());
    }
}
