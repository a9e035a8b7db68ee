//! The commands that an agent has to answer, and who waits for each.
//!
//! Invariant: a command has one answer, found by its correlation id; what comes for no open command is counted and never
//! taken for an answer.

use super::{
    Error, clock_text, frame,
    protocol::{Ack, Attempt, Command, Event},
};
use crate::gate::lock;
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// What an agent tells on the way and nobody has taken yet; more waits in the pipe.
const WAITING_EVENTS: usize = 256;

/// Acknowledgements for an agent that doesn't run; the oldest are forgotten, and their answers kept a little longer.
const WAITING_ACKS: usize = 10_000;

/// What happened to an agent since it was made.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// use hapax::agent::{Agent, Workspace};
/// let builder = Agent::builder("builder", "python3").workspace(&Workspace::open(folder.path())?).build()?;
/// assert_eq!(builder.stats().starts, 0, "it starts with its first command");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// How often its process was started.
    pub starts: u64,
    /// Commands that were sent, each resend too.
    pub sent: u64,
    /// Answers that came.
    pub answers: u64,
    /// Signs of life.
    pub heartbeats: u64,
    /// Events for no command, or for one that has its answer.
    pub unknown_events: u64,
    /// Lines that are no messages.
    pub broken_lines: u64,
    /// Lines of its log that were counted and not passed on.
    pub dropped_logs: u64,
    /// Progress that nobody took in time.
    pub dropped_progress: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// The same, while it is counted.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}
counters!(starts, sent, answers, heartbeats, unknown_events, broken_lines, dropped_logs, dropped_progress);

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A command that waits for its answer.
struct Open {
    command: Command,
    /// How long it may take from each time that it is sent.
    patience: Duration,
    /// Which process has it.
    sent_to: Option<u64>,
    told: mpsc::Sender<Event>,
    answer: oneshot::Sender<Result<Event, Error>>,
}

#[derive(Default)]
struct Papers {
    open: BTreeMap<String, Open>,
    acks: VecDeque<Ack>,
    /// The engines that use the agent.
    engines: HashSet<usize>,
}

/// News of a command, and the one who has no room for it yet.
pub(crate) type Waits = (mpsc::Sender<Event>, Event);

/// Whether somebody keeps the agent alive, and whether its process is to end.
#[derive(Debug, Clone, Copy, Default)]
struct Duty {
    is_supervised: bool,
    is_stopping: bool,
}

/// What the agent's users and its supervisor share.
#[derive(Default)]
pub(crate) struct Desk {
    papers: Mutex<Papers>,
    /// Told when there is something to send.
    pub(crate) wake: Notify,
    duty: watch::Sender<Duty>,
    pub(crate) counters: Counters,
}

/// A command's place at the desk. Whoever drops it isn't answered any more.
pub(crate) struct Ticket<'d> {
    desk: &'d Desk,
    correlation_id: String,
    /// What the agent tells on the way.
    pub(crate) told: mpsc::Receiver<Event>,
    /// Its answer.
    pub(crate) answer: oneshot::Receiver<Result<Event, Error>>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.desk.papers).open.remove(&self.correlation_id);
    }
}

impl Desk {
    /// Takes a command. `true`: nobody supervises the agent yet, and it is the caller's to see to it.
    pub(crate) fn open(&self, command: Command, patience: Duration) -> (Ticket<'_>, bool) {
        let (told, on_the_way) = mpsc::channel(WAITING_EVENTS);
        let (answer, answered) = oneshot::channel();
        let correlation_id = command.correlation_id.clone();
        let mut papers = lock(&self.papers);
        let open = Open { command, patience, sent_to: None, told, answer };
        papers.open.insert(correlation_id.clone(), open);
        let is_first = !self.duty.borrow().is_supervised;
        if is_first {
            self.duty.send_replace(Duty { is_supervised: true, is_stopping: false });
        }
        drop(papers);
        self.wake.notify_one();
        (Ticket { desk: self, correlation_id, told: on_the_way, answer: answered }, is_first)
    }

