//! What a person sees: a live picture at a terminal, a line for each kill otherwise, and the table at the end.
//!
//! The picture goes to standard error, the result to standard output. `NO_COLOR` is honoured.

use super::tally::Tally;
use crate::{
    output::{BAD, FAINT, GOOD, Output, STRONG, WARN, clean},
    table::wrapped,
    view::counted,
};
use anstyle::Style;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

/// Events that are shown at a time.
const EVENTS: usize = 6;
/// The columns of the bar, where there is room, and of what stands beside it.
const BAR: usize = 40;
const BESIDE_BAR: usize = 38;
/// Kill marks that fit into a line.
const MARKS: usize = 50;

const CHARGE: &str = "charge";
const REPEAT: &str = "repeat";

/// When a kill struck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kill {
    /// At a moment drawn from the seed.
    AnyMoment,
    /// After this order's charge was applied, before the answer.
    Between(String),
    /// When a node had just seen an answer.
    Upon,
}

/// What there is to see.
#[derive(Debug, Default)]
pub(super) struct Scene {
    orders: u32,
    planned: u32,
    seed: u64,
    ledger: u32,
    worker: u32,
    finished: BTreeSet<u32>,
    pub(super) kills: Vec<Kill>,
    /// From each kill to the first order that the next worker took over.
    recoveries: Vec<Duration>,
    calls: usize,
    charges: usize,
    pub(super) failures: Vec<String>,
    events: VecDeque<Event>,
}

/// Something that happened, and how often in a row.
#[derive(Debug)]
struct Event {
    kind: &'static str,
    style: Style,
    text: String,
    more: usize,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8}  {}", self.kind, self.text)?;
        if self.more > 0 { write!(f, " (and {} more)", self.more) } else { Ok(()) }
    }
}

impl Scene {
    pub(super) fn new(orders: u32, planned: u32, seed: u64, ledger: u32) -> Self {
        Self { orders, planned, seed, ledger, ..Self::default() }
    }

