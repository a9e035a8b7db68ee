//! A registered graph: starts, finds and resumes its runs.

use crate::{
    Engine, Options, clock,
    drive::{Claim, drive},
    error::Error,
    graph::Program,
    handle::Run,
    outline::GraphOutline,
    replay::{self, Replay, Source},
    secrets::Secrets,
    worker::{Drive, End, Shared},
};
use futures::future::BoxFuture;
use hapax_core::{
    canonical,
    checkpoint::{Draft, IoDigest, outbox_digest},
    commit::Status,
    flow::Terms,
    frontier::{Barriers, WorkItem},
    id::RunKey,
    key::{Digest, DigestBuilder},
    rng::run_seed,
    state::{self, State, StateShape},
};
use hapax_store::{Created, NewRun, RunRecord, StoreError};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A graph registered with an engine. Cheap to clone.
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
/// let drafts = engine.register(graph, ()).await?;
/// let first = drafts.start("draft-1", Draft::default()).await?;
/// let again = drafts.start("draft-1", Draft::default()).await?; // the same run
/// assert_eq!(first.wait().await?.text, again.wait().await?.text);
/// # Ok(())
/// # }
/// ```
pub struct Flow<S: State, A = ()> {
    engine: Engine,
    code: Arc<Code<S, A>>,
}

impl<S: State, A> Clone for Flow<S, A> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), code: self.code.clone() }
    }
}

impl<S: State, A> fmt::Debug for Flow<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flow({:?})", self.code.program.shape)
    }
}

/// A graph with its resources.
struct Code<S: State, A> {
    program: Arc<Program<S, A>>,
    app: Arc<A>,
}

impl<S: State, A: Send + Sync + 'static> Drive for Code<S, A> {
    fn drive(self: Arc<Self>, shared: Arc<Shared>, claim: Claim) -> BoxFuture<'static, End> {
        Box::pin(drive(self.program.clone(), self.app.clone(), shared, claim))
    }

    fn fingerprints(&self) -> Vec<Digest> {
        let ours = self.program.shape.fingerprint();
        self.program.compatible.iter().copied().chain([ours]).collect()
    }

    fn new_run(&self, key: RunKey, state: Vec<u8>, state_version: u32, seed: Option<u64>) -> NewRun {
        let shape = &self.program.shape;
        let mut input = DigestBuilder::new("hapax.input.v1");
        input.text(shape.name()).bytes(&state);
        if let Some(seed) = seed {
            input.u64(seed);
        }
        let draft = Draft {
            step: 0,
            state: state.into(),
            state_version,
            frontier: vec![WorkItem::start(shape)],
            barriers: Barriers::default(),
            seed: seed.unwrap_or_else(|| run_seed(key.run.as_str())),
            io: IoDigest::default().finish(),
            outbox: outbox_digest(&[]),
            label: None,
        };
        NewRun {
            graph: shape.name().clone(),
            fingerprint: shape.fingerprint(),
            input: input.finish(),
            checkpoint: draft.seal(&key.run),
            tags: BTreeMap::new(),
            claim: None,
            parent: None,
            journal: vec![],
            terms: Terms::default(),
            key,
        }
    }

    fn replay<'r>(
        &'r self,
        source: Source,
        options: &'r Options,
        secrets: &'r Secrets,
        into: &'r mut Replay,
    ) -> BoxFuture<'r, Result<(), Error>> {
        Box::pin(replay::replay(&self.program, self.app.clone(), source, options, secrets, into))
    }

    fn check_state(&self, json: &[u8], version: u32) -> Result<(), StateShape> {
        state::decode::<S>(json, version).map(drop)
    }

    #[cfg(feature = "schedules")]
    fn begin(&self, json: &[u8], version: Option<u32>) -> Result<(Vec<u8>, u32), StateShape> {
        let state = state::decode::<S>(json, version.unwrap_or(S::VERSION))?;
        let written = canonical::to_vec(&state).map_err(|error| StateShape {
            path: ".".into(),
            reason: error.to_string(),
            version: S::VERSION,
        })?;
        Ok((written, S::VERSION))
    }

    fn outline(&self) -> GraphOutline {
        GraphOutline::of(&self.program.shape, &self.program.compatible)
    }
}

