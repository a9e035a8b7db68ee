//! The contract of a store's schedules: runs that start by the clock, once for each time.
//!
//! Invariant: a firing is one transaction. It demands the token of the row that it was worked out from, advances that row
//! and creates the run, or does nothing of it. So however many processes fire, and whoever of them dies, a time that is
//! due starts one run: not two, and not none.

use crate::{
    clock::Clock,
    store::{Answer, NewRun},
};
use hapax_core::{
    id::{Namespace, RunId},
    schedule::{Schedule, ScheduleKey},
};
use std::{sync::Arc, time::Duration};

/// Runs that start by the clock.
///
/// ```
/// # #[cfg(feature = "conformance")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_store::{
///     MemoryStore, Store,
///     conformance::{Sample, schedules::{nightly, due_now}},
///     schedules::{Added, Fire, Fired},
/// };
///
/// let store = MemoryStore::shared();
/// let Added::New(read) = store.schedules().add(nightly("reports"), due_now(&*store)).await? else { unreachable!() };
/// let fire = Fire {
///     key: read.schedule.key.clone(),
///     token: read.token,
///     at_us: read.next_us.unwrap(),
///     missed: 0,
///     next_us: None,
///     run: Some(Sample::run("reports@1").build()),
/// };
/// assert_eq!(store.schedules().fire(fire.clone()).await?, Fired::Started);
/// assert_eq!(store.schedules().fire(fire).await?, Fired::NotNow, "the row isn't the one that was read");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "conformance"))]
/// # fn main() {}
/// ```
pub trait Schedules: Send + Sync {
    /// Keeps a schedule that is due at `next_us`. Durable when it answers. A name that is taken answers [`Added::Exists`]
    /// and changes nothing.
    fn add(&self, schedule: Schedule, next_us: Option<i64>) -> Answer<'_, Added>;

    /// One schedule.
    fn get(&self, key: ScheduleKey) -> Answer<'_, Option<ScheduleRecord>>;

    /// All schedules of a namespace, by name.
    fn list(&self, namespace: Namespace) -> Answer<'_, Vec<ScheduleRecord>>;

    /// The schedules that are due by the store's clock, or will be soon, those first that are due longest. None that is
    /// paused, and none whose row can't be read: it keeps no other from firing.
    fn due(&self, filter: DueFilter) -> Answer<'_, Vec<ScheduleRecord>>;

    /// Pauses a schedule, or lets it go on: see [`Turn`]. Durable when it answers; `None`: there is none of that name. What was
    /// worked out before is refused from now on.
    fn turn(&self, key: ScheduleKey, to: Turn) -> Answer<'_, Option<ScheduleRecord>>;

    /// Deletes a schedule, and none of its runs. Durable when it answers; false: there was none of that name.
    fn remove(&self, key: ScheduleKey) -> Answer<'_, bool>;

    /// Fires, in one transaction: see [`Fire`] and [`Fired`]. Durable when it answers. After
    /// [`StoreError::Unknown`](crate::StoreError::Unknown) read the row again: it tells what became of it.
    fn fire(&self, fire: Fire) -> Answer<'_, Fired>;

    /// The clock by which a schedule is due: that of the database which keeps it. There may be none of that name yet.
    fn clock(&self, key: &ScheduleKey) -> Clock;
}

/// The answer to a schedule that is added.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::schedules::nightly, schedules::Added};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.schedules().add(nightly("reports"), Some(7)).await?;
/// let Added::Exists(there) = store.schedules().add(nightly("reports"), Some(8)).await? else { unreachable!() };
/// assert_eq!(there.next_us, Some(7), "it goes on as it did");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// It is there now.
    New(Box<ScheduleRecord>),
    /// One of that name was there.
    Exists(Box<ScheduleRecord>),
}

/// A schedule as the store has it.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::schedules::nightly};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.schedules().add(nightly("reports"), Some(7)).await?;
/// let record = store.schedules().get(nightly("reports").key).await?.unwrap();
/// assert_eq!((record.started, record.skipped, record.missed), (0, 0, 0));
/// assert!(record.last.is_none() && !record.paused);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRecord {
    /// What starts, and when.
    pub schedule: Schedule,
    /// Another one after every change: what a firing must name.
    pub token: u128,
    /// It doesn't fire.
    pub paused: bool,
    /// When it is due, in microseconds since 1970 by the store's clock; `None`: never again.
    pub next_us: Option<i64>,
    /// What it fired last.
    pub last: Option<LastFiring>,
    /// Runs that it has started.
    pub started: u64,
    /// Firings that were passed over because the run before them wasn't over, or because a run of their name was there.
    pub skipped: u64,
    /// Firings that nobody came for in time, beyond the catch-up limit or because it was paused.
    pub missed: u64,
    /// When it was added.
    pub created_at_us: i64,
}

/// The latest firing that has a run.
///
/// ```
/// use hapax_core::id::RunId;
/// use hapax_store::schedules::LastFiring;
/// let last = LastFiring { at_us: 1_000_000, run: RunId::new("reports@1970-01-01T00:00:01Z")? };
/// assert!(last.run.as_str().starts_with("reports@"));
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFiring {
    /// The time that it was for.
    pub at_us: i64,
    /// Its run.
    pub run: RunId,
}

