//! The outbox: messages, and the channels that relays claim.
//!
//! Invariant: a channel has a row exactly while it has a pending message, and every change to its messages follows an
//! update of that row which demanded the claim's token and met exactly one row.

use super::{
    ServerStore, ask, blobs, call,
    error::{Halt, Outcome, all_runs, undone},
    look,
    runs::{found_locked, wrong_status},
    sql::{Fault, GROUP_BYTES, Row, Session, Value, groups, one, place_rows, places, values},
    with_hand,
    writer::Tx,
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
    commit::StepCommit,
    id::{Namespace, RunId, RunKey},
    json::Json,
    limits::MAX_COUNTED,
    outbox::{Message, Place},
};
use std::{collections::BTreeSet, time::Duration};

/// A channel whose messages can't be read rests for so long, so that it doesn't keep the others from their turn.
const REST: Duration = Duration::from_secs(60);
/// Messages that one statement writes at the most.
const ROWS: usize = 200;

/// Writes what a step sends, behind its fence.
pub(super) async fn insert(tx: &mut Tx<'_>, commit: &StepCommit, payloads: &[Vec<u8>]) -> Result<(), Fault> {
    let (namespace, run) = (commit.run.namespace.as_str(), commit.run.run.as_str());
    let numbered: Vec<_> = commit.outbox.iter().zip(payloads).zip(0_u64..).collect();
    for some in groups(&numbered, ROWS, GROUP_BYTES, |((_, payload), _)| payload.len()) {
        let mut all: Vec<Value<'_>> = Vec::with_capacity(some.len() * 7);
        for ((message, payload), position) in some {
            let (topic, key) = (message.topic.as_str(), message.key.as_str());
            all.extend_from_slice(values![
                namespace,
                run,
                commit.checkpoint.step,
                *position,
                topic,
                key,
                *payload
            ]);
        }
        let row = "(?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now})";
        let sql = format!(
            "INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, status, attempts, \
             written_at) VALUES {}",
            vec![row; some.len()].join(", ")
        );
        tx.execute(&sql, &all).await?;
    }
    let topics: BTreeSet<&str> = commit.outbox.iter().map(|message| message.topic.as_str()).collect();
    for topic in topics {
        open_channel(tx, &commit.run, topic).await?;
    }
    Ok(())
}

/// There is something to deliver.
pub(super) async fn open_channel(tx: &mut Tx<'_>, run: &RunKey, topic: &str) -> Result<(), Fault> {
    let sql = format!(
        "INSERT INTO hapax_channels (namespace, run_id, topic, due_at) VALUES (?, ?, ?, {{now}}){}",
        tx.session.unless_there()
    );
    tx.execute(&sql, values![run.namespace.as_str(), run.run.as_str(), topic]).await?;
    Ok(())
}

/// Takes over channels that nobody holds.
async fn claim(tx: &mut Tx<'_>, filter: &ClaimFilter, by: &Claimant) -> Outcome<Vec<Batch>> {
    let channels = due(tx, filter).await?;
    let mut batches = Vec::with_capacity(channels.len());
    for channel in channels {
        let claim = Claim { channel, token: uuid::Uuid::new_v4().as_u128() };
        let most = filter.messages.max(1);
        let messages = match first_messages(tx, &claim.channel, most).await? {
            // What is large may have been encoded anew between the look at its row and the look at its bytes.
            Err(_) => first_messages(tx, &claim.channel, most).await?,
            messages => messages,
        };
        match messages {
            Ok((messages, more)) => {
                hold(tx, &claim, by).await?;
                batches.push(Batch { claim, messages, more });
            }
            Err(error) => {
                let Channel { run, topic } = &claim.channel;
                tracing::error!(run_id = %run, %topic, %error, "a message cannot be read; its topic rests");
                rest(tx, &claim.channel, REST).await?;
            }
        }
    }
    Ok(batches)
}

