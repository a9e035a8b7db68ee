//! What is promised of payloads that rest in an object store, on every store that has them.

use super::{
    NEW, OLD, large,
    large::{LARGE, large as large_run, messages, noise},
    promises::{self, fill, rotate, told},
};
use hapax_core::{
    commit::{Status, StatusChange, StepCommit, WaitsOn, Wake, Write},
    error::Coded,
    id::{Namespace, RunKey},
    mailbox::signal,
};
use hapax_store::{
    BoxFuture, GcPolicy, MemoryStore, Store, StoreError,
    conformance::{
        Sample,
        sample::{LONG, claimant, json, message, shape},
    },
    depot::{BadObjectName, Depot, Folder, From, Rested, Resting},
    error::Source,
    house::Mover,
};
use std::{
    future::poll_fn,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    sync::{Notify, Semaphore},
    task::{JoinHandle, JoinSet},
};

/// Where payloads rest, each time that a store is opened.
pub(crate) type Where = Arc<dyn Fn() -> Option<Resting> + Send + Sync>;

/// A folder of objects that can be troubled.
struct Attic {
    folder: Folder,
    place: PathBuf,
    _kept: TempDir,
    /// Nothing goes in or out.
    away: AtomicBool,
    /// What is put is there, and the answer is lost.
    deaf: AtomicBool,
    /// Nothing more goes in.
    full: AtomicBool,
    /// What can't be deleted, as errors name it.
    stuck: Mutex<Vec<String>>,
    /// Whoever has put something waits here while it is shut.
    door: Semaphore,
    shut: AtomicBool,
    /// Whoever asks for something waits there first, and is counted.
    mute: AtomicBool,
    asked: Semaphore,
    /// Whoever is to delete something waits there first.
    kept_shut: AtomicBool,
    /// Somebody stands at the door.
    knock: Notify,
}

impl Attic {
    fn new() -> Self {
        let kept = tempfile::tempdir().expect("a temporary folder");
        let place = kept.path().to_owned();
        let folder = Folder::open(&place).expect("it opens");
        let [away, deaf, full, shut, kept_shut, mute] = [(); 6].map(|()| AtomicBool::new(false));
        let (stuck, knock) = (Mutex::default(), Notify::new());
        let [door, asked] = [(); 2].map(|()| Semaphore::new(0));
        Self {
            folder,
            place,
            _kept: kept,
            away,
            deaf,
            full,
            stuck,
            door,
            shut,
            mute,
            asked,
            kept_shut,
            knock,
        }
    }

    fn objects(&self) -> u64 {
        let files = std::fs::read_dir(&self.place).expect("the folder").map(|entry| entry.expect("an entry"));
        files.filter(|file| file.file_type().expect("its type").is_file()).count() as u64
    }

    fn is_there(&self) -> Result<(), Source> {
        if self.away.load(SeqCst) { Err("it is away".into()) } else { Ok(()) }
    }
}

