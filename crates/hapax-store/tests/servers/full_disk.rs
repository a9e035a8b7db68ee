//! A disk that is full amid a group commit: what was acknowledged is there, nothing is there by half, and once there is
//! room the same store goes on.

use crate::both::{Kind, on_both, sql};
use hapax_core::{
    commit::{Write, Written},
    error::{Coded, code},
    key::sha256,
};
use hapax_servers::{MariaDb, Postgres};
use hapax_store::{
    Pace, Store, StoreError,
    conformance::{Holder, Sample, sample::step},
};
use std::sync::Arc;

on_both! {
    a_full_disk_amid_a_group_commit_loses_nothing,
}

/// More rounds than any of the disks can take.
const ROUNDS: usize = 400;

/// A server with a database on a small disk, of which a table named `ballast` takes about the half.
fn small(kind: Kind) -> (String, Box<dyn std::any::Any + Send>) {
    let (url, server): (_, Box<dyn std::any::Any + Send>) = match kind {
        Kind::Postgres => {
            let (server, url) = Postgres::start_with_disk(48).expect("a server");
            (url, Box::new(server))
        }
        Kind::MySql => {
            let (server, url) = MariaDb::start_with_disk(48).expect("a server");
            (url, Box::new(server))
        }
    };
    let rows = kind.pick("generate_series(1, 16000)", "seq_1_to_16000");
    sql(&url, &format!("CREATE TABLE ballast AS SELECT repeat('x', 1000) AS x FROM {rows}"));
    (url, server)
}

/// A text of some 100 KB that hardly gets smaller.
fn noise(seed: &str) -> String {
    (0..1600).map(|n| sha256(format!("{seed} {n}").as_bytes()).to_string()).collect()
}

/// All commit at once.
async fn commit(store: &Arc<dyn Store>, writes: &[Arc<Write>]) -> Vec<Result<Written, StoreError>> {
    let one = |write: &Arc<Write>| {
        let (store, write) = (store.clone(), write.clone());
        async move { store.submit(write, Pace::Ahead).await?.await }
    };
    futures::future::join_all(writes.iter().map(one)).await
}

fn next(holder: &Holder, round: usize) -> Arc<Write> {
    Arc::new(step(holder.next_with(&noise(&format!("{} {round}", holder.key.run)), 2, 1, vec![])))
}

async fn a_full_disk_amid_a_group_commit_loses_nothing(kind: Kind) {
    let (url, _server) = small(kind);
    let store = kind.store(&url).await;
    let mut holders = vec![];
    for n in 0..12 {
        holders.push(Sample::run(&format!("r{n}")).hold(&store).await);
    }
    let mut refused: Vec<(usize, Arc<Write>)> = vec![];
    for round in 0..ROUNDS {
        let writes: Vec<Arc<Write>> = holders.iter().map(|holder| next(holder, round)).collect();
        for (n, outcome) in commit(&store, &writes).await.into_iter().enumerate() {
            match outcome {
                Ok(written) => {
                    assert_eq!(written, Written::Committed);
                    holders[n].passed(&writes[n]);
                }
                Err(error) => {
                    assert_eq!(error.code(), code::STORE_FULL, "{error}");
                    refused.push((n, writes[n].clone()));
                }
            }
        }
        if !refused.is_empty() {
            break;
        }
    }
    assert!(!refused.is_empty(), "the disk is small");
    for holder in &holders {
        let loaded = store.load(holder.key.clone()).await.expect("reads go on, and what is there is whole");
        let found = (loaded.record.step, loaded.record.digest, loaded.record.next_seq);
        assert_eq!(found, (holder.step, holder.digest, holder.next_seq), "{}", holder.key);
    }
    let whole = "SELECT count(*) FROM hapax_checkpoints AS c JOIN hapax_runs AS r USING (namespace, run_id) \
                 WHERE c.step_id > r.step_id";
    assert_eq!(sql(&url, whole), "0", "nothing is there of what was refused");
    sql(&url, "DROP TABLE ballast");
    for (n, write) in refused {
        assert!(matches!(store.settle(write.clone()).await, Err(StoreError::Retry(_))));
        let again = commit(&store, std::slice::from_ref(&write)).await.remove(0);
        assert_eq!(again.expect("there is room"), Written::Committed);
        holders[n].passed(&write);
    }
    for holder in holders {
        holder.finish().await;
    }
}
