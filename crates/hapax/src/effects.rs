//! Recorded calls to the outside: intent, call, result.
//!
//! Invariant: an intent is durable, with everything before it, before the call leaves; a result is durable before
//! the node sees it. The handle of an ended attempt is dead.

use crate::{
    clock,
    error::{EffectError, NodeError},
    gate::{Gate, Halt, Mark, lock},
    observe::Observer,
};
use hapax_core::{
    canary, canonical,
    commit::{Append, Epoch, Write},
    error::{Coded, code},
    failure::clip,
    id::{NodeId, RunKey, check_name},
    journal::{EffectKind, EffectOutcome, Entry, Intent, JournalRow, Recorded},
    json::Json,
    key::{Digest, EffectSite, effect_key_of_digest, sha256},
    order::{OrderKey, PathHash},
};
use hapax_store::Pace;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    any::Any,
    collections::{BTreeSet, HashSet},
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// An item of the current step, and what it recorded.
pub(crate) struct Item {
    pub(crate) run: RunKey,
    pub(crate) epoch: Epoch,
    pub(crate) step: u64,
    /// The digest of the checkpoint whose frontier holds the item.
    pub(crate) base: Digest,
    pub(crate) node: NodeId,
    pub(crate) order_key: OrderKey,
    pub(crate) path_hash: PathHash,
    pub(crate) seed: u64,
    /// Alone, unless other items of the step may have something to journal as well.
    pub(crate) pace: Pace,
    pub(crate) gate: Arc<Gate>,
    pub(crate) observer: Observer,
    pub(crate) recorded: Mutex<Recorded>,
}

impl Item {
    /// Journals what happened to the item. Doesn't wait for the disk.
    pub(crate) async fn journal(
        &self,
        pace: Pace,
        entry: Entry,
        unless_cancelled: bool,
    ) -> Result<Mark, Halt> {
        let row =
            |seq| JournalRow { seq, base: self.base, step: self.step, path_hash: self.path_hash, entry };
        let append = |first_seq| {
            let (run, epoch, rows) = (self.run.clone(), self.epoch, vec![row(first_seq)]);
            Write::Append(Append { run, epoch, first_seq, rows, unless_cancelled })
        };
        self.gate.submit(pace, append).await
    }
}

/// One attempt of an item.
pub(crate) struct Attempt {
    pub(crate) item: Arc<Item>,
    pub(crate) number: u32,
    pub(crate) deadline: Instant,
    alive: AtomicBool,
    asked: Mutex<BTreeSet<(Arc<str>, u32)>>,
    scopes: Mutex<HashSet<Arc<str>>>,
    verdict: Mutex<Option<NodeError>>,
    stopped: CancellationToken,
}

impl Attempt {
    pub(crate) fn new(item: Arc<Item>, number: u32, deadline: Instant) -> Arc<Self> {
        Arc::new(Self {
            item,
            number,
            deadline,
            alive: AtomicBool::new(true),
            asked: Mutex::default(),
            scopes: Mutex::default(),
            verdict: Mutex::default(),
            stopped: CancellationToken::new(),
        })
    }

    /// Fails the attempt whatever the node makes of it.
    fn condemn(&self, error: NodeError) {
        lock(&self.verdict).get_or_insert(error);
        self.stopped.cancel();
    }

    /// Resolves when the attempt was condemned.
    pub(crate) async fn condemned(&self) -> NodeError {
        self.stopped.cancelled().await;
        lock(&self.verdict).take().unwrap_or_else(|| NodeError::new("the attempt was stopped"))
    }

    /// The attempt is over: its handles do nothing any more. A record that it didn't ask for, though it
    /// succeeded, means that the code changed.
    pub(crate) fn end(&self, succeeded: bool) -> Result<(), NodeError> {
        self.alive.store(false, Ordering::Release);
        if let Some(verdict) = lock(&self.verdict).take() {
            return Err(verdict);
        }
        let (asked, recorded) = (lock(&self.asked), lock(&self.item.recorded));
        match recorded.calls().find(|(at, _)| succeeded && !asked.contains(at)) {
            None => Ok(()),
            Some(((scope, index), call)) => {
                let call = format!("call {index}{} `{}`", in_scope(scope), call.name);
                Err(mismatch(&self.item, &format!("expected {call}, which is recorded; got no such call")))
            }
        }
    }

    /// Opens a lane. The root is the empty path and `/` parts the names, so neither can stand in one.
    pub(crate) fn open_scope(&self, parent: &str, name: &str) -> Arc<str> {
        let path: Arc<str> = if parent.is_empty() { name.into() } else { format!("{parent}/{name}").into() };
        if let Err(error) = check_name("scope", name) {
            self.condemn(NodeError::coded(error.code(), error.to_string(), false));
        } else if name.contains('/') {
            let message = format!("scope `{name}` holds a `/`; open a scope inside a scope instead");
            self.condemn(NodeError::coded(code::INVALID_ID, message, false));
        } else if !lock(&self.scopes).insert(path.clone()) {
            let message =
                format!("scope `{path}` was opened twice in one attempt; give each lane its own name");
            self.condemn(NodeError::coded(code::REPLAY_MISMATCH, message, false));
        }
        path
    }
}

fn failed(code: &str, message: String, retryable: bool) -> EffectOutcome {
    EffectOutcome::Err { code: code.into(), message, retryable }
}

fn in_scope(scope: &str) -> String {
    if scope.is_empty() { String::new() } else { format!(" of scope `{scope}`") }
}

fn mismatch(item: &Item, what: &str) -> NodeError {
    let message = format!("`{}` in step {} differs from its record: {what}", item.node, item.step);
    NodeError::coded(code::REPLAY_MISMATCH, message, false)
}

