//! An account as one page of HTML that needs nothing else.
//!
//! Invariant: whatever comes from a run is text. The page holds no program and asks its browser to run none and to fetch
//! nothing, so that it can be sent to a colleague and opened.

use super::{
    Account, Call, Step,
    bounds::{NAME, VALUE, shortened},
    text::{named, took},
};
use crate::{
    drawing::svg::escaped,
    json::{Change, indented},
    view::{counted, failure, standing, tags, time},
};
use hapax_core::commit::Status;
use serde_json::value::RawValue;

const STYLE: &str = include_str!("page.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// Calls in the timeline at the most.
const CALLS: usize = 1000;

/// The page; `graph` is a drawing in SVG.
pub(crate) fn render(account: &Account<'_>, graph: &str) -> String {
    let title = escaped(&account.record.key.to_string());
    let sections = [
        section("graph", "Graph", &format!("<div class=\"scroll\">{graph}</div>")),
        section("timeline", "Timeline", &timeline(account)),
        section("steps", "Steps", &account.steps.iter().map(step).collect::<String>()),
        section("state", "State", &account.state.as_deref().map(state).unwrap_or_default()),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}{}\
         <footer>Written by hapax {}</footer>\n</body>\n</html>\n",
        head(account),
        sections.concat(),
        env!("CARGO_PKG_VERSION"),
    )
}

fn section(id: &str, title: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section id=\"{id}\">\n<h2>{title}</h2>\n{body}</section>\n")
}

fn head(account: &Account<'_>) -> String {
    let record = account.record;
    let color = match &record.status {
        Status::Succeeded => "good",
        Status::Failed { .. } => "bad",
        _ => "faint",
    };
    let mut facts = vec![
        ("graph", record.graph.to_string()),
        ("created", time(record.created_at_us)),
        ("changed", time(record.updated_at_us)),
        ("step", record.step.to_string()),
        ("digest", record.digest.to_string()),
    ];
    facts.extend(failure(&record.status).map(|failure| ("error", failure.message.clone())));
    facts.extend((!record.tags.is_empty()).then(|| ("tags", tags(&record.tags))));
    facts.extend((account.untold > 0).then(|| ("told", format!("from step {} on", account.untold))));
    let lost = account.lost_rows;
    facts.extend((lost > 0).then(|| ("lost", format!("{lost} rows of steps that were never committed"))));
    let facts = facts
        .iter()
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(&shortened(value, VALUE))));
    format!(
        "<header>\n<h1>{}</h1>\n<p class=\"status {color}\">{}</p>\n<dl>\n{}</dl>\n</header>\n",
        escaped(&record.key.to_string()),
        escaped(&standing(record)),
        facts.collect::<String>(),
    )
}

/// Each call as a bar, from when the run was created to when it last changed.
fn timeline(account: &Account<'_>) -> String {
    let calls: Vec<_> =
        account.steps.iter().flat_map(|step| step.calls.iter().map(move |call| (step.step, call))).collect();
    let ends = calls.iter().map(|(_, call)| call.ended_us.unwrap_or(call.began_us));
    let begin = account.record.created_at_us;
    let end = ends.chain([account.record.updated_at_us]).max().unwrap_or(begin);
    let scale = Scale { begin, length: (end - begin).max(1) };
    let rows: String = calls.iter().take(CALLS).map(|(step, call)| scale.row(*step, call)).collect();
    match calls.len().saturating_sub(CALLS) {
        0 => rows,
        more => format!("{rows}<p class=\"faint\">and {}</p>\n", counted(more as u64, "more call")),
    }
}

struct Scale {
    begin: i64,
    length: i64,
}

impl Scale {
    fn percent(&self, at_us: i64) -> f64 {
        ((at_us - self.begin) as f64 / self.length as f64 * 100.0).clamp(0.0, 100.0)
    }

