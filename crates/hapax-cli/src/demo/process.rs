//! Child processes that can't outlive the demo: killed and waited for, by their own id, when dropped; and they end
//! by themselves when their input is closed, so that not even a killed demo leaves one behind.

use serde::{Serialize, de::DeserializeOwned};
use std::{
    env,
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{self, Child, ChildStdin, Command, Stdio},
    thread,
};

/// SIGKILL.
const KILL: i32 = 9;

/// A child: this very program in another role.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts this program as `demo ROLE ARGS…`. What it says, line by line, goes to `hear`, on a thread of its own;
    /// `None` is its end.
    pub(super) fn start<T: DeserializeOwned + 'static>(
        role: &str,
        args: impl IntoIterator<Item = (&'static str, OsString)>,
        mut hear: impl FnMut(Option<T>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["demo", role]);
        for (name, value) in args {
            command.arg(name).arg(value);
        }
        // In a group of its own: a Ctrl-C at the terminal is for the demo, which ends its children itself.
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| io::Error::other("the child has no output"))?;
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // A last line that a kill cut short is none.
            lines.filter_map(|line| serde_json::from_str(&line).ok()).for_each(|said| hear(Some(said)));
            hear(None);
        });
        Ok(Self { child, input })
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says something to it.
    pub(super) fn tell<T: Serialize>(&mut self, what: &T) -> io::Result<()> {
        let line = format!("{}\n", serde_json::to_string(what)?);
        self.input.as_mut().map_or(Ok(()), |input| input.write_all(line.as_bytes()))
    }

    /// SIGKILL. Answers whether that is what ended it.
    pub(super) fn kill(mut self) -> io::Result<bool> {
        self.child.kill()?;
        Ok(self.child.wait()?.signal() == Some(KILL))
    }

    /// Closes its input and waits for its end; whether it ended well.
    pub(super) fn end(mut self) -> io::Result<bool> {
        drop(self.input.take());
        Ok(self.child.wait()?.success())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Listens to this process's own input, and ends the process with it.
pub(super) fn ends_with_its_input(mut hear: impl FnMut(&str) + Send + 'static) {
    thread::spawn(move || {
        io::stdin().lines().map_while(Result::ok).for_each(|line| hear(&line));
        process::exit(0);
    });
}
