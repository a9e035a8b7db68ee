//! The outside, and the one log in which everything gets its place.
//!
//! Invariant: calls from outside, executions of nodes and writes of the store are numbered under one lock, so that
//! "after" can be asked of any two of them.

use hapax_core::{
    commit::Write,
    journal::{EffectOutcome, Entry, JournalRow, Seen},
    order::PathHash,
};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// Where a call is made: all of its key but the tenant, the run and the request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The item.
    pub path_hash: PathHash,
    /// The scope in the item.
    pub scope: String,
    /// The number of the call in its scope.
    pub index: u32,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node's code ran.
    Executed {
        /// The step.
        step: u64,
        /// The item.
        path_hash: PathHash,
        /// The node.
        node: String,
        /// The attempt.
        attempt: u32,
    },
    /// The outside was called.
    Called {
        /// From where.
        site: Site,
        /// With this key.
        key: String,
        /// And this request.
        request: u64,
    },
    /// The store committed a step.
    Committed {
        /// The step.
        step: u64,
    },
    /// The store journaled that an item is done.
    Done {
        /// The step.
        step: u64,
        /// The item.
        path_hash: PathHash,
    },
    /// The store journaled the answer to a call.
    Answered {
        /// Of which call.
        site: Site,
    },
    /// The store changed a run's status.
    Concluded,
    /// The store refused a write because of its epoch.
    Fenced,
}

/// An event with who was behind it: the number of the engine's life.
pub type Logged = (u32, Event);

/// What the tests see of the world.
#[derive(Debug, Default)]
pub struct World {
    log: Mutex<Vec<Logged>>,
    violations: Mutex<Vec<String>>,
    looked: AtomicU64,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Gives an event its place.
    pub fn note(&self, life: u32, event: Event) {
        lock(&self.log).push((life, event));
    }

    /// Everything so far, in order.
    pub fn log(&self) -> Vec<Logged> {
        lock(&self.log).clone()
    }

    /// An answer that was never given before.
    pub fn fickle(&self) -> u64 {
        self.looked.fetch_add(1, Ordering::Relaxed)
    }

    /// A promise was broken where only the work could see it.
    pub fn violated(&self, what: String) {
        lock(&self.violations).push(what);
    }

    /// What was broken.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// The store applied a write.
    pub fn applied(&self, life: u32, write: &Write) {
        match write {
            Write::Step(step) => self.note(life, Event::Committed { step: step.checkpoint.step }),
            Write::Append(append) => {
                let told = |row| JournalRow::entries(row).iter().map(move |entry| (row, entry));
                for (row, entry) in append.rows.iter().flat_map(told) {
                    let (step, path_hash) = (row.step, row.path_hash);
                    match entry {
                        Entry::ItemDone { .. } => self.note(life, Event::Done { step, path_hash }),
                        Entry::Result { scope, index, outcome: EffectOutcome::Ok { .. }, .. }
                        | Entry::Seen(Seen { scope, index, outcome: EffectOutcome::Ok { .. }, .. }) => {
                            let site = Site { step, path_hash, scope: scope.to_string(), index: *index };
                            self.note(life, Event::Answered { site });
                        }
                        _ => {}
                    }
                }
            }
            _ => self.note(life, Event::Concluded),
        }
    }
}

/// A lock that a panicking test doesn't poison for the others.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
