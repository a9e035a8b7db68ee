//! What only the store knows: asked for now and then, so that a scrape costs it nothing.

use hapax::{
    Engine,
    store::{
        ListFilter,
        outbox::{MessageState, OutboxFilter},
    },
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

/// How often the store is asked.
const EVERY: Duration = Duration::from_secs(15);
/// How many of each are looked at.
const MOST: usize = 1000;

/// The latest answers; `None`: the store hasn't answered yet, or not the last time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) in_doubt: Option<u64>,
    pub(crate) outbox: Option<Backlog>,
}

/// What messages wait.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Backlog {
    pub(crate) pending: u64,
    pub(crate) dead: u64,
    pub(crate) lag_seconds: f64,
}

/// Where the latest answers are.
pub(crate) type Samples = Arc<Mutex<Sample>>;

/// The task that asks; it ends with this.
#[derive(Debug)]
pub(crate) struct Sampler {
    samples: Samples,
    task: JoinHandle<()>,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sampler {
    pub(crate) fn start(engine: Engine) -> Self {
        let samples = Samples::default();
        let into = samples.clone();
        let task = tokio::spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let sample = Sample { in_doubt: in_doubt(&engine).await, outbox: backlog(&engine).await };
                *into.lock().unwrap_or_else(PoisonError::into_inner) = sample;
            }
        });
        Self { samples, task }
    }

    pub(crate) fn samples(&self) -> Samples {
        self.samples.clone()
    }
}

async fn in_doubt(engine: &Engine) -> Option<u64> {
    let filter = ListFilter { statuses: vec!["in_doubt".into()], limit: MOST, ..ListFilter::default() };
    Some(engine.list(filter).await.ok()?.len() as u64)
}

async fn backlog(engine: &Engine) -> Option<Backlog> {
    let list = async |state| {
        engine.outbox(OutboxFilter { states: vec![state], limit: MOST, ..OutboxFilter::default() }).await
    };
    let pending = list(MessageState::Pending).await.ok()?;
    let dead = list(MessageState::Dead).await.ok()?.len() as u64;
    let now_us = engine.store().clock().now_us();
    // Those that were written before that was kept have no age.
    let oldest_us = pending.iter().map(|record| record.written_at_us).filter(|at_us| *at_us > 0).min();
    let lag_us = oldest_us.map_or(0, |at_us| now_us.saturating_sub(at_us).max(0));
    Some(Backlog { pending: pending.len() as u64, dead, lag_seconds: lag_us as f64 / 1e6 })
}
