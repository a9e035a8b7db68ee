//! `cargo xtask tidy`: the rules of the tree that no compiler checks.
//!
//! A check is a pure function from the tracked files to its findings, so that each has a test with
//! a bad and a good input. Every finding says why its rule exists: a rule nobody can defend goes.

mod dependencies;
mod error_pages;
mod examples;
mod invariants;
mod lex;
mod lints;
mod markers;
mod metrics;
mod paths;
mod shape;
mod source;

use std::fmt;
use std::path::Path;

use source::SourceFile;

/// A place in the tree that breaks a rule.
#[derive(Debug, Clone, PartialEq)]
struct Finding {
    path: String,
    line: usize,
    message: String,
    why: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} ({})", self.path, self.line, self.message, self.why)
    }
}

/// A rule: the tracked files in, the places that break it out.
type Check = fn(&[SourceFile]) -> Vec<Finding>;

const CHECKS: &[Check] = &[
    shape::module_docs,
    shape::function_length,
    shape::file_length,
    markers::leftovers,
    dependencies::direction,
    lints::same,
    invariants::banned,
    error_pages::complete,
    examples::shown,
    metrics::known,
    paths::machine,
];

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let files = source::load(root)?;
    let findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&files)).collect();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("{} files are tidy", files.len());
            Ok(())
        }
        1 => Err("1 finding".to_owned()),
        count => Err(format!("{count} findings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_prints_its_place_and_its_why() {
        let finding = Finding {
            path: "a/b.rs".into(),
            line: 7,
            message: "too long".into(),
            why: "long is hard to read",
        };
        assert_eq!(finding.to_string(), "a/b.rs:7: too long (long is hard to read)");
    }
}
