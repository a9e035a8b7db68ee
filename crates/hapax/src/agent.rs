//! Agents: any program that reads commands and writes events, and whose work counts once.
//!
//! Invariant: a command is sent again and again with one key until its answer is recorded; what came of it is installed
//! after that, and acknowledged last. A replay starts no process and touches no file.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Agent`], [`AgentBuilder`] | a program, and how it is kept alive |
//! | [`Workspace`], [`Snapshot`], [`Listed`] | the files that agents work on |
//! | [`Command`], [`Reply`] | what a node asks of an agent: [`Ctx::command`](crate::Ctx::command) |
//! | [`protocol`], [`frame`] | the messages, and lines of bounded length |
//! | [`kit`] | the agent's side: three lines make an agent |
//! | [`mock`] | an agent with faults by script, for tests |
//! | [`check`] | whether an agent, in any language, keeps the protocol |
//! | [`receipt`], [`ledger`] | one receipt for each command, and a run's journal as files |

mod cache;
pub mod check;
mod command;
mod desk;
mod error;
pub mod frame;
mod inside;
mod install;
pub mod kit;
pub mod ledger;
mod lock;
pub mod mock;
mod process;
pub mod protocol;
pub mod receipt;
mod supervise;
mod workspace;

pub use cache::{Cache, Cached};
pub use command::{Command, Progress, Reply};
pub use desk::Stats;
pub use error::Error;
pub use workspace::{Listed, Snapshot, Workspace};

use crate::worker::Shared;
use desk::{Desk, Warned};
use hapax_core::limits;
use lock::AgentLock;
use process::{Launch, Started};
use protocol::{Ack, Address};
use std::{
    ffi::OsString,
    fmt,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

/// How long an agent's lock is waited for: another engine may be shutting down.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// A time in microseconds since 1970, as messages have it.
pub(crate) fn clock_text(us: i64) -> String {
    jiff::Timestamp::from_microsecond(us)
        .map_or_else(|_| "1970-01-01T00:00:00.000Z".into(), |at| format!("{at:.3}"))
}

/// A program that does work for nodes, and how it is kept alive. Keep it with what your nodes need; clones are the same
/// agent, and all runs of an engine share its process.
///
/// It is started with its first command, and ends with its engine: on [`Engine::shutdown`](crate::Engine::shutdown), when
/// the last handle of engine or agent is dropped, and when the engine's process dies. On Linux with `setpriv` the kernel
/// ends it then; elsewhere its standard input ends, and what doesn't heed that is ended by the next engine that uses the same
/// state folder.
///
/// ```
/// use hapax::{agent::{Agent, Command, Workspace}, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Task { done: bool }
/// struct Tools { builder: Agent }
///
/// async fn implement(mut ctx: hapax::Ctx<Task, Tools>) -> hapax::Result<TaskDelta> {
///     let tools = ctx.app();
///     let goal = serde_json::json!({"goal": "roman numerals"});
///     let command = Command::new("implement", "T-0042").inputs(&goal).output("src/roman.py");
///     let reply = ctx.command(&tools.builder, command).await?;
///     Ok(Task::delta().done(reply.is("success")))
/// }
/// # let _ = implement;
/// # let folder = tempfile::tempdir()?;
/// let workspace = Workspace::open(folder.path())?;
/// let builder = Agent::builder("builder", "python3").arg("builder.py").workspace(&workspace).build()?;
/// assert_eq!(builder.id(), "builder");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Agent(Arc<Handle>);

/// What the user's handles share; the supervisor has the core alone, so that it ends with the last of them.
struct Handle(Arc<Core>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.desk.stop();
    }
}

/// An agent and all that belongs to it.
pub(crate) struct Core {
    pub(crate) spec: Spec,
    pub(crate) workspace: Workspace,
    pub(crate) desk: Desk,
    /// The right to run it and to install what it made, from the first need of it until it is stopped.
    right: tokio::sync::Mutex<Option<AgentLock>>,
    pub(crate) warned: Warned,
}

/// How an agent is started and kept alive.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) kind: String,
    pub(crate) id: String,
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    pub(crate) heartbeat: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) restarts: u32,
    pub(crate) grace: Duration,
    pub(crate) lock_patience: Duration,
}

