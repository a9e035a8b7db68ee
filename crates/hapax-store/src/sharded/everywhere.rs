//! What is asked of all databases, and put together.
//!
//! Invariant: whoever looks for work gets what those have that answer; whoever asks what there is gets all of it, or the
//! error of the one that is missing.

use super::ShardedStore;
use crate::{
    clock::{micros, now_us},
    error::StoreError,
    store::{
        Answer, Census, CensusFilter, Fact, Fleet, GcPolicy, GcReport, Hint, Holding, ListFilter, RunRecord,
        Store, StoreStats, Tally,
    },
};
use futures::future::join_all;
use hapax_core::{
    id::{Namespace, RunKey},
    limits::{MAX_COUNTED, SHARD_PATIENCE},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
};
use tokio::sync::broadcast::{self, error::RecvError};

/// Hints that wait for whoever is slow.
const HINTS: usize = 1024;

/// The words of all statuses that aren't final.
const LIVE: &[&str] = &["pending", "running", "waiting", "paused", "in_doubt", "leaving", "arriving"];

/// What any of the databases says has changed; `None`: none of them says anything.
pub(super) fn gather_hints(databases: &[Arc<dyn Store>]) -> Option<broadcast::Sender<Hint>> {
    let heard: Vec<_> = databases.iter().filter_map(|database| database.hints()).collect();
    if heard.is_empty() {
        return None;
    }
    let (sender, _) = broadcast::channel(HINTS);
    for mut hints in heard {
        let sender = sender.clone();
        // It ends when its database says no more.
        tokio::spawn(async move {
            loop {
                match hints.recv().await {
                    // They are only hints: nobody may be listening.
                    Ok(hint) => drop(sender.send(hint)),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }
    Some(sender)
}

impl ShardedStore {
    /// Asks all databases at once; the first error counts.
    pub(super) async fn all<'s, T>(
        &'s self,
        ask: impl Fn(&'s dyn Store) -> Answer<'s, T>,
    ) -> Result<Vec<T>, StoreError> {
        join_all(self.shards.iter().map(|shard| ask(&**shard))).await.into_iter().collect()
    }

    /// Waits for the answer of one database no longer than the others may wait for it; then leaves it alone for a moment.
    ///
    /// What is dropped midway may take effect all the same, and harms nobody: a claim that its worker doesn't know of is never
    /// renewed, so its lease runs out, and a lease that was renewed was to be. Hence also the moment: a database that has
    /// frozen does at last all that it was asked, and each claim among it would be nobody's.
    pub(super) async fn in_time<T>(&self, shard: usize, answer: Answer<'_, T>) -> Result<T, StoreError> {
        match tokio::time::timeout(SHARD_PATIENCE, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                let late = now_us() + micros(SHARD_PATIENCE);
                self.late.lock().expect("no call panics while it holds the lock").insert(shard, late);
                Err(StoreError::Retry(format!("database {} doesn't answer in time", shard + 1).into()))
            }
        }
    }

    /// Whether a database has just kept the others waiting.
    pub(super) fn is_late(&self, shard: usize) -> bool {
        let late = self.late.lock().expect("no call panics while it holds the lock");
        // Nor for longer when the clock is set back.
        late.get(&shard).is_some_and(|until| (1..=micros(SHARD_PATIENCE)).contains(&(until - now_us())))
    }

    /// Asks one database, unless it has just kept the others waiting, and no longer than they may wait for it.
    pub(super) async fn ask_in_time<'s, T>(
        &'s self,
        shard: usize,
        ask: impl FnOnce(&'s dyn Store) -> Answer<'s, T>,
    ) -> Result<T, StoreError> {
        if self.is_late(shard) {
            let late = format!("database {} hasn't answered in time just now", shard + 1);
            return Err(StoreError::Retry(late.into()));
        }
        self.in_time(shard, ask(&*self.shards[shard])).await
    }

    /// Asks all databases at once that aren't late; what those answer in time that can. An error only when none can.
    pub(super) async fn some<'s, T>(
        &'s self,
        ask: impl Fn(&'s dyn Store) -> Answer<'s, T>,
    ) -> Result<Vec<T>, StoreError> {
        let asked = (0..self.shards.len()).filter(|shard| !self.is_late(*shard));
        let asked = asked.map(|shard| {
            let answer = ask(&*self.shards[shard]);
            async move { (shard, self.in_time(shard, answer).await) }
        });
        Self::those_that_answer(join_all(asked).await)
    }

    /// What the databases have answered that could; an error when there is nothing.
    pub(super) fn those_that_answer<T>(
        answers: Vec<(usize, Result<T, StoreError>)>,
    ) -> Result<Vec<T>, StoreError> {
        let (mut found, mut failed) = (vec![], None);
        for (shard, answer) in answers {
            match answer {
                Ok(answer) => found.push(answer),
                Err(error) => {
                    tracing::warn!(shard, %error, "a database of several doesn't answer; the others go on");
                    failed = failed.or(Some(error));
                }
            }
        }
        match failed {
            _ if !found.is_empty() => Ok(found),
            Some(error) => Err(error),
            None => Err(StoreError::Retry("no database answers in time".into())),
        }
    }

    /// The databases that aren't late, another one first each time.
    pub(super) fn in_turn(&self) -> Vec<usize> {
        let (count, first) = (self.shards.len(), self.turn.fetch_add(1, Ordering::Relaxed));
        (0..count)
            .map(|place| (first % count + place) % count)
            .filter(|shard| !self.is_late(*shard))
            .collect()
    }

    pub(super) async fn list_all(&self, filter: ListFilter) -> Result<Vec<RunRecord>, StoreError> {
        let mut runs = self.all(|shard| shard.list(filter.clone())).await?.concat();
        runs.sort_by(|one, other| {
            (Reverse(one.created_at_us), &one.key.run).cmp(&(Reverse(other.created_at_us), &other.key.run))
        });
        runs.truncate(filter.limit);
        Ok(runs)
    }

    pub(super) async fn fleet_of_all(&self, namespace: Namespace) -> Result<Fleet, StoreError> {
        let (mut all, mut holders) = (Fleet::default(), BTreeMap::<String, Holding>::new());
        for fleet in self.all(|shard| shard.fleet(namespace.clone())).await? {
            all.waiting += fleet.waiting;
            all.lag = all.lag.max(fleet.lag);
            for holding in fleet.holders {
                match holders.get_mut(&holding.owner) {
                    None => drop(holders.insert(holding.owner.clone(), holding)),
                    Some(known) => {
                        known.runs += holding.runs;
                        known.lease_left = known.lease_left.min(holding.lease_left);
                        known.epoch = known.epoch.max(holding.epoch);
                    }
                }
            }
        }
        all.holders = holders.into_values().collect();
        Ok(all)
    }

    pub(super) async fn census_of_all(&self, filter: CensusFilter) -> Result<Census, StoreError> {
        let mut all = Census::default();
        for census in self.all(|shard| shard.census(filter.clone())).await? {
            all.at_us = all.at_us.max(census.at_us);
            all.created = sum(all.created, census.created);
            all.created_steps += census.created_steps;
            all.runs.extend(census.runs);
            for (word, tally) in census.statuses {
                let known = all.statuses.entry(word).or_default();
                *known = sum(*known, tally);
            }
        }
        Ok(all)
    }

    /// The finished runs that may be deleted or kept, the newest first. A child isn't, while its parent lives.
    async fn finished(&self, namespace: &Namespace) -> Result<Vec<RunRecord>, StoreError> {
        let of = |statuses: &[&str]| ListFilter {
            namespace: namespace.clone(),
            statuses: statuses.iter().map(|word| (*word).to_owned()).collect(),
            limit: usize::MAX,
            ..ListFilter::default()
        };
        let (over, live) = (of(&["succeeded", "failed", "cancelled"]), of(LIVE));
        let mut finished = self.all(|shard| shard.list(over.clone())).await?.concat();
        if finished.iter().any(|run| run.parent.is_some()) {
            let live = self.all(|shard| shard.list(live.clone())).await?.concat();
            let live: HashSet<_> = live.into_iter().map(|run| run.key.run).collect();
            finished.retain(|run| !run.parent.as_ref().is_some_and(|parent| live.contains(parent)));
        }
        finished.sort_by_key(|run| Reverse((run.updated_at_us, run.created_at_us)));
        Ok(finished)
    }

    /// Deletes the oldest finished runs of all databases, as if they were one.
    pub(super) async fn gc_all(&self, policy: GcPolicy) -> Result<GcReport, StoreError> {
        let finished = self.finished(&policy.namespace).await?;
        let mut kept = vec![0; self.shards.len()];
        for run in finished.iter().take(policy.keep_newest) {
            kept[self.shard_of(run.key.run.as_str())] += 1;
        }
        let ages: HashMap<&RunKey, (i64, i64)> =
            finished.iter().map(|run| (&run.key, (run.updated_at_us, run.created_at_us))).collect();
        let mut report = GcReport::default();
        for (shard, keep_newest) in self.shards.iter().zip(kept) {
            let look = GcPolicy { keep_newest, limit: usize::MAX, dry_run: true, ..policy.clone() };
            let found = shard.gc(look).await?;
            report.unsent += found.unsent;
            report.deleted.extend(found.deleted);
        }
        report.deleted.sort_by_key(|run| ages.get(run).copied().unwrap_or_default());
        report.deleted.truncate(policy.limit);
        if policy.dry_run {
            return Ok(report);
        }
        let mut deleted = vec![];
        for run in report.deleted {
            match self.home(&run).delete(run.clone()).await {
                Ok(()) => deleted.push(run),
                // It goes on again, or another has swept it.
                Err(StoreError::WrongStatus { .. } | StoreError::NotFound { .. }) => {}
                Err(error) if deleted.is_empty() => return Err(error),
                Err(error) => {
                    // What is gone must be told; who calls again is told of the error.
                    tracing::warn!(%error, run_id = %run, "cannot be deleted; the rest is left to the next time");
                    break;
                }
            }
        }
        Ok(GcReport { deleted, ..report })
    }

    pub(super) async fn health_of_all(&self) -> Result<Vec<Fact>, StoreError> {
        let mut facts = vec![];
        for (shard, found) in self.all(|shard| shard.health()).await?.into_iter().enumerate() {
            let named =
                |fact: Fact| Fact { found: format!("database {}: {}", shard + 1, fact.found), ..fact };
            facts.extend(found.into_iter().map(named));
        }
        Ok(facts)
    }

    pub(super) fn stats_of_all(&self) -> StoreStats {
        let mut all = StoreStats::default();
        for stats in self.shards.iter().map(|shard| shard.stats()) {
            all.steps += stats.steps;
            all.writes += stats.writes;
            all.transactions += stats.transactions;
            all.syncs += stats.syncs;
        }
        all
    }
}

pub(super) fn sum(one: Tally, other: Tally) -> Tally {
    let count = one.count + other.count;
    Tally { count: count.min(MAX_COUNTED), or_more: one.or_more || other.or_more || count > MAX_COUNTED }
}
