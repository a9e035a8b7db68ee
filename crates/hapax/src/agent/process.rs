//! An agent's process: started in a group of its own, bound to the life of this one, and ended for good.
//!
//! Invariant: whatever an agent starts carries the launch's mark in its environment, so that all of it is found and
//! ended, now or by the next engine. A process that is ours is waited for: no zombie stays.

use super::{
    Error,
    frame::{AsyncLineReader, Frame},
};
use crate::gate::lock;
use hapax_core::limits::{AGENT_LINE_BYTES, AGENT_STDERR_BYTES};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, LazyLock, Mutex,
        mpsc::{Sender, channel},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    task::JoinHandle,
};

/// The variable that holds the launch's mark.
const MARK: &str = "HAPAX_AGENT_LAUNCH";

/// A closed gap: had we died before the wish to die with us was made known, the agent would have another parent already.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

type Job = Box<dyn FnOnce() + Send>;

/// Linux ends a child with the *thread* that started it, and threads of a runtime come and go. So all agents are started
/// by one thread that never ends.
static STARTER: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = channel::<Job>();
    std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
    sender
});

/// What is to be started.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) folder: PathBuf,
}

/// Which process was started, for whoever comes after us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    /// When, by the kernel's count: a process of the same number that started at another time is another one.
    pub(crate) start_ticks: Option<u64>,
    /// What everything that it starts has in its environment.
    pub(crate) mark: String,
}

/// A running agent and its pipes.
pub(crate) struct Process {
    pub(crate) started: Started,
    pub(crate) child: Child,
    pub(crate) lines: AsyncLineReader<BufReader<ChildStdout>>,
    /// Lines for it, written in order by one task.
    pub(crate) to_agent: mpsc::UnboundedSender<Vec<u8>>,
    writer: JoinHandle<()>,
    stderr: JoinHandle<()>,
    last_words: Arc<Mutex<Vec<u8>>>,
    is_over: bool,
}

impl Launch {
    /// Starts it. The program must be there: a shell that can't find it would only say so on its standard error.
    pub(crate) async fn start(&self) -> Result<Process, Error> {
        let program = find(&self.program, &self.folder)
            .ok_or_else(|| Error::Invalid(format!("there is no program `{}`", self.program.display())))?;
        let mark = uuid::Uuid::new_v4().to_string();
        let mut command = bound_to_us(&program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(MARK, &mark)
            .current_dir(&self.folder)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child =
            spawn(command).await.map_err(|error| Error::Dead(format!("it can't be started: {error}")))?;
        Process::of(child, mark).ok_or_else(|| Error::Dead("it ended while it was started".into()))
    }
}

/// A program that dies with us where the system can do that. Elsewhere its standard input ends, and the next engine ends
/// what didn't heed it.
fn bound_to_us(program: &Path) -> Command {
    static SETPRIV: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| find(OsStr::new("setpriv"), Path::new("/")).filter(|_| cfg!(target_os = "linux")));
    let Some(setpriv) = SETPRIV.as_ref() else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", UNLESS_ORPHANED]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Where a program is: a path is taken as it stands in the folder, a name is looked for.
fn find(program: &OsStr, folder: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if Path::new(program).components().count() > 1 {
        return Some(folder.join(program)).filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|at| at.join(program)).find(is_program)
}

/// Starts a command on the thread that never ends, with its pipes in this runtime.
async fn spawn(mut command: Command) -> io::Result<Child> {
    let (sender, started) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    let job = move || {
        let _inside = runtime.enter();
        // Whoever doesn't wait any more drops the child, and that kills it.
        let _ = sender.send(command.spawn());
    };
    // Were the thread gone, there would be no answer.
    let _ = STARTER.send(Box::new(job));
    started.await.map_err(io::Error::other)?
}

impl Process {
    fn of(mut child: Child, mark: String) -> Option<Self> {
        let pid = i32::try_from(child.id()?).ok()?;
        let (stdin, stdout, stderr) = (child.stdin.take()?, child.stdout.take()?, child.stderr.take()?);
        let (to_agent, lines) = mpsc::unbounded_channel();
        let last_words = Arc::default();
        Some(Self {
            started: Started { pid, start_ticks: start_ticks(pid), mark },
            child,
            lines: AsyncLineReader::with_limit(BufReader::with_capacity(64 * 1024, stdout), AGENT_LINE_BYTES),
            to_agent,
            writer: tokio::spawn(write(stdin, lines)),
            stderr: tokio::spawn(hear(stderr, Arc::clone(&last_words))),
            last_words,
            is_over: false,
        })
    }

    /// Asks it to end, waits, and then doesn't ask: it and all that it started.
    pub(crate) async fn end(mut self, grace: Duration) -> Option<ExitStatus> {
        self.writer.abort();
        if self.child.try_wait().ok().flatten().is_none() {
            signal_group(self.started.pid, Signal::TERM);
            if tokio::time::timeout(grace, self.child.wait()).await.is_err() {
                signal_group(self.started.pid, Signal::KILL);
            }
        }
        let status = self.child.wait().await.ok();
        self.is_over = true;
        self.started.end_strays();
        status
    }

