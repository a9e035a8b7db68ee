//! A process may die, or lose an answer, at any call to its store, while it sends and while it delivers: every message is
//! written once, delivered at least once with one id, and never ahead of an earlier one. One that nobody takes is dead after
//! its attempts, holds up no other, and is delivered once an operator asks for it.

use futures::future::BoxFuture;
use hapax::{
    Durability::{self, Pipelined, Strict},
    Engine,
    outbox::{Delivery, RelayOptions, Sink, SinkError},
    prelude::*,
};
use hapax_core::outbox::Place;
use hapax_sim::{
    stores::{Kind, open, quick_runtime},
    world::lock,
};
use hapax_store::{
    Store,
    faulty::{Fault, Faulty},
    outbox::{MessageState, OutboxFilter, OutboxRecord},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Order {
    #[state(append)]
    log: Vec<String>,
}

const BEGIN: Node = Node::new("begin");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");
const END: Node = Node::new("end");

type Ctx = hapax::Ctx<Order>;

async fn begin(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    ctx.emit("mail", "", "begun")?;
    ctx.emit("bus", "k", "begun")?;
    ctx.emit("post", "", "poison")?;
    ctx.emit("post", "", "parcel")?;
    Ok(Order::delta().log("begun"))
}

/// Fails at first, with a message that must not leave.
async fn left(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    ctx.emit("mail", "", "left")?;
    if ctx.attempt() == 1 {
        ctx.emit("mail", "", "never")?;
        return Err(NodeError::new("not yet"));
    }
    Ok(Order::delta().log("left"))
}

/// Sends before and after a call whose record a crash keeps.
async fn right(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    ctx.emit("mail", "", "right")?;
    let answer: String = ctx.effect("ask", Write, "?", async |_| Ok::<_, NodeError>("!".to_owned())).await?;
    ctx.emit("bus", "k", &answer)?;
    Ok(Order::delta().log("right"))
}

async fn end(mut ctx: Ctx) -> hapax::Result<OrderDelta> {
    ctx.emit("mail", "", "ended")?;
    Ok(Order::delta().log("ended"))
}

fn graph() -> Graph<Order> {
    let retry = NodePolicy::default().retry(Retry::standard().backoff(|_| Duration::ZERO));
    Graph::new("orders", 1, BEGIN)
        .node(BEGIN, begin)
        .node(LEFT, left)
        .node(RIGHT, right)
        .node(END, end)
        .edge(BEGIN, LEFT)
        .edge(BEGIN, RIGHT)
        .join((LEFT, RIGHT), END)
        .policy(LEFT, retry)
}

/// What arrived, in order; the first delivery to `bus` is refused, and poison until it is mended.
#[derive(Clone, Default)]
struct Outside {
    arrived: Arc<Mutex<Vec<Delivery>>>,
    refused: Arc<Mutex<Vec<String>>>,
    mended: Arc<AtomicBool>,
}

impl Outside {
    fn refuses(&self, message: &Delivery) -> bool {
        let mut refused = lock(&self.refused);
        let poison = message.payload.as_str() == POISON && !self.mended.load(Ordering::SeqCst);
        let refuses = poison || (message.topic == "bus" && !refused.contains(&message.topic));
        if refuses {
            refused.push(message.topic.clone());
        }
        refuses
    }

    /// An operator finds the poison dead, after all of its attempts, and nothing else; and mends what ails it.
    fn mend(&self, dead: &[OutboxRecord]) {
        if self.mended.swap(true, Ordering::SeqCst) {
            return;
        }
        let texts: Vec<_> = dead.iter().map(|record| record.message.payload.as_str()).collect();
        assert_eq!(texts, [POISON]);
        let tries = lock(&self.refused).iter().filter(|topic| *topic == "post").count();
        assert!(tries >= ATTEMPTS as usize, "dead after {tries} tries");
    }
}

impl Sink for Outside {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            if self.refuses(message) {
                return Err(SinkError::refused("not this time"));
            }
            lock(&self.arrived).push(message.clone());
            Ok(())
        })
    }
}

/// What no sink takes.
const POISON: &str = "\"poison\"";
/// How often it is tried.
const ATTEMPTS: u32 = 2;

/// Claims end soon after their process, and nothing but the test takes work up.
const SOON: Duration = Duration::from_millis(20);

fn relaying() -> RelayOptions {
    RelayOptions::default().claim_ttl(SOON).backoff(|_| Duration::ZERO).max_attempts(ATTEMPTS)
}

/// Works until the run is over and nothing waits to be delivered.
async fn work(store: Arc<dyn Store>, healthy: Arc<dyn Store>, outside: Outside, durability: Durability) {
    let options = Options::default().durability(durability).finds_work(false).lease_ttl(SOON);
    let engine = Engine::builder().options(options).with_store(store);
    let flow = engine.register(graph(), ()).await.expect("a sound graph");
    loop {
        // Whatever was lost on the way is asked for again; a lease that nobody uses any more ends by itself.
        let begun = flow.start("run", Order::default()).await.is_ok() && engine.resume("run").await.is_ok();
        if begun && engine.wait("run").await.is_ok() {
            break;
        }
        tokio::task::yield_now().await;
    }
    deliver(&engine, &*healthy, &outside).await;
    outside.mend(&messages(&*healthy, MessageState::Dead).await);
    while engine.retry_dead("run").await.is_err() {
        tokio::task::yield_now().await;
    }
    deliver(&engine, &*healthy, &outside).await;
}

