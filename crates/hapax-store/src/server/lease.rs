//! Leases: who holds a run, by the server's clock.
//!
//! Invariant: a claim raises the epoch and draws a new nonce in the run's own row, under that row's lock, so that whatever
//! an earlier holder still has in flight is refused by its fence.

use super::{
    error::Outcome,
    sql::{Fault, Row, Session, Value, one, place_rows, places, values},
    writer::Tx,
};
use crate::{
    clock::{Clock, micros, micros_left, now_us},
    error::StoreError,
    store::{Claimant, Fleet, Holding, Lease, Outlook, ReadyFilter, Renewal},
};
use hapax_core::{
    canary,
    commit::{Epoch, Status},
    id::{Namespace, RunId, RunKey},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// Leases that are renewed by one statement at the most.
const RENEWED: usize = 500;

/// How often it is looked whether leases reach further than they can, in microseconds.
const LOOK: i64 = 5_000_000;

/// Leases that reach further than they can. What is never ready needn't be looked at, though it be most of the table.
const OVERLONG: &str = "ready_at IS NOT NULL AND owner IS NOT NULL AND lease_until > {now} + lease_ttl";

/// Within which those who wait for one moment come.
const SPREAD: Duration = Duration::from_millis(20);

/// When leases that reach further than they can were first seen: the server's clock was set back since.
#[derive(Default)]
pub(super) struct Overlong {
    seen: Mutex<HashMap<RunKey, (i64, i64)>>,
    /// When it was looked for them last, by a claim and by a question.
    claimed: Looked,
    asked: Looked,
}

/// When something was last looked for.
#[derive(Default)]
struct Looked(AtomicI64);

impl Looked {
    /// Whether it is time to look again.
    fn is_due(&self) -> bool {
        let (now, looked) = (now_us(), self.0.load(Ordering::Relaxed));
        let due = (now - looked).abs() >= LOOK;
        if due {
            self.0.store(now, Ordering::Relaxed);
        }
        due
    }
}

/// A run's lease, as its row has it.
struct Held {
    owner: Option<String>,
    until: i64,
    ttl: i64,
}

impl Overlong {
    /// How long the lease still lasts, in microseconds; `None`: it may be broken.
    fn left(&self, key: &RunKey, held: &Held, now: i64) -> Option<i64> {
        held.owner.as_ref()?;
        let left = self.left_by_clock(key, held, now);
        (left > 0).then_some(left)
    }

    fn left_by_clock(&self, key: &RunKey, held: &Held, now: i64) -> i64 {
        let left = held.until.saturating_sub(now);
        let mut overlong = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
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

/// What a claim looks at, in the order of [`Candidate::read`].
const CANDIDATE: &str =
    "run_id, status_json, cancel_requested, owner, lease_until, lease_ttl, wake_at, epoch, {now}";

/// A run that may be claimed, its row locked.
struct Candidate {
    key: RunKey,
    status: Status,
    /// A cancel was requested, or its time has come.
    wakes: bool,
    held: Held,
    epoch: u64,
    now: i64,
}

impl Candidate {
    fn read(row: &Row, namespace: &Namespace) -> Result<Self, Fault> {
        let run = RunId::new(row.text(0)?)?;
        let status = serde_json::from_str(row.text(1)?)
            .map_err(|error| Fault::damage(format!("its status cannot be read: {error}")))?;
        let now = row.int(8)?;
        let due = row.maybe_int(6)?.is_some_and(|at| at <= now);
        Ok(Self {
            key: RunKey { namespace: namespace.clone(), run },
            status,
            wakes: row.flag(2)? || due,
            held: Held { owner: row.maybe_text(3)?.map(str::to_owned), until: row.int(4)?, ttl: row.int(5)? },
            epoch: row.count(7)?,
            now,
        })
    }

    fn stands_ready(&self) -> bool {
        !self.status.is_final() && (self.status.is_runnable() || self.wakes)
    }

    fn lease(&self, nonce: u128) -> Lease {
        let epoch = Epoch { counter: self.epoch + 1, nonce };
        Lease { epoch, taken_over: self.held.owner.is_some() }
    }
}

/// Takes over one run.
pub(super) async fn claim(
    tx: &mut Tx<'_>,
    overlong: &Overlong,
    key: &RunKey,
    by: &Claimant,
) -> Outcome<Lease> {
    let sql = format!("SELECT {CANDIDATE} FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE");
    let row = tx.one(&sql, values![key.namespace.as_str(), key.run.as_str()]).await?;
    let Some(row) = row else { return Err(StoreError::NotFound { run: key.clone() }.into()) };
    let found = Candidate::read(&row, &key.namespace)?;
    if !found.stands_ready() {
        return Err(StoreError::of_status(key.clone(), found.status).into());
    }
    if let Some(left) = overlong.left(key, &found.held, found.now) {
        let (run, owner) = (key.clone(), found.held.owner.unwrap_or_default());
        return Err(StoreError::Held { run, owner, left_ms: left.unsigned_abs().div_ceil(1000) }.into());
    }
    let nonce = new_nonce();
    take(tx, &key.namespace, &[&found], nonce, by).await?;
    Ok(found.lease(nonce))
}

/// Who keeps a run, whose row is locked, from leaving: a worker that holds it, or a relay that delivers its messages. All its
/// channels stay locked from here on, those too that nobody holds: a claim that is under way is waited for, and none follows.
pub(super) async fn holder(
    tx: &mut Tx<'_>,
    overlong: &Overlong,
    key: &RunKey,
) -> Result<Option<StoreError>, Fault> {
    let place = values![key.namespace.as_str(), key.run.as_str()];
    let sql =
        "SELECT owner, lease_until, lease_ttl, {now} FROM hapax_runs WHERE namespace = ? AND run_id = ?";
    let mut rows = tx.rows(sql, place).await?;
    let sql = "SELECT owner, due_at, due_at - {now}, {now} FROM hapax_channels \
               WHERE namespace = ? AND run_id = ? ORDER BY topic FOR UPDATE";
    rows.extend(tx.rows(sql, place).await?);
    for row in &rows {
        let owner = row.maybe_text(0)?.map(str::to_owned);
        let (held, now) = (Held { owner, until: row.int(1)?, ttl: row.int(2)? }, row.int(3)?);
        if let Some(left) = overlong.left(key, &held, now).filter(|_| !canary::on("moved_under_lease")) {
            let (run, owner) = (key.clone(), held.owner.unwrap_or_default());
            let left_ms = left.unsigned_abs().div_ceil(1000);
            return Ok(Some(StoreError::Held { run, owner, left_ms }));
        }
    }
    Ok(None)
}

/// What a claim draws besides its counter.
pub(super) fn new_nonce() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

/// Writes the claims of runs whose rows are locked.
async fn take(
    tx: &mut Tx<'_>,
    namespace: &Namespace,
    runs: &[&Candidate],
    nonce: u128,
    by: &Claimant,
) -> Result<(), Fault> {
    if runs.is_empty() {
        return Ok(());
    }
    let status = if canary::on("timer_lost") { "waiting" } else { "running" };
    let sql = format!(
        "UPDATE hapax_runs SET epoch = epoch + 1, nonce = ?, owner = ?, lease_until = {{now}} + ?, lease_ttl = ?, \
         ready_at = {{now}} + ?, status = ?, status_json = ?, updated_at = {{now}}, wake_at = NULL, \
         wake_letters = NULL WHERE namespace = ? AND run_id IN {}",
        places(runs.len())
    );
    let (nonce, ttl, running) = (nonce.to_be_bytes(), micros(by.ttl), Status::Running.to_json());
    let mut all: Vec<Value<'_>> =
        values![&nonce, &*by.owner, ttl, ttl, ttl, status, running.as_str(), namespace.as_str()].to_vec();
    all.extend(runs.iter().map(|run| Value::from(run.key.run.as_str())));
    tx.execute(&sql, &all).await?;
    Ok(())
}

/// Takes over what is ready, that first which has been so for longest.
pub(super) async fn claim_ready(
    tx: &mut Tx<'_>,
    overlong: &Overlong,
    filter: &ReadyFilter,
    by: &Claimant,
) -> Outcome<Vec<(RunKey, Lease)>> {
    if filter.graphs.is_empty() || filter.limit == 0 {
        return Ok(vec![]);
    }
    let mut ready = claimable(tx, overlong, filter, "ready_at <= {now}").await?;
    if ready.is_empty() && overlong.claimed.is_due() {
        ready = claimable(tx, overlong, filter, OVERLONG).await?;
    }
    let nonce = new_nonce();
    take(tx, &filter.namespace, &ready.iter().collect::<Vec<_>>(), nonce, by).await?;
    Ok(ready.into_iter().map(|found| (found.key.clone(), found.lease(nonce))).collect())
}

/// Up to `limit` runs that may be claimed, locked. Damaged ones, though they come first, are in nobody's way. Those whose
/// leases last aren't gone past: when the server's clock was set back, that would lock all runs that anybody holds.
async fn claimable(
    tx: &mut Tx<'_>,
    overlong: &Overlong,
    filter: &ReadyFilter,
    which: &str,
) -> Result<Vec<Candidate>, Fault> {
    let mut limit = filter.limit;
    loop {
        let rows = candidates(tx, filter, which, limit).await?;
        let (mut ready, mut damaged) = (vec![], 0);
        for row in &rows {
            // One damaged row must not keep all other runs from going on; `list` and `doctor` report it.
            let Ok(found) = Candidate::read(row, &filter.namespace) else {
                tracing::warn!(namespace = %filter.namespace, "a damaged row is not claimed");
                damaged += 1;
                continue;
            };
            if found.stands_ready() && overlong.left(&found.key, &found.held, found.now).is_none() {
                ready.push(found);
            }
        }
        if rows.len() - damaged >= filter.limit || rows.len() < limit {
            ready.truncate(filter.limit);
            return Ok(ready);
        }
        limit += 2 * damaged;
    }
}

/// Runs of these graphs that nobody else looks at just now, locked.
async fn candidates(
    tx: &mut Tx<'_>,
    filter: &ReadyFilter,
    which: &str,
    limit: usize,
) -> Result<Vec<Row>, Fault> {
    let sql = format!(
        "SELECT {CANDIDATE} FROM hapax_runs WHERE namespace = ? AND (graph, fingerprint) IN ({}) AND {which} \
         ORDER BY ready_at, created_at, run_id LIMIT ? FOR UPDATE SKIP LOCKED",
        place_rows(filter.graphs.len(), 2)
    );
    let mut all = of_graphs(filter);
    all.push(limit.into());
    tx.rows(&sql, &all).await
}

fn of_graphs(filter: &ReadyFilter) -> Vec<Value<'_>> {
    let mut all: Vec<Value<'_>> = vec![filter.namespace.as_str().into()];
    for (graph, fingerprint) in &filter.graphs {
        all.extend_from_slice(values![&**graph, &fingerprint.0]);
    }
    all
}

/// Whether something is ready, and when the next run will be: parked until then, or with a lease that ends then. One
/// question, with one look into the index for each graph; the server says in it that it still takes writes.
pub(super) async fn outlook(
    session: &mut dyn Session,
    overlong: &Overlong,
    clock: &Clock,
    filter: &ReadyFilter,
) -> Result<Outlook, Fault> {
    if filter.graphs.is_empty() {
        return Ok(Outlook::default());
    }
    let mut looks = vec!["ready_at <= {now}", "ready_at > {now}"];
    if overlong.asked.is_due() {
        looks.push(OVERLONG);
    }
    let (mut parts, mut all) = (vec![], vec![]);
    for (look, which) in looks.iter().enumerate() {
        for (graph, fingerprint) in &filter.graphs {
            parts.push(format!(
                "SELECT * FROM (SELECT {look} AS look, ready_at - {{now}} AS left_us FROM hapax_runs WHERE namespace = ? \
                 AND graph = ? AND fingerprint = ? AND {which} ORDER BY ready_at, created_at, run_id LIMIT 1) AS part{}",
                parts.len()
            ));
            all.extend_from_slice(values![filter.namespace.as_str(), &**graph, &fingerprint.0]);
        }
    }
    let sql = format!(
        "SELECT -1 AS look, CASE WHEN {{writable}} THEN 1 ELSE 0 END AS left_us UNION ALL SELECT -2, {{now}} UNION ALL {}",
        parts.join(" UNION ALL ")
    );
    let asked_us = now_us();
    let rows = session.rows(&sql, &all).await?;
    read_outlook(&rows, |said_us| clock.heard(asked_us, said_us, now_us()))
}

fn read_outlook(rows: &[Row], hear: impl Fn(i64)) -> Result<Outlook, Fault> {
    let mut outlook = Outlook::default();
    for row in rows {
        let left = row.int(1)?;
        match row.int(0)? {
            -2 => hear(left),
            -1 if left == 0 => return Err(Fault::Lost("the server takes no writes any more".into())),
            -1 => {}
            1 => {
                let next = micros_left(left, 0).saturating_add(spread());
                outlook.next = outlook.next.into_iter().chain([next]).min();
            }
            _ => outlook.ready = true,
        }
    }
    Ok(outlook)
}

/// Many workers that wait for one moment come one after the other.
fn spread() -> Duration {
    let drawn = uuid::Uuid::new_v4().as_u128() as u64;
    SPREAD.mul_f64(drawn as f64 / u64::MAX as f64)
}

/// Who holds runs, and what could go on.
pub(super) async fn fleet(session: &mut dyn Session, namespace: &Namespace) -> Result<Fleet, Fault> {
    let sql = "SELECT owner, count(*), min(lease_until) - {now}, max(epoch) FROM hapax_runs \
               WHERE namespace = ? AND owner IS NOT NULL GROUP BY owner ORDER BY owner";
    let mut fleet = Fleet::default();
    for row in session.rows(sql, values![namespace.as_str()]).await? {
        fleet.holders.push(Holding {
            owner: row.text(0)?.to_owned(),
            runs: row.count(1)?,
            lease_left: micros_left(row.int(2)?, 0),
            epoch: row.count(3)?,
        });
    }
    // A head start is no wait.
    let sql = "SELECT count(*), {now} - min(CASE WHEN ready_at < updated_at THEN updated_at ELSE ready_at END) \
               FROM hapax_runs WHERE namespace = ? AND ready_at <= {now}";
    if let Some(row) = one(session, sql, values![namespace.as_str()]).await? {
        fleet.waiting = row.count(0)?;
        fleet.lag = micros_left(row.maybe_int(1)?.unwrap_or(0), 0);
    }
    Ok(fleet)
}

/// Prolongs leases.
pub(super) async fn renew(
    tx: &mut Tx<'_>,
    leases: &[(RunKey, Epoch)],
    by: &Claimant,
) -> Outcome<Vec<(RunKey, Renewal)>> {
    let mut kept = HashSet::new();
    for some in leases.chunks(RENEWED) {
        kept.extend(renew_some(tx, some, by).await?);
    }
    let renewal = |key: &RunKey| if kept.contains(key) { Renewal::Kept } else { Renewal::Lost };
    Ok(leases.iter().map(|(key, _)| (key.clone(), renewal(key))).collect())
}

async fn renew_some(
    tx: &mut Tx<'_>,
    leases: &[(RunKey, Epoch)],
    by: &Claimant,
) -> Result<Vec<RunKey>, Fault> {
    let nonces: Vec<[u8; 16]> = leases.iter().map(|(_, epoch)| epoch.nonce.to_be_bytes()).collect();
    let mut held: Vec<Value<'_>> = vec![];
    for ((key, epoch), nonce) in leases.iter().zip(&nonces) {
        held.extend_from_slice(values![key.namespace.as_str(), key.run.as_str(), epoch.counter, nonce]);
    }
    let which =
        format!("(namespace, run_id, epoch, nonce) IN ({}) AND owner = ?", place_rows(leases.len(), 4));
    held.push((&*by.owner).into());
    // Locked in one order: two statements that lock the same rows in different orders would wait for each other.
    let sql = format!(
        "SELECT namespace, run_id FROM hapax_runs WHERE {which} ORDER BY namespace, run_id FOR UPDATE"
    );
    let rows = tx.rows(&sql, &held).await?;
    let mut kept = vec![];
    for row in &rows {
        kept.push(RunKey { namespace: Namespace::new(row.text(0)?)?, run: RunId::new(row.text(1)?)? });
    }
    let sql = format!(
        "UPDATE hapax_runs SET lease_until = {{now}} + ?, lease_ttl = ?, \
         ready_at = CASE WHEN status IN ('waiting', 'in_doubt') THEN ready_at ELSE {{now}} + ? END WHERE {which}"
    );
    let ttl = micros(by.ttl);
    let mut all = values![ttl, ttl, ttl].to_vec();
    all.extend(held);
    tx.execute(&sql, &all).await?;
    Ok(kept)
}

/// The owner's runs for which a cancel was requested.
pub(super) async fn cancels(session: &mut dyn Session, owner: &str) -> Result<Vec<RunKey>, Fault> {
    let sql = "SELECT namespace, run_id FROM hapax_runs WHERE owner = ? AND cancel_requested = 1";
    let rows = session.rows(sql, values![owner]).await?;
    let key =
        |row: &Row| Ok(RunKey { namespace: Namespace::new(row.text(0)?)?, run: RunId::new(row.text(1)?)? });
    rows.iter().map(key).collect()
}
