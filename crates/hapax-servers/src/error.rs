//! Why a server could not be had, in words that say what to do next.

use std::error::Error;
use std::fmt;
use std::io;

/// What went wrong around a server.
///
/// ```
/// use hapax_servers::ServerError;
///
/// let missing = ServerError::Missing { program: "initdb".into(), package: "postgresql" };
/// assert!(missing.to_string().ends_with("apt-get install -y --no-install-recommends postgresql"));
/// ```
#[derive(Debug)]
pub enum ServerError {
    /// A program isn't installed.
    Missing {
        /// The program.
        program: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// A server ended, or did not answer in time.
    NotReady {
        /// The server and what it did.
        what: String,
        /// All that it logged.
        log: String,
    },
    /// A program ran and failed, or a server refused a statement.
    Failed {
        /// The command line.
        command: String,
        /// What it printed.
        output: String,
    },
    /// The URL of no server here, or not that of the server that is needed, or without a host.
    BadUrl(String),
    /// The operating system refused something.
    Io {
        /// What was to be done.
        doing: String,
        /// The refusal.
        source: io::Error,
    },
}

impl ServerError {
    /// Names what was to be done when the operating system refused it.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| ServerError::Io { doing, source }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::Missing { program, package } => write!(
                f,
                "`{program}` of the Debian package {package} isn't installed; install it with: \
                 apt-get update && apt-get install -y --no-install-recommends {package}"
            ),
            ServerError::NotReady { what, log } => write!(f, "{what}; its log:\n{log}"),
            ServerError::Failed { command, output } => write!(f, "`{command}` failed:\n{output}"),
            ServerError::BadUrl(url) => {
                write!(
                    f,
                    "`{url}` is no URL of the server that is needed, such as postgres://user@host:port, \
                     mysql://user@host:port, redis://host:port/0, nats://host:port or amqp://user:password@host:port"
                )
            }
            ServerError::Io { doing, source } => write!(f, "could not {doing}: {source}"),
        }
    }
}

impl Error for ServerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ServerError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
