//! From PostgreSQL's errors to ours, by SQLSTATE and never by text.

use super::WORDS;
use crate::{
    error::StoreError,
    server::{sql::Fault, tls},
};
use hapax_core::error::{Code, code};
use tokio_postgres::{Config, Error, error::SqlState};

/// An error of a statement.
pub(super) fn fault(error: Error) -> Fault {
    let Some(state) = error.code() else {
        // No word from the server: the connection broke, or our own types don't fit.
        return if error.is_closed() || source_io(&error).is_some() {
            Fault::Lost(error.into())
        } else {
            Fault::Damage(None, error.to_string())
        };
    };
    match state {
        &SqlState::UNIQUE_VIOLATION => Fault::Duplicate(told(&error).into()),
        &SqlState::DISK_FULL => Fault::Full(told(&error).into()),
        &SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN => Fault::Damage(None, told(&error)),
        // The server ends the session: whether it did so before or after a commit isn't said.
        state if ["57P", "08"].iter().any(|class| state.code().starts_with(class)) => {
            Fault::Lost(told(&error).into())
        }
        &SqlState::T_R_SERIALIZATION_FAILURE
        | &SqlState::T_R_DEADLOCK_DETECTED
        | &SqlState::LOCK_NOT_AVAILABLE => Fault::Again(told(&error).into()),
        _ => Fault::Nothing(told(&error).into()),
    }
}

/// Whether the session is of no more use: it is closed, or its server takes no more writes.
pub(super) fn ends_session(error: &Error) -> bool {
    match error.code() {
        None => true,
        Some(state) => {
            *state == SqlState::READ_ONLY_SQL_TRANSACTION
                || ["57P", "08"].iter().any(|class| state.code().starts_with(class))
        }
    }
}

/// What the server says, with its code.
pub(super) fn told(error: &Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        None => error.to_string(),
    }
}

/// Why a server can't be used.
pub(super) fn refused(what: &str, why: impl Into<String>, code: Code) -> StoreError {
    StoreError::Open { what: what.into(), why: why.into(), code }
}

/// An error while a session is opened.
pub(super) fn cannot_connect(what: &str, config: &Config, error: &Error) -> StoreError {
    if let Some(cause) = tls::cause(error) {
        return refused(what, WORDS.refusal(cause), code::CANNOT_OPEN);
    }
    // The driver has no other sign for it than its words.
    if error.code().is_none() && deepest(error) == "server does not support TLS" {
        return refused(what, WORDS.not_there(), code::CANNOT_OPEN);
    }
    // What the driver says of hosts of which none takes writes.
    let io = source_io(error);
    if io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied) {
        let why = "it takes no writes, or none of its hosts does: name the primary";
        return refused(what, why, code::READ_ONLY);
    }
    let user = quoted(config.get_user().unwrap_or_default());
    let database = config.get_dbname().map_or_else(|| user.clone(), quoted);
    let cure = match error.code().map(SqlState::code) {
        Some("28P01" | "28000") => "check user and password, and the server's pg_hba.conf".to_owned(),
        Some("3D000") => format!("create the database first: CREATE DATABASE {database}"),
        Some("42501") => format!("let this user connect: GRANT CONNECT ON DATABASE {database} TO {user}"),
        // A setting that it doesn't know.
        Some("42704") if config.get_options().is_some() => {
            "take it out of the address's `options`, if it stands there, or upgrade the server to PostgreSQL 13".to_owned()
        }
        Some("42704") => "upgrade the server: it must be PostgreSQL 13 or newer".to_owned(),
        // Too many sessions, or a server that starts or stops: later it may work.
        Some("53300" | "57P03" | "57P01") => return StoreError::Retry(told(error).into()),
        // The driver has no other sign for it than its words.
        None if deepest(error) == "password missing" => {
            "give the password in the address: postgres://user:password@host/database".to_owned()
        }
        _ => "check that the server runs, and its address".to_owned(),
    };
    refused(what, format!("{}: {cure}", deepest(error)), code::CANNOT_OPEN)
}

pub(super) fn source_io(error: &Error) -> Option<&std::io::Error> {
    std::error::Error::source(error).and_then(<dyn std::error::Error>::downcast_ref)
}

/// A name as it stands in a statement.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What lies behind an error of the connection.
pub(super) fn deepest(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if error.as_db_error().is_some() { told(error) } else { cause.to_string() }
}
