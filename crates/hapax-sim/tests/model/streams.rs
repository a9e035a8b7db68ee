//! Every store-call boundary of a run that streams: whatever fails there, the chunks that count in the end are one complete
//! sequence, none is seen twice, and a reader that was there from the beginning sees what one sees that comes afterwards.

use hapax::{
    Call, Coded, Durability, EffectError, Options, State, StreamChunk, StreamEvent,
    core::error::code,
    prelude::*,
    store::{Clock, faulty::Fault},
    testing::Lab,
};
use hapax_sim::boundaries::{Place, cut_short, pass_slowly, runtime};
use serde::{Deserialize, Serialize};
use std::{
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
async fn live(lab: &Lab, outside: &Outside, clock: &Clock) -> Result<Story, hapax::Error> {
    let stories = lab.engine().register(graph(), outside.clone()).await?;
    let run = loop {
        match stories.start("story-1", Story::default()).await {
            Err(error) if error.code() == code::STORE_UNKNOWN => {}
            started => break started?,
        }
    };
    tokio::select! {
        ended = lab.finish(&run) => ended,
        () = pass_slowly(clock) => unreachable!("time passes for ever"),
    }
}

/// What there is to read now. A run that isn't there yet has nothing.
async fn so_far(place: &Place, from: u64) -> Vec<StreamEvent> {
    let (mut tail, mut events) = (place.desk().await.tail("story-1").from(from).so_far(), vec![]);
    loop {
        match tail.next().await {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return events,
            Err(error) if error.code() == code::RUN_NOT_FOUND => return events,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Lives twice: the first time with a fault, the second time until the run is over. Whether the fault was reached.
fn with_fault(place: &Place, durability: Durability, at: u64, fault: Fault) -> bool {
    let (outside, options) = (Outside::default(), Options::default().durability(durability));
    let (fired, clock) = cut_short(place, &options, (at, fault), async |lab, clock| {
        // What it comes to is seen in the second life.
        let _ = live(lab, &outside, clock).await;
    });
    runtime().block_on(async {
        let before = so_far(place, 0).await;
        let lab = Lab::on(place.open().await, options);
        let story =
            live(&lab, &outside, &clock).await.unwrap_or_else(|error| panic!("{fault:?} at {at}: {error}"));
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

hapax_sim::every_boundary!(with_fault);