/// An agent to be.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// use hapax::agent::{Agent, Workspace};
/// let workspace = Workspace::open(folder.path())?;
/// let one = Agent::builder("reviewer", "reviewer").id("reviewer-1").workspace(&workspace).build()?;
/// assert_eq!((one.agent_type(), one.id()), ("reviewer", "reviewer-1"));
/// assert!(Agent::builder("reviewer", "reviewer").build().is_err(), "it needs a workspace");
/// assert!(Agent::builder("../up", "reviewer").workspace(&workspace).build().is_err(), "it is a folder's name");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct AgentBuilder {
    spec: Spec,
    workspace: Option<Workspace>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Agent({})", self.id())
    }
}

impl Agent {
    /// An agent of that type, and the program that is it: a path, or a name that is looked for in `PATH`.
    pub fn builder(agent_type: &str, program: impl Into<OsString>) -> AgentBuilder {
        let spec = Spec {
            kind: agent_type.into(),
            id: agent_type.into(),
            program: program.into(),
            args: vec![],
            env: vec![],
            heartbeat: limits::AGENT_HEARTBEAT,
            start_timeout: limits::AGENT_START,
            backoff: (limits::AGENT_BACKOFF, limits::AGENT_BACKOFF_MAX),
            restarts: limits::AGENT_RESTARTS,
            grace: limits::AGENT_GRACE,
            lock_patience: LOCK_PATIENCE,
        };
        AgentBuilder { spec, workspace: None }
    }

    /// What kind of agent it is.
    pub fn agent_type(&self) -> &str {
        &self.core().spec.kind
    }

    /// Which one of its kind.
    pub fn id(&self) -> &str {
        &self.core().spec.id
    }

    /// The files that it works on.
    pub fn workspace(&self) -> &Workspace {
        &self.core().workspace
    }

    /// What happened to it so far.
    pub fn stats(&self) -> Stats {
        self.core().desk.counters.read()
    }

    /// Ends its process, if it runs: it is asked, and after the grace that it has it is killed with all that it started. The
    /// next command starts it again.
    pub async fn stop(&self) {
        self.core().stop().await;
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.0
    }

    /// Sees to it that somebody keeps it alive.
    pub(crate) fn watch(&self, is_first: bool) {
        if is_first {
            tokio::spawn(supervise::supervise(self.core().clone()));
        }
    }

    /// Notes that an engine uses it, so that it ends with the last one that does.
    pub(crate) fn adopt(&self, engine: &Arc<Shared>) {
        if self.core().desk.adopt(Arc::as_ptr(engine).addr()) {
            engine.agents.add(self.core());
            let (core, engine) = (Arc::downgrade(self.core()), engine.clone());
            tokio::spawn(async move {
                engine.over().await;
                Core::disown(&core, &engine).await;
            });
        }
    }
}

impl Core {
    /// Its own folder among those of the workspace's agents.
    pub(crate) fn folder(&self) -> PathBuf {
        self.workspace.state_folder().join("agents").join(&self.spec.id)
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.folder().join("staging")
    }

    pub(crate) fn address(&self) -> Address {
        Address { agent_type: self.spec.kind.clone(), agent_id: Some(self.spec.id.clone()) }
    }

    pub(crate) fn launch(&self) -> Launch {
        let (spec, folder) = (&self.spec, self.folder());
        let own: [(&str, OsString); 6] = [
            ("HAPAX_WORKSPACE", self.workspace.root().into()),
            ("HAPAX_STAGING", self.staging().into()),
            ("HAPAX_AGENT_STATE", folder.join("state").into()),
            ("HAPAX_AGENT_TYPE", (&spec.kind).into()),
            ("HAPAX_AGENT_ID", (&spec.id).into()),
            ("HAPAX_HEARTBEAT_MS", spec.heartbeat.as_millis().max(1).to_string().into()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.into(), value));
        Launch {
            program: spec.program.clone(),
            args: spec.args.clone(),
            env: spec.env.iter().cloned().chain(own).collect(),
            folder: self.workspace.root().into(),
        }
    }

    /// Takes the right to run the agent, unless this process has it. As long as a process has it, no other one sends the
    /// agent's commands or installs what it made: not even late, after it had stood still.
    pub(crate) async fn hold(&self) -> Result<(), Error> {
        let mut right = self.right.lock().await;
        if right.is_none() {
            *right = Some(AgentLock::take(&self.folder(), &self.spec.id, self.spec.lock_patience).await?);
            // An agent finds the folders that it is told of.
            for folder in [self.staging(), self.folder().join("state")] {
                std::fs::create_dir_all(&folder).map_err(|error| Error::workspace(&folder, error))?;
            }
        }
        Ok(())
    }

