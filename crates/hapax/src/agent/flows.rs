//! Ready flows of agents. [`review_loop`]: build, review, change until the review is content, update the specification; one
//! task after the other.
//!
//! Invariant: what a command is about comes from the run's state alone, and its round is part of it. So a run that goes on
//! after a crash computes the commands that it had sent, each round is new work, and which stages are still to come is
//! known from the state, never from what is pending.

use super::{Agent, Command, Error, Reply};
use crate::{Ctx, Graph, Node, NodeError, NodePolicy, Question, Result, Retry, State};
use hapax_core::{
    canary,
    error::{Coded as _, code},
    json::Json,
    limits::{AGENT_COMMAND_TIMEOUT, AGENT_REVIEW_ROUNDS, NODE_TIMEOUT},
};
use serde::{Deserialize, Serialize};

/// The builder does a task for the first time: `implement`.
///
/// ```
/// use hapax::{NodePolicy, agent::flows};
/// use std::time::Duration;
/// let patient = NodePolicy::default().timeout(Duration::from_secs(3600));
/// let graph = flows::review_loop().policy(flows::BUILD, patient);
/// # assert!(graph.check().is_ok());
/// ```
pub const BUILD: Node = Node::new("build");
/// The reviewer looks at it: `review`.
///
/// ```
/// assert_eq!(hapax::agent::flows::REVIEW.name(), "review");
/// ```
pub const REVIEW: Node = Node::new("review");
/// The builder changes what the review asks for: `change`.
///
/// ```
/// assert_eq!(hapax::agent::flows::CHANGE.name(), "change");
/// ```
pub const CHANGE: Node = Node::new("change");
/// The keeper of the specification writes down what is true now: `update_spec`.
///
/// ```
/// assert_eq!(hapax::agent::flows::UPDATE_SPEC.name(), "update_spec");
/// ```
pub const UPDATE_SPEC: Node = Node::new("update_spec");

/// The agents of a [`review_loop`]. They share a workspace.
///
/// ```
/// use hapax::agent::{Agent, Workspace, flows::Team};
/// # let folder = tempfile::tempdir()?;
/// let workspace = Workspace::open(folder.path())?;
/// let agent = |kind: &str| Agent::builder(kind, "python3").arg(format!("{kind}.py")).workspace(&workspace).build();
/// let team = Team { builder: agent("builder")?, reviewer: agent("reviewer")?, spec_keeper: agent("spec_keeper")? };
/// assert_eq!(team.reviewer.agent_type(), "reviewer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Team {
    /// Does `implement` and `change`.
    pub builder: Agent,
    /// Does `review`: `approved`, or `changes_requested` with a list of `findings`.
    pub reviewer: Agent,
    /// Does `update_spec`.
    pub spec_keeper: Agent,
}

/// Something that is to be done.
///
/// ```
/// use hapax::agent::flows::Task;
/// let task = Task::new("T-1", "roman numerals").file("src/roman.py");
/// assert_eq!(task.files, ["src/roman.py"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Task {
    /// What it is called.
    pub id: String,
    /// What is wanted.
    pub goal: String,
    /// The files that must come of it.
    pub files: Vec<String>,
}

impl Task {
    /// A task without files of its own.
    pub fn new(id: &str, goal: &str) -> Self {
        Self { id: id.into(), goal: goal.into(), files: vec![] }
    }

    /// A file that the builder must make.
    pub fn file(mut self, path: &str) -> Self {
        self.files.push(path.into());
        self
    }
}

/// What a review came to.
///
/// ```
/// use hapax::agent::flows::Verdict;
/// let json = r#"{"task":"T-1","round":1,"status":"changes_requested","findings":["name it"],"snapshot_id":"snap-1"}"#;
/// let verdict: Verdict = serde_json::from_str(json)?;
/// assert!(!verdict.is_content());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The task.
    pub task: String,
    /// The round of that task, from 1.
    pub round: u32,
    /// The reviewer's word: `approved` or `changes_requested`.
    pub status: String,
    /// What is to be changed.
    pub findings: Vec<Json>,
    /// What was looked at.
    pub snapshot_id: String,
}

impl Verdict {
    /// Whether nothing is left to change.
    pub fn is_content(&self) -> bool {
        self.status == APPROVED
    }
}

