//! The reference model: plain maps behind one lock.
//!
//! Invariant: every call holds the lock from its first look to its last change, so each is one transaction and
//! all of them happen one after the other. What this store answers is what every other store must answer.
//! "Durable" means as long as the process.

mod flow;
mod house;
mod outbox;
mod run;
mod schedules;

use crate::{
    check::{check_letter, check_limits, check_new_run, end_letter, is_elsewhere, is_over},
    clock::{Clock, micros_left},
    error::StoreError,
    flow::Flow,
    house::House,
    outbox::Outbox,
    schedules::{ScheduleRecord, Schedules},
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fact, Fleet, GcPolicy, GcReport, Holding,
        Lease, ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreStats,
        Tally, Ticket, Verdict,
    },
};
use flow::FlowTables;
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, Status, Write, Written},
    frontier::{WorkItem, page_digest},
    id::{Namespace, RunId, RunKey},
    journal::JournalRow,
    limits::FRONTIER_PAGE,
    mailbox::{Letter, NewLetter, Posted},
    schedule::ScheduleKey,
};
use run::{Decision, Run, read_back};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

/// Runs in memory, for tests and for work that may be lost with the process.
///
/// ```
/// use hapax_store::{ListFilter, MemoryStore, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = MemoryStore::shared();
/// assert!(store.list(ListFilter::default()).await.unwrap().is_empty());
/// # }
/// ```
#[derive(Debug, Default)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    runs: HashMap<RunKey, Run>,
    schedules: BTreeMap<ScheduleKey, ScheduleRecord>,
    flow: FlowTables,
    /// Runs that aren't over, oldest first: a claim needn't look at the others.
    live: BTreeMap<u64, RunKey>,
    /// Which shard it is, of which map.
    plate: Option<String>,
    /// How many runs were ever created.
    created: u64,
    stats: StoreStats,
    clock: Clock,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store to share between engines.
    pub fn shared() -> Arc<Self> {
        Arc::new(Self::new())
    }

    /// An empty store that goes by this clock: a test moves it on and waits for nothing.
    pub fn with_clock(clock: Clock) -> Arc<Self> {
        Arc::new(Self { tables: Mutex::new(Tables { clock, ..Tables::default() }) })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().expect("no call panics while it holds the lock")
    }
}

impl Tables {
    fn run(&self, key: &RunKey) -> Result<&Run, StoreError> {
        self.runs.get(key).ok_or_else(|| StoreError::NotFound { run: key.clone() })
    }

    fn run_mut(&mut self, key: &RunKey) -> Result<&mut Run, StoreError> {
        self.runs.get_mut(key).ok_or_else(|| StoreError::NotFound { run: key.clone() })
    }

    fn live(&self) -> impl Iterator<Item = &Run> {
        self.live.values().map(|key| &self.runs[key])
    }

    fn create(&mut self, new: NewRun) -> Created {
        if let Some(run) = self.runs.get(&new.key) {
            return Created::Exists(Box::new(run.record.clone()));
        }
        let new = crate::flow::admitted(new);
        if let Some(holder) = self.name_holder(&new) {
            return Created::Exists(Box::new(holder));
        }
        let (now, key, claim) = (self.clock.now_us(), new.key.clone(), new.claim.clone());
        self.created += 1;
        let mut run = Run::new(new, self.created, now);
        run.record.cancel_requested = self.is_orphan(&run.record);
        let lease = claim.map(|by| run.claim(&by, now));
        self.live.insert(run.number, key.clone());
        self.runs.insert(key.clone(), run);
        self.meet_terms(&key, now);
        self.stats.transactions += 1;
        Created::New(lease)
    }

    /// A child of a run that is elsewhere belongs there: whoever starts it here was taken for dead.
    fn check_parent(&self, new: &NewRun) -> Result<(), StoreError> {
        let parent = new.parent.clone().map(|run| RunKey { namespace: new.key.namespace.clone(), run });
        match parent.and_then(|parent| self.runs.get(&parent)) {
            Some(parent) if is_elsewhere(&parent.record.status) => Err(parent.wrong_status()),
            _ => Ok(()),
        }
    }

