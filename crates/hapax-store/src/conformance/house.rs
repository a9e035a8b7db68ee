//! Moving house: a run is in one store at a time, and arrives as it left.

use super::{
    Fixture, Holder, Sample,
    flow::{keys, on},
    sample::{LONG, claimant, failed, json, key, message, ready},
};
use crate::{
    MemoryStore, StoreError,
    faulty::{Fault, Faulty},
    house::{self, Mover, Parcel, Piece},
    outbox::{ClaimFilter, Failure},
    store::{Created, GcPolicy, ListFilter, Store},
};
use hapax_core::{
    commit::{Append, Status, StatusChange, StepCommit, WaitsOn, Wake, Write},
    id::{Namespace, RunKey},
    journal::{Entry, JournalRow},
    mailbox::{NewLetter, signal},
};
use std::{io::Cursor, sync::Arc, time::Duration};

/// Runs with everything that a store may have of one: a parent that waits for a child, letters taken and not, rows, messages
/// in every state, frontiers of several pages, large states, tags, a timer, a cancel, an end.
pub async fn furnish(store: &Arc<dyn Store>) -> Vec<RunKey> {
    let mut parent = Sample::run("order-1").tag("customer", "42").seed(u64::MAX).hold(store).await;
    Sample::run("order-1/pay").child_of(&parent.key).create(store).await;
    for (id, name) in [("l-1", "approved"), ("l-2", "approved"), ("l-3", "later")] {
        let letter = NewLetter { id: id.into(), subject: signal(name), payload: json(id) };
        store.post(parent.key.clone(), letter).await.unwrap();
    }
    let [sent, dead] =
        ["sent", "dead"].map(|topic| hapax_core::outbox::Message { topic: topic.into(), ..message(topic) });
    let large = "a large state ".repeat(500);
    parent.commit(parent.next_with(&large, 1, 2, vec![sent, dead, message("waits")])).await.unwrap();
    parent.commit(parent.next_with(&format!("{large}and more"), 1200, 1, vec![])).await.unwrap();
    parent.write(Write::Append(took(&parent, 1))).await.unwrap();
    deliver(store).await;
    let wake = Wake { at_us: Some(i64::MAX / 2), letters: [signal("never")].into() };
    let parked = StatusChange { wake, ..parent.status(Status::Waiting { on: WaitsOn::Child }, true) };
    parent.write(Write::Status(parked)).await.unwrap();

    Sample::run("order-2").hold(store).await.finish().await;
    let mut broken = Sample::run("order-3").hold(store).await;
    broken.write(Write::Append(broken.append(3))).await.unwrap();
    broken.write(Write::Status(broken.status(failed(), true))).await.unwrap();
    let mut anew = Sample::run("order-4").hold(store).await;
    let fresh =
        StepCommit { fresh: Some(super::sample::shape("sample")), ..anew.next_with("anew", 1, 2, vec![]) };
    anew.commit(fresh).await.unwrap();
    anew.write(Write::Status(anew.status(Status::Waiting { on: WaitsOn::Signal }, true))).await.unwrap();
    store.request_cancel(anew.key.clone()).await.unwrap();
    ["order-1", "order-1/pay", "order-2", "order-3", "order-4"].map(key).to_vec()
}

fn took(holder: &Holder, letter: u64) -> Append {
    let row = |row: JournalRow| JournalRow { entry: Entry::Took { letter }, ..row };
    let append = holder.append(1);
    Append { rows: append.rows.into_iter().map(row).collect(), ..append }
}

/// Delivers what goes to `sent`, and fails to deliver what goes to `dead`.
async fn deliver(store: &Arc<dyn Store>) {
    for topic in ["sent", "dead"] {
        let filter = ClaimFilter { topics: vec![topic.into()], ..ClaimFilter::default() };
        for batch in store.outbox().claim(filter, claimant("relay", LONG)).await.unwrap() {
            let place = batch.messages[0].place;
            if topic == "sent" {
                store.outbox().mark_sent(batch.claim, vec![place], None).await.unwrap();
                continue;
            }
            let error = "refused: \u{1f4e6}".to_owned();
            let failure = Failure { error, again_after: Duration::ZERO, counts: true, dead_after: Some(1) };
            store.outbox().mark_failed(batch.claim, place, failure).await.unwrap();
        }
    }
}

/// An export of these runs.
pub(super) async fn text(store: &dyn Store, runs: &[RunKey]) -> Vec<u8> {
    let mut file = vec![];
    house::export(store, runs.to_vec(), &mut file, |_| {}).await.unwrap();
    file
}

fn lines(file: &[u8]) -> Vec<&str> {
    std::str::from_utf8(file).unwrap().lines().collect()
}

