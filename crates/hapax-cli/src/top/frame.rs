//! A view as a frame: what matters most stands first, and what doesn't fit is left out from the end.

use super::{
    look::Look,
    pulse::Pulse,
    view::{Order, Pane, View},
};
use crate::{
    output::clean,
    table::cut_within,
    view::{ago, roughly, time},
};
use hapax_store::{Holding, RunRecord, Tally};
use ratatui::{
    Frame, Terminal,
    backend::TestBackend,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table},
};
use std::time::Duration;

const PLAIN: Style = Style::new();
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const BUSY: Style = Style::new().fg(Color::Cyan);
const WARN: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Lines of numbers below the title.
const NUMBERS: u16 = 5;
/// What a pane needs besides its rows: its frame, and the heading.
const AROUND: u16 = 3;
/// Lines that a frame without a terminal gives to a pane at the most.
const ROWS: u16 = 33;
/// More rows than any screen has.
const MANY: u16 = 10_000;
/// A message that waits for longer is worth a look, and so is a run.
const LONG: Duration = Duration::from_secs(60);

const HELP: [&str; 9] = [
    "q, Esc, Ctrl-C   quit",
    "p, space         pause, go on",
    "tab, ← →         the other pane",
    "↑ ↓, PgUp PgDn   scroll the pane",
    "s                sort runs: busiest, or longest unchanged",
    "?                this help",
    "",
    "Queue: runs that could go on and that nobody holds.",
    "Rates: from the latest two looks, by the store's clock.",
];

/// Draws a view.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let (workers, runs) = heights(view);
    let room = frame.area().height.saturating_sub(NUMBERS + 2);
    // The workers get a third of the room, or what the runs leave.
    let most = (room / 3).max(AROUND + 1).max(room.saturating_sub(runs));
    let [title, numbers, held, runs, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(NUMBERS),
        Constraint::Length(workers.min(most)),
        Constraint::Min(AROUND),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_title(frame, title, view);
    draw_numbers(frame, numbers, view);
    draw_workers(frame, held, view);
    draw_runs(frame, runs, view);
    draw_foot(frame, foot, view);
    if view.help {
        draw_help(frame);
    }
}

/// What the panes need to show all of their rows.
fn heights(view: &View) -> (u16, u16) {
    let height =
        |rows: usize| if rows == 0 { AROUND } else { u16::try_from(rows).unwrap_or(MANY).min(MANY) + AROUND };
    (height(view.look().fleet.holders.len()), height(view.runs().len()))
}

/// A view as text, as high as it needs to be.
pub(super) fn text(view: &View, columns: u16) -> String {
    let (workers, runs) = heights(view);
    let lines = drawn(view, columns, 1 + NUMBERS + workers.min(ROWS) + runs.min(ROWS) + 1);
    let kept = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    // The last line is about keys, which nobody can press.
    lines[..kept.saturating_sub(1)].iter().map(|line| format!("{line}\n")).collect()
}

/// The lines of a frame of that size, without what fills them up.
pub(super) fn drawn(view: &View, columns: u16, rows: u16) -> Vec<String> {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(_) = terminal.draw(|frame| draw(frame, view));
    let cells = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    cells.chunks(usize::from(columns).max(1)).map(line).collect()
}

/// A style where colours are wanted; what is bold or faint stays so.
fn styled(view: &View, style: Style) -> Style {
    if view.colors { style } else { Style { fg: None, ..style } }
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let place = [&view.title.store, &view.title.namespace];
    let place = place.map(|text| clean(text)).into_iter().filter(|text| !text.is_empty());
    let at = if view.has_looked { time(view.look().census.at_us) } else { "looking".into() };
    let at = at.split_once('.').map_or(at.clone(), |(second, _)| format!("{second}Z"));
    let state = if view.paused { " paused " } else { "" };
    let right = Line::from(vec![
        Span::styled(state, styled(view, WARN).add_modifier(Modifier::REVERSED)),
        Span::styled(format!(" {at}"), FAINT),
    ]);
    let room = usize::from(area.width).saturating_sub(right.width() + 11);
    let place = cut_within(&place.collect::<Vec<_>>().join("  "), room);
    let left = vec![Span::styled("hapax top", STRONG), Span::raw("  "), Span::raw(place)];
    frame.render_widget(Paragraph::new(Line::from(left)), area);
    frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), area);
}

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let Look { fleet, backlog, .. } = view.look();
    let lines = vec![
        statuses(view, "Runs", &["running", "pending", "waiting", "paused"]),
        statuses(view, "", &["in_doubt", "failed", "cancelled", "succeeded"]),
        rates(view),
        queue(view, fleet.waiting, fleet.lag),
        outbox(view, backlog.pending, backlog.dead, backlog.lag()),
    ];
    let used = lines[2].width() as u16 + 3;
    frame.render_widget(Paragraph::new(lines), area);
    let curve = Rect { x: area.x + used, y: area.y + 2, width: area.width.saturating_sub(used), height: 1 };
    let curve = curve.intersection(area);
    let latest = view.curve.len().saturating_sub(usize::from(curve.width));
    // Where nothing moves the curve is flat, and lies at the bottom.
    let highest = view.curve.iter().copied().max().unwrap_or(0).max(1);
    let bars = Sparkline::default().data(view.curve.iter().skip(latest).copied()).max(highest);
    frame.render_widget(bars.style(styled(view, BUSY)), curve);
}

