//! An agent that does what a script says, faults included: for tests of engines.
//!
//! A script says what happens at the start, and what for each action: a list of steps. In between the mock keeps its
//! promise like any agent: an answer is remembered before it is sent, and a command that comes again gets it.

use super::{
    Error,
    frame::LineReader,
    inside::Inside,
    install::staging_of,
    kit::{Place, Recalled, Told},
    protocol::{Artifact, Command, Event, Failure, ToAgent, Version},
};
use hapax_core::{
    json::Json,
    key::{Digest, sha256},
    limits::AGENT_LINE_BYTES,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    io::Write as _,
    os::unix::fs::symlink,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

/// What a mock agent does.
///
/// ```
/// use hapax::agent::mock::Script;
/// let script: Script = serde_json::from_str(r#"{
///     "actions": {
///         "implement": [
///             {"do": "once", "name": "first", "steps": [{"do": "exit", "code": 3}]},
///             {"do": "write", "path": "src/roman.py", "text": "print()"},
///             {"do": "answer"}
///         ],
///         "review": [{"do": "answer", "statuses": ["changes_requested", "approved"]}]
///     }
/// }"#)?;
/// assert_eq!(script.actions["implement"].len(), 3);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// What it does before it reads anything.
    pub start: Vec<Step>,
    /// What it does for each action. Others succeed.
    pub actions: BTreeMap<String, Vec<Step>>,
    /// It doesn't remember anything: each command is new.
    pub forgetful: bool,
    /// It goes on when its input has ended.
    pub ignores_eof: bool,
}

/// One thing that a mock agent does.
///
/// ```
/// use hapax::agent::mock::Step;
/// let step: Step = serde_json::from_str(r#"{"do": "logs", "count": 10000}"#)?;
/// assert_eq!(step, Step::Logs { count: 10000 });
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// Waits.
    Sleep {
        /// How long.
        ms: u64,
    },
    /// Waits until that file is in the workspace.
    Await {
        /// Its path.
        path: String,
    },
    /// Never comes back.
    Hang,
    /// Dies as if it were killed.
    Crash,
    /// Ends.
    Exit {
        /// With this code.
        code: i32,
    },
    /// Does these only the first time, over all processes of the agent.
    Once {
        /// Tells them apart.
        name: String,
        /// What.
        steps: Vec<Step>,
    },
    /// Appends a line to `notes` in the agent's state folder: what a test counts.
    Note {
        /// The line; the key of the command is added.
        text: String,
    },
    /// Makes a file, and lists it among the artifacts unless it isn't to.
    Write {
        /// Its path.
        path: String,
        /// Its content.
        text: String,
        /// It isn't listed among the artifacts.
        #[serde(default)]
        unlisted: bool,
    },
    /// Lists an artifact, right or wrong, without making it.
    List {
        /// Its path.
        path: String,
        /// The content that it is said to have.
        text: String,
        /// Another hash than that content has.
        #[serde(default)]
        sha256: Option<Digest>,
        /// Another size than that content has.
        #[serde(default)]
        size: Option<u64>,
    },
    /// Puts a symlink into the staging folder.
    Symlink {
        /// Where.
        path: String,
        /// Where it leads.
        target: String,
    },
    /// Says how far it is.
    Progress {
        /// How far.
        percent: f64,
    },
    /// Shows a part of a text.
    Token {
        /// The part.
        text: String,
    },
    /// Logs many lines.
    Logs {
        /// How many.
        count: u64,
    },
    /// Writes to its standard error.
    Stderr {
        /// What.
        text: String,
    },
    /// Writes a line of its own, whatever it is.
    Raw {
        /// Without a newline.
        line: String,
    },
    /// Writes a text without a newline.
    HalfLine {
        /// What.
        text: String,
    },
    /// Writes bytes that aren't UTF-8, as a line.
    InvalidUtf8,
    /// Writes a line that is longer than lines may be.
    Oversize {
        /// With the correlation id of the command in it.
        #[serde(default)]
        about: bool,
        /// How long; default: one byte too long.
        #[serde(default)]
        bytes: Option<usize>,
    },
    /// Gives no sign of life any more.
    StopHeartbeats,
    /// Doesn't end when it is asked to.
    IgnoreSigterm,
    /// Remembers an answer without sending it.
    Remember(Answer),
    /// Remembers an answer, and sends it.
    Answer(Answer),
}

/// An answer of a mock agent; all of it can be left out.
///
/// ```
/// use hapax::agent::mock::Answer;
/// let answer: Answer = serde_json::from_str(r#"{"status": "approved"}"#)?;
/// assert_eq!(answer.status.as_deref(), Some("approved"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Its word; default: `success`.
    pub status: Option<String>,
    /// Its words for one command of that action after the other; the last stays.
    pub statuses: Vec<String>,
    /// The event's name.
    pub event: Option<String>,
    /// What it says.
    pub payload: Option<serde_json::Value>,
    /// It failed.
    pub failure: Option<Failure>,
    /// Another command's id than this one's.
    pub correlation_id: Option<String>,
    /// Another snapshot than the command's.
    pub observed: Option<String>,
    /// It isn't remembered.
    pub fleeting: bool,
}