/// How a run begins, beyond its id and state.
///
/// ```
/// use hapax::{StartOptions, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// # async fn pay(_: hapax::Ctx<Order>) -> OrderDelta { Order::delta().paid(true) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let orders = engine.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
/// let options = StartOptions::default().tag("customer", "42").seed(7);
/// orders.start_with("order-42", Order::default(), options).await?.wait().await?;
/// assert_eq!(engine.record("order-42").await?.tags["customer"], "42");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    tags: BTreeMap<String, String>,
    pub(crate) seed: Option<u64>,
    unheld: bool,
    pub(crate) terms: Terms,
    /// A singleton's name that is taken is refused.
    pub(crate) refuse: bool,
}

impl StartOptions {
    /// For finding the run again.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Leaves the run to whoever takes it up first; see [`Flow::submit`].
    pub fn unheld(mut self) -> Self {
        self.unheld = true;
        self
    }

    /// The seed of the run's draws; by default it follows from the run's id.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}

impl<S: State, A: Send + Sync + 'static> Flow<S, A> {
    pub(crate) fn new(engine: Engine, program: Program<S, A>, app: A) -> Self {
        let code = Arc::new(Code { program: Arc::new(program), app: Arc::new(app) });
        engine.shared.add_flow(code.program.shape.name().clone(), code.clone());
        Self { engine, code }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    #[cfg(feature = "schedules")]
    pub(crate) fn graph_name(&self) -> &str {
        self.code.program.shape.name()
    }

    /// The graph's shape, as runs are bound to it.
    pub fn fingerprint(&self) -> Digest {
        self.code.program.shape.fingerprint()
    }

    /// What its nodes see as [`Ctx::app`](crate::Ctx::app).
    pub fn app(&self) -> &A {
        &self.code.app
    }

    /// Starts a run; durable when it answers. The same id with the same state attaches to the run that is there,
    /// finished or not; with another one it is [`Error::RunExists`].
    ///
    /// Waits for room when the engine executes all the runs it may; after `backpressure_timeout` the run is parked
    /// and taken up later by itself.
    pub async fn start(&self, run: &str, state: S) -> Result<Run<S>, Error> {
        self.start_with(run, state, StartOptions::default()).await
    }

    /// As [`start`](Self::start), but leaves the run to whoever takes it up first: a [`Worker`](crate::Worker) on any
    /// machine, or this engine if it looks for work. What a web server does that executes nothing itself.
    ///
    /// ```
    /// use hapax::prelude::*;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { paid: bool }
    /// # const PAY: Node = Node::new("pay");
    /// # async fn pay(_: hapax::Ctx<Order>) -> OrderDelta { Order::delta().paid(true) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = Engine::builder().options(Options::default().finds_work(false)).open("memory:").await?;
    /// # let orders = engine.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
    /// orders.submit("order-42", Order::default()).await?;
    /// assert_eq!(engine.record("order-42").await?.owner, None, "this engine doesn't look for work");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn submit(&self, run: &str, state: S) -> Result<Run<S>, Error> {
        self.start_with(run, state, StartOptions::default().unheld()).await
    }

    /// Starts a run with tags or a seed.
    pub async fn start_with(&self, run: &str, state: S, options: StartOptions) -> Result<Run<S>, Error> {
        self.engine.is_open()?;
        let key = self.engine.key(run)?;
        let new = self.new_run(key.clone(), &state, &options)?;
        // In a task of its own: a caller that stops listening must not leave the run claimed and forgotten.
        let flow = self.clone();
        let begun = self.engine.shared.tasks.spawn(async move { flow.begin(key, new, options).await });
        begun.await.map_err(|_| Error::ShutDown)?
    }

