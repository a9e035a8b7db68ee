//! The commit: chains of many runs in one transaction, each table written by one statement; all of it in one text, unless it
//! is large.
//!
//! Invariant: the fence comes first and must meet one row for each chain; a chain that it doesn't meet inserts nothing.

use super::{connection::MySession, fence, script::Script};
use crate::{
    prepare::{CheckpointParts, Parts, Prepared, row_sum},
    server::{
        chain::Chain,
        commit::{NewCheckpoint, checkpoint_rows},
        sql::{Fault, Inserts, Session, Value, insert, values},
    },
};
use hapax_core::{
    commit::{Append, StepCommit, Write},
    id::RunKey,
    journal::JournalRow,
};
use std::collections::BTreeSet;

/// Rows of so many bytes, with all that belongs to them, go by statements that are prepared: digits take twice as many.
const LARGE: usize = 32 * 1024;
/// Bytes that one text holds at the most.
const TEXT: usize = 1024 * 1024;

/// Chains with what their rows point to.
pub(super) fn numbered(chains: &[Chain]) -> Vec<Numbered<'_>> {
    chains.iter().zip(0..).map(Numbered::of).collect()
}

/// The whole transaction in one text. `None`: it is too large for one.
pub(super) fn script<'s>(session: &'s MySession, all: &[Numbered<'_>]) -> Option<Script<'s>> {
    if all.iter().any(|one| largest_row(one.chain) >= LARGE) {
        return None;
    }
    let (chains, tables) = (chains_of(all.iter()), Rows::of(all.iter()).tables(session));
    // Digits are twice the bytes; the fence names a run, and what it says, once or twice.
    let bytes = 2 * tables.iter().map(Inserts::size).sum::<usize>() + 2048 * all.len();
    if bytes > TEXT.min(session.room()) || tables.iter().all(|table| table.rows.is_empty()) {
        return None;
    }
    let mut script = session.transaction(bytes);
    let mut met = None;
    for some in fence::groups(&chains) {
        fence::update(&mut script, some, met);
        met = Some(some.len());
    }
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        script.insert(table, met.take());
    }
    Some(script)
}

/// Rows, and nothing else, in one text. `None`: they are too large for one.
pub(super) fn inserts<'s>(session: &'s MySession, tables: &[Inserts<'_>]) -> Option<Script<'s>> {
    let bytes = 2 * tables.iter().map(Inserts::size).sum::<usize>() + 2048;
    if bytes > TEXT.min(session.room()) {
        return None;
    }
    let mut script = session.transaction(bytes);
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        script.insert(table, None);
    }
    Some(script)
}

/// Writes chains statement by statement; answers for each whether its fence let it pass. What it has done is to be
/// committed if any did. That not all of them pass may be known already.
pub(super) async fn write(
    session: &mut MySession,
    all: &[Numbered<'_>],
    is_refused: bool,
) -> Result<Vec<bool>, Fault> {
    // What is too large is refused by itself, so that it doesn't take others with it.
    let room = session.room();
    let mut passing: Vec<&Numbered<'_>> = all.iter().filter(|one| largest_row(one.chain) < room).collect();
    if is_refused || !fenced(session, &passing).await? {
        session.rollback().await?;
        session.begin().await?;
        passing = passes(session, passing).await?;
        if !fenced(session, &passing).await? {
            passing.clear();
        }
    }
    for table in Rows::of(passing.iter().copied()).tables(session) {
        insert(session, &table).await?;
    }
    let mut passed = vec![false; all.len()];
    passing.iter().for_each(|one| passed[one.n] = true);
    Ok(passed)
}

fn chains_of<'n, 'c: 'n>(all: impl Iterator<Item = &'n Numbered<'c>>) -> Vec<&'c Chain> {
    all.map(|one| one.chain).collect()
}

/// A chain with its number, and with bytes that its rows point to.
pub(super) struct Numbered<'c> {
    n: usize,
    chain: &'c Chain,
    /// The sums of its journal rows, in their order.
    sums: Vec<[u8; 8]>,
}

