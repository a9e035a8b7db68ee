//! Limits and policies: what the engine and each node may do, and what happens when they fail.

use crate::error::NodeError;
use hapax_core::{
    id::Namespace, journal::EffectKind, key::EffectSite, limits, rng::Rng, state::ConflictPolicy,
};
use std::{fmt, sync::Arc, time::Duration};

/// How far a run may go before its steps are on disk.
///
/// ```
/// use hapax::{Durability, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Count { #[state(sum)] done: u64 }
/// # const STEP: Node = Node::new("step");
/// # async fn step(_: hapax::Ctx<Count>) -> CountDelta { Count::delta().done(1u64) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("runs.db").display());
/// # let graph = Graph::new("counts", 1, STEP).node(STEP, step);
/// # let graph = graph.edge_if(STEP, STEP, "more", |count: &Count| count.done < 10).end(STEP);
/// let options = Options::default().durability(Durability::Strict);
/// let engine = Engine::builder().options(options).open(&url).await?;
/// engine.register(graph, ()).await?.start("count-1", Count::default()).await?.wait().await?;
/// let stats = engine.store().stats();
/// assert!(stats.steps == 10 && stats.transactions >= 10, "no two steps share a commit");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Steps run ahead of the disk and share its commits; nothing leaves the process before it is durable.
    #[default]
    Pipelined,
    /// Every step waits for the disk before the next one begins.
    Strict,
}

/// What an engine may do. The defaults suit most programs.
///
/// ```
/// use hapax::{Durability, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Serialize, Deserialize, Debug)]
/// # struct Count { #[state(sum)] done: u64 }
/// # const STEP: Node = Node::new("step");
/// # async fn step(_: hapax::Ctx<Count>) -> CountDelta { Count::delta().done(1u64) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let endless = Graph::new("counts", 1, STEP).node(STEP, step).edge(STEP, STEP);
/// let options = Options::default()
///     .max_concurrent_nodes(4)
///     .node_timeout(Duration::from_secs(5))
///     .max_steps(Some(10))
///     .durability(Durability::Strict);
/// let engine = Engine::builder().options(options).open("memory:").await?;
/// let counts = engine.register(endless, ()).await?;
/// let ended = counts.start("count-1", Count::default()).await?.wait().await.unwrap_err();
/// assert!(ended.to_string().contains("10 steps"), "{ended}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) namespace: Namespace,
    pub(crate) max_concurrent_nodes: usize,
    pub(crate) max_per_node_concurrency: Option<usize>,
    pub(crate) queue_depth: usize,
    pub(crate) max_active_runs: usize,
    pub(crate) node_timeout: Duration,
    pub(crate) run_budget: Duration,
    pub(crate) backpressure_timeout: Duration,
    pub(crate) max_steps: Option<u64>,
    pub(crate) conflict_policy: ConflictPolicy,
    pub(crate) retry: Retry,
    pub(crate) lease_ttl: Duration,
    pub(crate) lease_renewal: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) durability: Durability,
    pub(crate) store_patience: Duration,
    pub(crate) marker_retention: Duration,
    pub(crate) scan_interval: Duration,
    pub(crate) finds_work: bool,
    pub(crate) metrics: bool,
    pub(crate) name: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: Namespace::default(),
            max_concurrent_nodes: limits::MAX_CONCURRENT_NODES,
            max_per_node_concurrency: None,
            queue_depth: limits::QUEUE_DEPTH,
            max_active_runs: limits::MAX_ACTIVE_RUNS,
            node_timeout: limits::NODE_TIMEOUT,
            run_budget: limits::RUN_BUDGET,
            backpressure_timeout: limits::BACKPRESSURE_TIMEOUT,
            max_steps: None,
            conflict_policy: ConflictPolicy::Fail,
            retry: Retry::none(),
            lease_ttl: limits::LEASE_TTL,
            lease_renewal: limits::LEASE_RENEWAL,
            cancel_grace: limits::CANCEL_GRACE,
            durability: Durability::default(),
            store_patience: Duration::from_secs(30),
            marker_retention: Duration::from_secs(15 * 60),
            scan_interval: Duration::from_secs(1),
            finds_work: true,
            metrics: true,
            name: None,
        }
    }
}

impl Options {
    /// What people know this engine by, as in `hapax workers`; something is added that makes it unique. Default: the
    /// machine's name and the number of the process.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        impl Options {
            $($(#[$doc])*
            pub fn $name(mut self, $name: $type) -> Self {
                self.$name = $name;
                self
            })*
        }
    };
}

