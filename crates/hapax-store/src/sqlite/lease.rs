//! Leases: who holds a run, by the store's clock and by the OS lock of the holder.
//!
//! Invariant: a claim raises the epoch and draws a new nonce in the run's own row, so that whatever an earlier
//! holder still has in flight is refused by its fence.

use super::{
    error::damaged,
    locks::Locks,
    writer::{Halt, Outcome, Tx},
};
use crate::{
    clock::micros_left,
    error::StoreError,
    store::{Claimant, Fleet, Holding, Lease, Outlook, ReadyFilter, Renewal},
};
use hapax_core::{
    canary,
    commit::{Epoch, Status},
    id::{Namespace, RunId, RunKey},
};
use rusqlite::{Connection, Row, params};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Whether leases are alive.
pub(super) struct Leases {
    pub(super) locks: Locks,
    /// When leases that reach further than they can were first seen: the clock was set back since.
    overlong: Mutex<HashMap<RunKey, (i64, i64)>>,
}

/// A run's lease, as its row has it.
struct Held {
    owner: Option<String>,
    until: i64,
    ttl: i64,
}

impl Leases {
    pub(super) fn new(locks: Locks) -> Self {
        Self { locks, overlong: Mutex::default() }
    }

    /// How long the lease still lasts, in microseconds; `None`: it may be broken.
    fn left(&self, key: &RunKey, held: &Held, now: i64) -> Option<i64> {
        let owner = held.owner.as_deref()?;
        let left = self.left_by_clock(key, held, now);
        (left > 0 && !self.locks.is_dead(owner)).then_some(left)
    }

    fn left_by_clock(&self, key: &RunKey, held: &Held, now: i64) -> i64 {
        let left = held.until.saturating_sub(now);
        let mut overlong = self.overlong.lock().unwrap_or_else(PoisonError::into_inner);
        if left <= held.ttl {
            overlong.remove(key);
            return left;
        }
        let (until, seen) = overlong.entry(key.clone()).or_insert((held.until, now));
        if *until != held.until {
            (*until, *seen) = (held.until, now);
        }
        seen.saturating_add(held.ttl).saturating_sub(now)
    }
}

/// Microseconds as they are stored.
fn micros(ttl: Duration) -> i64 {
    // A century: sums of times stay far from the end of their type.
    i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX).min(100 * 366 * 86_400 * 1_000_000)
}

/// Takes over one run.
pub(super) fn claim(tx: &Tx<'_>, leases: &Leases, key: &RunKey, by: &Claimant) -> Outcome<Lease> {
    let row = tx.one(
        "SELECT status_json, cancel_requested, owner, lease_until, lease_ttl, wake_at FROM hapax_runs \
         WHERE namespace = ?1 AND run_id = ?2",
        params![key.namespace.as_str(), key.run.as_str()],
        |row| {
            let held = Held { owner: row.get(2)?, until: row.get(3)?, ttl: row.get(4)? };
            let due = row.get::<_, Option<i64>>(5)?.is_some_and(|at| at <= tx.now);
            Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)? || due, held))
        },
    )?;
    let Some((status, wakes, held)) = row else {
        return Err(StoreError::NotFound { run: key.clone() }.into());
    };
    let status: Status = serde_json::from_str(&status)
        .map_err(|error| Halt::Sql(damaged(format!("its status cannot be read: {error}"))))?;
    if status.is_final() || !(status.is_runnable() || wakes) {
        return Err(StoreError::of_status(key.clone(), status).into());
    }
    if let Some(left) = leases.left(key, &held, tx.now) {
        let (run, owner) = (key.clone(), held.owner.unwrap_or_default());
        return Err(StoreError::Held { run, owner, left_ms: left.unsigned_abs().div_ceil(1000) }.into());
    }
    Ok(take(tx, key, by, held.owner.is_some())?)
}

