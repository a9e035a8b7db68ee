//! A conversation with the agent that is checked, over all of its processes.
//!
//! Invariant: every line that comes is heard and counted, whoever waits for what; nothing is waited for longer than the
//! patience that there is.

use super::{super::Error, Check};
use crate::{
    agent::{
        frame::{self, Frame},
        process::Process,
        protocol::{self, Command, Event, FromAgent, Heartbeat},
    },
    clock,
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    process::ExitStatus,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// How much of a line is shown.
const SHOWN: usize = 160;

/// Answers that are kept for whoever asks for them.
const WAITING: usize = 1000;

/// What was heard over all processes.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The first line that is no message, and why.
    pub(super) broken: Option<String>,
    pub(super) broken_lines: u64,
    /// How many answers each command got that was sent.
    pub(super) asked: HashMap<String, u32>,
    /// The first answer to a command that was never sent.
    pub(super) unasked: Option<String>,
    /// Signs of life of the process that runs.
    pub(super) beats: Beats,
    /// Answers that nobody has taken yet.
    waiting: VecDeque<Event>,
    /// The commands that it told something about which is no answer.
    pub(super) told: HashSet<String>,
    /// The first command about which it told something behind its answer.
    pub(super) behind: Option<String>,
    /// The first value that can't be.
    pub(super) odd: Option<String>,
}

/// Signs of life.
#[derive(Debug, Default)]
pub(super) struct Beats {
    pub(super) count: u64,
    /// Those that say that it works.
    pub(super) busy: u64,
    /// The first that isn't as it should be.
    pub(super) odd: Option<String>,
}

impl Beats {
    fn hear(&mut self, beat: &Heartbeat) {
        self.count += 1;
        self.busy += u64::from(beat.status == "busy");
        if beat.seq != self.count {
            self.odd.get_or_insert_with(|| format!("heartbeat {} has the seq {}", self.count, beat.seq));
        }
        if !matches!(&*beat.status, "idle" | "busy" | "stopping") {
            self.odd.get_or_insert_with(|| format!("a heartbeat has the status `{}`", cut(&beat.status)));
        }
    }
}

/// The agent, as the check talks to it.
pub(super) struct Talk<'a> {
    check: &'a Check,
    process: Option<Process>,
    pub(super) heard: Heard,
}

impl<'a> Talk<'a> {
    pub(super) fn new(check: &'a Check) -> Self {
        Self { check, process: None, heard: Heard::default() }
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts it and waits until it is ready; otherwise, what came instead. An error: there is no such program.
    pub(super) async fn start(&mut self) -> Result<Result<(), String>, Error> {
        self.start_within(self.check.patience).await
    }

    /// The same, with less patience.
    pub(super) async fn start_within(&mut self, time: Duration) -> Result<Result<(), String>, Error> {
        self.heard.beats = Beats::default();
        self.heard.waiting.clear();
        self.check.make_folders()?;
        match self.check.launch().start().await {
            Ok(process) => self.process = Some(process),
            Err(error @ Error::Invalid(_)) => return Err(error),
            Err(error) => return Ok(Err(error.to_string())),
        }
        let until = clock::instant() + time;
        let came = self.until(until, |heard| (heard.beats.count > 0).then_some(())).await;
        Ok(came)
    }

    fn patience(&self) -> Instant {
        clock::instant() + self.check.patience
    }

    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        if let Some(process) = &self.process {
            // A writer that is gone means that the process is: that is seen when something is waited for.
            let _ = process.to_agent.send(bytes);
        }
    }

    pub(super) fn say<T: Serialize>(&mut self, message: &T) -> Result<(), Error> {
        self.send(frame::line(message)?);
        Ok(())
    }

    /// Notes that an answer with that id is due.
    pub(super) fn expect(&mut self, correlation_id: &str) {
        self.heard.asked.entry(correlation_id.into()).or_default();
    }

    /// Notes that an answer is due, and gives the line that asks for it.
    pub(super) fn question(&mut self, command: &Command) -> Result<Vec<u8>, Error> {
        self.expect(&command.correlation_id);
        frame::line(command)
    }

    pub(super) async fn ask(&mut self, command: &Command) -> Result<Result<Event, String>, Error> {
        let line = self.question(command)?;
        self.send(line);
        Ok(self.answer(command).await)
    }

    /// The answer to a command that was sent.
    pub(super) async fn answer(&mut self, command: &Command) -> Result<Event, String> {
        let until = self.patience();
        let wanted = |heard: &mut Heard| heard.take(|event| event.correlation_id == command.correlation_id);
        self.until(until, wanted).await
    }

    /// An answer to any of these commands, or to a line that couldn't be read, until then.
    pub(super) async fn refusal(&mut self, ids: &[&str], wait: Duration) -> Result<Event, String> {
        let until = clock::instant() + wait;
        self.until(until, |heard| heard.take(|event| ids.contains(&&*event.correlation_id))).await
    }

