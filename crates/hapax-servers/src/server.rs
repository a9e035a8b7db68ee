//! What all kinds of server have in common: start, wait, kill, restart, freeze.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use crate::clock::Deadline;
use crate::folder::Folder;
use crate::process::{self, Disk, bound_to_us};
use crate::programs::Program;
use crate::{ServerError, sql};

/// How long a server may take to become what it should: a machine may be busy with other tests.
const LIMIT: Duration = Duration::from_secs(60);
const BETWEEN_POLLS: Duration = Duration::from_millis(50);

/// Another process may take a port between our look at it and the server's.
const PORTS_TRIED: usize = 5;
const PORTS_LOOKED_AT: usize = 1000;

/// What tells one kind of server from the other.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// The arguments, for a folder and a port.
    pub(crate) args: fn(&Folder, u16) -> Vec<OsString>,
    /// The URL of the database that every such server has.
    pub(crate) url: fn(u16) -> String,
    /// The folder of the data, as the server of a URL tells it.
    pub(crate) where_is_data: fn(&str) -> Result<String, ServerError>,
}

/// What a server has beyond the ordinary.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) args: Vec<OsString>,
    pub(crate) disk: Option<Disk>,
}

/// A running server, or one that was killed and can be restarted. Dropped, it is killed and its folder removed; the same
/// happens when this process ends in any other way, even by SIGKILL.
///
/// [`Postgres`](crate::Postgres), [`MariaDb`](crate::MariaDb), [`Redis`](crate::Redis) and [`Nats`](crate::Nats) lead here,
/// so a test can be written for several:
///
/// ```no_run
/// use hapax_servers::{MariaDb, Postgres, Server, ServerError, sql};
///
/// fn survives(server: &mut Server) -> Result<(), ServerError> {
///     server.kill()?;
///     assert!(sql(&server.url(), "SELECT 1").is_err());
///     server.restart()?;
///     assert_eq!(sql(&server.url(), "SELECT 1")?, "1");
///     Ok(())
/// }
///
/// survives(&mut *Postgres::start()?)?;
/// survives(&mut *MariaDb::start()?)?;
/// # Ok::<(), ServerError>(())
/// ```
#[derive(Debug)]
pub struct Server {
    kind: &'static Kind,
    // The process comes before its folder, so that it is gone when the folder goes.
    child: ServerProcess,
    folder: Folder,
    port: u16,
    extras: Extras,
}

/// The server's process, which is killed when dropped.
#[derive(Debug)]
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Nobody is left to be told; the folder's keeper ends what this could not.
        let _ = process::kill(&mut self.0);
    }
}

impl Server {
    /// Starts a server on the data that its folder holds, on a free port.
    pub(crate) fn start(kind: &'static Kind, folder: Folder, extras: Extras) -> Result<Self, ServerError> {
        Self::start_on(free_ports().take(PORTS_TRIED), kind, folder, extras)
    }

    /// Starts a server on the first port that it can have.
    fn start_on(
        ports: impl Iterator<Item = u16>,
        kind: &'static Kind,
        folder: Folder,
        extras: Extras,
    ) -> Result<Self, ServerError> {
        let program = kind.program.path()?;
        for port in ports {
            let mut child = launch(kind, &program, &folder, port, &extras)?;
            match wait_until_ready(kind, &mut child, &folder, port) {
                Err(ServerError::NotReady { log, .. }) if is_port_taken(&log) => {}
                outcome => return outcome.map(|()| Server { kind, child, folder, port, extras }),
            }
        }
        let what = format!("{} found no free port", kind.name);
        Err(ServerError::NotReady { what, log: folder.log() })
    }

    /// The URL of the database that every such server has, for [`fresh_database`](crate::fresh_database).
    ///
    /// ```no_run
    /// let server = hapax_servers::Postgres::start()?;
    /// assert!(server.url().starts_with("postgres://postgres@127.0.0.1:"));
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn url(&self) -> String {
        (self.kind.url)(self.port)
    }

    /// Where it listens; the same after a restart.
    ///
    /// ```no_run
    /// let server = hapax_servers::Postgres::start()?;
    /// let proxy = hapax_servers::Proxy::start(server.address())?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The id of its process; another one after a restart.
    ///
    /// ```no_run
    /// let server = hapax_servers::MariaDb::start()?;
    /// assert!(std::fs::exists(format!("/proc/{}", server.pid())).unwrap());
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Its temporary folder, with `data` and `log`.
    ///
    /// ```no_run
    /// let server = hapax_servers::MariaDb::start()?;
    /// assert!(server.folder().join("data").is_dir());
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All that it has logged so far.
    ///
    /// ```no_run
    /// let server = hapax_servers::Postgres::start()?;
    /// assert!(server.log().contains("database system is ready"));
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    #[must_use]
    pub fn log(&self) -> String {
        self.folder.log()
    }

