//! Whether an agent remembers: duplicates at once, meanwhile, late, and in the next process.

use super::{
    super::Error,
    Row, again,
    exam::{Exam, Finding, fail, warn},
    rules,
    talk::Talk,
};
use crate::{
    agent::protocol::{Ack, Command, Event},
    clock,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::PathBuf,
    time::{Duration, SystemTime},
};

/// What may differ between an answer and the same answer sent again.
const FRESH: [&str; 3] = ["message_id", "correlation_id", "occurred_at"];

/// A file that is written anew has another time than this one.
const LONG_AGO: Duration = Duration::from_secs(1_000_000_000);

/// How often an agent is killed right behind an answer: one that writes it down too late may be lucky.
const KILLS: usize = 3;

/// A second process that doesn't wait is ready within that time, or twice that of the first one.
const BESIDE: Duration = Duration::from_secs(1);

/// Why it can't be said whether something was done again.
const UNTOLD: &str = "nobody can tell whether this action was done again: it makes no file";

/// What an attempt that was cut off may have left.
const LEFTOVER: &str = "left by an earlier attempt";

/// An agent that says nothing about its work is killed after as long.
const INTO_WORK: Duration = Duration::from_millis(100);

impl<F: FnMut(&Row) + Send> Exam<'_, F> {
    pub(super) async fn remembers(&mut self) -> Result<(), Error> {
        let found = self.busy().await?;
        self.row(&rules::BUSY, found);
        let found = self.duplicate().await?;
        self.row(&rules::DUPLICATE, found);
        let found = self.in_flight().await?;
        self.row(&rules::IN_FLIGHT, found);
        let found = self.acked().await?;
        self.row(&rules::ACKED, found);
        let found = self.forgotten().await?;
        self.row(&rules::FORGOTTEN, found);
        let found = self.killed_after().await?;
        self.row(&rules::KILLED_AFTER, found);
        let found = self.killed_during().await?;
        self.row(&rules::KILLED_DURING, found);
        let found = self.second().await?;
        self.row(&rules::SECOND, found);
        Ok(())
    }

    async fn busy(&mut self) -> Result<Finding, Error> {
        if !self.check.is_kits_own() {
            return Ok(Finding::Skip("nobody knows how long this action takes"));
        }
        let command = self.slow_command("check-busy")?;
        let busy = self.talk.heard.beats.busy;
        Ok(match self.done(&command).await? {
            Err(came) => fail("an answer", came),
            Ok(_) if self.talk.heard.beats.busy > busy => Finding::Pass,
            Ok(_) => fail(
                "heartbeats with the status `busy` while a command of half a second is worked on",
                "none: an engine would take it for dead during longer work",
            ),
        })
    }

    async fn duplicate(&mut self) -> Result<Finding, Error> {
        let command = self.command("check-duplicate")?;
        let first = match self.done(&command).await? {
            Ok(first) => first,
            Err(came) => return Ok(fail("an answer", came)),
        };
        self.same_again(&command, &first).await
    }

    /// Sends the command again, and expects the answer that it had.
    async fn same_again(&mut self, command: &Command, first: &Event) -> Result<Finding, Error> {
        let expected = "the stored answer, equal but for message_id, correlation_id and occurred_at";
        let staged = self.age(command, first);
        let second = match self.done(&again(command)).await? {
            Ok(second) => second,
            Err(came) => return Ok(fail(expected, came)),
        };
        Ok(match (difference(first, &second), is_rewritten(&staged)) {
            (Some(fields), _) => fail(expected, format!("another answer: it differs in {fields}")),
            (None, Some(file)) => fail(expected, format!("the same answer, but `{file}` was written again")),
            (None, None) if self.is_silent(&staged) => Finding::Skip(UNTOLD),
            (None, None) => self.artifacts(command, &second),
        })
    }

    /// An answer that is the same each time, without a file, doesn't tell whether the work was done again.
    fn is_silent(&self, staged: &[PathBuf]) -> bool {
        staged.is_empty() && !self.check.is_kits_own()
    }

    /// Sets back the times of what was staged, so that it is seen when it is written again.
    fn age(&self, command: &Command, event: &Event) -> Vec<PathBuf> {
        let staging = self.check.staging_of(&command.idempotency_key);
        let files = event.artifacts.iter().map(|artifact| staging.join(&artifact.path));
        let aged = |path: &PathBuf| {
            let file = File::options().append(true).open(path);
            file.and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH + LONG_AGO)).is_ok()
        };
        files.filter(aged).collect()
    }

    async fn in_flight(&mut self) -> Result<Finding, Error> {
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        let expected = "both are answered, with the answer of one execution";
        let command = self.slow_command("check-in-flight")?;
        let second = again(&command);
        // In one piece, so that both are there before any work is done.
        let lines = [self.talk.question(&command)?, self.talk.question(&second)?].concat();
        self.talk.send(lines);
        let answers = (self.talk.answer(&command).await, self.talk.answer(&second).await);
        let (Ok(one), Ok(other)) = answers else {
            let came = |answer: Result<Event, String>| answer.err();
            let came = came(answers.0).or(came(answers.1)).unwrap_or_default();
            return Ok(fail(expected, came));
        };
        Ok(match difference(&one, &other) {
            Some(fields) => fail(expected, format!("answers that differ in {fields}")),
            None if one.artifacts.is_empty() && !self.check.is_kits_own() => Finding::Skip(UNTOLD),
            None => self.artifacts(&command, &one),
        })
    }

    async fn acked(&mut self) -> Result<Finding, Error> {
        let command = self.command("check-acked")?;
        let expected = "the same answer, since a late duplicate can still come";
        let first = match self.done(&command).await? {
            Ok(first) => first,
            Err(came) => return Ok(fail("an answer", came)),
        };
        let ack = Ack { idempotency_key: command.idempotency_key.clone(), forget: false };
        self.talk.say(&ack)?;
        let found = self.same_again(&command, &first).await?;
        if let Some(event) = self.talk.heard.take(|event| event.correlation_id.is_empty()) {
            return Ok(fail("an ack has no answer", format!("`{}`", event.event)));
        }
        Ok(match found {
            Finding::Fail { came, .. } if came.contains("differs in") || came.contains("written again") => {
                warn(expected, format!("{came}; it may forget what is acknowledged, but only to make room"))
            }
            Finding::Fail { came, .. } => fail(expected, came),
            found => found,
        })
    }

    async fn forgotten(&mut self) -> Result<Finding, Error> {
        let command = self.command("check-forgotten")?;
        let expected = "a new answer, of work that is done again: the engine has no use for the first one";
        let first = match self.done(&command).await? {
            Ok(first) => first,
            Err(came) => return Ok(fail("an answer", came)),
        };
        let staged = self.age(&command, &first);
        self.talk.say(&Ack { idempotency_key: command.idempotency_key.clone(), forget: true })?;
        let second = match self.done(&again(&command)).await? {
            Ok(second) => second,
            Err(came) => return Ok(fail(expected, came)),
        };
        let is_anew = difference(&first, &second).is_some() || is_rewritten(&staged).is_some();
        Ok(match is_anew {
            true => self.artifacts(&command, &second),
            false if self.is_silent(&staged) => Finding::Skip(UNTOLD),
            false => fail(expected, "the answer that it was told to forget"),
        })
    }

    async fn killed_after(&mut self) -> Result<Finding, Error> {
        let mut last = Finding::Pass;
        for round in 0..KILLS {
            let command = self.command(&format!("check-killed-after-{round}"))?;
            let first = match self.done(&command).await? {
                Ok(first) => first,
                Err(came) => return Ok(fail("an answer", came)),
            };
            self.talk.kill().await;
            match self.same_again(&command, &first).await? {
                Finding::Fail { expected, came } => {
                    let expected = format!("after SIGKILL and a new start: {expected}");
                    return Ok(fail(&expected, came));
                }
                found => last = found,
            }
        }
        Ok(last)
    }

    async fn killed_during(&mut self) -> Result<Finding, Error> {
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        let command = self.slow_command("check-killed-during")?;
        let line = self.talk.question(&command)?;
        self.talk.send(line);
        self.at_work(&command).await;
        self.talk.kill().await;
        let leftover = self.leave_behind(&command);
        let expected = "after SIGKILL and a new start: an answer of success, with its files whole";
        Ok(match self.done(&again(&command)).await? {
            Err(came) => fail(expected, came),
            Ok(event) if !event.artifacts.is_empty() && leftover.is_some_and(|path| path.exists()) => fail(
                "after SIGKILL and a new start: an empty staging folder",
                "what was left in it by an earlier attempt is still there",
            ),
            Ok(event) => self.artifacts(&command, &event),
        })
    }

    /// A file in the staging folder, as an attempt leaves one that was cut off. `None`: it had its answer already.
    fn leave_behind(&self, command: &Command) -> Option<PathBuf> {
        let is_answered =
            self.talk.heard.asked.get(&command.correlation_id).is_some_and(|answers| *answers > 0);
        let path = self.check.staging_of(&command.idempotency_key).join(LEFTOVER);
        let folder = path.parent().filter(|_| !is_answered)?;
        let left = fs::create_dir_all(folder).and_then(|()| fs::write(&path, LEFTOVER));
        left.ok().map(|()| path)
    }

    /// Starts another process of the same agent beside the one that runs.
    async fn second(&mut self) -> Result<Finding, Error> {
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        let mut second = Talk::new(self.check);
        let ready = second.start_within(BESIDE.max(self.started_in * 2)).await?;
        second.kill().await;
        Ok(match ready {
            Ok(()) => fail(
                "a second process takes no command before the first one is over: a lock on its state folder",
                "a heartbeat of the second one: both would do the same work at once",
            ),
            Err(_) => Finding::Pass,
        })
    }

    /// Waits until the agent says something about a command, or for a while: then it is at work, as far as one can tell.
    async fn at_work(&mut self, command: &Command) {
        let wait = if self.check.is_kits_own() { self.check.patience } else { INTO_WORK };
        let id = &command.correlation_id;
        let begun = |heard: &mut super::talk::Heard| {
            let is_begun = heard.told.contains(id) || heard.asked.get(id).is_some_and(|answers| *answers > 0);
            is_begun.then_some(())
        };
        let _ = self.talk.until(clock::instant() + wait, begun).await;
    }
}

