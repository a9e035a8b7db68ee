//! Flow control over several databases: each key and each bucket lives in one of them, by its own name.
//!
//! Invariant: a run whose keys and rate live where it does is admitted by its own database alone, in one transaction. Any
//! other one walks (`walk`), and what is left of it is looked after here (`sweep`), never by a database by itself.

use super::{ShardedStore, walk::Away};
use crate::{
    clock::Clock,
    error::StoreError,
    flow::{
        Flow, KeyRecord, KeyView, NameKind, NameRecord, Replaced, Seen, Spread, SpreadPage, Stands, is_spread,
    },
    store::{Answer, NewRun},
};
use futures::future::join_all;
use hapax_core::{
    flow::{Rate, Reservation, Terms},
    id::{Namespace, RunId, RunKey},
    limits::SHARD_PATIENCE,
};
use std::collections::BTreeSet;

impl ShardedStore {
    /// Frees what a run holds, in every database where it may hold something.
    async fn release_spread(&self, run: RunKey, token: String) -> Result<Vec<RunKey>, StoreError> {
        let (mut free, mut failed) = (vec![], None);
        let (run, token) = (&run, &token);
        // All at once: none of them waits for another.
        let given = self.shards_of(run, token).await.into_iter().map(|shard| {
            self.ask_in_time(shard, move |store| store.flow().release(run.clone(), token.clone()))
        });
        for answer in join_all(given).await {
            match answer {
                Ok(some) => free.extend(some),
                // What is left here is swept when the database is back.
                Err(error) => failed = Some(error),
            }
        }
        let free = self.go_on(free, &mut Away::default()).await;
        failed.map_or(Ok(free), Err)
    }

    /// The databases in which a run takes something under a token; all of them when its row can't tell.
    async fn shards_of(&self, run: &RunKey, token: &str) -> BTreeSet<usize> {
        let home = self.shard_of(run.run.as_str());
        match self.ask_in_time(home, |store| store.run(run.clone())).await {
            Ok(Some(record)) if record.terms.token == token => {
                let keys = record.terms.keys.iter().map(|key| self.shard_of(&key.name));
                keys.chain([home]).collect()
            }
            _ => (0..self.shards.len()).collect(),
        }
    }

    /// A failed run takes its slots again. Those that it had are free first, or it would wait for itself.
    pub(super) async fn retry_spread(&self, run: RunKey) -> Result<(), StoreError> {
        let before = self.home(&run).run(run.clone()).await?;
        self.home(&run).retry(run.clone()).await?;
        let Some(token) = before.map(|record| record.terms.token).filter(|token| is_spread(token)) else {
            return Ok(());
        };
        if let Err(error) = self.release_spread(run.clone(), token).await {
            tracing::warn!(%error, run_id = %run, "cannot give slots back; they are swept later");
        }
        self.go_on(vec![run], &mut Away::default()).await;
        Ok(())
    }
}

impl Flow for ShardedStore {
    fn enrol(&self, run: RunKey, terms: Terms) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let free = if is_spread(&terms.token) {
                vec![run]
            } else {
                // Elsewhere its slots would be taken for those of a run that is gone.
                for key in &terms.keys {
                    self.together(&run, &key.name, "the concurrency key")?;
                }
                self.home(&run).flow().enrol(run, terms).await?
            };
            Ok(self.go_on(free, &mut Away::default()).await)
        })
    }

    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            if is_spread(&token) {
                return self.release_spread(run, token).await;
            }
            let free = self.home(&run).flow().release(run, token).await?;
            Ok(self.go_on(free, &mut Away::default()).await)
        })
    }

    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation> {
        self.shards[self.shard_of(&rate.name)].flow().reserve(namespace, rate)
    }

    fn clock(&self, bucket: &str) -> Clock {
        self.shards[self.shard_of(bucket)].flow().clock(bucket)
    }

    fn replace(&self, run: NewRun) -> Answer<'_, Replaced> {
        self.home(&run.key).flow().replace(run)
    }

    fn sweep(&self, namespace: Namespace) -> Answer<'_, u64> {
        Box::pin(async move {
            let sweeps = self.shards.iter().map(|shard| shard.flow().sweep(namespace.clone()));
            // It may take its time, and the next one goes on where this one was dropped. So nobody is late by it.
            let sweeps = sweeps.map(|sweep| tokio::time::timeout(SHARD_PATIENCE, sweep));
            let swept = join_all(sweeps).await.into_iter().map(|swept| {
                let slow = |_| Err(StoreError::Retry("it sweeps for longer than the others wait".into()));
                swept.unwrap_or_else(slow)
            });
            let swept = swept.enumerate().collect();
            let alone = Self::those_that_answer(swept);
            // Also when each of them has more to do than fits: what is spread is nobody else's to free.
            let spread = self.sweep_spread(&namespace).await;
            Ok(alone?.into_iter().sum::<u64>() + spread)
        })
    }

    fn keys(&self, namespace: Namespace) -> Answer<'_, Vec<KeyRecord>> {
        Box::pin(async move {
            let mut keys = self.all(|shard| shard.flow().keys(namespace.clone())).await?.concat();
            keys.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(keys)
        })
    }

    fn key(&self, namespace: Namespace, name: String) -> Answer<'_, KeyView> {
        self.shards[self.shard_of(&name)].flow().key(namespace, name)
    }

    fn names(&self, namespace: Namespace) -> Answer<'_, Vec<NameRecord>> {
        Box::pin(async move {
            let mut names = self.all(|shard| shard.flow().names(namespace.clone())).await?.concat();
            names.sort_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
            Ok(names)
        })
    }

    fn holder(&self, namespace: Namespace, kind: NameKind, name: String) -> Answer<'_, Option<RunId>> {
        self.shards[self.shard_of(&name)].flow().holder(namespace, kind, name)
    }

    fn let_go(&self, run: RunKey, token: String) -> Answer<'_, bool> {
        self.home(&run).flow().let_go(run, token)
    }

    fn spread(&self, namespace: Namespace, seen: Seen, behind: Option<RunId>) -> Answer<'_, SpreadPage> {
        Box::pin(async move {
            let pages =
                self.all(|shard| shard.flow().spread(namespace.clone(), seen, behind.clone())).await?;
            let until = pages.iter().filter_map(|page| page.until.clone()).min();
            let mut runs: Vec<_> = pages.into_iter().flat_map(|page| page.runs).collect();
            runs.retain(|one| until.as_ref().is_none_or(|until| one.run <= *until));
            runs.sort();
            runs.dedup();
            Ok(SpreadPage { runs, until })
        })
    }

    fn standing(&self, namespace: Namespace, runs: Vec<RunId>) -> Answer<'_, Vec<(Spread, Stands)>> {
        Box::pin(async move {
            Ok(self.all(|shard| shard.flow().standing(namespace.clone(), runs.clone())).await?.concat())
        })
    }
}
