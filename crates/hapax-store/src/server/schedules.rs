//! Schedules: rows that say when the next run starts, and the transaction that starts it.
//!
//! Invariant: every change of a row draws another token. A firing begins with an update that demands the token of the row
//! as it was read, so that of all who worked it out one goes on; its run is created in the same transaction. The
//! schedule's row is locked before any run's.

use super::{
    ServerStore, ask, call, creation,
    error::{Halt, Outcome, all_runs},
    runs,
    sql::{Fault, Row, Session, Value, one, places, values},
    writer::Tx,
};
use crate::{
    check::check_new_run,
    clock::{Clock, micros},
    codec::{Codec, Place},
    error::StoreError,
    prepare::{self, Birth},
    schedules::{
        Added, COLUMNS, Counts, DueFilter, Fire, Fired, LastFiring, ScheduleRecord, Schedules, Turn,
        check_schedule, new_token,
    },
    store::{Answer, Created},
};
use hapax_core::{
    canary,
    id::{Namespace, RunId, RunKey},
    json::Json,
    schedule::{Overlap, Schedule, ScheduleKey},
};

fn record(row: &Row, codec: &Codec, namespace: &Namespace) -> Result<ScheduleRecord, Fault> {
    let name = row.text(0)?;
    let odd = |what: String| Fault::damage(format!("schedule `{name}`: {what}"));
    let unpacked = codec
        .unpack(row.blob(2)?, &Place::input(namespace, name))
        .map_err(|error| Fault::undecoded(None, &format!("schedule `{name}`"), error))?;
    let input: Json = serde_json::from_slice(&unpacked).map_err(|error| odd(error.to_string()))?;
    let small = |value: i64| u32::try_from(value).map_err(|_| odd(format!("{value} is out of range")));
    let last = match (row.maybe_int(11)?, row.maybe_text(12)?) {
        (Some(at_us), Some(run)) => Some(LastFiring { at_us, run: RunId::new(run)? }),
        _ => None,
    };
    Ok(ScheduleRecord {
        schedule: Schedule {
            key: ScheduleKey { namespace: namespace.clone(), name: name.into() },
            graph: row.text(1)?.into(),
            input,
            input_version: row.maybe_int(3)?.map(small).transpose()?,
            cron: row.text(4)?.to_owned(),
            zone: row.text(5)?.to_owned(),
            overlap: overlap(row.text(6)?)?,
            catch_up: small(row.int(7)?)?,
        },
        token: u128::from_be_bytes(row.bytes(8)?),
        paused: row.flag(9)?,
        next_us: row.maybe_int(10)?,
        last,
        started: row.count(13)?,
        skipped: row.count(14)?,
        missed: row.count(15)?,
        created_at_us: row.int(16)?,
    })
}

fn overlap(word: &str) -> Result<Overlap, Fault> {
    Overlap::from_word(word).ok_or_else(|| Fault::damage(format!("a schedule's overlap is `{word}`")))
}

async fn get(
    session: &mut dyn Session,
    codec: &Codec,
    key: &ScheduleKey,
) -> Result<Option<ScheduleRecord>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM hapax_schedules WHERE namespace = ? AND name = ?");
    let row = one(session, &sql, values![key.namespace.as_str(), &*key.name]).await?;
    row.map(|row| record(&row, codec, &key.namespace)).transpose()
}

async fn list(
    session: &mut dyn Session,
    codec: &Codec,
    namespace: &Namespace,
) -> Result<Vec<ScheduleRecord>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM hapax_schedules WHERE namespace = ? ORDER BY name");
    let rows = session.rows(&sql, values![namespace.as_str()]).await?;
    rows.iter().map(|row| record(row, codec, namespace)).collect()
}

async fn due(
    session: &mut dyn Session,
    codec: &Codec,
    filter: &DueFilter,
) -> Result<Vec<ScheduleRecord>, Fault> {
    let sql = format!(
        "SELECT {COLUMNS} FROM hapax_schedules WHERE namespace = ? AND paused = 0 AND next_at > 0 AND next_at <= {{now}} + ? \
         AND graph IN {} ORDER BY next_at, name",
        places(filter.graphs.len())
    );
    let mut all: Vec<Value<'_>> = vec![filter.namespace.as_str().into(), micros(filter.within).into()];
    all.extend(filter.graphs.iter().map(|graph| Value::from(&**graph)));
    let rows = session.rows(&sql, &all).await?;
    let mut due = vec![];
    for row in &rows {
        match record(row, codec, &filter.namespace) {
            Ok(record) => due.push(record),
            Err(fault) => tracing::error!(?fault, "a schedule cannot be read; it does not fire"),
        }
    }
    Ok(due)
}

