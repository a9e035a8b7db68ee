//! The messages between engine and agents, as they stand on the wire.
//!
//! Invariant: what is kept has one canonical form, so a payload is the same after a reload, integers with all their
//! digits; what a reader doesn't know it leaves out, and what it needs it demands.

use super::Error;
use hapax_core::{
    canonical,
    json::Json,
    key::{Digest, command_key},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Who sends or is meant.
///
/// ```
/// use hapax::agent::protocol::Address;
/// let builder = Address { agent_type: "builder".into(), agent_id: None };
/// assert_eq!(serde_json::to_string(&builder)?, r#"{"agent_type":"builder"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// What kind of agent.
    pub agent_type: String,
    /// Which one of that kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
}

/// A file that a command is expected to make. Part of the command's key.
///
/// ```
/// use hapax::agent::protocol::Output;
/// let output: Output = serde_json::from_str(r#"{"path":"src/main.rs","required":true}"#)?;
/// assert!(output.required && output.description.is_none());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// What it is, for the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether an answer without it is refused.
    pub required: bool,
}

/// The files that a command is about.
///
/// ```
/// use hapax::agent::protocol::Version;
/// let version: Version = serde_json::from_str(r#"{"snapshot_id":"snap-d0ab7e60b764"}"#)?;
/// assert_eq!(version, Version::of("snap-d0ab7e60b764"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The workspace's snapshot.
    pub snapshot_id: String,
    /// A hash of the specifications, if the caller has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub specs_hash: Option<String>,
    /// A hash of the code, if the caller has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_hash: Option<String>,
}

impl Version {
    /// A snapshot, and nothing else.
    pub fn of(snapshot_id: &str) -> Self {
        Self { snapshot_id: snapshot_id.into(), specs_hash: None, code_hash: None }
    }
}

/// Which attempt a command is.
///
/// ```
/// use hapax::agent::protocol::Attempt;
/// let first = Attempt { attempt: 1, max_attempts: 6 };
/// assert_eq!(serde_json::to_string(&first)?, r#"{"attempt":1,"max_attempts":6}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from 1.
    pub attempt: u32,
    /// The highest number that it can have.
    pub max_attempts: u32,
}

/// The characters of a correlation id.
const MOST_CORRELATION_CHARS: usize = 255;

/// The characters of a task's id that is given back though its line can't be read.
pub(crate) const MOST_TASK_CHARS: usize = 4000;

fn default_priority() -> i64 {
    5
}

/// Work for an agent.
///
/// ```
/// use hapax::agent::protocol::{Command, read_command};
/// let line = br#"{"kind":"command","message_id":"msg-1","correlation_id":"corr-1","task_id":"T-1",
///     "idempotency_key":"ik:00","to":{"agent_type":"builder"},"action":"implement","inputs":{"n":9007199254740993},
///     "expected_outputs":[],"version":{"snapshot_id":"snap-1"},"deadline":"2026-01-01T00:00:00.000Z",
///     "retry":{"attempt":1,"max_attempts":6},"unheard_of":true}"#;
/// let command: Command = read_command(line).unwrap();
/// assert_eq!(command.inputs.as_str(), r#"{"n":9007199254740993}"#, "with all its digits");
/// assert_eq!(command.priority, 5);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "command")]
pub struct Command {
    /// Another one each time that it is sent.
    pub message_id: String,
    /// What the answer must carry.
    pub correlation_id: String,
    /// What it is part of.
    pub task_id: String,
    /// The same each time that it is sent.
    pub idempotency_key: String,
    /// Who is meant.
    pub to: Address,
    /// What is to be done.
    pub action: String,
    /// With what: an object.
    pub inputs: Json,
    /// What is to come of it.
    pub expected_outputs: Vec<Output>,
    /// The files that it is about.
    pub version: Version,
    /// When the engine stops waiting, RFC 3339 in UTC.
    pub deadline: String,
    /// Which attempt it is.
    pub retry: Attempt,
    /// Higher is more urgent.
    #[serde(default = "default_priority")]
    pub priority: i64,
    /// The trace that it is part of, as W3C Trace Context has it; another one with each attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The engine has an agent's answer for good.
///
/// ```
/// use hapax::agent::protocol::{Ack, ToAgent, read_to_agent};
/// let read = read_to_agent(br#"{"kind":"ack","idempotency_key":"ik:00"}"#);
/// assert!(matches!(read, Ok(ToAgent::Ack(Ack { forget: false, .. }))));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "ack")]
pub struct Ack {
    /// The key of the command that was answered.
    pub idempotency_key: String,
    /// The answer was a failure or can't be used: if the command comes again, it is to be done again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
}

/// A file that an agent made, waiting in the staging folder of its command.
///
/// ```
/// use hapax::{agent::protocol::Artifact, core::key::sha256};
/// let artifact = Artifact { path: "src/main.rs".into(), sha256: sha256(b"fn main() {}"), size: 12 };
/// let json = serde_json::to_string(&artifact)?;
/// assert_eq!(serde_json::from_str::<Artifact>(&json)?, artifact);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// Of its content.
    pub sha256: Digest,
    /// In bytes.
    pub size: u64,
}

