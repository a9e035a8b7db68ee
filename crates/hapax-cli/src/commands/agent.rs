//! `hapax agent`: checks agents, talks to them, and plays one.

mod check;
mod listen;
mod mock;
mod run;
mod words;

use crate::{failure::Failure, output::Output, signals::EndRequests};
use clap::{Args, Subcommand};
use hapax_core::error::code;
use std::{
    ffi::OsString,
    path::{Path, PathBuf, absolute},
};

const AFTER_HELP: &str = "\
An agent is any program that reads commands and writes events, a JSON message a line; docs/protocol.md says how. \
Behind `--` stands the program with its arguments. It works in the workspace; an argument that names a file here \
is given to it with its whole path.

Examples:
  hapax agent check -- python3 builder.py
  hapax agent run -- hapax agent mock
  hapax agent mock --script faults.json";

/// Check an agent, talk to one by hand, or play one
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Agent {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Check(check::Check),
    Run(run::Run),
    Mock(mock::Mock),
}

impl Agent {
    /// Runs it until it is done, or somebody asks for its end. A mock is an agent: it ends with its input.
    pub(crate) async fn run_until(
        self,
        out: &Output,
        hear: impl FnOnce() -> Result<EndRequests, Failure>,
    ) -> Result<(), Failure> {
        let interrupted = || {
            Failure::coded(code::INTERRUPTED, "interrupted; the agent is ended")
                .cured_by("call it again: the agent goes on with what it remembers")
        };
        match self.what {
            What::Mock(mock) => mock.run(),
            What::Check(check) => {
                let mut requests = hear()?;
                tokio::select! {
                    outcome = check.run(out) => outcome,
                    () = requests.next() => Err(interrupted()),
                }
            }
            What::Run(run) => {
                let mut requests = hear()?;
                run.run(out, async { requests.next().await }).await.unwrap_or_else(|| Err(interrupted()))
            }
        }
    }
}

/// A program and its arguments, as they mean the same in another folder.
fn whole(words: &[OsString]) -> Result<(OsString, Vec<OsString>), Failure> {
    let (program, args) = words.split_first().ok_or_else(|| Failure::usage("no program is named"))?;
    // A name without a folder is looked for in PATH.
    let is_path = Path::new(program).components().count() > 1;
    let program = if is_path { from_here(program).into() } else { program.clone() };
    let file = |arg: &OsString| if Path::new(arg).is_file() { from_here(arg).into() } else { arg.clone() };
    Ok((program, args.iter().map(file).collect()))
}

fn from_here(path: &OsString) -> PathBuf {
    absolute(path).unwrap_or_else(|_| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_file_here_means_the_same_elsewhere() {
        let words = ["sh", "Cargo.toml", "--file", "no-such-file"].map(OsString::from);
        let (program, args) = whole(&words).unwrap();
        assert_eq!(program, "sh", "it is looked for in PATH");
        assert!(Path::new(&args[0]).is_absolute() && args[0].to_string_lossy().ends_with("Cargo.toml"));
        assert_eq!(&args[1..], &["--file", "no-such-file"]);
        let (program, _) = whole(&["./agent".into()]).unwrap();
        assert!(Path::new(&program).is_absolute(), "a path is taken from here");
    }
}
