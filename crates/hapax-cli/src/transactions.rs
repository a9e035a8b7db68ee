//! What a journal tells of the transactions that a run made in its user's databases.
//!
//! Invariant: a transaction is what stands between a call's intent and its end. A call whose transaction was rolled back and
//! that was made again has made two. Rows of steps that were lost don't count.

use crate::{failure::Failure, session::Session};
use hapax::Status;
use hapax_core::{
    checkpoint::Checkpoint,
    journal::{EffectKind, EffectOutcome, Entry, Intent, JournalRow, TxSaid},
    json::Json,
    order::PathHash,
};
use hapax_store::RunRecord;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Journal rows are read this many at a time.
const PAGE: usize = 1000;
/// The strategy that leaves a row in the database.
const MARKER: &str = "marker";

/// Where a transaction stands, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TxState {
    /// Only a person can tell whether it was committed.
    InDoubt,
    /// Its database can't be used now.
    Waiting,
    /// It is under way, or was when its process ended.
    Begun,
    Committed,
    RolledBack,
    /// Its run went on, or ended, without asking how it ended.
    Abandoned,
}

impl TxState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            TxState::InDoubt => "in_doubt",
            TxState::Waiting => "waiting",
            TxState::Begun => "begun",
            TxState::Committed => "committed",
            TxState::RolledBack => "rolled_back",
            TxState::Abandoned => "abandoned",
        }
    }

    /// Its outcome isn't known yet.
    pub(crate) fn is_open(self) -> bool {
        self <= TxState::Begun
    }
}

/// One transaction.
#[derive(Debug, Clone)]
pub(crate) struct TxRecord {
    pub(crate) step: u64,
    /// Empty: the frontier doesn't name its item.
    pub(crate) node: String,
    pub(crate) scope: Arc<str>,
    pub(crate) index: u32,
    /// What the user calls it.
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) key: String,
    /// Empty: it came to nothing before its database was asked.
    pub(crate) database: String,
    pub(crate) strategy: String,
    pub(crate) state: TxState,
    /// Why it waits or is in doubt.
    pub(crate) why: Option<String>,
    /// How often its database couldn't be used.
    pub(crate) times_away: u32,
    pub(crate) began_us: i64,
    /// Since when it stands there.
    pub(crate) since_us: i64,
    /// By what the database knows it, and what it returns, noted before its COMMIT.
    pub(crate) pre_commit: Option<(Json, Json)>,
    pub(crate) outcome: Option<EffectOutcome>,
    /// A person said how it ended.
    pub(crate) told: bool,
    /// Transactions of the same call that were rolled back before.
    rolled_back: u32,
}

impl TxRecord {
    fn new(step: u64, intent: &Intent, rolled_back: u32) -> Self {
        Self {
            step,
            node: String::new(),
            scope: intent.scope.clone(),
            index: intent.index,
            name: intent.name.clone(),
            attempt: intent.attempt,
            key: intent.key.clone(),
            database: String::new(),
            strategy: String::new(),
            state: TxState::Begun,
            why: None,
            times_away: 0,
            began_us: intent.at_us,
            since_us: intent.at_us,
            pre_commit: None,
            outcome: None,
            told: false,
            rolled_back,
        }
    }

    /// The id of the row that it leaves in the database, where it leaves one.
    pub(crate) fn marker(&self) -> Option<String> {
        let id = || match self.rolled_back {
            0 => self.key.clone(),
            times => format!("{}:{times}", self.key),
        };
        (self.strategy == MARKER).then(id)
    }

    /// Its call goes on in another attempt, or anew when a person said that nothing of it took effect.
    fn goes_on(&mut self, intent: &Intent) {
        (self.attempt, self.key) = (intent.attempt, intent.key.clone());
        if intent.anew {
            *self = Self::new(self.step, intent, self.rolled_back);
        }
    }

    fn take(&mut self, said: &TxSaid, at_us: i64) {
        match said {
            TxSaid::Begins { database, strategy } => {
                (self.database, self.strategy) = (database.clone(), strategy.clone());
                (self.state, self.why, self.times_away) = (TxState::Begun, None, 0);
                (self.since_us, self.pre_commit) = (at_us, None);
            }
            TxSaid::PreCommit { witness, response } => {
                self.pre_commit = Some((witness.clone(), response.clone()));
            }
            TxSaid::Away { why } => {
                if self.state != TxState::Waiting {
                    (self.state, self.since_us) = (TxState::Waiting, at_us);
                }
                (self.why, self.times_away) = (Some(why.clone()), self.times_away + 1);
            }
            TxSaid::Doubt { why } => {
                (self.state, self.why, self.since_us) = (TxState::InDoubt, Some(why.clone()), at_us);
            }
            _ => {}
        }
    }

    fn end(&mut self, outcome: &EffectOutcome, at_us: i64, told: bool) {
        self.state = match outcome {
            EffectOutcome::Ok { .. } => TxState::Committed,
            EffectOutcome::Err { .. } => TxState::RolledBack,
        };
        (self.outcome, self.since_us, self.told) = (Some(outcome.clone()), at_us, told);
    }
}

