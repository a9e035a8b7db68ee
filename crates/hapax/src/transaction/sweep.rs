//! Deletes markers that nobody can need any more.
//!
//! Invariant: a marker goes only when the end of its transaction is durable, with the step that it was part of, and when it is
//! older than any zombie can be.

use crate::{clock, gate::lock, worker::Shared};
use hapax_core::{canary, commit::Status, id::RunKey};
use hapax_store::StoreError;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Markers that are looked at in one go at the most.
const BATCH: usize = 1_000;

/// A marker that a transaction of this engine has left.
#[derive(Debug, Clone)]
struct Left {
    database: Arc<str>,
    id: String,
    run: RunKey,
    step: u64,
    /// When, since the machine started.
    at: Duration,
}

/// The markers that this engine has left and not deleted yet, in their order.
#[derive(Debug, Default)]
pub(crate) struct Markers(Mutex<VecDeque<Left>>);

/// Notes a marker when it is dropped: then it is there, if it ever will be, also when nobody waited for the end.
pub(super) struct Leaves<'m> {
    pub(super) markers: &'m Markers,
    pub(super) database: &'m str,
    pub(super) id: &'m str,
    pub(super) run: &'m RunKey,
    pub(super) step: u64,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.markers.left(self.database, self.id, self.run, self.step);
    }
}

impl Markers {
    fn left(&self, database: &str, id: &str, run: &RunKey, step: u64) {
        let (database, id, run) = (database.into(), id.to_owned(), run.clone());
        lock(&self.0).push_back(Left { database, id, run, step, at: clock::since_boot() });
    }

    /// Takes out those that are old enough.
    fn old(&self, retention: Duration) -> Vec<Left> {
        let mut left = lock(&self.0);
        let old = left.iter().take(BATCH).take_while(|one| one.at + retention <= clock::since_boot()).count();
        left.drain(..old).collect()
    }

    fn put_back(&self, kept: Vec<Left>) {
        lock(&self.0).extend(kept);
    }
}

/// Deletes markers for as long as the engine lives.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    let retention = shared.options.marker_retention;
    let often = (retention / 15).clamp(Duration::from_millis(100), Duration::from_secs(60));
    let mut ticks = clock::ticks(often);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.over() => return,
        }
        while sweep_once(&shared, retention).await == BATCH {}
    }
}

/// Looks at a batch; answers how many it deleted.
async fn sweep_once(shared: &Shared, retention: Duration) -> usize {
    let (mut kept, mut gone) = (vec![], BTreeMap::<Arc<str>, Vec<Left>>::new());
    let (mut durable, mut deleted) = (BTreeMap::new(), 0);
    for left in shared.markers.old(retention) {
        if !durable.contains_key(&left.run) {
            let step = step_of(shared, &left.run).await.ok();
            durable.insert(left.run.clone(), step);
        }
        match durable[&left.run] {
            Some(step) if step > left.step || canary::on("swept_early") => {
                gone.entry(left.database.clone()).or_default().push(left);
            }
            _ => kept.push(left),
        }
    }
    for (name, left) in gone {
        let ids = left.iter().map(|left| left.id.clone()).collect();
        let swept = match shared.databases.get(&name).await {
            Ok(database) => database.sweep(ids, retention).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(_) => deleted += left.len(),
            Err(error) => {
                tracing::warn!(database = &*name, %error, "cannot delete markers; trying again");
                kept.extend(left);
            }
        }
    }
    shared.markers.put_back(kept);
    deleted
}

/// The step that the run has durably reached; any, once it is over for good or gone. One that failed may be retried, and what
/// its last step saw may not be durable.
async fn step_of(shared: &Shared, run: &RunKey) -> Result<u64, StoreError> {
    let record = shared.store.run(run.clone()).await?;
    let is_over = |status: &Status| {
        matches!(status, Status::Succeeded | Status::Cancelled)
            || canary::on("swept_failed") && status.is_final()
    };
    Ok(record.filter(|record| !is_over(&record.status)).map_or(u64::MAX, |record| record.step))
}
