//! Runs as a whole: created, listed, cancelled, retried, deleted.
//!
//! Invariant: a run's rows come and go together, in one transaction.

use super::{
    blobs,
    commit::{NewCheckpoint, insert_checkpoint},
    error::{Halt, Outcome, undone},
    flow, journal,
    lease::new_nonce,
    read::{self, RECORD},
    sql::{Fault, Session, Value, places, values},
    writer::Tx,
};
use crate::{
    blobs::{BEGINS, end_objects_sql},
    check::{is_elsewhere, is_over},
    clock::micros,
    error::StoreError,
    prepare::{self, Birth},
    sharded::partition,
    store::{Created, GcPolicy, GcReport, Hint, Lease, ListFilter, NewRun, RunRecord},
};
use hapax_core::{
    commit::Status,
    id::{RunId, RunKey},
    journal::{Entry, JournalRow},
    json::Json,
    order::PathHash,
};
use std::sync::LazyLock;

/// Creates a run with its first step, unless its name is taken.
pub(super) async fn create(tx: &mut Tx<'_>, birth: &Birth, lease: Option<Lease>) -> Outcome<Created> {
    let Birth { run: new, parts, entries, blobs } = birth;
    let parent = parent_of(tx, new).await?;
    let orphaned = matches!(&parent, Some(parent) if parent.status == Status::Cancelled);
    if let Some(parent) = parent.filter(|parent| is_elsewhere(&parent.status)) {
        return Err(wrong_status(parent).into());
    }
    let nonce = nonce(&lease);
    let sql = format!("{INSERT} VALUES {ROW}{}", tx.session.unless_there());
    if tx.execute(&sql, &row(new, lease.as_ref(), &nonce, orphaned)).await? != 1 {
        let Some(found) = read::run(tx.session, &new.key).await? else {
            return Err(StoreError::Retry("the run was there and is gone".into()).into());
        };
        return Err(Halt::Settle(Ok(Created::Exists(Box::new(found)))));
    }
    let (run, checkpoint) = (&new.key, &new.checkpoint);
    insert_checkpoint(tx.session, NewCheckpoint { run, checkpoint, parts, next_seq: 0 }).await?;
    journal::insert(tx, &new.key, 0, &new.journal, entries).await?;
    blobs::insert(tx, &new.key, blobs).await?;
    for (key, value) in &new.tags {
        tx.execute(
            "INSERT INTO hapax_tags (namespace, tag_key, tag_value, run_id) VALUES (?, ?, ?, ?)",
            values![new.key.namespace.as_str(), key.as_str(), value.as_str(), new.key.run.as_str()],
        )
        .await?;
    }
    if lease.is_none() {
        tx.hints.push(Hint::Ready(new.key.namespace.clone()));
    }
    if !new.terms.is_plain() {
        flow::meet_terms(tx, new).await?;
    }
    Ok(Created::New(lease))
}

/// What a run's row is made of, and the places of its values.
pub(super) const INSERT: &str = "INSERT INTO hapax_runs (namespace, run_id, part, graph, fingerprint, input, status, \
     status_json, step_id, digest, next_seq, epoch, nonce, owner, lease_until, lease_ttl, ready_at, cancel_requested, \
     used_us, created_at, updated_at, parent)";
pub(super) const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CASE WHEN ? = 1 THEN {now} + ? ELSE 0 END, ?, \
     {now} + ?, ?, 0, {now}, {now}, ?)";

static RUNNING: LazyLock<Json> = LazyLock::new(|| Status::Running.to_json());
static PENDING: LazyLock<Json> = LazyLock::new(|| Status::Pending.to_json());

/// The nonce of a lease, as it is stored; zero for a run that nobody holds.
pub(super) fn nonce(lease: &Option<Lease>) -> [u8; 16] {
    lease.as_ref().map_or(0, |lease| lease.epoch.nonce).to_be_bytes()
}

/// The row of a new run.
pub(super) fn row<'n>(
    new: &'n NewRun,
    lease: Option<&Lease>,
    nonce: &'n [u8; 16],
    orphaned: bool,
) -> Vec<Value<'n>> {
    let (status, json) =
        if lease.is_some() { (Status::Running, &RUNNING) } else { (Status::Pending, &PENDING) };
    let ttl = new.claim.as_ref().map_or(0, |by| micros(by.ttl));
    values![
        new.key.namespace.as_str(),
        new.key.run.as_str(),
        partition(&new.key.run),
        &*new.graph,
        &new.fingerprint.0,
        &new.input.0,
        status.word(),
        json.as_str(),
        new.checkpoint.step,
        &new.checkpoint.digest.0,
        new.journal.len(),
        lease.map_or(0, |lease| lease.epoch.counter),
        nonce,
        new.claim.as_ref().map(|by| &*by.owner),
        lease.is_some(),
        ttl,
        ttl,
        ttl,
        orphaned,
        new.parent.as_ref().map(RunId::as_str),
    ]
    .to_vec()
}

