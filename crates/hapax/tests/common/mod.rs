//! What the tests of the matrix share: a state, nodes from closures, and processes that can die.
#![allow(dead_code, unused_macros, unused_imports, reason = "every test binary uses its own part of this")]

mod mortal;

pub(crate) use mortal::Mortal;

use hapax::{
    Engine, Error, Event, Graph, Options, RunFailure, State,
    core::id::{Namespace, RunId, RunKey},
    store::{MemoryStore, Store},
};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, broadcast},
};
use tokio_util::sync::CancellationToken;

/// What most tests work on: one field that combines in order, one that adds up, one that only one item may write.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Board {
    #[state(append)]
    pub(crate) log: Vec<String>,
    #[state(sum)]
    pub(crate) total: u64,
    pub(crate) word: Option<String>,
}

pub(crate) type Ctx = hapax::Ctx<Board>;

/// A node from a block that owns clones of what it names: `node!([calls] |ctx| { … })`.
macro_rules! node {
    ([$($shared:ident),*] |$ctx:ident $(, $input:ident: $type:ty)?| $body:block) => {{
        $(let $shared = $shared.clone();)*
        #[allow(unused_mut, unused_variables, reason = "not every node calls the outside")]
        move |mut $ctx: Ctx $(, $input: $type)?| {
            $(let $shared = $shared.clone();)*
            async move $body
        }
    }};
}
pub(crate) use node;

/// What happened, in order, as nodes and callees tell it.
#[derive(Clone, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Counts how many are inside at once, and how many there were at the most.
#[derive(Clone, Default)]
pub(crate) struct Crowd(Arc<(AtomicUsize, AtomicUsize)>);

pub(crate) struct Inside(Crowd);

impl Crowd {
    pub(crate) fn enter(&self) -> Inside {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        Inside(self.clone())
    }

    pub(crate) fn now(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    pub(crate) fn peak(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Permits that one side hands out and the other waits for.
#[derive(Clone)]
pub(crate) struct Signal(Arc<Semaphore>);

impl Default for Signal {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Signal {
    pub(crate) fn give(&self) {
        self.0.add_permits(1);
    }

    pub(crate) async fn take(&self) {
        self.0.acquire().await.expect("nobody closes it").forget();
    }
}

/// Waits until everything else in a runtime with a stopped clock is idle: only then its clock moves on.
pub(crate) async fn until_idle() {
    pass(Duration::from_millis(1)).await;
}

/// Lets time pass on a stopped clock: it costs none, and ends only when everything else is idle.
pub(crate) async fn pass(time: Duration) {
    let _elapsed = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// Never returns.
pub(crate) async fn forever() {
    std::future::pending::<()>().await;
}

pub(crate) fn key(run: &str) -> RunKey {
    RunKey { namespace: Namespace::default(), run: RunId::new(run).unwrap() }
}

pub(crate) fn engine(options: Options) -> Engine {
    Engine::builder().options(options).with_store(MemoryStore::shared())
}

/// Why a run failed.
pub(crate) fn failure(error: &Error) -> &RunFailure {
    match error {
        Error::Failed { failure, .. } => failure,
        other => panic!("the run did not fail, but: {other}"),
    }
}

/// Hears events until one satisfies the predicate, and gives all of them.
pub(crate) async fn hear(
    events: &mut broadcast::Receiver<Event>,
    last: impl Fn(&Event) -> bool,
) -> Vec<Event> {
    let mut heard = vec![];
    loop {
        let event = events.recv().await.expect("the listener keeps up");
        heard.push(event.clone());
        if last(&event) {
            return heard;
        }
    }
}

/// A process of its own: a runtime that can be dropped at any moment, and a store that nothing reaches afterwards.
pub(crate) struct Process {
    runtime: Runtime,
    store: Arc<dyn Store>,
    dead: CancellationToken,
}

impl Process {
    /// A process that is going to crash: its leases end with it, so that nobody has to wait for them.
    pub(crate) fn doomed(store: &Arc<dyn Store>) -> Self {
        Self::over(Mortal::new(store.clone()))
    }

    /// A process that crashes instead of making a certain write.
    pub(crate) fn dying_before(
        store: &Arc<dyn Store>,
        write: impl Fn(&hapax::core::commit::Write) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::over(Mortal::dying_before(store.clone(), write))
    }

    /// A process that doesn't hear that certain writes were made, before the signal.
    pub(crate) fn slow_to_hear(
        store: &Arc<dyn Store>,
        write: impl Fn(&hapax::core::commit::Write) -> bool + Send + Sync + 'static,
        signal: &Signal,
    ) -> Self {
        Self::over(Mortal::slow_to_answer(store.clone(), write, signal))
    }

    fn over(mortal: Mortal) -> Self {
        let dead = mortal.dead();
        Self { runtime: runtime(), store: Arc::new(mortal), dead }
    }

    /// A process that lives until the test ends.
    pub(crate) fn healthy(store: &Arc<dyn Store>) -> Self {
        Self { runtime: runtime(), store: store.clone(), dead: CancellationToken::new() }
    }

    pub(crate) fn engine(&self, options: Options) -> Engine {
        self.build(Engine::builder().options(options))
    }

    pub(crate) fn build(&self, builder: hapax::Builder) -> Engine {
        let _inside = self.runtime.enter();
        builder.with_store(self.store.clone())
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Runs until the process has died of a write.
    pub(crate) fn run_to_death(self, work: impl Future<Output = ()>) {
        let dead = self.dead.clone();
        self.runtime.block_on(async {
            work.await;
            dead.cancelled().await;
        });
        self.crash();
    }

    /// Resolves when a fatal write was tried.
    pub(crate) async fn died(&self) {
        self.dead.cancelled().await;
    }

    /// Its store answers no more, and its runs are another's; it doesn't know.
    pub(crate) fn cut_off(&self) {
        self.dead.cancel();
    }

    /// Ends it where it stands.
    pub(crate) fn crash(self) {
        self.dead.cancel();
        self.runtime.shutdown_background();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn memory() -> Arc<dyn Store> {
    MemoryStore::shared()
}

/// Starts a run in a process, waits until it got stuck, and crashes.
pub(crate) fn crash_in(store: &Arc<dyn Store>, graph: Graph<Board>, reached: &Signal) {
    let process = Process::doomed(store);
    process.run(async {
        let flow = process.engine(Options::default()).register(graph, ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        reached.take().await;
    });
    process.crash();
}

/// Goes on with what a crash left.
pub(crate) fn go_on(store: &Arc<dyn Store>, graph: Graph<Board>) -> Result<Board, Error> {
    let process = Process::healthy(store);
    process.run(async {
        let flow = process.engine(Options::default()).register(graph, ()).await?;
        flow.attach("run").await?.wait().await
    })
}

pub(crate) async fn stop_here(stuck: bool, reached: &Signal) {
    if stuck {
        reached.give();
        forever().await;
    }
}