/// What was exported, imported and exported again is the same bytes, whichever store it came from.
pub async fn an_export_is_the_same_bytes_from_every_store(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    let runs = furnish(&memory).await;
    let first = text(&*memory, &runs).await;
    let load = house::import(&*fixture.store, &mut Cursor::new(&first), |_| {}).await.unwrap();
    assert_eq!(load.runs, 5);
    assert_eq!(lines(&text(&*fixture.store, &runs).await), lines(&first));
}

/// The same for runs that the store wrote itself.
pub async fn what_a_store_wrote_itself_survives_its_export(fixture: Fixture) {
    let runs = furnish(&fixture.store).await;
    let first = text(&*fixture.store, &runs).await;
    let memory: Arc<dyn Store> = MemoryStore::shared();
    house::import(&*memory, &mut Cursor::new(&first), |_| {}).await.unwrap();
    assert_eq!(lines(&text(&*memory, &runs).await), lines(&first));
}

/// A file that is cut or changed anywhere is refused, and nothing of it is taken in.
pub async fn a_damaged_export_changes_nothing(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    Sample::run("order-2").hold(&memory).await.finish().await;
    let whole = text(&*memory, &[key("order-2")]).await;
    let flipped =
        |at: usize| whole.iter().enumerate().map(move |(i, byte)| if i == at { byte ^ 1 } else { *byte });
    let cuts = (0..whole.len()).step_by(whole.len() / 40).map(|at| whole[..at].to_vec());
    let damages = (0..whole.len()).step_by(whole.len() / 40).map(|at| flipped(at).collect::<Vec<u8>>());
    let longer = [[&whole[..], b"{}\n"].concat()];
    for file in cuts.chain(damages).chain(longer) {
        let refused = house::import(&*fixture.store, &mut Cursor::new(&file), |_| {}).await;
        assert!(matches!(refused, Err(house::ExportError::Bad { .. })), "{refused:?}");
        assert!(fixture.store.list(ListFilter::default()).await.unwrap().is_empty());
    }
}

/// A move takes a run with all that belongs to it, and back again.
pub async fn a_run_moves_there_and_back(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    let runs = furnish(&fixture.store).await;
    let before = text(&*fixture.store, &runs).await;
    for (from, to) in [(&fixture.store, &memory), (&memory, &fixture.store)] {
        let mover = Mover::new(from.clone(), to.clone(), "elsewhere");
        for run in &runs {
            mover.carry(run.clone()).await.unwrap();
        }
    }
    let after = text(&*fixture.store, &runs).await;
    for (before, after) in lines(&before).iter().zip(lines(&after)) {
        // Only the epochs went on counting, and with them the sum in the last line.
        assert!(**before == *after || before.starts_with("{\"run\"") || before.starts_with("{\"end\""));
    }
    assert_eq!(lines(&before).len(), lines(&after).len());
    // What waited goes on: the timer and the cancel are those of before.
    let record = fixture.store.run(key("order-1")).await.unwrap().unwrap();
    assert_eq!(record.wake.at_us, Some(i64::MAX / 2));
    assert!(fixture.store.run(key("order-4")).await.unwrap().unwrap().cancel_requested);
    assert_eq!(fixture.store.post(key("order-1"), wanted()).await.unwrap(), hapax_core::mailbox::Posted::New);
    let claimed = ready(&fixture.store, "b", 10).await;
    let mut claimed: Vec<&str> = claimed.iter().map(|(key, _)| key.run.as_str()).collect();
    claimed.sort_unstable();
    assert_eq!(claimed, ["order-1", "order-1/pay", "order-4"]);
    assert_eq!(
        fixture.store.outbox().claim(ClaimFilter::default(), claimant("relay", LONG)).await.unwrap().len(),
        1
    );
}

fn wanted() -> NewLetter {
    NewLetter { id: "wanted".into(), subject: signal("never"), payload: json("now") }
}

/// A lease keeps a run where it is: a worker's, and a relay's on its messages.
pub async fn a_run_that_is_held_does_not_leave(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    holder.commit(holder.next_with("sends", 1, 0, vec![message("m")])).await.unwrap();
    let refused = store.house().leave(key("r"), "there".into()).await;
    assert!(matches!(refused, Err(StoreError::Held { .. })), "{refused:?}");
    holder.commit(holder.next("goes on")).await.expect("nothing has changed for its holder");
    holder.write(Write::Status(holder.status(Status::Pending, true))).await.unwrap();

    let batch =
        store.outbox().claim(ClaimFilter::default(), claimant("relay", LONG)).await.unwrap().remove(0);
    let refused = store.house().leave(key("r"), "there".into()).await;
    assert!(matches!(refused, Err(StoreError::Held { .. })), "{refused:?}");
    store.outbox().mark_sent(batch.claim, vec![batch.messages[0].place], None).await.unwrap();
    store.house().leave(key("r"), "there".into()).await.unwrap();
}

