//! `hapax signal`: sends a signal to a run; durable when it answers.

use super::payload;
use crate::{failure::Failure, output::clean, session::Session};
use clap::Args;
use hapax::core::mailbox::Posted;
use serde::Serialize;

const AFTER_HELP: &str = "\
A run that waits for the signal goes on within a second, wherever its code runs; one that doesn't wait yet finds it when \
it asks. A signal sent again under the same --id is delivered once: the first one counts, whatever the name and \
the payload of the next; the answer says then that it is not new.

Examples:
  hapax signal order-42 approved '\"Ada\"'
  hapax signal order-42 paid '{\"cents\": 4200}' --id webhook-7";

/// Send a signal to a run
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Signal {
    /// The run
    run: String,
    /// The signal's name
    name: String,
    /// What it says, as JSON
    #[arg(default_value = "null", allow_hyphen_values = true, value_name = "JSON")]
    payload: String,
    /// The sender's own id for it; of all signals with one id the first arrives, and no other
    #[arg(long)]
    id: Option<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    run: &'a str,
    signal: &'a str,
    id: &'a str,
    new: bool,
}

impl Signal {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let payload = payload(&self.payload)?;
        let id = self.id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
        let posted = session.engine.signal_as(&self.run, &id, &self.name, &payload).await?;
        let new = posted == Posted::New;
        let answer = Answer { run: &self.run, signal: &self.name, id: &id, new };
        session.out.answer(&answer, || {
            let (run, name) = (clean(&self.run), clean(&self.name));
            match new {
                true => format!("{run} has the signal {name}\n"),
                false => format!("{run} had the signal {} already\n", clean(&id)),
            }
        })
    }
}