/// Channels that may be claimed by the clock, those first that have waited longest; locked.
async fn due(tx: &mut Tx<'_>, filter: &ClaimFilter) -> Result<Vec<Channel>, Fault> {
    let mut sql =
        "SELECT run_id, topic FROM hapax_channels WHERE namespace = ? AND due_at > 0 AND due_at <= {now}"
            .to_owned();
    let mut all: Vec<Value<'_>> = vec![filter.namespace.as_str().into()];
    if !filter.topics.is_empty() {
        sql.push_str(&format!(" AND topic IN {}", places(filter.topics.len())));
        all.extend(filter.topics.iter().map(|topic| Value::from(&**topic)));
    }
    sql.push_str(" ORDER BY due_at, run_id, topic LIMIT ? FOR UPDATE SKIP LOCKED");
    all.push(filter.channels.into());
    let rows = tx.rows(&sql, &all).await?;
    let channel = |row: &Row| {
        let run = RunKey { namespace: filter.namespace.clone(), run: RunId::new(row.text(0)?)? };
        Ok(Channel { run, topic: row.text(1)?.into() })
    };
    rows.iter().map(channel).collect()
}

async fn hold(tx: &mut Tx<'_>, claim: &Claim, by: &Claimant) -> Result<(), Fault> {
    let Channel { run, topic } = &claim.channel;
    tx.execute(
        "UPDATE hapax_channels SET token = ?, owner = ?, due_at = {now} + ? \
         WHERE namespace = ? AND run_id = ? AND topic = ?",
        values![
            &claim.token.to_be_bytes(),
            &*by.owner,
            micros(by.ttl),
            run.namespace.as_str(),
            run.run.as_str(),
            &**topic,
        ],
    )
    .await?;
    Ok(())
}

/// Nobody claims the channel for so long.
async fn rest(tx: &mut Tx<'_>, channel: &Channel, time: Duration) -> Result<(), Fault> {
    tx.execute(
        "UPDATE hapax_channels SET token = NULL, owner = NULL, due_at = {now} + ? \
         WHERE namespace = ? AND run_id = ? AND topic = ?",
        values![micros(time), channel.run.namespace.as_str(), channel.run.run.as_str(), &*channel.topic,],
    )
    .await?;
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
    fn read(row: &Row, namespace: &Namespace) -> Result<Self, Fault> {
        let state = match row.text(6)? {
            "pending" => MessageState::Pending,
            "sent" => MessageState::Sent,
            "dead" => MessageState::Dead,
            other => return Err(Fault::damage(format!("a message is `{other}`"))),
        };
        let small = |column| {
            u32::try_from(row.int(column)?).map_err(|_| Fault::damage("a count of a message can't be"))
        };
        // Stands in for the real one until that is unpacked.
        let payload = Json::of(&()).map_err(|error| Fault::damage(error.to_string()))?;
        let record = OutboxRecord {
            run: RunKey { namespace: namespace.clone(), run: RunId::new(row.text(0)?)? },
            place: Place { step: row.count(1)?, position: small(2)? },
            message: Message { topic: row.text(3)?.into(), key: row.text(4)?.into(), payload },
            state,
            attempts: small(7)?,
            error: row.maybe_blob(8)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
            written_at_us: row.int(9)?,
        };
        Ok(Self { record, payload: row.blob(5)?.to_vec() })
    }

    /// Its record; or why its payload can't be read.
    async fn unpack(
        self,
        session: &mut dyn Session,
        codec: &Codec,
    ) -> Result<Result<OutboxRecord, Source>, Fault> {
        let payload = match blobs::whole(session, codec, &self.record.run, &self.payload).await {
            Ok(payload) => payload.into_owned(),
            Err(Fault::Damage(_, what)) => return Ok(Err(what.into())),
            Err(Fault::Away(away)) => return Ok(Err(away.into())),
            Err(fault) => return Err(fault),
        };
        Ok(Self { payload, ..self }.decode(codec))
    }

    fn decode(self, codec: &Codec) -> Result<OutboxRecord, Source> {
        let Self { mut record, payload } = self;
        let OutboxRecord { run, place: Place { step, position }, .. } = &record;
        let part = Part::Message { step: *step, position: u64::from(*position) };
        let unpacked = codec.unpack(&payload, &codec::Place::of(run, part))?;
        record.message.payload = serde_json::from_slice(&unpacked)?;
        Ok(record)
    }
}

