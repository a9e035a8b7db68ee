//! Runs the items of a step: the only place where user code runs with a way to the outside.
//!
//! Invariant: items start in order-key order, at most `max_concurrent_nodes` at a time, and their results come out
//! in order-key order, whichever finished first. A panic is a node's error, never a dead engine.

use crate::{
    Ctx,
    drive::Claimed,
    effects::word,
    error::{NodeError, Result as NodeResult},
    gate::{Gate, Halt, budget_exceeded, lock},
    graph::Program,
    item::{Attempt, Item, Live},
    metrics::Queued,
    observe::Event,
    trail::{Open, end, within},
    wait::{Wait, parking},
    worker::Shared,
};
use futures::FutureExt;
use hapax_core::{
    canary,
    error::{Coded, code},
    failure::NodeFailure,
    frontier::WorkItem,
    id::NodeId,
    journal::{Done, EffectOutcome, Entry, ItemRecord, Recorded},
    json::Json,
    limits::MAX_WAIT,
    mailbox::{self, Letter},
    merge::ItemResult,
    outbox::Message,
    rng::Rng,
    route::{Outcome, SettledRoute},
    state::{Delta, State},
    trace::{SpanId, TraceId},
};
use hapax_store::Pace;
use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tracing::{Instrument, field::Empty};

/// A call asks for a pause at the most so long before its attempt fails.
const ASKED_BEFORE: Duration = Duration::from_secs(3600);

/// An item that is done, with everything that it recorded.
pub(crate) struct Finished<S: State> {
    pub(crate) item: WorkItem,
    pub(crate) result: ItemResult<S>,
    pub(crate) recorded: Recorded,
    /// What it saw and the journal doesn't have yet.
    pub(crate) tail: Vec<Entry>,
    /// What it sends.
    pub(crate) messages: Vec<Message>,
}

/// The end of an item that an earlier execution finished and journaled.
pub(crate) struct Journaled<S: State> {
    result: ItemResult<S>,
    messages: Vec<Message>,
}

impl<S: State> Journaled<S> {
    pub(crate) fn read(done: Done) -> Result<Self, serde_json::Error> {
        Ok(match done {
            Done::Failed { failure } => Self { result: ItemResult::Failed(failure), messages: vec![] },
            Done::Ok { delta, route, messages } => {
                Self { result: ItemResult::Done { delta: delta.read()?, route }, messages }
            }
        })
    }
}

/// How far an item came.
#[allow(clippy::large_enum_variant, reason = "most items finish: a box for each costs more than the room")]
enum Ended<S: State> {
    Finished(Finished<S>),
    /// It can only wait; what it saw is journaled.
    Parked(Vec<Wait>),
}

/// The items of a step, coming out in order.
pub(crate) struct Items<'r, S: State, A> {
    run: &'r mut Claimed<S, A>,
    several: bool,
    running: JoinSet<(usize, Result<Ended<S>, Halt>)>,
    per_node: HashMap<usize, usize>,
    nodes: HashMap<usize, usize>,
    waiting: Option<WorkItem>,
    done: BTreeMap<usize, Finished<S>>,
    parked: Vec<Wait>,
    started: usize,
    emitted: usize,
    queued: Queued,
}

