//! A handle on a run: follows it wherever it is executed. Dropping it changes nothing.

use crate::{Engine, Error, clock, worker::End};
use hapax_core::{
    canary,
    commit::Status,
    error::{Coded, code},
    id::{RunId, RunKey},
    state::{self, State},
};
use hapax_store::StoreError;
use std::{
    fmt,
    marker::PhantomData,
    time::{Duration, Instant},
};

/// How often a run that another process executes is looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// How long whoever waits for a run bears a store that is out of reach: as long as an engine that executes one.
#[derive(Debug)]
pub(crate) struct Patience {
    most: Duration,
    since: Option<Instant>,
}

impl Patience {
    pub(crate) fn of(engine: &Engine) -> Self {
        let most = engine.shared.options.store_patience;
        Self { most: if canary::on("hasty") { Duration::ZERO } else { most }, since: None }
    }

    /// Passes what can't be borne, or no longer.
    pub(crate) fn bear(&mut self, answer: Result<(), Error>) -> Result<(), Error> {
        match answer {
            Err(error) if error.code() == code::STORE_RETRY => {
                let now = clock::instant();
                let since = *self.since.get_or_insert(now);
                if now.duration_since(since) < self.most { Ok(()) } else { Err(error) }
            }
            answer => {
                self.since = None;
                answer
            }
        }
    }
}

/// A run, wherever it is executed. Dropping it doesn't stop the run, even if nothing else holds the engine; see
/// [`Engine`].
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
/// let run = drafts.start("draft-1", Draft::default()).await?;
/// assert_eq!(run.id().as_str(), "draft-1");
/// assert_eq!(run.wait().await?.text, "once");
/// assert_eq!(run.status().await?, hapax::Status::Succeeded);
/// # Ok(())
/// # }
/// ```
pub struct Run<S> {
    engine: Engine,
    key: RunKey,
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for Run<S> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), key: self.key.clone(), state: PhantomData }
    }
}

impl<S> fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({})", self.key)
    }
}

impl<S: State> Run<S> {
    pub(crate) fn new(engine: Engine, key: RunKey) -> Self {
        Self { engine, key, state: PhantomData }
    }

    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.key.run
    }

    /// Where it stands, as the store has it.
    pub async fn status(&self) -> Result<Status, Error> {
        self.engine.status(self.key.run.as_str()).await
    }

    /// Asks for a cancel; see [`Engine::cancel`].
    pub async fn cancel(&self) -> Result<(), Error> {
        self.engine.cancel(self.key.run.as_str()).await
    }

    /// Waits for the end: the final state, or why there is none. What it gives is durable. What the run held by its
    /// terms may be given back a moment later: a process that ends now should call [`Engine::shutdown`], which waits
    /// for that.
    pub async fn wait(&self) -> Result<S, Error> {
        let mut patience = Patience::of(&self.engine);
        loop {
            match self.engine.shared.left(&self.key).await {
                Some(End::Succeeded(state, version)) => return Ok(state::decode(&state, version)?),
                Some(End::Stopped(Some(error))) => return Err(Error::Store(error)),
                // An end that isn't a success may be history: somebody may have retried the run.
                Some(End::Over(_) | End::Parked(_) | End::Elsewhere | End::Stopped(None)) | None => {}
            }
            match self.stored_end().await {
                Ok(Some(result)) => return result,
                answer => patience.bear(answer.map(drop))?,
            }
            if let Some(error) = self.engine.shared.given_up(&self.key) {
                return Err(Error::Store(error));
            }
            self.engine.is_open()?;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How the run ended, if it has, as the store has it.
    async fn stored_end(&self) -> Result<Option<Result<S, Error>>, Error> {
        match self.status().await? {
            Status::Succeeded => {
                let checkpoint = self.engine.shared.store.load(self.key.clone()).await?.checkpoint;
                Ok(Some(state::decode(&checkpoint.state, checkpoint.state_version).map_err(Into::into)))
            }
            status if status.is_final() => Ok(Some(Err(self.ended(status)))),
            _ => Ok(None),
        }
    }

    fn ended(&self, status: Status) -> Error {
        match status {
            Status::Failed { error } => Error::Failed { run: self.key.clone(), failure: Box::new(error) },
            Status::Cancelled => Error::Cancelled { run: self.key.clone() },
            Status::Moved { to, .. } => StoreError::Moved { run: self.key.clone(), to }.into(),
            _ => StoreError::NotFound { run: self.key.clone() }.into(),
        }
    }
}
