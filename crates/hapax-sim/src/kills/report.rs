//! What the victim says about itself, one line of JSON on its standard output for each thing.
//!
//! Invariant: a line is one write to a pipe, so it has arrived whole or not at all when the victim is dead, and
//! all lines before it have arrived as well. A promise is reported after it was made, never before.

use hapax_core::journal::{EffectKind, Entry, JournalRow};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fmt,
    io::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

/// Something that the victim did. Ids tell what belongs together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The process is there.
    Began,
    /// The store is open.
    Opened,
    /// A node's body begins.
    BodyBegan(u64),
    /// That body has ended.
    BodyEnded(u64),
    /// A node was shown this answer of the outside party.
    Saw(String),
    /// Journal rows are on their way to the disk.
    Appending {
        /// Names the write.
        id: u64,
        /// The run.
        run: String,
        /// The number after its last row.
        next_seq: u64,
        /// What is in it.
        holds: BTreeSet<Mark>,
    },
    /// Those rows are durable.
    Appended(u64),
    /// A step is on its way to the disk.
    Committing {
        /// Names the write.
        id: u64,
        /// The run.
        run: String,
        /// The step.
        step: u64,
        /// What is in it.
        holds: BTreeSet<Mark>,
    },
    /// That step is durable; nobody knows yet.
    Committed(u64),
    /// Whoever committed it is being told.
    HandedOn(u64),
    /// A write had no good answer.
    Refused(u64),
    /// The first step of this life is durable.
    Recovered {
        /// Since the process began, in microseconds.
        after_us: u64,
    },
    /// All orders are shipped.
    Done,
}

/// What a write holds that a kill can be aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mark {
    /// A call is about to leave.
    Intent,
    /// A call came back.
    Result,
    /// A child is about to be started.
    Child,
    /// A letter was taken.
    Letter,
    /// A timer was set.
    Timer,
    /// Messages.
    Outbox,
}

impl Mark {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Intent, Self::Result, Self::Child, Self::Letter, Self::Timer, Self::Outbox];

    /// What journal rows hold.
    pub fn of(rows: &[JournalRow]) -> BTreeSet<Self> {
        let mark = |row: &JournalRow| match &row.entry {
            Entry::Intent(intent) if intent.kind == EffectKind::Child => Some(Self::Child),
            Entry::Intent(_) => Some(Self::Intent),
            Entry::Result { .. } => Some(Self::Result),
            Entry::Took { .. } => Some(Self::Letter),
            Entry::Timer(_) => Some(Self::Timer),
            _ => None,
        };
        rows.iter().filter_map(mark).collect()
    }
}

/// Where reports go.
pub struct Reporter {
    out: Mutex<Box<dyn Write + Send>>,
    ids: AtomicU64,
    began: Instant,
    has_committed: AtomicBool,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("ids", &self.ids).finish_non_exhaustive()
    }
}

impl Reporter {
    /// Reports to `out`, which must write a line at once. `began` is when this life began.
    pub fn new(out: impl Write + Send + 'static, began: Instant) -> Self {
        Self {
            out: Mutex::new(Box::new(out)),
            ids: AtomicU64::new(0),
            began,
            has_committed: AtomicBool::new(false),
        }
    }

    /// Sends a report.
    pub fn say(&self, report: &Report) {
        let line = format!("{}\n", serde_json::to_string(report).expect("a report is plain data"));
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A harness that went away needs no reports; the victim ends with its input.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }

    /// A fresh id.
    pub fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Reports a body that begins, and its end when the answer is dropped.
    pub fn body(&self) -> Body<'_> {
        let id = self.id();
        self.say(&Report::BodyBegan(id));
        Body { reporter: self, id }
    }

    /// Reports a durable step.
    pub fn committed(&self, id: u64) {
        self.say(&Report::Committed(id));
        if !self.has_committed.swap(true, Ordering::Relaxed) {
            let after_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.say(&Report::Recovered { after_us });
        }
    }
}

/// A body that runs.
#[derive(Debug)]
pub struct Body<'r> {
    reporter: &'r Reporter,
    id: u64,
}

impl Drop for Body<'_> {
    fn drop(&mut self) {
        self.reporter.say(&Report::BodyEnded(self.id));
    }
}
