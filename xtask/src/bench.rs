//! `cargo xtask bench`: builds the driver as it is shipped, and hands over to its suite.
//!
//! The suite lives in the driver's crate, which has the dependencies that it takes; this crate builds in seconds.

use std::path::Path;

use crate::args::BenchOptions;
use crate::process::Cmd;

pub(crate) fn run(root: &Path, options: &BenchOptions) -> Result<(), String> {
    // Only this package is selected: a feature that another one's tests enable would be measured, too.
    let mut suite = Cmd::new("cargo run --release --quiet --package hapax-bench -- suite", root);
    for arg in &options.passed_on {
        suite = suite.arg(arg);
    }
    if options.write {
        suite = suite.arg("--write").arg(root.display().to_string());
    }
    suite.run().map_err(|failure| format!("{}; reproduce with: {}", failure.what, failure.reproduce))
}
