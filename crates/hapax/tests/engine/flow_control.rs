//! Flow control: how many runs go at a time, how soon, which first, and under which names.

use crate::common::*;
use hapax::{
    Coded, Error, StartOptions, Status, WaitsOn,
    control::{Debounce, Rate},
    prelude::*,
    store::{
        BoxFuture, Claimant, Clock, MemoryStore, ReadyFilter, ShardedStore, SqliteOptions, SqliteStore, Store,
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const WORK: Node = Node::new("work");
const WAITS: Status = Status::Waiting { on: WaitsOn::Key };
const SECOND: Duration = Duration::from_secs(1);

/// A node that tells when it begins, and waits for the signal before it is done.
fn waiting(diary: &Diary, signal: &Signal) -> Graph<Board> {
    let work = node!(
        [diary, signal] | ctx | {
            diary.note(ctx.run_id().to_string());
            signal.take().await;
            Board::delta().total(1_u64)
        }
    );
    Graph::new("waiting", 1, WORK).node(WORK, work)
}

fn one_at_a_time() -> StartOptions {
    StartOptions::default().key("customer-42", 1)
}

#[tokio::test]
async fn runs_of_one_key_go_one_after_the_other_in_their_order() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let mut runs = vec![];
    for run in ["a", "b", "c"] {
        runs.push(flow.start_with(run, Board::default(), one_at_a_time()).await.unwrap());
    }
    assert_eq!(runs[1].status().await.unwrap(), WAITS);
    for run in runs {
        signal.give();
        run.wait().await.unwrap();
    }
    assert_eq!(diary.all(), ["a", "b", "c"]);
    assert!(engine.store().flow().keys(Default::default()).await.unwrap().is_empty(), "every slot is free");
}

#[tokio::test]
async fn a_cancelled_run_leaves_its_queue_and_its_slot() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let first = flow.start_with("a", Board::default(), one_at_a_time()).await.unwrap();
    let waits = flow.start_with("b", Board::default(), one_at_a_time()).await.unwrap();
    let last = flow.start_with("c", Board::default(), one_at_a_time()).await.unwrap();
    waits.cancel().await.unwrap();
    assert!(matches!(waits.wait().await, Err(Error::Cancelled { .. })));
    first.cancel().await.unwrap();
    assert!(matches!(first.wait().await, Err(Error::Cancelled { .. })));
    signal.give();
    last.wait().await.unwrap();
    assert!(!diary.all().contains(&"b".to_owned()), "it never had a slot");
    assert!(engine.store().flow().keys(Default::default()).await.unwrap().is_empty());
}

/// It ends, is deleted, and another one is started under its name, before whoever has ended it reads on.
#[tokio::test]
async fn a_cancel_gives_back_what_its_run_had_and_never_what_the_next_of_that_name_has() {
    let (diary, signal, store) = (Diary::default(), Signal::default(), memory());
    let tool = Engine::builder().options(Options::default().finds_work(false)).with_store(store.clone());
    let flow = tool.register(waiting(&diary, &signal), ()).await.unwrap();
    let start = {
        let flow = flow.clone();
        move |run: &'static str| {
            let flow = flow.clone();
            async move { flow.start_with(run, Board::default(), one_at_a_time().unheld()).await.unwrap() }
        }
    };
    start("a").await;
    let again = {
        let (store, start) = (store.clone(), start.clone());
        move || -> BoxFuture<'static, ()> {
            let (store, start) = (store.clone(), start.clone());
            Box::pin(async move {
                let a = store.run(key("a")).await.unwrap().expect("it is there");
                if a.status == Status::Cancelled {
                    store.delete(key("a")).await.unwrap();
                    store.flow().sweep(Default::default()).await.unwrap();
                    start("a").await;
                }
            })
        }
    };
    let reading = Mortal::reading_while(store.clone(), again.clone());
    let engine = Engine::builder().with_store(Arc::new(reading));
    engine.cancel("a").await.unwrap();
    again().await;
    start("b").await;
    let mut going = vec![];
    for run in ["a", "b"] {
        let record = store.run(key(run)).await.unwrap().expect("it is there");
        going.extend((record.status == Status::Pending).then_some(run));
    }
    assert_eq!(going.len(), 1, "one at a time: {going:?}");
}