/// One call: where it is made, and what it is.
pub(crate) struct EffectFuture<'a> {
    pub(crate) attempt: &'a Arc<Attempt>,
    pub(crate) scope: &'a Arc<str>,
    pub(crate) index: u32,
    pub(crate) name: &'a str,
    pub(crate) kind: EffectKind,
}

/// A call that may go ahead, or whose answer is recorded.
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) recorded: Option<EffectOutcome>,
    request: Digest,
}

impl EffectFuture<'_> {
    fn error(&self, code: &str, message: String, retryable: bool) -> EffectError {
        EffectError { effect: self.name.into(), code: code.into(), message, retryable }
    }

    /// Computes the key and looks into the record.
    pub(crate) fn ask<Q: Serialize + ?Sized>(&self, request: &Q) -> Result<Asked, EffectError> {
        let item = &self.attempt.item;
        if !self.attempt.alive.load(Ordering::Acquire) {
            let message = "this context belongs to an attempt that has ended".to_owned();
            return Err(self.error(code::DEAD_HANDLE, message, false));
        }
        if let Err(error) = check_name("effect name", self.name) {
            return Err(self.error(error.code(), error.to_string(), false));
        }
        let request = canonical::to_vec(request).map_err(|e| {
            self.error(e.code(), format!("the request cannot be written as JSON: {e}"), false)
        })?;
        let request = sha256(&request);
        let site = EffectSite {
            namespace: item.run.namespace.as_str(),
            run_id: item.run.run.as_str(),
            step: item.step,
            path_hash: item.path_hash,
            scope: self.scope,
            index: self.index,
            name: self.name,
        };
        let key = effect_key_of_digest(&site, &request).into();
        lock(&self.attempt.asked).insert((self.scope.clone(), self.index));
        Ok(Asked { key, request, recorded: self.recorded(request) })
    }

    /// The recorded answer, unless the call is to be made: there is none, or it is an error of an earlier attempt
    /// that nothing was built on.
    fn recorded(&self, request: Digest) -> Option<EffectOutcome> {
        let recorded = lock(&self.attempt.item.recorded);
        let call = recorded.call(self.scope, self.index)?;
        if call.name != self.name || call.request != request {
            let (at, scope) = (self.index, in_scope(self.scope));
            let what = format!(
                "call {at}{scope}: expected `{}` with request {}, got `{}` with request {request}",
                call.name, call.request, self.name
            );
            self.attempt.condemn(mismatch(&self.attempt.item, &what));
        }
        match &call.outcome {
            Some(EffectOutcome::Err { .. })
                if call.attempt < self.attempt.number && recorded.nothing_rests_on(call) =>
            {
                None
            }
            outcome => outcome.clone(),
        }
    }

    /// Gives a recorded answer to the node.
    pub(crate) fn replay<T: DeserializeOwned>(&self, outcome: EffectOutcome) -> Result<T, EffectError> {
        match outcome {
            EffectOutcome::Ok { response } => response.read().map_err(|e| {
                self.error(
                    code::STATE_SHAPE,
                    format!("the recorded answer does not fit its type: {e}"),
                    false,
                )
            }),
            EffectOutcome::Err { code, message, retryable } => Err(self.error(&code, message, retryable)),
        }
    }

    /// Makes the intent durable, and with it everything that the run did before.
    pub(crate) async fn begin(&self, asked: Asked) {
        self.unless_stopped().await;
        let intent = Intent {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            name: self.name.into(),
            kind: self.kind,
            request: asked.request,
            key: asked.key,
            at_us: clock::now_us(),
        };
        self.record(Entry::Intent(intent), true, canary::on("gate_open")).await;
    }

    /// Makes the result durable, then shows it to the node: as it was recorded, so that a node that sees it again
    /// after a crash sees the same.
    pub(crate) async fn end<T, E>(&self, outcome: Result<T, E>) -> Result<T, EffectError>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display + 'static,
    {
        let outcome = match outcome {
            Ok(value) => match Json::of(&value) {
                Ok(response) => EffectOutcome::Ok { response },
                Err(e) => failed(e.code(), format!("the answer cannot be written as JSON: {e}"), false),
            },
            Err(error) => {
                let fatal =
                    (&error as &dyn Any).downcast_ref::<NodeError>().is_some_and(|e| !e.is_retryable());
                failed(code::EFFECT_FAILED, clip(error.to_string()), !fatal)
            }
        };
        let (scope, index, attempt) = (self.scope.clone(), self.index, self.attempt.number);
        let entry = Entry::Result { scope, index, attempt, outcome: outcome.clone(), at_us: clock::now_us() };
        self.record(entry, false, canary::on("result_early")).await;
        self.replay(outcome)
    }

    /// Journals and waits for the disk. When the run is stopped meanwhile this never returns: the node's future
    /// is dropped where it stands, and user code doesn't see why.
    async fn record(&self, entry: Entry, unless_cancelled: bool, without_waiting: bool) {
        self.unless_stopped().await;
        let item = &self.attempt.item;
        let durable = async {
            let pace = if self.scope.is_empty() { item.pace } else { Pace::Ahead };
            let mark = item.journal(pace, entry.clone(), unless_cancelled).await?;
            // Known at once, in the journal's order: an attempt that is dropped while it waits for the disk has
            // recorded this all the same, and the next one must not call again.
            lock(&item.recorded).take(&entry);
            if without_waiting { Ok(()) } else { item.gate.passed(mark).await }
        };
        if durable.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn unless_stopped(&self) {
        let dead = !self.attempt.alive.load(Ordering::Acquire);
        if dead || self.attempt.stopped.is_cancelled() || self.attempt.item.gate.halt().is_some() {
            std::future::pending::<()>().await;
        }
    }
}
