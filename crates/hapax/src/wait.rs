//! Waiting: an item that can't go on says what for, and its run is parked.
//!
//! Invariant: an attempt is dropped to be parked only while none of its calls is under way, and everything it saw is
//! journaled first; so whoever wakes it finds it where it stood.

use crate::gate::{Gate, Halt, Parking, lock};
use hapax_core::{
    commit::{Status, WaitsOn, Wake},
    id::RunKey,
    mailbox::Letter,
};
use hapax_store::Store;
use std::{
    collections::{BTreeMap, HashMap},
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// What a call waits for; what needs a person most comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// A person's word on a call that may or may not have taken effect.
    Word(Arc<str>),
    /// A person's answer, which a letter of this subject brings.
    Answer(Arc<str>),
    /// A letter of this subject.
    Letter(Arc<str>),
    /// The end of a child, of which a letter of this subject tells.
    Child(Arc<str>),
    /// A time, in microseconds since 1970.
    Until(i64),
    /// In a replay: the answer to this call, which isn't recorded.
    Record(String),
    /// In a replay: the answer to this call, which is recorded without one.
    Unanswered(String),
}

/// The run that waits for all of these.
pub(crate) fn parking(waits: &[Wait]) -> Halt {
    let mut wake = Wake::default();
    for wait in waits {
        match wait {
            Wait::Word(subject) | Wait::Answer(subject) | Wait::Letter(subject) | Wait::Child(subject) => {
                wake.letters.insert(subject.clone());
            }
            Wait::Until(at_us) => wake.at_us = wake.at_us.into_iter().chain([*at_us]).min(),
            Wait::Record(_) | Wait::Unanswered(_) => {}
        }
    }
    // Of several, what needs a person most.
    let status = match waits.iter().min() {
        Some(Wait::Word(_)) => Status::InDoubt,
        Some(Wait::Answer(_)) => Status::Waiting { on: WaitsOn::Answer },
        Some(Wait::Letter(_)) => Status::Waiting { on: WaitsOn::Signal },
        Some(Wait::Child(_)) => Status::Waiting { on: WaitsOn::Child },
        Some(Wait::Until(_) | Wait::Record(_) | Wait::Unanswered(_)) | None => {
            Status::Waiting { on: WaitsOn::Timer }
        }
    };
    Halt::Parked(Box::new(Parking { status, wake }))
}

/// The waits of one attempt, and how many of its calls are under way.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// By number: one who stops waiting takes its own back.
    waits: Mutex<BTreeMap<u64, Wait>>,
    busy: AtomicUsize,
    changed: Notify,
}

/// A call under way: the attempt isn't parked meanwhile.
pub(crate) struct Busy<'w>(&'w Waits);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

/// A wait that somebody still waits for.
struct Waiting<'w> {
    waits: &'w Waits,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.waits.waits).remove(&self.number);
    }
}

impl Waits {
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(self)
    }

    /// Never returns: whoever waits here is dropped. Parked with its run, it asks again when the run is woken; dropped
    /// by its node, it waits no more.
    pub(crate) async fn wait<T>(&self, wait: Wait) -> T {
        let number = {
            let mut waits = lock(&self.waits);
            let number = waits.last_key_value().map_or(0, |(last, _)| last + 1);
            waits.insert(number, wait);
            number
        };
        let _waiting = Waiting { waits: self, number };
        self.changed.notify_one();
        pending().await
    }

    /// Waits so long; when it returns, the attempt is still there because another of its calls is under way.
    pub(crate) async fn wait_for(&self, wait: Wait, time: Duration) {
        // Out of time is the only way out.
        let _ = tokio::time::timeout(time, self.wait::<()>(wait)).await;
    }

    /// Resolves when the attempt can only wait.
    pub(crate) async fn parked(&self) -> Vec<Wait> {
        loop {
            let waits: Vec<_> = lock(&self.waits).values().cloned().collect();
            if self.busy.load(Ordering::Acquire) == 0 && !waits.is_empty() {
                return waits;
            }
            self.changed.notified().await;
        }
    }
}

/// A run's mailbox, as far as this engine has read it: a letter that was taken isn't durably taken yet.
pub(crate) struct Mailbox {
    store: Arc<dyn Store>,
    run: RunKey,
    /// The number of the last letter that was taken, for each subject. Locked from reading a letter to taking it.
    taken: tokio::sync::Mutex<HashMap<Arc<str>, u64>>,
}

impl Mailbox {
    pub(crate) fn new(store: Arc<dyn Store>, run: RunKey) -> Arc<Self> {
        Arc::new(Self { store, run, taken: tokio::sync::Mutex::default() })
    }

    /// Hands the next letter of a subject to `take`, which records that it was taken; `None`: there is none.
    pub(crate) async fn take<T>(
        &self,
        gate: &Gate,
        subject: &Arc<str>,
        take: impl AsyncFnOnce(Letter) -> T,
    ) -> Result<Option<T>, Halt> {
        let mut taken = self.taken.lock().await;
        let found = self.next(gate, subject, &taken).await?;
        let Some(letter) = found else { return Ok(None) };
        let number = letter.number;
        let made = take(letter).await;
        taken.insert(subject.clone(), number);
        Ok(Some(made))
    }

    /// The next letter of a subject, which stays there.
    pub(crate) async fn look(&self, gate: &Gate, subject: &Arc<str>) -> Result<Option<Letter>, Halt> {
        let taken = self.taken.lock().await;
        self.next(gate, subject, &taken).await
    }

    async fn next(
        &self,
        gate: &Gate,
        subject: &Arc<str>,
        taken: &HashMap<Arc<str>, u64>,
    ) -> Result<Option<Letter>, Halt> {
        let after = taken.get(subject).copied().unwrap_or(0);
        loop {
            match self.store.letter(self.run.clone(), subject.clone(), after).await {
                Ok(found) => return Ok(found),
                Err(error) => gate.bear(error).await?,
            }
        }
    }
}
