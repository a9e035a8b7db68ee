//! For tests of your own graphs: an engine in memory whose clock goes as fast as its runs can follow.
//!
//! Invariant: time moves only while no run is being executed, and only to the next moment that a run waits for; so a
//! test sees every wake-up in its order, and waits for none.

mod recording;
mod script;

pub use recording::Recording;
pub(crate) use script::Script;
pub use script::{Asked, Scripted};

use crate::{
    Engine, Error, Options, Run, clock,
    handle::LOOK,
    replay::{History, Source},
};
use hapax_core::{commit::Status, state::State};
use hapax_store::{Clock, MemoryStore, Outlook, Store};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// An engine in memory with a clock of its own.
///
/// ```
/// use hapax::{prelude::*, testing::Lab};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Trial { ended: bool }
/// const WAIT: Node = Node::new("wait");
/// async fn wait(mut ctx: hapax::Ctx<Trial>) -> hapax::Result<TrialDelta> {
///     ctx.sleep(Duration::from_secs(30 * 86_400)).await?;
///     Ok(Trial::delta().ended(true))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// let lab = Lab::new();
/// let trials = lab.engine().register(Graph::new("trials", 1, WAIT).node(WAIT, wait), ()).await?;
/// let trial = trials.start("trial-1", Trial::default()).await?;
/// let before = lab.now();
/// assert!(lab.finish(&trial).await?.ended); // in milliseconds
/// assert!(lab.now().duration_since(before)? >= Duration::from_secs(30 * 86_400));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Lab {
    engine: Engine,
    clock: Clock,
    script: Arc<Script>,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// With the options that programs have by default.
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// With options of its own.
    pub fn with(options: Options) -> Self {
        Self::on(MemoryStore::with_clock(Clock::manual()), options)
    }

    /// On a store whose clock is a manual one.
    pub fn on(store: Arc<dyn Store>, options: Options) -> Self {
        let (clock, script) = (store.clock(), Arc::<Script>::default());
        let engine = Engine::builder().options(options).script(script.clone()).with_store(store);
        Self { engine, clock, script }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The nodes that a run has executed so far, step by step, those of one step in their order.
    ///
    /// ```
    /// # use hapax::{prelude::*, testing::Lab};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Draft { text: String }
    /// # const WRITE: Node = Node::new("write");
    /// # const REVIEW: Node = Node::new("review");
    /// # async fn idle(_: hapax::Ctx<Draft>) {}
    /// # #[tokio::main]
    /// # async fn main() -> hapax::Result<()> {
    /// # let lab = Lab::new();
    /// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, idle).node(REVIEW, idle).edge(WRITE, REVIEW);
    /// # let drafts = lab.engine().register(graph, ()).await?;
    /// lab.finish(&drafts.start("draft-1", Draft::default()).await?).await?;
    /// assert_eq!(lab.path("draft-1").await?, ["write", "review"]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn path(&self, run: &str) -> Result<Vec<String>, Error> {
        let record = self.engine.record(run).await?;
        let mut history = History::new(Arc::new(Source::Store(self.engine.store())), record.key.clone());
        let (store, mut path) = (self.engine.store(), vec![]);
        while let Some(mut checkpoint) = history.next().await? {
            for page in 1..checkpoint.pages.len() {
                let more = store.frontier_page(record.key.clone(), checkpoint.step, page as u32).await?;
                checkpoint.frontier.extend(more);
            }
            if checkpoint.step < record.step {
                path.extend(checkpoint.frontier.into_iter().map(|item| item.node.to_string()));
            }
        }
        Ok(path)
    }

    /// What time it is here.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.clock.now_us().try_into().unwrap_or(0))
    }

    /// Waits for the end of a run, and moves the clock on whenever everything waits for it.
    pub async fn finish<S: State>(&self, run: &Run<S>) -> Result<S, Error> {
        let waiting = async {
            loop {
                self.skip().await?;
            }
        };
        tokio::select! {
            ended = run.wait() => ended,
            failed = waiting => failed,
        }
    }

    /// Moves the clock on, from wake-up to wake-up, until the run stands like this. [`Error::AlreadyFinished`]: it has
    /// ended, and never will.
    pub async fn until(&self, run: &str, stands: impl Fn(&Status) -> bool) -> Result<Status, Error> {
        loop {
            let status = self.engine.status(run).await?;
            if stands(&status) {
                return Ok(status);
            }
            if status.is_final() {
                return Err(Error::AlreadyFinished { run: self.engine.key(run)?, status: status.word() });
            }
            self.skip().await?;
        }
    }

    /// Waits until nothing is being executed, then moves the clock to the next wake-up, if there is one.
    async fn skip(&self) -> Result<(), Error> {
        let shared = &self.engine.shared;
        for (run, _) in shared.holding() {
            shared.left(&run).await;
        }
        let now = self.clock.now_us();
        match shared.store.outlook(shared.ready(1)).await? {
            Outlook { ready: false, next: Some(next) } => {
                self.clock.advance_to(clock::later(now, next));
                shared.look_for_work();
            }
            // A run is about to be taken up, or waits for something else than time.
            _ => tokio::time::sleep(LOOK / 50).await,
        }
        Ok(())
    }
}