    /// Notes an event; calls to the bank come in bursts, of which the first is told and the others are counted.
    fn event(&mut self, kind: &'static str, style: Style, text: String) {
        let in_bursts = matches!(kind, CHARGE | REPEAT);
        if let Some(last) = self.events.back_mut().filter(|last| in_bursts && last.kind == kind) {
            last.more += 1;
            return;
        }
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { kind, style, text, more: 0 });
    }

    /// A worker was started.
    pub(super) fn began(&mut self, worker: u32) {
        self.worker = worker;
    }

    /// The worker was killed.
    pub(super) fn killed(&mut self, kill: Kill) {
        let worker = self.worker;
        let text = match &kill {
            Kill::AnyMoment => format!("worker {worker}, at a random moment"),
            Kill::Between(order) => format!("worker {worker}: {order} is charged, the answer never arrives"),
            Kill::Upon => format!("worker {worker}, as its code has just seen an answer"),
        };
        self.event("SIGKILL", BAD, text);
        self.kills.push(kill);
    }

    /// The next worker took up the first order, so long after the kill.
    pub(super) fn recovered(&mut self, after: Duration) {
        self.recoveries.push(after);
        self.event("recovery", GOOD, format!("worker {} goes on after {}", self.worker, ms(after)));
    }

    /// The bank got a call.
    pub(super) fn called(&mut self, order: &str, cents: u64, applied: bool) {
        self.calls += 1;
        self.charges += usize::from(applied);
        if applied {
            self.event(CHARGE, FAINT, format!("{order} pays {}.{:02}", cents / 100, cents % 100));
        } else {
            self.event(REPEAT, WARN, format!("{order} asks again with its first key: no second charge"));
        }
    }

    /// An order is shipped, in this life or an earlier one.
    pub(super) fn finished(&mut self, number: u32) {
        self.finished.insert(number);
    }

    /// An order failed.
    pub(super) fn failed(&mut self, error: &str) {
        self.event("failed", BAD, clean(error));
        self.failures.push(error.to_owned());
    }

    fn headline(&self) -> String {
        format!(
            "Paying {} while SIGKILL hits their worker {}; a bank in another process counts.",
            counted(self.orders.into(), "order"),
            counted(self.planned.into(), "time")
        )
    }

    /// A mark for every kill, also for those to come.
    fn marks(&self, paint: Paint) -> String {
        if self.planned as usize > MARKS {
            return String::new();
        }
        let struck = self.kills.iter().map(|kill| match kill {
            Kill::AnyMoment => paint.on(BAD, "✗"),
            Kill::Between(_) => paint.on(WARN, "◆"),
            Kill::Upon => paint.on(WARN, "▲"),
        });
        let to_come = (self.planned as usize).saturating_sub(self.kills.len());
        struck.chain((0..to_come).map(|_| paint.on(FAINT, "·"))).collect()
    }

    fn kill_row(&self, paint: Paint) -> String {
        let [between, upon] = self.aimed();
        let legend = format!("{between} ◆ before, {upon} ▲ upon an answer");
        let counts = format!("{}/{}", self.kills.len(), self.planned);
        format!("  kills   {}  {counts}   {}", self.marks(paint), paint.on(FAINT, &legend))
    }

    fn worker_row(&self, paint: Paint) -> String {
        let recovered = self.recoveries.last().map(|last| format!("recovered in {}", ms(*last)));
        let recovered = paint.on(GOOD, &recovered.unwrap_or_default());
        format!("  worker  pid {}   {recovered}", self.worker)
    }

    fn bank_row(&self, paint: Paint) -> String {
        let repeats = format!("{} repeated with the same key", self.calls - self.charges);
        let (charges, calls) = (counted(self.charges as u64, "charge"), counted(self.calls as u64, "call"));
        format!("  bank    pid {}   {charges} in {calls}, {}", self.ledger, paint.on(WARN, &repeats))
    }

    /// Kills between a charge and its answer, and upon an answer.
    pub(super) fn aimed(&self) -> [usize; 2] {
        let between = self.kills.iter().filter(|kill| matches!(kill, Kill::Between(_))).count();
        [between, self.kills.iter().filter(|kill| matches!(kill, Kill::Upon)).count()]
    }

    fn recovery(&self) -> Option<String> {
        let mut all = self.recoveries.clone();
        all.sort();
        let (median, longest) = (all.get(all.len() / 2)?, all.last()?);
        Some(format!("Recovery took {} in the median, {} at most.", ms(*median), ms(*longest)))
    }
}

