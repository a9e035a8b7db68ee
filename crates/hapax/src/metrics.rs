//! What an engine counts: always, cheaply, and without a word about any single run.
//!
//! Invariant: there are as many numbers as there are graphs and nodes in the code, however many runs there were.
//!
//! | part | what it holds |
//! |---|---|
//! | [`Metrics`] | all numbers at one moment: [`Engine::metrics`](crate::Engine::metrics) |
//! | [`GraphMetrics`] | those of one graph |
//! | [`Histogram`] | how often something took how long |
//! | [`Backpressure`] | how often something had to wait because there was no room |

mod counters;

pub(crate) use counters::{Counters, OfGraph, Queued};

use hapax_store::StoreStats;
use std::sync::Arc;

/// The upper ends of all histograms' buckets, in milliseconds; the last bucket has none.
///
/// ```
/// use hapax::metrics::BOUNDS_MS;
/// assert!(BOUNDS_MS.is_sorted() && BOUNDS_MS.contains(&1.0));
/// ```
pub const BOUNDS_MS: [f64; 17] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0,
    30_000.0,
];

/// The name under which graphs are counted together that are too many to have numbers of their own.
///
/// ```
/// assert_eq!(hapax::metrics::OTHERS, "(others)");
/// ```
pub const OTHERS: &str = "(others)";

/// What an engine has counted since it was opened.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// # let engine = Engine::open("memory:").await?;
/// # let drafts = engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// let metrics = engine.metrics();
/// assert_eq!((metrics.graphs[0].runs_started, metrics.graphs[0].steps), (1, 1));
/// assert_eq!(metrics.graphs[0].step_latency_ms.count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// Items of the steps under way that haven't begun: they wait for `max_concurrent_nodes` and the like.
    pub queue_depth: u64,
    /// Attempts at items that are executed now.
    pub inflight_nodes: u64,
    /// Runs in this engine's hands.
    pub active_runs: u64,
    /// How often a run had to wait for room.
    pub backpressure: Backpressure,
    /// For how long the gate held something back until it was durable; what was durable already isn't counted.
    pub gate_wait_ms: Histogram,
    /// Runs that were taken over from a holder whose lease had run out.
    pub takeovers: u64,
    /// Attempts that did something else than their record says.
    pub replay_mismatches: u64,
    /// How often a run was parked because only a person can tell whether a call took effect.
    pub in_doubt: u64,
    /// Calls that took a turn in a bucket before they were made.
    pub rate_limited_calls: u64,
    /// Runs of which this engine found slots or names that nobody had given back.
    pub slots_swept: u64,
    /// What the store has written.
    pub store: StoreStats,
    /// By graph, in the order of their names.
    pub graphs: Vec<GraphMetrics>,
}

/// How often something had to wait because there was no room.
///
/// ```
/// assert_eq!(hapax::metrics::Backpressure::default().admission, 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backpressure {
    /// A run waited because the engine held as many as it may.
    pub admission: u64,
    /// A run waited too long for that, and was parked.
    pub parked: u64,
    /// A run waited because it was too far ahead of the disk.
    pub window: u64,
}

/// What an engine has counted of one graph, whatever its versions.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// # let engine = Engine::open("memory:").await?;
/// engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// let drafts = &engine.metrics().graphs[0];
/// assert_eq!(&*drafts.graph, "drafts");
/// assert_eq!(drafts.retries, [("write".into(), 0)], "known before anything happened");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GraphMetrics {
    /// Its name.
    pub graph: Arc<str>,
    /// Runs whose first claim was this engine's.
    pub runs_started: u64,
    /// Runs that succeeded here.
    pub runs_succeeded: u64,
    /// Runs that failed here.
    pub runs_failed: u64,
    /// Runs that were cancelled here.
    pub runs_cancelled: u64,
    /// How often a run was parked here, to wait for something.
    pub runs_parked: u64,
    /// Steps that are durable.
    pub steps: u64,
    /// From a step's begin, here, until it was durable.
    pub step_latency_ms: Histogram,
    /// Steps that failed because two items wrote one field.
    pub merge_conflicts: u64,
    /// Attempts that followed a failed one, by node, in the order of their names.
    pub retries: Vec<(Arc<str>, u64)>,
}

/// How often something took how long.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let engine = hapax::Engine::open("memory:").await?;
/// let waits = engine.metrics().gate_wait_ms;
/// assert_eq!((waits.count(), waits.sum_ms), (0, 0.0));
/// assert_eq!(waits.buckets.len(), hapax::metrics::BOUNDS_MS.len() + 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Histogram {
    /// How many fell into each bucket, and not into those before it: one for each of [`BOUNDS_MS`], and one for what took
    /// longer than all.
    pub buckets: Vec<u64>,
    /// All times together, in milliseconds.
    pub sum_ms: f64,
}

impl Histogram {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}
