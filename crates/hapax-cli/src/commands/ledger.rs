//! `hapax ledger`: a run's journal and where it stands, as files for people and their tools.

use crate::{failure::Failure, output::clean, session::Session, view::counted};
use clap::Args;
use hapax::{NodeError, agent::ledger};
use hapax_core::error::Coded;
use serde::Serialize;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
It writes `events/<run>.ndjson`, a line for each row of the journal, and `state/run.json`. Each file is whole when it is there, and \
replaces the one before. A copy of the events that was torn in its last line can still be read: the library's \
`hapax::agent::ledger::read` leaves that line out.

The values of secret fields are hidden by a program that registered the graph; the stock `hapax` doesn't know which they are.

Examples:
  hapax ledger order-42
  hapax ledger order-42 --dir backup && cat backup/state/run.json
  hapax ledger order-42 --json | jq -r .events";

/// Write a run's journal and state into files
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Ledger {
    /// The run
    run: String,
    /// The folder; it is made if it isn't there
    #[arg(long, value_name = "DIR", default_value = "ledger")]
    dir: PathBuf,
}

#[derive(Serialize)]
struct Answer<'a> {
    run: &'a str,
    events: PathBuf,
    state: PathBuf,
    lines: u64,
}

impl Ledger {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        // Of a run that isn't there nothing is made.
        session.whole(&self.run).await?;
        let files =
            ledger::export(session.engine, &self.run, &self.dir).await.map_err(|error| unwritten(&error))?;
        let answer = Answer { run: &self.run, events: files.events, state: files.state, lines: files.lines };
        session.out.answer(&answer, || {
            let path = |path: &PathBuf| clean(&path.to_string_lossy());
            let lines = counted(answer.lines, "line");
            format!("{}  {lines}\n{}\n", path(&answer.events), path(&answer.state))
        })
    }
}

fn unwritten(error: &NodeError) -> Failure {
    Failure::coded(error.code(), error.to_string())
}