fn label(text: &str) -> Span<'static> {
    Span::styled(format!("{text:<8} "), STRONG)
}

/// How many runs stand where. What needs somebody stands out, unless there is none.
fn statuses(view: &View, name: &str, words: &[&str]) -> Line<'static> {
    let mut spans = vec![label(name)];
    for word in words {
        let tally = view.look().census.standing(word);
        let style = match *word {
            _ if tally.is_none() => FAINT,
            "running" => BUSY,
            "failed" | "in_doubt" => BAD,
            "paused" => WARN,
            "succeeded" => GOOD,
            _ => PLAIN,
        };
        spans.push(Span::styled(format!("{} ", word.replace('_', " ")), FAINT));
        spans.push(Span::styled(format!("{:<9}", counted(tally)), styled(view, style)));
    }
    Line::from(spans)
}

fn rates(view: &View) -> Line<'static> {
    let mut spans = vec![label("Rates")];
    match view.pulse() {
        None => spans.push(Span::styled("after the second look", FAINT)),
        Some(Pulse { steps_per_s, at_least, created_per_s, ended_per_s, .. }) => {
            let mark = if *at_least { "≥" } else { "" };
            spans.push(Span::raw(format!("{mark}{} steps/s   ", rate(*steps_per_s))));
            spans.push(Span::raw(format!("{} runs created/s   ", rate(*created_per_s))));
            let ended = ended_per_s.map_or_else(|| "?".to_owned(), rate);
            spans.push(Span::raw(format!("{ended} ended/s")));
        }
    }
    Line::from(spans)
}

fn queue(view: &View, waiting: u64, lag: Duration) -> Line<'static> {
    let said = match waiting {
        0 => Span::styled("no run waits for a worker", FAINT),
        1 => Span::styled(format!("1 run waits for a worker, for {}", roughly(lag)), age_style(view, lag)),
        many => Span::styled(
            format!("{} runs wait for a worker, the first for {}", grouped(many), roughly(lag)),
            age_style(view, lag),
        ),
    };
    Line::from(vec![label("Queue"), said])
}

fn outbox(view: &View, pending: Tally, dead: Tally, lag: Duration) -> Line<'static> {
    let mut spans = vec![label("Outbox")];
    match pending.is_none() {
        true => spans.push(Span::styled("nothing to deliver", FAINT)),
        false => spans.push(Span::styled(
            format!("{} to deliver, the oldest for {}", counted(pending), roughly(lag)),
            age_style(view, lag),
        )),
    }
    if !dead.is_none() {
        spans.push(Span::styled(format!("   {} dead", counted(dead)), styled(view, BAD)));
    }
    Line::from(spans)
}

fn age_style(view: &View, age: Duration) -> Style {
    if age > LONG { styled(view, WARN) } else { PLAIN }
}

/// The frame of a pane; the one that the arrows move is bright.
fn pane(view: &View, which: Pane, title: String) -> Block<'static> {
    let style = if view.pane == which { styled(view, BUSY) } else { FAINT };
    Block::bordered().border_style(style).title(Span::styled(title, STRONG))
}

/// The title of a pane, with what of it is seen.
fn titled(name: &str, rows: usize, scrolled: usize, area: Rect) -> String {
    let room = usize::from(area.height.saturating_sub(AROUND));
    let last = (scrolled + room).min(rows);
    match rows > room || scrolled > 0 {
        true => format!(" {name} {}-{last} of {rows} ", (scrolled + 1).min(rows)),
        false => format!(" {name} {rows} "),
    }
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let (holders, scrolled) = (&view.look().fleet.holders, view.scrolled[Pane::Workers as usize]);
    let scrolled = scrolled.min(holders.len().saturating_sub(1));
    let block = pane(view, Pane::Workers, titled("Workers", holders.len(), scrolled, area));
    if holders.is_empty() {
        let said = if view.has_looked { "nobody holds a run" } else { "" };
        return frame.render_widget(Paragraph::new(Span::styled(said, FAINT)).block(block), area);
    }
    let room = usize::from(area.width).saturating_sub(2 + 3 * 10);
    let row = |holding: &Holding| {
        let lease = match holding.lease_left.is_zero() {
            true => Cell::from(Span::styled("over", styled(view, BAD))),
            false => Cell::from(Span::styled(roughly(holding.lease_left), styled(view, GOOD))),
        };
        let [runs, epoch] = [holding.runs, holding.epoch].map(|number| right(grouped(number), 8));
        Row::new(vec![Cell::from(cut_within(&clean(&holding.owner), room)), runs, lease, epoch])
    };
    let widths = [Constraint::Min(8), Constraint::Length(8), Constraint::Length(8), Constraint::Length(8)];
    let head = Row::new(vec![Cell::from("WORKER"), right("RUNS", 8), Cell::from("LEASE"), right("EPOCH", 8)]);
    let rows = holders.iter().skip(scrolled).map(row);
    frame.render_widget(Table::new(rows, widths).header(head.style(FAINT)).block(block), area);
}

