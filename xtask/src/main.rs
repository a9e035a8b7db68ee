//! The project's own chores, run as `cargo xtask <command>`.
//!
//! Everything that must hold before a change is merged is a stage of `cargo xtask test`; nothing
//! is checked by a script outside of it. The crate's one dependency starts the servers that the tests
//! need and is small, so that it builds in seconds on a fresh machine.

#![allow(
    clippy::disallowed_methods,
    reason = "xtask measures how long stages take; its outcome never depends on the clock"
)]

mod args;
mod bench;
mod faults;
mod process;
mod servers;
mod stages;
mod tidy;
mod workspace;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("error: {message}\n\nSee `cargo xtask --help`.");
            return ExitCode::from(2);
        }
    };
    let outcome = match command {
        Command::Help(text) => {
            println!("{text}");
            Ok(())
        }
        Command::Test(options) => workspace::root().and_then(|root| stages::run(&root, &options)),
        Command::Bench(options) => workspace::root().and_then(|root| bench::run(&root, &options)),
        Command::Faults => workspace::root().and_then(|root| faults::run(&root)),
        Command::Servers => servers::run(),
        Command::Tidy => workspace::root().and_then(|root| tidy::run(&root)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
