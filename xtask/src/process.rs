//! Child processes: a command that prints as the line to reproduce it, run openly or captured.
//!
//! A child never gets a stdin, and a captured child never outlives its limit.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a killed child's pipes may take to close before its last output is given up.
const PIPES_CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A stage's reason to stop, with the command that shows it again.
#[derive(Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) reproduce: String,
}

/// A command line, its environment and its folder.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    env_for_now: Vec<(String, String)>,
    without: Vec<String>,
    folder: PathBuf,
}

/// What a captured child left behind; no status means that it was killed at its limit.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Cmd {
    /// A program and its arguments, separated by spaces.
    pub(crate) fn new(line: &str, folder: &Path) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        Cmd {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            env: Vec::new(),
            env_for_now: Vec::new(),
            without: Vec::new(),
            folder: folder.to_path_buf(),
        }
    }

    /// Another program, whose path may hold spaces.
    pub(crate) fn program(mut self, path: &Path) -> Self {
        self.program = path.display().to_string();
        self
    }

    /// Adds arguments, separated by spaces.
    pub(crate) fn args(mut self, line: &str) -> Self {
        self.args.extend(line.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds one argument, which may hold spaces.
    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variable that means something only while we run: it isn't part of the line to reproduce the command.
    pub(crate) fn env_for_now(mut self, name: &str, value: &str) -> Self {
        self.env_for_now.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.without.push(name.to_owned());
        self
    }

    /// Runs the command with our own stdout and stderr; anything but success is a failure.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        println!("$ {self}");
        match self.command().status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failure(format!("`{}` ended with {status}", self.program_and_verb()))),
            Err(e) => Err(self.failure(format!("`{}` could not start: {e}", self.program))),
        }
    }

    /// Whether the command succeeds; nothing is printed.
    pub(crate) fn succeeds(&self) -> bool {
        let status = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs the command and keeps its output. The child leads a process group of its own, so that
    /// at its limit the whole group is killed and no grandchild keeps the pipes open.
    pub(crate) fn capture(&self, limit: Duration) -> io::Result<Captured> {
        let mut command = self.command();
        let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let deadline = Instant::now() + limit;
        let outputs = receive_until(&stdout, deadline)
            .and_then(|out| receive_until(&stderr, deadline).map(|err| (out, err)));
        if let Ok((stdout, stderr)) = outputs {
            return Ok(Captured { status: Some(child.wait()?), stdout, stderr });
        }
        kill_group(&mut child)?;
        let last_words = |pipe: &Receiver<String>| pipe.recv_timeout(PIPES_CLOSE_WITHIN).unwrap_or_default();
        Ok(Captured { status: None, stdout: last_words(&stdout), stderr: last_words(&stderr) })
    }

    pub(crate) fn failure(&self, what: String) -> Failure {
        Failure { what, reproduce: self.to_string() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.folder).stdin(Stdio::null());
        // `cargo xtask` describes the package xtask to us; passed on, build scripts that watch
        // these variables would rebuild, and children would differ from the printed command.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(name.as_ref());
            }
        }
        for name in &self.without {
            command.env_remove(name);
        }
        command.envs(self.env.iter().chain(&self.env_for_now).map(|(name, value)| (name, value)));
        command
    }

    fn program_and_verb(&self) -> String {
        let verb = self.args.first().map(|verb| format!(" {verb}")).unwrap_or_default();
        format!("{}{verb}", self.program)
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

fn quoted(word: &str) -> String {
    if !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"$&;()<>|*?#`\\".contains(c)) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Reads a pipe to its end on a thread of its own: a full pipe would block the child for ever.
fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // An unreadable pipe ends the output here; the exit status still tells the outcome.
            let _ = pipe.read_to_end(&mut bytes);
        }
        // Nobody listens any more when the child was given up.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn receive_until(pipe: &Receiver<String>, deadline: Instant) -> Result<String, RecvTimeoutError> {
    pipe.recv_timeout(deadline.saturating_duration_since(Instant::now()))
}

/// Kills the process group that `child` leads, by its id, and reaps the child.
fn kill_group(child: &mut Child) -> io::Result<()> {
    // The standard library kills single processes only; `kill` is a builtin of every sh.
    let group = format!("kill -s KILL -- -{}", child.id());
    Command::new("sh").args(["-c", &group]).stdin(Stdio::null()).status()?;
    child.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> PathBuf {
        std::env::temp_dir()
    }

    #[test]
    fn a_command_prints_as_a_line_for_the_shell() {
        let cmd = Cmd::new("cargo doc --workspace", &here()).env("RUSTDOCFLAGS", "-D warnings").arg("it's");
        assert_eq!(cmd.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --workspace 'it'\''s'");
    }

    #[test]
    fn a_variable_for_now_is_set_but_not_printed() {
        let cmd = Cmd::new("sh -c", &here()).arg("echo $HAPAX_NOW").env_for_now("HAPAX_NOW", "here");
        assert_eq!(cmd.capture(Duration::from_secs(60)).unwrap().stdout, "here\n");
        assert_eq!(cmd.to_string(), "sh -c 'echo $HAPAX_NOW'");
    }

    #[test]
    fn captured_output_keeps_stdout_and_stderr_apart() {
        let cmd = Cmd::new("sh -c", &here()).arg("echo out; echo err >&2; exit 3");
        let captured = cmd.capture(Duration::from_secs(60)).unwrap();
        assert_eq!((captured.stdout.as_str(), captured.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(captured.status.and_then(|status| status.code()), Some(3));
    }

    #[test]
    fn a_child_over_its_limit_is_killed_with_its_own_children() {
        let cmd = Cmd::new("sh -c", &here()).arg("echo begun; tail -f /dev/null & wait");
        let captured = cmd.capture(Duration::from_millis(300)).unwrap();
        assert!(captured.status.is_none());
        // The pipe has closed, so the grandchild that held it is gone too.
        assert_eq!(captured.stdout, "begun\n");
    }

    #[test]
    fn a_failure_names_its_command() {
        let failure = Cmd::new("false --not", &here()).run().unwrap_err();
        assert_eq!(failure.what, "`false --not` ended with exit status: 1");
        assert_eq!(failure.reproduce, "false --not");
        assert!(
            Cmd::new("no-such-program-here", &here()).run().unwrap_err().what.contains("could not start")
        );
    }
}
