//! From samples to the figures of a row: medians, rates and the ratio to the limit of the same round.

use super::{TABLES, cases::Case, child::Sample, goals::Verdict};
use crate::histogram::median;
use serde::Serialize;
use std::collections::HashMap;

/// What was measured of one case, and what follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) store: &'static str,
    pub(crate) durability: &'static str,
    pub(crate) limit: Option<&'static str>,
    pub(crate) figures: Figures,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) samples: Vec<Sample>,
}

/// The medians of a case.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) wall_ms: f64,
    pub(crate) steps_per_s: f64,
    /// Physical transactions, as the store counts them.
    pub(crate) commits_per_s: Option<f64>,
    /// As SQLite's VFS counts them, or the server.
    pub(crate) fsyncs_per_s: Option<f64>,
    pub(crate) fsyncs_per_commit: Option<f64>,
    pub(crate) fsyncs_per_step: Option<f64>,
    pub(crate) cpu_us_per_step: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) peak_mb: f64,
    pub(crate) disk_bytes_per_step: Option<f64>,
    /// Steps/s over those of the limit, each in the same round.
    pub(crate) ratio: Option<f64>,
    pub(crate) peak_growth: Option<f64>,
    pub(crate) committed_executed_twice: Option<f64>,
    /// Of one transfer by itself, to the database and to the store.
    pub(crate) round_trips: Option<f64>,
    /// Of one request by itself.
    pub(crate) commits: Option<f64>,
    /// To what the limit takes, each in the same round.
    pub(crate) added_p50_ms: Option<f64>,
    pub(crate) added_p99_ms: Option<f64>,
    /// CPU with something, over that without it, as the workload itself has compared them.
    pub(crate) cpu_beside: Option<f64>,
}

impl Figures {
    pub(crate) fn ms_per_step(&self) -> f64 {
        1000.0 / self.steps_per_s
    }
}

impl Row {
    pub(crate) fn is_limit(&self) -> bool {
        self.durability.is_empty()
    }

    pub(crate) fn has_own_table(&self) -> bool {
        TABLES.iter().any(|table| table.holds(self))
    }
}

/// The rows of all cases, in their order.
pub(crate) fn rows(cases: &[Case], samples_of: &HashMap<String, Vec<Sample>>) -> Vec<Row> {
    let measured = cases.iter().filter_map(|case| Some((case, samples_of.get(&case.id)?)));
    measured
        .map(|(case, samples)| {
            let limit = case.limit.and_then(|limit| samples_of.get(limit));
            let figures = figures(samples, limit.map(Vec::as_slice));
            Row {
                id: case.id.clone(),
                title: case.title.clone(),
                store: case.place.name(),
                durability: case.durability,
                limit: case.limit,
                verdicts: case.goals.iter().map(|goal| goal.judge(&figures)).collect(),
                figures,
                samples: samples.clone(),
            }
        })
        .collect()
}

fn figures(samples: &[Sample], limit: Option<&[Sample]>) -> Figures {
    let of = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure)).unwrap_or_default();
    let per_s = |name: &str| {
        median(samples.iter().filter_map(|sample| Some(extra(sample, name)? / sample.report.wall_s)))
    };
    // Each sample beside that of the limit of the same round.
    let beside = |figure: fn(&Sample, &Sample) -> f64| {
        median(samples.iter().zip(limit?).map(|(ours, limit)| figure(ours, limit)))
    };
    Figures {
        wall_ms: of(wall_ms),
        steps_per_s: of(rate),
        commits_per_s: per_s("transactions"),
        fsyncs_per_s: median(
            samples.iter().filter_map(|sample| Some(fsyncs(sample)? / sample.report.wall_s)),
        ),
        fsyncs_per_commit: median(samples.iter().filter_map(fsyncs_per_commit)),
        fsyncs_per_step: median(samples.iter().filter_map(fsyncs_per_step)),
        cpu_us_per_step: of(|sample| cpu_s(sample) * 1e6 / steps(sample).max(1) as f64),
        p50_ms: of(|sample| sample.report.p50_ms),
        p99_ms: of(|sample| sample.report.p99_ms),
        peak_mb: of(|sample| sample.report.client_peak_rss as f64 / 1e6),
        disk_bytes_per_step: median(samples.iter().filter_map(disk_per_step)),
        ratio: beside(|ours, limit| rate(ours) / rate(limit)),
        peak_growth: median(samples.iter().filter_map(peak_growth)),
        committed_executed_twice: median(samples.iter().filter_map(committed_executed_twice)),
        round_trips: median(samples.iter().filter_map(|sample| number(sample, "round_trips"))),
        commits: median(samples.iter().filter_map(|sample| number(sample, "commits"))),
        cpu_beside: median(samples.iter().filter_map(|sample| number(sample, "cpu_beside"))),
        added_p50_ms: beside(|ours, limit| ours.report.p50_ms - limit.report.p50_ms),
        added_p99_ms: beside(|ours, limit| ours.report.p99_ms - limit.report.p99_ms),
    }
}

