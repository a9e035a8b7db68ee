//! Batches of payloads: found by how they begin, decoded and encoded, and put back where nothing has changed.
//!
//! Invariant: a payload is only replaced where it still is, byte for byte, what was read. Each batch is one transaction, so
//! whoever is killed here leaves a store that is right, and goes on with what is left. The way through a column goes by what
//! identifies its payloads, and only forward: whatever others write meanwhile, nothing is passed over and it comes to an end.

use super::{From, PayloadKeys, Recoded};
use crate::{
    blobs::{Blob, HEAD_AT, MARK, Reference, refer, sweep_sql},
    codec::{Codec, Part, Place, Stale, payload},
    db::{Row, Statement, ToValue, Value},
    error::StoreError,
    prepare::row_sum,
    store::Answer,
};
use hapax_core::{
    canary,
    id::{Namespace, RunId, RunKey},
    key::Digest,
    order::PathHash,
};
use std::{collections::BTreeSet, fmt::Display};

/// Payloads of one transaction at the most, and what they may weigh together.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// How often payloads are looked at again that changed between the look and the write. One that changes each time is left to the
/// next pass.
const AGAIN: u8 = 3;

/// A column of payloads, and what identifies one of them beside tenant and owner.
struct Column {
    table: &'static str,
    owner: &'static str,
    name: &'static str,
    keys: &'static [&'static str],
    /// What else is needed of its row.
    also: &'static [&'static str],
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    State,
    FirstPage,
    Barriers,
    Page,
    Journal,
    Message,
    Letter,
    Input,
}

const COLUMNS: [Column; 8] = [
    of_run("hapax_checkpoints", "state", &["step_id"], Kind::State),
    of_run("hapax_checkpoints", "frontier", &["step_id"], Kind::FirstPage),
    of_run("hapax_checkpoints", "barriers", &["step_id"], Kind::Barriers),
    of_run("hapax_frontier", "items", &["step_id", "page"], Kind::Page),
    Column {
        also: &["base", "step_id", "path_hash"],
        ..of_run("hapax_journal", "entry", &["seq"], Kind::Journal)
    },
    of_run("hapax_outbox", "payload", &["step_id", "position"], Kind::Message),
    Column { also: &["letter_id"], ..of_run("hapax_letters", "payload", &["number"], Kind::Letter) },
    Column { owner: "name", ..of_run("hapax_schedules", "input", &[], Kind::Input) },
];

const fn of_run(
    table: &'static str,
    name: &'static str,
    keys: &'static [&'static str],
    kind: Kind,
) -> Column {
    Column { table, owner: "run_id", name, keys, also: &[], kind }
}

/// What is asked of a database.
pub(crate) trait Shelf: Sync {
    fn codec(&self) -> &Codec;
    /// What the column of a journal row's checksum is called.
    fn sum_column(&self) -> &'static str;
    /// The bytes of a run's payload, wherever they lie.
    fn whole(&self, run: RunKey, stored: Vec<u8>) -> Answer<'_, Vec<u8>>;
    /// A question.
    fn ask(&self, sql: String, values: Vec<Value>) -> Answer<'_, Vec<Row>>;
    /// Changes in one transaction, which holds the rows of their runs; answers how many met their row.
    fn change(&self, about: RunKey, changes: Vec<Change>) -> Answer<'_, u64>;
    /// Statements in one transaction, which holds the run's row; answers whether all that must have met one, else nothing is
    /// changed.
    fn all_or_none(&self, run: RunKey, statements: Vec<Statement>) -> Answer<'_, bool>;
    /// The store's clock, in microseconds since 1970, as SQL.
    fn now(&self) -> String;
}

/// A payload to be replaced.
pub(crate) struct Change {
    /// The run; `None`: it is a schedule's.
    pub(crate) run: Option<RunKey>,
    pub(crate) update: Statement,
    /// What is stored beside the row, once it is replaced.
    pub(crate) blobs: Vec<Blob>,
    /// The row referred to bytes which nothing may refer to any more.
    pub(crate) sweeps: bool,
    weight: usize,
}

/// The runs of changes, each once, in the order in which their rows are locked.
pub(crate) fn runs_of(changes: &[Change], which: impl Fn(&Change) -> bool) -> BTreeSet<&RunKey> {
    changes.iter().filter(|change| which(change)).filter_map(|change| change.run.as_ref()).collect()
}

/// A payload that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    namespace: String,
    owner: String,
    keys: Vec<i64>,
}

