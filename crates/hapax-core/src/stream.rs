//! What items stream while they are executed: chunks, and which execution's chunks count.
//!
//! Invariant: in each stream of an item the execution that began last counts. Its [`Streams`] row comes before its first
//! chunk, so a reader needs no row from before the one where it goes on.

use crate::{id::NodeId, json::Json};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A call of an item: its lane, and its number there.
///
/// ```
/// use hapax_core::stream::CallAt;
/// let call = CallAt { scope: "left".into(), index: 2 };
/// assert_eq!(call.to_string(), "left/2");
/// assert_eq!(CallAt { scope: "".into(), index: 2 }.to_string(), "2");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallAt {
    /// The lane; empty: the node's own.
    pub scope: Arc<str>,
    /// The call's number in it.
    pub index: u32,
}

impl std::fmt::Display for CallAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.scope.is_empty() {
            write!(f, "{}", self.index)
        } else {
            write!(f, "{}/{}", self.scope, self.index)
        }
    }
}

/// An execution of an item: a later attempt is newer, and so is the same one under a later claim of its run.
///
/// ```
/// use hapax_core::stream::Execution;
/// let first = Execution { attempt: 1, epoch: 1 };
/// assert!(Execution { attempt: 1, epoch: 2 } > first, "after a crash, or after a wait");
/// assert!(Execution { attempt: 2, epoch: 1 } > first, "after a failure");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Execution {
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// Counts the claims of the run.
    pub epoch: u64,
}

/// A part of what an item streams.
///
/// ```
/// use hapax_core::{id::NodeId, journal::{Entry, Recorded}, json::Json, stream::Chunk};
/// let (node, payload) = (NodeId::new("draft")?, Json::of("Once upon")?);
/// let chunk = Chunk { node, call: None, attempt: 1, epoch: 1, offset: 0, payload, at_us: 1_800_000_000_000_000 };
/// let mut recorded = Recorded::default();
/// recorded.take(&Entry::Chunk(chunk));
/// assert_eq!(recorded, Recorded::default(), "nothing that the item does rests on it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The item's node.
    pub node: NodeId,
    /// The call that streams it; `None`: the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallAt>,
    /// The attempt that streams it.
    pub attempt: u32,
    /// The claim under which it does.
    pub epoch: u64,
    /// How many chunks this execution of the item streamed before.
    pub offset: u64,
    /// What is streamed.
    pub payload: Json,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// From here on another execution of an item streams, or might have: what an earlier one streamed counts no more.
///
/// ```
/// use hapax_core::{id::NodeId, journal::{Entry, Recorded}, stream::{Execution, Streams}};
/// let (first, second) = (Execution { attempt: 1, epoch: 1 }, Execution { attempt: 2, epoch: 1 });
/// let mut recorded = Recorded::default();
/// for (now, instead_of) in [(first, None), (second, Some(first))] {
///     let (node, Execution { attempt, epoch }) = (NodeId::new("draft")?, now);
///     recorded.take(&Entry::Streams(Streams { node, call: None, attempt, epoch, instead_of }));
/// }
/// assert_eq!(recorded.streamed_by(None), Some(second));
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    /// The item's node.
    pub node: NodeId,
    /// The call whose stream it is; `None`: the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallAt>,
    /// The attempt that streams.
    pub attempt: u32,
    /// The claim under which it does.
    pub epoch: u64,
    /// Whose chunks count no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<Execution>,
}

impl Streams {
    /// The execution that streams.
    pub fn by(&self) -> Execution {
        Execution { attempt: self.attempt, epoch: self.epoch }
    }
}
