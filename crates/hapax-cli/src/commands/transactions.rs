//! `hapax transactions`: what runs have done in their users' databases, and what isn't known of it yet.

use super::list::parse_tag;
use crate::{
    failure::Failure,
    json::{indented, raw},
    output::{BAD, BUSY, FAINT, GOOD, STRONG, WARN, clean, operands},
    session::{Damaged, Session},
    table::{Cell, Table},
    transactions::{TxRecord, TxState, of_current_step, of_run},
    view::{ago, counted, parse_count, time},
};
use anstyle::Style;
use clap::{Args, Subcommand};
use hapax_core::{error::code, journal::EffectOutcome};
use hapax_store::{ListFilter, RunRecord, clock::now_us};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::{BTreeSet, HashSet};

const AFTER_HELP: &str = "\
One that waits for its database goes on by itself. One in doubt waits for a person: look into the database, then say how it \
ended with `hapax resolve`.

Examples:
  hapax transactions list --open
  hapax transactions show order-42";

const LIST_HELP: &str = "\
Those whose outcome isn't known come first: in doubt, waiting for their database, under way. Then the others, latest first. A \
run that can't be read is named at the end, and the exit code is 3.

Examples:
  hapax transactions list
  hapax transactions list --in-doubt
  hapax transactions list --open --database shop
  hapax transactions list --json | jq '.transactions[] | .state'";

const SHOW_HELP: &str = "\
MARKER is the id of the row in the database's table `hapax_transactions`, which is deleted some time after the step is durable. \
NOTED is what was written down before COMMIT, where the database is asked by the transaction's number.

Examples:
  hapax transactions show order-42
  hapax transactions show order-42 reserve
  hapax transactions show order-42 --json | jq '.transactions'";

/// Show the transactions that runs have made in your databases
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Transactions {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(List),
    Show(Show),
}

/// List transactions: those that aren't settled first
#[derive(Debug, Args)]
#[command(after_help = LIST_HELP)]
struct List {
    /// Only those of which nobody but a person can tell whether they were committed
    #[arg(long, conflicts_with = "open")]
    in_doubt: bool,
    /// Only those whose outcome isn't known yet: in doubt, waiting, under way
    #[arg(long)]
    open: bool,
    /// Only in the database of this name
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// Only of runs with this tag; all of them when given more than once
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = parse_tag)]
    tags: Vec<(String, String)>,
    /// Only of runs of this graph
    #[arg(long, value_name = "GRAPH")]
    graph: Option<String>,
    /// How many at the most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_count)]
    limit: usize,
}

/// Show one run's transactions, in their order
#[derive(Debug, Args)]
#[command(after_help = SHOW_HELP)]
struct Show {
    /// The run
    run: String,
    /// One call instead of all: its name, its key, or the beginning of its key
    call: Option<String>,
}

/// A transaction and its run.
struct Made {
    record: RunRecord,
    transaction: TxRecord,
}

#[derive(Serialize)]
struct TxView<'a> {
    run: &'a str,
    run_status: &'a str,
    graph: &'a str,
    step: u64,
    node: &'a str,
    call: &'a str,
    scope: &'a str,
    index: u32,
    attempt: u32,
    key: &'a str,
    database: &'a str,
    strategy: &'a str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    times_away: u32,
    began_at: String,
    since: String,
    marker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    noted: Option<NotedView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorView<'a>>,
    settled_by_person: bool,
}

/// What was written down before COMMIT.
#[derive(Serialize)]
struct NotedView {
    witness: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct ErrorView<'a> {
    code: &'a str,
    message: &'a str,
    retryable: bool,
}

