//! Recorded calls to the outside: intent, call, result.
//!
//! Invariant: an intent is durable, with everything before it, before the call leaves; a result is durable before
//! the node sees it. The handle of an ended attempt is dead.

mod turn;

use crate::{
    error::{EffectError, NodeError},
    gate::{Halt, lock},
    item::{Attempt, Difference, Live, call_at},
    trail::Open,
    wait::{Busy, Wait},
    watch::What,
};
use hapax_core::{
    canary, canonical,
    error::{Coded, code},
    failure::clip,
    id::{RunKey, check_name},
    journal::{Awaits, EffectKind, EffectOutcome, Entry, Intent, Question, RecordedCall, Seen, Timer},
    json::Json,
    key::{Digest, EffectSite, effect_key_of_digest, sha256},
    limits,
    mailbox::{self, Letter},
    trace::SpanId,
};
use hapax_store::{Pace, StoreError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    any::Any,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How often a letter that is waited for is looked for while other calls of the attempt are under way.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn failed(code: &str, message: String, retryable: bool) -> EffectOutcome {
    EffectOutcome::Err { code: code.into(), message, retryable, unsent: false, not_before_us: None }
}

/// Says that a call failed before anything of it reached the other side: even a write that must not be repeated may be
/// made again.
///
/// ```
/// use hapax::{Call, Unsent, prelude::*};
/// # use serde::{Serialize, Deserialize};
/// # use std::{io, time::Duration};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Letter { receipt: Option<String> }
/// # const POST: Node = Node::new("post");
/// # fn connect(attempt: u32) -> io::Result<()> {
/// #     if attempt == 1 { Err(io::Error::other("no route")) } else { Ok(()) }
/// # }
/// # async fn send(_key: &str) -> io::Result<String> { Ok("sent".into()) }
/// async fn post(mut ctx: hapax::Ctx<Letter>) -> hapax::Result<LetterDelta> {
///     let attempt = ctx.attempt();
///     let call = async |call: Call| {
///         connect(attempt).map_err(Unsent::new)?; // fails at first
///         send(call.key()).await.map_err(NodeError::from)
///     };
///     let receipt: String = ctx.effect("post", WriteAtMostOnce, "dear sirs", call).await?;
///     Ok(Letter::delta().receipt(receipt))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
/// # let graph = Graph::new("letters", 1, POST).node(POST, post).policy(POST, twice);
/// # let letters = Engine::open("memory:").await?.register(graph, ()).await?;
/// # let letter = letters.start("letter-7", Letter::default()).await?.wait().await?;
/// assert_eq!(letter.receipt.as_deref(), Some("sent"), "the run was never in doubt");
/// # Ok(())
/// # }
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
    EffectOutcome::Err {
        code: code_of(error),
        message: clip(error.to_string()),
        retryable: node.is_none_or(NodeError::is_retryable),
        unsent: any.is::<Unsent>() || node.is_some_and(NodeError::is_from::<Unsent>),
        not_before_us: node.and_then(|node| node.not_before_us(now_us)),
    }
}

