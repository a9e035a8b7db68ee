//! What only the store knows: asked for now and then, so that a scrape costs it nothing.

use hapax::{Engine, store::CensusFilter};
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

/// The latest answers; `None`: the store hasn't answered yet. What it said last stands while it is away.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Whether it answered the last time.
    pub(crate) is_there: Option<bool>,
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
                let (in_doubt, outbox) = (in_doubt(&engine).await, backlog(&engine).await);
                let is_there = Some(in_doubt.is_some() && outbox.is_some());
                let mut sample = into.lock().unwrap_or_else(PoisonError::into_inner);
                let (in_doubt, outbox) = (in_doubt.or(sample.in_doubt), outbox.or(sample.outbox));
                *sample = Sample { is_there, in_doubt, outbox };
            }
        });
        Self { samples, task }
    }

    pub(crate) fn samples(&self) -> Samples {
        self.samples.clone()
    }
}

async fn in_doubt(engine: &Engine) -> Option<u64> {
    // The counts alone.
    let census = engine.census(CensusFilter { limit: 0, ..CensusFilter::default() }).await.ok()?;
    Some(census.standing("in_doubt").count)
}

async fn backlog(engine: &Engine) -> Option<Backlog> {
    let backlog = engine.backlog().await.ok()?;
    let (pending, dead) = (backlog.pending.count, backlog.dead.count);
    Some(Backlog { pending, dead, lag_seconds: backlog.lag().as_secs_f64() })
}