/// What an agent tells about a command. With a `status`, or named `error`, it is the answer.
///
/// ```
/// use hapax::agent::protocol::{Event, FromAgent, read_from_agent};
/// let line = br#"{"kind":"event","message_id":"msg-1","correlation_id":"corr-1","task_id":"T-1",
///     "from":{"agent_type":"builder"},"event":"review.completed","status":"changes_requested","payload":{},
///     "artifacts":[],"occurred_at":"2026-01-01T00:00:00.000Z"}"#;
/// let Ok(FromAgent::Event(event)) = read_from_agent(line) else { panic!("it is an event") };
/// assert!(event.is_terminal() && !event.is_failed());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "event")]
pub struct Event {
    /// Another one each time that it is sent.
    pub message_id: String,
    /// That of the command.
    pub correlation_id: String,
    /// That of the command.
    pub task_id: String,
    /// Who tells.
    pub from: Address,
    /// What happened: `progress`, `token`, `error`, or a dotted name of the agent's own.
    pub event: String,
    /// How the command ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// An object.
    pub payload: Json,
    /// The files that came of it.
    pub artifacts: Vec<Artifact>,
    /// The files that the agent saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_version: Option<Version>,
    /// RFC 3339.
    pub occurred_at: String,
}

/// What a failed event says about the failure.
///
/// ```
/// use hapax::agent::protocol::Failure;
/// let failure: Failure = serde_json::from_str(r#"{"message":"no model"}"#)?;
/// assert_eq!((failure.code.as_str(), failure.retryable), ("failed", false));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// The agent's own code.
    pub code: String,
    /// What happened.
    pub message: String,
    /// Whether another attempt makes sense.
    pub retryable: bool,
}

impl Default for Failure {
    fn default() -> Self {
        Self { code: "failed".into(), message: "it doesn't say why".into(), retryable: false }
    }
}

impl Event {
    /// Whether it is the answer.
    pub fn is_terminal(&self) -> bool {
        self.status.is_some() || self.event == "error"
    }

    /// Whether it is an answer that says no.
    pub fn is_failed(&self) -> bool {
        self.event == "error" || self.status.as_deref() == Some("failed")
    }

    /// Why it failed, if it did. A payload that doesn't say so is no reason to take it for a success.
    pub fn failure(&self) -> Option<Failure> {
        self.is_failed().then(|| self.payload.read().unwrap_or_default())
    }
}

