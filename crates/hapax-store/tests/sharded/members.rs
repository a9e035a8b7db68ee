//! Databases are opened as the shards that they are, or not at all, whoever opens them at the same time or died over it.

use super::{every_kind, file, folder};
use futures::future::join_all;
use hapax_core::error::Coded as _;
use hapax_store::{
    MemoryStore, ShardedStore, Store, StoreError,
    conformance::Sample,
    faulty::{Fault, Faulty},
};
use std::sync::Arc;

fn refusal(opened: Result<Arc<ShardedStore>, StoreError>) -> String {
    let error = opened.expect_err("it is refused");
    assert_eq!(error.code(), "HX0185", "{error}");
    error.to_string()
}

#[tokio::test]
async fn databases_are_opened_as_the_shards_that_they_are_or_not_at_all() {
    let (_folder, files) = folder().await;
    let all = files.clone();
    ShardedStore::open(all.clone())
        .await
        .expect("they are new")
        .create(Sample::run("r").build())
        .await
        .unwrap();
    ShardedStore::open(all.clone()).await.expect("as they were");
    let swapped = vec![all[1].clone(), all[0].clone(), all[2].clone()];
    assert!(refusal(ShardedStore::open(swapped).await).contains("is number 2 of them"));
    assert!(refusal(ShardedStore::open(all[..2].to_vec()).await).contains("they are 3 databases"));
    let map = (0..1024).map(|partition| partition % 3).collect();
    assert!(refusal(ShardedStore::open_with(all.clone(), map).await).contains("another map"));
    let (_other, others) = folder().await;
    ShardedStore::open(others.clone()).await.expect("they are new");
    let mixed = vec![all[0].clone(), others[1].clone(), all[2].clone()];
    assert!(refusal(ShardedStore::open(mixed).await).contains("belongs to other shards"));
    let (_third, plain) = folder().await;
    for n in 0..20 {
        plain[0].create(Sample::run(&format!("r{n}")).build()).await.unwrap();
    }
    assert!(refusal(ShardedStore::open(plain).await).contains("holds runs, and wasn't a shard"));
}

fn new<const N: usize>() -> [Arc<dyn Store>; N] {
    std::array::from_fn(|_| MemoryStore::shared() as Arc<dyn Store>)
}

/// A misspelt path opens an empty file.
#[tokio::test]
async fn a_shard_is_never_exchanged_for_an_empty_database() {
    let (folder, files) = folder().await;
    let store = ShardedStore::open(files.clone()).await.unwrap();
    for n in 0..9 {
        store.create(Sample::run(&format!("r{n}")).build()).await.unwrap();
    }
    for place in 0..3 {
        let mut misspelt = files.clone();
        misspelt[place] = file(folder.path(), 100 + place).await;
        for _ in 0..2 {
            let why = refusal(ShardedStore::open(misspelt.clone()).await);
            assert!(why.contains(&format!("database {} is a new one", place + 1)), "{why}");
        }
    }
    ShardedStore::open(files).await.expect("nothing has changed");
}

/// Whoever comes later goes by what the first has drawn.
#[tokio::test(flavor = "multi_thread")]
async fn many_open_new_databases_at_once() {
    let (folder, files) = folder().await;
    let servers = (hapax_servers::postgres().expect("a server"), hapax_servers::mysql().expect("a server"));
    let kinds = every_kind(folder.path(), &servers.0, &servers.1).await.to_vec();
    for databases in [files[1..].to_vec(), kinds, new::<5>().to_vec()] {
        let opens = (0..8).map(|_| tokio::spawn(ShardedStore::open(databases.clone())));
        for opened in join_all(opens).await {
            opened.expect("a task").expect("they are the same shards for all");
        }
        ShardedStore::open(databases).await.expect("and stay so");
    }
}

/// They are all looked at before any is written to.
#[tokio::test]
async fn a_refused_open_leaves_nothing_behind() {
    let [a, b, c, d] = new();
    b.create(Sample::run("r").build()).await.unwrap();
    assert!(refusal(ShardedStore::open(vec![a.clone(), b.clone()]).await).contains("database 2 holds runs"));
    assert!(refusal(ShardedStore::open(vec![a.clone(), a.clone()]).await).contains("is named twice"));
    ShardedStore::open(vec![a.clone(), c.clone(), d.clone()]).await.expect("they are new");
    let [e] = new();
    refusal(ShardedStore::open(vec![e.clone(), a]).await);
    ShardedStore::open(vec![e, MemoryStore::shared()]).await.expect("it was left alone");
}

/// Between any two writes of it, or before its answer.
#[tokio::test]
async fn shards_are_made_by_the_next_when_someone_dies_over_it() {
    for fault in [Fault::Before, Fault::After, Fault::LoseReply] {
        for at in 0..6 {
            let [a, b, c, other] = new();
            let mortal = Faulty::several([a.clone(), b.clone(), c.clone()], at, fault);
            let mortal: Vec<Arc<dyn Store>> = mortal.map(|one| one as Arc<dyn Store>).to_vec();
            let died = ShardedStore::open(mortal).await;
            assert!(matches!(died, Err(StoreError::Retry(_) | StoreError::Unknown(_))), "{died:?}");
            // Another in the place of one of them is a sibling or a stranger, and then the first one is the other thing.
            let exchanged = ShardedStore::open(vec![a.clone(), b.clone(), other.clone()]).await;
            let mut made = [vec![a.clone(), b.clone(), c], vec![a, b, other]];
            if exchanged.is_ok() {
                made.swap(0, 1);
            }
            let [ours, others] = made;
            for _ in 0..2 {
                ShardedStore::open(ours.clone())
                    .await
                    .unwrap_or_else(|error| panic!("{fault:?} {at}: {error}"));
                refusal(ShardedStore::open(others.clone()).await);
            }
        }
    }
}
