//! The direction of dependencies: which crate may see which.
//!
//! Only `[dependencies]` count, for any platform: what a crate's tests use is their own affair.

use super::Finding;
use super::source::SourceFile;
use crate::workspace::{ManifestLine, package_name, sections};

const WHY: &str = "dependencies point one way, so that each crate can be understood without the next";

/// What a crate may use of the workspace, and what it must not use of the world.
struct Rule {
    package: &'static str,
    may_use: &'static [&'static str],
    never: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule { package: "hapax-core", may_use: &[], never: &["tokio", "rusqlite", "futures", "tracing"] },
    Rule { package: "hapax-macros", may_use: &[], never: &[] },
    Rule { package: "hapax-store", may_use: &["hapax-core"], never: &[] },
    Rule { package: "hapax", may_use: &["hapax-core", "hapax-macros", "hapax-store"], never: &[] },
    Rule { package: "hapax-requests", may_use: &["hapax", "hapax-core", "hapax-store"], never: &[] },
    Rule { package: "hapax-telemetry", may_use: &["hapax", "hapax-core", "hapax-store"], never: &[] },
    Rule {
        package: "hapax-cli",
        may_use: &["hapax", "hapax-core", "hapax-store", "hapax-telemetry"],
        never: &[],
    },
    Rule { package: "hapax-vfs", may_use: &[], never: &[] },
    Rule { package: "hapax-servers", may_use: &[], never: &[] },
];

/// Fault injection sees all and is seen by no shipped crate.
const SIMULATION: &str = "hapax-sim";

pub(super) fn direction(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.file_name() == "Cargo.toml").flat_map(in_manifest).collect()
}

fn in_manifest(file: &SourceFile) -> Vec<Finding> {
    let Some(package) = package_name(&file.text) else { return Vec::new() };
    let rule = RULES.iter().find(|rule| rule.package == package);
    let outside = file.path.starts_with("xtask/") || file.path.starts_with("examples/");
    let wrong = |dependency: &str| match rule {
        Some(rule) => {
            rule.never.contains(&dependency) || (is_ours(dependency) && !rule.may_use.contains(&dependency))
        }
        None => dependency == SIMULATION && !outside,
    };
    dependencies(&file.text)
        .filter(|(_, dependency)| wrong(dependency))
        .map(|(line, dependency)| {
            file.finding(line, format!("`{package}` must not depend on `{dependency}`"), WHY)
        })
        .collect()
}

fn is_ours(dependency: &str) -> bool {
    dependency == "hapax" || dependency.starts_with("hapax-")
}

fn dependencies(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let counts = |section: &str| {
        section == "dependencies" || (section.starts_with("target.") && section.ends_with(".dependencies"))
    };
    let within = move |line: &ManifestLine<'_>| counts(line.section);
    sections(manifest).filter(within).map(|line| (line.number, dependency(line.text)))
}

/// The package that a line names: what it is renamed from, or else its key.
fn dependency(line: &str) -> &str {
    let renamed = line.split_once("package").and_then(|(_, rest)| rest.trim_start().strip_prefix('='));
    let renamed = renamed.and_then(|rest| rest.split('"').nth(1));
    renamed.unwrap_or_else(|| line.split(['=', '.', ' ']).next().unwrap_or_default().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, package: &str, rest: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{package}\"\n\n{rest}");
        direction(&[SourceFile::new(path, &manifest)]).into_iter().map(|finding| finding.message).collect()
    }

    fn crate_with(package: &str, rest: &str) -> Vec<String> {
        messages(&format!("crates/{package}/Cargo.toml"), package, rest)
    }

    #[test]
    fn the_core_sees_no_other_crate_and_no_runtime() {
        for bad in
            ["tokio.workspace = true", "hapax-macros = { path = \"x\" }", "rt = { package = \"tokio\" }"]
        {
            assert_eq!(crate_with("hapax-core", &format!("[dependencies]\n{bad}\n")).len(), 1, "{bad}");
        }
        assert_eq!(crate_with("hapax-core", "[dependencies.futures]\nversion = \"1\"\n").len(), 1);
        assert_eq!(crate_with("hapax-core", "[target.'cfg(unix)'.dependencies]\ntracing = \"1\"\n").len(), 1);
        let good =
            "[dependencies]\nserde.workspace = true\n\n[dev-dependencies]\nhapax-macros.workspace = true\n";
        assert!(crate_with("hapax-core", good).is_empty());
    }

    #[test]
    fn a_lower_crate_never_sees_a_higher_one() {
        assert!(
            crate_with("hapax-store", "[dependencies]\nhapax-core.workspace = true\ntokio = \"1\"\n")
                .is_empty()
        );
        assert_eq!(
            crate_with("hapax-store", "[dependencies]\nhapax = \"1\"\n"),
            ["`hapax-store` must not depend on `hapax`"]
        );
        let all = "[dependencies]\nhapax-core = \"1\"\nhapax-macros = \"1\"\nhapax-store = \"1\"\n";
        assert!(crate_with("hapax", all).is_empty());
        for other in ["hapax-servers", "hapax-vfs"] {
            assert_eq!(crate_with("hapax", &format!("{all}{other} = \"1\"\n")).len(), 1, "{other}");
        }
    }

    #[test]
    fn only_chores_examples_and_tests_see_the_simulation() {
        let uses = "[dependencies]\nhapax-sim = \"1\"\n";
        assert_eq!(crate_with("hapax-cli", uses).len(), 1);
        assert_eq!(crate_with("hapax", uses).len(), 1);
        assert!(crate_with("hapax", "[dev-dependencies]\nhapax-sim = \"1\"\n").is_empty());
        assert!(messages("xtask/Cargo.toml", "xtask", uses).is_empty());
        assert!(messages("examples/crash/Cargo.toml", "crash", uses).is_empty());
    }
}