/// An agent is alive.
///
/// ```
/// use hapax::agent::protocol::{FromAgent, read_from_agent};
/// let line = br#"{"kind":"heartbeat","agent":{"agent_type":"builder"},"seq":1,"status":"idle","pid":7,
///     "uptime_s":0.5,"last_activity_at":"2026-01-01T00:00:00.000Z"}"#;
/// assert!(matches!(read_from_agent(line), Ok(FromAgent::Heartbeat(heartbeat)) if heartbeat.seq == 1));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "heartbeat")]
pub struct Heartbeat {
    /// Who is alive.
    pub agent: Address,
    /// Counted from 1.
    pub seq: u64,
    /// `idle`, `busy` or `stopping`.
    pub status: String,
    /// Its process.
    pub pid: u32,
    /// For how long.
    pub uptime_s: f64,
    /// RFC 3339.
    pub last_activity_at: String,
    /// Whatever it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<serde_json::Value>,
    /// What it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
}

/// A line of an agent's log.
///
/// ```
/// use hapax::agent::protocol::{FromAgent, read_from_agent};
/// let line = br#"{"kind":"log","level":"info","message":"ready","timestamp":"2026-01-01T00:00:00.000Z"}"#;
/// assert!(matches!(read_from_agent(line), Ok(FromAgent::Log(log)) if log.message == "ready"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "log")]
pub struct Log {
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// What it says.
    pub message: String,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<serde_json::Value>,
    /// RFC 3339.
    pub timestamp: String,
}

/// What an agent reads.
///
/// ```
/// use hapax::agent::protocol::{ToAgent, read_to_agent};
/// assert!(matches!(read_to_agent(br#"{"kind":"ack","idempotency_key":"ik:00"}"#), Ok(ToAgent::Ack(_))));
/// assert!(read_to_agent(br#"{"kind":"heartbeat"}"#).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are commands")]
pub enum ToAgent {
    /// Work.
    Command(Command),
    /// An answer has arrived for good.
    Ack(Ack),
}

/// What an engine reads.
///
/// ```
/// use hapax::agent::protocol::read_from_agent;
/// assert!(read_from_agent(b"Loading the model...").is_err());
/// assert!(read_from_agent(br#"{"kind":"command"}"#).is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "none lives longer than its line")]
pub enum FromAgent {
    /// Something about a command.
    Event(Event),
    /// A sign of life.
    Heartbeat(Heartbeat),
    /// A line of its log.
    Log(Log),
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

fn protocol(reason: impl std::fmt::Display) -> Error {
    Error::Protocol(reason.to_string())
}

fn text_of(line: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(line).map_err(|error| protocol(format_args!("a line isn't UTF-8: {error}")))
}

/// What is kept has one form. Signs of life and logs aren't, and come in floods.
fn canonical_text(text: &str) -> Result<String, Error> {
    canonical::from_text(text).map_err(|error| protocol(format_args!("a line isn't JSON: {error}")))
}

fn kind_of(text: &str) -> Result<Cow<'_, str>, Error> {
    let kind: Result<Kind<'_>, _> = serde_json::from_str(text);
    kind.map(|kind| kind.kind).map_err(|error| protocol(format_args!("a line without a kind: {error}")))
}

fn message<T: DeserializeOwned>(kind: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| protocol(format_args!("no {kind}: {error}")))
}

fn is_object(what: &str, json: &Json) -> Result<(), Error> {
    if json.as_str().starts_with('{') {
        Ok(())
    } else {
        Err(protocol(format_args!("{what} isn't an object")))
    }
}

/// Reads what an agent has written, without its newline.
///
/// ```
/// use hapax::{Coded, agent::protocol::read_from_agent};
/// assert_eq!(read_from_agent(b"\xff").unwrap_err().code(), "HX0125");
/// ```
pub fn read_from_agent(line: &[u8]) -> Result<FromAgent, Error> {
    let text = text_of(line)?;
    match &*kind_of(text)? {
        "event" => {
            let event: Event = message("event", &canonical_text(text)?)?;
            is_object("the payload of an event", &event.payload)?;
            Ok(FromAgent::Event(event))
        }
        "heartbeat" => Ok(FromAgent::Heartbeat(message("heartbeat", text)?)),
        "log" => Ok(FromAgent::Log(message("log", text)?)),
        other => Err(protocol(format_args!("`{other}` isn't a kind of message that agents send"))),
    }
}