impl<'r, S: State, A: Send + Sync + 'static> Items<'r, S, A> {
    pub(crate) fn new(run: &'r mut Claimed<S, A>) -> Self {
        let items = run.frontier.len();
        run.gate.trail().step_begins(run.step, items);
        Self {
            queued: run.shared.counters.queued(items),
            run,
            several: items > 1,
            running: JoinSet::new(),
            per_node: HashMap::new(),
            nodes: HashMap::new(),
            waiting: None,
            done: BTreeMap::new(),
            parked: vec![],
            started: 0,
            emitted: 0,
        }
    }

    /// The next item's result, in order-key order.
    pub(crate) async fn next(&mut self) -> Result<Option<Finished<S>>, Halt> {
        if !self.several {
            return self.only_one().await;
        }
        loop {
            if let Some(finished) = self.take_next() {
                return Ok(Some(finished));
            }
            self.start_more().await?;
            match self.running.join_next().await {
                None if self.parked.is_empty() => return Ok(None),
                None => return Err(parking(&self.parked)),
                Some(Ok((index, Ok(ended)))) => {
                    self.leave(index);
                    match ended {
                        Ended::Parked(waits) => self.parked.extend(waits),
                        Ended::Finished(finished) => drop(self.done.insert(index, finished)),
                    }
                    if !self.parked.is_empty() {
                        // The others run to their ends, which are journaled: nothing else is needed of them.
                        self.done.clear();
                    }
                }
                Some(Ok((_, Err(halt)))) => return Err(self.halted(halt).await),
                Some(Err(gone)) => std::panic::resume_unwind(gone.into_panic()),
            }
        }
    }

    /// The run stops. After a cancel the other items have their grace as well; else they are dropped at once.
    async fn halted(&mut self, halt: Halt) -> Halt {
        while matches!(halt, Halt::Cancelled) && self.running.join_next().await.is_some() {}
        halt
    }

    fn take_next(&mut self) -> Option<Finished<S>> {
        if canary::on("merge_order") {
            return self.done.pop_first().map(|(_, finished)| finished);
        }
        let finished = self.done.remove(&self.emitted)?;
        self.emitted += 1;
        Some(finished)
    }

    /// A step of one item runs in place and goes straight to its commit.
    async fn only_one(&mut self) -> Result<Option<Finished<S>>, Halt> {
        let Some(item) = self.pull().await? else { return Ok(None) };
        let work = self.work(item);
        match work.run(false).await? {
            Ended::Finished(finished) => Ok(Some(finished)),
            Ended::Parked(waits) => Err(parking(&waits)),
        }
    }

    async fn pull(&mut self) -> Result<Option<WorkItem>, Halt> {
        let Claimed { frontier, shared, key, gate, .. } = &mut *self.run;
        frontier.next(&shared.store, key, gate).await
    }

    /// Starts items in order while there is room. Results that wait for an earlier one count as room taken, so that
    /// a slow first item can't fill the memory.
    async fn start_more(&mut self) -> Result<(), Halt> {
        let (concurrent, depth) = {
            let options = &self.run.shared.options;
            (options.max_concurrent_nodes.max(1), options.queue_depth.max(1))
        };
        while self.running.len() < concurrent && self.done.len() < depth {
            let next = match self.waiting.take() {
                Some(item) => Some(item),
                None => self.pull().await?,
            };
            let Some(item) = next else { return Ok(()) };
            if !self.enter(&item) {
                self.waiting = Some(item);
                return Ok(());
            }
            let (index, work) = (self.started, self.work(item));
            self.started += 1;
            self.running.spawn(async move { (index, work.run(true).await) });
        }
        Ok(())
    }

    /// Counts an item in, unless its node is at its limit.
    fn enter(&mut self, item: &WorkItem) -> bool {
        let Some(node) = self.run.program.shape.position(item.node.as_str()) else { return true };
        let policy = self.run.program.nodes[node].policy.max_concurrency;
        let limit = policy.or(self.run.shared.options.max_per_node_concurrency).unwrap_or(usize::MAX);
        let running = self.per_node.entry(node).or_default();
        if *running >= limit.max(1) {
            return false;
        }
        *running += 1;
        self.nodes.insert(self.started, node);
        true
    }

    fn leave(&mut self, index: usize) {
        if let Some(running) = self.nodes.remove(&index).and_then(|node| self.per_node.get_mut(&node)) {
            *running -= 1;
        }
    }

    fn work(&mut self, item: WorkItem) -> Work<S, A> {
        self.queued.next();
        let run = &mut *self.run;
        let record = run.record.remove(&item.path_hash).unwrap_or_default();
        let journaled = run.journaled.remove(&item.path_hash);
        let shared_item = Arc::new(Item {
            run: run.key.clone(),
            step: run.step,
            base: run.digest,
            node: item.node.clone(),
            order_key: item.order_key,
            path_hash: item.path_hash,
            seed: run.seed,
            rules: run.program.rules(item.node.as_str()),
            tail: std::sync::Mutex::default(),
            recorded: std::sync::Mutex::new(record.recorded.clone()),
            live: Some(Live {
                epoch: run.epoch,
                pace: if run.frontier.len() == 1 { Pace::Alone } else { Pace::Ahead },
                gate: run.gate.clone(),
                shared: run.shared.clone(),
                mailbox: run.mailbox.clone(),
            }),
        });
        Work {
            program: run.program.clone(),
            app: run.app.clone(),
            shared: run.shared.clone(),
            state: run.state.clone(),
            run_deadline: run.deadline(),
            // Made here, inside the step's span: an item that runs in a task of its own still belongs to it.
            span: tracing::info_span!("node", node_id = %item.node, order_key = %item.order_key, attempt = Empty, span_id = Empty),
            work_item: item,
            item: shared_item,
            gate: run.gate.clone(),
            record,
            journaled,
            first: None,
        }
    }
}

