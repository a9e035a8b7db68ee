//! How bytes come to rest, and how objects end.
//!
//! Invariant: an object that a database has ever named has a row that says what it is: on its way there (0), resting (1), to
//! be deleted (2). The row is written before the object, and goes after it, so no crash leaves an object that nobody knows.
//! A run's bytes are in exactly one of the two places that rows tell, since what moves them is one transaction:
//!
//! ```text
//! mover                                                   database
//! names an object                                         row 0
//! puts it; it is durable
//! says that it is there, unless it is to be deleted       row 1, and the bytes beside their row are gone
//! ```
//!
//! Whoever deletes first makes a row 2, so that a mover that stood still in between can't refer to what is gone.

use super::{
    From, Rested, Resting,
    fetch::{here, name_of},
};
use crate::{
    db::{Row, Statement, ToValue, Value},
    error::{Source, StoreError},
    recode::{Shelf, about, text},
};
use futures::stream::{self, StreamExt};
use hapax_core::{
    canary,
    id::RunKey,
    key::{Digest, sha256},
};

/// Payloads of one look.
const BATCH: usize = 64;
/// Payloads on their way at the same time.
pub(crate) const AT_A_TIME: usize = 8;

/// Bytes beside their row, by what identifies them.
struct Bytes {
    run: RunKey,
    hash: Digest,
}

/// What became of bytes that may rest.
enum Became {
    Resting,
    /// They, or the run, changed meanwhile.
    Changed,
    /// They aren't what was written: there is nothing to bring to rest.
    Damaged(String),
    /// The object store doesn't take them.
    Stayed(String),
}

/// Brings the next payloads to rest, and ends the next objects whose time is over. Neither waits for the end of the other, however
/// many there are.
pub(crate) async fn rest(shelf: &dyn Shelf, from: From) -> Result<Rested, StoreError> {
    let Some(resting) = &shelf.codec().resting else { return Ok(Rested::default()) };
    let mut done = Rested::default();
    let ended = from.ended || !end_objects(shelf, resting, &mut done).await?;
    let next = if from.moved { None } else { move_some(shelf, resting, &from, &mut done).await? };
    done.next = match next {
        Some(next) => Some(From { ended, ..next }),
        None if ended => None,
        None => Some(From { moved: true, shard: from.shard, ..From::default() }),
    };
    Ok(done)
}

/// Brings the next payloads to rest; answers from where to go on.
async fn move_some(
    shelf: &dyn Shelf,
    resting: &Resting,
    from: &From,
    done: &mut Rested,
) -> Result<Option<From>, StoreError> {
    let found = find(shelf, resting, from).await?;
    let next = found.last().filter(|_| found.len() == BATCH).map(|last| From {
        namespace: last.run.namespace.to_string(),
        run: last.run.run.to_string(),
        hash: last.hash.0.to_vec(),
        ..*from
    });
    let mut is_away = false;
    let became = stream::iter(found).map(|bytes| move_out(shelf, resting, bytes)).buffered(AT_A_TIME);
    for became in became.collect::<Vec<_>>().await {
        match became? {
            Became::Resting => done.rested += 1,
            Became::Changed => {}
            Became::Damaged(why) => done.failed.push(why),
            Became::Stayed(why) => {
                is_away = true;
                done.failed.push(why);
            }
        }
    }
    Ok(next.filter(|_| !is_away || done.rested > 0))
}

/// What may rest: bytes of runs in which nothing has changed for a while, but for messages that are yet to be sent.
async fn find(shelf: &dyn Shelf, resting: &Resting, from: &From) -> Result<Vec<Bytes>, StoreError> {
    let sql = format!(
        "SELECT b.namespace, b.run_id, b.hash FROM hapax_blobs b \
         JOIN hapax_runs r ON r.namespace = b.namespace AND r.run_id = b.run_id \
         WHERE b.part = 0 AND (b.namespace, b.run_id, b.hash) > (?, ?, ?) AND r.updated_at <= {} - ? AND {} \
         ORDER BY b.namespace, b.run_id, b.hash LIMIT {BATCH}",
        shelf.now(),
        unless_unsent("b"),
    );
    let after = i64::try_from(resting.after.as_micros()).unwrap_or(i64::MAX);
    let values = vec![
        from.namespace.to_value(),
        from.run.to_value(),
        Value::Bytes(from.hash.clone()),
        Value::Int(after),
    ];
    let rows = shelf.ask(sql, values).await?;
    let bytes = |row: &Row| {
        let run = about(&text(row.value(0)?)?, &text(row.value(1)?)?);
        Some(Bytes { run, hash: Digest(bytes_of(row, 2)?.try_into().ok()?) })
    };
    rows.iter().map(bytes).collect::<Option<_>>().ok_or_else(|| odd(from, "what identifies a large payload"))
}

