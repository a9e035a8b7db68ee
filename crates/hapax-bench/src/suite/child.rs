//! A workload in a process of its own: started, listened to, killed if we stop caring.

use super::servers::Used;
use crate::{Result, clock, report::Report};
use rusqlite::Connection;
use serde::Serialize;
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

/// SIGKILL.
const KILL: i32 = 9;

/// What one process reported, and what was measured around it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) report: Report,
    /// From the restart of a killed process until its result was there.
    pub(crate) restart_s: Option<f64>,
    /// The database after a truncating checkpoint; on a server, what it grew by.
    pub(crate) disk_bytes: Option<u64>,
    /// What the server used meanwhile.
    pub(crate) server: Option<Used>,
}

/// The report of processes that did their shares at the same time.
pub(crate) fn together(reports: Vec<Report>) -> Report {
    let mut all = reports.into_iter();
    let first = all.next().unwrap_or_default();
    all.fold(first, |sum, one| {
        let transactions = sum.extra_u64("transactions").zip(one.extra_u64("transactions"));
        let mut extra = sum.extra;
        extra.extend(transactions.map(|(sum, one)| ("transactions".to_owned(), (sum + one).into())));
        Report {
            wall_s: sum.wall_s.max(one.wall_s),
            steps: sum.steps + one.steps,
            cpu_s: sum.cpu_s + one.cpu_s,
            p50_ms: sum.p50_ms.max(one.p50_ms),
            p99_ms: sum.p99_ms.max(one.p99_ms),
            executed: sum.executed + one.executed,
            client_peak_rss: sum.client_peak_rss.max(one.client_peak_rss),
            client_write_bytes: sum.client_write_bytes + one.client_write_bytes,
            extra,
        }
    })
}

/// Ends with its handle.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A call of the driver.
pub(crate) struct Call {
    words: Vec<OsString>,
}

impl Call {
    pub(crate) fn new(words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { words: words.into_iter().map(Into::into).collect() }
    }

    /// Runs it to its end. Answers its report, and the seconds from its start to the report.
    pub(crate) fn run(&self) -> Result<(Report, f64)> {
        let (found, status) = self.listen()?;
        found
            .filter(|_| status.success())
            .ok_or_else(|| self.failure(&format!("{status} and without a result")))
    }

    /// Runs it until it is killed.
    pub(crate) fn die(&self) -> Result<()> {
        let (_, status) = self.listen()?;
        match status.signal() {
            Some(KILL) => Ok(()),
            _ => Err(self.failure(&format!("{status}, although it was to be killed"))),
        }
    }

    /// Runs it to its end. Answers its report, if it has one, with the seconds until it was there.
    fn listen(&self) -> Result<(Option<(Report, f64)>, ExitStatus)> {
        let start = clock::now();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Killed(command.spawn()?);
        let said = child.0.stdout.take().ok_or("its output is piped")?;
        let mut found = None;
        for line in BufReader::new(said).lines() {
            let report = Report::parse(&line?);
            found = report.map(|report| (report, start.elapsed().as_secs_f64())).or(found);
        }
        Ok((found, child.0.wait()?))
    }

    fn failure(&self, status: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        format!("`hapax-bench {}` ended with {status}", words.join(" ")).into()
    }
}

/// The size of a database that nobody has open, once its log is empty.
pub(crate) fn disk_bytes(path: &Path) -> Result<u64> {
    let connection = Connection::open(path)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(fs::metadata(path)?.len())
}

/// Removes a database with everything that lies beside it.
pub(crate) fn remove(path: &Path) {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    // What isn't there needs no removing.
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(beside(suffix));
    }
    for suffix in ["-bank", "-bank-wal", "-bank-shm"] {
        let _ = fs::remove_file(beside(suffix));
    }
    let _ = fs::remove_dir_all(beside("-locks"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shares_add_up_and_the_slowest_counts() {
        let share = |wall_s, steps: u64| Report {
            wall_s,
            steps,
            cpu_s: 1.0,
            extra: json!({ "transactions": steps }).as_object().unwrap().clone(),
            ..Report::default()
        };
        let both = together(vec![share(1.0, 10), share(2.0, 20)]);
        assert_eq!((both.wall_s, both.steps, both.cpu_s), (2.0, 30, 2.0));
        assert_eq!(both.extra_u64("transactions"), Some(30));
    }
}
