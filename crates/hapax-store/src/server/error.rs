//! From a server's faults to the store's errors: what the caller must do next.

use super::sql::Fault;
use crate::error::StoreError;
use hapax_core::id::{Namespace, RunId, RunKey};

/// Why a job stops before its end.
pub(crate) enum Halt<T> {
    /// Undo the transaction: this is the answer.
    Settle(Result<T, StoreError>),
    /// Undo the transaction: a statement failed.
    Fault(Fault),
}

impl<T> From<Fault> for Halt<T> {
    fn from(fault: Fault) -> Self {
        Halt::Fault(fault)
    }
}

impl<T> From<StoreError> for Halt<T> {
    fn from(error: StoreError) -> Self {
        Halt::Settle(Err(error))
    }
}

/// What a job answers.
pub(crate) type Outcome<T> = Result<T, Halt<T>>;

/// A fault as the store reports it.
pub(crate) fn reported(fault: Fault, about: &RunKey) -> StoreError {
    match fault {
        // A duplicate that nobody looked into is our own mistake, not the caller's.
        Fault::Duplicate(source) | Fault::Again(source) | Fault::Nothing(source) => StoreError::Retry(source),
        Fault::Full(source) => StoreError::Full(source),
        Fault::TooLarge { size, limit } => StoreError::TooLarge {
            what: "a statement, in bytes, for the server's packets".into(),
            size,
            limit,
        },
        Fault::Lost(source) => StoreError::Unknown(source),
        Fault::Warned => StoreError::Unknown("the server warned while it committed".into()),
        Fault::Damage(step, what) => StoreError::Corrupt { run: about.clone(), step, what },
        Fault::Locked(locked) => StoreError::Locked { run: about.clone(), locked },
        Fault::Away(away) => away.of(about),
    }
}

/// The same for work that didn't come to a commit: what was lost is known to have changed nothing.
pub(crate) fn undone(fault: Fault, about: &RunKey) -> StoreError {
    reported(fault.before_commit(), about)
}

/// Why no session was lent, as what became of a statement.
pub(crate) fn unlent(error: StoreError) -> Fault {
    match error {
        StoreError::Retry(source) => Fault::Nothing(source),
        error => Fault::Nothing(error.into()),
    }
}

/// Stands for all runs of a namespace where an error can't name one.
pub(crate) fn all_runs(namespace: &Namespace) -> RunKey {
    RunKey { namespace: namespace.clone(), run: RunId::new("*").expect("a star is a name") }
}