/// The parent, which may be cancelled, or elsewhere: a worker that was taken for dead may start a child of it. Its row stays
/// locked until the child is there, so that its own cancel finds the child, and so does its move.
async fn parent_of(tx: &mut Tx<'_>, new: &NewRun) -> Result<Option<RunRecord>, Fault> {
    let Some(parent) = &new.parent else { return Ok(None) };
    let sql = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE");
    let row = tx.one(&sql, values![new.key.namespace.as_str(), parent.as_str()]).await?;
    row.map(|row| read::record(&row, &new.key.namespace)).transpose()
}

/// Runs, newest first. Damage is reported with the run whose row or tags it is in.
pub(super) async fn list(
    session: &mut dyn Session,
    filter: &ListFilter,
    about: &RunKey,
) -> Result<Vec<RunRecord>, StoreError> {
    let (sql, values) = list_query(filter);
    let rows = session.rows(&sql, &values).await.map_err(|fault| undone(fault, about))?;
    let mut runs = vec![];
    for row in &rows {
        let name = row.text(0).ok().and_then(|name| RunId::new(name).ok());
        let key =
            name.map_or_else(|| about.clone(), |run| RunKey { namespace: filter.namespace.clone(), run });
        runs.push(read::record(row, &filter.namespace).map_err(|fault| undone(fault, &key))?);
    }
    read::add_tags(session, &filter.namespace, &mut runs).await.map_err(|fault| undone(fault, about))?;
    Ok(runs)
}

/// The question that a filter asks, and its values.
fn list_query(filter: &ListFilter) -> (String, Vec<Value<'_>>) {
    let mut sql = format!("SELECT {RECORD} FROM hapax_runs r WHERE namespace = ? AND created_at > 0");
    let mut values: Vec<Value<'_>> = vec![filter.namespace.as_str().into()];
    if let Some(graph) = filter.graph.as_deref() {
        sql.push_str(" AND graph = ?");
        values.push(graph.into());
    }
    if !filter.statuses.is_empty() {
        sql.push_str(&format!(" AND status IN {}", places(filter.statuses.len())));
        values.extend(filter.statuses.iter().map(|status| Value::from(status.as_str())));
    }
    if !filter.except.is_empty() {
        sql.push_str(&format!(" AND run_id NOT IN {}", places(filter.except.len())));
        values.extend(filter.except.iter().map(|run| Value::from(run.as_str())));
    }
    for (key, value) in &filter.tags {
        sql.push_str(
            " AND EXISTS (SELECT 1 FROM hapax_tags t WHERE t.namespace = r.namespace AND t.tag_key = ? \
             AND t.tag_value = ? AND t.run_id = r.run_id)",
        );
        values.extend([Value::from(key.as_str()), Value::from(value.as_str())]);
    }
    sql.push_str(" ORDER BY created_at DESC, run_id DESC LIMIT ?");
    values.push(filter.limit.into());
    (sql, values)
}

/// A run's row, locked.
pub(super) async fn found_locked<T>(tx: &mut Tx<'_>, key: &RunKey) -> Result<RunRecord, Halt<T>> {
    let sql = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE");
    let row = tx.one(&sql, values![key.namespace.as_str(), key.run.as_str()]).await?;
    let row = row.ok_or_else(|| StoreError::NotFound { run: key.clone() })?;
    Ok(read::record(&row, &key.namespace)?)
}

pub(super) fn wrong_status(record: RunRecord) -> StoreError {
    StoreError::of_status(record.key, record.status)
}

/// Refuses to write into an encrypted run without keys.
pub(super) async fn demand_key<T>(tx: &mut Tx<'_>, record: &RunRecord) -> Result<(), Halt<T>> {
    let run = &record.key;
    let sql = format!(
        "SELECT substr(state, 1, {BEGINS}) FROM hapax_checkpoints WHERE namespace = ? AND run_id = ? AND step_id = ?"
    );
    let row = tx.one(&sql, values![run.namespace.as_str(), run.run.as_str(), record.step]).await?;
    let demanded = row.map_or(Ok(Ok(())), |row| Ok::<_, Fault>(tx.codec.demand_key(row.blob(0)?)))?;
    demanded.map_err(|locked| StoreError::Locked { run: run.clone(), locked }.into())
}

/// Asks for a cancel.
pub(super) async fn request_cancel(tx: &mut Tx<'_>, key: &RunKey) -> Outcome<()> {
    let record = found_locked(tx, key).await?;
    if record.status.is_final() || record.status.is_moving() {
        return Err(wrong_status(record).into());
    }
    tx.execute(
        "UPDATE hapax_runs SET cancel_requested = 1, updated_at = {now}, \
         ready_at = CASE WHEN owner IS NULL THEN {now} ELSE lease_until END WHERE namespace = ? AND run_id = ?",
        values![key.namespace.as_str(), key.run.as_str()],
    )
    .await?;
    tx.hints.push(match record.owner {
        Some(_) => Hint::Cancel(key.clone()),
        None => Hint::Ready(key.namespace.clone()),
    });
    Ok(())
}

