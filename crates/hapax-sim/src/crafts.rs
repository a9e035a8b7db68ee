//! Work for agents: small texts that are made, reviewed, mended and listed, by programs that say what they do.
//!
//! Invariant: what an agent makes depends on its inputs and on the workspace alone, and what it makes twice shows: the list
//! of all tasks grows with each `update_spec`, and a review sees whether the two files of a task belong together.

use hapax::agent::{
    Agent, AgentBuilder, Error, Workspace,
    flows::{Task, Team, Work},
    kit::{self, Answer},
    protocol::Failure,
};
use serde::Deserialize;
use serde_json::json;
use std::{fs::File, io::Write as _, time::Duration};

/// The variable that names the pipe to which agents say what they do, a line each: `PID POINT KEY`, where the point is
/// `up`, `begin`, `half` or `end`.
pub const NOTES: &str = "HAPAX_SIM_NOTES";

/// What agents write last: the list of all tasks.
const SPEC: &str = "SPEC.md";

/// The run, whatever an earlier life has left of it.
pub const RUN: &str = "crafts";

/// So many texts, each of which needs a second round.
pub fn work(tasks: u32) -> Work {
    Work::new((0..tasks).map(|number| {
        let id = format!("T-{number}");
        Task::new(&id, &format!("a text about {number}"))
            .file(&format!("src/{id}.txt"))
            .file(&format!("doc/{id}.txt"))
    }))
}

/// Three agents that start again at once, however often they die.
pub fn team(workspace: &Workspace, program: impl Fn(&str) -> AgentBuilder) -> Result<Team, Error> {
    let agent = |kind: &str| {
        program(kind)
            .workspace(workspace)
            .backoff(Duration::from_millis(1), Duration::from_millis(10))
            .restarts(1_000_000)
            .start_timeout(Duration::from_secs(120))
            .build()
    };
    Ok(Team { builder: agent("builder")?, reviewer: agent("reviewer")?, spec_keeper: agent("spec_keeper")? })
}

/// Says where it is. A line is one write: it arrives whole, also from a process that is killed behind it.
///
/// # Panics
///
/// If nobody listens.
pub fn note(point: &str, key: &str) {
    let Some(path) = std::env::var_os(NOTES) else { return };
    let line = format!("{} {point} {key}\n", std::process::id());
    let mut notes = File::options().append(true).open(path).expect("somebody listens");
    notes.write_all(line.as_bytes()).expect("somebody listens");
}

#[derive(Deserialize)]
struct Wanted {
    goal: String,
    round: u32,
    files: Vec<String>,
}

/// Any of the three agents, by the actions of all.
pub fn serve() -> Result<(), Error> {
    note("up", "-");
    kit::serve(|task| {
        let key = task.command.idempotency_key.clone();
        note("begin", &key);
        let answer = match &*task.command.action.clone() {
            "implement" => make(task, "first version"),
            "change" => make(task, "mended"),
            "review" => review(task),
            "update_spec" => update_spec(task),
            "echo" => Ok(Answer::success().payload(&task.inputs::<serde_json::Value>()?)),
            other => Err(Failure::new("unknown_action", other)),
        };
        note("end", &key);
        answer
    })
}

fn make(task: &mut kit::Task, how: &str) -> Result<Answer, Failure> {
    let wanted: Wanted = task.inputs()?;
    let text = format!("{}\n{how} in round {}\n", wanted.goal, wanted.round);
    for file in &wanted.files {
        task.write(file, text.as_bytes())?;
        note("half", &task.command.idempotency_key);
    }
    task.progress(100.0, how);
    Ok(Answer::success())
}

fn review(task: &mut kit::Task) -> Result<Answer, Failure> {
    let wanted: Wanted = task.inputs()?;
    let read = |file: &String| task.read(file);
    let texts: Vec<_> = wanted.files.iter().map(read).collect::<Result<_, _>>()?;
    if texts.iter().any(|text| *text != texts[0]) {
        return Err(Failure::new("half_edited", "the files of the task don't belong together"));
    }
    let is_content = String::from_utf8_lossy(&texts[0]).contains("mended");
    let (word, findings) =
        if is_content { ("approved", vec![]) } else { ("changes_requested", vec!["mend it"]) };
    Ok(Answer::new(word).payload(&json!({"findings": findings})))
}

fn update_spec(task: &mut kit::Task) -> Result<Answer, Failure> {
    let mut spec = task.read(SPEC).unwrap_or_default();
    spec.extend_from_slice(format!("- {}\n", task.command.task_id).as_bytes());
    task.write(SPEC, &spec)?;
    note("half", &task.command.idempotency_key);
    Ok(Answer::success())
}

/// An agent of the kind, made of a program and its arguments, in which `{kind}` stands for it.
///
/// # Panics
///
/// If there is no program.
pub fn program(kind: &str, command: &[String]) -> AgentBuilder {
    let (program, args) = command.split_first().expect("a program");
    Agent::builder(kind, program).args(args.iter().map(|arg| arg.replace("{kind}", kind)))
}
