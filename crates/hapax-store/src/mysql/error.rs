//! From MySQL's and MariaDB's errors to ours, by number and never by text.

use super::WORDS;
use crate::{
    error::StoreError,
    server::{
        error::{all_runs, undone},
        sql::Fault,
        tls,
    },
};
use hapax_core::{
    error::{Code, code},
    id::Namespace,
};
use mysql_async::{DriverError, Error, Opts, ServerError};

/// An error of a statement.
pub(super) fn fault(error: Error) -> Fault {
    let Error::Server(said) = error else {
        // No word from the server: the connection broke, or what came can't be read.
        return Fault::Lost(error.into());
    };
    match said.code {
        // A unique key is taken.
        1022 | 1062 | 1586 => Fault::Duplicate(said.into()),
        // A record or a table has changed meanwhile, a lock wasn't free in time, a deadlock.
        1020 | 1205 | 1213 | 1615 => Fault::Again(said.into()),
        // A file can't grow: a temporary one, the disk, a log, a table.
        3 | 20 | 1021 | 1026 | 1114 => Fault::Full(said.into()),
        // A column or a table isn't there.
        1054 | 1146 | 1932 => Fault::Damage(None, said.to_string()),
        _ => Fault::Nothing(said.into()),
    }
}

/// An error of COMMIT. The server says of a deadlock alone, which a cluster finds only then, that nothing is left.
pub(super) fn at_commit(error: Error) -> Fault {
    match error {
        Error::Server(said) if said.code == 1213 => Fault::Again(said.into()),
        error => Fault::Lost(error.into()),
    }
}

/// Whether the session is of no more use: it is closed, or its server takes no more writes.
pub(super) fn ends_session(error: &Error) -> bool {
    match error {
        // A cluster's node that left it; shutdown; broken packets; forgotten statements; read-only; killed; idle too long.
        Error::Server(said) => {
            matches!(said.code, 1047 | 1053 | 1152..=1161 | 1243 | 1290 | 1792 | 1836 | 1927 | 3169 | 4031)
        }
        _ => true,
    }
}

/// Whether a value is missing that must be there.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Server(said) if said.code == 1048)
}

/// Why a server can't be used.
pub(super) fn refused(what: &str, why: impl Into<String>, code: Code) -> StoreError {
    StoreError::Open { what: what.into(), why: why.into(), code }
}

/// An error while a session is opened.
pub(super) fn cannot_connect(what: &str, address: &Opts, error: &Error) -> StoreError {
    let (user, database) = (address.user().unwrap_or_default(), address.db_name().unwrap_or_default());
    match error {
        Error::Server(said) if said.code == 1044 => {
            let cure =
                format!("GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO '{user}'@'%'");
            refused(what, format!("{said}: {cure}"), code::CANNOT_OPEN)
        }
        Error::Server(said) if said.code == 1049 => {
            let cure = format!("create the database first: CREATE DATABASE `{database}`");
            refused(what, format!("{said}: {cure}"), code::CANNOT_OPEN)
        }
        // Too many sessions, or a server that starts or stops: later it may work.
        Error::Server(said) => refusal(what, said).unwrap_or_else(|| StoreError::Retry(said.clone().into())),
        Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            refused(what, WORDS.not_there(), code::CANNOT_OPEN)
        }
        error => {
            if let Some(cause) = tls::cause(error) {
                return refused(what, WORDS.refusal(cause), code::CANNOT_OPEN);
            }
            let why = format!("{}: check that the server runs, and its address", deepest(error));
            refused(what, why, code::CANNOT_OPEN)
        }
    }
}

/// A fault while a store is opened.
pub(super) fn at_open(what: &str, fault: Fault) -> StoreError {
    let said = match &fault {
        Fault::Nothing(source) => source.downcast_ref::<ServerError>(),
        _ => None,
    };
    let refusal = said.and_then(|said| refusal(what, said));
    refusal.unwrap_or_else(|| undone(fault, &all_runs(&Namespace::default())))
}

/// Whether the user lacks a right.
pub(super) fn is_denied(fault: &Fault) -> bool {
    let Fault::Nothing(source) = fault else { return false };
    source.downcast_ref::<ServerError>().is_some_and(|said| matches!(said.code, 1044 | 1142 | 1143))
}

/// Whether it takes no writes. 1290 is said of any option that forbids something.
fn is_read_only(said: &ServerError) -> bool {
    let by_option = ["read-only", "read_only"].iter().any(|option| said.message.contains(option));
    matches!(said.code, 1792 | 1836) || said.code == 1290 && by_option
}

/// What the server has against us for good, with the cure.
fn refusal(what: &str, said: &ServerError) -> Option<StoreError> {
    let cure = match said.code {
        1045 | 1698 => "check user and password",
        1044 | 1142 | 1143 | 1227 => {
            "grant this user the rights: GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON database.* TO user"
        }
        1130 => "create the user for this host as well: CREATE USER user@host",
        1461 => "raise the server's max_prepared_stmt_count: each session keeps some dozens",
        1064 | 1193 => "upgrade the server: it must be MySQL 8.0.1, MariaDB 10.6 or newer",
        _ if is_read_only(said) => {
            let cure = "name the primary, or turn tx_read_only off";
            return Some(refused(what, format!("{said}: {cure}"), code::READ_ONLY));
        }
        _ => return None,
    };
    Some(refused(what, format!("{said}: {cure}"), code::CANNOT_OPEN))
}

/// What lies behind an error of the connection.
fn deepest(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u16) -> Error {
        Error::Server(ServerError { code, message: "no".into(), state: "HY000".into() })
    }

    #[test]
    fn each_number_has_its_meaning() {
        assert!(matches!(fault(said(1062)), Fault::Duplicate(_)));
        assert!([1205, 1213].into_iter().all(|code| matches!(fault(said(code)), Fault::Again(_))));
        assert!([3, 1021, 1114].into_iter().all(|code| matches!(fault(said(code)), Fault::Full(_))));
        assert!([1054, 1146].into_iter().all(|code| matches!(fault(said(code)), Fault::Damage(..))));
        assert!([1290, 1836].into_iter().all(|code| matches!(fault(said(code)), Fault::Nothing(_))));
        assert!([1290, 1836, 1053].into_iter().all(|code| ends_session(&said(code))));
        assert!([1062, 1205, 1213].into_iter().all(|code| !ends_session(&said(code))));
    }

    #[test]
    fn a_commit_that_failed_is_unknown_unless_a_deadlock_undid_it() {
        assert!(matches!(at_commit(said(1213)), Fault::Again(_)));
        assert!([1205, 1180, 1290].into_iter().all(|code| matches!(at_commit(said(code)), Fault::Lost(_))));
    }
}