/// Makes a failed run pending again, in an epoch of its own: the one who let it fail may say so again, as its answer was lost.
pub(super) async fn retry(tx: &mut Tx<'_>, key: &RunKey) -> Outcome<()> {
    let record = found_locked(tx, key).await?;
    if !matches!(record.status, Status::Failed { .. }) {
        return Err(wrong_status(record).into());
    }
    demand_key(tx, &record).await?;
    tx.execute(
        "UPDATE hapax_runs SET status = 'pending', status_json = ?, next_seq = next_seq + 1, used_us = 0, \
         epoch = epoch + 1, nonce = ?, ready_at = {now} - head_start, updated_at = {now} \
         WHERE namespace = ? AND run_id = ?",
        values![
            Status::Pending.to_json().as_str(),
            &new_nonce().to_be_bytes(),
            key.namespace.as_str(),
            key.run.as_str()
        ],
    )
    .await?;
    let (seq, base, step) = (record.next_seq, record.digest, record.step);
    let rows = [JournalRow { seq, base, step, path_hash: PathHash::ROOT, entry: Entry::Retried }];
    let entries = prepare::entries(key, seq, &rows, tx.codec).map_err(StoreError::Retry)?;
    tx.hints.push(Hint::Ready(key.namespace.clone()));
    journal::insert(tx, key, seq, &rows, &entries).await?;
    flow::readmit(tx, &record).await
}

/// Deletes a finished run whole.
pub(super) async fn delete(tx: &mut Tx<'_>, key: &RunKey) -> Outcome<()> {
    let record = found_locked(tx, key).await?;
    let unsent = tx
        .one(
            "SELECT 1 FROM hapax_outbox WHERE namespace = ? AND run_id = ? AND status <> 'sent' LIMIT 1",
            values![key.namespace.as_str(), key.run.as_str()],
        )
        .await?;
    if !is_over(&record.status) || unsent.is_some() {
        return Err(wrong_status(record).into());
    }
    Ok(delete_rows(tx, key).await?)
}

pub(super) async fn delete_rows(tx: &mut Tx<'_>, key: &RunKey) -> Result<(), Fault> {
    for sql in [
        "DELETE FROM hapax_outbox WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_letters WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_journal WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_frontier WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_checkpoints WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_blobs WHERE namespace = ? AND run_id = ?",
        &end_objects_sql("{now}"),
        "DELETE FROM hapax_keys WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_tags WHERE namespace = ? AND run_id = ?",
        "DELETE FROM hapax_runs WHERE namespace = ? AND run_id = ?",
    ] {
        tx.execute(sql, values![key.namespace.as_str(), key.run.as_str()]).await?;
    }
    Ok(())
}

/// Deletes finished runs by age and count, oldest first. Each is looked at again under its row's lock.
pub(super) async fn gc(tx: &mut Tx<'_>, policy: &GcPolicy) -> Outcome<GcReport> {
    let rows = tx
        .rows(
            "SELECT run_id, (SELECT count(*) FROM hapax_outbox o WHERE o.namespace = old.namespace \
             AND o.run_id = old.run_id AND o.status <> 'sent') FROM \
             (SELECT namespace, run_id, updated_at, created_at FROM hapax_runs r \
              WHERE namespace = ? AND status IN ('succeeded', 'failed', 'cancelled') AND NOT EXISTS \
              (SELECT 1 FROM hapax_runs p WHERE p.namespace = r.namespace AND p.run_id = r.parent \
               AND p.status NOT IN ('succeeded', 'failed', 'cancelled')) \
              ORDER BY updated_at DESC, created_at DESC LIMIT ? OFFSET ?) old \
             WHERE ? = 0 OR updated_at < {now} - ? ORDER BY updated_at, created_at",
            values![
                policy.namespace.as_str(),
                i64::MAX,
                policy.keep_newest,
                policy.older_than.is_some(),
                policy.older_than.map_or(0, micros),
            ],
        )
        .await?;
    let mut report = GcReport::default();
    for row in &rows {
        if row.int(1)? > 0 {
            report.unsent += 1;
        } else if report.deleted.len() < policy.limit {
            let run = RunId::new(row.text(0)?).map_err(Fault::from)?;
            let key = RunKey { namespace: policy.namespace.clone(), run };
            if policy.dry_run || sweep(tx, &key).await? {
                report.deleted.push(key);
            }
        }
    }
    Ok(report)
}

/// Deletes a run that is still finished, or gone already: somebody else may sweep as well.
async fn sweep(tx: &mut Tx<'_>, key: &RunKey) -> Result<bool, Fault> {
    let row = tx
        .one(
            "SELECT status FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE",
            values![key.namespace.as_str(), key.run.as_str()],
        )
        .await?;
    let Some(row) = row else { return Ok(false) };
    if !matches!(row.text(0)?, "succeeded" | "failed" | "cancelled") {
        return Ok(false);
    }
    delete_rows(tx, key).await?;
    Ok(true)
}
