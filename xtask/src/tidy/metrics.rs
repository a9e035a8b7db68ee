//! The names of metrics: what dashboards and alerts ask for is what the guide says that there is.

use std::collections::BTreeSet;

use super::Finding;
use super::source::{SourceFile, numbered};

const GUIDE: &str = "docs/guide/observability.md";
const USERS: &str = "docs/observability/";
/// What a histogram adds to its name for each of its series.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];

const WHY_KNOWN: &str =
    "a question for a metric that isn't there is answered with nothing, and so is never noticed";
const WHY_USED: &str = "a number that nobody looks at tells nobody anything";

/// Every name that is used stands in the guide's table, and every one of the table is used.
pub(super) fn known(files: &[SourceFile]) -> Vec<Finding> {
    let Some(guide) = files.iter().find(|file| file.path == GUIDE) else { return vec![] };
    let table: Vec<(usize, &str)> =
        numbered(&guide.text).filter_map(|(line, text)| Some((line, row_name(text)?))).collect();
    let mut used = BTreeSet::new();
    let mut findings = vec![];
    for file in files.iter().filter(|file| file.path.starts_with(USERS) && !file.path.ends_with(".md")) {
        for (line, name) in
            numbered(&file.text).flat_map(|(line, text)| names(text).map(move |name| (line, name)))
        {
            match table.iter().find(|(_, known)| is_series(name, known)) {
                Some((_, known)) => drop(used.insert(*known)),
                None => findings.push(file.finding(line, format!("{name} is not in {GUIDE}"), WHY_KNOWN)),
            }
        }
    }
    let unused = table.into_iter().filter(|(_, name)| !used.contains(name));
    findings.extend(unused.map(|(line, name)| {
        guide.finding(line, format!("{name} is in no dashboard and no alert"), WHY_USED)
    }));
    findings
}

/// The metric of a row of the table.
fn row_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("| `")?.split('`').next()?;
    name.starts_with("hapax_").then_some(name)
}

/// The names of metrics in a line.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    line.split(word).filter(|word| word.starts_with("hapax_"))
}

fn is_series(name: &str, metric: &str) -> bool {
    name.strip_prefix(metric).is_some_and(|rest| rest.is_empty() || SERIES.contains(&rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(table: &str, alerts: &str) -> Vec<SourceFile> {
        vec![SourceFile::new(GUIDE, table), SourceFile::new("docs/observability/alerts.yml", alerts)]
    }

    const TABLE: &str =
        "| name |\n|---|\n| `hapax_steps_total` | counter |\n| `hapax_gate_wait_ms` | histogram |\n";

    #[test]
    fn a_name_that_is_not_in_the_guide_is_found() {
        let found =
            known(&tree(TABLE, "hapax_steps_total\nrate(hapax_stps_total[5m])\nhapax_gate_wait_ms_sum"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].line, found[0].path.as_str()), (2, "docs/observability/alerts.yml"));
    }

    #[test]
    fn a_metric_that_nobody_looks_at_is_found() {
        let found = known(&tree(TABLE, "sum(hapax_steps_total)"));
        assert_eq!((found.len(), found[0].line), (1, 4), "{found:?}");
        assert!(found[0].message.starts_with("hapax_gate_wait_ms is in no"));
    }

    #[test]
    fn names_that_match_are_fine() {
        assert!(
            known(&tree(TABLE, "sum(hapax_steps_total) by (x) hapax_gate_wait_ms_bucket{a=\"b\"}"))
                .is_empty()
        );
        assert!(
            known(&[SourceFile::new("docs/observability/a.yml", "hapax_x")]).is_empty(),
            "without a guide"
        );
    }
}
