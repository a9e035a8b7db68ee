//! A workload in a process of its own: started, listened to, killed if we stop caring.
//!
//! Fsyncs are counted by strace in a run of the same workload that isn't timed: tracing slows it down.

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

/// What a traced run did between `BEGIN` and `RESULT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Fsyncs {
    pub(crate) fsyncs: u64,
    pub(crate) transactions: u64,
}

impl Fsyncs {
    pub(crate) fn per_transaction(self) -> f64 {
        self.fsyncs as f64 / self.transactions.max(1) as f64
    }
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
        self.finish(Command::new(std::env::current_exe()?).args(&self.words))
    }

    /// Runs it until it is killed.
    pub(crate) fn die(&self) -> Result<()> {
        let (_, status) = listen(Command::new(std::env::current_exe()?).args(&self.words))?;
        match status.signal() {
            Some(KILL) => Ok(()),
            _ => Err(self.failure(&format!("{status}, although it was to be killed"))),
        }
    }

    /// Runs it under strace, and counts the fsyncs of its timed part.
    pub(crate) fn count_fsyncs(&self, log: &Path) -> Result<Fsyncs> {
        let mut strace = Command::new("strace");
        strace.args([
            "-f",
            "--seccomp-bpf",
            "-ttt",
            "-e",
            "trace=fsync,fdatasync",
            "-e",
            "signal=none",
            "-o",
        ]);
        let (report, _) = self.finish(strace.arg(log).arg(std::env::current_exe()?).args(&self.words))?;
        let text = fs::read_to_string(log)?;
        let time = |name| report.extra_u64(name).ok_or_else(|| format!("the report lacks {name}"));
        let fsyncs = fsyncs_between(&text, time("begun_unix_ns")?, time("ended_unix_ns")?);
        Ok(Fsyncs { fsyncs, transactions: time("transactions")? })
    }

    fn finish(&self, command: &mut Command) -> Result<(Report, f64)> {
        let (found, status) = listen(command)?;
        found
            .filter(|_| status.success())
            .ok_or_else(|| self.failure(&format!("{status} and without a result")))
    }

    fn failure(&self, status: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        format!("`hapax-bench {}` ended with {status}", words.join(" ")).into()
    }
}

/// Runs a command to its end. Answers its report, if it has one, with the seconds until it was there.
fn listen(command: &mut Command) -> Result<(Option<(Report, f64)>, ExitStatus)> {
    let start = clock::now();
    let mut child = Killed(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let said = child.0.stdout.take().ok_or("its output is piped")?;
    let mut found = None;
    for line in BufReader::new(said).lines() {
        let report = Report::parse(&line?);
        found = report.map(|report| (report, start.elapsed().as_secs_f64())).or(found);
    }
    Ok((found, child.0.wait()?))
}

/// Whether fsyncs can be counted here.
pub(crate) fn can_trace() -> bool {
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "--seccomp-bpf", "-e", "trace=fsync", "-o", "/dev/null", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    strace.status().is_ok_and(|status| status.success())
}

/// The calls of fsync and fdatasync that began in this time, by the lines `<pid> <seconds> fdatasync(3 …`.
fn fsyncs_between(log: &str, begun_unix_ns: u64, ended_unix_ns: u64) -> u64 {
    let (begun, ended) = (begun_unix_ns as f64 / 1e9, ended_unix_ns as f64 / 1e9);
    let counts = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let time: Option<f64> = words.next().and_then(|time| time.parse().ok());
        let call = words.next().unwrap_or_default();
        let is_sync = call.starts_with("fdatasync(") || call.starts_with("fsync(");
        is_sync && time.is_some_and(|time| begun <= time && time <= ended)
    };
    log.lines().filter(counts).count() as u64
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_syncs_of_the_timed_part_count_and_each_once() {
        let log = "\
7 100.000100 fdatasync(3)      = 0
7 100.500000 fdatasync(3 <unfinished ...>
8 100.600000 fsync(5)          = 0
7 100.700000 <... fdatasync resumed>) = 0
7 100.800000 openat(AT_FDCWD, \"fsync(\") = 3
8 101.900000 fdatasync(5)      = 0
8 102.000000 +++ exited with 0 +++
";
        assert_eq!(fsyncs_between(log, 100_400_000_000, 101_000_000_000), 2);
        assert_eq!(fsyncs_between(log, 0, 200_000_000_000), 4);
        assert_eq!(fsyncs_between("", 0, 1), 0);
    }
}
