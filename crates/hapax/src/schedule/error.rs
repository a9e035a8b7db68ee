//! Why a schedule is refused.

use crate::Error;
use hapax_core::{
    error::{Code, Coded, code},
    schedule::{BadSchedule, TimetableError},
    state::StateShape,
};
use std::sync::Arc;

/// A schedule that can't be, or isn't there.
///
/// ```
/// use hapax::{Coded, schedule::ScheduleError};
/// let missing = ScheduleError::NotFound { name: "nightly".into() };
/// assert_eq!((missing.code(), missing.to_string()), ("HX0163", "there is no schedule `nightly`".into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Its expression or its zone can't be used.
    #[error(transparent)]
    Timetable(#[from] TimetableError),
    /// Its expression names no time that will ever come.
    #[error("`{cron}` never comes true: no calendar has that day, or its year is over")]
    Never {
        /// The expression.
        cron: String,
    },
    /// It has a setting that can't be.
    #[error(transparent)]
    Bad(#[from] BadSchedule),
    /// The name is taken by another one.
    #[error("schedule `{name}` exists already, and is another one; remove it first, or choose another name")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no schedule `{name}`")]
    NotFound {
        /// The name.
        name: String,
    },
    /// What its runs are to begin with isn't a state of their graph.
    #[error("the input does not fit the state of graph `{graph}` at `{}`: {}", shape.path, shape.reason)]
    Input {
        /// The graph.
        graph: Arc<str>,
        /// What doesn't fit.
        shape: StateShape,
    },
}

impl Coded for ScheduleError {
    fn code(&self) -> Code {
        match self {
            ScheduleError::Timetable(error) => error.code(),
            ScheduleError::Never { .. } => code::BAD_CRON,
            ScheduleError::Bad(error) => error.code(),
            ScheduleError::Exists { .. } => code::SCHEDULE_EXISTS,
            ScheduleError::NotFound { .. } => code::SCHEDULE_NOT_FOUND,
            ScheduleError::Input { .. } => code::SCHEDULE_INPUT,
        }
    }
}

impl From<ScheduleError> for Error {
    fn from(error: ScheduleError) -> Self {
        Error::Schedule(Box::new(error))
    }
}

impl From<TimetableError> for Error {
    fn from(error: TimetableError) -> Self {
        ScheduleError::from(error).into()
    }
}

impl From<BadSchedule> for Error {
    fn from(error: BadSchedule) -> Self {
        ScheduleError::from(error).into()
    }
}
