//! Rows as text: aligned for people, or with bars for Markdown.

use super::{
    cases::thousands,
    rows::{Figures, Row},
};

/// A table of its own, in a page of the guide.
pub(super) struct Table {
    /// How the ids of its rows begin.
    pub(super) ids: &'static str,
    /// The page's name.
    pub(super) page: &'static str,
    pub(super) headings: &'static [&'static str],
    /// Columns from here on, up to the last, are numbers.
    pub(super) numbers_from: usize,
    /// A row as a line; it may be held against another one.
    pub(super) line: fn(&Row, &[Row]) -> Vec<String>,
}

impl Table {
    pub(super) fn holds(&self, row: &Row) -> bool {
        row.id.starts_with(self.ids)
    }

    fn lines(&self, rows: &[Row]) -> Vec<Vec<String>> {
        rows.iter().filter(|row| self.holds(row)).map(|row| (self.line)(row, rows)).collect()
    }

    /// For a terminal.
    pub(super) fn text(&self, rows: &[Row]) -> String {
        aligned(self.headings, &self.lines(rows), self.numbers_from)
    }

    /// For the guide.
    pub(super) fn section(&self, rows: &[Row], note: &str) -> String {
        format!("{}\n{note}.\n", piped(self.headings, &self.lines(rows), self.numbers_from))
    }
}

const HEADINGS: [&str; 13] = [
    "workload",
    "store",
    "durability",
    "ms",
    "steps/s",
    "commits/s",
    "fsyncs/s",
    "fsyncs/commit",
    "CPU µs/step",
    "peak MB",
    "disk B/step",
    "x limit",
    "goal",
];
/// Columns from here to the goal are numbers.
const NUMBERS_FROM: usize = 3;

fn cells(row: &Row) -> Vec<String> {
    let Figures { wall_ms, steps_per_s, cpu_us_per_step, peak_mb, .. } = row.figures;
    let Figures { commits_per_s, fsyncs_per_s, fsyncs_per_commit, disk_bytes_per_step, ratio, .. } =
        row.figures;
    let on_disk = |figure: Option<f64>| figure.filter(|_| row.store != "memory").map_or("-".into(), short);
    let ratio = ratio.zip(row.limit).map(|(ratio, limit)| format!("{ratio:.2} {limit}"));
    vec![
        row.title.clone(),
        row.store.to_owned(),
        if row.is_limit() { "limit".into() } else { row.durability.to_owned() },
        short(wall_ms),
        short(steps_per_s),
        on_disk(commits_per_s),
        on_disk(fsyncs_per_s),
        on_disk(fsyncs_per_commit),
        short(cpu_us_per_step),
        format!("{peak_mb:.0}"),
        disk_bytes_per_step.map_or("-".into(), short),
        ratio.unwrap_or_else(|| "-".into()),
        goals(row),
    ]
}

/// `met: >= 0.8 x limit`, or the goals that were missed.
pub(super) fn goals(row: &Row) -> String {
    let named = |met: bool| {
        let goals = row.verdicts.iter().filter(|verdict| verdict.met == met);
        goals.map(|verdict| verdict.goal.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (met, missed) = (named(true), named(false));
    match (met.is_empty(), missed.is_empty()) {
        (true, true) => "-".into(),
        (false, true) => format!("met: {met}"),
        (true, false) => format!("MISSED: {missed}"),
        (false, false) => format!("MISSED: {missed}; met: {met}"),
    }
}

/// Three digits that count.
pub(super) fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => thousands(number.round() as u64),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// For a terminal.
pub(super) fn text(rows: &[Row]) -> String {
    let lines: Vec<_> = rows.iter().filter(|row| !row.has_own_table()).map(cells).collect();
    aligned(&HEADINGS, &lines, NUMBERS_FROM)
}

/// For the README.
pub(super) fn markdown<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    piped(&HEADINGS, &rows.map(cells).collect::<Vec<_>>(), NUMBERS_FROM)
}

/// Lines of equal cells; nothing, when there is none.
fn aligned(headings: &[&str], lines: &[Vec<String>], numbers_from: usize) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let headings = headings.iter().map(ToString::to_string).collect();
    let lines: Vec<&Vec<String>> = [&headings].into_iter().chain(lines).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let aligned = |line: &&Vec<String>| {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if (numbers_from..widths.len() - 1).contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(aligned).collect()
}

/// The same as a table of Markdown.
fn piped(headings: &[&str], lines: &[Vec<String>], numbers_from: usize) -> String {
    let is_number = |column| (numbers_from..headings.len() - 1).contains(&column);
    let rule = (0..headings.len()).map(|column| if is_number(column) { "---:" } else { "---" });
    let head = format!("| {} |\n|{}|\n", headings.join(" | "), rule.collect::<Vec<_>>().join("|"));
    lines.iter().fold(head, |table, cells| table + &format!("| {} |\n", cells.join(" | ")))
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{TABLES, goals::Verdict},
        *,
    };

    pub(in super::super) fn row(title: &str, durability: &'static str, steps_per_s: f64) -> Row {
        let figures = Figures {
            wall_ms: 800.5,
            steps_per_s,
            commits_per_s: Some(98.25),
            fsyncs_per_s: Some(108.1),
            fsyncs_per_commit: Some(1.1),
            cpu_us_per_step: 31.26,
            peak_mb: 12.4,
            ratio: Some(8.125),
            ..Figures::default()
        };
        Row {
            id: title.to_lowercase(),
            title: title.into(),
            store: "sqlite",
            durability,
            limit: (!durability.is_empty()).then_some("row"),
            figures,
            verdicts: vec![],
            samples: vec![],
        }
    }

    fn judged() -> Row {
        let verdict = |goal: &str, met| Verdict { goal: goal.into(), met };
        let verdicts = vec![verdict(">= 8 x limit", true), verdict("< 10 MB", false)];
        Row { verdicts, ..row("W1", "pipelined", 24_999.6) }
    }

    #[test]
    fn the_table_is_aligned() {
        let expected = "\
workload  store   durability   ms  steps/s  commits/s  fsyncs/s  fsyncs/commit  CPU µs/step  peak MB  disk B/step   x limit  goal
bare      sqlite  limit       801    3,000       98.2       108           1.10         31.3       12            -         -  -
W1        sqlite  pipelined   801   25,000       98.2       108           1.10         31.3       12            -  8.12 row  MISSED: < 10 MB; met: >= 8 x limit
";
        assert_eq!(text(&[row("bare", "", 3000.0), judged()]), expected);
    }

    #[test]
    fn markdown_has_a_rule_and_a_line_for_each_row() {
        let table = markdown([judged()].iter());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|");
        assert!(
            lines[2].starts_with("| W1 | sqlite | pipelined | 801 | 25,000 | 98.2 | 108 | 1.10 |"),
            "{table}"
        );
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn each_table_has_a_cell_for_each_heading_and_is_nothing_without_rows() {
        for table in TABLES {
            assert_eq!((table.line)(&judged(), &[]).len(), table.headings.len(), "{}", table.page);
            assert_eq!(table.text(&[judged()]), "", "{}", table.page);
        }
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn memory_has_neither_commits_nor_fsyncs() {
        assert_eq!(cells(&Row { store: "memory", ..judged() })[5..8], ["-", "-", "-"]);
    }
}
