//! Schedules: rows that say when the next run starts, and the transaction that starts it.
//!
//! Invariant: every change of a row draws another token. A firing begins with an update that demands the token of the row
//! as it was read, so that of all who worked it out one goes on; its run is created in the same transaction.

use super::{
    SqliteStore,
    error::{all_runs, damaged, undecoded, unreadable},
    runs,
    writer::{Halt, Outcome, Tx},
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
use rusqlite::{Connection, Row, ToSql, params, params_from_iter};

fn record(row: &Row<'_>, codec: &Codec, namespace: &Namespace) -> rusqlite::Result<ScheduleRecord> {
    let name = row.get_ref(0)?.as_str()?;
    let odd = |what: String| damaged(format!("schedule `{name}`: {what}"));
    let unpacked = codec
        .unpack(row.get_ref(2)?.as_blob()?, &Place::input(namespace, name))
        .map_err(|error| undecoded(None, &format!("schedule `{name}`"), error))?;
    let input: Json = serde_json::from_slice(&unpacked).map_err(|error| odd(error.to_string()))?;
    let overlap = row.get_ref(6)?.as_str()?;
    let last = match (row.get::<_, Option<i64>>(11)?, row.get_ref(12)?.as_str_or_null()?) {
        (Some(at_us), Some(run)) => {
            Some(LastFiring { at_us, run: RunId::new(run).map_err(|error| odd(error.to_string()))? })
        }
        _ => None,
    };
    let count = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
    Ok(ScheduleRecord {
        schedule: Schedule {
            key: ScheduleKey { namespace: namespace.clone(), name: name.into() },
            graph: row.get_ref(1)?.as_str()?.into(),
            input,
            input_version: row.get(3)?,
            cron: row.get(4)?,
            zone: row.get(5)?,
            overlap: Overlap::from_word(overlap).ok_or_else(|| odd(format!("overlap `{overlap}`")))?,
            catch_up: row.get(7)?,
        },
        token: u128::from_be_bytes(row.get(8)?),
        paused: row.get(9)?,
        next_us: row.get(10)?,
        last,
        started: count(13)?,
        skipped: count(14)?,
        missed: count(15)?,
        created_at_us: row.get(16)?,
    })
}

fn get(
    connection: &Connection,
    codec: &Codec,
    key: &ScheduleKey,
) -> rusqlite::Result<Option<ScheduleRecord>> {
    let sql = format!("SELECT {COLUMNS} FROM hapax_schedules WHERE namespace = ?1 AND name = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement
        .query_map(params![key.namespace.as_str(), &*key.name], |row| record(row, codec, &key.namespace))?;
    rows.next().transpose()
}

fn list(
    connection: &Connection,
    codec: &Codec,
    namespace: &Namespace,
) -> rusqlite::Result<Vec<ScheduleRecord>> {
    let sql = format!("SELECT {COLUMNS} FROM hapax_schedules WHERE namespace = ?1 ORDER BY name");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![namespace.as_str()], |row| record(row, codec, namespace))?;
    rows.collect()
}

fn due(
    connection: &Connection,
    codec: &Codec,
    filter: &DueFilter,
    now: i64,
) -> rusqlite::Result<Vec<ScheduleRecord>> {
    let places = vec!["?"; filter.graphs.len()].join(", ");
    let sql = format!(
        "SELECT {COLUMNS} FROM hapax_schedules WHERE namespace = ? AND paused = 0 AND next_at <= ? AND graph IN ({places}) \
         ORDER BY next_at, name"
    );
    let until = now.saturating_add(micros(filter.within));
    let mut values: Vec<Box<dyn ToSql + '_>> = vec![Box::new(filter.namespace.as_str()), Box::new(until)];
    values.extend(filter.graphs.iter().map(|graph| Box::new(&**graph) as Box<dyn ToSql>));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows =
        statement.query_map(params_from_iter(values), |row| Ok(record(row, codec, &filter.namespace)))?;
    let mut due = vec![];
    for row in rows {
        match row? {
            Ok(record) => due.push(record),
            Err(error) => tracing::error!(%error, "a schedule cannot be read; it does not fire"),
        }
    }
    Ok(due)
}

fn add(tx: &Tx<'_>, schedule: &Schedule, input: &[u8], next_us: Option<i64>) -> Outcome<Added> {
    let key = &schedule.key;
    let inserted = tx.execute(
        "INSERT INTO hapax_schedules (namespace, name, graph, input, input_version, cron, zone_name, on_overlap, catch_up, \
         token, paused, next_at, started, skipped, missed, created_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?11, 0, 0, 0, ?12) ON CONFLICT DO NOTHING",
        params![
            key.namespace.as_str(),
            &*key.name,
            &*schedule.graph,
            input,
            schedule.input_version,
            schedule.cron,
            schedule.zone,
            schedule.overlap.word(),
            schedule.catch_up,
            new_token().to_be_bytes(),
            next_us,
            tx.now,
        ],
    )?;
    let there = get(tx.connection, tx.codec, key)?.ok_or_else(|| damaged("a schedule isn't there"))?;
    Ok(if inserted == 1 { Added::New(Box::new(there)) } else { Added::Exists(Box::new(there)) })
}

fn turn(tx: &Tx<'_>, key: &ScheduleKey, to: Turn) -> Outcome<Option<Box<ScheduleRecord>>> {
    let (namespace, name, token) = (key.namespace.as_str(), &*key.name, new_token().to_be_bytes());
    match to {
        Turn::Off => tx.execute(
            "UPDATE hapax_schedules SET paused = 1, token = ?3 WHERE namespace = ?1 AND name = ?2 AND paused = 0",
            params![namespace, name, token],
        )?,
        Turn::On { token: read, next_us, missed } => tx.execute(
            "UPDATE hapax_schedules SET paused = 0, token = ?3, next_at = ?4, missed = missed + ?5 \
             WHERE namespace = ?1 AND name = ?2 AND paused = 1 AND token = ?6",
            params![namespace, name, token, next_us, missed.cast_signed(), read.to_be_bytes()],
        )?,
    };
    Ok(get(tx.connection, tx.codec, key)?.map(Box::new))
}

fn remove(tx: &Tx<'_>, key: &ScheduleKey) -> Outcome<bool> {
    let sql = "DELETE FROM hapax_schedules WHERE namespace = ?1 AND name = ?2";
    Ok(tx.execute(sql, params![key.namespace.as_str(), &*key.name])? == 1)
}

fn fire(tx: &Tx<'_>, fire: &Fire, birth: Option<&Birth>) -> Outcome<Fired> {
    let (namespace, name) = (fire.key.namespace.as_str(), &*fire.key.name);
    let token = new_token().to_be_bytes();
    let ours = tx.execute(
        "UPDATE hapax_schedules SET token = ?4 WHERE namespace = ?1 AND name = ?2 AND token = ?3 AND paused = 0 \
         AND ?5 <= ?6",
        params![namespace, name, fire.token.to_be_bytes(), token, fire.at_us, tx.now],
    )?;
    if ours != 1 {
        return Err(Halt::Settle(Ok(Fired::NotNow)));
    }
    let fired = start(tx, fire, birth)?;
    let counts = Counts::of(fired, birth.is_some());
    let last = matches!(fired, Fired::Started | Fired::Exists).then_some(birth).flatten();
    tx.execute(
        "UPDATE hapax_schedules SET next_at = ?4, started = started + ?5, skipped = skipped + ?6, missed = missed + ?7, \
         last_at = iif(?8 IS NULL, last_at, ?9), last_run = coalesce(?8, last_run) \
         WHERE namespace = ?1 AND name = ?2 AND token = ?3",
        params![
            namespace,
            name,
            token,
            fire.next_us,
            counts.started.cast_signed(),
            counts.skipped.cast_signed(),
            fire.missed.cast_signed(),
            last.map(|birth| birth.run.key.run.as_str()),
            fire.at_us,
        ],
    )?;
    Ok(fired)
}

/// Starts the run of a firing, unless the one before it is in its way.
fn start(tx: &Tx<'_>, fire: &Fire, birth: Option<&Birth>) -> Outcome<Fired> {
    let Some(birth) = birth else { return Ok(Fired::Skipped) };
    if let Some((overlap, before)) = run_before(tx, &fire.key)? {
        match overlap {
            Overlap::Skip => return Ok(Fired::Skipped),
            Overlap::Queue => return Err(Halt::Settle(Ok(Fired::Waits))),
            Overlap::Cancel => match runs::request_cancel(tx, &before) {
                Err(Halt::Sql(error)) => return Err(Halt::Sql(error)),
                // It lives, so the cancel is taken.
                Ok(()) | Err(Halt::Settle(_)) => {}
            },
        }
    }
    match runs::create(tx, birth) {
        Ok(Created::New(_)) => Ok(Fired::Started),
        Ok(Created::Exists(_)) => Ok(Fired::Exists),
        Err(Halt::Sql(error)) => Err(Halt::Sql(error)),
        Err(Halt::Settle(answer)) => Err(Halt::Settle(answer.map(|_| Fired::Exists))),
    }
}

/// The run before this firing, if it isn't over, and what is to be done about it.
fn run_before(tx: &Tx<'_>, key: &ScheduleKey) -> rusqlite::Result<Option<(Overlap, RunKey)>> {
    let found = tx.one(
        "SELECT s.on_overlap, s.last_run FROM hapax_schedules AS s JOIN hapax_runs AS r \
         ON r.namespace = s.namespace AND r.run_id = s.last_run WHERE s.namespace = ?1 AND s.name = ?2 \
         AND r.status NOT IN ('succeeded', 'failed', 'cancelled', 'moved')",
        params![key.namespace.as_str(), &*key.name],
        |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)),
    )?;
    let Some((overlap, run)) = found else { return Ok(None) };
    let run = RunId::new(run).map_err(|error| damaged(error.to_string()))?;
    let overlap = Overlap::from_word(&overlap).ok_or_else(|| damaged(format!("overlap `{overlap}`")))?;
    Ok(Some((overlap, RunKey { namespace: key.namespace.clone(), run })))
}