fn ms(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

/// Colours, where they are wanted.
#[derive(Debug, Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn on(self, style: Style, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// How it is shown.
pub(super) enum Picture {
    /// Not at all.
    Nothing,
    /// A line now and then.
    Lines,
    /// A picture that changes.
    Live(Box<Live>),
}

/// The rows of a live picture.
pub(super) struct Live {
    paint: Paint,
    /// The columns of the bar.
    bar: usize,
    head: ProgressBar,
    orders: ProgressBar,
    facts: Vec<ProgressBar>,
    events: Vec<ProgressBar>,
}

impl Picture {
    /// A live picture for a terminal, lines for a file or a pipe.
    pub(super) fn new(out: &Output) -> Self {
        match (out.is_json(), io::stderr().is_terminal()) {
            (true, _) => Self::Nothing,
            (false, false) => Self::Lines,
            (false, true) => Self::Live(Box::new(Live::new(out))),
        }
    }

    /// The show begins.
    pub(super) fn begin(&mut self, scene: &Scene) {
        match self {
            Self::Nothing => {}
            Self::Lines => say(&format!("{} (seed {}, bank {})", scene.headline(), scene.seed, scene.ledger)),
            Self::Live(live) => live.begin(scene),
        }
    }

    /// Something changed.
    pub(super) fn draw(&mut self, scene: &Scene) {
        if let Self::Live(live) = self {
            live.draw(scene);
        }
    }

    /// The worker was killed.
    pub(super) fn killed(&mut self, scene: &Scene) {
        self.draw(scene);
        if let (Self::Lines, Some(event)) = (&self, scene.events.back()) {
            let (done, orders, kills) = (scene.finished.len(), scene.orders, scene.kills.len());
            say(&format!("kill {kills:>3}/{}  orders {done:>3}/{orders}  {event}", scene.planned));
        }
    }
}

impl Live {
    fn new(out: &Output) -> Self {
        let paint = Paint(out.paints_remarks());
        let bar = out.error_width().map_or(BAR, |width| width.saturating_sub(BESIDE_BAR).clamp(1, BAR));
        let all = MultiProgress::new();
        let row = || {
            let bar = ProgressBar::new(0).with_style(style("{wide_msg}"));
            all.add(bar)
        };
        let head = row();
        let orders = all.add(ProgressBar::new(0));
        let facts = (0..4).map(|_| row()).collect();
        let events = (0..EVENTS).map(|_| row()).collect();
        Self { paint, bar, head, orders, facts, events }
    }

    fn begin(&mut self, scene: &Scene) {
        self.head.set_message(self.paint.on(STRONG, &scene.headline()));
        self.orders.set_length(scene.orders.into());
        let (width, colors) = (self.bar, if self.paint.0 { ".green/dim" } else { "" });
        let bar = format!("{{bar:{width}{colors}}}");
        let template = format!("  orders  {bar}  {{pos}}/{{len}} shipped   {{elapsed}}");
        self.orders.set_style(style(&template).progress_chars("█▌░"));
        self.orders.enable_steady_tick(Duration::from_millis(100));
        self.draw(scene);
    }

    fn draw(&mut self, scene: &Scene) {
        let paint = self.paint;
        self.orders.set_position(scene.finished.len() as u64);
        let facts = [scene.kill_row(paint), scene.worker_row(paint), scene.bank_row(paint), String::new()];
        for (row, text) in self.facts.iter().zip(facts) {
            row.set_message(text);
        }
        for (row, event) in self.events.iter().zip(&scene.events) {
            row.set_message(paint.on(event.style, &format!("  {event}")));
        }
    }
}

/// Whatever ended the show: the events go, the rest stays as it is, and what is said next begins a line.
impl Drop for Live {
    fn drop(&mut self) {
        self.events.iter().for_each(ProgressBar::finish_and_clear);
        for row in [&self.head, &self.orders].into_iter().chain(&self.facts) {
            row.abandon();
        }
    }
}

/// A line for whoever reads along; one that nobody can read is no failure.
fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The table, and what it proves.
pub(super) fn result(tally: &Tally, scene: &Scene, out: &Output) -> String {
    let room = out.width().unwrap_or(usize::MAX);
    let style = if tally.holds() { GOOD } else { BAD };
    let verdict = tally.verdict(scene.aimed());
    let mut lines = table(tally, room, out);
    lines.push(String::new());
    let verdict = verdict.lines().flat_map(|line| wrapped(line, room));
    lines.extend(verdict.map(|line| out.paint(style, &line)));
    let recovery = scene.recovery();
    let recovery = recovery.map(|took| format!("{took} The kills were drawn from seed {}.", scene.seed));
    lines.extend(recovery.into_iter().flat_map(|line| wrapped(&line, room)));
    lines.extend(scene.failures.iter().map(|failure| out.paint(BAD, &clean(failure))));
    lines.join("\n") + "\n"
}

/// Side by side, or one below the other where that is too wide.
fn table(tally: &Tally, room: usize, out: &Output) -> Vec<String> {
    let (mut names, mut values) = (String::new(), String::new());
    for (name, value) in tally.columns() {
        let width = name.len().max(value.len()) + 3;
        names.push_str(&format!("{name:>width$}"));
        values.push_str(&format!("{value:>width$}"));
    }
    if names.len() <= room {
        return vec![out.paint(FAINT, &names), out.paint(STRONG, &values)];
    }
    let row = |(name, value): (_, String)| {
        format!("{} {}", out.paint(FAINT, &format!("{name:>13}")), out.paint(STRONG, &value))
    };
    tally.columns().into_iter().map(row).collect()
}
