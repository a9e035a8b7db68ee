//! When a schedule fires: a cron expression read in a time zone.
//!
//! Invariant: a pure function of expression, zone and a time. The zones' rules are those that this program was built with,
//! the same on every machine; no file of the system is read. Times only ever go forward.
//!
//! Where clocks are put forward or back: an expression with one second, one minute and one hour fires once on each day that
//! it names. Of a time that doesn't exist it fires at the first one behind the gap; of a time that comes twice at the first.
//! Every other expression (wildcards, steps, ranges, lists) goes by the clock on the wall as real time passes, by `croner`'s
//! rules: nothing fires in a gap, and what matches twice fires twice.

use crate::{
    canary,
    error::{Code, Coded, code},
    limits::{MAX_CATCH_UP, MAX_PASSED_OVER},
};
use croner::{
    Cron, JobType,
    errors::CronError,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    Timestamp, Zoned,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};
use std::collections::VecDeque;

/// A cron expression in a time zone.
///
/// ```
/// use hapax_core::schedule::Timetable;
/// let timetable = Timetable::new("30 2 * * *", "Europe/Berlin")?;
/// let noon_us = 1_774_695_600_000_000; // Saturday, 28 March 2026, 12:00 in Berlin
/// let next_us = timetable.next_after(noon_us).unwrap();
/// // In that night the clocks go from 2:00 to 3:00: there is no half past two, so it fires at 3:00, once.
/// assert_eq!(Timetable::shown(next_us), "2026-03-29T01:00:00Z");
/// assert_eq!(Timetable::shown(timetable.next_after(next_us).unwrap()), "2026-03-30T00:30:00Z");
/// # Ok::<(), hapax_core::schedule::TimetableError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Timetable {
    cron: Cron,
    zone: TimeZone,
}

/// An expression or a zone that can't be used.
///
/// ```
/// use hapax_core::{error::Coded, schedule::Timetable};
/// assert_eq!(Timetable::new("every day", "UTC").unwrap_err().code(), "HX0160");
/// assert_eq!(Timetable::new("@daily", "Mars/Olympus").unwrap_err().code(), "HX0161");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimetableError {
    /// The expression can't be read.
    #[error("`{cron}` is no cron expression: {why}")]
    Cron {
        /// What was given.
        cron: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such zone.
    #[error("`{zone}` is no time zone that this program knows")]
    Zone {
        /// What was given.
        zone: String,
    },
}

impl Coded for TimetableError {
    fn code(&self) -> Code {
        match self {
            TimetableError::Cron { .. } => code::BAD_CRON,
            TimetableError::Zone { .. } => code::BAD_ZONE,
        }
    }
}

/// Why an expression can't be read, in the parser's words.
fn reason(error: CronError) -> String {
    let text = match error {
        CronError::InvalidPattern(why)
        | CronError::IllegalCharacters(why)
        | CronError::ComponentError(why) => why,
        error => error.to_string(),
    };
    let mut words = text.trim_end_matches('.').chars();
    words.next().map(|first| first.to_lowercase().chain(words).collect()).unwrap_or_default()
}

/// What the parser takes for something else than it says: an empty place in a list, or a step that is longer than its field.
fn misread(cron: &str) -> Option<String> {
    /// How many seconds, minutes, hours, days, months and weekdays there are. A year has no such end.
    const LONGEST: [u32; 7] = [60, 60, 24, 31, 12, 7, u32::MAX];
    let fields: Vec<&str> = cron.split_whitespace().collect();
    let longest = if fields.len() == 5 { &LONGEST[1..] } else { &LONGEST };
    let places =
        fields.iter().zip(longest).flat_map(|(field, most)| field.split(',').map(move |one| (one, most)));
    for (place, most) in places {
        if place.is_empty() {
            return Some("a list has an empty place".into());
        }
        let step = place.split_once('/').and_then(|(_, step)| step.parse::<u32>().ok());
        if let Some(step) = step.filter(|step| step > most) {
            return Some(format!("a step of {step} is longer than its field, which has {most}"));
        }
    }
    None
}

/// What is to be done when a schedule is due.
///
/// ```
/// use hapax_core::schedule::Timetable;
/// let hourly = Timetable::new("@hourly", "UTC")?;
/// let hour_us = 3_600_000_000;
/// // Due at 1 o'clock; nobody came before 5. Two are made up for: those of 4 and of 5.
/// let firing = hourly.firing(hour_us, 5 * hour_us, 2);
/// assert_eq!((firing.at_us, firing.missed), (4 * hour_us, 3));
/// assert!(firing.starts && firing.next_us == Some(5 * hour_us));
/// # Ok::<(), hapax_core::schedule::TimetableError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Firing {
    /// The time that is fired for; where nothing starts, the last one that is passed over.
    pub at_us: i64,
    /// Whether a run starts. There may be more to pass over than can be in one go.
    pub starts: bool,
    /// How many times before it are passed over for good.
    pub missed: u64,
    /// When the schedule is due the next time; `None`: never again.
    pub next_us: Option<i64>,
}

