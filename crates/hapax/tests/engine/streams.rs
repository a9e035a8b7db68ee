//! Streams: ordered, resumable from every cursor, superseded executions told, and nothing seen before it is durable.

use crate::common::*;
use futures::future::BoxFuture;
use hapax::{
    Call, Coded, EffectError, Effects, Event, Fork, NodePolicy, Status, StreamChunk, StreamEvent,
    core::{
        commit::Write as Written,
        error::code,
        journal::Entry,
        limits::{MAX_CHUNK_BYTES, WINDOW_STEPS},
    },
    prelude::*,
    store::{MemoryStore, Store},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

const WORK: Node = Node::new("work");
const NEXT: Node = Node::new("next");
const PART: Node<u64> = Node::new("part");

/// What is there now, from a cursor on.
async fn so_far(engine: &Engine, cursor: u64) -> Vec<StreamEvent> {
    let (mut tail, mut events) = (engine.tail("run").from(cursor).so_far(), vec![]);
    while let Some(event) = tail.next().await.unwrap() {
        events.push(event);
    }
    events
}

/// Everything until the run is over.
async fn all(engine: &Engine) -> Vec<StreamEvent> {
    let (mut tail, mut events) = (engine.tail("run"), vec![]);
    while let Some(event) = tail.next().await.unwrap() {
        events.push(event);
    }
    events
}

/// What a reader has of a run in another process.
fn stored(store: &Arc<dyn Store>) -> Vec<StreamEvent> {
    let process = Process::healthy(store);
    process.run(async { so_far(&process.engine(Options::default().finds_work(false)), 0).await })
}

/// What a reader holds that drops what it is told to drop.
fn counting(events: &[StreamEvent]) -> Vec<StreamChunk> {
    let mut held: Vec<StreamChunk> = vec![];
    for event in events {
        match event {
            StreamEvent::Chunk(chunk) => held.push(chunk.clone()),
            StreamEvent::Superseded(old) => held.retain(|chunk| !old.supersedes(chunk)),
            other => panic!("{other:?}"),
        }
    }
    held
}

fn text(chunk: &StreamChunk) -> String {
    chunk.payload.read().unwrap()
}

fn texts(chunks: &[StreamChunk]) -> Vec<String> {
    chunks.iter().map(text).collect()
}

/// The events, in short: a chunk's text, or who was superseded.
fn told(events: &[StreamEvent]) -> Vec<String> {
    let tell = |event: &StreamEvent| match event {
        StreamEvent::Chunk(chunk) => text(chunk),
        StreamEvent::Superseded(old) => format!("-- {}.{}", old.attempt, old.epoch),
        other => panic!("{other:?}"),
    };
    events.iter().map(tell).collect()
}

fn attempts(count: u32) -> NodePolicy {
    NodePolicy::default().retry(Retry::standard().attempts(count).backoff(|_| Duration::ZERO))
}

/// A node that streams these, one after the other.
fn says(
    words: &'static [&'static str],
) -> impl Fn(Ctx) -> BoxFuture<'static, Result<(), EffectError>> + Send + Sync + 'static {
    move |mut ctx: Ctx| {
        Box::pin(async move {
            for word in words {
                ctx.stream(word).await?;
            }
            Ok(())
        })
    }
}

#[tokio::test]
async fn chunks_come_in_the_order_of_the_calls() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            for n in 0..200u64 {
                ctx.stream(&format!("work {n}")).await?;
            }
            Ok::<_, EffectError>(())
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).node(NEXT, says(&["a", "b"])).edge(WORK, NEXT);
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    let chunks = counting(&all(&engine).await);
    let expected: Vec<_> =
        (0..200).map(|n| format!("work {n}")).chain(["a".to_owned(), "b".to_owned()]).collect();
    assert_eq!(texts(&chunks), expected);
    let offsets: Vec<_> = chunks.iter().map(|chunk| chunk.offset).collect();
    assert_eq!(offsets, (0..200).chain(0..2).collect::<Vec<_>>(), "counted for each item");
    let last = chunks.last().unwrap();
    assert_eq!((last.step, last.node.as_str(), last.attempt, last.epoch), (1, "next", 1, 1));
    assert_eq!(last.call, None);
}

