//! `hapax agent run`: talks to an agent by hand, through an engine that supervises it, checks what it makes and installs it.

use super::{
    super::payload,
    listen::{Said, listen},
    whole,
    words::Asked,
};
use crate::{
    failure::Failure,
    output::{BAD, BUSY, FAINT, GOOD, Output, WARN, clean},
    view::parse_age,
};
use clap::Args;
use hapax::{
    Engine, Error, Flow, Graph, Node, NodePolicy, Retry, State, StreamEvent,
    agent::{Agent, Progress, Reply, Workspace, protocol::Artifact},
};
use hapax_core::{error::code, json::Json};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    io::{self, BufRead, IsTerminal, Write as _},
    path::PathBuf,
    time::Duration,
};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, channel};

const AFTER_HELP: &str = "\
A command is typed in one line: an action, a task, inputs as JSON, and the files that must come of it; all but the action may be \
left out. Or all of it is JSON: {\"action\", \"task_id\", \"inputs\", \"expected_outputs\"}. Lines are read from standard input until it \
ends; with --action or --command there is one.

What the agent makes is checked and installed into the workspace. The same command on the same files has the same key: the \
agent answers it from what it remembers. Its memory is in the workspace, in the folder .hapax.

Examples:
  hapax agent run -- hapax agent mock
  hapax agent run --action echo --task T-1 --inputs '{\"n\": 1}' \\
      --output n.json -- hapax agent mock
  echo 'echo T-1 {\"n\": 1} n.json' | hapax agent run -- hapax agent mock
  hapax agent run --workspace project -- python3 builder.py";

const PROMPT: &str = "> ";
const ASK: Node = Node::new("ask");

/// What a run in its last step may take when the command is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// Talk to an agent by hand
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[command(group = clap::ArgGroup::new("once").args(["action", "command"]))]
pub(super) struct Run {
    /// Ask for this, and end
    #[arg(long, value_name = "NAME")]
    action: Option<String>,
    /// What that is part of
    #[arg(long, value_name = "ID", default_value = "T-1", requires = "action", conflicts_with = "command")]
    task: String,
    /// Its inputs, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", requires = "action", conflicts_with = "command")]
    inputs: String,
    /// A file that must come of it; may be repeated
    #[arg(long = "output", value_name = "PATH", requires = "action", conflicts_with = "command")]
    outputs: Vec<String>,
    /// Ask for this, as it would be typed, and end
    #[arg(long, value_name = "LINE")]
    command: Option<String>,
    /// The files that the agent works on
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// What kind of agent it is told to be
    #[arg(long = "type", value_name = "NAME", default_value = "agent")]
    kind: String,
    /// How long an answer may take: a number with s, m, h, d or w
    #[arg(long, value_name = "AGE", default_value = "10m", value_parser = parse_limit)]
    timeout: Duration,
    /// The agent: a program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    words: Vec<OsString>,
}

/// A command and its answer, as a run holds them.
#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Dialogue {
    asked: Option<Asked>,
    answer: Option<Answered>,
}

/// What came of a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Answered {
    status: String,
    name: String,
    payload: Json,
    artifacts: Vec<Artifact>,
    idempotency_key: String,
    snapshot_id: String,
}

impl From<Reply> for Answered {
    fn from(reply: Reply) -> Self {
        Self {
            status: reply.status,
            name: reply.event.event,
            payload: reply.event.payload,
            artifacts: reply.event.artifacts,
            idempotency_key: reply.key,
            snapshot_id: reply.snapshot_id,
        }
    }
}

