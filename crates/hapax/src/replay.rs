//! Replay: a run again, from its record, without touching the outside.
//!
//! Invariant: a replayed item has no way to the outside, so whatever its code asks for is answered by the record or not
//! at all. Each step begins with what is stored, never with what the replay made of the one before.

mod compare;

use crate::{
    Ctx, Engine, Options,
    error::{Error, NodeError},
    graph::{NodeCode, Program},
    item::{Attempt, Difference, Item},
    run_items::{Returned, failure_of, panicked, returned},
    secrets::Secrets,
    wait::Wait,
};
use compare::{delta_differs, differ, frontier, routes_differ, states_differ};
use futures::FutureExt;
use hapax_core::{
    canonical,
    checkpoint::{Checkpoint, Draft, IoDigest, outbox_digest},
    error::code,
    failure::NodeFailure,
    frontier::WorkItem,
    id::{NodeId, RunKey},
    journal::{Done, Drew, Entry, ItemRecord, JournalRow, by_item},
    json::Json,
    key::Digest,
    limits::FRONTIER_PAGE,
    merge::{ItemResult, Merger},
    order::PathHash,
    outbox::Message,
    state::{self, State},
};
use hapax_store::{ListFilter, RunRecord, Store, StoreError};
use serde::Serialize;
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

/// How many checkpoints and rows are read at a time.
const READ_AHEAD: usize = 256;

/// What a replay found.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// # let engine = Engine::open("memory:").await?;
/// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, write);
/// let drafts = engine.register(graph, ()).await?;
/// drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// let replay = engine.replay("draft-1").await?;
/// assert_eq!((replay.steps, replay.divergence), (1, None));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Replay {
    /// The run.
    pub run: RunKey,
    /// Its graph.
    pub graph: Arc<str>,
    /// How many committed steps were made again, and came out the same.
    pub steps: u64,
    /// How many items were executed again.
    pub items: u64,
    /// How many recorded calls they asked for.
    pub calls: u64,
    /// Where code and record part first, if they do.
    pub divergence: Option<Divergence>,
}

/// Where code and record part.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// # async fn rewritten(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("twice") }
/// # let engine = Engine::open("memory:").await?;
/// # let drafts = engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// # drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// // The node says something else now, and the graph's version doesn't tell.
/// engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, rewritten), ()).await?;
/// let found = engine.replay("draft-1").await?.divergence.expect("the node was changed");
/// assert_eq!((found.step, found.field.as_str()), (0, "state/text"));
/// assert_eq!((found.expected.as_str(), found.got.as_str()), (r#""once""#, r#""twice""#));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Divergence {
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The node; `None`: the merge of several.
    pub node: Option<NodeId>,
    /// The call: its lane and number, and its name.
    pub call: Option<String>,
    /// What differs: `name`, `request`, `key` or `call` of a call; `draws`, `delta/…`, `route`, `outcome` of an item;
    /// `state/…`, `frontier`, `barriers`, `messages` or `digest` of a step; `graph` of the run.
    pub field: String,
    /// What is recorded.
    pub expected: String,
    /// What the code does now.
    pub got: String,
}

impl Engine {
    /// Makes a run again from its record and compares: every call that it asks for, every draw, delta, route and merge,
    /// every key and digest, step by step up to where the run stands. Nothing outside is called, and nothing is written.
    ///
    /// The code is that of the graph registered here under the run's own shape, or one that was declared compatible.
    pub async fn replay(&self, run: &str) -> Result<Replay, Error> {
        self.replay_run(&self.key(run)?).await
    }

    /// Replays all runs [in flight](ListFilter::in_flight): whether this code can go on with them. A run whose graph isn't registered here,
    /// or only in a shape that isn't compatible, diverges.
    pub async fn replay_in_flight(&self) -> Result<Vec<Replay>, Error> {
        let mut replays = vec![];
        for record in self.list(ListFilter::in_flight()).await? {
            replays.push(self.replay_run(&record.key).await?);
        }
        Ok(replays)
    }

