//! `hapax cancel`: asks for a run's end; durable when it answers.

use crate::{failure::Failure, output::clean, session::Session};
use clap::Args;
use hapax::Status;
use serde::Serialize;

const AFTER_HELP: &str = "\
A run that nobody holds is cancelled at once. One that an engine executes is stopped by that engine within a second, \
or by the one that takes it over.

Examples:
  hapax cancel order-42
  hapax cancel order-42 --wait";

/// Cancel a run
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Cancel {
    /// The run
    run: String,
    /// Wait until it has stopped
    #[arg(long)]
    wait: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    run: &'a str,
    status: &'static str,
    cancel_requested: bool,
}

impl Cancel {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        session.engine.cancel(&self.run).await?;
        let status = match self.wait {
            true => session.follow(&self.run).await?,
            false => session.engine.status(&self.run).await?,
        };
        let answer = Answer { run: &self.run, status: status.word(), cancel_requested: true };
        session.out.answer(&answer, || {
            let run = clean(&self.run);
            match &status {
                Status::Cancelled => format!("{run} is cancelled\n"),
                status if status.is_final() => format!("{run} is {} already\n", status.word()),
                _ => format!("{run} is to be cancelled: the engine that holds it stops it within a second\n"),
            }
        })?;
        let in_time = !status.is_final() || matches!(status, Status::Cancelled);
        if in_time { Ok(()) } else { Err(Failure::Told) }
    }
}