impl Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.owner)?;
        self.keys.iter().try_for_each(|key| write!(f, "/{key}"))
    }
}

/// Encodes the next batch anew; behind the last one, deletes what no row refers to any more: it is as it was written.
pub(crate) async fn recode(shelf: &dyn Shelf, from: From) -> Result<Recoded, StoreError> {
    let stale = stale(shelf.codec());
    if stale == Stale::Nothing {
        return Ok(Recoded::default());
    }
    let Some(column) = COLUMNS.get(from.column) else { return sweep(shelf, from).await };
    let cells = find(shelf, column, &stale, &from).await?;
    let (mut done, mut last) = (Recoded::default(), None);
    let (mut changes, mut bytes) = (vec![], 0);
    for cell in &cells {
        last = Some(cell);
        let looked = match change(shelf, column, cell).await {
            // What is large may have been replaced between the look at its row and the look at its bytes.
            Err(StoreError::Corrupt { .. }) => change(shelf, column, cell).await,
            looked => looked,
        };
        match looked {
            Ok(Some(change)) => {
                bytes += change.weight;
                changes.push(change);
            }
            Ok(None) => done.changed += 1,
            Err(error @ StoreError::Corrupt { .. }) => {
                done.damaged.push(format!("{} {cell}: {error}", column.table));
            }
            Err(error) => return Err(error),
        }
        if bytes > BATCH_BYTES {
            break;
        }
    }
    let meant = changes.len() as u64;
    if let Some(first) = cells.first().filter(|_| meant > 0) {
        done.rewritten = shelf.change(about(&first.namespace, &first.owner), changes).await?;
        done.changed += meant - done.rewritten.min(meant);
    }
    done.next = Some(match last.cloned() {
        None => From { shard: from.shard, column: from.column + 1, ..From::default() },
        Some(_) if done.changed > 0 && from.again < AGAIN => From { again: from.again + 1, ..from },
        Some(Cell { namespace, owner, keys }) => From { namespace, owner, keys, again: 0, ..from },
    });
    Ok(done)
}

/// Sweeps the next runs that have something beside their rows.
async fn sweep(shelf: &dyn Shelf, from: From) -> Result<Recoded, StoreError> {
    if canary::on("orphans_stay") {
        return Ok(Recoded::default());
    }
    let behind = "namespace > ? OR (namespace = ? AND run_id > ?)";
    let sql = format!(
        "SELECT namespace, run_id FROM hapax_blobs WHERE {behind} \
         UNION SELECT namespace, run_id FROM hapax_objects WHERE {behind} \
         ORDER BY namespace, run_id LIMIT {BATCH}"
    );
    let at = [from.namespace.to_value(), from.namespace.to_value(), from.owner.to_value()];
    let rows = shelf.ask(sql, [at.clone(), at].concat()).await?;
    let mut next = None;
    for row in &rows {
        let name = |at| row.value(at).and_then(text);
        let (Some(namespace), Some(owner)) = (name(0), name(1)) else {
            return Err(odd(&from.namespace, &from.owner, "what identifies a large payload"));
        };
        let values = [namespace.to_value(), owner.to_value()];
        let statement = |(sql, times): (String, usize)| {
            let values = values.iter().cloned().cycle().take(2 * times).collect();
            Statement { sql, values, must_meet: false }
        };
        shelf.all_or_none(about(&namespace, &owner), sweep_sql(&shelf.now()).map(statement).into()).await?;
        next = Some(From { shard: from.shard, column: from.column, namespace, owner, ..From::default() });
    }
    Ok(Recoded { next: next.filter(|_| rows.len() == BATCH), ..Recoded::default() })
}

fn stale(codec: &Codec) -> Stale {
    codec.hook.as_ref().map_or(Stale::Nothing, |codec| codec.stale())
}

/// What stored bytes begin with, as SQL that takes [`MARK`] first: a reference to bytes repeats it.
fn begins(column: &str, len: usize) -> String {
    format!(
        "CASE WHEN substr({column}, 1, {}) = ? THEN substr({column}, {HEAD_AT}, {len}) \
         ELSE substr({column}, 1, {len}) END",
        MARK.len()
    )
}

/// A condition with its values.
type Which = (String, Vec<Value>);

/// The payloads of a column that begin so, or that don't.
fn beginning(column: &str, compared: &str, with: &[u8]) -> Which {
    let begins = begins(column, with.len());
    let values = vec![Value::Bytes(MARK.to_vec()), Value::Bytes(with.to_vec())];
    (format!("length({column}) > 0 AND {begins} {compared} ?"), values)
}

