//! An item of a step and its attempts: what it recorded, and its way to the outside.
//!
//! Invariant: only an item that is executed has a way to the outside. A replayed one has its record and nothing else, so
//! no code of a replay can call, write or wait for anything.

use crate::{
    emit::Outgoing,
    error::NodeError,
    gate::{Accepted, Gate, Halt, Mark, Turn, lock},
    options::CallRules,
    trail::Traced,
    wait::{Mailbox, Waits},
    worker::Shared,
};
use hapax_core::{
    canary,
    commit::{Append, Epoch, Write},
    error::{Coded, code},
    id::{NodeId, RunKey, check_name},
    journal::{Drew, Entry, JournalRow, Recorded},
    key::Digest,
    limits,
    order::{OrderKey, PathHash},
};
use hapax_store::Pace;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long a call waits for others of its attempt that are recorded and haven't been asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store that doesn't answer for as long stands still. What is quicker is a node's own time, like any other call.
const STANDSTILL: Duration = Duration::from_millis(200);

/// An item of the current step, and what it recorded.
pub(crate) struct Item {
    pub(crate) run: RunKey,
    pub(crate) step: u64,
    /// The digest of the checkpoint whose frontier holds the item.
    pub(crate) base: Digest,
    pub(crate) node: NodeId,
    pub(crate) order_key: OrderKey,
    pub(crate) path_hash: PathHash,
    pub(crate) seed: u64,
    pub(crate) rules: CallRules,
    pub(crate) recorded: Mutex<Recorded>,
    /// What the item saw and the journal doesn't have yet: it is written with the item's next row, or with the step.
    pub(crate) tail: Mutex<Vec<Entry>>,
    /// `None` in a replay.
    pub(crate) live: Option<Live>,
}

/// The way to the outside.
pub(crate) struct Live {
    pub(crate) epoch: Epoch,
    /// Alone, unless other items of the step may have something to journal as well.
    pub(crate) pace: Pace,
    pub(crate) gate: Arc<Gate>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailbox: Arc<Mailbox>,
}

impl Live {
    /// The time by the store's clock, in microseconds since 1970.
    pub(crate) fn now_us(&self) -> i64 {
        self.shared.clock.now_us()
    }

    /// What is left until that time, in microseconds since 1970.
    pub(crate) fn left_until(&self, at_us: i64) -> Duration {
        Duration::from_micros(u64::try_from(at_us.saturating_sub(self.now_us())).unwrap_or(0))
    }

    /// Whether such a wait parks the run. A clock that stands still is moved on only while everything waits.
    pub(crate) fn parks_for(&self, left: Duration) -> bool {
        left > limits::SHORT_WAIT || self.shared.clock.is_manual() && !left.is_zero()
    }

    /// Journals what happened to the item, behind everything that it saw before. Doesn't wait for the disk.
    pub(crate) async fn journal(
        &self,
        item: &Item,
        pace: Pace,
        entries: &[Entry],
        unless_cancelled: bool,
    ) -> Result<Mark, Halt> {
        let turn = self.gate.turn().await?;
        Ok(self.journal_in(turn, item, pace, entries, unless_cancelled).await?.mark)
    }

    /// As [`Live::journal`], in a turn that is ours already, and is until the answer is dropped.
    pub(crate) async fn journal_in(
        &self,
        turn: Turn,
        item: &Item,
        pace: Pace,
        entries: &[Entry],
        unless_cancelled: bool,
    ) -> Result<Accepted, Halt> {
        let mut flushed = 0;
        let append = |first_seq| {
            let append;
            (append, flushed) = self.append(item, first_seq, entries, unless_cancelled);
            Write::Append(append)
        };
        let accepted = turn.submit(pace, append).await?;
        // Known at once, in the journal's order: an attempt that is dropped while it waits for the disk has recorded
        // this all the same, and the next one must not call again.
        item.journaled(flushed, entries);
        Ok(accepted)
    }

