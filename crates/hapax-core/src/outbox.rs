//! Messages that leave with a step's commit.

use crate::json::Json;
use serde::{Deserialize, Serialize};

/// A message to the outside, written by the step's own commit and delivered afterwards.
///
/// See [`outbox_digest`](crate::checkpoint::outbox_digest) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Where it goes.
    pub topic: String,
    /// The receiver's partition or routing key.
    pub key: String,
    /// What it says.
    pub payload: Json,
}
