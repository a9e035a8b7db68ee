//! Whether an agent keeps the protocol: it is started, asked, interrupted and killed, and each promise becomes a row.
//!
//! Invariant: nothing is installed. The agent's own folders are in the state folder of the workspace, and whatever was
//! started is over when the check is.

mod exam;
mod lines;
mod memory;
mod rules;
mod talk;

use super::{
    Error, Workspace,
    inside::Inside,
    install::staging_of,
    kit::{CHECK_ACTION, CheckInputs},
    process::Launch,
    protocol::{Address, Attempt, Command, Output, Version},
};
use exam::Exam;
use hapax_core::{json::Json, key::command_key};
use hapax_store::clock::now_us;
use serde::Serialize;
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// How long an agent may take for whatever is asked of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Often enough to be waited for.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// The file that the kits' own action makes.
const CHECK_OUTPUT: &str = "hapax-check.txt";

/// A check to be.
///
/// ```
/// use hapax::agent::{Workspace, check::{Check, Verdict}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let workspace = Workspace::open(folder.path())?;
/// let rows = Check::new(&workspace, "true").run(|row| println!("{}", row.title)).await?;
/// assert_eq!(rows[0].verdict, Verdict::Fail, "a program that ends at once is no agent");
/// assert!(rows[1..].iter().all(|row| row.verdict == Verdict::Skip));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Check {
    workspace: Workspace,
    program: OsString,
    args: Vec<OsString>,
    work: Work,
    patience: Duration,
}

/// What the agent is asked to do.
#[derive(Debug, Clone)]
struct Work {
    action: String,
    inputs: Json,
    outputs: Vec<Output>,
}

/// What became of a promise.
///
/// ```
/// use hapax::agent::check::Verdict;
/// assert_eq!(serde_json::to_string(&Verdict::Pass)?, r#""pass""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is kept.
    Pass,
    /// It is kept, but something about it is worth a look.
    Warn,
    /// It is broken.
    Fail,
    /// It wasn't tried.
    Skip,
}

/// A promise, and what became of it.
///
/// ```
/// use hapax::agent::{Workspace, check::Check};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let rows = Check::new(&Workspace::open(folder.path())?, "true").run(|_| {}).await?;
/// assert_eq!((rows[0].id, rows[0].section), ("heartbeat.first", "heartbeat (agent to engine)"));
/// assert!(rows[0].came.contains("it ended: exit status: 0"), "{}", rows[0].came);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Its name, which stays the same.
    pub id: &'static str,
    /// The promise.
    pub title: &'static str,
    /// What became of it.
    pub verdict: Verdict,
    /// What should have come; empty if it came.
    pub expected: String,
    /// What came instead.
    pub came: String,
    /// The heading in docs/protocol.md under which it is written.
    pub section: &'static str,
}

impl Check {
    /// A check of that program: a path, or a name that is looked for in `PATH`. It gets the action `hapax.check`, which
    /// agents of the kits know by themselves, unless another one is named.
    pub fn new(workspace: &Workspace, program: impl Into<OsString>) -> Self {
        let output = Output { path: CHECK_OUTPUT.into(), description: None, required: true };
        let work = Work { action: CHECK_ACTION.into(), inputs: check_inputs(0), outputs: vec![output] };
        Self { workspace: workspace.clone(), program: program.into(), args: vec![], work, patience: PATIENCE }
    }

