//! What keys promise, on every store that has them.

use super::{NEW, OLD, codec, keys};
use hapax_core::{
    commit::Write,
    error::Coded,
    flow::{Debounce, Terms},
    id::RunKey,
    limits::FRONTIER_PAGE,
    mailbox::{NewLetter, signal},
};
use hapax_store::{
    NewRun, Store, StoreError,
    codec::{Encrypted, Part, PayloadCodec, Place as Where, Stale},
    conformance::{
        Holder, Picture, Sample,
        sample::{self, json, key, message, submit},
        schedules::{added, nightly},
    },
    error::Source,
    outbox::OutboxFilter,
    recode::{From, PayloadKeys},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

pub(crate) type Codec = Arc<dyn PayloadCodec>;
type Open = Arc<dyn Fn(Option<Codec>) -> Arc<dyn Store> + Send + Sync>;

/// An empty place for a store.
pub(crate) struct Place {
    open: Open,
    sql: Box<dyn Fn(&str) -> String + Send + Sync>,
}

impl Place {
    pub(crate) fn new(
        open: impl Fn(Option<Codec>) -> Arc<dyn Store> + Send + Sync + 'static,
        sql: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { open: Arc::new(open), sql: Box::new(sql) }
    }

    /// Changes something behind the store's back.
    pub(crate) fn run(&self, sql: &str) {
        (self.sql)(sql);
    }

    /// Counts something behind the store's back.
    pub(crate) fn count(&self, sql: &str) -> u64 {
        (self.sql)(sql).trim().parse().expect("a number")
    }

    pub(crate) fn with(&self, keys: &str) -> Arc<dyn Store> {
        (self.open)(Some(codec(keys)))
    }

    pub(crate) fn plain(&self) -> Arc<dyn Store> {
        (self.open)(None)
    }
}

/// A test for each promise, on the places of a store.
macro_rules! promises {
    ($module:ident, $place:expr, $of:ident, [$($promise:ident),* $(,)?]) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    $crate::sealed::$of::$promise($place()).await;
                }
            )*
        }
    };
    (large, $module:ident, $place:expr) => {
        $crate::sealed::promises::promises!($module, $place, large, [
            what_is_large_lies_beside_its_row_and_is_read_as_ever,
            what_is_large_goes_with_its_run,
            a_fresh_history_keeps_what_is_referred_to_and_nothing_else,
            bytes_that_nothing_refers_to_any_more_outlast_no_rotation,
            what_is_missing_or_damaged_is_told_with_its_run,
            a_write_that_comes_to_nothing_leaves_no_bytes_and_is_written_whole_again,
        ]);
    };
    (resting, $module:ident, $place:expr) => {
        $crate::sealed::promises::promises!($module, $place, resting, [
            what_rests_is_read_as_ever,
            messages_rest_when_they_are_sent,
            a_message_that_comes_meanwhile_stays_in_the_database,
            objects_that_cannot_be_deleted_stand_in_no_others_way,
            all_objects_whose_time_is_over_end_in_one_pass,
            an_object_that_is_on_its_way_again_is_not_ended,
            an_object_goes_with_its_run,
            an_object_goes_when_nothing_refers_to_it,
            what_is_written_again_rests_once,
            an_object_store_that_is_away_stops_nobody,
            an_object_store_that_says_nothing_holds_up_nobody_else,
            a_run_parks_and_wakes_without_a_look_at_what_its_letter_says,
            whoever_has_no_object_store_is_told_so,
            a_forged_name_of_an_object_reaches_no_other_file,
            a_mover_that_is_cut_off_anywhere_loses_nothing,
            a_mover_that_stood_still_refers_to_nothing_that_is_gone,
            two_movers_bring_each_payload_to_rest_once,
            what_rests_is_rotated,
            what_rests_moves_to_another_store,
        ]);
    };
    (keys, $module:ident, $place:expr) => {
        $crate::sealed::promises::promises!($module, $place, promises, [
            whoever_lacks_a_key_is_told_which,
            whoever_lacks_a_key_writes_nothing_into_what_is_encrypted,
            rotation_changes_the_key_and_no_word,
            a_run_goes_on_while_its_payloads_are_rotated,
            rotation_does_not_overwrite_what_changed_meanwhile,
            a_rotation_ends_though_a_payload_changes_before_each_write,
            a_rotation_passes_over_nothing_behind_what_is_damaged,
            a_store_is_encrypted_and_decrypted_in_place,
            what_is_plain_among_the_encrypted_is_never_sealed,
        ]);
    };
}
pub(crate) use promises;