/// A run with a failed attempt, several steps, and more rows than chunks.
async fn eventful(engine: &Engine) -> Vec<StreamEvent> {
    let work = node!(
        [] | ctx | {
            for word in ["x", "y"] {
                ctx.now();
                ctx.stream(word).await?;
            }
            if ctx.attempt() == 1 { Err(NodeError::new("once more")) } else { Ok(()) }
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(2));
    let graph = graph.node(NEXT, says(&["z"])).edge(WORK, NEXT);
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    all(engine).await
}

#[tokio::test]
async fn a_reader_that_resumes_sees_the_rest_and_nothing_twice() {
    let engine = engine(Options::default());
    let events = eventful(&engine).await;
    assert_eq!(told(&events), ["x", "y", "-- 1.1", "x", "y", "z"]);
    assert_eq!(so_far(&engine, 0).await, events);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(so_far(&engine, event.cursor()).await, events[at + 1..], "behind {event:?}");
    }
    for beyond in [1000, u64::MAX] {
        assert_eq!(so_far(&engine, beyond).await, []);
    }
    let mut cursors: Vec<_> = events.iter().map(StreamEvent::cursor).collect();
    cursors.dedup();
    assert!(cursors.len() == events.len() && cursors.is_sorted());
}

#[tokio::test]
async fn a_failed_attempt_is_superseded_even_if_the_next_one_streams_nothing() {
    for streams_again in [true, false] {
        let engine = engine(Options::default());
        let work = node!(
            [] | ctx | {
                if ctx.attempt() < 3 || streams_again {
                    ctx.stream(&format!("try {}", ctx.attempt())).await?;
                }
                if ctx.attempt() < 3 { Err(NodeError::new("once more")) } else { Ok(()) }
            }
        );
        let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(3));
        let flow = engine.register(graph, ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        let events = all(&engine).await;
        let mut expected = vec!["try 1", "-- 1.1", "try 2", "-- 2.1"];
        expected.extend(streams_again.then_some("try 3"));
        assert_eq!(told(&events), expected);
        let left = counting(&events);
        assert_eq!(texts(&left), Vec::from_iter(streams_again.then(|| "try 3".to_owned())));
    }
}

#[tokio::test]
async fn the_last_attempt_of_a_failed_run_stands_until_it_is_retried() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            ctx.stream(&format!("try {}", ctx.attempt())).await?;
            if ctx.attempt() == 1 { Err(NodeError::new("once more")) } else { Ok(()) }
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    let failed = all(&engine).await;
    assert_eq!(told(&failed), ["try 1"], "nothing has replaced it");
    engine.retry("run").await.unwrap();
    engine.wait("run").await.unwrap();
    assert_eq!(told(&so_far(&engine, failed[0].cursor()).await), ["-- 1.1", "try 2"]);
}

/// Streams, gets stuck in the middle, streams on.
fn stuck_halfway(reached: &Signal, stuck: bool) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            ctx.stream("one").await?;
            ctx.stream("two").await?;
            stop_here(stuck, &reached).await;
            ctx.stream("three").await?;
            Ok::<_, EffectError>(())
        }
    );
    Graph::new("g", 1, WORK).node(WORK, work)
}

#[test]
fn after_a_crash_the_chunks_that_count_are_one_complete_sequence() {
    let (store, reached) = (memory(), Signal::default());
    crash_in(&store, stuck_halfway(&reached, true), &reached);
    let before = stored(&store);
    assert_eq!(told(&before), ["one", "two"], "they are durable, so they were seen");
    go_on(&store, stuck_halfway(&reached, false)).unwrap();
    let events = stored(&store);
    assert_eq!(told(&events), ["one", "two", "-- 1.1", "one", "two", "three"]);
    assert_eq!(events[..2], before, "what was seen stays");
    let left = counting(&events);
    assert_eq!(texts(&left), ["one", "two", "three"]);
    assert!(left.iter().zip(0..).all(|(chunk, at)| (chunk.epoch, chunk.offset) == (2, at)));
}

#[test]
fn what_a_crash_left_is_superseded_even_if_nothing_is_streamed_again() {
    let (store, reached) = (memory(), Signal::default());
    let graph = |stuck: bool| {
        let work = node!(
            [reached] | ctx | {
                if stuck {
                    ctx.stream("only before the crash").await?;
                }
                stop_here(stuck, &reached).await;
                Ok::<_, EffectError>(())
            }
        );
        Graph::new("g", 1, WORK).node(WORK, work)
    };
    crash_in(&store, graph(true), &reached);
    go_on(&store, graph(false)).unwrap();
    assert_eq!(told(&stored(&store)), ["only before the crash", "-- 1.1"]);
}

