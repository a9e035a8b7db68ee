//! The scheduler: asks the store what is due, works out the firing, and has the store do it.
//!
//! Invariant: it decides nothing. What it works out is void unless the row is still the one that it was worked out from, by
//! the store's word; an answer that was lost is looked up, never sent again. So it needs no lease, and its death no
//! recovery. Looking is the truth; news only come sooner.

use super::Timetable;
use crate::{Engine, Error, gate::lock, worker::Shared};
use hapax_core::{
    id::{RunId, RunKey},
    limits::SCHEDULE_POLL,
    order::PathHash,
    rng::Rng,
    schedule::Firing,
};
use hapax_store::{
    NewRun, StoreError,
    schedules::{DueFilter, Fire, Fired, ScheduleRecord},
};
use std::{
    collections::{BTreeSet, HashSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How soon it looks again at what waits for a run, or came a moment too early by the store's clock; twice as long each
/// time, up to the usual pause.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// An interval at which it looks that is shorter would keep a processor busy, and a longer one overflow somewhere.
const POLLS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(24);
/// The longest pause while the store can't be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How much later than planned it may look, so that many schedulers don't look all at once.
const JITTER: f64 = 0.1;

/// How a scheduler works. The defaults suit most programs.
///
/// ```
/// use hapax::schedule::SchedulerOptions;
/// use std::time::Duration;
/// let patient = SchedulerOptions::default().poll_interval(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    poll_interval: Duration,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self { poll_interval: SCHEDULE_POLL }
    }
}

impl SchedulerOptions {
    /// How often it looks for schedules that nobody told it of: those that other processes have added. What it knows of it
    /// fires on time. Default: 1 s; at least a millisecond, and at the most a day.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.clamp(*POLLS.start(), *POLLS.end());
        self
    }
}

/// A scheduler at work. Dropping this leaves it to its work, until the engine ends.
///
/// ```
/// use hapax::{prelude::*, schedule::{SchedulerOptions, When}};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Tick { seen: bool }
/// # const LOOK: Node = Node::new("look");
/// # async fn look(_: hapax::Ctx<Tick>) -> TickDelta { Tick::delta().seen(true) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let ticks = engine.register(Graph::new("ticks", 1, LOOK).node(LOOK, look), ()).await?;
/// # let mut events = engine.events();
/// let scheduler = engine.scheduler(SchedulerOptions::default())?;
/// ticks.schedule("every-second", When::cron("* * * * * *"), Tick::default()).await?;
/// let ended = loop {
///     if let hapax::Event::RunEnded { run, .. } = events.recv().await? {
///         break run;
///     }
/// };
/// assert!(ended.run.as_str().starts_with("every-second@"));
/// scheduler.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Scheduler {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Scheduler {
    /// Lets it finish the firing that is under way, and waits for that.
    pub async fn stop(self) {
        self.stop.cancel();
        // It ends early only with the runtime, and then nobody waits.
        let _ = self.task.await;
    }
}

/// What became of the times that were due.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = hapax::Engine::open("memory:").await?;
/// let firings = engine.fire_due().await?;
/// assert_eq!((firings.started, firings.waiting), (0, 0), "nothing was due");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Firings {
    /// Runs that were started.
    pub started: u64,
    /// Passed over, since the run before them wasn't over, or since a run of their name was there.
    pub skipped: u64,
    /// Passed over for good: beyond the catch-up limit.
    pub missed: u64,
    /// Schedules whose next run waits for the one before it.
    pub waiting: u64,
    /// Schedules that are due and can't be fired here. The log says why.
    pub stuck: u64,
}

impl Firings {
    /// Counts what became of a firing, and says so.
    fn count(&mut self, fired: Fired, firing: &Firing, record: &ScheduleRecord) {
        let (schedule, at) = (&record.schedule.key, Timetable::shown(firing.at_us));
        match fired {
            Fired::Started => {
                self.started += 1;
                tracing::info!(%schedule, %at, "a schedule has started its run");
            }
            Fired::Skipped if firing.starts => {
                self.skipped += 1;
                tracing::info!(%schedule, %at, "skipped: the run before it isn't over");
            }
            Fired::Exists => {
                self.skipped += 1;
                tracing::warn!(%schedule, %at, "skipped: a run of its name is there already");
            }
            Fired::Waits => self.waiting += 1,
            Fired::Skipped | Fired::NotNow => {}
        }
        if fired.is_done() && firing.missed > 0 {
            self.missed += firing.missed;
            tracing::warn!(%schedule, missed = firing.missed, "passed over: nobody fired it in time");
        }
    }
}

impl Engine {
    /// Starts the runs of all schedules of this engine's namespace whose graphs are registered here, until it is stopped or
    /// the engine ends. Any number of schedulers, of many processes, may be at work: each time starts one run.
    ///
    /// Runs are left to whoever takes them up first, like those of [`Flow::submit`](crate::Flow::submit).
    pub fn scheduler(&self, options: SchedulerOptions) -> Result<Scheduler, Error> {
        self.is_open()?;
        let stop = CancellationToken::new();
        let clockwork = Clockwork::new(self, options, stop.clone());
        let task = self.shared.tasks.spawn(async move { clockwork.carry_on().await });
        Ok(Scheduler { stop, task })
    }

