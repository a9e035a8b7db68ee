//! Child processes that can't outlive their test: killed and waited for, by their own id, when dropped.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::{
    ffi::OsStr,
    io::{self, BufReader, Write as _},
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

    /// Asks it to end, as a service manager does: SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Freezes it, and answers when it stands still: SIGSTOP.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let stopped =
            waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("our own child can be waited for");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "it ended instead");
    }

    /// Lets it go on: SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child can be signalled");
    }

    /// Writes a line to its input.
    pub fn tell(&self, line: &str) {
        let mut input = self.input.as_ref().expect("its input is open");
        writeln!(input, "{line}").expect("it lives");
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child())
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
