//! Runs that move here from another store: shut, copied, read back and compared, as `hapax migrate` does it.

use super::payloads;
use crate::{
    Result,
    args::Drive,
    clock,
    meter::{Meter, Tally, extra, transactions},
};
use futures::{StreamExt, TryStreamExt, stream};
use hapax::store::{ListFilter, house::Mover};

/// Runs that are on their way at once, as the command has them.
const AT_ONCE: usize = 8;

/// Moves all runs of that store.
pub(super) async fn run(drive: &Drive, from: &str) -> Result<()> {
    let old = payloads::open(from, drive.payloads).await?;
    let new = payloads::open(&drive.store, drive.payloads).await?;
    let runs = old.list(ListFilter { limit: usize::MAX, ..ListFilter::default() }).await?;
    let (mover, before) = (Mover::new(old.clone(), new.clone(), "a new house"), [old.stats(), new.stats()]);
    let tally = Tally::new(runs.len() as u64);
    let meter = Meter::begin(tally.clone());
    let moved = stream::iter(runs).map(async |run| {
        let began = clock::now();
        let load = mover.carry(run.key).await?;
        tally.count();
        tally.record(began);
        Ok::<_, hapax::store::StoreError>(load.runs)
    });
    let moved: u64 = moved.buffer_unordered(AT_ONCE).try_fold(0, async |sum, runs| Ok(sum + runs)).await?;
    let commits = transactions(before[0], old.stats()) + transactions(before[1], new.stats());
    meter.end(moved, commits, extra("runs", "of a run, from shut to open"));
    old.close().await;
    new.close().await;
    Ok(())
}
