//! The way of a run to keys that live in other databases than it does.
//!
//! Invariant: the run's row comes first, parked, and says under which token it takes its slots; it takes them one after the
//! other, by the names of their keys; and none of them is freed under that token as long as the run lives under it. So whoever
//! has found it in the possession of each, at whatever moments, may let it go; and a walk may be made again, at any time, by
//! anyone.

use super::ShardedStore;
use crate::{
    error::StoreError,
    flow::{Flow as _, SPREAD, is_spread, keeps_name, names_of},
    store::{Answer, Created, NewRun, RunRecord, Store},
};
use hapax_core::{
    canary,
    flow::{Key, Terms},
    id::RunKey,
};
use std::collections::{BTreeSet, VecDeque};

/// Databases that have just failed to answer: they aren't asked again for now.
#[derive(Debug, Default)]
pub(super) struct Away(BTreeSet<usize>);

impl Away {
    pub(super) fn has(&self, shard: usize) -> bool {
        self.0.contains(&shard)
    }
}

/// How far a walk came.
#[derive(Debug, Default)]
struct Walked {
    /// Whether the run goes.
    goes: bool,
    /// Others that were given a slot on the way.
    others: Vec<RunKey>,
}

impl ShardedStore {
    /// Whether a key or the rate of a run lives in another database than the run.
    pub(super) fn spreads(&self, run: &RunKey, terms: &Terms) -> bool {
        let home = self.shard_of(run.run.as_str());
        let keys = terms.keys.iter().map(|key| &*key.name);
        let mut names = keys.chain(terms.rate.as_ref().map(|rate| &*rate.name));
        !canary::on("keys_in_shards") && names.any(|name| self.shard_of(name) != home)
    }

    /// What the token of a run begins with, which the store goes on from.
    pub(super) fn mark(&self, run: &RunKey, terms: &Terms) -> String {
        if self.spreads(run, terms) { SPREAD.to_owned() } else { String::new() }
    }

    /// Creates a run whose terms its own database can't meet. A time that it reserves and doesn't use is lost, as any is: of
    /// several who start at the same moment under one name, those who join reserve one as well.
    pub(super) async fn create_spread(&self, run: NewRun) -> Result<Created, StoreError> {
        let (key, home) = (run.key.clone(), self.home(&run.key));
        if let Some(there) = home.run(key.clone()).await? {
            return Ok(Created::Exists(Box::new(there)));
        }
        if run.terms.rate.is_some()
            && let Some(holder) = self.name_holder(&run).await?
        {
            return Ok(Created::Exists(Box::new(holder)));
        }
        let not_before_us = match run.terms.rate.clone() {
            Some(rate) => Some(self.reserve(key.namespace.clone(), rate).await?.at_us),
            None => None,
        };
        let terms = Terms { token: SPREAD.to_owned(), not_before_us, ..run.terms };
        let walks = !terms.keys.is_empty();
        let created = home.create(NewRun { terms, ..run }).await?;
        if walks && matches!(created, Created::New(_)) {
            self.go_on(vec![key], &mut Away::default()).await;
        }
        Ok(created)
    }

    /// The run that lives under a name that a new one asks for. Both live where the name does.
    async fn name_holder(&self, run: &NewRun) -> Result<Option<RunRecord>, StoreError> {
        let (home, namespace) = (self.home(&run.key), &run.key.namespace);
        for (kind, name) in names_of(&run.terms) {
            let holder = home.flow().holder(namespace.clone(), kind, name.to_owned()).await?;
            let Some(holder) = holder else { continue };
            let holder = home.run(RunKey { namespace: namespace.clone(), run: holder }).await?;
            if let Some(holder) = holder.filter(|holder| keeps_name(kind, holder)) {
                return Ok(Some(holder));
            }
        }
        Ok(None)
    }

    /// Takes runs further that may have been given a slot, and all that are given one on their way; answers those that go.
    pub(super) async fn go_on(&self, runs: Vec<RunKey>, away: &mut Away) -> Vec<RunKey> {
        let (mut walkers, mut free) = (VecDeque::from(runs), vec![]);
        while let Some(run) = walkers.pop_front() {
            let mut walked = Walked::default();
            if let Err(error) = self.walk(&run, away, &mut walked).await {
                tracing::warn!(%error, run_id = %run, "a run cannot go on to its keys; a sweep takes it further");
            }
            walkers.extend(walked.others);
            if walked.goes {
                free.push(run);
            }
        }
        free
    }

    /// Takes a run from key to key until it must wait for one, or has them all.
    async fn walk(&self, run: &RunKey, away: &mut Away, walked: &mut Walked) -> Result<(), StoreError> {
        let home = self.shard_of(run.run.as_str());
        let Some(record) = self.ask(home, away, |store| store.run(run.clone())).await? else { return Ok(()) };
        let terms = record.terms;
        if !is_spread(&terms.token) {
            // Its own database has let it go.
            walked.goes = true;
            return Ok(());
        }
        if record.status.is_moving() {
            return Ok(());
        }
        if record.status.is_final() {
            return self.pass_on(run, &terms, away, walked).await;
        }
        for key in &terms.keys {
            let (shard, alone) = (self.shard_of(&key.name), only(key, &terms));
            let mut free =
                self.ask(shard, away, |store| store.flow().enrol(run.clone(), alone.clone())).await?;
            let given = free.len();
            free.retain(|other| other != run);
            let has_it = free.len() < given;
            walked.others.extend(free);
            if !has_it {
                return Ok(());
            }
        }
        walked.goes =
            self.ask(home, away, |store| store.flow().let_go(run.clone(), terms.token.clone())).await?;
        Ok(())
    }

    /// A run that is over gives on what it is given: it was still in a queue.
    async fn pass_on(
        &self,
        run: &RunKey,
        terms: &Terms,
        away: &mut Away,
        walked: &mut Walked,
    ) -> Result<(), StoreError> {
        for key in &terms.keys {
            let (shard, token) = (self.shard_of(&key.name), terms.token.clone());
            let free = self.ask(shard, away, |store| store.flow().release(run.clone(), token)).await?;
            walked.others.extend(free);
        }
        Ok(())
    }

    /// Asks one database, unless it has just failed to answer. What is dropped midway is as a lost answer: the next sweep takes
    /// whoever was concerned further.
    pub(super) async fn ask<'s, T>(
        &'s self,
        shard: usize,
        away: &mut Away,
        ask: impl FnOnce(&'s dyn Store) -> Answer<'s, T>,
    ) -> Result<T, StoreError> {
        if away.has(shard) {
            return Err(StoreError::Retry(
                format!("database {} has just failed to answer", shard + 1).into(),
            ));
        }
        let answer = self.ask_in_time(shard, ask).await;
        if answer.is_err() {
            away.0.insert(shard);
        }
        answer
    }
}

/// The terms of a run cut down to one of its keys.
fn only(key: &Key, terms: &Terms) -> Terms {
    let (priority, token) = (terms.priority, terms.token.clone());
    Terms { keys: vec![key.clone()], priority, token, ..Terms::default() }
}
