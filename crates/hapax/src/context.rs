//! What a node sees: its state, its resources, and the recorded way to the outside.

use crate::{
    child::Child,
    effects::{Begun, EffectFuture, code_of},
    error::EffectError,
    item::{Attempt, Live},
    question::Question,
    stream::UnderWay,
    trail::{end, within},
};
use hapax_core::{
    error::{Coded, code},
    flow::Rate,
    id::{NodeId, RunId, check_name},
    journal::{ASK, EffectKind, SLEEP, VERSION},
    limits, mailbox,
    order::{OrderKey, PathHash},
    rng::Rng,
    state::State,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A node's view of its run. Every recorded call takes `&mut self`, so calls are numbered by the borrow checker;
/// [`Ctx::scope`] makes lanes for concurrency.
///
/// ```
/// use hapax::prelude::*;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { cents: u64, receipt: Option<String> }
/// struct Shop { currency: String } // what nodes need and no checkpoint may hold
///
/// async fn charge(mut ctx: hapax::Ctx<Order, Shop>) -> hapax::Result<OrderDelta> {
///     let (order, shop) = (ctx.state(), ctx.app());
///     let request = (order.cents, &shop.currency);
///     let call = async |call: hapax::Call| pay(call.key(), order.cents).await;
///     let receipt = ctx.effect("charge", Write, &request, call).await?;
///     Ok(Order::delta().receipt(receipt))
/// }
/// # async fn pay(key: &str, cents: u64) -> std::io::Result<String> { Ok(format!("{cents} for {key}")) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # const CHARGE: Node = Node::new("charge");
/// # let (engine, shop) = (Engine::open("memory:").await?, Shop { currency: "EUR".into() });
/// # let orders = engine.register(Graph::new("orders", 1, CHARGE).node(CHARGE, charge), shop).await?;
/// # let order = orders.start("order-42", Order { cents: 4200, receipt: None }).await?.wait().await?;
/// # assert!(order.receipt.is_some_and(|receipt| receipt.starts_with("4200 for fx:")));
/// # Ok(())
/// # }
/// ```
pub struct Ctx<S, A = ()> {
    state: Arc<S>,
    app: Arc<A>,
    attempt: Arc<Attempt>,
    scope: Arc<str>,
    calls: u32,
    rng: Option<Rng>,
}

impl<S, A> fmt::Debug for Ctx<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let item = &self.attempt.item;
        write!(f, "Ctx({} step {} {} attempt {})", item.run, item.step, item.node, self.attempt.number)
    }
}

