//! The commit: chains of many runs in one statement, which is one round trip and one transaction.
//!
//! Invariant: whatever is inserted is selected from what the fence has updated, so that nothing takes effect without it.

use crate::{
    prepare::{CheckpointParts, Parts, row_sum},
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
    steps: bool,
    pages: bool,
    journal: bool,
    outbox: bool,
}

impl Needs {
    pub(super) fn of(chains: &[Chain]) -> Self {
        let mut needs = Self::default();
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

/// The flags of a chain: 1, no cancel may have been requested; 2, it ends the run, which has no parent to tell.
const FENCE: &str = "WITH fence AS (UPDATE hapax_runs AS r SET step_id = coalesce(w.new_step, r.step_id), \
     digest = coalesce(w.new_digest, r.digest), next_seq = r.next_seq + w.rows, \
     used_us = coalesce(w.used_us, r.used_us), updated_at = {now}, \
     ready_at = CASE WHEN w.flags >= 2 THEN NULL WHEN w.new_step IS NULL OR r.status = 'running' THEN r.ready_at \
     ELSE r.lease_until END, \
     status = CASE WHEN w.flags >= 2 THEN 'succeeded' WHEN w.new_step IS NULL THEN r.status ELSE 'running' END, \
     status_json = CASE WHEN w.flags >= 2 THEN $14 WHEN w.new_step IS NULL THEN r.status_json ELSE $13 END, \
     owner = CASE WHEN w.flags >= 2 THEN NULL ELSE r.owner END, \
     lease_until = CASE WHEN w.flags >= 2 THEN 0 ELSE r.lease_until END \
     FROM unnest($1::text[], $2::text[], $3::int8[], $4::bytea[], $5::int8[], $6::bytea[], $7::int8[], $8::int8[], \
     $9::bytea[], $10::int8[], $11::int8[], $12::int8[]) WITH ORDINALITY \
     AS w(namespace, run_id, epoch, nonce, step_id, digest, next_seq, new_step, new_digest, rows, used_us, flags, n) \
     WHERE r.namespace = w.namespace AND r.run_id = w.run_id AND (w.step_id IS NULL OR r.step_id = w.step_id) \
     AND (w.digest IS NULL OR r.digest = w.digest) AND r.next_seq = w.next_seq \
     AND (w.flags & 1 = 0 OR r.cancel_requested = 0) AND (w.flags & 2 = 0 OR r.parent IS NULL)";
const OWNERSHIP: &str = " AND r.epoch = w.epoch AND r.nonce = w.nonce";
const FENCED: &str = " RETURNING w.n, r.namespace, r.run_id)";

/// The statement for chains with such needs.
pub(super) fn sql(needs: Needs) -> String {
    let mut sql = FENCE.to_owned();
    if !canary::on("fence") {
        sql.push_str(OWNERSHIP);
    }
    sql.push_str(FENCED);
    let mut next = 15;
    let mut places = |types: &[&str]| {
        let places: Vec<String> =
            types.iter().zip(next..).map(|(kind, n)| format!("${n}::{kind}[]")).collect();
        next += types.len();
        places.join(", ")
    };
    if needs.steps {
        let places = places(&[
            "int8", "int8", "bytea", "bytea", "bytea", "bytea", "int8", "int8", "int8", "int8", "int8",
            "bytea", "bytea", "int8", "bytea", "bytea", "text",
        ]);
        sql.push_str(&format!(
            ", step AS (SELECT f.namespace, f.run_id, v.* FROM unnest({places}) AS v(n, step_id, step_key, digest, io, \
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
        let places = places(&["int8", "int8", "int8", "bytea"]);
        sql.push_str(&format!(
            ", pages AS (INSERT INTO hapax_frontier (namespace, run_id, step_id, page, items) \
             SELECT f.namespace, f.run_id, v.step_id, v.page, v.items FROM unnest({places}) \
             AS v(n, step_id, page, items) JOIN fence AS f USING (n))"
        ));
    }
    if needs.journal {
        let places = places(&["int8", "int8", "bytea", "int8", "int8", "bytea", "bytea"]);
        sql.push_str(&format!(
            ", journal AS (INSERT INTO hapax_journal (namespace, run_id, seq, base, step_id, path_hash, entry, row_sum) \
             SELECT f.namespace, f.run_id, v.seq, v.base, v.step_id, v.path_hash, v.entry, v.row_sum \
             FROM unnest({places}) AS v(n, seq, base, step_id, path_hash, entry, row_sum) JOIN fence AS f USING (n))"
        ));
    }
    if needs.outbox {
        let messages = places(&["int8", "int8", "int8", "text", "text", "bytea"]);
        let channels = places(&["int8", "text"]);
        sql.push_str(&format!(
            ", messages AS (INSERT INTO hapax_outbox (namespace, run_id, step_id, position, topic, msg_key, payload, \
             status, attempts, written_at) SELECT f.namespace, f.run_id, v.step_id, v.position, v.topic, v.msg_key, \
             v.payload, 'pending', 0, {{now}} FROM unnest({messages}) AS v(n, step_id, position, topic, msg_key, payload) \
             JOIN fence AS f USING (n)), \
             channels AS (INSERT INTO hapax_channels (namespace, run_id, topic, due_at) \
             SELECT f.namespace, f.run_id, v.topic, {{now}} FROM unnest({channels}) AS v(n, topic) \
             JOIN fence AS f USING (n) ON CONFLICT DO NOTHING)"
        ));
    }
    sql.push_str(" SELECT n FROM fence");
    sql.replace("{now}", NOW)
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
            columns.chains.push(chain);
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
    fn push(&mut self, chain: &'c Chain) {
        let (run, demands, leaves) = (chain.run(), &chain.demands, &chain.leaves);
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

    /// In the order of the statement's places.
    fn values(&self) -> [&(dyn ToSql + Sync); 17] {
        [
            &self.n,
            &self.step,
            &self.key,
            &self.digest,
            &self.io,
            &self.outbox,
            &self.seed,
            &self.next_seq,
            &self.state_version,
            &self.state_kind,
            &self.state_base,
            &self.state,
            &self.frontier,
            &self.frontier_len,
            &self.pages,
            &self.barriers,
            &self.label,
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
    let fences = &columns.chains;
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![
        &fences.namespace,
        &fences.run_id,
        &fences.epoch,
        &fences.nonce,
        &fences.step,
        &fences.digest,
        &fences.next_seq,
        &fences.new_step,
        &fences.new_digest,
        &fences.rows,
        &fences.used_us,
        &fences.flags,
        &running,
        &succeeded,
    ];
    let Columns { steps, pages, journal, outbox, .. } = &columns;
    if needs.steps {
        values.extend(steps.values());
    }
    if needs.pages {
        values.extend::<[&(dyn ToSql + Sync); 4]>([&pages.n, &pages.step, &pages.page, &pages.items]);
    }
    if needs.journal {
        values.extend::<[&(dyn ToSql + Sync); 7]>([
            &journal.n,
            &journal.seq,
            &journal.base,
            &journal.step,
            &journal.path_hash,
            &journal.entry,
            &journal.sum,
        ]);
    }
    if needs.outbox {
        values.extend::<[&(dyn ToSql + Sync); 8]>([
            &outbox.n,
            &outbox.step,
            &outbox.position,
            &outbox.topic,
            &outbox.key,
            &outbox.payload,
            &outbox.channel,
            &outbox.channel_topic,
        ]);
    }
    client.query(statement, &values).await
}
