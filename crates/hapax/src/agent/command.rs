//! What a node asks of an agent: three recorded calls.
//!
//! 1. A read takes the workspace's snapshot, so that a re-run computes the same key from it.
//! 2. A write under the command's own key sends the command, and records the answer once its artifacts are checked.
//! 3. A write installs the artifacts and records the snapshot after. Since it is recorded, a re-run never puts an old file
//!    over a newer one. An answer without artifacts needs none.
//!
//! Then the receipt is written, the answer acknowledged and the staging folder removed. All of that is done again when a
//! crash came before the step's commit, and changes nothing then.

use super::{
    Agent, Error, clock_text,
    desk::{self, Ticket},
    frame,
    install::{Delivery, check_outputs, staging_of},
    protocol::{self, Artifact, Attempt, Event, Output, Version},
    receipt::Receipt,
    workspace::Snapshot,
};
use crate::{Call, Ctx, EffectError, NodeError, clock, context::Manner, gate::lock};
use hapax_core::{
    canary,
    canonical::CanonicalError,
    error::{Coded, code},
    journal::{EffectKind, EffectOutcome},
    json::Json,
    key::command_key,
    limits,
    state::State,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Characters of a `traceparent`.
const TRACEPARENT_LEN: usize = 55;

/// Work for an agent. Action, task, inputs and outputs are what it is: together with the workspace's snapshot they make its
/// key, and the same work under the same key is done once.
///
/// A loop (review, change, review) puts its round into the inputs, so that each round is new work.
///
/// ```
/// use hapax::agent::Command;
/// use serde_json::json;
/// let review = Command::new("review", "T-0042").inputs(&json!({"goal": "roman numerals", "round": 2}));
/// let build = Command::new("implement", "T-0042").inputs(&json!({"goal": "roman numerals"})).output("src/roman.py");
/// # let _ = (review, build);
/// ```
#[derive(Debug, Clone)]
pub struct Command {
    action: String,
    task_id: String,
    inputs: Result<Json, CanonicalError>,
    outputs: Vec<Output>,
    timeout: Duration,
    priority: i64,
    specs_hash: Option<String>,
    code_hash: Option<String>,
}

impl Command {
    /// What is to be done, and what it is part of.
    pub fn new(action: &str, task_id: &str) -> Self {
        Self {
            action: action.into(),
            task_id: task_id.into(),
            inputs: Json::from_text("{}"),
            outputs: vec![],
            timeout: limits::AGENT_COMMAND_TIMEOUT,
            priority: 5,
            specs_hash: None,
            code_hash: None,
        }
    }

    /// With what: something that is an object in JSON. Nothing that differs when the node runs again, such as the time.
    pub fn inputs<T: Serialize + ?Sized>(mut self, inputs: &T) -> Self {
        self.inputs = Json::of(inputs);
        self
    }

    /// A file that must come of it: an answer without it is refused.
    pub fn output(self, path: &str) -> Self {
        self.expect(Output { path: path.into(), description: None, required: true })
    }

    /// A file that may come of it.
    pub fn optional_output(self, path: &str) -> Self {
        self.expect(Output { path: path.into(), description: None, required: false })
    }

    /// A file that is expected of it, with a word for the agent.
    pub fn expect(mut self, output: Output) -> Self {
        self.outputs.push(output);
        self
    }

    /// How long an attempt may take; the node's own timeout counts as well. Default: 10 min.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Higher is more urgent; the agent decides what it makes of it. Default: 5.
    pub fn priority(mut self, priority: i64) -> Self {
        self.priority = priority;
        self
    }

    /// Hashes of what the work rests on, for the agent's information.
    pub fn hashes(mut self, specs: Option<String>, code: Option<String>) -> Self {
        (self.specs_hash, self.code_hash) = (specs, code);
        self
    }

    /// The inputs, if they are what they must be.
    fn checked(&self) -> Result<&Json, Error> {
        let inputs = self.inputs.as_ref().map_err(|error| Error::Invalid(format!("the inputs: {error}")))?;
        if !inputs.as_str().starts_with('{') {
            return Err(Error::Invalid("the inputs of a command are an object".into()));
        }
        for output in &self.outputs {
            super::inside::Inside::parse(&output.path)
                .map_err(|reason| Error::Invalid(format!("output `{}`: {reason}", output.path)))?;
        }
        Ok(inputs)
    }

    fn key(&self, snapshot_id: &str) -> Result<String, Error> {
        let invalid = |reason: &dyn std::fmt::Display| Error::Invalid(reason.to_string());
        let outputs = Json::of(&self.outputs).map_err(|error| invalid(&error))?;
        let inputs = self.checked()?;
        let key =
            command_key(&self.action, &self.task_id, snapshot_id, inputs.as_bytes(), outputs.as_bytes());
        Ok(key.map_err(|error| invalid(&error))?.to_string())
    }

    /// As it is sent, but for what changes each time.
    fn wire(&self, agent: &Agent, snapshot_id: &str, attempt: u32) -> Result<protocol::Command, Error> {
        let (specs_hash, code_hash) = (self.specs_hash.clone(), self.code_hash.clone());
        let command = protocol::Command {
            message_id: desk::message_id(),
            correlation_id: format!("corr-{}", uuid::Uuid::now_v7()),
            task_id: self.task_id.clone(),
            idempotency_key: self.key(snapshot_id)?,
            to: agent.core().address(),
            action: self.action.clone(),
            inputs: self.checked()?.clone(),
            expected_outputs: self.outputs.clone(),
            version: Version { snapshot_id: snapshot_id.into(), specs_hash, code_hash },
            deadline: clock_text(0),
            retry: Attempt { attempt, max_attempts: attempt.saturating_add(agent.core().spec.restarts) },
            priority: self.priority,
            traceparent: None,
        };
        // With the most digits that attempts can have, and a trace, so that no resend is larger than what was checked.
        let most = Attempt { attempt: u32::MAX, max_attempts: u32::MAX };
        let traceparent = Some("-".repeat(TRACEPARENT_LEN));
        frame::line(&protocol::Command { retry: most, traceparent, ..command.clone() })?;
        Ok(command)
    }
}

/// An agent's answer that was accepted: its files are in the workspace.
///
/// ```
/// use hapax::agent::Reply;
/// # fn of(reply: &Reply) -> Result<(), serde_json::Error> {
/// #[derive(serde::Deserialize)]
/// struct Review { comments: Vec<String> }
/// if reply.is("changes_requested") {
///     let review: Review = reply.payload()?;
///     println!("{} comments on {}", review.comments.len(), reply.snapshot_id);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// The agent's word: `success`, `approved`, `changes_requested`, `clarification` or one of its own.
    pub status: String,
    /// The answer as it came.
    pub event: Event,
    /// The command's key.
    pub key: String,
    /// The workspace's snapshot after what came of it was installed.
    pub snapshot_id: String,
}