    /// Fires what is due, and returns when nothing is any more. A schedule whose database fails keeps none of the others from
    /// theirs; the first such error is the answer then.
    ///
    /// ```
    /// use hapax::{prelude::*, schedule::When, store::{Clock, MemoryStore}};
    /// # use serde::{Deserialize, Serialize};
    /// # use std::time::Duration;
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Report { pages: u64 }
    /// # const WRITE: Node = Node::new("write");
    /// # async fn write(_: hapax::Ctx<Report>) -> ReportDelta { Report::delta().pages(7u64) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let clock = Clock::manual();
    /// let engine = Engine::builder().with_store(MemoryStore::with_clock(clock.clone()));
    /// # let reports = engine.register(Graph::new("reports", 1, WRITE).node(WRITE, write), ()).await?;
    /// reports.schedule("hourly", When::cron("@hourly"), Report::default()).await?;
    /// assert_eq!(engine.fire_due().await?.started, 0, "its time hasn't come");
    /// clock.advance(Duration::from_secs(5 * 3600));
    /// let firings = engine.fire_due().await?;
    /// assert_eq!((firings.started, firings.missed), (1, 4), "the latest is made up for");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fire_due(&self) -> Result<Firings, Error> {
        self.is_open()?;
        let options = SchedulerOptions { poll_interval: Duration::ZERO };
        let pass = Clockwork::new(self, options, CancellationToken::new()).pass().await?;
        Ok(pass.failed.map_or(Ok(pass.firings), Err)?)
    }
}

/// What a look has brought.
#[derive(Debug, Default)]
struct Pass {
    firings: Firings,
    /// How long it is until something is due next, as far as it was looked, by the clock of its own database.
    next: Option<Duration>,
    /// Something is to be looked at again very soon.
    hurries: bool,
    /// Why something couldn't be fired for now.
    failed: Option<StoreError>,
}

impl Pass {
    fn due_at(&mut self, next_us: Option<i64>, now_us: i64) {
        let left = |next: i64| Duration::from_micros(u64::try_from(next.saturating_sub(now_us)).unwrap_or(0));
        self.next = self.next.into_iter().chain(next_us.map(left)).min();
    }
}

/// Whether the store may take the same firing later.
fn is_passing(error: &StoreError) -> bool {
    matches!(error, StoreError::Retry(_) | StoreError::Unknown(_) | StoreError::Full(_))
}

/// What one scheduler works with.
struct Clockwork {
    shared: Arc<Shared>,
    options: SchedulerOptions,
    stop: CancellationToken,
    /// The rows of which it was said that they can't be fired here.
    told: Mutex<HashSet<u128>>,
}

impl Clockwork {
    fn new(engine: &Engine, options: SchedulerOptions, stop: CancellationToken) -> Self {
        Self { shared: engine.shared.clone(), options, stop, told: Mutex::default() }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_cancelled() || self.shared.is_closing()
    }