/// Which schedules whoever fires asks for.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::schedules::{nightly, due_now}, schedules::DueFilter};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.schedules().add(nightly("reports"), due_now(&*store)).await?;
/// let of = |graph: &str| DueFilter { graphs: vec![graph.into()], ..DueFilter::default() };
/// assert_eq!(store.schedules().due(of("sample")).await?.len(), 1);
/// assert!(store.schedules().due(of("another")).await?.is_empty(), "its code is elsewhere");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct DueFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Only of these graphs.
    pub graphs: Vec<Arc<str>>,
    /// Also those that will be due within this time.
    pub within: Duration,
}

impl DueFilter {
    /// Whether a schedule is one of these at that time of the store's.
    pub fn admits(&self, record: &ScheduleRecord, now_us: i64) -> bool {
        let until = now_us.saturating_add(crate::clock::micros(self.within));
        record.schedule.key.namespace == self.namespace
            && !record.paused
            && record.next_us.is_some_and(|next| next <= until)
            && self.graphs.contains(&record.schedule.graph)
    }
}

/// Whether a schedule fires.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::schedules::nightly, schedules::Turn};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryStore::shared();
/// store.schedules().add(nightly("reports"), Some(7)).await?;
/// let paused = store.schedules().turn(nightly("reports").key, Turn::Off).await?.unwrap();
/// assert!(paused.paused && paused.next_us == Some(7));
/// let on = Turn::On { token: paused.token, next_us: Some(9), missed: 1 };
/// let resumed = store.schedules().turn(nightly("reports").key, on).await?.unwrap();
/// assert!(!resumed.paused && resumed.next_us == Some(9) && resumed.missed == 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is paused.
    Off,
    /// It goes on; one that isn't paused goes on as it did, and one that changed since it was read stays as it is.
    On {
        /// The token of the row that was read.
        token: u128,
        /// When it is due.
        next_us: Option<i64>,
        /// How many times were due meanwhile: they are passed over for good.
        missed: u64,
    },
}

/// A firing to be, worked out from a row as it was read.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_store::{MemoryStore, Store, schedules::{Fire, Fired}, conformance::{Sample, schedules::{added, nightly}}};
/// let store = MemoryStore::shared();
/// let read = added(&*store, nightly("reports")).await;
/// let run = Some(Sample::run("reports@1").build());
/// let fire = Fire { run, missed: 2, ..Fire::of(&read, 1) };
/// assert_eq!(store.schedules().fire(fire).await?, Fired::Started);
/// assert_eq!(store.schedules().get(nightly("reports").key).await?.unwrap().missed, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Fire {
    /// The schedule.
    pub key: ScheduleKey,
    /// The token of the row that was read.
    pub token: u128,
    /// The time that is fired for. The store refuses it before that time by its own clock.
    pub at_us: i64,
    /// How many times are passed over for good.
    pub missed: u64,
    /// When it is due the next time.
    pub next_us: Option<i64>,
    /// The run; `None`: all of it is passed over.
    pub run: Option<NewRun>,
}

impl Fire {
    /// For the time at which a row is due, with nothing passed over and nothing started yet.
    pub fn of(read: &ScheduleRecord, next_us: i64) -> Self {
        Self {
            key: read.schedule.key.clone(),
            token: read.token,
            at_us: read.next_us.unwrap_or(i64::MAX),
            missed: 0,
            next_us: Some(next_us),
            run: None,
        }
    }
}

/// What became of a firing.
///
/// ```
/// use hapax_store::schedules::Fired;
/// assert!(Fired::Skipped.is_done() && !Fired::Waits.is_done());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    /// Its run is there, and the schedule goes on.
    Started,
    /// A run of that name was there already: none was started, and the schedule goes on.
    Exists,
    /// The run before it isn't over, so it was passed over; or there was nothing to start. The schedule goes on.
    Skipped,
    /// The run before it isn't over, and it waits for that: nothing was changed.
    Waits,
    /// The row isn't the one that was read, or its time hasn't come: nothing was changed.
    NotNow,
}

impl Fired {
    /// Whether the schedule has gone on.
    pub fn is_done(self) -> bool {
        !matches!(self, Fired::Waits | Fired::NotNow)
    }
}

/// The columns of a schedule, in the order in which databases read them.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) const COLUMNS: &str = "name, graph, input, input_version, cron, zone_name, on_overlap, catch_up, token, paused, \
     next_at, last_at, last_run, started, skipped, missed, created_at";

/// What a firing leaves in its row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) started: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// What is counted of a firing, beside what it passes over for good.
    pub(crate) fn of(fired: Fired, starts: bool) -> Self {
        match fired {
            Fired::Started => Self { started: 1, skipped: 0 },
            Fired::Exists | Fired::Skipped if starts => Self { started: 0, skipped: 1 },
            _ => Self::default(),
        }
    }
}

/// Refuses what no store keeps: a schedule over its limits, or the run of a firing that is.
pub(crate) fn check_schedule(schedule: &Schedule) -> Result<(), crate::StoreError> {
    schedule.check().map_err(crate::StoreError::Schedule)
}

/// A token like no other.
pub(crate) fn new_token() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}