impl Reply {
    /// Whether the agent's word is this one.
    pub fn is(&self, status: &str) -> bool {
        self.status == status
    }

    /// What the agent has to say.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.event.payload.read()
    }

    /// The files that came of it.
    pub fn artifacts(&self) -> &[Artifact] {
        &self.event.artifacts
    }

    /// What the agent needs to know before it can work (`clarification`). The answers go into the inputs of a new command:
    /// other inputs are another key.
    pub fn questions(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Asked {
            questions: Vec<String>,
        }
        self.payload().map_or_else(|_| vec![], |asked: Asked| asked.questions)
    }
}

/// What an agent tells while it works, as it stands in the run's stream.
///
/// ```
/// use hapax::agent::Progress;
/// let chunk = r#"{"agent":"builder","event":"token","payload":{"text":"fn main"}}"#;
/// let progress: Progress = serde_json::from_str(chunk)?;
/// assert_eq!(progress.event, "token");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Who tells.
    pub agent: String,
    /// `progress`, `token`, or a name of the agent's own.
    pub event: String,
    /// What it tells.
    pub payload: Json,
}

/// What is recorded as the request of a command.
#[derive(Serialize)]
struct Request<'a> {
    agent: &'a str,
    action: &'a str,
    task_id: &'a str,
    snapshot_id: &'a str,
    inputs: &'a Json,
    expected_outputs: &'a [Output],
}

