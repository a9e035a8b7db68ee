//! Reads what a run streams, wherever the run is executed.
//!
//! Invariant: a reader reads the store and nothing else, so it sees what is durable. An event is one row of the journal,
//! and its cursor is the number of the next: whoever goes on from there misses nothing and sees nothing twice.

use crate::{Engine, error::Error, handle::Patience};
use futures::{Stream, future::OptionFuture, stream::try_unfold};
use hapax_core::{
    id::NodeId,
    journal::{Entry, JournalRow},
    json::Json,
    limits::{STREAM_PAGE, STREAM_POLL, STREAM_POLL_MAX},
    order::PathHash,
    stream::CallAt,
};
use serde::Serialize;
use std::{collections::VecDeque, time::Duration};
use tokio::sync::watch;

/// Something that whoever watches a run is told.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// use hapax::StreamEvent;
/// async fn write(mut ctx: hapax::Ctx<Draft>) -> hapax::Result<()> {
///     ctx.stream(&format!("attempt {}", ctx.attempt())).await?;
///     if ctx.attempt() == 1 { Err(NodeError::new("out of ink")) } else { Ok(()) }
/// }
/// # let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
/// # let engine = Engine::open("memory:").await?;
/// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, write).policy(WRITE, twice);
/// # let drafts = engine.register(graph, ()).await?;
/// drafts.start("draft-1", Draft::default()).await?;
/// let (mut tail, mut page) = (engine.tail("draft-1"), vec![]);
/// while let Some(event) = tail.next().await? {
///     match event {
///         StreamEvent::Chunk(chunk) => page.push(chunk),
///         StreamEvent::Superseded(old) => page.retain(|chunk| !old.supersedes(chunk)),
///         _ => {}
///     }
/// }
/// assert_eq!((page.len(), page[0].payload.as_str()), (1, r#""attempt 2""#));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StreamEvent {
    /// A chunk.
    Chunk(StreamChunk),
    /// Chunks from before count no more.
    Superseded(Superseded),
}

impl StreamEvent {
    /// Where a reader goes on that has seen this event: see [`Tail::from`].
    pub fn cursor(&self) -> u64 {
        match self {
            StreamEvent::Chunk(chunk) => chunk.cursor,
            StreamEvent::Superseded(superseded) => superseded.cursor,
        }
    }

    fn of(row: JournalRow) -> Option<Self> {
        let (cursor, step, path_hash) = (row.seq + 1, row.step, row.path_hash);
        match row.entry {
            Entry::Chunk(chunk) => Some(StreamEvent::Chunk(StreamChunk {
                cursor,
                step,
                node: chunk.node,
                path_hash,
                call: chunk.call,
                attempt: chunk.attempt,
                epoch: chunk.epoch,
                offset: chunk.offset,
                payload: chunk.payload,
                at_us: chunk.at_us,
            })),
            Entry::Streams(streams) => {
                let (node, call, old) = (streams.node, streams.call, streams.instead_of?);
                let (attempt, epoch) = (old.attempt, old.epoch);
                Some(StreamEvent::Superseded(Superseded {
                    cursor,
                    step,
                    node,
                    path_hash,
                    call,
                    attempt,
                    epoch,
                }))
            }
            _ => None,
        }
    }
}

/// A part of what an item streams.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::{StreamEvent, prelude::*};
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(mut ctx: hapax::Ctx<Draft>) -> hapax::Result<()> { Ok(ctx.stream("Once").await?) }
/// # let engine = Engine::open("memory:").await?;
/// # let drafts = engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// # drafts.start("draft-1", Draft::default()).await?;
/// let Some(StreamEvent::Chunk(chunk)) = engine.tail("draft-1").next().await? else { unreachable!() };
/// assert_eq!((chunk.node.as_str(), chunk.step, chunk.offset), ("write", 0, 0));
/// assert_eq!(chunk.payload.read::<String>()?, "Once");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamChunk {
    /// Where a reader goes on that has seen it.
    pub cursor: u64,
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The item's node.
    pub node: NodeId,
    /// The item.
    pub path_hash: PathHash,
    /// The call that streams it; `None`: the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<CallAt>,
    /// The attempt that streams it, counted from 1.
    pub attempt: u32,
    /// The claim of the run under which it does: higher after a crash or a wait.
    pub epoch: u64,
    /// How many chunks this execution of the item, an attempt under one claim, streamed before.
    pub offset: u64,
    /// What was streamed.
    pub payload: Json,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// What an execution of an item streamed counts no more: another one is under way, or has ended without a chunk.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::{StreamEvent, prelude::*};
/// # use serde::{Serialize, Deserialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(mut ctx: hapax::Ctx<Draft>) -> hapax::Result<()> {
/// #     if ctx.attempt() == 2 { return Ok(()) }
/// #     ctx.stream("Onec").await?;
/// #     Err(NodeError::new("misspelt"))
/// # }
/// # let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
/// # let engine = Engine::open("memory:").await?;
/// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, write).policy(WRITE, twice);
/// # let drafts = engine.register(graph, ()).await?;
/// # drafts.start("draft-1", Draft::default()).await?;
/// let mut tail = engine.tail("draft-1");
/// let Some(StreamEvent::Chunk(chunk)) = tail.next().await? else { unreachable!() };
/// let Some(StreamEvent::Superseded(old)) = tail.next().await? else { unreachable!() };
/// assert!(old.attempt == 1 && old.supersedes(&chunk));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Superseded {
    /// Where a reader goes on that has seen it.
    pub cursor: u64,
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The item's node.
    pub node: NodeId,
    /// The item.
    pub path_hash: PathHash,
    /// The call whose chunks are meant; `None`: the node's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<CallAt>,
    /// The attempt that streamed them.
    pub attempt: u32,
    /// The claim under which it did.
    pub epoch: u64,
}

