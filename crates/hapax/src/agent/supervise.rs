//! Keeps an agent alive as long as somebody waits for it.
//!
//! Invariant: of one agent one process runs, by the right of one lock. A command that was sent to a process that died is
//! sent again to the next one. A process is over, and waited for, before the next one starts.

use super::{
    Core, Error,
    desk::{Flood, count},
    frame::Frame,
    process::Process,
    protocol::{self, FromAgent, Log},
};
use crate::clock;
use hapax_core::limits::{AGENT_LOG_LINES, AGENT_MISSED};
use hapax_store::clock::now_us;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// What is left in the pipe of an agent that ended is read for as long: whatever it started may hold the pipe.
const DRAIN: Duration = Duration::from_secs(1);

/// A pipe that holds something gives it within that time.
const GLANCE: Duration = Duration::from_millis(20);

/// Why a process is over.
enum Over {
    /// It is to end.
    Stopped,
    /// It ended, and left nothing undone: it is started when it is needed.
    Left,
    /// It died, or counts as dead.
    Died(String),
}

/// The commands that nobody will answer are told so, whatever ends the supervisor: a panic, the end of its runtime.
struct OnDuty {
    core: Arc<Core>,
    has_left: bool,
}

impl Drop for OnDuty {
    fn drop(&mut self) {
        if !self.has_left {
            self.core.let_go();
            self.core.desk.desert();
        }
    }
}

/// Runs the agent until nobody needs it.
pub(crate) async fn supervise(core: Arc<Core>) {
    let mut duty = OnDuty { core, has_left: false };
    while !duty.has_left {
        let core = &*duty.core;
        match core.hold().await {
            Err(error) => core.desk.fail_all(&error),
            Ok(()) => Supervisor { core, deaths: 0 }.run().await,
        }
        core.let_go();
        duty.has_left = core.desk.leave();
    }
}

struct Supervisor<'a> {
    core: &'a Core,
    /// In a row, without an answer between them.
    deaths: u32,
}

impl Supervisor<'_> {
    async fn run(&mut self) {
        loop {
            let over = tokio::select! {
                () = self.core.desk.stopping() => Over::Stopped,
                () = self.wanted() => self.one_life().await,
            };
            match over {
                Over::Stopped => return,
                Over::Left => {}
                Over::Died(reason) => self.died(&reason),
            }
        }
    }

    /// Resolves when a command waits, and the pause after the last death is over.
    async fn wanted(&self) {
        while !self.core.desk.is_wanted() {
            self.core.desk.wake.notified().await;
        }
        if self.deaths > 0 {
            tokio::time::sleep(self.pause()).await;
        }
    }

    /// Doubled with each death, and less by chance, so that agents that die of one cause don't come back at once.
    fn pause(&self) -> Duration {
        let (first, most) = self.core.spec.backoff;
        let doubled = first.saturating_mul(1u32.checked_shl(self.deaths - 1).unwrap_or(u32::MAX));
        let chance = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        doubled.min(most).mul_f64(chance)
    }

    fn died(&mut self, reason: &str) {
        self.deaths += 1;
        let (agent, deaths) = (&self.core.spec.id, self.deaths);
        tracing::warn!(target: "hapax::agent", agent, deaths, reason, "an agent died");
        if self.deaths > self.core.spec.restarts {
            self.deaths = 0;
            self.core.desk.fail_all(&Error::Dead(format!("it died {deaths} times in a row: {reason}")));
        }
    }

    /// From the start of a process to its end.
    async fn one_life(&mut self) -> Over {
        let core = self.core;
        let number = core.desk.counters.starts.fetch_add(1, Ordering::Relaxed) + 1;
        let mut process = match core.launch().start().await {
            Ok(process) => process,
            Err(error @ Error::Invalid(_)) => {
                core.desk.fail_all(&error);
                return Over::Died(error.to_string());
            }
            Err(error) => return Over::Died(error.to_string()),
        };
        core.note(Some(&process.started)).await;
        let answers = core.desk.counters.answers.load(Ordering::Relaxed);
        let mut over = Life::new(core, number).live(&mut process).await;
        let has_answered = core.desk.counters.answers.load(Ordering::Relaxed) > answers;
        if has_answered {
            self.deaths = 0;
        }
        if let Over::Died(reason) = &mut over {
            let words = process.last_words().await;
            if has_answered && !core.desk.is_wanted() {
                over = Over::Left;
            } else if !words.is_empty() {
                *reason = format!("{reason}; its last words: {words}");
            }
        }
        process.end(core.spec.grace).await;
        core.note(None).await;
        over
    }
}

/// A process that runs.
struct Life<'a> {
    core: &'a Core,
    number: u64,
    /// When it counts as dead unless it gives a sign of life.
    due: Instant,
    flood: Flood,
    begun: Instant,
}

impl<'a> Life<'a> {
    fn new(core: &'a Core, number: u64) -> Self {
        let begun = clock::instant();
        Self { core, number, due: begun + core.spec.start_timeout, flood: Flood::default(), begun }
    }

