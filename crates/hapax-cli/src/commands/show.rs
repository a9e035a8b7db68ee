//! `hapax show`: one run, or one of its steps, with all that is stored of it.
//!
//! What is secret is hidden by a program that registered a graph of the run's name; the stock binary shows all as it is
//! stored.

use crate::{
    failure::Failure,
    json::{Change, changes, indented, raw},
    output::{BAD, FAINT, GOOD, STRONG, clean},
    session::Session,
    table::{Cell, Table, cut},
    view::{RunView, ago, failure, standing, style, tags, time},
    words::told,
};
use clap::Args;
use hapax::Secrets;
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Status, WaitsOn},
    error::code,
    flow::Terms,
    journal::{Entry, JournalRow},
    key::{Digest, StepKey},
    order::{OrderKey, PathHash},
};
use hapax_store::{RunRecord, clock::now_us};
use serde::Serialize;
use serde_json::value::RawValue;

const AFTER_HELP: &str = "\
Examples:
  hapax show order-42
  hapax show order-42 --step 3
  hapax show order-42 --json | jq .checkpoint.state

The stock `hapax` registers no graphs, so it doesn't know which fields are secret and shows all as it is stored; a program \
with `hapax_cli::run` hides those of its own graphs, and fields that they don't know.";

/// Journal rows are read this many at a time.
const PAGE: usize = 1000;
/// More columns than this of one journal row are of no use on a screen.
const ROW_WIDTH: usize = 400;

/// Show a run: status, state, what changed, what runs next, journal
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Show {
    /// The run
    run: String,
    /// One step instead of the latest
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// How many of the latest journal rows
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    run: RunView<'a>,
    checkpoint: CheckpointView,
    changes: Vec<Change>,
    journal: Vec<RowView>,
    /// On which terms it was started, if on any.
    #[serde(skip_serializing_if = "Option::is_none")]
    terms: Option<&'a Terms>,
    /// The concurrency key that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<&'a str>,
}

#[derive(Serialize)]
struct CheckpointView {
    step: u64,
    key: StepKey,
    digest: Digest,
    seed: String,
    label: Option<String>,
    state_version: u32,
    state: Option<Box<RawValue>>,
    frontier_len: usize,
    frontier: Vec<ItemView>,
    waiting_joins: usize,
}

#[derive(Serialize)]
struct ItemView {
    node: String,
    order_key: OrderKey,
    path_hash: PathHash,
    input: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct RowView {
    seq: u64,
    step: u64,
    path_hash: PathHash,
    /// It builds on a committed step; others were left by steps that were lost.
    entry: Entry,
}

/// What is read of a run beside its row.
struct Read {
    checkpoint: Checkpoint,
    /// Without its secrets.
    state: String,
    changed: Vec<Change>,
    journal: Vec<JournalRow>,
}

impl Show {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let read = async |record: &RunRecord| self.read(session, record).await;
        let (record, read) = session.in_one_history(&self.run, read).await?;
        let Read { checkpoint, state, changed, journal } = read;
        let secrets = session.engine.secrets(&record);
        let waits_for = awaited(session, &record).await?;
        let answer = Answer {
            run: RunView::of(&record),
            checkpoint: checkpoint_view(&checkpoint, &state),
            changes: changed,
            journal: journal.into_iter().map(|row| row_view(row, &secrets)).collect(),
            terms: Some(&record.terms).filter(|terms| !terms.is_plain()),
            waits_for,
        };
        session.out.answer(&answer, || Page { session, record: &record, answer: &answer }.text(&state))
    }

    async fn read(&self, session: &Session<'_>, record: &RunRecord) -> Result<Read, Failure> {
        let step = self.step.unwrap_or(record.step);
        let secrets = session.engine.secrets(record);
        let checkpoint = load(session, record, step).await?;
        let state = secrets.state_of(&checkpoint);
        let steps = session.steps(record).await?;
        let changed = match step.checked_sub(1).filter(|before| steps.contains(before)) {
            Some(before) => changes(&secrets.state_of(&session.checkpoint(record, before).await?), &state),
            None => vec![],
        };
        let journal = self.journal(session, record).await?;
        Ok(Read { checkpoint, state, changed, journal })
    }