    fn row(&self, step: u64, call: &Call) -> String {
        let left = self.percent(call.began_us);
        let end = call.ended_us.or(call.again_us).unwrap_or(self.begin + self.length);
        let width = self.percent(end) - left;
        let how = match call {
            Call { ended_us: None, under_way: true, .. } => " going",
            Call { ended_us: None, .. } => " open",
            Call { failed: true, .. } => " failed",
            _ => "",
        };
        format!(
            "<div class=\"call\"><span title=\"{0}\"><span class=\"faint\">{step}</span> {0}</span>\
             <span class=\"lane\"><span class=\"bar{how}\" style=\"left:{left:.2}%;width:{width:.2}%\"></span></span>\
             <span>{1}</span></div>\n",
            escaped(&format!("{} {}", call.node, call.name)),
            took(call).unwrap_or_else(|| unended(call)),
        )
    }
}

/// In place of how long it took.
fn unended(call: &Call) -> String {
    match call {
        Call { again_us: Some(_), .. } => "unheard".into(),
        Call { due_us: Some(due), .. } => format!("until {}Z", seconds(*due)),
        Call { under_way: true, .. } => "under way".into(),
        _ => "open".into(),
    }
}

/// A time to the second, which can be broken between its day and its hour.
fn seconds(at_us: i64) -> String {
    time(at_us).split('.').next().unwrap_or_default().replace('T', " ")
}

fn step(step: &Step) -> String {
    let label = step.label.as_ref().map(|label| format!(" <code>{}</code>", escaped(label)));
    let standing = if step.committed { "" } else { " <span class=\"faint\">not committed</span>" };
    let changes: String = step.changes.iter().map(change).collect();
    let calls = match step.calls.is_empty() {
        true => String::new(),
        false => format!(
            "<table>\n<tr><th>call</th><th>kind</th><th>at</th><th>took</th><th>answer</th></tr>\n{}</table>\n",
            step.calls.iter().map(row).collect::<String>()
        ),
    };
    let left_out = step.left_out.words();
    let notes = step.notes.iter().chain(&left_out);
    let notes = notes.map(|note| format!("<p class=\"faint\">{}</p>\n", escaped(note)));
    format!(
        "<details{}>\n<summary><b>{}</b>{}{}{standing}</summary>\n<div class=\"inside\">\n{changes}{calls}{}</div>\n</details>\n",
        if step.changes.len() + step.calls.len() + step.notes.len() > 0 { " open" } else { "" },
        step.step,
        escaped(&named(step)),
        label.unwrap_or_default(),
        notes.collect::<String>(),
    )
}

fn change(change: &Change) -> String {
    let path = if change.path.is_empty() { "/" } else { &change.path };
    let path = escaped(&shortened(path, NAME));
    let line = |class: &str, sign: &str, at: &RawValue| {
        format!("<div class=\"change {class}\">{sign} {path} {}</div>\n", escaped(at.get()))
    };
    let before = change.before.as_deref().map(|at| line("minus", "-", at));
    let after = change.after.as_deref().map(|at| line("plus", "+", at));
    [before, after].into_iter().flatten().collect()
}

fn row(call: &Call) -> String {
    let key = call.key.as_ref().map(|key| format!("<br><code class=\"faint\">{}</code>", escaped(key)));
    let attempt = if call.attempt > 1 { format!(" (attempt {})", call.attempt) } else { String::new() };
    let answer = escaped(&call.outcome());
    let class = if call.failed { " class=\"bad\"" } else { "" };
    format!(
        "<tr><td>{}{attempt}{}</td><td>{}</td><td>{}</td><td>{}</td><td{class}><code>{answer}</code></td></tr>\n",
        escaped(&format!("{} {}", call.node, call.name)),
        key.unwrap_or_default(),
        call.kind,
        time(call.began_us),
        took(call).unwrap_or_default(),
    )
}

fn state(state: &RawValue) -> String {
    // Lines are kept: what steers is escaped by JSON already, and the rest line by line.
    let text = shortened(&indented(state.get()), VALUE);
    let lines: Vec<_> = text.lines().map(escaped).collect();
    format!("<pre>{}</pre>\n", lines.join("\n"))
}
