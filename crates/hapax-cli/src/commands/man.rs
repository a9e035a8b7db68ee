//! `hapax man`: the manual, from the same definitions as the help.

use crate::{
    args::Cli,
    failure::Failure,
    output::{Output, clean},
};
use clap::{Args, CommandFactory};
use clap_mangen::Man as Roff;
use serde::Serialize;
use std::{fs, path::PathBuf};

const AFTER_HELP: &str = "\
Examples:
  hapax man | man -l -
  hapax man show | man -l -
  hapax man --dir ~/.local/share/man/man1";

/// Print the manual page of hapax, or of one command
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Man {
    /// The command; none: the page of hapax itself
    command: Option<String>,
    /// Write all pages into this folder instead, which is made where it is missing
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Answer<'a> {
    roff: &'a str,
}

#[derive(Serialize)]
struct Written<'a> {
    dir: &'a str,
}

impl Man {
    pub(super) fn run(self, out: &Output) -> Result<(), Failure> {
        let mut cli = Cli::command();
        cli.build();
        if let Some(dir) = self.dir {
            let name = dir.display().to_string();
            fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(cli, &dir))
                .map_err(|error| Failure::io(&format!("cannot write to {name}"), &error))?;
            return out.answer(&Written { dir: &name }, || format!("the pages are in {}\n", clean(&name)));
        }
        let page = match &self.command {
            None => cli,
            Some(name) => {
                let found = cli.find_subcommand(name).cloned();
                found.ok_or_else(|| Failure::usage(format!("there is no command `{name}`")))?
            }
        };
        let mut roff = vec![];
        Roff::new(page).render(&mut roff).map_err(|error| Failure::io("cannot write the page", &error))?;
        let roff = String::from_utf8_lossy(&roff).into_owned();
        out.answer(&Answer { roff: &roff }, || roff.clone())
    }
}