/// Between its two homes a run can't be taken up, and nothing can be sent to it.
pub async fn a_run_on_its_way_takes_nothing_in(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    holder.write(Write::Status(holder.status(Status::Pending, true))).await.unwrap();
    let left = store.house().leave(key("r"), "there".into()).await.unwrap();
    is_shut(store, &key("r")).await;
    let stale = holder.next("late");
    let refused = holder.commit(stale).await;
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");

    let memory: Arc<dyn Store> = MemoryStore::shared();
    Sample::run("other").create(&memory).await;
    let other = memory.house().leave(key("other"), "here".into()).await.unwrap().remove(0);
    let head = memory.house().image(key("other")).await.unwrap().head;
    store.house().arrive(head, other.1).await.unwrap();
    is_shut(store, &key("other")).await;

    store.house().stay(key("r")).await.unwrap();
    let late = store.house().close(left, "there".into()).await;
    assert!(matches!(late, Err(StoreError::Fenced { .. })), "{late:?}");
    Holder::claim(store, &key("r"), "b").await.unwrap();
}

async fn is_shut(store: &Arc<dyn Store>, run: &RunKey) {
    let moving = |refused: Option<StoreError>| assert!(matches!(refused, Some(StoreError::Moving { .. })));
    moving(store.claim(run.clone(), claimant("b", LONG)).await.err());
    moving(store.post(run.clone(), wanted()).await.err());
    moving(store.request_cancel(run.clone()).await.err());
    moving(store.delete(run.clone()).await.err());
    moving(store.create(Sample::run(&format!("{}/child", run.run)).child_of(run).build()).await.err());
    assert!(ready(store, "b", 10).await.is_empty());
}

/// A run that has left says where it is to whoever asks for it.
pub async fn a_run_that_moved_says_where_it_is(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(store).await;
    Mover::new(store.clone(), memory, "the new place").carry(key("r")).await.unwrap();
    let moved = |refused: Option<StoreError>| match refused {
        Some(StoreError::Moved { to, .. }) => assert_eq!(to, "the new place"),
        other => panic!("{other:?}"),
    };
    moved(store.claim(key("r"), claimant("b", LONG)).await.err());
    moved(store.post(key("r"), wanted()).await.err());
    moved(store.request_cancel(key("r")).await.err());
    moved(store.delete(key("r")).await.err());
    moved(store.house().image(key("r")).await.err());
    moved(store.create(Sample::run("r/child").child_of(&key("r")).build()).await.err());
    let Created::Exists(there) = store.create(Sample::run("r").build()).await.unwrap() else {
        panic!("its name is taken");
    };
    assert_eq!(there.status, Status::Moved { to: "the new place".into(), was: None });
    let namespace = Namespace::default();
    let all = GcPolicy { namespace, older_than: None, keep_newest: 0, limit: 10, dry_run: false };
    assert!(store.gc(all).await.unwrap().deleted.is_empty());
    // What it left behind is gone by now, which is no damage.
    assert!(store.checkpoint(key("r"), 0).await.unwrap().is_none());
    moved(store.load(key("r")).await.err());
    moved(there.demand_here().err());
    store.house().clear(key("r"), there.epoch, true).await.unwrap();
    assert!(store.run(key("r")).await.unwrap().is_none());
}

/// Between the old store's last word and the end of the move its rows are still there, and say nothing about the run any more.
pub async fn a_run_that_moved_says_so_before_its_rows_are_deleted(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let mut holder = Sample::run("r").hold(store).await;
    holder.write(Write::Status(holder.status(failed(), true))).await.unwrap();
    close_and_die(store.clone(), memory, "the new place", key("r")).await;
    assert_eq!(store.checkpoints(key("r"), 0, 9).await.unwrap().len(), 1, "they are there");
    let moved = |refused: Option<StoreError>| match refused {
        Some(StoreError::Moved { to, .. }) => assert_eq!(to, "the new place"),
        other => panic!("{other:?}"),
    };
    moved(store.load(key("r")).await.err());
    moved(store.retry(key("r")).await.err());
    moved(store.claim(key("r"), claimant("b", LONG)).await.err());
    moved(store.post(key("r"), wanted()).await.err());
    moved(store.request_cancel(key("r")).await.err());
    moved(store.delete(key("r")).await.err());
    moved(store.house().image(key("r")).await.err());
}

