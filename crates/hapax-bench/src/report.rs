//! What a workload tells whoever started it: `BEGIN` when the timed part starts, `RESULT {json}` when it is over.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Printed when the timed part starts.
pub const BEGIN: &str = "BEGIN";
const RESULT: &str = "RESULT ";

/// The figures of one workload in one process.
///
/// ```
/// use hapax_bench::report::Report;
/// let report = Report { wall_s: 0.5, steps: 200, ..Report::default() };
/// assert_eq!(Report::parse(&report.line()), Some(report));
/// assert_eq!(Report::parse("BEGIN"), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// From `BEGIN` until the caller has the result.
    pub wall_s: f64,
    /// Steps, or whatever the workload counts: `extra.unit` says so.
    pub steps: u64,
    /// User and system time of all threads within `wall_s`.
    pub cpu_s: f64,
    /// The median latency; `extra.latency` says of what.
    pub p50_ms: f64,
    /// The latency that one in a hundred exceeds.
    pub p99_ms: f64,
    /// Bodies that this process executed.
    pub executed: u64,
    /// The most resident memory of the process until the result was there, in bytes.
    pub client_peak_rss: u64,
    /// What the process caused to be written within `wall_s`, in bytes.
    pub client_write_bytes: u64,
    /// What only some workloads tell.
    pub extra: Map<String, Value>,
}

impl Report {
    /// The line to print.
    pub fn line(&self) -> String {
        let json = serde_json::to_string(self).expect("numbers and words are JSON");
        format!("{RESULT}{json}")
    }

    /// Reads a line; `None` when it is another one.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(RESULT)?).ok()
    }

    /// A number that only some workloads tell.
    pub fn extra_u64(&self, name: &str) -> Option<u64> {
        self.extra.get(name)?.as_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_read_as_another_program_prints_it() {
        let line = r#"RESULT {"wall_s": 1.5, "steps": 3, "cpu_s": 0.25, "p50_ms": 1, "p99_ms": 2.5, "executed": 3,
            "client_peak_rss": 4096, "client_write_bytes": 0, "extra": {"transactions": 7, "note": "x"}}"#;
        let report = Report::parse(line).unwrap();
        assert_eq!((report.wall_s, report.steps, report.p50_ms), (1.5, 3, 1.0));
        assert_eq!((report.extra_u64("transactions"), report.extra_u64("note")), (Some(7), None));
    }

    #[test]
    fn other_lines_are_no_result() {
        for line in ["", BEGIN, "RESULT", "RESULT {}", "RESULT {\"wall_s\":", " RESULT {}"] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }
}
