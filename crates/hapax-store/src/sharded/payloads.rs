//! How payloads are stored, in each of several databases: one after the other.

use super::ShardedStore;
use crate::{
    depot::{self, Rested},
    error::StoreError,
    recode::{self, PayloadKeys, Recoded},
};

impl ShardedStore {
    /// The next batch of the database in which the last one was, and then of the next.
    pub(super) async fn recode_each(&self, from: recode::From) -> Result<Recoded, StoreError> {
        let shard = from.shard;
        let Some(database) = self.shards.get(shard) else { return Ok(Recoded::default()) };
        let mut done = database.recode(from).await?;
        let another = shard + 1 < self.shards.len();
        let next = another.then(|| recode::From { shard: shard + 1, ..recode::From::default() });
        done.next = done.next.map(|next| recode::From { shard, ..next }).or(next);
        Ok(done)
    }

    pub(super) async fn payload_keys_of_all(&self) -> Result<PayloadKeys, StoreError> {
        let mut all = PayloadKeys::default();
        for keys in self.all(|shard| shard.payload_keys()).await? {
            all.payloads += keys.payloads;
            all.plain += keys.plain;
            all.unknown += keys.unknown;
            all.stale += keys.stale;
            keys.under.into_iter().for_each(|(key, count)| *all.under.entry(key).or_default() += count);
        }
        Ok(all)
    }

    /// As [`recode_each`](Self::recode_each).
    pub(super) async fn rest_each(&self, from: depot::From) -> Result<Rested, StoreError> {
        let shard = from.shard;
        let Some(database) = self.shards.get(shard) else { return Ok(Rested::default()) };
        let mut done = database.rest(depot::From { shard: 0, ..from }).await?;
        let another = shard + 1 < self.shards.len();
        let next = another.then(|| depot::From { shard: shard + 1, ..depot::From::default() });
        done.next = done.next.map(|next| depot::From { shard, ..next }).or(next);
        Ok(done)
    }
}
