//! Who sends, the relay's sink under observation, and what must be true of all that arrived.

use futures::future::BoxFuture;
use hapax::{
    Ctx, Engine, Flow,
    core::{
        id::{Namespace, RunId, RunKey},
        json::Json,
    },
    outbox::{Delivery, Relay, RelayOptions, Sink, SinkError},
    prelude::*,
    store::outbox::{MessageState, OutboxFilter, OutboxRecord},
};
use hapax_servers::{Proxy, Server};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::block_in_place};

/// How many messages a run sends to each topic.
pub(crate) const EACH: u64 = 8;
/// How often it is seen whether anything can still come.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What takes so long never comes.
const GIVE_UP: Duration = Duration::from_secs(60);
/// How long sinks wait here: so short that a test needn't wait long for their impatience.
pub(crate) const IMPATIENT: Duration = Duration::from_millis(400);

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Order {
    done: bool,
}

const SEND: Node = Node::new("send");

/// Sends numbers to each topic, by turns.
async fn send(mut ctx: Ctx<Order, Arc<Vec<String>>>) -> hapax::Result<OrderDelta> {
    let topics = ctx.app().clone();
    for number in 0..EACH {
        for topic in topics.iter() {
            ctx.emit(topic, "key", &number)?;
        }
    }
    Ok(Order::delta().done(true))
}

/// An engine whose runs send to some topics.
pub(crate) struct Shop {
    pub(crate) engine: Engine,
    flow: Flow<Order, Arc<Vec<String>>>,
    topics: Arc<Vec<String>>,
}

impl Shop {
    pub(crate) async fn open(topics: &[&str]) -> Self {
        let engine = Engine::open("memory:").await.unwrap();
        let topics: Arc<Vec<String>> = Arc::new(topics.iter().map(|topic| (*topic).to_owned()).collect());
        let flow =
            engine.register(Graph::new("sends", 1, SEND).node(SEND, send), topics.clone()).await.unwrap();
        Self { engine, flow, topics }
    }

    /// A run that has sent its messages.
    pub(crate) async fn sell(&self, run: &str) {
        self.flow.start(run, Order::default()).await.unwrap().wait().await.unwrap();
    }

    /// How many messages a run sends.
    pub(crate) fn per_run(&self) -> usize {
        self.topics.len() * EACH as usize
    }

    pub(crate) async fn in_state(&self, state: MessageState) -> Vec<OutboxRecord> {
        in_state(&self.engine, state).await
    }

    pub(crate) fn relay<S: Sink>(&self, options: RelayOptions, sink: S) -> (Relay, Watch) {
        let watch = Watch::new(self.engine.clone());
        let watched = Watched { sink, watch: watch.clone() };
        (self.engine.relay(options, watched).unwrap(), watch)
    }
}

async fn in_state(engine: &Engine, state: MessageState) -> Vec<OutboxRecord> {
    let filter = OutboxFilter { states: vec![state], limit: usize::MAX, ..OutboxFilter::default() };
    engine.outbox(filter).await.unwrap()
}

/// A relay that tries again soon, and soon takes a message for poison.
pub(crate) fn eager() -> RelayOptions {
    let poll = Duration::from_millis(20);
    RelayOptions::default().poll_interval(poll).backoff(|_| Duration::from_millis(1)).max_attempts(2)
}

/// What a relay's sink was asked and answered.
#[derive(Clone)]
pub(crate) struct Watch {
    engine: Engine,
    /// The ids that were acknowledged, with their topics.
    taken: watch::Sender<BTreeMap<String, String>>,
    /// Deliveries that failed, as they said.
    failed: watch::Sender<Vec<String>>,
    /// From so many on no more is delivered.
    most: watch::Sender<usize>,
}

impl Watch {
    fn new(engine: Engine) -> Self {
        let (taken, failed, most) = (BTreeMap::new(), vec![], usize::MAX);
        Self {
            engine,
            taken: watch::Sender::new(taken),
            failed: watch::Sender::new(failed),
            most: watch::Sender::new(most),
        }
    }

    /// Waits for news that must come one day. It doesn't come any more once no message waits: then something was lost.
    async fn until<T: std::fmt::Debug>(&self, news: &watch::Sender<T>, holds: impl Fn(&T) -> bool) {
        let mut heard = news.subscribe();
        let came = async {
            while tokio::time::timeout(LOOK_AGAIN, heard.wait_for(&holds)).await.is_err() {
                let nothing_waits = in_state(&self.engine, MessageState::Pending).await.is_empty();
                assert!(
                    !nothing_waits || holds(&*news.borrow()),
                    "nothing waits any more: {:?}",
                    news.borrow()
                );
            }
        };
        let in_time = tokio::time::timeout(GIVE_UP, came).await.is_ok();
        assert!(in_time, "it never came: {:?}", news.borrow());
    }

    pub(crate) async fn until_taken(&self, messages: usize) {
        self.until(&self.taken, |taken| taken.len() >= messages).await;
    }

    /// Waits until so many messages to a topic have been taken.
    pub(crate) async fn until_sent(&self, topic: &str, messages: usize) {
        let to = |taken: &BTreeMap<String, String>| taken.values().filter(|other| *other == topic).count();
        self.until(&self.taken, |taken| to(taken) >= messages).await;
    }

    /// Waits for a failure after those that have been seen.
    pub(crate) async fn until_failed(&self, seen: usize) {
        self.until(&self.failed, |failed| failed.len() > seen).await;
    }