async fn add(tx: &mut Tx<'_>, schedule: &Schedule, input: &[u8], next_us: Option<i64>) -> Outcome<Added> {
    let key = &schedule.key;
    let sql = format!(
        "INSERT INTO hapax_schedules (namespace, name, graph, input, input_version, cron, zone_name, on_overlap, catch_up, \
         token, paused, next_at, started, skipped, missed, created_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, 0, 0, {{now}}){}",
        tx.session.unless_there()
    );
    let inserted = tx
        .execute(
            &sql,
            values![
                key.namespace.as_str(),
                &*key.name,
                &*schedule.graph,
                input,
                schedule.input_version.map(i64::from),
                schedule.cron.as_str(),
                schedule.zone.as_str(),
                schedule.overlap.word(),
                u64::from(schedule.catch_up),
                &new_token().to_be_bytes(),
                next_us,
            ],
        )
        .await?;
    let Some(there) = get(tx.session, tx.codec, key).await? else {
        return Err(StoreError::Retry("the schedule was there and is gone".into()).into());
    };
    Ok(if inserted == 1 { Added::New(Box::new(there)) } else { Added::Exists(Box::new(there)) })
}

async fn turn(tx: &mut Tx<'_>, key: &ScheduleKey, to: Turn) -> Outcome<Option<Box<ScheduleRecord>>> {
    let (namespace, name, token) = (key.namespace.as_str(), &*key.name, new_token().to_be_bytes());
    match to {
        Turn::Off => {
            let sql = "UPDATE hapax_schedules SET paused = 1, token = ? WHERE namespace = ? AND name = ? AND paused = 0";
            tx.execute(sql, values![&token, namespace, name]).await?
        }
        Turn::On { token: read, next_us, missed } => {
            let sql = "UPDATE hapax_schedules SET paused = 0, token = ?, next_at = ?, missed = missed + ? \
                       WHERE namespace = ? AND name = ? AND paused = 1 AND token = ?";
            tx.execute(sql, values![&token, next_us, missed, namespace, name, &read.to_be_bytes()]).await?
        }
    };
    Ok(get(tx.session, tx.codec, key).await?.map(Box::new))
}

async fn remove(tx: &mut Tx<'_>, key: &ScheduleKey) -> Outcome<bool> {
    let sql = "DELETE FROM hapax_schedules WHERE namespace = ? AND name = ?";
    Ok(tx.execute(sql, values![key.namespace.as_str(), &*key.name]).await? == 1)
}

async fn fire(tx: &mut Tx<'_>, fire: &Fire, birth: Option<&Birth>) -> Outcome<Fired> {
    let (namespace, name, token) = (fire.key.namespace.as_str(), &*fire.key.name, new_token().to_be_bytes());
    let ours = tx
        .execute(
            "UPDATE hapax_schedules SET token = ? WHERE namespace = ? AND name = ? AND token = ? AND paused = 0 \
             AND ? <= {now}",
            values![&token, namespace, name, &fire.token.to_be_bytes(), fire.at_us],
        )
        .await?;
    if ours != 1 {
        return Err(Halt::Settle(Ok(Fired::NotNow)));
    }
    let fired = start(tx, fire, birth).await?;
    let counts = Counts::of(fired, birth.is_some());
    let done = values![fire.next_us, counts.started, counts.skipped, fire.missed, namespace, name, &token];
    tx.execute(
        "UPDATE hapax_schedules SET next_at = ?, started = started + ?, skipped = skipped + ?, missed = missed + ? \
         WHERE namespace = ? AND name = ? AND token = ?",
        done,
    )
    .await?;
    if let (Fired::Started | Fired::Exists, Some(birth)) = (fired, birth) {
        let sql = "UPDATE hapax_schedules SET last_at = ?, last_run = ? WHERE namespace = ? AND name = ?";
        tx.execute(sql, values![fire.at_us, birth.run.key.run.as_str(), namespace, name]).await?;
    }
    Ok(fired)
}