impl<S: State, A: Send + Sync + 'static> Ctx<S, A> {
    pub(crate) fn new(state: Arc<S>, app: Arc<A>, attempt: Arc<Attempt>) -> Self {
        Self { state, app, attempt, scope: "".into(), calls: 0, rng: None }
    }

    /// The state before this step: the same for all items of the step.
    pub fn state(&self) -> Arc<S> {
        self.state.clone()
    }

    /// What nodes need and no checkpoint may hold: clients, pools, settings.
    pub fn app(&self) -> Arc<A> {
        self.app.clone()
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        &self.attempt.item.run.run
    }

    /// The step whose frontier holds this item.
    pub fn step_id(&self) -> u64 {
        self.attempt.item.step
    }

    /// This node.
    pub fn node_id(&self) -> &NodeId {
        &self.attempt.item.node
    }

    /// Where this item sorts in its step.
    pub fn order_key(&self) -> OrderKey {
        self.attempt.item.order_key
    }

    /// What identifies this item in its step.
    pub fn path_hash(&self) -> PathHash {
        self.attempt.item.path_hash
    }

    /// This attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt.number
    }

    /// When this attempt is dropped: the node's own limit or the run's, whichever comes first. What it waits for a store
    /// that stands still is added to its own.
    pub fn deadline(&self) -> Instant {
        self.attempt.deadline
    }

    /// Cancelled when the run is; a node that doesn't heed it is dropped after `cancel_grace`.
    pub fn cancelled(&self) -> CancellationToken {
        let live = self.attempt.item.live.as_ref();
        live.map_or_else(CancellationToken::new, |live| live.gate.halted().child_token())
    }

    /// Draws that are the same on every attempt, after every crash and in every replay.
    pub fn rng(&mut self) -> &mut Rng {
        let (item, scope) = (&self.attempt.item, &self.scope);
        self.rng.get_or_insert_with(|| {
            let rng = Rng::for_item(item.seed, item.step, item.path_hash, scope);
            self.attempt.counts(scope, rng.drawn());
            rng
        })
    }

    /// A named lane with calls of its own: the way to run effects of one node side by side. A name can be used
    /// once in an attempt, and holds no `/`.
    ///
    /// ```
    /// # use hapax::prelude::*;
    /// # use serde::{Serialize, Deserialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Quotes { #[state(append)] quotes: Vec<u64> }
    /// # async fn ask(shop: &str, _key: &str) -> Result<u64, std::io::Error> { Ok(shop.len() as u64) }
    /// async fn quote(mut ctx: hapax::Ctx<Quotes>) -> hapax::Result<QuotesDelta> {
    ///     let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
    ///     let (a, b) = tokio::join!(
    ///         left.effect("ask", Write, "left", async |call| ask("left", call.key()).await),
    ///         right.effect("ask", Write, "right", async |call| ask("right", call.key()).await),
    ///     );
    ///     Ok(Quotes::delta().quotes(a?).quotes(b?))
    /// }
    /// # let _ = quote;
    /// ```
    pub fn scope(&mut self, name: impl fmt::Display) -> Self {
        let scope = self.attempt.open_scope(&self.scope, &name.to_string());
        let (state, app, attempt) = (self.state(), self.app(), self.attempt.clone());
        Self { state, app, attempt, scope, calls: 0, rng: None }
    }

    /// Calls the outside, recorded: once an answer is recorded, no attempt and no crash repeats the call.
    ///
    /// A `write` gets the same key on every attempt; its intent is durable before the call, its result before
    /// the node sees it. A failed call is recorded as well; the next attempt of the node calls again.
    pub async fn effect<Q, T, E, F>(
        &mut self,
        name: &str,
        kind: EffectKind,
        request: &Q,
        call: F,
    ) -> Result<T, EffectError>
    where
        Q: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(Call) -> Result<T, E>,
    {
        self.effect_as(name, kind, Manner::default(), request, call).await
    }

    /// As [`Ctx::effect`], for a call that may have a key of its own, or wait for its turn.
    pub(crate) async fn effect_as<Q, T, E, F>(
        &mut self,
        name: &str,
        kind: EffectKind,
        manner: Manner<'_>,
        request: &Q,
        call: F,
    ) -> Result<T, EffectError>
    where
        Q: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(Call) -> Result<T, E>,
    {
        let site = next_call(&self.attempt, &self.scope, &mut self.calls, name, kind);
        let asked_as_command = manner.key.is_some();
        let asked = site.ask_as(manner.key, request)?;
        if let Some(recorded) = asked.recorded {
            return site.recall(recorded).await;
        }
        if let Some(rate) = manner.rate {
            site.turn(&asked, rate).await;
        }
        match site.begin(asked).await {
            Begun::Told(outcome) => site.replay(outcome),
            Begun::Go(key, asked, _busy) => {
                if let Some(scripted) = site.scripted(&key, request) {
                    return site.finish(asked, scripted).await;
                }
                let under_way = UnderWay::new(site.scope, site.index);
                let ending = under_way.ending();
                let open = site.open(asked_as_command);
                let traced = open.as_ref().map(|open| open.traced().clone());
                let traceparent = traced.as_ref().map(|traced| traced.traceparent(traced.id()).into());
                let call = call(Call { key, attempt: site.attempt.clone(), under_way, traceparent });
                let outcome = within(traced.as_ref(), call).await;
                drop(ending);
                end(open, &outcome, code_of);
                site.end(asked, outcome).await
            }
        }
    }

    /// Where the next call is made.
    pub(crate) fn site(&mut self) -> (&Arc<Attempt>, &Arc<str>, &mut u32) {
        (&self.attempt, &self.scope, &mut self.calls)
    }

    /// The way to the outside; `None` in a replay.
    pub(crate) fn live(&self) -> Option<&Live> {
        self.attempt.item.live.as_ref()
    }

    /// The run with its namespace.
    pub(crate) fn run_key(&self) -> &hapax_core::id::RunKey {
        &self.attempt.item.run
    }

    #[cfg(feature = "http")]
    pub(crate) fn clock(&self) -> hapax_store::Clock {
        let live = self.attempt.item.live.as_ref();
        live.map_or_else(hapax_store::Clock::system, |live| live.shared.clock.clone())
    }

    /// The time, the same on every attempt and in every replay.
    pub fn now(&mut self) -> SystemTime {
        let us: i64 = self.seen("hapax.now").note(0, Live::now_us);
        UNIX_EPOCH + Duration::from_micros(us.try_into().unwrap_or(0))
    }

    /// A fresh UUID (version 7), the same on every attempt and in every replay.
    pub fn uuid(&mut self) -> Uuid {
        self.seen("hapax.uuid").note(Uuid::nil(), |_| Uuid::now_v7())
    }

    /// Which side of a change of this node's code this item is on, for good: `max`, unless an earlier execution of it
    /// came past this place before the change was there; then `min`.
    ///
    /// So changed calls can be deployed while runs are in flight: an item that began under the old code goes on with it.
    /// It isn't one of the node's numbered calls. An item whose version is below `min` or above `max` fails: the code that
    /// it needs is gone, or not there yet.
    ///
    /// ```
    /// # use hapax::prelude::*;
    /// # use serde::{Serialize, Deserialize};
    /// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
    /// # struct Order { quote: u64 }
    /// # async fn old(_sku: &str) -> std::io::Result<u64> { Ok(1) }
    /// # async fn new(_sku: &str) -> std::io::Result<u64> { Ok(2) }
    /// async fn quote(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
    ///     let cents: u64 = match ctx.version("quotes-by-post", 1, 2)? {
    ///         1 => ctx.effect("quote", Read, "anvil", async |_| old("anvil").await).await?,
    ///         _ => ctx.effect("quote-v2", Read, "anvil", async |_| new("anvil").await).await?,
    ///     };
    ///     Ok(Order::delta().quote(cents))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # const QUOTE: Node = Node::new("quote");
    /// # let engine = Engine::open("memory:").await?;
    /// # let orders = engine.register(Graph::new("orders", 1, QUOTE).node(QUOTE, quote), ()).await?;
    /// assert_eq!(orders.start("order-42", Order::default()).await?.wait().await?.quote, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn version(&mut self, change: &str, min: u32, max: u32) -> Result<u32, EffectError> {
        // No lane can have this path: a name holds no `/`, and isn't empty.
        let scope: Arc<str> = format!("{}//{change}", self.scope).into();
        let went_on = self.attempt.went_on(&self.scope, self.calls);
        next_call(&self.attempt, &scope, &mut 0, VERSION, EffectKind::Read).version(change, went_on, min, max)
    }

    /// The next of this lane's random numbers; see [`Ctx::rng`].
    pub fn random(&mut self) -> u64 {
        self.rng().next_u64()
    }

    /// Sleeps, durably: a crash doesn't begin it anew, and a long one costs neither a task nor memory. The node's
    /// future is dropped; on waking the node runs from its start, and sees what it saw.
    pub async fn sleep(&mut self, duration: Duration) -> Result<(), EffectError> {
        if duration > limits::MAX_WAIT {
            let message = format!("{duration:?} is longer than a century; store a date and check it instead");
            return Err(EffectError::fatal(SLEEP, code::BAD_DURATION, message));
        }
        self.seen(SLEEP).sleep(duration).await
    }

    /// Waits for a signal, parked: see [`Engine::signal`](crate::Engine::signal). Signals of one name are taken in the
    /// order in which they came, each once; one that came before it was asked for isn't lost.
    pub async fn signal<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, EffectError> {
        let call = self.seen("hapax.signal");
        check_name("signal", name).map_err(|error| call.error(error.code(), error.to_string(), false))?;
        call.letter(mailbox::signal(name)).await
    }

    /// Sends a message, with the step's own commit: when the step is durable so is the message, and a relay delivers it
    /// ([`Engine::relay`](crate::Engine::relay)). A failed attempt sends nothing, and a repeated one sends once.
    ///
    /// A node's messages leave in the order of its calls, those of its lanes after its own, by the lane's name. The topic
    /// is a name; the key, which may be empty, is for the receiver's partitions.
    ///
    /// See [`Sink`](crate::outbox::Sink) for an example.
    pub fn emit<T: Serialize + ?Sized>(
        &mut self,
        topic: &str,
        key: &str,
        payload: &T,
    ) -> Result<(), EffectError> {
        self.attempt.emit(&self.scope, topic, key, payload)
    }

    /// Shows a chunk to whoever watches the run ([`Engine::tail`](crate::Engine::tail), `hapax tail`): once it and all
    /// that the item saw before are durable, and in the order of the calls. Doesn't wait for the disk, but for room.
    ///
    /// Nothing rests on a chunk. An item that is executed again, after a failure, a crash or a wait, streams again, and
    /// readers are told that the chunks before are superseded. A replay shows nothing.
    ///
    /// ```
    /// use hapax::{StreamEvent, prelude::*};
    /// # use serde::{Serialize, Deserialize};
    /// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
    /// # struct Report { pages: u32 }
    /// # const PRINT: Node = Node::new("print");
    /// async fn print(mut ctx: hapax::Ctx<Report>) -> hapax::Result<ReportDelta> {
    ///     for page in 1..=3 {
    ///         ctx.stream(&format!("page {page} of 3")).await?;
    ///     }
    ///     Ok(Report::delta().pages(3u32))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = Engine::open("memory:").await?;
    /// # let graph = Graph::new("reports", 1, PRINT).node(PRINT, print);
    /// # let reports = engine.register(graph, ()).await?;
    /// reports.start("report-1", Report::default()).await?;
    /// let mut tail = engine.tail("report-1");
    /// let mut seen = vec![];
    /// while let Some(event) = tail.next().await? {
    ///     if let StreamEvent::Chunk(chunk) = event {
    ///         seen.push(chunk.payload.read::<String>()?);
    ///     }
    /// }
    /// assert_eq!(seen, ["page 1 of 3", "page 2 of 3", "page 3 of 3"]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stream<T: Serialize + ?Sized>(&mut self, chunk: &T) -> Result<(), EffectError> {
        self.attempt.stream(None, chunk).await
    }

    /// Asks a person, and waits for the answer, parked: see [`Engine::inbox`](crate::Engine::inbox) and
    /// [`Engine::answer`](crate::Engine::answer).
    ///
    /// See [`Question`] for an example.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        name: &str,
        question: Question,
    ) -> Result<T, EffectError> {
        self.seen(ASK).question(name, question).await
    }

    /// Starts a run of another graph, once, and waits for its end, parked: its final state, or its failure. The graph
    /// must be registered with the same engine. When this run is cancelled, so is the child.
    ///
    /// See [`Child`] for an example.
    pub async fn child<C: State>(&mut self, child: Child<C>, run: &str, state: &C) -> Result<C, EffectError> {
        let site = next_call(&self.attempt, &self.scope, &mut self.calls, "hapax.child", EffectKind::Child);
        site.child(child, run, state).await
    }

    fn seen(&mut self, name: &'static str) -> EffectFuture<'_> {
        next_call(&self.attempt, &self.scope, &mut self.calls, name, EffectKind::Read)
    }
}

