//! MySQL or MariaDB alone.
//!
//! Invariant: as that of `postgres`.

use super::{BODY, commit_all, measure, scattered};
use crate::{Result, meter::Tally};
use mysql_async::{Conn, Opts, Row, Statement, Value, prelude::Queryable};
use std::sync::Arc;
use tokio::sync::Mutex;

async fn connect(url: &str) -> Result<Conn> {
    let mut connection = Conn::new(Opts::from_url(url)?).await?;
    connection.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    Ok(connection)
}

/// Commits of one row each.
pub(super) async fn inserts(url: &str, commits: u64, connections: u64) -> Result<()> {
    let table = "CREATE TABLE bare_rows (id BIGINT AUTO_INCREMENT PRIMARY KEY, body VARBINARY(255) NOT NULL) \
                 ENGINE = InnoDB";
    connect(url).await?.query_drop(table).await?;
    let mut open = vec![];
    for _ in 0..connections {
        let mut connection = connect(url).await?;
        let insert = connection.prep("INSERT INTO bare_rows (body) VALUES (?)").await?;
        open.push((connection, insert));
    }
    measure(commits, open, |tally, commits, (connection, insert)| {
        insert_all(tally, commits, connection, insert)
    })
    .await
}

async fn insert_all(tally: Arc<Tally>, commits: u64, connection: Conn, insert: Statement) -> Result<()> {
    let connection = Mutex::new(connection);
    let commit = async || {
        connection.lock().await.exec_drop(&insert, (BODY.as_slice(),)).await?;
        Ok(())
    };
    commit_all(&tally, commits, commit).await
}

const FENCE: &str = "UPDATE hapax_runs SET step_id = ?, digest = ?, next_seq = next_seq + 0, used_us = ?, \
     updated_at = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) WHERE namespace = ? AND run_id = ? \
     AND epoch = ? AND nonce = ? AND step_id = ? AND digest = ? AND next_seq = ?";
const KEY: &str = "INSERT INTO hapax_keys (namespace, run_id, step_key, step_id) VALUES (?, ?, ?, ?)";
const CHECKPOINT: &str = "INSERT INTO hapax_checkpoints (namespace, run_id, step_id, step_key, digest, io, outbox, seed, \
     next_seq, state_version, state_kind, state_base, state, frontier, frontier_len, pages, barriers, label, created_at) \
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
     CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED))";
/// The run, and one of its steps as it is stored.
const TEMPLATE: &str = "SELECT r.namespace, r.run_id, r.epoch, r.nonce, r.step_id, r.digest, r.next_seq, c.io, c.outbox, \
     c.seed, c.state_version, c.state_kind, c.state_base, c.state, c.frontier, c.frontier_len, c.pages, c.barriers, \
     c.label FROM hapax_runs AS r JOIN hapax_checkpoints AS c USING (namespace, run_id) \
     WHERE r.graph = 'fill' AND c.step_id = r.step_id DIV 2";

/// The statements of a step and its COMMIT, on the run that is there.
pub(super) async fn steps(url: &str, commits: u64) -> Result<()> {
    let mut connection = connect(url).await?;
    let template: Option<Row> = connection.query_first(TEMPLATE).await?;
    let template = template.ok_or("the database holds no run: `fill 1 40` makes one")?;
    connection.query_drop("SET autocommit = 0").await?;
    let bare = BareSteps {
        fence: connection.prep(FENCE).await?,
        key: connection.prep(KEY).await?,
        checkpoint: connection.prep(CHECKPOINT).await?,
        number: template.get("step_id").ok_or("a run has a step")?,
        digest: value(&template, "digest"),
        template,
        connection,
    };
    measure(commits, vec![bare], |tally, commits, bare| async move {
        let bare = Mutex::new(bare);
        commit_all(&tally, commits, async || bare.lock().await.commit().await).await
    })
    .await
}

fn value(row: &Row, name: &str) -> Value {
    row.get(name).unwrap_or(Value::NULL)
}

/// The statements of a step, prepared once, and where the run stands.
struct BareSteps {
    connection: Conn,
    fence: Statement,
    key: Statement,
    checkpoint: Statement,
    template: Row,
    number: i64,
    digest: Value,
}

impl BareSteps {
    async fn commit(&mut self) -> Result<()> {
        let kept = |name: &str| value(&self.template, name);
        let (namespace, run, next_seq) = (kept("namespace"), kept("run_id"), kept("next_seq"));
        let (before, number) = (self.number, self.number + 1);
        let (next, key): (Value, Value) =
            (scattered(number, 1).to_vec().into(), scattered(number, 2).to_vec().into());
        let demands: Vec<Value> = vec![
            number.into(),
            next.clone(),
            (number * 50).into(),
            namespace.clone(),
            run.clone(),
            kept("epoch"),
            kept("nonce"),
            before.into(),
            self.digest.clone(),
            next_seq.clone(),
        ];
        let mut checkpoint: Vec<Value> =
            vec![namespace.clone(), run.clone(), number.into(), key.clone(), next.clone()];
        checkpoint.extend(["io", "outbox", "seed"].map(kept));
        checkpoint.push(next_seq);
        checkpoint.extend(["state_version", "state_kind", "state_base", "state", "frontier"].map(kept));
        checkpoint.extend(["frontier_len", "pages", "barriers", "label"].map(kept));
        self.connection.exec_drop(&self.fence, demands).await?;
        if self.connection.affected_rows() != 1 {
            return Err("the bare fence refused".into());
        }
        self.connection.exec_drop(&self.key, vec![namespace, run, key, number.into()]).await?;
        self.connection.exec_drop(&self.checkpoint, checkpoint).await?;
        self.connection.query_drop("COMMIT").await?;
        (self.number, self.digest) = (number, next);
        Ok(())
    }
}