    /// The item's next rows: what it saw before, and these; and how many the former are.
    pub(crate) fn append(
        &self,
        item: &Item,
        first_seq: u64,
        entries: &[Entry],
        unless_cancelled: bool,
    ) -> (Append, usize) {
        let tail = lock(&item.tail);
        let behind = canary::on("tail_behind") || canary::on("stream_ahead") && is_chunk(entries);
        let seen = if behind { 0 } else { tail.len() };
        let rows = Entry::rows(tail[..seen].iter().chain(entries).cloned().collect());
        let rows = rows.into_iter().zip(first_seq..).map(|(entry, seq)| item.row(seq, entry)).collect();
        let (run, epoch) = (item.run.clone(), self.epoch);
        (Append { run, epoch, first_seq, rows, unless_cancelled }, seen)
    }
}

fn is_chunk(entries: &[Entry]) -> bool {
    matches!(entries.last(), Some(Entry::Chunk(_)))
}

impl Item {
    /// A row of this item.
    fn row(&self, seq: u64, entry: Entry) -> JournalRow {
        JournalRow { seq, base: self.base, step: self.step, path_hash: self.path_hash, entry }
    }

    /// The journal has so much of what the item saw, and these entries behind it.
    pub(crate) fn journaled(&self, seen: usize, entries: &[Entry]) {
        lock(&self.tail).drain(..seen);
        let mut recorded = lock(&self.recorded);
        entries.iter().for_each(|entry| recorded.take(entry));
    }

    /// Takes note of what the item saw, to be journaled with its next row.
    pub(crate) fn see(&self, entries: impl IntoIterator<Item = Entry>) {
        let (mut tail, mut recorded) = (lock(&self.tail), lock(&self.recorded));
        for entry in entries {
            recorded.take(&entry);
            tail.push(entry);
        }
    }

    /// An error that says how the item differs from its record.
    pub(crate) fn mismatch(&self, difference: &Difference) -> NodeError {
        let message = format!("`{}` in step {} differs from its record: {difference}", self.node, self.step);
        NodeError::coded(code::REPLAY_MISMATCH, message, false)
    }
}

/// Where an execution and its record part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The call, if it is one.
    pub(crate) call: Option<String>,
    pub(crate) field: String,
    pub(crate) expected: String,
    pub(crate) got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, field, expected, got } = self;
        if let Some(call) = call {
            write!(f, "call {call}: ")?;
        }
        write!(f, "{field}: expected {expected}, got {got}")
    }
}

/// A call for people: its number, its lane, its name.
pub(crate) fn call_at(scope: &str, index: u32, name: &str) -> String {
    if scope.is_empty() { format!("{index} {name}") } else { format!("{scope}/{index} {name}") }
}

/// One attempt of an item.
pub(crate) struct Attempt {
    pub(crate) item: Arc<Item>,
    pub(crate) number: u32,
    pub(crate) deadline: Instant,
    /// Somebody wants to know of it.
    pub(crate) traced: Option<Traced>,
    pub(crate) alive: AtomicBool,
    /// What it sends, if it ends well.
    pub(crate) outgoing: Outgoing,
    /// How many chunks it streamed. Changed only by whoever has the gate's turn.
    pub(crate) streamed: AtomicU64,
    pub(crate) waits: Waits,
    /// How long its store stood still.
    store_time: Mutex<StoreTime>,
    unasked: Mutex<Unasked>,
    /// Told when a recorded call is asked for, or its answer given.
    caught_up: Notify,
    /// It was waited for them in vain.
    hopeless: AtomicBool,
    /// Recorded answers that are asked for and wait for their turn.
    recalled: AtomicUsize,
    draws: Mutex<BTreeMap<Arc<str>, Arc<AtomicU64>>>,
    scopes: Mutex<HashSet<Arc<str>>>,
    verdict: Mutex<Option<NodeError>>,
    difference: Mutex<Option<Difference>>,
    beyond: Mutex<Option<String>>,
    stopped: CancellationToken,
}

/// A call's place: its lane, and its number there.
type Place = (Arc<str>, u32);

