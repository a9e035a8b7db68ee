//! Signals: requests to end, and what must not end the process.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A file grew to the limit of its size.
const FILE_SIZE: i32 = 25;

/// Ctrl-C, a request to end, and the loss of the terminal.
pub(crate) struct EndRequests {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl EndRequests {
    /// From now on none of them ends the process by itself. Needs the context of a runtime.
    pub(crate) fn hear() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
            _ = self.hangup.recv() => (),
        }
    }
}

/// From now on a write beyond the limit of a file's size fails, as on a full disk, and doesn't end the process.
pub(crate) fn survive_file_limits() -> io::Result<()> {
    // What was once heard is never again left to the system.
    signal(SignalKind::from_raw(FILE_SIZE)).map(drop)
}