/// A run with a payload of every kind, and a schedule.
pub(crate) async fn fill(store: &Arc<dyn Store>, name: &str) -> Holder {
    let mut holder = Sample::run(name).items(300).hold(store).await;
    // A page and a little more.
    let items = FRONTIER_PAGE as u32 + 5;
    let first = holder.next_with(&format!("state of {name}"), items, 3, vec![message("one"), message("two")]);
    holder.commit(first).await.expect("a step");
    for n in 0..4 {
        holder.commit(holder.next(&format!("{n} {}", "large ".repeat(500)))).await.expect("a step");
    }
    submit(store, Write::Append(holder.append(2))).await.expect("rows");
    holder.next_seq += 2;
    for id in ["a", "b"] {
        let letter = NewLetter { id: id.into(), subject: signal(id), payload: json(id) };
        store.post(holder.key.clone(), letter).await.expect("a letter");
    }
    added(&**store, nightly(name)).await;
    holder
}

/// All that a store says of a run and of the schedule of its name.
pub(crate) async fn told(store: &Arc<dyn Store>, run: &RunKey) -> String {
    let picture = format!("{:?}", Picture::of(store, run).await);
    let steps = store.checkpoints(run.clone(), 0, 100).await.expect("steps");
    let journal = store.journal(run.clone(), 0, 100).await.expect("rows");
    let mut pages = vec![];
    for page in 0..2 {
        pages.push(store.frontier_page(run.clone(), 1, page).await.expect("a page"));
    }
    let mut letters = vec![];
    for subject in ["a", "b"] {
        letters.push(store.letter(run.clone(), signal(subject), 0).await.expect("a letter"));
    }
    let filter = OutboxFilter { run: Some(run.run.clone()), ..OutboxFilter::default() };
    let messages = store.outbox().list(filter).await.expect("messages");
    let input = store.schedules().get(nightly(run.run.as_str()).key).await.expect("a schedule");
    format!("{picture} {steps:?} {journal:?} {pages:?} {letters:?} {messages:?} {input:?}")
}

/// Encodes everything anew; answers how many payloads that were.
pub(crate) async fn rotate(store: &Arc<dyn Store>) -> u64 {
    let (mut next, mut rewritten) = (Some(From::default()), 0);
    while let Some(from) = next {
        let done = store.recode(from).await.expect("a batch");
        assert_eq!(done.damaged, Vec::<String>::new());
        rewritten += done.rewritten;
        next = done.next;
    }
    rewritten
}

async fn used(store: &Arc<dyn Store>) -> PayloadKeys {
    store.payload_keys().await.expect("a count")
}

pub(crate) async fn whoever_lacks_a_key_is_told_which(place: Place) {
    let run = fill(&place.with(OLD), "r").await.key;
    let another = format!("old:{}", NEW.split_once(':').expect("a key").1);
    for (store, code, says) in [
        (place.plain(), "HX0190", "`old`"),
        (place.with(NEW), "HX0190", "`old`"),
        (place.with(&another), "HX0191", "`old`"),
    ] {
        let refused = [
            store.load(run.clone()).await.map(drop).unwrap_err(),
            store.checkpoints(run.clone(), 0, 9).await.map(drop).unwrap_err(),
            store.frontier_page(run.clone(), 1, 1).await.map(drop).unwrap_err(),
            store.journal(run.clone(), 0, 9).await.map(drop).unwrap_err(),
            store.letter(run.clone(), signal("a"), 0).await.map(drop).unwrap_err(),
            store.outbox().list(OutboxFilter::default()).await.map(drop).unwrap_err(),
            store.schedules().get(nightly("r").key).await.map(drop).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.code(), code, "{error}");
            assert!(error.to_string().contains(says), "{error}");
            assert!(matches!(error, StoreError::Locked { .. }), "{error}");
        }
    }
    let plain = Sample::run("plain").hold(&place.plain()).await.key;
    let refused = place.with(OLD).load(plain.clone()).await.unwrap_err();
    assert_eq!(refused.code(), "HX0192", "{refused}");
    place.with(&format!("{OLD} plain")).load(plain).await.expect("both are read");
}

