//! `hapax completions`: a shell's completion script, from the same definitions as the help.

use crate::{args::Cli, failure::Failure, output::Output};
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use serde::Serialize;

const AFTER_HELP: &str = "\
Examples:
  hapax completions bash \\
      > ~/.local/share/bash-completion/completions/hapax
  hapax completions zsh > ~/.zfunc/_hapax
  hapax completions fish > ~/.config/fish/completions/hapax.fish";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Serialize)]
struct Answer<'a> {
    script: &'a str,
}

impl Completions {
    pub(super) fn run(self, out: &Output) -> Result<(), Failure> {
        let mut script = vec![];
        generate(self.shell, &mut Cli::command(), "hapax", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        out.answer(&Answer { script: &script }, || script.clone())
    }
}
