//! W3: one item forks into many, which are merged into one state that a last item sees.

use super::{close, open};
use crate::{
    Result,
    args::Drive,
    meter::{Meter, Tally, extra, transactions},
};
use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const FORK: Node = Node::new("fork");
const ITEM: Node<u64> = Node::new("item");
const GATHER: Node = Node::new("gather");

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Fan {
    items: u64,
    #[state(sum)]
    total: u64,
    gathered: u64,
}
type Ctx = hapax::Ctx<Fan, Arc<Tally>>;

async fn fork(ctx: Ctx) -> Outcome<Fan> {
    Fan::delta().fork((0..ctx.state().items).map(|n| ITEM.with(n)))
}

async fn item(ctx: Ctx, n: u64) -> FanDelta {
    ctx.app().tick();
    Fan::delta().total(n)
}

async fn gather(ctx: Ctx) -> FanDelta {
    Fan::delta().gathered(ctx.state().total)
}

pub(super) async fn run(drive: &Drive, items: u64) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(items));
    let graph =
        Graph::new("w3", 1, FORK).node(FORK, fork).node(ITEM, item).node(GATHER, gather).edge(ITEM, GATHER);
    let flow = engine.register(graph, tally.clone()).await?;
    let (store, before) = (engine.store(), engine.store().stats());
    let meter = Meter::begin(tally);
    let begin = Fan { items, ..Fan::default() };
    let end = flow.start("w3", begin).await?.wait().await?;
    let extra = extra("items", "between the starts of two items");
    meter.end(items, transactions(before, store.stats()), extra);
    close(&engine).await;
    if end.gathered != items * (items - 1) / 2 {
        return Err(format!("{items} items add up to {}", end.gathered).into());
    }
    Ok(())
}