/// Retried here, a message would be delivered from both homes; dropped here, it would live on in the other.
pub async fn the_dead_messages_of_a_run_that_leaves_are_its_next_homes_to_retry(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let mut holder = Sample::run("r").hold(store).await;
    let dead = hapax_core::outbox::Message { topic: "dead".into(), ..message("dead") };
    holder.commit(holder.next_with("sends", 1, 0, vec![dead])).await.unwrap();
    deliver(store).await;
    holder.write(Write::Status(holder.status(Status::Pending, true))).await.unwrap();
    store.house().leave(key("r"), "there".into()).await.unwrap();
    for refused in [store.outbox().retry_dead(key("r")).await, store.outbox().drop_dead(key("r")).await] {
        assert!(matches!(refused, Err(StoreError::Moving { .. })), "{refused:?}");
    }
    let claimed = async |store: &Arc<dyn Store>| {
        store.outbox().claim(ClaimFilter::default(), claimant("relay", LONG)).await.unwrap().len()
    };
    assert_eq!(claimed(store).await, 0);
    Mover::new(store.clone(), memory.clone(), "there").carry(key("r")).await.unwrap();
    for refused in [store.outbox().retry_dead(key("r")).await, store.outbox().drop_dead(key("r")).await] {
        assert!(matches!(refused, Err(StoreError::Moved { .. })), "{refused:?}");
    }
    assert_eq!(memory.outbox().retry_dead(key("r")).await.unwrap(), 1);
    assert_eq!((claimed(store).await, claimed(&memory).await), (0, 1));
}

/// A run moves with its ancestors and all their descendants, or stays with them.
pub async fn a_family_moves_as_a_whole(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let mut root = Sample::run("root").hold(store).await;
    for (child, parent) in [("root/child", "root"), ("root/other", "root"), ("root/grandchild", "root/child")]
    {
        Sample::run(child).child_of(&key(parent)).create(store).await;
    }
    let mover = Mover::new(store.clone(), memory.clone(), "there");
    let refused = mover.carry(key("root/grandchild")).await;
    assert!(matches!(refused, Err(StoreError::Held { run, .. }) if run == key("root")));
    assert_eq!(store.run(key("root/other")).await.unwrap().unwrap().status, Status::Pending, "none has left");
    root.write(Write::Status(root.status(Status::Waiting { on: WaitsOn::Child }, true))).await.unwrap();
    assert_eq!(mover.carry(key("root/grandchild")).await.unwrap().runs, 4);
    for run in ["root", "root/child", "root/other", "root/grandchild"] {
        assert_eq!(store.run(key(run)).await.unwrap().unwrap().status.word(), "moved");
        assert!(memory.run(key(run)).await.unwrap().is_some());
    }
    let all = ["root", "root/child", "root/grandchild", "root/other"].map(key);
    assert_eq!(memory.house().family(key("root/other")).await.unwrap(), all);
}

/// The word of where a relative went holds nobody back.
pub async fn who_came_home_leaves_again_whatever_became_of_its_family(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let mut parent = Sample::run("parent").hold(store).await;
    Sample::run("parent/child").child_of(&key("parent")).create(store).await;
    parent.commit(parent.last("end")).await.unwrap();
    let (away, home) = (
        Mover::new(store.clone(), memory.clone(), "there"),
        Mover::new(memory.clone(), store.clone(), "here"),
    );
    let child = key("parent/child");
    assert_eq!(away.carry(child.clone()).await.unwrap().runs, 2);
    memory.delete(key("parent")).await.unwrap();
    assert_eq!(home.carry(child.clone()).await.unwrap().runs, 1);
    assert_eq!(home.carry(child.clone()).await.unwrap().runs, 0, "it is here");
    assert_eq!(away.carry(key("parent")).await.unwrap().runs, 0, "it went long ago");
    store.house().leave(child.clone(), "there".into()).await.unwrap();
    store.house().stay(child.clone()).await.unwrap();
    assert_eq!(away.carry(child.clone()).await.unwrap().runs, 1);
    assert_eq!(memory.run(child).await.unwrap().unwrap().status, Status::Pending);
}

/// A move that broke off before the old store forgot the run, and a new store that has lost it.
pub async fn the_only_copy_of_a_run_is_not_deleted(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(store).await;
    let left = store.house().leave(key("r"), "there".into()).await.unwrap();
    store.house().close(left, "there".into()).await.unwrap();
    let mover = Mover::new(store.clone(), memory.clone(), "there");
    for _ in 0..2 {
        let refused = mover.carry(key("r")).await;
        assert!(matches!(refused, Err(StoreError::CopyDiffers { .. })), "{refused:?}");
        assert_eq!(store.checkpoints(key("r"), 0, 9).await.unwrap().len(), 1, "its rows are kept");
    }
}