/// What happens, one line each.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Sent(&'a Asked),
    Told { name: &'a str, payload: &'a Json },
    Log { level: &'a str, message: &'a str, fields: &'a str },
    Stderr { line: &'a str },
    Answered(&'a Answered),
    Failed { code: &'a str, message: &'a str },
}

/// What the node needs.
struct Partner {
    agent: Agent,
    timeout: Duration,
}

async fn ask(mut ctx: hapax::Ctx<Dialogue, Partner>) -> hapax::Result<DialogueDelta> {
    let (state, partner) = (ctx.state(), ctx.app());
    let asked = state.asked.as_ref().ok_or_else(|| hapax::NodeError::new("nothing is asked"))?;
    let command = asked.command().timeout(partner.timeout);
    let reply = ctx.command(&partner.agent, command).await?;
    Ok(Dialogue::delta().answer(Some(reply.into())))
}

impl Run {
    /// `None`: somebody had enough of it.
    pub(super) async fn run(
        self,
        out: &Output,
        enough: impl Future<Output = ()>,
    ) -> Option<Result<(), Failure>> {
        let engine = match Engine::open("memory:").await {
            Ok(engine) => engine,
            Err(error) => return Some(Err(error.into())),
        };
        let outcome = tokio::select! {
            outcome = self.talk(&engine, out) => Some(outcome),
            () = enough => None,
        };
        engine.shutdown(FAREWELL).await;
        outcome
    }

    async fn talk(self, engine: &Engine, out: &Output) -> Result<(), Failure> {
        let policy = NodePolicy::default().timeout(self.timeout + FAREWELL).retry(Retry::none());
        let graph = Graph::new("agent-run", 1, ASK).node(ASK, ask).policy(ASK, policy);
        let partner = Partner { agent: self.agent()?, timeout: self.timeout };
        let flow = engine.register(graph, partner).await?;
        let mut talk = Talk { engine, flow, out, said: listen(), count: 0 };
        if let Some(asked) = self.once()? {
            return if talk.exchange(asked).await? { Ok(()) } else { Err(Failure::Told) };
        }
        talk.converse().await
    }

    fn agent(&self) -> Result<Agent, Failure> {
        let workspace = Workspace::open(&self.workspace)?;
        let (program, args) = whole(&self.words)?;
        Ok(Agent::builder(&self.kind, program).args(args).workspace(&workspace).build()?)
    }

    /// The one command, if there is only one.
    fn once(&self) -> Result<Option<Asked>, Failure> {
        if let Some(line) = &self.command {
            return Asked::read(line)
                .map(Some)
                .map_err(|wrong| Failure::usage(format!("--command: {wrong}")));
        }
        let Some(action) = &self.action else { return Ok(None) };
        let asked = Asked::new(action, &self.task, payload(&self.inputs)?, &self.outputs);
        asked.checked().map(Some).map_err(Failure::usage)
    }
}

/// A conversation.
struct Talk<'a> {
    engine: &'a Engine,
    flow: Flow<Dialogue, Partner>,
    out: &'a Output,
    said: UnboundedReceiver<Said>,
    count: u64,
}

impl Talk<'_> {
    /// Commands from standard input, until it ends. It fails if the last one did.
    async fn converse(&mut self) -> Result<(), Failure> {
        let mut lines = lines();
        let mut last_well = true;
        loop {
            self.prompt();
            let line = tokio::select! {
                line = lines.recv() => line,
                Some(said) = self.said.recv() => {
                    self.overheard(&said)?;
                    continue;
                }
            };
            let Some(line) = line else { break };
            let line = line.map_err(|error| Failure::io("cannot read a command", &error))?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line = String::from_utf8(line).map_err(|_| "it isn't UTF-8".to_owned());
            last_well = match line.and_then(|line| Asked::read(&line)) {
                Ok(asked) => self.exchange(asked).await?,
                Err(wrong) => self.not_understood(&wrong)?,
            };
        }
        if last_well { Ok(()) } else { Err(Failure::Told) }
    }

    fn prompt(&self) {
        if !self.out.is_json() && io::stdin().is_terminal() && io::stdout().is_terminal() {
            // A prompt that nobody sees is no failure.
            let _ = io::stdout().write_all(PROMPT.as_bytes()).and_then(|()| io::stdout().flush());
        }
    }

    fn not_understood(&self, wrong: &str) -> Result<bool, Failure> {
        let message = format!("{wrong}; use `ACTION TASK {{\"input\": 1}} OUTPUT`");
        self.say(&Line::Failed { code: code::USAGE, message: &message })?;
        Ok(false)
    }

    /// One command and all that comes until its answer. Whether that is a success.
    async fn exchange(&mut self, asked: Asked) -> Result<bool, Failure> {
        self.count += 1;
        let id = format!("command-{}", self.count);
        self.say(&Line::Sent(&asked))?;
        let run = self.flow.start(&id, Dialogue { asked: Some(asked), answer: None }).await?;
        let mut tail = self.engine.tail(&id);
        loop {
            tokio::select! {
                event = tail.next() => match event? {
                    Some(event) => self.told(&event)?,
                    None => break,
                },
                Some(said) = self.said.recv() => self.overheard(&said)?,
            }
        }
        while let Ok(said) = self.said.try_recv() {
            self.overheard(&said)?;
        }
        match run.wait().await {
            Ok(Dialogue { answer: Some(answer), .. }) => self.say(&Line::Answered(&answer)).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) => self.failed(&error).map(|()| false),
        }
    }

    /// What the agent says about its work.
    fn told(&self, event: &StreamEvent) -> Result<(), Failure> {
        let StreamEvent::Chunk(chunk) = event else { return Ok(()) };
        match chunk.payload.read::<Progress>() {
            Ok(progress) => self.say(&Line::Told { name: &progress.event, payload: &progress.payload }),
            Err(_) => Ok(()),
        }
    }

    fn overheard(&self, said: &Said) -> Result<(), Failure> {
        let Said { level, message, fields, is_stderr } = said;
        match is_stderr {
            true => self.say(&Line::Stderr { line: message }),
            false => self.say(&Line::Log { level, message, fields }),
        }
    }

    /// The agent's own failure, without the run that it was part of.
    fn failed(&self, error: &Error) -> Result<(), Failure> {
        let Error::Failed { failure, .. } = error else { return Err(error.clone().into()) };
        let (code, message) = match &failure.node {
            Some(node) => (&node.code, &node.message),
            None => (&failure.code, &failure.message),
        };
        self.say(&Line::Failed { code, message })
    }

    fn say(&self, line: &Line<'_>) -> Result<(), Failure> {
        self.out.answer(line, || human(line, self.out))
    }
}

