//! Reads everything before and after the timed part, and counts what happens in between.

use crate::{
    clock,
    histogram::Histogram,
    procfs,
    report::{BEGIN, Report},
};
use hapax::store::StoreStats;
use serde_json::{Map, Value, json};
use std::{
    io::Write as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What the bodies of a workload share.
pub(crate) struct Tally {
    begun: OnceLock<Instant>,
    executed: AtomicU64,
    own_syncs: AtomicU64,
    last_ns: AtomicU64,
    latencies: Histogram,
    /// The most memory when this body began is kept: does memory grow with the length of a run?
    watch_at: u64,
    peak_rss_then: AtomicU64,
}

impl Tally {
    /// For a workload of this many steps.
    pub(crate) fn new(steps: u64) -> Arc<Self> {
        Arc::new(Self {
            begun: OnceLock::new(),
            executed: AtomicU64::new(0),
            own_syncs: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            latencies: Histogram::default(),
            watch_at: (steps / 10).max(1),
            peak_rss_then: AtomicU64::new(0),
        })
    }

    /// Begins anew, behind what only warmed up.
    pub(crate) fn forget(&self) {
        self.executed.store(0, Ordering::Relaxed);
        self.latencies.clear();
    }

    /// Since the timed part began.
    fn elapsed(&self) -> Duration {
        self.begun.get_or_init(clock::now).elapsed()
    }

    /// Counts a body.
    pub(crate) fn count(&self) -> u64 {
        let number = self.executed.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.watch_at {
            self.peak_rss_then.store(procfs::peak_rss_bytes(), Ordering::Relaxed);
        }
        number
    }

    /// Counts a body, and takes the time since the one before.
    pub(crate) fn tick(&self) -> u64 {
        let now_ns = self.elapsed().as_nanos() as u64;
        let before = self.last_ns.swap(now_ns, Ordering::Relaxed);
        self.latencies.record(now_ns.saturating_sub(before));
        self.count()
    }

    /// Counts a sync that the workload makes itself, where no SQLite does.
    pub(crate) fn sync(&self) {
        self.own_syncs.fetch_add(1, Ordering::Relaxed);
    }

    fn syncs(&self) -> u64 {
        hapax_vfs::syncs() + self.own_syncs.load(Ordering::Relaxed)
    }

    /// Counts a body that was due some time ago.
    pub(crate) fn late(&self, by: Duration) {
        self.latencies.record(by.as_nanos() as u64);
        self.count();
    }

    /// Takes the time since `start`.
    pub(crate) fn record(&self, start: Instant) {
        self.latencies.record(start.elapsed().as_nanos() as u64);
    }
}

/// The timed part of a workload.
pub(crate) struct Meter {
    pub(crate) tally: Arc<Tally>,
    syncs: u64,
    cpu_s: f64,
    write_bytes: u64,
}

impl Meter {
    /// Says `BEGIN` and starts the clock.
    pub(crate) fn begin(tally: Arc<Tally>) -> Self {
        println!("{BEGIN}");
        let (syncs, cpu_s, write_bytes) = (tally.syncs(), clock::cpu_s(), procfs::write_bytes());
        tally.elapsed();
        Self { tally, syncs, cpu_s, write_bytes }
    }

    /// Stops the clock and prints the result.
    pub(crate) fn end(self, steps: u64, transactions: u64, extra: Map<String, Value>) {
        let wall_s = self.tally.elapsed().as_secs_f64();
        let fsyncs = self.tally.syncs() - self.syncs;
        let report = Report {
            wall_s,
            steps,
            cpu_s: clock::cpu_s() - self.cpu_s,
            p50_ms: self.tally.latencies.quantile_ms(0.5),
            p99_ms: self.tally.latencies.quantile_ms(0.99),
            executed: self.tally.executed.load(Ordering::Relaxed),
            client_peak_rss: procfs::peak_rss_bytes(),
            client_write_bytes: procfs::write_bytes().saturating_sub(self.write_bytes),
            extra: self.extra(transactions, fsyncs, extra),
        };
        println!("{}", report.line());
        // Whoever reads the other end waits for this line; a closed pipe is theirs to notice.
        let _ = std::io::stdout().flush();
    }

    fn extra(&self, transactions: u64, fsyncs: u64, more: Map<String, Value>) -> Map<String, Value> {
        let common = [
            ("transactions", json!(transactions)),
            ("fsyncs", json!(fsyncs)),
            ("peak_rss_at_a_tenth", json!(self.tally.peak_rss_then.load(Ordering::Relaxed))),
        ];
        common.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(more).collect()
    }
}

/// The physical transactions between two looks at a store.
pub(crate) fn transactions(before: StoreStats, after: StoreStats) -> u64 {
    after.transactions - before.transactions
}

/// What a workload adds to its report: the unit it counts in, and what its latencies are of.
pub(crate) fn extra(unit: &str, latency: &str) -> Map<String, Value> {
    [("unit".to_owned(), json!(unit)), ("latency".to_owned(), json!(latency))].into_iter().collect()
}
