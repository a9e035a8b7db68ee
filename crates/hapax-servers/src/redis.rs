//! Redis: a cache that comes back empty, unless it is told to keep what it has.

use std::ffi::OsString;
use std::ops::{Deref, DerefMut};

use crate::ServerError;
use crate::folder::Folder;
use crate::process::{run, with_clean_environment};
use crate::programs::{REDIS, REDIS_CLI};
use crate::server::{Kind, Server};

/// Nothing is written to a disk: a cache that was killed comes back empty, and whoever uses it must bear that. Each test has
/// one of the databases, of which there are many.
const SETTINGS: &[&str] =
    &["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no", "--databases", "4096"];

/// Where the number of the latest database that was given away is: in the first one.
const LATEST: &str = "hapax_servers:latest_database";

static KIND: Kind = Kind {
    name: "Redis",
    program: REDIS,
    args,
    url: |port| format!("redis://127.0.0.1:{port}/0"),
    where_is_data: |url| {
        let answer = redis(url, &["CONFIG", "GET", "dir"])?;
        // The name of the setting, then its value.
        Ok(answer.lines().nth(1).unwrap_or_default().to_owned())
    },
};

/// A Redis server of one's own. It leads to [`Server`], which has what all kinds can; unlike the others it comes back
/// empty, unless it was started with other settings.
///
/// ```no_run
/// use hapax_servers::{Redis, redis_command};
///
/// let mut server = Redis::start()?;
/// redis_command(&server.url(), &["SET", "a", "1"])?;
/// assert_eq!(redis_command(&server.url(), &["GET", "a"])?, "1");
/// server.restart()?;
/// assert_eq!(redis_command(&server.url(), &["GET", "a"])?, "");
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
#[derive(Debug)]
pub struct Redis(Server);

impl Redis {
    /// Starts a server, and waits until it answers.
    ///
    /// ```no_run
    /// let server = hapax_servers::Redis::start()?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] names the package when Redis isn't installed, [`ServerError::NotReady`] has the log of one
    /// that doesn't come up.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(&[])
    }

    /// The same with arguments of its own, say to keep what it answered for.
    ///
    /// ```no_run
    /// let server = hapax_servers::Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"])?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_with(settings: &[&str]) -> Result<Self, ServerError> {
        Server::start_empty(&KIND, settings).map(Redis)
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for Redis {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

fn args(folder: &Folder, port: u16) -> Vec<OsString> {
    let place: [OsString; 4] =
        ["--port".into(), port.to_string().into(), "--dir".into(), folder.data().into()];
    SETTINGS.iter().map(OsString::from).chain(place).collect()
}

/// Gives a command to the server of a URL, with its own client, and gives the answer as that prints it.
///
/// ```
/// use hapax_servers::{ServerError, redis_command};
///
/// assert!(matches!(redis_command("postgres://a", &["PING"]), Err(ServerError::BadUrl(_))));
/// ```
///
/// # Errors
///
/// [`ServerError::BadUrl`] when it is no URL of a Redis server, [`ServerError::Failed`] with the client's words when the
/// server refuses or isn't there, [`ServerError::Missing`] when the client isn't installed.
pub fn redis_command(url: &str, command: &[&str]) -> Result<String, ServerError> {
    if !url.starts_with("redis://") {
        return Err(ServerError::BadUrl(url.to_owned()));
    }
    redis(url, command)
}

fn redis(url: &str, command: &[&str]) -> Result<String, ServerError> {
    let mut client = with_clean_environment(&REDIS_CLI.path()?);
    // -e: an error of the server's is an error of the client's.
    client.args(["-e", "--raw", "-u", url]).args(command);
    Ok(run(&mut client)?.trim_end().to_owned())
}

/// The URL of a database that nobody else was given.
pub(crate) fn fresh(base_url: &str) -> Result<String, ServerError> {
    let number = redis(base_url, &["INCR", LATEST])?;
    let (server, _) = base_url.rsplit_once('/').ok_or_else(|| ServerError::BadUrl(base_url.to_owned()))?;
    let url = format!("{server}/{number}");
    // The server refuses a number that it doesn't have.
    redis(&url, &["FLUSHDB"])?;
    Ok(url)
}
