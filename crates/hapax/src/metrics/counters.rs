//! The counters themselves: a few additions for each step, which nobody waits for.

use super::{BOUNDS_MS, Backpressure, GraphMetrics, Histogram, Metrics, OTHERS};
use crate::{clock, gate::lock};
use hapax_core::{canary, commit::Status, id::RunKey, limits::METRIC_GRAPHS};
use hapax_store::StoreStats;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn one_more(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that comes and goes. Whoever adds takes away again, in whatever order others see it.
#[derive(Debug, Default)]
struct Level(AtomicI64);

impl Level {
    fn get(&self) -> u64 {
        u64::try_from(self.0.load(Relaxed)).unwrap_or(0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Times {
    pub(crate) fn took(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ms = us as f64 / 1000.0;
        let bucket = BOUNDS_MS.iter().position(|bound| ms <= *bound).unwrap_or(BOUNDS_MS.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    fn get(&self) -> Histogram {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Histogram { buckets, sum_ms: self.sum_us.load(Relaxed) as f64 / 1000.0 }
    }
}

/// All counters of an engine.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    queue_depth: Level,
    inflight_nodes: Level,
    gate_wait: Times,
    pub(crate) admission: Count,
    pub(crate) parked: Count,
    pub(crate) window: Count,
    pub(crate) takeovers: Count,
    pub(crate) replay_mismatches: Count,
    in_doubt: Count,
    pub(crate) rate_waits: Count,
    pub(crate) swept: Count,
    graphs: Mutex<BTreeMap<Arc<str>, Arc<OfGraph>>>,
}

/// The counters of one graph.
#[derive(Debug, Default)]
pub(crate) struct OfGraph {
    pub(crate) started: Count,
    succeeded: Count,
    failed: Count,
    cancelled: Count,
    parked: Count,
    steps: Count,
    step_latency: Times,
    pub(crate) merge_conflicts: Count,
    retries: Mutex<BTreeMap<Arc<str>, u64>>,
}

impl Counters {
    /// A graph was registered: its numbers are shown from now on, with or without runs.
    pub(crate) fn know<'a>(&self, graph: &Arc<str>, nodes: impl Iterator<Item = &'a str>) {
        let graph = self.graph(graph);
        let mut retries = lock(&graph.retries);
        for node in nodes {
            retries.entry(node.into()).or_default();
        }
    }

    /// The counters of a graph; those that are too many share some.
    pub(crate) fn graph(&self, name: &Arc<str>) -> Arc<OfGraph> {
        let mut graphs = lock(&self.graphs);
        if let Some(graph) = graphs.get(name) {
            return graph.clone();
        }
        let name = if graphs.len() < METRIC_GRAPHS { name.clone() } else { OTHERS.into() };
        graphs.entry(name).or_default().clone()
    }

    /// The counters of the graph that a run is of.
    pub(crate) fn of_run(&self, graph: &Arc<str>, run: &RunKey) -> Arc<OfGraph> {
        // A run's name among the labels: one more series for each run.
        let planted = canary::on("run_as_label").then(|| Arc::from(run.run.as_str()));
        self.graph(planted.as_ref().unwrap_or(graph))
    }

    /// Such a number of items waits for its turn.
    pub(crate) fn queued(self: &Arc<Self>, items: usize) -> Queued {
        self.queue_depth.0.fetch_add(items as i64, Relaxed);
        Queued { counters: self.clone(), left: items }
    }

    /// An attempt is executed until this is dropped.
    pub(crate) fn in_flight(&self) -> InFlight<'_> {
        self.inflight_nodes.0.fetch_add(1, Relaxed);
        InFlight(&self.inflight_nodes)
    }

    /// The gate holds something back until this is dropped.
    pub(crate) fn waits(&self) -> Waited<'_> {
        Waited(&self.gate_wait, clock::instant())
    }

    pub(crate) fn doubted(&self, status: &Status) {
        if matches!(status, Status::InDoubt) {
            self.in_doubt.one_more();
        }
    }

    pub(crate) fn snapshot(&self, active_runs: usize, store: StoreStats) -> Metrics {
        let graphs = lock(&self.graphs).iter().map(|(name, graph)| graph.snapshot(name.clone())).collect();
        Metrics {
            queue_depth: self.queue_depth.get(),
            inflight_nodes: self.inflight_nodes.get(),
            active_runs: active_runs as u64,
            backpressure: Backpressure {
                admission: self.admission.get(),
                parked: self.parked.get(),
                window: self.window.get(),
            },
            gate_wait_ms: self.gate_wait.get(),
            takeovers: self.takeovers.get(),
            replay_mismatches: self.replay_mismatches.get(),
            in_doubt: self.in_doubt.get(),
            rate_limited_calls: self.rate_waits.get(),
            slots_swept: self.swept.get(),
            store,
            graphs,
        }
    }
}

impl OfGraph {
    /// A step is durable that began so long ago.
    pub(crate) fn step(&self, took: Option<Duration>) {
        self.steps.one_more();
        if let Some(took) = took {
            self.step_latency.took(took);
        }
    }

    /// A run left this engine with this status.
    pub(crate) fn left(&self, status: &Status) {
        match status {
            Status::Succeeded => self.succeeded.one_more(),
            Status::Failed { .. } => self.failed.one_more(),
            Status::Cancelled => self.cancelled.one_more(),
            Status::Running => {}
            _ => self.parked.one_more(),
        }
    }

    /// An attempt at a node follows a failed one.
    pub(crate) fn retried(&self, node: &str) {
        // A node that the graph doesn't have is never executed, so no name comes up that wasn't registered.
        if let Some(retries) = lock(&self.retries).get_mut(node) {
            *retries += 1;
        }
    }

    fn snapshot(&self, graph: Arc<str>) -> GraphMetrics {
        GraphMetrics {
            graph,
            runs_started: self.started.get(),
            runs_succeeded: self.succeeded.get(),
            runs_failed: self.failed.get(),
            runs_cancelled: self.cancelled.get(),
            runs_parked: self.parked.get(),
            steps: self.steps.get(),
            step_latency_ms: self.step_latency.get(),
            merge_conflicts: self.merge_conflicts.get(),
            retries: lock(&self.retries).iter().map(|(node, count)| (node.clone(), *count)).collect(),
        }
    }
}

/// Items that wait for their turn, until they have it or this is dropped.
#[derive(Debug)]
pub(crate) struct Queued {
    counters: Arc<Counters>,
    left: usize,
}

impl Queued {
    /// The next has its turn.
    pub(crate) fn next(&mut self) {
        if self.left > 0 {
            self.left -= 1;
            self.counters.queue_depth.0.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if self.left > 0 {
            self.counters.queue_depth.0.fetch_sub(self.left as i64, Relaxed);
        }
    }
}

/// An attempt that is executed.
pub(crate) struct InFlight<'a>(&'a Level);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// A wait that is measured.
pub(crate) struct Waited<'a>(&'a Times, Instant);

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.0.took(clock::since(self.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_that_holds_it() {
        let times = Times::default();
        for us in [0, 100, 101, 1000, 40_000_000] {
            times.took(Duration::from_micros(us));
        }
        let histogram = times.get();
        assert_eq!(histogram.buckets[..4], [2, 1, 0, 1]);
        assert_eq!(histogram.buckets.last(), Some(&1), "longer than all bounds");
        assert_eq!((histogram.count(), histogram.sum_ms), (5, 40_001.201));
    }

    #[test]
    fn graphs_beyond_the_limit_are_counted_together() {
        let counters = Counters::default();
        for number in 0..METRIC_GRAPHS + 10 {
            counters.graph(&format!("graph-{number:04}").into()).started.one_more();
        }
        let graphs = counters.snapshot(0, StoreStats::default()).graphs;
        assert_eq!(graphs.len(), METRIC_GRAPHS + 1);
        let others = graphs.iter().find(|graph| &*graph.graph == OTHERS).unwrap();
        assert_eq!(others.runs_started, 10);
    }
}
