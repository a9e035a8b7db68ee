//! The agent's side: read loop, memory, heartbeats, artifacts. Three lines make an agent.
//!
//! Invariant: the work of a key is done once at a time, and its answer is durable before it is sent; a command that comes
//! again gets that answer.
//!
//! ```
//! use hapax::agent::kit::{self, Answer};
//! # let served =
//! kit::serve(|task| {
//!     task.write("hello.txt", b"hello")?;
//!     Ok(Answer::success())
//! })
//! # ;
//! # assert!(served.is_err(), "no engine has started it");
//! ```

use super::{
    Cache, Cached, Error, Workspace, clock_text,
    desk::message_id,
    frame::{self, Frame, LineReader},
    inside::Inside,
    install::{Delivery, staging_of},
    protocol::{self, Ack, Address, Artifact, Command, Event, Failure, Heartbeat, Log, ToAgent, Version},
};
use crate::{clock, gate::lock};
use hapax_core::{canary, json::Json, key::sha256, limits};
use hapax_store::clock::now_us;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// The action that every agent of a kit knows by itself, so that `hapax agent check` has something to ask for.
pub(crate) const CHECK_ACTION: &str = "hapax.check";

/// What an agent is asked for when it is checked.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CheckInputs {
    /// What the files that it makes hold.
    pub(crate) text: String,
    /// How long it works.
    pub(crate) pause_ms: u64,
}

/// Does what the check asks for. Each execution says something else: so an answer that comes again is seen to be the same.
fn be_checked(task: &mut Task) -> Result<Answer, Failure> {
    let inputs: CheckInputs =
        task.command.inputs.read().map_err(|error| Failure::new("inputs", error.to_string()))?;
    task.progress(0.0, "begun");
    thread::sleep(Duration::from_millis(inputs.pause_ms));
    for output in task.command.expected_outputs.clone() {
        task.write(&output.path, inputs.text.as_bytes())?;
    }
    let execution = uuid::Uuid::new_v4().to_string();
    Ok(Answer::success().payload(&HashMap::from([("execution", execution)])))
}

/// How a task ended, unless it failed.
///
/// ```
/// use hapax::agent::kit::Answer;
/// use serde_json::json;
/// let answer = Answer::new("changes_requested").payload(&json!({"comments": ["name it"]}));
/// assert_eq!(answer.status(), "changes_requested");
/// ```
#[derive(Debug, Clone)]
pub struct Answer {
    status: String,
    payload: Option<Json>,
}

impl Answer {
    /// The work is done.
    pub fn success() -> Self {
        Self::new("success")
    }

    /// Another word: `approved`, `changes_requested`, or one of your own.
    pub fn new(status: &str) -> Self {
        Self { status: status.into(), payload: None }
    }

    /// The work can't be done before these are answered.
    pub fn clarification(questions: &[&str]) -> Self {
        Self::new("clarification").payload(&HashMap::from([("questions", questions)]))
    }

    /// What there is to say: something that is an object in JSON.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.payload = Json::of(payload).ok().filter(|json| json.as_str().starts_with('{'));
        self
    }

    /// The word.
    pub fn status(&self) -> &str {
        &self.status
    }
}

impl Failure {
    /// It failed, and would fail again.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: false }
    }

    /// Another attempt makes sense: this one isn't remembered.
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new("error", error.to_string())
    }
}

/// A command, and what its work needs.
///
/// ```
/// use hapax::agent::kit::{self, Answer, Task};
/// # #[derive(serde::Deserialize)]
/// # struct Goal { goal: String }
/// fn implement(task: &mut Task) -> Result<Answer, hapax::agent::protocol::Failure> {
///     let goal: Goal = task.inputs()?;
///     let before = task.read("src/roman.py").unwrap_or_default();
///     task.progress(50.0, &goal.goal);
///     task.write("src/roman.py", &[before, b"# done".to_vec()].concat())?;
///     Ok(Answer::success())
/// }
/// # let served =
/// kit::serve(implement)
/// # ;
/// # assert!(served.is_err(), "no engine has started it");
/// ```
pub struct Task {
    /// The command as it came.
    pub command: Command,
    desk: Arc<Place>,
    artifacts: Vec<Artifact>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({} {})", self.command.action, self.command.idempotency_key)
    }
}

