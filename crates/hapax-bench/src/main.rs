//! `hapax-bench`: one workload in this process, or the whole suite in child processes.

use std::process::ExitCode;

fn main() -> ExitCode {
    hapax_bench::main(std::env::args().skip(1))
}
