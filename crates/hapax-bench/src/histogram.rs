//! Latencies in constant memory, however many there are.
//!
//! Invariant: recording neither allocates nor locks, so that it doesn't show in what it measures.

use std::sync::atomic::{AtomicU64, Ordering};

/// Each doubling is cut into this many buckets: a value is off by 3 % at the most.
const CUTS: u64 = 32;
const CUT_BITS: u32 = CUTS.ilog2();
const BUCKETS: usize = (64 - CUT_BITS as usize + 1) * CUTS as usize;

/// Counts of nanoseconds by size.
pub(crate) struct Histogram(Box<[AtomicU64]>);

impl Default for Histogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.0[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// The value below which this share of all recorded ones lies, in milliseconds; 0 when there are none.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(0.0, |index| middle_ns(index) / 1e6)
    }
}

fn bucket(ns: u64) -> usize {
    if ns < CUTS {
        return ns as usize;
    }
    let doubling = ns.ilog2() - CUT_BITS;
    ((u64::from(doubling) + 1) * CUTS + (ns >> doubling) - CUTS) as usize
}

fn middle_ns(bucket: usize) -> f64 {
    let (doubling, cut) = (bucket as u64 / CUTS, bucket as u64 % CUTS);
    match doubling.checked_sub(1) {
        None => cut as f64,
        Some(doubling) => (CUTS + cut) as f64 * 2f64.powi(doubling as i32) * (1.0 + 0.5 / CUTS as f64),
    }
}

/// The middle one; of an even number the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn every_value_has_a_bucket_close_to_it() {
        for ns in [0, 1, 31, 32, 33, 63, 64, 1000, 123_456, 5_000_000_000, u64::MAX] {
            let middle = middle_ns(bucket(ns));
            assert!((middle - ns as f64).abs() <= ns as f64 * 0.04, "{ns} is not {middle}");
        }
    }

    #[test]
    fn quantiles_split_what_was_recorded() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile_ms(0.5), 0.0);
        (1..=98).for_each(|_| histogram.record(1_000_000));
        (1..=2).for_each(|_| histogram.record(50_000_000));
        assert!((histogram.quantile_ms(0.5) - 1.0).abs() < 0.04);
        assert!((histogram.quantile_ms(0.98) - 1.0).abs() < 0.04);
        assert!((histogram.quantile_ms(0.99) - 50.0).abs() < 2.0);
        histogram.clear();
        assert_eq!(histogram.quantile_ms(0.99), 0.0);
    }
}