fn is_rewritten(staged: &[PathBuf]) -> Option<String> {
    let time = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
    let anew = staged.iter().find(|path| time(path) != Some(SystemTime::UNIX_EPOCH + LONG_AGO));
    anew.map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// The fields in which two answers differ that must be the same.
fn difference(one: &Event, other: &Event) -> Option<String> {
    let [one, other] = [one, other].map(|event| serde_json::to_value(event).unwrap_or(Value::Null));
    let names = |value: &Value| value.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>());
    let all: BTreeSet<String> = [&one, &other].into_iter().filter_map(names).flatten().collect();
    let differ = all.into_iter().filter(|name| !FRESH.contains(&&**name) && one.get(name) != other.get(name));
    let differ: Vec<String> = differ.collect();
    (!differ.is_empty()).then(|| differ.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(more: &str) -> Event {
        let json = format!(
            r#"{{"kind":"event","message_id":"m","correlation_id":"c","task_id":"t","from":{{"agent_type":"a"}},"event":"e",
            "artifacts":[],"occurred_at":"2026-01-01T00:00:00Z",{more}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn answers_differ_in_what_must_be_the_same() {
        let one = event(r#""status":"success","payload":{"n":1}"#);
        let fresh = Event {
            message_id: "n".into(),
            correlation_id: "d".into(),
            occurred_at: "later".into(),
            ..one.clone()
        };
        assert_eq!(difference(&one, &fresh), None);
        let other = event(r#""status":"approved","payload":{"n":2}"#);
        assert_eq!(difference(&one, &other).as_deref(), Some("payload, status"));
        assert_eq!(difference(&one, &event(r#""payload":{"n":1}"#)).as_deref(), Some("status"));
    }
}
