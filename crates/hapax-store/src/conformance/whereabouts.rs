//! Moving house, when it goes wrong: the word of where a run is outlives whatever broke off, and nobody is left waiting.

use super::{Fixture, Holder, Sample, house::text, sample::key};
use crate::{
    MemoryStore, StoreError,
    house::{self, Mover},
    store::{Created, Store},
};
use hapax_core::{commit::Status, id::RunKey};
use std::{io::Cursor, sync::Arc};

/// Whoever asks for the run is told where it is, and nobody starts it, or a child of it, here.
async fn is_known_to_be_elsewhere(store: &dyn Store, run: &RunKey) {
    let Created::Exists(there) = store.create(Sample::run(run.run.as_str()).build()).await.unwrap() else {
        panic!("{run} is started a second time");
    };
    assert_eq!(there.status, Status::Moved { to: "the new place".into() });
    let child = Sample::run(&format!("{}/child", run.run)).child_of(run).build();
    let refused = store.create(child).await;
    assert!(matches!(refused, Err(StoreError::Moved { .. })), "{refused:?}");
}

/// A run that comes home takes the place of the word of where it went. It never comes: the word is back.
pub async fn an_arrival_that_is_given_up_leaves_the_word_of_where_the_run_is(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let run = key("r");
    Sample::run("r").tag("customer", "42").create(store).await;
    Mover::new(store.clone(), memory.clone(), "the new place").carry(run.clone()).await.unwrap();
    is_known_to_be_elsewhere(&**store, &run).await;

    // The second arrival takes the place of the first.
    for _ in 0..2 {
        let left = memory.house().leave(run.clone(), "home".into()).await.unwrap().remove(0);
        let head = memory.house().image(run.clone()).await.unwrap().head;
        store.house().arrive(head, left.1).await.unwrap();
    }
    Mover::new(memory.clone(), store.clone(), "home").call_back(run.clone()).await.unwrap();
    is_known_to_be_elsewhere(&**store, &run).await;
    assert_eq!(store.run(run.clone()).await.unwrap().unwrap().tags["customer"], "42");

    Mover::new(memory.clone(), store.clone(), "home").carry(run.clone()).await.unwrap();
    Holder::claim(store, &run, "b").await.unwrap();
}

/// The same when a file can't be taken in, as often as that is tried.
pub async fn an_import_that_fails_leaves_the_word_of_where_a_run_is(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let [run, taken] = ["r", "r/taken"].map(key);
    Sample::run("r").create(store).await;
    Mover::new(store.clone(), memory.clone(), "the new place").carry(run.clone()).await.unwrap();
    Holder::claim(&memory, &run, "b").await.unwrap();
    Sample::run("r/taken").create(&memory).await;
    Sample::run("r/taken").tag("another", "one").create(store).await;
    let mut file = Cursor::new(text(&*memory, &[run.clone(), taken.clone()]).await);
    for _ in 0..2 {
        let refused = house::import(&**store, &mut file, |_| {}).await;
        let Err(house::ExportError::Store(StoreError::ArrivalTaken { run: which })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(which, taken, "the first one may come home");
        is_known_to_be_elsewhere(&**store, &run).await;
    }
}