/// A limit within which nothing can be answered is none.
fn parse_limit(text: &str) -> Result<Duration, String> {
    let limit = parse_age(text)?;
    if limit.is_zero() { Err(format!("`{text}` is no time to answer in")) } else { Ok(limit) }
}

/// The lines of standard input, read by a thread of their own: nobody can interrupt one that waits.
fn lines() -> Receiver<io::Result<Vec<u8>>> {
    let (sender, lines) = channel(1);
    std::thread::spawn(move || {
        let mut all = io::stdin().lock().split(b'\n');
        while let Some(line) = all.next()
            && sender.blocking_send(line).is_ok()
        {}
    });
    lines
}

fn human(line: &Line<'_>, out: &Output) -> String {
    match line {
        Line::Sent(asked) => {
            let words = format!("{} {} {}", asked.action, asked.task_id, asked.inputs.as_str());
            format!("{} {}\n", out.paint(BUSY, "sent    "), clean(&words))
        }
        Line::Told { name, payload } => told(name, payload, out),
        Line::Log { level, message, fields } => {
            let style = if matches!(*level, "warn" | "error") { WARN } else { FAINT };
            let words = format!("{message} {fields}");
            format!("{} {}\n", out.paint(style, &format!("{level:<8}")), clean(words.trim_end()))
        }
        Line::Stderr { line } => format!("{} {}\n", out.paint(FAINT, "stderr  "), clean(line)),
        Line::Answered(answer) => answered(answer, out),
        Line::Failed { code, message } => {
            format!("{} {}\n", out.paint(BAD, &format!("failed   {code}:")), clean(message))
        }
    }
}

fn told(name: &str, payload: &Json, out: &Output) -> String {
    #[derive(Deserialize)]
    struct Parts {
        percent: Option<f64>,
        message: Option<String>,
        text: Option<String>,
    }
    let whole = || clean(payload.as_str());
    let parts = payload.read::<Parts>();
    let words = match (name, parts) {
        ("token", Ok(Parts { text: Some(text), .. })) => clean(&text),
        ("progress", Ok(Parts { percent, message, .. })) => {
            let percent = percent.map(|percent| format!("{percent} %"));
            let words: Vec<String> = percent.into_iter().chain(message).collect();
            clean(&words.join("  "))
        }
        _ => whole(),
    };
    format!("{} {words}\n", out.paint(FAINT, &format!("{:<8}", clean(name))))
}

fn answered(answer: &Answered, out: &Output) -> String {
    let Answered { status, name, payload, artifacts, idempotency_key, snapshot_id } = answer;
    let head = out.paint(GOOD, &format!("{:<8}", clean(status)));
    let mut text = format!("{head} {} {}\n", clean(name), clean(payload.as_str()));
    for file in artifacts {
        let hash = &file.sha256.to_string()[..12];
        text.push_str(&format!("         {}  {} bytes  sha256 {hash}…\n", clean(&file.path), file.size));
    }
    text.push_str(&out.paint(FAINT, &format!("         {idempotency_key}  {snapshot_id}")));
    text.push('\n');
    text
}