/// The calls that earlier executions recorded, and that this one hasn't asked for yet.
#[derive(Default)]
struct Unasked {
    /// Those that must be asked for, each with how many records there were when it was begun.
    owed: BTreeMap<Place, usize>,
    by_age: BTreeSet<(usize, Place)>,
    /// Those that only waited: this one may do without them.
    waits: BTreeSet<Place>,
}

impl Unasked {
    fn of(recorded: &Recorded) -> Self {
        let mut unasked = Self::default();
        for (place, call) in recorded.calls() {
            if call.only_waited() {
                unasked.waits.insert(place.clone());
            } else {
                unasked.owed.insert(place.clone(), call.began);
                unasked.by_age.insert((call.began, place.clone()));
            }
        }
        let turns = recorded.turns().filter(|place| !unasked.owed.contains_key(*place));
        unasked.waits.extend(turns.cloned());
        unasked
    }

    fn remove(&mut self, place: &Place) {
        self.waits.remove(place);
        if let Some(began) = self.owed.remove(place) {
            self.by_age.remove(&(began, place.clone()));
        }
    }
}

/// How long an attempt's store stood still: that isn't its own time.
#[derive(Default)]
struct StoreTime {
    /// As far as it is over, and until when that is counted.
    stood_still: Duration,
    counted_to: Option<Instant>,
    /// Since when each of its calls waits, oldest first.
    waiting: VecDeque<Instant>,
}

impl StoreTime {
    /// A call that has waited since then has its answer. Counted from the oldest that waits: it may be answered last.
    fn answered(&mut self, since: Instant, now: Instant) {
        let oldest = self.waiting.front().copied().unwrap_or(since);
        if let Some(at) = self.waiting.iter().position(|other| *other == since) {
            self.waiting.remove(at);
        }
        if now.duration_since(oldest) >= STANDSTILL {
            let from = self.counted_to.map_or(oldest, |counted| counted.max(oldest));
            self.stood_still += now.saturating_duration_since(from);
            self.counted_to = Some(now);
        }
    }
}

/// A call that waits for the store, until this is dropped.
struct WithStore<'a>(&'a Mutex<StoreTime>, Instant);

impl<'a> WithStore<'a> {
    fn new(time: &'a Mutex<StoreTime>) -> Self {
        let mut waiting = lock(time);
        let now = crate::clock::instant();
        waiting.waiting.push_back(now);
        Self(time, now)
    }
}

impl Drop for WithStore<'_> {
    fn drop(&mut self) {
        lock(self.0).answered(self.1, crate::clock::instant());
    }
}

/// A recorded answer that waits for its turn.
pub(crate) struct Recalled<'a>(&'a Attempt);

impl Drop for Recalled<'_> {
    fn drop(&mut self) {
        self.0.recalled.fetch_sub(1, Ordering::AcqRel);
        self.0.caught_up.notify_waiters();
    }
}

impl Attempt {
    pub(crate) fn new(item: Arc<Item>, number: u32, deadline: Instant, traced: Option<Traced>) -> Arc<Self> {
        let unasked = Unasked::of(&lock(&item.recorded));
        Arc::new(Self {
            item,
            number,
            deadline,
            traced,
            alive: AtomicBool::new(true),
            outgoing: Outgoing::default(),
            streamed: AtomicU64::new(0),
            waits: Waits::default(),
            store_time: Mutex::default(),
            unasked: Mutex::new(unasked),
            caught_up: Notify::new(),
            hopeless: AtomicBool::new(false),
            recalled: AtomicUsize::new(0),
            draws: Mutex::default(),
            scopes: Mutex::default(),
            verdict: Mutex::default(),
            difference: Mutex::default(),
            beyond: Mutex::default(),
            stopped: CancellationToken::new(),
        })
    }

    /// What a call asks of the store: if that stands still, the time isn't the attempt's own.
    pub(crate) async fn with_store<T>(&self, work: impl Future<Output = T>) -> T {
        let _waits = WithStore::new(&self.store_time);
        work.await
    }