    /// Resolves when it is to end.
    async fn stopped(&self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.shared.closing() => {}
        }
    }

    /// Fires until it is stopped.
    async fn carry_on(&self) {
        let mut news = self.shared.scheduled.subscribe();
        let mut jitter = Rng::for_jitter(uuid::Uuid::new_v4().as_u128() as u64, 0, PathHash::ROOT, 0);
        let (mut hurry, mut down) = (FIRST_LOOK, 0u32);
        while !self.is_stopped() {
            news.mark_unchanged();
            let late = 1.0 + JITTER * jitter.f64();
            let pause = match self.pass().await {
                Ok(pass) => {
                    down = 0;
                    let usual = self.options.poll_interval.mul_f64(late);
                    hurry = if pass.hurries { (hurry * 2).min(usual) } else { FIRST_LOOK };
                    let soon = if pass.hurries { hurry } else { usual };
                    pass.next.map_or(soon, |next| soon.min(next))
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot fire schedules; trying again");
                    down = down.saturating_add(1);
                    let factor = 1u32.checked_shl(down - 1).unwrap_or(u32::MAX);
                    self.options.poll_interval.saturating_mul(factor).min(LONGEST_PAUSE).mul_f64(late)
                }
            };
            tokio::select! {
                () = self.stopped() => {}
                Ok(()) = news.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Asks what is due, and fires it.
    async fn pass(&self) -> Result<Pass, StoreError> {
        let graphs: BTreeSet<Arc<str>> =
            self.shared.outlines().into_iter().map(|outline| outline.name).collect();
        let mut pass = Pass::default();
        if graphs.is_empty() {
            return Ok(pass);
        }
        let filter = DueFilter {
            namespace: self.shared.options.namespace.clone(),
            graphs: graphs.into_iter().collect(),
            within: self.options.poll_interval.saturating_mul(2),
        };
        // A question may go unanswered for as long as its server likes; what became of a firing must be known.
        let due = tokio::select! {
            due = self.shared.store.schedules().due(filter) => due?,
            () = self.stopped() => return Ok(pass),
        };
        for record in due {
            let schedule = record.schedule.key.clone();
            // It may be the database of this one alone that fails; the others aren't to wait for it.
            if let Err(error) = self.fire_all(record, &mut pass).await {
                tracing::warn!(%schedule, %error, "cannot fire a schedule; trying again");
                pass.failed = pass.failed.or(Some(error));
            }
        }
        if pass.firings.started > 0 {
            self.shared.look_for_work();
        }
        Ok(pass)
    }

    /// Fires all that is due of one schedule.
    async fn fire_all(&self, mut record: ScheduleRecord, pass: &mut Pass) -> Result<(), StoreError> {
        // Who will judge the firing. By a clock that is ahead of it every time would come too early, and be followed by a
        // later one that does as well.
        let clock = self.shared.store.schedules().clock(&record.schedule.key);
        while !self.is_stopped() {
            let now_us = clock.now_us();
            let due = record.next_us.filter(|next| !record.paused && *next <= now_us);
            let Some(due_us) = due else {
                pass.due_at(record.next_us.filter(|_| !record.paused), now_us);
                return Ok(());
            };
            let Some((order, firing)) = self.work_out(&record, due_us, now_us) else {
                pass.firings.stuck += 1;
                return Ok(());
            };
            let fired = match self.shared.store.schedules().fire(order).await {
                Err(error) if !is_passing(&error) => {
                    // What no store takes would be refused again and again; the other schedules aren't to wait for it.
                    self.tell_stuck(&record, &error.into());
                    pass.firings.stuck += 1;
                    return Ok(());
                }
                fired => fired?,
            };
            pass.firings.count(fired, &firing, &record);
            let read = self.shared.store.schedules().get(record.schedule.key.clone()).await?;
            match read {
                // It waits for a run, or its time hasn't quite come by the store's clock.
                Some(same) if same.token == record.token => {
                    pass.hurries = true;
                    return Ok(());
                }
                Some(next) => record = next,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// What is to be fired. `None`: that can't be told here, which is said once.
    fn work_out(&self, record: &ScheduleRecord, due_us: i64, now_us: i64) -> Option<(Fire, Firing)> {
        let worked_out = self.try_work_out(record, due_us, now_us);
        worked_out.inspect_err(|error| self.tell_stuck(record, error)).ok()
    }

    /// Says once of a row that it can't be fired here.
    fn tell_stuck(&self, record: &ScheduleRecord, error: &Error) {
        if lock(&self.told).insert(record.token) {
            let schedule = &record.schedule.key;
            tracing::error!(%schedule, %error, "this schedule is due and cannot be fired here");
        }
    }

    fn try_work_out(
        &self,
        record: &ScheduleRecord,
        due_us: i64,
        now_us: i64,
    ) -> Result<(Fire, Firing), Error> {
        let schedule = &record.schedule;
        let timetable = Timetable::new(&schedule.cron, &schedule.zone)?;
        let firing = timetable.firing(due_us, now_us, schedule.catch_up);
        let run = if firing.starts { Some(self.new_run(record, firing.at_us)?) } else { None };
        let Firing { at_us, missed, next_us, .. } = firing;
        let fire = Fire { key: schedule.key.clone(), token: record.token, at_us, missed, next_us, run };
        Ok((fire, firing))
    }

    fn new_run(&self, record: &ScheduleRecord, at_us: i64) -> Result<NewRun, Error> {
        let schedule = &record.schedule;
        let graph = &schedule.graph;
        let code = self.shared.latest(graph).ok_or_else(|| Error::NotRegistered { graph: graph.clone() })?;
        let (state, version) = code.begin(schedule.input.as_bytes(), schedule.input_version)?;
        let (name, at) = (&schedule.key.name, Timetable::shown(at_us));
        let run = RunId::new(format!("{name}@{at}"))?;
        let key = RunKey { namespace: schedule.key.namespace.clone(), run };
        let tags = [("schedule".to_owned(), name.to_string()), ("scheduled_at".to_owned(), at)];
        Ok(NewRun { tags: tags.into(), ..code.new_run(key, state, version, None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scheduler_bears_any_interval() {
        for (interval, taken) in [(Duration::ZERO, POLLS.start()), (Duration::MAX, POLLS.end())] {
            let options = SchedulerOptions::default().poll_interval(interval);
            assert_eq!(options.poll_interval, *taken);
            let engine = Engine::open("memory:").await.unwrap();
            let scheduler = engine.scheduler(options).unwrap();
            // It looks for the first time.
            tokio::task::yield_now().await;
            scheduler.stop.cancel();
            scheduler.task.await.expect("it ends when it is told to, and not before");
        }
    }
}
