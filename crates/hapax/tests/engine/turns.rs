//! Rate-limited calls wait for their turn before they are begun: it costs no attempt and no node's time, and leaves no doubt.

use crate::common::*;
use hapax::{
    EffectError, Event, Resolution, Status, WaitsOn,
    control::Rate,
    core::{
        commit::Write as StoreWrite,
        journal::{EffectKind, Entry},
    },
    prelude::*,
    store::{BoxFuture, Clock, MemoryStore, Store, StoreError},
    testing::Lab,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const WORK: Node = Node::new("work");
const MINUTE: Duration = Duration::from_secs(60);
const TIMER: Status = Status::Waiting { on: WaitsOn::Timer };

/// A bucket that gives a turn each minute, and calls that note in which one they are made.
#[derive(Clone)]
struct Post {
    clock: Clock,
    store: Arc<dyn Store>,
    begun_us: i64,
    calls: Diary,
}

impl Post {
    fn new() -> Self {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        let begun_us = clock.now_us();
        Self { clock, store, begun_us, calls: Diary::default() }
    }

    fn rate() -> Rate {
        Rate::new("mail", 1, MINUTE)
    }

    fn minutes(&self, at_us: i64) -> i64 {
        (at_us - self.begun_us) / 60_000_000
    }

    /// Somebody else takes the first turn.
    async fn taken(&self) {
        self.store.flow().reserve(Default::default(), Self::rate()).await.unwrap();
    }

    /// How many turns were taken in all.
    async fn turns(&self) -> i64 {
        let names = self.store.flow().names(Default::default()).await.unwrap();
        self.minutes(names[0].at_us)
    }

    /// A run that makes one call, which does that.
    fn sends<F>(
        &self,
        kind: EffectKind,
        call: impl Fn(u32) -> F + Clone + Send + Sync + 'static,
    ) -> Graph<Board>
    where
        F: Future<Output = Result<u64, NodeError>> + Send + 'static,
    {
        let post = self.clone();
        let work = node!(
            [post, call] | ctx | {
                let attempt = ctx.attempt();
                let made = async |_: hapax::Call| {
                    let minute = post.minutes(post.clock.now_us());
                    post.calls.note(format!("minute {minute}, attempt {attempt}"));
                    call(attempt).await
                };
                let sent = ctx.limited_effect(&Self::rate(), "send", kind, "dear sirs", made).await?;
                Ok::<_, EffectError>(Board::delta().total(sent))
            }
        );
        Graph::new("letters", 1, WORK).node(WORK, work)
    }
}

fn has_ended(event: &Event) -> bool {
    matches!(event, Event::RunEnded { .. })
}

/// More callers than turns in a node's time: each waits parked, makes its call in its own turn, and takes no other.
#[tokio::test(start_paused = true)]
async fn calls_whose_turns_are_far_away_are_all_made_each_in_its_own() {
    for kind in [Read, Write, WriteAtMostOnce] {
        let post = Post::new();
        let lab = Lab::on(post.store.clone(), Options::default().node_timeout(MINUTE / 2));
        let flow = lab.engine().register(post.sends(kind, async |_| Ok(1)), ()).await.unwrap();
        for run in ["a", "b", "c", "d"] {
            flow.start(run, Board::default()).await.unwrap();
        }
        for run in ["a", "b", "c", "d"] {
            let ended = lab.until(run, |status| {
                let minute = post.minutes(post.clock.now_us());
                assert!(minute < 10, "they are never made");
                status.is_final()
            });
            assert_eq!(ended.await.unwrap(), Status::Succeeded, "{kind:?}");
        }
        assert_eq!(post.calls.all(), [0, 1, 2, 3].map(|n| format!("minute {n}, attempt 1")), "{kind:?}");
        assert_eq!((post.turns().await, lab.engine().metrics().rate_limited_calls), (4, 4));
    }
}

#[tokio::test]
async fn a_call_that_is_repeated_takes_another_turn() {
    for kind in [Read, Write] {
        let post = Post::new();
        post.taken().await;
        let twice = Retry::standard().attempts(2).backoff(|_| Duration::ZERO);
        let lab = Lab::on(post.store.clone(), Options::default().retry(twice));
        let call = async |attempt| if attempt == 1 { Err(NodeError::new("busy")) } else { Ok(1) };
        let flow = lab.engine().register(post.sends(kind, call), ()).await.unwrap();
        lab.finish(&flow.start("run", Board::default()).await.unwrap()).await.unwrap();
        assert_eq!(post.calls.all(), ["minute 1, attempt 1", "minute 2, attempt 2"], "{kind:?}");
        assert_eq!(post.turns().await, 3);
    }
}

/// The clock has no part in what is committed.
#[tokio::test]
async fn what_is_committed_does_not_tell_who_had_to_wait() {
    let mut digests = vec![];
    for waits in [false, true] {
        let post = Post::new();
        if waits {
            post.taken().await;
        }
        let lab = Lab::on(post.store.clone(), Options::default());
        let flow = lab.engine().register(post.sends(Write, async |_| Ok(1)), ()).await.unwrap();
        lab.finish(&flow.start("run", Board::default()).await.unwrap()).await.unwrap();
        assert_eq!(post.calls.all(), [format!("minute {}, attempt 1", u8::from(waits))]);
        assert!(lab.engine().replay("run").await.unwrap().divergence.is_none());
        digests.push(lab.engine().record("run").await.unwrap().digest);
    }
    assert_eq!(digests[0], digests[1]);
}

/// Starts a run in a process that is going to die, and wakes it when its turn has come.
async fn start_and_wake(post: &Post, engine: &Engine, graph: Graph<Board>) {
    post.taken().await;
    let mut events = engine.events();
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, has_ended).await;
    assert_eq!(run.status().await.unwrap(), TIMER);
    post.clock.advance(MINUTE);
    engine.resume("run").await.unwrap();
}

