//! The commit: chains of many runs in one statement, which is one round trip and one transaction.
//!
//! Invariant: whatever is inserted is selected from what the fence has updated, so that nothing takes effect without it.

use crate::{
    prepare::{CheckpointParts, Parts, Prepared, row_sum},
    server::chain::Chain,
};
use hapax_core::{
    canary,
    checkpoint::Checkpoint,
    commit::{Status, StepCommit, Write},
    journal::JournalRow,
};
use std::collections::BTreeSet;
use tokio_postgres::{Client, Error, Row, Statement, types::ToSql};

/// The server's clock, in microseconds since 1970: of this moment, not of the transaction's start.
pub(super) const NOW: &str = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";

/// Which tables chains write to, beside the run's own row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Needs {
    /// One chain, of one step at the most: its values stand in the statement as they are, not in arrays, which cost the
    /// server more to take apart than all else of a step.
    lone: bool,
    steps: bool,
    pages: bool,
    journal: bool,
    outbox: bool,
}

impl Needs {
    pub(super) fn of(chains: &[Chain]) -> Self {
        let steps = chains.iter().flat_map(|chain| &chain.writes).filter(|prepared| is_step(prepared));
        let mut needs = Self { lone: chains.len() == 1 && steps.count() <= 1, ..Self::default() };
        for prepared in chains.iter().flat_map(|chain| &chain.writes) {
            match (&*prepared.write, &prepared.parts) {
                (Write::Step(commit), Parts::Step(parts)) => {
                    needs.steps = true;
                    needs.pages |= parts.checkpoint.frontier.len() > 1;
                    needs.journal |= !commit.journal.is_empty();
                    needs.outbox |= !commit.outbox.is_empty();
                }
                (Write::Append(append), _) => needs.journal |= !append.rows.is_empty(),
                _ => {}
            }
        }
        needs
    }
}

fn is_step(prepared: &Prepared) -> bool {
    matches!(*prepared.write, Write::Step(_))
}

/// The flags of a chain: 1, no cancel may have been requested; 2, it ends the run, which has no parent to tell.
const FENCE: &str = "WITH fence AS (UPDATE hapax_runs AS r SET step_id = coalesce(w.new_step, r.step_id), \
     digest = coalesce(w.new_digest, r.digest), next_seq = r.next_seq + w.rows, \
     used_us = coalesce(w.used_us, r.used_us), updated_at = {now}, \
     ready_at = CASE WHEN w.flags >= 2 THEN NULL WHEN w.new_step IS NULL OR r.status = 'running' THEN r.ready_at \
     ELSE r.lease_until END, \
     status = CASE WHEN w.flags >= 2 THEN 'succeeded' WHEN w.new_step IS NULL THEN r.status ELSE 'running' END, \
     status_json = CASE WHEN w.flags >= 2 THEN $2 WHEN w.new_step IS NULL THEN r.status_json ELSE $1 END, \
     owner = CASE WHEN w.flags >= 2 THEN NULL ELSE r.owner END, \
     lease_until = CASE WHEN w.flags >= 2 THEN 0 ELSE r.lease_until END \
     FROM {chains} \
     AS w(n, namespace, run_id, epoch, nonce, step_id, digest, next_seq, new_step, new_digest, rows, used_us, flags) \
     WHERE r.namespace = w.namespace AND r.run_id = w.run_id AND (w.step_id IS NULL OR r.step_id = w.step_id) \
     AND (w.digest IS NULL OR r.digest = w.digest) AND r.next_seq = w.next_seq \
     AND (w.flags & 1 = 0 OR r.cancel_requested = 0) AND (w.flags & 2 = 0 OR r.parent IS NULL)";
const FENCE_TYPES: [&str; 13] = [
    "int8", "text", "text", "int8", "bytea", "int8", "bytea", "int8", "int8", "bytea", "int8", "int8", "int8",
];
const OWNERSHIP: &str = " AND r.epoch = w.epoch AND r.nonce = w.nonce";
const FENCED: &str = " RETURNING w.n, r.namespace, r.run_id)";

