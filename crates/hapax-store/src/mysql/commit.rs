//! The commit: chains of many runs in one transaction, each table written by one statement.
//!
//! Invariant: the fence comes first and must meet one row for each chain; a chain that it doesn't meet inserts nothing.

use super::connection::MySession;
use crate::{
    prepare::{CheckpointParts, Parts, Prepared, row_sum},
    server::{
        chain::Chain,
        commit::{NewCheckpoint, insert_checkpoints},
        sql::{Fault, Session, Value, insert, places, portions, values},
    },
};
use hapax_core::{
    canary,
    commit::{Append, Status, StepCommit, Write},
    id::RunKey,
    journal::JournalRow,
};
use std::collections::BTreeSet;

/// What a chain demands and leaves, each value with its type: a server that has to guess takes a number for a text.
/// The flags of a chain: 1, no cancel may have been requested; 2, it ends the run, which has no parent to tell.
const DEMANDS: [(&str, &str); 13] = [
    ("n", "SIGNED"),
    ("namespace", "CHAR(255)"),
    ("run_id", "CHAR(255)"),
    ("epoch", "SIGNED"),
    ("nonce", "BINARY(16)"),
    ("step_id", "SIGNED"),
    ("digest", "BINARY(32)"),
    ("next_seq", "SIGNED"),
    ("new_step", "SIGNED"),
    ("new_digest", "BINARY(32)"),
    ("added", "SIGNED"),
    ("used_us", "SIGNED"),
    ("flags", "SIGNED"),
];
const MEETS: &str = "r.namespace = w.namespace AND r.run_id = w.run_id \
     AND (w.step_id IS NULL OR r.step_id = w.step_id) AND (w.digest IS NULL OR r.digest = w.digest) \
     AND r.next_seq = w.next_seq AND (w.flags & 1 = 0 OR r.cancel_requested = 0) \
     AND (w.flags & 2 = 0 OR r.parent IS NULL)";
const OWNERSHIP: &str = " AND r.epoch = w.epoch AND r.nonce = w.nonce";
/// A column is set after those that are computed from what it was: whether they see the old or the new value is up to the
/// server. `{succeeded}` and `{running}` are the statuses as they are stored.
const LEAVES: &str = " SET r.step_id = coalesce(w.new_step, r.step_id), r.digest = coalesce(w.new_digest, r.digest), \
     r.next_seq = w.next_seq + w.added, r.used_us = coalesce(w.used_us, r.used_us), r.updated_at = {now}, \
     r.ready_at = CASE WHEN w.flags >= 2 THEN NULL WHEN w.new_step IS NULL OR r.status = 'running' THEN r.ready_at \
     ELSE r.lease_until END, \
     r.status = CASE WHEN w.flags >= 2 THEN 'succeeded' WHEN w.new_step IS NULL THEN r.status ELSE 'running' END, \
     r.status_json = CASE WHEN w.flags >= 2 THEN {succeeded} WHEN w.new_step IS NULL THEN r.status_json ELSE {running} END, \
     r.owner = CASE WHEN w.flags >= 2 THEN NULL ELSE r.owner END, \
     r.lease_until = CASE WHEN w.flags >= 2 THEN 0 ELSE r.lease_until END";

/// Writes chains; answers for each whether its fence let it pass. What it has done is to be committed if any did.
pub(super) async fn write(session: &mut MySession, chains: &[Chain]) -> Result<Vec<bool>, Fault> {
    let all: Vec<Numbered<'_>> = chains.iter().zip(0..).map(Numbered::of).collect();
    // What is too large is refused by itself, so that it doesn't take others with it.
    let room = session.room();
    let mut passing: Vec<&Numbered<'_>> = all.iter().filter(|one| largest_row(one.chain) < room).collect();
    if !fence(session, &passing).await? {
        session.rollback().await?;
        session.begin().await?;
        passing = passes(session, passing).await?;
        if !fence(session, &passing).await? {
            passing.clear();
        }
    }
    let mut rows = Rows::default();
    passing.iter().for_each(|one| rows.push(one));
    rows.insert(session).await?;
    let mut passed = vec![false; chains.len()];
    passing.iter().for_each(|one| passed[one.n] = true);
    Ok(passed)
}

