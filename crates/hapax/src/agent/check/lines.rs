//! Whether an agent bears lines that aren't messages, and commands that it can't do: it answers, and goes on.

use super::{
    super::Error,
    Row,
    exam::{Exam, Finding, fail, warn},
    rules::{self, Rule},
};
use crate::agent::protocol::Command;
use hapax_core::{key::sha256, limits::AGENT_LINE_BYTES};
use std::time::Duration;

/// How long a refusal may come behind the answer to what was sent after it: commands may overtake it.
const BEHIND: Duration = Duration::from_secs(1);

/// Between two pieces of a line.
const PIECE: Duration = Duration::from_millis(50);

impl<F: FnMut(&Row) + Send> Exam<'_, F> {
    pub(super) async fn reads(&mut self) -> Result<(), Error> {
        let found = self.longest().await?;
        self.row(&rules::LONGEST, found);
        let found = self.pieces().await?;
        self.row(&rules::PIECES, found);
        for (rule, line) in bad_lines() {
            let found = self.refused(rule, line).await?;
            self.row(rule, found);
        }
        Ok(())
    }

    /// A command in a line of just that length, filled by a field that no reader knows.
    async fn longest(&mut self) -> Result<Finding, Error> {
        let command = self.command("check-longest")?;
        let line = self.talk.question(&command)?;
        let line = padded(&line, AGENT_LINE_BYTES);
        self.answered(&command, vec![line]).await
    }

    async fn pieces(&mut self) -> Result<Finding, Error> {
        let command = self.command("check-pieces")?;
        let line = self.talk.question(&command)?;
        let (one, other) = line.split_at(line.len() / 2);
        let pieces = vec![one.to_vec(), other.to_vec()];
        self.answered(&command, pieces).await
    }

    /// Writes a command as it is given, and expects its answer.
    async fn answered(&mut self, command: &Command, pieces: Vec<Vec<u8>>) -> Result<Finding, Error> {
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        for (number, piece) in pieces.into_iter().enumerate() {
            if number > 0 {
                self.talk.listen(PIECE).await;
            }
            self.talk.send(piece);
        }
        let expected = "an answer, as to any other command";
        Ok(match self.talk.answer(command).await {
            Ok(event) if event.is_failed() => {
                fail(expected, format!("a failure: {}", event.failure().unwrap_or_default().message))
            }
            Ok(_) => Finding::Pass,
            Err(came) => match self.talk.heard.take(|event| event.correlation_id.is_empty()) {
                Some(event) => {
                    let message = super::talk::cut(&event.failure().unwrap_or_default().message);
                    fail(expected, format!("a refusal, under no correlation_id: {message}"))
                }
                None => fail(expected, came),
            },
        })
    }

    async fn refused(&mut self, rule: &Rule, bad: Vec<u8>) -> Result<Finding, Error> {
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        let expected = "an event `error` with the status `failed` and the code `protocol`, and then the next line is read";
        let id = crate::agent::protocol::correlation_in(&bad).unwrap_or_default();
        let good = self.command(&format!("check-{}", rule.id))?;
        if !id.is_empty() {
            self.talk.expect(&id);
        }
        let behind = self.talk.question(&good)?;
        self.talk.send([bad, behind].concat());
        if let Err(came) = self.talk.answer(&good).await {
            // What it is in the middle of, nobody knows.
            self.talk.kill().await;
            return Ok(fail(expected, format!("{came} to the command behind it")));
        }
        Ok(match self.talk.refusal(&[&id, ""], BEHIND).await {
            Err(_) => fail(expected, "the line was dropped without a word"),
            Ok(event) if !event.is_failed() => fail(expected, "an answer of success"),
            Ok(event) => match event.failure().unwrap_or_default().code.as_str() {
                "protocol" => Finding::Pass,
                code => warn(expected, format!("the code `{code}`")),
            },
        })
    }

    /// Commands that are read and can't be done.
    pub(super) async fn refuses(&mut self) -> Result<(), Error> {
        let found = self.unknown_action().await?;
        self.row(&rules::UNKNOWN_ACTION, found);
        let found = self.wrong_key().await?;
        self.row(&rules::WRONG_KEY, found);
        Ok(())
    }

    async fn unknown_action(&mut self) -> Result<Finding, Error> {
        let known = self.command("check-unknown-action")?;
        let command =
            Command { action: "no-such-action".into(), expected_outputs: vec![], ..super::again(&known) };
        let command = super::keyed(command)?;
        let expected = "an event with the status `failed`, and the agent goes on";
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        let answer = match self.talk.ask(&command).await? {
            Ok(answer) => answer,
            Err(came) => return Ok(fail(expected, came)),
        };
        if let Err(came) = self.done(&known).await? {
            return Ok(fail(expected, format!("{came} to the next command")));
        }
        Ok(match answer.is_failed() {
            true => Finding::Pass,
            false => warn(expected, format!("`{}`: whoever misspells an action isn't told", answer.event)),
        })
    }

    async fn wrong_key(&mut self) -> Result<Finding, Error> {
        let known = self.command("check-wrong-key")?;
        let idempotency_key = format!("ik:{}", sha256(b"another command"));
        let command = Command { idempotency_key, ..known };
        let expected = "an event with the status `failed` and the code `protocol`";
        if let Err(instead) = self.running().await? {
            return Ok(fail("an agent that runs", instead));
        }
        Ok(match self.talk.ask(&command).await? {
            Ok(answer) if answer.is_failed() => match answer.failure().unwrap_or_default().code.as_str() {
                "protocol" => Finding::Pass,
                code => warn(expected, format!("the code `{code}`")),
            },
            Ok(_) => warn(
                expected,
                "it was done, and would be answered to whoever sends other work under that key",
            ),
            Err(came) => fail(expected, came),
        })
    }
}