/// Those who have the keys would refuse the whole run from then on.
pub(crate) async fn whoever_lacks_a_key_writes_nothing_into_what_is_encrypted(place: Place) {
    let (keyed, keyless) = (place.with(OLD), place.plain());
    let mut failed = fill(&keyed, "failed").await;
    let mut child = Sample::run("failed/child").child_of(&failed.key).hold(&keyless).await;
    let letter = || NewLetter { id: "c".into(), subject: signal("c"), payload: json("c") };
    let signalled = keyless.post(failed.key.clone(), letter()).await.map(drop);
    let ended = child.commit(child.last("end")).await.map(drop);
    failed.write(Write::Status(failed.status(sample::failed(), true))).await.expect("it fails");
    let retried = keyless.retry(failed.key.clone()).await;
    let calm = Debounce::new("calm", Duration::from_secs(60));
    let waiting = |items| {
        let terms = Terms { debounce: Some(calm.clone()), ..Terms::default() };
        NewRun { terms, ..Sample::run("waiting").items(items).build() }
    };
    keyed.create(waiting(1)).await.expect("it waits");
    let replaced = keyless.flow().replace(waiting(2)).await.map(drop);
    for refused in [signalled, ended, retried, replaced] {
        let refused = refused.expect_err("it would lie there in plain");
        assert!(matches!(&refused, StoreError::Locked { run, .. } if *run != child.key), "{refused}");
        assert_eq!(refused.code(), "HX0190", "{refused}");
    }
    assert_eq!(used(&keyed).await.plain, 2, "what the child was created with");
    keyed.load(key("waiting")).await.expect("it is whole");
    keyed.post(failed.key.clone(), letter()).await.expect_err("it has failed");
    keyed.retry(failed.key.clone()).await.expect("whoever has the key may");
    keyed.post(failed.key.clone(), letter()).await.expect("whoever has the key may");
    keyed.load(failed.key).await.expect("it is whole");
}

pub(crate) async fn rotation_changes_the_key_and_no_word(place: Place) {
    let old = place.with(OLD);
    let mut before = BTreeMap::new();
    for name in ["a", "b", "c"] {
        let holder = fill(&old, name).await;
        before.insert(holder.key.clone(), told(&old, &holder.key).await);
    }
    Sample::run("elsewhere").namespace("tenant").hold(&old).await;
    let all = used(&old).await;
    assert_eq!((all.under["old"], all.plain, all.unknown, all.stale), (all.payloads, 0, 0, 0), "{all:?}");
    let both = place.with(&format!("{NEW} {OLD}"));
    assert_eq!(used(&both).await.stale, all.payloads);
    assert_eq!(rotate(&both).await, all.payloads);
    let now = used(&both).await;
    assert_eq!((now.under["old"], now.under["new"], now.stale), (0, all.payloads, 0), "{now:?}");
    assert_eq!(rotate(&both).await, 0, "nothing is left to do");
    let new = place.with(NEW);
    for (run, said) in before {
        assert_eq!(told(&new, &run).await, said);
    }
}

pub(crate) async fn a_run_goes_on_while_its_payloads_are_rotated(place: Place) {
    let worker = place.with(&format!("{OLD} {NEW}"));
    let mut holder = fill(&worker, "r").await;
    let mut body = "large ".repeat(2_000);
    for n in 0..5 {
        body.push_str(&format!(" {n}"));
        holder.commit(holder.next(&body)).await.expect("a step before");
        rotate(&place.with(&format!("{NEW} {OLD}"))).await;
        body.push_str(&format!(" {n}"));
        // It is a patch of a snapshot whose key has changed.
        holder.commit(holder.next(&body)).await.expect("a step after");
    }
    let said = told(&worker, &holder.key).await;
    let both = place.with(&format!("{NEW} {OLD}"));
    assert!(rotate(&both).await > 0, "the worker writes under its own key");
    assert_eq!(told(&place.with(NEW), &holder.key).await, said);
    assert_eq!(holder.record().await.epoch, holder.epoch, "nobody has touched its lease");
}

/// Does something each time between the look at the state of a first step and its replacement.
struct Meddling {
    inner: Encrypted,
    deed: Mutex<Box<dyn FnMut() + Send>>,
}

impl Meddling {
    fn new(deed: impl FnMut() + Send + 'static) -> Arc<Self> {
        let inner = Encrypted::new(keys(&format!("{NEW} {OLD}")));
        Arc::new(Self { inner, deed: Mutex::new(Box::new(deed)) })
    }
}

impl PayloadCodec for Meddling {
    fn encode(&self, plain: Vec<u8>, place: &Where<'_>) -> Result<Vec<u8>, Source> {
        if place.part == (Part::State { step: 1 }) {
            let mut deed = self.deed.lock().expect("one thread");
            let deed = &mut **deed;
            // A thread of its own, since a store is waited for.
            thread::scope(move |scope| scope.spawn(deed).join()).expect("it is done");
        }
        self.inner.encode(plain, place)
    }

    fn decode(&self, stored: &[u8], place: &Where<'_>) -> Result<Vec<u8>, Source> {
        self.inner.decode(stored, place)
    }

    fn stale(&self) -> Stale {
        self.inner.stale()
    }

    fn marks(&self) -> Vec<(String, Vec<u8>)> {
        self.inner.marks()
    }
}

