//! The outbox, the schedules and the house of several databases.

use super::{ShardedStore, everywhere::sum, walk::Away};
use crate::{
    clock::Clock,
    error::StoreError,
    house::{Head, House, Image, Left, Piece, Sign},
    outbox::{Backlog, Batch, Claim, ClaimFilter, Failure, Fate, Outbox, OutboxFilter, OutboxRecord},
    schedules::{Added, DueFilter, Fire, Fired, ScheduleRecord, Schedules, Turn},
    store::{Answer, Claimant, Store},
};
use hapax_core::{
    commit::Epoch,
    flow::Terms,
    id::{Namespace, RunKey},
    outbox::Place,
    schedule::{Schedule, ScheduleKey},
};
use std::{sync::Arc, time::Duration};

impl ShardedStore {
    /// The database of a schedule: that of its runs, whose names begin with its own.
    fn keeper(&self, key: &ScheduleKey) -> &dyn Store {
        &*self.shards[self.shard_of(&key.name)]
    }

    /// Things of runs, for the database of each.
    fn parted<T>(
        &self,
        things: Vec<T>,
        run: impl Fn(&T) -> &RunKey,
    ) -> impl Iterator<Item = (&dyn Store, Vec<T>)> {
        let mut parts: Vec<Vec<T>> = self.shards.iter().map(|_| vec![]).collect();
        for thing in things {
            let shard = self.shard_of(run(&thing).run.as_str());
            parts[shard].push(thing);
        }
        self.shards.iter().map(|shard| &**shard).zip(parts).filter(|(_, part)| !part.is_empty())
    }
}

impl Outbox for ShardedStore {
    fn claim(&self, filter: ClaimFilter, by: Claimant) -> Answer<'_, Vec<Batch>> {
        Box::pin(async move {
            let (mut batches, mut failed, mut answered) = (vec![], None, false);
            for shard in self.in_turn() {
                let channels = filter.channels - batches.len();
                let some = ClaimFilter { channels, ..filter.clone() };
                let claimed = self.shards[shard].outbox().claim(some, by.clone());
                match self.in_time(shard, claimed).await {
                    Ok(some) => {
                        answered = true;
                        batches.extend(some);
                    }
                    Err(error) => failed = Some(error),
                }
            }
            match failed {
                Some(error) if !answered => Err(error),
                _ => Ok(batches),
            }
        })
    }

    fn mark_sent(&self, claim: Claim, sent: Vec<Place>, keep: Option<Duration>) -> Answer<'_, ()> {
        self.home(&claim.channel.run).outbox().mark_sent(claim, sent, keep)
    }

    fn mark_failed(&self, claim: Claim, place: Place, failure: Failure) -> Answer<'_, Fate> {
        self.home(&claim.channel.run).outbox().mark_failed(claim, place, failure)
    }

    fn list(&self, filter: OutboxFilter) -> Answer<'_, Vec<OutboxRecord>> {
        Box::pin(async move {
            let mut messages = self.all(|shard| shard.outbox().list(filter.clone())).await?.concat();
            messages.sort_by(|one, other| (&one.run, one.place).cmp(&(&other.run, other.place)));
            messages.truncate(filter.limit);
            Ok(messages)
        })
    }

    fn backlog(&self, namespace: Namespace) -> Answer<'_, Backlog> {
        Box::pin(async move {
            let backlogs = self.all(|shard| shard.outbox().backlog(namespace.clone())).await?;
            let put_together = |one: Backlog, other: Backlog| {
                let oldest = one.oldest_pending_at_us.into_iter().chain(other.oldest_pending_at_us).min();
                let at_us = one.at_us.max(other.at_us);
                let (pending, dead) = (sum(one.pending, other.pending), sum(one.dead, other.dead));
                Backlog { pending, dead, oldest_pending_at_us: oldest, at_us }
            };
            backlogs
                .into_iter()
                .reduce(put_together)
                .ok_or_else(|| StoreError::Retry("there is no database".into()))
        })
    }

    fn retry_dead(&self, run: RunKey) -> Answer<'_, usize> {
        self.home(&run).outbox().retry_dead(run)
    }

    fn drop_dead(&self, run: RunKey) -> Answer<'_, usize> {
        self.home(&run).outbox().drop_dead(run)
    }
}

