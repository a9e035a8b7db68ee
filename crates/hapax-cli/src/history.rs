//! What a run did, step by step, as its checkpoints and its journal tell it.
//!
//! Invariant: nothing is shown as done that rests on a step which was lost: rows of another base than a step's checkpoint are
//! counted, and not told.

pub(crate) mod html;
pub(crate) mod text;

use crate::{
    failure::Failure,
    json::{Change, changes, raw},
    session::Session,
    view::RunView,
    words::told,
};
use hapax::Secrets;
use hapax_core::{
    checkpoint::Checkpoint,
    journal::{EffectKind, EffectOutcome, Entry, JournalRow},
    order::PathHash,
};
use hapax_store::RunRecord;
use serde::Serialize;
use serde_json::value::RawValue;
use std::{collections::BTreeMap, sync::Arc};

/// Rows of the journal that are read at once.
const PAGE: usize = 1000;

/// A run's account.
#[derive(Serialize)]
pub(crate) struct Account<'a> {
    #[serde(flatten)]
    pub(crate) run: RunView<'a>,
    #[serde(skip)]
    pub(crate) record: &'a RunRecord,
    /// The state now.
    pub(crate) state: Option<Box<RawValue>>,
    /// Steps that aren't told of: older ones, or deleted.
    pub(crate) untold: u64,
    /// Rows of the journal that steps left behind which were lost.
    pub(crate) lost_rows: u64,
    pub(crate) steps: Vec<Step>,
}

/// A step: the items that it executes, what they did, and what came of it.
#[derive(Serialize)]
pub(crate) struct Step {
    pub(crate) step: u64,
    pub(crate) label: Option<String>,
    /// Whether it is over; the latest one is under way, or will never be.
    pub(crate) committed: bool,
    /// The nodes of its first items.
    pub(crate) nodes: Vec<String>,
    pub(crate) items: usize,
    pub(crate) calls: Vec<Call>,
    /// What else was noted, in words.
    pub(crate) notes: Vec<String>,
    /// What it changed of the state.
    pub(crate) changes: Vec<Change>,
}

/// A call to the outside, or something that was seen of it.
#[derive(Serialize)]
pub(crate) struct Call {
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) attempt: u32,
    /// The key that its receiver got.
    pub(crate) key: Option<String>,
    pub(crate) began_us: i64,
    /// `None`: nobody heard how it ended.
    pub(crate) ended_us: Option<i64>,
    /// When it was made again, under the same key, since nobody had.
    pub(crate) again_us: Option<i64>,
    pub(crate) failed: bool,
    /// What was answered, or why it failed.
    pub(crate) answer: Option<String>,
}

impl<'a> Account<'a> {
    /// Of the latest steps.
    pub(crate) async fn read(
        session: &Session<'_>,
        record: &'a RunRecord,
        most: u64,
    ) -> Result<Self, Failure> {
        let secrets = session.engine.secrets(record);
        let oldest = *session.steps(record).await?.start();
        let first = (record.step + 1).saturating_sub(most).max(oldest);
        let mut rows = journal(session, record, first).await?;
        let (mut steps, mut lost_rows) = (vec![], 0);
        let mut checkpoint = session.checkpoint(record, first).await?;
        loop {
            let step = checkpoint.step;
            let (ours, others): (Vec<_>, Vec<_>) = rows
                .remove(&step)
                .unwrap_or_default()
                .into_iter()
                .partition(|row| row.base == checkpoint.digest);
            lost_rows += others.len() as u64;
            let mut told = Step::of(&checkpoint, ours, &secrets);
            let before = secrets.state_of(&checkpoint);
            if step == record.step {
                steps.extend((told.items > 0).then_some(told));
                let (run, state) = (RunView::of(record), raw(&before));
                return Ok(Self { run, record, state, untold: first, lost_rows, steps });
            }
            checkpoint = session.checkpoint(record, step + 1).await?;
            told.changes = changes(&before, &secrets.state_of(&checkpoint));
            told.committed = true;
            steps.push(told);
        }
    }
}

/// The journal from a step on, by steps.
async fn journal(
    session: &Session<'_>,
    record: &RunRecord,
    first: u64,
) -> Result<BTreeMap<u64, Vec<JournalRow>>, Failure> {
    let (store, mut from) = (session.engine.store(), 0);
    let mut rows = BTreeMap::<u64, Vec<JournalRow>>::new();
    loop {
        let page = store.journal(record.key.clone(), from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(rows) };
        from = last.seq + 1;
        for row in page.into_iter().filter(|row| row.step >= first) {
            rows.entry(row.step).or_default().push(row);
        }
    }
}