    /// Resolves when its own time is over, so that a store that stands still fails no node.
    pub(crate) async fn out_of_time(&self) {
        // The call that waited when the time was over: it may turn out that the store stands still.
        let mut suspect = None;
        loop {
            let (stood_still, oldest) = {
                let time = lock(&self.store_time);
                (time.stood_still, time.waiting.front().copied().filter(|_| !canary::on("store_time_counts")))
            };
            let due = self.deadline.checked_add(stood_still).unwrap_or(self.deadline);
            let now = crate::clock::instant();
            if now < due {
                suspect = None;
                tokio::time::sleep_until(due.into()).await;
            } else if let Some(since) = oldest.filter(|since| suspect.is_none_or(|suspect| suspect == *since))
            {
                suspect = Some(since);
                tokio::time::sleep_until((since + STANDSTILL).max(now + STANDSTILL / 8).into()).await;
            } else {
                return;
            }
        }
    }

    /// Fails the attempt whatever the node makes of it.
    pub(crate) fn condemn(&self, error: NodeError) {
        lock(&self.verdict).get_or_insert(error);
        self.stopped.cancel();
    }

    /// Fails the attempt because it isn't what its record says.
    pub(crate) fn differs(&self, difference: Difference) {
        self.condemn(self.item.mismatch(&difference));
        lock(&self.difference).get_or_insert(difference);
    }

    /// Where it parted from its record, if it did.
    pub(crate) fn difference(&self) -> Option<Difference> {
        lock(&self.difference).take()
    }

    pub(crate) fn is_condemned(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// Resolves when the attempt was condemned.
    pub(crate) async fn condemned(&self) -> NodeError {
        self.stopped.cancelled().await;
        lock(&self.verdict).take().unwrap_or_else(|| NodeError::new("the attempt was stopped"))
    }

    /// The attempt made a call that must be recorded, and isn't: nothing that it does from now on counts.
    pub(crate) fn ran_out(&self, call: String) {
        lock(&self.beyond).get_or_insert(call);
        self.stopped.cancel();
    }

    /// The first call beyond its record, if it made one.
    pub(crate) fn beyond(&self) -> Option<String> {
        lock(&self.beyond).clone()
    }

    /// A recorded call was asked for.
    pub(crate) fn asked(&self, scope: &Arc<str>, index: u32) {
        lock(&self.unasked).remove(&(scope.clone(), index));
        self.caught_up.notify_waiters();
    }

    /// Lets the other calls of the attempt ask first. In vain only if the code was changed, which is then reported; it is
    /// waited for once.
    pub(crate) async fn while_behind(&self, is_behind: impl Fn() -> bool) {
        let caught_up = async {
            loop {
                let changed = self.caught_up.notified();
                if !is_behind() {
                    return;
                }
                changed.await;
            }
        };
        let patience = if canary::on("impatient") { Duration::ZERO } else { PATIENCE };
        if !self.hopeless.load(Ordering::Acquire) && tokio::time::timeout(patience, caught_up).await.is_err()
        {
            self.hopeless.store(true, Ordering::Release);
            self.caught_up.notify_waiters();
        }
    }

    /// A recorded answer waits for its turn, until this is dropped.
    pub(crate) fn recall(&self) -> Recalled<'_> {
        self.recalled.fetch_add(1, Ordering::AcqRel);
        Recalled(self)
    }

    /// Whether earlier executions recorded what this one hasn't asked for or hasn't seen yet.
    pub(crate) fn is_behind(&self) -> bool {
        !lock(&self.unasked).owed.is_empty() || self.recalled.load(Ordering::Acquire) > 0
    }

    /// Whether a call that was begun before there were so many records hasn't been asked for yet.
    pub(crate) fn is_behind_at(&self, records: usize) -> bool {
        lock(&self.unasked).by_age.first().is_some_and(|(began, _)| *began < records)
    }