impl Schedules for ShardedStore {
    fn add(&self, schedule: Schedule, next_us: Option<i64>) -> Answer<'_, Added> {
        self.keeper(&schedule.key).schedules().add(schedule, next_us)
    }

    fn get(&self, key: ScheduleKey) -> Answer<'_, Option<ScheduleRecord>> {
        let shard = self.shard_of(&key.name);
        Box::pin(self.in_time(shard, self.keeper(&key).schedules().get(key)))
    }

    fn list(&self, namespace: Namespace) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            let mut all = self.all(|shard| shard.schedules().list(namespace.clone())).await?.concat();
            all.sort_by(|one, other| one.schedule.key.cmp(&other.schedule.key));
            Ok(all)
        })
    }

    fn due(&self, filter: DueFilter) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            let mut due = self.some(|shard| shard.schedules().due(filter.clone())).await?.concat();
            due.sort_by(|one, other| {
                (one.next_us, &one.schedule.key).cmp(&(other.next_us, &other.schedule.key))
            });
            Ok(due)
        })
    }

    fn turn(&self, key: ScheduleKey, to: Turn) -> Answer<'_, Option<ScheduleRecord>> {
        self.keeper(&key).schedules().turn(key, to)
    }

    fn remove(&self, key: ScheduleKey) -> Answer<'_, bool> {
        self.keeper(&key).schedules().remove(key)
    }

    fn fire(&self, fire: Fire) -> Answer<'_, Fired> {
        Box::pin(async move {
            if let Some(run) = &fire.run {
                self.together(&run.key, &fire.key.name, "its schedule")?;
            }
            let shard = self.shard_of(&fire.key.name);
            // Dropped midway it is as a lost answer: whoever reads the row sees what became of it.
            self.ask_in_time(shard, |keeper| keeper.schedules().fire(fire)).await
        })
    }

    fn clock(&self, key: &ScheduleKey) -> Clock {
        self.keeper(key).schedules().clock(key)
    }
}

/// What is asked of a run that moves is asked of its database.
macro_rules! of_its_home {
    ($($name:ident($run:ident $(, $value:ident: $type:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self, $run: RunKey $(, $value: $type)*) -> Answer<'_, $answer> {
            self.home(&$run).house().$name($run $(, $value)*)
        })*
    };
}

impl House for ShardedStore {
    of_its_home! {
        image(run) -> Image;
        family(run) -> Vec<RunKey>;
        leave(run, to: Arc<str>) -> Vec<Left>;
        stay(run) -> Vec<Left>;
        clear(run, epoch: Epoch, forget: bool) -> ();
        unpack(run, epoch: Epoch, pieces: Vec<Piece>) -> ();
        give_up(run, epoch: Epoch) -> ();
    }

    fn plate(&self, _: Option<String>, _: Option<String>) -> Answer<'_, Sign> {
        let nested = StoreError::Retry("shards of shards aren't kept: name the databases themselves".into());
        Box::pin(std::future::ready(Err(nested)))
    }

    fn close(&self, family: Vec<Left>, to: Arc<str>) -> Answer<'_, ()> {
        Box::pin(async move {
            for (shard, part) in self.parted(family, |(run, _)| run) {
                shard.house().close(part, to.clone()).await?;
            }
            Ok(())
        })
    }

    fn take_back(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move {
            for (shard, part) in self.parted(family, |(run, _)| run) {
                shard.house().take_back(part).await?;
            }
            Ok(())
        })
    }

    fn arrive(&self, head: Head, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move {
            let key = head.key();
            if let Some(parent) = &head.parent {
                self.together(&key, parent.as_str(), "its parent")?;
            }
            self.named_alike(&key, &head.terms)?;
            let terms = Terms { token: self.mark(&key, &head.terms), ..head.terms.clone() };
            self.home(&key).house().arrive(Head { terms, ..head }, epoch).await
        })
    }

    fn open(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move {
            let runs = family.iter().map(|(run, _)| run.clone()).collect();
            for (shard, part) in self.parted(family, |(run, _)| run) {
                shard.house().open(part).await?;
            }
            self.go_on(runs, &mut Away::default()).await;
            Ok(())
        })
    }
}
