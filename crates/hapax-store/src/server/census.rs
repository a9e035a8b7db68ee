//! Where runs stand, counted in the index by status.
//!
//! Invariant: whatever is asked is bounded, so that a look costs the same however many runs have piled up.

use super::{
    read::{RECORD, record},
    sql::{Fault, Row, Session, Value, places, values},
};
use crate::{
    census::{LIVE, STATUSES, each_once},
    store::{Census, CensusFilter, RunRecord, Tally},
};
use hapax_core::limits::MAX_COUNTED;

const MOST: u64 = MAX_COUNTED + 1;

pub(super) async fn census(session: &mut dyn Session, filter: &CensusFilter) -> Result<Census, Fault> {
    let mut census = Census::default();
    let namespace = filter.namespace.as_str();
    let (sql, all) = counts(namespace);
    for (row, word) in session.rows(&sql, &all).await?.iter().zip(STATUSES) {
        census.statuses.insert(word, Tally::exactly(row.count(0)?));
        census.at_us = row.int(1)?;
    }
    // In words of the index by age. The sum is ours: servers answer sums of large numbers in types of their own.
    let sql =
        "SELECT step_id FROM hapax_runs WHERE namespace = ? AND created_at > 0 AND created_at > ? LIMIT ?";
    let created = session.rows(sql, values![namespace, filter.since_us, MOST]).await?;
    census.created = Tally::exactly(created.len() as u64);
    for row in &created {
        census.created_steps += row.count(0)?;
    }
    census.runs = runs(session, filter).await?;
    Ok(census)
}

/// One question for all counts, each bounded by itself.
fn counts(namespace: &str) -> (String, Vec<Value<'_>>) {
    let (mut parts, mut all) = (vec![], vec![]);
    for (at, word) in STATUSES.iter().enumerate() {
        parts.push(format!(
            "SELECT (SELECT count(*) FROM (SELECT 1 AS one FROM hapax_runs WHERE namespace = ? AND status = '{word}' \
             AND part >= 0 LIMIT ?) AS some{at}), {{now}}, {at} AS place"
        ));
        all.extend_from_slice(values![namespace, MOST]);
    }
    (format!("{} ORDER BY place", parts.join(" UNION ALL ")), all)
}

/// Those to be followed, and some of each status that isn't over.
async fn runs(session: &mut dyn Session, filter: &CensusFilter) -> Result<Vec<RunRecord>, Fault> {
    let (namespace, mut rows) = (filter.namespace.as_str(), vec![]);
    if !filter.follow.is_empty() {
        let places = places(filter.follow.len());
        let sql = format!("SELECT {RECORD} FROM hapax_runs WHERE namespace = ? AND run_id IN {places}");
        let mut all: Vec<Value<'_>> = vec![namespace.into()];
        all.extend(filter.follow.iter().map(|run| Value::from(run.as_str())));
        rows.extend(session.rows(&sql, &all).await?);
    }
    for word in &STATUSES[..LIVE] {
        let sql = format!(
            "SELECT {RECORD} FROM hapax_runs WHERE namespace = ? AND status = '{word}' AND part >= 0 \
             ORDER BY created_at LIMIT ?"
        );
        rows.extend(session.rows(&sql, values![namespace, filter.limit]).await?);
    }
    // One row that can't be read must not hide the others.
    let readable = |row: &Row| record(row, &filter.namespace).ok();
    Ok(each_once(rows.iter().filter_map(readable).collect()))
}
