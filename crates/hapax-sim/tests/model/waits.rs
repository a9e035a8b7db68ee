//! Every store-call boundary of a run that reads, writes, sleeps, is signalled, asks and has a child: whatever fails there,
//! the run ends as it would have, and the outside sees each call under one key.

use hapax::{
    Child, Coded, Durability, EffectError, Options, Question, State, core::error::code, prelude::*,
    store::faulty::Fault, testing::Lab,
};
use hapax_sim::boundaries::{Place, cut_short, pass_slowly, runtime};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Trip {
    #[state(append)]
    log: Vec<String>,
}

const BOOK: Node = Node::new("book");
const WAIT: Node = Node::new("wait");
const PAY: Node = Node::new("pay");
const HOTEL: Child<Trip> = Child::new("hotel");
const RESERVE: Node = Node::new("reserve");

/// The outside: each key takes effect once, and every read has another answer.
#[derive(Clone, Default)]
struct Outside(Arc<Mutex<(BTreeMap<String, String>, u64)>>);

impl Outside {
    fn read(&self) -> Result<u64, NodeError> {
        let mut outside = self.0.lock().unwrap();
        outside.1 += 1;
        Ok(outside.1)
    }

    /// Takes effect under its key: the same request again is the same effect.
    fn write(&self, key: &str, request: &str) -> Result<String, NodeError> {
        let mut outside = self.0.lock().unwrap();
        let known = outside.0.entry(key.to_owned()).or_insert_with(|| request.to_owned());
        assert_eq!(known, request, "one key for two requests");
        Ok(request.to_owned())
    }

    fn effects(&self) -> usize {
        self.0.lock().unwrap().0.len()
    }
}

type Ctx = hapax::Ctx<Trip, Outside>;

/// A read whose answer is never the same feeds a write.
async fn book(mut ctx: Ctx) -> Result<TripDelta, EffectError> {
    let outside = ctx.app();
    let fare = ctx.effect("fare", Read, "Athens", async |_| outside.read()).await?;
    let request = format!("seat at {fare}");
    let seat = ctx.effect("book", Write, &request, async |call| outside.write(call.key(), &request)).await?;
    Ok(Trip::delta().log(seat.split(' ').next().unwrap_or_default()))
}

/// Every kind of wait in one node: each waking runs it from its start.
async fn wait(mut ctx: Ctx) -> Result<TripDelta, EffectError> {
    let before = ctx.now();
    ctx.sleep(Duration::from_secs(86_400)).await?;
    let days = ctx.now().duration_since(before).unwrap_or_default().as_secs() / 86_400;
    let who: String = ctx.signal("passport").await?;
    let colour: String = ctx.ask("colour", Question::new("Which?")).await?;
    let hotel = ctx.child(HOTEL, "hotel-1", &Trip::default()).await?;
    Ok(Trip::delta().log(format!("{days} {who} {colour} {}", hotel.log.join("+"))))
}

async fn pay(mut ctx: Ctx) -> Result<TripDelta, EffectError> {
    let outside = ctx.app();
    let paid = ctx.effect("pay", Write, "all", async |call| outside.write(call.key(), "all")).await?;
    Ok(Trip::delta().log(paid))
}

async fn reserve(mut ctx: Ctx) -> Result<TripDelta, EffectError> {
    let outside = ctx.app();
    let bed = ctx.effect("reserve", Write, "bed", async |call| outside.write(call.key(), "bed")).await?;
    Ok(Trip::delta().log(bed))
}

/// One life of a process: until the run is over, or the store is dead.
async fn live(lab: &Lab, outside: &Outside, desk: &Engine) -> Result<Trip, hapax::Error> {
    let engine = lab.engine();
    let hotel = Graph::new("hotel", 1, RESERVE).node(RESERVE, reserve);
    engine.register(hotel, outside.clone()).await?;
    let trips = Graph::new("trips", 1, BOOK)
        .node(BOOK, book)
        .node(WAIT, wait)
        .node(PAY, pay)
        .edge(BOOK, WAIT)
        .edge(WAIT, PAY);
    let trips = engine.register(trips, outside.clone()).await?;
    let run = insist(async || trips.start("trip-1", Trip::default()).await).await?;
    insist(async || engine.signal_as("trip-1", "passport-1", "passport", "Ada").await).await?;
    let clock = desk.store().clock();
    tokio::select! {
        ended = async { tokio::try_join!(lab.finish(&run), answer(desk)) } => ended.map(|(trip, ())| trip),
        () = pass_slowly(&clock) => unreachable!("time passes for ever"),
    }
}

/// Answers the question as soon as it is asked: another process, which looks at the store by itself.
async fn answer(desk: &Engine) -> Result<(), hapax::Error> {
    loop {
        match desk.answer("trip-1", "colour", "blue").await {
            Err(error) if error.code() == code::NO_QUESTION => {}
            Err(error) if error.code() == code::ALREADY_FINISHED => return Ok(()),
            answered => return answered,
        }
        tokio::task::yield_now().await;
    }
}

/// Asks again when the answer was lost.
async fn insist<T>(ask: impl AsyncFn() -> Result<T, hapax::Error>) -> Result<T, hapax::Error> {
    loop {
        match ask().await {
            Err(error) if error.code() == code::STORE_UNKNOWN => {}
            answer => return answer,
        }
    }
}

/// Lives twice: the first time with a fault, the second time until the run is over. Whether the fault was reached.
fn with_fault(place: &Place, durability: Durability, at: u64, fault: Fault) -> bool {
    let (outside, options) = (Outside::default(), Options::default().durability(durability));
    let (fired, _) = cut_short(place, &options, (at, fault), async |lab, _| {
        // What it comes to is seen in the second life.
        let _ = live(lab, &outside, &place.desk().await).await;
    });
    let trip = runtime().block_on(async {
        let lab = Lab::on(place.open().await, options);
        let trip = live(&lab, &outside, &place.desk().await)
            .await
            .unwrap_or_else(|error| panic!("{fault:?} at {at}: {error}"));
        lab.engine().shutdown(Duration::from_secs(5)).await;
        trip
    });
    assert_eq!(trip.log, ["seat", "1 Ada blue bed", "all"], "{fault:?} at {at}");
    assert_eq!(outside.effects(), 3, "{fault:?} at {at}: one seat, one bed, one payment");
    fired
}

hapax_sim::every_boundary!(with_fault);