/// Who keeps a run from leaving: a worker that holds it, or a relay that delivers its messages.
pub(super) fn holder(tx: &Tx<'_>, leases: &Leases, key: &RunKey) -> rusqlite::Result<Option<StoreError>> {
    let place = params![key.namespace.as_str(), key.run.as_str()];
    let worker = tx.one(
        "SELECT owner, lease_until, lease_ttl FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2",
        place,
        |row| Ok(Held { owner: row.get(0)?, until: row.get(1)?, ttl: row.get(2)? }),
    )?;
    let mut statement = tx.connection.prepare_cached(
        "SELECT owner, due_at FROM hapax_channels WHERE namespace = ?1 AND run_id = ?2 AND token IS NOT NULL",
    )?;
    let relays = statement.query_map(place, |row| {
        let until: i64 = row.get(1)?;
        Ok(Held { owner: row.get(0)?, until, ttl: until.saturating_sub(tx.now) })
    })?;
    for held in worker.map(Ok).into_iter().chain(relays) {
        let held = held?;
        if let Some(left) = leases.left(key, &held, tx.now).filter(|_| !canary::on("moved_under_lease")) {
            let (run, owner) = (key.clone(), held.owner.unwrap_or_default());
            let left_ms = left.unsigned_abs().div_ceil(1000);
            return Ok(Some(StoreError::Held { run, owner, left_ms }));
        }
    }
    Ok(None)
}

fn take(tx: &Tx<'_>, key: &RunKey, by: &Claimant, taken_over: bool) -> rusqlite::Result<Lease> {
    let nonce = new_nonce();
    let status = if canary::on("timer_lost") { "waiting" } else { "running" };
    let counter = tx.one(
        "UPDATE hapax_runs SET epoch = epoch + 1, nonce = ?3, owner = ?4, lease_until = ?5, lease_ttl = ?6, \
         status = ?9, status_json = ?7, updated_at = ?8, wake_at = NULL, wake_letters = NULL WHERE namespace = ?1 AND run_id = ?2 RETURNING epoch",
        params![
            key.namespace.as_str(),
            key.run.as_str(),
            nonce.to_be_bytes(),
            &*by.owner,
            tx.now.saturating_add(micros(by.ttl)),
            micros(by.ttl),
            Status::Running.to_json().as_str(),
            tx.now,
            status,
        ],
        |row| row.get::<_, i64>(0),
    )?;
    let counter = counter.ok_or(rusqlite::Error::QueryReturnedNoRows)?.cast_unsigned();
    Ok(Lease { epoch: Epoch { counter, nonce }, taken_over })
}

/// What a claim draws besides its counter.
pub(super) fn new_nonce() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

/// The lease of a run that is claimed by its creator: until when, and for how long.
pub(super) fn first_term(now: i64, by: &Claimant) -> (i64, i64) {
    (now.saturating_add(micros(by.ttl)), micros(by.ttl))
}

/// Takes over what is ready, oldest first.
pub(super) fn claim_ready(
    tx: &Tx<'_>,
    leases: &Leases,
    filter: &ReadyFilter,
    by: &Claimant,
) -> Outcome<Vec<(RunKey, Lease)>> {
    let mut ready = ready(tx.connection, leases, filter, tx.now)?;
    ready.sort();
    ready.truncate(filter.limit);
    let mut claimed = Vec::with_capacity(ready.len());
    for (_, key, taken_over) in ready {
        let lease = take(tx, &key, by, taken_over)?;
        claimed.push((key, lease));
    }
    Ok(claimed)
}

/// Which runs of a status may be claimed. Of the parked ones only those to be cancelled; of the paused ones also
/// those that only wait for room. Parked runs may be many: without the hint SQLite goes through all of them.
const READY: [(&str, &str, &str); 5] = [
    ("pending", "", ""),
    ("running", "", ""),
    ("paused", "", " AND (cancel_requested OR status_json LIKE '%\"backpressure\"%')"),
    ("waiting", " INDEXED BY hapax_runs_cancel", " AND cancel_requested = 1"),
    ("in_doubt", " INDEXED BY hapax_runs_cancel", " AND cancel_requested = 1"),
];