/// Which payloads of a column are stale; `None`: none is.
fn is_stale(column: &str, stale: &Stale) -> Option<Which> {
    match stale {
        Stale::NotBeginningWith(mark) => Some(beginning(column, "<>", mark)),
        Stale::BeginningWith(mark) => Some(beginning(column, "=", mark)),
        Stale::Nothing => None,
    }
}

/// The next stale payloads of a column.
async fn find(
    shelf: &dyn Shelf,
    column: &Column,
    stale: &Stale,
    from: &From,
) -> Result<Vec<Cell>, StoreError> {
    let Column { table, owner, name, keys, .. } = column;
    let Some((is_stale, which)) = is_stale(name, stale) else { return Ok(vec![]) };
    let (behind, mut values) = behind(column, from);
    let all = ["namespace", *owner].iter().chain(*keys).copied().collect::<Vec<_>>().join(", ");
    let sql =
        format!("SELECT {all} FROM {table} WHERE ({behind}) AND {is_stale} ORDER BY {all} LIMIT {BATCH}");
    values.extend(which);
    let rows = shelf.ask(sql, values).await?;
    let cell = |row: &Row| {
        Some(Cell {
            namespace: text(row.value(0)?)?,
            owner: text(row.value(1)?)?,
            keys: (0..keys.len()).map(|at| number(row.value(at + 2)?)).collect::<Option<_>>()?,
        })
    };
    let found = rows.iter().map(cell).collect::<Option<_>>();
    found.ok_or_else(|| odd(&from.namespace, &from.owner, "what identifies a payload"))
}

/// The payloads of a column behind a place. Not as a comparison of rows: MySQL looks at the whole table for one.
fn behind(column: &Column, from: &From) -> Which {
    let names: Vec<&str> = ["namespace", column.owner].iter().chain(column.keys).copied().collect();
    let mut at = vec![from.namespace.to_value(), from.owner.to_value()];
    at.extend(from.keys.iter().map(ToValue::to_value));
    let (mut ways, mut values) = (vec![], vec![]);
    for end in (0..at.len()).rev() {
        let same = names[..end].iter().map(|name| format!("{name} = ? AND "));
        ways.push(format!("({}{} > ?)", same.collect::<String>(), names[end]));
        values.extend_from_slice(&at[..=end]);
    }
    (ways.join(" OR "), values)
}

/// What encodes a payload anew; `None`: it is gone.
async fn change(shelf: &dyn Shelf, column: &Column, cell: &Cell) -> Result<Option<Change>, StoreError> {
    let also = column.also.iter().fold(String::new(), |all, name| format!("{all}, {name}"));
    let (here, keys) = here(column, cell);
    let sql = format!("SELECT {}{also} FROM {} WHERE {here}", column.name, column.table);
    let rows = shelf.ask(sql, keys.clone()).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let stored = match row.value(0) {
        Some(Value::Bytes(stored)) if !stored.is_empty() => stored.clone(),
        _ => return Ok(None),
    };
    let unread = |error| {
        let RunKey { namespace, run } = about(&cell.namespace, &cell.owner);
        StoreError::undecoded(RunKey { namespace, run }, None, column.name, error)
    };
    let letter = row.value(1).and_then(text).unwrap_or_default();
    let place = Place { namespace: &cell.namespace, owner: &cell.owner, part: part(column, cell, &letter) };
    let run = (column.kind != Kind::Input).then(|| about(&cell.namespace, &cell.owner));
    let sealed = match &run {
        Some(run) => shelf.whole(run.clone(), stored.clone()).await?,
        None => stored.clone(),
    };
    let plain = shelf.codec().open(&sealed, &place).map_err(unread)?;
    let mut fresh = shelf.codec().seal(plain, &place).map_err(StoreError::Retry)?;
    let (weight, lay_aside, mut blobs) =
        (fresh.len() + sealed.len(), Reference::of(&stored).is_some(), vec![]);
    if run.is_some() {
        // Whoever wrote it found it large, and may have had another measure than ours.
        fresh = if lay_aside { refer(fresh, &mut blobs) } else { shelf.codec().set_aside(fresh, &mut blobs) };
    }
    let mut sets = format!("{} = ?", column.name);
    let mut values = vec![Value::Bytes(fresh.clone())];
    if column.kind == Kind::Journal {
        let sum = sum_of(cell, row, &fresh)
            .ok_or_else(|| odd(&cell.namespace, &cell.owner, "a row of the journal"))?;
        sets = format!("{sets}, {} = ?", shelf.sum_column());
        values.push(Value::Bytes(sum.to_vec()));
    }
    values.extend(keys);
    let mut sql = format!("UPDATE {} SET {sets} WHERE {here}", column.table);
    if !canary::on("rotate_overwrites") {
        sql = format!("{sql} AND {} = ?", column.name);
        values.push(Value::Bytes(stored));
    }
    let update = Statement { sql, values, must_meet: false };
    Ok(Some(Change { run, update, blobs, sweeps: lay_aside, weight }))
}

