//! Flow control: how many runs go at a time, how soon, which first, and under which names. It holds across processes, because
//! the store decides.
//!
//! | wish | method |
//! |---|---|
//! | at most N runs of `customer-42` at a time | [`StartOptions::key`] |
//! | urgent runs first, and none starves | [`StartOptions::priority`] |
//! | so many starts in a time | [`StartOptions::rate`] |
//! | so many calls in a time | [`Ctx::limited_effect`] |
//! | one live run of a name | [`StartOptions::singleton`], [`StartOptions::singleton_or_refuse`] |
//! | many starts, one run, when it is quiet | [`StartOptions::debounce`] |
//!
//! Invariant: a slot is given back only after the commit that ends its run is durable; whoever dies in between leaves it to
//! the sweep of another, and never to two runs.
//!
//! ```
//! use hapax::{StartOptions, control::Rate, prelude::*};
//! use std::time::Duration;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(State, Clone, Default, Serialize, Deserialize)]
//! # struct Import { rows: u64 }
//! # const LOAD: Node = Node::new("load");
//! # async fn load(_: hapax::Ctx<Import>) -> ImportDelta { Import::delta().rows(1_u64) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> hapax::Result<()> {
//! # let engine = Engine::open("memory:").await?;
//! # let imports = engine.register(Graph::new("imports", 1, LOAD).node(LOAD, load), ()).await?;
//! let gently = StartOptions::default()
//!     .key("customer-42", 2)
//!     .priority(3)
//!     .rate(Rate::new("imports", 100, Duration::from_secs(1)).burst(10));
//! imports.start_with("import-7", Import::default(), gently).await?.wait().await?;
//! # Ok(())
//! # }
//! ```

use crate::{
    Ctx, EffectError, Engine, Error, Flow, Run, StartOptions,
    context::{Call, Manner},
    gate::Gate,
    worker::Shared,
};
use hapax_core::{
    canary,
    commit::Status,
    error::Coded,
    id::RunKey,
    journal::EffectKind,
    limits::{FLOW_SWEEP, FLOW_SWEEP_IDLE},
    state::State,
};
use hapax_store::{Created, NewRun, RunRecord, flow::Replaced};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

pub use hapax_core::flow::{BadTerms, Debounce, HEAD_START, Key, Rate, Terms};
pub use hapax_store::flow::{Holder, KeyRecord, KeyView, NameKind, NameRecord};

impl StartOptions {
    /// Lets at most `most` of the runs that name this key go at a time, in all processes. Those that wait cost a worker
    /// nothing. A run holds its slot from before its first step until it is over, also while it waits for something, and
    /// through crashes. It may have four keys; it takes them in the order of their names.
    ///
    /// ```
    /// let one_at_a_time = hapax::StartOptions::default().key("customer-42", 1);
    /// ```
    pub fn key(mut self, name: impl Into<String>, most: u32) -> Self {
        self.terms.keys.push(Key::new(name, most));
        self
    }

    /// Goes before others: for each level as if it had been started [`HEAD_START`] earlier; 0 to 100. So a run of priority 0
    /// waits for later ones of priority 3 that come within 30 seconds after it, and for none that come later.
    ///
    /// ```
    /// let urgent = hapax::StartOptions::default().priority(3);
    /// ```
    pub fn priority(mut self, priority: u8) -> Self {
        self.terms.priority = priority;
        self
    }

    /// Reserves its start in a bucket: it begins when the bucket lets it, by the store's clock.
    ///
    /// ```
    /// use hapax::{StartOptions, control::Rate};
    /// let ten_a_second = StartOptions::default().rate(Rate::new("mail", 10, std::time::Duration::from_secs(1)));
    /// ```
    pub fn rate(mut self, rate: Rate) -> Self {
        self.terms.rate = Some(rate);
        self
    }

    /// Lets at most one run live under this name: a start while one does answers that one.
    ///
    /// ```
    /// let one = hapax::StartOptions::default().singleton("nightly-import");
    /// ```
    pub fn singleton(mut self, name: impl Into<String>) -> Self {
        (self.terms.singleton, self.refuse) = (Some(name.into()), false);
        self
    }

    /// Lets at most one run live under this name: a start while one does is [`Error::SingletonTaken`].
    ///
    /// ```
    /// let one = hapax::StartOptions::default().singleton_or_refuse("nightly-import");
    /// ```
    pub fn singleton_or_refuse(mut self, name: impl Into<String>) -> Self {
        (self.terms.singleton, self.refuse) = (Some(name.into()), true);
        self
    }