/// Reads what an engine has written, without its newline.
///
/// ```
/// use hapax::agent::protocol::read_to_agent;
/// let odd = br#"{"kind":"ack","idempotency_key":"a","idempotency_key":"b"}"#;
/// assert!(read_to_agent(odd).is_err(), "readers differ in which of two equal keys they believe");
/// ```
pub fn read_to_agent(line: &[u8]) -> Result<ToAgent, Error> {
    let text = canonical_text(text_of(line)?)?;
    match &*kind_of(&text)? {
        "command" => {
            let command: Command = message("command", &text)?;
            is_object("the inputs of a command", &command.inputs)?;
            if command.correlation_id.chars().count() > MOST_CORRELATION_CHARS {
                let most = MOST_CORRELATION_CHARS;
                return Err(protocol(format_args!("correlation_id has more than {most} characters")));
            }
            Ok(ToAgent::Command(command))
        }
        "ack" => Ok(ToAgent::Ack(message("ack", &text)?)),
        other => Err(protocol(format_args!("`{other}` isn't a kind of message that engines send"))),
    }
}

/// Reads a command, and nothing else.
///
/// ```
/// use hapax::agent::protocol::read_command;
/// assert!(read_command(br#"{"kind":"ack","idempotency_key":"ik:00"}"#).is_err());
/// ```
pub fn read_command(line: &[u8]) -> Result<Command, Error> {
    match read_to_agent(line)? {
        ToAgent::Command(command) => Ok(command),
        ToAgent::Ack(_) => Err(protocol("an acknowledgement where a command was expected")),
    }
}

/// Refuses a command whose key isn't that of its content. The line is looked at: what it has beyond the fields that we know is
/// content, too.
pub(crate) fn check_key(line: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Content {
        idempotency_key: String,
        action: String,
        task_id: String,
        version: Version,
        inputs: Box<RawValue>,
        expected_outputs: Box<RawValue>,
    }
    let text = canonical_text(text_of(line)?)?;
    let content: Content = message("command", &text)?;
    let (inputs, outputs) = (content.inputs.get().as_bytes(), content.expected_outputs.get().as_bytes());
    let snapshot_id = &content.version.snapshot_id;
    let key =
        command_key(&content.action, &content.task_id, snapshot_id, inputs, outputs).map_err(protocol)?;
    if key.as_str() == content.idempotency_key {
        return Ok(());
    }
    Err(protocol(format_args!("idempotency_key isn't the key of this command, which is {key}")))
}

/// The correlation id in a line that isn't a message, as far as it can be told: an agent's own words about a command
/// fail that command and no other.
pub(crate) fn correlation_in(line: &[u8]) -> Option<String> {
    text_in(line, "correlation_id").filter(|id| id.chars().count() <= MOST_CORRELATION_CHARS)
}

/// The task's id in such a line.
pub(crate) fn task_in(line: &[u8]) -> Option<String> {
    text_in(line, "task_id").filter(|id| id.chars().count() <= MOST_TASK_CHARS)
}

/// A field of a line: its own if it is an object, else the first of that name, since the line may be cut off.
fn text_in(line: &[u8], name: &str) -> Option<String> {
    let text = match serde_json::from_slice::<serde_json::Value>(line) {
        Ok(message) => message.get(name)?.as_str()?.to_owned(),
        Err(_) => first_text_in(line, name)?,
    };
    Some(text).filter(|text| !text.is_empty() && !text.contains('\n'))
}

