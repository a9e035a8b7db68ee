//! Every store-call boundary of a run that streams: whatever fails there, the chunks that count in the end are one complete
//! sequence, none is seen twice, and a reader that was there from the beginning sees what one sees that comes afterwards.

use hapax::{
    Call, Coded, Durability, EffectError, Options, State, StreamChunk, StreamEvent, Tail,
    core::error::code,
    prelude::*,
    store::{
        Clock, MemoryStore, Store,
        faulty::{Fault, Faulty},
        sqlite::{SqliteOptions, SqliteStore},
    },
    testing::Lab,
};
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Story {
    #[state(append)]
    told: Vec<String>,
}

const OPEN: Node = Node::new("open");
const PART: Node<u64> = Node::new("part");
const CLOSE: Node = Node::new("close");

/// Every answer of the outside is another one.
#[derive(Clone, Default)]
struct Outside(Arc<AtomicU64>);

impl Outside {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

type Ctx = hapax::Ctx<Story, Outside>;

/// A read streams, and what it answers is streamed, as is what a write does with it; a wait lies between them.
async fn open(mut ctx: Ctx) -> Result<hapax::Outcome<Story>, EffectError> {
    let outside = ctx.app();
    ctx.stream("open").await?;
    let name = async |call: Call| {
        let name = format!("hero {}", outside.next());
        call.stream(&name).await?;
        Ok::<_, NodeError>(name)
    };
    let name: String = ctx.effect("name", Read, &(), name).await?;
    ctx.stream(&format!("so {name}")).await?;
    ctx.sleep(Duration::from_secs(3600)).await?;
    let print = async |call: Call| {
        call.stream("prints").await?;
        call.stream(&name).await?;
        Ok::<_, NodeError>(())
    };
    ctx.effect("print", Write, &name, print).await?;
    ctx.stream("opened").await?;
    Ok(Story::delta().told(name).fork([PART.with(0), PART.with(1)]))
}

/// Two at once; each fails once, in the middle.
async fn part(mut ctx: Ctx, number: u64) -> Result<StoryDelta, NodeError> {
    ctx.stream(&format!("part {number} begins")).await?;
    if ctx.attempt() == 1 {
        return Err(NodeError::new("once more"));
    }
    ctx.stream(&format!("part {number} ends")).await?;
    Ok(Story::delta().told(format!("part {number}")))
}

async fn close(mut ctx: Ctx) -> Result<StoryDelta, EffectError> {
    ctx.stream("close").await?;
    Ok(Story::delta().told("end"))
}

fn graph() -> Graph<Story, Outside> {
    let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
    Graph::new("stories", 1, OPEN)
        .node(OPEN, open)
        .node(PART, part)
        .policy(PART, twice)
        .node(CLOSE, close)
        .edge(PART, CLOSE)
}

/// One life of a process: until the run is over, or the store is dead.
async fn live(lab: &Lab, outside: &Outside, clock: Clock) -> Result<Story, hapax::Error> {
    let stories = lab.engine().register(graph(), outside.clone()).await?;
    let run = loop {
        match stories.start("story-1", Story::default()).await {
            Err(error) if error.code() == code::STORE_UNKNOWN => {}
            started => break started?,
        }
    };
    tokio::select! {
        ended = lab.finish(&run) => ended,
        () = time(clock) => unreachable!("time passes for ever"),
    }
}

/// Lets time pass, slowly, so that a claim whose answer was lost comes to its end.
async fn time(clock: Clock) {
    loop {
        for _ in 0..5000 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(20));
    }
}

/// A store in which every life begins.
enum Place<'f> {
    Memory(Arc<MemoryStore>),
    File(&'f Path, Clock),
}

impl Place<'_> {
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Place::Memory(store) => store.clone(),
            Place::File(path, clock) => {
                let options = SqliteOptions::default().clock(clock.clone());
                SqliteStore::open(path, options).await.unwrap()
            }
        }
    }

    /// A process beside, which only reads.
    async fn reader(&self, from: u64) -> Tail {
        let engine =
            Engine::builder().options(Options::default().finds_work(false)).with_store(self.open().await);
        engine.tail("story-1").from(from)
    }
}

