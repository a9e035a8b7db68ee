//! `hapax snapshot`: the id of a folder's content, as commands for agents pin it.

use crate::{
    failure::Failure,
    output::{Output, clean},
    view::counted,
};
use clap::Args;
use hapax::agent::{Listed, Workspace};
use serde::Serialize;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
The id depends on paths and contents alone: neither on times nor on owners nor on where the folder is. `.git` and `.hapax` at \
the top don't count. A symlink counts by its target's name; one that leads out of the folder is an error.

Examples:
  hapax snapshot .
  hapax snapshot project --ignore target --ignore node_modules
  hapax snapshot project --files --json | jq -r '.listing[].path'";

/// Print the id of a folder's content
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Snapshot {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A file or folder at the top that doesn't count; may be repeated
    #[arg(long, value_name = "NAME")]
    ignore: Vec<String>,
    /// List the files with their hashes, too
    #[arg(long)]
    files: bool,
}

#[derive(Serialize)]
struct Answer {
    snapshot_id: String,
    files: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    listing: Option<Vec<Listed>>,
}

impl Snapshot {
    pub(super) fn run(self, out: &Output) -> Result<(), Failure> {
        if let Some(odd) = self.ignore.iter().find(|name| name.is_empty() || name.contains('/')) {
            let why = format!("--ignore `{odd}`: only what stands at the top can be left out, by its name");
            return Err(Failure::usage(why));
        }
        let (snapshot, listed) = Workspace::open(&self.folder)?.ignore(self.ignore).listing()?;
        let answer = Answer {
            snapshot_id: snapshot.id,
            files: snapshot.files,
            bytes: snapshot.bytes,
            listing: self.files.then_some(listed),
        };
        out.answer(&answer, || human(&answer))?;
        if self.files {
            out.remark(&format!("{}, {} bytes", counted(answer.files, "file"), answer.bytes));
        }
        Ok(())
    }
}

/// The files as `sha256sum` lists them, and the id.
fn human(answer: &Answer) -> String {
    let files = answer.listing.iter().flatten();
    let files: String = files.map(|file| listed(&file.sha256.to_string(), &file.path)).collect();
    format!("{files}{}\n", answer.snapshot_id)
}

/// A name that holds a backslash or a line end is escaped, which a backslash at the front tells.
fn listed(sha256: &str, path: &str) -> String {
    let escaped = path.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    let mark = if escaped == path { "" } else { "\\" };
    format!("{mark}{sha256}  {}\n", clean(&escaped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_sha256sum_does() {
        assert_eq!(listed("ab", "a b"), "ab  a b\n");
        assert_eq!(listed("ab", "a\nb"), "\\ab  a\\nb\n");
        assert_eq!(listed("ab", "a\\nb"), "\\ab  a\\\\nb\n");
    }
}