impl Depot for Attic {
    fn put<'a>(&'a self, name: &'a str, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), Source>> {
        Box::pin(async move {
            self.is_there()?;
            if self.full.load(SeqCst) {
                return Err("it is full".into());
            }
            self.folder.put(name, bytes).await?;
            if self.shut.load(SeqCst) {
                self.knock.notify_one();
                self.door.acquire().await?.forget();
            }
            if self.deaf.load(SeqCst) { Err("its answer is lost".into()) } else { Ok(()) }
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Source>> {
        Box::pin(async move {
            self.is_there()?;
            if self.mute.load(SeqCst) {
                self.asked.add_permits(1);
                self.door.acquire().await?.forget();
            }
            self.folder.get(name).await
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Source>> {
        Box::pin(async move {
            self.is_there()?;
            if self.stuck.lock().expect("nobody panics").iter().any(|why| why.contains(name)) {
                return Err("it is stuck".into());
            }
            if self.kept_shut.load(SeqCst) {
                self.knock.notify_one();
                self.door.acquire().await?.forget();
            }
            self.folder.delete(name).await
        })
    }
}

/// An empty place for a store, with an attic.
pub(crate) struct Place {
    inner: promises::Place,
    attic: Arc<Attic>,
    /// Whether stores are given the object store.
    given: Arc<AtomicBool>,
    /// Whether they keep objects to which nothing refers any more.
    patient: Arc<AtomicBool>,
}

impl Place {
    pub(crate) fn new(keyed_as: impl FnOnce(Option<usize>, Where) -> promises::Place) -> Self {
        let attic = Arc::new(Attic::new());
        let (given, patient) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (kept, asked, waits) = (attic.clone(), given.clone(), patient.clone());
        let resting = move || {
            let grace = Duration::from_secs(if waits.load(SeqCst) { 3600 } else { 0 });
            let resting = Resting::shared(kept.clone()).after(Duration::ZERO).grace(grace);
            asked.load(SeqCst).then_some(resting)
        };
        Self { inner: keyed_as(Some(4096), Arc::new(resting)), attic, given, patient }
    }

    fn plain(&self) -> Arc<dyn Store> {
        self.inner.plain()
    }

    /// Each object is one that a run refers to, and each of these is there.
    fn is_tidy(&self) {
        let resting = self.count("SELECT count(*) FROM hapax_objects WHERE state = 1");
        let others = self.count("SELECT count(*) FROM hapax_objects WHERE state <> 1");
        assert_eq!((self.attic.objects(), others), (resting, 0));
    }

    fn count(&self, sql: &str) -> u64 {
        self.inner.count(sql)
    }

    /// A mover that has put something, and waits before it says so.
    async fn mover_at_the_door(&self, store: &Arc<dyn Store>) -> JoinHandle<Result<Rested, StoreError>> {
        self.attic.shut.store(true, SeqCst);
        let still = store.clone();
        let mover = tokio::spawn(async move { still.rest(From::default()).await });
        self.attic.knock.notified().await;
        self.attic.shut.store(false, SeqCst);
        mover
    }

    /// Bytes beside their rows.
    fn beside(&self) -> u64 {
        large::rows(&self.inner)
    }
}

/// Looks at all payloads once.
async fn rest(store: &Arc<dyn Store>) -> Rested {
    let (mut all, mut next) = (Rested::default(), Some(From::default()));
    while let Some(from) = next {
        let looked = store.rest(from).await.expect("a look");
        all.rested += looked.rested;
        all.deleted += looked.deleted;
        all.failed.extend(looked.failed);
        next = looked.next;
    }
    all
}

/// Until nothing is left to do.
async fn rest_all(store: &Arc<dyn Store>) {
    loop {
        let Rested { rested, deleted, failed, .. } = rest(store).await;
        assert_eq!(failed, Vec::<String>::new());
        if rested + deleted == 0 {
            return;
        }
    }
}

/// All that a store says of a run, its letter too.
async fn whole(store: &Arc<dyn Store>, run: &RunKey) -> String {
    let letter = store.letter(run.clone(), signal("s"), 0).await.expect("a look");
    format!("{} {letter:?}", told(store, run).await)
}

const SENT: &str = "UPDATE hapax_outbox SET status = 'sent'";

pub(crate) async fn what_rests_is_read_as_ever(place: Place) {
    let store = place.inner.with(NEW);
    let run = fill(&store, "r").await.key;
    let large = large_run(&store, "large").await.key;
    place.inner.run(SENT);
    let before = (whole(&store, &run).await, whole(&store, &large).await);
    rest_all(&store).await;
    assert_eq!(place.beside(), 0, "all of it rests");
    assert!(place.attic.objects() > 3, "there");
    place.is_tidy();
    for store in [store, place.inner.with(NEW)] {
        assert_eq!((whole(&store, &run).await, whole(&store, &large).await), before);
    }
}

pub(crate) async fn messages_rest_when_they_are_sent(place: Place) {
    let store = place.plain();
    large_run(&store, "r").await;
    rest_all(&store).await;
    let waiting = place.beside();
    assert_eq!(waiting, 1, "a message that is yet to be sent, twice the same");
    place.attic.away.store(true, SeqCst);
    assert_eq!(messages(&store).await.len(), 3, "nobody who delivers asks for an object");
    place.attic.away.store(false, SeqCst);
    place.inner.run(SENT);
    rest_all(&store).await;
    assert_eq!(place.beside(), 0);
    place.is_tidy();
}

pub(crate) async fn a_message_that_comes_meanwhile_stays_in_the_database(place: Place) {
    let store = place.plain();
    let mut holder = large_run(&store, "r").await;
    place.inner.run(SENT);
    let mover = place.mover_at_the_door(&store).await;
    // What the letter says, which is on its way to the object store.
    let sent = vec![message(&noise(9, 10_000))];
    holder.commit(holder.next_with("small", 1, 1, sent)).await.expect("a step");
    place.attic.door.add_permits(100);
    mover.await.expect("it goes on").expect("a look");
    assert_eq!(place.beside(), 1, "nobody who delivers asks for an object");
    place.inner.run(SENT);
    rest_all(&store).await;
    assert_eq!((place.beside(), messages(&store).await.len()), (0, 4));
    place.is_tidy();
}

pub(crate) async fn objects_that_cannot_be_deleted_stand_in_no_others_way(place: Place) {
    let store = place.plain();
    for n in 0..23 {
        let mut holder = large_run(&store, &format!("r{n}")).await;
        holder.commit(holder.last("end")).await.expect("its end");
    }
    place.inner.run(SENT);
    rest_all(&store).await;
    let policy = GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest: 0,
        limit: 99,
        dry_run: false,
    };
    assert_eq!(store.gc(policy).await.expect("a sweep").deleted.len(), 23);
    let all = place.attic.objects();
    place.attic.away.store(true, SeqCst);
    let stuck = store.rest(From::default()).await.expect("a look").failed;
    assert!(!stuck.is_empty() && (stuck.len() as u64) < all, "{} of {all}", stuck.len());
    place.attic.away.store(false, SeqCst);
    let others = all - stuck.len() as u64;
    *place.attic.stuck.lock().expect("nobody panics") = stuck;
    assert_eq!(store.rest(From::default()).await.expect("a look").deleted, others);
    place.attic.stuck.lock().expect("nobody panics").clear();
    rest_all(&store).await;
    assert_eq!(place.attic.objects(), 0);
}

/// A run that is gone, of which that many objects are left, and more.
async fn gone(place: &Place, store: &Arc<dyn Store>, objects: u64) {
    let mut holder = Sample::run("gone").hold(store).await;
    let sent = (0..objects).map(|n| message(&noise(n * 2 + 1, 6_000))).collect();
    holder.commit(holder.next_with("sends", 1, 0, sent)).await.expect("a step");
    holder.commit(holder.last("end")).await.expect("its end");
    place.inner.run(SENT);
    while place.beside() > 0 {
        assert_eq!(rest(store).await.failed, Vec::<String>::new());
    }
    store.delete(holder.key).await.expect("it is over");
}

pub(crate) async fn all_objects_whose_time_is_over_end_in_one_pass(place: Place) {
    let store = place.plain();
    // More than two batches.
    gone(&place, &store, 150).await;
    let all = place.attic.objects();
    assert!(all >= 150, "{all}");
    assert_eq!(rest(&store).await.deleted, all);
    assert_eq!((place.attic.objects(), place.count("SELECT count(*) FROM hapax_objects")), (0, 0));
}

pub(crate) async fn an_object_that_is_on_its_way_again_is_not_ended(place: Place) {
    place.patient.store(true, SeqCst);
    let store = place.plain();
    // More than are ended at the same time.
    gone(&place, &store, 12).await;
    let before = place.attic.objects();
    large_run(&store, "r").await;
    place.attic.deaf.store(true, SeqCst);
    rest(&store).await;
    place.attic.deaf.store(false, SeqCst);
    let on_their_way = place.attic.objects() - before;
    assert!(on_their_way > 0);
    place.inner.run("UPDATE hapax_objects SET since = CASE WHEN state = 0 THEN 1 ELSE 0 END");
    place.attic.full.store(true, SeqCst);
    place.attic.kept_shut.store(true, SeqCst);
    let still = store.clone();
    let sweeper = tokio::spawn(async move { still.rest(From::default()).await });
    place.attic.knock.notified().await;
    // Their mover tries again, while the others end.
    place.inner.run("UPDATE hapax_objects SET since = 9000000000000000 WHERE state = 0");
    place.attic.kept_shut.store(false, SeqCst);
    place.attic.door.add_permits(100);
    sweeper.await.expect("it goes on").expect("a look");
    assert_eq!(place.attic.objects(), on_their_way);
}

pub(crate) async fn an_object_goes_with_its_run(place: Place) {
    let store = place.plain();
    for name in ["a", "b"] {
        let mut holder = large_run(&store, name).await;
        holder.commit(holder.last("end")).await.expect("its end");
    }
    place.inner.run(SENT);
    rest_all(&store).await;
    let both = place.attic.objects();
    let gc = |keep_newest| GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest,
        limit: 9,
        dry_run: false,
    };
    assert_eq!(store.gc(gc(1)).await.expect("a sweep").deleted.len(), 1);
    rest_all(&store).await;
    assert_eq!(place.attic.objects() * 2, both, "what the other run has is its own");
    place.is_tidy();
    store.gc(gc(0)).await.expect("a sweep");
    rest_all(&store).await;
    assert_eq!((place.attic.objects(), place.count("SELECT count(*) FROM hapax_objects")), (0, 0));
}

pub(crate) async fn an_object_goes_when_nothing_refers_to_it(place: Place) {
    let store = place.plain();
    let mut holder = large_run(&store, "r").await;
    holder.commit(holder.next(&noise(5, LARGE))).await.expect("a step");
    rest_all(&store).await;
    let before = place.attic.objects();
    let fresh = StepCommit { fresh: Some(shape("sample")), ..holder.next(&noise(6, LARGE)) };
    holder.commit(fresh).await.expect("it begins anew");
    rest_all(&store).await;
    assert!(place.attic.objects() < before, "the states before are gone");
    place.is_tidy();
    let loaded = place.plain().load(holder.key.clone()).await.expect("it is whole");
    assert_eq!(&*loaded.checkpoint.state, json(&noise(6, LARGE)).as_bytes());
    let letter = store.letter(holder.key, signal("s"), 0).await.expect("a look").expect("a letter");
    assert_eq!(letter.payload, json(&noise(9, 10_000)));
}

pub(crate) async fn what_is_written_again_rests_once(place: Place) {
    let store = place.plain();
    let mut holder = large_run(&store, "r").await;
    place.inner.run(SENT);
    rest_all(&store).await;
    let before = place.attic.objects();
    // The same message again: the same bytes.
    let sent = vec![message(&noise(7, 10_000))];
    holder.commit(holder.next_with("small", 1, 1, sent)).await.expect("a step");
    assert_eq!(place.beside(), 1, "a commit asks no object store");
    place.inner.run(SENT);
    rest_all(&store).await;
    assert_eq!((place.beside(), place.attic.objects()), (0, before));
    assert_eq!(messages(&store).await.len(), 4);
    place.is_tidy();
}

pub(crate) async fn an_object_store_that_is_away_stops_nobody(place: Place) {
    place.patient.store(true, SeqCst);
    let store = place.plain();
    let mut holder = large_run(&store, "r").await;
    place.inner.run(SENT);
    place.attic.away.store(true, SeqCst);
    let looked = rest(&store).await;
    assert_eq!(looked.rested, 0);
    assert!(looked.failed.iter().all(|why| why.contains("it is away")) && !looked.failed.is_empty());
    let tried = place.count("SELECT count(*) FROM hapax_objects");
    rest(&store).await;
    assert_eq!(
        place.count("SELECT count(*) FROM hapax_objects"),
        tried,
        "it is tried again, not remembered again"
    );
    let loaded = place.plain().load(holder.key.clone()).await.expect("it is where it was");
    assert_eq!(&*loaded.checkpoint.state, json(&noise(3, LARGE)).as_bytes());
    place.attic.away.store(false, SeqCst);
    rest_all(&store).await;
    place.attic.away.store(true, SeqCst);
    let error = place.plain().load(holder.key.clone()).await.expect_err("its state rests");
    assert_eq!(error.code(), "HX0040", "{error}");
    holder.commit(holder.next(&noise(8, LARGE))).await.expect("a commit asks no object store");
    place.attic.away.store(false, SeqCst);
    let loaded = place.plain().load(holder.key).await.expect("it is back");
    assert_eq!(&*loaded.checkpoint.state, json(&noise(8, LARGE)).as_bytes());
}

/// More than a server has sessions for, and more than a file has readers.
const MANY: u32 = 20;

pub(crate) async fn an_object_store_that_says_nothing_holds_up_nobody_else(place: Place) {
    let store = place.plain();
    let run = large_run(&store, "r").await.key;
    rest_all(&store).await;
    let mut other = Sample::run("other").hold(&store).await;
    place.attic.mute.store(true, SeqCst);
    let mut loads = JoinSet::new();
    for _ in 0..MANY {
        let (store, run) = (store.clone(), run.clone());
        loads.spawn(async move { store.load(run).await });
    }
    tokio::select! {
        asked = place.attic.asked.acquire_many(MANY) => asked.expect("it is open").forget(),
        ended = loads.join_next() => panic!("some wait until others have waited in vain: {ended:?}"),
    }
    other.commit(other.next("goes on")).await.expect("a step");
    let leases = vec![(other.key.clone(), other.epoch)];
    store.renew(leases, claimant("a", LONG)).await.expect("its lease goes on");
    store.load(other.key).await.expect("nothing of it rests");
    place.attic.mute.store(false, SeqCst);
    place.attic.door.add_permits(MANY as usize);
    store.load(run).await.expect("it is whole");
}

pub(crate) async fn a_run_parks_and_wakes_without_a_look_at_what_its_letter_says(place: Place) {
    let store = place.plain();
    let mut holder = large_run(&store, "r").await;
    place.inner.run(SENT);
    rest_all(&store).await;
    place.attic.away.store(true, SeqCst);
    let unread = store.letter(holder.key.clone(), signal("s"), 0).await.expect_err("it rests");
    assert_eq!(unread.code(), "HX0040", "{unread}");
    let wake = Wake { at_us: None, letters: [signal("s")].into() };
    let parked = StatusChange { wake, ..holder.status(Status::Waiting { on: WaitsOn::Signal }, true) };
    holder.write(Write::Status(parked)).await.expect("only who takes the letter reads it");
    assert_eq!(holder.record().await.status, Status::Pending, "the letter was there before");
}

pub(crate) async fn whoever_has_no_object_store_is_told_so(place: Place) {
    let store = place.plain();
    let run = large_run(&store, "r").await.key;
    rest_all(&store).await;
    place.given.store(false, SeqCst);
    let error = place.plain().load(run.clone()).await.expect_err("its state rests");
    assert_eq!(error.code(), "HX0194", "{error}");
    assert!(error.to_string().contains("`r`") || error.to_string().contains("/r`"), "{error}");
    place.given.store(true, SeqCst);
    place.plain().load(run).await.expect("with it");
}

pub(crate) async fn a_forged_name_of_an_object_reaches_no_other_file(place: Place) {
    let store = place.plain();
    let run = large_run(&store, "r").await.key;
    place.inner.run(SENT);
    rest_all(&store).await;
    let beside = place.attic.place.with_extension("beside");
    std::fs::write(&beside, b"another's").expect("a file");
    let forged = format!("../{}", beside.file_name().and_then(|name| name.to_str()).expect("a name"));
    place.inner.run(&format!("UPDATE hapax_objects SET name = '{forged}'"));
    let error = place.plain().load(run).await.expect_err("it names another file");
    assert_eq!(error.code(), "HX0044", "{error}");
    place.inner.run("UPDATE hapax_objects SET state = 2, since = 0");
    let looked = rest(&store).await;
    assert!(looked.failed.iter().any(|why| why.contains("leads elsewhere")), "{:?}", looked.failed);
    let absolute = beside.to_str().expect("a name");
    for name in [&*forged, absolute, "a/../../b", "./whole", "whole/", "a/b", "..", ".", "/", ""] {
        let folder = &place.attic.folder;
        let refused = [
            folder.get(name).await.map(drop),
            folder.put(name, b"forged".to_vec()).await,
            folder.delete(name).await,
        ];
        let is_refused =
            |done: &Result<(), Source>| done.as_ref().is_err_and(|why| why.is::<BadObjectName>());
        assert!(refused.iter().all(is_refused), "{name}: {refused:?}");
    }
    assert_eq!(std::fs::read(&beside).expect("it is there"), b"another's");
    std::fs::remove_file(&beside).expect("it is there");
}

pub(crate) async fn a_mover_that_is_cut_off_anywhere_loses_nothing(place: Place) {
    let store = place.plain();
    let run = large_run(&store, "r").await.key;
    place.inner.run(SENT);
    let before = whole(&store, &run).await;
    place.attic.deaf.store(true, SeqCst);
    assert!(!rest(&store).await.failed.is_empty(), "its answers are lost");
    place.attic.deaf.store(false, SeqCst);
    assert_eq!(whole(&store, &run).await, before);
    // Dropped at its n-th turn, which ends wherever it waits.
    for n in 0.. {
        let mut turns = 0;
        let mut looking = pin!(store.rest(From::default()));
        let cut = poll_fn(|context| {
            turns += 1;
            if turns > n {
                return Poll::Ready(None);
            }
            looking.as_mut().poll(context).map(Some)
        });
        let done = cut.await.is_some();
        assert_eq!(whole(&place.plain(), &run).await, before, "cut at {n}");
        if done && place.beside() == 0 {
            break;
        }
    }
    rest_all(&store).await;
    place.is_tidy();
}

pub(crate) async fn a_mover_that_stood_still_refers_to_nothing_that_is_gone(place: Place) {
    let store = place.plain();
    let run = large_run(&store, "r").await.key;
    place.inner.run(SENT);
    let before = whole(&store, &run).await;
    let mover = place.mover_at_the_door(&store).await;
    // Others take what it has put for left behind, and end it.
    place.attic.full.store(true, SeqCst);
    assert!(rest(&store).await.deleted > 0);
    place.attic.door.add_permits(100);
    mover.await.expect("it goes on").expect("a look");
    assert_eq!(whole(&place.plain(), &run).await, before);
    place.attic.full.store(false, SeqCst);
    rest_all(&store).await;
    assert_eq!(whole(&place.plain(), &run).await, before);
    place.is_tidy();
}

pub(crate) async fn two_movers_bring_each_payload_to_rest_once(place: Place) {
    let store = place.plain();
    let mut runs = vec![];
    for n in 0..5 {
        runs.push(large_run(&store, &format!("r{n}")).await.key);
    }
    place.inner.run(SENT);
    let other = place.plain();
    let (one, another) = tokio::join!(rest(&store), rest(&other));
    assert_eq!((one.failed, another.failed), (vec![], vec![]));
    rest_all(&store).await;
    assert_eq!(place.beside(), 0);
    place.is_tidy();
    for run in runs {
        place.plain().load(run).await.expect("it is whole");
    }
}

pub(crate) async fn what_rests_is_rotated(place: Place) {
    let store = place.inner.with(OLD);
    let run = large_run(&store, "r").await.key;
    place.inner.run(SENT);
    let before = whole(&store, &run).await;
    rest_all(&store).await;
    let both = place.inner.with(&format!("{NEW},{OLD}"));
    assert!(rotate(&both).await > 0);
    rest_all(&both).await;
    place.is_tidy();
    assert_eq!(whole(&place.inner.with(NEW), &run).await, before);
}

pub(crate) async fn what_rests_moves_to_another_store(place: Place) {
    let store = place.plain();
    let mut holder = large_run(&store, "r").await;
    holder.commit(holder.last("end")).await.expect("its end");
    place.inner.run(SENT);
    rest_all(&store).await;
    let steps = store.checkpoints(holder.key.clone(), 0, 100).await.expect("steps");
    let elsewhere: Arc<dyn Store> = MemoryStore::shared();
    Mover::new(store.clone(), elsewhere.clone(), "elsewhere")
        .carry(holder.key.clone())
        .await
        .expect("it moves");
    assert_eq!(elsewhere.checkpoints(holder.key.clone(), 0, 100).await.expect("steps"), steps);
    assert_eq!(messages(&elsewhere).await[0], json(&noise(7, 10_000)).as_str());
    rest_all(&store).await;
    assert_eq!(place.attic.objects(), 0, "nothing of it is left");
}
