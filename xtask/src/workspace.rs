//! Where the workspace is, and the little of its manifests that the chores need to read.
//!
//! Manifests are read line by line: ours are plain, and a TOML parser would take longer to build than all of this.

use std::path::{Path, PathBuf};

/// The folder that holds `xtask`, searched upwards so that the chores run from any folder.
pub(crate) fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|e| format!("the current folder is not readable: {e}"))?;
    here.ancestors()
        .find(|folder| folder.join("xtask/Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("{} is not inside the workspace", here.display()))
}

/// The `name` of the `[package]` of a manifest.
pub(crate) fn package_name(manifest: &str) -> Option<&str> {
    sections(manifest)
        .filter(|line| line.section == "package")
        .find_map(|line| line.text.strip_prefix("name")?.trim_start().strip_prefix('='))
        .map(|value| value.trim().trim_matches('"'))
}

/// One line of a manifest that is neither blank, a comment nor a heading.
pub(crate) struct ManifestLine<'a> {
    pub(crate) number: usize,
    pub(crate) section: &'a str,
    pub(crate) text: &'a str,
}

/// The lines of a manifest, each with the section it stands in. A heading such as
/// `[dependencies.serde]` counts as the line `serde` of the section `dependencies`.
pub(crate) fn sections(manifest: &str) -> impl Iterator<Item = ManifestLine<'_>> {
    let mut section = "";
    manifest.lines().enumerate().filter_map(move |(index, raw)| {
        let (number, line) = (index + 1, raw.trim());
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
            return Some(ManifestLine { number, section, text: line });
        };
        section = heading.trim();
        let (table, name) = section.rsplit_once('.')?;
        table.ends_with("dependencies").then_some(ManifestLine { number, section: table, text: name })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_name_is_found_in_its_section_only() {
        let manifest = "[lib]\nname = \"other\"\n\n[package]\nversion = \"1\"\nname = \"hello\"\n";
        assert_eq!(package_name(manifest), Some("hello"));
        assert_eq!(package_name("[lib]\nname = \"other\"\n"), None);
    }

    #[test]
    fn a_dependency_with_a_heading_of_its_own_is_a_line_of_its_section() {
        let manifest = "# why\n[dependencies]\na = \"1\"\n\n[dependencies.b]\nversion = \"1\"\n";
        let lines: Vec<(usize, &str, &str)> =
            sections(manifest).map(|line| (line.number, line.section, line.text)).collect();
        assert_eq!(
            lines,
            [
                (3, "dependencies", "a = \"1\""),
                (5, "dependencies", "b"),
                (6, "dependencies.b", "version = \"1\"")
            ]
        );
    }
}