/// What a person answered to an agent's question.
///
/// ```
/// use hapax::agent::flows::Clarified;
/// let json = r#"{"task":"T-1","question":"Which base?","answer":"ten"}"#;
/// assert_eq!(serde_json::from_str::<Clarified>(json)?.answer, "ten");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clarified {
    /// The task that it is about.
    pub task: String,
    /// What the agent asked.
    pub question: String,
    /// What it was told.
    pub answer: String,
}

/// The state of a [`review_loop`].
///
/// ```
/// use hapax::agent::flows::{Task, Work};
/// let work = Work::new([Task::new("T-1", "roman numerals"), Task::new("T-2", "a calendar")]).max_rounds(3);
/// assert_eq!((work.round, work.done, work.max_rounds), (1, 0, 3));
/// ```
#[derive(State, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[state(crate = crate)]
pub struct Work {
    /// What is to be done, in this order.
    pub tasks: Vec<Task>,
    /// As many rounds a task may take.
    pub max_rounds: u32,
    /// How many tasks are done.
    pub done: usize,
    /// The round of the task that is under way, from 1.
    pub round: u32,
    /// All reviews so far.
    #[state(append)]
    pub verdicts: Vec<Verdict>,
    /// All that people answered.
    #[state(append)]
    pub answers: Vec<Clarified>,
    /// What happened, for people.
    #[state(append)]
    pub log: Vec<String>,
}

impl Work {
    /// Tasks that are done one after the other.
    pub fn new(tasks: impl IntoIterator<Item = Task>) -> Self {
        let (tasks, max_rounds) = (tasks.into_iter().collect(), AGENT_REVIEW_ROUNDS);
        Self { tasks, max_rounds, done: 0, round: 1, verdicts: vec![], answers: vec![], log: vec![] }
    }

    /// As many rounds a task may take; then the run fails. Default: 5.
    pub fn max_rounds(mut self, rounds: u32) -> Self {
        self.max_rounds = rounds;
        self
    }

    /// The task that is under way.
    fn task(&self) -> Result<&Task> {
        self.tasks.get(self.done).ok_or_else(|| invalid("the run has no task"))
    }

    /// The latest review, if it is about the task that is under way.
    fn verdict(&self) -> Option<&Verdict> {
        let task = self.tasks.get(self.done)?;
        self.verdicts.last().filter(|verdict| verdict.task == task.id)
    }

    fn is_content(&self) -> bool {
        self.verdict().is_some_and(Verdict::is_content)
    }
}

const APPROVED: &str = "approved";
const CHANGES_REQUESTED: &str = "changes_requested";

/// What all commands of the flow are told.
#[derive(Serialize)]
struct Inputs<'a> {
    goal: &'a str,
    round: u32,
    files: &'a [String],
    /// What the last review asked for.
    findings: &'a [Json],
    /// What people answered about this task.
    answers: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    question: &'a str,
    answer: &'a str,
}

impl<'a> Inputs<'a> {
    fn of(work: &'a Work, task: &'a Task, now: &'a [Clarified]) -> Self {
        let about = work.answers.iter().filter(|answer| answer.task == task.id).chain(now);
        Self {
            goal: &task.goal,
            round: if canary::on("round_left_out") { 1 } else { work.round },
            files: &task.files,
            findings: work.verdict().map_or(&[], |verdict| &verdict.findings),
            answers: about.map(|told| Told { question: &told.question, answer: &told.answer }).collect(),
        }
    }
}

