//! Deletes markers that nobody can need any more.
//!
//! Invariant: a marker goes only when the end of its transaction is durable, with the step that it was part of, and when it is
//! older than any zombie can be.

use super::protocol::{marker_id, word};
use crate::{clock, gate::lock, worker::Shared};
use hapax_core::{
    canary,
    commit::Status,
    id::RunKey,
    journal::{Entry, JournalRow, Recorded, TxSaid},
};
use hapax_store::{StoreError, db::Strategy};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Markers that are looked at in one go at the most.
const BATCH: usize = 1_000;

/// A marker that a transaction of this engine has left.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    database: Arc<str>,
    id: String,
    run: RunKey,
    step: u64,
    /// When, since the machine started.
    at: Duration,
}

impl Left {
    pub(crate) fn run(&self) -> &RunKey {
        &self.run
    }
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

/// The markers that these runs have left, as their journals tell: whoever left them may be gone. One that nobody will ever read
/// tells nothing, and its markers stay. One that can't be read now, for lack of a key say, is an error: its run must not go before.
pub(crate) async fn left_by(shared: &Shared, runs: &[RunKey]) -> Result<Vec<Left>, StoreError> {
    let mut left = vec![];
    for run in runs {
        let marked = match marked(shared, run).await {
            Ok(marked) => marked.into_iter(),
            Err(error) if matches!(error, StoreError::Corrupt { .. }) || canary::on("gone_unread") => {
                tracing::warn!(run = run.run.as_str(), %error, "its journal can't be read, so its markers stay");
                continue;
            }
            Err(error) => return Err(error),
        };
        let at = clock::since_boot();
        left.extend(marked.map(|(database, id, step)| Left { database, id, run: run.clone(), step, at }));
    }
    Ok(left)
}

/// The database, the id and the step of each marker that a run's journal tells of.
async fn marked(shared: &Shared, run: &RunKey) -> Result<Vec<(Arc<str>, String, u64)>, StoreError> {
    let mut items = BTreeMap::<_, Recorded>::new();
    let (mut marked, mut next_seq, mut latest) = (vec![], 0, 0);
    loop {
        let rows = shared.store.journal(run.clone(), next_seq, BATCH).await?;
        let Some(last) = rows.last() else { return Ok(marked) };
        next_seq = last.seq + 1;
        for row in rows.iter().filter(|row| !matches!(row.entry, Entry::Chunk(_))) {
            if row.step > latest {
                // Rows behind it ask for nothing that earlier steps have recorded.
                items.clear();
                latest = row.step;
            }
            let recorded = items.entry((row.step, row.path_hash)).or_default();
            marked.extend(row.entries().iter().filter_map(|entry| marker(recorded, row, entry)));
        }
    }
}

/// The marker that an entry tells of, once the entries of its item before it are taken.
fn marker(recorded: &mut Recorded, row: &JournalRow, entry: &Entry) -> Option<(Arc<str>, String, u64)> {
    recorded.take(entry);
    let Entry::Transaction(note) = entry else { return None };
    let TxSaid::Begins { database, strategy } = &note.said else { return None };
    let call = recorded.call(&note.scope, note.index).filter(|_| *strategy == word(Strategy::Marker))?;
    Some((database.as_str().into(), marker_id(&call.key, call), row.step))
}

/// Deletes the markers of runs that are deleted; those that a zombie may still meet later.
pub(crate) async fn forget(shared: &Shared, left: Vec<Left>) {
    if !canary::on("markers_outlive_runs") {
        delete(shared, left.clone()).await;
        shared.markers.put_back(left);
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
    let (mut kept, mut gone, mut durable) = (vec![], vec![], BTreeMap::new());
    for left in shared.markers.old(retention) {
        if !durable.contains_key(&left.run) {
            let step = step_of(shared, &left.run).await.ok();
            durable.insert(left.run.clone(), step);
        }
        match durable[&left.run] {
            Some(step) if step > left.step || canary::on("swept_early") => gone.push(left),
            _ => kept.push(left),
        }
    }
    let old = gone.len();
    let failed = delete(shared, gone).await;
    let deleted = old - failed.len();
    kept.extend(failed);
    shared.markers.put_back(kept);
    deleted
}

/// Deletes markers that are old enough by their database's clock; answers those of which it couldn't say.
async fn delete(shared: &Shared, markers: Vec<Left>) -> Vec<Left> {
    let mut by_database = BTreeMap::<Arc<str>, Vec<Left>>::new();
    for left in markers {
        by_database.entry(left.database.clone()).or_default().push(left);
    }
    let mut failed = vec![];
    for (name, left) in by_database {
        let ids = left.iter().map(|left| left.id.clone()).collect();
        let swept = match shared.databases.get(&name).await {
            Ok(database) => database.sweep(ids, shared.options.marker_retention).await,
            Err(error) => Err(error),
        };
        if let Err(error) = swept {
            tracing::warn!(database = &*name, %error, "cannot delete markers; trying again");
            failed.extend(left);
        }
    }
    failed
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
