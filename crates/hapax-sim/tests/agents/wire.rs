//! Agents of both kits without an engine: what they do in which order, seen at the pipe.

use super::site::PATIENCE;
use hapax::{
    agent::{
        frame,
        protocol::{Address, Attempt, Command, FromAgent, Version, read_from_agent},
    },
    core::{canonical::to_vec, json::Json, key::command_key},
};
use hapax_sim::kills::Waits;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Child, ExitStatus, Stdio},
    sync::Arc,
};

const KIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");

/// An answer of that size doesn't fit into a pipe: whoever writes it waits until somebody reads.
const LARGE: usize = 200_000;

/// An agent by itself.
struct Lone {
    child: Child,
    folder: Arc<tempfile::TempDir>,
}

impl Drop for Lone {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Lone {
    fn start(program: &str, args: &[&str]) -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().expect("a folder")), program, args)
    }

    fn start_in(folder: Arc<tempfile::TempDir>, program: &str, args: &[&str]) -> Self {
        let mut command = std::process::Command::new(program);
        for (name, place) in
            [("HAPAX_WORKSPACE", "work"), ("HAPAX_STAGING", "staging"), ("HAPAX_AGENT_STATE", "state")]
        {
            fs::create_dir_all(folder.path().join(place)).expect("a folder");
            command.env(name, folder.path().join(place));
        }
        command.env("PYTHONDONTWRITEBYTECODE", "1").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self { child: command.spawn().expect("it starts"), folder }
    }

    fn send(&mut self, command: &Command) {
        let line = frame::line(command).expect("it fits into a line");
        self.child.stdin.as_mut().expect("its input is piped").write_all(&line).expect("it listens");
    }

    /// Reads so many bytes and no more: what isn't read stays in the pipe.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.child.stdout.as_mut().expect("its output is piped").read_exact(&mut bytes).expect("it speaks");
        bytes
    }

    fn rest_of_line(&mut self) -> Vec<u8> {
        let mut line = vec![];
        loop {
            match self.bytes(1)[0] {
                b'\n' => return line,
                byte => line.push(byte),
            }
        }
    }

    /// Reads on until an event begins, and gives its first bytes: its kind comes first, or its fields are sorted.
    fn begun_event(&mut self) -> Vec<u8> {
        loop {
            let begun = self.bytes(16);
            if [r#"{"kind":"event","#, r#"{"artifacts":[],"#].map(str::as_bytes).contains(&&*begun) {
                return begun;
            }
            self.rest_of_line();
        }
    }

    /// Whether it has a handler for SIGTERM.
    fn listens(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        caught.is_some_and(|mask| mask >> (Signal::TERM.as_raw() - 1) & 1 == 1)
    }

    /// How it ended, once it has.
    fn ended(&mut self) -> ExitStatus {
        let waits = Waits::begin(PATIENCE);
        loop {
            match self.child.try_wait().expect("it is ours") {
                Some(status) => return status,
                None => waits.check("the agent stays"),
            }
        }
    }

    fn remembered(&self, key: &str) -> Value {
        let file = self.folder.path().join("state").join(format!("{}.json", &key["ik:".len()..]));
        serde_json::from_slice(&fs::read(file).expect("it was begun")).expect("it is whole")
    }
}

fn echo(text: &str) -> Command {
    let (inputs, snapshot) = (json!({"text": text}), "snap-67da82e92e2f");
    let canonical = to_vec(&inputs).expect("plain JSON");
    let key = command_key("echo", "T-1", snapshot, &canonical, b"[]").expect("no newlines");
    Command {
        message_id: "msg-0197f3c2-5a10-7c3e-9d41-6b0f2a7c8e15".into(),
        correlation_id: "corr-1".into(),
        task_id: "T-1".into(),
        idempotency_key: key.to_string(),
        to: Address { agent_type: "agent".into(), agent_id: None },
        action: "echo".into(),
        inputs: Json::of(&inputs).expect("plain JSON"),
        expected_outputs: vec![],
        version: Version::of(snapshot),
        deadline: "2999-01-01T00:00:00Z".into(),
        retry: Attempt { attempt: 1, max_attempts: 1 },
        priority: 5,
        traceparent: None,
    }
}

fn answers_from_disk(mut agent: Lone) {
    let text = "x".repeat(LARGE);
    let command = echo(&text);
    agent.send(&command);
    let mut line = agent.begun_event();
    // The agent stands in the middle of its answer: there is no room for the rest.
    let entry = agent.remembered(&command.idempotency_key);
    assert_eq!((&entry["state"], &entry["acked"]), (&json!("done"), &json!(false)));
    line.extend(agent.rest_of_line());
    let Ok(FromAgent::Event(event)) = read_from_agent(&line) else { panic!("no event") };
    assert!(event.payload.as_str().contains(&text) && event.correlation_id == "corr-1");
    let remembered: Value = serde_json::from_str(event.payload.as_str()).expect("JSON");
    assert_eq!(entry["event"]["payload"], remembered, "what is sent is what is remembered");
}

#[test]
fn an_answer_is_on_the_agents_disk_before_it_is_sent() {
    answers_from_disk(Lone::start(env!("CARGO_BIN_EXE_hapax-hand"), &[]));
}

#[test]
fn an_answer_is_on_the_python_agents_disk_before_it_is_sent() {
    let probe = Path::new(KIT).join("probe_agent.py");
    answers_from_disk(Lone::start("python3", &[&probe.display().to_string()]));
}

#[test]
fn an_agent_of_the_kit_to_which_nobody_listens_leaves() {
    let mut agent = Lone::start(env!("CARGO_BIN_EXE_hapax-hand"), &[]);
    agent.rest_of_line();
    drop(agent.child.stdout.take());
    // Its input stays open: what ends it is that its answer arrives nowhere.
    let command = echo("x");
    agent.send(&command);
    assert!(agent.ended().success());
    assert_eq!(
        agent.remembered(&command.idempotency_key)["state"],
        "done",
        "the answer waits for the next one"
    );
}

#[test]
fn an_agent_of_the_kit_ends_when_it_is_asked_to_also_while_another_has_its_memory() {
    let mut first = Lone::start(env!("CARGO_BIN_EXE_hapax-hand"), &[]);
    first.rest_of_line();
    let mut second = Lone::start_in(first.folder.clone(), env!("CARGO_BIN_EXE_hapax-hand"), &[]);
    let waits = Waits::begin(PATIENCE);
    while !second.listens() && second.child.try_wait().expect("it is ours").is_none() {
        waits.check("the second one never listens");
    }
    let pid = Pid::from_raw(i32::try_from(second.child.id()).expect("a number")).expect("a process");
    // It may be gone, because it waited for the other one in vain.
    let _ = kill_process(pid, Signal::TERM);
    assert!(second.ended().success());
}