/// What a channel holds: its oldest messages, and whether there are more. Or why that can't be told.
type Head = Result<(Vec<OutboxRecord>, bool), Source>;

/// The oldest pending messages of a channel.
async fn first_messages(tx: &mut Tx<'_>, channel: &Channel, most: usize) -> Result<Head, Fault> {
    let sql = format!(
        "SELECT {STORED} FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND topic = ? \
         AND status = 'pending' ORDER BY step_id, position LIMIT ?"
    );
    let (namespace, run) = (&channel.run.namespace, &channel.run.run);
    let which = values![namespace.as_str(), run.as_str(), &*channel.topic, most.saturating_add(1)];
    let rows = tx.rows(&sql, which).await?;
    let mut stored = rows.iter().map(|row| Stored::read(row, namespace)).collect::<Result<Vec<_>, _>>()?;
    let more = stored.len() > most;
    stored.truncate(most);
    let mut messages = vec![];
    for stored in stored {
        match stored.unpack(tx.session, tx.codec).await? {
            Ok(record) => messages.push(record),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok((messages, more)))
}

/// Goes on with a claim for so long, or ends it; answers whether it was the channel's.
async fn demand(tx: &mut Tx<'_>, claim: &Claim, due_in: i64, keep: bool) -> Result<bool, Fault> {
    let Channel { run, topic } = &claim.channel;
    let met = tx
        .execute(
            "UPDATE hapax_channels SET due_at = {now} + ?, token = CASE WHEN ? = 1 THEN token ELSE NULL END, \
             owner = CASE WHEN ? = 1 THEN owner ELSE NULL END \
             WHERE namespace = ? AND run_id = ? AND topic = ? AND token = ?",
            values![
                due_in,
                keep,
                keep,
                run.namespace.as_str(),
                run.run.as_str(),
                &**topic,
                &claim.token.to_be_bytes(),
            ],
        )
        .await?;
    Ok(met == 1)
}

fn lost<T>(claim: &Claim) -> Outcome<T> {
    Err(StoreError::ClaimLost { channel: claim.channel.clone() }.into())
}

/// A channel without a pending message has no row.
async fn close_if_empty(tx: &mut Tx<'_>, channel: &Channel) -> Result<(), Fault> {
    let (namespace, run, topic) = (channel.run.namespace.as_str(), channel.run.run.as_str(), &*channel.topic);
    let pending = tx
        .one(
            "SELECT 1 FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND topic = ? AND status = 'pending' LIMIT 1",
            values![namespace, run, topic],
        )
        .await?;
    if pending.is_none() {
        let sql = "DELETE FROM hapax_channels WHERE namespace = ? AND run_id = ? AND topic = ?";
        tx.execute(sql, values![namespace, run, topic]).await?;
    }
    Ok(())
}

async fn mark_sent(tx: &mut Tx<'_>, claim: &Claim, sent: &[Place], keep: Option<Duration>) -> Outcome<()> {
    let Channel { run, topic } = &claim.channel;
    // A step of the run that writes to this topic is kept out until this is over, so that the channel isn't closed with
    // its message pending.
    found_or_gone(tx, run).await?;
    if !demand(tx, claim, keep.map_or(0, micros), keep.is_some()).await? {
        return lost(claim);
    }
    for some in sent.chunks(ROWS) {
        let sql = format!(
            "UPDATE hapax_outbox SET status = 'sent' WHERE namespace = ? AND run_id = ? AND topic = ? \
             AND status = 'pending' AND (step_id, position) IN ({})",
            place_rows(some.len(), 2)
        );
        let mut all: Vec<Value<'_>> = values![run.namespace.as_str(), run.run.as_str(), &**topic].to_vec();
        for place in some {
            all.extend_from_slice(values![place.step, u64::from(place.position)]);
        }
        tx.execute(&sql, &all).await?;
    }
    Ok(close_if_empty(tx, &claim.channel).await?)
}

/// Locks the run's row, if it is there: whoever writes to the run waits.
async fn found_or_gone(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let sql = "SELECT 1 FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE";
    tx.one(sql, values![run.namespace.as_str(), run.run.as_str()]).await.map(drop)
}

async fn mark_failed(tx: &mut Tx<'_>, claim: &Claim, place: Place, failure: &Failure) -> Outcome<Fate> {
    let Channel { run, topic } = &claim.channel;
    found_or_gone(tx, run).await?;
    if !demand(tx, claim, micros(failure.again_after), false).await? {
        return lost(claim);
    }
    let (namespace, id, position) = (run.namespace.as_str(), run.run.as_str(), u64::from(place.position));
    let met = tx
        .execute(
            "UPDATE hapax_outbox SET attempts = attempts + ?, error = ? WHERE namespace = ? AND run_id = ? \
             AND step_id = ? AND position = ? AND topic = ? AND status = 'pending'",
            values![
                u64::from(failure.count()),
                failure.error.as_bytes(),
                namespace,
                id,
                place.step,
                position,
                &**topic
            ],
        )
        .await?;
    let at = values![namespace, id, place.step, position];
    let sql = "SELECT attempts FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND step_id = ? AND position = ?";
    let attempts = tx.one(sql, at).await?.map_or(Ok(0), |row| row.int(0))?;
    if met == 0 || !failure.is_last(u32::try_from(attempts).unwrap_or(u32::MAX)) {
        return Ok(Fate::Again);
    }
    let sql = "UPDATE hapax_outbox SET status = 'dead' WHERE namespace = ? AND run_id = ? AND step_id = ? AND position = ?";
    tx.execute(sql, at).await?;
    rest(tx, &claim.channel, Duration::ZERO).await?;
    close_if_empty(tx, &claim.channel).await?;
    Ok(Fate::Dead)
}

/// Messages by run, in the order in which they were written.
async fn list(
    session: &mut dyn Session,
    codec: &Codec,
    filter: &OutboxFilter,
) -> Result<Vec<OutboxRecord>, StoreError> {
    let about = all_runs(&filter.namespace);
    let failed = |fault: Fault| undone(fault, &about);
    let (sql, all) = list_query(filter);
    let rows = session.rows(&sql, &all).await.map_err(failed)?;
    let mut found = vec![];
    for row in &rows {
        let stored = Stored::read(row, &filter.namespace).map_err(failed)?;
        let (run, step) = (stored.record.run.clone(), Some(stored.record.place.step));
        let record = stored.unpack(session, codec).await.map_err(failed)?;
        if codec.wants() {
            // So that all of it is fetched together.
            continue;
        }
        found.push(record.map_err(|error| StoreError::undecoded(run, step, "a message", error))?);
    }
    Ok(found)
}

/// A run's messages behind a place.
pub(super) async fn of_run(
    session: &mut dyn Session,
    codec: &Codec,
    run: &RunKey,
    after: Option<Place>,
    limit: usize,
) -> Result<Vec<OutboxRecord>, Fault> {
    let sql = format!(
        "SELECT {STORED} FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND (step_id, position) > (?, ?) \
         ORDER BY step_id, position LIMIT ?"
    );
    let (step, position) = after.map_or((-1, -1), |at| (at.step.cast_signed(), i64::from(at.position)));
    let from = values![run.namespace.as_str(), run.run.as_str(), step, position, limit];
    let rows = session.rows(&sql, from).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let record = Stored::read(row, &run.namespace)?.unpack(session, codec).await?;
        found.push(record.map_err(|error| Fault::undecoded(None, "a message", error))?);
    }
    Ok(found)
}