    /// Makes one run of all starts under a name, with the state of the latest: it begins when none has come for so long. Each
    /// start answers that run. As soon as a worker has taken it up, the next start begins another one.
    ///
    /// ```
    /// use hapax::{StartOptions, control::Debounce};
    /// use std::time::Duration;
    /// let calm = Debounce::new("index-42", Duration::from_secs(5)).at_most(Duration::from_secs(60));
    /// let options = StartOptions::default().debounce(calm);
    /// ```
    pub fn debounce(mut self, debounce: Debounce) -> Self {
        self.terms.debounce = Some(debounce);
        self
    }

    /// The terms as they are sent to the store, which draws the token for them.
    pub(crate) fn terms(&self) -> Result<Terms, Error> {
        let terms = self.terms.clone().in_order();
        terms.check().map_err(Error::Terms)?;
        Ok(terms)
    }
}

impl<S: State, A: Send + Sync + 'static> Flow<S, A> {
    /// Joins the run that lives under the name that a start asked for; `None`: it is to be started after all.
    pub(crate) async fn join(
        &self,
        holder: &RunRecord,
        new: &NewRun,
        options: &StartOptions,
    ) -> Result<Option<Run<S>>, Error> {
        let singleton = new.terms.singleton.clone();
        let name = singleton.or_else(|| new.terms.debounce.as_ref().map(|calm| calm.name.clone()));
        let (name, run) = (name.unwrap_or_default(), holder.key.run.clone());
        if options.refuse && new.terms.singleton.is_some() {
            return Err(Error::SingletonTaken { name, run });
        }
        if holder.graph != new.graph {
            return Err(Error::NameElsewhere { name, run, graph: holder.graph.clone() });
        }
        if new.terms.debounce.is_some() && !self.replace(holder, new, options).await? {
            return Ok(None);
        }
        Ok(Some(Run::new(self.engine().clone(), holder.key.clone())))
    }

    /// Gives the run under a debounce's name the state of a new start; `false`: it has begun meanwhile.
    async fn replace(&self, holder: &RunRecord, new: &NewRun, options: &StartOptions) -> Result<bool, Error> {
        let (state, version) = (new.checkpoint.state.to_vec(), new.checkpoint.state_version);
        let again = self.run_of(holder.key.clone(), state, version, options.seed);
        let again = NewRun { terms: new.terms.clone(), ..again };
        let replaced = self.engine().shared.store.flow().replace(again).await?;
        self.engine().shared.look_for_work();
        Ok(replaced == Replaced::Done)
    }

    /// Creates a run, or joins the one under its name.
    pub(crate) async fn create_or_join(
        &self,
        new: &NewRun,
        options: &StartOptions,
    ) -> Result<Result<Created, Run<S>>, Error> {
        loop {
            let holder = match self.engine().create(new.clone()).await? {
                Created::Exists(holder) if holder.key != new.key => holder,
                // The same id again: as long as it hasn't begun, it takes the latest state.
                Created::Exists(holder) if new.terms.debounce.is_some() && holder.graph == new.graph => {
                    if self.replace(&holder, new, options).await? {
                        return Ok(Err(Run::new(self.engine().clone(), new.key.clone())));
                    }
                    return Ok(Ok(Created::Exists(holder)));
                }
                created => return Ok(Ok(created)),
            };
            if let Some(joined) = self.join(&holder, new, options).await? {
                return Ok(Err(joined));
            }
        }
    }
}

