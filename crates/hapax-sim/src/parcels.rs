//! Runs that are moved while they are under way: parcels that are packed, wait for a word, get a stamp and are shipped.
//!
//! Invariant: each parcel makes the same calls to the outside, each with a key of its own, wherever it is by then.

use crate::kills::ledger;
use hapax::{core::id::Namespace, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{path::PathBuf, sync::Arc};

/// The signal that a parcel waits for.
pub const GO: &str = "go";

/// Each parcel of such a number gets its stamp from a child.
const STAMPED: u32 = 5;

/// A parcel.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parcel {
    /// Its number.
    pub number: u32,
    /// What the outside answered, in order.
    #[state(append)]
    pub receipts: Vec<String>,
}

/// A stamp for a parcel.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    /// The parcel's number.
    pub number: u32,
    /// What the outside answered.
    pub receipt: String,
}

/// What the nodes need: the outside party's address.
#[derive(Debug)]
pub struct Office(pub PathBuf);

const PACK: Node = Node::new("pack");
const WAIT: Node = Node::new("wait");
const SHIP: Node = Node::new("ship");
const STAMP: Node = Node::new("stamp");

/// The graph of the stamps.
pub const STAMPS: hapax::Child<Stamp> = hapax::Child::new("stamps");

/// The name of a parcel's run.
pub fn name(number: u32) -> String {
    format!("parcel-{number:04}")
}

/// The name of the run that stamps it, if one does.
pub fn stamp_of(number: u32) -> Option<String> {
    number.is_multiple_of(STAMPED).then(|| format!("{}-stamp", name(number)))
}

/// The calls that so many parcels make.
pub fn calls(parcels: u32) -> usize {
    (0..parcels).map(|number| 2 + usize::from(stamp_of(number).is_some())).sum()
}

/// The graph of a parcel.
pub fn graph() -> Graph<Parcel, Office> {
    Graph::new("parcels", 1, PACK)
        .node(PACK, pack)
        .node(WAIT, wait)
        .node(SHIP, ship)
        .edge(PACK, WAIT)
        .edge(WAIT, SHIP)
}

/// The graph of a stamp.
pub fn stamps() -> Graph<Stamp, Office> {
    Graph::new("stamps", 1, STAMP).node(STAMP, stamp)
}

async fn call<S: State>(ctx: &mut hapax::Ctx<S, Office>, what: &str, number: u32) -> hapax::Result<String> {
    let (office, request) = (ctx.app(), json!({ what: number }));
    let call = async |call: hapax::Call| ledger::call(&office.0, call.key(), &request).await;
    Ok(ctx.effect(what, Write, &request, call).await?)
}

async fn pack(mut ctx: hapax::Ctx<Parcel, Office>) -> hapax::Result<ParcelDelta> {
    let number = ctx.state().number;
    Ok(Parcel::delta().receipts(call(&mut ctx, "pack", number).await?))
}

async fn wait(mut ctx: hapax::Ctx<Parcel, Office>) -> hapax::Result<ParcelDelta> {
    let number: u32 = ctx.signal(GO).await?;
    let Some(run) = stamp_of(number) else { return Ok(Parcel::delta()) };
    let stamp = ctx.child(STAMPS, &run, &Stamp { number, receipt: String::new() }).await?;
    Ok(Parcel::delta().receipts(stamp.receipt))
}

async fn stamp(mut ctx: hapax::Ctx<Stamp, Office>) -> hapax::Result<StampDelta> {
    let number = ctx.state().number;
    Ok(Stamp::delta().receipt(call(&mut ctx, "stamp", number).await?))
}

async fn ship(mut ctx: hapax::Ctx<Parcel, Office>) -> hapax::Result<ParcelDelta> {
    let number = ctx.state().number;
    Ok(Parcel::delta().receipts(call(&mut ctx, "ship", number).await?))
}

/// The parcels of a store, of the tenant that they all have.
pub async fn listed(store: &Arc<dyn hapax::store::Store>) -> hapax::Result<Vec<hapax::store::RunRecord>> {
    let filter = hapax::store::ListFilter {
        namespace: Namespace::default(),
        limit: usize::MAX,
        ..hapax::store::ListFilter::default()
    };
    Ok(store.list(filter).await?)
}
