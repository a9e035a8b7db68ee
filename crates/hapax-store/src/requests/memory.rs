//! The reference model: a plain map behind one lock.
//!
//! Invariant: every call holds the lock from its first look to its last change. "Durable" means as long as the process.

use super::{
    Begun, Claim, Finished, Listed, RELEASED, RequestFilter, RequestStore, check_completion, check_point,
    judge::{Verdict, judge},
    nonce, storable,
};
use crate::{
    clock::{Clock, micros},
    store::Answer,
};
use hapax_core::request::{Completion, Lease, Record, RecoveryPoint, RequestId, Status, Token};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Requests in memory, for tests and for work that may be lost with the process.
///
/// ```
/// use hapax_store::requests::{MemoryRequests, RequestStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = MemoryRequests::new();
/// assert_eq!(store.sweep(100).await?, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct MemoryRequests {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    records: BTreeMap<RequestId, Record>,
    /// The latest token's.
    sequence: i64,
    clock: Clock,
}

impl MemoryRequests {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that goes by this clock: a test moves it on and waits for nothing.
    pub fn with_clock(clock: Clock) -> Arc<Self> {
        Arc::new(Self { table: Mutex::new(Table { clock, ..Table::default() }) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no call panics while it holds the lock")
    }
}

impl Table {
    fn token(&mut self, nonce: u128, now: i64) -> Token {
        self.sequence += 1;
        Token { sequence: self.sequence, nonce, updated_at_us: now }
    }

    fn claim(&mut self, claim: &Claim, retry: bool) -> Begun {
        let (now, nonce) = (self.clock.now_us(), nonce());
        let before =
            match self.records.get(&claim.id).cloned().map(|found| judge(found, claim, nonce, retry, now)) {
                Some(Verdict::Answer(answer)) => return answer,
                Some(Verdict::TakeOver(record)) => Some(record),
                Some(Verdict::Afresh(_)) | None => None,
            };
        let token = self.token(nonce, now);
        let lease_until_us = now + micros(claim.lease);
        let record = match before {
            Some(before) => {
                Record { token, attempt: before.attempt + 1, lease_until_us, completion: None, ..*before }
            }
            None => Record {
                id: claim.id.clone(),
                hash: claim.hash,
                token,
                attempt: 1,
                lease_until_us,
                point: None,
                origin: nonce,
                completion: None,
                created_at_us: now,
                expires_at_us: now + micros(claim.expiry),
            },
        };
        let lease = record.lease();
        self.records.insert(claim.id.clone(), record);
        Begun::Execute(lease)
    }

    /// The record that this lease is of, while it is executed under it.
    fn held(&mut self, lease: &Lease) -> Option<&mut Record> {
        let record = self.records.get_mut(&lease.id)?;
        (record.completion.is_none() && record.token == lease.token).then_some(record)
    }

    fn finish(&mut self, lease: &Lease, completion: &Completion) -> Finished {
        let (now, completion) = (self.clock.now_us(), storable(completion));
        if let Some(record) = self.held(lease) {
            record.expires_at_us =
                record.expires_at_us.max(now + record.expires_at_us - record.created_at_us);
            record.completion = Some(completion.into_owned());
            return Finished::Done;
        }
        let is_there = self.records.get(&lease.id).is_some_and(|record| {
            record.token == lease.token && record.completion.as_ref() == Some(&*completion)
        });
        if is_there { Finished::Done } else { Finished::Stale }
    }

    fn change(&mut self, lease: &Lease, change: impl FnOnce(&mut Record)) -> Finished {
        match self.held(lease) {
            Some(record) => {
                change(record);
                Finished::Done
            }
            None => Finished::Stale,
        }
    }

    fn list(&self, filter: &RequestFilter) -> Vec<Listed> {
        let mut found: Vec<_> = self.records.values().filter(|record| filter.admits(record)).collect();
        found.sort_by_key(|record| Reverse(record.expires_at_us));
        found.into_iter().take(filter.limit).map(listed).collect()
    }

    fn release(&mut self, id: &RequestId) -> bool {
        let now = self.clock.now_us();
        if self.records.get(id).is_none_or(|record| record.completion.is_some()) {
            return false;
        }
        let token = self.token(nonce(), now);
        let Some(record) = self.records.get_mut(id) else { return false };
        (record.token, record.lease_until_us) = (token, now);
        record.completion = Some(Completion::failed_retryable(0, RELEASED));
        true
    }

    /// What a sweep may delete.
    fn over(&self) -> impl Iterator<Item = &RequestId> {
        let now = self.clock.now_us();
        let is_over = move |record: &&Record| {
            let is_busy = record.status() == Status::InProgress && record.lease_until_us > now;
            record.expires_at_us <= now && !is_busy
        };
        self.records.values().filter(is_over).map(|record| &record.id)
    }

    fn sweep(&mut self, limit: usize) -> u64 {
        let over: Vec<RequestId> = self.over().take(limit).cloned().collect();
        over.iter().for_each(|id| drop(self.records.remove(id)));
        over.len() as u64
    }
}

impl RequestFilter {
    fn admits(&self, record: &Record) -> bool {
        let id = &record.id;
        *id.namespace() == self.namespace
            && self.principal.as_deref().is_none_or(|principal| principal == id.principal())
            && self.method.as_deref().is_none_or(|method| method == id.method())
            && (self.statuses.is_empty() || self.statuses.contains(&record.status()))
    }
}

fn listed(record: &Record) -> Listed {
    Listed {
        id: record.id.clone(),
        status: record.status(),
        token: record.token,
        attempt: record.attempt,
        lease_until_us: record.lease_until_us,
        point: record.point.as_ref().map(|point| point.name.clone()),
        response_code: record.completion.as_ref().map(|end| end.response_code),
        error_message: record.completion.as_ref().and_then(|end| end.error_message.clone()),
        created_at_us: record.created_at_us,
        expires_at_us: record.expires_at_us,
    }
}

impl RequestStore for MemoryRequests {
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(ready(Ok(self.table().claim(claim, false))))
    }

    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(ready(Ok(self.table().claim(claim, true))))
    }

    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
        let checked = check_completion(completion);
        Box::pin(ready(checked.map(|()| self.table().finish(lease, completion))))
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
        let mut table = self.table();
        let until = table.clock.now_us() + micros(ttl);
        Box::pin(ready(Ok(table.change(lease, |record| record.lease_until_us = until))))
    }

    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
        let set = |()| self.table().change(lease, |record| record.point = Some(point.clone()));
        Box::pin(ready(check_point(point).map(set)))
    }

    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
        Box::pin(ready(Ok(self.table().records.get(id).cloned())))
    }

    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
        Box::pin(ready(Ok(self.table().list(filter))))
    }

    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
        Box::pin(ready(Ok(self.table().release(id))))
    }

    fn sweep(&self, limit: usize) -> Answer<'_, u64> {
        Box::pin(ready(Ok(self.table().sweep(limit))))
    }

    fn expired(&self) -> Answer<'_, u64> {
        Box::pin(ready(Ok(self.table().over().count() as u64)))
    }

    fn now_us(&self) -> Answer<'_, i64> {
        Box::pin(ready(Ok(self.table().clock.now_us())))
    }
}
