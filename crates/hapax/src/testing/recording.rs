//! Recorded histories: a run as a file, to be replayed by the tests of every later version.

use super::Lab;
use crate::{Error, Replay, replay::Source};
use hapax_core::{
    checkpoint::{Checkpoint, Draft},
    frontier::{Barriers, WorkItem},
    id::{Namespace, RunId, RunKey},
    journal::{Entry, JournalRow},
    json::Json,
    key::Digest,
    order::PathHash,
};
use hapax_store::{RunRecord, Store};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, sync::Arc};

/// The whole record of a run: what its nodes saw, and what they made of it.
///
/// Take it once with the code that made the run, keep it beside the tests, and replay it with the code of today: a change
/// that runs in flight would stumble over fails the test.
///
/// ```
/// use hapax::{prelude::*, testing::{Lab, Recording}};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Draft { text: String }
/// const WRITE: Node = Node::new("write");
/// async fn write(mut ctx: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text(format!("{}", ctx.random())) }
/// fn graph() -> Graph<Draft> { Graph::new("drafts", 1, WRITE).node(WRITE, write) }
///
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// let lab = Lab::new();
/// let drafts = lab.engine().register(graph(), ()).await?;
/// lab.finish(&drafts.start("draft-1", Draft::default()).await?).await?;
/// let file: String = lab.record("draft-1").await?.to_json();
///
/// // Years later, in a test:
/// let lab = Lab::new();
/// lab.engine().register(graph(), ()).await?;
/// lab.replay(&Recording::from_json(&file)?).await?.expect_same();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Recording {
    v: u32,
    run: RunId,
    namespace: Namespace,
    graph: Arc<str>,
    fingerprint: Digest,
    checkpoints: Vec<Kept>,
    journal: Vec<Row>,
}

/// A checkpoint without what follows from its other parts.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    step: u64,
    state: Json,
    state_version: u32,
    frontier: Vec<WorkItem>,
    #[serde(default, skip_serializing_if = "Barriers::is_empty")]
    barriers: Barriers,
    /// As text: a reader that takes it for a float would spoil it.
    seed: String,
    io: Digest,
    outbox: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    step: u64,
    item: PathHash,
    entry: Entry,
}

impl Recording {
    /// As text, for a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a record is made of JSON")
    }

    /// From text.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    async fn of(store: &Arc<dyn Store>, record: RunRecord) -> Result<Self, Error> {
        let key = record.key;
        let (mut checkpoints, mut from) = (vec![], 0);
        loop {
            let page = store.checkpoints(key.clone(), from, 256).await?;
            let Some(last) = page.last() else { break };
            from = last.step + 1;
            for mut checkpoint in page {
                for page in 1..checkpoint.pages.len() {
                    let more = store.frontier_page(key.clone(), checkpoint.step, page as u32).await?;
                    checkpoint.frontier.extend(more);
                }
                checkpoints.push(Kept::of(checkpoint)?);
            }
        }
        let rows = store.journal(key.clone(), 0, usize::MAX).await?;
        Ok(Self {
            v: 1,
            run: key.run,
            namespace: key.namespace,
            graph: record.graph,
            fingerprint: record.fingerprint,
            checkpoints,
            journal: rows
                .into_iter()
                .map(|row| Row { step: row.step, item: row.path_hash, entry: row.entry })
                .collect(),
        })
    }

    fn source(&self) -> Source {
        let checkpoints: Vec<_> = self.checkpoints.iter().map(|kept| kept.checkpoint(&self.run)).collect();
        let bases: HashMap<u64, Digest> = checkpoints.iter().map(|it| (it.step, it.digest)).collect();
        // Rows of a step that isn't kept are of no use.
        let rows = self.journal.iter().filter_map(|row| Some((row, *bases.get(&row.step)?))).zip(0..);
        let journal = rows.map(|((row, base), seq)| JournalRow {
            seq,
            base,
            step: row.step,
            path_hash: row.item,
            entry: row.entry.clone(),
        });
        Source::Recorded { journal: journal.collect(), checkpoints }
    }
}

impl Kept {
    fn of(checkpoint: Checkpoint) -> Result<Self, Error> {
        Ok(Self {
            step: checkpoint.step,
            state: Json::from_text(&String::from_utf8_lossy(&checkpoint.state))?,
            state_version: checkpoint.state_version,
            frontier: checkpoint.frontier,
            barriers: checkpoint.barriers,
            seed: checkpoint.seed.to_string(),
            io: checkpoint.io,
            outbox: checkpoint.outbox,
            label: checkpoint.label,
        })
    }

    fn checkpoint(&self, run: &RunId) -> Checkpoint {
        let Self { step, state, state_version, frontier, barriers, seed, io, outbox, label } = self.clone();
        let seed = seed.parse().unwrap_or_default();
        Draft {
            step,
            state: state.as_bytes().into(),
            state_version,
            frontier,
            barriers,
            seed,
            io,
            outbox,
            label,
        }
        .seal(run)
    }
}

impl Lab {
    /// The record of a run so far.
    pub async fn record(&self, run: &str) -> Result<Recording, Error> {
        Recording::of(&self.engine.store(), self.engine.record(run).await?).await
    }

    /// Replays a recorded run with the code that is registered here.
    pub async fn replay(&self, recording: &Recording) -> Result<Replay, Error> {
        let key = RunKey { namespace: recording.namespace.clone(), run: recording.run.clone() };
        let (graph, shape) = (recording.graph.clone(), recording.fingerprint);
        let step = recording.checkpoints.last().map_or(0, |kept| kept.step);
        self.engine.replay_from(recording.source(), key, graph, shape, step).await
    }
}