/// A crash counts from the restart of the process; everything else from `BEGIN`.
fn wall_ms(sample: &Sample) -> f64 {
    sample.restart_s.unwrap_or(sample.report.wall_s) * 1000.0
}

fn rate(sample: &Sample) -> f64 {
    steps(sample) as f64 / sample.report.wall_s
}

/// After a crash only what was left to do.
fn steps(sample: &Sample) -> u64 {
    if sample.restart_s.is_some() { sample.report.executed } else { sample.report.steps }
}

fn extra(sample: &Sample, name: &str) -> Option<f64> {
    sample.report.extra_u64(name).map(|number| number as f64)
}

fn fsyncs(sample: &Sample) -> Option<f64> {
    sample.server.map(|used| used.fsyncs as f64).or_else(|| extra(sample, "fsyncs"))
}

/// Of client and server.
fn cpu_s(sample: &Sample) -> f64 {
    sample.report.cpu_s + sample.server.map_or(0.0, |used| used.cpu_s)
}

fn fsyncs_per_commit(sample: &Sample) -> Option<f64> {
    let commits = extra(sample, "transactions").filter(|commits| *commits > 0.0)?;
    Some(fsyncs(sample)? / commits)
}

fn fsyncs_per_step(sample: &Sample) -> Option<f64> {
    Some(fsyncs(sample)? / steps(sample).max(1) as f64)
}

fn disk_per_step(sample: &Sample) -> Option<f64> {
    Some(sample.disk_bytes? as f64 / sample.report.steps.max(1) as f64)
}

fn peak_growth(sample: &Sample) -> Option<f64> {
    let then = extra(sample, "peak_rss_at_a_tenth").filter(|then| *then > 0.0)?;
    Some(sample.report.client_peak_rss as f64 / then)
}

fn committed_executed_twice(sample: &Sample) -> Option<f64> {
    extra(sample, "committed_executed_twice")
}

/// What a workload tells beside, with a fraction.
fn number(sample: &Sample, name: &str) -> Option<f64> {
    sample.report.extra.get(name)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{cases, servers::Used},
        *,
    };
    use crate::report::Report;
    use serde_json::json;

    fn sample(wall_s: f64, steps: u64, fsyncs: u64) -> Sample {
        let extra = json!({"transactions": steps, "fsyncs": fsyncs, "peak_rss_at_a_tenth": 1_000_000});
        let report = Report {
            wall_s,
            steps,
            cpu_s: 0.1,
            client_peak_rss: 2_000_000,
            extra: extra.as_object().unwrap().clone(),
            ..Report::default()
        };
        Sample { report, restart_s: None, disk_bytes: Some(steps * 400), server: None }
    }

    #[test]
    fn what_a_server_used_counts() {
        let mut sample = sample(1.0, 100, 0);
        sample.server = Some(Used { fsyncs: 50, cpu_s: 0.3, disk_bytes: 0 });
        let figures = figures(&[sample], None);
        assert_eq!((figures.fsyncs_per_step, figures.cpu_us_per_step), (Some(0.5), 4000.0));
    }

    #[test]
    fn a_row_holds_medians_and_ratios_of_its_own_round() {
        let cases = cases::all(&cases::Sizes::new(true, false));
        let samples = HashMap::from([
            ("step".to_owned(), vec![sample(1.0, 100, 100), sample(2.0, 100, 100)]),
            ("w1-sqlite-strict".to_owned(), vec![sample(1.0, 90, 99), sample(2.0, 70, 84)]),
        ]);
        let rows = rows(&cases, &samples);
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["step", "w1-sqlite-strict"]);
        let figures = &rows[1].figures;
        assert_eq!((figures.steps_per_s, figures.ratio), (62.5, Some(0.8)));
        assert_eq!((figures.commits_per_s, figures.fsyncs_per_s), (Some(62.5), Some(70.5)));
        assert_eq!(figures.fsyncs_per_commit, Some(1.15));
        assert_eq!((figures.disk_bytes_per_step, figures.peak_growth), (Some(400.0), Some(2.0)));
        assert!(rows[1].verdicts[0].met && rows[0].is_limit());
    }
}
