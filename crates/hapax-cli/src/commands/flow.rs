//! `hapax flow`: who holds concurrency keys and names, and who waits for them.

use crate::{
    failure::Failure,
    output::clean,
    session::Session,
    table::{Cell, Table},
    view::time,
};
use clap::{Args, Subcommand};
use hapax::control::{KeyRecord, KeyView, NameRecord};
use hapax_core::{id::RunId, limits::FLOW_PAGE};
use serde::Serialize;

const AFTER_HELP: &str = "\
A key lets so many runs go at a time. A rate's time is when its bucket is full again; that of a singleton or a debounce is \
when its run took the name.

Examples:
  hapax flow list
  hapax flow list --json | jq '.keys[] | select(.waiting > 100)'
  hapax flow show customer-42";

/// Waiting runs that are named on a screen.
const NAMED: usize = 10;

/// Show concurrency keys, rates, singletons and debounces
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, arg_required_else_help = true)]
pub(crate) struct Flow {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the keys that are held or waited for, the buckets, and the names with their runs
    #[command(
        after_help = "Example:\n  hapax flow list --json | jq -r '.names[] | select(.kind == \"singleton\") | .run'"
    )]
    List,
    /// Show who holds a concurrency key, and who waits for it
    #[command(after_help = "Example:\n  hapax flow show customer-42")]
    Show(Key),
}

#[derive(Debug, Args)]
struct Key {
    /// The concurrency key
    key: String,
}

#[derive(Serialize)]
struct Listed<'a> {
    keys: Vec<OneKey<'a>>,
    names: Vec<OneName<'a>>,
}

#[derive(Serialize)]
struct OneKey<'a> {
    name: &'a str,
    held: u64,
    most: u32,
    waiting: u64,
}

#[derive(Serialize)]
struct OneName<'a> {
    kind: &'static str,
    name: &'a str,
    run: Option<&'a str>,
    at: String,
}

#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    held: Vec<OneSlot<'a>>,
    waiting: Vec<&'a str>,
}

#[derive(Serialize)]
struct OneSlot<'a> {
    slot: u32,
    run: &'a str,
    since: String,
}

impl Flow {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        match self.action {
            Action::List => list(session).await,
            Action::Show(Key { key }) => show(session, &key).await,
        }
    }
}

async fn list(session: &Session<'_>) -> Result<(), Failure> {
    let (keys, names) = (session.engine.flow_keys().await?, session.engine.flow_names().await?);
    let listed = keys.iter().map(|key| {
        let KeyRecord { name, held, most, waiting } = key;
        OneKey { name, held: *held, most: *most, waiting: *waiting }
    });
    let named = names.iter().map(|name| OneName {
        kind: name.kind.word(),
        name: &name.name,
        run: name.run.as_ref().map(RunId::as_str),
        at: time(name.at_us),
    });
    let answer = Listed { keys: listed.collect(), names: named.collect() };
    session.out.answer(&answer, || listing(session, &keys, &names))
}

fn listing(session: &Session<'_>, keys: &[KeyRecord], names: &[NameRecord]) -> String {
    if keys.is_empty() && names.is_empty() {
        return "no keys, rates or names\n".into();
    }
    let mut table = Table::new(&["KIND", "NAME", "HELD", "MOST", "WAITING", "RUN", "AT"]);
    for key in keys {
        let counts = [key.held, u64::from(key.most), key.waiting].map(|count| Cell::new(count.to_string()));
        let named = [Cell::new("key"), Cell::new(&key.name)];
        table.row(named.into_iter().chain(counts).chain([Cell::default(), Cell::default()]).collect());
    }
    for name in names {
        let named = [Cell::new(name.kind.word()), Cell::new(&name.name)];
        let run = name.run.as_ref().map_or(Cell::default(), |run| Cell::new(run.as_str()));
        let none = [Cell::default(), Cell::default(), Cell::default()];
        table.row(named.into_iter().chain(none).chain([run, Cell::new(time(name.at_us))]).collect());
    }
    table.render(session.out)
}

async fn show(session: &Session<'_>, name: &str) -> Result<(), Failure> {
    let view = session.engine.flow_key(name).await?;
    let held = view.held.iter().map(|held| OneSlot {
        slot: held.slot,
        run: held.run.as_str(),
        since: time(held.since_us),
    });
    let waiting = view.waiting.iter().map(RunId::as_str).collect();
    let answer = Shown { name, held: held.collect(), waiting };
    session.out.answer(&answer, || picture(session, name, &view))
}

fn picture(session: &Session<'_>, name: &str, view: &KeyView) -> String {
    if view.held.is_empty() && view.waiting.is_empty() {
        return format!("nobody holds {} or waits for it\n", clean(name));
    }
    let mut table = Table::new(&["SLOT", "RUN", "SINCE"]);
    for held in &view.held {
        table.row(vec![
            Cell::new(held.slot.to_string()),
            Cell::new(held.run.as_str()),
            Cell::new(time(held.since_us)),
        ]);
    }
    let mut text = table.render(session.out);
    if !view.waiting.is_empty() {
        let first: Vec<String> = view.waiting.iter().take(NAMED).map(|run| clean(run.as_str())).collect();
        let more = if view.waiting.len() > NAMED { ", …" } else { "" };
        let least = if view.waiting.len() == FLOW_PAGE { "at least " } else { "" };
        text.push_str(&format!("\n{least}{} wait: {}{more}\n", view.waiting.len(), first.join(", ")));
    }
    text
}
