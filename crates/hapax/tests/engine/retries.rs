//! Retries: how often a node is tried, when, and what a later attempt sees of an earlier one.

use crate::common::*;
use hapax::{
    Coded, Error, Event, NodePolicy,
    core::{commit::Write as StoreWrite, error::code, journal::Entry},
    prelude::*,
    store::{Clock, MemoryStore, Store},
    testing::Lab,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

const WORK: Node = Node::new("work");
const ITEM: Node<u64> = Node::new("item");
const HANDLER: Node<NodeFailure> = Node::new("handler");

fn at_once(attempts: u32) -> Retry {
    Retry::standard().attempts(attempts).backoff(|_| Duration::ZERO)
}

/// A node that fails as often as it is told to, and notes when each attempt begins.
fn flaky(diary: &Diary, failures: u32) -> Graph<Board> {
    let begun = tokio::time::Instant::now();
    let work = node!(
        [diary] | ctx | {
            diary.note(format!("{} after {} s", ctx.attempt(), begun.elapsed().as_secs()));
            if ctx.attempt() <= failures {
                Err(NodeError::new("busy"))
            } else {
                Ok(Board::delta().total(1u64))
            }
        }
    );
    Graph::new("flaky", 1, WORK).node(WORK, work)
}

async fn outcome(graph: Graph<Board>, retry: Retry) -> Result<Board, Error> {
    let flow = engine(Options::default().retry(retry)).register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await
}

#[tokio::test]
async fn by_default_there_is_one_attempt() {
    let diary = Diary::default();
    let flow = engine(Options::default()).register(flaky(&diary, 1), ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!((error.code(), diary.len()), (code::NODE_FAILED, 1));
}

#[tokio::test]
async fn a_node_gets_the_attempts_of_its_policy_and_no_more() {
    let diary = Diary::default();
    assert_eq!(outcome(flaky(&diary, 2), at_once(3)).await.unwrap().total, 1);
    assert_eq!(diary.len(), 3);
    let diary = Diary::default();
    let error = outcome(flaky(&diary, 3), at_once(3)).await.unwrap_err();
    let node = failure(&error).node.clone().unwrap();
    assert_eq!((node.attempt, node.message.as_str(), diary.len()), (3, "busy", 3));
}

#[tokio::test]
async fn a_nodes_own_policy_overrides_the_engines() {
    let diary = Diary::default();
    let graph = flaky(&diary, 1).policy(WORK, NodePolicy::default().retry(at_once(2)));
    assert!(outcome(graph, Retry::none()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_custom_backoff_says_how_long_to_pause_after_each_failure() {
    let diary = Diary::default();
    let retry = Retry::standard().attempts(4).backoff(|n| Duration::from_secs(10) * n);
    outcome(flaky(&diary, 3), retry).await.unwrap();
    assert_eq!(diary.all(), ["1 after 0 s", "2 after 10 s", "3 after 30 s", "4 after 60 s"]);
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// A node whose first call is told to come back in ten minutes, and that notes by the store's clock when each attempt
/// begins.
fn told_to_wait(diary: &Diary, clock: &Clock) -> Graph<Board> {
    let (diary, clock, begun) = (diary.clone(), clock.clone(), clock.now_us());
    let work = node!(
        [diary, clock] | ctx | {
            diary.note(format!("{} after {} s", ctx.attempt(), (clock.now_us() - begun) / 1_000_000));
            let attempt = ctx.attempt();
            let call = async |_: hapax::Call| match attempt {
                1 => Err(NodeError::new("busy").retry_after(TEN_MINUTES)),
                _ => Ok(1u64),
            };
            let paid = ctx.effect("pay", Write, &5, call).await?;
            Ok::<_, NodeError>(Board::delta().total(paid))
        }
    );
    Graph::new("told", 1, WORK).node(WORK, work)
}

fn stopped_clock() -> (Arc<dyn Store>, Clock) {
    let clock = Clock::manual();
    (MemoryStore::with_clock(clock.clone()), clock)
}

#[tokio::test]
async fn the_next_attempt_waits_as_long_as_the_failure_asks_for_and_the_run_is_parked() {
    let ((store, clock), diary) = (stopped_clock(), Diary::default());
    // Less than it waits: parked time is free.
    let options = Options::default().retry(at_once(2)).run_budget(Duration::from_secs(60));
    let lab = Lab::on(store, options);
    let flow = lab.engine().register(told_to_wait(&diary, &clock), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let timer = hapax::Status::Waiting { on: hapax::WaitsOn::Timer };
    assert_eq!(lab.until("run", |status| *status != hapax::Status::Running).await.unwrap(), timer);
    assert_eq!(lab.finish(&run).await.unwrap().total, 1);
    assert_eq!(diary.all(), ["1 after 0 s", "2 after 600 s"]);
}

#[tokio::test]
async fn a_clock_that_skips_skips_the_policys_pauses_too() {
    let (store, clock) = stopped_clock();
    let (begun, diary) = (clock.now_us(), Diary::default());
    let work = node!(
        [clock, diary] | ctx | {
            diary.note(((clock.now_us() - begun) / 3_600_000_000).to_string());
            if ctx.attempt() < 3 { Err(NodeError::new("busy")) } else { Ok(()) }
        }
    );
    let hourly = Retry::standard().attempts(3).backoff(|_| Duration::from_secs(3600));
    let lab = Lab::on(store, Options::default().retry(hourly));
    let flow = lab.engine().register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    lab.finish(&flow.start("run", Board::default()).await.unwrap()).await.unwrap();
    assert_eq!(diary.all(), ["0", "1", "2"], "hours");
}

fn fails_an_attempt(write: &StoreWrite) -> bool {
    let failed = |entry: &Entry| matches!(entry, Entry::AttemptFailed { .. });
    matches!(write, StoreWrite::Append(append) if append.rows.iter().any(|row| failed(&row.entry)))
}

#[test]
fn a_crash_does_not_shorten_the_wait() {
    let parks: fn(&StoreWrite) -> bool = |write| matches!(write, StoreWrite::Status(_));
    // After the failed call is recorded and before the attempt is; after both and before the run is parked.
    for (dies_before, begun) in
        [(fails_an_attempt as fn(&_) -> _, vec!["1", "1", "2"]), (parks, vec!["1", "2"])]
    {
        let ((store, clock), diary) = (stopped_clock(), Diary::default());
        let graph = || told_to_wait(&diary, &clock);
        let options = Options::default().retry(at_once(2));
        let first = Process::dying_before(&store, dies_before);
        let engine = first.engine(options.clone());
        first.run_to_death(async {
            let flow = engine.register(graph(), ()).await.unwrap();
            flow.start("run", Board::default()).await.unwrap();
        });
        clock.advance(Duration::from_secs(60));
        let second = Process::healthy(&store);
        second.run(async {
            let lab = Lab::on(store.clone(), options);
            let flow = lab.engine().register(graph(), ()).await.unwrap();
            let run = flow.attach("run").await.unwrap();
            assert_eq!(lab.finish(&run).await.unwrap().total, 1);
        });
        let noted = diary.all();
        let attempts: Vec<_> = noted.iter().map(|note| &note[..1]).collect();
        assert_eq!(attempts, begun);
        assert!(noted.last().unwrap().ends_with(" after 540 s"), "600 s after the failure: {noted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_longer_of_the_two_pauses_counts() {
    let begun = tokio::time::Instant::now();
    let diary = Diary::default();
    let work = node!(
        [diary] | ctx | {
            diary.note(format!("{} after {} s", ctx.attempt(), begun.elapsed().as_secs()));
            Err::<(), _>(NodeError::new("busy").retry_after(Duration::from_millis(900)))
        }
    );
    let retry = Retry::standard().attempts(2).backoff(|_| Duration::from_secs(20));
    outcome(Graph::new("pauses", 1, WORK).node(WORK, work), retry).await.unwrap_err();
    assert_eq!(diary.all(), ["1 after 0 s", "2 after 20 s"]);
}

#[tokio::test]
async fn nobody_waits_for_an_attempt_that_is_not_granted() {
    let work = |fatal: bool| {
        node!(
            [] | ctx | {
                let error = NodeError::new("busy").retry_after(TEN_MINUTES);
                Err::<(), _>(if fatal { error.fatal() } else { error })
            }
        )
    };
    for (attempts, fatal) in [(1, false), (5, true)] {
        let graph = Graph::new("last", 1, WORK).node(WORK, work(fatal));
        assert_eq!(outcome(graph, at_once(attempts)).await.unwrap_err().code(), code::NODE_FAILED);
    }
}

#[tokio::test(start_paused = true)]
async fn the_standard_backoff_doubles_below_a_cap_with_full_jitter() {
    let begun = tokio::time::Instant::now();
    let diary = Diary::default();
    let work = node!(
        [diary] | ctx | {
            diary.note(begun.elapsed().as_millis().to_string());
            Err::<(), _>(NodeError::new("busy"))
        }
    );
    let graph = Graph::new("jitter", 1, WORK).node(WORK, work);
    outcome(graph, Retry::standard()).await.unwrap_err();
    let at: Vec<u64> = diary.all().iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(at.len(), 5);
    for (n, pause) in at.windows(2).map(|pair| pair[1] - pair[0]).enumerate() {
        assert!(pause <= (100 << n) + 1, "pause {n} took {pause} ms");
    }
}

#[tokio::test]
async fn only_errors_that_the_predicate_wants_are_tried_again() {
    let diary = Diary::default();
    let retry = at_once(5).only_if(|error| !error.to_string().contains("busy"));
    assert!(outcome(flaky(&diary, 1), retry).await.is_err());
    assert_eq!(diary.len(), 1);
}

#[tokio::test]
async fn a_fatal_error_is_not_tried_again() {
    let diary = Diary::default();
    let work = node!(
        [diary] | ctx | {
            diary.note("called");
            Err::<(), _>(NodeError::new("card refused").fatal())
        }
    );
    let error = outcome(Graph::new("fatal", 1, WORK).node(WORK, work), at_once(5)).await.unwrap_err();
    assert!(!failure(&error).node.as_ref().unwrap().retryable);
    assert_eq!(diary.len(), 1);
}

#[derive(Debug, thiserror::Error)]
#[error("cannot reserve")]
struct Outer(#[source] std::num::ParseIntError);

#[tokio::test]
async fn the_last_error_keeps_its_cause() {
    let work = node!([] | ctx | { "x".parse::<u64>().map(|_| ()).map_err(Outer) });
    let error = outcome(Graph::new("cause", 1, WORK).node(WORK, work), at_once(2)).await.unwrap_err();
    let message = &failure(&error).node.as_ref().unwrap().message;
    assert_eq!(message, "cannot reserve: invalid digit found in string");
    assert!(error.to_string().ends_with(message.as_str()), "{error}");
}

#[tokio::test]
async fn every_retry_is_told_as_an_event() {
    let engine = engine(Options::default().retry(at_once(3)));
    let mut events = engine.events();
    let flow = engine.register(flaky(&Diary::default(), 2), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let heard = hear(&mut events, |event| matches!(event, Event::RunEnded { .. })).await;
    let retried = heard.iter().filter_map(|event| match event {
        Event::Retrying { attempt, error, .. } => Some((*attempt, error.as_str())),
        _ => None,
    });
    assert_eq!(retried.collect::<Vec<_>>(), [(1, "busy"), (2, "busy")]);
}

#[tokio::test]
async fn a_handler_gets_the_failure_once_the_attempts_are_used_up() {
    let work = node!([] | ctx | { Err::<(), _>(NodeError::new("busy")) });
    let handler = node!([] |ctx, failure: NodeFailure| {
        Board::delta().log(format!("{} attempt {}: {}", failure.node, failure.attempt, failure.message))
    });
    let graph =
        Graph::new("handled", 1, WORK).node(WORK, work).node(HANDLER, handler).on_error(WORK, HANDLER);
    assert_eq!(outcome(graph, at_once(3)).await.unwrap().log, ["work attempt 3: busy"]);
}

#[test]
fn the_attempt_count_survives_a_crash() {
    let (diary, reached) = (Diary::default(), Signal::default());
    let graph = |stuck: bool| {
        let work = node!(
            [diary, reached] | ctx | {
                diary.note(ctx.attempt().to_string());
                if stuck && ctx.attempt() == 2 {
                    reached.give();
                    forever().await;
                }
                Err::<(), _>(NodeError::new("busy"))
            }
        );
        Graph::new("counted", 1, WORK).node(WORK, work)
    };
    let (store, options) = (memory(), Options::default().retry(at_once(2)));
    let first = Process::doomed(&store);
    first.run(async {
        let flow = first.engine(options.clone()).register(graph(true), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        reached.take().await;
    });
    first.crash();
    let second = Process::healthy(&store);
    second.run(async {
        let flow = second.engine(options).register(graph(false), ()).await.unwrap();
        let error = flow.attach("run").await.unwrap().wait().await.unwrap_err();
        assert_eq!(failure(&error).node.as_ref().unwrap().attempt, 2);
    });
    assert_eq!(diary.all(), ["1", "2", "2"]);
}

#[test]
fn a_crash_after_the_last_attempt_grants_no_further_one() {
    let diary = Diary::default();
    let graph = || {
        let work = node!(
            [diary] | ctx | {
                diary.note(ctx.attempt().to_string());
                Err::<(), _>(NodeError::new("busy"))
            }
        );
        Graph::new("last", 1, WORK).node(WORK, work)
    };
    let (store, options) = (memory(), Options::default().retry(at_once(2)));
    let first = Process::dying_before(&store, |write| matches!(write, StoreWrite::Status(_)));
    let engine = first.engine(options.clone());
    first.run_to_death(async {
        let flow = engine.register(graph(), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
    });
    let second = Process::healthy(&store);
    second.run(async {
        let flow = second.engine(options).register(graph(), ()).await.unwrap();
        let error = flow.attach("run").await.unwrap().wait().await.unwrap_err();
        assert_eq!(failure(&error).node.as_ref().unwrap().message, "busy");
    });
    assert_eq!(diary.all(), ["1", "2"]);
}

#[tokio::test]
async fn retrying_a_failed_run_repeats_only_what_failed_with_fresh_attempts() {
    let diary = Diary::default();
    let failures = Arc::new(AtomicU32::new(3));
    let item = node!([diary, failures] |ctx, n: u64| {
        diary.note(format!("{n}: {}", ctx.attempt()));
        let fails = n == 1 && failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |f| f.checked_sub(1)).is_ok();
        if fails { Err(NodeError::new("busy")) } else { Ok(Board::delta().total(n)) }
    });
    let start = node!(
        [diary] | ctx | {
            diary.note("start");
            Board::delta().fork((0..3).map(|n| ITEM.with(n)))
        }
    );
    let graph = Graph::new("again", 1, WORK).node(WORK, start).node(ITEM, item);
    let flow = engine(Options::default().retry(at_once(2))).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(failure(&error).step, 1);
    let board = flow.retry("run").await.unwrap().wait().await.unwrap();
    assert_eq!(board.total, 3);
    let mut calls = diary.all();
    calls.sort();
    assert_eq!(calls, ["0: 1", "1: 1", "1: 2", "1: 3", "1: 4", "2: 1", "start"]);
}

/// A callee that fails for the first few calls and notes every key it is given.
#[derive(Clone, Default)]
struct Callee {
    keys: Diary,
    failures: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Refused;
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl Callee {
    fn failing(times: u32) -> Self {
        Self { keys: Diary::default(), failures: Arc::new(AtomicU32::new(times)) }
    }

    async fn call(&self, key: &str) -> Result<u64, Refused> {
        self.keys.note(key);
        // As a real call would: others get their turn meanwhile.
        tokio::task::yield_now().await;
        let fails = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |f| f.checked_sub(1));
        if fails.is_ok() { Err(Refused) } else { Ok(self.keys.len() as u64) }
    }
}

#[tokio::test]
async fn a_recorded_success_is_never_called_again() {
    let callee = Callee::default();
    let work = node!(
        [callee] | ctx | {
            let paid: u64 = ctx.effect("pay", Write, &5, async |call| callee.call(call.key()).await).await?;
            if ctx.attempt() < 3 { Err(NodeError::new("afterwards")) } else { Ok(Board::delta().total(paid)) }
        }
    );
    let board = outcome(Graph::new("success", 1, WORK).node(WORK, work), at_once(3)).await.unwrap();
    assert_eq!((board.total, callee.keys.len()), (1, 1));
}

#[tokio::test]
async fn an_error_that_is_the_last_record_is_called_again_with_the_same_key() {
    let callee = Callee::failing(2);
    let work = node!(
        [callee] | ctx | {
            let paid: u64 = ctx.effect("pay", Write, &5, async |call| callee.call(call.key()).await).await?;
            Ok::<_, NodeError>(Board::delta().total(paid))
        }
    );
    let board = outcome(Graph::new("error", 1, WORK).node(WORK, work), at_once(3)).await.unwrap();
    let keys = callee.keys.all();
    assert_eq!((board.total, keys.len()), (3, 3));
    assert!(keys.iter().all(|key| *key == keys[0] && key.starts_with("fx:")), "{keys:?}");
}

#[tokio::test]
async fn errors_of_calls_side_by_side_are_all_made_again() {
    let (left, right) = (Callee::failing(2), Callee::failing(1));
    let work = node!(
        [left, right] | ctx | {
            let (mut one, mut two) = (ctx.scope("one"), ctx.scope("two"));
            let (a, b) = tokio::join!(
                one.effect("left", Write, &1, async |call| left.call(call.key()).await),
                two.effect("right", Write, &2, async |call| right.call(call.key()).await),
            );
            let (a, b): (u64, u64) = (a?, b?);
            Ok::<_, NodeError>(Board::delta().total(a + b))
        }
    );
    let board = outcome(Graph::new("lanes", 1, WORK).node(WORK, work), at_once(3)).await.unwrap();
    assert_eq!((board.total, left.keys.len(), right.keys.len()), (5, 3, 2));
}

#[tokio::test]
async fn an_error_that_the_node_acted_on_is_seen_again() {
    let (primary, fallback) = (Callee::failing(1), Callee::default());
    let work = node!(
        [primary, fallback] | ctx | {
            let first = ctx.effect("primary", Write, &5, async |call| primary.call(call.key()).await).await;
            let second: u64 = match first {
                Ok(paid) => paid,
                Err(_) => {
                    ctx.effect("fallback", Write, &5, async |call| fallback.call(call.key()).await).await?
                }
            };
            if ctx.attempt() < 2 {
                Err(NodeError::new("afterwards"))
            } else {
                Ok(Board::delta().total(second))
            }
        }
    );
    outcome(Graph::new("acted", 1, WORK).node(WORK, work), at_once(2)).await.unwrap();
    assert_eq!((primary.keys.len(), fallback.keys.len()), (1, 1));
}

#[tokio::test]
async fn a_fatal_error_of_a_call_ends_the_attempts() {
    let diary = Diary::default();
    let work = node!(
        [diary] | ctx | {
            diary.note("attempt");
            let refused = async |_| Err::<u64, _>(NodeError::new("no such account").fatal());
            ctx.effect("pay", Write, &5, refused).await?;
            Ok::<_, NodeError>(())
        }
    );
    let error = outcome(Graph::new("refused", 1, WORK).node(WORK, work), at_once(5)).await.unwrap_err();
    assert_eq!((error.code(), diary.len()), (code::EFFECT_FAILED, 1));
}