/// A mover dies when it has let a run go on, which ends and is deleted before another mover comes: that one needs a word.
pub async fn what_was_swept_in_its_new_home_is_deleted_on_demand(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        Sample::run(name).create(from).await;
        Sample::run(&format!("{name}/stays")).child_of(&key(name)).create(from).await;
        let dies = Faulty::new(to.clone(), 4, Fault::After);
        let died = Mover::new(from.clone(), dies.clone(), "there").carry(key(name)).await;
        assert!(died.is_err() && dies.fired(), "when it has opened both");
        let mut holder = Holder::claim(to, &key(name), "b").await.unwrap();
        holder.commit(holder.last("end")).await.unwrap();
        to.delete(key(name)).await.unwrap();
        let mover = Mover::new(from.clone(), to.clone(), "there");
        let refused = mover.carry(key(name)).await;
        assert!(
            matches!(&refused, Err(StoreError::CopyDiffers { run, .. }) if *run == key(name)),
            "{refused:?}"
        );
        assert_eq!(from.checkpoints(key(name), 0, 9).await.unwrap().len(), 1, "its rows are kept");
        mover.clone().swept(true).carry(key(name)).await.unwrap();
        for run in [key(name), key(&format!("{name}/stays"))] {
            assert!(from.checkpoints(run.clone(), 0, 9).await.unwrap().is_empty());
            assert_eq!(from.run(run).await.unwrap().unwrap().status.word(), "moved");
        }
        assert_eq!(mover.carry(key(name)).await.unwrap().runs, 0, "no word is needed any more");
    }
}

/// A mover that dies when the old store has said its last word, and the new one has yet to let the run go on.
pub(super) async fn close_and_die(from: Arc<dyn Store>, to: Arc<dyn Store>, place: &str, run: RunKey) {
    // It makes room, unpacks the one batch, and never opens.
    let dies = Faulty::new(to, 2, Fault::Before);
    let died = Mover::new(from.clone(), dies.clone(), place).carry(run.clone()).await;
    assert!(died.is_err() && dies.fired());
    let closed = from.run(run).await.unwrap().unwrap().status;
    assert!(matches!(closed, Status::Moved { to, was: Some(_) } if to == place));
}

/// Who calls a run back is slow: meanwhile another shuts it again and closes the old store. What has arrived for that one is
/// where the run lives.
pub async fn a_late_call_back_takes_nothing_from_a_later_mover(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        Sample::run(name).create(from).await;
        let run = key(name);
        from.house().leave(run.clone(), "there".into()).await.unwrap();
        let slow =
            Faulty::slow(from.clone(), 0, close_and_die(from.clone(), to.clone(), "there", run.clone()));
        Mover::new(slow.clone(), to.clone(), "there").call_back(run.clone()).await.unwrap();
        assert!(slow.fired());
        let there = to.run(run.clone()).await.unwrap().expect("it lives nowhere else");
        assert_eq!(there.status.word(), "arriving");
        Mover::new(from.clone(), to.clone(), "there").carry(run.clone()).await.unwrap();
        assert_eq!(Holder::claim(to, &run, "b").await.unwrap().step, 0);
    }
}

/// Whoever lets runs go on learns that one of them was given up, and lets none go on.
pub async fn what_is_not_there_any_more_is_not_opened(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(&memory).await;
    Sample::run("r/child").child_of(&key("r")).create(&memory).await;
    let left = memory.house().leave(key("r"), "there".into()).await.unwrap();
    for (run, epoch) in &left {
        let mut image = memory.house().image(run.clone()).await.unwrap();
        store.house().arrive(image.head.clone(), *epoch).await.unwrap();
        while let Some(pieces) = image.next().await.unwrap() {
            store.house().unpack(run.clone(), *epoch, pieces).await.unwrap();
        }
    }
    let (child, epoch) = left[1].clone();
    store.house().give_up(child, epoch).await.unwrap();
    let refused = store.house().open(left).await;
    assert!(matches!(refused, Err(StoreError::CopyDiffers { .. })), "{refused:?}");
    assert_eq!(store.run(key("r")).await.unwrap().unwrap().status.word(), "arriving");
}