/// The database of its key may be another one, and hang.
#[tokio::test]
async fn a_run_is_over_though_nobody_takes_back_what_it_held() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let store = Arc::new(Mortal::new(memory()).that_takes_up_work().that_takes_nothing_back());
    let options = Options::default().max_active_runs(1);
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let first = flow.start_with("a", Board::default(), one_at_a_time()).await.unwrap();
    signal.give();
    first.wait().await.unwrap();
    let second = flow.submit("b", Board::default()).await.unwrap();
    signal.give();
    second.wait().await.expect("there is room for it");
}

/// Of two runs that are claimed together the store says of one only what it is.
#[tokio::test]
async fn a_run_of_which_nothing_is_said_keeps_no_other_from_being_taken_up() {
    let (diary, signal, store) = (Diary::default(), Signal::default(), memory());
    let tool = Engine::builder().options(Options::default().finds_work(false)).with_store(store.clone());
    let flow = tool.register(waiting(&diary, &signal), ()).await.unwrap();
    let a = flow.submit("a", Board::default()).await.unwrap();
    let b = flow.submit("b", Board::default()).await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let first_hangs = move || -> BoxFuture<'static, ()> {
        if asked.fetch_add(1, Ordering::SeqCst) == 0 { Box::pin(forever()) } else { Box::pin(async {}) }
    };
    let reading = Mortal::reading_while(store, first_hangs).that_takes_up_work();
    let engine = Engine::builder().with_store(Arc::new(reading));
    engine.register(waiting(&diary, &signal), ()).await.unwrap();
    signal.give();
    tokio::select! {
        over = a.wait() => over.unwrap(),
        over = b.wait() => over.unwrap(),
    };
}

#[tokio::test]
async fn a_failed_run_gives_its_slot_back_and_a_retry_takes_one_again() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let fails = node!(
        [diary, signal] | ctx | {
            diary.note(ctx.run_id().to_string());
            signal.take().await;
            if diary.len() == 1 {
                Err(NodeError::new("broken").fatal())
            } else {
                Ok(Board::delta().total(1_u64))
            }
        }
    );
    let engine = engine(Options::default());
    let flow = engine.register(Graph::new("fails", 1, WORK).node(WORK, fails), ()).await.unwrap();
    let first = flow.start_with("a", Board::default(), one_at_a_time()).await.unwrap();
    let second = flow.start_with("b", Board::default(), one_at_a_time()).await.unwrap();
    signal.give();
    assert!(matches!(first.wait().await, Err(Error::Failed { .. })));
    let again = flow.retry("a").await.unwrap();
    assert_eq!(again.status().await.unwrap(), WAITS, "another run has the slot");
    signal.give();
    second.wait().await.unwrap();
    signal.give();
    again.wait().await.unwrap();
    assert_eq!(diary.all(), ["a", "b", "a"]);
}

#[tokio::test]
async fn a_second_start_of_a_singleton_joins_the_first_or_is_refused() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let other = Graph::new("other", 1, WORK).node(WORK, node!([] | ctx | { Board::delta() }));
    let other = engine.register(other, ()).await.unwrap();
    let named = || StartOptions::default().singleton("nightly");
    let first = flow.start_with("a", Board::default(), named()).await.unwrap();
    let second = flow.start_with("b", Board { total: 9, ..Board::default() }, named()).await.unwrap();
    assert_eq!(second.id().as_str(), "a");
    let refused =
        flow.start_with("c", Board::default(), StartOptions::default().singleton_or_refuse("nightly"));
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code(), "HX0171");
    assert!(refused.to_string().contains("`a`"), "{refused}");
    let elsewhere = other.start_with("d", Board::default(), named()).await.unwrap_err();
    assert_eq!(elsewhere.code(), "HX0172");
    signal.give();
    assert_eq!(second.wait().await.unwrap().total, 1);
    first.wait().await.unwrap();
    let next = flow.start_with("e", Board::default(), named()).await.unwrap();
    assert_eq!(next.id().as_str(), "e", "the name is free again");
    signal.give();
    next.wait().await.unwrap();
}