impl Task {
    /// With what.
    pub fn inputs<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.command.inputs.read()
    }

    /// A file of the workspace.
    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.desk.workspace.root().join(path))
    }

    /// Where this command's files wait until the engine takes them.
    pub fn staging(&self) -> PathBuf {
        staging_of(&self.desk.staging, &self.command.idempotency_key)
    }

    /// Makes a file that belongs into the workspace at that path.
    pub fn write(&mut self, path: &str, content: &[u8]) -> Result<(), Error> {
        Inside::parse(path).map_err(|reason| Error::Artifact { path: path.into(), reason: reason.into() })?;
        let file = self.staging().join(path);
        let failed = |error| Error::workspace(&file, error);
        fs::create_dir_all(file.parent().unwrap_or(&self.desk.staging)).map_err(failed)?;
        fs::write(&file, content).map_err(failed)?;
        fs::File::open(&file).and_then(|file| file.sync_all()).map_err(failed)?;
        self.artifacts.retain(|artifact| artifact.path != path);
        let (sha256, size) = (sha256(content), content.len() as u64);
        self.artifacts.push(Artifact { path: path.into(), sha256, size });
        Ok(())
    }

    /// A file that is in the [staging folder](Task::staging) already, by other means.
    pub fn made(&mut self, path: &str) -> Result<(), Error> {
        let content = fs::read(self.staging().join(path)).map_err(|error| Error::workspace(path, error))?;
        self.write(path, &content)
    }

    /// Says how far it is.
    pub fn progress(&self, percent: f64, message: &str) {
        self.tell("progress", &serde_json::json!({"percent": percent, "message": message}));
    }

    /// Shows a part of a text as it comes.
    pub fn token(&self, text: &str) {
        self.tell("token", &serde_json::json!({"text": text}));
    }

    /// Writes a line into the engine's log.
    pub fn log(&self, level: &str, message: &str) {
        self.desk.out.log(level, message);
    }

    fn tell(&self, name: &str, payload: &serde_json::Value) {
        let payload = Json::of(payload).unwrap_or_else(|_| empty());
        self.desk.out.say(&self.desk.event(&self.command, name, None, payload, vec![]));
    }
}

fn empty() -> Json {
    Json::from_text("{}").unwrap_or_else(|_| Json::null())
}

/// Serves until the engine closes the pipe. What it needs to know is in its environment: `HAPAX_WORKSPACE`,
/// `HAPAX_STAGING`, `HAPAX_AGENT_STATE`, `HAPAX_AGENT_TYPE`, `HAPAX_AGENT_ID`, `HAPAX_HEARTBEAT_MS`.
///
/// The action `hapax.check` never comes to `work`: it is the kit's own answer to `hapax agent check`.
///
/// ```
/// use hapax::agent::{kit::{self, Answer}, protocol::Failure};
/// let served = kit::serve(|task| match task.command.action.as_str() {
///     "review" => Ok(Answer::new("approved")),
///     other => Err(Failure::new("unknown_action", other)),
/// });
/// assert!(served.is_err(), "no engine has started it");
/// ```
pub fn serve<F>(work: F) -> Result<(), Error>
where
    F: Fn(&mut Task) -> Result<Answer, Failure> + Send + Sync + 'static,
{
    let place = Place::from_environment()?;
    end_on_sigterm();
    place.beat();
    Kit::new(place, Box::new(work)).serve(io::stdin().lock())
}

/// Asked to end, it ends at once: what was begun is done again by the next process. It listens before its first heartbeat says
/// that it is ready.
fn end_on_sigterm() {
    let (listens, listening) = mpsc::channel();
    thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            drop(listens);
            if let Ok(mut terminate) = terminate {
                terminate.recv().await;
                std::process::exit(0);
            }
        });
    });
    // Nothing is sent: the other end is dropped when it listens, or can't.
    let _: Result<(), _> = listening.recv();
}

/// The pipe to the engine. One line at a time, whoever writes.
pub(crate) struct Out(Mutex<Box<dyn Write + Send>>);

