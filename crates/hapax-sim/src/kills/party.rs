//! The ledger as a process that a test starts, and stops for good.

use super::{
    Process,
    ledger::{Call, calm, read_log},
};
use std::{
    fs,
    io::{self, BufRead},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
};

/// A ledger that listens, with its socket and its log in a folder of the test's.
#[derive(Debug)]
pub struct Party {
    process: Process,
    socket: PathBuf,
    log: PathBuf,
}

impl Party {
    /// Starts the program `hapax-ledger`.
    ///
    /// # Panics
    ///
    /// If it doesn't listen.
    pub fn start(program: &Path, folder: &Path) -> Self {
        let (socket, log) = (folder.join("ledger"), folder.join("ledger.log"));
        let (process, mut said) = Process::start(program, [&socket, &log]).expect("the ledger starts");
        let mut ready = String::new();
        said.read_line(&mut ready).expect("the ledger speaks");
        assert_eq!(ready, "ready\n");
        Self { process, socket, log }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Every call that it ever applied, in order: also those whose callers were killed meanwhile.
    ///
    /// # Panics
    ///
    /// If it was stopped, or its log can't be read.
    pub fn calls(&self) -> Vec<Call> {
        calm(&self.socket).expect("the ledger listens");
        read_log(&self.log).expect("the ledger's log can be read")
    }

    /// Kills it, and takes its socket over: whoever connects from now on is noticed.
    ///
    /// # Panics
    ///
    /// If the socket can't be taken over.
    pub fn stop(&self) -> Stopped {
        self.process.kill();
        self.process.wait();
        fs::remove_file(&self.socket).expect("a killed process leaves its socket behind");
        let listener = UnixListener::bind(&self.socket).expect("the socket is free");
        listener.set_nonblocking(true).expect("a listener can be told not to wait");
        Stopped(listener)
    }
}

/// What is left of a ledger that was killed.
#[derive(Debug)]
pub struct Stopped(UnixListener);

impl Stopped {
    /// Asks that nobody has called since.
    ///
    /// # Panics
    ///
    /// If somebody has.
    pub fn expect_silence(&self) {
        let connect = self.0.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(connect, Err(io::ErrorKind::WouldBlock), "the outside was called after it was stopped");
    }
}
