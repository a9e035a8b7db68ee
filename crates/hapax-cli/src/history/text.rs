//! An account on a terminal.

use super::{
    Account, Call, Step,
    bounds::{NAME, shortened},
};
use crate::{
    json::Change,
    output::{BAD, FAINT, Output, STRONG, clean},
    table::{Cell, Table},
    view::{roughly, standing, time},
};
use std::time::Duration;

/// Names in one line at the most.
const NAMED: usize = 30;

/// One line a step, and one for each call below it.
pub(crate) fn render(out: &Output, account: &Account<'_>) -> String {
    let record = account.record;
    let mut text = format!(
        "{}  {}  {}\n",
        out.paint(STRONG, &clean(&record.key.to_string())),
        clean(&record.graph),
        standing(record)
    );
    if account.untold > 0 {
        text.push_str(&format!("{}\n", out.paint(FAINT, &format!("from step {} on", account.untold))));
    }
    let mut table = Table::new(&["STEP", "WHAT", "KIND", "AT", "TOOK", "CAME OF IT"]);
    for step in &account.steps {
        table.row(of_step(step));
        step.calls.iter().for_each(|call| table.row(of_call(call)));
        for note in step.notes.iter().chain(&step.left_out.words()) {
            table.row(vec![Cell::new(""), Cell::styled(format!("  {note}"), FAINT)]);
        }
    }
    text.push_str(&table.render(out));
    text
}

fn of_step(step: &Step) -> Vec<Cell> {
    let came = if step.committed { changed(step) } else { "not committed".into() };
    let (none, label) = (Cell::new, step.label.clone().unwrap_or_default());
    vec![
        Cell::new(step.step.to_string()),
        Cell::styled(named(step), STRONG),
        Cell::styled(label, FAINT),
        none(""),
        none(""),
        Cell::new(came),
    ]
}

/// Where the state changed.
fn changed(step: &Step) -> String {
    let path = |change: &Change| match change.path.as_str() {
        "" => "/".to_owned(),
        path => shortened(path, NAME),
    };
    let paths = step.changes.iter().take(NAMED).map(path);
    let more = step.changes.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    paths.chain(more).collect::<Vec<_>>().join(" ")
}

/// The nodes, each with how often it is there.
pub(super) fn named(step: &Step) -> String {
    let mut named: Vec<(&str, usize)> = vec![];
    for node in &step.nodes {
        match named.last_mut() {
            Some((last, times)) if last == node => *times += 1,
            _ => named.push((node, 1)),
        }
    }
    named.truncate(NAMED);
    let unseen = step.items.saturating_sub(named.iter().map(|(_, times)| times).sum());
    let named = named.iter().map(|(node, times)| match times {
        1 => (*node).to_owned(),
        times => format!("{node} ×{times}"),
    });
    let unseen = (unseen > 0).then(|| format!("and {unseen} more"));
    named.chain(unseen).collect::<Vec<_>>().join(", ")
}

fn of_call(call: &Call) -> Vec<Cell> {
    let attempt = if call.attempt > 1 { format!(" (attempt {})", call.attempt) } else { String::new() };
    let answer = call.outcome();
    vec![
        Cell::new(""),
        Cell::new(format!("  {}{attempt}", call.name)),
        Cell::styled(call.kind, FAINT),
        Cell::new(time(call.began_us)),
        Cell::new(took(call).unwrap_or_default()),
        if call.failed { Cell::styled(answer, BAD) } else { Cell::new(answer) },
    ]
}

/// How long a call took, in words.
pub(super) fn took(call: &Call) -> Option<String> {
    let took = call.ended_us?.saturating_sub(call.began_us).max(0);
    let took = Duration::from_micros(took.unsigned_abs());
    Some(match took.as_secs() {
        0 => format!("{:.1} ms", took.as_secs_f64() * 1000.0),
        1..120 => format!("{:.1} s", took.as_secs_f64()),
        _ => roughly(took),
    })
}
