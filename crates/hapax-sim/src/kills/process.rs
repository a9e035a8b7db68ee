//! Child processes that can't outlive their test: killed and waited for, by their own id, when dropped.

use std::{
    ffi::OsStr,
    io::{self, BufReader},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A child, and the input that it lives by: the binaries of this crate end when it is closed, so that not even a
/// killed test leaves one behind.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts a program. Answers it, and what it says.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> io::Result<(Self, BufReader<ChildStdout>)> {
        let mut command = Command::new(program);
        let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = child.stdout.take().expect("its output is piped");
        let input = child.stdin.take();
        Ok((Self { child: Mutex::new(child), input }, BufReader::new(said)))
    }

    /// SIGKILL, at once. One that has ended already stays as it is.
    pub fn kill(&self) {
        self.child().kill().expect("our own child can be killed");
    }

    /// Waits for its end.
    pub fn wait(&self) -> ExitStatus {
        self.child().wait().expect("our own child can be waited for")
    }

    /// Closes its input, by which it lives, and waits for its end.
    pub fn end(mut self) -> ExitStatus {
        self.input = None;
        self.wait()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}
