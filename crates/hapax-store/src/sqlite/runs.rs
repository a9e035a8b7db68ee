//! Runs as a whole: created, listed, cancelled, retried, deleted.
//!
//! Invariant: a run's rows come and go together, in one transaction.

use super::{
    blobs,
    commit::insert_checkpoint,
    error::unreadable,
    flow, journal,
    lease::{first_term, new_nonce},
    read::{self, RECORD},
    writer::{Halt, Outcome, Tx},
};
use crate::{
    blobs::{BEGINS, end_objects_sql},
    check::{is_elsewhere, is_over},
    error::StoreError,
    prepare::{self, Birth},
    store::{Created, GcPolicy, GcReport, Lease, ListFilter, NewRun, RunRecord},
};
use hapax_core::{
    commit::{Epoch, Status},
    id::{RunId, RunKey},
    journal::{Entry, JournalRow},
    order::PathHash,
};
use rusqlite::{Connection, ToSql, params, params_from_iter};

/// Creates a run with its step 0, unless its name is taken.
pub(super) fn create(tx: &Tx<'_>, birth: &Birth) -> Outcome<Created> {
    let Birth { run: new, parts, entries, blobs } = birth;
    let lease = new.claim.as_ref().map(|_| {
        let epoch = Epoch { counter: 1, nonce: new_nonce() };
        Lease { epoch, taken_over: false }
    });
    if let Some(refusal) = parent_elsewhere(tx, new)? {
        return Err(refusal.into());
    }
    if !insert_run(tx, new, lease.as_ref())? {
        let Some(found) = read::run(tx.connection, &new.key)? else {
            return Err(StoreError::Retry("the run was there and is gone".into()).into());
        };
        return Ok(Created::Exists(Box::new(found)));
    }
    insert_checkpoint(tx, &new.key, &new.checkpoint, parts, 0)?;
    journal::insert(tx, &new.key, 0, &new.journal, entries)?;
    blobs::insert(tx, &new.key, blobs)?;
    for (key, value) in &new.tags {
        tx.execute(
            "INSERT INTO hapax_tags (namespace, tag_key, tag_value, run_id) VALUES (?1, ?2, ?3, ?4)",
            params![new.key.namespace.as_str(), key, value, new.key.run.as_str()],
        )?;
    }
    flow::meet_terms(tx, new)?;
    Ok(Created::New(lease))
}

/// A child of a run that is elsewhere belongs there: whoever starts it here was taken for dead.
fn parent_elsewhere(tx: &Tx<'_>, new: &NewRun) -> rusqlite::Result<Option<StoreError>> {
    let Some(run) = &new.parent else { return Ok(None) };
    let parent = RunKey { namespace: new.key.namespace.clone(), run: run.clone() };
    let found = read::run(tx.connection, &parent)?.filter(|parent| is_elsewhere(&parent.status));
    Ok(found.map(wrong_status))
}

fn insert_run(tx: &Tx<'_>, new: &NewRun, lease: Option<&Lease>) -> rusqlite::Result<bool> {
    let status = if lease.is_some() { Status::Running } else { Status::Pending };
    let (until, ttl) = new.claim.as_ref().map_or((0, 0), |by| first_term(tx.now, by));
    let epoch = lease.map_or(Epoch { counter: 0, nonce: 0 }, |lease| lease.epoch);
    // No two runs are of one age, so that "oldest first" is an order.
    let newest = tx.one(
        "SELECT max(created_at) FROM hapax_runs WHERE namespace = ?1",
        params![new.key.namespace.as_str()],
        |row| row.get::<_, Option<i64>>(0),
    )?;
    let created_at = newest.flatten().map_or(tx.now, |newest| tx.now.max(newest.saturating_add(1)));
    let inserted = tx.execute(
        "INSERT INTO hapax_runs (namespace, run_id, graph, fingerprint, input, status, status_json, step_id, digest, \
         next_seq, epoch, nonce, owner, lease_until, lease_ttl, cancel_requested, used_us, created_at, updated_at, parent, rank) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?17, ?10, ?11, ?12, ?13, ?14, EXISTS \
         (SELECT 1 FROM hapax_runs WHERE namespace = ?1 AND run_id = ?16 AND status = 'cancelled'), 0, ?15, ?15, ?16, ?15) \
         ON CONFLICT DO NOTHING",
        params![
            new.key.namespace.as_str(),
            new.key.run.as_str(),
            &*new.graph,
            new.fingerprint.0,
            new.input.0,
            status.word(),
            status.to_json().as_str(),
            new.checkpoint.step.cast_signed(),
            new.checkpoint.digest.0,
            epoch.counter.cast_signed(),
            epoch.nonce.to_be_bytes(),
            new.claim.as_ref().map(|by| &*by.owner),
            until,
            ttl,
            created_at,
            new.parent.as_ref().map(RunId::as_str),
            new.journal.len() as i64,
        ],
    )?;
    Ok(inserted == 1)
}

