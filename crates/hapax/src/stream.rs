//! What a node streams: chunks for whoever watches the run, behind everything that the item saw before.
//!
//! Invariant: a chunk is a row of the journal, so it is seen once it is durable, in the order of its run, and only from
//! the holder of the lease. No chunk of an attempt or a call follows its end, and the first one of an execution follows
//! the row that says whose chunks it replaces.

use crate::{
    error::{EffectError, NodeError},
    gate::{Halt, lock},
    item::{Attempt, Live},
};
use hapax_core::{
    canary,
    error::{Coded, code},
    journal::{EffectKind, Entry},
    json::Json,
    limits::MAX_CHUNK_BYTES,
    stream::{CallAt, Chunk, Execution, Streams},
};
use hapax_store::Pace;
use serde::Serialize;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The name that errors of a stream carry.
const STREAM: &str = "hapax.stream";

/// A call under way: what it streams is its own.
#[derive(Clone)]
pub(crate) struct UnderWay {
    at: CallAt,
    open: Arc<AtomicBool>,
}

impl UnderWay {
    pub(crate) fn new(scope: &Arc<str>, index: u32) -> Self {
        Self { at: CallAt { scope: scope.clone(), index }, open: Arc::new(AtomicBool::new(true)) }
    }

    /// The call is over, however it ended: the handles that it left behind stream no more.
    pub(crate) fn ending(&self) -> Ending {
        Ending(self.open.clone())
    }
}

/// Closes the stream of a call when it is dropped.
pub(crate) struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Attempt {
    /// Streams a chunk of the node's own, or of one of its calls. Waits while too much runs ahead of the disk.
    pub(crate) async fn stream<T: Serialize + ?Sized>(
        &self,
        call: Option<&UnderWay>,
        chunk: &T,
    ) -> Result<(), EffectError> {
        if !self.may_stream(call) {
            return Err(dead());
        }
        if !self.item.rules.allow(EffectKind::Read) {
            let message = format!("`{}` declares that it only computes, and streams a chunk", self.item.node);
            self.condemn(NodeError::coded(code::UNDECLARED_EFFECT, message.clone(), false));
            return Err(refused(code::UNDECLARED_EFFECT, message));
        }
        let payload = Json::of(chunk)
            .map_err(|e| refused(e.code(), format!("the chunk cannot be written as JSON: {e}")))?;
        let (size, limit) = (payload.as_bytes().len(), MAX_CHUNK_BYTES);
        if size > limit {
            return Err(refused(
                code::LIMIT,
                format!("a chunk in bytes: {size} is over the limit of {limit}"),
            ));
        }
        // A replay repeats what the node does, not what others were shown of it.
        let Some(live) = &self.item.live else { return Ok(()) };
        let _busy = self.waits.busy();
        match self.with_store(self.journal_chunk(live, call, payload)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(dead()),
            // The run stops: the node's future is dropped where it stands.
            Err(_) => std::future::pending().await,
        }
    }

    fn may_stream(&self, call: Option<&UnderWay>) -> bool {
        self.alive.load(Ordering::Acquire) && call.is_none_or(|call| call.open.load(Ordering::Acquire))
    }

    /// Answers whether it was still to be written. Asked while nothing else of the run is accepted, so that no chunk
    /// comes behind the row that ends its call, its attempt or its step.
    async fn journal_chunk(&self, live: &Live, call: Option<&UnderWay>, payload: Json) -> Result<bool, Halt> {
        live.gate.window().await?;
        let turn = live.gate.turn().await?;
        if self.is_condemned() {
            // Whoever waits here may never be dropped: others must have their turn.
            drop(turn);
            return std::future::pending().await;
        }
        if !self.may_stream(call) {
            return Ok(false);
        }
        let (call, Execution { attempt, epoch }) = (call.map(|call| call.at.clone()), self.execution(live));
        let before = lock(&self.item.recorded).streamed_by(call.as_ref());
        let begins = (before != Some(self.execution(live))).then(|| self.streams(live, call.clone(), before));
        let (node, offset) = (self.item.node.clone(), self.streamed.load(Ordering::Relaxed));
        let at_us = live.now_us();
        let chunk = Chunk { node, call, attempt, epoch, offset, payload, at_us };
        let entries: Vec<_> = begins.into_iter().chain([Entry::Chunk(chunk)]).collect();
        let accepted = live.journal_in(turn, &self.item, Pace::Ahead, &entries, false).await?;
        self.streamed.store(offset + 1, Ordering::Relaxed);
        drop(accepted);
        live.shared.streamed.send_replace(());
        Ok(true)
    }

    fn execution(&self, live: &Live) -> Execution {
        Execution { attempt: self.number, epoch: live.epoch.counter }
    }

    fn streams(&self, live: &Live, call: Option<CallAt>, before: Option<Execution>) -> Entry {
        let Execution { attempt, epoch } = self.execution(live);
        let instead_of = before.filter(|_| !canary::on("superseded_untold"));
        Entry::Streams(Streams { node: self.item.node.clone(), call, attempt, epoch, instead_of })
    }

    /// The item is executed again: what earlier executions streamed counts no more, except that of calls which have
    /// ended, since they are not made again. Durable at the latest with the item's end, even if this one streams nothing.
    pub(crate) fn supersede_streams(&self) {
        let Some(live) = &self.item.live else { return };
        let stale: Vec<_> = {
            let recorded = lock(&self.item.recorded);
            let ended =
                |at: &CallAt| recorded.call(&at.scope, at.index).is_some_and(|call| call.outcome.is_some());
            let stale = recorded
                .streams()
                .filter(|(call, by)| *by != self.execution(live) && !call.as_ref().is_some_and(ended));
            stale.map(|(call, by)| self.streams(live, call.clone(), Some(by))).collect()
        };
        self.item.see(stale);
    }

    /// A call is made again although it has ended, with an error: what it streamed then counts no more.
    pub(crate) fn supersede_call(&self, scope: &Arc<str>, index: u32) {
        let Some(live) = &self.item.live else { return };
        let at = CallAt { scope: scope.clone(), index };
        let before = lock(&self.item.recorded).streamed_by(Some(&at));
        if before.is_some_and(|by| by != self.execution(live)) {
            self.item.see([self.streams(live, Some(at), before)]);
        }
    }
}

fn dead() -> EffectError {
    refused(code::DEAD_HANDLE, "this handle belongs to an attempt or a call that has ended")
}

fn refused(code: &str, message: impl Into<String>) -> EffectError {
    EffectError::fatal(STREAM, code, message)
}
