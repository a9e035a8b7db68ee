//! Large payloads come to rest while an engine looks for work, where its store was given an object store.
//!
//! Invariant: nobody waits for this; what fails stays where it is, and is looked at again.

use crate::worker::Shared;
use hapax_core::limits::REST_EVERY;
use hapax_store::depot::From;
use std::sync::Arc;

/// Looks at what may rest, again and again.
pub(crate) async fn rest(shared: Arc<Shared>) {
    tokio::select! {
        () = shared.hired.cancelled() => {}
        () = shared.closing() => return,
    }
    let mut from = From::default();
    loop {
        from = look(&shared, from).await;
        if from != From::default() {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(REST_EVERY) => {}
            () = shared.over() => return,
        }
    }
}

/// Looks at the next of them; answers from where to go on.
async fn look(shared: &Shared, from: From) -> From {
    match shared.store.rest(from).await {
        Ok(looked) => {
            if let Some(why) = looked.failed.first() {
                tracing::warn!(%why, "large payloads stay in the database for now");
            }
            looked.next.filter(|_| !shared.is_closing()).unwrap_or_default()
        }
        Err(error) => {
            tracing::debug!(%error, "cannot bring large payloads to rest; trying again");
            From::default()
        }
    }
}
