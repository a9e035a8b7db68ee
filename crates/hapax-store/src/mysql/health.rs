//! What a server says of itself: its settings, and what they mean for the runs in it.

use crate::{
    error::StoreError,
    server::{
        error::{all_runs, undone},
        pool::Sessions,
        sql::{Fault, Session, values},
        takes_no_writes,
    },
    store::{BoxFuture, Fact, Verdict},
};
use hapax_core::{id::Namespace, limits::MAX_STATE_BYTES};
use std::collections::HashMap;

/// The oldest versions with all that is relied on: `SKIP LOCKED`.
const OLDEST_MYSQL: [u64; 3] = [8, 0, 1];
const OLDEST_MARIADB: [u64; 3] = [10, 6, 0];

/// A name that a server doesn't know is left out of its answer.
pub(super) const ASK: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'innodb_read_only', \
     'tx_read_only', 'transaction_read_only', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog', \
     'binlog_format', 'max_allowed_packet', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'tx_isolation', \
     'transaction_isolation', 'innodb_snapshot_isolation', 'server_uid', 'server_uuid', 'hostname', 'port', 'datadir', 'server_id')";

/// The settings of a server that matter here; one that it doesn't know is missing.
pub(super) struct Settings(HashMap<String, String>);

impl Settings {
    pub(super) async fn ask(session: &mut dyn Session) -> Result<Self, Fault> {
        let rows = session.rows(ASK, values![]).await?;
        let setting = |row: &crate::server::sql::Row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()));
        rows.iter().map(setting).collect::<Result<_, _>>().map(Self)
    }

    /// As they were answered to [`ASK`].
    pub(super) fn of(rows: Vec<(String, String)>) -> Self {
        Self(rows.into_iter().collect())
    }

    /// How transactions are isolated where nothing else is said, as a statement has it.
    pub(super) fn isolation(&self) -> String {
        let found = [self.text("transaction_isolation"), self.text("tx_isolation")].concat();
        if found.is_empty() { "REPEATABLE READ".into() } else { found.replace('-', " ") }
    }

    /// Whether a transaction fails when it changes a row that was changed since its snapshot.
    pub(super) fn is_snapshot_strict(&self) -> bool {
        self.is_on("innodb_snapshot_isolation")
    }

    /// What names the server: MariaDB has no number of its own.
    pub(super) fn server(&self) -> String {
        match self.text("server_uuid") {
            "" => ["server_uid", "hostname", "port", "datadir", "server_id"]
                .map(|name| self.text(name))
                .join(" "),
            uuid => uuid.to_owned(),
        }
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn is_on(&self, name: &str) -> bool {
        !matches!(self.text(name), "" | "OFF" | "0")
    }

    pub(super) fn version(&self) -> &str {
        self.text("version")
    }

    pub(super) fn is_too_old(&self) -> bool {
        // Some put a number in front, for replicas that don't expect one of two digits.
        let version = self.version().trim_start_matches("5.5.5-");
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        let version: [u64; 3] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        let is_mariadb = self.version().to_ascii_lowercase().contains("mariadb");
        version < if is_mariadb { OLDEST_MARIADB } else { OLDEST_MYSQL }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_on("read_only") || self.is_on("innodb_read_only")
    }

    /// Such a log takes nothing that was written under READ COMMITTED.
    pub(super) fn logs_statements(&self) -> bool {
        self.is_on("log_bin") && self.text("binlog_format") == "STATEMENT"
    }

    /// Why a crash may lose a commit that was answered, and the cure.
    pub(super) fn loses_commits(&self) -> Option<String> {
        let mut cures = vec![];
        if self.text("innodb_flush_log_at_trx_commit") != "1" {
            cures.push("set innodb_flush_log_at_trx_commit = 1");
        }
        if self.is_on("log_bin") && self.text("sync_binlog") != "1" {
            cures.push("set sync_binlog = 1");
        }
        (!cures.is_empty()).then(|| cures.join(" and "))
    }

    fn facts(&self) -> Vec<Fact> {
        let by_setting = ["tx_read_only", "transaction_read_only"].iter().any(|name| self.is_on(name));
        let read_only = (self.is_read_only() || by_setting).then(takes_no_writes);
        let others =
            [self.flushing(), self.log(), self.pages(), self.replicas(), self.packets(), self.program()];
        read_only.into_iter().chain(others).collect()
    }

    fn flushing(&self) -> Fact {
        let name = "innodb_flush_log_at_trx_commit";
        let (verdict, meaning) = match self.text(name) {
            "1" => (Verdict::Good, "commits are on the disk before they are answered"),
            _ => (Verdict::Unsafe, "commits are answered before they are on the disk: a crash can lose them"),
        };
        fact(name, self.text(name), verdict, meaning)
    }

    fn log(&self) -> Fact {
        let (verdict, meaning) = match (self.is_on("log_bin"), self.text("sync_binlog")) {
            (false, _) => (Verdict::Good, "there is no binary log to fall behind"),
            (true, "1") => (Verdict::Good, "the binary log is on the disk before a commit is answered"),
            (true, _) => {
                (Verdict::Unsafe, "the binary log may lack commits after a crash: replicas miss them")
            }
        };
        fact("sync_binlog", self.text("sync_binlog"), verdict, meaning)
    }

    fn pages(&self) -> Fact {
        let name = "innodb_doublewrite";
        let (verdict, meaning) = if self.is_on(name) {
            (Verdict::Good, "a page that was half written when the machine stopped is mended")
        } else {
            (Verdict::Note, "only a file system that never tears a page may do without it")
        };
        fact(name, self.text(name), verdict, meaning)
    }

    /// A replica that lags behind loses what was acknowledged when it takes over.
    fn replicas(&self) -> Fact {
        let names = ["rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"];
        let (found, verdict, meaning) = if names.iter().any(|name| self.is_on(name)) {
            ("on", Verdict::Good, "a replica has every commit before it is answered, while one keeps up")
        } else {
            let meaning = "no replica is waited for: a failover can lose steps that were acknowledged";
            ("off", Verdict::Note, meaning)
        };
        fact("semi-synchronous replication", found, verdict, meaning)
    }

    /// A state is stored compressed, so that few need as much as they may have.
    fn packets(&self) -> Fact {
        let name = "max_allowed_packet";
        let (verdict, meaning) = if self.number(name) > 2 * MAX_STATE_BYTES as u64 {
            (Verdict::Good, "the largest states fit")
        } else {
            (Verdict::Note, "a large state that can't be compressed may not fit: 64 MiB are enough for any")
        };
        fact(name, self.text(name), verdict, meaning)
    }

    fn program(&self) -> Fact {
        fact("server", self.version(), Verdict::Good, "MySQL 8.0.1, MariaDB 10.6 and newer are supported")
    }
}

