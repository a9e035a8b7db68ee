//! Time travel: a new run that goes on from any step of another.
//!
//! Invariant: a fork copies what is recorded and nothing that is open. It has a name of its own, and so keys of its own:
//! what it calls, nobody has answered yet.

use crate::{
    Engine,
    error::{Error, json},
    replay::{History, Source},
};
use hapax_core::{
    checkpoint::{Checkpoint, Draft},
    commit::Status,
    error::{Code, Coded, code},
    id::RunKey,
    journal::{Entry, JournalRow, by_item},
    json::Json,
    key::DigestBuilder,
    mailbox,
    order::PathHash,
};
use hapax_store::{Created, NewRun, RunRecord, StoreError};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};

/// A fork to be: of which run, at which step, under which name, with which fields set.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::{Fork, prelude::*};
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Order { cents: u64, receipt: Option<String> }
/// # const CHARGE: Node = Node::new("charge");
/// # async fn charge(ctx: hapax::Ctx<Order>) -> OrderDelta {
/// #     Order::delta().receipt(format!("paid {}", ctx.state().cents))
/// # }
/// # let engine = Engine::open("memory:").await?;
/// # let graph = Graph::new("orders", 1, CHARGE).node(CHARGE, charge);
/// let orders = engine.register(graph, ()).await?;
/// orders.start("order-42", Order { cents: 4200, receipt: None }).await?.wait().await?;
/// // What if it had been cheaper, before anything was done?
/// engine.fork(Fork::at("order-42", 0).named("what-if").set("cents", &10)?).await?;
/// let order = orders.attach("what-if").await?.wait().await?;
/// assert_eq!(order.receipt.as_deref(), Some("paid 10"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Fork {
    run: String,
    step: u64,
    name: Option<String>,
    set: Vec<(String, Json)>,
}

impl Fork {
    /// Goes on from this step of this run: what the step's frontier holds is executed next.
    pub fn at(run: &str, step: u64) -> Self {
        Self { run: run.into(), step, name: None, set: vec![] }
    }

    /// The new run's name; by default `RUN@STEP`.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets a field of the state, such as `tax` or `items.0.sku`, or `/items/0/sku` as a JSON pointer. What the step's
    /// items have recorded so far is left behind then, since they are about to see something else.
    pub fn set<T: Serialize + ?Sized>(mut self, path: &str, value: &T) -> Result<Self, Error> {
        self.set.push((path.into(), json("the value to set", value)?));
        Ok(self)
    }
}

/// A run that can't be forked like this.
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
/// use hapax::{Error, Fork, ForkError};
/// # let engine = Engine::open("memory:").await?;
/// # let drafts = engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// # drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// let beyond = engine.fork(Fork::at("draft-1", 7)).await;
/// assert!(matches!(beyond, Err(Error::Fork(error)) if matches!(*error, ForkError::NoStep { last: 1, .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// There is no such step, or it isn't kept any more.
    #[error("run `{run}` has no step {step}; its last is {last}")]
    NoStep {
        /// The run.
        run: RunKey,
        /// What was asked for.
        step: u64,
        /// The run's last step.
        last: u64,
    },
    /// A call of this step was begun and hasn't ended: the fork would make it again under another key.
    #[error(
        "step {step} of run `{run}` is in the middle of {calls}, which may or may not have taken effect; fork another step, or wait until it has ended"
    )]
    Unfinished {
        /// The run.
        run: RunKey,
        /// The step.
        step: u64,
        /// The calls.
        calls: String,
    },
    /// The state has no such place.
    #[error("the state of run `{run}` has nothing to set at `{path}`")]
    NoPath {
        /// The run.
        run: RunKey,
        /// What was to be set.
        path: String,
    },
}

impl Coded for ForkError {
    fn code(&self) -> Code {
        code::CANNOT_FORK
    }
}

