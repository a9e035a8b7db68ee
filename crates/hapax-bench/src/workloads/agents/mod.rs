//! Agents: what a command costs over a bare pipe and through the engine, an answer from memory, and a workspace's snapshot.
//!
//! The agent is this very program, in a process of its own, and answers at once: what is left is ours.

mod commands;
mod pipe;
mod snapshot;

use crate::{
    Result,
    args::{AgentCall, Drive},
};
use std::path::Path;
use tempfile::TempDir;

pub(super) async fn run(drive: &Drive, call: &AgentCall) -> Result<()> {
    match *call {
        AgentCall::Pipe { count, cached } => pipe::run(count, cached, &folder(drive)?),
        AgentCall::Commands { count, agents } => commands::run(drive, [count, agents], &folder(drive)?).await,
        AgentCall::Serve { remembers } => pipe::serve(remembers),
        AgentCall::Snapshot { files, warm } => snapshot::run(files, warm, &folder(drive)?).await,
    }
}

/// A folder on the disk that is measured.
fn folder(drive: &Drive) -> Result<TempDir> {
    let file = drive.store.strip_prefix("sqlite:").map(Path::new);
    Ok(match file.and_then(Path::parent) {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    })
}

/// The words with which this program is an agent.
fn words(remembers: bool) -> [&'static str; 4] {
    ["--store", "memory:", "agent-serve", if remembers { "kit" } else { "bare" }]
}
