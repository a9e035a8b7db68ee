//! The stages that are cargo commands: format, lints, features, documentation, tests.

use std::path::Path;
use std::process::Command;

use super::Context;
use crate::process::Failure;

/// The crates that are published; each must compile with none of its default features.
const PUBLISHED: &[&str] = &["hapax-core", "hapax-store", "hapax", "hapax-cli"];

/// What is not on by default is tested and documented too.
const FULL: &str = "--features hapax/full";

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
    context.cargo("check --no-default-features --features http -p hapax").run()?;
    if !has_target(WASM_TARGET) {
        println!("could not check hapax-core for {WASM_TARGET}: the target is not installed");
        return Ok(());
    }
    context.cargo("check --no-default-features -p hapax-core --target").arg(WASM_TARGET).run()
}

pub(super) fn doc(context: &Context) -> Result<(), Failure> {
    context.cargo("doc --workspace --no-deps").args(FULL).env("RUSTDOCFLAGS", "-D warnings").run()
}

pub(super) fn tests(context: &Context) -> Result<(), Failure> {
    let command = if context.cargo("nextest --version").succeeds() {
        context.cargo("nextest run --workspace")
    } else {
        context.cargo("test --workspace --lib --bins --tests")
    };
    let command = command.args(FULL);
    if context.long { command.env("HAPAX_LONG", "1").run() } else { command.run() }
}

pub(super) fn doctests(context: &Context) -> Result<(), Failure> {
    context.cargo("test --workspace --doc").args(FULL).run()
}

/// Whether the standard library of a target is installed. Asks rustc, not rustup: a toolchain from
/// elsewhere may have the target too.
pub(super) fn has_target(target: &str) -> bool {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