impl Out {
    /// Writes a message; `false`: it is too large for a line.
    pub(crate) fn say<T: Serialize>(&self, message: &T) -> bool {
        let line = frame::line(message);
        line.map(|line| self.raw(&line)).is_ok()
    }

    /// Writes a message unless it isn't to be written any more: nothing comes behind what was written since then.
    fn say_unless<T: Serialize>(&self, stopped: &AtomicBool, message: &T) {
        if let Ok(line) = frame::line(message) {
            let mut out = lock(&self.0);
            if !stopped.load(Ordering::Acquire) {
                write(&mut **out, &line);
            }
        }
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        write(&mut **lock(&self.0), bytes);
    }

    pub(crate) fn log(&self, level: &str, message: &str) {
        let (level, message, timestamp) = (level.into(), message.into(), clock_text(now_us()));
        self.say(&Log { level, message, fields: None, timestamp });
    }
}

/// An engine that doesn't listen any more has closed the other pipe, too: that ends the agent.
fn write(out: &mut dyn Write, bytes: &[u8]) {
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// What an agent is told by its environment, and its memory.
pub(crate) struct Place {
    pub(crate) workspace: Workspace,
    pub(crate) staging: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) agent: Address,
    pub(crate) heartbeat: Duration,
    pub(crate) cache: Cache,
    pub(crate) out: Out,
    /// Commands under way.
    pub(crate) busy: AtomicU64,
    pub(crate) heart_stopped: AtomicBool,
}

impl Place {
    pub(crate) fn from_environment() -> Result<Arc<Self>, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let needed =
            |name: &str| variable(name).ok_or_else(|| Error::Invalid(format!("`{name}` is not set")));
        let state = PathBuf::from(needed("HAPAX_AGENT_STATE")?);
        let agent_type = variable("HAPAX_AGENT_TYPE").unwrap_or_else(|| "agent".into());
        let millis = variable("HAPAX_HEARTBEAT_MS").and_then(|millis| millis.parse().ok());
        Ok(Arc::new(Self {
            workspace: Workspace::open(variable("HAPAX_WORKSPACE").unwrap_or_else(|| ".".into()))?,
            staging: needed("HAPAX_STAGING")?.into(),
            agent: Address { agent_type, agent_id: variable("HAPAX_AGENT_ID") },
            heartbeat: millis.map_or(limits::AGENT_HEARTBEAT, Duration::from_millis),
            cache: Cache::open(&state)?,
            state,
            out: Out(Mutex::new(Box::new(io::stdout()))),
            busy: AtomicU64::new(0),
            heart_stopped: AtomicBool::new(false),
        }))
    }

    /// Says that it is alive: now, before anything else is said, and from time to time.
    pub(crate) fn beat(self: &Arc<Self>) {
        let (place, born) = (self.clone(), clock::since_boot());
        self.say_alive(1, born);
        thread::spawn(move || {
            for seq in 2.. {
                thread::sleep(place.heartbeat);
                place.say_alive(seq, born);
            }
        });
    }

    fn say_alive(&self, seq: u64, born: Duration) {
        let status = if self.busy.load(Ordering::Acquire) > 0 { "busy" } else { "idle" };
        let heartbeat = Heartbeat {
            agent: self.agent.clone(),
            seq,
            status: status.into(),
            pid: std::process::id(),
            uptime_s: (clock::since_boot() - born).as_secs_f64(),
            last_activity_at: clock_text(now_us()),
            stats: None,
            task_id: None,
        };
        self.out.say_unless(&self.heart_stopped, &heartbeat);
    }

    pub(crate) fn event(
        &self,
        command: &Command,
        name: &str,
        status: Option<&str>,
        payload: Json,
        artifacts: Vec<Artifact>,
    ) -> Event {
        Event {
            message_id: message_id(),
            correlation_id: command.correlation_id.clone(),
            task_id: command.task_id.clone(),
            from: self.agent.clone(),
            event: name.into(),
            status: status.map(Into::into),
            payload,
            artifacts,
            observed_version: status.map(|_| Version::of(&command.version.snapshot_id)),
            occurred_at: clock_text(now_us()),
        }
    }

    pub(crate) fn failed(&self, command: &Command, failure: &Failure) -> Event {
        let payload = Json::of(failure).unwrap_or_else(|_| empty());
        self.event(command, "error", Some("failed"), payload, vec![])
    }

    /// Answers a line that can't be read.
    pub(crate) fn refuse(&self, line: &[u8], error: &Error) {
        let failure = Failure::new("protocol", error.to_string());
        self.out.say(&Event {
            message_id: message_id(),
            correlation_id: protocol::correlation_in(line).unwrap_or_default(),
            task_id: String::new(),
            from: self.agent.clone(),
            event: "error".into(),
            status: Some("failed".into()),
            payload: Json::of(&failure).unwrap_or_else(|_| empty()),
            artifacts: vec![],
            observed_version: None,
            occurred_at: clock_text(now_us()),
        });
    }

    /// Reads a line, or answers that it can't.
    pub(crate) fn read(&self, frame: &Frame) -> Option<ToAgent> {
        let (line, read) = match frame {
            Frame::Line(line) => (line, protocol::read_to_agent(line)),
            Frame::TooLong(line) => (line, Err(Error::Protocol("the line is over the limit".into()))),
            Frame::Torn(_) => return None,
        };
        match read {
            Ok(message) => Some(message),
            Err(error) => {
                self.refuse(line, &error);
                None
            }
        }
    }

    pub(crate) fn acknowledge(&self, ack: &Ack) {
        if let Err(error) = self.cache.ack(&ack.idempotency_key, ack.forget) {
            self.out.log("warn", &error.to_string());
        }
    }

    /// An answer that was stored, for a command that came again.
    pub(crate) fn again(event: &Event, command: &Command) -> Event {
        Event {
            message_id: message_id(),
            correlation_id: command.correlation_id.clone(),
            occurred_at: clock_text(now_us()),
            ..event.clone()
        }
    }

    /// The answer that is remembered. One whose files are gone after the engine had it is none: the work is done again.
    pub(crate) fn recall(&self, command: &Command) -> Result<Option<Event>, Error> {
        let key = &command.idempotency_key;
        let staging = staging_of(&self.staging, key);
        match self.cache.begin(key)? {
            Cached::New => {}
            Cached::CutOff => empty_folder(&staging)?,
            Cached::Done { event, acked } => {
                let (workspace, artifacts) = (self.workspace.clone(), event.artifacts.clone());
                let delivery = Delivery { workspace, staging: staging.clone(), artifacts };
                if !acked || delivery.check().is_ok() {
                    return Ok(Some(event));
                }
                self.cache.begin_anew(key)?;
                empty_folder(&staging)?;
            }
        }
        Ok(None)
    }
}

