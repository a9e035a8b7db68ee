//! Throwaway servers, a fresh database for each case, and what a server says that a case has cost it.

use super::cases::Place;
use crate::{Result, procfs};
use hapax_servers::{MariaDb, Postgres, Server, fresh_database, sql};
use serde::Serialize;
use std::cell::OnceCell;

/// Started when the first case needs them.
#[derive(Default)]
pub(super) struct Servers {
    postgres: OnceCell<Postgres>,
    mysql: OnceCell<MariaDb>,
}

/// What a server has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Used {
    /// By its own statistics.
    pub(crate) fsyncs: u64,
    /// Of all of its processes.
    pub(crate) cpu_s: f64,
    /// Of the one database.
    pub(crate) disk_bytes: u64,
}

impl Used {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            fsyncs: self.fsyncs.saturating_sub(before.fsyncs),
            cpu_s: self.cpu_s - before.cpu_s,
            disk_bytes: self.disk_bytes.saturating_sub(before.disk_bytes),
        }
    }
}

/// A database of its own.
pub(super) struct Database {
    pub(super) url: String,
    pid: u32,
}

impl Servers {
    /// A fresh database; `None`: that place is no server.
    pub(super) fn database(&self, place: Place) -> Result<Option<Database>> {
        let server: &Server = match place {
            Place::Postgres => started(&self.postgres, Postgres::start)?,
            Place::Mysql => started(&self.mysql, MariaDb::start)?,
            _ => return Ok(None),
        };
        Ok(Some(Database { url: fresh_database(&server.url())?, pid: server.pid() }))
    }
}

fn started<S, E>(cell: &OnceCell<S>, start: impl FnOnce() -> Result<S, E>) -> Result<&S, E> {
    if let Some(server) = cell.get() {
        return Ok(server);
    }
    let server = start()?;
    Ok(cell.get_or_init(|| server))
}

const POSTGRES: &str = "SELECT (SELECT wal_sync FROM pg_stat_wal), pg_database_size(current_database())";
const MYSQL: &str = "SELECT (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
     WHERE VARIABLE_NAME = 'INNODB_DATA_FSYNCS'), (SELECT COALESCE(SUM(FILE_SIZE), 0) \
     FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE CONCAT(DATABASE(), '/%'))";

impl Database {
    pub(super) fn used(&self) -> Result<Used> {
        let said = sql(&self.url, if self.url.starts_with("mysql:") { MYSQL } else { POSTGRES })?;
        let (fsyncs, disk_bytes) =
            said.split_once('|').ok_or_else(|| format!("the server's statistics are `{said}`"))?;
        let cpu_s = procfs::cpu_s_with_children(self.pid);
        Ok(Used { fsyncs: fsyncs.parse()?, cpu_s, disk_bytes: disk_bytes.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_case_used_is_the_difference() {
        let before = Used { fsyncs: 3, cpu_s: 0.5, disk_bytes: 100 };
        let after = Used { fsyncs: 10, cpu_s: 2.0, disk_bytes: 90 };
        assert_eq!(after.since(before), Used { fsyncs: 7, cpu_s: 1.5, disk_bytes: 0 });
    }

    #[test]
    fn a_server_tells_what_it_used() {
        for place in [Place::Postgres, Place::Mysql] {
            let servers = Servers::default();
            let database = servers.database(place).unwrap().unwrap();
            let before = database.used().unwrap();
            sql(&database.url, "CREATE TABLE t (v INT)").unwrap();
            sql(&database.url, "INSERT INTO t VALUES (1)").unwrap();
            let used = database.used().unwrap().since(before);
            assert!(used.fsyncs >= 1 && used.cpu_s >= 0.0 && used.disk_bytes > 0, "{place:?}: {used:?}");
        }
    }
}