/// Build, review, change until the review is content, update the specification; one task after the other.
///
/// | node | agent | action | then |
/// |---|---|---|---|
/// | [`BUILD`] | builder | `implement` | review |
/// | [`REVIEW`] | reviewer | `review` | `approved`: update the specification; `changes_requested`: change |
/// | [`CHANGE`] | builder | `change` | review, in the next round |
/// | [`UPDATE_SPEC`] | spec keeper | `update_spec` | build the next task, or the end |
///
/// Each command's inputs are `{goal, round, files, findings, answers}`: since the round is among them, no review has the key of
/// another. A reviewer's `findings` are a list in its payload, of texts or whatever the builder understands; the next `change`
/// and the next `review` are told them. A review that isn't content after [`Work::max_rounds`] fails the run (`HX0132`).
///
/// An agent that answers `clarification` asks a person, under its own id: the run is parked until
/// [`Engine::answer`](crate::Engine::answer), and what was answered goes into the inputs of a new command.
///
/// Nodes have as much time as a command, and [`Retry::standard`]; [`Graph::policy`] changes that. A run's budget
/// ([`Options::run_budget`](crate::Options::run_budget)) is the caller's to raise.
///
/// ```
/// use hapax::{Engine, agent::{Agent, Workspace, flows::{self, Task, Team, Work}}};
/// # // An agent in a few lines of shell: it answers each command with the word that it was started with.
/// # const SAYS: &str = r#"
/// # echo '{"kind":"heartbeat","agent":{"agent_type":"sh"},"seq":1,"status":"idle","pid":1,"uptime_s":0,"last_activity_at":"2026-01-01T00:00:00Z"}'
/// # while read -r line; do case $line in *'"kind":"command"'*)
/// #     id=${line#*'"correlation_id":"'}
/// #     printf '{"kind":"event","message_id":"msg-1","correlation_id":"%s","task_id":"T-1","from":{"agent_type":"sh"},"event":"done","status":"%s","payload":{},"artifacts":[],"occurred_at":"2026-01-01T00:00:00Z"}\n' "${id%%'"'*}" "$1"
/// # esac; done"#;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// let workspace = Workspace::open(folder.path())?;
/// # let agent = |kind: &str, word: &str| {
/// #     Agent::builder(kind, "sh").args(["-c", SAYS, "sh", word]).workspace(&workspace).build()
/// # };
/// let team = Team {
///     builder: agent("builder", "success")?,
///     reviewer: agent("reviewer", "approved")?,
///     spec_keeper: agent("spec_keeper", "success")?,
/// };
/// let engine = Engine::open("memory:").await?;
/// let flow = engine.register(flows::review_loop(), team).await?;
/// let work = Work::new([Task::new("T-1", "roman numerals")]);
/// let work = flow.start("work-1", work).await?.wait().await?;
/// assert_eq!(work.log, [
///     "T-1 round 1: build: success", "T-1 round 1: review: approved", "T-1 round 1: update_spec: success",
/// ]);
/// # engine.shutdown(std::time::Duration::from_secs(10)).await;
/// # Ok(())
/// # }
/// ```
pub fn review_loop() -> Graph<Work, Team> {
    let graph = Graph::new("review_loop", 1, BUILD)
        .node(BUILD, build)
        .node(REVIEW, review)
        .node(CHANGE, change)
        .node(UPDATE_SPEC, update_spec)
        .edge(BUILD, REVIEW)
        .edge_if(REVIEW, CHANGE, "changes requested", |work: &Work| !work.is_content())
        .edge_if(REVIEW, UPDATE_SPEC, "approved", Work::is_content)
        .edge(CHANGE, REVIEW)
        .edge_if(UPDATE_SPEC, BUILD, "tasks left", |work: &Work| work.done < work.tasks.len())
        .end(UPDATE_SPEC);
    [BUILD, REVIEW, CHANGE, UPDATE_SPEC].into_iter().fold(graph, |graph, node| graph.policy(node, patient()))
}

/// The command's own timeout is met first, and its answer says more.
fn patient() -> NodePolicy {
    NodePolicy::default().timeout(AGENT_COMMAND_TIMEOUT + NODE_TIMEOUT).retry(Retry::standard())
}

type Context = Ctx<Work, Team>;

async fn build(mut ctx: Context) -> Result<WorkDelta> {
    let (work, team) = (ctx.state(), ctx.app());
    let task = work.task()?;
    let command =
        task.files.iter().fold(Command::new("implement", &task.id), |command, file| command.output(file));
    Ok(have(&mut ctx, &team.builder, command).await?.1)
}

async fn review(mut ctx: Context) -> Result<WorkDelta> {
    let (work, team) = (ctx.state(), ctx.app());
    let task = work.task()?;
    let (reply, delta) = have(&mut ctx, &team.reviewer, Command::new("review", &task.id)).await?;
    let verdict = verdict(&work, task, &reply)?;
    if !verdict.is_content() && work.round >= work.max_rounds {
        return Err(never_content(&work, &verdict));
    }
    Ok(delta.verdicts(verdict))
}