/// Names one payload.
fn here(column: &Column, cell: &Cell) -> (String, Vec<Value>) {
    let keys = column.keys.iter().fold(String::new(), |all, key| format!("{all} AND {key} = ?"));
    let mut values = vec![cell.namespace.to_value(), cell.owner.to_value()];
    values.extend(cell.keys.iter().map(ToValue::to_value));
    (format!("namespace = ? AND {} = ?{keys}", column.owner), values)
}

fn part<'p>(column: &Column, cell: &Cell, letter: &'p str) -> Part<'p> {
    let key = |at: usize| cell.keys.get(at).map_or(0, |key| key.cast_unsigned());
    match column.kind {
        Kind::State => Part::State { step: key(0) },
        Kind::FirstPage => Part::Frontier { step: key(0), page: 0 },
        Kind::Barriers => Part::Barriers { step: key(0) },
        Kind::Page => Part::Frontier { step: key(0), page: key(1) },
        Kind::Journal => Part::Journal { seq: key(0) },
        Kind::Message => Part::Message { step: key(0), position: key(1) },
        Kind::Letter => Part::Letter { id: letter },
        Kind::Input => Part::Input,
    }
}

/// The checksum of a row of the journal whose entry is encoded so.
fn sum_of(cell: &Cell, row: &Row, entry: &[u8]) -> Option<[u8; 8]> {
    let Some(Value::Bytes(base)) = row.value(1) else { return None };
    let base = Digest(base.as_slice().try_into().ok()?);
    let (step, path) = (number(row.value(2)?)?, number(row.value(3)?)?);
    let seq = cell.keys.first()?.cast_unsigned();
    Some(row_sum(seq, &base, step.cast_unsigned(), PathHash(path.cast_unsigned()), entry))
}

/// Which keys all payloads are under.
pub(crate) async fn payload_keys(shelf: &dyn Shelf) -> Result<PayloadKeys, StoreError> {
    let marks = shelf.codec().hook.as_ref().map_or(vec![], |codec| codec.marks());
    let stale = stale(shelf.codec());
    let mut keys = PayloadKeys::default();
    for column in &COLUMNS {
        let all = format!("length({}) > 0", column.name);
        keys.payloads += count(shelf, column, (all, vec![])).await?;
        keys.plain += count(shelf, column, beginning(column.name, "<>", &payload::ENCRYPTED)).await?;
        if let Some(which) = is_stale(column.name, &stale) {
            keys.stale += count(shelf, column, which).await?;
        }
        for (key, mark) in &marks {
            let found = count(shelf, column, beginning(column.name, "=", mark)).await?;
            *keys.under.entry(key.clone()).or_default() += found;
        }
    }
    keys.unknown = keys.payloads.saturating_sub(keys.plain + keys.under.values().sum::<u64>());
    Ok(keys)
}

async fn count(shelf: &dyn Shelf, column: &Column, (which, values): Which) -> Result<u64, StoreError> {
    let rows = shelf.ask(format!("SELECT count(*) FROM {} WHERE {which}", column.table), values).await?;
    let counted = rows.first().and_then(|row| number(row.value(0)?));
    Ok(counted.unwrap_or_default().cast_unsigned())
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        // Where names are bytes.
        Value::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// The run that errors name, or all of them.
pub(crate) fn about(namespace: &str, owner: &str) -> RunKey {
    let run = RunId::new(owner).or_else(|_| RunId::new("*")).expect("a star is a name");
    RunKey { namespace: Namespace::new(namespace).unwrap_or_default(), run }
}

fn odd(namespace: &str, owner: &str, what: &str) -> StoreError {
    let what = format!("{what} can't be what was written");
    StoreError::Corrupt { run: about(namespace, owner), step: None, what }
}