setters! {
    /// The tenant whose runs this engine sees. Default: `default`.
    namespace: Namespace;
    /// Nodes of one run that execute at the same time. Default: 8.
    max_concurrent_nodes: usize;
    /// Items of one node of one run that execute at the same time. Default: no limit but the one above.
    max_per_node_concurrency: Option<usize>;
    /// Items of one run that wait in memory for their start, and results that wait there for an earlier item: at most
    /// this many of each. The rest of the frontier stays in the store, which is read in pages of 1,024 items: below
    /// that, a page is read several times. Default: 1024, and no more than a page of items is ever held.
    queue_depth: usize;
    /// Runs that execute at the same time. Default: 256.
    max_active_runs: usize;
    /// One attempt of a node, not counting what it waits for a store that stands still. Default: 30 s.
    node_timeout: Duration;
    /// A run's time while it runs, with all that it waits for, its store too. Default: 10 min.
    run_budget: Duration;
    /// How long a start waits for room before its run is parked. Default: 30 s.
    backpressure_timeout: Duration;
    /// Steps that a run may take, counted anew when it [begins anew](crate::Outcome::continue_as). Default: no limit.
    max_steps: Option<u64>;
    /// What happens when two items of one step write one field. Default: the run fails.
    conflict_policy: ConflictPolicy;
    /// What happens when a node fails, unless its own policy says otherwise. Default: one attempt.
    retry: Retry;
    /// How long this engine owns a run without renewing. Default: 15 s.
    lease_ttl: Duration;
    /// How often it renews, and at least three times in a lease. Default: 5 s.
    lease_renewal: Duration;
    /// How long a cancelled node may take to notice. Default: 1 s.
    cancel_grace: Duration;
    /// How far a run may go before its steps are on disk. Default: pipelined.
    durability: Durability;
    /// How long a run waits for a store that is busy, full or out of reach before it gives up; it can be resumed
    /// afterwards. Default: 30 s.
    store_patience: Duration;
    /// How old the marker of a [transaction](crate::Ctx::transaction) is before it is deleted: older than any transaction can
    /// be whose worker was frozen. Default: 15 min.
    marker_retention: Duration;
    /// How often the engine looks for runs that nobody holds. Default: 1 s.
    scan_interval: Duration;
    /// Whether the engine takes up runs that nobody holds. Default: yes. A tool that only looks at runs says no;
    /// what it starts or resumes by name runs all the same.
    finds_work: bool;
    /// Whether steps, items and waits are counted for [`Engine::metrics`](crate::Engine::metrics), which costs less than a
    /// hundredth of a step on disk; what happens rarely is counted anyway. Default: yes.
    metrics: bool;
}

type Backoff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;
type Predicate = Arc<dyn Fn(&NodeError) -> bool + Send + Sync>;

/// When and how often a failed node is tried again.
///
/// ```
/// use hapax::prelude::*;
/// # use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { attempts: u32 }
/// # const PAY: Node = Node::new("pay");
/// async fn pay(ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
///     if ctx.attempt() < 3 {
///         return Err(NodeError::new("busy"));
///     }
///     Ok(Order::delta().attempts(ctx.attempt()))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let retry = Retry::standard()
///     .attempts(3)
///     .backoff(|failures| Duration::from_millis(1) * failures)
///     .only_if(|error| !error.to_string().contains("refused"));
/// let graph = Graph::new("orders", 1, PAY).node(PAY, pay).policy(PAY, NodePolicy::default().retry(retry));
/// # let orders = Engine::open("memory:").await?.register(graph, ()).await?;
/// assert_eq!(orders.start("order-42", Order::default()).await?.wait().await?.attempts, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Retry {
    max_attempts: u32,
    backoff: Option<Backoff>,
    retryable: Option<Predicate>,
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").field("max_attempts", &self.max_attempts).finish_non_exhaustive()
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Retry {
    /// One attempt.
    pub fn none() -> Self {
        Self { max_attempts: 1, backoff: None, retryable: None }
    }

    /// Five attempts, 100 ms doubled up to 30 s between them, with full jitter.
    pub fn standard() -> Self {
        Self { max_attempts: 5, ..Self::none() }
    }

    /// How many attempts in all; at least one.
    pub fn attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts.max(1);
        self
    }

    /// The pause after the n-th failure, counted from 1, instead of the standard one. No jitter is added.
    pub fn backoff(mut self, pause: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.backoff = Some(Arc::new(pause));
        self
    }

    /// Which errors are worth another attempt, among those that are not fatal.
    pub fn only_if(mut self, retryable: impl Fn(&NodeError) -> bool + Send + Sync + 'static) -> Self {
        self.retryable = Some(Arc::new(retryable));
        self
    }

    pub(crate) fn allows(&self, failures: u32, error: &NodeError) -> bool {
        let wanted = self.retryable.as_ref().is_none_or(|retryable| retryable(error));
        failures < self.max_attempts && error.is_retryable() && wanted
    }

    /// The pause after the n-th failure. Jitter comes from a stream of its own, so that it can't disturb the
    /// node's draws.
    pub(crate) fn pause(&self, failures: u32, jitter: &mut Rng) -> Duration {
        if let Some(backoff) = &self.backoff {
            return backoff(failures);
        }
        let doubled =
            FIRST_PAUSE.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(LONGEST_PAUSE).mul_f64(jitter.f64())
    }
}