/// Delivers until nothing waits.
async fn deliver(engine: &Engine, healthy: &dyn Store, outside: &Outside) {
    while !messages(healthy, MessageState::Pending).await.is_empty() {
        // A lost answer is no loss: the next round asks again.
        let _ = engine.deliver(relaying(), outside).await;
        tokio::task::yield_now().await;
    }
}

async fn messages(healthy: &dyn Store, state: MessageState) -> Vec<OutboxRecord> {
    let filter = OutboxFilter { states: vec![state], ..OutboxFilter::default() };
    healthy.outbox().list(filter).await.expect("the store itself is well")
}

type Rows = Vec<(Place, String, String, &'static str)>;

/// What is left of a case: the rows, and what arrived.
fn left_by(kind: Kind, durability: Durability, fault: Option<(u64, Fault)>) -> (Rows, Vec<Delivery>, bool) {
    let opened = open(kind);
    let outside = Outside::default();
    let (at, what) = fault.unwrap_or((u64::MAX, Fault::Before));
    let faulty = Faulty::new(opened.store.clone(), at, what);
    let died = quick_runtime().block_on(async {
        tokio::select! {
            biased;
            () = faulty.dead() => true,
            () = work(faulty.clone(), opened.store.clone(), outside.clone(), durability) => false,
        }
    });
    if died {
        let (store, outside) = (opened.store.clone(), outside.clone());
        quick_runtime().block_on(work(store.clone(), store, outside, durability));
    }
    let list = opened.store.outbox().list(OutboxFilter::default());
    let rows = quick_runtime().block_on(list).expect("the store itself is well");
    let row = |record: &OutboxRecord| {
        let text = record.message.payload.as_str().to_owned();
        (record.place, record.message.topic.clone(), text, record.state.word())
    };
    let arrived = lock(&outside.arrived).clone();
    for message in &arrived {
        let ids: Vec<String> = rows.iter().map(OutboxRecord::id).collect();
        assert!(ids.contains(&message.id), "{message:?} was never written");
    }
    (rows.iter().map(row).collect(), arrived, faulty.fired())
}

/// The first deliveries of each topic, in order.
fn first_deliveries(arrived: &[Delivery]) -> BTreeMap<String, Vec<(String, String)>> {
    let mut firsts = BTreeMap::<String, Vec<(String, String)>>::new();
    for message in arrived {
        let topic = firsts.entry(message.topic.clone()).or_default();
        let seen = (message.id.clone(), message.payload.as_str().to_owned());
        if !topic.contains(&seen) {
            topic.push(seen);
        }
    }
    firsts
}

fn every_boundary(kind: Kind, durability: Durability, what: Fault) {
    let (rows, arrived, _) = left_by(kind, durability, None);
    let texts = |topic: &str| -> Vec<String> {
        rows.iter().filter(|row| row.1 == topic).map(|row| row.2.clone()).collect()
    };
    let mut mail = texts("mail");
    assert_eq!((mail.remove(0), mail.pop()), ("\"begun\"".to_owned(), Some("\"ended\"".to_owned())));
    mail.sort();
    assert_eq!(
        (mail, texts("bus")),
        (vec!["\"left\"".into(), "\"right\"".into()], vec!["\"begun\"".into(), "\"!\"".into()])
    );
    assert!(rows.iter().all(|row| row.3 == "sent") && arrived.len() == rows.len());
    let firsts = first_deliveries(&arrived);
    let post: Vec<&str> = firsts["post"].iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(post, ["\"parcel\"", POISON], "it leaves its order, and holds up nothing");
    let mut boundaries = 0;
    loop {
        let (again, arrived, fired) = left_by(kind, durability, Some((boundaries, what)));
        assert_eq!(
            again, rows,
            "{kind:?} {durability:?} {what:?} at call {boundaries}: one row for each emit"
        );
        assert_eq!(
            first_deliveries(&arrived),
            firsts,
            "{kind:?} {durability:?} {what:?} at call {boundaries}"
        );
        if !fired {
            break;
        }
        boundaries += 1;
    }
    println!("{kind:?} {durability:?} {what:?}: {boundaries} boundaries");
    assert!(boundaries > 12, "sending and delivering take more calls than {boundaries}");
}

#[test]
fn a_crash_before_any_call_loses_and_reorders_no_message() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        for durability in [Strict, Pipelined] {
            every_boundary(kind, durability, Fault::Before);
        }
    }
}

#[test]
fn a_crash_after_any_call_loses_and_reorders_no_message() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        for durability in [Strict, Pipelined] {
            every_boundary(kind, durability, Fault::After);
        }
    }
}

#[test]
fn a_lost_reply_to_any_call_loses_and_reorders_no_message() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        for durability in [Strict, Pipelined] {
            every_boundary(kind, durability, Fault::LoseReply);
        }
    }
}
