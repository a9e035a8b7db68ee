//! Where a transaction stands: whether it takes another statement, and whether it may be committed.
//!
//! Invariant: a statement is noted before it is sent. One whose answer was never read, or that failed in a way that its
//! server doesn't remember, leaves only the rollback.

#![cfg_attr(
    not(all(feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "each database has its own use for it")
)]

use super::{CommitError, DbError};
use hapax_core::canary;

#[derive(Debug, Default)]
pub(crate) enum Standing {
    #[default]
    Open,
    /// A statement is on its way.
    Sent,
    /// A statement failed, and the server itself takes nothing more but the end.
    Failed(String),
    /// It can only be rolled back, and only we know it.
    Poisoned(String),
    /// It was ended by something else than our COMMIT or ROLLBACK.
    Ended(String),
}

impl Standing {
    /// A statement goes out.
    pub(crate) fn sends(&mut self) -> Result<(), DbError> {
        match self {
            Standing::Open => {
                *self = Standing::Sent;
                Ok(())
            }
            closed => Err(DbError::Poisoned(closed.why())),
        }
    }

    /// What undoes a failed part goes out.
    pub(crate) fn sends_undo(&mut self) -> Result<(), DbError> {
        if matches!(self, Standing::Failed(_)) {
            *self = Standing::Open;
        }
        self.sends()
    }

    /// The statement was answered, and the transaction goes on.
    pub(crate) fn answered(&mut self) {
        *self = Standing::Open;
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(self, Standing::Ended(_))
    }

    /// Whether the server can be told to end it.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self, Standing::Sent)
    }

    /// Why COMMIT must not be sent.
    pub(crate) fn refuses_commit(&self) -> Option<CommitError> {
        match self {
            Standing::Open | Standing::Failed(_) => None,
            Standing::Poisoned(_) if canary::on("marker_commits_anyway") => None,
            Standing::Ended(why) => Some(CommitError::Ended(why.clone())),
            Standing::Sent | Standing::Poisoned(_) => {
                Some(CommitError::RolledBack(DbError::Poisoned(self.why())))
            }
        }
    }

    pub(crate) fn why(&self) -> String {
        match self {
            Standing::Open => String::new(),
            Standing::Sent => "a statement was dropped half-way".into(),
            Standing::Failed(why) | Standing::Poisoned(why) | Standing::Ended(why) => why.clone(),
        }
    }
}