/// The new store has lost what arrived, and a run of the same name was started there since: the old one has the only copy.
pub async fn another_run_of_its_name_is_not_the_one_that_arrived(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        Sample::run(name).create(from).await;
        close_and_die(from.clone(), to.clone(), "there", key(name)).await;
        let arrived = to.run(key(name)).await.unwrap().unwrap().epoch;
        to.house().give_up(key(name), arrived).await.unwrap();
        let mut other = Sample::run(name).hold(to).await;
        while to.run(key(name)).await.unwrap().unwrap().epoch.counter <= arrived.counter {
            other.write(Write::Status(other.status(Status::Pending, true))).await.unwrap();
            other = Holder::claim(to, &key(name), "b").await.unwrap();
        }
        for forget in [false, true] {
            let refused = Mover::new(from.clone(), to.clone(), "there").forget(forget).carry(key(name)).await;
            assert!(matches!(refused, Err(StoreError::CopyDiffers { .. })), "{refused:?}");
            assert_eq!(from.checkpoints(key(name), 0, 9).await.unwrap().len(), 1, "its rows are kept");
        }
    }
}

/// A mover is slow when it has let a run go on. Meanwhile that has come home and left again, and its new store has yet to open
/// it: the slow one deletes nothing of what is closed under a later epoch.
pub async fn a_late_mover_deletes_nothing_of_a_run_that_left_again(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        Sample::run(name).create(from).await;
        let (home, away) = (from.clone(), to.clone());
        let there_and_back = async move {
            Mover::new(away.clone(), home.clone(), "home").carry(key(name)).await.unwrap();
            close_and_die(home, away, "there", key(name)).await;
        };
        let slow = Faulty::slow(to.clone(), 2, there_and_back);
        let late = Mover::new(from.clone(), slow.clone(), "there").carry(key(name)).await;
        assert!(matches!(late, Err(StoreError::Fenced { .. })) && slow.fired(), "{late:?}");
        assert_eq!(from.checkpoints(key(name), 0, 9).await.unwrap().len(), 1, "its rows are kept");
        Mover::new(from.clone(), to.clone(), "there").carry(key(name)).await.unwrap();
        assert!(from.checkpoints(key(name), 0, 9).await.unwrap().is_empty());
        Holder::claim(to, &key(name), "b").await.unwrap();
    }
}

/// What arrives must be what left: else it is taken back, and the old store keeps the run.
pub async fn a_copy_that_differs_is_refused(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(&memory).await;
    memory.post(key("r"), wanted()).await.unwrap();
    let (run, epoch) = memory.house().leave(key("r"), "there".into()).await.unwrap().remove(0);
    let head = memory.house().image(run.clone()).await.unwrap().head;
    store.house().arrive(head, epoch).await.unwrap();
    let early = store.house().open(vec![(run.clone(), epoch)]).await;
    assert!(matches!(early, Err(StoreError::CopyDiffers { .. })), "it isn't whole: {early:?}");

    let (there, NewLetter { subject, .. }) = (store.clone(), wanted());
    let (id, payload) = ("forged".to_owned(), Some(json("forged")));
    let forged = Parcel { number: 2, id, subject, payload, sent_at_us: 1, taken: false };
    let forge = async move {
        let epoch = there.run(key("r")).await.unwrap().unwrap().epoch;
        there.house().unpack(key("r"), epoch, vec![Piece::Letter(forged)]).await.unwrap();
    };
    let mover = Mover::new(memory.clone(), Faulty::slow(store.clone(), 1, forge), "there");
    let refused = mover.carry(run.clone()).await;
    assert!(matches!(refused, Err(StoreError::CopyDiffers { .. })), "{refused:?}");
    assert_eq!(memory.run(run.clone()).await.unwrap().unwrap().status.word(), "leaving");
    assert!(store.run(run.clone()).await.unwrap().is_none(), "what had arrived was taken back");
    assert_eq!(mover.carry(run.clone()).await.unwrap().runs, 1);
    let letter = store.letter(run.clone(), wanted().subject, 0).await.unwrap().unwrap();
    assert_eq!(letter.payload, json("now"));
    assert!(
        store.letter(run, wanted().subject, 1).await.unwrap().is_none(),
        "nothing of the forged one is left"
    );
}

/// A move that was called back dies before it takes back what has arrived. The run goes on where it was, and moves later.
pub async fn what_broke_off_on_its_way_arrives_anew(fixture: Fixture) {
    let memory: Arc<dyn Store> = MemoryStore::shared();
    for (name, from, to) in [("arrives", &memory, &fixture.store), ("leaves", &fixture.store, &memory)] {
        Sample::run(name).create(from).await;
        unpack_some(from, to, name).await;
        from.house().stay(key(name)).await.unwrap();
        let mut holder = Holder::claim(from, &key(name), "a").await.unwrap();
        holder.commit(holder.next_with("goes on", 1, 2, vec![message("m")])).await.unwrap();
        holder.write(Write::Status(holder.status(Status::Pending, true))).await.unwrap();
        assert_eq!(Mover::new(from.clone(), to.clone(), "there").carry(key(name)).await.unwrap().runs, 1);
        assert_eq!(Holder::claim(to, &key(name), "b").await.unwrap().step, 1);
    }
}