#[test]
fn a_chunk_is_never_durable_without_what_the_item_saw_before() {
    let (store, reached, outside) = (memory(), Signal::default(), Arc::new(AtomicU64::new(0)));
    let graph = |stuck: bool| {
        let work = node!(
            [reached, outside] | ctx | {
                let read = async |_: Call| Ok::<_, NodeError>(outside.fetch_add(1, Ordering::SeqCst));
                let rate = ctx.effect("rate", Read, "EUR", read).await?;
                ctx.stream(&format!("the rate is {rate}")).await?;
                stop_here(stuck, &reached).await;
                Ok::<_, EffectError>(Board::delta().total(rate))
            }
        );
        Graph::new("g", 1, WORK).node(WORK, work)
    };
    crash_in(&store, graph(true), &reached);
    assert_eq!(told(&stored(&store)), ["the rate is 0"]);
    assert_eq!(go_on(&store, graph(false)).unwrap().total, 0, "somebody saw this rate");
    assert_eq!(texts(&counting(&stored(&store))), ["the rate is 0"]);
}

#[tokio::test]
async fn of_two_items_at_once_each_keeps_its_order_and_its_attempts() {
    let engine = engine(Options::default());
    let work = node!([] | ctx | { Board::delta().fork([PART.with(0), PART.with(1)]) });
    let part = node!([] |ctx, number: u64| {
        for n in 0..20 {
            ctx.stream(&format!("{number}: {n}")).await?;
            tokio::task::yield_now().await;
            if (number, n, ctx.attempt()) == (1, 10, 1) {
                return Err(NodeError::new("once more"));
            }
        }
        Ok(())
    });
    let graph = Graph::new("g", 1, WORK).node(WORK, work).node(PART, part).policy(PART, attempts(2));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    let mut items: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for chunk in counting(&all(&engine).await) {
        items.entry(chunk.path_hash).or_default().push(text(&chunk));
    }
    let mut items: Vec<_> = items.into_values().collect();
    items.sort();
    let expected = |number| (0..20).map(|n| format!("{number}: {n}")).collect::<Vec<_>>();
    assert_eq!(items, [expected(0), expected(1)]);
}

#[tokio::test]
async fn an_item_that_waited_streams_again_and_supersedes_itself() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            ctx.stream("before").await?;
            let word: String = ctx.signal("go").await?;
            ctx.stream(&word).await?;
            Ok::<_, EffectError>(())
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let mut events = engine.events();
    flow.start("run", Board::default()).await.unwrap();
    let parked = |event: &Event| matches!(event, Event::RunEnded { status: Status::Waiting { .. }, .. });
    hear(&mut events, parked).await;
    assert_eq!(told(&so_far(&engine, 0).await), ["before"]);
    engine.signal("run", "go", "after").await.unwrap();
    assert_eq!(told(&all(&engine).await), ["before", "-- 1.1", "before", "after"]);
}

/// Streams by itself, then by a call, and may get stuck in the call or behind it.
fn calls(reached: &Signal, kind: hapax::EffectKind, stuck_in: bool, stuck_behind: bool) -> Graph<Board> {
    let work = node!(
        [reached] | ctx | {
            ctx.stream("node").await?;
            let model = async |call: Call| {
                call.stream("call 1").await?;
                stop_here(stuck_in, &reached).await;
                call.stream("call 2").await?;
                Ok::<_, NodeError>(())
            };
            ctx.effect("model", kind, "a story", model).await?;
            ctx.stream("end").await?;
            stop_here(stuck_behind, &reached).await;
            Ok::<_, EffectError>(())
        }
    );
    Graph::new("g", 1, WORK).node(WORK, work)
}

#[test]
fn the_chunks_of_a_call_count_as_long_as_its_answer_does() {
    for kind in [Read, Write] {
        let (store, reached) = (memory(), Signal::default());
        crash_in(&store, calls(&reached, kind, false, true), &reached);
        assert_eq!(told(&stored(&store)), ["node", "call 1", "call 2", "end"]);
        go_on(&store, calls(&reached, kind, false, false)).unwrap();
        let events = stored(&store);
        assert_eq!(told(&events)[4..], ["-- 1.1", "node", "end"], "the call is not made again");
        let left = counting(&events);
        assert_eq!(texts(&left), ["call 1", "call 2", "node", "end"]);
        assert!(left[..2].iter().all(|chunk| chunk.call.as_ref().is_some_and(|at| at.index == 0)));
    }
}

#[test]
fn the_chunks_of_a_call_that_is_made_again_are_superseded() {
    for kind in [Read, Write] {
        let (store, reached) = (memory(), Signal::default());
        crash_in(&store, calls(&reached, kind, true, false), &reached);
        go_on(&store, calls(&reached, kind, false, false)).unwrap();
        let left = counting(&stored(&store));
        assert_eq!(texts(&left), ["node", "call 1", "call 2", "end"]);
        assert!(left.iter().all(|chunk| chunk.epoch == 2));
    }
}

