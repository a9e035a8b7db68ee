//! What is left of runs whose slots are spread, when someone died on the way.
//!
//! Invariant: a slot is freed under its token only after the run's own database has said, later than the slot was seen, that
//! the run is over, is gone, or has another token. A database that doesn't answer decides nothing. One sweep looks at one page
//! of each database, and the next one goes on behind it.

use super::{ShardedStore, walk::Away};
use crate::flow::{Seen, Spread, Stands};
use hapax_core::id::{Namespace, RunId, RunKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Runs that a database is asked for in one call. The more databases there are, the more each is asked for; and what is asked
/// at once must be answered while the others wait for it.
const TOGETHER: usize = 100;

/// The run behind which the next sweep goes on.
pub(super) type Cursors = HashMap<(Namespace, usize, Seen), RunId>;

/// What one sweep has found.
struct Found {
    /// Slots, by the database that they are in.
    holding: Vec<(usize, Spread)>,
    /// Runs that nobody has let go yet.
    walking: BTreeSet<Spread>,
}

impl ShardedStore {
    /// Frees what runs have left that are over, and takes those further that nobody else does. Answers how many they were.
    pub(super) async fn sweep_spread(&self, namespace: &Namespace) -> u64 {
        let mut away = Away::default();
        let mut found = Found { holding: vec![], walking: BTreeSet::new() };
        for shard in 0..self.shards.len() {
            let holding = self.page(namespace, shard, Seen::Holding, &mut away).await;
            found.holding.extend(holding.into_iter().map(|one| (shard, one)));
            found.walking.extend(self.page(namespace, shard, Seen::Walking, &mut away).await);
        }
        let said = self.homes_say(namespace, &found.holding, &mut away).await;
        found
            .walking
            .extend(said.iter().filter(|(_, stands)| **stands == Stands::Parked).map(|(one, _)| one.clone()));
        let is_left = |one: &Spread| {
            let lives = matches!(said.get(one), Some(Stands::Live | Stands::Parked));
            !lives && !away.has(self.shard_of(one.run.as_str()))
        };
        let left: Vec<_> = found.holding.into_iter().filter(|(_, one)| is_left(one)).collect();
        let (mut swept, mut free) = (left.len() as u64, vec![]);
        for (shard, Spread { run, token }) in left {
            let run = RunKey { namespace: namespace.clone(), run };
            let given = self.ask(shard, &mut away, |store| store.flow().release(run, token)).await;
            free.extend(given.unwrap_or_default());
        }
        free.extend(self.forsaken(namespace, found.walking, &mut away).await);
        swept += self.go_on(free, &mut away).await.len() as u64;
        swept
    }

    /// The next page of one database; nothing of one that doesn't answer.
    async fn page(&self, namespace: &Namespace, shard: usize, seen: Seen, away: &mut Away) -> Vec<Spread> {
        let place = (namespace.clone(), shard, seen);
        let behind = self.cursors().get(&place).cloned();
        let page = self.ask(shard, away, |store| store.flow().spread(namespace.clone(), seen, behind)).await;
        let Ok(page) = page else { return vec![] };
        match page.until {
            Some(until) => drop(self.cursors().insert(place, until)),
            None => drop(self.cursors().remove(&place)),
        }
        page.runs
    }

    /// What the databases of runs that hold something say of them.
    async fn homes_say(
        &self,
        namespace: &Namespace,
        holding: &[(usize, Spread)],
        away: &mut Away,
    ) -> BTreeMap<Spread, Stands> {
        let mut of_each = BTreeMap::<usize, BTreeSet<RunId>>::new();
        for (_, one) in holding {
            of_each.entry(self.shard_of(one.run.as_str())).or_default().insert(one.run.clone());
        }
        let mut said = BTreeMap::new();
        for (home, runs) in of_each {
            let here = self.asked(namespace, home, &runs, away).await;
            said.extend(here.into_iter().filter(|(_, stands)| *stands != Stands::Queued));
        }
        said
    }

    /// Runs that are in no queue, though nobody has let them go: their starter died, or whoever gave them a slot.
    async fn forsaken(
        &self,
        namespace: &Namespace,
        walking: BTreeSet<Spread>,
        away: &mut Away,
    ) -> Vec<RunKey> {
        let runs: BTreeSet<RunId> = walking.iter().map(|one| one.run.clone()).collect();
        let mut queued = BTreeSet::new();
        for shard in 0..self.shards.len() {
            let here = self.asked(namespace, shard, &runs, away).await;
            queued
                .extend(here.into_iter().filter(|(_, stands)| *stands == Stands::Queued).map(|(one, _)| one));
        }
        let forsaken = walking.into_iter().filter(|one| !queued.contains(one));
        forsaken.map(|one| RunKey { namespace: namespace.clone(), run: one.run }).collect()
    }

    /// What a database says of some runs; nothing if it doesn't answer.
    async fn asked(
        &self,
        namespace: &Namespace,
        shard: usize,
        runs: &BTreeSet<RunId>,
        away: &mut Away,
    ) -> Vec<(Spread, Stands)> {
        let runs: Vec<_> = runs.iter().cloned().collect();
        let mut said = vec![];
        for some in runs.chunks(TOGETHER) {
            let runs = some.to_vec();
            let here = self.ask(shard, away, |store| store.flow().standing(namespace.clone(), runs)).await;
            said.extend(here.unwrap_or_default());
        }
        said
    }
}
