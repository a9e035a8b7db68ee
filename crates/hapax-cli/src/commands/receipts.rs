//! `hapax receipts`: what became of the commands for agents in a workspace, one line each.

use crate::{
    failure::Failure,
    output::Output,
    table::{Cell, Table},
};
use clap::Args;
use hapax::agent::{Workspace, receipt::Receipt};
use hapax_core::error::code;
use serde::Serialize;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const AFTER_HELP: &str = "\
A receipt is written when an answer is recorded and its files are installed: one for each command, never overwritten. They are \
in the folder .hapax/receipts of the workspace.

Examples:
  hapax receipts .
  hapax receipts project --json | jq '.receipts[] | .event.payload'";

/// List what became of the commands for agents
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Receipts {
    /// The workspace
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

#[derive(Serialize)]
struct Answer {
    receipts: Vec<Receipt>,
}

impl Receipts {
    pub(super) fn run(self, out: &Output) -> Result<(), Failure> {
        let mut receipts = all(&Workspace::open(&self.folder)?.receipts())?;
        receipts.sort_by(|one, other| {
            (&one.recorded_at, &one.idempotency_key).cmp(&(&other.recorded_at, &other.idempotency_key))
        });
        let answer = Answer { receipts };
        out.answer(&answer, || human(&answer.receipts, out))
    }
}

fn all(folder: &Path) -> Result<Vec<Receipt>, Failure> {
    let unread = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::coded(code::LEDGER, format!("{}: {error}", path.display()))
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(|error| unread(folder, &error))?,
    };
    let mut receipts = vec![];
    for entry in entries {
        let path = entry.map_err(|error| unread(folder, &error))?.path();
        // Others are being written.
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = fs::read(&path).map_err(|error| unread(&path, &error))?;
            receipts.push(serde_json::from_slice(&text).map_err(|error| unread(&path, &error))?);
        }
    }
    Ok(receipts)
}

fn human(receipts: &[Receipt], out: &Output) -> String {
    if receipts.is_empty() {
        return "no receipts\n".into();
    }
    let mut table = Table::new(&["RUN", "AGENT", "ACTION", "TASK", "STATUS", "AFTER", "RECORDED", "KEY"]);
    for receipt in receipts {
        let agent = receipt.agent.agent_id.as_ref().unwrap_or(&receipt.agent.agent_type);
        let status = receipt.event.status.as_deref().unwrap_or_default();
        let cells = [
            &receipt.run,
            agent,
            &receipt.action,
            &receipt.task_id,
            status,
            &receipt.snapshot_after,
            &receipt.recorded_at,
            &receipt.idempotency_key,
        ];
        table.row(cells.into_iter().map(Cell::new).collect());
    }
    table.render(out)
}