/// A chain with its number, and with bytes that its rows point to.
struct Numbered<'c> {
    n: usize,
    chain: &'c Chain,
    nonce: [u8; 16],
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
        Self { n, chain, nonce: chain.demands.epoch.nonce.to_be_bytes(), sums: sums.collect() }
    }

    fn demands(&self) -> Vec<Value<'_>> {
        let (run, demands, leaves) = (self.chain.run(), &self.chain.demands, &self.chain.leaves);
        let step = leaves.step.as_ref();
        values![
            self.n,
            run.namespace.as_str(),
            run.run.as_str(),
            demands.epoch.counter,
            &self.nonce,
            demands.step.map(u64::cast_signed),
            Value::Blob(demands.digest.as_ref().map(|digest| digest.0.as_slice())),
            demands.next_seq,
            step.map(|(step, ..)| step.cast_signed()),
            Value::Blob(step.map(|(_, digest, _)| digest.0.as_slice())),
            leaves.next_seq - demands.next_seq,
            step.map(|(.., used)| used.cast_signed()),
            i64::from(demands.no_cancel) | i64::from(leaves.ends) << 1,
        ]
        .to_vec()
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

/// Which runs meet the demands.
fn meets() -> String {
    format!("{MEETS}{}", if canary::on("fence") { "" } else { OWNERSHIP })
}

/// What the rows that are met say afterwards.
fn leaves() -> String {
    let stored = |status: Status| format!("'{}'", status.to_json().as_str());
    LEAVES.replace("{succeeded}", &stored(Status::Succeeded)).replace("{running}", &stored(Status::Running))
}

/// The table of demands, and the runs that meet them. The demands are read first, in their order, so that two transactions
/// lock rows in one order; and no row is looked at but theirs.
fn met(chains: usize) -> String {
    let columns = DEMANDS.map(|(name, of)| format!("CAST(? AS {of}) AS {name}")).join(", ");
    let rows = vec![format!("SELECT {columns}"); chains].join(" UNION ALL ");
    format!("({rows}) AS w STRAIGHT_JOIN hapax_runs AS r FORCE INDEX (PRIMARY) ON {}", meets())
}

/// The fence of one chain alone, each demand in its place: a table of them takes the server longer than all else of a step.
fn alone<'v>(demands: &[Value<'v>]) -> (String, Vec<Value<'v>>) {
    let text = format!("UPDATE hapax_runs AS r{} WHERE {}", leaves(), meets());
    let mut parts = text.split("w.");
    let (mut sql, mut all) = (parts.next().unwrap_or_default().to_owned(), vec![]);
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let at = DEMANDS.iter().position(|(demand, _)| *demand == name).expect("a demand's name");
        // A key is compared as it is stored, so that it is found by its index.
        let place = if DEMANDS[at].1.starts_with("CHAR") {
            "?".into()
        } else {
            format!("CAST(? AS {})", DEMANDS[at].1)
        };
        sql.extend([place.as_str(), rest]);
        all.push(demands[at]);
    }
    (sql, all)
}

/// Whether every one of the chains' runs met what is demanded of it, and was updated.
async fn fence(session: &mut MySession, chains: &[&Numbered<'_>]) -> Result<bool, Fault> {
    for some in portions(chains) {
        let (sql, all) = match some {
            [one] => alone(&one.demands()),
            some => {
                let all = some.iter().flat_map(|one| one.demands()).collect();
                (format!("UPDATE {}{}", met(some.len()), leaves()), all)
            }
        };
        if session.execute(&sql, &all).await? != some.len() as u64 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Those whose fence would let them pass, their runs' rows locked.
async fn passes<'n, 'c>(
    session: &mut MySession,
    chains: Vec<&'n Numbered<'c>>,
) -> Result<Vec<&'n Numbered<'c>>, Fault> {
    if chains.len() < 2 {
        // The fence has said it.
        return Ok(vec![]);
    }
    let mut found = BTreeSet::new();
    for some in portions(&chains) {
        let sql = format!("SELECT w.n FROM {} FOR UPDATE", met(some.len()));
        let all: Vec<Value<'_>> = some.iter().flat_map(|one| one.demands()).collect();
        for row in session.rows(&sql, &all).await? {
            found.insert(row.count(0)? as usize);
        }
    }
    Ok(chains.into_iter().filter(|one| found.contains(&one.n)).collect())
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

    async fn insert(&self, session: &mut MySession) -> Result<(), Fault> {
        insert_checkpoints(session, &self.checkpoints).await?;
        let sql =
            "INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, row_sum)";
        insert(session, sql, &places(8), "", &self.journal).await?;
        let sql = "INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, status, \
                   attempts, written_at)";
        insert(session, sql, "(?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now})", "", &self.outbox).await?;
        let sql = "INSERT INTO hapax_channels (namespace, run_id, topic, due_at)";
        let unless_there = session.unless_there();
        insert(session, sql, "(?, ?, ?, {now})", unless_there, &self.channels).await
    }
}