impl Step {
    fn of(checkpoint: &Checkpoint, rows: Vec<JournalRow>, secrets: &Secrets) -> Self {
        let items = checkpoint.frontier.iter();
        let nodes: BTreeMap<_, _> =
            items.clone().map(|item| (item.path_hash, item.node.to_string())).collect();
        let mut telling = Telling { nodes: &nodes, open: BTreeMap::new(), calls: vec![], notes: vec![] };
        for row in rows {
            let item = row.path_hash;
            let entry = secrets.entry(row.entry);
            entry.each().iter().for_each(|entry| telling.tell(item, entry));
        }
        Self {
            step: checkpoint.step,
            label: checkpoint.label.clone(),
            committed: false,
            nodes: items.map(|item| item.node.to_string()).collect(),
            items: checkpoint.frontier_len,
            calls: telling.calls,
            notes: telling.notes,
            changes: vec![],
        }
    }
}

/// A step's rows, read one after the other.
struct Telling<'a> {
    nodes: &'a BTreeMap<PathHash, String>,
    /// Where the calls are whose end hasn't come yet.
    open: BTreeMap<(PathHash, Arc<str>, u32), usize>,
    calls: Vec<Call>,
    notes: Vec<String>,
}

impl Telling<'_> {
    fn node(&self, item: PathHash) -> String {
        self.nodes.get(&item).cloned().unwrap_or_else(|| item.to_string())
    }

    fn tell(&mut self, item: PathHash, entry: &Entry) {
        match entry {
            Entry::Intent(intent) => {
                let mut call = self.call(item, &intent.name, kind(intent.kind), intent.attempt, intent.at_us);
                call.key = Some(intent.key.clone());
                let before = self.open.insert((item, intent.scope.clone(), intent.index), self.calls.len());
                if let Some(before) = before.and_then(|at| self.calls.get_mut(at)) {
                    before.again_us = Some(intent.at_us);
                }
                self.calls.push(call);
            }
            Entry::Timer(timer) => {
                let call = self.call(item, "sleep", "timer", 1, timer.at_us);
                self.open.insert((item, timer.scope.clone(), timer.index), self.calls.len());
                self.calls.push(call);
            }
            Entry::Result { scope, index, outcome, at_us, .. } => {
                let known = self.open.remove(&(item, scope.clone(), *index));
                match known.and_then(|at| self.calls.get_mut(at)) {
                    Some(call) => call.end(outcome, *at_us),
                    None => self.note(item, entry),
                }
            }
            Entry::Seen(seen) => {
                let mut call = self.call(item, &seen.name, "seen", seen.attempt, seen.at_us);
                call.end(&seen.outcome, seen.at_us);
                self.calls.push(call);
            }
            // The state's changes tell it, and drafts of a stream are of no interest any more.
            Entry::ItemDone { .. } | Entry::Chunk(_) | Entry::Streams(_) => {}
            other => self.note(item, other),
        }
    }

    fn note(&mut self, item: PathHash, entry: &Entry) {
        self.notes.push(format!("{}: {}", self.node(item), told(entry)));
    }

    fn call(&self, item: PathHash, name: &str, kind: &'static str, attempt: u32, began_us: i64) -> Call {
        let (node, name) = (self.node(item), name.to_owned());
        let (key, ended_us, again_us, failed, answer) = (None, None, None, false, None);
        Call { node, name, kind, attempt, key, began_us, ended_us, again_us, failed, answer }
    }
}

impl Call {
    /// What came of it, in words.
    fn outcome(&self) -> &str {
        match (&self.answer, self.again_us) {
            (Some(answer), _) => answer,
            (None, Some(_)) => "its answer was never heard; it was made again",
            (None, None) => "its end is not known",
        }
    }

    fn end(&mut self, outcome: &EffectOutcome, at_us: i64) {
        self.ended_us = Some(at_us);
        (self.failed, self.answer) = match outcome {
            EffectOutcome::Ok { response } => (false, Some(response.as_str().to_owned())),
            EffectOutcome::Err { code, message, .. } => (true, Some(format!("{code} {message}"))),
        };
    }
}

fn kind(kind: EffectKind) -> &'static str {
    match kind {
        EffectKind::Read => "read",
        EffectKind::Write => "write",
        EffectKind::WriteAtMostOnce => "write at most once",
        EffectKind::Child => "child",
        EffectKind::Transaction => "transaction",
        _ => "effect",
    }
}
