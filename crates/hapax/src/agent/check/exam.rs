//! The flow of a check: each promise is tried once, and an agent that is gone is started again before the next.

use super::{
    super::Error,
    Check, Row, Verdict,
    rules::{self, Rule},
    talk::Talk,
};
use crate::{
    agent::{
        install::{Delivery, check_outputs},
        protocol::{Command, Event},
    },
    clock,
};
use hapax_core::limits::AGENT_GRACE;
use std::{process::ExitStatus, time::Duration};

/// Heartbeats that are waited for.
const BEATS: u64 = 4;

/// How long the kits' own action works where that is of use.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// What became of a promise, as the one who tried it sees it.
#[derive(Debug)]
pub(super) enum Finding {
    Pass,
    Warn { expected: String, came: String },
    Fail { expected: String, came: String },
    Skip(&'static str),
}

pub(super) fn fail(expected: &str, came: impl Into<String>) -> Finding {
    Finding::Fail { expected: expected.into(), came: came.into() }
}

pub(super) fn warn(expected: &str, came: impl Into<String>) -> Finding {
    Finding::Warn { expected: expected.into(), came: came.into() }
}

/// A check under way.
pub(super) struct Exam<'a, F> {
    pub(super) check: &'a Check,
    pub(super) talk: Talk<'a>,
    /// What the workspace holds.
    pub(super) snapshot_id: String,
    /// How long its first start took.
    pub(super) started_in: Duration,
    rows: Vec<Row>,
    told: F,
}

impl<'a, F: FnMut(&Row) + Send> Exam<'a, F> {
    pub(super) fn new(check: &'a Check, told: F) -> Result<Self, Error> {
        let snapshot_id = check.workspace.snapshot()?.id;
        let started_in = Duration::ZERO;
        Ok(Self { check, talk: Talk::new(check), snapshot_id, started_in, rows: vec![], told })
    }

    /// Tries all of them. What can't be tried is skipped.
    pub(super) async fn run(mut self) -> Result<Vec<Row>, Error> {
        if self.lives().await? && self.works().await? {
            self.remembers().await?;
            self.reads().await?;
            self.refuses().await?;
            self.ends().await?;
            self.talk.kill().await;
            let found = self.workspace()?;
            self.row(&rules::WORKSPACE, found);
        }
        self.talk.kill().await;
        for rule in rules::ALL {
            let is_known = self.rows.iter().any(|row| row.id == rule.id);
            match *rule {
                rules::ONLY_MESSAGES => self.row(rule, self.only_messages()),
                rules::ONE_ANSWER => self.row(rule, self.one_answer()),
                _ if is_known => {}
                _ => self.row(rule, Finding::Skip("what comes before it failed")),
            }
        }
        Ok(self.rows)
    }

    pub(super) fn row(&mut self, rule: &Rule, finding: Finding) {
        let (verdict, expected, came) = match finding {
            Finding::Pass => (Verdict::Pass, String::new(), String::new()),
            Finding::Warn { expected, came } => (Verdict::Warn, expected, came),
            Finding::Fail { expected, came } => (Verdict::Fail, expected, came),
            Finding::Skip(why) => (Verdict::Skip, String::new(), why.into()),
        };
        let Rule { id, title, section } = *rule;
        let row = Row { id, title, verdict, expected, came, section };
        (self.told)(&row);
        self.rows.push(row);
    }

    /// The agent runs, if it can be had at all.
    pub(super) async fn running(&mut self) -> Result<Result<(), String>, Error> {
        if self.talk.is_running() { Ok(Ok(())) } else { self.talk.start().await }
    }

    pub(super) fn command(&self, task: &str) -> Result<Command, Error> {
        self.check.command(task, &self.snapshot_id, Duration::ZERO)
    }

    /// A command that takes a while, where the agent can be told so.
    pub(super) fn slow_command(&self, task: &str) -> Result<Command, Error> {
        self.check.command(task, &self.snapshot_id, PAUSE)
    }

    /// Asks an agent that runs, and says what came instead of an answer of success.
    pub(super) async fn done(&mut self, command: &Command) -> Result<Result<Event, String>, Error> {
        if let Err(instead) = self.running().await? {
            return Ok(Err(instead));
        }
        let answer = self.talk.ask(command).await?;
        Ok(answer.and_then(|event| succeeded(command, event)))
    }