    async fn replay_run(&self, run: &RunKey) -> Result<Replay, Error> {
        loop {
            let began = self.first_step(run).await?;
            let RunRecord { key, graph, fingerprint, step, .. } = self.record(run.run.as_str()).await?;
            let source = Source::Store(self.shared.store.clone());
            let replay = self.replay_from(source, key, graph, fingerprint, step).await;
            let is_same = replay.as_ref().is_ok_and(|replay| replay.divergence.is_none());
            // A run that began anew meanwhile has forgotten what is missing: it has another history now.
            if is_same || self.first_step(run).await? == began {
                return replay;
            }
        }
    }

    /// The step that a run's history begins with.
    async fn first_step(&self, run: &RunKey) -> Result<Option<u64>, Error> {
        let first = self.shared.store.checkpoints(run.clone(), 0, 1).await?;
        Ok(first.first().map(|checkpoint| checkpoint.step))
    }

    /// Replays what a source has of a run.
    pub(crate) async fn replay_from(
        &self,
        source: Source,
        run: RunKey,
        graph: Arc<str>,
        shape: Digest,
        step: u64,
    ) -> Result<Replay, Error> {
        let code = self.shared.flow(&graph, shape);
        let mut replay = Replay { run, graph, steps: 0, items: 0, calls: 0, divergence: None };
        let ours = match &code {
            None => "no graph of that name".to_owned(),
            Some(code) => code.outline().fingerprint.to_string(),
        };
        match code.filter(|code| code.fingerprints().contains(&shape)) {
            Some(code) => {
                let secrets = Secrets::of(&self.graphs(), &replay.graph, shape);
                code.replay(source, &self.shared.options, &secrets, &mut replay).await?;
            }
            None => {
                let (field, expected) = ("graph".into(), format!("{} {shape}", replay.graph));
                replay.divergence =
                    Some(Divergence { step, node: None, call: None, field, expected, got: ours });
            }
        }
        Ok(replay)
    }
}

impl Replay {
    /// Asks for a run that its code still makes as it was.
    ///
    /// # Panics
    ///
    /// When they part: the message tells where.
    #[track_caller]
    pub fn expect_same(&self) {
        if let Some(found) = &self.divergence {
            panic!("run `{}` is not made again as it was: {found}", self.run);
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, node, call, field, expected, got } = self;
        write!(f, "step {step}")?;
        if let Some(node) = node {
            write!(f, ", `{node}`")?;
        }
        if let Some(call) = call {
            write!(f, ", call {call}")?;
        }
        write!(f, ": {field}: expected {expected}, got {got}")
    }
}

/// Where a run's record is.
pub(crate) enum Source {
    Store(Arc<dyn Store>),
    Recorded { checkpoints: Vec<Checkpoint>, journal: Vec<JournalRow> },
}

impl Source {
    async fn checkpoints(&self, run: &RunKey, from: u64) -> Result<Vec<Checkpoint>, StoreError> {
        match self {
            Source::Store(store) => store.checkpoints(run.clone(), from, READ_AHEAD).await,
            Source::Recorded { checkpoints, .. } => {
                Ok(checkpoints.iter().filter(|it| it.step >= from).take(READ_AHEAD).cloned().collect())
            }
        }
    }

    async fn journal(&self, run: &RunKey, from: u64) -> Result<Vec<JournalRow>, StoreError> {
        match self {
            Source::Store(store) => store.journal(run.clone(), from, READ_AHEAD).await,
            Source::Recorded { journal, .. } => {
                Ok(journal.iter().filter(|row| row.seq >= from).take(READ_AHEAD).cloned().collect())
            }
        }
    }

    /// A page of a frontier of which the first one is at hand.
    async fn page(&self, run: &RunKey, at: &Checkpoint, page: usize) -> Result<Vec<WorkItem>, StoreError> {
        match self {
            Source::Store(store) => store.frontier_page(run.clone(), at.step, page as u32).await,
            // The whole frontier is at hand.
            Source::Recorded { .. } => Ok(at.frontier.iter().skip(FRONTIER_PAGE).cloned().collect()),
        }
    }
}