/// The question that a filter asks, and its values.
fn list_query(filter: &OutboxFilter) -> (String, Vec<Value<'_>>) {
    let mut sql = format!("SELECT {STORED} FROM hapax_outbox WHERE namespace = ?");
    let mut all: Vec<Value<'_>> = vec![filter.namespace.as_str().into()];
    if let Some(run) = &filter.run {
        sql.push_str(" AND run_id = ?");
        all.push(run.as_str().into());
    }
    if !filter.states.is_empty() {
        sql.push_str(&format!(" AND status IN {}", places(filter.states.len())));
        all.extend(filter.states.iter().map(|state| Value::from(state.word())));
    }
    sql.push_str(" ORDER BY run_id, step_id, position LIMIT ?");
    all.push(filter.limit.into());
    (sql, all)
}

/// How much is undelivered, from the index over what isn't sent: one question.
async fn backlog(session: &mut dyn Session, namespace: &Namespace) -> Result<Backlog, Fault> {
    let unsent = |status: &str| {
        format!(
            "FROM hapax_outbox WHERE namespace = ? AND status = '{status}' AND status <> 'sent' AND written_at >= 0"
        )
    };
    let sql = format!(
        "SELECT (SELECT count(*) FROM (SELECT 1 AS one {pending} LIMIT ?) AS waiting), \
         (SELECT count(*) FROM (SELECT 1 AS one {dead} LIMIT ?) AS given_up), (SELECT min(written_at) {pending}), {{now}}",
        pending = unsent("pending"),
        dead = unsent("dead"),
    );
    let (name, most) = (namespace.as_str(), MAX_COUNTED.saturating_add(1));
    let row = one(session, &sql, values![name, most, name, most, name]).await?;
    let row = row.ok_or_else(|| Fault::damage("the server counts nothing"))?;
    let [pending, dead] = [row.count(0)?, row.count(1)?].map(Tally::exactly);
    Ok(Backlog { pending, dead, oldest_pending_at_us: row.maybe_int(2)?, at_us: row.int(3)? })
}

