//! `cargo xtask test`: the stages, in order, until one fails.
//!
//! The table below is the whole list: a new stage is one line of it. A stage prints what it does
//! and returns the first failure; it never goes on after one.

mod alerts;
mod canaries;
mod cargo;
mod examples;
mod tools;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::args::TestOptions;
use crate::process::{Cmd, Failure};
use crate::tidy;

/// A named part of the test command.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&Context) -> Result<(), Failure>,
}

/// What every stage may know.
pub(crate) struct Context {
    root: PathBuf,
    long: bool,
    canaries: PathBuf,
}

impl Context {
    /// A cargo command in the root of the workspace.
    fn cargo(&self, args: &str) -> Cmd {
        Cmd::new("cargo", &self.root).args(args)
    }
}

pub(crate) const STAGES: &[Stage] = &[
    Stage { name: "tools", about: "install what is missing for the stages below", run: tools::run },
    Stage { name: "fmt", about: "the formatting is rustfmt's", run: cargo::fmt },
    Stage { name: "clippy", about: "no warnings, in any target, with all features", run: cargo::clippy },
    Stage { name: "tidy", about: "the tree keeps its own rules", run: tidy_stage },
    Stage {
        name: "features",
        about: "each crate compiles lean, and the core for WebAssembly",
        run: cargo::features,
    },
    Stage { name: "doc", about: "the documentation builds without warnings", run: cargo::doc },
    Stage { name: "tests", about: "unit and integration tests", run: cargo::tests },
    Stage { name: "python", about: "agents in Python keep the protocol's promises", run: examples::python },
    Stage {
        name: "alerts",
        about: "Prometheus takes the alert rules, and they fire when they should",
        run: alerts::run,
    },
    Stage { name: "doctests", about: "the examples in the documentation run", run: cargo::doctests },
    Stage { name: "examples", about: "each example prints what its expected.txt says", run: examples::run },
    Stage { name: "canaries", about: "each planted mistake is caught by its test", run: canaries::run },
];

pub(crate) fn run(root: &Path, options: &TestOptions) -> Result<(), String> {
    let default_canaries = || root.join("crates/hapax-sim/canaries.txt");
    let context = Context {
        root: root.to_path_buf(),
        long: options.long,
        canaries: options.canaries.clone().unwrap_or_else(default_canaries),
    };
    let chosen =
        |stage: &&Stage| options.only.is_empty() || options.only.iter().any(|name| name == stage.name);
    let begun = Instant::now();
    run_stages(STAGES.iter().filter(chosen), &context)?;
    let what = if options.only.is_empty() { "all stages".to_owned() } else { options.only.join(", ") };
    println!("\n{what} passed in {}", human(begun.elapsed()));
    Ok(())
}

fn run_stages<'a>(stages: impl Iterator<Item = &'a Stage>, context: &Context) -> Result<(), String> {
    for stage in stages {
        println!("\n=== {}: {} ===", stage.name, stage.about);
        let begun = Instant::now();
        let outcome = (stage.run)(context);
        let took = human(begun.elapsed());
        let left = disk_left(&context.root);
        if let Err(Failure { what, reproduce }) = outcome {
            return Err(format!(
                "stage `{}` failed after {took}, with {left} of disk left: {what}; reproduce with: {reproduce}",
                stage.name
            ));
        }
        println!("--- {} passed in {took}, with {left} of disk left", stage.name);
    }
    Ok(())
}

fn tidy_stage(context: &Context) -> Result<(), Failure> {
    tidy::run(&context.root).map_err(|what| Failure { what, reproduce: "cargo xtask tidy".to_owned() })
}

/// What the disk still takes. Servers that can't write fail in their own words, which say nothing of it.
fn disk_left(root: &Path) -> String {
    let df = Cmd::new("df --output=avail --block-size=1", root).arg(".").capture(Duration::from_secs(10));
    let bytes = df.ok().and_then(|df| df.stdout.lines().last()?.trim().parse::<f64>().ok());
    bytes.map_or_else(|| "an unknown part".to_owned(), |bytes| format!("{:.1} GB", bytes / 1e9))
}

/// A duration as people say it: `0.4s`, `59.9s`, `12m 03s`.
fn human(took: Duration) -> String {
    if took < Duration::from_secs(60) {
        return format!("{:.1}s", took.as_secs_f64());
    }
    format!("{}m {:02}s", took.as_secs() / 60, took.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context { root: std::env::temp_dir(), long: false, canaries: PathBuf::new() }
    }

    fn good(_: &Context) -> Result<(), Failure> {
        Ok(())
    }

    fn bad(_: &Context) -> Result<(), Failure> {
        Err(Failure { what: "it broke".into(), reproduce: "make it".into() })
    }

    fn unreached(_: &Context) -> Result<(), Failure> {
        panic!("a stage ran after a failed one")
    }

    #[test]
    fn the_first_failing_stage_ends_the_run_and_is_named() {
        let stages = [("a", good as fn(&Context) -> _), ("b", bad), ("c", unreached)];
        let stages = stages.map(|(name, run)| Stage { name, about: "", run });
        let message = run_stages(stages.iter(), &context()).unwrap_err();
        assert!(message.starts_with("stage `b` failed after "), "{message}");
        assert!(message.contains(" GB of disk left: it broke"), "{message}");
        assert!(message.ends_with("it broke; reproduce with: make it"), "{message}");
        assert_eq!(run_stages(stages[..1].iter(), &context()), Ok(()));
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(human(Duration::from_millis(440)), "0.4s");
        assert_eq!(human(Duration::from_secs(723)), "12m 03s");
    }
}
