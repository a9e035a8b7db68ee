//! `hapax history`: what a run did, on the screen or as a page to send to a colleague.

use super::graph;
use crate::{
    drawing::{Drawing, svg},
    failure::Failure,
    history::{Account, Past, html, text},
    output::clean,
    session::Session,
    view::counted,
};
use clap::Args;
use hapax_store::RunRecord;
use serde::Serialize;
use std::{
    fs::{self, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const AFTER_HELP: &str = "\
The page is one file that needs nothing else: the graph with the run's path, when each call began and how long it took, what each \
step changed of the state, what was asked and waited for, and what was answered. It holds no program, and a browser fetches nothing for it.

Secret fields are hidden by a program that registered the graph; the stock `hapax` registers none, doesn't know which they are, and \
shows all as it is stored.

Examples:
  hapax history order-42
  hapax history order-42 --html order-42.html
  hapax history order-42 --html - | gzip > order-42.html.gz
  hapax history order-42 --json | jq '.steps[].calls[].name'";

/// Nodes and edges of the drawing in a page at the most.
const DRAWN: usize = 2000;

/// Show what a run did, step by step, or write it into an HTML file
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct History {
    /// The run
    run: String,
    /// Write a page into this file instead, which replaces the one before; `-`: to standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// How many of the run's latest steps, 10,000 at the most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    steps: u64,
}

#[derive(Serialize)]
struct Written<'a> {
    run: &'a str,
    file: &'a Path,
    steps: u64,
    bytes: u64,
}

impl History {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let read = async |record: &RunRecord| {
            let past = Past::read(session, record, self.steps).await?;
            let drawing = match self.html {
                Some(_) => graph::path(session, record, self.steps).await?,
                None => Drawing::empty(&record.graph),
            };
            Ok((past, drawing))
        };
        let (record, (past, drawing)) = session.in_one_history(&self.run, read).await?;
        let account = Account::of(&record, past);
        match &self.html {
            None => session.out.answer(&account, || text::render(session.out, &account)),
            Some(file) => self.write(session, &account, &drawing, file),
        }
    }

    fn write(
        &self,
        session: &Session<'_>,
        account: &Account<'_>,
        drawing: &Drawing,
        file: &Path,
    ) -> Result<(), Failure> {
        let page = html::render(account, &drawn(drawing));
        if file.as_os_str() == "-" {
            return session.out.text(&page);
        }
        put(file, page.as_bytes()).map_err(|error| unwritten(file, &error))?;
        let (steps, bytes) = (account.steps.len() as u64, page.len() as u64);
        session.out.answer(&Written { run: &self.run, file, steps, bytes }, || {
            format!("{}  {}\n", clean(&file.to_string_lossy()), counted(steps, "step"))
        })
    }
}

/// The drawing, unless it is larger than anybody can read.
fn drawn(drawing: &Drawing) -> String {
    let (nodes, edges) = (drawing.nodes.len(), drawing.edges.len());
    if nodes + edges <= DRAWN {
        return svg::render(drawing);
    }
    format!(
        "<p class=\"faint\">{nodes} nodes and {edges} edges: left out; `hapax graph --run` draws them</p>\n"
    )
}

/// Whole, or not at all, where there is a file or nothing. A link leads to its file and stays a link; a device or a pipe is
/// written to, and never replaced.
fn put(file: &Path, page: &[u8]) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(there) if there.is_file() => replace(&file.canonicalize()?, page, Some(there.permissions())),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !file.is_symlink() => {
            replace(file, page, None)
        }
        // A link that leads to nothing yet is followed as well.
        _ => fs::write(file, page),
    }
}

/// `kept`: who may read and write the page that was there, and this one.
fn replace(file: &Path, page: &[u8], kept: Option<Permissions>) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut made = tempfile::Builder::new().permissions(readable()).tempfile_in(folder)?;
    kept.map_or(Ok(()), |kept| made.as_file().set_permissions(kept))?;
    made.write_all(page)?;
    made.persist(file).map(drop).map_err(|error| error.error)
}

/// As for any file that somebody makes: what the process's mask leaves of it.
fn readable() -> Permissions {
    PermissionsExt::from_mode(0o666)
}

fn unwritten(file: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("`{}` can't be written: {error}", file.to_string_lossy()))
        .cured_by("name a file in a folder that is there and that you may write to")
}
