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

mod out;
mod place;
mod staged;
mod task;
#[cfg(test)]
mod tests;

pub(crate) use place::{Place, Recalled, Told};
pub use task::Task;

use super::{
    Error,
    frame::{self, Frame, LineReader},
    protocol::{self, Command, Event, Failure, ToAgent},
};
use crate::gate::lock;
use hapax_core::{canary, json::Json, limits};
use serde::{Deserialize, Serialize};
use std::{
    any::Any,
    collections::HashMap,
    io::{self, BufRead},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// The action that every agent of a kit knows by itself, so that `hapax agent check` has something to ask for.
pub(crate) const CHECK_ACTION: &str = "hapax.check";

/// Bytes that an answer leaves free in its line: it may be sent again under a longer correlation id.
const ANSWER_ROOM: usize = 2048;

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

    /// Another word: `approved`, `changes_requested`, or one of your own, in small letters, digits and `_`.
    pub fn new(status: &str) -> Self {
        Self { status: status.into(), payload: Some(empty_object()) }
    }

    /// The work can't be done before these are answered: one at least.
    pub fn clarification(questions: &[&str]) -> Self {
        Self::new("clarification").payload(&HashMap::from([("questions", questions)]))
    }

    /// What there is to say: something that is an object in JSON. With anything else the answer is a failure.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.payload = Json::of(payload).ok().filter(|json| json.as_str().starts_with('{'));
        self
    }

    /// The word.
    pub fn status(&self) -> &str {
        &self.status
    }

    /// The word and the payload, if the engine can take them.
    fn checked(self) -> Result<(String, Json), Failure> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Asked {
            questions: Vec<String>,
        }
        let odd = |what: String| Failure::new("exception", what).retryable();
        let Self { status, payload } = self;
        let payload = payload.ok_or_else(|| odd("the payload of an answer is an object".into()))?;
        if !is_word(&status) {
            return Err(odd(format!("the status `{status}` isn't small letters, digits and `_`")));
        }
        let asked = || payload.read::<Asked>().unwrap_or_default();
        match status.as_str() {
            "failed" => Err(payload.read().unwrap_or_default()),
            "clarification" if asked().questions.is_empty() => {
                Err(odd("a clarification has `questions`, a list of at least one text".into()))
            }
            _ => Ok((status, payload)),
        }
    }
}

fn is_word(status: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    status.bytes().all(fits) && status.starts_with(|first: char| first.is_ascii_lowercase())
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

/// What nobody foresaw may pass: the work may be done again, as it may after a crash. A path that is no good stays so.
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        match (&error as &dyn Any).downcast_ref() {
            Some(Error::Artifact { .. }) => Self::new("path", error.to_string()),
            _ => Self::new("exception", error.to_string()).retryable(),
        }
    }
}

fn empty_object() -> Json {
    Json::from_text("{}").unwrap_or_else(|_| Json::null())
}

/// Serves until the engine closes the pipe. What it needs to know is in its environment: `HAPAX_WORKSPACE`,
/// `HAPAX_STAGING`, `HAPAX_AGENT_STATE`, `HAPAX_AGENT_TYPE`, `HAPAX_AGENT_ID`, `HAPAX_HEARTBEAT_MS`.
///
/// The action `hapax.check` never comes to `work`: it is the kit's own answer to `hapax agent check`.
///
/// Standard output belongs to the protocol: print to standard error, and give it to what you start as its output.
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
    let told = Told::from_environment()?;
    end_on_sigterm();
    let kit = Kit::new(told.enter()?, Box::new(work));
    let leaving = kit.clone();
    kit.place.out.on_lost(move || {
        leaving.leave(limits::AGENT_GRACE);
        std::process::exit(0);
    });
    kit.place.beat();
    kit.serve(io::stdin().lock())
}

/// Asked to end, it ends at once: what was begun is done again by the next process. It listens before it waits for another
/// process to end, and before its first heartbeat says that it is ready.
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

type Work = Box<dyn Fn(&mut Task) -> Result<Answer, Failure> + Send + Sync>;

struct Kit {
    place: Arc<Place>,
    work: Work,
    /// The commands under way by key, each with those that came again meanwhile.
    running: Mutex<HashMap<String, Vec<Command>>>,
    idle: Condvar,
    is_leaving: AtomicBool,
}

impl Kit {
    fn new(place: Arc<Place>, work: Work) -> Arc<Self> {
        let (running, idle, is_leaving) = Default::default();
        Arc::new(Self { place, work, running, idle, is_leaving })
    }

    /// Reads to the end, and lets what was begun end.
    fn serve(self: &Arc<Self>, input: impl BufRead) -> Result<(), Error> {
        let mut lines = LineReader::new(input);
        while let Some(frame) = lines.next().map_err(|error| Error::Protocol(error.to_string()))? {
            self.hear(&frame);
        }
        self.leave(limits::AGENT_GRACE);
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
        if self.is_leaving.load(Ordering::Acquire) {
            return;
        }
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
            self.place.failed(command, &Failure::new("cache", error.to_string()).retryable())
        });
        self.place.is_active();
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
        let was_cut_off = match place.recall(command)? {
            Recalled::Answer(event) => return Ok(event),
            Recalled::Begun { was_cut_off } => was_cut_off,
        };
        let event = self.work(command, was_cut_off);
        if event.failure().is_some_and(|failure| failure.retryable) {
            place.cache.forget(key)?;
        } else {
            if canary::on("answer_before_cache") {
                place.out.say(&event);
            }
            place.cache.finish(key, &event)?;
        }
        Ok(event)
    }

    fn work(&self, command: &Command, was_cut_off: bool) -> Event {
        let place = &self.place;
        let mut task = Task::new(command, place, was_cut_off);
        let work = if command.action == CHECK_ACTION { &be_checked } else { &*self.work };
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut task)));
        let answer = done.unwrap_or_else(|panic| Err(panicked(&*panic))).and_then(Answer::checked);
        let event = match answer {
            Err(failure) => return place.failed(command, &failure),
            Ok((status, payload)) => {
                let name = completed(&command.action);
                place.event(command, &name, Some(&status), payload, task.into_artifacts())
            }
        };
        match frame::line(&event) {
            Ok(line) if line.len() + ANSWER_ROOM <= limits::AGENT_LINE_BYTES => event,
            _ => {
                let most = limits::AGENT_LINE_BYTES - ANSWER_ROOM;
                let message = format!("the answer has more than {most} bytes; put it into an artifact");
                place.failed(command, &Failure::new("too_large", message))
            }
        }
    }

    /// Takes nothing new, and lets what was begun end, for a while: its answer is kept for the next process.
    fn leave(&self, grace: Duration) {
        let running = lock(&self.running);
        self.is_leaving.store(true, Ordering::Release);
        let rest = self.idle.wait_timeout_while(running, grace, |running| !running.is_empty());
        drop(rest);
    }
}

/// An event's name is a dotted one, whatever the action is called.
fn completed(action: &str) -> String {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let is_dotted = action.split('.').all(|name| !name.is_empty() && name.bytes().all(fits));
    if is_dotted { format!("{action}.completed") } else { "completed".into() }
}

/// What broke may hold tomorrow.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("it doesn't say why");
    Failure::new("exception", format!("the agent's code panicked: {text}")).retryable()
}