#[tokio::test]
async fn a_singletons_name_is_given_back_at_the_end_of_its_run() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    signal.give();
    let named = StartOptions::default().singleton("nightly");
    flow.start_with("a", Board::default(), named).await.unwrap().wait().await.unwrap();
    let left = engine.store().flow().names(Default::default()).await.unwrap();
    assert!(left.is_empty(), "no sweep is waited for: {left:?}");
}

#[tokio::test]
async fn debounced_starts_are_one_run_with_the_latest_state() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let calm = || StartOptions::default().debounce(Debounce::new("index", Duration::from_millis(300)));
    let mut last = None;
    for n in 0..5_u64 {
        let state = Board { total: n * 10, ..Board::default() };
        let run = flow.start_with(&format!("index-{n}"), state, calm()).await.unwrap();
        assert_eq!(run.id().as_str(), "index-0", "all of them are the first");
        last = Some(run);
    }
    signal.give();
    assert_eq!(last.unwrap().wait().await.unwrap().total, 41);
    assert_eq!(diary.all(), ["index-0"]);
    let next = flow.start_with("index-9", Board::default(), calm()).await.unwrap();
    assert_eq!(next.id().as_str(), "index-9", "what has begun isn't changed");
    signal.give();
    next.wait().await.unwrap();
}

