//! What inboxes in PostgreSQL and MySQL have in common.
//!
//! Invariant: old rows go in small transactions of their own, and by the server's clock.

use super::{InboxError, sql};
use crate::{
    clock::micros,
    error::StoreError,
    server::{
        error::{all_runs, undone},
        pool::Sessions,
        sql::{Fault, Session, one, values},
    },
};
use std::time::Duration;

/// Deletes what was received longer ago than that; answers how much.
pub(crate) async fn sweep(sessions: &Sessions, text: &str, older_than: Duration) -> Result<u64, InboxError> {
    let mut all = 0;
    loop {
        let mut session = sessions.lend().await?;
        let swept = batch(&mut **session, text, older_than).await.map_err(reported)?;
        all += swept;
        if swept < sql::BATCH.unsigned_abs() {
            return Ok(all);
        }
    }
}

/// The time comes first: what isn't the same for all rows finds none by an index.
async fn batch(session: &mut dyn Session, text: &str, older_than: Duration) -> Result<u64, Fault> {
    let row = one(session, "SELECT {now}", values![]).await?;
    let now = row.ok_or_else(|| Fault::damage("the server tells no time"))?.int(0)?;
    let before = now.saturating_sub(micros(older_than));
    session.execute(text, values![before, sql::BATCH]).await
}

/// A fault as an inbox reports it. What was lost on the way has changed nothing, or only deleted what is old.
pub(crate) fn reported(fault: Fault) -> InboxError {
    match undone(fault, &all_runs(&Default::default())) {
        StoreError::Corrupt { what, .. } => InboxError::NotThere { what },
        error => error.into(),
    }
}