impl<S: State, A: Send + Sync + 'static> Ctx<S, A> {
    /// Has an agent do some work, recorded like every [effect](Ctx::effect): once its answer is recorded, no attempt and no
    /// crash asks for it again, and a crash before that sends the same command with the same key, which an agent that keeps
    /// its promise answers from what it remembers.
    ///
    /// What the agent tells on the way comes into the run's stream, as [`Progress`]. An answer is accepted if the agent saw
    /// the files that the command is about, and made what it must, no more than it may, with the hashes that it says. Then
    /// its files are installed, each whole, and the node sees the [`Reply`]. An answer of failure is an error, retryable if
    /// the agent says so.
    ///
    /// A node that commands agents wants a [timeout](crate::NodePolicy::timeout) of its own: the usual 30 s are short for
    /// most of them. See [`Agent`] for an example.
    pub async fn command(&mut self, agent: &Agent, command: Command) -> Result<Reply, EffectError> {
        let action = command.action.clone();
        let refuse = |error: Error| EffectError::fatal(&action, error.code(), error.to_string());
        let inputs = command.checked().map_err(refuse)?.clone();
        self.warn_of_times(agent, &inputs);
        let pinned = self.pin(agent, &action).await?;
        let sent = command.wire(agent, &pinned.id, self.attempt()).map_err(refuse)?;
        let key = sent.idempotency_key.clone();
        let staging = staging_of(&agent.core().staging(), &key);
        let delivery = |artifacts| Delivery { workspace: agent.workspace().clone(), staging, artifacts };
        let event = match self.send(agent, &command, sent).await {
            Ok(event) => event,
            Err(error) => {
                self.forget(agent, &key, &error, delivery(vec![])).await;
                return Err(error);
            }
        };
        let delivery = delivery(event.artifacts.clone());
        let after = self.install(agent, &action, &key, &pinned.id, &delivery).await?;
        let status = event.status.clone().unwrap_or_default();
        let reply = Reply { status, event, key, snapshot_id: after };
        self.settle(agent, &command, &pinned.id, &reply, delivery).await?;
        Ok(reply)
    }

    /// The first call: what the workspace holds.
    async fn pin(&mut self, agent: &Agent, action: &str) -> Result<Snapshot, EffectError> {
        let name = format!("{action}.snapshot");
        let workspace = agent.workspace().clone();
        let look = async |_: Call| {
            let turn = workspace.turn().await;
            blocking(move || {
                let _turn = turn;
                workspace.snapshot()
            })
            .await
        };
        self.effect(&name, EffectKind::Read, agent.id(), look).await
    }

    /// The second call: the command itself.
    async fn send(
        &mut self,
        agent: &Agent,
        command: &Command,
        sent: protocol::Command,
    ) -> Result<Event, EffectError> {
        let (key, until) = (sent.idempotency_key.clone(), self.deadline());
        let (inputs, outputs) = (sent.inputs.clone(), sent.expected_outputs.clone());
        let request = Request {
            agent: agent.id(),
            action: &command.action,
            task_id: &command.task_id,
            snapshot_id: &sent.version.snapshot_id.clone(),
            inputs: &inputs,
            expected_outputs: &outputs,
        };
        if let Some(live) = self.live() {
            agent.adopt(&live.shared);
            if self.has_failed_for_good(&key) {
                agent.core().ack(&key, true);
            }
        }
        let anew = canary::on("command_key_anew").then(|| format!("ik:{}", uuid::Uuid::now_v7().simple()));
        let patience = (command.timeout, command.timeout.min(clock::left_until(until)));
        let send = async |call: Call| {
            let idempotency_key = anew.unwrap_or(sent.idempotency_key);
            let traceparent = call.traceparent().map(str::to_owned);
            let sent = protocol::Command { idempotency_key, traceparent, ..sent };
            ask(agent, sent, patience, &call).await.map_err(Error::into_node_error)
        };
        let manner = Manner { key: Some(&key), rate: None };
        self.effect_as(&command.action, EffectKind::Write, manner, &request, send).await
    }

    /// Whether an earlier attempt recorded an answer to the next call that is no use for good. Then somebody has it tried
    /// again, and the agent must not give that answer once more. That it was told so already is in no record: the engine
    /// or the agent may have died before the word arrived.
    fn has_failed_for_good(&mut self, key: &str) -> bool {
        let (attempt, scope, calls) = self.site();
        let recorded = lock(&attempt.item.recorded);
        recorded.call(scope, *calls).is_some_and(|call| match &call.outcome {
            Some(EffectOutcome::Err { code, retryable: false, .. }) => *call.key == *key && is_answer(code),
            _ => false,
        })
    }

    /// The third call: what came of it. Answers with the snapshot after.
    async fn install(
        &mut self,
        agent: &Agent,
        action: &str,
        key: &str,
        pinned: &str,
        delivery: &Delivery,
    ) -> Result<String, EffectError> {
        if delivery.artifacts.is_empty() {
            return Ok(pinned.to_owned());
        }
        let name = format!("{action}.install");
        let install = async |_: Call| {
            agent.core().hold().await.map_err(Error::into_node_error)?;
            let (delivery, turn) = (delivery.clone(), delivery.workspace.turn().await);
            blocking(move || {
                let _turn = turn;
                let _locked = delivery.workspace.locked()?;
                delivery.install()?;
                delivery.workspace.snapshot()
            })
            .await
        };
        let installed: Snapshot =
            self.effect(&name, EffectKind::Write, &(key, &delivery.artifacts), install).await?;
        Ok(installed.id)
    }

    /// Everything is durable and in its place: what was needed for a repetition can go.
    async fn settle(
        &self,
        agent: &Agent,
        command: &Command,
        pinned: &str,
        reply: &Reply,
        delivery: Delivery,
    ) -> Result<(), EffectError> {
        let Some(live) = self.live() else { return Ok(()) };
        let (run, workspace) = (self.run_key(), agent.workspace().clone());
        let receipt = Receipt {
            v: 1,
            idempotency_key: reply.key.clone(),
            agent: agent.core().address(),
            action: command.action.clone(),
            task_id: command.task_id.clone(),
            namespace: run.namespace.to_string(),
            run: run.run.to_string(),
            step: self.step_id(),
            node: self.node_id().to_string(),
            snapshot_before: pinned.into(),
            snapshot_after: reply.snapshot_id.clone(),
            event: reply.event.clone(),
            recorded_at: clock_text(live.now_us()),
        };
        let folder = workspace.receipts();
        let written = blocking(move || receipt.write(&folder)).await;
        written.map_err(|error| EffectError {
            retryable: true,
            ..EffectError::fatal(&command.action, error.code(), error.to_string())
        })?;
        agent.core().ack(&reply.key, false);
        clear(delivery).await;
        Ok(())
    }

    /// An answer that is no use for good: if an operator has it tried again, it is to be done again.
    async fn forget(&self, agent: &Agent, key: &str, error: &EffectError, delivery: Delivery) {
        if self.live().is_none() || error.retryable || !is_answer(&error.code) {
            return;
        }
        agent.core().ack(key, true);
        // A line that is no message may come amid the work: its files are still being made.
        if error.code != code::AGENT_PROTOCOL {
            clear(delivery).await;
        }
    }

    /// Inputs that differ each time make another key each time: then nothing is done once.
    fn warn_of_times(&self, agent: &Agent, inputs: &Json) {
        let Some(live) = self.live() else { return };
        let Ok(value) = inputs.read::<serde_json::Value>() else { return };
        if let Some(field) = desk::looks_like_now(&value, live.now_us())
            && agent.core().warned.is_new(self.node_id().as_str())
        {
            let node = self.node_id().as_str();
            tracing::warn!(
                node,
                field,
                "an input holds the time: the command has another key each time it is made"
            );
        }
    }
}