fn empty_folder(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::workspace(folder, error)),
        _ => Ok(()),
    }
}

type Work = Box<dyn Fn(&mut Task) -> Result<Answer, Failure> + Send + Sync>;

struct Kit {
    place: Arc<Place>,
    work: Work,
    /// The commands under way by key, each with those that came again meanwhile.
    running: Mutex<HashMap<String, Vec<Command>>>,
    idle: Condvar,
}

impl Kit {
    fn new(place: Arc<Place>, work: Work) -> Arc<Self> {
        Arc::new(Self { place, work, running: Mutex::default(), idle: Condvar::new() })
    }

    /// Reads to the end, and lets what was begun end.
    fn serve(self: &Arc<Self>, input: impl BufRead) -> Result<(), Error> {
        let mut lines = LineReader::new(input);
        while let Some(frame) = lines.next().map_err(|error| Error::Protocol(error.to_string()))? {
            self.hear(&frame);
        }
        self.wait_for_the_rest(limits::AGENT_GRACE);
        Ok(())
    }

    fn hear(self: &Arc<Self>, frame: &Frame) {
        match self.place.read(frame) {
            Some(ToAgent::Ack(ack)) => self.place.acknowledge(&ack),
            Some(ToAgent::Command(command)) => self.take_if_keyed(command, frame),
            None => {}
        }
    }