/// The statement for chains with such needs.
pub(super) fn sql(needs: Needs) -> String {
    // Behind the two that all share.
    let mut next = 3;
    let mut source = |types: &[&str], lone: bool| {
        let array = if lone { "" } else { "[]" };
        let places: Vec<String> =
            types.iter().zip(next..).map(|(kind, n)| format!("${n}::{kind}{array}")).collect();
        next += types.len();
        let places = places.join(", ");
        if lone { format!("(SELECT {places})") } else { format!("unnest({places})") }
    };
    let chains = source(&FENCE_TYPES, needs.lone);
    let mut sql = FENCE.replace("{chains}", &chains);
    if !canary::on("fence") {
        sql.push_str(OWNERSHIP);
    }
    sql.push_str(FENCED);
    if needs.steps {
        let types = [
            "int8", "int8", "bytea", "bytea", "bytea", "bytea", "int8", "int8", "int8", "int8", "int8",
            "bytea", "bytea", "int8", "bytea", "bytea", "text",
        ];
        let steps = source(&types, needs.lone);
        sql.push_str(&format!(
            ", step AS (SELECT f.namespace, f.run_id, v.* FROM {steps} AS v(n, step_id, step_key, digest, io, \
             outbox, seed, next_seq, state_version, state_kind, state_base, state, frontier, frontier_len, pages, \
             barriers, label) JOIN fence AS f USING (n)), \
             keys AS (INSERT INTO hapax_keys (namespace, run_id, step_key, step_id) \
             SELECT namespace, run_id, step_key, step_id FROM step), \
             checkpoints AS (INSERT INTO hapax_checkpoints (namespace, run_id, step_id, step_key, digest, io, outbox, \
             seed, next_seq, state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, \
             label, created_at) SELECT namespace, run_id, step_id, step_key, digest, io, outbox, seed, next_seq, \
             state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, label, {{now}} \
             FROM step)"
        ));
    }
    if needs.pages {
        let pages = source(&["int8", "int8", "int8", "bytea"], false);
        sql.push_str(&format!(
            ", pages AS (INSERT INTO hapax_frontier (namespace, run_id, step_id, page, items) \
             SELECT f.namespace, f.run_id, v.step_id, v.page, v.items FROM {pages} \
             AS v(n, step_id, page, items) JOIN fence AS f USING (n))"
        ));
    }
    if needs.journal {
        let journal = source(&["int8", "int8", "bytea", "int8", "int8", "bytea", "bytea"], false);
        sql.push_str(&format!(
            ", journal AS (INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, row_sum) \
             SELECT f.namespace, f.run_id, v.seq, v.base, v.step_id, v.path_hash, v.entry, v.row_sum \
             FROM {journal} AS v(n, seq, base, step_id, path_hash, entry, row_sum) JOIN fence AS f USING (n))"
        ));
    }
    if needs.outbox {
        let messages = source(&["int8", "int8", "int8", "text", "text", "bytea"], false);
        let channels = source(&["int8", "text"], false);
        sql.push_str(&format!(
            ", messages AS (INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, \
             status, attempts, written_at) SELECT f.namespace, f.run_id, v.step_id, v.position, v.topic, v.msg_key, \
             v.payload, 'pending', 0, {{now}} FROM {messages} AS v(n, step_id, position, topic, msg_key, payload) \
             JOIN fence AS f USING (n)), \
             channels AS (INSERT INTO hapax_channels (namespace, run_id, topic, due_at) \
             SELECT f.namespace, f.run_id, v.topic, {{now}} FROM {channels} AS v(n, topic) \
             JOIN fence AS f USING (n) ON CONFLICT DO NOTHING)"
        ));
    }
    sql.push_str(" SELECT n FROM fence");
    sql.replace("{now}", NOW)
}

/// A value that is bound to the statement.
type Bound<'v> = &'v (dyn ToSql + Sync);

/// A column as an array, or the value that alone stands in it.
fn bound<T: ToSql + Sync>(column: &Vec<T>, lone: bool) -> Bound<'_> {
    if lone { &column[0] } else { column }
}

/// Values of a column, row by row.
#[derive(Default)]
struct Columns<'c> {
    chains: Fences<'c>,
    steps: Steps<'c>,
    pages: Pages<'c>,
    journal: Journal<'c>,
    outbox: Messages<'c>,
}

#[derive(Default)]
struct Fences<'c> {
    n: Vec<i64>,
    namespace: Vec<&'c str>,
    run_id: Vec<&'c str>,
    epoch: Vec<i64>,
    nonce: Vec<Vec<u8>>,
    step: Vec<Option<i64>>,
    digest: Vec<Option<&'c [u8]>>,
    next_seq: Vec<i64>,
    new_step: Vec<Option<i64>>,
    new_digest: Vec<Option<&'c [u8]>>,
    rows: Vec<i64>,
    used_us: Vec<Option<i64>>,
    flags: Vec<i64>,
}

