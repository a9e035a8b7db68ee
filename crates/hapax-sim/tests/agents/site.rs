//! A workspace with its agents and whoever has them work, and what all of them say.

use hapax::agent::{
    Workspace,
    flows::{Task, Work},
};
use hapax_sim::{
    crafts::{self, NOTES},
    kills::{Process, Waits},
};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write as _},
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

const KIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");
const NOTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agents/noted.py");

/// Which kit the agents are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kit {
    Rust,
    Python,
}

impl Kit {
    fn command(self) -> Vec<String> {
        match self {
            Kit::Rust => vec![env!("CARGO_BIN_EXE_hapax-hand").into()],
            Kit::Python => {
                let agent = format!("{KIT}/agents/{{kind}}.py");
                ["python3", "-B", NOTED, KIT, &agent].map(str::to_owned).to_vec()
            }
        }
    }

    /// What there is to do for a run.
    pub(crate) fn work(self) -> Work {
        match self {
            Kit::Rust => crafts::work(6),
            Kit::Python => {
                Work::new([Task::new("T-1", "Roman numerals").file("src/roman.py").file("CHANGELOG.md")])
            }
        }
    }
}

/// What is said: by the process that has the agents work, and by them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Foreman(String),
    Agent {
        pid: i32,
        point: String,
        key: String,
    },
    /// The foreman is gone.
    Gone,
}

/// A folder with everything that belongs to one run.
pub(crate) struct Site {
    folder: TempDir,
    kit: Kit,
    said: (Sender<Said>, Receiver<Said>),
    /// Holds the agents' pipe open.
    notes: File,
}

impl Site {
    pub(crate) fn new(kit: Kit) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("work")).expect("a folder");
        let pipe = folder.path().join("notes");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        // Open for both, so that it has a reader and a writer from the beginning to the end.
        let notes = File::options().read(true).write(true).open(&pipe).expect("a pipe");
        let said = mpsc::channel();
        listen(BufReader::new(File::open(pipe).expect("a pipe")), said.0.clone(), heard);
        Self { folder, kit, said, notes }
    }

    pub(crate) fn db(&self) -> PathBuf {
        self.folder.path().join("runs.db")
    }

    pub(crate) fn workspace(&self) -> Workspace {
        Workspace::open(self.folder.path().join("work")).expect("a folder")
    }

    /// Has the agents work, whatever an earlier life has left.
    pub(crate) fn foreman(&self) -> Process {
        let work = serde_json::to_string(&self.kit.work()).expect("plain data");
        let (db, root) = (self.db(), self.folder.path().join("work"));
        let own = [db.display().to_string(), root.display().to_string(), work];
        let notes = self.folder.path().join("notes");
        let program = Path::new("env");
        let args = [format!("{NOTES}={}", notes.display()), env!("CARGO_BIN_EXE_hapax-foreman").into()];
        let args = args.into_iter().chain(own).chain(self.kit.command());
        let (process, out) = Process::start(program, args).expect("the foreman starts");
        let sender = self.said.0.clone();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(Said::Foreman(line));
            }
            let _ = sender.send(Said::Gone);
        });
        process
    }

    /// What is said next.
    pub(crate) fn next(&self) -> Said {
        match self.said.1.recv_timeout(PATIENCE) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => panic!("stuck: nobody says anything"),
            Err(RecvTimeoutError::Disconnected) => unreachable!("this end holds a sender, too"),
        }
    }

    /// What else was said up to now, when nobody is left who could say more.
    pub(crate) fn rest(&self) -> Vec<Said> {
        // Behind all that the agents wrote to the pipe.
        (&self.notes).write_all(b"0 over -\n").expect("a pipe");
        let is_last = |said: &Said| matches!(said, Said::Agent { pid: 0, .. });
        std::iter::repeat_with(|| self.next()).take_while(|said| !is_last(said)).collect()
    }

    /// Waits until none of the agents is there. Whoever started them is gone, and nobody else ends them.
    pub(crate) fn until_alone(&self) {
        let waits = Waits::begin(PATIENCE);
        while !self.agents().is_empty() {
            waits.check("agents outlive their engine");
        }
    }

    /// The processes that work here.
    fn agents(&self) -> Vec<i32> {
        let all = fs::read_dir("/proc").expect("Linux").flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|pid| self.is_agent(*pid)).collect()
    }

    fn is_agent(&self, pid: i32) -> bool {
        let wanted = format!("HAPAX_WORKSPACE={}", self.workspace().root().display());
        let mut environment = vec![];
        let read = File::open(format!("/proc/{pid}/environ"))
            .and_then(|mut file| file.read_to_end(&mut environment));
        read.is_ok() && environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    }

    /// SIGKILL to an agent of this place; `false`: it is gone already.
    pub(crate) fn kill_agent(&self, pid: i32) -> bool {
        let pid_of = Pid::from_raw(pid).expect("a number of a process");
        // By its handle: the number may have become another's meanwhile, and that is looked at with the handle in hand.
        let Ok(handle) = pidfd_open(pid_of, PidfdFlags::empty()) else { return false };
        self.is_agent(pid) && pidfd_send_signal(handle, Signal::KILL).is_ok()
    }
}

fn heard(line: &str) -> Said {
    let words: Vec<_> = line.split(' ').collect();
    let [pid, point, key] = words[..] else { panic!("a strange note: {line}") };
    let pid = pid.parse().expect("a number of a process");
    Said::Agent { pid, point: point.into(), key: key.into() }
}

/// Hands on what is said, until nobody listens any more.
fn listen(lines: impl BufRead + Send + 'static, to: Sender<Said>, said: fn(&str) -> Said) {
    thread::spawn(move || lines.lines().map_while(Result::ok).try_for_each(|line| to.send(said(&line))));
}