fn right(text: impl Into<String>, width: usize) -> Cell<'static> {
    Cell::from(format!("{:>width$}", text.into()))
}

fn draw_runs(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let (runs, name) = (
        view.runs(),
        match view.order {
            Order::Busiest => "Runs, busiest first:",
            Order::LongestUnchanged => "Runs, longest unchanged first:",
        },
    );
    let scrolled = view.scrolled[Pane::Runs as usize].min(runs.len().saturating_sub(1));
    let block = pane(view, Pane::Runs, titled(name, runs.len(), scrolled, area));
    if runs.is_empty() {
        let said = if view.has_looked { "all runs are over" } else { "" };
        return frame.render_widget(Paragraph::new(Span::styled(said, FAINT)).block(block), area);
    }
    // The worker is the first to be left out: the pane above has it.
    let owner = if area.width >= 110 { 30 } else { 0 };
    // Then the graph, the rate and the age: which run it is stays to the last.
    let graph = if area.width >= 60 { area.width / 6 } else { 0 };
    let (rate, changed) = (if area.width >= 70 { 8 } else { 0 }, if area.width >= 50 { 8 } else { 0 });
    let rest = usize::from(area.width.saturating_sub(2 + 10 + 7 + rate + changed + 6 + graph + owner));
    let widths = [
        Constraint::Length(rest as u16),
        Constraint::Length(graph),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(rate),
        Constraint::Length(changed),
        Constraint::Length(owner),
    ];
    let columns = Columns { run: rest, graph: graph.into(), owner: owner.into() };
    let head = ["RUN", "GRAPH", "STATUS"].map(Cell::from).into_iter();
    let head =
        head.chain([right("STEP", 7), right("STEPS/S", 8), right("CHANGED", 8), Cell::from("HELD BY")]);
    let rows =
        runs.into_iter().skip(scrolled).take(area.height.into()).map(|run| run_row(view, run, &columns));
    frame.render_widget(Table::new(rows, widths).header(Row::new(head).style(FAINT)).block(block), area);
}

/// How wide the columns of names are.
struct Columns {
    run: usize,
    graph: usize,
    owner: usize,
}

fn run_row(view: &View, run: &RunRecord, columns: &Columns) -> Row<'static> {
    let style = match run.status.word() {
        "running" => BUSY,
        "in_doubt" => BAD,
        "paused" => WARN,
        _ => PLAIN,
    };
    let moved = view.pulse().and_then(|pulse| pulse.of(&run.key.run)).filter(|moved| *moved > 0.0);
    let changed = ago(run.updated_at_us, view.look().census.at_us);
    Row::new(vec![
        Cell::from(cut_within(&clean(run.key.run.as_str()), columns.run)),
        Cell::from(cut_within(&clean(&run.graph), columns.graph)),
        Cell::from(Span::styled(run.status.word().replace('_', " "), styled(view, style))),
        right(grouped(run.step), 7),
        right(moved.map_or_else(String::new, rate), 8),
        right(changed, 8),
        Cell::from(cut_within(&clean(run.owner.as_deref().unwrap_or_default()), columns.owner)),
    ])
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let line = match &view.error {
        Some(error) => {
            let text = format!("cannot look, goes on trying: {}", clean(error));
            Span::styled(crate::table::cut(&text, area.width.into()), styled(view, BAD))
        }
        None => Span::styled("q quit  p pause  tab pane  ↑↓ scroll  s sort  ? help", FAINT),
    };
    frame.render_widget(Paragraph::new(Line::from(line)), area);
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = HELP.into_iter().map(Line::from).collect();
    let (width, height) = (60.min(frame.area().width), (HELP.len() as u16 + 2).min(frame.area().height));
    let [area] = Layout::horizontal([Constraint::Length(width)])
        .flex(ratatui::layout::Flex::Center)
        .areas(frame.area());
    let [area] =
        Layout::vertical([Constraint::Length(height)]).flex(ratatui::layout::Flex::Center).areas(area);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" Help ")), area);
}

/// A number whose digits are in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted(tally: Tally) -> String {
    format!("{}{}", grouped(tally.count), if tally.or_more { "+" } else { "" })
}

/// As many digits as tell something.
fn rate(per_s: f64) -> String {
    if per_s < 10.0 { format!("{per_s:.1}") } else { grouped(per_s.round() as u64) }
}
