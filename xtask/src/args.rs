//! The command line: arguments in, one `Command` or one clear message out.
//!
//! The help text lists the stages from the stage table, so it can't fall behind.

use std::path::PathBuf;

use crate::stages::STAGES;

/// What the caller asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help(String),
    Test(TestOptions),
    Tidy,
    Servers,
    Faults,
    Bench(BenchOptions),
}

/// The options of `cargo xtask test`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TestOptions {
    /// Tests that scale with `HAPAX_LONG` run their long form.
    pub(crate) long: bool,
    /// The stages to run, in the table's order; empty means all.
    pub(crate) only: Vec<String>,
    /// Another list of canaries than the project's own.
    pub(crate) canaries: Option<PathBuf>,
}

/// The options of `cargo xtask bench`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct BenchOptions {
    /// What is handed to the suite as it is.
    pub(crate) passed_on: Vec<String>,
    /// Rewrite the plot, and the tables of the README and the guides.
    pub(crate) write: bool,
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Command, String> {
    let args: Vec<String> = args.collect();
    if args.iter().any(|arg| matches!(arg.as_str(), "-h" | "--help")) {
        return Ok(Command::Help(help()));
    }
    match args.split_first() {
        None => Ok(Command::Help(help())),
        Some((command, rest)) => match command.as_str() {
            "help" => Ok(Command::Help(help())),
            "test" => parse_test(rest).map(Command::Test),
            "bench" => parse_bench(rest).map(Command::Bench),
            "tidy" if rest.is_empty() => Ok(Command::Tidy),
            "servers" if rest.is_empty() => Ok(Command::Servers),
            "faults" if rest.is_empty() => Ok(Command::Faults),
            "tidy" | "servers" | "faults" => {
                Err(format!("`{command}` takes no arguments, but got `{}`", rest[0]))
            }
            other => Err(format!("there is no command `{other}`")),
        },
    }
}

fn parse_test(args: &[String]) -> Result<TestOptions, String> {
    let mut options = TestOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        let mut value = |what: &str| {
            inline.clone().or_else(|| args.next().cloned()).ok_or(format!("`{flag}` needs {what}"))
        };
        match flag {
            "--long" => options.long = true,
            "--only" => options.only.push(known_stage(value("the name of a stage")?)?),
            "--canaries" => options.canaries = Some(value("the path of a list")?.into()),
            other => return Err(format!("`test` has no option `{other}`")),
        }
    }
    Ok(options)
}

fn parse_bench(args: &[String]) -> Result<BenchOptions, String> {
    let mut options = BenchOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--write" => options.write = true,
            "--quick" | "--long" => options.passed_on.push(arg.clone()),
            "--json" | "--svg" | "--folder" => {
                let path = args.next().ok_or(format!("`{arg}` needs a path"))?;
                options.passed_on.extend([arg.clone(), path.clone()]);
            }
            "--only" => {
                let store = args.next().ok_or("`--only` needs the name of a store")?;
                options.passed_on.extend([arg.clone(), store.clone()]);
            }
            other => return Err(format!("`bench` has no option `{other}`")),
        }
    }
    Ok(options)
}

fn known_stage(name: String) -> Result<String, String> {
    if STAGES.iter().any(|stage| stage.name == name) {
        return Ok(name);
    }
    let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
    Err(format!("there is no stage `{name}`; the stages are: {}", names.join(", ")))
}

fn help() -> String {
    let stages: Vec<String> =
        STAGES.iter().map(|stage| format!("  {:<10} {}", stage.name, stage.about)).collect();
    format!("{USAGE}\n\nStages of `test`, in order:\n{}\n\n{EXAMPLES}", stages.join("\n"))
}

const USAGE: &str = "\
The chores of the project.

Usage: cargo xtask <command> [options]

Commands:
  test       run every check that a change must pass; stops at the first stage that fails
  bench      measure the workloads and their limits, and print a table
  tidy       check the tree's own rules: sizes, module docs, dependency direction, invariants
  servers    start PostgreSQL, MariaDB, Redis and RabbitMQ for tests by hand, print their URLs, and wait
  faults     run the tests of the fault table of transactions, and write the guide's table of their results
  help       print this text

Options of `test`:
  --only STAGE      run this stage alone; may be repeated
  --long            set HAPAX_LONG=1 for the tests, which then explore far more
  --canaries FILE   read the canaries from FILE instead of crates/hapax-sim/canaries.txt

Options of `bench`:
  --quick           small sizes, once: shows that it works, not how fast it is
  --long            also a run of 1,000,000 steps: does memory stay bounded?
  --only STORE      memory, sqlite, postgres or mysql alone; `transfer`: the transactions in users' databases,
                    `requests`: requests that take effect once; `agents`: commands to agents, and snapshots;
                    `telemetry`: what traces cost; `payloads`: large ones beside their rows, and encryption;
                    `starts`: what flow control costs; `migrate`: runs that move to another store
  --json FILE       write everything that was measured
  --svg FILE        write the plot
  --folder FOLDER   put the databases there: it decides which disk is measured
  --write           rewrite what was measured: the table of README.md with docs/bench.svg, those of the guides";

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                              all of it, as CI runs it
  cargo xtask test --only fmt --only clippy     two stages
  cargo xtask test --only tests --long          the tests, at length
  cargo xtask tidy                              the tree's own rules
  cargo xtask bench --quick                     every workload once, in a minute
  cargo xtask servers                           the databases of the tests, until Ctrl-C";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_of_test_are_read_in_any_order() {
        let options = TestOptions {
            long: true,
            only: vec!["fmt".into(), "canaries".into()],
            canaries: Some("a.txt".into()),
        };
        assert_eq!(
            parsed("test --only fmt --long --canaries=a.txt --only=canaries"),
            Ok(Command::Test(options))
        );
        assert_eq!(parsed("test"), Ok(Command::Test(TestOptions::default())));
        assert_eq!(parsed("tidy"), Ok(Command::Tidy));
        assert_eq!(parsed("servers"), Ok(Command::Servers));
        assert_eq!(parsed("faults"), Ok(Command::Faults));
    }

    #[test]
    fn options_of_bench_are_passed_on_but_for_the_tree() {
        let passed_on = ["--quick", "--json", "a.json"].map(str::to_owned).to_vec();
        let options = BenchOptions { passed_on, write: true };
        assert_eq!(parsed("bench --quick --write --json a.json"), Ok(Command::Bench(options)));
        assert_eq!(parsed("bench --json").unwrap_err(), "`--json` needs a path");
        assert_eq!(parsed("bench --fast").unwrap_err(), "`bench` has no option `--fast`");
    }

    #[test]
    fn a_mistake_is_named() {
        assert!(parsed("test --only nothing").unwrap_err().contains("the stages are: tools, fmt"));
        assert_eq!(parsed("test --only").unwrap_err(), "`--only` needs the name of a stage");
        assert_eq!(parsed("test --fast").unwrap_err(), "`test` has no option `--fast`");
        assert_eq!(parsed("bake").unwrap_err(), "there is no command `bake`");
        assert!(parsed("tidy up").is_err());
        assert_eq!(parsed("servers up").unwrap_err(), "`servers` takes no arguments, but got `up`");
    }

    #[test]
    fn help_names_every_stage() {
        let Ok(Command::Help(text)) = parsed("test --help") else { panic!("--help is always help") };
        assert!(STAGES.iter().all(|stage| text.contains(stage.about)));
    }
}
