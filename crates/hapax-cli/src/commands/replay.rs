//! `hapax replay`: makes runs again from their records, and tells where code and record part.
//!
//! Nothing outside is called and nothing is written. A divergence is what the command is there to find: exit code 1.

mod against;

use crate::{
    failure::Failure,
    output::{BAD, FAINT, GOOD, clean},
    session::{Damaged, Session},
    table::cut,
    view::{counted, time},
};
use clap::Args;
use hapax::Coded as _;
use hapax_core::error::code;
use hapax_store::{ListFilter, RunRecord};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Exits with 1 when a run diverges. Only a program that holds the graph's code can replay: build these commands into yours \
with `hapax_cli::run`, or name it with --against. It is told the store by HAPAX_STORE and HAPAX_NAMESPACE, and asked on an \
empty one first: a program that takes up runs by itself is refused before it sees any.

Examples:
  orders replay order-42
  orders replay --all
  hapax --store sqlite:orders.db replay --all \\
      --against ./target/release/orders";

/// Make runs again from their records, and tell where the code does something else now
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["run", "all"]))]
pub(crate) struct Replay {
    /// The run, finished or not
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// All runs in flight: those that are not over, and failed ones, which can be retried
    #[arg(long)]
    all: bool,
    /// The program whose code is compared; without it, this one
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
}

/// What was found; also what a program says to the one that asked it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    runs: Vec<Replayed>,
    diverged: usize,
    /// Runs that can't be read.
    damaged: Vec<Damaged>,
}

/// One run.
#[derive(Debug, Serialize, Deserialize)]
struct Replayed {
    run: String,
    graph: String,
    /// By this a run is told from another of its name, in another store.
    created_at: String,
    steps: u64,
    items: u64,
    calls: u64,
    divergence: Option<Divergence>,
}

/// Where code and record part.
#[derive(Debug, Serialize, Deserialize)]
struct Divergence {
    step: u64,
    node: Option<String>,
    call: Option<String>,
    field: String,
    expected: String,
    got: String,
}

impl Replay {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let record = match &self.run {
            Some(run) => Some(session.whole(run).await?),
            None => None,
        };
        let report = match &self.against {
            Some(program) => against::replay(program, record.as_ref(), session).await?,
            None => replay_here(record.as_ref(), session).await?,
        };
        session.out.answer(&report, || Page { report: &report, all: self.all, session }.text())?;
        if report.diverged == 0 && report.damaged.is_empty() { Ok(()) } else { Err(Failure::Told) }
    }
}

/// Replays with the code of this program: one run, or all in flight.
async fn replay_here(one: Option<&RunRecord>, session: &Session<'_>) -> Result<Report, Failure> {
    if session.engine.finds_work() {
        let message = "this program takes up runs by itself: it might execute what it is to replay";
        return Err(Failure::coded(code::FINDS_WORK, message));
    }
    let Some(record) = one else { return replay_all(session).await };
    if session.graph(&record.graph).is_none() {
        return Err(no_code(record, session));
    }
    let replay = session.engine.replay(record.key.run.as_str()).await?;
    let run = Replayed::of(replay, record);
    Ok(Report { diverged: run.divergence.iter().count(), runs: vec![run], damaged: vec![] })
}