    /// Acknowledges an answer, at once or when the agent runs again.
    pub(crate) fn ack(&self, ack: Ack) {
        let mut papers = lock(&self.papers);
        if papers.acks.len() >= WAITING_ACKS {
            papers.acks.pop_front();
        }
        papers.acks.push_back(ack);
        drop(papers);
        self.wake.notify_one();
    }

    /// Whether a command waits for its answer.
    pub(crate) fn is_wanted(&self) -> bool {
        !lock(&self.papers).open.is_empty()
    }

    /// The lines that a process doesn't have yet. A command that another one had is sent again: the same but for its
    /// message id, its deadline and its attempt.
    pub(crate) fn to_send(&self, process: u64, now_us: i64) -> Vec<Vec<u8>> {
        let mut papers = lock(&self.papers);
        let mut lines: Vec<_> = papers.acks.drain(..).filter_map(|ack| frame::line(&ack).ok()).collect();
        for open in papers.open.values_mut().filter(|open| open.sent_to != Some(process)) {
            if open.sent_to.is_some() {
                open.command.retry = again(open.command.retry);
            }
            open.sent_to = Some(process);
            open.command.message_id = message_id();
            open.command.deadline = clock_text(crate::clock::later(now_us, open.patience));
            // That it fits was seen before its intent.
            if let Ok(line) = frame::line(&open.command) {
                count(&self.counters.sent);
                lines.push(line);
            }
        }
        lines
    }

    /// Hands an event to whoever waits for it. `Some`: there is no room for it yet. An error: nobody waits for it.
    pub(crate) fn hand_over(&self, event: Event) -> Result<Option<Waits>, Box<Event>> {
        let mut papers = lock(&self.papers);
        let Some(open) = papers.open.get(&event.correlation_id) else {
            count(&self.counters.unknown_events);
            return Err(Box::new(event));
        };
        if !event.is_terminal() {
            let told = open.told.clone();
            return Ok(match told.try_send(event) {
                Err(mpsc::error::TrySendError::Full(event)) => Some((told, event)),
                _ => None,
            });
        }
        count(&self.counters.answers);
        if let Some(open) = papers.open.remove(&event.correlation_id) {
            // Nobody waits any more: then it is as if it hadn't come.
            let _ = open.answer.send(Ok(event));
        }
        Ok(None)
    }

    /// A line that isn't a message fails the command that it is about; if that can't be told, all that the agent has.
    pub(crate) fn fail_about(&self, correlation_id: Option<&str>, process: u64, error: &Error) {
        let mut papers = lock(&self.papers);
        let known = correlation_id.filter(|id| papers.open.contains_key(*id));
        let about = |id: &String, open: &Open| match known {
            Some(known) => id == known,
            None => open.sent_to == Some(process),
        };
        let failed = papers.open.extract_if(.., |id, open| about(id, open)).collect();
        answer_all(failed, error);
    }

    /// Fails all commands.
    pub(crate) fn fail_all(&self, error: &Error) {
        let failed = std::mem::take(&mut lock(&self.papers).open);
        answer_all(failed, error);
    }

    /// The process is over because it was to be: what it had isn't answered. `false`: there are commands that it never had,
    /// and somebody must see to them.
    pub(crate) fn leave(&self) -> bool {
        let mut papers = lock(&self.papers);
        let left = papers.open.extract_if(.., |_, open| open.sent_to.is_some()).collect();
        let is_supervised = !papers.open.is_empty();
        self.duty.send_replace(Duty { is_supervised, is_stopping: false });
        drop(papers);
        answer_all(left, &Error::Dead("it was stopped".into()));
        !is_supervised
    }

    /// The supervisor is gone, whatever there is to do: the next command finds another one.
    pub(crate) fn desert(&self) {
        let mut papers = lock(&self.papers);
        self.duty.send_replace(Duty::default());
        let left = std::mem::take(&mut papers.open);
        drop(papers);
        answer_all(left, &Error::Dead("nobody supervises it any more".into()));
    }

    /// An engine uses the agent: `true` the first time.
    pub(crate) fn adopt(&self, engine: usize) -> bool {
        lock(&self.papers).engines.insert(engine)
    }