/// What no message carries that is yet to be sent: a relay needs no object store.
fn unless_unsent(bytes: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM hapax_outbox o WHERE o.namespace = {bytes}.namespace AND o.run_id = {bytes}.run_id \
         AND o.status <> 'sent' AND substr(o.payload, {}, 32) = {bytes}.hash)",
        crate::blobs::HASH_AT
    )
}

/// Brings bytes to rest.
async fn move_out(shelf: &dyn Shelf, resting: &Resting, bytes: Bytes) -> Result<Became, StoreError> {
    let bytes = &bytes;
    if forget(shelf, bytes).await? {
        return Ok(Became::Resting);
    }
    let sql = "SELECT bytes FROM hapax_blobs WHERE namespace = ? AND run_id = ? AND hash = ? ORDER BY part";
    let rows = shelf.ask(sql.into(), bytes.which()).await?;
    let whole: Vec<u8> = rows.iter().filter_map(|row| bytes_of(row, 0)).flatten().collect();
    if rows.is_empty() {
        return Ok(Became::Changed);
    }
    if sha256(&whole) != bytes.hash {
        return Ok(Became::Damaged(format!("a large payload of run `{}` is damaged", bytes.run)));
    }
    let Some(name) = announce(shelf, bytes).await? else { return Ok(Became::Changed) };
    if canary::on("rest_before_put") {
        is_met(shelf, bytes, bytes.moved(&name)).await?;
    }
    if let Err(error) = put(resting, name.clone(), whole).await {
        return Ok(Became::Stayed(format!(
            "the object store can't take a payload of run `{}`: {error}",
            bytes.run
        )));
    }
    if is_met(shelf, bytes, bytes.moved(&name)).await? {
        return Ok(Became::Resting);
    }
    // Whoever ended it while this stood still has forgotten it. Otherwise it is known, and may be referred to.
    let known = "SELECT 1 FROM hapax_objects WHERE namespace = ? AND run_id = ? AND hash = ? AND name = ?";
    let Statement { sql, values, .. } = bytes.of(&name, known);
    if shelf.ask(sql, values).await?.is_empty() {
        let _ = delete(resting, name).await;
    }
    Ok(Became::Changed)
}

/// The name of an object that is on its way from now on: that of an attempt that came to nothing, or a new one. So there are no
/// more of them than payloads, however long an object store is away.
async fn announce(shelf: &dyn Shelf, bytes: &Bytes) -> Result<Option<String>, StoreError> {
    let sql = "SELECT name FROM hapax_objects WHERE namespace = ? AND run_id = ? AND hash = ? AND state = 0";
    let rows = shelf.ask(sql.into(), bytes.which()).await?;
    for name in rows.iter().filter_map(|row| text(row.value(0)?)) {
        if is_met(shelf, bytes, vec![bytes.announced_again(&name, &shelf.now())]).await? {
            return Ok(Some(name));
        }
    }
    let name = name_of(&bytes.hash);
    Ok(is_met(shelf, bytes, vec![bytes.announced(&name, &shelf.now())]).await?.then_some(name))
}

async fn put(resting: &Resting, name: String, whole: Vec<u8>) -> Result<(), Source> {
    let depot = resting.depot.clone();
    here()?.spawn(async move { depot.put(&name, whole).await }).await?
}

async fn delete(resting: &Resting, name: String) -> Result<(), Source> {
    let depot = resting.depot.clone();
    here()?.spawn(async move { depot.delete(&name).await }).await?
}

/// Forgets bytes that were written again although they rest.
async fn forget(shelf: &dyn Shelf, bytes: &Bytes) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM hapax_objects WHERE namespace = ? AND run_id = ? AND hash = ? AND state = 1";
    if shelf.ask(sql.into(), bytes.which()).await?.is_empty() {
        return Ok(false);
    }
    let sql = format!(
        "DELETE FROM hapax_blobs WHERE namespace = ? AND run_id = ? AND hash = ? AND EXISTS ({sql}) AND {}",
        unless_unsent("hapax_blobs")
    );
    let values = [bytes.which(), bytes.which()].concat();
    is_met(shelf, bytes, vec![Statement { sql, values, must_meet: true }]).await
}