/// Replays one run with its code.
pub(crate) async fn replay<S: State, A: Send + Sync + 'static>(
    program: &Program<S, A>,
    app: Arc<A>,
    source: Source,
    options: &Options,
    secrets: &Secrets,
    replay: &mut Replay,
) -> Result<(), Error> {
    let (source, run) = (Arc::new(source), replay.run.clone());
    let mut history = History::new(source.clone(), run.clone());
    let mut current = history.next().await?;
    while let Some(checkpoint) = current {
        // A run may go on meanwhile. What a commit rests on is there before it: rows that are read after it are whole.
        let next = history.next().await?;
        let rows = history.rows_of(checkpoint.step).await?;
        let records = by_item(checkpoint.digest, rows);
        let step =
            Step { program, app: &app, source: &source, options, secrets, run: &run, checkpoint, replay };
        if let Err(stop) = step.replay(records, next.as_ref()).await {
            return match stop {
                Stop::Differs(divergence) => {
                    replay.divergence = Some(*divergence);
                    Ok(())
                }
                Stop::Store(error) => Err(error.into()),
            };
        }
        replay.steps += u64::from(next.is_some());
        current = next;
    }
    Ok(())
}

/// The checkpoints and the journal of a run, read ahead.
pub(crate) struct History {
    source: Arc<Source>,
    run: RunKey,
    next_step: u64,
    checkpoints: VecDeque<Checkpoint>,
    next_seq: u64,
    rows: VecDeque<JournalRow>,
    /// All rows of the steps before this one were there when the journal was last read to its end.
    complete_below: u64,
}

impl History {
    pub(crate) fn new(source: Arc<Source>, run: RunKey) -> Self {
        let (checkpoints, rows) = (VecDeque::new(), VecDeque::new());
        Self { source, run, next_step: 0, checkpoints, next_seq: 0, rows, complete_below: 0 }
    }

    /// The next checkpoint that is kept.
    pub(crate) async fn next(&mut self) -> Result<Option<Checkpoint>, StoreError> {
        if self.checkpoints.is_empty() {
            self.checkpoints = self.source.checkpoints(&self.run, self.next_step).await?.into();
        }
        let next = self.checkpoints.pop_front();
        self.next_step = next.as_ref().map_or(self.next_step, |checkpoint| checkpoint.step + 1);
        Ok(next)
    }

    /// The rows of one step, without chunks; those before it are skipped.
    pub(crate) async fn rows_of(&mut self, step: u64) -> Result<Vec<JournalRow>, StoreError> {
        let mut rows = vec![];
        loop {
            match self.rows.pop_front() {
                Some(row) if row.step < step || matches!(row.entry, Entry::Chunk(_)) => {}
                Some(row) if row.step == step => rows.push(row),
                Some(later) => {
                    self.rows.push_front(later);
                    return Ok(rows);
                }
                None if step < self.complete_below => return Ok(rows),
                None => {
                    // A step that is committed has all of its rows, and its checkpoint was read before them.
                    let last = self.checkpoints.back().map(|checkpoint| checkpoint.step);
                    let known = last.unwrap_or_else(|| self.next_step.saturating_sub(1));
                    self.rows = self.source.journal(&self.run, self.next_seq).await?.into();
                    let Some(last) = self.rows.back() else {
                        self.complete_below = known;
                        return Ok(rows);
                    };
                    self.next_seq = last.seq + 1;
                }
            }
        }
    }
}

/// Why a replay goes no further.
enum Stop {
    Differs(Box<Divergence>),
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// One step to be made again.
struct Step<'r, S: State, A> {
    program: &'r Program<S, A>,
    app: &'r Arc<A>,
    source: &'r Source,
    options: &'r Options,
    /// What its values are compared without, whichever form of its graph makes it again.
    secrets: &'r Secrets,
    run: &'r RunKey,
    checkpoint: Checkpoint,
    replay: &'r mut Replay,
}

/// How an item ended, as far as the record tells.
enum Past {
    /// It returned; what, where that is recorded.
    Returned(Option<Done>),
    Failed(NodeFailure),
    /// Its end isn't recorded.
    Open,
}

/// How an item ends now.
enum Present<S: State> {
    Returned(Box<Returned<S>>, Vec<Message>),
    Failed(NodeError),
    /// It asks for something that isn't recorded.
    Beyond(String),
}