/// Up to `limit` claimable runs of each graph and status, with their rank and whether a lease must be broken.
fn ready(
    connection: &Connection,
    leases: &Leases,
    filter: &ReadyFilter,
    now: i64,
) -> rusqlite::Result<Vec<(i64, RunKey, bool)>> {
    let mut ready = due(connection, filter, now)?;
    for (graph, fingerprint) in &filter.graphs {
        for (status, by_index, also) in READY {
            let sql = format!(
                "SELECT rank, run_id, owner, lease_until, lease_ttl FROM hapax_runs{by_index} \
                 WHERE namespace = ?1 AND status = ?2 AND graph = ?3 AND fingerprint = ?4{also} ORDER BY rank"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows =
                statement.query(params![filter.namespace.as_str(), status, &**graph, fingerprint.0])?;
            let mut found = 0;
            while found < filter.limit
                && let Some(row) = rows.next()?
            {
                // One damaged row must not keep all other runs from going on; `list` and `doctor` report it.
                let Ok((rank, key, held)) = candidate(row, &filter.namespace) else {
                    tracing::warn!(namespace = %filter.namespace, %graph, "a damaged row is not claimed");
                    continue;
                };
                if leases.left(&key, &held, now).is_none() {
                    ready.push((rank, key, held.owner.is_some()));
                    found += 1;
                }
            }
        }
    }
    Ok(ready)
}

/// Up to `limit` parked runs of each graph whose time has come, with that time. Nobody holds a parked run.
fn due(
    connection: &Connection,
    filter: &ReadyFilter,
    now: i64,
) -> rusqlite::Result<Vec<(i64, RunKey, bool)>> {
    let mut due = vec![];
    for (graph, fingerprint) in &filter.graphs {
        let mut statement = connection.prepare_cached(
            "SELECT wake_at, run_id FROM hapax_runs WHERE namespace = ?1 AND graph = ?2 AND fingerprint = ?3 \
             AND wake_at <= ?4 AND cancel_requested = 0 ORDER BY wake_at",
        )?;
        let mut rows = statement.query(params![filter.namespace.as_str(), &**graph, fingerprint.0, now])?;
        let mut found = 0;
        while found < filter.limit
            && let Some(row) = rows.next()?
        {
            // A damaged row keeps no other run from being woken.
            let Ok(run) = RunId::new(row.get_ref(1)?.as_str().unwrap_or_default()) else { continue };
            due.push((row.get(0)?, RunKey { namespace: filter.namespace.clone(), run }, false));
            found += 1;
        }
    }
    Ok(due)
}

/// Whether something is ready, and when the next parked run is to be woken.
pub(super) fn outlook(
    connection: &Connection,
    leases: &Leases,
    filter: &ReadyFilter,
    now: i64,
) -> rusqlite::Result<Outlook> {
    let first = ReadyFilter { limit: 1, ..filter.clone() };
    let ready = !ready(connection, leases, &first, now)?.is_empty();
    let mut next: Option<Duration> = None;
    for (graph, fingerprint) in &filter.graphs {
        let mut statement = connection.prepare_cached(
            "SELECT min(wake_at) FROM hapax_runs WHERE namespace = ?1 AND graph = ?2 AND fingerprint = ?3 \
             AND wake_at > ?4",
        )?;
        let values = params![filter.namespace.as_str(), &**graph, fingerprint.0, now];
        let at: Option<i64> = statement.query_row(values, |row| row.get(0))?;
        next = next.into_iter().chain(at.map(|at| micros_left(at, now))).min();
    }
    Ok(Outlook { ready, next })
}

/// Who holds runs, and what could go on.
pub(super) fn fleet(
    connection: &Connection,
    leases: &Leases,
    namespace: &Namespace,
    now: i64,
) -> rusqlite::Result<Fleet> {
    let mut fleet = Fleet::default();
    let mut statement = connection.prepare_cached(
        "SELECT owner, count(*), min(lease_until), max(epoch), sum(lease_until <= ?2) FROM hapax_runs \
         WHERE namespace = ?1 AND owner IS NOT NULL GROUP BY owner ORDER BY owner",
    )?;
    let mut rows = statement.query(params![namespace.as_str(), now])?;
    while let Some(row) = rows.next()? {
        let (owner, until): (String, i64) = (row.get(0)?, row.get(2)?);
        let [runs, epoch, over] = [1, 3, 4].map(|column| row.get::<_, i64>(column).map(i64::cast_unsigned));
        let (runs, dead) = (runs?, leases.locks.is_dead(&owner));
        fleet.waiting += if dead { runs } else { over? };
        fleet.lag = fleet.lag.max(micros_left(now, until));
        let lease_left = if dead { Duration::ZERO } else { micros_left(until, now) };
        fleet.holders.push(Holding { owner, runs, lease_left, epoch: epoch? });
    }
    let (unheld, since): (i64, Option<i64>) = connection.query_row(
        "SELECT count(*), min(CASE WHEN wake_at <= ?2 THEN wake_at ELSE updated_at END) FROM hapax_runs \
         WHERE namespace = ?1 AND owner IS NULL AND status NOT IN ('succeeded', 'failed', 'cancelled') \
         AND (status IN ('pending', 'running') OR cancel_requested = 1 OR wake_at <= ?2 \
         OR (status = 'paused' AND status_json LIKE '%\"backpressure\"%'))",
        params![namespace.as_str(), now],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    fleet.waiting += unheld.cast_unsigned();
    fleet.lag = fleet.lag.max(since.map_or(Duration::ZERO, |since| micros_left(now, since)));
    Ok(fleet)
}

/// A row of [`ready`]: its run's rank, which it is, and who holds it.
fn candidate(row: &Row<'_>, namespace: &Namespace) -> rusqlite::Result<(i64, RunKey, Held)> {
    let run = RunId::new(row.get_ref(1)?.as_str()?).map_err(|error| damaged(error.to_string()))?;
    let held = Held { owner: row.get(2)?, until: row.get(3)?, ttl: row.get(4)? };
    Ok((row.get(0)?, RunKey { namespace: namespace.clone(), run }, held))
}

/// Prolongs leases.
pub(super) fn renew(
    tx: &Tx<'_>,
    leases: &[(RunKey, Epoch)],
    by: &Claimant,
) -> Outcome<Vec<(RunKey, Renewal)>> {
    let mut renewed = Vec::with_capacity(leases.len());
    for (key, epoch) in leases {
        let changed = tx.execute(
            "UPDATE hapax_runs SET lease_until = ?3, lease_ttl = ?4 \
             WHERE namespace = ?1 AND run_id = ?2 AND owner = ?5 AND epoch = ?6 AND nonce = ?7",
            params![
                key.namespace.as_str(),
                key.run.as_str(),
                tx.now.saturating_add(micros(by.ttl)),
                micros(by.ttl),
                &*by.owner,
                epoch.counter.cast_signed(),
                epoch.nonce.to_be_bytes(),
            ],
        )?;
        renewed.push((key.clone(), if changed == 1 { Renewal::Kept } else { Renewal::Lost }));
    }
    Ok(renewed)
}

/// The owner's runs for which a cancel was requested.
pub(super) fn cancels(connection: &Connection, owner: &str) -> rusqlite::Result<Vec<RunKey>> {
    let mut statement = connection.prepare_cached(
        "SELECT namespace, run_id FROM hapax_runs WHERE owner = ?1 AND cancel_requested = 1",
    )?;
    let runs = statement.query_map(params![owner], |row| {
        let damaged = |error: hapax_core::id::InvalidId| damaged(error.to_string());
        let namespace = Namespace::new(row.get_ref(0)?.as_str()?).map_err(damaged)?;
        Ok(RunKey { namespace, run: RunId::new(row.get_ref(1)?.as_str()?).map_err(damaged)? })
    })?;
    runs.collect()
}
