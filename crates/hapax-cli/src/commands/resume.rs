//! `hapax resume`: goes on with runs that a crash, a stop or a parking left, and waits for their end.

use crate::{
    failure::Failure,
    output::BAD,
    session::{Damaged, Session},
    table::{Cell, Table},
    view::{self, standing},
};
use clap::Args;
use hapax::{Error, Status};
use hapax_core::error::{Coded, code};
use hapax_store::{ListFilter, RunRecord};
use serde::Serialize;

const AFTER_HELP: &str = "\
Only a program that holds the graph's code can go on with a run: build these commands into yours with \
`hapax_cli::run`. What was committed is never run again.

Examples:
  orders resume order-42
  orders resume --all";

/// Runs that execute at the same time; fewer than an engine admits by default.
const AT_ONCE: usize = 64;

/// Go on with a run, or with all that can go on, and wait for the end
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["run", "named", "all"]))]
pub(crate) struct Resume {
    /// The run
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The run, as a flag
    #[arg(long = "run", value_name = "RUN")]
    named: Option<String>,
    /// All runs of this program's graphs that are pending, running or paused
    #[arg(long)]
    all: bool,
}

/// What became of one run.
#[derive(Serialize)]
pub(super) struct Ended {
    run: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    cell: Cell,
    #[serde(skip)]
    well: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    runs: &'a [Ended],
}

impl Resume {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let Some(run) = self.run.or(self.named) else { return resume_all(session).await };
        let record = session.record(&run).await?;
        if session.graph(&record.graph).is_none() && !record.status.is_final() {
            return Err(session.no_code(&record.graph));
        }
        if !record.status.is_final() {
            session.engine.resume(&run).await?;
        }
        finish(&run, session).await
    }
}

/// Waits for one run, and answers with how it ended.
pub(super) async fn finish(run: &str, session: &Session<'_>) -> Result<(), Failure> {
    let progress = session.out.progress(None, "running");
    progress.set_message(run.to_owned());
    let status = session.follow(run).await;
    progress.finish_and_clear();
    let ended = ended(run, &status?, &session.record(run).await?);
    let well = ended.well;
    answer(&[ended], session)?;
    if well { Ok(()) } else { Err(Failure::Told) }
}

fn ended(run: &str, status: &Status, record: &RunRecord) -> Ended {
    Ended {
        run: run.to_owned(),
        status: status.word(),
        error: view::failure(status).map(|failure| failure.message.clone()),
        cell: Cell::styled(standing(record), view::style(status)),
        well: matches!(status, Status::Succeeded),
    }
}

async fn resume_all(session: &Session<'_>) -> Result<(), Failure> {
    let (runs, damaged) = unfinished(session).await?;
    let progress = session.out.progress(Some(runs.len() as u64), "runs");
    let mut all: Vec<Ended> = damaged.into_iter().map(unreadable).collect();
    for runs in runs.chunks(AT_ONCE) {
        let mut begun = vec![];
        for record in runs {
            let run = record.key.run.as_str();
            match session.engine.resume(run).await {
                Ok(()) => begun.push(run),
                Err(error) => all.push(left_alone(run, record, &error)?),
            }
        }
        for run in begun {
            let status = session.follow(run).await?;
            all.push(ended(run, &status, &session.record(run).await?));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    answer(&all, session)?;
    if all.iter().all(|ended| ended.well) { Ok(()) } else { Err(Failure::Told) }
}

/// The runs of registered graphs that are not over, oldest first; and those of any graph that can't be read.
async fn unfinished(session: &Session<'_>) -> Result<(Vec<RunRecord>, Vec<Damaged>), Failure> {
    let statuses = ["pending", "running", "paused"].map(str::to_owned).to_vec();
    let filter = ListFilter { statuses, limit: usize::MAX, ..ListFilter::default() };
    let (mut runs, damaged) = session.list(filter).await?;
    let graphs = session.engine.graphs();
    let foreign = runs.iter().find(|run| !graphs.iter().any(|graph| graph.name == run.graph));
    if let Some(foreign) = foreign.filter(|_| graphs.is_empty()) {
        return Err(session.no_code(&foreign.graph));
    }
    runs.retain(|run| graphs.iter().any(|graph| graph.name == run.graph));
    runs.reverse();
    Ok((runs, damaged))
}

fn unreadable(Damaged { run, error }: Damaged) -> Ended {
    let cell = Cell::styled("damaged", BAD);
    Ended { run, status: "damaged", error: Some(error), cell, well: false }
}

/// A run that is in other hands is no failure; one that can't be gone on with is.
fn left_alone(run: &str, record: &RunRecord, error: &Error) -> Result<Ended, Failure> {
    let held = error.code() == code::RUN_HELD;
    let expected = held || matches!(error.code(), code::GRAPH_MISMATCH | code::NOT_FAILED);
    if !expected {
        return Err(error.clone().into());
    }
    Ok(Ended {
        run: run.to_owned(),
        status: record.status.word(),
        error: Some(error.to_string()),
        cell: Cell::styled(standing(record), view::style(&record.status)),
        well: held,
    })
}

fn answer(runs: &[Ended], session: &Session<'_>) -> Result<(), Failure> {
    session.out.answer(&Answer { runs }, || {
        if runs.is_empty() {
            return "nothing to resume\n".into();
        }
        let mut table = Table::new(&["RUN", "STATUS", "WHY"]);
        for ended in runs {
            let why = Cell::new(ended.error.as_deref().unwrap_or_default());
            table.row(vec![Cell::new(&ended.run), ended.cell.clone(), why]);
        }
        table.render(session.out)
    })
}