impl<S: State, A: Send + Sync + 'static> Step<'_, S, A> {
    /// Executes the step's items from their records. Where the step is committed, all of them end, and their merge is
    /// what is stored; else each comes as far as its record.
    async fn replay(
        mut self,
        mut records: HashMap<PathHash, ItemRecord>,
        next: Option<&Checkpoint>,
    ) -> Result<(), Stop> {
        let (step, items) = (self.checkpoint.step, self.checkpoint.frontier_len);
        let state = self.state()?;
        let program = self.program;
        let barriers = self.checkpoint.barriers.clone();
        let merged_into = S::clone(&state);
        let policy = self.options.conflict_policy;
        let mut merger = Merger::new(&program.shape, step, merged_into, barriers, policy, items);
        let (mut io, mut messages) = (IoDigest::default(), vec![]);
        let (mut failure, mut only) = (None, None);
        for index in 0..items {
            let item = self.item(index).await?;
            let record = records.remove(&item.path_hash).unwrap_or_default();
            let past = past(&program.shape, &item, &record, next);
            io.item(item.path_hash, &record.recorded);
            if let Some((result, sent)) = self.again(&item, &state, record, past).await?
                && failure.is_none()
            {
                failure = merger.push(&item, result).err();
                messages.extend(sent);
            }
            only = (items == 1).then_some(item.node);
        }
        let Some(next) = next else { return Ok(()) };
        let merged = failure.map_or_else(|| merger.finish(), Err).map_err(|error| {
            self.differs(only.clone(), differ("merge", "a step that was committed", error))
        })?;
        let json = canonical::to_vec(&merged.state)
            .map_err(|error| self.differs(only.clone(), differ("state", "JSON", error)))?;
        let draft = Draft {
            step: step + 1,
            state: json.into(),
            state_version: S::VERSION,
            frontier: merged.frontier,
            barriers: merged.barriers,
            seed: self.checkpoint.seed,
            io: io.finish(),
            outbox: outbox_digest(&messages),
            label: None,
        };
        self.same(only, next, &draft.seal(&self.run.run))
    }

    fn state(&self) -> Result<Arc<S>, Stop> {
        let Checkpoint { state, state_version, .. } = &self.checkpoint;
        let decoded = state::decode::<S>(state, *state_version);
        decoded
            .map(Arc::new)
            .map_err(|error| self.differs(None, differ("state", format!("version {state_version}"), error)))
    }

    /// One item of the frontier, of which only the first page is at hand.
    async fn item(&mut self, index: usize) -> Result<WorkItem, Stop> {
        let (page, at) = (index / FRONTIER_PAGE, index % FRONTIER_PAGE);
        if page > 0 && at == 0 {
            self.checkpoint.frontier = self.source.page(self.run, &self.checkpoint, page).await?;
        }
        let item = self.checkpoint.frontier.get(at).cloned();
        item.ok_or_else(|| {
            let (run, step) = (self.run.clone(), Some(self.checkpoint.step));
            Stop::Store(StoreError::Corrupt { run, step, what: format!("item {index} is missing") })
        })
    }

    fn differs(&self, node: Option<NodeId>, difference: Difference) -> Stop {
        let Difference { call, field, expected, got } = difference;
        let step = self.checkpoint.step;
        Stop::Differs(Box::new(Divergence { step, node, call, field, expected, got }))
    }