fn is_intent(write: &StoreWrite) -> bool {
    let intent = |entry: &Entry| matches!(entry, Entry::Intent(_));
    matches!(write, StoreWrite::Append(append) if append.rows.iter().any(|row| intent(&row.entry)))
}

/// It dies when the call was about to leave, and hadn't.
#[test]
fn whoever_goes_on_after_a_crash_has_the_same_turn_and_no_doubt() {
    for kind in [Write, WriteAtMostOnce] {
        let post = Post::new();
        let process = Process::dying_before(&post.store, is_intent);
        let engine = process.engine(Options::default());
        let graph = post.sends(kind, async |_| Ok(1));
        let dying = post.clone();
        process.run_to_death(async move { start_and_wake(&dying, &engine, graph).await });
        assert_eq!(post.calls.len(), 0);
        let board = go_on(&post.store, post.sends(kind, async |_| Ok(1))).unwrap();
        assert_eq!((board.total, post.calls.all()), (1, vec!["minute 1, attempt 1".to_owned()]), "{kind:?}");
    }
}

/// A process that dies while the call is under way, in its turn.
fn crash_in_call(post: &Post, kind: EffectKind) {
    let reached = Signal::default();
    let process = Process::doomed(&post.store);
    process.run(async {
        let signal = reached.clone();
        let call = move |_| {
            let signal = signal.clone();
            async move {
                stop_here(true, &signal).await;
                Ok(0)
            }
        };
        let engine = process.engine(Options::default());
        start_and_wake(post, &engine, post.sends(kind, call)).await;
        reached.take().await;
    });
    process.crash();
}

/// The other side may have heard it: it counts.
#[test]
fn a_call_that_a_crash_cut_off_takes_another_turn() {
    for kind in [Read, Write] {
        let post = Post::new();
        crash_in_call(&post, kind);
        let process = Process::healthy(&post.store);
        process.run(async {
            let engine = process.engine(Options::default());
            let mut events = engine.events();
            let flow = engine.register(post.sends(kind, async |_| Ok(1)), ()).await.unwrap();
            hear(&mut events, has_ended).await;
            let run = flow.attach("run").await.unwrap();
            assert_eq!(run.status().await.unwrap(), TIMER, "{kind:?}");
            post.clock.advance(MINUTE);
            engine.resume("run").await.unwrap();
            assert_eq!(run.wait().await.unwrap().total, 1);
            assert_eq!(post.turns().await, 3);
        });
        assert_eq!(post.calls.all(), ["minute 1, attempt 1", "minute 2, attempt 1"], "{kind:?}");
    }
}

/// Whether it is made again a person says, and then it waits for its turn like any other.
#[test]
fn a_call_in_doubt_takes_no_turn_until_a_person_has_said_so() {
    let post = Post::new();
    crash_in_call(&post, WriteAtMostOnce);
    let process = Process::healthy(&post.store);
    process.run(async {
        let engine = process.engine(Options::default());
        let mut events = engine.events();
        let flow = engine.register(post.sends(WriteAtMostOnce, async |_| Ok(1)), ()).await.unwrap();
        hear(&mut events, has_ended).await;
        let run = flow.attach("run").await.unwrap();
        assert_eq!((run.status().await.unwrap(), post.turns().await), (Status::InDoubt, 2));
        engine.resolve("run", "send", Resolution::Retry).await.unwrap();
        hear(&mut events, has_ended).await;
        assert_eq!((run.status().await.unwrap(), post.turns().await), (TIMER, 3));
        post.clock.advance(MINUTE);
        engine.resume("run").await.unwrap();
        assert_eq!(run.wait().await.unwrap().total, 1);
    });
    assert_eq!(post.calls.all(), ["minute 1, attempt 1", "minute 2, attempt 1"]);
}

/// A run with one limited call, on a store where this comes before each turn.
async fn reserving_after(
    post: &Post,
    before: impl Fn() -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync + 'static,
) -> (Engine, hapax::Run<Board>) {
    let store = Arc::new(Mortal::reserving_after(post.store.clone(), before));
    let options = Options::default().node_timeout(Duration::from_secs(3));
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(post.sends(Write, async |_| Ok(1)), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    (engine, run)
}

#[tokio::test(start_paused = true)]
async fn a_bucket_whose_database_stands_still_takes_nothing_of_a_nodes_time() {
    let before = || -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async {
            pass(MINUTE).await;
            Ok(())
        })
    };
    let (_engine, run) = reserving_after(&Post::new(), before).await;
    assert_eq!(run.wait().await.unwrap().total, 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_parked_while_the_database_of_its_bucket_is_away() {
    let (post, tries) = (Post::new(), AtomicUsize::new(0));
    let before = move || -> BoxFuture<'static, Result<(), StoreError>> {
        let away = tries.fetch_add(1, Ordering::SeqCst) < 5;
        Box::pin(async move { if away { Err(StoreError::Retry("it is away".into())) } else { Ok(()) } })
    };
    let (engine, run) = reserving_after(&post, before).await;
    let mut events = engine.events();
    if run.status().await.unwrap() != TIMER {
        hear(&mut events, has_ended).await;
    }
    assert_eq!(run.status().await.unwrap(), TIMER);
    post.clock.advance(MINUTE);
    engine.resume("run").await.unwrap();
    assert_eq!(run.wait().await.unwrap().total, 1);
}
