//! What an agent knows of the engine, and remembers.
//!
//! Invariant: that work begins is durable before it does, in an empty staging folder.

use super::{
    super::{
        Cache, Error, Workspace,
        cache::clear,
        clock_text,
        desk::message_id,
        frame::Frame,
        install::{Delivery, staging_of},
        protocol::{self, Ack, Address, Artifact, Command, Event, Failure, Heartbeat, ToAgent, Version},
    },
    empty_object,
    out::{Out, cut},
};
use crate::clock;
use hapax_core::{json::Json, limits};
use hapax_store::clock::now_us;
use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// What an agent is told by its environment.
pub(crate) struct Told {
    workspace: Workspace,
    staging: PathBuf,
    state: PathBuf,
    agent: Address,
    heartbeat: Duration,
}

impl Told {
    pub(crate) fn from_environment() -> Result<Self, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let needed =
            |name: &str| variable(name).ok_or_else(|| Error::Invalid(format!("`{name}` is not set")));
        let state = needed("HAPAX_AGENT_STATE")?.into();
        let agent_type = variable("HAPAX_AGENT_TYPE").unwrap_or_else(|| "agent".into());
        Ok(Self {
            workspace: Workspace::open(variable("HAPAX_WORKSPACE").unwrap_or_else(|| ".".into()))?,
            staging: needed("HAPAX_STAGING")?.into(),
            state,
            agent: Address { agent_type, agent_id: variable("HAPAX_AGENT_ID") },
            heartbeat: heartbeat(variable("HAPAX_HEARTBEAT_MS").as_deref()),
        })
    }

    /// Takes the memory for this process alone: waits for one that is about to end.
    pub(crate) fn enter(self) -> Result<Arc<Place>, Error> {
        Place::new(self, Out::new(io::stdout()))
    }
}

/// How often it says that it is alive. What is no number of milliseconds counts as missing, and so does none at all.
fn heartbeat(millis: Option<&str>) -> Duration {
    let millis = millis.and_then(|millis| millis.parse().ok()).filter(|millis| *millis > 0);
    millis.map_or(limits::AGENT_HEARTBEAT, Duration::from_millis)
}

/// Where an agent works, and its memory.
pub(crate) struct Place {
    pub(crate) workspace: Workspace,
    pub(crate) staging: PathBuf,
    pub(crate) state: PathBuf,
    agent: Address,
    heartbeat: Duration,
    pub(crate) cache: Cache,
    pub(crate) out: Out,
    /// Commands under way.
    pub(crate) busy: AtomicU64,
    pub(crate) heart_stopped: AtomicBool,
    /// When something was heard or answered, in microseconds since 1970.
    active_us: AtomicI64,
}

/// What there is for a command.
#[allow(clippy::large_enum_variant, reason = "none lives longer than its command")]
pub(crate) enum Recalled {
    Answer(Event),
    /// It is to be done, from an empty staging folder.
    Begun {
        /// It was begun before, and cut off.
        was_cut_off: bool,
    },
}