    /// Executes an item again and compares it with its record. `None`: the record doesn't tell how it ended.
    async fn again(
        &mut self,
        item: &WorkItem,
        state: &Arc<S>,
        record: ItemRecord,
        past: Past,
    ) -> Result<Option<(ItemResult<S>, Vec<Message>)>, Stop> {
        let program = self.program;
        let node = program.shape.position(item.node.as_str()).map(|at| &program.nodes[at]);
        let node = node.ok_or_else(|| {
            self.differs(Some(item.node.clone()), differ("node", item.node.as_str(), "no such node"))
        })?;
        if matches!(past, Past::Open) && record.recorded.calls().next().is_none() {
            // There is nothing to compare with, and what it does now may take its time.
            return Ok(None);
        }
        self.replay.items += 1;
        self.replay.calls += record.recorded.calls().count() as u64;
        if let Past::Failed(failure) = &past
            && failure.code == code::NODE_TIMEOUT
        {
            // Time isn't recorded: that it was up is.
            return Ok(Some((ItemResult::Failed(failure.clone()), vec![])));
        }
        let differs = |difference| self.differs(Some(item.node.clone()), difference);
        let recorded = record.recorded.draws().clone();
        let (present, drawn) = self.execute(node, item, state, record, &past).await?;
        match (past, present) {
            (Past::Open, _) => Ok(None),
            (Past::Returned(done), Present::Returned(now, messages)) => {
                let drawn = drawn.into_iter().map(|drew| (drew.scope, drew.draws)).collect();
                if recorded != drawn {
                    return Err(differs(differ("draws", words(&recorded), words(&drawn))));
                }
                if let Some(Done::Ok { delta, route, messages: sent }) = done {
                    delta_differs(self.secrets, delta.as_str(), now.json.as_str())
                        .map_or(Ok(()), Err)
                        .map_err(differs)?;
                    if route != now.route {
                        return Err(differs(routes_differ(self.secrets, route, now.route)));
                    }
                    if sent != messages {
                        return Err(differs(differ("messages", json(&sent), json(&messages))));
                    }
                }
                Ok(Some((ItemResult::Done { delta: now.delta, route: now.route }, messages)))
            }
            (Past::Failed(failure), Present::Failed(error)) => {
                let now = failure_of(&item.node, &error, failure.attempt);
                if now == failure {
                    return Ok(Some((ItemResult::Failed(failure), vec![])));
                }
                Err(differs(differ("outcome", told(&failure), told(&now))))
            }
            (Past::Returned(_), Present::Failed(error)) => {
                Err(differs(differ("outcome", "it returned", error.text())))
            }
            (Past::Failed(failure), Present::Returned(..)) => {
                Err(differs(differ("outcome", told(&failure), "it returned")))
            }
            (_, Present::Beyond(call)) => Err(differs(Difference {
                call: Some(call),
                ..differ("call", "no such call", "a call that is not recorded")
            })),
        }
    }