/// Deletes objects to which no run refers, when their time is over; answers whether there may be more of them. Each is then at the
/// end of the queue: one that can't be deleted stands in no other's way.
async fn end_objects(shelf: &dyn Shelf, resting: &Resting, done: &mut Rested) -> Result<bool, StoreError> {
    let sql = format!(
        "SELECT namespace, run_id, hash, name FROM hapax_objects WHERE state <> 1 AND since <= {} - ? \
         ORDER BY since LIMIT {BATCH}",
        shelf.now()
    );
    let object = |row: &Row| {
        let run = about(&text(row.value(0)?)?, &text(row.value(1)?)?);
        Some((Bytes { run, hash: Digest(bytes_of(row, 2)?.try_into().ok()?) }, text(row.value(3)?)?))
    };
    let rows = shelf.ask(sql, vec![grace(resting)]).await?;
    let objects = rows.iter().map(object).collect::<Option<Vec<_>>>();
    let objects = objects.ok_or_else(|| odd(&From::default(), "what identifies an object"))?;
    let end = |(bytes, name)| end_object(shelf, resting, bytes, name);
    for ended in stream::iter(objects).map(end).buffered(AT_A_TIME).collect::<Vec<_>>().await {
        match ended? {
            Ok(deleted) => done.deleted += u64::from(deleted),
            Err(why) => done.failed.push(why),
        }
    }
    Ok(rows.len() == BATCH && done.deleted > 0)
}

fn grace(resting: &Resting) -> Value {
    Value::Int(i64::try_from(resting.grace.as_micros()).unwrap_or(i64::MAX))
}

/// Deletes an object; answers whether it was to be, or why it is still there.
async fn end_object(
    shelf: &dyn Shelf,
    resting: &Resting,
    bytes: Bytes,
    name: String,
) -> Result<Result<bool, String>, StoreError> {
    if !is_met(shelf, &bytes, vec![bytes.condemned(&name, resting, &shelf.now())]).await? {
        return Ok(Ok(false));
    }
    if let Err(error) = delete(resting, name.clone()).await {
        return Ok(Err(format!("the object store can't delete `{name}`: {error}")));
    }
    is_met(shelf, &bytes, vec![bytes.over(&name)]).await?;
    Ok(Ok(true))
}

impl Bytes {
    fn which(&self) -> Vec<Value> {
        vec![
            self.run.namespace.as_str().to_value(),
            self.run.run.as_str().to_value(),
            Value::Bytes(self.hash.0.to_vec()),
        ]
    }

    fn of(&self, name: &str, sql: impl Into<String>) -> Statement {
        let values = [self.which(), vec![name.to_value()]].concat();
        Statement { sql: sql.into(), values, must_meet: true }
    }

    /// An object is on its way.
    fn announced(&self, name: &str, now: &str) -> Statement {
        self.of(
            name,
            format!(
                "INSERT INTO hapax_objects (namespace, run_id, hash, name, state, since) VALUES (?, ?, ?, ?, 0, {now})"
            ),
        )
    }

    /// It is tried again under its name, and nobody ends it meanwhile.
    fn announced_again(&self, name: &str, now: &str) -> Statement {
        let which = "WHERE namespace = ? AND run_id = ? AND hash = ? AND name = ? AND state = 0";
        self.of(name, format!("UPDATE hapax_objects SET since = {now} {which}"))
    }

    /// The object is there, and the bytes aren't beside their row any more.
    fn moved(&self, name: &str) -> Vec<Statement> {
        let sql = "UPDATE hapax_objects SET state = 1 WHERE namespace = ? AND run_id = ? AND hash = ? AND name = ? AND state = 0";
        let object = Statement { must_meet: !canary::on("moves_anyway"), ..self.of(name, sql) };
        let sql = format!(
            "DELETE FROM hapax_blobs WHERE namespace = ? AND run_id = ? AND hash = ? AND {}",
            unless_unsent("hapax_blobs")
        );
        let bytes = Statement { sql, values: self.which(), must_meet: true };
        vec![object, bytes]
    }

    /// Nobody may refer to the object any more, unless it was announced again since it was found: then it is on its way once more.
    fn condemned(&self, name: &str, resting: &Resting, now: &str) -> Statement {
        let last = if canary::on("condemned_anyway") { "9223372036854775807" } else { now };
        let which = "WHERE namespace = ? AND run_id = ? AND hash = ? AND name = ? AND state <> 1";
        let sql =
            format!("UPDATE hapax_objects SET state = 2, since = {now} {which} AND since <= {last} - ?");
        let Statement { mut values, must_meet, .. } = self.of(name, "");
        values.push(grace(resting));
        Statement { sql, values, must_meet }
    }

    /// The object is gone.
    fn over(&self, name: &str) -> Statement {
        self.of(
            name,
            "DELETE FROM hapax_objects WHERE namespace = ? AND run_id = ? AND hash = ? AND name = ? AND state = 2",
        )
    }
}

/// All of them in one transaction that holds the run's row, or none.
async fn is_met(shelf: &dyn Shelf, bytes: &Bytes, statements: Vec<Statement>) -> Result<bool, StoreError> {
    shelf.all_or_none(bytes.run.clone(), statements).await
}

fn bytes_of(row: &Row, at: usize) -> Option<Vec<u8>> {
    match row.value(at)? {
        Value::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn odd(from: &From, what: &str) -> StoreError {
    StoreError::Corrupt {
        run: about(&from.namespace, &from.run),
        step: None,
        what: format!("{what} can't be read"),
    }
}