impl<'c> Numbered<'c> {
    fn of((chain, n): (&'c Chain, usize)) -> Self {
        let sums = chain
            .writes
            .iter()
            .flat_map(journal)
            .map(|(seq, row, entry)| row_sum(seq, &row.base, row.step, row.path_hash, entry));
        Self { n, chain, sums: sums.collect() }
    }
}

/// The rows that a write adds to the journal, numbered.
fn journal(prepared: &Prepared) -> Vec<(u64, &JournalRow, &[u8])> {
    let (first, rows, entries) = match (&*prepared.write, &prepared.parts) {
        (Write::Step(commit), Parts::Step(parts)) => (commit.first_seq, &commit.journal, &parts.journal),
        (Write::Append(Append { first_seq, rows, .. }), Parts::Append(entries)) => {
            (*first_seq, rows, entries)
        }
        _ => return vec![],
    };
    (first..).zip(rows).zip(entries).map(|((seq, row), entry)| (seq, row, entry.as_slice())).collect()
}

/// The bytes of the largest row that a chain writes.
fn largest_row(chain: &Chain) -> usize {
    let longest = |rows: &[Vec<u8>]| rows.iter().map(Vec::len).max().unwrap_or(0);
    let largest = |prepared: &Prepared| match &prepared.parts {
        Parts::Step(parts) => {
            let CheckpointParts { state, frontier, pages, barriers } = &parts.checkpoint;
            let first = frontier.first().map_or(0, Vec::len);
            let checkpoint = state.bytes.len() + first + pages.len() + barriers.as_ref().map_or(0, Vec::len);
            [checkpoint, longest(frontier), longest(&parts.journal), longest(&parts.outbox)].into_iter().max()
        }
        Parts::Append(entries) => Some(longest(entries)),
        Parts::Status(_) => None,
    };
    // Names and numbers come on top.
    chain.writes.iter().filter_map(largest).max().unwrap_or(0) + 8 * 1024
}

/// Whether every one of the chains' runs met what is demanded of it, and was updated.
async fn fenced(session: &mut MySession, passing: &[&Numbered<'_>]) -> Result<bool, Fault> {
    for some in fence::groups(&chains_of(passing.iter().copied())) {
        let mut script = session.script();
        fence::update(&mut script, some, None);
        let text = script.text();
        if session.change(text).await? != some.len() as u64 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Those whose fence would let them pass, their runs' rows locked.
async fn passes<'n, 'c>(
    session: &mut MySession,
    mut all: Vec<&'n Numbered<'c>>,
) -> Result<Vec<&'n Numbered<'c>>, Fault> {
    if all.len() < 2 {
        // The fence has said it.
        return Ok(vec![]);
    }
    let mut found = BTreeSet::new();
    for some in fence::groups(&chains_of(all.iter().copied())) {
        let mut script = session.script();
        fence::question(&mut script, some);
        let text = script.text();
        for row in session.ask(text).await? {
            found.insert((some[0].run().namespace.as_str(), row.text(0)?.to_owned()));
        }
    }
    let is_found = |run: &RunKey| found.contains(&(run.namespace.as_str(), run.run.as_str().to_owned()));
    all.retain(|one| is_found(one.chain.run()));
    Ok(all)
}

/// The rows of a table, each with its values.
type Table<'c> = Vec<Vec<Value<'c>>>;

/// What chains insert, by table.
#[derive(Default)]
struct Rows<'c> {
    checkpoints: Vec<NewCheckpoint<'c>>,
    journal: Table<'c>,
    outbox: Table<'c>,
    channels: Table<'c>,
}

impl<'c> Rows<'c> {
    fn of(all: impl Iterator<Item = &'c Numbered<'c>>) -> Self {
        let mut rows = Self::default();
        all.for_each(|one| rows.push(one));
        rows
    }

    fn push(&mut self, one: &'c Numbered<'c>) {
        let (run, mut topics, mut sums) = (one.chain.run(), BTreeSet::new(), one.sums.iter());
        for prepared in &one.chain.writes {
            if let (Write::Step(commit), Parts::Step(parts)) = (&*prepared.write, &prepared.parts) {
                let next_seq = commit.first_seq + commit.journal.len() as u64;
                let (checkpoint, parts_of) = (&commit.checkpoint, &parts.checkpoint);
                self.checkpoints.push(NewCheckpoint { run, checkpoint, parts: parts_of, next_seq });
                self.push_messages(run, commit, &parts.outbox);
                topics.extend(commit.outbox.iter().map(|message| message.topic.as_str()));
            }
            for ((seq, row, entry), sum) in journal(prepared).into_iter().zip(&mut sums) {
                let (base, path) = (&row.base.0, row.path_hash.0);
                let (namespace, id) = (run.namespace.as_str(), run.run.as_str());
                self.journal.push(values![namespace, id, seq, base, row.step, path, entry, sum].to_vec());
            }
        }
        let channel = |topic| values![run.namespace.as_str(), run.run.as_str(), topic].to_vec();
        self.channels.extend(topics.into_iter().map(channel));
    }

    fn push_messages(&mut self, run: &'c RunKey, commit: &'c StepCommit, payloads: &'c [Vec<u8>]) {
        let (namespace, id, step) = (run.namespace.as_str(), run.run.as_str(), commit.checkpoint.step);
        for ((message, payload), position) in commit.outbox.iter().zip(payloads).zip(0_u64..) {
            let (topic, key) = (message.topic.as_str(), message.key.as_str());
            self.outbox.push(values![namespace, id, step, position, topic, key, payload].to_vec());
        }
    }

    /// Table by table.
    fn tables(self, session: &MySession) -> Vec<Inserts<'c>> {
        let journal = Inserts {
            into: "INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, row_sum)",
            row: "(?, ?, ?, ?, ?, ?, ?, ?)",
            end: "",
            rows: self.journal,
        };
        let outbox = Inserts {
            into: "INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, status, \
                   attempts, written_at)",
            row: "(?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now})",
            end: "",
            rows: self.outbox,
        };
        let channels = Inserts {
            into: "INSERT INTO hapax_channels (namespace, run_id, topic, due_at)",
            row: "(?, ?, ?, {now})",
            end: session.unless_there(),
            rows: self.channels,
        };
        checkpoint_rows(&self.checkpoints).into_iter().chain([journal, outbox, channels]).collect()
    }
}