impl Engine {
    /// Makes a new run that goes on from a step of another, with its state, its frontier and its seed; durable when it
    /// answers. What the step's items have recorded there is theirs in the fork too, and isn't called again; what comes
    /// after is called under the fork's own keys. Refused in the middle of a write. The same fork twice is one run.
    pub async fn fork(&self, fork: Fork) -> Result<RunKey, Error> {
        let record = self.record(&fork.run).await?;
        record.demand_here()?;
        if let Status::Leaving { to, .. } = record.status {
            // What it waits for isn't in its row meanwhile, and a call in doubt would be made again.
            return Err(StoreError::Moving { run: record.key, to: Some(to) }.into());
        }
        let name = fork.name.clone().unwrap_or_else(|| format!("{}@{}", fork.run, fork.step));
        let new = self.forked(&record, &fork, self.key(&name)?).await?;
        let (key, input) = (new.key.clone(), new.input);
        match self.create(new).await? {
            Created::Exists(found) if found.input != input => return Err(Error::RunExists { run: key }),
            _ => self.shared.look_for_work(),
        }
        Ok(key)
    }

    /// Creates a run, unless it is there.
    pub(crate) async fn create(&self, new: NewRun) -> Result<Created, Error> {
        loop {
            match self.shared.store.create(new.clone()).await {
                // Whether it is there is found out by asking for the same again.
                Err(StoreError::Unknown(_)) => {}
                created => return Ok(created?),
            }
        }
    }

    async fn forked(&self, record: &RunRecord, fork: &Fork, key: RunKey) -> Result<NewRun, Error> {
        let (run, step, store) = (&record.key, fork.step, &self.shared.store);
        let Some(mut from) = store.checkpoint(run.clone(), step).await? else {
            let first = store.checkpoints(run.clone(), 0, 1).await?;
            if step <= record.step && first.first().is_none_or(|first| first.step < step) {
                let (run, what) = (run.clone(), "its checkpoint is missing".into());
                return Err(StoreError::Corrupt { run, step: Some(step), what }.into());
            }
            return Err(ForkError::NoStep { run: run.clone(), step, last: record.step }.into());
        };
        for page in 1..from.pages.len() {
            from.frontier.extend(store.frontier_page(run.clone(), step, page as u32).await?);
        }
        let rows = History::new(Arc::new(Source::Store(store.clone())), run.clone()).rows_of(step).await?;
        nothing_open(run, &from, &rows)?;
        nothing_in_doubt(record, step, &rows)?;
        let state = with(run, &from.state, &fork.set)?;
        if let Some(code) = self.shared.flow(&record.graph, record.fingerprint) {
            code.check_state(&state, from.state_version)?;
        }
        let checkpoint = Draft {
            step,
            state,
            state_version: from.state_version,
            frontier: from.frontier,
            barriers: from.barriers,
            seed: from.seed,
            io: from.io,
            outbox: from.outbox,
            label: from.label,
        }
        .seal(&key.run);
        let journal = if fork.set.is_empty() { carried(record, &checkpoint, &rows) } else { vec![] };
        let mut input = DigestBuilder::new("hapax.fork.v1");
        input.text(run.run.as_str()).u64(step).bytes(&from.digest.0).bytes(&checkpoint.state);
        let mut tags = record.tags.clone();
        tags.insert("forked_from".into(), format!("{}@{step}", run.run));
        Ok(NewRun {
            key,
            graph: record.graph.clone(),
            fingerprint: record.fingerprint,
            input: input.finish(),
            checkpoint,
            tags,
            claim: None,
            parent: None,
            journal,
            terms: hapax_core::flow::Terms::default(),
        })
    }
}

/// Refuses a step in which a call was begun and hasn't ended.
fn nothing_open(run: &RunKey, from: &Checkpoint, rows: &[JournalRow]) -> Result<(), ForkError> {
    let items = by_item(from.digest, rows.iter().cloned());
    let open = items.values().flat_map(|item| item.recorded.calls());
    let open = open.filter(|(_, call)| call.outcome.is_none() && !call.key.is_empty());
    let mut calls: Vec<String> = open.map(|(_, call)| format!("`{}`", call.name)).collect();
    calls.sort_unstable();
    if calls.is_empty() {
        return Ok(());
    }
    Err(ForkError::Unfinished { run: run.clone(), step: from.step, calls: calls.join(", ") })
}