async fn replay_all(session: &Session<'_>) -> Result<Report, Failure> {
    let (mut records, damaged) = session.list(ListFilter::in_flight()).await?;
    if let Some(first) = records.first()
        && session.engine.graphs().is_empty()
    {
        return Err(no_code(first, session));
    }
    records.reverse();
    let progress = session.out.progress(Some(records.len() as u64), "runs");
    let mut report = Report { damaged, ..Report::default() };
    for record in &records {
        let run = record.key.run.as_str();
        match session.engine.replay(run).await {
            Ok(replay) => report.runs.push(Replayed::of(replay, record)),
            // One damaged run must not hide the others.
            Err(error) if error.code() == code::CORRUPT => {
                report.damaged.push(Damaged { run: run.to_owned(), error: error.to_string() });
            }
            // It was deleted meanwhile.
            Err(error) if error.code() == code::RUN_NOT_FOUND => {}
            Err(error) => return Err(error.into()),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    report.diverged = report.runs.iter().filter(|run| run.divergence.is_some()).count();
    Ok(report)
}

fn no_code(record: &RunRecord, session: &Session<'_>) -> Failure {
    let failure = session.no_code(&record.graph);
    if session.embedded {
        return failure;
    }
    failure.cured_by(
        "this `hapax` holds no code of yours: name the program that registers the graph with --against PROGRAM, \
         or run `replay` in it",
    )
}

impl Replayed {
    fn of(replay: hapax::Replay, record: &RunRecord) -> Self {
        let divergence = replay.divergence.map(|found| Divergence {
            step: found.step,
            node: found.node.map(|node| node.to_string()),
            call: found.call,
            field: found.field,
            expected: found.expected,
            got: found.got,
        });
        Self {
            run: replay.run.run.to_string(),
            graph: replay.graph.to_string(),
            created_at: time(record.created_at_us),
            steps: replay.steps,
            items: replay.items,
            calls: replay.calls,
            divergence,
        }
    }
}

/// The answer as a person reads it: what is wrong, run by run, and what was compared.
struct Page<'a> {
    report: &'a Report,
    all: bool,
    session: &'a Session<'a>,
}

impl Page<'_> {
    fn text(&self) -> String {
        let (report, out) = (self.report, self.session.out);
        let mut text = String::new();
        for run in &report.runs {
            if let Some(divergence) = &run.divergence {
                text.push_str(&self.divergence(run, divergence));
            }
        }
        for damaged in &report.damaged {
            let head = format!("{} cannot be replayed", clean(&damaged.run));
            text.push_str(&format!("{}: {}\n\n", out.paint(BAD, &head), clean(&damaged.error)));
        }
        if report.runs.is_empty() && report.damaged.is_empty() {
            return "no runs are in flight\n".into();
        }
        text.push_str(&self.summary());
        text
    }

    fn divergence(&self, run: &Replayed, found: &Divergence) -> String {
        let out = self.session.out;
        let head = format!("{} diverges", clean(&run.run));
        let mut lines = vec![("graph", run.graph.clone()), ("step", found.step.to_string())];
        lines.extend(found.node.clone().map(|node| ("node", node)));
        lines.extend(found.call.clone().map(|call| ("call", call)));
        lines.push(("field", found.field.clone()));
        lines.extend([("expected", found.expected.clone()), ("got", found.got.clone())]);
        let mut text = format!("{}\n", out.paint(BAD, &head));
        for (name, value) in lines {
            let value = clean(&value);
            let room = out.width().map_or(usize::MAX, |width| width.saturating_sub(12));
            text.push_str(&format!("  {} {}\n", out.paint(FAINT, &format!("{name:<9}")), cut(&value, room)));
        }
        text + "\n"
    }

    fn summary(&self) -> String {
        let (report, out) = (self.report, self.session.out);
        let sum = |of: fn(&Replayed) -> u64| report.runs.iter().map(of).sum();
        let compared = [
            counted(sum(|run| run.steps), "step"),
            counted(sum(|run| run.items), "item"),
            counted(sum(|run| run.calls), "call"),
        ];
        let compared = compared.join(", ");
        let (wrong, all) = (report.diverged + report.damaged.len(), report.runs.len() + report.damaged.len());
        let subject = match report.runs.first() {
            Some(run) if !self.all => clean(&run.run),
            _ => format!("{} in flight", counted(all as u64, "run")),
        };
        match wrong {
            0 => format!("{}: {} in {compared}\n", subject, out.paint(GOOD, "no divergence")),
            _ if !self.all => format!("{subject}: compared {compared}\n"),
            wrong => format!(
                "{subject}: {}; compared {compared}\n",
                out.paint(BAD, &format!("{wrong} can't go on"))
            ),
        }
    }
}