/// What a call has that others haven't.
#[derive(Default)]
pub(crate) struct Manner<'m> {
    /// A key of its own.
    pub(crate) key: Option<&'m str>,
    /// The bucket in which it waits for its turn.
    pub(crate) rate: Option<&'m Rate>,
}

/// The lane's next call.
pub(crate) fn next_call<'a>(
    attempt: &'a Arc<Attempt>,
    scope: &'a Arc<str>,
    calls: &mut u32,
    name: &'a str,
    kind: EffectKind,
) -> EffectFuture<'a> {
    let index = *calls;
    *calls += 1;
    EffectFuture { attempt, scope, index, name, kind }
}

/// What the closure of an effect gets.
///
/// ```
/// use hapax::{Call, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # use std::{io, sync::Mutex, time::Duration};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// struct Bank(Mutex<Vec<String>>); // the keys that it has seen
///
/// async fn pay(mut ctx: hapax::Ctx<Order, Bank>) -> hapax::Result<OrderDelta> {
///     let bank = ctx.app();
///     let charge = async |call: Call| {
///         let mut seen = bank.0.lock().unwrap();
///         seen.push(call.key().to_owned());
///         if seen.len() == 1 { Err(io::Error::other("connection lost")) } else { Ok(()) }
///     };
///     ctx.effect("charge", Write, &4200, charge).await?;
///     Ok(Order::delta().paid(true))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
/// # let graph = Graph::new("orders", 1, PAY).node(PAY, pay).policy(PAY, twice);
/// # let orders = Engine::open("memory:").await?.register(graph, Bank(Mutex::default())).await?;
/// # orders.start("order-42", Order::default()).await?.wait().await?;
/// let seen = orders.app().0.lock().unwrap();
/// assert_eq!((seen.len(), &seen[0]), (2, &seen[1]), "it can tell that they are one charge");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Call {
    key: Arc<str>,
    attempt: Arc<Attempt>,
    under_way: UnderWay,
    traceparent: Option<Arc<str>>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({})", self.key)
    }
}