    async fn lives(&mut self) -> Result<bool, Error> {
        let begun = clock::instant();
        let started = self.talk.start().await?;
        self.started_in = clock::since(begun);
        let is_alive = started.is_ok();
        let found = match started {
            Ok(()) => Finding::Pass,
            Err(came) => fail("a heartbeat with `seq` 1, as soon as it can take commands", came),
        };
        self.row(&rules::FIRST_HEARTBEAT, found);
        if is_alive {
            let found = self.beats().await;
            self.row(&rules::HEARTBEATS, found);
        }
        Ok(is_alive)
    }

    async fn beats(&mut self) -> Finding {
        let expected = format!(
            "a heartbeat every {} ms (HAPAX_HEARTBEAT_MS), `seq` 1, 2, 3, …, `status` idle, busy or stopping",
            super::HEARTBEAT.as_millis()
        );
        let end = clock::instant() + self.check.patience;
        let came = self.talk.until(end, |heard| (heard.beats.count >= BEATS).then_some(())).await;
        let beats = &self.talk.heard.beats;
        match (came, &beats.odd) {
            (Ok(()), None) => Finding::Pass,
            (Ok(()), Some(odd)) => fail(&expected, odd),
            (Err(instead), _) => fail(&expected, format!("{} of them; the next: {instead}", beats.count)),
        }
    }

    /// The work itself. Without an answer nothing else can be tried.
    async fn works(&mut self) -> Result<bool, Error> {
        let command = self.command("check-answer")?;
        let event = match self.done(&command).await? {
            Ok(event) => event,
            Err(came) => {
                let found = self.unanswered(came);
                self.row(&rules::ANSWER, found);
                return Ok(false);
            }
        };
        self.row(&rules::ANSWER, Finding::Pass);
        let found = self.artifacts(&command, &event);
        self.row(&rules::ARTIFACTS, found);
        self.row(&rules::VERSION, self.version(&event));
        let found = self.hard_key().await?;
        self.row(&rules::HARD_KEY, found);
        Ok(true)
    }

    fn unanswered(&self, came: String) -> Finding {
        let expected =
            "an event with the command's `correlation_id` and `task_id`, and a `status` of success";
        match self.check.is_kits_own() {
            true => fail(
                &format!(
                    "{expected}, for the action `hapax.check`; name one that the agent knows with --action"
                ),
                came,
            ),
            false => fail(expected, came),
        }
    }

    /// What the engine would look at.
    pub(super) fn artifacts(&self, command: &Command, event: &Event) -> Finding {
        let delivery = Delivery {
            workspace: self.check.workspace.clone(),
            staging: self.check.staging_of(&command.idempotency_key),
            artifacts: event.artifacts.clone(),
        };
        let checked =
            check_outputs(&command.expected_outputs, &event.artifacts).and_then(|()| delivery.check());
        match checked {
            Ok(()) => Finding::Pass,
            Err(error) => fail(
                "each artifact as a regular file at $HAPAX_STAGING/<key without ik:>/<path>, with its `sha256` and \
                 `size`, and every required output among them",
                error.to_string(),
            ),
        }
    }

    fn version(&self, event: &Event) -> Finding {
        let expected = format!("`observed_version` with the snapshot_id `{}`", self.snapshot_id);
        match &event.observed_version {
            Some(version) if version.snapshot_id == self.snapshot_id => Finding::Pass,
            Some(version) => fail(&expected, format!("`{}`", version.snapshot_id)),
            None => warn(&expected, "none: the engine can't see whether other files were worked on"),
        }
    }

    fn workspace(&self) -> Result<Finding, Error> {
        let now = self.check.workspace.snapshot()?.id;
        if now == self.snapshot_id {
            return Ok(Finding::Pass);
        }
        let came = format!("the snapshot was {} and is {now}", self.snapshot_id);
        Ok(fail("files are written to the staging folder; the engine alone writes to the workspace", came))
    }

    /// A command whose canonical form is hard to compute. What an agent's own action takes as inputs, nobody knows.
    async fn hard_key(&mut self) -> Result<Finding, Error> {
        let mut command = self.command("check-key 漢字 😀 \u{fb33}")?;
        for output in &mut command.expected_outputs {
            output.description = Some("\u{7f} \u{2028} < / \" \\ \u{1} é".into());
        }
        if self.check.is_kits_own() {
            let hard = r#"{"text":"x","pause_ms":0,"n":[9007199254740993,-0.0,1e21,1e-7,0.1],"\ud83d\ude00":1,"\ufb33":2}"#;
            command.inputs = hapax_core::json::Json::from_text(hard).unwrap_or(command.inputs);
        }
        let command = super::keyed(command)?;
        Ok(match self.done(&command).await? {
            Ok(_) => Finding::Pass,
            Err(came) => {
                fail("an answer: whoever computes the key of this command finds the one that it has", came)
            }
        })
    }