    /// An engine uses it no more: `true` if none does.
    pub(crate) fn disown(&self, engine: usize) -> bool {
        let mut papers = lock(&self.papers);
        papers.engines.remove(&engine);
        papers.engines.is_empty()
    }

    /// Asks the supervisor to end the process, if there is one.
    pub(crate) fn stop(&self) {
        self.duty.send_if_modified(|duty| {
            let asks = duty.is_supervised && !duty.is_stopping;
            duty.is_stopping |= asks;
            asks
        });
    }

    /// Resolves when the process is to end.
    pub(crate) async fn stopping(&self) {
        // The sender is this very desk.
        let _ = self.duty.subscribe().wait_for(|duty| duty.is_stopping).await;
    }

    /// Resolves when the process that was to end has.
    pub(crate) async fn stopped(&self) {
        let _ = self.duty.subscribe().wait_for(|duty| !duty.is_stopping).await;
    }
}

fn answer_all(open: BTreeMap<String, Open>, error: &Error) {
    // Whoever doesn't wait any more needs no answer.
    open.into_values().for_each(|open| drop(open.answer.send(Err(error.clone()))));
}

fn again(retry: Attempt) -> Attempt {
    let attempt = retry.attempt.saturating_add(1);
    Attempt { attempt, max_attempts: retry.max_attempts.max(attempt) }
}

pub(crate) fn message_id() -> String {
    format!("msg-{}", uuid::Uuid::now_v7())
}

/// The lines of a log that are passed on in a second.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    second: u64,
    shown: u32,
    dropped: u64,
}

impl Flood {
    /// Whether one more may be shown at this second; and how many were not, when a new second begins.
    pub(crate) fn admits(&mut self, second: u64, most: u32) -> (bool, u64) {
        let mut missed = 0;
        if second != self.second {
            missed = std::mem::take(&mut self.dropped);
            (self.second, self.shown) = (second, 0);
        }
        if self.shown < most {
            self.shown += 1;
            return (true, missed);
        }
        self.dropped += 1;
        (false, missed)
    }
}

/// Inputs that will differ when the command is computed again: fields named `*_at` that hold the time of now.
pub(crate) fn looks_like_now(inputs: &serde_json::Value, now_us: i64) -> Option<String> {
    let near = |text: &str| {
        let at: Result<jiff::Timestamp, _> = text.parse();
        at.is_ok_and(|at| (at.as_microsecond() - now_us).unsigned_abs() < NEAR_US)
    };
    match inputs {
        serde_json::Value::Object(fields) => fields.iter().find_map(|(name, value)| match value {
            serde_json::Value::String(text) if name.ends_with("_at") && near(text) => Some(name.clone()),
            value => looks_like_now(value, now_us),
        }),
        serde_json::Value::Array(values) => values.iter().find_map(|value| looks_like_now(value, now_us)),
        _ => None,
    }
}

/// A time that is as near is the time of now.
const NEAR_US: u64 = 60_000_000;

/// The nodes that were warned of their inputs, each once.
#[derive(Debug, Default)]
pub(crate) struct Warned(Mutex<HashSet<String>>);

impl Warned {
    pub(crate) fn is_new(&self, node: &str) -> bool {
        lock(&self.0).insert(node.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inputs_that_hold_the_time_of_now_are_seen() {
        let now_us = 1_800_000_000_000_000;
        let (now, then) = (clock_text(now_us), clock_text(now_us - 3_600_000_000));
        assert_eq!(
            looks_like_now(&json!({"a": [{"started_at": now}]}), now_us).as_deref(),
            Some("started_at")
        );
        for inputs in
            [json!({"started_at": then}), json!({"goal": now}), json!({"started_at": "soon"}), json!(7)]
        {
            assert_eq!(looks_like_now(&inputs, now_us), None, "{inputs}");
        }
    }

    #[test]
    fn a_flood_of_logs_is_counted() {
        let mut flood = Flood::default();
        let shown = (0..1000).filter(|_| flood.admits(7, 10).0).count();
        assert_eq!(shown, 10);
        assert_eq!(flood.admits(8, 10), (true, 990));
        assert_eq!(flood.admits(9, 10), (true, 0));
    }
}
