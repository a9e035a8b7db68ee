//! `hapax schedule`: runs that start by the clock; what is kept of them in the store. Firing takes the code of the graphs.

use crate::{
    failure::Failure,
    output::{BAD, BUSY, FAINT, GOOD, clean},
    session::Session,
    table::{Cell, Table},
    view::{counted, time},
};
use anstyle::Style;
use clap::{Args, Subcommand, ValueEnum};
use hapax::{
    core::error::code,
    schedule::{Overlap, Schedule as Kept, ScheduleRecord, Timetable, When},
};
use serde::Serialize;

const AFTER_HELP: &str = "\
A schedule is a row of the store. Its runs are started by the workers that hold its graph, each time by one of them: by \
`worker`, or by a program that calls `engine.scheduler(…)`. Each run is named by the schedule and the time that it is for.

Examples:
  hapax schedule add opening --cron '0 9 * * MON-FRI' \\
      --zone Europe/Berlin --graph reports --input '{\"pages\":7}'
  hapax schedule list
  hapax schedule next opening -n 5
  hapax schedule pause opening
  hapax list --tag schedule=opening";

const ADD_HELP: &str = "\
A cron expression has five fields: minute, hour, day of the month, month, day of the week; or six with seconds in front, or \
seven with years behind. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` stand for what they say.

Where clocks are put forward or back, an expression with one time of the day fires once: of a time that doesn't exist at the \
first one behind the gap, of one that comes twice at the first. All others go on in real time.

Examples:
  hapax schedule add opening --cron '0 9 * * MON-FRI' \\
      --zone Europe/Berlin --graph reports --input '{\"pages\":7}'
  hapax schedule add sweep --cron '*/5 * * * *' --graph sweeps \\
      --overlap queue --catch-up 3";

/// Add, list, pause and remove schedules, which start runs by the clock
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, arg_required_else_help = true)]
pub(crate) struct Schedule {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a schedule; the same one again changes nothing
    #[command(after_help = ADD_HELP)]
    Add(Add),
    /// List the schedules, with what has become of them
    #[command(
        after_help = "Example:\n  hapax schedule list --json | jq -r '.schedules[] | select(.paused) | .name'"
    )]
    List,
    /// Pause schedules: they start nothing until they are resumed
    #[command(after_help = "Example:\n  hapax schedule pause opening")]
    Pause(Names),
    /// Let paused schedules go on with the next time that comes
    #[command(after_help = "Example:\n  hapax schedule resume opening")]
    Resume(Names),
    /// Delete schedules; their runs stay
    #[command(after_help = "Example:\n  hapax schedule remove opening")]
    Remove(Names),
    /// Show when a schedule fires next
    #[command(after_help = "Example:\n  hapax schedule next opening -n 5")]
    Next(Next),
}

#[derive(Debug, Args)]
struct Add {
    /// Its name, with which the names of its runs begin
    name: String,
    /// When it fires: a cron expression
    #[arg(long, value_name = "EXPRESSION")]
    cron: String,
    /// The time zone that the expression is read in, by its IANA name
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    zone: String,
    /// The graph of which it starts runs
    #[arg(long, value_name = "GRAPH")]
    graph: String,
    /// The state that they begin with
    #[arg(long, value_name = "JSON", default_value = "{}")]
    input: String,
    /// What becomes of a time while the run before it isn't over
    #[arg(long, value_enum, default_value_t = Policy::Skip)]
    overlap: Policy,
    /// How many times are made up for after an outage at the most, the latest of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    catch_up: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Policy {
    /// It is passed over, and counted
    Skip,
    /// It waits until that run is over
    Queue,
    /// That run is cancelled, and the new one starts at once
    Cancel,
}

impl From<Policy> for Overlap {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Skip => Overlap::Skip,
            Policy::Queue => Overlap::Queue,
            Policy::Cancel => Overlap::Cancel,
        }
    }
}

#[derive(Debug, Args)]
struct Names {
    /// The schedules
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, Args)]
struct Next {
    /// The schedule
    name: String,
    /// How many times, 10,000 at the most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    count: u16,
}

/// A schedule for programs.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    state: &'static str,
    graph: &'a str,
    cron: &'a str,
    zone: &'a str,
    overlap: &'static str,
    catch_up: u32,
    paused: bool,
    next_at: Option<String>,
    last_at: Option<String>,
    last_run: Option<&'a str>,
    started: u64,
    skipped: u64,
    missed: u64,
    created_at: String,
}

impl<'a> View<'a> {
    fn of(record: &'a ScheduleRecord, now_us: i64) -> Self {
        let Kept { key, graph, cron, zone, overlap, catch_up, .. } = &record.schedule;
        Self {
            name: &key.name,
            state: standing(record, now_us).0,
            graph,
            cron,
            zone,
            overlap: overlap.word(),
            catch_up: *catch_up,
            paused: record.paused,
            next_at: record.next_us.map(Timetable::shown),
            last_at: record.last.as_ref().map(|last| Timetable::shown(last.at_us)),
            last_run: record.last.as_ref().map(|last| last.run.as_str()),
            started: record.started,
            skipped: record.skipped,
            missed: record.missed,
            created_at: time(record.created_at_us),
        }
    }
}

/// One that is due for longer than this has nobody who fires it, or waits for the run before.
const LATE_US: i64 = 5_000_000;

/// Where a schedule stands, in one word.
fn standing(record: &ScheduleRecord, now_us: i64) -> (&'static str, Style) {
    match record.next_us {
        _ if record.paused => ("paused", FAINT),
        None => ("over", FAINT),
        Some(next_us) if next_us < now_us - LATE_US => ("overdue", BAD),
        Some(next_us) if next_us <= now_us => ("due", BUSY),
        Some(_) => ("active", GOOD),
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    schedules: Vec<View<'a>>,
}

#[derive(Serialize)]
struct Coming<'a> {
    name: &'a str,
    zone: &'a str,
    times: Vec<Time>,
}