    /// Waits until so many failures have said these words.
    pub(crate) async fn until_said(&self, words: &str, times: usize) {
        let said = |failed: &Vec<String>| failed.iter().filter(|text| text.contains(words)).count() >= times;
        self.until(&self.failed, said).await;
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        self.failed.borrow().clone()
    }

    fn hold_after(&self, messages: usize) {
        self.most.send_replace(messages);
    }
}

struct Watched<S> {
    sink: S,
    watch: Watch,
}

impl<S: Sink> Sink for Watched<S> {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let held = |most: &usize| self.watch.taken.borrow().len() < *most;
            self.watch.most.subscribe().wait_for(held).await.unwrap();
            let published = self.sink.publish(message).await;
            match &published {
                Ok(()) => self
                    .watch
                    .taken
                    .send_modify(|taken| drop(taken.insert(message.id.clone(), message.topic.clone()))),
                Err(error) => self.watch.failed.send_modify(|failed| failed.push(error.to_string())),
            }
            published
        })
    }
}

/// How often all troubles come.
pub(crate) fn rounds() -> usize {
    if std::env::var_os("HAPAX_LONG").is_some() { 10 } else { 1 }
}

/// What may befall a broker and the way to it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble<'a> {
    /// SIGKILL, and a start on the same data.
    Kill,
    /// SIGSTOP: nothing is answered, then all of it.
    Freeze,
    /// All connections break.
    Cut,
    /// What is asked arrives, and no answer comes back.
    NoReplies,
    /// Nothing arrives.
    NoRequests,
    /// The answer to what has these words comes late.
    Late(&'a str),
}

/// A run's messages are under way when the trouble comes; all of them arrive.
pub(crate) async fn befall(
    shop: &Shop,
    watch: &Watch,
    server: &mut Server,
    proxy: &Proxy,
    trouble: Trouble<'_>,
) {
    let (taken, failed) = (watch.taken.borrow().len(), watch.failures().len());
    watch.hold_after(taken + 3);
    shop.sell(&format!("order {taken}")).await;
    watch.until_taken(taken + 3).await;
    begin(server, proxy, trouble);
    watch.hold_after(usize::MAX);
    watch.until_failed(failed).await;
    end(server, proxy, trouble);
    watch.until_taken(taken + shop.per_run()).await;
}

fn begin(server: &mut Server, proxy: &Proxy, trouble: Trouble<'_>) {
    match trouble {
        Trouble::Kill => block_in_place(|| server.kill().unwrap()),
        Trouble::Freeze => server.stop().unwrap(),
        // Whoever connects again at once finds that nothing passes: so the failure is seen.
        Trouble::Cut => {
            proxy.swallow_requests(0);
            proxy.cut();
        }
        Trouble::NoReplies => proxy.swallow_replies(1),
        Trouble::NoRequests => proxy.swallow_requests(1),
        Trouble::Late(words) => proxy.hold_reply(words),
    }
}

fn end(server: &mut Server, proxy: &Proxy, trouble: Trouble<'_>) {
    match trouble {
        Trouble::Kill => block_in_place(|| server.restart().unwrap()),
        Trouble::Freeze => server.cont().unwrap(),
        Trouble::Late(_) => {
            block_in_place(|| proxy.wait_for_hold());
            proxy.release();
        }
        Trouble::Cut | Trouble::NoReplies | Trouble::NoRequests => {
            block_in_place(|| proxy.wait_for_loss());
            proxy.pass();
            proxy.cut();
        }
    }
}

/// A message as a receiver has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Told {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) run: String,
    pub(crate) number: u64,
}

/// From the names of headers to their values, and a body.
pub(crate) fn told(id: &str, header: impl Fn(&str) -> String, body: &[u8]) -> Told {
    let number = serde_json::from_slice::<Value>(body).unwrap().as_u64().unwrap();
    Told { id: id.to_owned(), topic: header("hapax-topic"), run: header("hapax-run"), number }
}

/// Everything that the shop sent has arrived; what came first came in order; and what came again had the same id.
pub(crate) async fn assert_whole(shop: &Shop, arrived: &[Told]) {
    let sent = shop.in_state(MessageState::Sent).await;
    assert!(
        shop.in_state(MessageState::Pending).await.is_empty()
            && shop.in_state(MessageState::Dead).await.is_empty()
    );
    let mut firsts: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    let mut known: BTreeMap<&str, &Told> = BTreeMap::new();
    for told in arrived {
        match known.insert(&told.id, told) {
            Some(earlier) => assert_eq!(earlier, told, "another message under the same id"),
            None => firsts.entry((told.run.clone(), told.topic.clone())).or_default().push(told.number),
        }
    }
    let expected: BTreeSet<String> = sent.iter().map(OutboxRecord::id).collect();
    let got: BTreeSet<String> = known.keys().map(|id| (*id).to_owned()).collect();
    assert_eq!(got, expected, "something was lost, or came from nowhere");
    for (channel, numbers) in firsts {
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "{channel:?}");
    }
}

/// A message made by hand.
pub(crate) fn message(topic: &str, number: u64) -> Delivery {
    let run = RunKey { namespace: Namespace::default(), run: RunId::new("order").unwrap() };
    let made = Delivery::new(&format!("msg:{number}"), run, 1, Json::of(&number).unwrap());
    Delivery { topic: topic.into(), key: "key".into(), ..made }
}