impl Superseded {
    /// Whether this is about that chunk.
    pub fn supersedes(&self, chunk: &StreamChunk) -> bool {
        let of_the_item =
            (self.step, self.path_hash, &self.call) == (chunk.step, chunk.path_hash, &chunk.call);
        of_the_item && (chunk.attempt, chunk.epoch) <= (self.attempt, self.epoch)
    }
}

/// Follows what a run streams: see [`Engine::tail`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(mut ctx: hapax::Ctx<Draft>) -> hapax::Result<()> {
/// #     ctx.stream("Once").await?;
/// #     Ok(ctx.stream("upon").await?)
/// # }
/// use futures::TryStreamExt as _;
/// # let engine = Engine::open("memory:").await?;
/// # let drafts = engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// drafts.start("draft-1", Draft::default()).await?;
/// let mut tail = engine.tail("draft-1");
/// tail.next().await?; // the connection to the browser breaks here
/// let rest: Vec<_> = engine.tail("draft-1").from(tail.cursor()).into_stream().try_collect().await?;
/// assert_eq!(rest.len(), 1, "no chunk comes twice");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tail {
    engine: Engine,
    run: String,
    /// What the reader has seen.
    cursor: u64,
    /// What was read from the store.
    next_seq: u64,
    read: VecDeque<StreamEvent>,
    so_far: bool,
    streamed: watch::Receiver<()>,
    pause: Duration,
    patience: Patience,
}

/// What a look at the store found.
enum Found {
    /// There may be events to give.
    Rows,
    /// No more come.
    End,
    /// There may be more later.
    Nothing,
}

impl Engine {
    /// Follows what a run streams, in the order in which it was streamed, from its first chunk until the run is over; it
    /// may be executed here or elsewhere. Each event has a cursor, from which another reader goes on.
    ///
    /// Only what is durable is seen. A run that isn't there is told by [`Tail::next`]. A store that is out of reach is borne
    /// for [`Options::store_patience`](crate::Options::store_patience), unless the reader wants [what is there
    /// now](Tail::so_far).
    pub fn tail(&self, run: &str) -> Tail {
        Tail {
            engine: self.clone(),
            run: run.into(),
            cursor: 0,
            next_seq: 0,
            read: VecDeque::new(),
            so_far: false,
            streamed: self.shared.streamed.subscribe(),
            pause: STREAM_POLL,
            patience: Patience::of(self),
        }
    }
}

impl Tail {
    /// Goes on behind the event with this cursor.
    pub fn from(mut self, cursor: u64) -> Self {
        // No row has a higher number, and stores count in 63 bits.
        let cursor = cursor.min(i64::MAX.unsigned_abs());
        (self.cursor, self.next_seq) = (cursor, cursor);
        self.read.clear();
        self
    }

    /// Ends with what is there now, whether or not the run is over.
    pub fn so_far(mut self) -> Self {
        self.so_far = true;
        self
    }

    /// Where another reader would go on.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The next event; `None`: there are no more. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, Error> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.cursor = event.cursor();
                return Ok(Some(event));
            }
            // Read before the rows: what comes after this is seen as a change.
            self.streamed.mark_unchanged();
            match self.look_patiently().await? {
                Found::Rows => self.pause = STREAM_POLL,
                Found::End => return Ok(None),
                Found::Nothing => {
                    self.engine.is_open()?;
                    self.wait().await?;
                }
            }
        }
    }

    /// As a stream of the `futures` crate.
    pub fn into_stream(self) -> impl Stream<Item = Result<StreamEvent, Error>> {
        try_unfold(self, async |mut tail| Ok(tail.next().await?.map(|event| (event, tail))))
    }

    /// Takes what the store has; nothing while it is out of reach and that can be borne.
    async fn look_patiently(&mut self) -> Result<Found, Error> {
        let found = self.look().await;
        if self.so_far {
            return found;
        }
        let (found, answer) = match found {
            Ok(found) => (found, Ok(())),
            Err(error) => (Found::Nothing, Err(error)),
        };
        self.patience.bear(answer).map(|()| found)
    }

    /// Takes what the store has.
    async fn look(&mut self) -> Result<Found, Error> {
        if self.read_page().await? {
            return Ok(Found::Rows);
        }
        let record = self.engine.record(&self.run).await?;
        Ok(match record.next_seq <= self.next_seq {
            false => Found::Rows,
            true if self.so_far || record.status.is_final() => Found::End,
            true => Found::Nothing,
        })
    }

    /// Takes the next rows; whether there were any.
    async fn read_page(&mut self) -> Result<bool, Error> {
        let key = self.engine.key(&self.run)?;
        let rows = self.engine.shared.store.journal(key, self.next_seq, STREAM_PAGE).await?;
        let Some(last) = rows.last() else { return Ok(false) };
        self.next_seq = last.seq + 1;
        self.read.extend(rows.into_iter().filter_map(StreamEvent::of));
        Ok(true)
    }

    /// Waits until there may be more: this engine wrote a chunk, the run left it, or it is time to look at what others
    /// wrote.
    async fn wait(&mut self) -> Result<(), Error> {
        let (run, shared) = (self.engine.key(&self.run)?, self.engine.shared.clone());
        let left = OptionFuture::from(shared.watch(&run).map(|_| shared.left(&run)));
        tokio::select! {
            Ok(()) = self.streamed.changed() => shared.flushed(&run).await,
            Some(_) = left => {}
            () = tokio::time::sleep(self.pause) => self.pause = (self.pause * 2).min(STREAM_POLL_MAX),
        }
        Ok(())
    }
}
