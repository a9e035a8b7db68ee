//! Opens a store, registers graphs, and looks after their runs until it is shut down.

use crate::{
    clock, control,
    error::Error,
    flow::{Flow, fits},
    gate::Halt,
    graph::Graph,
    handle::{LOOK, Patience},
    lease,
    metrics::Metrics,
    observe::Event,
    options::Options,
    outline::GraphOutline,
    rest,
    secrets::Secrets,
    testing::Script,
    transaction::{self, Databases},
    watch::Watch,
    worker::{self, Drive, End, Shared},
};
use hapax_core::{
    commit::Status,
    id::{RunId, RunKey},
    state::State,
};
use hapax_store::{
    Census, CensusFilter, Fleet, GcPolicy, GcReport, ListFilter, RunRecord, ShardedStore, Store, StoreError,
    memory::MemoryStore, outbox::Backlog,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::broadcast, task::AbortHandle};

/// Executes runs over one store. Cheap to clone; all clones are one engine, and each [`Flow`] and
/// [`Run`](crate::Run) holds one.
///
/// **Dropping** the last of them stops nothing that is under way: the engine takes no new work, goes on with the runs
/// in its hands until they are over, with their leases renewed and cancels heard, and then lets go of the store. This
/// lasts as long as the runtime does. A runtime that ends stops the runs as a crash would: nothing is lost, and the
/// next engine goes on with them. For an end within a given time there is [`Engine::shutdown`].
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
/// let draft = drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// assert_eq!(draft.text, "once");
/// assert_eq!(engine.record("draft-1").await?.step, 1);
/// engine.shutdown(std::time::Duration::from_secs(1)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    background: Arc<Background>,
}

/// The engine's own tasks. With its last handle they end too, but not before the runs that they look after.
struct Background {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 6],
    is_shut: AtomicBool,
}

impl Background {
    fn start(shared: &Arc<Shared>) -> Arc<Self> {
        let tasks = [
            // It may hold runs that it has claimed and not started yet, so it counts as one of the runs.
            shared.tasks.spawn(worker::find_work(shared.clone())).abort_handle(),
            tokio::spawn(lease::renew(shared.clone())).abort_handle(),
            tokio::spawn(lease::hear_cancels(shared.clone())).abort_handle(),
            tokio::spawn(transaction::sweep(shared.clone())).abort_handle(),
            tokio::spawn(control::sweep(shared.clone())).abort_handle(),
            tokio::spawn(rest::rest(shared.clone())).abort_handle(),
        ];
        Arc::new(Self { shared: shared.clone(), tasks, is_shut: AtomicBool::new(false) })
    }

    fn abort(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.desert();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.shared.owner)
    }
}

/// An engine to be.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::{Engine, Options};
/// let engine = Engine::builder().options(Options::default().max_active_runs(16)).open("memory:").await?;
/// assert!(engine.graphs().is_empty(), "it executes what is registered");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Builder {
    options: Options,
    databases: Databases,
    script: Option<Arc<Script>>,
}

impl Builder {
    /// A database of the user's, for [`Ctx::transaction`](crate::Ctx::transaction): its name, and where it is.
    /// One that isn't named here is looked for in the environment: `HAPAX_DB_SHOP` is the address of `shop`.
    pub fn database(self, name: &str, url: &str) -> Self {
        self.databases.add(name, url);
        self
    }

    /// Limits and policies.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Effects that answer from a script.
    pub(crate) fn script(mut self, script: Arc<Script>) -> Self {
        self.script = Some(script);
        self
    }

    /// Opens the store at `url`.
    pub async fn open(self, url: &str) -> Result<Engine, Error> {
        let store = open_store(url).await?;
        Ok(self.with_store(store))
    }

    /// Works on a store that is open already.
    pub fn with_store(self, store: Arc<dyn Store>) -> Engine {
        let shared = Shared::new(store, self.options, self.databases, self.script);
        Engine { background: Background::start(&shared), shared }
    }
}

async fn open_store(url: &str) -> Result<Arc<dyn Store>, Error> {
    let parts = url.split_once(':').map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
    match parts.as_ref().map(|(scheme, rest)| (scheme.as_str(), *rest)) {
        Some(("sharded", databases)) if !databases.is_empty() => {
            let open = databases.split(',').map(|url| Box::pin(open_store(url)));
            Ok(ShardedStore::open(futures::future::try_join_all(open).await?).await?)
        }
        Some(("memory", _)) => Ok(MemoryStore::shared()),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.is_empty() => {
            let options = hapax_store::sqlite::SqliteOptions::default();
            Ok(hapax_store::sqlite::SqliteStore::open(path, options).await?)
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            let options = hapax_store::postgres::PostgresOptions::default();
            Ok(hapax_store::postgres::PostgresStore::open(url, options).await?)
        }
        #[cfg(feature = "mysql")]
        Some(("mysql" | "mariadb", _)) => {
            let options = hapax_store::mysql::MySqlOptions::default();
            Ok(hapax_store::mysql::MySqlStore::open(url, options).await?)
        }
        _ => Err(Error::BadUrl { url: url.into() }),
    }
}

