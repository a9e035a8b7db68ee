//! A workload in a process of its own: started, listened to, killed if we stop caring.

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
    /// The database after a truncating checkpoint.
    pub(crate) disk_bytes: Option<u64>,
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
    let _ = fs::remove_dir_all(beside("-locks"));
}
