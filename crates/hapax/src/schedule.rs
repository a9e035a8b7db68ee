//! Runs that start by the clock: schedules, and who fires them. Behind the feature `schedules`.
//!
//! Invariant: a schedule is a row of the store, and a firing one transaction there: it advances the row and creates the
//! run, named by the schedule and the time. So any number of processes may fire, and each may die at any moment: a time
//! that is due starts one run.
//!
//! | file | what it holds |
//! |---|---|
//! | `scheduler` | waits for what is due, and fires it |
//! | `error` | why a schedule is refused |

mod error;
mod scheduler;

pub use error::ScheduleError;
pub use hapax_core::schedule::{BadSchedule, Overlap, Schedule, ScheduleKey, Timetable, TimetableError};
pub use hapax_store::schedules::{LastFiring, ScheduleRecord};
pub use scheduler::{Firings, Scheduler, SchedulerOptions};

use crate::{Engine, Error, Flow};
use hapax_core::{json::Json, limits::MAX_COUNTED_PAUSE, state::State};
use hapax_store::schedules::{Added, Turn};

/// When a schedule fires, and what becomes of a time that can't be kept.
///
/// ```
/// use hapax::schedule::{Overlap, When};
/// let opening = When::cron("0 9 * * MON-FRI").zone("Europe/Berlin").overlap(Overlap::Queue).catch_up(3);
/// let often = When::cron("*/30 * * * * *"); // with seconds: every half minute, in UTC
/// assert_ne!(opening, often);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    cron: String,
    zone: String,
    overlap: Overlap,
    catch_up: u32,
}

impl When {
    /// By a cron expression of five fields, or six with seconds in front, or seven with years behind; or a nickname like
    /// `@daily`. In UTC, unless a zone is named.
    pub fn cron(expression: impl Into<String>) -> Self {
        Self { cron: expression.into(), zone: "UTC".into(), overlap: Overlap::default(), catch_up: 1 }
    }

    /// The time zone in which the expression is read, by its IANA name. [`Timetable`] says what happens where clocks are
    /// put forward or back.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }

    /// What becomes of a firing while the run of the one before it isn't over. Default: it is skipped.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// How many overdue firings are made up for after an outage, the latest of them. Default: 1.
    pub fn catch_up(mut self, firings: u32) -> Self {
        self.catch_up = firings;
        self
    }
}

impl<S: State, A: Send + Sync + 'static> Flow<S, A> {
    /// Has a run of this graph started again and again, each from this state. Durable when it answers. The same schedule
    /// may be added again, by every process at its start; another one of that name is
    /// [`ScheduleError::Exists`].
    ///
    /// Runs are named by the schedule and the time that they are for, in UTC: `nightly@2026-11-18T01:00:00Z`. They carry the
    /// tags `schedule` and `scheduled_at`. They start where a [`Scheduler`] is at work that has this graph.
    ///
    /// ```
    /// use hapax::{prelude::*, schedule::When};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Report { pages: u64 }
    /// # const WRITE: Node = Node::new("write");
    /// # async fn write(_: hapax::Ctx<Report>) -> ReportDelta { Report::delta().pages(7u64) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = Engine::open("memory:").await?;
    /// # let reports = engine.register(Graph::new("reports", 1, WRITE).node(WRITE, write), ()).await?;
    /// let nightly = When::cron("0 2 * * *").zone("Europe/Berlin");
    /// let first = reports.schedule("nightly", nightly.clone(), Report::default()).await?;
    /// let again = reports.schedule("nightly", nightly, Report::default()).await?; // the same one
    /// assert_eq!(first, again);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn schedule(&self, name: &str, when: When, state: S) -> Result<ScheduleRecord, Error> {
        let input = Json::of(&state)?;
        self.engine().keep_schedule(name, when, self.graph_name(), input, Some(S::VERSION)).await
    }
}

