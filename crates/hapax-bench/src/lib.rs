//! What Hapax is measured by: workloads through its public API, the limits of the machine, and the report.
//!
//! | module | what it holds |
//! |---|---|
//! | [`args`] | the command line |
//! | [`report`] | the line `RESULT {json}` that a workload ends with |
//! | `workloads` | W1 to W5, each in a process of its own |
//! | `limits` | the same disk and the same SQLite without Hapax |
//! | `suite` | all of them as child processes; medians, table, plot |
//! | `meter`, `histogram`, `procfs`, `clock` | what is read before and after |

pub mod args;
mod clock;
mod histogram;
mod limits;
mod meter;
mod procfs;
pub mod report;
mod suite;
mod workloads;

use args::Command;
use std::{error::Error, process::ExitCode};

/// What can go wrong here is told, and ends the process.
type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs the command line.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let command = match args::parse(args) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("error: {message}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    let outcome = match command {
        Command::Help => {
            println!("{}", args::USAGE);
            Ok(())
        }
        Command::Drive(drive) => workloads::run(&drive),
        Command::Suite(options) => suite::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
