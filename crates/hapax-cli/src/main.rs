//! The stock `hapax` binary: every subcommand over a store that it opens itself.

use std::process::ExitCode;

fn main() -> ExitCode {
    hapax_cli::main()
}
