//! Metrics as Prometheus reads them.
//!
//! Invariant: labels hold names from code and words of this file, so the series don't become more with the runs.

use crate::{
    queue::Queue,
    sample::{Sample, Samples},
};
use hapax::{
    Engine,
    metrics::{BOUNDS_MS, GraphMetrics, Histogram, Metrics},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use std::{
    fmt,
    sync::{Arc, PoisonError},
};

/// All metrics of an engine and of its telemetry.
pub(crate) struct Numbers(Registry);

/// What is read at each scrape.
struct Source {
    engine: Engine,
    samples: Samples,
    queue: Arc<Queue>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Numbers {
    pub(crate) fn new(engine: Engine, samples: Samples, queue: Arc<Queue>) -> Self {
        let mut registry = Registry::with_prefix("hapax");
        registry.register_collector(Box::new(Source { engine, samples, queue }));
        Self(registry)
    }

    /// As OpenMetrics has it.
    pub(crate) fn open_metrics(&self) -> String {
        let mut text = String::new();
        // A string takes all that is written to it.
        let _ = text::encode(&mut text, &self.0);
        text
    }

    /// As Prometheus' own text has it: there a counter's name in the comments is the one of its sample.
    pub(crate) fn text(&self) -> String {
        let open = self.open_metrics();
        let mut counters = vec![];
        for line in open.lines() {
            let family = line.strip_prefix("# TYPE ").and_then(|line| line.strip_suffix(" counter"));
            counters.extend(family);
        }
        let renamed = |line: &str| {
            let (word, rest) = line.split_at(line.len().min(7));
            let (family, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let is_counter = matches!(word, "# HELP " | "# TYPE ") && counters.contains(&family);
            if is_counter { format!("{word}{family}_total {rest}\n") } else { format!("{line}\n") }
        };
        open.lines().filter(|line| *line != "# EOF").map(renamed).collect()
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let metrics = self.engine.metrics();
        engine(&mut page, &metrics)?;
        graphs(&mut page, &metrics.graphs)?;
        let sample = *self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        sampled(&mut page, sample)?;
        let spans = self.queue.counts();
        let outcomes = [("exported", spans.exported), ("dropped", spans.dropped), ("failed", spans.failed)];
        page.counters("spans", "Spans by what became of them", "outcome", outcomes)
    }
}

/// One label and its value, or two.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// The page that is written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn each<'l, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels<'l>, T)>,
        mut write: impl FnMut(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            write(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }

    fn counters<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        samples: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().map(|(value, count)| (vec![(label, value)], count));
        self.each(name, help, MetricType::Counter, samples, |encoder, count| {
            ConstCounter::new(count).encode(encoder)
        })
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn histograms<'l>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, &'l Histogram)>,
    ) -> fmt::Result {
        self.each(name, help, MetricType::Histogram, samples, times)
    }

    /// One without labels.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        write: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        write(self.0.encode_descriptor(name, help, None, MetricType::Histogram)?)
    }
}

fn times(mut encoder: MetricEncoder<'_>, times: &Histogram) -> fmt::Result {
    let bounds = BOUNDS_MS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(times.buckets.iter().copied()).collect();
    encoder.encode_histogram::<NoLabelSet>(times.sum_ms, times.count(), &buckets, None)
}

fn engine(page: &mut Page<'_>, metrics: &Metrics) -> fmt::Result {
    page.gauge("active_runs", "Runs in this engine's hands", metrics.active_runs as f64)?;
    page.gauge("queue_depth", "Items of steps under way that haven't begun", metrics.queue_depth as f64)?;
    page.gauge("inflight_nodes", "Attempts that are executed now", metrics.inflight_nodes as f64)?;
    let waits = metrics.backpressure;
    let waits = [("admission", waits.admission), ("parked", waits.parked), ("window", waits.window)];
    page.counters("backpressure_events", "How often a run waited for room", "kind", waits)?;
    let help = "How long something was held back until it was durable";
    page.histogram("gate_wait_ms", help, |encoder| times(encoder, &metrics.gate_wait_ms))?;
    page.counter("takeovers", "Runs taken over from a holder whose lease had run out", metrics.takeovers)?;
    let mismatches = metrics.replay_mismatches;
    page.counter("replay_mismatches", "Attempts that did something else than their record says", mismatches)?;
    page.counter("runs_in_doubt", "How often a run was parked in doubt", metrics.in_doubt)?;
    let calls = metrics.rate_limited_calls;
    page.counter("rate_limited_calls", "Calls that took a turn in a bucket before they were made", calls)?;
    page.counter("slots_swept", "Runs whose slots or names were freed by a sweep", metrics.slots_swept)?;
    page.counter("fsyncs", "Commits that waited for the store's disk", metrics.store.syncs)?;
    let (writes, transactions) = (metrics.store.writes as f64, metrics.store.transactions);
    let help = "Writes that shared a transaction of the store";
    page.histogram("commit_batch_size", help, |mut encoder| {
        let all = [(f64::INFINITY, transactions)];
        encoder.encode_histogram::<NoLabelSet>(writes, transactions, &all, None)
    })
}

fn graphs(page: &mut Page<'_>, graphs: &[GraphMetrics]) -> fmt::Result {
    let mut counts = |name: &str, help: &str, count: fn(&GraphMetrics) -> u64| {
        page.counters(name, help, "graph", graphs.iter().map(|graph| (&*graph.graph, count(graph))))
    };
    counts("runs_started", "Runs whose first claim was this engine's", |graph| graph.runs_started)?;
    counts("runs_parked", "How often a run was parked", |graph| graph.runs_parked)?;
    counts("steps", "Steps that became durable", |graph| graph.steps)?;
    counts("merge_conflicts", "Steps in which two items wrote one field", |graph| graph.merge_conflicts)?;
    let ends = graphs.iter().flat_map(|graph| {
        let ends = [
            ("succeeded", graph.runs_succeeded),
            ("failed", graph.runs_failed),
            ("cancelled", graph.runs_cancelled),
        ];
        ends.map(|(status, count)| (vec![("graph", &*graph.graph), ("status", status)], count))
    });
    let counter = |encoder: MetricEncoder<'_>, count| ConstCounter::<u64>::new(count).encode(encoder);
    page.each("runs_ended", "Runs that ended here", MetricType::Counter, ends, counter)?;
    let retries = graphs.iter().flat_map(|graph| {
        let labels = |node| vec![("graph", &*graph.graph), ("node", node)];
        graph.retries.iter().map(move |(node, count)| (labels(&**node), *count))
    });
    page.each("retries", "Attempts that followed a failed one", MetricType::Counter, retries, counter)?;
    let latencies = graphs.iter().map(|graph| (vec![("graph", &*graph.graph)], &graph.step_latency_ms));
    page.histograms("step_latency_ms", "From a step's begin until it was durable", latencies)
}

fn sampled(page: &mut Page<'_>, sample: Sample) -> fmt::Result {
    if let Some(is_there) = sample.is_there {
        page.gauge("store_up", "Whether the store answered the last look", f64::from(u8::from(is_there)))?;
    }
    if let Some(runs) = sample.in_doubt {
        page.gauge("in_doubt", "Runs that are in doubt now", runs as f64)?;
    }
    if let Some(backlog) = sample.outbox {
        page.gauge("outbox_pending", "Messages that wait for delivery", backlog.pending as f64)?;
        page.gauge("outbox_dead", "Messages that were given up", backlog.dead as f64)?;
        page.gauge("outbox_lag_seconds", "The age of the oldest message that waits", backlog.lag_seconds)?;
    }
    Ok(())
}