impl Place {
    fn new(told: Told, out: Out) -> Result<Arc<Self>, Error> {
        let Told { workspace, staging, state, agent, heartbeat } = told;
        let cache = Cache::open(&state)?.staging(&staging);
        let (busy, heart_stopped) = Default::default();
        let active_us = AtomicI64::new(now_us());
        Ok(Arc::new(Self {
            workspace,
            staging,
            state,
            agent,
            heartbeat,
            cache,
            out,
            busy,
            heart_stopped,
            active_us,
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
        self.out.say_unless(&self.heart_stopped, &self.alive(seq, born));
    }

    fn alive(&self, seq: u64, born: Duration) -> Heartbeat {
        let status = if self.busy.load(Ordering::Acquire) > 0 { "busy" } else { "idle" };
        Heartbeat {
            agent: self.agent.clone(),
            seq,
            status: status.into(),
            pid: std::process::id(),
            uptime_s: (clock::since_boot() - born).as_secs_f64(),
            last_activity_at: clock_text(self.active_us.load(Ordering::Relaxed)),
            stats: None,
            task_id: None,
        }
    }

    pub(crate) fn is_active(&self) {
        self.active_us.store(now_us(), Ordering::Relaxed);
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

    /// What is too long to be repeated is left out, so that there is an answer in any case.
    pub(crate) fn failed(&self, command: &Command, failure: &Failure) -> Event {
        let event = self.event(command, "error", Some("failed"), reason(failure), vec![]);
        let is_short = |text: &str| text.chars().count() <= protocol::MOST_TASK_CHARS;
        Event {
            task_id: Some(event.task_id).filter(|id| is_short(id)).unwrap_or_default(),
            observed_version: event.observed_version.filter(|version| is_short(&version.snapshot_id)),
            ..event
        }
    }

    /// Answers a line that can't be read. It is the sender's mistake, not the agent's.
    pub(crate) fn refuse(&self, line: &[u8], error: &Error) {
        let message = match error {
            Error::Protocol(reason) => reason.clone(),
            error => error.to_string(),
        };
        self.out.say(&Event {
            message_id: message_id(),
            correlation_id: protocol::correlation_in(line).unwrap_or_default(),
            task_id: protocol::task_in(line).unwrap_or_default(),
            from: self.agent.clone(),
            event: "error".into(),
            status: Some("failed".into()),
            payload: reason(&Failure::new("protocol", message)),
            artifacts: vec![],
            observed_version: None,
            occurred_at: clock_text(now_us()),
        });
    }

    /// Reads a line, or answers that it can't.
    pub(crate) fn read(&self, frame: &Frame) -> Option<ToAgent> {
        self.is_active();
        let broken = |reason: &str| Err(Error::Protocol(reason.into()));
        let (line, read) = match frame {
            Frame::Line(line) => (line, protocol::read_to_agent(line)),
            Frame::TooLong(line) => (line, broken("the line is over the limit")),
            // It may look whole, and be the beginning of something else.
            Frame::Torn(line) => (line, broken("the input ended within a line")),
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

    /// The answer that is remembered, or the beginning of the work.
    pub(crate) fn recall(&self, command: &Command) -> Result<Recalled, Error> {
        let key = &command.idempotency_key;
        let folder = staging_of(&self.staging, key);
        if let Some((event, acked)) = self.cache.answer(key)? {
            let (workspace, artifacts) = (self.workspace.clone(), event.artifacts.clone());
            let delivery = Delivery { workspace, staging: folder.clone(), artifacts };
            // One whose files are gone after the engine had it is none: somebody undid the work, and asks for it anew.
            if !acked || delivery.check().is_ok() {
                return Ok(Recalled::Answer(event));
            }
        }
        clear(&folder).map_err(|error| Error::workspace(&folder, error))?;
        let was_cut_off = self.cache.start(key)?;
        fs::create_dir_all(&folder).map_err(|error| Error::workspace(&folder, error))?;
        Ok(Recalled::Begun { was_cut_off })
    }
}

/// Why something failed, as it stands in an event.
fn reason(failure: &Failure) -> Json {
    let code = if failure.code.is_empty() { "failed" } else { &failure.code };
    let failure = Failure { code: cut(code), message: cut(&failure.message), retryable: failure.retryable };
    Json::of(&failure).unwrap_or_else(|_| empty_object())
}

#[cfg(test)]
pub(super) mod bench {
    use super::*;
    use std::{io::Write, path::Path};

    /// A place in a folder, whose words are heard.
    pub(in super::super) fn place(folder: &Path, heard: impl Write + Send + 'static) -> Arc<Place> {
        let told = Told {
            workspace: Workspace::open(folder.join("work")).unwrap(),
            staging: folder.join("staging"),
            state: folder.join("state"),
            agent: Address { agent_type: "kit".into(), agent_id: None },
            heartbeat: Duration::from_secs(10),
        };
        Place::new(told, Out::new(heard)).unwrap()
    }

    #[test]
    fn a_heartbeat_says_when_something_was_heard_last() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        let place = place(folder.path(), io::sink());
        place.active_us.store(0, Ordering::Relaxed);
        assert_eq!(place.alive(1, Duration::ZERO).last_activity_at, clock_text(0));
        place.read(&Frame::Line(vec![]));
        assert_ne!(place.alive(2, Duration::ZERO).last_activity_at, clock_text(0));
    }

    #[test]
    fn a_heart_that_is_told_to_beat_without_pause_beats_as_usual() {
        for odd in [None, Some("0"), Some("-1"), Some("often"), Some("0.5")] {
            assert_eq!(heartbeat(odd), limits::AGENT_HEARTBEAT, "{odd:?}");
        }
        assert_eq!(heartbeat(Some("250")), Duration::from_millis(250));
    }
}
