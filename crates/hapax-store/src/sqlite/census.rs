//! Where runs stand, counted in the index by status.
//!
//! Invariant: whatever is asked is bounded, so that a look costs the same however many runs have piled up.

use super::read::{RECORD, record};
use crate::{
    census::{LIVE, STATUSES, each_once},
    store::{Census, CensusFilter, RunRecord, Tally},
};
use hapax_core::{canary, limits::MAX_COUNTED};
use rusqlite::{Connection, Params, params};

const MOST: i64 = MAX_COUNTED.cast_signed() + 1;

pub(super) fn census(connection: &Connection, filter: &CensusFilter, now: i64) -> rusqlite::Result<Census> {
    let mut census = Census { at_us: now, ..Census::default() };
    let namespace = filter.namespace.as_str();
    let mut statement = connection.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM hapax_runs INDEXED BY hapax_runs_ready \
         WHERE namespace = ?1 AND status = ?2 LIMIT ?3)",
    )?;
    for word in STATUSES {
        let count: i64 = statement.query_row(params![namespace, word, MOST], |row| row.get(0))?;
        census.statuses.insert(word, Tally::exactly(count.cast_unsigned()));
    }
    let mut statement = connection.prepare_cached(
        "SELECT count(*), coalesce(sum(step_id), 0) FROM (SELECT step_id FROM hapax_runs INDEXED BY hapax_runs_newest \
         WHERE namespace = ?1 AND created_at > ?2 LIMIT ?3)",
    )?;
    let (created, steps): (i64, i64) = statement
        .query_row(params![namespace, filter.since_us, MOST], |row| Ok((row.get(0)?, row.get(1)?)))?;
    census.created = Tally::exactly(created.cast_unsigned());
    census.created_steps = steps.cast_unsigned();
    census.runs = runs(connection, filter)?;
    Ok(census)
}

/// Those to be followed, and some of each status that isn't over.
fn runs(connection: &Connection, filter: &CensusFilter) -> rusqlite::Result<Vec<RunRecord>> {
    let (namespace, mut runs) = (filter.namespace.as_str(), vec![]);
    let one = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ?1 AND run_id = ?2");
    for run in &filter.follow {
        runs.extend(readable(connection, &one, params![namespace, run.as_str()], filter)?);
    }
    let some = format!(
        "SELECT {RECORD} FROM hapax_runs INDEXED BY hapax_runs_ready WHERE namespace = ?1 AND status = ?2 \
         ORDER BY graph, rank LIMIT ?3"
    );
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    let told = if canary::on("only_running_told") { 1 } else { LIVE };
    for word in &STATUSES[..told] {
        runs.extend(readable(connection, &some, params![namespace, word, limit], filter)?);
    }
    Ok(each_once(runs))
}

/// The rows that can be read: one that can't must not hide the others.
fn readable(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    filter: &CensusFilter,
) -> rusqlite::Result<Vec<RunRecord>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(values, |row| Ok(record(row, &filter.namespace).ok()))?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
}