/// The same for an import, whose file may have been written anew meanwhile.
pub async fn an_import_goes_on_where_another_broke_off(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    let mut holder = Sample::run("r").hold(&memory).await;
    unpack_some(&memory, store, "r").await;
    holder.commit(holder.next("goes on")).await.unwrap();
    let mut file = Cursor::new(text(&*memory, &[key("r")]).await);
    assert_eq!(house::import(&**store, &mut file, |_| {}).await.unwrap().runs, 1);
    assert_eq!(store.run(key("r")).await.unwrap().unwrap().step, 1);
    let again = house::import(&**store, &mut file, |_| {}).await;
    assert!(matches!(again, Err(house::ExportError::Store(StoreError::ArrivalTaken { .. }))), "{again:?}");
}

/// Some of a run, shut or not, on its way into another store.
async fn unpack_some(from: &Arc<dyn Store>, to: &Arc<dyn Store>, name: &str) {
    let held = from.run(key(name)).await.unwrap().unwrap().owner.is_some();
    if !held {
        from.house().leave(key(name), "there".into()).await.unwrap();
    }
    let epoch = from.run(key(name)).await.unwrap().unwrap().epoch;
    let mut image = from.house().image(key(name)).await.unwrap();
    to.house().arrive(image.head.clone(), epoch).await.unwrap();
    let pieces = image.next().await.unwrap().unwrap();
    to.house().unpack(key(name), epoch, pieces).await.unwrap();
}

/// Of two who move a run at once, the later one goes on and the earlier one is told.
pub async fn of_two_movers_the_earlier_one_is_fenced(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(store).await;
    let early = store.house().leave(key("r"), "there".into()).await.unwrap();
    let head = store.house().image(key("r")).await.unwrap().head;
    memory.house().arrive(head, early[0].1).await.unwrap();
    let elsewhere = store.house().leave(key("r"), "another place".into()).await;
    assert!(matches!(elsewhere, Err(StoreError::Moving { .. })), "{elsewhere:?}");

    let later = store.house().leave(key("r"), "there".into()).await.unwrap();
    let head = store.house().image(key("r")).await.unwrap().head;
    memory.house().arrive(head.clone(), later[0].1).await.unwrap();
    let late = memory.house().arrive(head, early[0].1).await;
    assert!(matches!(late, Err(StoreError::Fenced { .. })), "it would take it from the later one: {late:?}");
    let mover = Mover::new(store.clone(), memory.clone(), "there");
    assert_eq!(mover.carry(key("r")).await.unwrap().runs, 1);
    let closed = store.house().close(early.clone(), "there".into()).await;
    assert!(matches!(closed, Err(StoreError::Fenced { .. })), "{closed:?}");
    let unpacked = memory.house().unpack(key("r"), early[0].1, vec![]).await;
    assert!(matches!(unpacked, Err(StoreError::Fenced { .. })), "{unpacked:?}");
    memory.house().give_up(key("r"), early[0].1).await.unwrap();
    assert!(memory.run(key("r")).await.unwrap().is_some(), "it is open: nothing of it is taken back");
    let [first, second] = [
        memory.house().leave(key("r"), "back".into()).await,
        memory.house().leave(key("r"), "back".into()).await,
    ]
    .map(|left| left.unwrap().remove(0).1);
    let head = memory.house().image(key("r")).await.unwrap().head;
    store.house().arrive(head.clone(), second).await.unwrap();
    let late = store.house().arrive(head, first).await;
    assert!(matches!(late, Err(StoreError::Fenced { .. })), "{late:?}");
}

/// A name that is taken isn't overwritten by a run that arrives.
pub async fn a_run_does_not_arrive_over_another(fixture: Fixture) {
    let (store, memory) = (&fixture.store, MemoryStore::shared() as Arc<dyn Store>);
    Sample::run("r").create(store).await;
    Sample::run("r").tag("another", "one").create(&memory).await;
    let refused = Mover::new(memory.clone(), store.clone(), "there").carry(key("r")).await;
    assert!(matches!(refused, Err(StoreError::ArrivalTaken { .. })), "{refused:?}");
    assert!(store.run(key("r")).await.unwrap().unwrap().tags.is_empty());
    memory.house().stay(key("r")).await.unwrap();
    Holder::claim(&memory, &key("r"), "b").await.unwrap();
    Holder::claim(store, &key("r"), "b").await.unwrap();
}