impl SqliteStore {
    async fn fire_schedule(&self, mut order: Fire) -> Result<Fired, StoreError> {
        let run = order.run.take();
        run.as_ref().map_or(Ok(()), check_new_run)?;
        if canary::on("schedule_fires_first")
            && let Some(run) = run.clone()
        {
            self.create_run(run).await?;
        }
        let _room = self.queue.room(run.as_ref().map_or(0, |run| run.checkpoint.state.len())).await?;
        let birth = run.map(|run| Birth::of(run, &self.codec)).transpose()?;
        let about = all_runs(&order.key.namespace);
        self.queue.call(about, move |tx| fire(tx, &order, birth.as_ref())).await
    }

    /// Reads schedules in one snapshot.
    async fn read_schedules<T: Send + 'static>(
        &self,
        namespace: &Namespace,
        read: impl FnOnce(&Connection, &Codec) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let read = move |connection: &Connection, codec: &Codec, about: &RunKey| {
            read(connection, codec).map_err(|error| unreadable(error, about))
        };
        self.read(all_runs(namespace), read).await
    }
}

impl Schedules for SqliteStore {
    fn add(&self, schedule: Schedule, next_us: Option<i64>) -> Answer<'_, Added> {
        Box::pin(async move {
            check_schedule(&schedule)?;
            let input = prepare::input(&schedule, &self.codec)?;
            let about = all_runs(&schedule.key.namespace);
            self.queue.call(about, move |tx| add(tx, &schedule, &input, next_us)).await
        })
    }

    fn get(&self, key: ScheduleKey) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(async move {
            let namespace = key.namespace.clone();
            self.read_schedules(&namespace, move |connection, codec| get(connection, codec, &key)).await
        })
    }

    fn list(&self, namespace: Namespace) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            let of = namespace.clone();
            self.read_schedules(&namespace, move |connection, codec| list(connection, codec, &of)).await
        })
    }

    fn due(&self, filter: DueFilter) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            let (namespace, now) = (filter.namespace.clone(), self.clock.now_us());
            let read = move |connection: &Connection, codec: &Codec| due(connection, codec, &filter, now);
            self.read_schedules(&namespace, read).await
        })
    }

    fn turn(&self, key: ScheduleKey, to: Turn) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(async move {
            let turned = self.queue.call(all_runs(&key.namespace), move |tx| turn(tx, &key, to)).await?;
            Ok(turned.map(|record| *record))
        })
    }

    fn remove(&self, key: ScheduleKey) -> Answer<'_, bool> {
        Box::pin(async move { self.queue.call(all_runs(&key.namespace), move |tx| remove(tx, &key)).await })
    }

    fn fire(&self, fire: Fire) -> Answer<'_, Fired> {
        Box::pin(self.fire_schedule(fire))
    }

    fn clock(&self, _: &ScheduleKey) -> Clock {
        self.clock.clone()
    }
}