/// Lines that no agent can read, each with its newline.
fn bad_lines() -> Vec<(&'static Rule, Vec<u8>)> {
    let named = |rest: &str| format!("{{\"correlation_id\":\"{}\",{rest}\n", id_of(rest)).into_bytes();
    let mut invalid = named("\"kind\":\"command\",\"action\":\"?\"}");
    if let Some(at) = invalid.iter().position(|byte| *byte == b'?') {
        invalid[at] = 0xff;
    }
    let oversize = padded(&named("\"kind\":\"command\"}"), AGENT_LINE_BYTES + 1);
    vec![
        (&rules::OVERSIZE, oversize),
        (&rules::UTF8, invalid),
        (&rules::GARBAGE, b"this is no message\n".to_vec()),
        (&rules::BLANK, b"\n".to_vec()),
        (&rules::KIND, named("\"kind\":\"poem\"}")),
        (&rules::INCOMPLETE, named("\"kind\":\"command\",\"inputs\":{}}")),
    ]
}

/// Another id for each of them, and the same in each check.
fn id_of(line: &str) -> String {
    format!("corr-{}", &sha256(line.as_bytes()).to_string()[..16])
}

/// An object's line, made as long by one more field.
fn padded(line: &[u8], length: usize) -> Vec<u8> {
    let body = line.trim_ascii_end().strip_suffix(b"}").unwrap_or(line);
    let field = b",\"unheard_of\":\"";
    let room = length.saturating_sub(body.len() + field.len() + "\"}\n".len());
    [body, field, &vec![b'x'; room], b"\"}\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::frame;

    #[test]
    fn a_padded_line_is_one_of_just_that_length() {
        let line = frame::line(&serde_json::json!({"kind": "command"})).unwrap();
        let padded = padded(&line, AGENT_LINE_BYTES);
        assert_eq!(padded.len(), AGENT_LINE_BYTES);
        let value: serde_json::Value = serde_json::from_slice(&padded).unwrap();
        assert_eq!(value["kind"], "command");
    }
}