async fn change(mut ctx: Context) -> Result<WorkDelta> {
    let (work, team) = (ctx.state(), ctx.app());
    let task = work.task()?;
    // Which of them a change is about is the builder's to find out.
    let command = task
        .files
        .iter()
        .fold(Command::new("change", &task.id), |command, file| command.optional_output(file));
    Ok(have(&mut ctx, &team.builder, command).await?.1.round(work.round + 1))
}

async fn update_spec(mut ctx: Context) -> Result<WorkDelta> {
    let (work, team) = (ctx.state(), ctx.app());
    let task = work.task()?;
    let (_, delta) = have(&mut ctx, &team.spec_keeper, Command::new("update_spec", &task.id)).await?;
    Ok(delta.done(work.done + 1).round(1u32))
}

/// Has an agent do something, and asks people what it needs to know. The answers are other inputs, and so another key.
async fn have(ctx: &mut Context, agent: &Agent, command: Command) -> Result<(Reply, WorkDelta)> {
    let work = ctx.state();
    let task = work.task()?;
    let mut told = vec![];
    for _ in 0..=work.max_rounds {
        let reply = ctx.command(agent, command.clone().inputs(&Inputs::of(&work, task, &told))).await?;
        if !reply.is("clarification") {
            let line = format!("{} round {}: {}: {}", task.id, work.round, ctx.node_id(), reply.status);
            let delta = Work::delta().log(line);
            return Ok((reply, told.into_iter().fold(delta, WorkDelta::answers)));
        }
        told.extend(clarify(ctx, agent, task, &reply).await?);
    }
    Err(protocol(format!("`{}` asks back again and again", agent.id())))
}

async fn clarify(ctx: &mut Context, agent: &Agent, task: &Task, reply: &Reply) -> Result<Vec<Clarified>> {
    let (mut told, questions) = (vec![], reply.questions());
    if questions.is_empty() {
        return Err(protocol(format!("`{}` asks back without a question", agent.id())));
    }
    for question in questions {
        let form = serde_json::json!({"type": "string", "minLength": 1});
        let asked = Question::new(format!("{}: {question}", task.id)).schema(form);
        let answer = ctx.ask(agent.id(), asked).await?;
        told.push(Clarified { task: task.id.clone(), question, answer });
    }
    Ok(told)
}

fn verdict(work: &Work, task: &Task, reply: &Reply) -> Result<Verdict> {
    #[derive(Deserialize)]
    struct Remarks {
        #[serde(default)]
        findings: Vec<Json>,
    }
    if ![APPROVED, CHANGES_REQUESTED].contains(&&*reply.status) {
        return Err(protocol(format!("`{}` is no verdict of a review", reply.status)));
    }
    let remarks: Remarks =
        reply.payload().map_err(|error| protocol(format!("the findings of a review are a list: {error}")))?;
    let (status, snapshot_id) = (reply.status.clone(), reply.snapshot_id.clone());
    Ok(Verdict { task: task.id.clone(), round: work.round, status, findings: remarks.findings, snapshot_id })
}

fn never_content(work: &Work, verdict: &Verdict) -> NodeError {
    let findings: Vec<_> = verdict.findings.iter().map(in_words).collect();
    let message = format!(
        "the review of `{}` isn't content after {} rounds; its last findings: {}",
        verdict.task,
        work.max_rounds,
        if findings.is_empty() { "none".into() } else { findings.join("; ") }
    );
    NodeError::coded(code::AGENT_ROUNDS, message, false)
}

/// A finding for people: the text that it is, or its message, or all of it.
fn in_words(finding: &Json) -> String {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Finding {
        Text(String),
        Object { message: String },
    }
    match finding.read() {
        Ok(Finding::Text(text) | Finding::Object { message: text }) => text,
        Err(_) => finding.as_str().to_owned(),
    }
}

fn protocol(message: String) -> NodeError {
    Error::Protocol(message).into_node_error()
}

fn invalid(message: &str) -> NodeError {
    let error = Error::Invalid(message.into());
    NodeError::coded(error.code(), error.to_string(), false)
}