    /// Whether the cancel of its parent has come and gone.
    fn is_orphan(&self, record: &RunRecord) -> bool {
        let parent = record.parent.clone().map(|run| RunKey { namespace: record.key.namespace.clone(), run });
        let parent = parent.and_then(|parent| self.runs.get(&parent));
        parent.is_some_and(|parent| parent.record.status == Status::Cancelled)
    }

    fn claim(&mut self, key: &RunKey, by: &Claimant) -> Result<Lease, StoreError> {
        let now = self.clock.now_us();
        let run = self.run_mut(key)?;
        run.check_claim(now)?;
        let lease = run.claim(by, now);
        self.stats.transactions += 1;
        Ok(lease)
    }

    fn ready(&self, filter: &ReadyFilter) -> Vec<RunKey> {
        let now = self.clock.now_us();
        let ready = self.live().filter(|run| filter.admits(&run.record) && run.check_claim(now).is_ok());
        let mut ready: Vec<&Run> = ready.collect();
        // Stable: of one rank, the first that was created.
        ready.sort_by_key(|run| run.record.created_at_us - run.record.terms.head_start_us());
        ready.into_iter().take(filter.limit).map(|run| run.record.key.clone()).collect()
    }

    fn outlook(&self, filter: &ReadyFilter) -> Outlook {
        let now = self.clock.now_us();
        let mut outlook = Outlook::default();
        for run in self.live().filter(|run| filter.admits(&run.record)) {
            outlook.ready = outlook.ready || run.check_claim(now).is_ok();
            let later = run.record.wake.at_us.filter(|at| *at > now).map(|at| micros_left(at, now));
            outlook.next = outlook.next.into_iter().chain(later).min();
        }
        outlook
    }

    fn fleet(&self, namespace: &Namespace) -> Fleet {
        let now = self.clock.now_us();
        let (mut fleet, mut holders) = (Fleet::default(), BTreeMap::<&str, Holding>::new());
        for run in self.live().filter(|run| run.record.key.namespace == *namespace) {
            if run.check_claim(now).is_ok() {
                fleet.waiting += 1;
                fleet.lag = fleet.lag.max(micros_left(now, run.ready_since()));
            }
            let Some(owner) = run.record.owner.as_deref() else { continue };
            let (left, epoch) = (micros_left(run.lease_until_us, now), run.record.epoch.counter);
            let holding = holders.entry(owner).or_insert_with(|| Holding {
                owner: owner.to_owned(),
                runs: 0,
                lease_left: left,
                epoch,
            });
            holding.runs += 1;
            holding.lease_left = holding.lease_left.min(left);
            holding.epoch = holding.epoch.max(epoch);
        }
        fleet.holders = holders.into_values().collect();
        fleet
    }

