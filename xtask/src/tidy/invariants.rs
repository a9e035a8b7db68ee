//! The invariants of the architecture that a search can check.
//!
//! Each is a row: what is sought, in which view, where it is looked for and where it may stand.
//! A new invariant is one more row and one more pair of cases in the test below.

use super::Finding;
use super::lex::contains_word;
use super::source::{SourceFile, numbered};

/// A text that may stand only in some places.
struct Ban {
    needles: &'static [&'static str],
    /// The part of the file that is searched.
    view: fn(&SourceFile) -> &str,
    /// Whether the text is banned from this line of this file.
    banned: fn(&SourceFile, usize) -> bool,
    message: &'static str,
    why: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        needles: &[".await", "async fn"],
        view: code,
        banned: |file, _| file.path.starts_with("crates/hapax-core/src/"),
        message: "asynchronous code in the core",
        why: "the core never awaits: its outcome depends on its input alone",
    },
    Ban {
        needles: &[
            "hapax_runs",
            "hapax_checkpoints",
            "hapax_keys",
            "hapax_journal",
            "hapax_outbox",
            "hapax_channels",
            "hapax_frontier",
            "hapax_tags",
            "hapax_letters",
            "hapax_schema",
            "hapax_blobs",
            "hapax_objects",
        ],
        view: literals,
        banned: |file, line| !is_backend(file) && !is_chore(file) && !file.is_test_line(line),
        message: "a table of Hapax named outside of the store backends",
        why: "only the backends know the tables, so that a store can be replaced",
    },
    Ban {
        needles: &["Write::Step(Box"],
        view: code,
        banned: |file, line| !may_write_steps(file) && !file.is_test_line(line),
        message: "a step write made outside of step.rs",
        why: "one place commits steps, so that one place must be right",
    },
    Ban {
        needles: &["SystemTime::now", "Instant::now", "rand::rng", "thread_rng"],
        view: code,
        banned: |file, line| !may_read_clock(file) && !file.is_test_line(line),
        message: "the clock or randomness read outside of a clock.rs",
        why: "time and chance are passed in, so that a run can be repeated exactly",
    },
    Ban {
        needles: &["thread::sleep", "time::sleep", "time::sleep_until"],
        view: code,
        banned: SourceFile::is_test_line,
        message: "a sleep in a test",
        why: "a test waits for the event it needs; a sleep is too short on one machine and too long on all others",
    },
];

pub(super) fn banned(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(|file| BANS.iter().flat_map(|ban| in_file(file, ban))).collect()
}

fn in_file(file: &SourceFile, ban: &Ban) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered((ban.view)(file)) {
        let needle = ban.needles.iter().find(|needle| contains_word(line, needle));
        if let Some(needle) = needle.filter(|_| (ban.banned)(file, number)) {
            findings.push(file.finding(number, format!("{}: `{needle}`", ban.message), ban.why));
        }
    }
    findings
}

fn code(file: &SourceFile) -> &str {
    &file.code
}

fn literals(file: &SourceFile) -> &str {
    &file.literals
}

/// Whether a file may name tables: those of the backends, and the limits, which are held against the very same tables.
fn is_backend(file: &SourceFile) -> bool {
    if file.path.starts_with("crates/hapax-bench/src/limits/") {
        return true;
    }
    // What the servers share lies in `server`, what all databases share in `blobs`, `depot` and `recode`.
    let backends = ["sqlite", "server", "postgres", "mysql", "blobs", "depot", "recode"];
    let inside = file.path.strip_prefix("crates/hapax-store/src/");
    inside.and_then(|path| path.split(['/', '.']).next()).is_some_and(|first| backends.contains(&first))
}

fn is_chore(file: &SourceFile) -> bool {
    file.path.starts_with("xtask/")
}

fn may_write_steps(file: &SourceFile) -> bool {
    let places = ["crates/hapax/src/step.rs", "crates/hapax-store/", "crates/hapax-sim/"];
    places.iter().any(|place| file.path.starts_with(place))
}

fn may_read_clock(file: &SourceFile) -> bool {
    let places = ["xtask/", "examples/", "crates/hapax-sim/", "crates/hapax-store/src/conformance"];
    file.file_name() == "clock.rs"
        || file.is_in("benches")
        || places.iter().any(|place| file.path.starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(path: &str, text: &str) -> bool {
        !banned(&[SourceFile::new(path, text)]).is_empty()
    }

    #[test]
    fn the_core_does_not_await() {
        assert!(is_found("crates/hapax-core/src/a.rs", "x.await;"));
        assert!(is_found("crates/hapax-core/src/a.rs", "pub async fn a() {}"));
        assert!(!is_found("crates/hapax-core/src/a.rs", "/// Callers may `.await` in an async fn."));
        assert!(!is_found("crates/hapax/src/a.rs", "pub async fn a() { x.await }"));
    }

    #[test]
    fn tables_are_named_by_the_backends_only() {
        let sql = "let q = \"SELECT 1 FROM hapax_runs\";";
        assert!(is_found("crates/hapax/src/a.rs", sql));
        assert!(is_found("crates/hapax-store/src/memory.rs", sql));
        assert!(is_found("crates/hapax/src/a.rs", "r#\"\nUPDATE\nhapax_journal SET\"#"));
        assert!(!is_found("crates/hapax-store/src/sqlite/commit.rs", sql));
        assert!(!is_found("crates/hapax-store/src/sqlite.rs", sql));
        assert!(!is_found("crates/hapax/tests/a.rs", sql));
        assert!(!is_found("crates/hapax/src/a.rs", "counter(\"hapax_runs_total\"); let hapax_runs = 1;"));
    }

    #[test]
    fn steps_are_written_by_the_flow_only() {
        let write = "store.write(Write::Step(Box::new(commit)))";
        assert!(is_found("crates/hapax/src/worker.rs", write));
        for path in
            ["hapax/src/step.rs", "hapax-store/src/memory.rs", "hapax-sim/src/a.rs", "hapax/tests/a.rs"]
        {
            assert!(!is_found(&format!("crates/{path}"), write), "{path}");
        }
        assert!(!is_found("crates/hapax/src/gate.rs", "if let Write::Step(step) = &*write {"));
        assert!(!is_found(
            "crates/hapax/src/worker.rs",
            "#[cfg(test)]\nmod tests {\n Write::Step(Box::new(a))\n}\n"
        ));
    }

    #[test]
    fn time_and_chance_are_passed_in() {
        for call in ["SystemTime::now()", "std::time::Instant::now()", "rand::rng()", "rand::thread_rng()"] {
            assert!(is_found("crates/hapax/src/lease.rs", call), "{call}");
            assert!(is_found("crates/hapax-store/src/sqlite/lease.rs", call), "{call}");
            for path in
                ["crates/hapax/src/clock.rs", "crates/hapax/benches/a.rs", "crates/hapax-sim/src/a.rs"]
            {
                assert!(!is_found(path, call), "{path}");
            }
            assert!(!is_found("crates/hapax-store/src/conformance/lease.rs", call));
            assert!(!is_found("examples/a/src/main.rs", call));
        }
    }

    #[test]
    fn tests_do_not_sleep() {
        for call in ["std::thread::sleep(d)", "tokio::time::sleep(d)", "time::sleep_until(t)"] {
            assert!(is_found("crates/hapax/tests/a.rs", call), "{call}");
            assert!(is_found("crates/hapax/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{call}\n}}\n")));
            assert!(!is_found("crates/hapax/src/a.rs", call), "{call}");
        }
    }
}