impl<S: State, A: Send + Sync + 'static> Ctx<S, A> {
    /// As [`Ctx::effect`], but each time that the call is really made it first takes its turn in a bucket, which all processes
    /// share. An answer that is recorded takes none.
    ///
    /// The turn comes before the intent: a call that waits was never sent, and leaves no doubt. One that is more than a second
    /// away is recorded, and the run parked until then: the wait costs neither the node's time nor an attempt, and whoever goes
    /// on with it, after a crash too, waits for that same turn.
    ///
    /// ```
    /// use hapax::{control::Rate, prelude::*};
    /// # use serde::{Deserialize, Serialize};
    /// # use std::time::Duration;
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Letter { sent: bool }
    /// # const POST: Node = Node::new("post");
    /// # async fn send(_key: &str) -> std::io::Result<bool> { Ok(true) }
    /// async fn post(mut ctx: hapax::Ctx<Letter>) -> hapax::Result<LetterDelta> {
    ///     let mail = Rate::new("mail", 100, Duration::from_secs(1));
    ///     let sent: bool = ctx.limited_effect(&mail, "post", Write, "dear sirs", async |call| send(call.key()).await).await?;
    ///     Ok(Letter::delta().sent(sent))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let letters = Engine::open("memory:").await?.register(Graph::new("letters", 1, POST).node(POST, post), ()).await?;
    /// assert!(letters.start("letter-7", Letter::default()).await?.wait().await?.sent);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn limited_effect<Q, T, E, F>(
        &mut self,
        rate: &Rate,
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
        rate.check().map_err(|error| EffectError::fatal(name, error.code(), error.to_string()))?;
        self.effect_as(name, kind, Manner { key: None, rate: Some(rate) }, request, call).await
    }
}

impl Engine {
    /// The concurrency keys of this engine's namespace that have slots taken or runs waiting, by name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// assert!(engine.flow_keys().await?.iter().all(|key| key.waiting < 1000), "nobody waits long");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flow_keys(&self) -> Result<Vec<KeyRecord>, Error> {
        Ok(self.shared.store.flow().keys(self.shared.options.namespace.clone()).await?)
    }

    /// Who holds a concurrency key, and the first of those who wait for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// assert!(engine.flow_key("customer-42").await?.held.is_empty(), "nobody has started anything");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flow_key(&self, name: &str) -> Result<KeyView, Error> {
        Ok(self.shared.store.flow().key(self.shared.options.namespace.clone(), name.to_owned()).await?)
    }

    /// The buckets, singletons and debounces of this engine's namespace, by kind and name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = hapax::Engine::open("memory:").await?;
    /// assert!(engine.flow_names().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flow_names(&self) -> Result<Vec<NameRecord>, Error> {
        Ok(self.shared.store.flow().names(self.shared.options.namespace.clone()).await?)
    }
}

impl Shared {
    /// Notes what a run in this engine's hands holds.
    pub(crate) fn holds(&self, gate: &Gate, terms: &Terms) {
        gate.holds(terms);
        self.sees(terms);
    }

    /// Notes that there is flow control here.
    pub(crate) fn sees(&self, terms: &Terms) {
        if terms.holds() && !self.controls_flow.swap(true, Ordering::AcqRel) {
            self.flow_seen.notify_one();
        }
    }

    /// Whoever has seen no key and no name looks rarely for what others may have left of them.
    async fn until_next_sweep(&self) {
        if self.controls_flow.load(Ordering::Acquire) {
            return tokio::time::sleep(FLOW_SWEEP).await;
        }
        tokio::select! {
            () = tokio::time::sleep(FLOW_SWEEP_IDLE) => {}
            () = self.flow_seen.notified() => tokio::time::sleep(FLOW_SWEEP).await,
        }
    }

    /// Gives back what a run held that is over; the commit that ended it is durable. What fails here the sweep does.
    pub(crate) async fn give_back(&self, run: &RunKey, token: Option<&str>, status: &Status) {
        let Some(token) = token.filter(|_| status.is_final()) else { return };
        match self.store.flow().release(run.clone(), token.to_owned()).await {
            Ok(let_go) if let_go.is_empty() => {}
            Ok(_) => self.look_for_work(),
            Err(error) => {
                tracing::warn!(%error, run_id = %run, "cannot give slots back; they are swept later");
            }
        }
    }

    /// A mutant gives them back before the run has begun.
    pub(crate) async fn give_back_early(&self, run: &RunKey, token: Option<&str>) {
        if canary::on("slot_released_early") {
            self.give_back(run, token, &Status::Succeeded).await;
        }
    }
}

/// Frees what runs left whose engine died between their last commit and the release.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    tokio::select! {
        () = shared.hired.cancelled() => {}
        () = shared.closing() => return,
    }
    loop {
        match shared.store.flow().sweep(shared.options.namespace.clone()).await {
            Ok(0) => {}
            Ok(swept) => {
                shared.counters.swept.add(swept);
                shared.look_for_work();
            }
            Err(error) => tracing::debug!(%error, "cannot sweep slots; trying again"),
        }
        tokio::select! {
            () = shared.until_next_sweep() => {}
            () = shared.over() => return,
        }
    }
}
