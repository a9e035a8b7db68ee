//! Large payloads beside their rows: written with them, read behind a reference.
//!
//! Invariant: a file has one writer at a time, so what a transaction sees of a run's rows and bytes is all there is.

use super::{error::undecoded, writer::Tx};
use crate::{
    blobs::{Blob, OBJECT, Reference, is_new, sweep_sql},
    codec::Codec,
};
use hapax_core::id::RunKey;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use std::borrow::Cow;

/// Writes what a run doesn't have yet.
pub(super) fn insert(tx: &Tx<'_>, run: &RunKey, blobs: &[Blob]) -> rusqlite::Result<()> {
    for blob in blobs.iter().filter(|blob| is_new(blob)) {
        for (part, bytes) in blob.parts() {
            tx.execute(
                "INSERT INTO hapax_blobs (namespace, run_id, hash, part, bytes) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT DO NOTHING",
                params![run.namespace.as_str(), run.run.as_str(), blob.hash.0, part, bytes],
            )?;
        }
    }
    Ok(())
}

/// Deletes what no row of the run refers to any more.
pub(super) fn sweep(tx: &Tx<'_>, run: &RunKey) -> rusqlite::Result<()> {
    let values = [run.namespace.as_str(), run.run.as_str()];
    for (sql, times) in sweep_sql(&tx.now.to_string()) {
        tx.execute(&sql, params_from_iter(values.iter().cycle().take(2 * times)))?;
    }
    Ok(())
}

/// The bytes of a payload, wherever they lie.
pub(super) fn whole<'s>(
    connection: &Connection,
    codec: &Codec,
    run: &RunKey,
    stored: &'s [u8],
) -> rusqlite::Result<Cow<'s, [u8]>> {
    let Some(reference) = Reference::of(stored) else { return Ok(stored.into()) };
    let sql =
        "SELECT bytes FROM hapax_blobs WHERE namespace = ?1 AND run_id = ?2 AND hash = ?3 ORDER BY part";
    let mut statement = connection.prepare_cached(sql)?;
    let which = params![run.namespace.as_str(), run.run.as_str(), reference.hash.0];
    let parts = statement.query_map(which, |row| row.get(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let damaged = |error| undecoded(None, "a large payload", error);
    let parts = match parts.is_empty().then(|| resting_as(connection, run, &reference)).transpose()?.flatten()
    {
        Some(name) => vec![codec.object_now(name).map_err(damaged)?],
        None => parts,
    };
    Ok(reference.whole(&parts).map_err(damaged)?.into())
}

/// The name of the object as which bytes rest.
fn resting_as(
    connection: &Connection,
    run: &RunKey,
    reference: &Reference<'_>,
) -> rusqlite::Result<Option<String>> {
    let which = params![run.namespace.as_str(), run.run.as_str(), reference.hash.0];
    connection.prepare_cached(OBJECT)?.query_row(which, |row| row.get(0)).optional()
}