    /// Work under a wrong key would be answered to whoever asks for other work.
    fn take_if_keyed(self: &Arc<Self>, command: Command, frame: &Frame) {
        let (Frame::Line(line) | Frame::TooLong(line) | Frame::Torn(line)) = frame;
        match protocol::check_key(line) {
            Ok(()) => self.take(command),
            Err(error) => self.place.refuse(line, &error),
        }
    }

    /// Begins a command, or has it wait for the same one that is under way.
    fn take(self: &Arc<Self>, command: Command) {
        let mut running = lock(&self.running);
        if let Some(waiting) = running.get_mut(&command.idempotency_key) {
            waiting.push(command);
            return;
        }
        running.insert(command.idempotency_key.clone(), vec![]);
        self.place.busy.store(running.len() as u64, Ordering::Release);
        drop(running);
        let kit = self.clone();
        thread::spawn(move || kit.perform(&command));
    }

    fn perform(&self, command: &Command) {
        let event = self.answer(command).unwrap_or_else(|error| {
            self.place.failed(command, &Failure::new("agent_state", error.to_string()).retryable())
        });
        let mut running = lock(&self.running);
        let waiting = running.remove(&command.idempotency_key).unwrap_or_default();
        self.place.busy.store(running.len() as u64, Ordering::Release);
        // Whoever finds nothing running may end: so it is said before anyone can look.
        for command in std::iter::once(command).chain(&waiting) {
            self.place.out.say(&Place::again(&event, command));
        }
        self.idle.notify_all();
    }

    /// The answer that is remembered, or a new one that is from now on. A failure that may pass isn't.
    fn answer(&self, command: &Command) -> Result<Event, Error> {
        let (place, key) = (&self.place, &command.idempotency_key);
        if let Some(event) = place.recall(command)? {
            return Ok(event);
        }
        let event = self.work(command);
        if event.failure().is_some_and(|failure| failure.retryable) {
            place.cache.forget(key)?;
            empty_folder(&staging_of(&place.staging, key))?;
        } else {
            if canary::on("answer_before_cache") {
                place.out.say(&event);
            }
            place.cache.finish(key, &event)?;
        }
        Ok(event)
    }

