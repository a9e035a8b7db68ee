//! Commands over a pipe, one after the other, without an engine: what the engine's are held against, and what an agent that
//! remembers needs to find an answer.

use super::words;
use crate::{
    Result, clock,
    meter::{Meter, Tally, extra},
};
use hapax::{
    agent::{
        frame::{self, Frame, LineReader},
        kit::{self, Answer},
        protocol::{
            Address, Attempt, Command, Event, FromAgent, ToAgent, Version, read_from_agent, read_to_agent,
        },
    },
    core::{json::Json, key::command_key},
};
use std::{
    fs,
    io::{BufReader, Write, stdin, stdout},
    path::Path,
    process::{self, Child, ChildStdin, ChildStdout, Stdio},
};
use tempfile::TempDir;

const SNAPSHOT: &str = "snap-67da82e92e2f";
const NOW: &str = "2026-01-01T00:00:00.000Z";
/// Commands before the timed part.
const WARM: u64 = 20;

/// An agent, and the pipes to it.
struct Lone {
    child: Child,
    to: Option<ChildStdin>,
    from: LineReader<BufReader<ChildStdout>>,
}

impl Lone {
    fn start(remembers: bool, folder: &Path) -> Result<Self> {
        let mut command = process::Command::new(std::env::current_exe()?);
        for (name, place) in
            [("HAPAX_WORKSPACE", "work"), ("HAPAX_STAGING", "staging"), ("HAPAX_AGENT_STATE", "state")]
        {
            fs::create_dir(folder.join(place))?;
            command.env(name, folder.join(place));
        }
        let mut child =
            command.args(words(remembers)).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let from = LineReader::new(BufReader::new(child.stdout.take().ok_or("its output is piped")?));
        Ok(Self { to: child.stdin.take(), child, from })
    }

    fn ask(&mut self, command: &Command) -> Result<()> {
        self.to.as_mut().ok_or("its input is piped")?.write_all(&frame::line(command)?)?;
        loop {
            let Some(Frame::Line(line)) = self.from.next()? else { return Err("the agent is gone".into()) };
            match read_from_agent(&line)? {
                FromAgent::Event(event) if event.correlation_id == command.correlation_id => {
                    return match event.failure() {
                        None => Ok(()),
                        Some(failure) => Err(failure.message.into()),
                    };
                }
                _ => {}
            }
        }
    }
}

impl Drop for Lone {
    fn drop(&mut self) {
        // It ends with its input.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// The n-th message; its work is the same where `work` is.
fn command(work: u64, number: u64) -> Result<Command> {
    let inputs = Json::of(&serde_json::json!({"goal": "roman numerals", "round": work}))?;
    let key = command_key("work", "T-1", SNAPSHOT, inputs.as_bytes(), b"[]")?;
    Ok(Command {
        message_id: format!("msg-{number}"),
        correlation_id: format!("corr-{number}"),
        task_id: "T-1".into(),
        idempotency_key: key.to_string(),
        to: Address { agent_type: "bench".into(), agent_id: None },
        action: "work".into(),
        inputs,
        expected_outputs: vec![],
        version: Version::of(SNAPSHOT),
        deadline: NOW.into(),
        retry: Attempt { attempt: 1, max_attempts: 1 },
        priority: 5,
        traceparent: None,
    })
}

/// Asks and waits, so many times.
pub(super) fn run(count: u64, cached: bool, folder: &TempDir) -> Result<()> {
    let (mut agent, tally) = (Lone::start(cached, folder.path())?, Tally::new(count));
    let work = |number: u64| if cached { 0 } else { number };
    for number in 0..WARM {
        agent.ask(&command(work(number), number)?)?;
    }
    let meter = Meter::begin(tally.clone());
    for number in WARM..WARM + count {
        let start = clock::now();
        agent.ask(&command(work(number), number)?)?;
        tally.count();
        tally.record(start);
    }
    meter.end(count, 0, extra("commands", "of a command"));
    Ok(())
}

/// The agent.
pub(super) fn serve(remembers: bool) -> Result<()> {
    if remembers {
        return Ok(kit::serve(|_| Ok(Answer::success()))?);
    }
    let (mut lines, mut out) = (LineReader::new(stdin().lock()), stdout().lock());
    while let Some(Frame::Line(line)) = lines.next()? {
        if let ToAgent::Command(command) = read_to_agent(&line)? {
            out.write_all(&frame::line(&answer(command)?)?)?;
            out.flush()?;
        }
    }
    Ok(())
}

fn answer(command: Command) -> Result<Event> {
    Ok(Event {
        message_id: command.message_id,
        correlation_id: command.correlation_id,
        task_id: command.task_id,
        from: command.to,
        event: "work.done".into(),
        status: Some("success".into()),
        payload: Json::from_text("{}")?,
        artifacts: vec![],
        observed_version: Some(command.version),
        occurred_at: NOW.into(),
    })
}