impl Call {
    /// Shows a chunk to whoever watches the run while the call is under way, such as the words of a model as they come.
    ///
    /// As [`Ctx::stream`], but the chunks are the call's: they count as long as its answer does. Once that is recorded
    /// the call isn't made again, so a crash, a later attempt and a wait leave its chunks as they are.
    ///
    /// ```
    /// use hapax::{Call, StreamEvent, prelude::*};
    /// # use serde::{Serialize, Deserialize};
    /// # use std::time::Duration;
    /// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
    /// # struct Draft { text: String }
    /// # const WRITE: Node = Node::new("write");
    /// async fn write(mut ctx: hapax::Ctx<Draft>) -> hapax::Result<DraftDelta> {
    ///     let model = async |call: Call| {
    ///         for word in ["Once ", "upon ", "a time"] {
    ///             call.stream(word).await?;
    ///         }
    ///         Ok::<_, NodeError>("Once upon a time".to_owned())
    ///     };
    ///     let text = ctx.effect("model", Read, "Tell me a story", model).await?;
    ///     if ctx.attempt() == 1 {
    ///         return Err(NodeError::new("out of ink"));
    ///     }
    ///     Ok(Draft::delta().text(text))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
    /// # let engine = Engine::open("memory:").await?;
    /// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, write).policy(WRITE, twice);
    /// # let drafts = engine.register(graph, ()).await?;
    /// drafts.start("draft-1", Draft::default()).await?.wait().await?;
    /// let (mut tail, mut words) = (engine.tail("draft-1"), String::new());
    /// while let Some(event) = tail.next().await? {
    ///     let StreamEvent::Chunk(chunk) = event else { panic!("the call was made once") };
    ///     words += &chunk.payload.read::<String>()?;
    /// }
    /// assert_eq!(words, "Once upon a time");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stream<T: Serialize + ?Sized>(&self, chunk: &T) -> Result<(), EffectError> {
        self.attempt.stream(Some(&self.under_way), chunk).await
    }

    /// The idempotency key to hand to the callee: the same on every attempt and after every crash.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The header `traceparent` of W3C Trace Context, by which the callee adds to this run's trace; `None` if nobody traces
    /// it. It differs from attempt to attempt, so it belongs into no request that is recorded.
    ///
    /// ```
    /// use hapax::{Call, prelude::*};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { paid: bool }
    /// # const PAY: Node = Node::new("pay");
    /// async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
    ///     let charge = async |call: Call| {
    ///         let headers: Vec<_> = call.traceparent().map(|value| ("traceparent", value.to_owned())).into_iter().collect();
    ///         Ok::<_, NodeError>(headers.is_empty())
    ///     };
    ///     let untraced = ctx.effect("charge", Write, &4200, charge).await?;
    ///     Ok(Order::delta().paid(untraced))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let orders = Engine::open("memory:").await?.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
    /// # assert!(orders.start("order-42", Order::default()).await?.wait().await?.paid, "nobody traces it");
    /// # Ok(())
    /// # }
    /// ```
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }
}
