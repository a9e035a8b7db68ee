//! Processes: started without privileges, bound to the life of this one, and signalled as a family.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::ServerError;

/// The account `nobody`: both servers refuse to run as root.
pub(crate) const UNPRIVILEGED: u32 = 65534;

type Job = Box<dyn FnOnce() + Send>;

/// Linux ends a child with the *thread* that started it, and a test's thread ends before its process. So all servers are
/// started by one thread that never ends.
static STARTER: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = channel::<Job>();
    thread::spawn(move || jobs.into_iter().for_each(|job| job()));
    sender
});

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program that runs without privileges in a folder. It sees no variable of ours: `PGOPTIONS` and the like would change
/// what it does.
pub(crate) fn unprivileged(program: &Path, folder: &Path) -> Command {
    let mut command = setpriv(folder);
    command.arg("--").arg(program);
    command
}

/// A small disk that only one server sees.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The folder that lies on it.
    pub(crate) at: PathBuf,
    pub(crate) megabytes: u32,
}

/// Whoever is root in a namespace of its own may mount there, also without privileges. Servers refuse to run as root, so
/// within it they get another name again.
const ON_A_DISK: &str = r#"
mount -t tmpfs -o "size=$1m" none "$2" && shift 2 && exec unshare --user --map-user=65534 --map-group=65534 -- "$@"
"#;

/// The same for a server, which dies when we do. The shell closes a gap: had we died before the wish to die with us was
/// made known, the server would already have another parent.
pub(crate) fn bound_to_us(program: &Path, folder: &Path, disk: Option<&Disk>) -> Command {
    let mut command = setpriv(folder);
    if let Some(disk) = disk {
        command.args([
            "--",
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--",
            "sh",
            "-c",
            ON_A_DISK,
            "sh",
        ]);
        command.arg(disk.megabytes.to_string()).arg(&disk.at).arg("setpriv");
    }
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#]);
    command.arg(std::process::id().to_string()).arg(program);
    // An interrupt from the keyboard is for us alone.
    command.process_group(0);
    command
}

fn setpriv(folder: &Path) -> Command {
    let mut command = with_clean_environment(Path::new("setpriv"));
    command.env("HOME", folder).current_dir(folder);
    if is_root() {
        command.arg(format!("--reuid={UNPRIVILEGED}")).arg(format!("--regid={UNPRIVILEGED}"));
        command.arg("--clear-groups");
    }
    command
}

/// A program that sees nothing of our environment but the path, and speaks English.
pub(crate) fn with_clean_environment(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

/// Runs a command to its end and gives what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String, ServerError> {
    let output = command.output().map_err(ServerError::io(format!("start `{}`", shown(command))))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(ServerError::Failed { command: shown(command), output: format!("{stdout}{stderr}{}", output.status) })
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Starts a command on the thread that never ends.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    let (sender, started) = channel();
    let job = move || {
        // Whoever asked waits for the answer.
        let _ = sender.send(command.spawn());
    };
    // Were the thread gone, there would be no answer.
    let _ = STARTER.send(Box::new(job));
    started.recv().map_err(io::Error::other)?
}

/// Kills a child and all that it started, and waits until they are gone.
pub(crate) fn kill(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    let family = freeze(child)?;
    for member in &family {
        signal(member, Signal::KILL)?;
    }
    for member in &family {
        wait_for_end(member)?;
    }
    child.wait().map(drop)
}

/// Stops a child and all that it started. The child goes first, so that it can't start another one meanwhile.
pub(crate) fn freeze(child: &Child) -> io::Result<Vec<OwnedFd>> {
    let parent = open(Pid::from_child(child))?;
    signal(&parent, Signal::STOP)?;
    // Signals arrive a little later. NOWAIT leaves the news in place for those who ask again.
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::PidFd(parent.as_fd()), stopped)?;
    let mut family = children(child)?;
    for member in &family {
        signal(member, Signal::STOP)?;
    }
    family.push(parent);
    Ok(family)
}

/// Lets a child and all that it started go on.
pub(crate) fn thaw(child: &Child) -> io::Result<()> {
    for member in children(child)? {
        signal(&member, Signal::CONT)?;
    }
    signal(&open(Pid::from_child(child))?, Signal::CONT)
}

fn open(pid: Pid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// What a child started, and what that started in turn.
fn children(child: &Child) -> io::Result<Vec<OwnedFd>> {
    let mut pids = started_by(child.id())?;
    let mut seen = 0;
    while let Some(&pid) = pids.get(seen) {
        // One that has ended meanwhile has none any more.
        pids.extend(started_by(pid).unwrap_or_default());
        seen += 1;
    }
    let pids = pids.into_iter().filter_map(|pid| Pid::from_raw(pid.try_into().ok()?));
    // One that has ended and was reaped meanwhile is none of the family.
    pids.map(open).filter(|opened| !is_gone(opened)).collect()
}

/// By any of its threads.
fn started_by(pid: u32) -> io::Result<Vec<u32>> {
    let mut all = vec![];
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let list = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(all)
}

fn is_gone<T>(opened: &io::Result<T>) -> bool {
    opened.as_ref().is_err_and(|e| Errno::from_io_error(e) == Some(Errno::SRCH))
}

fn signal(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    match pidfd_send_signal(process, signal) {
        // Who has ended needs no signal.
        Err(Errno::SRCH) => Ok(()),
        sent => Ok(sent?),
    }
}

fn wait_for_end(process: &OwnedFd) -> io::Result<()> {
    Ok(poll(&mut [PollFd::new(process, PollFlags::IN)], None).map(drop)?)
}
