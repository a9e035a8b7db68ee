//! A command for an agent as a person types it: `implement T-1 {"goal":"x"} src/a.py`, or all of it as JSON.

use hapax::agent::{Command, protocol::Output};
use hapax_core::json::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, value::RawValue};

/// How deep inputs may be nested: they are part of a run's state, and that of what can be stored.
const DEEPEST: usize = 64;

/// What is asked of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    pub(super) action: String,
    #[serde(default = "first_task")]
    pub(super) task_id: String,
    #[serde(default = "nothing")]
    pub(super) inputs: Json,
    #[serde(default)]
    pub(super) expected_outputs: Vec<Output>,
}

fn first_task() -> String {
    "T-1".into()
}

fn nothing() -> Json {
    Json::from_text("{}").unwrap_or_else(|_| Json::null())
}

impl Asked {
    pub(super) fn new(action: &str, task_id: &str, inputs: Json, outputs: &[String]) -> Self {
        let output = |path: &String| Output { path: path.clone(), description: None, required: true };
        let expected_outputs = outputs.iter().map(output).collect();
        Self { action: action.into(), task_id: task_id.into(), inputs, expected_outputs }
    }

    /// Reads a line; on failure, how it should look.
    pub(super) fn read(line: &str) -> Result<Self, String> {
        let line = line.trim();
        if line.starts_with('{') {
            let asked: Result<Self, _> = serde_json::from_str(line);
            return asked.map_err(|error| format!("it isn't a command in JSON: {error}"))?.checked();
        }
        let (action, rest) = first_word(line);
        let (task, rest) = match rest.starts_with('{') {
            true => ("", rest),
            false => first_word(rest),
        };
        let (inputs, outputs) = inputs(rest)?;
        let task = if task.is_empty() { first_task() } else { task.into() };
        let outputs: Vec<String> = outputs.split_whitespace().map(str::to_owned).collect();
        Self::new(action, &task, inputs, &outputs).checked()
    }

    /// Refuses what no agent could be asked.
    pub(super) fn checked(self) -> Result<Self, String> {
        if self.action.is_empty() {
            return Err("there is no action".into());
        }
        if !self.inputs.as_str().starts_with('{') {
            return Err("the inputs of a command are an object".into());
        }
        if depth(self.inputs.as_str()) > DEEPEST {
            return Err(format!("the inputs are nested deeper than {DEEPEST}"));
        }
        Ok(self)
    }

    /// As the engine is told.
    pub(super) fn command(&self) -> Command {
        let command = Command::new(&self.action, &self.task_id).inputs(&self.inputs);
        self.expected_outputs.iter().fold(command, |command, output| command.expect(output.clone()))
    }
}

/// How deep JSON is nested.
fn depth(json: &str) -> usize {
    let (mut deepest, mut now, mut in_text, mut escaped) = (0, 0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                now += 1;
                deepest = deepest.max(now);
            }
            b'}' | b']' if !in_text => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn first_word(line: &str) -> (&str, &str) {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (word, rest.trim_start())
}

/// The JSON at the beginning of a text, if there is any, and what stands behind it.
fn inputs(text: &str) -> Result<(Json, &str), String> {
    if !text.starts_with('{') {
        return Ok((nothing(), text));
    }
    let mut values = Deserializer::from_str(text).into_iter::<&RawValue>();
    let wrong = |error: &dyn std::fmt::Display| format!("the inputs aren't JSON: {error}");
    let value = match values.next() {
        Some(value) => value.map_err(|error| wrong(&error))?,
        None => return Ok((nothing(), text)),
    };
    let rest = &text[values.byte_offset()..];
    Ok((Json::from_text(value.get()).map_err(|error| wrong(&error))?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> (String, String, String, Vec<String>) {
        let asked = Asked::read(line).unwrap();
        let paths = asked.expected_outputs.into_iter().map(|output| output.path).collect();
        (asked.action, asked.task_id, asked.inputs.as_str().to_owned(), paths)
    }

    #[test]
    fn a_command_is_typed_in_a_few_words() {
        let expected =
            ("implement".into(), "T-7".into(), r#"{"goal":"x y"}"#.into(), vec!["src/a.py".into()]);
        assert_eq!(read(r#" implement  T-7 { "goal": "x y" } src/a.py "#), expected);
        assert_eq!(read("review"), ("review".into(), "T-1".into(), "{}".into(), vec![]));
        assert_eq!(read(r#"review {"round":2}"#).2, r#"{"round":2}"#);
        assert_eq!(read("review T-2 a b").3, ["a", "b"]);
    }

    #[test]
    fn a_command_in_json_has_all_that_there_is() {
        let line = r#"{"action":"review","task_id":"T-3","inputs":{"n":9007199254740993},
            "expected_outputs":[{"path":"a","required":false}]}"#;
        let asked = Asked::read(line).unwrap();
        assert_eq!(asked.inputs.as_str(), r#"{"n":9007199254740993}"#, "with all its digits");
        assert!(!asked.expected_outputs[0].required);
    }

    #[test]
    fn what_is_no_command_is_told() {
        assert!(Asked::read(r#"review T-1 {"round":"#).unwrap_err().starts_with("the inputs aren't JSON"));
        assert!(Asked::read(r#"{"action":"a","bogus":1}"#).unwrap_err().contains("unknown field `bogus`"));
        assert!(Asked::read(r#"{"action":"a","inputs":[]}"#).unwrap_err().contains("an object"));
        let nested =
            |depth: usize| format!(r#"a T-1 {{"n":{}"]["{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(Asked::read(&nested(63)).is_ok());
        assert!(Asked::read(&nested(64)).unwrap_err().contains("nested"));
        assert!(Asked::read(r#"{"task_id":"T-1"}"#).unwrap_err().contains("missing field `action`"));
    }
}