/// A statement that fails leaves everything as it was, and the next call goes on.
pub async fn a_failure_at_any_statement_of_a_move_leaves_nothing(fixture: Fixture) {
    let Some(fail_at) = &fixture.fail_at else { return };
    let memory: Arc<dyn Store> = MemoryStore::shared();
    furnish(&memory).await;
    let before = text(&*memory, &[key("order-1"), key("order-1/pay")]).await;
    let there = Mover::new(memory.clone(), fixture.store.clone(), "there");
    let back = Mover::new(fixture.store.clone(), memory.clone(), "back");
    for mover in [&there, &back] {
        let mut statement = 0;
        loop {
            let fired = fail_at(statement);
            let carried = mover.carry(key("order-1")).await;
            if !fired() {
                carried.unwrap();
                break;
            }
            statement += 1;
        }
        assert!(statement > 10, "{statement}");
    }
    let after = text(&*memory, &[key("order-1"), key("order-1/pay")]).await;
    assert_eq!(lines(&before).len(), lines(&after).len());
    let mut late = Holder::claim(&memory, &key("order-1/pay"), "b").await.unwrap();
    late.commit(late.next("goes on")).await.unwrap();
}

/// A run that held a slot in its old store waits for one in the new one, and its old one is free for the next.
pub async fn a_run_that_moves_takes_its_place_again(fixture: Fixture) {
    let (from, to): (Arc<dyn Store>, _) = (MemoryStore::shared(), fixture.store.clone());
    let one = keys(&[("k/1", 1)]);
    for run in ["k/moves", "k/stays"] {
        from.create(on(run, &one)).await.unwrap();
    }
    to.create(on("k/there", &one)).await.unwrap();
    Mover::new(from.clone(), to.clone(), "elsewhere").carry(key("k/moves")).await.unwrap();
    let status = async |store: &Arc<dyn Store>, run| store.run(key(run)).await.unwrap().unwrap().status;
    assert_eq!(status(&to, "k/moves").await, Status::Waiting { on: WaitsOn::Key }, "the slot is another's");
    assert_eq!(from.flow().sweep(Namespace::default()).await.unwrap(), 1);
    assert_eq!(status(&from, "k/stays").await, Status::Pending);
    let token = to.run(key("k/there")).await.unwrap().unwrap().terms.token;
    assert_eq!(to.flow().release(key("k/there"), token).await.unwrap(), [key("k/moves")]);
    assert_eq!(status(&to, "k/moves").await, Status::Pending);
    // And back: its place there is behind the one that has gone meanwhile.
    Mover::new(to.clone(), from.clone(), "home").carry(key("k/moves")).await.unwrap();
    assert_eq!(status(&from, "k/moves").await, Status::Waiting { on: WaitsOn::Key });
    assert_eq!(to.flow().sweep(Namespace::default()).await.unwrap(), 1);
    assert!(to.flow().keys(Namespace::default()).await.unwrap().is_empty());
}

/// What it left here the first time was not swept yet.
pub async fn a_run_that_comes_home_never_waits_for_itself(fixture: Fixture) {
    let (home, elsewhere): (_, Arc<dyn Store>) = (fixture.store.clone(), MemoryStore::shared());
    home.create(on("k/moves", &keys(&[("k/1", 1), ("k/2", 1)]))).await.unwrap();
    Mover::new(home.clone(), elsewhere.clone(), "elsewhere").carry(key("k/moves")).await.unwrap();
    Mover::new(elsewhere.clone(), home.clone(), "home").carry(key("k/moves")).await.unwrap();
    let run = home.run(key("k/moves")).await.unwrap().unwrap();
    assert_eq!(run.status, Status::Pending);
    home.flow().release(key("k/moves"), run.terms.token).await.unwrap();
    assert!(home.flow().keys(Namespace::default()).await.unwrap().is_empty());
}

/// The slot became free while it was shut.
pub async fn a_run_that_stays_has_the_slot_that_it_was_given_meanwhile(fixture: Fixture) {
    let store = &*fixture.store;
    for run in ["k/first", "k/second"] {
        store.create(on(run, &keys(&[("k/1", 1)]))).await.unwrap();
    }
    store.house().leave(key("k/second"), "elsewhere".into()).await.unwrap();
    let token = store.run(key("k/first")).await.unwrap().unwrap().terms.token;
    store.flow().release(key("k/first"), token).await.unwrap();
    store.house().stay(key("k/second")).await.unwrap();
    assert_eq!(store.run(key("k/second")).await.unwrap().unwrap().status, Status::Pending);
}