/// Starts the run of a firing, unless the one before it is in its way.
async fn start(tx: &mut Tx<'_>, fire: &Fire, birth: Option<&Birth>) -> Outcome<Fired> {
    let Some(birth) = birth else { return Ok(Fired::Skipped) };
    if let Some((overlap, before)) = run_before(tx, &fire.key).await? {
        match overlap {
            Overlap::Skip => return Ok(Fired::Skipped),
            Overlap::Queue => return Err(Halt::Settle(Ok(Fired::Waits))),
            Overlap::Cancel => match runs::request_cancel(tx, &before).await {
                Err(Halt::Fault(fault)) => return Err(Halt::Fault(fault)),
                // Who is over meanwhile needs no cancel.
                Ok(()) | Err(Halt::Settle(_)) => {}
            },
        }
    }
    match runs::create(tx, birth, creation::lease(birth)).await {
        Ok(Created::New(_)) => Ok(Fired::Started),
        Ok(Created::Exists(_)) | Err(Halt::Settle(Ok(_))) => Ok(Fired::Exists),
        Err(Halt::Settle(Err(error))) => Err(error.into()),
        Err(Halt::Fault(fault)) => Err(Halt::Fault(fault)),
    }
}

/// The run before this firing, if it isn't over, and what is to be done about it.
async fn run_before(tx: &mut Tx<'_>, key: &ScheduleKey) -> Result<Option<(Overlap, RunKey)>, Fault> {
    let row = tx
        .one(
            "SELECT s.on_overlap, s.last_run FROM hapax_schedules s JOIN hapax_runs r \
             ON r.namespace = s.namespace AND r.run_id = s.last_run WHERE s.namespace = ? AND s.name = ? \
             AND r.status NOT IN ('succeeded', 'failed', 'cancelled', 'moved')",
            values![key.namespace.as_str(), &*key.name],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let run = RunKey { namespace: key.namespace.clone(), run: RunId::new(row.text(1)?)? };
    Ok(Some((overlap(row.text(0)?)?, run)))
}

impl ServerStore {
    async fn fire_schedule(&self, mut order: Fire) -> Result<Fired, StoreError> {
        let run = order.run.take();
        run.as_ref().map_or(Ok(()), check_new_run)?;
        if canary::on("schedule_fires_first")
            && let Some(run) = run.clone()
        {
            self.create_run(run).await?;
        }
        let _room = self.lanes.room(run.as_ref().map_or(0, |run| run.checkpoint.state.len())).await?;
        let birth = run.map(|run| Birth::of(run, &self.codec)).transpose()?;
        let about = all_runs(&order.key.namespace);
        call!(self, &about, |tx| fire(tx, &order, birth.as_ref()))
    }
}

impl Schedules for ServerStore {
    fn add(&self, schedule: Schedule, next_us: Option<i64>) -> Answer<'_, Added> {
        Box::pin(async move {
            check_schedule(&schedule)?;
            let input = prepare::input(&schedule, &self.codec)?;
            let about = all_runs(&schedule.key.namespace);
            call!(self, &about, |tx| add(tx, &schedule, &input, next_us))
        })
    }

    fn get(&self, key: ScheduleKey) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(async move {
            let about = all_runs(&key.namespace);
            ask!(self, &about, |session| get(session, &self.codec, &key))
        })
    }

    fn list(&self, namespace: Namespace) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            ask!(self, &about, |session| list(session, &self.codec, &namespace))
        })
    }

    fn due(&self, filter: DueFilter) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            if filter.graphs.is_empty() {
                return Ok(vec![]);
            }
            let about = all_runs(&filter.namespace);
            ask!(self, &about, |session| due(session, &self.codec, &filter))
        })
    }

    fn turn(&self, key: ScheduleKey, to: Turn) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(async move {
            let about = all_runs(&key.namespace);
            Ok(call!(self, &about, |tx| turn(tx, &key, to))?.map(|record| *record))
        })
    }

    fn remove(&self, key: ScheduleKey) -> Answer<'_, bool> {
        Box::pin(async move {
            let about = all_runs(&key.namespace);
            call!(self, &about, |tx| remove(tx, &key))
        })
    }

    fn fire(&self, fire: Fire) -> Answer<'_, Fired> {
        Box::pin(self.fire_schedule(fire))
    }

    fn clock(&self, _: &ScheduleKey) -> Clock {
        self.clock.clone()
    }
}
