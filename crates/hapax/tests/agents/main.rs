//! Agents: real processes, each hostile in its own way, and engines that die at every point.

#[path = "../common/mod.rs"]
mod common;

mod crashes;
mod flows;
mod hostile;
mod regressions;
mod supervision;

use common::*;
use hapax::{
    Error, Run,
    agent::{Agent, AgentBuilder, Command, Reply, Workspace, receipt::Receipt},
    prelude::*,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;

const WORK: Node = Node::new("work");

/// Long enough for any machine: nothing here waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(120);

fn options() -> Options {
    Options::default().node_timeout(PATIENCE)
}

/// A workspace of its own, and mock agents that work on it.
struct Site {
    folder: TempDir,
    workspace: Workspace,
    engine: OnceLock<Engine>,
    runs: AtomicUsize,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        let workspace = Workspace::open(folder.path().join("work")).unwrap();
        Self { folder, workspace, engine: OnceLock::new(), runs: AtomicUsize::new(0) }
    }

    fn root(&self) -> &Path {
        self.workspace.root()
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root().join(path)).ok()
    }

    /// Starts anew at once, and lives as long as anyone can wish.
    fn patient(&self, script: &Value) -> AgentBuilder {
        Agent::builder("mock", env!("CARGO_BIN_EXE_hapax-mock-agent"))
            .arg(script.to_string())
            .workspace(&self.workspace)
            .backoff(Duration::from_millis(1), Duration::from_millis(5))
            .restarts(2)
            .grace(Duration::from_millis(50))
            .lock_patience(PATIENCE)
            .start_timeout(PATIENCE)
    }

    fn agent(&self, script: &Value) -> Agent {
        self.patient(script).build().unwrap()
    }

    /// What the agent noted, a line each: text, key, attempt.
    fn notes(&self) -> Vec<[String; 3]> {
        let notes =
            fs::read_to_string(self.root().join(".hapax/agents/mock/state/notes")).unwrap_or_default();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        notes.lines().map(words).collect()
    }

    fn receipts(&self) -> Vec<Receipt> {
        let Ok(files) = fs::read_dir(self.workspace.receipts()) else { return vec![] };
        let mut receipts: Vec<Receipt> = files
            .map(|file| serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap())
            .collect();
        receipts.sort_by(|a, b| (a.step, &a.idempotency_key).cmp(&(b.step, &b.idempotency_key)));
        receipts
    }

    fn staged(&self) -> usize {
        fs::read_dir(self.root().join(".hapax/agents/mock/staging")).map_or(0, Iterator::count)
    }

    /// The processes that work here, whoever started them.
    fn processes(&self) -> Vec<u32> {
        let wanted = format!("HAPAX_WORKSPACE={}", self.root().display());
        let is_ours = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
    }

    async fn until_no_process(&self) {
        while !self.processes().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has an agent do something once, in a run of its own. The engine stays until the test ends.
    async fn ask(&self, agent: &Agent, command: Command) -> Result<Reply, Error> {
        let engine = self.engine.get_or_init(|| engine(options()));
        let name = format!("run-{}", self.runs.fetch_add(1, Ordering::SeqCst));
        let (graph, replies) = named(&name, agent, &command);
        let run: Run<Board> = engine.register(graph, ()).await?.start(&name, Board::default()).await?;
        run.wait().await?;
        let reply = replies.lock().unwrap().pop().unwrap();
        Ok(reply)
    }

    /// The code and the words with which it fails.
    async fn fails(&self, agent: &Agent, command: Command) -> (String, String) {
        let error = self.ask(agent, command).await.expect_err("it must not be taken for a success");
        let failure = failure(&error);
        (failure.code.clone(), failure.message.clone())
    }
}

type Replies = Arc<Mutex<Vec<Reply>>>;

/// A graph of one node that commands once, and shows its reply.
fn one(agent: &Agent, command: &Command) -> (Graph<Board>, Replies) {
    named("one", agent, command)
}

fn named(name: &str, agent: &Agent, command: &Command) -> (Graph<Board>, Replies) {
    let (agent, command, replies) = (agent.clone(), command.clone(), Replies::default());
    let work = node!(
        [agent, command, replies] | ctx | {
            let reply = ctx.command(&agent, command).await?;
            let delta = Board::delta().log(reply.status.clone());
            replies.lock().unwrap().push(reply);
            Ok::<_, NodeError>(delta)
        }
    );
    (Graph::new(name, 1, WORK).node(WORK, work), replies)
}