/// What the attempts of an item led to.
enum Tried<S: State> {
    Returned(Outcome<S>, Vec<Message>),
    Failed(NodeFailure),
    Parked(Vec<Wait>),
}

/// One item and all that it needs to run.
struct Work<S: State, A> {
    program: Arc<Program<S, A>>,
    app: Arc<A>,
    shared: Arc<Shared>,
    state: Arc<S>,
    run_deadline: Instant,
    span: tracing::Span,
    work_item: WorkItem,
    item: Arc<Item>,
    gate: Arc<Gate>,
    record: ItemRecord,
    /// Its end, if it needn't run any more.
    journaled: Option<Journaled<S>>,
    /// The number of its first attempt here.
    first: Option<u32>,
}

impl<S: State, A: Send + Sync + 'static> Work<S, A> {
    /// Runs the item to its end: recorded, succeeded, or out of attempts. With `journaled`, its end is journaled,
    /// so that a crash doesn't run it again; nobody waits for the disk.
    async fn run(mut self, journaled: bool) -> Result<Ended<S>, Halt> {
        if let Some(Journaled { result, messages }) = self.journaled.take() {
            return Ok(Ended::Finished(self.conclude(result, messages)));
        }
        let span = self.span.clone();
        let (result, done, messages) = match self.attempts().instrument(span).await? {
            Tried::Returned(outcome, messages) => match returned(outcome) {
                Ok(Returned { delta, json, route }) => {
                    let done = Done::Ok { delta: json, route: route.clone(), messages: messages.clone() };
                    (ItemResult::Done { delta, route }, done, messages)
                }
                Err(error) => given_up(self.failure(&error, self.record.failed + 1)),
            },
            Tried::Failed(failure) => given_up(failure),
            Tried::Parked(waits) => {
                self.journal(&[]).await?;
                return Ok(Ended::Parked(waits));
            }
        };
        if journaled {
            self.journal(&[Entry::ItemDone { done }]).await?;
        } else if !canary::on("ends_beside") {
            // A transaction of which the node didn't wait for the end may be about to record it.
            drop(self.gate.turn().await?);
        }
        Ok(Ended::Finished(self.conclude(result, messages)))
    }

    fn conclude(self, result: ItemResult<S>, messages: Vec<Message>) -> Finished<S> {
        let error = match &result {
            ItemResult::Failed(failure) => Some(failure.message.clone()),
            ItemResult::Done { .. } => None,
        };
        let item = &self.item;
        self.shared.observer.emit(|| Event::ItemFinished {
            run: item.run.clone(),
            step: item.step,
            node: item.node.clone(),
            path_hash: item.path_hash,
            error,
        });
        let recorded = std::mem::take(&mut *lock(&self.item.recorded));
        let tail = std::mem::take(&mut *lock(&self.item.tail));
        Finished { item: self.work_item, result, recorded, tail, messages }
    }

    fn failure(&self, error: &NodeError, attempt: u32) -> NodeFailure {
        failure_of(&self.item.node, error, attempt)
    }

    /// Attempts until one succeeds or none is left.
    async fn attempts(&mut self) -> Result<Tried<S>, Halt> {
        let Some(node) = self.program.shape.position(self.item.node.as_str()) else {
            let message = format!("`{}` is not a node of this graph", self.item.node);
            let error = NodeError::coded(code::UNKNOWN_TARGET, message, false);
            return Ok(Tried::Failed(self.failure(&error, 1)));
        };
        let retry = self.program.nodes[node]
            .policy
            .retry
            .clone()
            .unwrap_or_else(|| self.shared.options.retry.clone());
        if let Some(failure) = self.record.last_failure.take()
            && !retry.allows(self.record.failed_since_retry, &NodeError::stored(&failure))
            && !self.record.told
            && let Some(tried) = self.out_of_attempts(failure).await?
        {
            // A crash came between the last attempt and the end of the run, or a person's word is still missing.
            return Ok(tried);
        }
        if let Some(parked) = self.rest(Duration::ZERO, self.record.not_before_us).await? {
            return Ok(parked);
        }
        loop {
            let number = self.record.failed + 1;
            self.first.get_or_insert(number);
            let error = match self.attempt(node, number).await? {
                Ok(tried) => return Ok(tried),
                Err(error) => error,
            };
            if error.code() == code::REPLAY_MISMATCH {
                self.shared.counters.replay_mismatches.one_more();
            }
            self.record.failed += 1;
            self.record.failed_since_retry += 1;
            let item = &self.item;
            let mut jitter = Rng::for_jitter(item.seed, item.step, item.path_hash, number);
            let pause = retry.pause(self.record.failed_since_retry, &mut jitter);
            let error = self.unless_for_ever(error, pause);
            let failure = self.failure(&error, number);
            let not_before_us = self.not_before_us(&error, pause);
            let entry = Entry::AttemptFailed { failure: failure.clone(), not_before_us };
            self.journal(&[entry]).await?;
            if !retry.allows(self.record.failed_since_retry, &error)
                && let Some(tried) = self.out_of_attempts(failure.clone()).await?
            {
                return Ok(tried);
            }
            self.retrying(&failure);
            if let Some(parked) = self.rest(pause, not_before_us).await? {
                return Ok(parked);
            }
        }
    }

    /// What becomes of an item that failed for the last time. A call that was cut off and must not be sent twice leaves
    /// a doubt: a person's word is waited for, and `None`, one more attempt, sees it.
    async fn out_of_attempts(&self, failure: NodeFailure) -> Result<Option<Tried<S>>, Halt> {
        let Some(live) = &self.item.live else { return Ok(Some(Tried::Failed(failure))) };
        let doubts: Vec<_> = {
            let recorded = lock(&self.item.recorded);
            recorded.doubts().map(|(place, call)| (place.clone(), call.key.clone())).collect()
        };
        let (mut told, mut waits) = (false, vec![]);
        for (place, key) in doubts {
            let subject = mailbox::resolution(&key);
            let hear = async |letter: Letter| self.told(live, &place, &letter).await;
            match live.mailbox.take(&live.gate, &subject, hear).await? {
                Some(heard) => told = heard.map(|()| true)?,
                None => waits.push(Wait::Word(subject)),
            }
        }
        Ok(match (waits.is_empty(), told) {
            (false, _) => Some(Tried::Parked(waits)),
            (true, false) => Some(Tried::Failed(failure)),
            (true, true) => None,
        })
    }

    /// Records a person's word on a call. The next attempt sees how it ended, or makes it again.
    async fn told(&self, live: &Live, (scope, index): &(Arc<str>, u32), letter: &Letter) -> Result<(), Halt> {
        let unsent = || EffectOutcome::Err {
            code: code::EFFECT_FAILED.into(),
            message: "it was not sent, by a person's word".into(),
            retryable: true,
            unsent: true,
            not_before_us: None,
        };
        let (outcome, attempt) = match word(letter) {
            Some(outcome) => (outcome, self.record.failed + 1),
            None => (unsent(), self.record.failed),
        };
        let (scope, index, at_us) = (scope.clone(), *index, live.now_us());
        let entries =
            [Entry::Took { letter: letter.number }, Entry::Result { scope, index, attempt, outcome, at_us }];
        self.journal(&entries).await
    }

    /// The error; one that would be waited for longer than anything is waited for is the last.
    fn unless_for_ever(&self, error: NodeError, pause: Duration) -> NodeError {
        let now_us = self.shared.clock.now_us();
        // What a call asked for a moment ago counts from then.
        let latest_us = crate::clock::later(now_us, MAX_WAIT - ASKED_BEFORE);
        let asked = error.not_before_us(now_us).is_some_and(|at_us| at_us >= latest_us);
        if !asked && pause <= MAX_WAIT {
            return error;
        }
        let why = format!("{error}; the next attempt would come after more than a century");
        NodeError::coded(code::BAD_DURATION, why, false)
    }

    /// When the next attempt may begin, where the failure asks for a time. A clock that stands still is moved on only to
    /// what the store knows of, so the policy's pause is recorded too.
    fn not_before_us(&self, error: &NodeError, pause: Duration) -> Option<i64> {
        let clock = &self.shared.clock;
        let asked = error.not_before_us(clock.now_us());
        let paused = clock.is_manual() && !pause.is_zero();
        asked.max(paused.then(|| crate::clock::later(clock.now_us(), pause)))
    }

    async fn journal(&self, entries: &[Entry]) -> Result<(), Halt> {
        match &self.item.live {
            Some(live) => live.journal(&self.item, Pace::Ahead, entries, false).await.map(drop),
            None => Ok(()),
        }
    }

    fn retrying(&self, failure: &NodeFailure) {
        let item = &self.item;
        tracing::warn!(run_id = %item.run, step_id = item.step, node_id = %item.node, attempt = failure.attempt, code = %failure.code, "attempt failed; another follows");
        if canary::on("secret_in_log") {
            tracing::warn!(error = failure.message, "why it failed");
        }
        if let Some(graph) = self.gate.trail().of_graph() {
            graph.retried(item.node.as_str());
        }
        self.shared.observer.emit(|| Event::Retrying {
            run: item.run.clone(),
            step: item.step,
            node: item.node.clone(),
            attempt: failure.attempt,
            error: failure.message.clone(),
        });
    }

    /// Waits between two attempts: for the policy's pause, or longer where the failure asked for it. A long wait that
    /// was asked for parks the run: the journal has it, so it costs nothing and outlives a crash.
    async fn rest(&self, pause: Duration, not_before_us: Option<i64>) -> Result<Option<Tried<S>>, Halt> {
        if let Some(live) = &self.item.live
            && let Some(asked) = not_before_us.map(|at_us| live.left_until(at_us))
        {
            let rest = pause.max(asked);
            if live.parks_for(asked) {
                let at_us = crate::clock::later(live.now_us(), rest);
                return Ok(Some(Tried::Parked(vec![Wait::Until(at_us)])));
            }
            self.pause(rest).await?;
        } else {
            self.pause(pause).await?;
        }
        Ok(None)
    }

    /// Sleeps between two attempts; a cancel or the end of the budget wakes it.
    async fn pause(&self, pause: Duration) -> Result<(), Halt> {
        if pause.is_zero() {
            // A timer would wait for the clock's next tick.
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = self.gate.halted().cancelled() => Err(self.halt()),
            () = tokio::time::sleep_until(self.run_deadline.into()) => Err(self.out_of_budget()),
        }
    }

    fn halt(&self) -> Halt {
        self.gate.halt().unwrap_or(Halt::Drained)
    }

    fn out_of_budget(&self) -> Halt {
        self.gate.shut(budget_exceeded(self.shared.options.run_budget, self.item.step))
    }

    /// One attempt, within its time, until a cancel's grace is over.
    async fn attempt(&self, node: usize, number: u32) -> Result<NodeResult<Tried<S>>, Halt> {
        let code = &self.program.nodes[node];
        let timeout = code.policy.timeout.unwrap_or(self.shared.options.node_timeout);
        let now = crate::clock::instant();
        let own = now.checked_add(timeout).unwrap_or(self.run_deadline);
        let open = self.started(number);
        let traced = open.as_ref().map(|open| open.traced().clone());
        let attempt = Attempt::new(self.item.clone(), number, own.min(self.run_deadline), traced);
        attempt.supersede_streams();
        let _in_flight = self.shared.counters.in_flight();
        let ctx = Ctx::new(self.state.clone(), self.app.clone(), attempt.clone());
        let input = self.work_item.input.clone();
        let body = AssertUnwindSafe(async { (code.run)(ctx, input).await }).catch_unwind();
        let body = within(attempt.traced.as_ref(), body);
        let outcome = tokio::select! {
            biased;
            outcome = body => outcome.unwrap_or_else(|panic| Err(panicked(&*panic))),
            error = attempt.condemned() => Err(error),
            waits = attempt.waits.parked() => {
                attempt.alive.store(false, Ordering::Release);
                open.into_iter().for_each(Open::parked);
                return Ok(Ok(Tried::Parked(waits)));
            }
            () = self.past_grace() => return Err(self.halt()),
            () = tokio::time::sleep_until(self.run_deadline.into()) => return Err(self.out_of_budget()),
            () = attempt.out_of_time() => {
                Err(NodeError::coded(code::NODE_TIMEOUT, format!("took longer than {timeout:?}"), true))
            }
        };
        let verdict = attempt.end(outcome.is_ok());
        if self.gate.halt().is_some() {
            return Err(self.halt());
        }
        let outcome = verdict.and(outcome);
        end(open, &outcome, |error| error.code().to_owned());
        let drawn = attempt.draws().into_iter().map(Entry::Drew);
        Ok(outcome.map(|outcome| {
            self.item.see(drawn);
            Tried::Returned(outcome, attempt.outgoing.take())
        }))
    }

    fn started(&self, attempt: u32) -> Option<Open> {
        let item = &self.item;
        if !self.span.is_disabled()
            && let Some(live) = &item.live
        {
            let claim = live.epoch.counter;
            let id = SpanId::of_attempt(TraceId::of(&item.run), item.step, item.path_hash, claim, attempt);
            self.span.record("attempt", attempt).record("span_id", tracing::field::display(id));
        }
        self.shared.observer.emit(|| Event::ItemStarted {
            run: item.run.clone(),
            step: item.step,
            node: item.node.clone(),
            path_hash: item.path_hash,
            attempt,
        });
        self.gate.trail().attempt(item, attempt, self.first == Some(attempt))
    }

    /// Resolves when a node must be dropped: at once when the run is somebody else's, after a grace when it was
    /// cancelled.
    async fn past_grace(&self) {
        self.gate.halted().cancelled().await;
        if matches!(self.gate.halt(), Some(Halt::Cancelled)) {
            tokio::time::sleep(self.shared.options.cancel_grace).await;
        }
    }
}

