//! Every package takes the workspace's lints, so that `unsafe` is forbidden in all of them but one.

use super::Finding;
use super::source::SourceFile;
use crate::workspace::{package_name, sections};

/// The one package with lints of its own: all of the workspace's, but this one.
const EXCEPTION: &str = "hapax-vfs";
const LIFTED: &str = "unsafe_code";

const WHY: &str = "what one package allows itself, a reviewer of the others doesn't expect";

pub(super) fn same(files: &[SourceFile]) -> Vec<Finding> {
    let manifests = || files.iter().filter(|file| file.file_name() == "Cargo.toml");
    let workspace: Vec<(&str, &str)> = manifests().flat_map(|file| lines(file, "workspace.lints.")).collect();
    manifests().filter_map(|file| in_manifest(file, &workspace)).collect()
}

fn in_manifest(file: &SourceFile, workspace: &[(&str, &str)]) -> Option<Finding> {
    let package = package_name(&file.text)?;
    if package != EXCEPTION {
        let inherits =
            sections(&file.text).any(|line| line.section == "lints" && line.text == "workspace = true");
        let message = format!("`{package}` lacks `workspace = true` in its `[lints]`");
        return (!inherits).then(|| file.finding(1, message, WHY));
    }
    let own: Vec<(&str, &str)> = lines(file, "lints.").collect();
    let missing = workspace.iter().find(|line| !line.1.starts_with(LIFTED) && !own.contains(line));
    missing.map(|(tool, line)| {
        file.finding(1, format!("`{package}` lacks `{line}` of the workspace's {tool} lints"), WHY)
    })
}

/// Lints with the tool that knows them.
fn lines<'f>(file: &'f SourceFile, under: &'static str) -> impl Iterator<Item = (&'f str, &'f str)> {
    sections(&file.text).filter_map(move |line| Some((line.section.strip_prefix(under)?, line.text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(package: &str, lints: &str) -> Vec<String> {
        let root = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\nmissing_docs = \"warn\"\n\n\
                    [workspace.lints.clippy]\ntodo = \"warn\"\n";
        let manifest = format!("[package]\nname = \"{package}\"\n\n{lints}");
        let files = [SourceFile::new("Cargo.toml", root), SourceFile::new("crates/a/Cargo.toml", &manifest)];
        same(&files).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_package_takes_the_lints_of_the_workspace() {
        assert!(found("hapax", "[lints]\nworkspace = true\n").is_empty());
        let message = "`hapax` lacks `workspace = true` in its `[lints]`";
        assert_eq!(found("hapax", ""), [message]);
        assert_eq!(
            found("hapax", "[lints.rust]\nunsafe_code = \"allow\"\nmissing_docs = \"warn\"\n"),
            [message]
        );
    }

    #[test]
    fn the_exception_repeats_all_but_one() {
        let rust = "[lints.rust]\nunsafe_code = \"allow\"\nmissing_docs = \"warn\"\n";
        assert!(
            found("hapax-vfs", &format!("{rust}[lints.clippy]\ntodo = \"warn\"\nmore = \"deny\"\n"))
                .is_empty()
        );
        let lacks = "`hapax-vfs` lacks `todo = \"warn\"` of the workspace's clippy lints";
        assert_eq!(found("hapax-vfs", &format!("{rust}todo = \"warn\"\n")), [lacks]);
        assert_eq!(found("hapax-vfs", &format!("{rust}[lints.clippy]\ntodo = \"allow\"\n")), [lacks]);
    }
}
