//! PostgreSQL alone.
//!
//! Invariant: the tables of the bare steps are the store's own, in a database that `fill 1 STEPS` has made; what is written to
//! them is what a step of that run wrote, so a limit can't fall behind what it limits.

use super::{BODY, commit_all, measure, scattered};
use crate::{Result, meter::Tally};
use std::sync::Arc;
use tokio_postgres::{Client, NoTls, Row, Statement};

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // It ends with its client, who is told why.
    tokio::spawn(connection);
    client.batch_execute("SET plan_cache_mode = 'force_generic_plan'").await?;
    Ok(client)
}

/// Commits of one row each.
pub(super) async fn inserts(url: &str, commits: u64, connections: u64) -> Result<()> {
    let table = "CREATE TABLE bare_rows (id BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)";
    connect(url).await?.batch_execute(table).await?;
    let mut open = vec![];
    for _ in 0..connections {
        let client = connect(url).await?;
        let insert = client.prepare("INSERT INTO bare_rows (body) VALUES ($1)").await?;
        open.push((client, insert));
    }
    measure(commits, open, |tally, commits, (client, insert)| insert_all(tally, commits, client, insert))
        .await
}

async fn insert_all(tally: Arc<Tally>, commits: u64, client: Client, insert: Statement) -> Result<()> {
    let commit = async || {
        client.execute(&insert, &[&BODY.as_slice()]).await?;
        Ok(())
    };
    commit_all(&tally, commits, commit).await
}

const STEP: &str = "WITH fence AS (UPDATE hapax_runs SET step_id = $1::int8, digest = $2::bytea, next_seq = next_seq + 0, \
     used_us = $3, updated_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint \
     WHERE namespace = $4 AND run_id = $5 AND epoch = $6 AND nonce = $7 AND step_id = $1::int8 - 1 AND digest = $8 \
     AND next_seq = $9::int8 RETURNING namespace, run_id), \
     keys AS (INSERT INTO hapax_keys (namespace, run_id, step_key, step_id) \
     SELECT namespace, run_id, $10::bytea, $1::int8 FROM fence), \
     checkpoints AS (INSERT INTO hapax_checkpoints (namespace, run_id, step_id, step_key, digest, io, outbox, seed, \
     next_seq, state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, label, created_at) \
     SELECT namespace, run_id, $1::int8, $10::bytea, $2::bytea, $11::bytea, $12::bytea, $13::int8, $9::int8, $14::int8, $15::int8, \
     $16::int8, $17::bytea, $18::bytea, $19::int8, $20::bytea, $21::bytea, $22::text, \
     (extract(epoch from clock_timestamp()) * 1000000)::bigint FROM fence) SELECT 1 FROM fence";

/// The run, and one of its steps as it is stored.
const TEMPLATE: &str = "SELECT r.namespace, r.run_id, r.epoch, r.nonce, r.step_id, r.digest, r.next_seq, c.io, c.outbox, \
     c.seed, c.state_version, c.state_kind, c.state_base, c.state, c.frontier, c.frontier_len, c.pages, c.barriers, \
     c.label FROM hapax_runs AS r JOIN hapax_checkpoints AS c USING (namespace, run_id) \
     WHERE r.graph = 'fill' AND c.step_id = r.step_id / 2";

/// The statement of a step, on the run that is there.
pub(super) async fn steps(url: &str, commits: u64) -> Result<()> {
    let client = connect(url).await?;
    let template = client.query_one(TEMPLATE, &[]).await?;
    let step = client.prepare(STEP).await?;
    measure(commits, vec![(client, step, template)], |tally, commits, (client, step, template)| {
        step_all(tally, commits, client, step, template)
    })
    .await
}

async fn step_all(
    tally: Arc<Tally>,
    commits: u64,
    client: Client,
    statement: Statement,
    template: Row,
) -> Result<()> {
    let first: i64 = template.get("step_id");
    let mut digest: Vec<u8> = template.get("digest");
    let mut number = first;
    let commit = || {
        number += 1;
        let next = scattered(number, 1).to_vec();
        let before = std::mem::replace(&mut digest, next.clone());
        write(&client, &statement, &template, number, (before, next))
    };
    commit_all(&tally, commits, commit).await
}

async fn write(
    client: &Client,
    statement: &Statement,
    template: &Row,
    number: i64,
    (before, next): (Vec<u8>, Vec<u8>),
) -> Result<()> {
    let text = |name| template.get::<_, &str>(name);
    let int = |name| template.get::<_, i64>(name);
    let bytes = |name| template.get::<_, &[u8]>(name);
    let key = scattered(number, 2).to_vec();
    let written = client
        .execute(
            statement,
            &[
                &number,
                &next,
                &(number * 50),
                &text("namespace"),
                &text("run_id"),
                &int("epoch"),
                &bytes("nonce"),
                &before,
                &int("next_seq"),
                &key,
                &bytes("io"),
                &bytes("outbox"),
                &int("seed"),
                &int("state_version"),
                &int("state_kind"),
                &template.get::<_, Option<i64>>("state_base"),
                &bytes("state"),
                &bytes("frontier"),
                &int("frontier_len"),
                &bytes("pages"),
                &template.get::<_, Option<&[u8]>>("barriers"),
                &template.get::<_, Option<&str>>("label"),
            ],
        )
        .await?;
    if written == 1 { Ok(()) } else { Err("the bare fence refused".into()) }
}
