//! Messages that leave with a step's commit.
//!
//! Invariant: a message is written by the commit of the step that sends it, whole or not at all, and its id follows from
//! its place: however often it is delivered, it is the same one to whoever receives it.

use crate::{
    id::{InvalidId, RunKey, check_name},
    json::Json,
    key::DigestBuilder,
};
use serde::{Deserialize, Serialize};

/// A message to the outside, written by the step's own commit and delivered afterwards.
///
/// ```
/// use hapax_core::{json::Json, outbox::Message};
/// let mail = Message { topic: "mail".into(), key: "order-42".into(), payload: Json::of("shipped")? };
/// assert!(mail.check().is_ok());
/// let stored = r#"{"topic":"mail","key":"order-42","payload":"shipped"}"#;
/// assert_eq!(serde_json::from_str::<Message>(stored)?, mail);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Where it goes.
    pub topic: String,
    /// The receiver's partition or routing key; may be empty.
    pub key: String,
    /// What it says.
    pub payload: Json,
}

impl Message {
    /// Refuses a topic that is no name, and a key that is neither a name nor empty.
    ///
    /// ```
    /// use hapax_core::{json::Json, outbox::Message};
    /// let mail = Message { topic: "mail".into(), key: String::new(), payload: Json::of("shipped")? };
    /// assert!(mail.check().is_ok());
    /// assert!(Message { topic: "two\nlines".into(), ..mail }.check().is_err());
    /// # Ok::<(), hapax_core::canonical::CanonicalError>(())
    /// ```
    pub fn check(&self) -> Result<(), InvalidId> {
        check_name("topic", &self.topic)?;
        if self.key.is_empty() { Ok(()) } else { check_name("message key", &self.key) }
    }

    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        self.topic.len() + self.key.len() + self.payload.as_bytes().len()
    }
}

/// Where a message stands in its run: in the commit of that step, so many messages after the first.
///
/// ```
/// use hapax_core::outbox::Place;
/// let (earlier, later) = (Place { step: 1, position: 9 }, Place { step: 2, position: 0 });
/// assert!(earlier < later, "messages leave in the order of their places");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The step whose commit wrote it.
    pub step: u64,
    /// Its number in that commit, from 0.
    pub position: u32,
}

/// The id that a message carries on every delivery, for receivers to tell a repeated one by: `msg:` and 64 hex digits.
///
/// ```
/// use hapax_core::{id::{Namespace, RunId, RunKey}, outbox::{Place, message_id}};
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// let id = message_id(&run, Place { step: 1, position: 0 });
/// assert_eq!(id, message_id(&run, Place { step: 1, position: 0 }));
/// assert_ne!(id, message_id(&run, Place { step: 1, position: 1 }));
/// assert!(id.starts_with("msg:") && id.len() == 68);
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[must_use]
pub fn message_id(run: &RunKey, place: Place) -> String {
    let mut digest = DigestBuilder::new("hapax.msg.v1");
    digest.text(run.namespace.as_str()).text(run.run.as_str()).u64(place.step).u64(place.position.into());
    format!("msg:{}", digest.finish())
}
