//! What a node sends: kept with its attempt until the item is done.
//!
//! Invariant: the messages of an attempt leave with the item that it ends well, all of them or none. An attempt that
//! fails, is parked or is dropped takes its messages with it, and the next one sends them anew.

use crate::{
    error::{EffectError, NodeError},
    gate::lock,
    item::Attempt,
};
use hapax_core::{
    error::{Coded, code},
    journal::EffectKind,
    json::Json,
    limits::MAX_MESSAGE_BYTES,
    outbox::Message,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering},
};

/// The name that errors of an emit carry.
const EMIT: &str = "hapax.emit";

/// What an attempt has sent so far, by lane: in a lane the calls have an order, between two of them they have none.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(Mutex<BTreeMap<Arc<str>, Vec<Message>>>);

impl Outgoing {
    /// Takes all of it: the node's own messages first, then those of its lanes by name.
    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *lock(&self.0)).into_values().flatten().collect()
    }

    fn add(&self, scope: &Arc<str>, message: Message) -> Result<(), usize> {
        let mut outgoing = lock(&self.0);
        let size = outgoing.values().flatten().map(Message::weight).sum::<usize>() + message.weight();
        if size > MAX_MESSAGE_BYTES {
            return Err(size);
        }
        outgoing.entry(scope.clone()).or_default().push(message);
        Ok(())
    }
}

impl Attempt {
    /// Keeps a message until the item is done.
    pub(crate) fn emit<T: Serialize + ?Sized>(
        &self,
        scope: &Arc<str>,
        topic: &str,
        key: &str,
        payload: &T,
    ) -> Result<(), EffectError> {
        if !self.alive.load(Ordering::Acquire) {
            return Err(refused(code::DEAD_HANDLE, "this context belongs to an attempt that has ended"));
        }
        if !self.item.rules.allow(EffectKind::Write) {
            let message =
                format!("`{}` declares that it changes nothing outside, and sends a message", self.item.node);
            self.condemn(NodeError::coded(code::UNDECLARED_EFFECT, message.clone(), false));
            return Err(refused(code::UNDECLARED_EFFECT, message));
        }
        let payload = Json::of(payload)
            .map_err(|e| refused(e.code(), format!("the message cannot be written as JSON: {e}")))?;
        let message = Message { topic: topic.into(), key: key.into(), payload };
        message.check().map_err(|e| refused(e.code(), e.to_string()))?;
        self.outgoing.add(scope, message).map_err(|size| {
            let limit = MAX_MESSAGE_BYTES;
            refused(code::LIMIT, format!("an item's messages in bytes: {size} is over the limit of {limit}"))
        })
    }
}

fn refused(code: &str, message: impl Into<String>) -> EffectError {
    EffectError::fatal(EMIT, code, message)
}