impl<'a> TxView<'a> {
    fn of(Made { record, transaction }: &'a Made) -> Self {
        let (result, error) = match &transaction.outcome {
            Some(EffectOutcome::Ok { response }) => (raw(response.as_str()), None),
            Some(EffectOutcome::Err { code, message, retryable, .. }) => {
                (None, Some(ErrorView { code, message, retryable: *retryable }))
            }
            None => (None, None),
        };
        let noted = transaction.pre_commit.as_ref();
        Self {
            run: record.key.run.as_str(),
            run_status: record.status.word(),
            graph: &record.graph,
            step: transaction.step,
            node: &transaction.node,
            call: &transaction.name,
            scope: &transaction.scope,
            index: transaction.index,
            attempt: transaction.attempt,
            key: &transaction.key,
            database: &transaction.database,
            strategy: &transaction.strategy,
            state: transaction.state.word(),
            why: transaction.why.as_deref().filter(|_| transaction.outcome.is_none()),
            times_away: transaction.times_away,
            began_at: time(transaction.began_us),
            since: time(transaction.since_us),
            marker: transaction.marker(),
            noted: noted.map(|(witness, response)| NotedView {
                witness: raw(witness.as_str()),
                result: raw(response.as_str()),
            }),
            result,
            error,
            settled_by_person: transaction.told,
        }
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    transactions: Vec<TxView<'a>>,
    /// The limit was reached, so there may be more.
    more: bool,
    /// Runs that can't be read.
    damaged: &'a [Damaged],
}

#[derive(Serialize)]
struct Shown<'a> {
    transactions: Vec<TxView<'a>>,
}

impl Transactions {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        match self.action {
            Action::List(list) => list.run(session).await,
            Action::Show(show) => show.run(session).await,
        }
    }
}

impl List {
    async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let mut found = Found::default();
        self.find_open(session, &mut found).await?;
        if !self.open && !self.in_doubt {
            self.find_settled(session, &mut found).await?;
        }
        let Found { mut made, damaged, .. } = found;
        made.sort_by_key(|Made { transaction, .. }| {
            let urgency = transaction.state.is_open().then_some(transaction.state);
            (urgency.is_none(), urgency, std::cmp::Reverse(transaction.since_us))
        });
        let more = made.len() > self.limit;
        made.truncate(self.limit);
        let answer = Listed { transactions: made.iter().map(TxView::of).collect(), more, damaged: &damaged };
        session.out.answer(&answer, || self.human(&made, &damaged, session))?;
        if more {
            session.out.remark(&format!("--limit {} is reached: there are more", self.limit));
        }
        if damaged.is_empty() {
            return Ok(());
        }
        let errors: Vec<_> = damaged.iter().map(|run| run.error.as_str()).collect();
        Err(Failure::coded(code::CORRUPT, errors.join("; ")))
    }

    fn filter(&self, limit: usize) -> ListFilter {
        ListFilter {
            tags: self.tags.iter().cloned().collect(),
            graph: self.graph.as_deref().map(Into::into),
            limit,
            ..ListFilter::default()
        }
    }

    fn wants(&self, transaction: &TxRecord) -> bool {
        let in_doubt = !self.in_doubt || transaction.state == TxState::InDoubt;
        in_doubt && self.database.as_ref().is_none_or(|name| *name == transaction.database)
    }

    /// What is open is in the current step of a run that can still go on.
    async fn find_open(&self, session: &Session<'_>, found: &mut Found) -> Result<(), Failure> {
        let ListFilter { statuses, .. } = ListFilter::in_flight();
        let runs = found.list(session, ListFilter { statuses, ..self.filter(usize::MAX) }).await?;
        for record in runs {
            let read = of_current_step(session, &record).await;
            let is_wanted = |one: &TxRecord| one.state.is_open() && self.wants(one);
            found.take(&record, read, is_wanted)?;
        }
        Ok(())
    }

    /// The others, of the latest runs, until there are enough.
    async fn find_settled(&self, session: &Session<'_>, found: &mut Found) -> Result<(), Failure> {
        let (mut looked_at, mut window) = (HashSet::new(), self.limit.saturating_add(1));
        loop {
            let runs = found.list(session, self.filter(window)).await?;
            let is_all = runs.len() < window;
            for record in runs {
                if found.made.len() > self.limit {
                    return Ok(());
                }
                if looked_at.insert(record.key.run.clone()) {
                    let read = of_run(session, &record).await;
                    let is_wanted = |one: &TxRecord| !one.state.is_open() && self.wants(one);
                    found.take(&record, read, is_wanted)?;
                }
            }
            if is_all {
                return Ok(());
            }
            window = window.saturating_mul(2);
        }
    }

    fn human(&self, made: &[Made], damaged: &[Damaged], session: &Session<'_>) -> String {
        if made.is_empty() && damaged.is_empty() {
            let none = match (self.in_doubt, self.open) {
                (true, _) => "no transaction is in doubt\n",
                (_, true) => "no transaction is open\n",
                _ => "no transactions\n",
            };
            return none.into();
        }
        let now = now_us();
        let mut table =
            Table::new(&["RUN", "STATE", "DATABASE", "CALL", "NODE", "STEP", "BY", "SINCE", "WHY"]);
        for Made { record, transaction } in made {
            table.row(vec![
                Cell::new(record.key.run.as_str()),
                Cell::styled(transaction.state.word(), style(transaction.state)),
                Cell::new(&transaction.database),
                Cell::new(&transaction.name),
                Cell::new(&transaction.node),
                Cell::new(transaction.step.to_string()),
                Cell::new(&transaction.strategy),
                Cell::new(ago(transaction.since_us, now)),
                Cell::new(reason(transaction)),
            ]);
        }
        for run in damaged {
            let mut row = vec![Cell::new(&run.run), Cell::styled("damaged", BAD)];
            row.resize(9, Cell::new(""));
            table.row(row);
        }
        table.render(session.out) + &advice(made)
    }
}