/// What there is to read now. A run that isn't there yet has nothing.
async fn so_far(place: &Place<'_>, from: u64) -> Vec<StreamEvent> {
    let (mut tail, mut events) = (place.reader(from).await.so_far(), vec![]);
    loop {
        match tail.next().await {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return events,
            Err(error) if error.code() == code::RUN_NOT_FOUND => return events,
            Err(error) => panic!("{error}"),
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Lives twice: the first time with a fault, the second time until the run is over. Whether the fault was reached.
fn with_fault(place: &Place<'_>, durability: Durability, at: u64, fault: Fault) -> bool {
    let (outside, options) = (Outside::default(), Options::default().durability(durability));
    let first = runtime();
    let (fired, clock) = first.block_on(async {
        let store = place.open().await;
        let clock = store.clock();
        let faulty = Faulty::new(store, at, fault);
        let lab = Lab::on(faulty.clone(), options.clone());
        tokio::select! {
            _ = live(&lab, &outside, clock.clone()) => {}
            () = faulty.dead() => {}
        }
        (faulty.fired(), clock)
    });
    first.shutdown_timeout(Duration::from_secs(10));
    clock.advance(Duration::from_secs(3600));
    runtime().block_on(async {
        let before = so_far(place, 0).await;
        let lab = Lab::on(place.open().await, options);
        let story =
            live(&lab, &outside, clock).await.unwrap_or_else(|error| panic!("{fault:?} at {at}: {error}"));
        lab.engine().shutdown(Duration::from_secs(5)).await;
        let events = so_far(place, 0).await;
        let seen = before.last().map_or(0, StreamEvent::cursor);
        let resumed = [before, so_far(place, seen).await].concat();
        assert_eq!(resumed, events, "{fault:?} at {at}: whoever watched all the time saw the same");
        check(&story, &events, &format!("{fault:?} at {at}"));
    });
    fired
}

/// The chunks that count tell the whole story, once, in each item's order, and as its state has it.
fn check(story: &Story, events: &[StreamEvent], context: &str) {
    let name = story.told[0].as_str();
    let so = format!("so {name}");
    let mut left: Vec<StreamChunk> = vec![];
    for event in events {
        match event {
            StreamEvent::Chunk(chunk) => left.push(chunk.clone()),
            StreamEvent::Superseded(old) => left.retain(|chunk| !old.supersedes(chunk)),
            other => panic!("{other:?}"),
        }
    }
    let of = |node: &str, call: Option<u32>, step: u64| -> Vec<String> {
        let is_one = |c: &&StreamChunk| {
            c.node.as_str() == node && c.step == step && c.call.as_ref().map(|at| at.index) == call
        };
        left.iter().filter(is_one).map(|c| c.payload.as_str().trim_matches('"').to_owned()).collect()
    };
    assert_eq!(of("open", None, 0), ["open", &so, "opened"], "{context}: {left:#?}");
    assert_eq!(of("open", Some(0), 0), [name], "{context}: {left:#?}");
    assert_eq!(of("open", Some(2), 0), ["prints", name], "{context}: {left:#?}");
    let mut parts = of("part", None, 1);
    // Between the two items there is no order; within each there is.
    parts.sort_by_key(|text| text.chars().nth(5));
    assert_eq!(
        parts,
        ["part 0 begins", "part 0 ends", "part 1 begins", "part 1 ends"],
        "{context}: {left:#?}"
    );
    assert_eq!(of("close", None, 2), ["close"], "{context}: {left:#?}");
    assert_eq!(left.len(), 3 + 1 + 2 + 4 + 1, "{context}: {left:#?}");
    let identity = |c: &StreamChunk| (c.step, c.path_hash, c.epoch, c.attempt, c.offset);
    let chunks = events.iter().filter_map(|event| match event {
        StreamEvent::Chunk(chunk) => Some(identity(chunk)),
        _ => None,
    });
    let mut identities: Vec<_> = chunks.collect();
    let all = identities.len();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), all, "{context}: no chunk is there twice");
}

fn every_boundary(durability: Durability, fault: Fault, on_file: bool) {
    let folder = tempfile::tempdir().unwrap();
    for at in 0.. {
        let path = folder.path().join(format!("{at}.db"));
        let place = if on_file {
            Place::File(&path, Clock::manual())
        } else {
            Place::Memory(MemoryStore::with_clock(Clock::manual()))
        };
        if !with_fault(&place, durability, at, fault) {
            assert!(at > 20, "only {at} boundaries");
            return;
        }
    }
}

macro_rules! boundaries {
    ($($name:ident: $durability:ident, $fault:ident, $on_file:literal;)*) => {
        $(#[test]
        fn $name() {
            every_boundary(Durability::$durability, Fault::$fault, $on_file);
        })*
    };
}

boundaries! {
    dying_before_a_call_in_memory_strict: Strict, Before, false;
    dying_after_a_call_in_memory_strict: Strict, After, false;
    losing_a_reply_in_memory_strict: Strict, LoseReply, false;
    dying_before_a_call_in_memory: Pipelined, Before, false;
    dying_after_a_call_in_memory: Pipelined, After, false;
    losing_a_reply_in_memory: Pipelined, LoseReply, false;
    dying_before_a_call_on_sqlite_strict: Strict, Before, true;
    dying_after_a_call_on_sqlite_strict: Strict, After, true;
    losing_a_reply_on_sqlite_strict: Strict, LoseReply, true;
    dying_before_a_call_on_sqlite: Pipelined, Before, true;
    dying_after_a_call_on_sqlite: Pipelined, After, true;
    losing_a_reply_on_sqlite: Pipelined, LoseReply, true;
}
