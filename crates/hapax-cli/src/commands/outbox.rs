//! `hapax outbox`: messages that wait to be delivered, and what becomes of the dead ones.

use crate::{
    failure::Failure,
    output::{BAD, BUSY},
    session::Session,
    table::{Cell, Table},
    view::{ago, parse_count, time},
};
use clap::{Args, Subcommand};
use hapax_store::{
    clock::now_us,
    outbox::{MessageState, OutboxFilter, OutboxRecord},
};
use serde::Serialize;

const AFTER_HELP: &str = "\
A message is written by the commit of the step that sends it, and delivered by a relay. One that was refused too often is \
dead: its run is kept until it is retried or dropped.

Examples:
  hapax outbox
  hapax outbox list --run order-42
  hapax outbox --dead --json | jq -r '.messages[].id'
  hapax outbox retry order-42
  hapax outbox drop order-42";

/// List messages that are not delivered yet; retry or drop dead ones
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Outbox {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List messages that are not delivered yet, as without a word
    #[command(after_help = "Example:\n  hapax outbox list --dead")]
    List(List),
    /// Make the dead messages of runs pending again, with fresh attempts, and those that rest due now
    #[command(after_help = "Example:\n  hapax outbox retry order-42")]
    Retry(Runs),
    /// Delete the dead messages of runs: they are never delivered
    #[command(after_help = "Example:\n  hapax outbox drop order-42")]
    Drop(Runs),
}

#[derive(Debug, Args)]
struct List {
    /// Only dead messages
    #[arg(long)]
    dead: bool,
    /// Only messages of this run
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// How many at the most. Default: 50
    #[arg(long, value_name = "N", value_parser = parse_count)]
    limit: Option<usize>,
}

#[derive(Debug, Args)]
struct Runs {
    /// The runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
}

#[derive(Serialize)]
struct MessageView<'a> {
    id: String,
    run: &'a str,
    step: u64,
    position: u32,
    topic: &'a str,
    key: &'a str,
    state: &'static str,
    refused: u32,
    error: Option<&'a str>,
    written_at: Option<String>,
}

impl<'a> MessageView<'a> {
    fn of(record: &'a OutboxRecord) -> Self {
        Self {
            id: record.id(),
            run: record.run.run.as_str(),
            step: record.place.step,
            position: record.place.position,
            topic: &record.message.topic,
            key: &record.message.key,
            state: record.state.word(),
            refused: record.attempts,
            error: record.error.as_deref(),
            written_at: (record.written_at_us > 0).then(|| time(record.written_at_us)),
        }
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    messages: Vec<MessageView<'a>>,
    /// The limit was reached, so there may be more.
    more: bool,
}

#[derive(Serialize)]
struct Changed<'a> {
    runs: &'a [String],
    messages: usize,
}

impl Outbox {
    /// Whether it changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        matches!(self.action, None | Some(Action::List(_)))
    }

    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        if self.action.is_some() && self.list.says_something() {
            let what = "--dead, --run and --limit are for lists, and go behind the word `list`";
            return Err(Failure::usage(what).cured_by("hapax outbox list --dead"));
        }
        match &self.action {
            None => self.list.show(session).await,
            Some(Action::List(list)) => list.show(session).await,
            Some(Action::Retry(runs)) => {
                runs.are_there(session).await?;
                let mut messages = 0;
                for run in &runs.runs {
                    messages += session.engine.retry_dead(run).await?;
                }
                runs.changed(session, messages, "pending again", "; what rested is due now")
            }
            Some(Action::Drop(runs)) => {
                runs.are_there(session).await?;
                let mut messages = 0;
                for run in &runs.runs {
                    messages += session.engine.drop_dead(run).await?;
                }
                runs.changed(session, messages, "gone", "")
            }
        }
    }
}

impl Runs {
    /// Before any of them is changed: whoever has mistyped one of several has done nothing yet.
    async fn are_there(&self, session: &Session<'_>) -> Result<(), Failure> {
        for run in &self.runs {
            session.whole(run).await?;
        }
        Ok(())
    }

    fn changed(
        &self,
        session: &Session<'_>,
        messages: usize,
        what: &str,
        besides: &str,
    ) -> Result<(), Failure> {
        session.out.answer(&Changed { runs: &self.runs, messages }, || match messages {
            0 => format!("no message was dead{besides}\n"),
            1 => format!("1 dead message is {what}{besides}\n"),
            many => format!("{many} dead messages are {what}{besides}\n"),
        })
    }
}

impl List {
    fn says_something(&self) -> bool {
        self.dead || self.run.is_some() || self.limit.is_some()
    }

    async fn show(&self, session: &Session<'_>) -> Result<(), Failure> {
        let (unsent, limit) = ([MessageState::Pending, MessageState::Dead], self.limit.unwrap_or(50));
        let run = match &self.run {
            Some(run) => Some(session.whole(run).await?.key.run),
            None => None,
        };
        let filter = OutboxFilter {
            run,
            states: unsent.into_iter().filter(|state| !self.dead || *state == MessageState::Dead).collect(),
            limit: limit.saturating_add(1),
            ..OutboxFilter::default()
        };
        let mut records = session.engine.outbox(filter).await?;
        let more = records.len() > limit;
        records.truncate(limit);
        let answer = Listed { messages: records.iter().map(MessageView::of).collect(), more };
        session.out.answer(&answer, || self.human(&records, session))?;
        if more {
            session.out.remark(&format!("--limit {limit} is reached: there are more"));
        }
        Ok(())
    }

    fn human(&self, records: &[OutboxRecord], session: &Session<'_>) -> String {
        if records.is_empty() {
            return if self.dead { "no dead messages\n" } else { "no messages wait\n" }.into();
        }
        let now = now_us();
        let mut table = Table::new(&["RUN", "STATE", "TOPIC", "KEY", "STEP", "REFUSED", "WRITTEN", "ERROR"]);
        for record in records {
            let style = if record.state == MessageState::Dead { BAD } else { BUSY };
            table.row(vec![
                Cell::new(record.run.run.as_str()),
                Cell::styled(record.state.word(), style),
                Cell::new(&record.message.topic),
                Cell::new(&record.message.key),
                Cell::new(record.place.step.to_string()),
                Cell::new(record.attempts.to_string()),
                Cell::new(if record.written_at_us > 0 {
                    ago(record.written_at_us, now)
                } else {
                    String::new()
                }),
                Cell::new(record.error.as_deref().unwrap_or_default()),
            ]);
        }
        table.render(session.out)
    }
}
