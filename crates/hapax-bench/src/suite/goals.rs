//! What a case must reach, and whether it did.

use super::{cases::thousands, rows::Figures};
use serde::Serialize;

/// What a case must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// At least this much of its limit.
    Ratio(f64),
    /// At least this much of its limit, or at most this CPU per step: where the disk is quick, CPU is what counts.
    RatioOrCpu {
        ratio: f64,
        cpu_us: f64,
    },
    /// At most this many times what its limit takes.
    TimesLimit(f64),
    StepsPerS(f64),
    /// Of one core.
    StepsPerCpuS(f64),
    CpuUs(f64),
    FsyncsPerStep(f64),
    P99Ms(f64),
    WallMs(f64),
    MsPerStep(f64),
    PeakMb(f64),
    /// Of one request.
    Commits(f64),
    /// To what the limit takes.
    AddedP50Ms(f64),
    DiskPerStep(f64),
    /// The most memory of the whole run, compared with its first tenth.
    PeakGrowth(f64),
    /// No committed step is executed a second time.
    NoneTwice,
}

/// A goal, and whether it was reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    pub(crate) met: bool,
}

impl Goal {
    /// A figure that is missing meets no goal.
    pub(crate) fn judge(self, figures: &Figures) -> Verdict {
        let least = |figure: Option<f64>, goal: f64| figure.is_some_and(|figure| figure >= goal);
        let most = |figure: Option<f64>, goal: f64| figure.is_some_and(|figure| figure <= goal);
        let (goal, met) = match self {
            Goal::Ratio(ratio) => (format!(">= {ratio} x limit"), least(figures.ratio, ratio)),
            Goal::RatioOrCpu { ratio, cpu_us } => (
                format!(">= {ratio} x limit or <= {cpu_us} µs CPU"),
                least(figures.ratio, ratio) || figures.cpu_us_per_step <= cpu_us,
            ),
            Goal::TimesLimit(times) => {
                (format!("<= {times} x bare"), most(figures.ratio.map(f64::recip), times))
            }
            Goal::StepsPerS(rate) => {
                (format!(">= {} steps/s", thousands(rate as u64)), figures.steps_per_s >= rate)
            }
            Goal::StepsPerCpuS(rate) => (
                format!(">= {} a second of one core", thousands(rate as u64)),
                figures.cpu_us_per_step <= 1e6 / rate,
            ),
            Goal::CpuUs(us) => (format!("<= {us} µs CPU"), figures.cpu_us_per_step <= us),
            Goal::FsyncsPerStep(most_fsyncs) => {
                (format!("<= {most_fsyncs} fsyncs each"), most(figures.fsyncs_per_step, most_fsyncs))
            }
            Goal::P99Ms(ms) => (format!("p99 <= {ms} ms"), figures.p99_ms <= ms),
            Goal::WallMs(ms) => (format!("<= {ms} ms"), figures.wall_ms <= ms),
            Goal::MsPerStep(ms) => (format!("<= {ms} ms a step"), figures.ms_per_step() <= ms),
            Goal::Commits(commits) => (format!("<= {commits} commits each"), most(figures.commits, commits)),
            Goal::AddedP50Ms(ms) => (format!("adds <= {ms} ms p50"), most(figures.added_p50_ms, ms)),
            Goal::PeakMb(mb) => (format!("< {mb} MB"), figures.peak_mb < mb),
            Goal::DiskPerStep(bytes) => {
                (format!("<= {} B a step", thousands(bytes as u64)), most(figures.disk_bytes_per_step, bytes))
            }
            Goal::PeakGrowth(times) => {
                (format!("peak <= {times} x that of the first tenth"), most(figures.peak_growth, times))
            }
            Goal::NoneTwice => {
                ("no committed step twice".into(), most(figures.committed_executed_twice, 0.0))
            }
        };
        Verdict { goal, met }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_by_their_own_figure() {
        let figures = Figures {
            ratio: Some(7.0),
            cpu_us_per_step: 40.0,
            steps_per_s: 2000.0,
            wall_ms: 90.0,
            p99_ms: 100.0,
            peak_mb: 12.0,
            peak_growth: Some(1.5),
            committed_executed_twice: Some(0.0),
            commits: Some(2.0),
            added_p50_ms: Some(0.25),
            ..Figures::default()
        };
        let met = |goal: Goal| goal.judge(&figures).met;
        assert!(met(Goal::Ratio(7.0)) && !met(Goal::Ratio(7.1)));
        assert!(met(Goal::RatioOrCpu { ratio: 8.0, cpu_us: 60.0 }));
        assert!(!met(Goal::RatioOrCpu { ratio: 8.0, cpu_us: 39.0 }));
        assert!(met(Goal::TimesLimit(0.15)) && !met(Goal::TimesLimit(0.14)));
        assert!(met(Goal::StepsPerS(2000.0)) && !met(Goal::StepsPerS(2001.0)));
        assert!(met(Goal::WallMs(100.0)) && !met(Goal::WallMs(80.0)));
        assert!(met(Goal::MsPerStep(0.5)) && !met(Goal::MsPerStep(0.4)));
        assert!(met(Goal::PeakMb(300.0)) && !met(Goal::PeakGrowth(1.2)));
        assert!(met(Goal::NoneTwice));
        assert!(met(Goal::Commits(2.0)) && !met(Goal::Commits(1.9)));
        assert!(met(Goal::AddedP50Ms(0.3)) && !met(Goal::AddedP50Ms(0.2)));
        assert!(met(Goal::StepsPerCpuS(25_000.0)) && !met(Goal::StepsPerCpuS(26_000.0)));
        assert!(met(Goal::CpuUs(40.0)) && !met(Goal::CpuUs(39.0)));
        assert!(met(Goal::P99Ms(100.0)) && !met(Goal::P99Ms(99.0)));
        assert!(!met(Goal::FsyncsPerStep(2.0)), "nobody counted");
        assert!(!met(Goal::DiskPerStep(5000.0)), "what was not measured is not reached");
    }
}
