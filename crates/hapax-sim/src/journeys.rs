//! The work that is killed while it does everything that is recorded: reads that never answer twice the same, a payment
//! whose answer never comes, letters, timers, a child, lanes, retries, a loop and messages.
//!
//! Invariant: everything that a journey asks of the outside carries the journey's name and a word for the place in the
//! code, so that the ledger's log alone tells whether one place had two keys.

use crate::kills::{Report, Reporter, ledger};
use hapax::{Call, Child, NodePolicy, core::limits::SHORT_WAIT, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// How often a journey goes round its loop.
pub const ROUNDS: u32 = 2;
/// The letters that a journey takes, in this order, each once however often it is sent.
pub const LETTERS: [u32; 2] = [1, 2];
/// The signal that brings them.
pub const GO: &str = "go";
/// Where messages go.
pub const NEWS: &str = "news";
/// One journey in so many sleeps long enough to be parked.
const SLEEPER: u32 = 6;
/// Attempts of a node whose call fails at first: one more than it needs, for each of many lives.
const ATTEMPTS: u32 = 50;

/// A journey.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Journey {
    /// Its name, which is its run's name too.
    pub id: String,
    /// Its number.
    pub number: u32,
    /// What a read told that can't be repeated.
    pub price: u64,
    /// How it was paid: `card` or `invoice`.
    pub paid_by: String,
    /// The letters, as they were taken.
    #[state(append)]
    pub letters: Vec<u32>,
    /// What the outside party answered, by place.
    #[state(merge)]
    pub receipts: BTreeMap<String, String>,
    /// How often it went round.
    #[state(sum)]
    pub rounds: u32,
}

/// A part of a journey, a run of its own.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leg {
    /// The journey.
    pub journey: String,
    /// What the outside party answered.
    pub receipt: String,
}

/// What the nodes need.
#[derive(Debug, Clone)]
pub struct Agency {
    /// The outside party's address.
    pub ledger: PathBuf,
    /// Who hears of bodies that begin and end.
    pub reports: Arc<Reporter>,
}

type Ctx = hapax::Ctx<Journey, Agency>;

const BOOK: Node = Node::new("book");
const PAY: Node = Node::new("pay");
const WAIT: Node = Node::new("wait");
const RIDE: Node = Node::new("ride");
const VISIT: Node = Node::new("visit");
const MEND: Node = Node::new("mend");
const PACK: Node = Node::new("pack");
const HOME: Node = Node::new("home");
const LEG: Node = Node::new("leg");
const LEGS: Child<Leg> = Child::new("legs");

/// The journey of this number, before its first step.
pub fn journey(number: u32) -> Journey {
    Journey { id: format!("journey-{number:04}"), number, ..Journey::default() }
}

/// The places at which a journey calls the outside, given how it was paid.
pub fn places(paid_by: &str) -> BTreeSet<String> {
    // The card is asked in any case: that its answer never came is why there is an invoice.
    let fixed = ["book", "card", "leg", "left", "right", "before", "shaky", "after"];
    let labels = (0..ROUNDS).map(|round| format!("label {round}"));
    let invoice = (paid_by == "invoice").then(|| "invoice".to_owned());
    fixed.into_iter().map(str::to_owned).chain(labels).chain(invoice).collect()
}

/// What a journey tells, in order.
pub fn messages(paid_by: &str) -> Vec<String> {
    [format!("paid by {paid_by}")]
        .into_iter()
        .chain((0..ROUNDS).map(|round| format!("packed {round}")))
        .collect()
}

/// The graph of a journey.
pub fn graph() -> Graph<Journey, Agency> {
    let again = Retry::standard().attempts(ATTEMPTS).backoff(|_| Duration::ZERO);
    Graph::new("journeys", 1, BOOK)
        .node(BOOK, book)
        .node(PAY, pay)
        .node(WAIT, wait)
        .node(RIDE, ride)
        .node(VISIT, visit)
        .node(MEND, mend)
        .node(PACK, pack)
        .node(HOME, home)
        .policy(MEND, NodePolicy::default().retry(again))
        .edge(BOOK, PAY)
        .edge(PAY, WAIT)
        .edge(WAIT, RIDE)
        .edge(RIDE, VISIT)
        .edge(RIDE, MEND)
        .join((VISIT, MEND), PACK)
        .edge_if(PACK, PACK, "more", |journey: &Journey| journey.rounds < ROUNDS)
        .edge_if(PACK, HOME, "all packed", |journey: &Journey| journey.rounds >= ROUNDS)
}

/// The graph of a leg.
pub fn legs() -> Graph<Leg, Agency> {
    Graph::new("legs", 1, LEG).node(LEG, leg)
}

/// A price that is never the same twice, the time and a fresh id: the booking rests on all of them.
async fn book(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let price = agency.look(&mut ctx).await?;
    let (at, id) = (format!("{:?}", ctx.now()), ctx.uuid());
    let receipt = agency.write(&mut ctx, "book", &json!({ "price": price, "at": at, "id": id })).await?;
    Ok(Journey::delta().price(price).receipts("book".to_owned(), receipt))
}

