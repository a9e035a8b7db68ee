//! Recorded calls to the outside: intent, call, result.
//!
//! Invariant: an intent is durable, with everything before it, before the call leaves; a result is durable before
//! the node sees it. The handle of an ended attempt is dead.

use crate::{
    emit::Outgoing,
    error::{EffectError, NodeError},
    gate::{Gate, Halt, Mark, lock},
    observe::Observer,
    options::CallRules,
    wait::{Busy, Mailbox, Wait, Waits},
    worker::Shared,
};
use hapax_core::{
    canary, canonical,
    commit::{Append, Epoch, Write},
    error::{Coded, code},
    failure::clip,
    id::{NodeId, RunKey, check_name},
    journal::{EffectKind, EffectOutcome, Entry, Intent, JournalRow, Question, Recorded, SLEEP, Seen},
    json::Json,
    key::{Digest, EffectSite, effect_key_of_digest, sha256},
    limits,
    mailbox::{self, Letter},
    order::{OrderKey, PathHash},
};
use hapax_store::{Clock, Pace, StoreError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    any::Any,
    collections::{BTreeSet, HashSet},
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
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
    pub(crate) clock: Clock,
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) rules: CallRules,
    pub(crate) recorded: Mutex<Recorded>,
    /// What the item saw and the journal doesn't have yet: it is written with the item's next row, or with the step.
    pub(crate) tail: Mutex<Vec<Entry>>,
}

impl Item {
    /// The time by the store's clock, in microseconds since 1970.
    pub(crate) fn now_us(&self) -> i64 {
        self.clock.now_us()
    }

    /// What is left until that time, in microseconds since 1970.
    pub(crate) fn left_until(&self, at_us: i64) -> Duration {
        Duration::from_micros(u64::try_from(at_us.saturating_sub(self.now_us())).unwrap_or(0))
    }

    /// Whether such a wait parks the run. A clock that stands still is moved on only while everything waits.
    pub(crate) fn parks_for(&self, left: Duration) -> bool {
        left > limits::SHORT_WAIT || self.clock.is_manual() && !left.is_zero()
    }

    /// A row of this item.
    pub(crate) fn row(&self, seq: u64, entry: Entry) -> JournalRow {
        JournalRow { seq, base: self.base, step: self.step, path_hash: self.path_hash, entry }
    }

    /// Journals what happened to the item, behind everything that it saw before. Doesn't wait for the disk.
    pub(crate) async fn journal(
        &self,
        pace: Pace,
        entries: &[Entry],
        unless_cancelled: bool,
    ) -> Result<Mark, Halt> {
        let mut flushed = 0;
        let append = |first_seq| {
            let tail = lock(&self.tail);
            flushed = if canary::on("tail_behind") { 0 } else { tail.len() };
            let rows = tail[..flushed].iter().chain(entries).cloned().zip(first_seq..);
            let rows = rows.map(|(entry, seq)| self.row(seq, entry)).collect();
            let (run, epoch) = (self.run.clone(), self.epoch);
            Write::Append(Append { run, epoch, first_seq, rows, unless_cancelled })
        };
        let accepted = self.gate.submit(pace, append).await?;
        // Known at once, in the journal's order: an attempt that is dropped while it waits for the disk has recorded
        // this all the same, and the next one must not call again.
        lock(&self.tail).drain(..flushed);
        let mut recorded = lock(&self.recorded);
        entries.iter().for_each(|entry| recorded.take(entry));
        Ok(accepted.mark)
    }

    /// Takes note of what the item saw, to be journaled with its next row.
    pub(crate) fn see(&self, entries: impl IntoIterator<Item = Entry>) {
        let (mut tail, mut recorded) = (lock(&self.tail), lock(&self.recorded));
        for entry in entries {
            recorded.take(&entry);
            tail.push(entry);
        }
    }
}

/// One attempt of an item.
pub(crate) struct Attempt {
    pub(crate) item: Arc<Item>,
    pub(crate) number: u32,
    pub(crate) deadline: Instant,
    pub(crate) alive: AtomicBool,
    /// What it sends, if it ends well.
    pub(crate) outgoing: Outgoing,
    asked: Mutex<BTreeSet<(Arc<str>, u32)>>,
    scopes: Mutex<HashSet<Arc<str>>>,
    verdict: Mutex<Option<NodeError>>,
    stopped: CancellationToken,
    pub(crate) waits: Waits,
}

impl Attempt {
    pub(crate) fn new(item: Arc<Item>, number: u32, deadline: Instant) -> Arc<Self> {
        Arc::new(Self {
            item,
            number,
            deadline,
            alive: AtomicBool::new(true),
            outgoing: Outgoing::default(),
            asked: Mutex::default(),
            scopes: Mutex::default(),
            verdict: Mutex::default(),
            stopped: CancellationToken::new(),
            waits: Waits::default(),
        })
    }