    /// Notes which process runs.
    pub(crate) async fn note(&self, started: Option<&Started>) {
        if let Some(right) = &mut *self.right.lock().await {
            right.note(started);
        }
    }

    /// Gives the right back, unless somebody is about to take it.
    pub(crate) fn let_go(&self) {
        if let Ok(mut right) = self.right.try_lock() {
            *right = None;
        }
    }

    pub(crate) fn ack(&self, key: &str, forget: bool) {
        self.desk.ack(Ack { idempotency_key: key.into(), forget });
    }

    async fn stop(&self) {
        self.desk.stop();
        self.desk.stopped().await;
        if !self.desk.is_wanted() {
            self.let_go();
        }
    }

    async fn disown(core: &Weak<Core>, engine: &Arc<Shared>) {
        if let Some(core) = core.upgrade()
            && core.desk.disown(Arc::as_ptr(engine).addr())
        {
            core.stop().await;
        }
    }
}

/// The agents that an engine uses.
#[derive(Default)]
pub(crate) struct Adopted(std::sync::Mutex<Vec<Weak<Core>>>);

impl Adopted {
    fn add(&self, core: &Arc<Core>) {
        crate::gate::lock(&self.0).push(Arc::downgrade(core));
    }

    /// The engine is over: those that no other one uses end.
    pub(crate) async fn end(&self, engine: &Arc<Shared>) {
        let adopted = std::mem::take(&mut *crate::gate::lock(&self.0));
        futures::future::join_all(adopted.iter().map(|core| Core::disown(core, engine))).await;
    }
}

impl AgentBuilder {
    /// One more argument of the program.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.spec.args.push(arg.into());
        self
    }

    /// More arguments of the program.
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.spec.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable of its environment, which is otherwise this program's own.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.spec.env.push((name.into(), value.into()));
        self
    }

    /// The files that it works on.
    pub fn workspace(mut self, workspace: &Workspace) -> Self {
        self.workspace = Some(workspace.clone());
        self
    }

    /// Which one of its type it is; default: the type. Two agents of one workspace have different ids: each has a folder by
    /// that name for its cache.
    pub fn id(mut self, id: &str) -> Self {
        self.spec.id = id.into();
        self
    }

    /// How often it says that it is alive; three times in a row missed, it counts as dead. Default: 10 s.
    pub fn heartbeat(mut self, often: Duration) -> Self {
        self.spec.heartbeat = often.max(Duration::from_millis(1));
        self
    }

    /// How long it may take from its start to its first heartbeat. Default: 30 s.
    pub fn start_timeout(mut self, time: Duration) -> Self {
        self.spec.start_timeout = time;
        self
    }

    /// The pause before it is started again, doubled each time up to a most. What is waited is less by chance. Default: 1 s
    /// and 60 s.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.spec.backoff = (first, most);
        self
    }

    /// How often in a row it is started again without an answer between; then its commands fail. Default: 5.
    pub fn restarts(mut self, times: u32) -> Self {
        self.spec.restarts = times;
        self
    }

    /// How long it may take to end when it is asked to. Default: 5 s.
    pub fn grace(mut self, time: Duration) -> Self {
        self.spec.grace = time;
        self
    }

    /// How long another engine that runs the same agent is waited for. Default: 10 s.
    pub fn lock_patience(mut self, time: Duration) -> Self {
        self.spec.lock_patience = time;
        self
    }

    /// The agent.
    pub fn build(self) -> Result<Agent, Error> {
        let Some(workspace) = self.workspace else {
            return Err(Error::Invalid(format!("agent `{}` has no workspace", self.spec.id)));
        };
        for name in [&self.spec.kind, &self.spec.id] {
            if !is_plain(name) {
                let message = format!("`{name}` can't name an agent: letters, digits, `-`, `_` and `.` can");
                return Err(Error::Invalid(message));
            }
        }
        let (desk, right, warned) = Default::default();
        let core = Core { spec: self.spec, workspace, desk, right, warned };
        Ok(Agent(Arc::new(Handle(Arc::new(core)))))
    }
}

/// Whether it is the name of a folder anywhere.
fn is_plain(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(fits)
}
