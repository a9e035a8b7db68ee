//! The outbox: messages, and the channels that relays claim.
//!
//! Invariant: a channel has a row exactly while it has a pending message, and every change to its messages follows an
//! update of that row which demanded the claim's token and changed exactly one row.

use super::{
    SqliteStore, blobs,
    commit::insert_sql,
    error::{all_runs, damaged, undecoded, unreadable},
    locks::Locks,
    runs::{found, wrong_status},
    writer::{Halt, Outcome, Tx},
};
use crate::{
    check::is_elsewhere,
    clock::micros,
    codec::{self, Codec, Part},
    error::{Source, StoreError},
    outbox::{
        Backlog, Batch, Channel, Claim, ClaimFilter, Failure, Fate, MessageState, Outbox, OutboxFilter,
        OutboxRecord,
    },
    store::{Answer, Claimant, Tally},
};
use hapax_core::{
    canary,
    commit::StepCommit,
    id::{Namespace, RunId, RunKey},
    json::Json,
    limits::MAX_COUNTED,
    outbox::{Message, Place},
};
use rusqlite::{Connection, Row, ToSql, params, params_from_iter};
use std::{collections::BTreeSet, time::Duration};

/// A channel whose messages can't be read rests for so long, so that it doesn't keep the others from their turn.
const REST: Duration = Duration::from_secs(60);

/// How many places a list of so many values takes.
fn places(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// Writes what a step sends, behind its fence.
pub(super) fn insert(tx: &Tx<'_>, commit: &StepCommit, payloads: &[Vec<u8>]) -> rusqlite::Result<()> {
    let (namespace, run) = (commit.run.namespace.as_str(), commit.run.run.as_str());
    for (position, (message, payload)) in commit.outbox.iter().zip(payloads).enumerate() {
        tx.execute(
            &insert_sql(
                "INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, status, \
                 written_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'pending', ?8)",
            ),
            params![
                namespace,
                run,
                commit.checkpoint.step.cast_signed(),
                position as i64,
                message.topic,
                message.key,
                payload,
                tx.now,
            ],
        )?;
    }
    let topics: BTreeSet<&str> = commit.outbox.iter().map(|message| message.topic.as_str()).collect();
    topics.into_iter().try_for_each(|topic| open_channel(tx, &commit.run, topic))
}

/// There is something to deliver.
pub(super) fn open_channel(tx: &Tx<'_>, run: &RunKey, topic: &str) -> rusqlite::Result<()> {
    tx.execute(
        "INSERT INTO hapax_channels (namespace, run_id, topic, due_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        params![run.namespace.as_str(), run.run.as_str(), topic, tx.now],
    )?;
    Ok(())
}

/// Takes over channels that nobody holds.
fn claim(tx: &Tx<'_>, locks: &Locks, filter: &ClaimFilter, by: &Claimant) -> Outcome<Vec<Batch>> {
    let mut channels = due(tx, filter)?;
    if channels.len() < filter.channels {
        channels.extend(of_the_dead(tx, locks, filter)?);
        channels.truncate(filter.channels);
    }
    let mut batches = Vec::with_capacity(channels.len());
    for channel in channels {
        let token = uuid::Uuid::new_v4().as_u128();
        let claim = Claim { channel, token };
        match first_messages(tx, &claim.channel, filter.messages.max(1))? {
            Ok((messages, more)) => {
                hold(tx, &claim, by)?;
                batches.push(Batch { claim, messages, more });
            }
            Err(error) => {
                let Channel { run, topic } = &claim.channel;
                tracing::error!(run_id = %run, %topic, %error, "a message cannot be read; its topic rests");
                rest(tx, &claim.channel, REST)?;
            }
        }
    }
    Ok(batches)
}

/// Channels that may be claimed by the clock, those first that have waited longest.
fn due(tx: &Tx<'_>, filter: &ClaimFilter) -> rusqlite::Result<Vec<Channel>> {
    let mut sql = "SELECT run_id, topic FROM hapax_channels WHERE namespace = ? AND due_at <= ?".to_owned();
    let limit = i64::try_from(filter.channels).unwrap_or(i64::MAX);
    let mut values: Vec<Box<dyn ToSql + '_>> = vec![Box::new(filter.namespace.as_str()), Box::new(tx.now)];
    only_topics(&mut sql, &mut values, filter);
    sql.push_str(" ORDER BY due_at, run_id, topic LIMIT ?");
    values.push(Box::new(limit));
    let mut statement = tx.connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| channel(row, &filter.namespace))?;
    rows.collect()
}

