//! Where the servers' programs are, and how they get there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ServerError;
use crate::process::{is_root, with_clean_environment};

/// A program and the Debian package that brings it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    name: &'static str,
    package: &'static str,
}

pub(crate) const INITDB: Program = Program { name: "initdb", package: "postgresql" };
pub(crate) const POSTGRES: Program = Program { name: "postgres", package: "postgresql" };
pub(crate) const PG_BASEBACKUP: Program = Program { name: "pg_basebackup", package: "postgresql" };
pub(crate) const PSQL: Program = Program { name: "psql", package: "postgresql" };
pub(crate) const INSTALL_DB: Program = Program { name: "mariadb-install-db", package: "mariadb-server" };
pub(crate) const MARIADBD: Program = Program { name: "mariadbd", package: "mariadb-server" };
pub(crate) const MARIADB: Program = Program { name: "mariadb", package: "mariadb-server" };
pub(crate) const REDIS: Program = Program { name: "redis-server", package: "redis-server" };
pub(crate) const REDIS_CLI: Program = Program { name: "redis-cli", package: "redis-server" };
pub(crate) const NATS: Program = Program { name: "nats-server", package: "nats-server" };
const FAKETIME: Program = Program { name: "faketime", package: "faketime" };

const ALL: &[Program] =
    &[INITDB, POSTGRES, PG_BASEBACKUP, PSQL, INSTALL_DB, MARIADBD, MARIADB, REDIS, REDIS_CLI, NATS, FAKETIME];

/// Where Debian keeps the programs of each version of PostgreSQL.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// Debian asks this program whether a package may start its service.
const POLICY: &str = "/usr/sbin/policy-rc.d";
const NO_SERVICES: &str = "#!/bin/sh\nexit 101\n";

impl Program {
    /// The program's path. Those of PostgreSQL's versions come first: the ones of the same name in PATH are wrappers, slow
    /// and with a mind of their own about the version.
    pub(crate) fn path(self) -> Result<PathBuf, ServerError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // The server of MariaDB is there, which only root has in the path.
        let sbin = PathBuf::from("/usr/sbin");
        let folders = postgres_folders().into_iter().chain(std::env::split_paths(&path)).chain([sbin]);
        let found = folders.map(|folder| folder.join(self.name)).find(|path| path.is_file());
        found.ok_or(ServerError::Missing { program: self.name.to_owned(), package: self.package })
    }
}

/// The variables that give a program a clock which is off by so much.
///
/// ```no_run
/// let an_hour_behind = std::process::Command::new("date").envs(hapax_servers::clock_off_by("-3600s")?).output()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ServerError::Missing`] when libfaketime isn't installed.
pub fn clock_off_by(shift: &str) -> Result<[(&'static str, String); 3], ServerError> {
    // Its own program starts the other as a child, whom no signal would reach.
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketime.so.1"));
    let missing = || ServerError::Missing { program: "libfaketime.so.1".into(), package: FAKETIME.package };
    let library = libraries.find(|library| library.is_file()).ok_or_else(missing)?;
    let library = library.display().to_string();
    let monotonic = ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned());
    Ok([("LD_PRELOAD", library), ("FAKETIME", shift.to_owned()), monotonic])
}

/// The folders of PostgreSQL's versions, the newest first.
fn postgres_folders() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(POSTGRES_VERSIONS) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    newest_first(names).into_iter().map(|name| Path::new(POSTGRES_VERSIONS).join(name).join("bin")).collect()
}

/// Ordered by number: 9 is older than 15.
fn newest_first(names: impl Iterator<Item = String>) -> Vec<String> {
    let major = |name: &str| name.split('.').next().and_then(|number| number.parse::<u32>().ok());
    let mut versions: Vec<(u32, String)> = names.filter_map(|name| Some((major(&name)?, name))).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, name)| name).collect()
}

/// Installs the packages of all servers, and what else their tests need, if a program is missing. That takes root and
/// Debian's `apt-get`; otherwise the error names the command. The packages' own services are not started.
///
/// ```no_run
/// hapax_servers::install_missing()?;
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
///
/// # Errors
///
/// [`ServerError::Missing`] when it may not install, [`ServerError::Failed`] when `apt-get` fails.
pub fn install_missing() -> Result<(), ServerError> {
    let missing: Vec<&Program> = ALL.iter().filter(|program| program.path().is_err()).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    if !is_root() || !Path::new("/usr/bin/apt-get").is_file() {
        return first.path().map(drop);
    }
    let mut packages: Vec<&str> = missing.iter().map(|program| program.package).collect();
    packages.dedup();
    let _no_services = NoServices::begin().map_err(ServerError::io("forbid services to start"))?;
    apt_get(&["update", "-q"])?;
    apt_get(&[&["install", "-q", "-y", "--no-install-recommends"], packages.as_slice()].concat())
}

/// Runs `apt-get` openly: it takes a while, and what it prints shows why. Another one may be at work already.
fn apt_get(args: &[&str]) -> Result<(), ServerError> {
    let mut command: Command = with_clean_environment(Path::new("apt-get"));
    command.args(["-o", "DPkg::Lock::Timeout=300"]).args(args).env("DEBIAN_FRONTEND", "noninteractive");
    // In single-user mode no service starts, whatever a policy of the machine says.
    command.env("RUNLEVEL", "1");
    let status = command.status().map_err(ServerError::io("start `apt-get`"))?;
    if status.success() {
        return Ok(());
    }
    let command = format!("apt-get {}", args.join(" "));
    Err(ServerError::Failed { command, output: format!("it printed why above; {status}") })
}

/// While it lives, no package starts a service.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    /// A policy that is there already belongs to the machine, and stays.
    fn begin() -> std::io::Result<Self> {
        if Path::new(POLICY).exists() {
            return Ok(NoServices { is_ours: false });
        }
        fs::write(POLICY, NO_SERVICES)?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(NoServices { is_ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            // If it stays, later packages don't start their services either: a nuisance, not a failure of ours.
            let _ = fs::remove_file(POLICY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number() {
        let names = ["9.6", "15", "old", "17"].map(str::to_owned);
        assert_eq!(newest_first(names.into_iter()), ["17", "15", "9.6"]);
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let absent = Program { name: "no-such-program-here", package: "mariadb-server" };
        let message = absent.path().unwrap_err().to_string();
        assert!(message.contains("`no-such-program-here` of the Debian package mariadb-server"), "{message}");
    }
}