    /// Runs the node's code until it ends or asks for something that isn't recorded. An error: it isn't what its record
    /// says.
    async fn execute(
        &self,
        code: &NodeCode<S, A>,
        item: &WorkItem,
        state: &Arc<S>,
        record: ItemRecord,
        past: &Past,
    ) -> Result<(Present<S>, Vec<Drew>), Stop> {
        let differs = |difference| self.differs(Some(item.node.clone()), difference);
        let number = match past {
            Past::Failed(failure) => failure.attempt,
            _ => record.failed + 1,
        };
        let timeout = code.policy.timeout.unwrap_or(self.options.node_timeout);
        let now = crate::clock::instant();
        let deadline = now.checked_add(timeout).unwrap_or(now);
        let shared_item = Arc::new(Item {
            run: self.run.clone(),
            step: self.checkpoint.step,
            base: self.checkpoint.digest,
            node: item.node.clone(),
            order_key: item.order_key,
            path_hash: item.path_hash,
            seed: self.checkpoint.seed,
            rules: code.policy.calls.clone(),
            recorded: Mutex::new(record.recorded),
            tail: Mutex::default(),
            live: None,
        });
        let attempt = Attempt::new(shared_item, number, deadline, None);
        let ctx = Ctx::new(state.clone(), self.app.clone(), attempt.clone());
        let body = AssertUnwindSafe(async { (code.run)(ctx, item.input.clone()).await }).catch_unwind();
        let (mut body, mut is_patient) = (std::pin::pin!(body), false);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut body => break outcome.unwrap_or_else(|panic| Err(panicked(&*panic))),
                error = attempt.condemned() => break Err(error),
                waits = attempt.waits.parked(), if !is_patient => {
                    let lost = |wait: &Wait| matches!(wait, Wait::Unanswered(_));
                    if !matches!(past, Past::Open) && waits.iter().all(lost) && self.is_kept().await? {
                        // The call never came back then either: what it lost against happens again.
                        is_patient = true;
                        continue;
                    }
                    return Ok((Present::Beyond(beyond(waits)), vec![]));
                }
                () = tokio::time::sleep_until(deadline.into()) => {
                    if matches!(past, Past::Open) {
                        // It has no end in its record either.
                        return Ok((Present::Beyond(String::new()), vec![]));
                    }
                    return Err(differs(differ("outcome", "an end", format!("none after {timeout:?}"))));
                }
            }
        };
        let verdict = attempt.end(outcome.is_ok());
        if let Some(call) = attempt.beyond() {
            return Ok((Present::Beyond(call), vec![]));
        }
        if let Some(difference) = attempt.difference() {
            return Err(differs(difference));
        }
        let present = match verdict.and(outcome).and_then(returned) {
            Ok(now) => Present::Returned(Box::new(now), attempt.outgoing.take()),
            Err(error) => Present::Failed(error),
        };
        Ok((present, attempt.draws()))
    }

    /// Whether the run still has this step: one that began anew meanwhile has forgotten its rows as well.
    async fn is_kept(&self) -> Result<bool, StoreError> {
        let (step, digest) = (self.checkpoint.step, self.checkpoint.digest);
        let kept = self.source.checkpoints(self.run, step).await?;
        Ok(kept.first().is_some_and(|kept| (kept.step, kept.digest) == (step, digest)))
    }

    /// Compares what the step leads to now with what is stored.
    fn same(&self, node: Option<NodeId>, stored: &Checkpoint, now: &Checkpoint) -> Result<(), Stop> {
        if stored.digest == now.digest && stored.step == now.step {
            return Ok(());
        }
        let difference = if stored.step != now.step {
            differ("step", stored.step, now.step)
        } else if let Some(difference) = states_differ(self.secrets, stored, now) {
            difference
        } else if stored.pages != now.pages {
            frontier(stored, now)
        } else if stored.barriers != now.barriers {
            differ("barriers", json(&stored.barriers), json(&now.barriers))
        } else if stored.outbox != now.outbox {
            differ("messages", stored.outbox, now.outbox)
        } else if stored.io != now.io {
            differ("recorded calls", stored.io, now.io)
        } else if stored.key != now.key {
            differ("key", stored.key, now.key)
        } else {
            differ("digest", stored.digest, now.digest)
        };
        Err(self.differs(node, difference))
    }
}

/// How an item ended by its record, and by what followed.
fn past<S: State>(
    shape: &hapax_core::graph::Graph<S>,
    item: &WorkItem,
    record: &ItemRecord,
    next: Option<&Checkpoint>,
) -> Past {
    if let Some(done) = record.done.clone() {
        return match done {
            Done::Failed { failure } => Past::Failed(failure),
            done => Past::Returned(Some(done)),
        };
    }
    let Some(next) = next else { return Past::Open };
    // A lone item's end isn't journaled. That it failed shows in what follows: its handler, with the failure as input.
    let handler = shape.position(item.node.as_str()).and_then(|at| shape.nodes()[at].on_error.clone());
    let handled = |(handler, failure): (NodeId, &NodeFailure)| {
        let input = Json::of(failure).ok();
        next.frontier.contains(&WorkItem::child(item.path_hash, 0, handler, input))
    };
    match &record.last_failure {
        Some(failure) if handler.map(|handler| (handler, failure)).is_some_and(handled) => {
            Past::Failed(failure.clone())
        }
        _ => Past::Returned(None),
    }
}

/// The first call that isn't recorded, of those that an item waits for.
fn beyond(waits: Vec<Wait>) -> String {
    let call = waits.into_iter().find_map(|wait| match wait {
        Wait::Record(call) | Wait::Unanswered(call) => Some(call),
        _ => None,
    });
    call.unwrap_or_default()
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn words(draws: &std::collections::BTreeMap<Arc<str>, u64>) -> String {
    let lane = |(scope, draws): (&Arc<str>, &u64)| match &**scope {
        "" => draws.to_string(),
        scope => format!("{draws} in {scope}"),
    };
    if draws.is_empty() { "0".into() } else { draws.iter().map(lane).collect::<Vec<_>>().join(", ") }
}

fn told(failure: &NodeFailure) -> String {
    format!("{} {}", failure.code, failure.message)
}
