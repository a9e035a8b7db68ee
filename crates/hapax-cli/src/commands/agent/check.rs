//! `hapax agent check`: whether an agent in any language keeps the protocol, promise by promise.

use super::{super::payload, whole};
use crate::{
    failure::Failure,
    output::{BAD, FAINT, GOOD, Output, WARN, clean},
    table::{cut, folded},
    view::{counted, parse_age},
};
use anstyle::Style;
use clap::Args;
use hapax::agent::{
    Workspace,
    check::{Check as Checked, Row, Verdict},
};
use serde::Serialize;
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

const AFTER_HELP: &str = "\
The agent is started in a folder of its own, asked, interrupted, killed and started again, in a few seconds. An agent that is built on \
a kit knows the action `hapax.check`; for any other one name an action that it knows with --action, with all that it needs. It is \
done many times, each time as another task. What it makes stays in the staging folder and is deleted in the end.

A row that failed says what was expected, what came, and where that is written. The exit code is 0 if no row failed; \
a `warn` is no failure.

Examples:
  hapax agent check -- hapax agent mock
  hapax agent check --action greet --inputs '{\"name\": \"Ann\"}' \\
      --output hello.txt -- python3 greeter.py
  hapax agent check --json -- ./builder | jq '.rows[] | .id'";

/// Where a promise is written.
const DOCUMENT: &str = "docs/protocol.md";

/// What stands in a workspace that nobody named.
const SAMPLE: (&str, &str) = ("README.md", "A workspace for a check.\n");

/// Check whether an agent keeps the protocol
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Check {
    /// An action that the agent knows. Default: the kits' own `hapax.check`
    #[arg(long, value_name = "NAME")]
    action: Option<String>,
    /// The inputs of that action, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", requires = "action")]
    inputs: String,
    /// A file that must come of that action; may be repeated
    #[arg(long = "output", value_name = "PATH", requires = "action")]
    outputs: Vec<String>,
    /// A folder with files that the action needs: the agent gets a copy of it. Default: one that is made for the check
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// How long the agent may take for whatever is asked of it: a number with s, m, h, d or w
    #[arg(long, value_name = "AGE", default_value = "10s", value_parser = parse_age)]
    patience: Duration,
    /// The agent: a program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    words: Vec<OsString>,
}

#[derive(Serialize)]
struct Answer<'a> {
    passed: usize,
    warned: usize,
    failed: usize,
    skipped: usize,
    rows: Vec<Told<'a>>,
}

/// A row, and where its promise is written.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    row: &'a Row,
    document: String,
}

impl Check {
    pub(super) async fn run(self, out: &Output) -> Result<(), Failure> {
        let folder = tempfile::tempdir().map_err(|error| Failure::io("cannot make a folder", &error))?;
        let check = self.prepared(folder.path())?;
        let mut told_well = Ok(());
        let rows = check.run(|row| {
            if told_well.is_ok() && !out.is_json() {
                told_well = out.text(&human(row, out));
            }
        });
        let rows = rows.await?;
        told_well?;
        let answer = Answer::of(&rows);
        out.answer(&answer, || answer.human(out))?;
        if answer.failed > 0 { Err(Failure::Told) } else { Ok(()) }
    }

    fn prepared(&self, folder: &Path) -> Result<Checked, Failure> {
        let own = folder.join("workspace");
        let cannot = |error| Failure::io("cannot make a workspace", &error);
        fs::create_dir(&own).map_err(cannot)?;
        match &self.workspace {
            None => fs::write(own.join(SAMPLE.0), SAMPLE.1).map_err(cannot)?,
            Some(given) => copy(&Workspace::open(given)?, given, &own)?,
        }
        let workspace = Workspace::open(&own)?.state(folder.join("state"));
        let (program, args) = whole(&self.words)?;
        let check = Checked::new(&workspace, program).args(args).patience(self.patience);
        let Some(action) = &self.action else { return Ok(check) };
        let outputs: Vec<&str> = self.outputs.iter().map(String::as_str).collect();
        let given = check.work(action, &payload(&self.inputs)?, &outputs);
        given.map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Copies what counts in a workspace: an agent that writes where it may not writes to the copy.
fn copy(workspace: &Workspace, from: &Path, to: &Path) -> Result<(), Failure> {
    for file in workspace.listing()?.1 {
        let (from, to) = (from.join(&file.path), to.join(&file.path));
        let copied =
            fs::create_dir_all(to.parent().unwrap_or(&to)).and_then(|()| match fs::read_link(&from) {
                Ok(target) => symlink(target, &to),
                Err(_) => fs::copy(&from, &to).map(drop),
            });
        copied.map_err(|error| Failure::io(&format!("cannot copy `{}`", from.display()), &error))?;
    }
    Ok(())
}

impl<'a> Answer<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        Self {
            passed: count(Verdict::Pass),
            warned: count(Verdict::Warn),
            failed: count(Verdict::Fail),
            skipped: count(Verdict::Skip),
            rows: rows.iter().map(|row| Told { row, document: document(row) }).collect(),
        }
    }

    fn human(&self, out: &Output) -> String {
        let parts = [(self.passed, "passed"), (self.warned, "warned"), (self.failed, "failed")];
        let skipped = (self.skipped > 0).then_some((self.skipped, "skipped"));
        let parts = parts.into_iter().chain(skipped).map(|(count, word)| format!("{count} {word}"));
        let verdict = match self.failed {
            0 => out.paint(GOOD, "the agent keeps the protocol"),
            _ => out.paint(BAD, "the agent breaks the protocol"),
        };
        let rows = counted(self.rows.len() as u64, "check");
        format!("\n{verdict}: {rows}, {}\n", parts.collect::<Vec<_>>().join(", "))
    }
}

fn look(verdict: Verdict) -> (&'static str, Style) {
    match verdict {
        Verdict::Pass => ("pass", GOOD),
        Verdict::Warn => ("warn", WARN),
        Verdict::Fail => ("FAIL", BAD),
        Verdict::Skip => ("skip", FAINT),
    }
}

/// The heading in the document, as a link has it.
fn document(row: &Row) -> String {
    let kept = row.section.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    format!("{DOCUMENT}#{}", kept.collect::<String>().to_lowercase().replace(' ', "-"))
}

/// A row, and below it what is wrong.
fn human(row: &Row, out: &Output) -> String {
    let (word, style) = look(row.verdict);
    let title =
        out.width().map_or_else(|| row.title.into(), |width| cut(row.title, width.saturating_sub(30)));
    let mut text = format!("{}  {:<22}  {title}\n", out.paint(style, word), row.id);
    let place = document(row);
    let told: &[(&str, &str)] = match row.verdict {
        Verdict::Pass => &[],
        Verdict::Skip => &[("because", &row.came)],
        Verdict::Warn | Verdict::Fail => {
            &[("expected", &row.expected), ("came", &row.came), ("written", &place)]
        }
    };
    for (name, said) in told.iter().copied() {
        // An address is of use only in one piece.
        let width = out.width().filter(|_| name != "written");
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(16).max(20));
        let lines = folded(&clean(said), room).join(&format!("\n{:16}", ""));
        text.push_str(&format!("      {} {lines}\n", out.paint(FAINT, &format!("{name:<9}"))));
    }
    text
}