/// Channels whose claims last, but not their claimants.
fn of_the_dead(tx: &Tx<'_>, locks: &Locks, filter: &ClaimFilter) -> rusqlite::Result<Vec<Channel>> {
    let mut sql =
        "SELECT run_id, topic, owner FROM hapax_channels WHERE namespace = ? AND owner IS NOT NULL AND due_at > ?"
            .to_owned();
    let mut values: Vec<Box<dyn ToSql + '_>> = vec![Box::new(filter.namespace.as_str()), Box::new(tx.now)];
    only_topics(&mut sql, &mut values, filter);
    sql.push_str(" ORDER BY due_at, run_id, topic");
    let mut statement = tx.connection.prepare_cached(&sql)?;
    let held = statement.query_map(params_from_iter(values), |row| {
        Ok((channel(row, &filter.namespace)?, row.get::<_, String>(2)?))
    })?;
    let mut free = vec![];
    for held in held {
        let (channel, owner) = held?;
        if locks.is_dead(&owner) {
            free.push(channel);
        }
    }
    Ok(free)
}

fn only_topics<'f>(sql: &mut String, values: &mut Vec<Box<dyn ToSql + 'f>>, filter: &'f ClaimFilter) {
    if !filter.topics.is_empty() {
        sql.push_str(&format!(" AND topic IN ({})", places(filter.topics.len())));
        values.extend(filter.topics.iter().map(|topic| Box::new(&**topic) as Box<dyn ToSql + 'f>));
    }
}

fn channel(row: &Row<'_>, namespace: &Namespace) -> rusqlite::Result<Channel> {
    let run = RunId::new(row.get_ref(0)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
    let run = RunKey { namespace: namespace.clone(), run };
    Ok(Channel { run, topic: row.get_ref(1)?.as_str()?.into() })
}

fn hold(tx: &Tx<'_>, claim: &Claim, by: &Claimant) -> rusqlite::Result<()> {
    let Channel { run, topic } = &claim.channel;
    tx.execute(
        "UPDATE hapax_channels SET token = ?4, owner = ?5, due_at = ?6 \
         WHERE namespace = ?1 AND run_id = ?2 AND topic = ?3",
        params![
            run.namespace.as_str(),
            run.run.as_str(),
            &**topic,
            claim.token.to_be_bytes(),
            &*by.owner,
            tx.now.saturating_add(micros(by.ttl)),
        ],
    )?;
    Ok(())
}

/// Nobody claims the channel for so long.
fn rest(tx: &Tx<'_>, channel: &Channel, time: Duration) -> rusqlite::Result<()> {
    tx.execute(
        "UPDATE hapax_channels SET token = NULL, owner = NULL, due_at = ?4 \
         WHERE namespace = ?1 AND run_id = ?2 AND topic = ?3",
        params![
            channel.run.namespace.as_str(),
            channel.run.run.as_str(),
            &*channel.topic,
            tx.now.saturating_add(micros(time)),
        ],
    )?;
    Ok(())
}

/// The columns of a message, in the order in which [`Stored::read`] takes them.
const STORED: &str =
    "run_id, step_id, position, topic, msg_key, payload, status, attempts, error, written_at";

/// A message's row, its payload still packed.
struct Stored {
    record: OutboxRecord,
    payload: Vec<u8>,
}

impl Stored {
    fn read(row: &Row<'_>, namespace: &Namespace) -> rusqlite::Result<Self> {
        let run = RunId::new(row.get_ref(0)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
        let state = match row.get_ref(6)?.as_str()? {
            "pending" => MessageState::Pending,
            "sent" => MessageState::Sent,
            "dead" => MessageState::Dead,
            other => return Err(damaged(format!("a message is `{other}`"))),
        };
        // Stands in for the real one until that is unpacked.
        let payload = Json::of(&()).map_err(|error| damaged(error.to_string()))?;
        let record = OutboxRecord {
            run: RunKey { namespace: namespace.clone(), run },
            place: Place { step: row.get::<_, i64>(1)?.cast_unsigned(), position: row.get(2)? },
            message: Message { topic: row.get(3)?, key: row.get(4)?, payload },
            state,
            attempts: row.get(7)?,
            error: row.get(8)?,
            written_at_us: row.get(9)?,
        };
        Ok(Self { record, payload: row.get(5)? })
    }

    fn unpack(self, connection: &Connection, codec: &Codec) -> Result<OutboxRecord, Source> {
        let Self { mut record, payload } = self;
        let OutboxRecord { run, place: Place { step, position }, .. } = &record;
        let part = Part::Message { step: *step, position: u64::from(*position) };
        let payload = blobs::whole(connection, codec, run, &payload).map_err(reason)?;
        let unpacked = codec.unpack(&payload, &codec::Place::of(run, part))?;
        record.message.payload = serde_json::from_slice(&unpacked)?;
        Ok(record)
    }
}

/// Why bytes can't be had, without SQLite's words around it.
fn reason(error: rusqlite::Error) -> Source {
    match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, reason) => reason,
        error => error.into(),
    }
}

/// What a channel holds: its oldest messages, and whether there are more. Or why that can't be told.
type Head = Result<(Vec<OutboxRecord>, bool), Source>;

/// The oldest pending messages of a channel.
fn first_messages(tx: &Tx<'_>, channel: &Channel, most: usize) -> rusqlite::Result<Head> {
    let sql = format!(
        "SELECT {STORED} FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2 AND topic = ?3 \
         AND status <> 'sent' AND status = 'pending' ORDER BY step_id, position LIMIT ?4"
    );
    let namespace = &channel.run.namespace;
    let mut statement = tx.connection.prepare_cached(&sql)?;
    let limit = i64::try_from(most.saturating_add(1)).unwrap_or(i64::MAX);
    let rows = statement
        .query_map(params![namespace.as_str(), channel.run.run.as_str(), &*channel.topic, limit], |row| {
            Stored::read(row, namespace)
        })?;
    let mut stored = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let more = stored.len() > most;
    stored.truncate(most);
    let messages: Result<_, Source> =
        stored.into_iter().map(|stored| stored.unpack(tx.connection, tx.codec)).collect();
    Ok(messages.map(|messages| (messages, more)))
}

/// Goes on with a claim until that time, or ends it; answers whether it was the channel's.
fn demand(tx: &Tx<'_>, claim: &Claim, due_at: i64, keep: bool) -> rusqlite::Result<bool> {
    let Channel { run, topic } = &claim.channel;
    let changed = tx.execute(
        "UPDATE hapax_channels SET due_at = ?5, token = iif(?6, token, NULL), owner = iif(?6, owner, NULL) \
         WHERE namespace = ?1 AND run_id = ?2 AND topic = ?3 AND token = ?4",
        params![run.namespace.as_str(), run.run.as_str(), &**topic, claim.token.to_be_bytes(), due_at, keep],
    )?;
    Ok(changed == 1)
}

fn lost<T>(claim: &Claim) -> Outcome<T> {
    Err(StoreError::ClaimLost { channel: claim.channel.clone() }.into())
}

/// A channel without a pending message has no row.
fn close_if_empty(tx: &Tx<'_>, channel: &Channel) -> rusqlite::Result<()> {
    tx.execute(
        "DELETE FROM hapax_channels WHERE namespace = ?1 AND run_id = ?2 AND topic = ?3 AND NOT EXISTS \
         (SELECT 1 FROM hapax_outbox AS o WHERE o.namespace = ?1 AND o.run_id = ?2 AND o.topic = ?3 \
          AND o.status <> 'sent' AND o.status = 'pending')",
        params![channel.run.namespace.as_str(), channel.run.run.as_str(), &*channel.topic],
    )?;
    Ok(())
}

fn mark_sent(tx: &Tx<'_>, claim: &Claim, sent: &[Place], keep: Option<Duration>) -> Outcome<()> {
    if !demand(tx, claim, tx.now.saturating_add(keep.map_or(0, micros)), keep.is_some())? {
        return lost(claim);
    }
    let Channel { run, topic } = &claim.channel;
    for place in sent {
        tx.execute(
            "UPDATE hapax_outbox SET status = 'sent' WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 \
             AND position = ?4 AND topic = ?5 AND status = 'pending'",
            params![
                run.namespace.as_str(),
                run.run.as_str(),
                place.step.cast_signed(),
                place.position,
                &**topic
            ],
        )?;
    }
    Ok(close_if_empty(tx, &claim.channel)?)
}

fn mark_failed(tx: &Tx<'_>, claim: &Claim, place: Place, failure: &Failure) -> Outcome<Fate> {
    if !demand(tx, claim, tx.now.saturating_add(micros(failure.again_after)), false)? {
        return lost(claim);
    }
    let Channel { run, topic } = &claim.channel;
    let (namespace, id, step) = (run.namespace.as_str(), run.run.as_str(), place.step.cast_signed());
    let attempts = tx.one(
        "UPDATE hapax_outbox SET attempts = attempts + ?7, error = ?6 WHERE namespace = ?1 AND run_id = ?2 \
         AND step_id = ?3 AND position = ?4 AND topic = ?5 AND status = 'pending' RETURNING attempts",
        params![namespace, id, step, place.position, &**topic, failure.error, failure.count()],
        |row| row.get::<_, u32>(0),
    )?;
    if !attempts.is_some_and(|attempts| failure.is_last(attempts)) {
        return Ok(Fate::Again);
    }
    tx.execute(
        "UPDATE hapax_outbox SET status = 'dead' WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3 AND position = ?4",
        params![namespace, id, step, place.position],
    )?;
    rest(tx, &claim.channel, Duration::ZERO)?;
    close_if_empty(tx, &claim.channel)?;
    Ok(Fate::Dead)
}

/// Messages by run, in the order in which they were written.
fn list(
    connection: &Connection,
    codec: &Codec,
    filter: &OutboxFilter,
) -> Result<Vec<OutboxRecord>, StoreError> {
    let about = all_runs(&filter.namespace);
    let unknown = |error| unreadable(error, &about);
    let (sql, values) = list_query(filter);
    let mut statement = connection.prepare_cached(&sql).map_err(unknown)?;
    let rows = statement.query_map(params_from_iter(values), |row| Stored::read(row, &filter.namespace));
    let stored = rows.and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>).map_err(unknown)?;
    let unpack = |stored: Stored| {
        let (run, step) = (stored.record.run.clone(), Some(stored.record.place.step));
        stored.unpack(connection, codec).map_err(|error| StoreError::undecoded(run, step, "a message", error))
    };
    // What is wanted is passed over, so that all of it is fetched together.
    stored.into_iter().map(unpack).filter(|record| record.is_ok() || !codec.wants()).collect()
}