fn first_text_in(line: &[u8], name: &str) -> Option<String> {
    let field = format!("\"{name}\"").into_bytes();
    let at = line.windows(field.len()).position(|part| part == field)? + field.len();
    let value = line[at..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let text = &value[..value.iter().position(|byte| *byte == b'"')?];
    std::str::from_utf8(text).ok().filter(|text| !text.contains('\\')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(more: &str) -> String {
        format!(
            r#"{{"kind":"event","message_id":"m","correlation_id":"c","task_id":"t","from":{{"agent_type":"a"}},
            "artifacts":[],"occurred_at":"2026-01-01T00:00:00Z",{more}}}"#
        )
    }

    fn read(more: &str) -> Event {
        match read_from_agent(event(more).as_bytes()) {
            Ok(FromAgent::Event(event)) => event,
            other => panic!("no event: {other:?}"),
        }
    }

    #[test]
    fn an_error_is_never_counted_as_a_success() {
        let failed = [
            r#""event":"error","payload":{"code":"x","message":"y","retryable":true}"#,
            r#""event":"error","status":"success","payload":{}"#,
            r#""event":"build.completed","status":"failed","payload":{"retryable":"what"}"#,
        ];
        for more in failed {
            let event = read(more);
            assert!(event.is_terminal() && event.is_failed() && event.failure().is_some(), "{more}");
        }
        assert!(read(failed[0]).failure().unwrap().retryable);
        assert!(!read(failed[2]).failure().unwrap().retryable, "what can't be read doesn't ask for more");
    }

    #[test]
    fn other_words_are_successes_and_no_word_is_no_answer() {
        for word in ["success", "approved", "changes_requested", "clarification", "anything"] {
            let event = read(&format!(r#""event":"e","status":"{word}","payload":{{}}"#));
            assert!(event.is_terminal() && !event.is_failed());
        }
        for name in ["progress", "token", "anything.else"] {
            assert!(!read(&format!(r#""event":"{name}","payload":{{}}"#)).is_terminal());
        }
    }

    #[test]
    fn integers_beyond_2_to_the_53_are_the_same_after_a_reload() {
        let event = read(r#""event":"e","payload":{"n":123456789012345678901234567890}"#);
        let again = serde_json::to_string(&event).unwrap();
        assert!(again.contains("123456789012345678901234567890"), "{again}");
        let FromAgent::Event(again) = read_from_agent(again.as_bytes()).unwrap() else { panic!() };
        assert_eq!(again, event);
    }

    #[test]
    fn what_is_needed_is_demanded() {
        assert!(read_from_agent(event(r#""event":"e""#).as_bytes()).is_err(), "no payload");
        assert!(read_from_agent(event(r#""event":"e","payload":[]"#).as_bytes()).is_err(), "no object");
        assert!(read_from_agent(event(r#""payload":{}"#).as_bytes()).is_err(), "no name");
        assert!(read_from_agent(b"null").is_err());
        assert!(read_from_agent(br#"{"kind":7}"#).is_err());
        assert!(read_from_agent(b"").is_err());
    }

    #[test]
    fn the_command_of_a_broken_line_is_found_where_it_can_be() {
        assert_eq!(correlation_in(br#"{"correlation_id" : "corr-7", "payl"#).as_deref(), Some("corr-7"));
        assert_eq!(correlation_in(br#"{"correlation_id":""#), None);
        assert_eq!(correlation_in(b"Loading..."), None);
        let nested = br#"{"inputs":{"task_id":"inner"},"task_id":"T-\u0031","kind":"what"}"#;
        assert_eq!(task_in(nested).as_deref(), Some("T-1"), "its own, without escapes");
        let long = format!(r#"{{"correlation_id":"{}"}}"#, "c".repeat(256));
        assert_eq!(correlation_in(long.as_bytes()), None, "nobody has sent it");
    }

    #[test]
    fn a_correlation_id_has_255_characters_at_most() {
        let line = |length: usize| {
            format!(
                r#"{{"kind":"command","message_id":"m","correlation_id":"{}","task_id":"t","idempotency_key":"ik:00",
                "to":{{"agent_type":"a"}},"action":"a","inputs":{{}},"expected_outputs":[],"version":{{"snapshot_id":"s"}},
                "deadline":"2026-01-01T00:00:00Z","retry":{{"attempt":1,"max_attempts":1}}}}"#,
                "é".repeat(length)
            )
        };
        assert!(read_to_agent(line(255).as_bytes()).is_ok());
        assert!(read_to_agent(line(256).as_bytes()).is_err());
    }
}
