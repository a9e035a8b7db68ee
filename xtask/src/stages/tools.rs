//! The stage `tools`: what a fresh Debian-like machine with rustup and a C compiler still lacks.
//!
//! It acts only on what is missing, so it costs nothing on a machine that is ready. What can't be
//! installed is named in one line; the stage that needs it then says so itself.

use std::path::Path;

use super::Context;
use super::cargo::{WASM_TARGET, has_target};
use crate::process::{Cmd, Failure};

/// The commands that the tests and chores call, each with the Debian package that brings it.
const DEBIAN: &[(&str, &str)] = &[
    // Limits of file size and memory, to see a full disk.
    ("prlimit", "util-linux"),
    // A command that hangs on demand, to see a limit enforced.
    ("tail", "coreutils"),
    // The list of tracked files, for `tidy`.
    ("git", "git"),
    // Agents in another language than the engine's, and the kit that they are made with.
    ("python3", "python3"),
    // An agent that ends with its engine.
    ("setpriv", "util-linux"),
    // Reads metrics as their scraper does.
    ("promtool", "prometheus"),
    // Looks at pages as people do.
    ("chromium", "chromium"),
];

/// The subcommands of cargo that come as components of the toolchain.
const COMPONENTS: &[(&str, &str)] = &[("fmt", "rustfmt"), ("clippy", "clippy")];

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    components(context)?;
    wasm_target(context);
    debian_packages(context);
    database_servers();
    Ok(())
}

fn components(context: &Context) -> Result<(), Failure> {
    for (subcommand, component) in COMPONENTS {
        if !context.cargo(subcommand).arg("--version").succeeds() {
            rustup(context, "component add").arg(*component).run()?;
        }
    }
    Ok(())
}

fn wasm_target(context: &Context) {
    if has_target(WASM_TARGET) {
        return;
    }
    let add = rustup(context, "target add").arg(WASM_TARGET);
    if add.run().is_err() {
        println!("could not install the target {WASM_TARGET}: `{add}` failed (offline?)");
    }
}

fn debian_packages(context: &Context) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let missing = missing_packages(DEBIAN, |command| folders.iter().any(|f| f.join(command).is_file()));
    if missing.is_empty() {
        return;
    }
    let names = missing.join(" ");
    if !is_root() || apt_install(&context.root, &names).is_err() {
        println!("could not install what the tests need; please run: apt-get install {names}");
    }
}

/// Apart from the other packages: these servers must not start as services of the machine.
fn database_servers() {
    if let Err(e) = hapax_servers::install_missing() {
        println!("could not install what the tests need: {e}");
    }
}

/// The packages whose command is not there, each once.
fn missing_packages<'a>(wanted: &[(&str, &'a str)], present: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let mut packages: Vec<&str> =
        wanted.iter().filter(|(command, _)| !present(command)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn apt_install(root: &Path, names: &str) -> Result<(), Failure> {
    Cmd::new("apt-get update -q", root).run()?;
    let install = Cmd::new("apt-get install -q -y --no-install-recommends", root).args(names);
    install.env("DEBIAN_FRONTEND", "noninteractive").run()
}

fn is_root() -> bool {
    let output = std::process::Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn rustup(context: &Context, args: &str) -> Cmd {
    Cmd::new("rustup", &context.root).args(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed_and_only_once() {
        let wanted = [("a", "one"), ("b", "two"), ("c", "two"), ("d", "three")];
        assert_eq!(missing_packages(&wanted, |command| command == "a"), ["three", "two"]);
        assert!(missing_packages(&wanted, |_| true).is_empty());
    }
}