/// The code of an error of the caller's, whatever its type.
pub(crate) fn code_of(error: &(impl fmt::Display + 'static)) -> String {
    let node = (error as &dyn Any).downcast_ref::<NodeError>();
    let code = node.map(Coded::code).filter(|code| *code != code::NODE_FAILED);
    code.unwrap_or(code::EFFECT_FAILED).into()
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

/// How a call ended, by an operator's word; `None`: it is to be made again.
pub(crate) fn word(letter: &Letter) -> Option<EffectOutcome> {
    match letter.payload.read() {
        Ok(Resolution::Retry) => None,
        Ok(Resolution::Result(response)) => Some(EffectOutcome::Ok { response }),
        Ok(Resolution::Fail(message)) => Some(failed(code::EFFECT_FAILED, clip(message), false)),
        Err(error) => {
            let message = format!("the resolution cannot be read: {error}");
            Some(failed(code::STATE_SHAPE, message, false))
        }
    }
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
    /// How many rows of the item there were when it was begun.
    began: Option<usize>,
}

/// What becomes of a call whose answer isn't recorded.
pub(crate) enum Begun<'a> {
    /// It is made, with this key.
    Go(Arc<str>, Asked, Busy<'a>),
    /// A person told how it ended.
    Told(EffectOutcome),
}

impl<'a> EffectFuture<'a> {
    /// The call leaves now, if somebody wants to know.
    pub(crate) fn open(&self, command: bool) -> Option<Open> {
        let traced = self.attempt.traced.as_ref()?;
        let id = traced.id().of_call(self.scope, self.index);
        Some(traced.call(&self.attempt.item, id, self.what(command, None), None))
    }

    /// The call that started a child has its end: it is told of from its begin, whoever made that.
    pub(crate) fn open_child(&self, child: &RunKey) -> Option<Open> {
        let (traced, item) = (self.attempt.traced.as_ref()?, &self.attempt.item);
        let began_us = lock(&item.recorded).call(self.scope, self.index).and_then(|call| call.since_us);
        let id = SpanId::of_child(&item.run, &child.run);
        let mut open = traced.call(item, id, self.what(false, Some(child.clone())), began_us);
        open.link_child(child);
        Some(open)
    }

    fn what(&self, command: bool, child: Option<RunKey>) -> What {
        let item = &self.attempt.item;
        What::Call {
            step: item.step,
            node: item.node.clone(),
            attempt: self.attempt.number,
            name: self.name.into(),
            kind: self.kind,
            command,
            scope: self.scope.clone(),
            index: self.index,
            child,
        }
    }

    pub(crate) fn error(&self, code: &str, message: String, retryable: bool) -> EffectError {
        EffectError { retryable, ..EffectError::fatal(self.name, code, message) }
    }

    /// Computes the key and looks into the record.
    pub(crate) fn ask<Q: Serialize + ?Sized>(&self, request: &Q) -> Result<Asked, EffectError> {
        self.ask_as(None, request)
    }

    /// As [`EffectFuture::ask`], for a call that may have a key of its own, which no policy overrides.
    pub(crate) fn ask_as<Q: Serialize + ?Sized>(
        &self,
        key: Option<&str>,
        request: &Q,
    ) -> Result<Asked, EffectError> {
        let item = &self.attempt.item;
        if crate::transaction::is_in_transaction() {
            let message = "a transaction holds no other calls: make this one before or after it".to_owned();
            self.attempt.condemn(NodeError::coded(code::UNDECLARED_EFFECT, message.clone(), false));
            return Err(self.error(code::UNDECLARED_EFFECT, message, false));
        }
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
        // A marker under a key that another call has as well would stand for both.
        let by_policy = || item.rules.key(&site, &request).filter(|_| self.kind != EffectKind::Transaction);
        let own = key.map(str::to_owned).or_else(by_policy);
        if let Some(Err(error)) = own.as_deref().map(|key| check_name("idempotency key", key)) {
            self.attempt.condemn(NodeError::coded(error.code(), error.to_string(), false));
            return Err(self.error(error.code(), error.to_string(), false));
        }
        let key = own.unwrap_or_else(|| effect_key_of_digest(&site, &digest).into());
        self.attempt.asked(self.scope, self.index);
        Ok(Asked { recorded: self.recorded(digest, &key), key: key.into(), request: digest, began: None })
    }

    /// The recorded answer, unless the call is to be made: there is none, or it is an error of an earlier attempt
    /// that nothing was built on.
    fn recorded(&self, request: Digest, key: &str) -> Option<EffectOutcome> {
        let recorded = lock(&self.attempt.item.recorded);
        let call = recorded.call(self.scope, self.index)?;
        if call.name != self.name {
            self.differs(&call.name, "name", &call.name, self.name);
        } else if call.request != request {
            self.differs(&call.name, "request", &call.request.to_string(), &request.to_string());
        } else if !call.key.is_empty() && *call.key != *key {
            self.differs(&call.name, "key", &call.key, key);
        }
        match &call.outcome {
            Some(EffectOutcome::Err { .. })
                if call.attempt < self.attempt.number && recorded.nothing_rests_on(call)
                    || canary::on("error_forgotten") =>
            {
                None
            }
            outcome => outcome.clone(),
        }
    }

    fn differs(&self, name: &str, field: &str, expected: &str, got: &str) {
        self.attempt.differs(Difference {
            call: Some(call_at(self.scope, self.index, name)),
            field: field.into(),
            expected: expected.into(),
            got: got.into(),
        });
    }

    /// The way to the outside, once all that is recorded has been asked for: what happened before a crash comes before
    /// whatever happens now, however a node races its calls. In a replay this never returns.
    pub(crate) async fn live(&self) -> &'a Live {
        let Some(live) = &self.attempt.item.live else {
            let wait = if self.was_sent() { Wait::Unanswered } else { Wait::Record };
            return self.attempt.waits.wait(wait(self.at())).await;
        };
        self.attempt.while_behind(|| self.attempt.is_behind()).await;
        self.unless_stopped(live).await;
        live
    }

    /// This call, for people.
    pub(crate) fn at(&self) -> String {
        call_at(self.scope, self.index, self.name)
    }

    /// Gives a recorded answer to the node in its turn: what was begun before it came is asked for first, however a node
    /// races its calls.
    pub(crate) async fn recall<T: DeserializeOwned>(&self, outcome: EffectOutcome) -> Result<T, EffectError> {
        let came =
            lock(&self.attempt.item.recorded).call(self.scope, self.index).map_or(0, |call| call.order);
        if self.attempt.is_behind_at(came) && !canary::on("answers_first") {
            let (_recalled, _busy) = (self.attempt.recall(), self.attempt.waits.busy());
            self.attempt.while_behind(|| self.attempt.is_behind_at(came)).await;
        }
        self.replay(outcome)
    }

    /// Gives an answer to the node.
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
        self.begin_with(asked, None, false).await
    }

    /// As [`EffectFuture::begin`]; the intent of a call that begins comes with a note. Where the call itself writes to the
    /// journal, it writes them as well.
    pub(crate) async fn begin_with(&self, asked: Asked, note: Option<Entry>, writes: bool) -> Begun<'a> {
        let live = self.live().await;
        let busy = self.attempt.waits.busy();
        self.attempt.supersede_call(self.scope, self.index);
        if self.kind == EffectKind::Read {
            let began = Some(lock(&self.attempt.item.recorded).rows());
            return Begun::Go(asked.key.clone(), Asked { began, ..asked }, busy);
        }
        let intent = self.intent(live, &asked);
        if !self.in_doubt(live) {
            if !self.goes_on() {
                let entries: Vec<_> = [Entry::Intent(intent)].into_iter().chain(note).collect();
                if writes {
                    self.attempt.item.see(entries);
                } else {
                    self.record(live, &entries, true, canary::on("gate_open")).await;
                }
            }
            return Begun::Go(asked.key.clone(), asked, busy);
        }
        let subject = mailbox::resolution(&asked.key);
        let waits = &self.attempt.waits;
        let told = async |letter| self.told(live, letter, intent).await;
        match live.mailbox.take(&live.gate, &subject, told).await {
            Ok(Some(None)) => Begun::Go(asked.key.clone(), asked, busy),
            Ok(Some(Some(outcome))) => Begun::Told(outcome),
            Ok(None) => {
                drop(busy);
                waits.wait(Wait::Word(subject)).await
            }
            Err(_stopped) => std::future::pending().await,
        }
    }

    fn intent(&self, live: &Live, asked: &Asked) -> Intent {
        Intent {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            name: self.name.into(),
            kind: self.kind,
            request: asked.request,
            key: asked.key.to_string(),
            at_us: live.now_us(),
            anew: false,
        }
    }

    /// Whether the call goes on where it stood when the run was parked or taken over, its intent durable.
    fn goes_on(&self) -> bool {
        let recorded = lock(&self.attempt.item.recorded);
        let begun = recorded.call(self.scope, self.index).filter(|call| call.outcome.is_none());
        match self.kind {
            EffectKind::Child => begun.is_some(),
            // Another attempt may have seen something else before.
            EffectKind::Transaction => begun.is_some_and(|call| call.attempt == self.attempt.number),
            _ => false,
        }
    }

    /// Whether the call was begun before, and hasn't ended.
    pub(crate) fn is_begun(&self) -> bool {
        let recorded = lock(&self.attempt.item.recorded);
        recorded.call(self.scope, self.index).is_some_and(|call| call.outcome.is_none())
    }

    /// Whether it was begun before, hasn't ended, and did more than wait.
    fn was_sent(&self) -> bool {
        let recorded = lock(&self.attempt.item.recorded);
        recorded
            .call(self.scope, self.index)
            .is_some_and(|call| call.outcome.is_none() && !call.only_waited())
    }

    /// Takes note of a question, to be durable before the run is parked.
    pub(crate) fn see_question(
        &self,
        live: &Live,
        name: &str,
        text: String,
        schema: Option<Json>,
        asked: &Asked,
    ) {
        self.attempt.item.see([Entry::Question(Question {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            request: asked.request,
            name: name.into(),
            text,
            schema,
            at_us: live.now_us(),
        })]);
    }

    /// Whether an earlier attempt may have reached the other side, and another must not.
    fn in_doubt(&self, live: &Live) -> bool {
        let recorded = lock(&self.attempt.item.recorded);
        let call = recorded.call(self.scope, self.index);
        let Some(since_us) = call.and_then(|call| call.since_us) else { return false };
        match self.kind {
            EffectKind::Write => live.now_us() - since_us > limits::KEY_TTL.as_micros() as i64,
            EffectKind::WriteAtMostOnce => true,
            EffectKind::Transaction => call.is_some_and(RecordedCall::is_doubted),
            _ => false,
        }
    }

    /// Records an operator's word with the letter that brought it; `None`: the call is to be made.
    async fn told(&self, live: &Live, letter: Letter, intent: Intent) -> Option<EffectOutcome> {
        let took = Entry::Took { letter: letter.number };
        let Some(outcome) = word(&letter) else {
            let intent = Entry::Intent(Intent { anew: true, ..intent });
            self.record(live, &[took, intent], true, false).await;
            return None;
        };
        self.record(live, &[took, self.result(live, outcome.clone())], false, false).await;
        Some(outcome)
    }

    pub(crate) fn result(&self, live: &Live, outcome: EffectOutcome) -> Entry {
        let (scope, index, attempt) = (self.scope.clone(), self.index, self.attempt.number);
        Entry::Result { scope, index, attempt, outcome, at_us: live.now_us() }
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
            Err(error) => outcome_of(&error, self.live().await.now_us()),
        };
        self.finish(asked, outcome).await
    }

    /// What a script answers in the place of the outside.
    pub(crate) fn scripted<Q: Serialize + ?Sized>(&self, key: &str, request: &Q) -> Option<EffectOutcome> {
        let script = self.attempt.item.live.as_ref()?.shared.script.as_ref()?;
        script.answer(self.name, key, || Json::of(request).ok())
    }

    /// Records an outcome, then shows it to the node.
    pub(crate) async fn finish<T: DeserializeOwned>(
        &self,
        asked: Asked,
        outcome: EffectOutcome,
    ) -> Result<T, EffectError> {
        let live = self.live().await;
        if self.kind == EffectKind::Read {
            self.see(live, &asked, outcome.clone(), None);
        } else if self.kind == EffectKind::Transaction {
            // The database remembers until it is durable, with the item's next row or the step.
            if self.is_begun() {
                self.attempt.item.see([self.result(live, outcome.clone())]);
            }
        } else {
            let result = self.result(live, outcome.clone());
            self.record(live, &[result], false, canary::on("result_early")).await;
        }
        self.replay(outcome)
    }

    /// Takes note of what a call saw, with the letter that brought it.
    fn see(&self, live: &Live, asked: &Asked, outcome: EffectOutcome, letter: Option<u64>) {
        let seen = Entry::Seen(Seen {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            name: self.name.into(),
            request: asked.request,
            outcome,
            at_us: live.now_us(),
            began: asked.began,
        });
        self.attempt.item.see(letter.map(|letter| Entry::Took { letter }).into_iter().chain([seen]));
    }

    /// The recorded value, or a fresh one and that is recorded. A record that is of something else condemns the attempt.
    pub(crate) fn note<T: Serialize + DeserializeOwned>(
        &self,
        unknown: T,
        fresh: impl FnOnce(&Live) -> T,
    ) -> T {
        let Ok(asked) = self.ask(&()) else { return unknown };
        if let Some(EffectOutcome::Ok { response }) = &asked.recorded
            && let Ok(value) = response.read()
        {
            return value;
        }
        let Some(live) = &self.attempt.item.live else {
            self.attempt.ran_out(self.at());
            return unknown;
        };
        let value = fresh(live);
        if !self.attempt.is_condemned()
            && !canary::on("clock_unrecorded")
            && let Ok(response) = Json::of(&value)
        {
            self.see(live, &asked, EffectOutcome::Ok { response }, None);
        }
        value
    }

    /// The version that was decided on before, else `min` where the item came past this place without deciding, else
    /// `max`; recorded from now on.
    pub(crate) fn version(
        &self,
        change: &str,
        went_on: bool,
        min: u32,
        max: u32,
    ) -> Result<u32, EffectError> {
        check_name("change", change).map_err(|error| self.error(error.code(), error.to_string(), false))?;
        let asked = self.ask(&())?;
        let version = match (asked.recorded.clone(), &self.attempt.item.live) {
            (Some(recorded), _) => self.replay(recorded)?,
            (None, None) => min,
            (None, Some(live)) => {
                let version = if went_on { min } else { max };
                let response = Json::of(&version).map_err(|e| self.error(e.code(), e.to_string(), false))?;
                if !canary::on("version_forgotten") {
                    self.see(live, &asked, EffectOutcome::Ok { response }, None);
                }
                version
            }
        };
        if (min..=max).contains(&version) {
            return Ok(version);
        }
        let message =
            format!("version {version} of `{change}` is needed here, and this code has {min} to {max}");
        self.attempt.condemn(NodeError::coded(code::UNSUPPORTED_VERSION, message.clone(), false));
        Err(self.error(code::UNSUPPORTED_VERSION, message, false))
    }

    /// Waits for that long from when it was first asked for; that it did is recorded.
    pub(crate) async fn sleep(&self, duration: Duration) -> Result<(), EffectError> {
        let asked = self.ask(&())?;
        if let Some(went_off) = asked.recorded {
            return self.recall(went_off).await;
        }
        let live = self.live().await;
        let due_us = self.due_us().unwrap_or_else(|| self.set_timer(live, asked.request, duration));
        self.until(live, due_us).await;
        // Another call may have been recorded since: of two that race, one is the first for ever.
        let live = self.live().await;
        let went_off = EffectOutcome::Ok { response: Json::null() };
        if !canary::on("timer_unrecorded") {
            self.attempt.item.see([self.result(live, went_off)]);
        }
        Ok(())
    }

    /// When the timer goes off that this call has set.
    fn due_us(&self) -> Option<i64> {
        lock(&self.attempt.item.recorded).call(self.scope, self.index)?.due_us
    }

    fn set_timer(&self, live: &Live, request: Digest, duration: Duration) -> i64 {
        let at_us = live.now_us();
        let due_us = at_us + duration.as_micros() as i64;
        let (scope, index, attempt) = (self.scope.clone(), self.index, self.attempt.number);
        self.attempt.item.see([Entry::Timer(Timer { scope, index, attempt, request, due_us, at_us })]);
        due_us
    }

    /// Whether such a wait parks the run. One that the attempt's time doesn't allow isn't part of it; a time that has come is no
    /// wait, however long the store has stood still meanwhile.
    fn parks(&self, live: &Live, left: Duration) -> bool {
        let too_late = crate::clock::instant() + left >= self.attempt.deadline;
        live.parks_for(left) || too_late && !left.is_zero()
    }

    /// Waits until that time, in microseconds since 1970: in place when it is near, else parked.
    async fn until(&self, live: &Live, due_us: i64) {
        let left = live.left_until(due_us);
        if self.parks(live, left) {
            let wait = Wait::Until(due_us);
            if live.shared.clock.is_manual() {
                return self.attempt.waits.wait(wait).await;
            }
            // It isn't parked as long as another call is under way: the time may come first.
            return self.attempt.waits.wait_for(wait, left).await;
        }
        let _busy = self.attempt.waits.busy();
        // The runtime's own timers are coarse: a time that has come needs none.
        if !left.is_zero() {
            tokio::time::sleep(left).await;
        }
    }

    /// The next letter of a subject, recorded; parked until there is one.
    pub(crate) async fn letter<T: DeserializeOwned>(&self, subject: Arc<str>) -> Result<T, EffectError> {
        let asked = self.ask(&*subject)?;
        if let Some(recorded) = asked.recorded {
            return self.recall(recorded).await;
        }
        loop {
            let live = self.live().await;
            let busy = self.attempt.waits.busy();
            let read = async |letter: Letter| {
                let outcome = EffectOutcome::Ok { response: letter.payload };
                self.see(live, &asked, outcome.clone(), Some(letter.number));
                outcome
            };
            let taken = self.attempt.with_store(live.mailbox.take(&live.gate, &subject, read)).await;
            if let Some(outcome) = self.unless_halted(taken).await {
                return self.replay(outcome);
            }
            if !self.is_begun() && !canary::on("wait_unrecorded") {
                self.see_wait(live, asked.request);
            }
            drop(busy);
            self.attempt.waits.wait_for(Wait::Letter(subject.clone()), LOOK).await;
        }
    }

    /// Takes note that the item came as far as this wait, to be durable before the run is parked.
    fn see_wait(&self, live: &Live, request: Digest) {
        self.attempt.item.see([Entry::Awaits(Awaits {
            scope: self.scope.clone(),
            index: self.index,
            attempt: self.attempt.number,
            name: self.name.into(),
            request,
            at_us: live.now_us(),
        })]);
    }

    /// Bears an error of the store, or never returns: then the run stops.
    pub(crate) async fn bear(&self, live: &Live, error: StoreError) {
        let borne = live.gate.bear(error).await;
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
    pub(crate) async fn record(
        &self,
        live: &Live,
        entries: &[Entry],
        unless_cancelled: bool,
        without_waiting: bool,
    ) {
        self.unless_stopped(live).await;
        let durable = self.attempt.with_store(async {
            let alone = self.scope.is_empty() && !without_waiting;
            let pace = if alone { live.pace } else { Pace::Ahead };
            let mark = live.journal(&self.attempt.item, pace, entries, unless_cancelled).await?;
            if without_waiting { Ok(()) } else { live.gate.passed(mark).await }
        });
        if durable.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn unless_stopped(&self, live: &Live) {
        let dead = !self.attempt.alive.load(Ordering::Acquire);
        if dead || self.attempt.is_condemned() || live.gate.halt().is_some() {
            std::future::pending::<()>().await;
        }
    }
}