    async fn ends(&mut self) -> Result<(), Error> {
        if let Err(instead) = self.running().await? {
            self.row(&rules::END_OF_INPUT, fail("an agent that starts again", instead));
            return Ok(());
        }
        let found = self.end_of_input().await?;
        self.row(&rules::END_OF_INPUT, found);
        if let Err(instead) = self.running().await? {
            self.row(&rules::SIGTERM, fail("an agent that starts again", instead));
            return Ok(());
        }
        let status = self.talk.terminate(AGENT_GRACE).await;
        self.row(&rules::SIGTERM, ended("SIGTERM", status));
        Ok(())
    }

    /// Its input ends amid a line: that is no command, however whole it looks.
    async fn end_of_input(&mut self) -> Result<Finding, Error> {
        let command = self.command("check-torn")?;
        let mut line = self.talk.question(&command)?;
        line.truncate(line.trim_ascii_end().len());
        self.talk.send(line);
        let begun = clock::instant();
        let status = self.talk.close(AGENT_GRACE + self.check.patience).await;
        let took = clock::since(begun);
        let answer = self.talk.heard.take(|event| event.correlation_id == command.correlation_id);
        if answer.is_some_and(|event| !event.is_failed()) {
            let expected =
                "a last line without its newline is refused: it may be the beginning of another one";
            return Ok(fail(expected, "it was done"));
        }
        Ok(match ended("its input ended", status) {
            Finding::Pass if took > AGENT_GRACE => {
                let expected = format!("an end within {} s", AGENT_GRACE.as_secs());
                fail(&expected, format!("it took {} s: an engine would have killed it", took.as_secs()))
            }
            found => found,
        })
    }

    /// Over all of it.
    fn only_messages(&self) -> Finding {
        let heard = &self.talk.heard;
        match (&heard.broken, &heard.odd) {
            (None, _) if !self.has_lived() => Finding::Skip("it wrote nothing"),
            (None, None) => Finding::Pass,
            (None, Some(odd)) => fail("values as the schemas have them", odd),
            (Some(first), _) => fail(
                "events, heartbeats and logs, a JSON object a line with all required fields; anything else belongs \
                 to standard error",
                format!("{} that are none, the first: {first}", heard.broken_lines),
            ),
        }
    }

    fn one_answer(&self) -> Finding {
        let heard = &self.talk.heard;
        let expected = "one event with a `status` for each command, under its `correlation_id`";
        let many = heard.asked.values().filter(|answers| **answers > 1).count();
        match &heard.unasked {
            Some(id) => fail(expected, format!("an event for `{id}`, which no command had")),
            None if many > 0 => fail(expected, format!("more than one for {many} of the commands")),
            None if heard.behind.is_some() => fail(
                "nothing more about a command behind its answer",
                heard.behind.clone().unwrap_or_default(),
            ),
            None if heard.asked.values().all(|answers| *answers == 0) => Finding::Skip("it answered nothing"),
            None => Finding::Pass,
        }
    }

    fn has_lived(&self) -> bool {
        self.rows.iter().any(|row| row.id == rules::FIRST_HEARTBEAT.id && row.verdict == Verdict::Pass)
    }
}

/// An answer that says yes, about the right task.
fn succeeded(command: &Command, event: Event) -> Result<Event, String> {
    if let Some(failure) = event.failure() {
        return Err(format!("a failure: {} ({})", super::talk::cut(&failure.message), failure.code));
    }
    if event.task_id != command.task_id {
        return Err(format!("the task `{}` instead of `{}`", event.task_id, command.task_id));
    }
    Ok(event)
}

fn ended(by: &str, status: Option<ExitStatus>) -> Finding {
    let expected = format!("an end within {} s after {by}, with exit code 0", AGENT_GRACE.as_secs());
    match status {
        Some(status) if status.success() => Finding::Pass,
        Some(status) => warn(&expected, status.to_string()),
        None => fail(&expected, "it goes on: an engine would kill it"),
    }
}