    /// The latest rows: of the run, or of the step that was asked for.
    async fn journal(&self, session: &Session<'_>, record: &RunRecord) -> Result<Vec<JournalRow>, Failure> {
        let store = session.engine.store();
        let Some(step) = self.step else {
            let from = record.next_seq.saturating_sub(self.rows as u64);
            return Ok(store.journal(record.key.clone(), from, self.rows).await?);
        };
        let (mut rows, mut from) = (vec![], 0);
        loop {
            let page = store.journal(record.key.clone(), from, PAGE).await?;
            let Some(last) = page.last() else { break };
            from = last.seq + 1;
            rows.extend(page.into_iter().filter(|row| row.step == step));
        }
        let surplus = rows.len().saturating_sub(self.rows);
        rows.drain(..surplus);
        Ok(rows)
    }
}

/// The concurrency key that a run waits for: it holds those before it.
async fn awaited<'r>(session: &Session<'_>, record: &'r RunRecord) -> Result<Option<&'r str>, Failure> {
    if record.status != (Status::Waiting { on: WaitsOn::Key }) {
        return Ok(None);
    }
    for key in &record.terms.keys {
        let view = session.engine.flow_key(&key.name).await?;
        if !view.held.iter().any(|held| held.run == record.key.run) {
            return Ok(Some(&key.name));
        }
    }
    Ok(None)
}

async fn load(session: &Session<'_>, record: &RunRecord, step: u64) -> Result<Checkpoint, Failure> {
    let steps = session.steps(record).await?;
    if steps.contains(&step) {
        return session.checkpoint(record, step).await;
    }
    let (first, last) = steps.into_inner();
    let message = format!("run `{}` has no step {step}; its steps are {first} to {last}", record.key);
    Err(Failure::coded(code::RUN_NOT_FOUND, message).cured_by("ask for one of its steps"))
}

fn checkpoint_view(checkpoint: &Checkpoint, state: &str) -> CheckpointView {
    let items = checkpoint.frontier.iter().map(|item| ItemView {
        node: item.node.to_string(),
        order_key: item.order_key,
        path_hash: item.path_hash,
        input: item.input.as_ref().and_then(|input| raw(input.as_str())),
    });
    CheckpointView {
        step: checkpoint.step,
        key: checkpoint.key,
        digest: checkpoint.digest,
        seed: checkpoint.seed.to_string(),
        label: checkpoint.label.clone(),
        state_version: checkpoint.state_version,
        state: raw(state),
        frontier_len: checkpoint.frontier_len,
        frontier: items.collect(),
        waiting_joins: checkpoint.barriers.0.len(),
    }
}

/// A row with its secrets hidden.
fn row_view(row: JournalRow, secrets: &Secrets) -> RowView {
    RowView { seq: row.seq, step: row.step, path_hash: row.path_hash, entry: secrets.entry(row.entry) }
}

/// The answer as a person reads it.
struct Page<'a> {
    session: &'a Session<'a>,
    record: &'a RunRecord,
    answer: &'a Answer<'a>,
}