    /// Fails the attempt whatever the node makes of it.
    pub(crate) fn condemn(&self, error: NodeError) {
        lock(&self.verdict).get_or_insert(error);
        self.stopped.cancel();
    }

    /// Resolves when the attempt was condemned.
    pub(crate) async fn condemned(&self) -> NodeError {
        self.stopped.cancelled().await;
        lock(&self.verdict).take().unwrap_or_else(|| NodeError::new("the attempt was stopped"))
    }

    /// The attempt is over: its handles do nothing any more. A record that it didn't ask for, though it
    /// succeeded, means that the code changed; but a timer may lose to whatever it raced with.
    pub(crate) fn end(&self, succeeded: bool) -> Result<(), NodeError> {
        self.alive.store(false, Ordering::Release);
        if let Some(verdict) = lock(&self.verdict).take() {
            return Err(verdict);
        }
        let (asked, recorded) = (lock(&self.asked), lock(&self.item.recorded));
        match recorded.calls().find(|(at, call)| succeeded && !asked.contains(at) && call.name != SLEEP) {
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

pub(crate) fn failed(code: &str, message: String, retryable: bool) -> EffectOutcome {
    EffectOutcome::Err { code: code.into(), message, retryable, unsent: false, not_before_us: None }
}

fn in_scope(scope: &str) -> String {
    if scope.is_empty() { String::new() } else { format!(" of scope `{scope}`") }
}

fn mismatch(item: &Item, what: &str) -> NodeError {
    let message = format!("`{}` in step {} differs from its record: {what}", item.node, item.step);
    NodeError::coded(code::REPLAY_MISMATCH, message, false)
}

/// Says that a call failed before anything of it reached the other side: even a write that must not be repeated may be
/// made again.
///
/// ```
/// # async fn connect() -> Result<(), std::io::Error> { Ok(()) }
/// # async fn send(_key: &str) -> Result<String, std::io::Error> { Ok("sent".into()) }
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Letter { receipt: Option<String> }
/// use hapax::{NodeError, Unsent};
/// async fn post(mut ctx: hapax::Ctx<Letter>) -> hapax::Result<LetterDelta> {
///     let receipt: String = ctx.effect("post", WriteAtMostOnce, "dear sirs", async |call| {
///         connect().await.map_err(|e| Unsent::new(e))?;
///         send(call.key()).await.map_err(NodeError::from)
///     }).await?;
///     Ok(Letter::delta().receipt(receipt))
/// }
/// # let _ = post;
/// ```
#[derive(Debug, thiserror::Error)]
#[error("nothing was sent: {0}")]
pub struct Unsent(Box<dyn std::error::Error + Send + Sync>);

impl Unsent {
    /// From the error that came before anything was sent.
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// What an error of the caller's says about the call, whatever its type.
fn outcome_of(error: &(impl fmt::Display + 'static), now_us: i64) -> EffectOutcome {
    let any = error as &dyn Any;
    let node = any.downcast_ref::<NodeError>();
    let code = node.map(Coded::code).filter(|code| *code != code::NODE_FAILED);
    EffectOutcome::Err {
        code: code.unwrap_or(code::EFFECT_FAILED).into(),
        message: clip(error.to_string()),
        retryable: node.is_none_or(NodeError::is_retryable),
        unsent: any.is::<Unsent>() || node.is_some_and(NodeError::is_from::<Unsent>),
        not_before_us: node.and_then(|node| node.not_before_us(now_us)),
    }
}

/// An operator's word on a call in doubt: see [`Engine::resolve`](crate::Engine::resolve).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::{Engine, Resolution};
/// let engine = Engine::open("memory:").await?;
/// let told = engine.resolve("order-42", "charge", Resolution::Retry).await;
/// assert!(told.is_err(), "there is no such run");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// It took effect, and this was its answer.
    Result(Json),
    /// It didn't take effect: make it again.
    Retry,
    /// It failed, for this reason.
    Fail(String),
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
    key: Arc<str>,
    pub(crate) recorded: Option<EffectOutcome>,
    request: Digest,
}

/// What becomes of a call whose answer isn't recorded.
pub(crate) enum Begun<'a> {
    /// It is made, with this key.
    Go(Arc<str>, Asked, Busy<'a>),
    /// A person told how it ended.
    Told(EffectOutcome),
}

impl<'a> EffectFuture<'a> {
    pub(crate) fn error(&self, code: &str, message: String, retryable: bool) -> EffectError {
        EffectError { retryable, ..EffectError::fatal(self.name, code, message) }
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
        if !item.rules.allow(self.kind) {
            let message = format!("`{}` declares that it makes no such call ({:?})", item.node, self.kind);
            self.attempt.condemn(NodeError::coded(code::UNDECLARED_EFFECT, message.clone(), false));
            return Err(self.error(code::UNDECLARED_EFFECT, message, false));
        }
        let request = canonical::to_vec(request).map_err(|e| {
            self.error(e.code(), format!("the request cannot be written as JSON: {e}"), false)
        })?;
        let digest = sha256(&request);
        let site = EffectSite {
            namespace: item.run.namespace.as_str(),
            run_id: item.run.run.as_str(),
            step: item.step,
            path_hash: item.path_hash,
            scope: self.scope,
            index: self.index,
            name: self.name,
        };
        let key =
            item.rules.key(&site, &request).unwrap_or_else(|| effect_key_of_digest(&site, &digest).into());
        lock(&self.attempt.asked).insert((self.scope.clone(), self.index));
        Ok(Asked { key: key.into(), request: digest, recorded: self.recorded(digest) })
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
            EffectOutcome::Err { code, message, retryable, not_before_us, .. } => {
                Err(EffectError { not_before_us, ..self.error(&code, message, retryable) })
            }
        }
    }

    /// Lets the call go ahead. Of a write the intent is durable first, and with it everything that the run did before;
    /// a write that may have taken effect and can't be repeated waits for a person's word.
    pub(crate) async fn begin(&self, asked: Asked) -> Begun<'a> {
        self.unless_stopped().await;
        let busy = self.attempt.waits.busy();
        if self.kind == EffectKind::Read {
            return Begun::Go(asked.key.clone(), asked, busy);
        }
        let intent = Entry::Intent(self.intent(&asked));
        if !self.in_doubt() {
            // A child whose end the run waited for was begun before the run was parked.
            if !(self.kind == EffectKind::Child && self.is_begun()) {
                self.record(&[intent], true, canary::on("gate_open")).await;
            }
            return Begun::Go(asked.key.clone(), asked, busy);
        }
        let subject = mailbox::resolution(&asked.key);
        let (item, waits) = (&self.attempt.item, &self.attempt.waits);
        let told = item.mailbox.take(&item.gate, &subject, async |letter| self.told(letter, intent).await);
        match told.await {
            Ok(Some(None)) => Begun::Go(asked.key.clone(), asked, busy),
            Ok(Some(Some(outcome))) => Begun::Told(outcome),
            Ok(None) => {
                drop(busy);
                waits.wait(Wait::Word(subject)).await
            }
            Err(_stopped) => std::future::pending().await,
        }
    }

    fn intent(&self, asked: &Asked) -> Intent {
        Intent {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            name: self.name.into(),
            kind: self.kind,
            request: asked.request,
            key: asked.key.to_string(),
            at_us: self.attempt.item.now_us(),
        }
    }

    /// Whether the call was begun before, and hasn't ended.
    pub(crate) fn is_begun(&self) -> bool {
        let recorded = lock(&self.attempt.item.recorded);
        recorded.call(self.scope, self.index).is_some_and(|call| call.outcome.is_none())
    }

    /// Takes note of a question, to be durable before the run is parked.
    pub(crate) fn see_question(&self, name: &str, text: String, schema: Option<Json>, asked: &Asked) {
        self.attempt.item.see([Entry::Question(Question {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            request: asked.request,
            name: name.into(),
            text,
            schema,
            at_us: self.attempt.item.now_us(),
        })]);
    }

    /// Whether an earlier attempt may have reached the other side, and another must not.
    fn in_doubt(&self) -> bool {
        let recorded = lock(&self.attempt.item.recorded);
        let Some(call) = recorded.call(self.scope, self.index) else { return false };
        let unsent = matches!(call.outcome, Some(EffectOutcome::Err { unsent: true, .. }));
        let forgotten = self.attempt.item.now_us() - call.since_us > limits::KEY_TTL.as_micros() as i64;
        match self.kind {
            EffectKind::Write => !unsent && forgotten,
            EffectKind::WriteAtMostOnce => !unsent,
            _ => false,
        }
    }

    /// Records an operator's word with the letter that brought it; `None`: the call is to be made.
    async fn told(&self, letter: Letter, intent: Entry) -> Option<EffectOutcome> {
        let took = Entry::Took { letter: letter.number };
        let outcome = match letter.payload.read() {
            Ok(Resolution::Retry) => {
                self.record(&[took, intent], true, false).await;
                return None;
            }
            Ok(Resolution::Result(response)) => EffectOutcome::Ok { response },
            Ok(Resolution::Fail(message)) => failed(code::EFFECT_FAILED, clip(message), false),
            Err(error) => failed(code::STATE_SHAPE, format!("the resolution cannot be read: {error}"), false),
        };
        self.record(&[took, self.result(outcome.clone())], false, false).await;
        Some(outcome)
    }

    pub(crate) fn result(&self, outcome: EffectOutcome) -> Entry {
        let (scope, index, attempt) = (self.scope.clone(), self.index, self.attempt.number);
        Entry::Result { scope, index, attempt, outcome, at_us: self.attempt.item.now_us() }
    }

    /// Records how the call ended, then shows it to the node: as it was recorded, so that a node that sees it again
    /// after a crash sees the same. The result of a write is durable first; that of a read when something rests on it.
    pub(crate) async fn end<T, E>(&self, asked: Asked, outcome: Result<T, E>) -> Result<T, EffectError>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display + 'static,
    {
        let outcome = match outcome {
            Ok(value) => match Json::of(&value) {
                Ok(response) => EffectOutcome::Ok { response },
                Err(e) => failed(e.code(), format!("the answer cannot be written as JSON: {e}"), false),
            },
            Err(error) => outcome_of(&error, self.attempt.item.now_us()),
        };
        self.finish(asked, outcome).await
    }

    /// Records an outcome, then shows it to the node.
    pub(crate) async fn finish<T: DeserializeOwned>(
        &self,
        asked: Asked,
        outcome: EffectOutcome,
    ) -> Result<T, EffectError> {
        if self.kind == EffectKind::Read {
            self.unless_stopped().await;
            self.see(asked.request, outcome.clone(), None);
        } else {
            self.record(&[self.result(outcome.clone())], false, canary::on("result_early")).await;
        }
        self.replay(outcome)
    }

    /// Takes note of what a call saw, with the letter that brought it.
    fn see(&self, request: Digest, outcome: EffectOutcome, letter: Option<u64>) {
        let seen = Entry::Seen(Seen {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            name: self.name.into(),
            request,
            outcome,
            at_us: self.attempt.item.now_us(),
        });
        self.attempt.item.see(letter.map(|letter| Entry::Took { letter }).into_iter().chain([seen]));
    }

    /// The recorded value, or `fresh` and that is recorded. A record that is of something else condemns the attempt.
    pub(crate) fn note<T: Serialize + DeserializeOwned>(&self, fresh: impl FnOnce() -> T) -> T {
        let Ok(asked) = self.ask(&()) else { return fresh() };
        if let Some(EffectOutcome::Ok { response }) = &asked.recorded
            && let Ok(value) = response.read()
        {
            return value;
        }
        let value = fresh();
        if !self.attempt.stopped.is_cancelled()
            && let Ok(response) = Json::of(&value)
        {
            self.see(asked.request, EffectOutcome::Ok { response }, None);
        }
        value
    }

    /// Waits until that time, in microseconds since 1970: in place when it is near, else parked.
    pub(crate) async fn until(&self, at_us: i64) {
        let left = self.attempt.item.left_until(at_us);
        if self.attempt.item.parks_for(left) {
            return self.attempt.waits.wait(Wait::Until(at_us)).await;
        }
        let _busy = self.attempt.waits.busy();
        tokio::time::sleep(left).await;
    }

    /// The next letter of a subject, recorded; parked until there is one.
    pub(crate) async fn letter<T: DeserializeOwned>(&self, subject: Arc<str>) -> Result<T, EffectError> {
        let asked = self.ask(&*subject)?;
        if let Some(recorded) = asked.recorded {
            return self.replay(recorded);
        }
        self.unless_stopped().await;
        let (item, busy) = (&self.attempt.item, self.attempt.waits.busy());
        let read = async |letter: Letter| {
            let outcome = EffectOutcome::Ok { response: letter.payload };
            self.see(asked.request, outcome.clone(), Some(letter.number));
            outcome
        };
        match item.mailbox.take(&item.gate, &subject, read).await {
            Ok(Some(outcome)) => self.replay(outcome),
            Ok(None) => {
                drop(busy);
                self.attempt.waits.wait(Wait::Letter(subject)).await
            }
            Err(_stopped) => std::future::pending().await,
        }
    }

    /// Bears an error of the store, or never returns: then the run stops.
    pub(crate) async fn bear(&self, error: StoreError) {
        let borne = self.attempt.item.gate.bear(error).await;
        self.unless_halted(borne).await;
    }

    /// Never returns when the run stops: the node's future is dropped where it stands.
    pub(crate) async fn unless_halted<T>(&self, outcome: Result<T, Halt>) -> T {
        match outcome {
            Ok(value) => value,
            Err(_) => std::future::pending().await,
        }
    }

    /// Journals and waits for the disk. When the run is stopped meanwhile this never returns: the node's future
    /// is dropped where it stands, and user code doesn't see why.
    async fn record(&self, entries: &[Entry], unless_cancelled: bool, without_waiting: bool) {
        self.unless_stopped().await;
        let item = &self.attempt.item;
        let durable = async {
            let alone = self.scope.is_empty() && !without_waiting;
            let pace = if alone { item.pace } else { Pace::Ahead };
            let mark = item.journal(pace, entries, unless_cancelled).await?;
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