pub(crate) async fn rotation_does_not_overwrite_what_changed_meanwhile(place: Place) {
    let old = place.with(OLD);
    let mut first = Sample::run("r").hold(&old).await;
    first.commit(first.last("the first of that name")).await.expect("its end");
    let (runtime, mut worker) = (tokio::runtime::Handle::current(), Some(old.clone()));
    let deed = move || {
        let Some(worker) = worker.take() else { return };
        runtime.block_on(async {
            worker.delete(key("r")).await.expect("it is over");
            let mut second = Sample::run("r").hold(&worker).await;
            second.commit(second.next("the second of that name")).await.expect("a step");
        });
    };
    rotate(&(place.open)(Some(Meddling::new(deed)))).await;
    let state = place.with(NEW).load(key("r")).await.expect("it is whole").checkpoint.state;
    assert_eq!(&*state, json("the second of that name").as_bytes());
}

pub(crate) async fn a_rotation_ends_though_a_payload_changes_before_each_write(place: Place) {
    let old = place.with(OLD);
    let mut first = Sample::run("r").hold(&old).await;
    first.commit(first.last("the first of that name")).await.expect("its end");
    let before = used(&place.with(&format!("{NEW} {OLD}"))).await;
    let (runtime, worker) = (tokio::runtime::Handle::current(), old.clone());
    let deed = move || {
        runtime.block_on(async {
            worker.delete(key("r")).await.expect("it is over");
            let mut next = Sample::run("r").hold(&worker).await;
            next.commit(next.last("another of that name")).await.expect("its end");
        });
    };
    let meddling = (place.open)(Some(Meddling::new(deed)));
    let (mut next, mut changed, mut batches) = (Some(From::default()), 0, 0);
    while let Some(from) = next {
        let done = meddling.recode(from).await.expect("a batch");
        (next, changed, batches) = (done.next, changed + done.changed, batches + 1);
        assert!(batches < 100, "it never ends");
    }
    assert!(changed > 0);
    let both = place.with(&format!("{NEW} {OLD}"));
    assert_eq!(used(&both).await.payloads, before.payloads);
    rotate(&both).await;
    assert_eq!(used(&both).await.stale, 0, "the next pass has what this one left");
    let state = place.with(NEW).load(key("r")).await.expect("it is whole").checkpoint.state;
    assert_eq!(&*state, json("another of that name").as_bytes());
}

pub(crate) async fn a_rotation_passes_over_nothing_behind_what_is_damaged(place: Place) {
    let old = place.with(OLD);
    let mut holder = Sample::run("r").hold(&old).await;
    let sent = (0..150).map(|n| message(&format!("message {n}"))).collect();
    holder.commit(holder.next_with("sends", 1, 0, sent)).await.expect("a step");
    // More than a batch.
    place.run(
        "UPDATE hapax_outbox SET payload = substr(payload, 1, length(payload) - 1) WHERE position < 140",
    );
    let both = place.with(&format!("{NEW} {OLD}"));
    let (mut next, mut damaged) = (Some(From::default()), vec![]);
    while let Some(from) = next {
        let done = both.recode(from).await.expect("a batch");
        damaged.extend(done.damaged);
        next = done.next;
    }
    assert_eq!(
        (damaged.len(), used(&both).await.under["old"]),
        (140, 140),
        "the others are under the new key"
    );
}

pub(crate) async fn what_is_plain_among_the_encrypted_is_never_sealed(place: Place) {
    fill(&place.with(OLD), "r").await;
    let forged = fill(&place.plain(), "forged").await.key;
    let both = place.with(&format!("{NEW} {OLD}"));
    let plain = used(&both).await.plain;
    assert!(plain > 10, "{plain}");
    let mut next = Some(From::default());
    let refused = loop {
        match both.recode(next.take().expect("it doesn't get to the end")).await {
            Ok(done) => next = done.next,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(&refused, StoreError::Locked { run, .. } if *run == forged), "{refused}");
    assert_eq!((refused.code(), used(&both).await.plain), ("HX0192", plain));
}

pub(crate) async fn a_store_is_encrypted_and_decrypted_in_place(place: Place) {
    let plain = place.plain();
    let run = fill(&plain, "r").await.key;
    let said = told(&plain, &run).await;
    let all = rotate(&place.with(&format!("{NEW} plain"))).await;
    assert!(all > 10, "{all}");
    assert_eq!(told(&place.with(NEW), &run).await, said);
    assert!(place.plain().load(run.clone()).await.is_err(), "it can't be read without the key");
    let back = (place.open)(Some(Arc::new(Encrypted::new(keys(NEW).writes_plain()))));
    assert_eq!(rotate(&back).await, all);
    assert_eq!(told(&place.plain(), &run).await, said);
    let used = used(&back).await;
    assert_eq!((used.plain, used.stale), (used.payloads, 0));
}