    /// Kills all its processes with SIGKILL, as a crash would, and waits until they are gone. What it had confirmed is in
    /// its folder.
    ///
    /// ```no_run
    /// let mut server = hapax_servers::Postgres::start()?;
    /// server.kill()?;
    /// assert!(std::net::TcpStream::connect(server.address()).is_err());
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Io`] when the operating system refuses.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        process::kill(&mut self.child.0).map_err(ServerError::io(format!("kill {}", self.kind.name)))
    }

    /// Starts it again on the same folder and port, and waits until it answers. One that still runs is killed before.
    ///
    /// ```no_run
    /// let mut server = hapax_servers::Postgres::start()?;
    /// let address = server.address();
    /// server.restart()?;
    /// assert_eq!(server.address(), address);
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::NotReady`] with the log when it doesn't come up.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill()?;
        let program = self.kind.program.path()?;
        self.child = launch(self.kind, &program, &self.folder, self.port, &self.extras)?;
        wait_until_ready(self.kind, &mut self.child, &self.folder, self.port)
    }

    /// Freezes all its processes with SIGSTOP: connections stay open, and nothing is answered.
    ///
    /// ```no_run
    /// let server = hapax_servers::MariaDb::start()?;
    /// server.stop()?;
    /// server.cont()?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Io`] when it doesn't run.
    pub fn stop(&self) -> Result<(), ServerError> {
        let frozen = process::freeze(&self.child.0);
        frozen.map(drop).map_err(ServerError::io(format!("stop {}", self.kind.name)))
    }

    /// Lets a frozen server go on with SIGCONT, as if nothing had been.
    ///
    /// ```no_run
    /// let server = hapax_servers::MariaDb::start()?;
    /// server.stop()?;
    /// server.cont()?;
    /// assert_eq!(hapax_servers::sql(&server.url(), "SELECT 1")?, "1");
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Io`] when it doesn't run.
    pub fn cont(&self) -> Result<(), ServerError> {
        process::thaw(&self.child.0).map_err(ServerError::io(format!("let {} go on", self.kind.name)))
    }

    /// Waits until a query gives the answer that is expected.
    pub(crate) fn wait_for(&self, query: &str, expected: &str) -> Result<(), ServerError> {
        let url = self.url();
        let reached = wait(|| Ok(sql(&url, query).is_ok_and(|answer| answer == expected)))?;
        let what = || format!("{} never answered `{expected}` to `{query}`", self.kind.name);
        if reached { Ok(()) } else { Err(ServerError::NotReady { what: what(), log: self.log() }) }
    }
}

fn launch(
    kind: &Kind,
    program: &Path,
    folder: &Folder,
    port: u16,
    extras: &Extras,
) -> Result<ServerProcess, ServerError> {
    let mut command = bound_to_us(program, folder.path(), extras.disk.as_ref());
    let log = || folder.open_log();
    command.args((kind.args)(folder, port)).args(&extras.args).stdout(log()?).stderr(log()?);
    process::spawn(command).map(ServerProcess).map_err(ServerError::io(format!("start {}", kind.name)))
}

/// Whether a server's log says that somebody else listens on its port.
fn is_port_taken(log: &str) -> bool {
    log.to_lowercase().contains("address already in use")
}

fn wait_until_ready(
    kind: &Kind,
    child: &mut ServerProcess,
    folder: &Folder,
    port: u16,
) -> Result<(), ServerError> {
    let (url, data) = ((kind.url)(port), folder.data());
    let not_ready = |what: String| ServerError::NotReady { what, log: folder.log() };
    let ready = wait(|| {
        let ended = child.0.try_wait().map_err(ServerError::io("look after a server"))?;
        match ended {
            Some(status) => Err(not_ready(format!("{} ended with {status}", kind.name))),
            None => Ok(is_it(kind, &url, &data)),
        }
    })?;
    if ready { Ok(()) } else { Err(not_ready(format!("{} did not answer within {LIMIT:?}", kind.name))) }
}

/// Whether our server answers: another test's may have taken the port, and ours be about to notice.
fn is_it(kind: &Kind, url: &str, data: &Path) -> bool {
    let answer = (kind.where_is_data)(url);
    // Paths are compared by their parts: MariaDB ends its own with a slash.
    answer.is_ok_and(|answer| PathBuf::from(answer) == data)
}

/// Asks until the answer is yes; no when it wasn't in time.
fn wait(mut reached: impl FnMut() -> Result<bool, ServerError>) -> Result<bool, ServerError> {
    let deadline = Deadline::after(LIMIT);
    while !reached()? {
        if deadline.has_passed() {
            return Ok(false);
        }
        thread::sleep(BETWEEN_POLLS);
    }
    Ok(true)
}

/// Ports that nobody listens on. They lie below those that Linux gives to outgoing connections, so that none of them
/// takes the port of a killed server before its restart.
fn free_ports() -> impl Iterator<Item = u16> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let draws = std::iter::repeat_with(|| 10_000 + (random() % 20_000) as u16);
    draws.take(PORTS_LOOKED_AT).filter(is_free)
}

/// A number that no other process draws: the standard library seeds its hash maps from the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{KIND, empty_cluster};

    #[test]
    fn a_port_that_another_server_took_is_passed_over() {
        let other = Server::start(&KIND, empty_cluster().unwrap(), Extras::default()).unwrap();
        let (free, extras) = (free_ports().next().unwrap(), Extras::default());
        let server =
            Server::start_on([other.port, free].into_iter(), &KIND, empty_cluster().unwrap(), extras);
        assert_eq!(server.unwrap().port, free);
    }
}
