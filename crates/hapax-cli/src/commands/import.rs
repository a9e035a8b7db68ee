//! `hapax import`: takes in what `hapax export` wrote.

use crate::{
    failure::Failure,
    output::{Output, clean},
    session::{self, Session},
    view::counted,
};
use clap::Args;
use hapax_store::house::{self, Contents};
use serde::Serialize;
use std::{
    fs::File,
    io::{self, BufReader, Seek},
    os::fd::AsFd,
    path::PathBuf,
};

const AFTER_HELP: &str = "\
The file is read to its end first: one that is damaged, cut or something else is refused, and changes nothing. Then all of its \
runs are taken in, or none. They keep their namespaces.

A run that isn't over goes on wherever it is: in two stores its effects would happen twice. So a file with such runs is \
refused without --live; with it, make sure that their old store never goes on with them. `hapax migrate` sees to that itself.

Examples:
  hapax import runs.ndjson --dry-run
  hapax import over.ndjson
  gunzip < over.ndjson.gz | hapax import -
  hapax --store sqlite:new.db import runs.ndjson --live --create";

/// Take in the runs of a file that `export` wrote
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Import {
    /// The file; `-`: standard input
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
    /// What was read of the file, before a store was opened.
    #[arg(skip)]
    input: Option<Input>,
}

/// A file that was found right, and what is in it.
#[derive(Debug)]
struct Input {
    file: BufReader<File>,
    contents: Contents,
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

    /// Reads the file to its end, so that nothing is opened or made for one that is refused. `true`: that was all there is to
    /// do.
    pub(super) fn begin(&mut self, out: &Output) -> Result<bool, Failure> {
        let mut file = self.open()?;
        let contents = house::inspect(&mut file)?;
        if self.dry_run {
            let answer = self.answer(&contents);
            return out.answer(&answer, || human(&answer)).map(|()| true);
        }
        if let Some(live) = contents.live.first().filter(|_| !self.live) {
            let many = counted(contents.live.len() as u64, "run");
            return Err(Failure::usage(format!(
                "{many} of the file would go on here, such as `{}`",
                live.run
            ))
            .cured_by("pass --live once their old store can't go on with them, or use `hapax migrate`"));
        }
        self.input = Some(Input { file, contents });
        Ok(false)
    }

    pub(super) async fn run(mut self, session: &Session<'_>) -> Result<(), Failure> {
        let Some(Input { mut file, contents }) = self.input.take() else {
            unreachable!("it was begun before a store was opened")
        };
        let store = session.address.iter().find(|(name, _)| *name == "HAPAX_STORE");
        store.map_or(Ok(()), |(_, url)| session::demand_lasting(url))?;
        let progress = session.out.progress(Some(contents.runs.len() as u64), "importing");
        let told = |load: house::Load| progress.set_position(load.runs);
        let done = house::import(&*session.engine.store(), &mut file, told).await;
        progress.finish_and_clear();
        done?;
        let answer = self.answer(&contents);
        session.out.answer(&answer, || human(&answer))
    }

    fn open(&self) -> Result<BufReader<File>, Failure> {
        let is_stdin = self.file.as_os_str() == "-";
        let opened = match is_stdin {
            true => io::stdin().as_fd().try_clone_to_owned().map(File::from),
            false => File::open(&self.file),
        };
        let name = if is_stdin { "standard input".into() } else { self.file.display().to_string() };
        let file = opened.and_then(seekable).map(BufReader::new);
        file.map_err(|error| Failure::io(&format!("cannot read {}", clean(&name)), &error))
    }

    fn answer(&self, contents: &Contents) -> Answer {
        let (runs, live) = (contents.runs.len(), contents.live.len());
        Answer { dry_run: self.dry_run, runs, live, steps: contents.steps, bytes: contents.bytes }
    }
}

/// A file at its beginning. It is read twice, and a pipe can be read once, so what comes through one is put aside.
fn seekable(mut file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        let mut aside = tempfile::tempfile()?;
        io::copy(&mut file, &mut aside)?;
        file = aside;
    }
    file.rewind()?;
    Ok(file)
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
