//! Large payloads beside their rows: written with them, read behind a reference.
//!
//! Invariant: whoever writes or deletes them holds the lock of the run's row.

use super::{
    sql::{Cell, Fault, Row, Session, Value, one, values},
    writer::Tx,
};
use crate::{
    blobs::{Blob, OBJECT, Reference, is_new, sweep_sql},
    codec::Codec,
};
use hapax_core::id::RunKey;
use std::borrow::Cow;

/// Writes what a run doesn't have yet. A part goes alone: none is larger than a packet, and several might be.
pub(super) async fn insert(tx: &mut Tx<'_>, run: &RunKey, blobs: &[Blob]) -> Result<(), Fault> {
    let sql = format!(
        "INSERT INTO hapax_blobs (namespace, run_id, hash, part, bytes) VALUES (?, ?, ?, ?, ?){}",
        tx.session.unless_there()
    );
    for blob in blobs.iter().filter(|blob| is_new(blob)) {
        for (part, bytes) in blob.parts() {
            let row = values![run.namespace.as_str(), run.run.as_str(), &blob.hash.0, part, bytes];
            tx.execute(&sql, row).await?;
        }
    }
    Ok(())
}

/// Deletes what no row of the run refers to any more, behind the lock of the run's row.
pub(super) async fn sweep(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let which = values![run.namespace.as_str(), run.run.as_str()];
    for (sql, times) in sweep_sql("{now}") {
        let all: Vec<Value<'_>> = which.iter().copied().cycle().take(2 * times).collect();
        tx.execute(&sql, &all).await?;
    }
    Ok(())
}

/// The bytes of a payload, wherever they lie.
pub(super) async fn whole<'s>(
    session: &mut dyn Session,
    codec: &Codec,
    run: &RunKey,
    stored: &'s [u8],
) -> Result<Cow<'s, [u8]>, Fault> {
    let Some(reference) = Reference::of(stored) else { return Ok(stored.into()) };
    let sql = "SELECT bytes FROM hapax_blobs WHERE namespace = ? AND run_id = ? AND hash = ? ORDER BY part";
    let which = values![run.namespace.as_str(), run.run.as_str(), &reference.hash.0];
    let rows = session.rows(sql, which).await?;
    let parts = rows.iter().map(|row| Ok(row.blob(0)?.to_vec())).collect::<Result<Vec<_>, Fault>>()?;
    let damaged = |error| Fault::undecoded(None, "a large payload", error);
    let resting = match parts.is_empty() {
        true => one(session, OBJECT, which).await?,
        false => None,
    };
    let parts = match resting {
        Some(row) => vec![codec.object(row.text(0)?.to_owned()).await.map_err(damaged)?],
        None => parts,
    };
    Ok(reference.whole(&parts).map_err(damaged)?.into())
}

/// Puts the bytes of large payloads into a row that refers to them.
pub(super) async fn fill(
    session: &mut dyn Session,
    codec: &Codec,
    run: &RunKey,
    row: &mut Row,
    columns: &[usize],
) -> Result<(), Fault> {
    let mut wanting = Ok(());
    for column in columns {
        let Some(Cell::Blob(stored)) = row.0.get_mut(*column) else { continue };
        let found = match whole(session, codec, run, stored).await {
            Ok(Cow::Owned(found)) => found,
            Ok(Cow::Borrowed(_)) => continue,
            // So that all of it is fetched together.
            Err(fault) if codec.wants() => {
                wanting = Err(fault);
                continue;
            }
            Err(fault) => return Err(fault),
        };
        *stored = found;
    }
    wanting
}
