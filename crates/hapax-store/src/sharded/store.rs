//! The contract of a store, over several databases.

use super::ShardedStore;
use crate::{
    clock::Clock,
    depot::{self, Rested},
    error::StoreError,
    flow::Flow,
    house::House,
    outbox::Outbox,
    recode::{self, PayloadKeys, Recoded},
    schedules::Schedules,
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fact, Fleet, GcPolicy, GcReport, Hint,
        Lease, ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreStats,
        Ticket,
    },
};
use futures::future::join_all;
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, Write, Written},
    flow::Terms,
    frontier::WorkItem,
    id::{Namespace, RunKey},
    journal::JournalRow,
    mailbox::{Letter, NewLetter, Posted},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};
use tokio::sync::broadcast;

/// What is asked of a run is asked of its database.
macro_rules! of_its_home {
    ($($name:ident($run:ident $(, $value:ident: $type:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self, $run: RunKey $(, $value: $type)*) -> Answer<'_, $answer> {
            self.home(&$run).$name($run $(, $value)*)
        })*
    };
}

impl ShardedStore {
    /// Work from all databases, each its share, and the rest from whoever has more.
    async fn claim_some(
        &self,
        filter: ReadyFilter,
        by: Claimant,
    ) -> Result<Vec<(RunKey, Lease)>, StoreError> {
        let (mut claimed, mut failed, mut answered) = (vec![], None, false);
        let shards = self.in_turn();
        let Some(each) = filter.limit.checked_div(shards.len()) else {
            return Err(StoreError::Retry("no database answers in time".into()));
        };
        let share = |place: usize| each + usize::from(place < filter.limit % shards.len());
        let shares = shards.iter().enumerate().map(|(place, shard)| (*shard, share(place)));
        // Who may have more, and who comes first only when others have too little.
        let (mut round, more): (Vec<_>, Vec<_>) = shares.partition(|(_, share)| *share > 0);
        let mut more: VecDeque<usize> = more.into_iter().map(|(shard, _)| shard).collect();
        loop {
            let asked = round.iter().map(|(shard, limit)| {
                let some = ReadyFilter { limit: *limit, ..filter.clone() };
                self.in_time(*shard, self.shards[*shard].claim_ready(some, by.clone()))
            });
            for ((shard, limit), answer) in round.iter().zip(join_all(asked).await) {
                match answer {
                    Ok(some) => {
                        answered = true;
                        more.extend((some.len() == *limit).then_some(*shard));
                        claimed.extend(some);
                    }
                    Err(error) => {
                        tracing::warn!(shard, %error, "a database of several has no work for now; the others go on");
                        failed = Some(error);
                    }
                }
            }
            let left = filter.limit.saturating_sub(claimed.len());
            match more.pop_front() {
                Some(shard) if left > 0 => round = vec![(shard, left)],
                _ => break,
            }
        }
        match failed {
            Some(error) if !answered => Err(error),
            _ => Ok(claimed),
        }
    }

    /// The leases of a database that doesn't answer are left out: they are neither kept nor lost.
    async fn renew_some(
        &self,
        leases: Vec<(RunKey, Epoch)>,
        by: Claimant,
    ) -> Result<Vec<(RunKey, Renewal)>, StoreError> {
        let order: HashMap<RunKey, usize> =
            leases.iter().enumerate().map(|(place, (run, _))| (run.clone(), place)).collect();
        let mut of_each = vec![vec![]; self.shards.len()];
        for lease in leases {
            of_each[self.shard_of(lease.0.run.as_str())].push(lease);
        }
        let asked = of_each.into_iter().enumerate().filter(|(_, leases)| !leases.is_empty());
        let asked =
            asked.map(|(shard, leases)| self.in_time(shard, self.shards[shard].renew(leases, by.clone())));
        let answers = join_all(asked).await;
        let (mut renewed, mut failed) = (vec![], None);
        for answer in answers {
            match answer {
                Ok(some) => renewed.extend(some),
                Err(error) => failed = Some(error),
            }
        }
        renewed.sort_by_key(|(run, _)| order.get(run).copied());
        match failed {
            Some(error) if renewed.is_empty() => Err(error),
            _ => Ok(renewed),
        }
    }
}

impl Store for ShardedStore {
    of_its_home! {
        claim(run, by: Claimant) -> Lease;
        load(run) -> Loaded;
        checkpoint(run, step: u64) -> Option<Checkpoint>;
        checkpoints(run, from_step: u64, limit: usize) -> Vec<Checkpoint>;
        frontier_page(run, step: u64, page: u32) -> Vec<WorkItem>;
        journal(run, from_seq: u64, limit: usize) -> Vec<JournalRow>;
        run(run) -> Option<RunRecord>;
        request_cancel(run) -> ();
        post(run, letter: NewLetter) -> Posted;
        letter(run, subject: Arc<str>, after: u64) -> Option<Letter>;
        delete(run) -> ();
    }

    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        Box::pin(async move {
            if let Some(parent) = &run.parent {
                self.together(&run.key, parent.as_str(), "its parent")?;
            }
            run.terms.check().map_err(StoreError::Terms)?;
            self.named_alike(&run.key, &run.terms)?;
            if self.spreads(&run.key, &run.terms) {
                return self.create_spread(run).await;
            }
            let terms = Terms { token: String::new(), ..run.terms };
            self.home(&run.key).create(NewRun { terms, ..run }).await
        })
    }

    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(self.retry_spread(run))
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        Box::pin(self.claim_some(filter, by))
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        Box::pin(self.renew_some(leases, by))
    }

    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move { Ok(self.some(|shard| shard.cancels(owner.clone())).await?.concat()) })
    }

    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket> {
        self.home(write.run()).submit(write.clone(), pace)
    }

    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        self.home(write.run()).settle(write.clone())
    }

    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        Box::pin(self.list_all(filter))
    }

    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        Box::pin(async move {
            let mut all = Outlook::default();
            for outlook in self.some(|shard| shard.outlook(filter.clone())).await? {
                all.ready |= outlook.ready;
                all.next = all.next.into_iter().chain(outlook.next).min();
            }
            Ok(all)
        })
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        self.hints.as_ref().map(broadcast::Sender::subscribe)
    }

    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        Box::pin(self.fleet_of_all(namespace))
    }

    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        Box::pin(self.census_of_all(filter))
    }

    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        Box::pin(self.gc_all(policy))
    }

    fn databases(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(self.all(|shard| shard.databases()).await?.concat()) })
    }

    fn recode(&self, from: recode::From) -> Answer<'_, Recoded> {
        Box::pin(self.recode_each(from))
    }

    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        Box::pin(self.payload_keys_of_all())
    }

    fn rest(&self, from: depot::From) -> Answer<'_, Rested> {
        Box::pin(self.rest_each(from))
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
        Box::pin(self.health_of_all())
    }

    fn clock(&self) -> Clock {
        self.shards[0].clock()
    }

    fn stats(&self) -> StoreStats {
        self.stats_of_all()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { drop(join_all(self.shards.iter().map(|shard| shard.close())).await) })
    }
}