impl Timetable {
    /// Reads an expression: five fields, or six with seconds in front, or seven with years behind; or a nickname like
    /// `@daily`. The zone goes by its IANA name.
    pub fn new(cron: &str, zone: &str) -> Result<Self, TimetableError> {
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Optional).build();
        let read = parser
            .parse(cron)
            .map_err(|error| TimetableError::Cron { cron: cron.into(), why: reason(error) })?;
        if let Some(why) = misread(cron) {
            return Err(TimetableError::Cron { cron: cron.into(), why });
        }
        // One that calls itself unknown would count as UTC.
        let known = TimeZone::get(zone).ok().filter(|zone| !zone.is_unknown());
        let zone = known.ok_or_else(|| TimetableError::Zone { zone: zone.into() })?;
        Ok(Self { cron: read, zone })
    }

    /// The first time behind another one, in microseconds since 1970; `None`: there is none, up to the year 5000.
    pub fn next_after(&self, us: i64) -> Option<i64> {
        // Fires at whole seconds, and may be asked about any part of one.
        let from = Timestamp::from_second(us.div_euclid(1_000_000)).ok()?.to_zoned(self.zone.clone());
        let next = match self.cron.determine_job_type() {
            JobType::FixedTime => self.next_day(&from)?,
            JobType::IntervalWildcard => self.cron.find_next_occurrence(&from, false).ok()?.timestamp(),
        };
        next.as_second().checked_mul(1_000_000).filter(|next| *next > us)
    }

    /// The next time of an expression that names one time of the day: searched in the calendar, which has no gaps, and only then
    /// looked up in the zone. In the zone `croner` takes a gap that its search merely passes through for one that hides a time.
    fn next_day(&self, from: &Zoned) -> Option<Timestamp> {
        let mut day = from.datetime();
        loop {
            day = self.cron.find_next_occurrence(&day, false).ok()?;
            // In an hour that comes twice the first is over when the second is there.
            let at = self.instant(day)?;
            if at > from.timestamp() {
                return Some(at);
            }
        }
    }

    /// When the clocks of the zone show a time: the first time that they do, or, if they never do, the first instant behind
    /// the gap. A later time is never shown earlier.
    fn instant(&self, shown: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(shown).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(shown).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // By the clocks as they are behind the gap it isn't over yet: it ends with the next change.
                let within = after.to_timestamp(shown).ok()?;
                self.zone.following(within).next().map(|change| change.timestamp())
            }
        }
    }

    /// What is to be done now of all that was due since `due_us`: of the latest `catch_up` the oldest starts, what is older
    /// is passed over.
    pub fn firing(&self, due_us: i64, now_us: i64, catch_up: u32) -> Firing {
        let keep = catch_up.clamp(1, MAX_CATCH_UP) as usize;
        let mut latest = VecDeque::from([due_us]);
        let mut missed = 0;
        loop {
            let last = *latest.back().expect("there is always one");
            let next_us = self.next_after(last);
            match next_us.filter(|next| *next <= now_us) {
                Some(_) if missed >= MAX_PASSED_OVER => {
                    // Too many to count in one go: these are done with, the rest comes next.
                    let (at_us, next_us) = (latest[0], latest.get(1).copied().or(next_us));
                    return Firing { at_us, starts: false, missed: missed + 1, next_us };
                }
                Some(next) => latest.push_back(next),
                None => {
                    let (at_us, following) = (latest[0], latest.get(1).copied().or(next_us));
                    return Firing { at_us, starts: true, missed, next_us: following };
                }
            }
            if latest.len() > keep && !canary::on("catch_up_all") {
                latest.pop_front();
                missed += 1;
            }
        }
    }

    /// The times that [`firing`](Self::firing) starts runs for of all that was due since `due_us`, oldest first: the latest
    /// `catch_up`.
    pub fn made_up(&self, due_us: i64, now_us: i64, catch_up: u32) -> Vec<i64> {
        let keep = catch_up.clamp(1, MAX_CATCH_UP) as usize;
        // No two times are closer than a second. It looks from now back, twice as far each time: all of them since then may be
        // too many to walk through.
        let mut back_us = 1_000_000 * keep as i64;
        loop {
            let from_us = now_us.saturating_sub(back_us);
            let is_all = from_us < due_us;
            let first = if is_all { Some(due_us) } else { self.next_after(from_us) };
            let mut latest: Vec<i64> = self.from(first).take_while(|at| *at <= now_us).collect();
            if is_all || latest.len() >= keep {
                return latest.split_off(latest.len().saturating_sub(keep));
            }
            back_us = back_us.saturating_mul(2);
        }
    }

    /// A time as it stands in the name of a run: UTC, to the second.
    pub fn shown(us: i64) -> String {
        Timestamp::from_second(us.div_euclid(1_000_000)).map_or_else(|_| us.to_string(), |at| at.to_string())
    }

    /// A time as the clocks of the zone show it, with how far they are from UTC.
    pub fn local(&self, us: i64) -> String {
        let Ok(at) = Timestamp::from_second(us.div_euclid(1_000_000)) else { return us.to_string() };
        let zoned: Zoned = at.to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// How many times there are from `due_us`, which is one, to `now_us`; counted up to `most`.
    pub fn count(&self, due_us: i64, now_us: i64, most: u64) -> u64 {
        self.from(Some(due_us)).take_while(|at| *at <= now_us).zip(0..most).count() as u64
    }

    /// A time, and those behind it.
    fn from(&self, first: Option<i64>) -> impl Iterator<Item = i64> {
        std::iter::successors(first, |at| self.next_after(*at))
    }
}