fn fact(name: &'static str, found: &str, verdict: Verdict, meaning: &str) -> Fact {
    Fact { name, found: found.to_owned(), verdict, meaning: meaning.into() }
}

/// All facts, the most important first.
pub(super) fn facts(sessions: Sessions) -> BoxFuture<'static, Result<Vec<Fact>, StoreError>> {
    Box::pin(async move {
        let mut session = sessions.lend().await?;
        let settings = Settings::ask(&mut **session).await;
        let settings = settings.map_err(|fault| undone(fault, &all_runs(&Namespace::default())))?;
        Ok(settings.facts())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(settings: &[(&str, &str)]) -> Settings {
        Settings(settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    #[test]
    fn servers_without_skip_locked_are_too_old() {
        for (version, is_too_old) in [
            ("5.5.5-10.5.29-MariaDB-1:10.5.29+maria~ubu2004", true),
            ("5.5.5-10.6.22-MariaDB-log", false),
            ("5.7.44-log", true),
            ("5.7.12-aurora", true),
            ("8.0.0", true),
            ("8.0.1", false),
            ("8.0.36-28-Percona", false),
            ("8.0.30-Vitess", false),
            ("8.4.3", false),
            ("9.1.0", false),
            ("10.5.29-MariaDB", true),
            ("10.6.0-MariaDB-log", false),
            ("10.11.19-MariaDB-0+deb12u1", false),
            ("11.4.2-MariaDB", false),
        ] {
            assert_eq!(settings(&[("version", version)]).is_too_old(), is_too_old, "{version}");
        }
    }

    #[test]
    fn a_setting_that_can_lose_a_commit_is_found_with_its_cure() {
        let flush = ("innodb_flush_log_at_trx_commit", "1");
        assert_eq!(settings(&[flush, ("log_bin", "OFF"), ("sync_binlog", "0")]).loses_commits(), None);
        assert_eq!(settings(&[flush, ("log_bin", "ON"), ("sync_binlog", "1")]).loses_commits(), None);
        let lazy_log = settings(&[flush, ("log_bin", "ON"), ("sync_binlog", "0")]);
        assert_eq!(lazy_log.loses_commits().unwrap(), "set sync_binlog = 1");
        let lazy = settings(&[("innodb_flush_log_at_trx_commit", "2")]);
        assert_eq!(lazy.loses_commits().unwrap(), "set innodb_flush_log_at_trx_commit = 1");
    }

    #[test]
    fn a_replica_is_read_only() {
        assert!(settings(&[("read_only", "ON")]).is_read_only());
        assert!(settings(&[("read_only", "OFF"), ("innodb_read_only", "ON")]).is_read_only());
        assert!(!settings(&[("read_only", "OFF"), ("innodb_read_only", "OFF")]).is_read_only());
    }
}
