//! The outbox of the reference model: plain lists, and one claim for each channel.
//!
//! Invariant: a channel has an entry exactly while it has a pending message; so what isn't there can't be claimed.

use super::{MemoryStore, Tables, run::Run};
use crate::{
    check::is_elsewhere,
    clock::micros,
    error::StoreError,
    outbox::{
        Backlog, Batch, Channel, Claim, ClaimFilter, Failure, Fate, MessageState, Outbox, OutboxFilter,
        OutboxRecord,
    },
    store::{Answer, Claimant, Tally},
};
use hapax_core::{
    commit::StepCommit,
    id::{Namespace, RunKey},
    outbox::Place,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The messages of one run.
#[derive(Debug, Default)]
pub(super) struct RunOutbox {
    pub(super) messages: BTreeMap<Place, OutboxRecord>,
    channels: BTreeMap<Arc<str>, Standing>,
}

/// Where a channel stands.
#[derive(Debug, Clone, Copy)]
struct Standing {
    /// The token of the latest claim; `None`: nobody holds it.
    token: Option<u128>,
    /// When it may be claimed: the end of the claim, or of a rest.
    due_us: i64,
}

impl RunOutbox {
    /// Takes in what a step sends.
    pub(super) fn write(&mut self, commit: &StepCommit, now_us: i64) {
        for (message, position) in commit.outbox.iter().zip(0..) {
            let place = Place { step: commit.checkpoint.step, position };
            let record = OutboxRecord {
                run: commit.run.clone(),
                place,
                message: message.clone(),
                state: MessageState::Pending,
                attempts: 0,
                error: None,
                written_at_us: now_us,
            };
            self.messages.insert(place, record);
            self.open(&message.topic, now_us);
        }
    }

    fn open(&mut self, topic: &str, now_us: i64) {
        self.channels.entry(topic.into()).or_insert(Standing { token: None, due_us: now_us });
    }

    /// Whether a relay delivers some of it just now.
    pub(super) fn is_claimed(&self, now_us: i64) -> bool {
        self.channels.values().any(|standing| standing.token.is_some() && standing.due_us > now_us)
    }

    /// No relay finds anything here.
    pub(super) fn shut(&mut self) {
        self.channels.clear();
    }

    /// Relays find what waits.
    pub(super) fn reopen(&mut self, now_us: i64) {
        let pending = self.messages.values().filter(|record| record.state == MessageState::Pending);
        let topics: Vec<String> = pending.map(|record| record.message.topic.clone()).collect();
        topics.iter().for_each(|topic| self.open(topic, now_us));
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.messages.values().any(|record| record.state != MessageState::Sent)
    }

    fn pending(&self, topic: &str) -> impl Iterator<Item = &OutboxRecord> {
        let here = move |record: &&OutboxRecord| {
            record.message.topic == topic && record.state == MessageState::Pending
        };
        self.messages.values().filter(here)
    }

    /// The channel of a claim, if the claim is its latest one.
    fn held(&mut self, claim: &Claim) -> Result<&mut Standing, StoreError> {
        let lost = || StoreError::ClaimLost { channel: claim.channel.clone() };
        let standing = self.channels.get_mut(&claim.channel.topic).ok_or_else(lost)?;
        if standing.token == Some(claim.token) { Ok(standing) } else { Err(lost()) }
    }

    fn mark_sent(
        &mut self,
        claim: &Claim,
        sent: &[Place],
        keep: Option<Duration>,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let standing = self.held(claim)?;
        standing.token = standing.token.filter(|_| keep.is_some());
        standing.due_us = now_us.saturating_add(keep.map_or(0, micros));
        for place in sent {
            let pending = |record: &&mut OutboxRecord| record.state == MessageState::Pending;
            if let Some(record) = self.messages.get_mut(place).filter(pending) {
                record.state = MessageState::Sent;
            }
        }
        self.close_if_empty(&claim.channel.topic);
        Ok(())
    }

    fn mark_failed(
        &mut self,
        claim: &Claim,
        place: Place,
        failure: Failure,
        now_us: i64,
    ) -> Result<Fate, StoreError> {
        let standing = self.held(claim)?;
        *standing = Standing { token: None, due_us: now_us.saturating_add(micros(failure.again_after)) };
        let Some(record) = self.messages.get_mut(&place) else { return Ok(Fate::Again) };
        record.attempts += failure.count();
        let dead = failure.is_last(record.attempts);
        record.error = Some(failure.error);
        if !dead {
            return Ok(Fate::Again);
        }
        record.state = MessageState::Dead;
        if let Some(standing) = self.channels.get_mut(&claim.channel.topic) {
            standing.due_us = now_us;
        }
        self.close_if_empty(&claim.channel.topic);
        Ok(Fate::Dead)
    }

    fn close_if_empty(&mut self, topic: &Arc<str>) {
        if self.pending(topic).next().is_none() {
            self.channels.remove(topic);
        }
    }

    fn retry_dead(&mut self, now_us: i64) -> usize {
        let dead = self.messages.values_mut().filter(|record| record.state == MessageState::Dead);
        let topics: Vec<String> = dead
            .map(|record| {
                (record.state, record.attempts, record.error) = (MessageState::Pending, 0, None);
                record.message.topic.clone()
            })
            .collect();
        topics.iter().for_each(|topic| self.open(topic, now_us));
        for resting in self.channels.values_mut().filter(|standing| standing.token.is_none()) {
            resting.due_us = resting.due_us.min(now_us);
        }
        topics.len()
    }

    fn drop_dead(&mut self) -> usize {
        let before = self.messages.len();
        self.messages.retain(|_, record| record.state != MessageState::Dead);
        before - self.messages.len()
    }
}

impl Tables {
    /// Channels that may be claimed, those first that have waited longest.
    fn due(&self, filter: &ClaimFilter) -> Vec<Channel> {
        let now = self.clock.now_us();
        let wanted = |topic: &Arc<str>| filter.topics.is_empty() || filter.topics.contains(topic);
        let ours = self.runs.values().filter(|run| run.record.key.namespace == filter.namespace);
        let mut due: Vec<(i64, Channel)> = ours
            .flat_map(|run| run.outbox.channels.iter().map(move |(topic, standing)| (run, topic, standing)))
            .filter(|(_, topic, standing)| standing.due_us <= now && wanted(topic))
            .map(|(run, topic, standing)| {
                (standing.due_us, Channel { run: run.record.key.clone(), topic: topic.clone() })
            })
            .collect();
        due.sort();
        due.into_iter().take(filter.channels).map(|(_, channel)| channel).collect()
    }

    fn claim_channel(&mut self, channel: Channel, most: usize, by: &Claimant) -> Option<Batch> {
        let now = self.clock.now_us();
        let outbox = &mut self.runs.get_mut(&channel.run)?.outbox;
        let token = uuid::Uuid::new_v4().as_u128();
        let standing = Standing { token: Some(token), due_us: now.saturating_add(micros(by.ttl)) };
        outbox.channels.insert(channel.topic.clone(), standing);
        let messages: Vec<OutboxRecord> = outbox.pending(&channel.topic).take(most).cloned().collect();
        let more = outbox.pending(&channel.topic).nth(messages.len()).is_some();
        Some(Batch { claim: Claim { channel, token }, messages, more })
    }

    fn outbox_of(&mut self, claim: &Claim) -> Result<&mut RunOutbox, StoreError> {
        let lost = || StoreError::ClaimLost { channel: claim.channel.clone() };
        self.runs.get_mut(&claim.channel.run).map(|run| &mut run.outbox).ok_or_else(lost)
    }

    /// The messages of a run which are delivered from here.
    fn sender(&mut self, key: &RunKey) -> Result<&mut RunOutbox, StoreError> {
        let run = self.run_mut(key)?;
        if is_elsewhere(&run.record.status) { Err(run.wrong_status()) } else { Ok(&mut run.outbox) }
    }

    fn list_outbox(&self, filter: &OutboxFilter) -> Vec<OutboxRecord> {
        let mut runs: Vec<&Run> = self.runs.values().collect();
        runs.sort_by(|a, b| a.record.key.cmp(&b.record.key));
        let ours = |run: &&Run| {
            run.record.key.namespace == filter.namespace
                && filter.run.as_ref().is_none_or(|id| *id == run.record.key.run)
        };
        let messages = runs.into_iter().filter(ours).flat_map(|run| run.outbox.messages.values());
        let stands =
            |record: &&OutboxRecord| filter.states.is_empty() || filter.states.contains(&record.state);
        messages.filter(stands).take(filter.limit).cloned().collect()
    }

    fn backlog(&self, namespace: &Namespace) -> Backlog {
        let ours = self.runs.values().filter(|run| run.record.key.namespace == *namespace);
        let (mut pending, mut dead, mut oldest) = (0, 0, None);
        for record in ours.flat_map(|run| run.outbox.messages.values()) {
            match record.state {
                MessageState::Pending => {
                    pending += 1;
                    oldest = oldest.into_iter().chain([record.written_at_us]).min();
                }
                MessageState::Dead => dead += 1,
                MessageState::Sent => {}
            }
        }
        Backlog {
            pending: Tally::exactly(pending),
            dead: Tally::exactly(dead),
            oldest_pending_at_us: oldest,
            at_us: self.clock.now_us(),
        }
    }
}

impl Outbox for MemoryStore {
    fn claim(&self, filter: ClaimFilter, by: Claimant) -> Answer<'_, Vec<Batch>> {
        Box::pin(async move {
            let mut tables = self.tables();
            let due = tables.due(&filter);
            let claim = |channel| tables.claim_channel(channel, filter.messages.max(1), &by);
            Ok(due.into_iter().filter_map(claim).collect())
        })
    }

    fn mark_sent(&self, claim: Claim, sent: Vec<Place>, keep: Option<Duration>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut tables = self.tables();
            let now = tables.clock.now_us();
            tables.outbox_of(&claim)?.mark_sent(&claim, &sent, keep, now)
        })
    }

    fn mark_failed(&self, claim: Claim, place: Place, failure: Failure) -> Answer<'_, Fate> {
        Box::pin(async move {
            let mut tables = self.tables();
            let now = tables.clock.now_us();
            tables.outbox_of(&claim)?.mark_failed(&claim, place, failure, now)
        })
    }

    fn list(&self, filter: OutboxFilter) -> Answer<'_, Vec<OutboxRecord>> {
        Box::pin(async move { Ok(self.tables().list_outbox(&filter)) })
    }

    fn backlog(&self, namespace: Namespace) -> Answer<'_, Backlog> {
        Box::pin(async move { Ok(self.tables().backlog(&namespace)) })
    }

    fn retry_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(async move {
            let mut tables = self.tables();
            let now = tables.clock.now_us();
            Ok(tables.sender(&run)?.retry_dead(now))
        })
    }

    fn drop_dead(&self, run: RunKey) -> Answer<'_, usize> {
        Box::pin(async move { Ok(self.tables().sender(&run)?.drop_dead()) })
    }
}