/// Whether an error with this code is about what the agent said, and not about whether it could be asked.
fn is_answer(code: &str) -> bool {
    let about_answers = [
        code::AGENT_FAILED,
        code::AGENT_PROTOCOL,
        code::AGENT_VERSION,
        code::AGENT_ARTIFACT,
        code::AGENT_OUTPUT_MISSING,
    ];
    about_answers.contains(&code)
}

async fn clear(delivery: Delivery) {
    // That it can't be removed is logged, and harms nothing.
    let _ = tokio::task::spawn_blocking(move || delivery.clear()).await;
}

/// Work on files, where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, NodeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Error::into_node_error),
        Err(_) => Err(NodeError::new("the runtime is shutting down")),
    }
}

/// Sends a command and waits for an answer that can be accepted.
async fn ask(
    agent: &Agent,
    command: protocol::Command,
    (timeout, deadline): (Duration, Duration),
    call: &Call,
) -> Result<Event, Error> {
    let (pinned, outputs) = (command.version.snapshot_id.clone(), command.expected_outputs.clone());
    let staging = staging_of(&agent.core().staging(), &command.idempotency_key);
    let (mut ticket, is_first) = agent.core().desk.open(command, deadline);
    agent.watch(is_first);
    let answer = tokio::time::timeout(timeout, follow(&mut ticket, agent.id(), call)).await;
    drop(ticket);
    let event = answer.unwrap_or(Err(Error::Timeout(timeout)))?;
    if let Some(failure) = event.failure().filter(|_| !canary::on("error_as_success")) {
        let protocol::Failure { code, message, retryable } = failure;
        return Err(Error::Failed { code, message, retryable });
    }
    check_version(&pinned, &event)?;
    // Who asks back hasn't done the work.
    if event.status.as_deref() != Some("clarification") {
        check_outputs(&outputs, &event.artifacts)?;
    }
    let delivery =
        Delivery { workspace: agent.workspace().clone(), staging, artifacts: event.artifacts.clone() };
    let checked = tokio::task::spawn_blocking(move || delivery.check()).await;
    checked.unwrap_or_else(|_| Err(Error::Dead("the runtime is shutting down".into())))?;
    Ok(event)
}

fn check_version(pinned: &str, event: &Event) -> Result<(), Error> {
    match event.observed_version.as_ref().map(|version| &version.snapshot_id) {
        Some(observed) if observed != pinned && !canary::on("version_unchecked") => {
            Err(Error::Version { pinned: pinned.into(), observed: observed.clone() })
        }
        _ => Ok(()),
    }
}

/// Waits for the answer, and shows on the way what the agent tells.
async fn follow(ticket: &mut Ticket<'_>, agent: &str, call: &Call) -> Result<Event, Error> {
    loop {
        tokio::select! {
            biased;
            Some(event) = ticket.told.recv() => {
                let Event { event, payload, .. } = event;
                // Nothing rests on a chunk; if the call is over, nobody asks for its answer either.
                let _ = call.stream(&Progress { agent: agent.into(), event, payload }).await;
            }
            answer = &mut ticket.answer => {
                return answer.unwrap_or_else(|_| Err(Error::Dead("nobody supervises it".into())));
            }
        }
    }
}