    /// More arguments of the program.
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Work that this agent knows: an action, its inputs, and the files that must come of it.
    pub fn work(mut self, action: &str, inputs: &Json, outputs: &[&str]) -> Result<Self, Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if !inputs.as_str().starts_with('{') {
            return invalid("the inputs of a command are an object".into());
        }
        if action.is_empty() || action.contains('\n') {
            return invalid("an action is a name".into());
        }
        for path in outputs {
            if let Err(reason) = Inside::parse(path) {
                return invalid(format!("output `{path}`: {reason}"));
            }
        }
        let output = |path: &&str| Output { path: (*path).into(), description: None, required: true };
        let outputs = outputs.iter().map(output).collect();
        self.work = Work { action: action.into(), inputs: inputs.clone(), outputs };
        Ok(self)
    }

    /// How long the agent may take for whatever is asked of it. Default: 10 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Checks it, and tells each row as it comes. An error means that the check itself couldn't go on.
    pub async fn run(&self, told: impl FnMut(&Row) + Send) -> Result<Vec<Row>, Error> {
        Exam::new(self, told)?.run().await
    }

    fn folder(&self) -> PathBuf {
        self.workspace.state_folder().join("agents").join("checked")
    }

    /// As an engine makes them before it starts an agent.
    fn make_folders(&self) -> Result<(), Error> {
        for name in ["staging", "state"] {
            let folder = self.folder().join(name);
            std::fs::create_dir_all(&folder).map_err(|error| Error::workspace(&folder, error))?;
        }
        Ok(())
    }

    fn launch(&self) -> Launch {
        let folder = self.folder();
        let env: [(&str, OsString); 6] = [
            ("HAPAX_WORKSPACE", self.workspace.root().into()),
            ("HAPAX_STAGING", folder.join("staging").into()),
            ("HAPAX_AGENT_STATE", folder.join("state").into()),
            ("HAPAX_AGENT_TYPE", "checked".into()),
            ("HAPAX_AGENT_ID", "checked".into()),
            ("HAPAX_HEARTBEAT_MS", HEARTBEAT.as_millis().to_string().into()),
        ];
        Launch {
            program: self.program.clone(),
            args: self.args.clone(),
            env: env.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            folder: self.workspace.root().into(),
        }
    }

    /// Whether it does the kits' own action, which can be told how long it takes.
    fn is_kits_own(&self) -> bool {
        self.work.action == CHECK_ACTION
    }

    /// The work as part of a task: another task is other work.
    fn command(&self, task: &str, snapshot_id: &str, pause: Duration) -> Result<Command, Error> {
        let inputs = match self.is_kits_own() && !pause.is_zero() {
            true => check_inputs(pause.as_millis() as u64),
            false => self.work.inputs.clone(),
        };
        keyed(Command {
            message_id: super::desk::message_id(),
            correlation_id: correlation_id(),
            task_id: task.into(),
            idempotency_key: String::new(),
            to: Address { agent_type: "checked".into(), agent_id: Some("checked".into()) },
            action: self.work.action.clone(),
            inputs,
            expected_outputs: self.work.outputs.clone(),
            version: Version::of(snapshot_id),
            deadline: super::clock_text(crate::clock::later(now_us(), self.patience)),
            retry: Attempt { attempt: 1, max_attempts: 6 },
            priority: 5,
            traceparent: None,
        })
    }

    fn staging_of(&self, key: &str) -> PathBuf {
        staging_of(&self.folder().join("staging"), key)
    }
}

fn check_inputs(pause_ms: u64) -> Json {
    let inputs = CheckInputs { text: "made for a check\n".into(), pause_ms };
    Json::of(&inputs).unwrap_or_else(|_| Json::null())
}

/// The command with the key of its content.
fn keyed(mut command: Command) -> Result<Command, Error> {
    let invalid = |error: &dyn std::fmt::Display| Error::Invalid(error.to_string());
    let outputs = Json::of(&command.expected_outputs).map_err(|error| invalid(&error))?;
    let (action, task, snapshot) = (&command.action, &command.task_id, &command.version.snapshot_id);
    let key = command_key(action, task, snapshot, command.inputs.as_bytes(), outputs.as_bytes());
    command.idempotency_key = key.map_err(|error| invalid(&error))?.to_string();
    Ok(command)
}

fn correlation_id() -> String {
    format!("corr-{}", uuid::Uuid::now_v7())
}

/// The same command once more: another message about the same work.
fn again(command: &Command) -> Command {
    let attempt = Attempt { attempt: command.retry.attempt + 1, ..command.retry };
    Command {
        message_id: super::desk::message_id(),
        correlation_id: correlation_id(),
        retry: attempt,
        ..command.clone()
    }
}
