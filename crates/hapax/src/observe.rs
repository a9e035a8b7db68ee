//! What can be watched: events of runs, steps, items, retries and commits.
//!
//! Invariant: `StepCommitted` and the events that end a run are sent only once they are durable.

use crate::{error::Error, watch::Watch};
use hapax_core::{
    commit::Status,
    id::{NodeId, RunKey},
    order::PathHash,
};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};
use tokio::sync::broadcast;

/// Something that happened in this engine.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// # let engine = Engine::open("memory:").await?;
/// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, write);
/// # let drafts = engine.register(graph, ()).await?;
/// let mut events = engine.events();
/// drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// let committed = loop {
///     if let hapax::Event::StepCommitted { step, .. } = events.recv().await? {
///         break step;
///     }
/// };
/// assert_eq!(committed, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// This engine began to execute a run, or went on with it.
    RunClaimed {
        /// The run.
        run: RunKey,
        /// The step from which it goes on.
        step: u64,
        /// Whether somebody else held it before.
        taken_over: bool,
    },
    /// A step's items are about to run.
    StepStarted {
        /// The run.
        run: RunKey,
        /// The step whose frontier runs.
        step: u64,
        /// How many items.
        items: usize,
    },
    /// An attempt of an item begins.
    ItemStarted {
        /// The run.
        run: RunKey,
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
        /// The item.
        path_hash: PathHash,
        /// The attempt, counted from 1.
        attempt: u32,
    },
    /// An item is done, for better or worse.
    ItemFinished {
        /// The run.
        run: RunKey,
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
        /// The item.
        path_hash: PathHash,
        /// The failure's message, if it failed.
        error: Option<String>,
    },
    /// An attempt failed and another follows.
    Retrying {
        /// The run.
        run: RunKey,
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
        /// The attempt that failed.
        attempt: u32,
        /// Why.
        error: String,
    },
    /// A step is durable.
    StepCommitted {
        /// The run.
        run: RunKey,
        /// The step.
        step: u64,
    },
    /// A run left this engine: finished, parked, or given up.
    RunEnded {
        /// The run.
        run: RunKey,
        /// Where it stands.
        status: Status,
    },
}

/// Sends events to whoever listens, and knows who watches; costs nothing when nobody does.
#[derive(Clone, Default)]
pub(crate) struct Observer {
    events: Arc<OnceLock<broadcast::Sender<Event>>>,
    watcher: Arc<OnceLock<Arc<dyn Watch>>>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Events that a listener may lag behind.
const BUFFER: usize = 4096;

impl Observer {
    /// The buffer is made for the first listener: an engine that nobody watches needs none.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.get_or_init(|| broadcast::Sender::new(BUFFER)).subscribe()
    }

    /// From now on this one is told what runs do.
    pub(crate) fn watch(&self, watcher: Arc<dyn Watch>) -> Result<(), Error> {
        self.watcher.set(watcher).map_err(|_| Error::Watched)
    }

    pub(crate) fn watcher(&self) -> Option<&Arc<dyn Watch>> {
        self.watcher.get()
    }

    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(sender) = self.events.get().filter(|sender| sender.receiver_count() > 0) {
            // A listener that went away in between misses nothing.
            let _ = sender.send(event());
        }
    }
}
