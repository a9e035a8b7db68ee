//! `hapax agent mock`: an agent that does what a script says, faults included; without one, an agent that keeps its word.

use crate::failure::Failure;
use clap::Args;
use hapax::agent::{
    kit::{self, Answer, Task},
    mock::{Script, run},
    protocol::Failure as Refusal,
};
use serde_json::{Map, Value};
use std::{fs, path::PathBuf};

const AFTER_HELP: &str = "\
Without a script it knows the action `echo`, which answers with its inputs and makes the files that are expected of it, and \
`hapax.check`, like every agent that is built on a kit. Any other action fails.

A script is JSON: `start` and each of `actions` is a list of steps, such as `write`, `answer`, `crash`, `hang`, `logs`, \
`stop_heartbeats`; the library's module `hapax::agent::mock` lists them all. It is started by an engine, by `hapax agent run` \
or by `hapax agent check`: by itself it doesn't know where to work.

Examples:
  hapax agent run -- hapax agent mock
  hapax agent check -- hapax agent mock --script faults.json
  # faults.json: it dies once, and works then
  # {\"actions\": {\"implement\": [
  #   {\"do\": \"once\", \"name\": \"first\", \"steps\": [{\"do\": \"crash\"}]},
  #   {\"do\": \"write\", \"path\": \"a.txt\", \"text\": \"hello\"},
  #   {\"do\": \"answer\"}]}}";

/// Play an agent, with faults by script
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Mock {
    /// What it does: a file with a script
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

impl Mock {
    pub(super) fn run(self) -> Result<(), Failure> {
        let played = match &self.script {
            None => kit::serve(good),
            Some(file) => run(read(file)?),
        };
        played.map_err(|error| {
            Failure::from(error)
                .cured_by("let an engine start it, or `hapax agent run`: they say where it works")
        })
    }
}

fn read(file: &PathBuf) -> Result<Script, Failure> {
    let cannot = format!("cannot read {}", file.display());
    let text = fs::read(file).map_err(|error| Failure::io(&cannot, &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::usage(format!("{} is no script: {error}", file.display())))
}

/// An agent that keeps its word.
fn good(task: &mut Task) -> Result<Answer, Refusal> {
    if task.command.action != "echo" {
        let message = format!("this agent doesn't know `{}`; it knows `echo`", task.command.action);
        return Err(Refusal::new("unknown_action", message));
    }
    let inputs: Map<String, Value> =
        task.inputs().map_err(|error| Refusal::new("inputs", error.to_string()))?;
    let text = format!("{}\n", task.command.inputs.as_str());
    for output in task.command.expected_outputs.clone() {
        task.write(&output.path, text.as_bytes())?;
    }
    Ok(Answer::success().payload(&inputs))
}
