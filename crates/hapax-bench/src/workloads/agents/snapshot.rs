//! Snapshots of a workspace that nobody looked at before, and of one that hasn't changed since.

use crate::{
    Result, clock,
    meter::{Meter, Tally, extra},
};
use hapax::agent::Workspace;
use std::{fs, path::Path, time::Duration};
use tempfile::TempDir;

/// Files in each folder.
const TOGETHER: u64 = 100;
const BYTES: usize = 1024;
const SNAPSHOTS: u64 = 10;
/// What has changed as lately is read again each time.
const SETTLED: Duration = Duration::from_millis(1100);

fn fill(root: &Path, files: u64) -> Result<()> {
    for number in 0..files {
        let folder = root.join((number / TOGETHER).to_string());
        if number % TOGETHER == 0 {
            fs::create_dir(&folder)?;
        }
        let text = format!("{number} ").repeat(BYTES);
        fs::write(folder.join(format!("{number}.txt")), &text[..BYTES])?;
    }
    Ok(())
}

pub(super) async fn run(files: u64, warm: bool, folder: &TempDir) -> Result<()> {
    fill(folder.path(), files)?;
    tokio::time::sleep(SETTLED).await;
    let (known, tally) = (Workspace::open(folder.path())?, Tally::new(SNAPSHOTS));
    let wanted = known.snapshot()?;
    let meter = Meter::begin(tally.clone());
    for _ in 0..SNAPSHOTS {
        let workspace = if warm { known.clone() } else { Workspace::open(folder.path())? };
        let start = clock::now();
        let snapshot = workspace.snapshot()?;
        tally.count();
        tally.record(start);
        if snapshot != wanted {
            return Err("the same files have another snapshot".into());
        }
    }
    meter.end(SNAPSHOTS, 0, extra("snapshots", "of a snapshot"));
    Ok(())
}
