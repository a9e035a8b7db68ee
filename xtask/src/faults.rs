//! `cargo xtask faults`: runs the tests of the fault table of transactions, and writes the guide's table of their results.
//!
//! A test carries the number of its row in its name: `row_07_…`. Where it ran is read from its path.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process::Cmd;
use crate::servers::Servers;

const GUIDE: &str = "docs/guide/transactions.md";
const BEGIN: &str = "<!-- faults: written by `cargo xtask faults` -->\n";
const END: &str = "<!-- end of faults -->";
const LIMIT: Duration = Duration::from_secs(3600);

/// The rows of the table, by number.
const FAULTS: [&str; 30] = [
    "crash before BEGIN",
    "nobody knows whether the journal's write before COMMIT is durable",
    "crash amid the statements",
    "crash between the marker, or the note of the number, and COMMIT",
    "COMMIT took effect, its answer is lost",
    "COMMIT never arrived",
    "crash after COMMIT, before its end is recorded",
    "the last entry of the journal is torn",
    "crash after the end is recorded, before the marker is deleted",
    "crash after ROLLBACK, before that is recorded",
    "the worker is frozen, another recovers, the first wakes up",
    "a zombie waits for a synchronous standby",
    "recovery gets no lock in time",
    "the database is down during recovery",
    "the server crashed after the number was noted, and gave it to another",
    "the number is too old, or the server another one",
    "a failover lost the commit",
    "COMMIT of a failed transaction, COMMIT with a warning",
    "a check that is put off, or a conflict, fails COMMIT",
    "transaction control, DDL, CALL inside",
    "deadlock or lock timeout, then more statements",
    "SQLite: busy at COMMIT, a statement that rolls back",
    "no table, no rights, a table that doesn't roll back",
    "a hundred make the table at once",
    "a hundred transactions, one connection",
    "recovery crashes, twice",
    "two recover at once",
    "the sweeper beside recovery and a late zombie",
    "two databases in one node",
    "very many transactions",
];

/// Where a test ran, as its path tells; the first that fits.
const PLACES: [(&str, &str); 5] = [
    ("co_commit", "co-commit"),
    ("introspection", "introspection"),
    ("sqlite", "SQLite"),
    ("postgres", "PostgreSQL"),
    ("mysql", "MariaDB"),
];
/// The columns; a test whose path names no place is in the last.
const COLUMNS: [&str; 6] = ["SQLite", "PostgreSQL", "MariaDB", "introspection", "co-commit", "several"];

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let servers = Servers::start()?;
    let tests = Cmd::new("cargo test --workspace --no-fail-fast --test transactions --test databases", root);
    let tests = servers.shared_with(tests).args("-- row_");
    let captured = tests.capture(LIMIT).map_err(|error| format!("`{tests}` could not start: {error}"))?;
    let results = results(&captured.stdout)?;
    let table = table(&results);
    print!("{table}");
    let path = root.join(GUIDE);
    let guide = fs::read_to_string(&path).map_err(|error| format!("{GUIDE}: {error}"))?;
    fs::write(&path, with_table(&guide, &table)?).map_err(|error| format!("{GUIDE}: {error}"))?;
    let failed: Vec<&str> =
        results.iter().filter(|result| !result.passed).map(|result| result.test.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("{} failed: {}", failed.len(), failed.join(", "))) }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    row: usize,
    test: String,
    passed: bool,
}

/// What libtest said of each test of a row.
fn results(said: &str) -> Result<Vec<Outcome>, String> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let outcomes = lines.filter_map(|(test, end)| {
        let row = test.split("row_").nth(1)?.split('_').next()?.parse().ok()?;
        Some(Outcome { row, test: test.to_owned(), passed: end == "ok" })
    });
    let outcomes: Vec<_> = outcomes.collect();
    match outcomes.iter().find(|outcome| !(1..=FAULTS.len()).contains(&outcome.row)) {
        _ if outcomes.is_empty() => Err("no test of a row ran".to_owned()),
        Some(odd) => Err(format!("`{}` is of a row that isn't there", odd.test)),
        None => Ok(outcomes),
    }
}

fn column(test: &str) -> &'static str {
    PLACES.iter().find(|(word, _)| test.contains(word)).map_or(COLUMNS[5], |(_, place)| place)
}

fn table(results: &[Outcome]) -> String {
    let mut cells = BTreeMap::<(usize, &str), (usize, usize)>::new();
    for outcome in results {
        let (passed, all) = cells.entry((outcome.row, column(&outcome.test))).or_default();
        *passed += usize::from(outcome.passed);
        *all += 1;
    }
    let cell = |row, column| match cells.get(&(row, column)) {
        None => String::new(),
        Some((passed, all)) if passed == all => format!("{all}"),
        Some((passed, all)) => format!("**{passed} of {all}**"),
    };
    let mut table =
        format!("| | fault | {} |\n|---|---|{}\n", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    for (row, fault) in (1..).zip(FAULTS) {
        let cells: Vec<String> = COLUMNS.iter().map(|column| cell(row, *column)).collect();
        table.push_str(&format!("| {row} | {fault} | {} |\n", cells.join(" | ")));
    }
    table
}

/// The guide with another table.
fn with_table(guide: &str, table: &str) -> Result<String, String> {
    let parts = guide.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or(format!("{GUIDE} has no place for the table"))?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "running 3 tests\n\
        test recovery::mysql::row_27_two_that_recover ... ok\n\
        test losses::row_05_a_lost_reply::postgres_by_co_commit ... FAILED\n\
        test durable::row_02_nothing ... ok\n\
        test choice::others ... ok\n";

    #[test]
    fn tests_are_told_by_their_row_and_their_place() {
        let results = results(SAID).unwrap();
        assert_eq!(
            results.iter().map(|one| (one.row, one.passed)).collect::<Vec<_>>(),
            [(27, true), (5, false), (2, true)]
        );
        let table = table(&results);
        assert!(table.contains("| two recover at once |  |  | 1 |  |  |  |"), "{table}");
        assert!(table.contains("its answer is lost |  |  |  |  | **0 of 1** |  |"), "{table}");
        assert!(table.contains("is durable |  |  |  |  |  | 1 |"), "{table}");
    }

    #[test]
    fn a_run_without_rows_or_of_an_unknown_row_is_an_error() {
        assert!(super::results("test choice::others ... ok\n").is_err());
        assert!(super::results("test row_31_what ... ok\n").unwrap_err().contains("isn't there"));
    }

    #[test]
    fn only_what_lies_between_the_marks_is_written() {
        let guide = format!("a\n{BEGIN}old\n{END}\nb\n");
        assert_eq!(with_table(&guide, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}\nb\n"));
        assert!(with_table("nothing", "new\n").is_err());
    }
}