    fn work(&self, command: &Command) -> Event {
        let place = &self.place;
        let mut task = Task { command: command.clone(), desk: place.clone(), artifacts: vec![] };
        let work = if command.action == CHECK_ACTION { &be_checked } else { &*self.work };
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut task)));
        let event = match done.unwrap_or_else(|_| Err(Failure::new("panic", "the agent's code panicked"))) {
            Err(failure) => place.failed(command, &failure),
            Ok(Answer { status, payload }) => {
                let name = format!("{}.done", command.action);
                place.event(command, &name, Some(&status), payload.unwrap_or_else(empty), task.artifacts)
            }
        };
        match frame::line(&event) {
            Ok(_) => event,
            Err(error) => place.failed(command, &Failure::new("too_large", error.to_string())),
        }
    }

    fn wait_for_the_rest(&self, grace: Duration) {
        let running = lock(&self.running);
        let rest = self.idle.wait_timeout_while(running, grace, |running| !running.is_empty());
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{Attempt, FromAgent, read_from_agent};
    use hapax_core::key::command_key;

    /// What was written, line by line.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<u8>>>);

    impl Write for Heard {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Bench {
        folder: tempfile::TempDir,
        worked: Arc<AtomicU64>,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("work")).unwrap();
            Self { folder, worked: Arc::default() }
        }

        /// One life of an agent: what it answers to these lines.
        fn live(
            &self,
            lines: &[Vec<u8>],
            work: impl Fn(&mut Task) -> Result<Answer, Failure> + Send + Sync + 'static,
        ) -> Vec<Event> {
            let (heard, worked) = (Heard::default(), self.worked.clone());
            let place = Place {
                workspace: Workspace::open(self.folder.path().join("work")).unwrap(),
                staging: self.folder.path().join("staging"),
                state: self.folder.path().join("state"),
                agent: Address { agent_type: "kit".into(), agent_id: None },
                heartbeat: Duration::from_secs(10),
                cache: Cache::open(self.folder.path().join("state")).unwrap(),
                out: Out(Mutex::new(Box::new(heard.clone()))),
                busy: AtomicU64::new(0),
                heart_stopped: AtomicBool::new(false),
            };
            let counted = move |task: &mut Task| {
                worked.fetch_add(1, Ordering::SeqCst);
                work(task)
            };
            Kit::new(Arc::new(place), Box::new(counted)).serve(&*lines.concat()).unwrap();
            let bytes = lock(&heard.0).clone();
            let events = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            events
                .filter_map(|line| match read_from_agent(line).unwrap() {
                    FromAgent::Event(event) => Some(event),
                    _ => None,
                })
                .collect()
        }

        fn worked(&self) -> u64 {
            self.worked.load(Ordering::SeqCst)
        }
    }

    fn command(correlation_id: &str) -> Command {
        let key = command_key("work", "T-1", "snap-1", b"{}", b"[]").unwrap();
        Command {
            message_id: message_id(),
            correlation_id: correlation_id.into(),
            task_id: "T-1".into(),
            idempotency_key: key.to_string(),
            to: Address { agent_type: "kit".into(), agent_id: None },
            action: "work".into(),
            inputs: empty(),
            expected_outputs: vec![],
            version: Version::of("snap-1"),
            deadline: clock_text(0),
            retry: Attempt { attempt: 1, max_attempts: 6 },
            priority: 5,
        }
    }

    fn line(correlation_id: &str) -> Vec<u8> {
        frame::line(&command(correlation_id)).unwrap()
    }

    fn ack(forget: bool) -> Vec<u8> {
        frame::line(&Ack { idempotency_key: command("").idempotency_key, forget }).unwrap()
    }

    fn write_x(task: &mut Task) -> Result<Answer, Failure> {
        task.write("x", b"1")?;
        Ok(Answer::success())
    }

    #[test]
    fn a_command_that_comes_again_is_answered_from_memory_also_after_a_restart() {
        let bench = Bench::new();
        let first = bench.live(&[line("a")], write_x);
        let again = bench.live(&[line("b")], write_x);
        assert_eq!((first.len(), again.len(), bench.worked()), (1, 1, 1));
        assert_eq!((first[0].correlation_id.as_str(), again[0].correlation_id.as_str()), ("a", "b"));
        assert_eq!((&first[0].artifacts, &first[0].status), (&again[0].artifacts, &again[0].status));
        assert_ne!(first[0].message_id, again[0].message_id);
    }

    #[test]
    fn a_duplicate_waits_for_the_one_that_is_under_way() {
        let bench = Bench::new();
        let (go, is_on) = mpsc::channel();
        let is_on = Mutex::new(is_on);
        let seen = bench.worked.clone();
        thread::spawn(move || {
            while seen.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            go.send(()).unwrap();
        });
        let answers = bench.live(&[line("a"), line("b"), line("c")], move |task| {
            lock(&is_on).recv().unwrap();
            write_x(task)
        });
        let mut ids: Vec<_> = answers.iter().map(|event| event.correlation_id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!((ids, bench.worked()), (vec!["a", "b", "c"], 1));
    }

    #[test]
    fn a_failure_that_may_pass_is_not_remembered_and_a_final_one_is_until_the_engine_has_it() {
        let bench = Bench::new();
        let busy = |_: &mut Task| Err(Failure::new("busy", "later").retryable());
        assert!(bench.live(&[line("a")], busy)[0].failure().unwrap().retryable);
        let never = |_: &mut Task| Err(Failure::new("no", "never"));
        assert_eq!(bench.live(&[line("b")], never)[0].failure().unwrap().code, "no");
        assert_eq!(bench.live(&[line("c")], write_x)[0].failure().unwrap().code, "no", "it is remembered");
        assert_eq!(bench.worked(), 2);
        assert_eq!(bench.live(&[ack(true), line("d")], write_x)[0].status.as_deref(), Some("success"));
    }

    #[test]
    fn an_answer_whose_files_are_gone_after_the_engine_had_it_is_made_again() {
        let bench = Bench::new();
        bench.live(&[line("a"), ack(false)], write_x);
        let staging = bench.folder.path().join("staging");
        bench.live(&[ack(false)], write_x);
        bench.live(&[line("b")], write_x);
        assert_eq!(bench.worked(), 1, "the files are still staged");
        fs::remove_dir_all(&staging).unwrap();
        fs::write(bench.folder.path().join("work/x"), "1").unwrap();
        bench.live(&[line("c")], write_x);
        assert_eq!(bench.worked(), 1, "the engine has installed them");
        fs::remove_file(bench.folder.path().join("work/x")).unwrap();
        assert_eq!(bench.live(&[line("d")], write_x)[0].artifacts.len(), 1);
        assert_eq!(bench.worked(), 2, "somebody undid it: it is new work");
    }

    #[test]
    fn a_line_that_cannot_be_read_is_answered_and_the_next_one_is_read() {
        let bench = Bench::new();
        let long = [vec![b'x'; 300_000], b"\n".to_vec()].concat();
        let odd = b"{\"correlation_id\":\"odd\",\"kind\":\"what\"}\n".to_vec();
        let answers = bench.live(&[b"garbage\n".to_vec(), b"\xff\n".to_vec(), long, odd, line("a")], write_x);
        let codes: Vec<_> = answers.iter().map(|e| e.failure().map_or("ok".into(), |f| f.code)).collect();
        assert_eq!(codes, ["protocol", "protocol", "protocol", "protocol", "ok"]);
        assert_eq!(answers[3].correlation_id, "odd");
    }

    #[test]
    fn a_panic_and_an_answer_too_large_are_failures() {
        let bench = Bench::new();
        let large =
            |_: &mut Task| Ok(Answer::success().payload(&HashMap::from([("text", "x".repeat(300_000))])));
        assert_eq!(bench.live(&[line("a")], large)[0].failure().unwrap().code, "too_large");
        let panics = |_: &mut Task| -> Result<Answer, Failure> { panic!("a bug") };
        assert_eq!(bench.live(&[ack(true), line("b")], panics)[0].failure().unwrap().code, "panic");
    }

    #[test]
    fn a_key_that_is_not_that_of_the_content_is_refused_and_nothing_is_done() {
        let bench = Bench::new();
        let other = Command { task_id: "T-2".into(), ..command("c1") };
        let events = bench.live(&[frame::line(&other).unwrap(), line("c2")], write_x);
        let failure = events.iter().find(|event| event.correlation_id == "c1").unwrap().failure();
        assert_eq!(failure.unwrap().code, "protocol");
        assert_eq!(bench.worked(), 1, "the other one is done");
        let outputs = r#"[{"path":"x","required":true,"unheard_of":1}]"#;
        let key = command_key("work", "T-1", "snap-1", b"{}", outputs.as_bytes()).unwrap();
        let newer = String::from_utf8(
            frame::line(&Command { idempotency_key: key.to_string(), ..command("c3") }).unwrap(),
        );
        let newer =
            newer.unwrap().replace(r#""expected_outputs":[]"#, &format!(r#""expected_outputs":{outputs}"#));
        let events = bench.live(&[newer.into_bytes()], write_x);
        assert!(!events[0].is_failed(), "fields that a newer engine knows are part of its key");
    }

    #[test]
    fn the_action_of_the_check_is_the_kits_own() {
        let bench = Bench::new();
        let output = protocol::Output { path: "a/b".into(), description: None, required: true };
        let inputs = Json::of(&CheckInputs { text: "x".into(), pause_ms: 0 }).unwrap();
        let outputs = Json::of(&[&output]).unwrap();
        let key = command_key(CHECK_ACTION, "T-1", "snap-1", inputs.as_bytes(), outputs.as_bytes()).unwrap();
        let command = |id| Command {
            action: CHECK_ACTION.into(),
            inputs: inputs.clone(),
            expected_outputs: vec![output.clone()],
            idempotency_key: key.to_string(),
            ..command(id)
        };
        let lines = ["c1", "c2"].map(|id| frame::line(&command(id)).unwrap());
        let answers: Vec<Event> =
            bench.live(&lines, write_x).into_iter().filter(Event::is_terminal).collect();
        assert_eq!((answers.len(), bench.worked()), (2, 0), "the agent's own code isn't asked");
        assert_eq!(answers[0].artifacts[0].path, "a/b");
        assert_eq!(answers[0].payload, answers[1].payload, "one execution");
    }
}