/// All transactions of a run, in the order in which they began.
pub(crate) async fn of_run(session: &Session<'_>, record: &RunRecord) -> Result<Vec<TxRecord>, Failure> {
    let (store, mut steps, mut from) = (session.engine.store(), BTreeMap::<u64, Vec<_>>::new(), 0);
    loop {
        let page = store.journal(record.key.clone(), from, PAGE).await?;
        let Some(last) = page.last() else { break };
        from = last.seq + 1;
        for row in page.into_iter().filter(matters) {
            steps.entry(row.step).or_default().push(row);
        }
    }
    let mut all = vec![];
    for (step, rows) in steps.into_iter().filter(|(_, rows)| rows.iter().any(begins)) {
        // Without its checkpoint the step was lost.
        if let Some(checkpoint) = store.checkpoint(record.key.clone(), step).await? {
            all.extend(of_step(session, record, &checkpoint, rows).await?);
        }
    }
    Ok(all)
}

/// Those of a run's current step: what is open is among them.
pub(crate) async fn of_current_step(
    session: &Session<'_>,
    record: &RunRecord,
) -> Result<Vec<TxRecord>, Failure> {
    let loaded = session.engine.store().load(record.key.clone()).await?;
    let rows: Vec<JournalRow> = loaded.journal.into_iter().filter(matters).collect();
    if !rows.iter().any(begins) {
        return Ok(vec![]);
    }
    of_step(session, &loaded.record, &loaded.checkpoint, rows).await
}

fn matters(row: &JournalRow) -> bool {
    row.entries().iter().any(|entry| {
        matches!(entry, Entry::Intent(_) | Entry::Transaction(_) | Entry::Result { .. } | Entry::Took { .. })
    })
}

fn begins(row: &JournalRow) -> bool {
    row.entries().iter().any(|entry| matches!(entry, Entry::Intent(intent) if is_transaction(intent)))
}

/// A fork carries the calls of the other run without their keys: those transactions are the other run's.
fn is_transaction(intent: &Intent) -> bool {
    intent.kind == EffectKind::Transaction && !intent.key.is_empty()
}

async fn of_step(
    session: &Session<'_>,
    record: &RunRecord,
    checkpoint: &Checkpoint,
    rows: Vec<JournalRow>,
) -> Result<Vec<TxRecord>, Failure> {
    let rows = rows.into_iter().filter(|row| row.base == checkpoint.digest);
    let is_over =
        checkpoint.step < record.step || matches!(record.status, Status::Succeeded | Status::Cancelled);
    let (mut found, mut nodes) = (vec![], HashMap::new());
    for (item, mut transaction) in folded(rows) {
        transaction.node = match nodes.get(&item) {
            Some(node) => String::clone(node),
            None => node_of(session, record, checkpoint, item).await?,
        };
        nodes.insert(item, transaction.node.clone());
        if transaction.state.is_open() && is_over {
            transaction.state = TxState::Abandoned;
        }
        found.push(transaction);
    }
    Ok(found)
}

/// The transactions that the rows of one step tell of, each with its item.
fn folded(rows: impl IntoIterator<Item = JournalRow>) -> Vec<(PathHash, TxRecord)> {
    let mut found: Vec<(PathHash, TxRecord)> = vec![];
    let (mut latest, mut told) = (HashMap::<(PathHash, Arc<str>, u32), usize>::new(), None);
    let told_by = |row: JournalRow| {
        let (step, item) = (row.step, row.path_hash);
        row.entries().iter().map(|entry| (step, item, entry.clone())).collect::<Vec<_>>()
    };
    for (step, item, entry) in rows.into_iter().flat_map(told_by) {
        // Who takes a letter says in the item's next row what it made of it.
        let by_letter = told.take() == Some(item);
        match entry {
            Entry::Took { .. } => told = Some(item),
            Entry::Intent(intent) if is_transaction(&intent) => {
                let call = (item, intent.scope.clone(), intent.index);
                let before = latest.get(&call).map(|at| &mut found[*at].1);
                let rolled_back = match before {
                    Some(open) if open.outcome.is_none() => {
                        open.goes_on(&intent);
                        continue;
                    }
                    Some(ended) => ended.rolled_back + 1,
                    None => 0,
                };
                latest.insert(call, found.len());
                found.push((item, TxRecord::new(step, &intent, rolled_back)));
            }
            Entry::Transaction(note) => {
                if let Some(at) = latest.get(&(item, note.scope, note.index)) {
                    found[*at].1.take(&note.said, note.at_us);
                }
            }
            Entry::Result { scope, index, outcome, at_us, .. } => {
                if let Some(at) = latest.get(&(item, scope, index)) {
                    found[*at].1.end(&outcome, at_us, by_letter);
                }
            }
            _ => {}
        }
    }
    found
}

/// The node that an item runs; large frontiers are stored in pages.
async fn node_of(
    session: &Session<'_>,
    record: &RunRecord,
    checkpoint: &Checkpoint,
    item: PathHash,
) -> Result<String, Failure> {
    let mut items = checkpoint.frontier.clone();
    for page in 1.. {
        if let Some(found) = items.iter().find(|one| one.path_hash == item) {
            return Ok(found.node.to_string());
        }
        if items.is_empty() || page >= checkpoint.pages.len() {
            break;
        }
        let page = u32::try_from(page).unwrap_or(u32::MAX);
        items = session.engine.store().frontier_page(record.key.clone(), checkpoint.step, page).await?;
    }
    Ok(String::new())
}