/// Runs, newest first. Damage is reported with the run whose row or tags it is in.
pub(super) fn list(
    connection: &Connection,
    filter: &ListFilter,
    about: &RunKey,
) -> Result<Vec<RunRecord>, StoreError> {
    let unknown = |error| unreadable(error, about);
    let (sql, values) = list_query(filter);
    let mut statement = connection.prepare_cached(&sql).map_err(unknown)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(unknown)?;
    let mut runs = vec![];
    while let Some(row) = rows.next().map_err(unknown)? {
        let name = row.get_ref(0).ok().and_then(|name| RunId::new(name.as_str().ok()?).ok());
        if name.is_none() && filter.except.contains(&about.run) {
            continue;
        }
        let key =
            name.map_or_else(|| about.clone(), |run| RunKey { namespace: filter.namespace.clone(), run });
        let blame = |error| unreadable(error, &key);
        let mut run = read::record(row, &filter.namespace).map_err(blame)?;
        run.tags = read::tags(connection, &key).map_err(blame)?;
        runs.push(run);
    }
    Ok(runs)
}

/// The question that a filter asks, and its values.
fn list_query(filter: &ListFilter) -> (String, Vec<Box<dyn ToSql + '_>>) {
    let mut sql = format!("SELECT {RECORD} FROM hapax_runs AS r WHERE namespace = ?");
    let mut values: Vec<Box<dyn ToSql + '_>> = vec![Box::new(filter.namespace.as_str())];
    if let Some(graph) = filter.graph.as_deref() {
        sql.push_str(" AND graph = ?");
        values.push(Box::new(graph));
    }
    let places = |count| vec!["?"; count].join(", ");
    if !filter.statuses.is_empty() {
        sql.push_str(&format!(" AND status IN ({})", places(filter.statuses.len())));
        values.extend(filter.statuses.iter().map(|status| Box::new(status) as Box<dyn ToSql>));
    }
    if !filter.except.is_empty() {
        sql.push_str(&format!(" AND run_id NOT IN ({})", places(filter.except.len())));
        values.extend(filter.except.iter().map(|run| Box::new(run.as_str()) as Box<dyn ToSql>));
    }
    for (key, value) in &filter.tags {
        sql.push_str(
            " AND EXISTS (SELECT 1 FROM hapax_tags AS t WHERE t.namespace = r.namespace AND t.tag_key = ? \
             AND t.tag_value = ? AND t.run_id = r.run_id)",
        );
        values.extend([Box::new(key) as Box<dyn ToSql>, Box::new(value)]);
    }
    sql.push_str(" ORDER BY created_at DESC LIMIT ?");
    values.push(Box::new(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
    (sql, values)
}

pub(super) fn found(tx: &Tx<'_>, key: &RunKey) -> Result<RunRecord, Missing> {
    read::run(tx.connection, key)?.ok_or_else(|| Missing::Run(StoreError::NotFound { run: key.clone() }))
}

/// Either kind of failure, before it is known what the job answers.
pub(super) enum Missing {
    Run(StoreError),
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Missing {
    fn from(error: rusqlite::Error) -> Self {
        Missing::Sql(error)
    }
}

impl<T> From<Missing> for Halt<T> {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Run(error) => error.into(),
            Missing::Sql(error) => error.into(),
        }
    }
}

pub(super) fn wrong_status(record: RunRecord) -> StoreError {
    StoreError::of_status(record.key, record.status)
}

/// Refuses to write into an encrypted run without keys.
pub(super) fn demand_key<T>(tx: &Tx<'_>, record: &RunRecord) -> Result<(), Halt<T>> {
    let run = &record.key;
    let sql = format!(
        "SELECT substr(state, 1, {BEGINS}) FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2 AND step_id = ?3"
    );
    let which = params![run.namespace.as_str(), run.run.as_str(), record.step.cast_signed()];
    let begins = tx.one(&sql, which, |row| row.get::<_, Vec<u8>>(0))?;
    let demanded = begins.map_or(Ok(()), |begins| tx.codec.demand_key(&begins));
    demanded.map_err(|locked| StoreError::Locked { run: run.clone(), locked }.into())
}

/// Asks for a cancel.
pub(super) fn request_cancel(tx: &Tx<'_>, key: &RunKey) -> Outcome<()> {
    let record = found(tx, key)?;
    if record.status.is_final() || record.status.is_moving() {
        return Err(wrong_status(record).into());
    }
    tx.execute(
        "UPDATE hapax_runs SET cancel_requested = 1, updated_at = ?3 WHERE namespace = ?1 AND run_id = ?2",
        params![key.namespace.as_str(), key.run.as_str(), tx.now],
    )?;
    Ok(())
}

/// Makes a failed run pending again, in an epoch of its own: the one who let it fail may say so again, as its answer was lost.
pub(super) fn retry(tx: &Tx<'_>, key: &RunKey) -> Outcome<()> {
    let record = found(tx, key)?;
    if !matches!(record.status, Status::Failed { .. }) {
        return Err(wrong_status(record).into());
    }
    demand_key(tx, &record)?;
    tx.execute(
        "UPDATE hapax_runs SET status = 'pending', status_json = ?3, next_seq = next_seq + 1, used_us = 0, \
         updated_at = ?4, epoch = epoch + 1, nonce = ?5 WHERE namespace = ?1 AND run_id = ?2",
        params![
            key.namespace.as_str(),
            key.run.as_str(),
            Status::Pending.to_json().as_str(),
            tx.now,
            new_nonce().to_be_bytes(),
        ],
    )?;
    let (seq, base, step) = (record.next_seq, record.digest, record.step);
    let rows = [JournalRow { seq, base, step, path_hash: PathHash::ROOT, entry: Entry::Retried }];
    let entries = prepare::entries(key, seq, &rows, tx.codec).map_err(StoreError::Retry)?;
    journal::insert(tx, key, seq, &rows, &entries)?;
    flow::readmit(tx, &record)
}

/// Deletes a finished run whole.
pub(super) fn delete(tx: &Tx<'_>, key: &RunKey) -> Outcome<()> {
    let record = found(tx, key)?;
    let unsent = tx.one(
        "SELECT 1 FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2 AND status <> 'sent' LIMIT 1",
        params![key.namespace.as_str(), key.run.as_str()],
        |_| Ok(()),
    )?;
    if !is_over(&record.status) || unsent.is_some() {
        return Err(wrong_status(record).into());
    }
    Ok(delete_rows(tx, key)?)
}

pub(super) fn delete_rows(tx: &Tx<'_>, key: &RunKey) -> rusqlite::Result<()> {
    for sql in [
        "DELETE FROM hapax_outbox WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_letters WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_journal WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_frontier WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_checkpoints WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_blobs WHERE namespace = ?1 AND run_id = ?2",
        &end_objects_sql(&tx.now.to_string()),
        "DELETE FROM hapax_keys WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_tags WHERE namespace = ?1 AND run_id = ?2",
        "DELETE FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2",
    ] {
        tx.execute(sql, params![key.namespace.as_str(), key.run.as_str()])?;
    }
    Ok(())
}

/// Deletes finished runs by age and count, oldest first.
pub(super) fn gc(tx: &Tx<'_>, policy: &GcPolicy) -> Outcome<GcReport> {
    let mut report = GcReport::default();
    let mut candidates = vec![];
    let age = policy.older_than.map_or(0, |age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
    let before = policy.older_than.map_or(i64::MAX, |_| tx.now.saturating_sub(age));
    {
        let mut statement = tx.connection.prepare_cached(
            "SELECT run_id, EXISTS (SELECT 1 FROM hapax_outbox AS o WHERE o.namespace = ?1 \
             AND o.run_id = old.run_id AND o.status <> 'sent') FROM \
             (SELECT run_id, updated_at, created_at FROM hapax_runs AS r \
              WHERE namespace = ?1 AND status IN ('succeeded', 'failed', 'cancelled') AND NOT EXISTS \
              (SELECT 1 FROM hapax_runs AS p WHERE p.namespace = ?1 AND p.run_id = r.parent \
               AND p.status NOT IN ('succeeded', 'failed', 'cancelled')) \
              ORDER BY updated_at DESC, created_at DESC LIMIT -1 OFFSET ?2) AS old \
             WHERE updated_at < ?3 ORDER BY updated_at, created_at",
        )?;
        let keep = i64::try_from(policy.keep_newest).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![policy.namespace.as_str(), keep, before])?;
        while let Some(row) = rows.next()? {
            if row.get(1)? {
                report.unsent += 1;
            } else if candidates.len() < policy.limit {
                let run = RunId::new(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)
                    .map_err(|error| super::error::damaged(error.to_string()))?;
                candidates.push(RunKey { namespace: policy.namespace.clone(), run });
            }
        }
    }
    for key in candidates {
        if !policy.dry_run {
            delete_rows(tx, &key)?;
        }
        report.deleted.push(key);
    }
    Ok(report)
}
