//! Transfers of runs: so many in each step, so many runs at a time.

use super::{CENTS, Statements, accounts, statements, timed};
use crate::{Result, args::Drive, meter::Tally, workloads};
use futures::{StreamExt, TryStreamExt, stream};
use hapax::{
    Db, Flow,
    prelude::*,
    store::{
        StoreStats,
        db::{Kind, Strategy, TxOptions},
    },
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const BANK: Db = Db("bank");
const STEP: Node = Node::new("transfer");

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Batch {
    #[state(sum)]
    done: u64,
    of: u64,
    run: u64,
    runs: u64,
    left: i64,
}

/// What all transfers share.
struct Shared {
    tally: Arc<Tally>,
    kind: Kind,
    statements: Statements,
    strategy: Strategy,
    /// Transfers in each step.
    each: u64,
}

async fn step(mut ctx: hapax::Ctx<Batch, Arc<Shared>>) -> hapax::Result<BatchDelta> {
    let (batch, shared) = (ctx.state().clone(), ctx.app().clone());
    let count = shared.each.min(batch.of - batch.done);
    let mut left = 0;
    for number in batch.done..batch.done + count {
        left = transfer(&mut ctx, &shared, batch.run + number * batch.runs).await?;
    }
    Ok(Batch::delta().done(count).left(left))
}

async fn transfer(
    ctx: &mut hapax::Ctx<Batch, Arc<Shared>>,
    shared: &Shared,
    number: u64,
) -> Result<i64, hapax::EffectError> {
    let (giver, taker) = accounts(number);
    let options = TxOptions { strategy: Some(shared.strategy), ..TxOptions::default() };
    let Statements { take, give, note, read } = shared.statements;
    let is_postgres = shared.kind == Kind::Postgres;
    let transfer = ctx.transaction_with(&BANK, "transfer", options, async |tx| {
        if is_postgres {
            tx.execute(take, &[&giver, &CENTS]).await?;
            tx.execute(give, &[&taker, &CENTS]).await?;
        } else {
            tx.execute(take, &[&CENTS, &giver]).await?;
            tx.execute(give, &[&CENTS, &taker]).await?;
        }
        tx.execute(note, &[&giver, &-CENTS]).await?;
        tx.execute(note, &[&taker, &CENTS]).await?;
        tx.query_one::<i64>(read, &[&giver]).await
    });
    timed(&shared.tally, transfer).await
}

pub(super) struct Durable {
    engine: Engine,
    flow: Flow<Batch, Arc<Shared>>,
}

impl Durable {
    pub(super) async fn open(
        drive: &Drive,
        bank: &str,
        (kind, strategy, each): (Kind, Strategy, u64),
        tally: Arc<Tally>,
    ) -> Result<Self> {
        let builder = Engine::builder().options(workloads::options(drive)).database(BANK.0, bank);
        let engine = builder.open(&drive.store).await?;
        let graph = Graph::new("transfers", 1, STEP)
            .node(STEP, step)
            .edge_if(STEP, STEP, "more", |batch: &Batch| batch.done < batch.of)
            .end(STEP);
        let shared = Arc::new(Shared { tally, kind, statements: statements(kind), strategy, each });
        let flow = engine.register(graph, shared).await?;
        Ok(Self { engine, flow })
    }

    pub(super) async fn transfer(&self, name: &str, count: u64, in_flight: u64) -> Result<()> {
        let each = count / in_flight;
        let runs = stream::iter(0..in_flight).map(async |run| {
            let batch = Batch { of: each, run, runs: in_flight, ..Batch::default() };
            self.flow.start(&format!("{name}-{run}"), batch).await?.wait().await.map(drop)
        });
        runs.buffer_unordered(in_flight as usize).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    pub(super) fn stats(&self) -> StoreStats {
        self.engine.store().stats()
    }

    pub(super) async fn close(self) {
        workloads::close(&self.engine).await;
    }
}
