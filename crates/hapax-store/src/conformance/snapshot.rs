//! What is loaded was true at one moment: row, checkpoint and journal belong together.

use super::{Fixture, sample::Sample};
use crate::store::{Loaded, Store};
use hapax_core::{commit::Write, id::RunKey};
use std::sync::Arc;

/// A worker commits while two readers load.
pub async fn a_loaded_journal_belongs_to_its_checkpoint(fixture: Fixture) {
    const STEPS: u64 = 60;
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    let readers = [fixture.store.clone(), fixture.other_handle()]
        .map(|store| tokio::spawn(load_until(store, holder.key.clone(), STEPS)));
    for n in 0..STEPS {
        holder.write(Write::Append(holder.append(2))).await.unwrap();
        holder.commit(holder.next_with(&n.to_string(), 2, 1, vec![])).await.unwrap();
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.expect("every load was one snapshot");
    }
}

async fn load_until(store: Arc<dyn Store>, key: RunKey, steps: u64) {
    loop {
        let loaded = store.load(key.clone()).await.expect("an intact run");
        assert_together(&loaded);
        if loaded.record.step == steps {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn assert_together(loaded: &Loaded) {
    let Loaded { record, checkpoint, journal } = loaded;
    assert_eq!((record.step, record.digest), (checkpoint.step, checkpoint.digest));
    assert!(journal.iter().all(|row| row.base == checkpoint.digest && row.step == checkpoint.step));
    assert!(journal.is_sorted_by_key(|row| row.seq));
    assert!([0, 2].contains(&journal.len()), "{} rows", journal.len());
    assert_eq!(record.next_seq, record.step * 3 + journal.len() as u64);
}

/// Rows that earlier steps left.
pub async fn rows_of_another_base_are_not_loaded(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    holder.write(Write::Append(holder.append(2))).await.unwrap();
    holder.commit(holder.next("one")).await.unwrap();
    holder.write(Write::Append(holder.append(1))).await.unwrap();
    let loaded = fixture.store.load(holder.key.clone()).await.unwrap();
    assert_eq!(loaded.journal.iter().map(|row| row.seq).collect::<Vec<_>>(), [2]);
    assert_eq!(fixture.store.journal(holder.key.clone(), 0, 100).await.unwrap().len(), 3);
    let second = fixture.store.journal(holder.key.clone(), 1, 1).await.unwrap();
    assert_eq!(second.iter().map(|row| row.seq).collect::<Vec<_>>(), [1]);
}
