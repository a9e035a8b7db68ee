//! The stock `hapax` command.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "hapax", version, about = "Durable execution: every step commits exactly once")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Pay orders while their worker is killed again and again, and count what the bank saw
    Demo(hapax_cli::demo::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Demo(args) => hapax_cli::demo::run(args),
    }
}
