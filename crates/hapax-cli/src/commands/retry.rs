//! `hapax retry`: gives a failed run fresh attempts from the step that failed.

use super::resume::finish;
use crate::{failure::Failure, output::clean, session::Session};
use clap::Args;
use serde::Serialize;

const AFTER_HELP: &str = "\
What had finished in the failed step is not run again. With the graph's code in this program the run goes on at once; \
without, the request is durable and an engine that holds the code takes the run up within a second.

Examples:
  hapax retry order-42
  orders retry order-42 --detach";

/// Let a failed run go on from its last step, with fresh attempts
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Retry {
    /// The run
    run: String,
    /// Leave the run to the engines that look for work, and don't wait
    #[arg(long)]
    detach: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    run: &'a str,
    status: &'static str,
}

impl Retry {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let record = session.record(&self.run).await?;
        session.engine.retry(&self.run).await?;
        if session.graph(&record.graph).is_some() && !self.detach {
            session.engine.resume(&self.run).await?;
            return finish(&self.run, session).await;
        }
        let answer = Answer { run: &self.run, status: "pending" };
        session.out.answer(&answer, || {
            let (run, graph) = (clean(&self.run), clean(&record.graph));
            format!("{run} is pending again: an engine with graph {graph} takes it up within a second\n")
        })
    }
}
