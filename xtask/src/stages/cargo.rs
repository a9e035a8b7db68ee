//! The stages that are cargo commands: format, lints, features, documentation, tests.

use std::num::NonZero;
use std::path::Path;
use std::process::Command;

use super::Context;
use crate::process::Failure;
use crate::servers::Servers;

/// The crates that are published; each must compile with none of its default features.
const PUBLISHED: &[&str] =
    &["hapax-core", "hapax-store", "hapax-requests", "hapax", "hapax-telemetry", "hapax-cli"];

/// What programs may add to their engine; each must compile without the others.
const HAPAX_FEATURES: &[&str] =
    &["http", "agents", "schedules", "encryption", "object-store", "nats", "rabbitmq", "redis", "webhook"];

/// What services may add to their requests; each must compile without the others.
const REQUESTS_FEATURES: &[&str] = &["axum", "engine", "redis", "tonic"];

/// How all tests are built, those of the canaries too: with one set of features nothing is built twice. Mutants that sleep
/// change nothing; what is built without them is checked by the stages `features` and `examples`.
pub(super) const TESTED: &str =
    "--workspace --features canary,hapax/test-tls,hapax-store/postgres,hapax-store/mysql";
/// Tests wait for disks, servers and processes more than they compute.
const TESTS_PER_CORE: usize = 2;

/// The target on which the core must compile: it has neither threads, files nor a clock, so a core
/// that compiles there has no I/O hidden in it.
pub(super) const WASM_TARGET: &str = "wasm32-unknown-unknown";

pub(super) fn fmt(context: &Context) -> Result<(), Failure> {
    context.cargo("fmt --all --check").run()
}

pub(super) fn clippy(context: &Context) -> Result<(), Failure> {
    context.cargo("clippy --workspace --all-targets --all-features -- -D warnings").run()
}

pub(super) fn features(context: &Context) -> Result<(), Failure> {
    for package in PUBLISHED {
        context.cargo("check --no-default-features -p").arg(*package).run()?;
    }
    for feature in HAPAX_FEATURES {
        context.cargo("check --no-default-features -p hapax --features").arg(*feature).run()?;
    }
    for feature in REQUESTS_FEATURES {
        context.cargo("check --no-default-features -p hapax-requests --features").arg(*feature).run()?;
    }
    if !has_target(WASM_TARGET) {
        println!("could not check hapax-core for {WASM_TARGET}: the target is not installed");
        return Ok(());
    }
    context.cargo("check --no-default-features -p hapax-core --target").arg(WASM_TARGET).run()
}

pub(super) fn doc(context: &Context) -> Result<(), Failure> {
    context.cargo("doc --workspace --no-deps --features hapax/full").env("RUSTDOCFLAGS", "-D warnings").run()
}

pub(super) fn tests(context: &Context) -> Result<(), Failure> {
    let fail = |what: String| Failure { what, reproduce: "cargo xtask servers".to_owned() };
    let servers = Servers::start().map_err(fail)?;
    let nextest = context.cargo("nextest --version").succeeds();
    let runner = servers.shared_with(context.cargo(if nextest { "nextest run" } else { "test" }));
    let threads = TESTS_PER_CORE * std::thread::available_parallelism().map_or(1, NonZero::get);
    let runner = if nextest { runner.arg(format!("--test-threads={threads}")) } else { runner };
    let all = runner.args(TESTED).args(if nextest { "" } else { "--lib --bins --tests" });
    let all = if context.long { all.env("HAPAX_LONG", "1") } else { all };
    all.without_env("HAPAX_CANARY").run()
}

pub(super) fn doctests(context: &Context) -> Result<(), Failure> {
    context.cargo("test --doc").args(TESTED).run()
}

/// Whether the standard library of a target is installed. Asks rustc, not rustup: a toolchain from
/// elsewhere may have the target too.
pub(super) fn has_target(target: &str) -> bool {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