    fn census(&self, filter: &CensusFilter) -> Census {
        let mut census = Census { at_us: self.clock.now_us(), ..Census::default() };
        let (mut counts, mut created) = (BTreeMap::<&'static str, u64>::new(), 0);
        let mut ours: Vec<&Run> =
            self.runs.values().filter(|run| run.record.key.namespace == filter.namespace).collect();
        ours.sort_by_key(|run| run.number);
        for Run { record, .. } in ours {
            let count = counts.entry(record.status.word()).or_default();
            *count += 1;
            let is_told = !record.status.is_final() && *count <= filter.limit as u64;
            if is_told || filter.follow.contains(&record.key.run) {
                census.runs.push(RunRecord { tags: BTreeMap::new(), ..record.clone() });
            }
            if record.created_at_us > filter.since_us {
                created += 1;
                census.created_steps += record.step;
            }
        }
        census.created = Tally::exactly(created);
        census.statuses = counts.into_iter().map(|(word, count)| (word, Tally::exactly(count))).collect();
        census
    }

    fn renew(&mut self, key: &RunKey, epoch: Epoch, by: &Claimant) -> Renewal {
        match self.runs.get_mut(key) {
            Some(run) if run.record.epoch == epoch && run.record.owner.as_deref() == Some(&*by.owner) => {
                run.prolong(by, self.clock.now_us());
                Renewal::Kept
            }
            _ => Renewal::Lost,
        }
    }

    fn decide(&self, write: &Write) -> Result<Decision, StoreError> {
        match self.runs.get(write.run()) {
            Some(run) => run.decide(write),
            None => Err(StoreError::Fenced { run: write.run().clone(), owner: None }),
        }
    }

    fn write(&mut self, write: &Write) -> Result<Written, StoreError> {
        check_limits(write)?;
        if self.decide(write)? == Decision::There {
            return Ok(Written::AlreadyCommitted);
        }
        let now = self.clock.now_us();
        let run = self.run_mut(write.run())?;
        run.apply(write, now);
        if run.record.status.is_final() {
            let number = run.number;
            self.live.remove(&number);
            self.over(write.run(), now);
        }
        self.stats.steps += u64::from(matches!(write, Write::Step(_)));
        self.stats.writes += 1;
        self.stats.transactions += 1;
        Ok(Written::Committed)
    }

    /// A run is over: its parent is told, and a cancel is its children's too.
    fn over(&mut self, key: &RunKey, now_us: i64) {
        let RunRecord { parent, epoch, status, .. } = self.runs[key].record.clone();
        let beside = |run: RunId| RunKey { namespace: key.namespace.clone(), run };
        if let Some(parent) = parent.map(beside)
            && let Some(parent) = self.runs.get_mut(&parent)
        {
            // A parent that is over needs no word.
            let _ = parent.post(end_letter(&key.run, epoch.counter, &status), now_us);
        }
        if status == Status::Cancelled {
            let theirs = |run: &&mut Run| {
                run.record.parent.as_ref() == Some(&key.run) && run.record.key.namespace == key.namespace
            };
            for child in self.runs.values_mut().filter(theirs).filter(|run| !run.record.status.is_final()) {
                child.record.cancel_requested = true;
            }
        }
    }

    fn retry(&mut self, key: &RunKey) -> Result<(), StoreError> {
        let now = self.clock.now_us();
        let run = self.run_mut(key)?;
        if !matches!(run.record.status, Status::Failed { .. }) {
            return Err(run.wrong_status());
        }
        let terms = self.terms_again(key)?;
        let run = self.run_mut(key)?;
        run.retry(now);
        let number = run.number;
        self.live.insert(number, key.clone());
        self.readmit(key, &terms, now);
        self.stats.transactions += 1;
        Ok(())
    }

    fn post(&mut self, key: &RunKey, letter: NewLetter) -> Result<Posted, StoreError> {
        let now = self.clock.now_us();
        let posted = self.run_mut(key)?.post(letter, now)?;
        self.stats.transactions += 1;
        Ok(posted)
    }

    fn request_cancel(&mut self, key: &RunKey) -> Result<(), StoreError> {
        let now = self.clock.now_us();
        let run = self.run_mut(key)?;
        if run.record.status.is_final() || run.record.status.is_moving() {
            return Err(run.wrong_status());
        }
        run.record.cancel_requested = true;
        run.record.updated_at_us = now;
        self.stats.transactions += 1;
        Ok(())
    }

    fn delete(&mut self, key: &RunKey) -> Result<(), StoreError> {
        let run = self.run(key)?;
        if !is_over(&run.record.status) || run.has_unsent() {
            return Err(run.wrong_status());
        }
        self.runs.remove(key);
        self.stats.transactions += 1;
        Ok(())
    }

    fn gc(&mut self, policy: &GcPolicy) -> GcReport {
        let live = |parent: &RunId| {
            let key = RunKey { namespace: policy.namespace.clone(), run: parent.clone() };
            self.runs.get(&key).is_some_and(|run| !run.record.status.is_final())
        };
        let ours = |run: &&Run| {
            let RunRecord { key, status, parent, .. } = &run.record;
            key.namespace == policy.namespace && is_over(status) && !parent.as_ref().is_some_and(live)
        };
        let mut finished: Vec<&Run> = self.runs.values().filter(ours).collect();
        finished.sort_by_key(|run| Reverse((run.record.updated_at_us, run.number)));
        let age = policy.older_than.map_or(0, |age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
        let before = self.clock.now_us().saturating_sub(age);
        let old = |run: &&Run| policy.older_than.is_none() || run.record.updated_at_us < before;
        let old = finished.into_iter().skip(policy.keep_newest).filter(old);
        let (unsent, free): (Vec<_>, Vec<_>) = old.partition(|run| run.has_unsent());
        let unsent = unsent.len();
        let deleted: Vec<RunKey> =
            free.into_iter().rev().take(policy.limit).map(|run| run.record.key.clone()).collect();
        for key in deleted.iter().filter(|_| !policy.dry_run) {
            self.runs.remove(key);
        }
        GcReport { deleted, unsent }
    }

    fn list(&self, filter: &ListFilter) -> Vec<RunRecord> {
        let tagged = |record: &RunRecord| filter.tags.iter().all(|(k, v)| record.tags.get(k) == Some(v));
        let stands = |record: &RunRecord| {
            filter.statuses.is_empty() || filter.statuses.iter().any(|word| word == record.status.word())
        };
        let wanted = |run: &&Run| {
            let record = &run.record;
            record.key.namespace == filter.namespace
                && filter.graph.as_ref().is_none_or(|graph| *graph == record.graph)
                && stands(record)
                && tagged(record)
                && !filter.except.contains(&record.key.run)
        };
        let mut runs: Vec<&Run> = self.runs.values().filter(wanted).collect();
        runs.sort_by_key(|run| Reverse((run.record.created_at_us, run.number)));
        runs.into_iter().take(filter.limit).map(|run| run.record.clone()).collect()
    }
}

impl Store for MemoryStore {
    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        Box::pin(async move {
            check_new_run(&run)?;
            let mut tables = self.tables();
            tables.check_parent(&run)?;
            Ok(tables.create(run))
        })
    }

    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        Box::pin(async move { self.tables().claim(&run, &by) })
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        Box::pin(async move {
            let mut tables = self.tables();
            let ready = tables.ready(&filter);
            ready.into_iter().map(|key| tables.claim(&key, &by).map(|lease| (key, lease))).collect()
        })
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        Box::pin(async move {
            let mut tables = self.tables();
            let renew = |(key, epoch)| {
                let renewal = tables.renew(&key, epoch, &by);
                (key, renewal)
            };
            Ok(leases.into_iter().map(renew).collect())
        })
    }

    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let tables = self.tables();
            let asked =
                |run: &&Run| run.record.cancel_requested && run.record.owner.as_deref() == Some(&*owner);
            Ok(tables.live().filter(asked).map(|run| run.record.key.clone()).collect())
        })
    }

    fn submit(&self, write: Arc<Write>, _pace: Pace) -> Answer<'_, Ticket> {
        Box::pin(async move { Ok(Ticket::ready(self.tables().write(&write))) })
    }

    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        Box::pin(async move {
            match self.tables().decide(&write)? {
                Decision::There => Ok(Written::AlreadyCommitted),
                Decision::Apply => Err(StoreError::Retry("the write isn't there".into())),
            }
        })
    }

    fn load(&self, run: RunKey) -> Answer<'_, Loaded> {
        Box::pin(async move {
            let (record, checkpoint, journal) = {
                let tables = self.tables();
                let stored = tables.run(&run)?;
                let checkpoint = stored.checkpoints.get(&stored.record.step).cloned();
                (stored.record.clone(), checkpoint, stored.tail(stored.record.digest))
            };
            record.demand_here()?;
            let Some(checkpoint) = checkpoint.filter(|c| c.digest == record.digest) else {
                let what = "its latest checkpoint is missing, or isn't the one its row names".to_owned();
                return Err(StoreError::Corrupt { run: run.clone(), step: Some(record.step), what });
            };
            // The hashing happens outside the lock: a stored checkpoint never changes.
            let checkpoint = read_back(&run, &checkpoint)?;
            Ok(Loaded { record, checkpoint, journal })
        })
    }

    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>> {
        Box::pin(async move {
            let stored = self.stored_checkpoint(&run, step);
            stored.map(|checkpoint| read_back(&run, &checkpoint)).transpose()
        })
    }

    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>> {
        Box::pin(async move {
            let stored: Vec<_> = match self.tables().runs.get(&run) {
                Some(run) => {
                    run.checkpoints.range(from_step..).take(limit).map(|(_, it)| it.clone()).collect()
                }
                None => vec![],
            };
            stored.iter().map(|checkpoint| read_back(&run, checkpoint)).collect()
        })
    }

    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>> {
        Box::pin(async move {
            let Some(stored) = self.stored_checkpoint(&run, step) else { return Ok(vec![]) };
            let Some(items) = stored.frontier.chunks(FRONTIER_PAGE).nth(page as usize) else {
                return Ok(vec![]);
            };
            if stored.pages.get(page as usize) != Some(&page_digest(items)) {
                let what = format!("page {page} of its frontier doesn't match its digest");
                return Err(StoreError::Corrupt { run, step: Some(step), what });
            }
            Ok(items.to_vec())
        })
    }

    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>> {
        Box::pin(async move {
            let tables = self.tables();
            Ok(tables.runs.get(&run).map_or_else(Vec::new, |run| run.rows_from(from_seq, limit)))
        })
    }

    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>> {
        Box::pin(async move { Ok(self.tables().runs.get(&run).map(|run| run.record.clone())) })
    }

    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        Box::pin(async move { Ok(self.tables().list(&filter)) })
    }

    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().request_cancel(&run) })
    }

    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        Box::pin(async move {
            check_letter(&letter)?;
            self.tables().post(&run, letter)
        })
    }

    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>> {
        Box::pin(
            async move { Ok(self.tables().runs.get(&run).and_then(|stored| stored.letter(&subject, after))) },
        )
    }

    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        Box::pin(async move { Ok(self.tables().outlook(&filter)) })
    }

    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        Box::pin(async move { Ok(self.tables().fleet(&namespace)) })
    }

    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        Box::pin(async move { Ok(self.tables().census(&filter)) })
    }

    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().retry(&run) })
    }

    fn delete(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().delete(&run) })
    }

    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        Box::pin(async move { Ok(self.tables().gc(&policy)) })
    }

    fn outbox(&self) -> &dyn Outbox {
        self
    }

    fn schedules(&self) -> &dyn Schedules {
        self
    }

    fn house(&self) -> &dyn House {
        self
    }

    fn flow(&self) -> &dyn Flow {
        self
    }

    fn health(&self) -> Answer<'_, Vec<Fact>> {
        let fact = Fact {
            name: "durability",
            found: "memory".into(),
            verdict: Verdict::Unsafe,
            meaning: "everything is lost when the process ends: use it for tests only".into(),
        };
        Box::pin(std::future::ready(Ok(vec![fact])))
    }

    fn clock(&self) -> Clock {
        self.tables().clock.clone()
    }

    fn stats(&self) -> StoreStats {
        self.tables().stats
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl MemoryStore {
    fn stored_checkpoint(&self, run: &RunKey, step: u64) -> Option<Arc<Checkpoint>> {
        self.tables().runs.get(run).and_then(|run| run.checkpoints.get(&step).cloned())
    }
}

#[cfg(feature = "conformance")]
impl MemoryStore {
    /// Damages what is stored of a run's latest step, behind the store's back. False: there is nothing like it.
    pub fn damage(&self, key: &RunKey, damage: crate::conformance::Damage) -> bool {
        use crate::conformance::Damage;
        let mut tables = self.tables();
        let Ok(run) = tables.run_mut(key) else { return false };
        if damage == Damage::Row {
            run.record.digest.0[0] ^= 1;
            return true;
        }
        let Some(stored) = run.checkpoints.get_mut(&run.record.step) else { return false };
        let checkpoint = Arc::make_mut(stored);
        match damage {
            Damage::State => checkpoint.state = [checkpoint.state.as_ref(), b" "].concat().into(),
            Damage::Frontier => match checkpoint.frontier.first_mut() {
                Some(item) => item.path_hash.0 ^= 1,
                None => return false,
            },
            Damage::LastPage => match checkpoint.frontier.last_mut() {
                Some(item) => item.path_hash.0 ^= 1,
                None => return false,
            },
            Damage::Digest => checkpoint.digest.0[0] ^= 1,
            // Journal rows are kept as values here: there are no bytes to damage.
            Damage::Row | Damage::Journal => return false,
        }
        true
    }
}
