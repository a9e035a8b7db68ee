//! PostgreSQL: one server, or a primary with a synchronous standby.

use std::ffi::OsString;
use std::ops::{Deref, DerefMut};

use crate::database::Url;
use crate::folder::Folder;
use crate::process::{Disk, run, unprivileged};
use crate::programs::{INITDB, PG_BASEBACKUP, POSTGRES};
use crate::server::{Extras, Kind, Server, random};
use crate::{ServerError, sql};

/// What confirms a commit only when it is on the disk stands here in full, though these are the defaults: tests of
/// durability rest on them. No socket file, since a path may be too long for one. Memory that processes share lies in the
/// folder, so that it is gone with it.
const SETTINGS: &[&str] = &[
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "fsync=on",
    "full_page_writes=on",
    "synchronous_commit=on",
    "max_connections=300",
    "dynamic_shared_memory_type=mmap",
];

pub(crate) static KIND: Kind = Kind {
    name: "PostgreSQL",
    program: POSTGRES,
    args,
    url: |port| format!("postgres://postgres@127.0.0.1:{port}/postgres"),
    where_is_data: |url| sql(url, "SHOW data_directory"),
};

/// A PostgreSQL server of one's own. It leads to [`Server`], which has what all kinds can.
///
/// ```no_run
/// use hapax_servers::{Postgres, fresh_database, sql};
///
/// let server = Postgres::start()?;
/// let database = fresh_database(&server.url())?;
/// assert_eq!(sql(&database, "SELECT 1 + 1")?, "2");
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
#[derive(Debug)]
pub struct Postgres(Server);

impl Postgres {
    /// Makes and starts a server, and waits until it answers; that takes about two seconds.
    ///
    /// ```no_run
    /// let server = hapax_servers::Postgres::start()?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] names the package when PostgreSQL isn't installed, [`ServerError::NotReady`] has the log
    /// of one that doesn't come up.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(&[])
    }

    /// The same with settings of its own, each as in `postgresql.conf`.
    ///
    /// ```no_run
    /// let server = hapax_servers::Postgres::start_with(&["max_connections=10"])?;
    /// assert_eq!(hapax_servers::sql(&server.url(), "SHOW max_connections")?, "10");
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_with(settings: &[&str]) -> Result<Self, ServerError> {
        let args = settings.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]).collect();
        Server::start(&KIND, empty_cluster()?, Extras { args, disk: None }).map(Postgres)
    }

    /// The same with the URL of a database that lies on a disk of so many megabytes. The disk is gone when the server is
    /// killed.
    ///
    /// ```no_run
    /// use hapax_servers::{Postgres, sql};
    ///
    /// let (_server, database) = Postgres::start_with_disk(32)?;
    /// let full = sql(&database, "CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 1000000)");
    /// assert!(full.unwrap_err().to_string().contains("No space left on device"));
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_with_disk(megabytes: u32) -> Result<(Self, String), ServerError> {
        let folder = empty_cluster()?;
        let at = folder.add("disk")?;
        let place = at.display().to_string();
        let extras = Extras { disk: Some(Disk { at, megabytes }), ..Extras::default() };
        let server = Server::start(&KIND, folder, extras).map(Postgres)?;
        sql(&server.url(), &format!("CREATE TABLESPACE small LOCATION '{place}'"))?;
        sql(&server.url(), "CREATE DATABASE small TABLESPACE small")?;
        let database = Url::parse(&server.url())?.with_database("small");
        Ok((server, database))
    }

    /// Starts a standby without which this server confirms no commit any more, and waits until it takes part.
    ///
    /// ```no_run
    /// use hapax_servers::{Postgres, sql};
    ///
    /// let mut primary = Postgres::start()?;
    /// let standby = primary.standby()?;
    /// sql(&primary.url(), "CREATE TABLE t AS SELECT 7 AS v")?;
    /// primary.kill()?;
    /// standby.promote()?;
    /// assert_eq!(sql(&standby.url(), "SELECT v FROM t")?, "7");
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Failed`] when the copy can't be made, [`ServerError::NotReady`] when it never takes part.
    pub fn standby(&self) -> Result<Postgres, ServerError> {
        let name = format!("standby_{:016x}", random());
        let folder = Folder::new()?;
        let port = self.address().port();
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
        let mut backup = unprivileged(&PG_BASEBACKUP.path()?, folder.path());
        backup.args(["-R", "-X", "stream", "-c", "fast", "-C", "-S", &name, "-d", &primary, "-D"]);
        run(backup.arg(folder.data()))?;
        let standby = Server::start(&KIND, folder, Extras::default()).map(Postgres)?;
        self.wait_for_standby(&format!("FIRST 1 ({name})"))?;
        let state = format!("SELECT sync_state FROM pg_stat_replication WHERE application_name = '{name}'");
        self.wait_for(&state, "sync")?;
        Ok(standby)
    }

    /// Makes a standby the primary, which takes writes and waits for no other, and returns when it does.
    ///
    /// ```no_run
    /// # let mut primary = hapax_servers::Postgres::start()?;
    /// # let standby = primary.standby()?;
    /// primary.kill()?;
    /// standby.promote()?;
    /// assert_eq!(hapax_servers::sql(&standby.url(), "SELECT pg_is_in_recovery()")?, "f");
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Failed`] when it is no standby, [`ServerError::NotReady`] when it remains one.
    pub fn promote(&self) -> Result<(), ServerError> {
        sql(&self.url(), "SELECT pg_promote()")?;
        self.wait_for("SELECT pg_is_in_recovery()", "f")?;
        // It may be the copy of a server that waited for another standby.
        self.wait_for_standby("")
    }

    fn wait_for_standby(&self, names: &str) -> Result<(), ServerError> {
        sql(&self.url(), &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"))?;
        sql(&self.url(), "SELECT pg_reload_conf()").map(drop)
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for Postgres {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

/// A folder with the data of a new server. It isn't synced: what doesn't survive the machine is made anew in any case.
pub(crate) fn empty_cluster() -> Result<Folder, ServerError> {
    let folder = Folder::new()?;
    let mut initdb = unprivileged(&INITDB.path()?, folder.path());
    initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]);
    run(initdb.arg(folder.data()))?;
    Ok(folder)
}

fn args(folder: &Folder, port: u16) -> Vec<OsString> {
    let place: [OsString; 4] = ["-D".into(), folder.data().into(), "-p".into(), port.to_string().into()];
    let settings = SETTINGS.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]);
    place.into_iter().chain(settings).collect()
}
