//! `hapax list`: runs, newest first.

use crate::{
    failure::Failure,
    output::BAD,
    session::{Damaged, Session},
    table::{Cell, Table},
    view::{RunView, ago, parse_count, standing, style, tags},
};
use clap::{Args, ValueEnum};
use hapax_core::error::code;
use hapax_store::{ListFilter, RunRecord, clock::now_us};
use serde::Serialize;

const AFTER_HELP: &str = "\
A run whose row is damaged is named at the end, and the exit code is 3.

Examples:
  hapax list
  hapax list --status failed --status in-doubt
  hapax list --tag customer=42 --graph orders --limit 5
  hapax list --json | jq -r '.runs[].run'";

/// List runs, newest first
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct List {
    /// Only runs with this tag; all of them when given more than once
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = parse_tag)]
    tags: Vec<(String, String)>,
    /// Only runs that stand there; any of them when given more than once
    #[arg(long = "status", value_name = "STATUS", value_enum)]
    statuses: Vec<StatusWord>,
    /// Only runs of this graph
    #[arg(long, value_name = "GRAPH")]
    graph: Option<String>,
    /// How many at the most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_count)]
    limit: usize,
}

/// Where a run can stand.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum StatusWord {
    Pending,
    Running,
    Waiting,
    Paused,
    #[value(alias = "in_doubt")]
    InDoubt,
    Succeeded,
    Failed,
    Cancelled,
    Leaving,
    Arriving,
    Moved,
}

impl StatusWord {
    /// As stores know it.
    pub(super) fn stored(self) -> &'static str {
        match self {
            StatusWord::Pending => "pending",
            StatusWord::Running => "running",
            StatusWord::Waiting => "waiting",
            StatusWord::Paused => "paused",
            StatusWord::InDoubt => "in_doubt",
            StatusWord::Succeeded => "succeeded",
            StatusWord::Failed => "failed",
            StatusWord::Cancelled => "cancelled",
            StatusWord::Leaving => "leaving",
            StatusWord::Arriving => "arriving",
            StatusWord::Moved => "moved",
        }
    }
}

pub(super) fn parse_tag(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not of the form KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

#[derive(Serialize)]
struct Answer<'a> {
    runs: Vec<RunView<'a>>,
    /// The limit was reached, so there may be more.
    more: bool,
    /// Runs that can't be read.
    damaged: &'a [Damaged],
}

impl List {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let filter = ListFilter {
            tags: self.tags.into_iter().collect(),
            statuses: self.statuses.iter().map(|status| status.stored().to_owned()).collect(),
            graph: self.graph.map(Into::into),
            limit: self.limit.saturating_add(1),
            ..ListFilter::default()
        };
        let (mut runs, damaged) = session.list(filter).await?;
        let more = runs.len() > self.limit;
        runs.truncate(self.limit);
        let answer = Answer { runs: runs.iter().map(RunView::of).collect(), more, damaged: &damaged };
        session.out.answer(&answer, || human(&runs, &damaged, session))?;
        if more {
            session.out.remark(&format!("--limit {} is reached: there are more", self.limit));
        }
        if damaged.is_empty() {
            return Ok(());
        }
        let errors: Vec<_> = damaged.iter().map(|run| run.error.as_str()).collect();
        Err(Failure::coded(code::CORRUPT, errors.join("; ")))
    }
}

fn human(runs: &[RunRecord], damaged: &[Damaged], session: &Session<'_>) -> String {
    if runs.is_empty() && damaged.is_empty() {
        return "no runs\n".into();
    }
    let now = now_us();
    let mut table = Table::new(&["RUN", "STATUS", "GRAPH", "STEP", "CHANGED", "TAGS"]);
    for run in runs {
        table.row(vec![
            Cell::new(run.key.run.as_str()),
            Cell::styled(standing(run), style(&run.status)),
            Cell::new(&run.graph),
            Cell::new(run.step.to_string()),
            Cell::new(ago(run.updated_at_us, now)),
            Cell::new(tags(&run.tags)),
        ]);
    }
    for run in damaged {
        let mut row = vec![Cell::new(&run.run), Cell::styled("damaged", BAD)];
        row.resize(6, Cell::new(""));
        table.row(row);
    }
    table.render(session.out)
}