#[tokio::test]
async fn a_call_that_failed_and_is_made_again_supersedes_itself() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            let attempt = ctx.attempt();
            let model = async |call: Call| {
                call.stream(&format!("try {attempt}")).await?;
                if attempt == 1 { Err(NodeError::new("overloaded")) } else { Ok(()) }
            };
            ctx.effect("model", Write, "a story", model).await?;
            Ok::<_, EffectError>(())
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, attempts(2));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    assert_eq!(told(&all(&engine).await), ["try 1", "-- 1.1", "try 2"]);
}

#[tokio::test]
async fn a_reader_sees_a_chunk_while_its_node_is_still_at_work() {
    let (engine, seen) = (engine(Options::default()), Signal::default());
    let work = node!(
        [seen] | ctx | {
            ctx.stream("here").await?;
            seen.take().await;
            Ok::<_, EffectError>(())
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    let mut tail = engine.tail("run");
    assert_eq!(told(&[tail.next().await.unwrap().unwrap()]), ["here"]);
    seen.give();
    assert_eq!(tail.next().await.unwrap(), None, "the run is over");
}

#[tokio::test]
async fn nobody_sees_a_chunk_before_it_and_all_before_it_are_durable() {
    let (store, durable, streamed) = (memory(), Signal::default(), Signal::default());
    let late = Arc::new(Mortal::late(store.clone(), &durable));
    let engine = Engine::builder().with_store(late);
    let work = node!(
        [streamed] | ctx | {
            ctx.effect("rate", Read, "EUR", async |_| Ok::<_, NodeError>(7)).await?;
            ctx.stream("a").await?;
            ctx.stream("b").await?;
            streamed.give();
            Ok::<_, EffectError>(())
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    streamed.take().await;
    assert_eq!(so_far(&engine, 0).await, [], "accepted, and not durable");
    let mut tail = engine.tail("run");
    durable.give();
    assert_eq!(told(&[tail.next().await.unwrap().unwrap()]), ["a"]);
    let rows = store.journal(key("run"), 0, 10).await.unwrap();
    assert!(matches!(rows[0].entry, Entry::Seen(_)), "what it rests on is there: {rows:?}");
    assert_eq!(so_far(&engine, tail.cursor()).await, [], "the next one is on its way");
    (0..10).for_each(|_| durable.give());
    assert_eq!(told(&[tail.next().await.unwrap().unwrap()]), ["b"]);
    run.wait().await.unwrap();
    assert_eq!(tail.next().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_streams_faster_than_the_disk_waits() {
    const CHUNKS: usize = 2000;
    let (disk, streamed) = (Signal::default(), Arc::new(AtomicUsize::new(0)));
    let is_chunk = |write: &Written| matches!(write, Written::Append(_));
    let store = Mortal::slow_to_answer(memory(), is_chunk, &disk);
    let engine = Engine::builder().with_store(Arc::new(store));
    let work = node!(
        [streamed] | ctx | {
            for n in 0..CHUNKS {
                ctx.stream(&n).await?;
                streamed.fetch_add(1, Ordering::SeqCst);
            }
            Ok::<_, EffectError>(())
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    until_idle().await;
    assert_eq!(streamed.load(Ordering::SeqCst), WINDOW_STEPS, "no more runs ahead of the disk");
    (0..CHUNKS).for_each(|_| disk.give());
    run.wait().await.unwrap();
    assert_eq!(counting(&all(&engine).await).len(), CHUNKS);
}

#[tokio::test]
async fn a_chunk_over_its_limit_is_refused_and_the_node_may_go_on() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            let fits = "x".repeat(MAX_CHUNK_BYTES - 2);
            ctx.stream(&fits).await?;
            let refused = ctx.stream(&format!("{fits}x")).await.unwrap_err();
            Ok::<_, EffectError>(Board::delta().word(refused.code))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().word.as_deref(), Some(code::LIMIT));
    assert_eq!(counting(&all(&engine).await).len(), 1);
}

#[tokio::test]
async fn a_node_that_only_computes_may_not_stream_and_one_that_only_reads_may() {
    for (effects, allowed) in [(Effects::None, false), (Effects::Reads, true)] {
        let engine = engine(Options::default());
        let policy = NodePolicy::default().effects(effects);
        let graph = Graph::new("g", 1, WORK).node(WORK, says(&["a"])).policy(WORK, policy);
        let flow = engine.register(graph, ()).await.unwrap();
        let ended = flow.start("run", Board::default()).await.unwrap().wait().await;
        assert_eq!(ended.is_ok(), allowed);
        assert_eq!(all(&engine).await.len(), usize::from(allowed));
        if let Err(error) = ended {
            assert_eq!(error.code(), code::UNDECLARED_EFFECT);
        }
    }
}

#[tokio::test]
async fn the_handles_of_what_has_ended_stream_nothing() {
    let engine = engine(Options::default());
    let left: Arc<Mutex<Option<Ctx>>> = Arc::default();
    let work = node!(
        [left] | ctx | {
            let mut kept = None;
            let call = async |call: Call| {
                kept = Some(call);
                Ok::<_, NodeError>(())
            };
            ctx.effect("call", Read, &(), call).await?;
            let refused = kept.unwrap().stream("after the call").await.unwrap_err();
            *left.lock().unwrap() = Some(ctx);
            Ok::<_, EffectError>(Board::delta().word(refused.code))
        }
    );
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.word.as_deref(), Some(code::DEAD_HANDLE));
    let mut ctx = left.lock().unwrap().take().unwrap();
    assert_eq!(ctx.stream("after the end").await.unwrap_err().code, code::DEAD_HANDLE);
    assert_eq!(all(&engine).await, []);
}

/// The lane waits for the disk when its node returns. It goes on behind the step's commit, where the store would refuse
/// its chunk for ever, and all that follows with it.
#[tokio::test(start_paused = true)]
async fn a_lane_that_outlives_its_node_never_writes_behind_the_step() {
    let (disk, full, refused) = (Signal::default(), Signal::default(), Diary::default());
    let is_chunk = |write: &Written| matches!(write, Written::Append(_));
    let store = Mortal::slow_to_answer(memory(), is_chunk, &disk);
    let engine = Engine::builder().with_store(Arc::new(store));
    let work = node!(
        [full, refused] | ctx | {
            let mut lane = ctx.scope("left behind");
            let (filled, refused) = (full.clone(), refused.clone());
            tokio::spawn(async move {
                for _ in 0..WINDOW_STEPS {
                    lane.stream("in time").await.unwrap();
                }
                filled.give();
                refused.note(lane.stream("too late").await.unwrap_err().code);
            });
            full.take().await;
            until_idle().await;
        }
    );
    let graph = Graph::new("g", 1, WORK).node(WORK, work).node(NEXT, says(&["next"])).edge(WORK, NEXT);
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    pass(Duration::from_secs(1)).await;
    (0..2 * WINDOW_STEPS).for_each(|_| disk.give());
    run.wait().await.unwrap();
    assert_eq!(refused.all(), [code::DEAD_HANDLE]);
    let chunks = counting(&all(&engine).await);
    assert_eq!((chunks.len(), text(chunks.last().unwrap()).as_str()), (WINDOW_STEPS + 1, "next"));
}

#[tokio::test]
async fn replays_and_forks_show_nothing() {
    let engine = engine(Options::default());
    let events = eventful(&engine).await;
    let rows = engine.record("run").await.unwrap().next_seq;
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
    assert_eq!(engine.record("run").await.unwrap().next_seq, rows);
    assert_eq!(so_far(&engine, 0).await, events);
    engine.fork(Fork::at("run", 0).named("fork")).await.unwrap();
    engine.wait("fork").await.unwrap();
    let (mut tail, mut fork) = (engine.tail("fork"), vec![]);
    while let Some(event) = tail.next().await.unwrap() {
        fork.push(event);
    }
    assert_eq!(told(&fork), ["x", "y", "z"], "its own, and nothing to supersede");
}

#[tokio::test]
async fn loading_a_run_leaves_its_chunks_where_they_are() {
    let (store, reached) = (MemoryStore::shared(), Signal::default());
    let engine = Engine::builder().with_store(store.clone());
    let flow = engine.register(stuck_halfway(&reached, true), ()).await.unwrap();
    let _run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    let loaded = store.load(key("run")).await.unwrap();
    assert!(loaded.journal.iter().all(|row| !matches!(row.entry, Entry::Chunk(_))), "{:?}", loaded.journal);
    assert_eq!(store.journal(key("run"), 0, 10).await.unwrap().len(), loaded.journal.len() + 2);
}

#[tokio::test]
async fn a_run_that_is_not_there_is_told() {
    let engine = engine(Options::default());
    for tail in [engine.tail("nope"), engine.tail("nope").so_far(), engine.tail("nope").from(7)] {
        let mut tail = tail;
        assert_eq!(tail.next().await.unwrap_err().code(), code::RUN_NOT_FOUND);
    }
    assert_eq!(engine.tail("").next().await.unwrap_err().code(), code::INVALID_ID);
}