#[derive(Serialize)]
struct Time {
    at: String,
    local: String,
}

#[derive(Serialize)]
struct Removed<'a> {
    removed: &'a [String],
}

impl Schedule {
    /// Whether it changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        matches!(self.action, Action::List | Action::Next(_))
    }

    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        match self.action {
            Action::Add(add) => add.run(session).await,
            Action::List => list(session).await,
            Action::Next(next) => next.show(session).await,
            Action::Pause(Names { names }) => {
                let mut records = vec![];
                for name in &names {
                    records.push(session.engine.pause_schedule(name).await?);
                }
                tell(session, &records)
            }
            Action::Resume(Names { names }) => {
                let mut records = vec![];
                for name in &names {
                    records.push(session.engine.resume_schedule(name).await?);
                }
                tell(session, &records)
            }
            Action::Remove(Names { names }) => {
                for name in &names {
                    session.engine.remove_schedule(name).await?;
                }
                session.out.answer(&Removed { removed: &names }, || {
                    format!("{} removed\n", counted(names.len() as u64, "schedule"))
                })
            }
        }
    }
}

impl Add {
    async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let when = When::cron(self.cron).zone(self.zone).overlap(self.overlap.into()).catch_up(self.catch_up);
        let input = super::payload(&self.input)?;
        let added = session.engine.add_schedule(&self.name, when, &self.graph, input).await?;
        tell(session, &[added])?;
        if session.embedded && session.graph(&self.graph).is_none() {
            session.out.remark(&format!(
                "this program has no graph `{}`: a worker that has it starts the runs",
                clean(&self.graph)
            ));
        }
        Ok(())
    }
}

/// What became of schedules that were changed.
fn tell(session: &Session<'_>, records: &[ScheduleRecord]) -> Result<(), Failure> {
    let now_us = session.engine.store().clock().now_us();
    let answer = Listed { schedules: records.iter().map(|record| View::of(record, now_us)).collect() };
    session.out.answer(&answer, || {
        let line = |record: &ScheduleRecord| {
            let name = clean(&record.schedule.key.name);
            match record.next_us {
                _ if record.paused => format!("{name} is paused\n"),
                None => format!("{name} is over: no further time comes\n"),
                Some(next_us) => format!("{name} fires next at {}\n", local(&record.schedule, next_us)),
            }
        };
        records.iter().map(line).collect()
    })
}

/// A time as the schedule's zone has it.
fn local(schedule: &Kept, at_us: i64) -> String {
    Timetable::new(&schedule.cron, &schedule.zone)
        .map_or_else(|_| Timetable::shown(at_us), |timetable| timetable.local(at_us))
}

async fn list(session: &Session<'_>) -> Result<(), Failure> {
    let records = session.engine.schedules().await?;
    let now_us = session.engine.store().clock().now_us();
    let answer = Listed { schedules: records.iter().map(|record| View::of(record, now_us)).collect() };
    session.out.answer(&answer, || {
        if records.is_empty() {
            return "no schedules\n".into();
        }
        let head = ["NAME", "STATE", "GRAPH", "CRON", "NEXT", "OVERLAP", "STARTED", "SKIPPED", "MISSED"];
        let mut table = Table::new(&head);
        for record in &records {
            let (word, style) = standing(record, now_us);
            let schedule = &record.schedule;
            table.row(vec![
                Cell::new(&*schedule.key.name),
                Cell::styled(word, style),
                Cell::new(&*schedule.graph),
                Cell::new(format!("{} {}", schedule.cron, schedule.zone)),
                Cell::new(record.next_us.map_or_else(String::new, |at_us| local(schedule, at_us))),
                Cell::new(schedule.overlap.word()),
                Cell::new(record.started.to_string()),
                Cell::new(record.skipped.to_string()),
                Cell::new(record.missed.to_string()),
            ]);
        }
        table.render(session.out)
    })
}

impl Next {
    async fn show(&self, session: &Session<'_>) -> Result<(), Failure> {
        let record = session.engine.schedule(&self.name).await?;
        let times = session.engine.upcoming(&self.name, self.count.into()).await?;
        let schedule = &record.schedule;
        let shown = |at_us: &i64| Time { at: Timetable::shown(*at_us), local: local(schedule, *at_us) };
        let times: Vec<Time> = times.iter().map(shown).collect();
        let answer = Coming { name: &self.name, zone: &schedule.zone, times };
        session.out.answer(&answer, || {
            let mut text: String =
                answer.times.iter().map(|time| format!("{}  {}\n", time.local, time.at)).collect();
            if text.is_empty() {
                text = "no further time comes\n".into();
            }
            text
        })?;
        if record.paused {
            session.out.remark("it is paused: these come if it is resumed now");
        }
        Ok(())
    }
}

/// What to do about a schedule that is refused.
pub(crate) fn cure(code: hapax::core::error::Code) -> Option<&'static str> {
    Some(match code {
        code::BAD_CRON => {
            "use five fields (minute hour day month weekday), six with seconds in front, or a word like @daily"
        }
        code::BAD_ZONE => "use a name of the IANA database, such as Europe/Berlin or UTC",
        code::SCHEDULE_EXISTS => "`schedule remove` it first, or choose another name",
        code::SCHEDULE_NOT_FOUND => {
            "`schedule list` shows those that are there; it may live in another store or namespace"
        }
        code::BAD_SCHEDULE => "use a name of up to 200 bytes, and a catch-up limit from 1 to 1000",
        code::SCHEDULE_INPUT => "mend the input: it must be a whole state of the graph, as JSON",
        _ => return None,
    })
}