/// What one node may do, where it differs from the engine's options.
///
/// ```
/// use hapax::{Coded, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(State, Clone, Default, Serialize, Deserialize, Debug)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// # async fn pay(_: hapax::Ctx<Order>) { std::future::pending().await }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let policy = NodePolicy::default().timeout(Duration::from_millis(5)).retry(Retry::none());
/// let graph = Graph::new("orders", 1, PAY).node(PAY, pay).policy(PAY, policy);
/// # let orders = Engine::open("memory:").await?.register(graph, ()).await?;
/// let hung = orders.start("order-42", Order::default()).await?.wait().await.unwrap_err();
/// assert_eq!(hung.code(), "HX0021");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct NodePolicy {
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) max_concurrency: Option<usize>,
    pub(crate) calls: CallRules,
}

/// Which calls a node may make.
///
/// ```
/// use hapax::{Coded, Effects, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize, Debug)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
///     let paid = ctx.effect("charge", Write, &4200, async |_| Ok::<_, NodeError>(true)).await?;
///     Ok(Order::delta().paid(paid))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let only_looks = NodePolicy::default().effects(Effects::Reads);
/// let graph = Graph::new("orders", 1, PAY).node(PAY, pay).policy(PAY, only_looks);
/// # let orders = Engine::open("memory:").await?.register(graph, ()).await?;
/// let refused = orders.start("order-42", Order::default()).await?.wait().await.unwrap_err();
/// assert_eq!(refused.code(), "HX0037", "nothing was charged");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effects {
    /// All kinds.
    #[default]
    All,
    /// Reads, the clock and waits, but nothing that changes anything outside.
    Reads,
    /// None at all: the node only computes.
    None,
}

/// A call that is about to get its key.
///
/// ```
/// use hapax::{Call, CallSite, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { key: String }
/// # const PAY: Node = Node::new("pay");
/// async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
///     let charge = async |call: Call| Ok::<_, NodeError>(call.key().to_owned());
///     let key: String = ctx.effect("charge", Write, &4200, charge).await?;
///     Ok(Order::delta().key(key))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let by_run = |call: CallSite<'_>| format!("{}-{}", call.run_id, call.name);
/// let policy = NodePolicy::default().idempotency(by_run);
/// # let graph = Graph::new("orders", 1, PAY).node(PAY, pay).policy(PAY, policy);
/// # let orders = Engine::open("memory:").await?.register(graph, ()).await?;
/// # let order = orders.start("order-42", Order::default()).await?.wait().await?;
/// assert_eq!(order.key, "order-42-charge");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CallSite<'a> {
    /// The run.
    pub run_id: &'a str,
    /// The effect's name.
    pub name: &'a str,
    /// The request as canonical JSON.
    pub request: &'a str,
}

type KeyOf = Arc<dyn Fn(CallSite<'_>) -> String + Send + Sync>;

/// What a node's policy says about its calls.
#[derive(Clone, Default)]
pub(crate) struct CallRules {
    effects: Effects,
    key_of: Option<KeyOf>,
}

impl fmt::Debug for CallRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRules").field("effects", &self.effects).finish_non_exhaustive()
    }
}

impl CallRules {
    pub(crate) fn allow(&self, kind: EffectKind) -> bool {
        match self.effects {
            Effects::All => true,
            Effects::Reads => kind == EffectKind::Read,
            Effects::None => false,
        }
    }

    /// The key that the policy gives a call, if it does.
    pub(crate) fn key(&self, site: &EffectSite<'_>, request: &[u8]) -> Option<String> {
        let key_of = self.key_of.as_ref()?;
        let request = std::str::from_utf8(request).expect("JSON is UTF-8");
        Some(key_of(CallSite { run_id: site.run_id, name: site.name, request }))
    }
}

impl NodePolicy {
    /// One attempt of this node.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What happens when it fails.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Which calls it may make. A call of another kind fails the attempt at once.
    pub fn effects(mut self, effects: Effects) -> Self {
        self.calls.effects = effects;
        self
    }

    /// The idempotency key of a call, instead of the one that is derived from its place in the run. It must depend on
    /// nothing but what it is given, and be the callee's only key for that request.
    pub fn idempotency(mut self, key: impl Fn(CallSite<'_>) -> String + Send + Sync + 'static) -> Self {
        self.calls.key_of = Some(Arc::new(key));
        self
    }

    /// Items of this node that execute at the same time in one run.
    pub fn max_concurrency(mut self, items: usize) -> Self {
        self.max_concurrency = Some(items.max(1));
        self
    }
}