impl Page<'_> {
    fn text(&self, state: &str) -> String {
        let mut text = self.head();
        text.push_str(&self.section("state", &indented(&printable(state))));
        text.push_str(&self.section("changed by this step", &self.changes()));
        text.push_str(&self.section("runs next", &self.frontier()));
        text.push_str(&self.section("journal", &self.journal()));
        text
    }

    fn head(&self) -> String {
        let (record, now, out) = (self.record, now_us(), self.session.out);
        let checkpoint = &self.answer.checkpoint;
        let mut lines = vec![
            ("run", out.paint(STRONG, &clean(&record.key.to_string()))),
            ("status", out.paint(style(&record.status), &standing(record))),
        ];
        if let Some(failure) = failure(&record.status) {
            let attempt = failure.node.as_ref().map(|node| format!(" (attempt {})", node.attempt));
            let message = out.paint(BAD, &clean(&failure.message));
            lines.push(("error", format!("{message}{}", attempt.unwrap_or_default())));
        }
        if let Some(key) = self.answer.waits_for {
            lines.push(("waits", format!("for a slot of {}", clean(key))));
        }
        let graph = format!("{} {}", clean(&record.graph), out.paint(FAINT, &short(&record.fingerprint)));
        lines.push(("graph", graph));
        if !record.tags.is_empty() {
            lines.push(("tags", clean(&tags(&record.tags))));
        }
        let created = format!("{} ({})", time(record.created_at_us), ago(record.created_at_us, now));
        let updated = format!("{} ({})", time(record.updated_at_us), ago(record.updated_at_us, now));
        lines.extend([("created", created), ("changed", updated)]);
        if let Some(owner) = &record.owner {
            lines.push(("held by", format!("{} (epoch {})", clean(owner), record.epoch.counter)));
        }
        let step = match checkpoint.step {
            step if step == record.step => format!("{step} (latest)"),
            step => format!("{step} of {}", record.step),
        };
        lines.push(("step", step));
        lines.extend(checkpoint.label.as_ref().map(|label| ("label", clean(label))));
        lines.extend([("key", checkpoint.key.to_string()), ("digest", checkpoint.digest.to_string())]);
        lines
            .iter()
            .map(|(name, value)| format!("{} {value}\n", out.paint(FAINT, &format!("{name:<8}"))))
            .collect()
    }

    fn section(&self, name: &str, body: &str) -> String {
        if body.is_empty() {
            return String::new();
        }
        format!("\n{}\n{}\n", self.session.out.paint(STRONG, name), body.trim_end())
    }

    fn changes(&self) -> String {
        let mut text = String::new();
        let out = self.session.out;
        for change in &self.answer.changes {
            let path = if change.path.is_empty() { "/" } else { &change.path };
            for (sign, style, value) in [("-", BAD, &change.before), ("+", GOOD, &change.after)] {
                if let Some(value) = value {
                    let line = self.fitted(&format!("{sign} {path} {}", value.get()));
                    text.push_str(&format!("{}\n", out.paint(style, &line)));
                }
            }
        }
        text
    }

    fn frontier(&self) -> String {
        let checkpoint = &self.answer.checkpoint;
        if checkpoint.frontier.is_empty() {
            return String::new();
        }
        let mut table = Table::new(&["NODE", "ORDER KEY", "PATH HASH", "INPUT"]);
        for item in &checkpoint.frontier {
            table.row(vec![
                Cell::styled(&item.node, STRONG),
                Cell::new(item.order_key.to_string()),
                Cell::new(item.path_hash.to_string()),
                Cell::new(item.input.as_deref().map_or("", RawValue::get)),
            ]);
        }
        let mut text = table.render(self.session.out);
        let unseen = checkpoint.frontier_len.saturating_sub(checkpoint.frontier.len());
        if unseen > 0 {
            text.push_str(&format!("and {unseen} more\n"));
        }
        text
    }

    fn journal(&self) -> String {
        if self.answer.journal.is_empty() {
            return String::new();
        }
        let mut table = Table::new(&["SEQ", "STEP", "ITEM", "WHAT"]);
        let lines =
            self.answer.journal.iter().flat_map(|row| row.entry.each().iter().map(move |it| (row, it)));
        for (row, entry) in lines {
            table.row(vec![
                Cell::new(row.seq.to_string()),
                Cell::new(row.step.to_string()),
                Cell::new(row.path_hash.to_string()),
                Cell::new(cut(&told(entry), ROW_WIDTH)),
            ]);
        }
        table.render(self.session.out)
    }

    fn fitted(&self, line: &str) -> String {
        let line = clean(line);
        self.session.out.width().map_or(line.clone(), |width| cut(&line, width))
    }
}

fn short(digest: &Digest) -> String {
    digest.to_string().chars().take(12).collect()
}

/// JSON escapes what is below a space; the other control characters would reach the terminal.
fn printable(json: &str) -> String {
    let escape = |c: char| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    json.chars().map(escape).collect()
}