/// Plays a script until the engine closes the pipe.
///
/// ```
/// use hapax::agent::mock::{Script, run};
/// assert!(run(Script::default()).is_err(), "no engine has started it");
/// ```
pub fn run(script: Script) -> Result<(), Error> {
    let mock = Arc::new(Mock { place: Told::from_environment()?.enter()?, script });
    let mut begun = Performance::new(&mock.place, None);
    mock.script.start.iter().for_each(|step| begun.perform(step));
    mock.place.beat();
    let mut lines = LineReader::new(io::stdin().lock());
    while let Some(frame) = lines.next().map_err(|error| Error::Protocol(error.to_string()))? {
        match mock.place.read(&frame) {
            Some(ToAgent::Ack(ack)) => mock.place.acknowledge(&ack),
            Some(ToAgent::Command(command)) => {
                let mock = mock.clone();
                thread::spawn(move || mock.play(&command));
            }
            None => {}
        }
    }
    if mock.script.ignores_eof {
        begun.perform(&Step::Hang);
    }
    Ok(())
}

struct Mock {
    place: Arc<Place>,
    script: Script,
}

impl Mock {
    fn play(&self, command: &Command) {
        let mut performance = Performance::new(&self.place, Some(command));
        match self.place.recall(command) {
            Ok(Recalled::Answer(event)) if !self.script.forgetful => {
                self.place.out.say(&Place::again(&event, command));
            }
            Ok(_) => match self.script.actions.get(&command.action) {
                Some(steps) => steps.iter().for_each(|step| performance.perform(step)),
                None => performance.perform(&Step::Answer(Answer::default())),
            },
            Err(error) => self.place.out.log("error", &error.to_string()),
        }
    }
}

/// One command's steps, as far as they were performed.
struct Performance<'a> {
    place: &'a Arc<Place>,
    command: Option<&'a Command>,
    artifacts: Vec<Artifact>,
}

impl<'a> Performance<'a> {
    fn new(place: &'a Arc<Place>, command: Option<&'a Command>) -> Self {
        Self { place, command, artifacts: vec![] }
    }

    fn perform(&mut self, step: &Step) {
        match step {
            Step::Sleep { ms } => thread::sleep(Duration::from_millis(*ms)),
            Step::Await { path } => self.wait_for(path),
            Step::Hang => loop {
                thread::park();
            },
            Step::Crash => crash(),
            Step::Exit { code } => std::process::exit(*code),
            Step::Once { name, steps } => self.once(name, steps),
            Step::Note { text } => self.note(text),
            Step::Write { path, text, unlisted } => self.write(path, text, *unlisted),
            Step::List { path, text, sha256, size } => self.list(path, text, *sha256, *size),
            Step::Symlink { path, target } => self.link(path, target),
            Step::Progress { percent } => self.tell("progress", &serde_json::json!({"percent": percent})),
            Step::Token { text } => self.tell("token", &serde_json::json!({"text": text})),
            Step::Logs { count } => self.logs(*count),
            Step::Stderr { text } => eprintln!("{text}"),
            Step::Raw { line } => self.place.out.raw(format!("{line}\n").as_bytes()),
            Step::HalfLine { text } => self.place.out.raw(text.as_bytes()),
            Step::InvalidUtf8 => self.place.out.raw(b"{\"kind\":\"log\",\"message\":\"\xff\xfe\"}\n"),
            Step::Oversize { about, bytes } => self.oversize(*about, bytes.unwrap_or(AGENT_LINE_BYTES + 1)),
            Step::StopHeartbeats => self.place.heart_stopped.store(true, Ordering::Release),
            Step::IgnoreSigterm => ignore_sigterm(),
            Step::Remember(answer) => drop(self.remember(answer)),
            Step::Answer(answer) => self.answer(answer),
        }
    }

    fn logs(&self, count: u64) {
        for number in 0..count {
            self.place.out.log("info", &format!("line {number}"));
        }
    }