#[derive(Default)]
struct Steps<'c> {
    n: Vec<i64>,
    step: Vec<i64>,
    key: Vec<&'c [u8]>,
    digest: Vec<&'c [u8]>,
    io: Vec<&'c [u8]>,
    outbox: Vec<&'c [u8]>,
    seed: Vec<i64>,
    next_seq: Vec<i64>,
    state_version: Vec<i64>,
    state_kind: Vec<i64>,
    state_base: Vec<Option<i64>>,
    state: Vec<&'c [u8]>,
    frontier: Vec<&'c [u8]>,
    frontier_len: Vec<i64>,
    pages: Vec<&'c [u8]>,
    barriers: Vec<Option<&'c [u8]>>,
    label: Vec<Option<&'c str>>,
}

#[derive(Default)]
struct Pages<'c> {
    n: Vec<i64>,
    step: Vec<i64>,
    page: Vec<i64>,
    items: Vec<&'c [u8]>,
}

#[derive(Default)]
struct Journal<'c> {
    n: Vec<i64>,
    seq: Vec<i64>,
    base: Vec<&'c [u8]>,
    step: Vec<i64>,
    path_hash: Vec<i64>,
    entry: Vec<&'c [u8]>,
    sum: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Messages<'c> {
    n: Vec<i64>,
    step: Vec<i64>,
    position: Vec<i64>,
    topic: Vec<&'c str>,
    key: Vec<&'c str>,
    payload: Vec<&'c [u8]>,
    channel: Vec<i64>,
    channel_topic: Vec<&'c str>,
}

impl<'c> Columns<'c> {
    fn of(chains: &'c [Chain]) -> Self {
        let mut columns = Self::default();
        for (chain, n) in chains.iter().zip(1..) {
            columns.chains.push(n, chain);
            let mut topics = BTreeSet::new();
            for prepared in &chain.writes {
                match (&*prepared.write, &prepared.parts) {
                    (Write::Step(commit), Parts::Step(parts)) => {
                        let next_seq = commit.first_seq + commit.journal.len() as u64;
                        columns.steps.push(n, &commit.checkpoint, &parts.checkpoint, next_seq);
                        columns.pages.push(n, commit.checkpoint.step, &parts.checkpoint);
                        columns.journal.push(n, commit.first_seq, &commit.journal, &parts.journal);
                        columns.outbox.push(n, commit, &parts.outbox);
                        topics.extend(commit.outbox.iter().map(|message| message.topic.as_str()));
                    }
                    (Write::Append(append), Parts::Append(entries)) => {
                        columns.journal.push(n, append.first_seq, &append.rows, entries);
                    }
                    _ => {}
                }
            }
            columns.outbox.channel.extend(topics.iter().map(|_| n));
            columns.outbox.channel_topic.extend(topics);
        }
        columns
    }
}

impl<'c> Fences<'c> {
    fn push(&mut self, n: i64, chain: &'c Chain) {
        let (run, demands, leaves) = (chain.run(), &chain.demands, &chain.leaves);
        self.n.push(n);
        self.namespace.push(run.namespace.as_str());
        self.run_id.push(run.run.as_str());
        self.epoch.push(demands.epoch.counter.cast_signed());
        self.nonce.push(demands.epoch.nonce.to_be_bytes().to_vec());
        self.step.push(demands.step.map(u64::cast_signed));
        self.digest.push(demands.digest.as_ref().map(|digest| digest.0.as_slice()));
        self.next_seq.push(demands.next_seq.cast_signed());
        let step = leaves.step.as_ref();
        self.new_step.push(step.map(|(step, ..)| step.cast_signed()));
        self.new_digest.push(step.map(|(_, digest, _)| digest.0.as_slice()));
        self.rows.push((leaves.next_seq - demands.next_seq).cast_signed());
        self.used_us.push(step.map(|(.., used)| used.cast_signed()));
        self.flags.push(i64::from(demands.no_cancel) | i64::from(leaves.ends) << 1);
    }

    fn values(&self, lone: bool) -> [Bound<'_>; 13] {
        [
            bound(&self.n, lone),
            bound(&self.namespace, lone),
            bound(&self.run_id, lone),
            bound(&self.epoch, lone),
            bound(&self.nonce, lone),
            bound(&self.step, lone),
            bound(&self.digest, lone),
            bound(&self.next_seq, lone),
            bound(&self.new_step, lone),
            bound(&self.new_digest, lone),
            bound(&self.rows, lone),
            bound(&self.used_us, lone),
            bound(&self.flags, lone),
        ]
    }
}