/// Schedules of this engine's namespace.
impl Engine {
    /// Adds a schedule of a graph by name: what [`Flow::schedule`] does, for tools that don't have the graph's types. The
    /// input is what the graph's state is read from when it fires; where the graph is registered here, it must fit.
    ///
    /// ```
    /// use hapax::{Engine, core::json::Json, schedule::When};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = Engine::open("memory:").await?;
    /// let added = engine.add_schedule("nightly", When::cron("@daily"), "reports", Json::from_text("{}")?).await?;
    /// assert_eq!((added.started, added.paused), (0, false));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add_schedule(
        &self,
        name: &str,
        when: When,
        graph: &str,
        input: Json,
    ) -> Result<ScheduleRecord, Error> {
        self.keep_schedule(name, when, graph, input, None).await
    }

    async fn keep_schedule(
        &self,
        name: &str,
        when: When,
        graph: &str,
        input: Json,
        input_version: Option<u32>,
    ) -> Result<ScheduleRecord, Error> {
        self.is_open()?;
        let When { cron, zone, overlap, catch_up } = when;
        let timetable = Timetable::new(&cron, &zone)?;
        let key = self.schedule_key(name);
        let clock = self.shared.store.schedules().clock(&key);
        let schedule =
            Schedule { key, graph: graph.into(), input, input_version, cron, zone, overlap, catch_up };
        schedule.check()?;
        if let Some(code) = self.shared.latest(graph) {
            code.begin(schedule.input.as_bytes(), input_version)
                .map_err(|shape| ScheduleError::Input { graph: graph.into(), shape })?;
        }
        let next_us = timetable.next_after(clock.now_us());
        if next_us.is_none() {
            return Err(ScheduleError::Never { cron: schedule.cron }.into());
        }
        match self.shared.store.schedules().add(schedule.clone(), next_us).await? {
            Added::New(record) => {
                self.shared.scheduled.send_replace(());
                Ok(*record)
            }
            Added::Exists(record) if self.is_same(&record.schedule, &schedule) => Ok(*record),
            Added::Exists(_) => Err(ScheduleError::Exists { name: name.into() }.into()),
        }
    }

    /// Whether the schedule that is kept is the one that is asked for. Its input may have been written for an older version of the
    /// graph's state, or by hand: then it is the same if runs begin with the same. It stays as it is, so that a program of that
    /// version may ask for it as well.
    fn is_same(&self, kept: &Schedule, asked: &Schedule) -> bool {
        let begun = |with: &Schedule| {
            self.shared.latest(&with.graph)?.begin(with.input.as_bytes(), with.input_version).ok()
        };
        let (input, input_version) = (kept.input.clone(), kept.input_version);
        let but_for_the_input = Schedule { input, input_version, ..asked.clone() };
        kept == asked
            || *kept == but_for_the_input && begun(kept).is_some_and(|kept| begun(asked) == Some(kept))
    }

    /// All schedules, by name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// assert!(engine.schedules().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn schedules(&self) -> Result<Vec<ScheduleRecord>, Error> {
        Ok(self.shared.store.schedules().list(self.shared.options.namespace.clone()).await?)
    }

    /// One schedule. [`ScheduleError::NotFound`] when there is none of that name.
    ///
    /// ```
    /// use hapax::Coded;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// assert_eq!(engine.schedule("nightly").await.unwrap_err().code(), "HX0163");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn schedule(&self, name: &str) -> Result<ScheduleRecord, Error> {
        let found = self.shared.store.schedules().get(self.schedule_key(name)).await?;
        found.ok_or_else(|| not_found(name))
    }

    /// Pauses a schedule: it starts nothing until it is resumed. Durable when it answers.
    ///
    /// ```
    /// # use hapax::{Engine, core::json::Json, schedule::When};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = Engine::open("memory:").await?;
    /// # engine.add_schedule("nightly", When::cron("@daily"), "reports", Json::from_text("{}")?).await?;
    /// assert!(engine.pause_schedule("nightly").await?.paused);
    /// assert!(!engine.resume_schedule("nightly").await?.paused);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause_schedule(&self, name: &str) -> Result<ScheduleRecord, Error> {
        self.turn_schedule(name, Turn::Off).await
    }

    /// Lets a paused schedule go on with the next time that comes. What is due until then isn't made up for, and counted as
    /// missed: what came during the pause, and what was overdue before it; up to [`MAX_COUNTED_PAUSE`] in all.
    ///
    /// ```
    /// # use hapax::{Engine, core::json::Json, schedule::When, store::{Clock, MemoryStore}};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let clock = Clock::manual();
    /// let engine = Engine::builder().with_store(MemoryStore::with_clock(clock.clone()));
    /// engine.add_schedule("hourly", When::cron("@hourly"), "reports", Json::from_text("{}")?).await?;
    /// engine.pause_schedule("hourly").await?;
    /// clock.advance(Duration::from_secs(3 * 3600));
    /// assert_eq!(engine.resume_schedule("hourly").await?.missed, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume_schedule(&self, name: &str) -> Result<ScheduleRecord, Error> {
        loop {
            let ScheduleRecord { schedule, token, next_us: due_us, .. } = self.schedule(name).await?;
            let timetable = Timetable::new(&schedule.cron, &schedule.zone)?;
            let now_us = self.shared.store.schedules().clock(&schedule.key).now_us();
            let missed = due_us.map_or(0, |due_us| timetable.count(due_us, now_us, MAX_COUNTED_PAUSE));
            let on = Turn::On { token, next_us: timetable.next_after(now_us), missed };
            let turned = self.turn_schedule(name, on).await?;
            // It was paused again since it was read: another time is due in it, perhaps, and another count.
            if !turned.paused {
                self.shared.scheduled.send_replace(());
                return Ok(turned);
            }
        }
    }

    async fn turn_schedule(&self, name: &str, to: Turn) -> Result<ScheduleRecord, Error> {
        self.is_open()?;
        let turned = self.shared.store.schedules().turn(self.schedule_key(name), to).await?;
        turned.ok_or_else(|| not_found(name))
    }

    /// Deletes a schedule. Its runs stay, and go on. [`ScheduleError::NotFound`] when there is none of that name.
    ///
    /// ```
    /// # use hapax::{Engine, core::json::Json, schedule::When};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = Engine::open("memory:").await?;
    /// # engine.add_schedule("nightly", When::cron("@daily"), "reports", Json::from_text("{}")?).await?;
    /// engine.remove_schedule("nightly").await?;
    /// assert!(engine.schedule("nightly").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove_schedule(&self, name: &str) -> Result<(), Error> {
        self.is_open()?;
        match self.shared.store.schedules().remove(self.schedule_key(name)).await? {
            true => Ok(()),
            false => Err(not_found(name)),
        }
    }

    /// The next times of a schedule that start a run, in microseconds since 1970. What is overdue comes first, as far as the
    /// catch-up limit doesn't pass it over; of a paused one what comes if it is resumed now.
    ///
    /// ```
    /// # use hapax::{Engine, core::json::Json, schedule::When};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = Engine::open("memory:").await?;
    /// # engine.add_schedule("hourly", When::cron("@hourly"), "reports", Json::from_text("{}")?).await?;
    /// let times = engine.upcoming("hourly", 3).await?;
    /// assert_eq!((times.len(), times[2] - times[0]), (3, 2 * 3_600_000_000));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn upcoming(&self, name: &str, count: usize) -> Result<Vec<i64>, Error> {
        let record = self.schedule(name).await?;
        let timetable = Timetable::new(&record.schedule.cron, &record.schedule.zone)?;
        let now_us = self.shared.store.schedules().clock(&record.schedule.key).now_us();
        let kept = |due_us| timetable.made_up(due_us, now_us, record.schedule.catch_up).first().copied();
        let first = match record.next_us {
            _ if record.paused => timetable.next_after(now_us),
            due_us => due_us.and_then(kept).or(due_us),
        };
        Ok(std::iter::successors(first, |at| timetable.next_after(*at)).take(count).collect())
    }

    fn schedule_key(&self, name: &str) -> ScheduleKey {
        ScheduleKey { namespace: self.shared.options.namespace.clone(), name: name.into() }
    }
}

fn not_found(name: &str) -> Error {
    ScheduleError::NotFound { name: name.into() }.into()
}