    fn wait_for(&self, path: &str) {
        while !self.place.workspace.root().join(path).exists() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn once(&mut self, name: &str, steps: &[Step]) {
        let mark = self.place.state.join(format!("once-{name}"));
        if fs::File::create_new(mark).is_ok() {
            steps.iter().for_each(|step| self.perform(step));
        }
    }

    fn note(&self, text: &str) {
        let key = self.command.map_or("", |command| &command.idempotency_key);
        let attempt = self.command.map_or(0, |command| command.retry.attempt);
        let notes = fs::File::options().create(true).append(true).open(self.place.state.join("notes"));
        let written =
            notes.and_then(|mut notes| notes.write_all(format!("{text} {key} {attempt}\n").as_bytes()));
        if let Err(error) = written {
            self.place.out.log("error", &error.to_string());
        }
    }

    fn staged(&self, path: &str) -> std::path::PathBuf {
        let key = self.command.map_or("", |command| &command.idempotency_key);
        staging_of(&self.place.staging, key).join(path)
    }

    fn write(&mut self, path: &str, text: &str, unlisted: bool) {
        // Even a mock writes nothing outside: it only says that it did.
        if Inside::parse(path).is_ok() {
            let file = self.staged(path);
            let made = fs::create_dir_all(file.parent().unwrap_or(&self.place.staging));
            if let Err(error) = made.and_then(|()| fs::write(&file, text)) {
                self.place.out.log("error", &error.to_string());
            }
        }
        if !unlisted {
            self.list(path, text, None, None);
        }
    }

    fn list(&mut self, path: &str, text: &str, hash: Option<Digest>, size: Option<u64>) {
        let (sha256, size) =
            (hash.unwrap_or_else(|| sha256(text.as_bytes())), size.unwrap_or(text.len() as u64));
        self.artifacts.push(Artifact { path: path.into(), sha256, size });
    }

    fn link(&self, path: &str, target: &str) {
        let link = self.staged(path);
        let made = fs::create_dir_all(link.parent().unwrap_or(&self.place.staging));
        if let Err(error) = made.and_then(|()| symlink(target, &link)) {
            self.place.out.log("error", &error.to_string());
        }
    }

    fn tell(&self, name: &str, payload: &serde_json::Value) {
        let Some(command) = self.command else { return };
        let payload = Json::of(payload).unwrap_or_else(|_| Json::null());
        self.place.out.say(&self.place.event(command, name, None, payload, vec![]));
    }

    fn oversize(&self, about: bool, bytes: usize) {
        let id = self.command.filter(|_| about).map_or("", |command| &command.correlation_id);
        let mut line = format!(r#"{{"kind":"event","correlation_id":"{id}","payload":""#).into_bytes();
        line.resize(bytes.max(line.len() + 1) - 1, b'x');
        line.push(b'\n');
        self.place.out.raw(&line);
    }

    fn answer(&mut self, answer: &Answer) {
        if let Some(event) = self.remember(answer) {
            self.place.out.say(&event);
        }
    }

    fn remember(&self, answer: &Answer) -> Option<Event> {
        let command = self.command?;
        let event = self.event(command, answer);
        let passes = event.failure().is_some_and(|failure| failure.retryable);
        let kept = match answer.fleeting || answer.correlation_id.is_some() {
            true => Ok(()),
            false if passes => self.place.cache.forget(&command.idempotency_key),
            false => self.place.cache.finish(&command.idempotency_key, &event),
        };
        if let Err(error) = kept {
            self.place.out.log("error", &error.to_string());
        }
        Some(event)
    }

    fn event(&self, command: &Command, answer: &Answer) -> Event {
        let status = answer.status.clone().or_else(|| self.next_status(command, &answer.statuses));
        let status = status.unwrap_or_else(|| "success".into());
        let payload = answer.payload.clone().unwrap_or_else(|| serde_json::json!({}));
        let payload = Json::of(&payload).unwrap_or_else(|_| Json::null());
        let mut event = match &answer.failure {
            Some(failure) => self.place.failed(command, failure),
            None => self.place.event(command, "mock.done", Some(&status), payload, self.artifacts.clone()),
        };
        if let Some(name) = &answer.event {
            event.event.clone_from(name);
        }
        if let Some(id) = &answer.correlation_id {
            event.correlation_id.clone_from(id);
        }
        if let Some(snapshot_id) = &answer.observed {
            event.observed_version = Some(Version::of(snapshot_id));
        }
        event
    }

    /// Counted over all processes of the agent.
    fn next_status(&self, command: &Command, statuses: &[String]) -> Option<String> {
        let last = statuses.last()?;
        let mark = |n: usize| self.place.state.join(format!("answered-{}-{n}", command.action));
        let taken = (0..statuses.len()).find(|n| fs::File::create_new(mark(*n)).is_ok());
        Some(taken.map_or(last, |n| &statuses[n]).clone())
    }
}

/// By a signal, as the kernel would: nothing is tidied up.
fn crash() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        thread::park();
    }
}

/// From when this returns, the signal does nothing.
fn ignore_sigterm() {
    let (ready, is_ready) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            let _ = ready.send(());
            if let Ok(mut terminate) = terminate {
                while terminate.recv().await.is_some() {}
            }
        });
    });
    // If the thread is gone, the signal is what it was.
    let _ = is_ready.recv();
}
