//! A call's turn in a bucket, which is waited for before the call is begun.
//!
//! Invariant: a call that waits for its turn has no intent, so nobody doubts whether it was made. A turn that the run is parked
//! for is recorded: whoever goes on with the item waits for the same one, and makes one call by it.

use super::{Asked, EffectFuture, word};
use crate::{gate::lock, item::Live, wait::Wait};
use hapax_core::{
    canary,
    flow::Rate,
    journal::{EffectKind, Entry, Turn},
    mailbox,
};
use std::time::Duration;

/// How long a rate-limited call waits before it asks a store again that was out of reach.
const AGAIN: Duration = Duration::from_millis(200);

/// How often it does so before its run is parked.
const TRIES: usize = 5;

/// For how long it is parked then.
const AWAY: Duration = Duration::from_secs(5);

impl EffectFuture<'_> {
    /// Waits for the turn of a call that is about to be made.
    pub(crate) async fn turn(&self, asked: &Asked, rate: &Rate) {
        let live = self.live().await;
        if self.is_scripted(live) || !self.is_made(live, asked).await {
            return;
        }
        let recorded = lock(&self.attempt.item.recorded).turn(self.scope, self.index, &rate.name);
        let due_us = match recorded.filter(|_| !canary::on("turn_forgotten")) {
            Some(due_us) => due_us,
            None => self.reserve(live, rate).await,
        };
        let is_recorded = recorded.is_some() || self.parks(live, live.left_until(due_us));
        if is_recorded && recorded != Some(due_us) {
            self.attempt.item.see([self.turn_note(live, rate, Some(due_us))]);
        }
        self.until(live, due_us).await;
        if is_recorded {
            let _busy = self.attempt.waits.busy();
            let taken = self.turn_note(live, rate, None);
            if self.kind == EffectKind::Read && !canary::on("turn_twice") {
                // No intent follows: after a crash nobody knew that the call had left.
                self.record(live, &[taken], false, false).await;
            } else {
                self.attempt.item.see([taken]);
            }
        }
    }

    fn is_scripted(&self, live: &Live) -> bool {
        live.shared.script.as_ref().is_some_and(|script| script.has(self.name))
    }

    /// Whether the call is about to be made. One in doubt is when a person has said so, which is waited for first: no turn
    /// is taken meanwhile.
    async fn is_made(&self, live: &Live, asked: &Asked) -> bool {
        if !self.in_doubt(live) {
            return true;
        }
        let busy = self.attempt.waits.busy();
        let subject = mailbox::resolution(&asked.key);
        let letter = self.attempt.with_store(live.mailbox.look(&live.gate, &subject)).await;
        match self.unless_halted(letter).await {
            Some(letter) => word(&letter).is_none(),
            None => {
                drop(busy);
                self.attempt.waits.wait(Wait::Word(subject)).await
            }
        }
    }

    /// Reserves a turn; answers when it is, by the clock of the run's own store. A bucket that is out of reach costs neither
    /// the node's time nor, for long, the run's.
    async fn reserve(&self, live: &Live, rate: &Rate) -> i64 {
        let (flow, namespace) = (live.shared.store.flow(), &self.attempt.item.run.namespace);
        loop {
            let busy = self.attempt.waits.busy();
            for _ in 0..TRIES {
                let ask = async {
                    let answer = flow.reserve(namespace.clone(), rate.clone()).await;
                    if let Err(error) = &answer {
                        tracing::warn!(%error, "cannot take a turn in a bucket; trying again");
                        tokio::time::sleep(AGAIN).await;
                    }
                    answer
                };
                if let Ok(reserved) = self.attempt.with_store(ask).await {
                    live.shared.counters.rate_waits.one_more();
                    let wait = reserved.wait(flow.clock(&rate.name).now_us());
                    return crate::clock::later(live.now_us(), wait);
                }
            }
            drop(busy);
            self.until(live, crate::clock::later(live.now_us(), AWAY)).await;
        }
    }

    fn turn_note(&self, live: &Live, rate: &Rate, due_us: Option<i64>) -> Entry {
        Entry::Turn(Turn {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            bucket: rate.name.clone(),
            due_us,
            at_us: live.now_us(),
        })
    }
}
