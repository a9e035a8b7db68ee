//! Schedules: the plain data of runs that start by the clock.
//!
//! Invariant: a schedule says when, of what graph and with what input; it holds no time of its own. When it fires next is
//! the store's, and follows from the expression and the zone alone, by [`Timetable`].

#[cfg(feature = "schedules")]
mod timetable;

#[cfg(feature = "schedules")]
pub use timetable::{Firing, Timetable, TimetableError};

use crate::{
    error::{Code, Coded, code},
    id::{InvalidId, Namespace, check_name},
    json::Json,
    limits::{MAX_CATCH_UP, MAX_CRON_BYTES, MAX_PAYLOAD_BYTES, MAX_SCHEDULE_NAME_BYTES},
};
use std::{fmt, sync::Arc};

/// Names a schedule in a store: the tenant and the schedule.
///
/// ```
/// use hapax_core::{id::Namespace, schedule::ScheduleKey};
/// let key = ScheduleKey { namespace: Namespace::new("shop")?, name: "nightly".into() };
/// assert_eq!(key.to_string(), "shop/nightly");
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleKey {
    /// The tenant.
    pub namespace: Namespace,
    /// The schedule.
    pub name: Arc<str>,
}

impl fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace == Namespace::default() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What becomes of a firing while the run of the one before it isn't over.
///
/// ```
/// use hapax_core::schedule::Overlap;
/// assert_eq!(Overlap::from_word("queue"), Some(Overlap::Queue));
/// assert_eq!(Overlap::default().word(), "skip");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// It is passed over, and counted.
    #[default]
    Skip,
    /// It waits until that run is over; no more of them wait than the catch-up limit says.
    Queue,
    /// That run is asked to be cancelled, and the new one starts at once.
    Cancel,
}

impl Overlap {
    /// All of them.
    pub const ALL: [Self; 3] = [Overlap::Skip, Overlap::Queue, Overlap::Cancel];

    /// One word for it, as stores and people see it.
    pub fn word(self) -> &'static str {
        match self {
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Cancel => "cancel",
        }
    }

    /// The one of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|overlap| overlap.word() == word)
    }
}

/// What starts, and when.
///
/// ```
/// use hapax_core::{id::Namespace, json::Json, schedule::{Overlap, Schedule, ScheduleKey}};
/// let nightly = Schedule {
///     key: ScheduleKey { namespace: Namespace::default(), name: "nightly".into() },
///     graph: "reports".into(),
///     input: Json::from_text("{}")?,
///     input_version: None,
///     cron: "0 2 * * *".into(),
///     zone: "Europe/Berlin".into(),
///     overlap: Overlap::Skip,
///     catch_up: 1,
/// };
/// assert!(nightly.check().is_ok());
/// assert_eq!(Schedule { catch_up: 0, ..nightly }.check().unwrap_err().to_string(), "the catch-up limit is 0, and must be from 1 to 1000");
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its name.
    pub key: ScheduleKey,
    /// The graph of which it starts runs.
    pub graph: Arc<str>,
    /// The state that they begin with.
    pub input: Json,
    /// The version of that state; `None`: whatever the program that fires has.
    pub input_version: Option<u32>,
    /// The cron expression.
    pub cron: String,
    /// The time zone that it is read in, by its IANA name.
    pub zone: String,
    /// What becomes of a firing while the run before it isn't over.
    pub overlap: Overlap,
    /// How many firings that are overdue are started at the most, the latest of them.
    pub catch_up: u32,
}

impl Schedule {
    /// Refuses what no store could keep. Whether expression and zone mean anything is the timetable's to say.
    pub fn check(&self) -> Result<(), BadSchedule> {
        check_name("schedule name", &self.key.name)?;
        check_name("graph name", &self.graph)?;
        check_name("time zone", &self.zone)?;
        let within = |what, size: usize, limit| {
            if size > limit { Err(BadSchedule::TooLong { what, size, limit }) } else { Ok(()) }
        };
        within("its name", self.key.name.len(), MAX_SCHEDULE_NAME_BYTES)?;
        within("its cron expression", self.cron.len(), MAX_CRON_BYTES)?;
        within("its input", self.input.as_bytes().len(), MAX_PAYLOAD_BYTES)?;
        if (1..=MAX_CATCH_UP).contains(&self.catch_up) {
            return Ok(());
        }
        Err(BadSchedule::CatchUp { given: self.catch_up })
    }
}

/// A schedule that no store can keep.
///
/// ```
/// use hapax_core::{error::Coded, schedule::BadSchedule};
/// assert_eq!(BadSchedule::CatchUp { given: 0 }.code(), "HX0164");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSchedule {
    /// A name is no name.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// Something is too long.
    #[error("{what} has {size} bytes, and may have {limit}")]
    TooLong {
        /// What.
        what: &'static str,
        /// How long it is.
        size: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The catch-up limit can't be.
    #[error("the catch-up limit is {given}, and must be from 1 to {MAX_CATCH_UP}")]
    CatchUp {
        /// What was given.
        given: u32,
    },
}

impl Coded for BadSchedule {
    fn code(&self) -> Code {
        match self {
            BadSchedule::Name(error) => error.code(),
            BadSchedule::TooLong { .. } | BadSchedule::CatchUp { .. } => code::BAD_SCHEDULE,
        }
    }
}