/// The run, locked, whose messages are delivered from here.
async fn sender<T>(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Halt<T>> {
    let record = found_locked(tx, run).await?;
    if is_elsewhere(&record.status) { Err(wrong_status(record).into()) } else { Ok(()) }
}

async fn retry_dead(tx: &mut Tx<'_>, run: &RunKey) -> Outcome<usize> {
    sender(tx, run).await?;
    let place = values![run.namespace.as_str(), run.run.as_str()];
    let sql =
        "SELECT DISTINCT topic FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND status = 'dead'";
    let topics = tx.rows(sql, place).await?;
    let changed = tx
        .execute(
            "UPDATE hapax_outbox SET status = 'pending', attempts = 0, error = NULL \
             WHERE namespace = ? AND run_id = ? AND status = 'dead'",
            place,
        )
        .await?;
    for topic in &topics {
        open_channel(tx, run, topic.text(0)?).await?;
    }
    let sql = "UPDATE hapax_channels SET due_at = {now} WHERE namespace = ? AND run_id = ? AND token IS NULL AND due_at > {now}";
    tx.execute(sql, place).await?;
    Ok(changed as usize)
}

async fn drop_dead(tx: &mut Tx<'_>, run: &RunKey) -> Outcome<usize> {
    sender(tx, run).await?;
    let sql = "DELETE FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND status = 'dead'";
    let dropped = tx.execute(sql, values![run.namespace.as_str(), run.run.as_str()]).await?;
    blobs::sweep(tx, run).await?;
    Ok(dropped as usize)
}

impl Outbox for ServerStore {
    fn claim(&self, filter: ClaimFilter, by: Claimant) -> Answer<'_, Vec<Batch>> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            call!(self, &about, |tx| claim(tx, &filter, &by))
        })
    }

    fn mark_sent(&self, claim: Claim, sent: Vec<Place>, keep: Option<Duration>) -> Answer<'_, ()> {
        Box::pin(async move { call!(self, &claim.channel.run, |tx| mark_sent(tx, &claim, &sent, keep)) })
    }

    fn mark_failed(&self, claim: Claim, place: Place, failure: Failure) -> Answer<'_, Fate> {
        Box::pin(async move {
            let run = &claim.channel.run;
            call!(self, run, |tx| mark_failed(tx, &claim, place, &failure))
        })
    }

    fn list(&self, filter: OutboxFilter) -> Answer<'_, Vec<OutboxRecord>> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            with_hand!(self, |codec| look!(self, &about, |session| list(session, codec, &filter)))
        })
    }

    fn backlog(&self, namespace: Namespace) -> Answer<'_, Backlog> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            ask!(self, &about, |session| backlog(session, &namespace))
        })
    }

    fn retry_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(async move { call!(self, &run, |tx| retry_dead(tx, &run)) })
    }

    fn drop_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(async move { call!(self, &run, |tx| drop_dead(tx, &run)) })
    }
}