/// What a list has come to.
#[derive(Default)]
struct Found {
    made: Vec<Made>,
    damaged: Vec<Damaged>,
}

impl Found {
    async fn list(&mut self, session: &Session<'_>, filter: ListFilter) -> Result<Vec<RunRecord>, Failure> {
        let (runs, damaged) = session.list(filter).await?;
        damaged.into_iter().for_each(|run| self.damaged(run));
        Ok(runs)
    }

    fn damaged(&mut self, run: Damaged) {
        if !self.damaged.iter().any(|known| known.run == run.run) {
            self.damaged.push(run);
        }
    }

    /// One damaged journal must not hide the others.
    fn take(
        &mut self,
        record: &RunRecord,
        read: Result<Vec<TxRecord>, Failure>,
        is_wanted: impl Fn(&TxRecord) -> bool,
    ) -> Result<(), Failure> {
        match read {
            Ok(transactions) => {
                let wanted = transactions.into_iter().filter(is_wanted);
                self.made.extend(wanted.map(|transaction| Made { record: record.clone(), transaction }));
            }
            // It was deleted meanwhile.
            Err(failure) if failure.code() == Some(code::RUN_NOT_FOUND) => {}
            Err(failure) if failure.code() == Some(code::CORRUPT) => {
                self.damaged(Damaged { run: record.key.run.to_string(), error: failure.message() });
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
}

impl Show {
    async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let record = session.whole(&self.run).await?;
        let mut transactions = of_run(session, &record).await?;
        if let Some(call) = &self.call {
            let is_meant = |one: &TxRecord| one.name == *call || one.key.starts_with(call.as_str());
            let names: BTreeSet<String> = transactions.iter().map(|one| one.name.clone()).collect();
            transactions.retain(is_meant);
            if transactions.is_empty() {
                return Err(no_such(&record, call, names));
            }
        }
        let of_run = |transaction| Made { record: record.clone(), transaction };
        let made: Vec<Made> = transactions.into_iter().map(of_run).collect();
        let answer = Shown { transactions: made.iter().map(TxView::of).collect() };
        session.out.answer(&answer, || {
            if made.is_empty() {
                return format!("{} has made no transactions\n", clean(&self.run));
            }
            let told: Vec<String> = made.iter().map(|one| page(one, session)).collect();
            told.join("\n") + &advice(&made)
        })
    }
}

fn no_such(record: &RunRecord, call: &str, names: BTreeSet<String>) -> Failure {
    let message = format!("run `{}` has made no transaction `{call}`", record.key);
    let cure = match names.is_empty() {
        true => "it has made none: `hapax show` tells what it did".into(),
        false => {
            format!("ask for one that it has made: {}", names.into_iter().collect::<Vec<_>>().join(", "))
        }
    };
    Failure::coded(code::RUN_NOT_FOUND, message).cured_by(cure)
}

/// One transaction with all that is known of it.
fn page(Made { record, transaction }: &Made, session: &Session<'_>) -> String {
    let (out, now) = (session.out, now_us());
    let at = |at_us| format!("{} ({})", time(at_us), ago(at_us, now));
    let call = match &*transaction.scope {
        "" => transaction.index.to_string(),
        scope => format!("{}/{}", clean(scope), transaction.index),
    };
    let state = out.paint(style(transaction.state), transaction.state.word());
    let mut lines = vec![
        ("call", format!("{} (number {call})", out.paint(STRONG, &clean(&transaction.name)))),
        ("state", state),
        ("run", clean(&record.key.to_string())),
        ("step", transaction.step.to_string()),
        ("node", format!("{} (attempt {})", clean(&transaction.node), transaction.attempt)),
    ];
    if !transaction.database.is_empty() {
        let by = format!("{}, by {}", clean(&transaction.database), clean(&transaction.strategy));
        lines.push(("database", by));
    }
    if transaction.outcome.is_none() {
        lines.extend(transaction.why.as_ref().map(|why| ("why", out.paint(BAD, &clean(why)))));
    }
    if transaction.times_away > 0 {
        lines.push(("away", counted(transaction.times_away.into(), "time")));
    }
    lines.extend([("began", at(transaction.began_us)), ("since", at(transaction.since_us))]);
    match &transaction.outcome {
        Some(EffectOutcome::Ok { response }) => lines.push(("result", value(response.as_str()))),
        Some(EffectOutcome::Err { code, message, .. }) => {
            lines.push(("error", out.paint(BAD, &format!("{} {}", clean(code), clean(message)))));
        }
        None => {}
    }
    if transaction.told {
        lines.push(("settled", "by a person".into()));
    }
    lines.push(("key", clean(&transaction.key)));
    lines.extend(transaction.marker().map(|id| ("marker", clean(&id))));
    if let Some((witness, response)) = &transaction.pre_commit {
        lines.extend([("noted", value(witness.as_str())), ("returns", value(response.as_str()))]);
    }
    lines
        .iter()
        .map(|(name, value)| format!("{} {value}\n", out.paint(FAINT, &format!("{name:<8}"))))
        .collect()
}

/// A value that may take several lines, under its name.
fn value(json: &str) -> String {
    let lines: Vec<String> = indented(json).lines().map(clean).collect();
    lines.join("\n         ")
}

fn style(state: TxState) -> Style {
    match state {
        TxState::InDoubt => BAD,
        TxState::Waiting | TxState::Abandoned => WARN,
        TxState::Begun => BUSY,
        TxState::Committed => GOOD,
        TxState::RolledBack => FAINT,
    }
}

/// Why it stands where it does.
fn reason(transaction: &TxRecord) -> &str {
    match &transaction.outcome {
        Some(EffectOutcome::Err { message, .. }) => message,
        Some(EffectOutcome::Ok { .. }) => "",
        None => transaction.why.as_deref().unwrap_or_default(),
    }
}

/// What to do about those in doubt.
fn advice(made: &[Made]) -> String {
    let doubted = || made.iter().filter(|one| one.transaction.state == TxState::InDoubt);
    let lines: String = doubted()
        .map(|one| {
            let same = |other: &&Made| {
                other.record.key == one.record.key && other.transaction.name == one.transaction.name
            };
            let is_alone = doubted().filter(same).count() == 1;
            let call = if is_alone { &one.transaction.name } else { &one.transaction.key };
            let operands = operands(&[one.record.key.run.as_str(), call]);
            format!("  hapax resolve {operands} (--result JSON | --retry | --fail REASON)\n")
        })
        .collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\nin doubt: look into the database, then say how it ended\n{lines}"),
    }
}
