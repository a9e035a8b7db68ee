//! `hapax resolve`: tells how a call in doubt ended; durable when it answers.

use super::payload;
use crate::{failure::Failure, output::clean, session::Session};
use clap::Args;
use hapax::Resolution;
use serde::Serialize;

const AFTER_HELP: &str = "\
A call that must not be sent twice and was cut off parks its run: only a person can find out whether it took effect. Look \
at the other side, then say so here. `hapax show RUN` names the call.

Examples:
  # it took effect, and this was the answer
  hapax resolve order-42 charge --result '{\"receipt\": \"r-17\"}'
  # it did not: send it again
  hapax resolve order-42 charge --retry
  # it failed
  hapax resolve order-42 fx:3b0f --fail 'card is blocked'";

/// Tell how a call in doubt ended
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Resolve {
    /// The run
    run: String,
    /// The call: its name, its key, or the beginning of its key
    effect: String,
    #[command(flatten)]
    how: How,
}

/// How it ended.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct How {
    /// It took effect, and this was its answer
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    result: Option<String>,
    /// It did not take effect: make it again
    #[arg(long)]
    retry: bool,
    /// It failed, for this reason
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "an operator said so")]
    fail: Option<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    run: &'a str,
    effect: &'a str,
    resolution: Resolution,
}

impl Resolve {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let resolution = match (&self.how.result, &self.how.fail) {
            (Some(result), _) => Resolution::Result(payload(result)?),
            (_, Some(reason)) => Resolution::Fail(reason.clone()),
            _ => Resolution::Retry,
        };
        session.engine.resolve(&self.run, &self.effect, resolution.clone()).await?;
        let answer = Answer { run: &self.run, effect: &self.effect, resolution };
        session.out.answer(&answer, || {
            let (run, effect) = (clean(&self.run), clean(&self.effect));
            format!("{run} goes on: {effect} is settled\n")
        })
    }
}
