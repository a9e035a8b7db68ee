//! From SQLite's errors to ours: what the caller must do next.
//!
//! Invariant: an error is only reported as "nothing was written" when SQLite can't have made a commit durable.

use crate::{
    depot::Away,
    error::{Locked, Source, StoreError},
};
use hapax_core::{
    error::{Code, code},
    id::{Namespace, RunId, RunKey},
};
use rusqlite::{Error, ErrorCode, ffi};
use std::{path::Path, sync::Arc};

/// Why a file can't be opened.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) what: String,
    pub(super) why: String,
    pub(super) code: Code,
}

impl From<Refusal> for StoreError {
    fn from(Refusal { what, why, code }: Refusal) -> Self {
        StoreError::Open { what, why, code }
    }
}

/// An error of SQLite while it opens a file.
pub(super) fn cannot_open(what: &str, error: &Error) -> Refusal {
    let (why, code) = match error.sqlite_error_code() {
        _ if is_damage(error) => (
            format!(
                "it is not a database, or it is damaged ({}): restore a backup, or pick another file",
                damage_of(error).1
            ),
            code::CORRUPT,
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (format!("another process holds its write lock ({error})"), code::STORE_RETRY)
        }
        _ if is_full(error) => (no_room(&error.to_string()), code::STORE_FULL),
        Some(ErrorCode::ReadOnly) => (read_only_cure(&error.to_string()), code::READ_ONLY),
        _ => (error.to_string(), code::CANNOT_OPEN),
    };
    Refusal { what: what.into(), why, code }
}

/// An error of the operating system beside the file.
pub(super) fn cannot_write(path: &Path, error: &std::io::Error) -> Refusal {
    use std::io::ErrorKind::{
        FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let (why, code) = match error.kind() {
        PermissionDenied | ReadOnlyFilesystem => (read_only_cure(&error.to_string()), code::READ_ONLY),
        StorageFull | QuotaExceeded | FileTooLarge => (no_room(&error.to_string()), code::STORE_FULL),
        _ => (error.to_string(), code::CANNOT_OPEN),
    };
    Refusal { what: path.display().to_string(), why, code }
}

fn no_room(error: &str) -> String {
    format!("{error}: there is no room for it or its log on the disk")
}

pub(super) fn read_only_cure(error: &str) -> String {
    format!(
        "{error}: the file and its folder must be writable (SQLite keeps its log beside the file); \
         give this user write permission, or pick another folder"
    )
}

/// An error after which nothing of the transaction is in the file.
pub(super) fn nothing_written(error: &Arc<Error>, about: &RunKey) -> StoreError {
    if let Error::FromSqlConversionFailure(_, _, reason) = &**error {
        if let Some(locked) = reason.downcast_ref::<Locked>() {
            return StoreError::Locked { run: about.clone(), locked: locked.clone() };
        }
        if let Some(away) = reason.downcast_ref::<Away>() {
            return away.for_another().of(about);
        }
    }
    if is_damage(error) {
        let (step, what) = damage_of(error);
        return StoreError::Corrupt { run: about.clone(), step, what };
    }
    let source = error.clone().into();
    if is_full(error) { StoreError::Full(source) } else { StoreError::Retry(source) }
}

/// An error of a read.
pub(super) fn unreadable(error: Error, about: &RunKey) -> StoreError {
    nothing_written(&Arc::new(error), about)
}

/// Whether a failed COMMIT left nothing behind. A commit record that couldn't be synced may still reach the disk;
/// one that couldn't be written can't.
pub(super) fn commit_left_nothing(error: &Error) -> bool {
    is_full(error)
        || matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::OutOfMemory)
        )
}

/// No room: the disk, the quota, or the file's size limit. SQLite reports the latter two as a failed write.
fn is_full(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || matches!(
            error.sqlite_extended_error_code(),
            Some(ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_SHMSIZE)
        )
}

/// Another connection is at work.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// A primary key is taken. Any other constraint is our own mistake, not the caller's duplicate.
pub(super) fn is_duplicate(error: &Error) -> bool {
    matches!(
        error.sqlite_extended_error_code(),
        Some(ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_UNIQUE)
    )
}

fn is_damage(error: &Error) -> bool {
    match error {
        Error::FromSqlConversionFailure(..)
        | Error::InvalidColumnType(..)
        | Error::IntegralValueOutOfRange(..)
        // Our statements fit our tables: what can't be prepared lacks one.
        | Error::SqlInputError { .. } => true,
        Error::SqliteFailure(_, Some(text)) if text.starts_with("no such ") => true,
        error => {
            matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        }
    }
}

/// The step that is damaged, when one is to blame, and what is wrong. Neither a column's number nor a whole statement is
/// of use to a reader.
fn damage_of(error: &Error) -> (Option<u64>, String) {
    match error {
        Error::FromSqlConversionFailure(_, _, reason) => match reason.downcast_ref::<Damage>() {
            Some(Damage { step, what }) => (*step, what.clone()),
            None => (None, reason.to_string()),
        },
        Error::SqlInputError { msg, .. } => (None, msg.clone()),
        error => (None, error.to_string()),
    }
}

/// Stands for all runs of a namespace where an error can't name one.
pub(super) fn all_runs(namespace: &Namespace) -> RunKey {
    RunKey { namespace: namespace.clone(), run: RunId::new("*").expect("a star is a name") }
}

/// A stored value that can't be what we wrote.
pub(super) fn damaged(what: impl Into<String>) -> Error {
    damage(None, what.into())
}

/// A stored value of that step that can't be what we wrote.
pub(super) fn damaged_at(step: u64, what: impl Into<String>) -> Error {
    damage(Some(step), what.into())
}

/// Stored bytes that can't be decoded: for lack of a key, or because they can't be what we wrote.
pub(super) fn undecoded(step: Option<u64>, what: &str, error: Source) -> Error {
    if error.is::<Locked>() || error.is::<Away>() {
        return Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, error);
    }
    damage(step, format!("{what} cannot be read: {error}"))
}

fn damage(step: Option<u64>, what: String) -> Error {
    Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, Box::new(Damage { step, what }))
}

/// What is damaged, on its way through SQLite's own error.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Damage {
    step: Option<u64>,
    what: String,
}