/// A run's messages behind a place.
pub(super) fn of_run(
    connection: &Connection,
    codec: &Codec,
    run: &RunKey,
    after: Option<Place>,
    limit: usize,
) -> rusqlite::Result<Vec<OutboxRecord>> {
    let sql = format!(
        "SELECT {STORED} FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2 AND (step_id, position) > (?3, ?4) \
         ORDER BY step_id, position LIMIT ?5"
    );
    let (step, position) = after.map_or((-1, -1), |at| (at.step.cast_signed(), i64::from(at.position)));
    let from = params![run.namespace.as_str(), run.run.as_str(), step, position, limit as i64];
    let mut statement = connection.prepare_cached(&sql)?;
    let stored = statement.query_map(from, |row| Stored::read(row, &run.namespace))?;
    let unpack = |stored: rusqlite::Result<Stored>| {
        stored?.unpack(connection, codec).map_err(|error| undecoded(None, "a message", error))
    };
    stored.map(unpack).collect()
}

/// The question that a filter asks, and its values.
fn list_query(filter: &OutboxFilter) -> (String, Vec<Box<dyn ToSql + '_>>) {
    let mut sql = format!("SELECT {STORED} FROM hapax_outbox WHERE namespace = ?");
    let mut values: Vec<Box<dyn ToSql + '_>> = vec![Box::new(filter.namespace.as_str())];
    if let Some(run) = &filter.run {
        sql.push_str(" AND run_id = ?");
        values.push(Box::new(run.as_str()));
    }
    if !filter.states.is_empty() {
        if !filter.states.contains(&MessageState::Sent) {
            // In the words of the index over what isn't sent: most messages are.
            sql.push_str(" AND status <> 'sent'");
        }
        sql.push_str(&format!(" AND status IN ({})", places(filter.states.len())));
        values.extend(filter.states.iter().map(|state| Box::new(state.word()) as Box<dyn ToSql>));
    }
    sql.push_str(" ORDER BY run_id, step_id, position LIMIT ?");
    values.push(Box::new(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
    (sql, values)
}

/// How much is undelivered, from the index over what isn't sent.
fn backlog(connection: &Connection, namespace: &Namespace, now: i64) -> rusqlite::Result<Backlog> {
    let unsent = |status: &str| {
        format!(
            "FROM hapax_outbox INDEXED BY hapax_outbox_backlog WHERE namespace = ?1 AND status = '{status}' \
             AND status <> 'sent' AND written_at >= 0"
        )
    };
    let sql = format!(
        "SELECT (SELECT count(*) FROM (SELECT 1 {pending} LIMIT ?2)), (SELECT count(*) FROM (SELECT 1 {dead} LIMIT ?2)), \
         (SELECT min(written_at) {pending} AND written_at > 0)",
        pending = unsent("pending"),
        dead = unsent("dead"),
    );
    let most = MAX_COUNTED.saturating_add(1).cast_signed();
    connection.prepare_cached(&sql)?.query_row(params![namespace.as_str(), most], |row| {
        let tally =
            |column| Ok::<_, rusqlite::Error>(Tally::exactly(row.get::<_, i64>(column)?.cast_unsigned()));
        let (pending, dead) = (tally(0)?, tally(if canary::on("dead_is_pending") { 0 } else { 1 })?);
        Ok(Backlog { pending, dead, oldest_pending_at_us: row.get(2)?, at_us: now })
    })
}

/// The run whose messages are delivered from here.
fn sender<T>(tx: &Tx<'_>, run: &RunKey) -> Result<(), Halt<T>> {
    let record = found(tx, run)?;
    if is_elsewhere(&record.status) { Err(wrong_status(record).into()) } else { Ok(()) }
}

fn retry_dead(tx: &Tx<'_>, run: &RunKey) -> Outcome<usize> {
    sender(tx, run)?;
    let place = params![run.namespace.as_str(), run.run.as_str()];
    let topics = {
        let mut statement = tx.connection.prepare_cached(
            "SELECT DISTINCT topic FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2 AND status <> 'sent' \
             AND status = 'dead'",
        )?;
        let topics = statement.query_map(place, |row| row.get::<_, String>(0))?;
        topics.collect::<rusqlite::Result<Vec<_>>>()?
    };
    let changed = tx.execute(
        "UPDATE hapax_outbox SET status = 'pending', attempts = 0, error = NULL \
         WHERE namespace = ?1 AND run_id = ?2 AND status <> 'sent' AND status = 'dead'",
        place,
    )?;
    topics.iter().try_for_each(|topic| open_channel(tx, run, topic))?;
    tx.execute(
        "UPDATE hapax_channels SET due_at = ?3 WHERE namespace = ?1 AND run_id = ?2 AND token IS NULL AND due_at > ?3",
        params![run.namespace.as_str(), run.run.as_str(), tx.now],
    )?;
    Ok(changed)
}

fn drop_dead(tx: &Tx<'_>, run: &RunKey) -> Outcome<usize> {
    sender(tx, run)?;
    let dropped = tx.execute(
        "DELETE FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2 AND status <> 'sent' AND status = 'dead'",
        params![run.namespace.as_str(), run.run.as_str()],
    )?;
    blobs::sweep(tx, run)?;
    Ok(dropped)
}

impl Outbox for SqliteStore {
    fn claim(&self, filter: ClaimFilter, by: Claimant) -> Answer<'_, Vec<Batch>> {
        Box::pin(async move {
            self.leases.locks.hold(&by.owner)?;
            let leases = self.leases.clone();
            let about = all_runs(&filter.namespace);
            self.queue.call(about, move |tx| claim(tx, &leases.locks, &filter, &by)).await
        })
    }

    fn mark_sent(&self, claim: Claim, sent: Vec<Place>, keep: Option<Duration>) -> Answer<'_, ()> {
        Box::pin(async move {
            let about = claim.channel.run.clone();
            self.queue.call(about, move |tx| mark_sent(tx, &claim, &sent, keep)).await
        })
    }

    fn mark_failed(&self, claim: Claim, place: Place, failure: Failure) -> Answer<'_, Fate> {
        Box::pin(async move {
            let about = claim.channel.run.clone();
            self.queue.call(about, move |tx| mark_failed(tx, &claim, place, &failure)).await
        })
    }

    fn list(&self, filter: OutboxFilter) -> Answer<'_, Vec<OutboxRecord>> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            let read = move |connection: &_, codec: &_, _: &_| list(connection, codec, &filter);
            self.read_payloads(about, read).await
        })
    }

    fn backlog(&self, namespace: Namespace) -> Answer<'_, Backlog> {
        Box::pin(async move {
            let (now, about) = (self.clock.now_us(), all_runs(&namespace));
            let read = move |connection: &_, _: &_, about: &_| {
                backlog(connection, &namespace, now).map_err(|error| unreadable(error, about))
            };
            self.read(about, read).await
        })
    }

    fn retry_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| retry_dead(tx, &run)).await })
    }

    fn drop_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| drop_dead(tx, &run)).await })
    }
}