    /// Listens until something is there, the time is over, or the agent is.
    pub(super) async fn until<T>(
        &mut self,
        end: Instant,
        mut wanted: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Result<T, String> {
        loop {
            if let Some(found) = wanted(&mut self.heard) {
                return Ok(found);
            }
            let late = || format!("it didn't come within {:?}", self.check.patience);
            // One that never stops talking is never waited for.
            if clock::left_until(end).is_zero() {
                return Err(late());
            }
            let Some(process) = &mut self.process else { return Err("it doesn't run".into()) };
            let next = tokio::time::timeout(clock::left_until(end), process.lines.next()).await;
            match next {
                Err(_) => return Err(late()),
                Ok(Ok(Some(frame))) => self.heard.hear(&frame),
                Ok(Ok(None) | Err(_)) => return Err(self.ended().await),
            }
        }
    }

    /// Hears what comes for a while.
    pub(super) async fn listen(&mut self, time: Duration) {
        let end = clock::instant() + time;
        let _ = self.until(end, |_| None::<()>).await;
    }

    /// Its output is over: how it ended.
    async fn ended(&mut self) -> String {
        let Some(mut process) = self.process.take() else { return "it doesn't run".into() };
        let words = process.last_words().await;
        let status = process.end(self.check.patience).await;
        let status = status.map_or_else(|| "nobody knows how".into(), |status| status.to_string());
        let words = if words.is_empty() { words } else { format!("; its last words: {}", cut(&words)) };
        format!("it ended: {status}{words}")
    }

    /// Ends it as a power failure would.
    pub(super) async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            signal(&process, Signal::KILL);
            process.end(Duration::ZERO).await;
        }
    }

    /// Ends its input, and waits for its end. `None`: it doesn't come.
    pub(super) async fn close(&mut self, grace: Duration) -> Option<ExitStatus> {
        if let Some(process) = &mut self.process {
            process.to_agent = mpsc::unbounded_channel().0;
        }
        self.wait(grace).await
    }

    /// Asks it to end, and waits for it. `None`: it doesn't come.
    pub(super) async fn terminate(&mut self, grace: Duration) -> Option<ExitStatus> {
        if let Some(process) = &self.process {
            signal(process, Signal::TERM);
        }
        self.wait(grace).await
    }

    /// What it writes meanwhile is heard as well, or it might wait for a reader.
    async fn wait(&mut self, grace: Duration) -> Option<ExitStatus> {
        let mut process = self.process.take()?;
        let rest = async {
            while let Ok(Some(frame)) = process.lines.next().await {
                self.heard.hear(&frame);
            }
            process.child.wait().await
        };
        let status = tokio::time::timeout(grace, rest).await;
        signal(&process, Signal::KILL);
        process.end(Duration::ZERO).await;
        status.ok()?.ok()
    }
}

fn signal(process: &Process, signal: Signal) {
    if let Some(pid) = Pid::from_raw(process.started.pid).filter(|_| process.child.id().is_some()) {
        // It may be gone.
        let _ = kill_process_group(pid, signal);
    }
}

impl Heard {
    fn hear(&mut self, frame: &Frame) {
        let read = match frame {
            Frame::Line(line) => protocol::read_from_agent(line),
            Frame::TooLong(_) => Err(Error::Protocol("a line is over the limit of 262,144 bytes".into())),
            // Cut off by its death.
            Frame::Torn(_) => return,
        };
        match (read, frame) {
            (Ok(FromAgent::Heartbeat(heartbeat)), _) => {
                self.odd = self.odd.take().or_else(|| odd_heartbeat(&heartbeat));
                self.beats.hear(&heartbeat);
            }
            (Ok(FromAgent::Log(_)), _) => {}
            (Ok(FromAgent::Event(event)), _) => self.event(event),
            (Err(error), Frame::Line(line) | Frame::TooLong(line) | Frame::Torn(line)) => {
                self.broken_lines += 1;
                let line = cut(&String::from_utf8_lossy(&line[..line.len().min(SHOWN * 4)]));
                self.broken.get_or_insert_with(|| format!("`{line}`: {error}"));
            }
        }
    }

    fn event(&mut self, event: Event) {
        let id = &event.correlation_id;
        self.odd = self.odd.take().or_else(|| odd_event(&event));
        match self.asked.get_mut(id) {
            Some(answers) if !event.is_terminal() => {
                if *answers > 0 {
                    self.behind.get_or_insert_with(|| format!("`{}` about `{id}`", cut(&event.event)));
                }
                self.told.insert(id.clone());
            }
            Some(answers) => *answers += 1,
            // A line that can't be read is refused under no id.
            None if id.is_empty() => {}
            None => drop(self.unasked.get_or_insert_with(|| cut(id))),
        }
        if event.is_terminal() {
            self.waiting.truncate(WAITING);
            self.waiting.push_back(event);
        }
    }

    pub(super) fn take(&mut self, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        let at = self.waiting.iter().position(wanted)?;
        self.waiting.remove(at)
    }
}

/// What the schemas rule out, and no type does.
fn odd_event(event: &Event) -> Option<String> {
    let id = event.message_id.strip_prefix("msg-").and_then(|id| uuid::Uuid::parse_str(id).ok());
    if id.is_none_or(|id| id.get_version_num() != 7) {
        return Some(format!(
            "`message_id` is `{}`, which isn't `msg-` and a UUID of version 7",
            cut(&event.message_id)
        ));
    }
    odd_time("occurred_at", &event.occurred_at)
}

fn odd_heartbeat(beat: &Heartbeat) -> Option<String> {
    if beat.pid == 0 || beat.uptime_s < 0.0 {
        return Some(format!("a heartbeat has the pid {} and the uptime {}", beat.pid, beat.uptime_s));
    }
    odd_time("last_activity_at", &beat.last_activity_at)
}

fn odd_time(name: &str, text: &str) -> Option<String> {
    let is_time = text.parse::<jiff::Timestamp>().is_ok();
    (!is_time).then(|| format!("`{name}` is `{}`, which is no time by RFC 3339", cut(text)))
}

/// The beginning of a text.
pub(super) fn cut(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