    /// Whether an earlier execution recorded a call of this lane with this number or a later one, or of a lane inside it,
    /// that this one hasn't asked for yet.
    pub(crate) fn went_on(&self, scope: &str, index: u32) -> bool {
        let inside = |lane: &str| {
            scope.is_empty() || lane.strip_prefix(scope).is_some_and(|rest| rest.starts_with('/'))
        };
        let later = |(lane, at): &Place| if **lane == *scope { *at >= index } else { inside(lane) };
        let unasked = lock(&self.unasked);
        unasked.owed.keys().chain(&unasked.waits).any(later)
    }

    /// The lane's counter of draws.
    pub(crate) fn counts(&self, scope: &Arc<str>, drawn: Arc<AtomicU64>) {
        lock(&self.draws).insert(scope.clone(), drawn);
    }

    /// How much chance each lane used that used any.
    pub(crate) fn draws(&self) -> Vec<Drew> {
        let draws = lock(&self.draws);
        let drew = |(scope, drawn): (&Arc<str>, &Arc<AtomicU64>)| Drew {
            scope: scope.clone(),
            draws: drawn.load(Ordering::Relaxed),
        };
        draws.iter().map(drew).filter(|drew| drew.draws > 0).collect()
    }

    /// The attempt is over: its handles do nothing any more. A record that it didn't ask for, though it succeeded,
    /// means that the code changed.
    pub(crate) fn end(&self, succeeded: bool) -> Result<(), NodeError> {
        self.alive.store(false, Ordering::Release);
        if let Some(verdict) = lock(&self.verdict).take() {
            return Err(verdict);
        }
        match lock(&self.unasked).owed.keys().next().filter(|_| succeeded) {
            None => Ok(()),
            Some((scope, index)) => {
                let recorded = lock(&self.item.recorded);
                let name = recorded.call(scope, *index).map_or("", |call| call.name.as_str());
                let difference = Difference {
                    call: Some(call_at(scope, *index, name)),
                    field: "call".into(),
                    expected: format!("`{name}`, which is recorded"),
                    got: "no such call".into(),
                };
                let error = self.item.mismatch(&difference);
                lock(&self.difference).get_or_insert(difference);
                Err(error)
            }
        }
    }

    /// Opens a lane. The root is the empty path and `/` parts the names, so neither can stand in one.
    pub(crate) fn open_scope(&self, parent: &str, name: &str) -> Arc<str> {
        let path: Arc<str> = if parent.is_empty() { name.into() } else { format!("{parent}/{name}").into() };
        if let Err(error) = check_name("scope", name) {
            self.condemn(NodeError::coded(error.code(), error.to_string(), false));
        } else if name.contains('/') {
            let message = format!("scope `{name}` holds a `/`; open a scope inside a scope instead");
            self.condemn(NodeError::coded(code::INVALID_ID, message, false));
        } else if !lock(&self.scopes).insert(path.clone()) {
            let message =
                format!("scope `{path}` was opened twice in one attempt; give each lane its own name");
            self.condemn(NodeError::coded(code::REPLAY_MISMATCH, message, false));
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds after the first call.
    fn stood_still(calls: &[(u64, u64)]) -> u64 {
        let (begun, mut time) = (crate::clock::instant(), StoreTime::default());
        let at = |second| begun + Duration::from_secs(second);
        time.waiting.extend(calls.iter().map(|(since, _)| at(*since)));
        let mut answers = calls.to_vec();
        answers.sort_by_key(|(_, answered)| *answered);
        answers.iter().for_each(|(since, answered)| time.answered(at(*since), at(*answered)));
        time.stood_still.as_secs()
    }

    #[test]
    fn a_standstill_is_counted_once_whichever_call_is_answered_first() {
        assert_eq!(stood_still(&[(0, 60)]), 60);
        assert_eq!(stood_still(&[(0, 60), (50, 61)]), 61);
        assert_eq!(stood_still(&[(0, 61), (50, 60)]), 61);
        assert_eq!(stood_still(&[(0, 10), (0, 10)]), 10);
    }
}