impl<'c> Steps<'c> {
    fn push(&mut self, n: i64, checkpoint: &'c Checkpoint, parts: &'c CheckpointParts, next_seq: u64) {
        self.n.push(n);
        self.step.push(checkpoint.step.cast_signed());
        self.key.push(&checkpoint.key.0);
        self.digest.push(&checkpoint.digest.0);
        self.io.push(&checkpoint.io.0);
        self.outbox.push(&checkpoint.outbox.0);
        self.seed.push(checkpoint.seed.cast_signed());
        self.next_seq.push(next_seq.cast_signed());
        self.state_version.push(checkpoint.state_version.into());
        self.state_kind.push(parts.state.kind as i64);
        self.state_base.push(parts.state.base.map(u64::cast_signed));
        self.state.push(&parts.state.bytes);
        self.frontier.push(parts.frontier.first().map(Vec::as_slice).unwrap_or_default());
        self.frontier_len.push(checkpoint.frontier.len() as i64);
        self.pages.push(&parts.pages);
        self.barriers.push(parts.barriers.as_deref());
        self.label.push(checkpoint.label.as_deref());
    }

    fn values(&self, lone: bool) -> [Bound<'_>; 17] {
        [
            bound(&self.n, lone),
            bound(&self.step, lone),
            bound(&self.key, lone),
            bound(&self.digest, lone),
            bound(&self.io, lone),
            bound(&self.outbox, lone),
            bound(&self.seed, lone),
            bound(&self.next_seq, lone),
            bound(&self.state_version, lone),
            bound(&self.state_kind, lone),
            bound(&self.state_base, lone),
            bound(&self.state, lone),
            bound(&self.frontier, lone),
            bound(&self.frontier_len, lone),
            bound(&self.pages, lone),
            bound(&self.barriers, lone),
            bound(&self.label, lone),
        ]
    }
}

impl<'c> Pages<'c> {
    fn push(&mut self, n: i64, step: u64, parts: &'c CheckpointParts) {
        for (page, items) in (0..).zip(&parts.frontier).skip(1) {
            self.n.push(n);
            self.step.push(step.cast_signed());
            self.page.push(page);
            self.items.push(items);
        }
    }

    fn values(&self) -> [Bound<'_>; 4] {
        [&self.n, &self.step, &self.page, &self.items]
    }
}

impl<'c> Journal<'c> {
    fn push(&mut self, n: i64, first_seq: u64, rows: &'c [JournalRow], entries: &'c [Vec<u8>]) {
        for ((row, entry), seq) in rows.iter().zip(entries).zip(first_seq..) {
            self.n.push(n);
            self.seq.push(seq.cast_signed());
            self.base.push(&row.base.0);
            self.step.push(row.step.cast_signed());
            self.path_hash.push(row.path_hash.0.cast_signed());
            self.entry.push(entry);
            self.sum.push(row_sum(seq, &row.base, row.step, row.path_hash, entry).to_vec());
        }
    }

    fn values(&self) -> [Bound<'_>; 7] {
        [&self.n, &self.seq, &self.base, &self.step, &self.path_hash, &self.entry, &self.sum]
    }
}

impl<'c> Messages<'c> {
    fn push(&mut self, n: i64, commit: &'c StepCommit, payloads: &'c [Vec<u8>]) {
        for ((message, payload), position) in commit.outbox.iter().zip(payloads).zip(0..) {
            self.n.push(n);
            self.step.push(commit.checkpoint.step.cast_signed());
            self.position.push(position);
            self.topic.push(&message.topic);
            self.key.push(&message.key);
            self.payload.push(payload);
        }
    }

    fn values(&self) -> [Bound<'_>; 8] {
        [
            &self.n,
            &self.step,
            &self.position,
            &self.topic,
            &self.key,
            &self.payload,
            &self.channel,
            &self.channel_topic,
        ]
    }
}

/// Runs the statement; each row is the number, from 1, of a chain that was written.
pub(super) async fn run(
    client: &Client,
    statement: &Statement,
    needs: Needs,
    chains: &[Chain],
) -> Result<Vec<Row>, Error> {
    let columns = Columns::of(chains);
    let (running, succeeded) = (Status::Running.to_json(), Status::Succeeded.to_json());
    let (running, succeeded) = (running.as_str(), succeeded.as_str());
    let mut values: Vec<Bound<'_>> = vec![&running, &succeeded];
    values.extend(columns.chains.values(needs.lone));
    if needs.steps {
        values.extend(columns.steps.values(needs.lone));
    }
    if needs.pages {
        values.extend(columns.pages.values());
    }
    if needs.journal {
        values.extend(columns.journal.values());
    }
    if needs.outbox {
        values.extend(columns.outbox.values());
    }
    client.query(statement, &values).await
}
