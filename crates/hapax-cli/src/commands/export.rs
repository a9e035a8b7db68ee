//! `hapax export`: runs as lines of JSON.

use super::list::StatusWord;
use crate::{failure::Failure, session::Session, view::counted};
use clap::Args;
use hapax::core::id::{RunId, RunKey};
use hapax_store::{ListFilter, house};
use std::io::{self, BufWriter};

const AFTER_HELP: &str = "\
Each run is written as of one moment, with all of its steps; its store goes on with it. What is encrypted in the store is \
plain in the file, secret fields too: keep it as safe as the store. The same runs are the same bytes from every kind of \
store. `hapax import` takes them in.

Examples:
  hapax export > runs.ndjson
  hapax export --run order-42 --run order-43 > two.ndjson
  hapax export --status succeeded --status failed > over.ndjson";

/// Write runs as lines of JSON, for `import` into another store
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Export {
    /// Only this run; any of them when given more than once
    #[arg(long = "run", value_name = "RUN")]
    runs: Vec<String>,
    /// Only runs that stand there; any of them when given more than once
    #[arg(long = "status", value_name = "STATUS", value_enum)]
    statuses: Vec<StatusWord>,
}

impl Export {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let runs = self.chosen(session).await?;
        let progress = session.out.progress(Some(runs.len() as u64), "exporting");
        // Not locked: that would keep the runs from being read on another thread.
        let mut out = BufWriter::new(io::stdout());
        let told = |load: house::Load| progress.set_position(load.runs);
        let written = house::export(&*session.engine.store(), runs, &mut out, told).await;
        progress.finish_and_clear();
        let load = match written {
            Err(house::ExportError::Io(error)) => return Err(Failure::from_write(&error)),
            written => written?,
        };
        session.out.remark(&format!(
            "exported {} with {}: {} bytes",
            counted(load.runs, "run"),
            counted(load.steps, "step"),
            load.bytes
        ));
        Ok(())
    }

    /// The runs to write: those that are named, or all that stand so; never one that isn't here.
    async fn chosen(&self, session: &Session<'_>) -> Result<Vec<RunKey>, Failure> {
        let statuses = self.statuses.iter().map(|status| status.stored().to_owned()).collect();
        let filter = ListFilter { statuses, limit: usize::MAX, ..ListFilter::default() };
        let (records, damaged) = session.list(filter).await?;
        if let Some(damaged) = damaged.first() {
            return Err(Failure::coded(hapax::core::error::code::CORRUPT, damaged.error.clone()));
        }
        let named: Vec<RunId> = self
            .runs
            .iter()
            .map(|run| RunId::new(run.as_str()).map_err(|error| hapax::Error::from(error).into()))
            .collect::<Result<_, Failure>>()?;
        for run in &named {
            // One that is missing or elsewhere is an error of its own, not an export without it.
            session.whole(run.as_str()).await?;
        }
        let here = |status: &str| !matches!(status, "moved" | "arriving");
        let wanted = |run: &RunId| named.is_empty() || named.contains(run);
        let records =
            records.into_iter().filter(|record| here(record.status.word()) && wanted(&record.key.run));
        Ok(records.map(|record| record.key).collect())
    }
}