/// What a node returned, as the journal keeps it and as it reads back: the merge sees the same with and without a crash.
pub(crate) struct Returned<S: State> {
    pub(crate) delta: S::Delta,
    pub(crate) json: Json,
    pub(crate) route: SettledRoute,
}

/// Checks and writes what a node returned; afterwards only an unknown node can be wrong with its route.
pub(crate) fn returned<S: State>(outcome: Outcome<S>) -> Result<Returned<S>, NodeError> {
    let route = outcome.route.settle().map_err(|e| NodeError::coded(e.code(), e.to_string(), false))?;
    let (delta, json) = written(&outcome.delta)?;
    Ok(Returned { delta, json, route })
}

/// An error as it is recorded.
pub(crate) fn failure_of(node: &NodeId, error: &NodeError, attempt: u32) -> NodeFailure {
    NodeFailure {
        node: node.clone(),
        code: error.code().into(),
        message: error.text(),
        retryable: error.is_retryable(),
        attempt,
    }
}

fn given_up<S: State>(failure: NodeFailure) -> (ItemResult<S>, Done, Vec<Message>) {
    (ItemResult::Failed(failure.clone()), Done::Failed { failure }, vec![])
}

/// A delta as JSON, and as it reads back.
fn written<D: Delta>(delta: &D) -> Result<(D, Json), NodeError> {
    let json = Json::of(delta).map_err(|e| {
        NodeError::coded(e.code(), format!("the delta cannot be written as JSON: {e}"), false)
    })?;
    let read = json.read().map_err(|e| {
        NodeError::coded(code::STATE_SHAPE, format!("the delta does not read back from JSON: {e}"), false)
    })?;
    Ok((read, json))
}

/// A panic as an error with its message.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> NodeError {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text =
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
    NodeError::coded(code::NODE_PANICKED, format!("panicked: {text}"), true)
}
