//! Every store-call boundary of a run that reads, writes, sleeps, is signalled, asks and has a child: whatever fails there,
//! the run ends as it would have, and the outside sees each call under one key.

use hapax::{
    Child, Coded, Durability, EffectError, Options, Question, State,
    core::error::code,
    prelude::*,
    store::{
        Clock, MemoryStore, Store,
        faulty::{Fault, Faulty},
        sqlite::{SqliteOptions, SqliteStore},
    },
    testing::Lab,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::Path,
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
    // A day at the least: on a slow machine the clock goes on before the node has looked at it again.
    let days = (ctx.now().duration_since(before).unwrap_or_default().as_secs() / 86_400).min(1);
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
    tokio::select! {
        ended = async { tokio::try_join!(lab.finish(&run), answer(desk)) } => ended.map(|(trip, ())| trip),
        () = time(desk.store().clock()) => unreachable!("time passes for ever"),
    }
}

/// Lets time pass, slowly, so that a claim whose answer was lost comes to its end.
async fn time(clock: Clock) {
    loop {
        for _ in 0..20_000 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(20));
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

/// A store in which every life begins.
enum Place<'f> {
    Memory(Arc<MemoryStore>),
    File(&'f Path, Clock),
}

impl Place<'_> {
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Place::Memory(store) => store.clone(),
            Place::File(path, clock) => {
                let options = SqliteOptions::default().clock(clock.clone());
                SqliteStore::open(path, options).await.unwrap()
            }
        }
    }
}

impl Place<'_> {
    /// A process beside, which only talks to runs.
    async fn desk(&self) -> Engine {
        Engine::builder().options(Options::default().finds_work(false)).with_store(self.open().await)
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Lives twice: the first time with a fault, the second time until the run is over. Whether the fault was reached.
fn with_fault(place: &Place<'_>, durability: Durability, at: u64, fault: Fault) -> bool {
    let (outside, options) = (Outside::default(), Options::default().durability(durability));
    let first = runtime();
    let (fired, clock) = first.block_on(async {
        let store = place.open().await;
        let clock = store.clock();
        let faulty = Faulty::new(store, at, fault);
        let lab = Lab::on(faulty.clone(), options.clone());
        let desk = place.desk().await;
        tokio::select! {
            _ = live(&lab, &outside, &desk) => {}
            () = faulty.dead() => {}
        }
        (faulty.fired(), clock)
    });
    first.shutdown_timeout(Duration::from_secs(10));
    // Whatever the dead process held is free.
    clock.advance(Duration::from_secs(3600));
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

fn every_boundary(durability: Durability, fault: Fault, on_file: bool) {
    let folder = tempfile::tempdir().unwrap();
    for at in 0.. {
        let path = folder.path().join(format!("{at}.db"));
        let place = if on_file {
            Place::File(&path, Clock::manual())
        } else {
            Place::Memory(MemoryStore::with_clock(Clock::manual()))
        };
        if !with_fault(&place, durability, at, fault) {
            assert!(at > 20, "only {at} boundaries");
            return;
        }
    }
}

macro_rules! boundaries {
    ($($name:ident: $durability:ident, $fault:ident, $on_file:literal;)*) => {
        $(#[test]
        fn $name() {
            every_boundary(Durability::$durability, Fault::$fault, $on_file);
        })*
    };
}

boundaries! {
    dying_before_a_call_in_memory_strict: Strict, Before, false;
    dying_after_a_call_in_memory_strict: Strict, After, false;
    losing_a_reply_in_memory_strict: Strict, LoseReply, false;
    dying_before_a_call_in_memory: Pipelined, Before, false;
    dying_after_a_call_in_memory: Pipelined, After, false;
    losing_a_reply_in_memory: Pipelined, LoseReply, false;
    dying_before_a_call_on_sqlite_strict: Strict, Before, true;
    dying_after_a_call_on_sqlite_strict: Strict, After, true;
    losing_a_reply_on_sqlite_strict: Strict, LoseReply, true;
    dying_before_a_call_on_sqlite: Pipelined, Before, true;
    dying_after_a_call_on_sqlite: Pipelined, After, true;
    losing_a_reply_on_sqlite: Pipelined, LoseReply, true;
}
