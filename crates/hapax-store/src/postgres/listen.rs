//! Hears what other processes say: LISTEN, on a session of its own.
//!
//! Invariant: nothing rests on it. A hint that is lost, with its session or before there was one, is found out by asking.

use super::connection::{PgSession, Server};
use crate::{error::StoreError, store::Hint};
use hapax_core::{
    id::{Namespace, RunId, RunKey},
    key::sha256,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{broadcast, mpsc},
    task::AbortHandle,
};

/// Hints that a slow listener may be behind. Whoever misses some knows that there were any, which is all that it needs.
const BACKLOG: usize = 64;
/// How long after the loss of its session another is opened.
const AGAIN: Duration = Duration::from_secs(2);

/// Whoever listens to a server on behalf of a store.
pub(super) struct Listening {
    heard: broadcast::Sender<Hint>,
    task: Mutex<Option<AbortHandle>>,
}

impl Default for Listening {
    fn default() -> Self {
        Self { heard: broadcast::Sender::new(BACKLOG), task: Mutex::default() }
    }
}

impl Listening {
    /// What is heard from now on. The session is opened for the first who wants to know.
    pub(super) fn hear(&self, server: &Arc<Server>) -> broadcast::Receiver<Hint> {
        let hints = self.heard.subscribe();
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        task.get_or_insert_with(|| tokio::spawn(listen(server.clone(), self.heard.clone())).abort_handle());
        hints
    }

    /// Hears no more.
    pub(super) fn stop(&self) {
        if let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn listen(server: Arc<Server>, heard: broadcast::Sender<Hint>) {
    loop {
        if let Err(error) = until_cut(&server, &heard).await {
            tracing::debug!(%error, "cannot listen to PostgreSQL; trying again");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Hands on what is heard until the session is lost.
async fn until_cut(server: &Arc<Server>, heard: &broadcast::Sender<Hint>) -> Result<(), StoreError> {
    let (notify, mut notifications) = mpsc::unbounded_channel();
    let session = PgSession::open(server, Some(notify)).await?;
    session.listen().await?;
    while let Some(payload) = notifications.recv().await {
        if let Some(hint) = read(&payload) {
            // Nobody may be listening just now.
            let _ = heard.send(hint);
        }
    }
    Ok(())
}

/// The channel of the stores with these tables; what is said is heard in the whole database.
pub(super) fn channel(schema: &str, prefix: &str) -> String {
    let tables = sha256(format!("{schema} {prefix}").as_bytes()).to_string();
    format!("hapax_{}", &tables[..16])
}

/// A hint as it is sent.
pub(super) fn write(hint: &Hint) -> String {
    let words: &[&str] = match hint {
        Hint::Ready(namespace) => &["ready", namespace.as_str()],
        Hint::Cancel(run) => &["cancel", run.namespace.as_str(), run.run.as_str()],
    };
    serde_json::to_string(words).expect("words are plain data")
}

/// What was sent, if it is one of our hints.
fn read(payload: &str) -> Option<Hint> {
    let words: Vec<&str> = serde_json::from_str(payload).ok()?;
    match *words {
        ["ready", namespace] => Some(Hint::Ready(Namespace::new(namespace).ok()?)),
        ["cancel", namespace, run] => {
            let (namespace, run) = (Namespace::new(namespace).ok()?, RunId::new(run).ok()?);
            Some(Hint::Cancel(RunKey { namespace, run }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_read_as_it_was_written_and_anything_else_is_none() {
        let namespace = Namespace::new("shop").unwrap();
        let run = RunKey { namespace: namespace.clone(), run: RunId::new("order-42").unwrap() };
        for hint in [Hint::Ready(namespace), Hint::Cancel(run)] {
            assert_eq!(read(&write(&hint)), Some(hint));
        }
        assert!(
            ["", "ready", "[\"ready\"]", "[\"stop\",\"a\"]", "[1]"].iter().all(|other| read(other).is_none())
        );
    }

    #[test]
    fn other_tables_have_another_channel_whose_name_needs_no_quotes() {
        let ours = channel("public", "hapax_");
        assert_ne!(ours, channel("public", "shop_"));
        assert_ne!(ours, channel("shop", "hapax_"));
        assert!(
            ours.len() < 64 && ours.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        );
    }
}