    async fn live(&mut self, process: &mut Process) -> Over {
        let core = self.core;
        self.send(process);
        loop {
            tokio::select! {
                () = core.desk.stopping() => return Over::Stopped,
                () = core.desk.wake.notified() => self.send(process),
                frame = process.lines.next() => match frame {
                    Ok(Some(frame)) => self.hear(frame).await,
                    Ok(None) => return self.ended(process).await,
                    Err(error) => return Over::Died(format!("its output can't be read: {error}")),
                },
                status = process.child.wait() => {
                    self.drain(process).await;
                    return Over::Died(status.map_or_else(|e| e.to_string(), |status| status.to_string()));
                }
                () = tokio::time::sleep_until(self.due.into()) => {
                    self.catch_up(process).await;
                    if self.due <= clock::instant() {
                        return Over::Died("its heart stopped: no heartbeat came in time".into());
                    }
                }
            }
        }
    }

    fn send(&self, process: &Process) {
        for line in self.core.desk.to_send(self.number, now_us()) {
            // A writer that is gone means that the process is: that is seen soon.
            let _ = process.to_agent.send(line);
        }
    }

    /// We may be the ones who were late: what is in the pipe already counts.
    async fn catch_up(&mut self, process: &mut Process) {
        let missed = self.due;
        let rest = async {
            while self.due <= missed
                && let Ok(Ok(Some(frame))) = tokio::time::timeout(GLANCE, process.lines.next()).await
            {
                self.hear(frame).await;
            }
        };
        let _ = tokio::time::timeout(DRAIN, rest).await;
    }

    /// Its output ended: it has, or closed it, which is the same to us.
    async fn ended(&self, process: &mut Process) -> Over {
        match tokio::time::timeout(DRAIN, process.child.wait()).await {
            Ok(Ok(status)) => Over::Died(status.to_string()),
            _ => Over::Died("it closed its output".into()),
        }
    }

    /// An agent may end right behind its answer.
    async fn drain(&mut self, process: &mut Process) {
        let rest = async {
            while let Ok(Some(frame)) = process.lines.next().await {
                self.hear(frame).await;
            }
        };
        let _ = tokio::time::timeout(DRAIN, rest).await;
    }

    async fn hear(&mut self, frame: Frame) {
        let (line, read) = match frame {
            // Its writer died in the middle: that is seen soon, and the command is sent again.
            Frame::Torn(_) => return,
            Frame::Line(line) => {
                let read = protocol::read_from_agent(&line);
                (line, read)
            }
            Frame::TooLong(line) => {
                (line, Err(Error::Protocol("a line is over the limit of 262,144 bytes".into())))
            }
        };
        match read {
            Ok(FromAgent::Heartbeat(_)) => {
                count(&self.core.desk.counters.heartbeats);
                self.alive();
            }
            Ok(FromAgent::Log(log)) => self.log(&log),
            Ok(FromAgent::Event(event)) => self.tell(event).await,
            Err(error) => self.broken(&line, &error),
        }
    }

    fn alive(&mut self) {
        self.due = clock::instant() + self.core.spec.heartbeat * AGENT_MISSED;
    }

    /// Progress that nobody takes holds the agent up for a while, but not the others that use it for ever.
    async fn tell(&mut self, event: protocol::Event) {
        let (told, event) = match self.core.desk.hand_over(event) {
            Ok(Some(waits)) => waits,
            Ok(None) => return,
            Err(event) => return self.unasked(&event),
        };
        let waited = clock::instant();
        if told.send_timeout(event, self.core.spec.heartbeat).await.is_err() {
            count(&self.core.desk.counters.dropped_progress);
        }
        // Heartbeats that came meanwhile are still in the pipe.
        self.due += clock::since(waited);
    }

    fn unasked(&mut self, event: &protocol::Event) {
        if self.is_heard() {
            tracing::warn!(
                target: "hapax::agent",
                correlation_id = event.correlation_id,
                event = event.event,
                "an event for no command that waits for one"
            );
        }
    }

    fn broken(&mut self, line: &[u8], error: &Error) {
        count(&self.core.desk.counters.broken_lines);
        if self.is_heard() {
            let (agent, start) = (&self.core.spec.id, String::from_utf8_lossy(&line[..line.len().min(200)]));
            tracing::warn!(target: "hapax::agent", agent, %error, line = %start, "an agent wrote what is no message");
        }
        self.core.desk.fail_about(protocol::correlation_in(line).as_deref(), self.number, error);
    }

    /// Whether there is room for one more line about this agent: whoever floods us isn't written down word by word.
    fn is_heard(&mut self) -> bool {
        let second = clock::since(self.begun).as_secs();
        let (is_shown, missed) = self.flood.admits(second, AGENT_LOG_LINES);
        if missed > 0 {
            let agent = &self.core.spec.id;
            tracing::warn!(target: "hapax::agent", agent, missed, "an agent logs more than anyone reads");
        }
        is_shown
    }

    fn log(&mut self, log: &Log) {
        if !self.is_heard() {
            count(&self.core.desk.counters.dropped_logs);
            return;
        }
        let agent = &self.core.spec.id;
        let (message, fields) =
            (&log.message, log.fields.as_ref().map(ToString::to_string).unwrap_or_default());
        match log.level.as_str() {
            "error" => tracing::error!(target: "hapax::agent", agent, fields, "{message}"),
            "warn" => tracing::warn!(target: "hapax::agent", agent, fields, "{message}"),
            "debug" => tracing::debug!(target: "hapax::agent", agent, fields, "{message}"),
            _ => tracing::info!(target: "hapax::agent", agent, fields, "{message}"),
        }
    }
}