    async fn begin(&self, key: RunKey, new: NewRun, options: StartOptions) -> Result<Run<S>, Error> {
        let (shared, asked) = (&self.engine.shared, clock::since_boot());
        let created = match self.create_or_join(&new, &options).await? {
            Ok(created) => created,
            Err(joined) => return Ok(joined),
        };
        let (input, first, terms) = (new.input, new.checkpoint, new.terms);
        let handle = Run::new(self.engine.clone(), key.clone());
        if let Created::Exists(record) = &created
            && let Status::Moved { to, .. } = &record.status
        {
            return Err(StoreError::Moved { run: key, to: to.clone() }.into());
        }
        match created {
            Created::New(Some(lease)) => {
                let mut taken = shared.take(key, lease, asked);
                taken.claim.fresh = Some(first);
                if terms.holds() {
                    // Under which token, its row says alone.
                    shared.try_look_up(&mut taken).await;
                }
                shared.admit(self.code.clone(), taken).await;
                Ok(handle)
            }
            Created::New(None) => {
                shared.sees(&terms);
                shared.look_for_work();
                Ok(handle)
            }
            Created::Exists(record) if record.input == input => {
                if !record.status.is_final() {
                    self.is_ours(&record)?;
                }
                shared.look_for_work();
                Ok(handle)
            }
            Created::Exists(_) => Err(Error::RunExists { run: key }),
        }
    }

    fn new_run(&self, key: RunKey, state: &S, options: &StartOptions) -> Result<NewRun, Error> {
        let terms = options.terms()?;
        let new = self.run_of(key, canonical::to_vec(state)?, S::VERSION, options.seed);
        let claim = (!options.unheld && !terms.parks()).then(|| self.engine.shared.claimant());
        Ok(NewRun { tags: options.tags.clone(), claim, terms, ..new })
    }

    /// A run of the graph that isn't there yet.
    pub(crate) fn run_of(&self, key: RunKey, state: Vec<u8>, version: u32, seed: Option<u64>) -> NewRun {
        self.code.new_run(key, state, version, seed)
    }

    /// Follows a run that is there already.
    pub async fn attach(&self, run: &str) -> Result<Run<S>, Error> {
        let record = self.engine.record(run).await?;
        self.is_ours(&record)?;
        Ok(Run::new(self.engine.clone(), record.key))
    }

    /// Goes on with a run at once; one that is over just gives its result, and one that waits goes on when its time has come.
    /// An error when another engine holds it.
    pub async fn resume(&self, run: &str) -> Result<Run<S>, Error> {
        self.engine.is_open()?;
        let record = self.engine.record(run).await?;
        self.is_ours(&record)?;
        let handle = Run::new(self.engine.clone(), record.key.clone());
        self.engine.go_on(record, self.code.clone()).await?;
        Ok(handle)
    }

    /// Lets a failed run go on from its last step, with fresh attempts.
    pub async fn retry(&self, run: &str) -> Result<Run<S>, Error> {
        self.is_ours(&self.engine.record(run).await?)?;
        self.engine.retry(run).await?;
        Ok(Run::new(self.engine.clone(), self.engine.key(run)?))
    }

    fn is_ours(&self, record: &RunRecord) -> Result<(), Error> {
        if record.graph != *self.code.program.shape.name() {
            return Err(Error::NotRegistered { graph: record.graph.clone() });
        }
        fits(&*self.code, record)
    }
}

/// Whether this code can go on with the run's shape of the graph.
pub(crate) fn fits(code: &dyn Drive, record: &RunRecord) -> Result<(), Error> {
    if code.fingerprints().contains(&record.fingerprint) {
        return Ok(());
    }
    Err(Error::GraphMismatch {
        run: record.key.clone(),
        graph: record.graph.clone(),
        stored: record.fingerprint,
        ours: code.outline().fingerprint,
    })
}