/// Refuses the step of a run that waits for a person's word about a call: the fork would make it again.
fn nothing_in_doubt(record: &RunRecord, step: u64, rows: &[JournalRow]) -> Result<(), ForkError> {
    let open = |key: &str| record.wake.letters.contains(&mailbox::resolution(key));
    let doubted = rows.iter().flat_map(JournalRow::entries).filter_map(|entry| match entry {
        Entry::Intent(intent) if open(&intent.key) => Some(format!("`{}`", intent.name)),
        _ => None,
    });
    let calls: BTreeSet<String> = doubted.collect();
    if record.step != step || calls.is_empty() {
        return Ok(());
    }
    let calls = calls.into_iter().collect::<Vec<_>>().join(", ");
    Err(ForkError::Unfinished { run: record.key.clone(), step, calls })
}

/// What the step's items have recorded, as rows of the new run.
fn carried(record: &RunRecord, onto: &Checkpoint, rows: &[JournalRow]) -> Vec<JournalRow> {
    let told = rows.iter().flat_map(|row| row.entries().iter().map(|entry| (row.path_hash, entry.clone())));
    let entries = told.filter_map(|(path_hash, entry)| {
        let entry = match entry {
            // Letters are in the other run's mailbox, and what they brought is recorded beside; what was streamed was
            // shown to those who watched the other run.
            // A transaction that hasn't ended is the other run's as well, and so is a turn in a bucket.
            Entry::Took { .. }
            | Entry::Chunk(_)
            | Entry::Streams(_)
            | Entry::Transaction(_)
            | Entry::Turn(_) => return None,
            // Its key was the other run's.
            Entry::Intent(intent) => {
                Entry::Intent(hapax_core::journal::Intent { key: String::new(), ..intent })
            }
            entry => entry,
        };
        Some((path_hash, entry))
    });
    let mut entries: Vec<_> = entries.collect();
    if record.step == onto.step && matches!(record.status, Status::Failed { .. }) {
        // Whoever forks a failed run wants it to be tried again.
        entries.push((PathHash::ROOT, Entry::Retried));
    }
    let row =
        |((path_hash, entry), seq)| JournalRow { seq, base: onto.digest, step: onto.step, path_hash, entry };
    entries.into_iter().zip(0..).map(row).collect()
}

/// The state with fields set.
fn with(run: &RunKey, state: &Arc<[u8]>, set: &[(String, Json)]) -> Result<Arc<[u8]>, Error> {
    if set.is_empty() {
        return Ok(state.clone());
    }
    let mut value: Value = serde_json::from_slice(state).map_err(|error| StoreError::Corrupt {
        run: run.clone(),
        step: None,
        what: format!("its state is not JSON: {error}"),
    })?;
    for (path, new) in set {
        let new = new.read().unwrap_or(Value::Null);
        put(&mut value, path, new)
            .ok_or_else(|| ForkError::NoPath { run: run.clone(), path: path.clone() })?;
    }
    Ok(hapax_core::canonical::to_vec(&value)?.into())
}

fn put(state: &mut Value, path: &str, new: Value) -> Option<()> {
    let parts: Vec<String> = match path.strip_prefix('/') {
        Some(pointer) => pointer.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect(),
        None => path.split('.').map(str::to_owned).collect(),
    };
    let (last, parents) = parts.split_last()?;
    let mut at = state;
    for part in parents {
        at = match at {
            Value::Object(members) => members.get_mut(part)?,
            Value::Array(items) => items.get_mut(part.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    match at {
        Value::Object(members) => *members.get_mut(last)? = new,
        Value::Array(items) => *items.get_mut(last.parse::<usize>().ok()?)? = new,
        _ => return None,
    }
    Some(())
}
