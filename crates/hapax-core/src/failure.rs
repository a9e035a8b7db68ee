//! A node's failure as data: what the journal, a handler and the caller see of it.

use crate::{id::NodeId, limits::MAX_ERROR_BYTES};
use serde::{Deserialize, Serialize};

/// Why a node failed, as text: never the caller's own error type, so that it reads the same after a crash.
///
/// ```
/// use hapax_core::{failure::NodeFailure, id::NodeId};
/// let failure = NodeFailure {
///     node: NodeId::new("charge")?,
///     code: "HX0020".into(),
///     message: "card declined".into(),
///     retryable: false,
///     attempt: 1,
/// };
/// assert_eq!(failure.to_string(), "`charge` failed: card declined");
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("`{node}` failed: {message}")]
pub struct NodeFailure {
    /// The node.
    pub node: NodeId,
    /// The error's code.
    pub code: String,
    /// The error and its causes.
    pub message: String,
    /// Whether another attempt made sense.
    pub retryable: bool,
    /// The attempt that failed, counted from 1.
    pub attempt: u32,
}

/// Cuts a message to its limit, at a character.
///
/// ```
/// use hapax_core::{failure::clip, limits::MAX_ERROR_BYTES};
/// assert_eq!(clip("short".into()), "short");
/// assert!(clip("é".repeat(MAX_ERROR_BYTES)).ends_with("é…"));
/// ```
pub fn clip(mut message: String) -> String {
    if message.len() > MAX_ERROR_BYTES {
        let end = (0..=MAX_ERROR_BYTES).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}