impl Engine {
    /// Opens the store at `url`: `sqlite:path/to/file.db`, `postgres://user@host/database` with the feature `postgres`,
    /// `mysql://user@host/database` with the feature `mysql`, or `memory:` for tests.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::builder().open(url).await
    }

    /// For options of its own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Checks a graph, and takes up what a crash left of its runs.
    pub async fn register<S: State, A: Send + Sync + 'static>(
        &self,
        graph: Graph<S, A>,
        app: A,
    ) -> Result<Flow<S, A>, Error> {
        self.is_open()?;
        let flow = Flow::new(self.clone(), graph.build()?, app);
        self.shared.look_for_work();
        Ok(flow)
    }

    pub(crate) fn key(&self, run: &str) -> Result<RunKey, Error> {
        Ok(RunKey { namespace: self.shared.options.namespace.clone(), run: RunId::new(run)? })
    }

    pub(crate) fn is_open(&self) -> Result<(), Error> {
        if self.shared.drain.is_cancelled() { Err(Error::ShutDown) } else { Ok(()) }
    }

    /// The run's row in the store.
    pub async fn record(&self, run: &str) -> Result<RunRecord, Error> {
        let key = self.key(run)?;
        let record = self.shared.store.run(key.clone()).await?;
        record.ok_or_else(|| StoreError::NotFound { run: key }.into())
    }

    /// Where a run stands.
    pub async fn status(&self, run: &str) -> Result<Status, Error> {
        Ok(self.record(run).await?.status)
    }

    /// Runs of this engine's namespace, newest first.
    pub async fn list(&self, mut filter: ListFilter) -> Result<Vec<RunRecord>, Error> {
        filter.namespace = self.shared.options.namespace.clone();
        Ok(self.shared.store.list(filter).await?)
    }

    /// Asks for a cancel. Durable when it answers; whoever holds the run stops it within a second.
    /// [`Error::AlreadyFinished`] when the run is over.
    pub async fn cancel(&self, run: &str) -> Result<(), Error> {
        self.is_open()?;
        let key = self.key(run)?;
        self.shared.store.request_cancel(key.clone()).await?;
        if self.shared.stop(&key, Halt::Cancelled) {
            return Ok(());
        }
        // Nobody may be there to see it: then it is ours to end.
        let asked = clock::since_boot();
        match self.shared.store.claim(key.clone(), self.shared.claimant()).await {
            Ok(lease) => self.shared.cancel_unstarted(self.shared.take(key, lease, asked)).await,
            Err(StoreError::Held { .. } | StoreError::WrongStatus { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Lets a failed run go on from its last step, with fresh attempts.
    pub async fn retry(&self, run: &str) -> Result<(), Error> {
        self.is_open()?;
        self.shared.store.retry(self.key(run)?).await?;
        self.shared.look_for_work();
        Ok(())
    }

    /// Goes on with a run at once, whichever registered graph is its own; one that is over, or waits, is left as it is.
    /// [`Error::NotRegistered`] when this engine doesn't hold its code; an error when another engine holds the run.
    pub async fn resume(&self, run: &str) -> Result<(), Error> {
        self.is_open()?;
        let record = self.record(run).await?;
        let code = self.shared.flow(&record.graph, record.fingerprint);
        let code = code.ok_or_else(|| Error::NotRegistered { graph: record.graph.clone() })?;
        fits(&*code, &record)?;
        self.go_on(record, code).await
    }

    /// Claims and executes a run, unless it is over or in our hands already.
    pub(crate) async fn go_on(&self, record: RunRecord, code: Arc<dyn Drive>) -> Result<(), Error> {
        let (key, shared) = (record.key, self.shared.clone());
        if record.status.is_final() || shared.watch(&key).is_some() {
            return Ok(());
        }
        // In a task of its own: a caller that stops listening must not leave the run claimed and forgotten.
        let claimed = self.shared.tasks.spawn(async move {
            let Some(mut taken) = shared.claim_back(key).await? else { return Ok(()) };
            if let Err(error) = shared.look_up(&mut taken).await {
                shared.forget(&taken);
                return Err(error.into());
            }
            shared.admit(code, taken).await;
            Ok(())
        });
        claimed.await.map_err(|_| Error::ShutDown)?
    }

    /// Waits for the end of a run, wherever it is executed, and tells how it ended. What it tells is durable.
    pub async fn wait(&self, run: &str) -> Result<Status, Error> {
        let (key, mut patience) = (self.key(run)?, Patience::of(self));
        loop {
            if let Some(End::Stopped(Some(error))) = self.shared.left(&key).await {
                return Err(Error::Store(error));
            }
            match self.status(run).await {
                Ok(status) if status.is_final() => return Ok(status),
                answer => patience.bear(answer.map(drop))?,
            }
            if let Some(error) = self.shared.given_up(&key) {
                return Err(Error::Store(error));
            }
            self.is_open()?;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Who holds the runs of this engine's namespace, on any machine, and how many wait for someone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// assert!(engine.fleet().await?.holders.is_empty(), "there are no runs");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fleet(&self) -> Result<Fleet, Error> {
        Ok(self.shared.store.fleet(self.shared.options.namespace.clone()).await?)
    }

    /// How many messages of this engine's namespace nobody has received, and since when; cheap enough to ask every second.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// let backlog = engine.backlog().await?;
    /// assert!(backlog.dead.is_none() && backlog.lag() < Duration::from_secs(60), "the relays keep up");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backlog(&self) -> Result<Backlog, Error> {
        Ok(self.shared.store.outbox().backlog(self.shared.options.namespace.clone()).await?)
    }

    /// Where the runs of this engine's namespace stand, whichever namespace the filter names.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// let census = engine.census(hapax::store::CensusFilter::default()).await?;
    /// assert!(census.standing("in_doubt").is_none(), "nobody has to decide anything");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn census(&self, mut filter: CensusFilter) -> Result<Census, Error> {
        filter.namespace = self.shared.options.namespace.clone();
        Ok(self.shared.store.census(filter).await?)
    }

    /// The graphs that are registered, by name.
    pub fn graphs(&self) -> Vec<GraphOutline> {
        self.shared.outlines()
    }

    /// What of a run's values is hidden from people, as far as its graph is registered here.
    pub fn secrets(&self, record: &RunRecord) -> Secrets {
        Secrets::of(&self.graphs(), &record.graph, record.fingerprint)
    }

    /// Whether this engine takes up runs that nobody holds; see [`Options::finds_work`].
    pub fn finds_work(&self) -> bool {
        self.shared.options.finds_work
    }

    /// Deletes finished runs by age and count, with the markers that their transactions have left. A run whose journal can't be read
    /// now, since a key is missing or an object store is away, is an error: nobody else knows of its markers.
    pub async fn gc(&self, mut policy: GcPolicy) -> Result<GcReport, Error> {
        policy.namespace = self.shared.options.namespace.clone();
        let store = &self.shared.store;
        if policy.dry_run || !self.shared.databases.are_any() {
            return Ok(store.gc(policy).await?);
        }
        let about_to_go = store.gc(GcPolicy { dry_run: true, ..policy.clone() }).await?.deleted;
        let mut markers = transaction::left_by(&self.shared, &about_to_go).await?;
        let report = store.gc(policy).await?;
        markers.retain(|left| report.deleted.contains(left.run()));
        transaction::forget(&self.shared, markers).await;
        Ok(report)
    }

    /// What happens in this engine from now on. A listener that lags behind misses the oldest events.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.observer.subscribe()
    }

    /// Has a watcher told what runs do from now on, for traces: see [`Watch`]. There is one at the most.
    pub fn watch(&self, watcher: Arc<dyn Watch>) -> Result<(), Error> {
        self.shared.observer.watch(watcher)
    }

    /// What this engine has counted since it was opened: see [`Metrics`]. It costs no look into the store.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }

    /// The store beneath.
    pub fn store(&self) -> Arc<dyn Store> {
        self.shared.store.clone()
    }

    /// Stops taking work, lets every run finish its current step, gives all leases back, and closes the store.
    /// What is not done by the deadline is dropped, as a crash would, and its lease given back as well; nothing is lost
    /// either way. A store that doesn't answer is given up as well.
    pub async fn shutdown(&self, deadline: Duration) {
        if self.background.is_shut.load(Ordering::Acquire) {
            return;
        }
        let (began, grace) = (clock::instant(), self.shared.options.cancel_grace);
        self.shared.drain.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(deadline, self.shared.tasks.wait()).await.is_err() {
            for (run, _) in self.shared.holding() {
                self.shared.stop(&run, Halt::Drained);
            }
            // A node that blocks its thread can't be dropped; nobody waits for it.
            let _ = tokio::time::timeout(grace, self.shared.tasks.wait()).await;
        }
        self.background.abort();
        #[cfg(feature = "agents")]
        self.shared.agents.end(&self.shared).await;
        // What is still on its way to a server may arrive or not, as in a crash.
        let left = deadline.saturating_sub(clock::since(began)).max(grace);
        let _ = tokio::time::timeout(left, self.shared.store.close()).await;
        self.background.is_shut.store(true, Ordering::Release);
    }
}