#[tokio::test]
async fn starts_at_a_rate_begin_one_after_the_other() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    let gently = || StartOptions::default().rate(Rate::new("imports", 20, SECOND));
    let mut times = vec![];
    for run in ["a", "b", "c"] {
        signal.give();
        flow.start_with(run, Board::default(), gently()).await.unwrap();
        times.push(engine.record(run).await.unwrap().terms.not_before_us.unwrap());
    }
    assert!(times.windows(2).all(|two| two[1] - two[0] >= 50_000), "{times:?}");
    for run in ["a", "b", "c"] {
        flow.attach(run).await.unwrap().wait().await.unwrap();
    }
    assert_eq!(diary.all(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_limited_call_takes_its_turn_each_time_that_it_is_made_and_never_in_a_replay() {
    let diary = Diary::default();
    let calls = node!(
        [diary] | ctx | {
            let rate = Rate::new("mail", 1000, SECOND);
            let calls = diary.clone();
            let made = async |_: hapax::Call| {
                calls.note("made");
                if calls.len() == 1 { Err("busy") } else { Ok(7_u64) }
            };
            let sent: u64 = ctx.limited_effect(&rate, "send", Write, "dear sirs", made).await?;
            ctx.sleep(Duration::from_millis(1100)).await?;
            Ok::<_, NodeError>(Board::delta().total(sent))
        }
    );
    let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
    let graph = Graph::new("letters", 1, WORK).node(WORK, calls).policy(WORK, twice);
    let engine = engine(Options::default());
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("letter", Board::default()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().total, 7);
    assert_eq!(diary.len(), 2, "it failed once, and was never made again after it succeeded");
    assert_eq!(
        engine.metrics().rate_limited_calls,
        2,
        "each time that it was made, and not when the run woke"
    );
}

/// By the clock of the one which the engine goes by it would wait for an hour.
#[tokio::test]
async fn a_limited_call_waits_by_the_clock_of_the_database_that_keeps_its_bucket() {
    let (one, other) = (Clock::manual(), Clock::manual());
    other.advance(3600 * SECOND);
    let databases = [one, other].map(|clock| MemoryStore::with_clock(clock) as Arc<dyn Store>);
    let store = ShardedStore::open(databases.to_vec()).await.unwrap();
    let bucket = (0..).map(|n| format!("mail-{n}")).find(|name| store.shard_of(name) == 1);
    let bucket = bucket.expect("names are spread");
    let calls = node!(
        [bucket] | ctx | {
            let rate = Rate::new(bucket, 1000, SECOND);
            let made = async |_: hapax::Call| Ok::<_, NodeError>(7_u64);
            let sent: u64 = ctx.limited_effect(&rate, "send", Write, "dear sirs", made).await?;
            Ok::<_, NodeError>(Board::delta().total(sent))
        }
    );
    let engine = Engine::builder().with_store(store);
    let flow = engine.register(Graph::new("letters", 1, WORK).node(WORK, calls), ()).await.unwrap();
    assert_eq!(flow.start("letter", Board::default()).await.unwrap().wait().await.unwrap().total, 7);
}

#[tokio::test]
async fn terms_that_cannot_be_are_refused_before_anything_is_written() {
    let (diary, signal) = (Diary::default(), Signal::default());
    let engine = engine(Options::default());
    let flow = engine.register(waiting(&diary, &signal), ()).await.unwrap();
    for bad in [
        StartOptions::default().key("k", 0),
        StartOptions::default().key("k", 1).key("k", 2),
        StartOptions::default().priority(101),
        StartOptions::default().rate(Rate::new("r", 0, SECOND)),
        StartOptions::default().debounce(Debounce::new("d", SECOND)).key("k", 1),
    ] {
        let refused = flow.start_with("run", Board::default(), bad).await.unwrap_err();
        assert_eq!(refused.code(), "HX0170");
    }
    assert!(engine.record("run").await.is_err());
}

/// Two urgent runs come each second, and one run is taken up: they pile up, and none of the others would ever go if it
/// weren't older.
async fn nothing_starves(store: Arc<dyn Store>, clock: Clock) {
    let engine = Engine::builder().options(Options::default().finds_work(false)).with_store(store.clone());
    let flow = engine.register(waiting(&Diary::default(), &Signal::default()), ()).await.unwrap();
    let graphs = vec![("waiting".into(), flow.fingerprint())];
    let filter = ReadyFilter { namespace: Default::default(), graphs, limit: 1 };
    let by = Claimant { owner: "a".into(), ttl: Duration::from_secs(100_000) };
    flow.submit("patient", Board::default()).await.unwrap();
    // A head start of 50 seconds: the patient one waits behind those of the first 50 seconds, and for nobody else.
    for second in 0..=120_u32 {
        clock.advance(SECOND);
        for n in 0..2 {
            let urgent = StartOptions::default().priority(5).unheld();
            flow.start_with(&format!("urgent-{second}-{n}"), Board::default(), urgent).await.unwrap();
        }
        let claimed = store.claim_ready(filter.clone(), by.clone()).await.unwrap();
        if claimed[0].0 == key("patient") {
            assert!(second >= 50, "those with a head start went first: {second}");
            return;
        }
    }
    panic!("it starved");
}

#[tokio::test]
async fn under_a_flood_of_urgent_runs_the_others_have_their_turn() {
    let clock = Clock::manual();
    nothing_starves(MemoryStore::with_clock(clock.clone()), clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_flood_of_urgent_runs_the_others_have_their_turn_on_sqlite() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::manual());
    let options = SqliteOptions::default().clock(clock.clone());
    let store = SqliteStore::open(folder.path().join("runs.db"), options).await.unwrap();
    nothing_starves(store.clone(), clock).await;
    store.close().await;
}

async fn a_bucket_rests(store: Arc<dyn Store>, clock: Clock) {
    let reserve = || store.flow().reserve(Default::default(), Rate::new("mail", 1, SECOND));
    reserve().await.unwrap();
    store.flow().sweep(Default::default()).await.unwrap();
    assert_eq!(store.flow().names(Default::default()).await.unwrap().len(), 1, "it isn't full yet");
    clock.advance(SECOND * 7200);
    store.flow().sweep(Default::default()).await.unwrap();
    assert!(store.flow().names(Default::default()).await.unwrap().is_empty());
    assert_eq!(reserve().await.unwrap().at_us, clock.now_us(), "and it is as full as before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_nobody_uses_is_forgotten() {
    let clock = Clock::manual();
    a_bucket_rests(MemoryStore::with_clock(clock.clone()), clock).await;
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::manual());
    let options = SqliteOptions::default().clock(clock.clone());
    let store = SqliteStore::open(folder.path().join("runs.db"), options).await.unwrap();
    a_bucket_rests(store.clone(), clock).await;
    store.close().await;
}
