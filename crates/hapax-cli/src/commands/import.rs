//! `hapax import`: takes in what `hapax export` wrote.

use crate::{failure::Failure, output::clean, session::Session, view::counted};
use clap::Args;
use hapax_store::house::{self, Contents};
use serde::Serialize;
use std::{fs::File, io::BufReader, path::PathBuf};

const AFTER_HELP: &str = "\
The file is read to its end first: one that is damaged, cut or something else is refused, and changes nothing. Then all of its \
runs are taken in, or none. They keep their namespaces.

A run that isn't over goes on wherever it is: in two stores its effects would happen twice. So a file with such runs is \
refused without --live; with it, make sure that their old store never goes on with them. `hapax migrate` sees to that itself.

Examples:
  hapax import runs.ndjson --dry-run
  hapax import over.ndjson
  hapax --store sqlite:new.db import runs.ndjson --live --create";

/// Take in the runs of a file that `export` wrote
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Import {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also take in runs that aren't over: they go on here
    #[arg(long)]
    live: bool,
    /// Make the store if it isn't there
    #[arg(long)]
    create: bool,
    /// Only read the file and tell what is in it
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Answer {
    dry_run: bool,
    runs: usize,
    live: usize,
    steps: u64,
    bytes: u64,
}

impl Import {
    pub(super) fn creates(&self) -> bool {
        self.create
    }

    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let open = || {
            let file = File::open(&self.file).map(BufReader::new);
            file.map_err(|error| Failure::io(&format!("cannot read {}", clean(&name)), &error))
        };
        let contents = house::inspect(&mut open()?)?;
        if let Some(live) = contents.live.first().filter(|_| !self.live && !self.dry_run) {
            let many = counted(contents.live.len() as u64, "run");
            return Err(Failure::usage(format!(
                "{many} of the file would go on here, such as `{}`",
                live.run
            ))
            .cured_by("pass --live once their old store can't go on with them, or use `hapax migrate`"));
        }
        if !self.dry_run {
            let progress = session.out.progress(Some(contents.runs.len() as u64), "importing");
            let told = |load: house::Load| progress.set_position(load.runs);
            let done = house::import(&*session.engine.store(), &mut open()?, told).await;
            progress.finish_and_clear();
            done?;
        }
        let answer = self.answer(&contents);
        session.out.answer(&answer, || human(&answer))
    }

    fn answer(&self, contents: &Contents) -> Answer {
        let (runs, live) = (contents.runs.len(), contents.live.len());
        Answer { dry_run: self.dry_run, runs, live, steps: contents.steps, bytes: contents.bytes }
    }
}

fn human(answer: &Answer) -> String {
    let verb = if answer.dry_run { "would import" } else { "imported" };
    let (runs, steps) = (counted(answer.runs as u64, "run"), counted(answer.steps, "step"));
    let live = match answer.live {
        0 => String::new(),
        live => format!(", of which {live} go on"),
    };
    format!("{verb} {runs}{live}, with {steps}: {} bytes\n", answer.bytes)
}