/// The card is charged, and the answer never comes: so an invoice is written. Whoever asks for the card once more gets an
/// answer, and would decide otherwise.
async fn pay(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let cents = json!({ "cents": ctx.state().price });
    let (paid_by, receipt) = match agency.write_in_vain(&mut ctx, "card", &cents).await {
        Ok(receipt) => ("card", receipt),
        Err(_) => ("invoice", agency.write(&mut ctx, "invoice", &cents).await?),
    };
    ctx.emit(NEWS, "", &format!("paid by {paid_by}"))?;
    Ok(Journey::delta().paid_by(paid_by).receipts(paid_by.to_owned(), receipt))
}

async fn wait(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let first: u32 = ctx.signal(GO).await?;
    let is_long = ctx.state().number.is_multiple_of(SLEEPER);
    ctx.sleep(if is_long { SHORT_WAIT + Duration::from_millis(20) } else { Duration::from_millis(1) })
        .await?;
    let second: u32 = ctx.signal(GO).await?;
    Ok(Journey::delta().letters(first).letters(second))
}

async fn ride(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let journey = ctx.state().id.clone();
    let run = format!("{journey}-leg");
    let leg = ctx.child(LEGS, &run, &Leg { journey, receipt: String::new() }).await?;
    Ok(Journey::delta().receipts("leg".to_owned(), leg.receipt))
}

async fn leg(mut ctx: hapax::Ctx<Leg, Agency>) -> hapax::Result<LegDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let request = json!({ "journey": ctx.state().journey, "place": "leg" });
    let call = async |call: Call| ledger::call(&agency.ledger, call.key(), &request).await;
    let receipt: String = ctx.effect("leg", Write, &request, call).await?;
    agency.reports.say(&Report::Saw(receipt.clone()));
    Ok(Leg::delta().receipt(receipt))
}

/// Two lanes at once: each looks, draws, and writes what it saw.
async fn visit(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let lane = async |mut lane: Ctx, place: &'static str| {
        let seen = agency.look(&mut lane).await?;
        let draw = lane.random() >> 20;
        agency.write(&mut lane, place, &json!({ "seen": seen, "draw": draw })).await
    };
    let (left, right) = (ctx.scope("left"), ctx.scope("right"));
    let (left, right) = futures::join!(lane(left, "left"), lane(right, "right"));
    Ok(Journey::delta().receipts("left".to_owned(), left?).receipts("right".to_owned(), right?))
}

/// Calls before and after one that fails at first: only that one is made again.
async fn mend(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let seen = agency.look(&mut ctx).await?;
    let before = agency.write(&mut ctx, "before", &json!({ "seen": seen })).await?;
    let shaky = agency.write_in_vain(&mut ctx, "shaky", &json!({ "behind": before })).await?;
    let after = agency.write(&mut ctx, "after", &json!({ "behind": shaky })).await?;
    let receipts = [("before", before), ("shaky", shaky), ("after", after)];
    Ok(receipts
        .into_iter()
        .fold(Journey::delta(), |delta, (place, receipt)| delta.receipts(place.to_owned(), receipt)))
}

async fn pack(mut ctx: Ctx) -> hapax::Result<JourneyDelta> {
    let agency = ctx.app();
    let _body = agency.reports.body();
    let round = ctx.state().rounds;
    let place = format!("label {round}");
    let receipt = agency.write(&mut ctx, &place, &json!({})).await?;
    ctx.emit(NEWS, "", &format!("packed {round}"))?;
    Ok(Journey::delta().rounds(1u32).receipts(place, receipt))
}

async fn home(ctx: Ctx) {
    let agency = ctx.app();
    let _body = agency.reports.body();
}

impl Agency {
    async fn look(&self, ctx: &mut Ctx) -> hapax::Result<u64> {
        Ok(ctx.effect("look", Read, "?", async |_| ledger::look(&self.ledger).await).await?)
    }

    async fn write(&self, ctx: &mut Ctx, place: &str, what: &Value) -> hapax::Result<String> {
        let request = request(ctx, place, what);
        let call = async |call: Call| ledger::call(&self.ledger, call.key(), &request).await;
        let receipt = ctx.effect(place, Write, &request, call).await?;
        Ok(self.saw(receipt))
    }

    async fn write_in_vain(&self, ctx: &mut Ctx, place: &str, what: &Value) -> hapax::Result<String> {
        let request = request(ctx, place, what);
        let call = async |call: Call| ledger::call_in_vain(&self.ledger, call.key(), &request).await;
        let receipt = ctx.effect(place, Write, &request, call).await?;
        Ok(self.saw(receipt))
    }

    fn saw(&self, receipt: String) -> String {
        self.reports.say(&Report::Saw(receipt.clone()));
        receipt
    }
}

fn request(ctx: &Ctx, place: &str, what: &Value) -> Value {
    json!({ "journey": ctx.state().id, "place": place, "what": what })
}
