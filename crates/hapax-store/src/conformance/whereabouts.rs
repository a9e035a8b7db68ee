//! Moving house, when it goes wrong: the word of where a run is outlives whatever broke off, and nobody is left waiting.

use super::{
    Fixture, Holder, Sample,
    house::{close_and_die, text},
    sample::{failed, key, ready},
};
use crate::{
    MemoryStore, StoreError,
    faulty::{Fault, Faulty},
    house::{self, Mover},
    store::{Created, Store},
};
use hapax_core::{
    commit::{Status, StatusChange, WaitsOn, Wake, Write},
    id::RunKey,
    mailbox::end_of,
};
use std::{io::Cursor, sync::Arc};

/// Whoever asks for the run is told where it is, and nobody starts it, or a child of it, here.
async fn is_known_to_be_elsewhere(store: &dyn Store, run: &RunKey) {
    let Created::Exists(there) = store.create(Sample::run(run.run.as_str()).build()).await.unwrap() else {
        panic!("{run} is started a second time");
    };
    assert_eq!(there.status, Status::Moved { to: "the new place".into(), was: None });
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

/// The old store has closed a run, and the new one loses what had arrived, or was restored to a time before. Only on the word of
/// whoever knows does it arrive anew.
pub async fn a_run_that_its_new_home_has_lost_arrives_anew_on_demand(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        let (run, child) = (key(name), key(&format!("{name}/child")));
        let mut holder = Sample::run(name).hold(from).await;
        Sample::run(child.run.as_str()).child_of(&run).create(from).await;
        holder.write(Write::Status(holder.status(failed(), true))).await.unwrap();
        let there = Mover::new(from.clone(), to.clone(), "there");
        let left = from.house().leave(run.clone(), "there".into()).await.unwrap();
        from.house().close(left, "there".into()).await.unwrap();
        let refused = there.carry(run.clone()).await;
        assert!(matches!(refused, Err(StoreError::CopyDiffers { .. })), "{refused:?}");
        assert_eq!(there.clone().lost(true).carry(child.clone()).await.unwrap().runs, 2);
        assert_eq!(to.run(run.clone()).await.unwrap().unwrap().status, failed(), "as it left");
        Holder::claim(to, &child, "b").await.unwrap();
        assert!(from.checkpoints(run.clone(), 0, 9).await.unwrap().is_empty());
        assert_eq!(
            from.run(run).await.unwrap().unwrap().status,
            Status::Moved { to: "there".into(), was: None }
        );
    }
}

/// Nobody's word makes a second run of one that lives: it is there, or will be.
pub async fn a_run_that_lives_is_not_taken_back(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        let run = key(name);
        Sample::run(name).create(from).await;
        // Its mover dies when it has let the run go on.
        let dies = Faulty::new(to.clone(), 2, Fault::After);
        let died = Mover::new(from.clone(), dies.clone(), "there").carry(run.clone()).await;
        assert!(died.is_err() && dies.fired());
        let closed = from.run(run.clone()).await.unwrap().unwrap().epoch;
        let mut holder = Holder::claim(to, &run, "b").await.unwrap();
        assert_eq!(
            Mover::new(from.clone(), to.clone(), "there").lost(true).carry(run.clone()).await.unwrap().runs,
            0
        );
        holder.commit(holder.next("goes on")).await.unwrap();
        // Its rows are deleted by now, and with them the way back.
        let late = from.house().take_back(vec![(run.clone(), closed)]).await;
        assert!(matches!(late, Err(StoreError::Fenced { .. })), "{late:?}");

        // What has arrived and waits for its mover is given up before the run is shut again: that mover finds it gone.
        let other = key(&format!("{name}-other"));
        Sample::run(other.run.as_str()).create(from).await;
        close_and_die(from.clone(), to.clone(), "there", other.clone()).await;
        let arrived = (other.clone(), to.run(other.clone()).await.unwrap().unwrap().epoch);
        assert_eq!(
            Mover::new(from.clone(), to.clone(), "there").lost(true).carry(other.clone()).await.unwrap().runs,
            1
        );
        let opened = to.house().open(vec![arrived.clone()]).await;
        assert!(opened.is_ok() && to.run(other.clone()).await.unwrap().unwrap().epoch > arrived.1);
        assert_eq!(from.run(other).await.unwrap().unwrap().status.word(), "moved");
    }
}

/// Who calls a run back names the place that it is on its way to.
pub async fn nobody_calls_back_what_goes_elsewhere(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(store).await;
    store.house().leave(key("r"), "there".into()).await.unwrap();
    let refused = Mover::new(store.clone(), memory.clone(), "another place").call_back(key("r")).await;
    let Err(StoreError::Moving { to: Some(to), .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(to, "there");
    Mover::new(store.clone(), memory, "there").call_back(key("r")).await.unwrap();
    Holder::claim(store, &key("r"), "b").await.unwrap();
}

/// A parent that was written down before its child ended, and a child that was written down when it had: nobody tells the
/// parent any more, so it looks for itself.
pub async fn an_imported_parent_waits_for_no_child_that_is_over(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    let mut parent = Sample::run("p").hold(&memory).await;
    let child = Sample::run("p/child").child_of(&parent.key).hold(&memory).await;
    let wake = Wake { at_us: None, letters: [end_of("p/child")].into() };
    let waits = StatusChange { wake, ..parent.status(Status::Waiting { on: WaitsOn::Child }, true) };
    parent.write(Write::Status(waits)).await.unwrap();
    let both = text(&*memory, &[key("p"), key("p/child")]).await;
    let before = text(&*memory, &[key("p")]).await;
    child.finish().await;
    let after = text(&*memory, &[key("p/child")]).await;

    let import = async |store: &dyn Store, file: &[u8]| {
        house::import(store, &mut Cursor::new(file), |_| {}).await.unwrap();
    };
    let status = async |store: &dyn Store| store.run(key("p")).await.unwrap().unwrap().status;
    import(&*fixture.store, &after).await;
    import(&*fixture.store, &before).await;
    assert_eq!(status(&*fixture.store).await, Status::Pending, "its child is over");
    assert_eq!(ready(&fixture.store, "b", 10).await.len(), 1);
    let alone = MemoryStore::shared();
    import(&*alone, &before).await;
    assert_eq!(status(&*alone).await, Status::Pending, "its child isn't there");
    let whole = MemoryStore::shared();
    import(&*whole, &both).await;
    assert_eq!(status(&*whole).await, Status::Waiting { on: WaitsOn::Child }, "its child goes on");
}
