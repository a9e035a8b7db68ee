//! MariaDB, which stands in for MySQL: Debian has no other.

use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use crate::database::Url;
use crate::folder::Folder;
use crate::process::{Disk, run, unprivileged};
use crate::programs::{INSTALL_DB, MARIADBD};
use crate::server::{Extras, Kind, Server};
use crate::{ServerError, sql};

/// What confirms a commit only when it is on the disk stands here in full, though these are the defaults: tests of
/// durability rest on them. The socket file is named from the folder of the data, in which the server works: a whole path may
/// be too long for one. Characters are those that MySQL has by default.
const SETTINGS: &[&str] = &[
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--socket=socket",
    "--pid-file=pid",
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-doublewrite=ON",
    "--character-set-server=utf8mb4",
    "--max-connections=300",
];

static KIND: Kind = Kind {
    name: "MariaDB",
    program: MARIADBD,
    args,
    url: |port| format!("mysql://root@127.0.0.1:{port}/mysql"),
    where_is_data: |url| sql(url, "SELECT @@datadir"),
};

/// A MariaDB server of one's own. It leads to [`Server`], which has what all kinds can.
///
/// ```no_run
/// use hapax_servers::{MariaDb, fresh_database, sql};
///
/// let server = MariaDb::start()?;
/// let database = fresh_database(&server.url())?;
/// assert_eq!(sql(&database, "SELECT 1 + 1")?, "2");
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
#[derive(Debug)]
pub struct MariaDb(Server);

impl MariaDb {
    /// Makes and starts a server, and waits until it answers; that takes about four seconds.
    ///
    /// ```no_run
    /// let server = hapax_servers::MariaDb::start()?;
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ServerError::Missing`] names the package when MariaDB isn't installed, [`ServerError::NotReady`] has the log of
    /// one that doesn't come up.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(&[])
    }

    /// The same with settings of its own, each as in a file of options.
    ///
    /// ```no_run
    /// let server = hapax_servers::MariaDb::start_with(&["max-connections=20"])?;
    /// assert_eq!(hapax_servers::sql(&server.url(), "SELECT @@max_connections")?, "20");
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_with(settings: &[&str]) -> Result<Self, ServerError> {
        let args = settings.iter().map(|setting| format!("--{setting}").into()).collect();
        Server::start(&KIND, installed()?, Extras { args, disk: None }).map(MariaDb)
    }

    /// The same with the URL of a database that lies on a disk of so many megabytes. The disk is gone when the server is
    /// killed.
    ///
    /// ```no_run
    /// use hapax_servers::{MariaDb, sql};
    ///
    /// let (_server, database) = MariaDb::start_with_disk(16)?;
    /// let full = sql(&database, "CREATE TABLE t AS SELECT repeat('x', 1000) FROM seq_1_to_1000000");
    /// assert!(full.unwrap_err().to_string().contains("ERROR 1114"));
    /// # Ok::<(), hapax_servers::ServerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_with_disk(megabytes: u32) -> Result<(Self, String), ServerError> {
        let folder = installed()?;
        // To the server, each folder in that of its data is a database.
        let extras =
            Extras { disk: Some(Disk { at: folder.add("data/small")?, megabytes }), ..Extras::default() };
        let server = Server::start(&KIND, folder, extras).map(MariaDb)?;
        let database = Url::parse(&server.url())?.with_database("small");
        Ok((server, database))
    }
}

/// A folder with the data of a new server.
fn installed() -> Result<Folder, ServerError> {
    let folder = Folder::new()?;
    let mut install = unprivileged(&INSTALL_DB.path()?, folder.path());
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    // Two that are installed at once would take each other's temporary tables.
    run(install.arg(option("datadir", &folder.data())).arg(option("tmpdir", folder.path())))?;
    Ok(folder)
}

impl Deref for MariaDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for MariaDb {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

fn args(folder: &Folder, port: u16) -> Vec<OsString> {
    let settings = SETTINGS.iter().map(OsString::from);
    let place =
        [option("datadir", &folder.data()), option("tmpdir", folder.path()), format!("--port={port}").into()];
    settings.chain(place).collect()
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(path);
    option
}