    /// The end of what it wrote to its standard error.
    pub(crate) async fn last_words(&mut self) -> String {
        // What it started may hold the pipe open for ever.
        let _ = tokio::time::timeout(Duration::from_millis(200), &mut self.stderr).await;
        String::from_utf8_lossy(&lock(&self.last_words)).trim().to_owned()
    }
}

impl Drop for Process {
    /// Nobody is left who could wait for it: the runtime ends.
    fn drop(&mut self) {
        self.writer.abort();
        self.stderr.abort();
        if !self.is_over {
            if self.child.id().is_some() {
                signal_group(self.started.pid, Signal::KILL);
            }
            self.started.end_strays();
        }
    }
}

/// The pipe's one writer.
async fn write(mut pipe: ChildStdin, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if pipe.write_all(&line).await.is_err() || pipe.flush().await.is_err() {
            return;
        }
    }
}

/// Reads the standard error to its end, keeps the last of it, and passes it on to the log.
async fn hear(pipe: ChildStderr, last_words: Arc<Mutex<Vec<u8>>>) {
    let mut lines = AsyncLineReader::with_limit(BufReader::new(pipe), AGENT_STDERR_BYTES);
    while let Ok(Some(frame)) = lines.next().await {
        let (Frame::Line(line) | Frame::TooLong(line) | Frame::Torn(line)) = frame;
        tracing::debug!(target: "hapax::agent", stderr = %String::from_utf8_lossy(&line));
        let mut kept = lock(&last_words);
        kept.extend_from_slice(&line);
        kept.push(b'\n');
        let excess = kept.len().saturating_sub(AGENT_STDERR_BYTES);
        kept.drain(..excess);
    }
}

fn signal_group(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may be gone.
        let _ = kill_process_group(pid, signal);
    }
}

impl Started {
    /// Ends what is left of it: its group, if its first process is still the one that was started, and whatever carries
    /// its mark, in any group.
    pub(crate) fn end_all(&self) {
        if self.start_ticks.is_some() && start_ticks(self.pid) == self.start_ticks {
            signal_group(self.pid, Signal::KILL);
        }
        self.end_strays();
    }

    fn end_strays(&self) {
        let Ok(processes) = fs::read_dir("/proc") else { return };
        let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| self.is_marked(*id)).for_each(|id| self.end_stray(id));
    }

    fn is_marked(&self, id: i32) -> bool {
        let wanted = format!("{MARK}={}", self.mark);
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    }

    /// By its handle, which is looked at again: the number may have become another's meanwhile.
    fn end_stray(&self, id: i32) {
        let Some(pid) = Pid::from_raw(id) else { return };
        if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && self.is_marked(id)
        {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

/// When a process started, by the kernel's count; `None`: there is no such process, or nobody tells.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name that may hold anything, in parentheses; the start is the 22nd.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(script: &str) -> Launch {
        let args = ["-c".into(), script.into()].into();
        Launch { program: "sh".into(), args, env: vec![], folder: "/".into() }
    }

    /// A zombie is over; whose child it was waits for it.
    fn is_there(pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    }

    async fn until_gone(pid: i32) {
        while is_there(pid) {
            tokio::task::yield_now().await;
        }
    }

    async fn line(process: &mut Process) -> String {
        match process.lines.next().await.unwrap() {
            Some(Frame::Line(line)) => String::from_utf8(line).unwrap(),
            other => panic!("no line: {other:?}"),
        }
    }

    #[tokio::test]
    async fn what_ignores_the_request_is_killed_with_all_that_it_started() {
        let stubborn =
            r#"trap '' TERM; (setsid sleep 1000 & echo $!); echo ready; while :; do sleep 1000; done"#;
        let mut process = launch(stubborn).start().await.unwrap();
        let stray: i32 = line(&mut process).await.parse().unwrap();
        assert_eq!(line(&mut process).await, "ready");
        let pid = process.started.pid;
        assert!(is_there(pid) && is_there(stray));
        process.end(Duration::from_millis(20)).await;
        assert!(!is_there(pid), "it was waited for");
        until_gone(stray).await;
    }

    #[tokio::test]
    async fn a_process_that_is_dropped_is_killed() {
        let mut process =
            launch("trap '' TERM; echo ready; while :; do sleep 1000; done").start().await.unwrap();
        assert_eq!(line(&mut process).await, "ready");
        let started = process.started.clone();
        drop(process);
        until_gone(started.pid).await;
    }

    #[tokio::test]
    async fn the_last_words_are_kept_and_no_more_than_that() {
        let mut process = launch("seq 1 100000 >&2; echo the end >&2").start().await.unwrap();
        assert_eq!(process.lines.next().await.unwrap(), None);
        let words = process.last_words().await;
        assert!(words.ends_with("the end") && words.len() <= AGENT_STDERR_BYTES, "{}", words.len());
        assert!(process.end(Duration::from_secs(1)).await.unwrap().success());
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_an_error_before_anything_starts() {
        let missing = Launch { program: "no-such-program".into(), ..launch("") };
        assert!(matches!(missing.start().await, Err(Error::Invalid(_))));
    }
}
