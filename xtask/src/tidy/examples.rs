//! Examples: what users meet shows how it is used, in code that the doc tests run.
//!
//! An item either has an example of its own, or says whose example shows it: `See [Other] for an example.`

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::SourceFile;

/// The crates whose items users meet. Macros have their examples where `hapax` re-exports them, since only there they
/// can run.
const CRATES: &[&str] = &["hapax", "hapax-core", "hapax-store", "hapax-cli"];
const WHY: &str = "an example is read first, and a doc test keeps it true";

/// An item at the outermost level of a file, with its attributes and doc.
struct Item<'f> {
    file: &'f SourceFile,
    line: usize,
    name: String,
    doc: Vec<&'f str>,
}

impl Item<'_> {
    fn has_example(&self) -> bool {
        self.doc.iter().any(|line| line.starts_with("/// ```"))
    }

    /// Whose example shows it; empty: that of the crate.
    fn shown_by(&self) -> Option<String> {
        let pointer =
            self.doc.iter().find(|line| line.starts_with("/// See ") && line.ends_with("for an example."))?;
        Some(pointer.split('`').nth(1).unwrap_or_default().to_owned())
    }
}

/// Every public struct, enum, trait, function and exported macro has an example, or names an item of its crate that has.
pub(super) fn shown(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (_, items) in by_crate(files) {
        let examples: BTreeSet<&str> =
            items.iter().filter(|item| item.has_example()).map(|item| item.name.as_str()).collect();
        let shown = |item: &&Item<'_>| {
            let by = item.shown_by();
            item.has_example() || by.is_some_and(|name| name.is_empty() || examples.contains(name.as_str()))
        };
        findings.extend(items.iter().filter(|item| !shown(item)).map(|item| {
            let message = format!("`{}` has no example, nor `See [`Item`] for an example.`", item.name);
            item.file.finding(item.line, message, WHY)
        }));
    }
    findings
}

fn by_crate(files: &[SourceFile]) -> BTreeMap<&str, Vec<Item<'_>>> {
    let mut crates = BTreeMap::<_, Vec<_>>::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some((name, path)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        // The suite's promises are called by its macro alone, and `private.rs` is hidden.
        let is_promise = path.starts_with("conformance/") && path != "conformance/mod.rs";
        if CRATES.contains(&name) && !is_promise && path != "private.rs" {
            crates.entry(name).or_default().extend(items(file));
        }
    }
    crates
}

fn items(file: &SourceFile) -> impl Iterator<Item = Item<'_>> {
    let lines: Vec<&str> = file.text.lines().collect();
    let code: Vec<&str> = file.code.lines().collect();
    let found = (0..lines.len()).filter_map(move |at| {
        let name = public_name(code.get(at)?)?;
        let above = lines[..at].iter().rev();
        let doc: Vec<&str> = above.take_while(|line| belongs_to_item(line)).copied().collect();
        let exported = !lines[at].starts_with("macro_rules!") || doc.contains(&"#[macro_export]");
        let hidden = doc.contains(&"#[doc(hidden)]");
        (exported && !hidden).then(|| Item { file, line: at + 1, name: name.to_owned(), doc })
    });
    found.collect::<Vec<_>>().into_iter()
}

/// Docs, comments and attributes; those of several lines are indented or end with a bracket of their own.
fn belongs_to_item(line: &str) -> bool {
    ["//", "#[", "    ", ")]"].iter().any(|start| line.starts_with(start))
}

fn public_name(code: &str) -> Option<&str> {
    let rest = match code.strip_prefix("macro_rules! ") {
        Some(rest) => rest,
        None => {
            let mut rest = code.strip_prefix("pub ")?;
            for word in ["const ", "async "] {
                rest = rest.strip_prefix(word).unwrap_or(rest);
            }
            ["struct ", "enum ", "trait ", "fn "].iter().find_map(|kind| rest.strip_prefix(kind))?
        }
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let files = [SourceFile::new("crates/hapax/src/a.rs", text)];
        shown(&files).iter().map(|finding| format!("{}: {}", finding.line, finding.message)).collect()
    }

    #[test]
    fn an_item_without_example_is_found() {
        for item in ["struct A;", "enum A {}", "trait A {}", "async fn A() {}", "const fn A() {}"] {
            let found = found(&format!("/// What.\n#[derive(Debug)]\npub {item}\n"));
            assert_eq!(found.len(), 1, "{item}");
            assert!(found[0].starts_with("3: `A` has no example"), "{found:?}");
        }
        assert_eq!(found("/// What.\n#[macro_export]\nmacro_rules! a {\n    () => {};\n}\n").len(), 1);
    }

    #[test]
    fn an_example_of_its_own_or_of_another_item_is_fine() {
        let own = "/// What.\n///\n/// ```\n/// a();\n/// ```\n#[must_use]\npub fn a() {}\n";
        assert!(found(own).is_empty());
        let other = "/// What.\n///\n/// See [`a`] for an example.\npub struct B;\n";
        assert!(found(&format!("{own}\n{other}")).is_empty());
        assert_eq!(found(other).len(), 1, "the item that is named has no example");
    }

    #[test]
    fn what_users_do_not_meet_needs_none() {
        assert!(found("/// What.\n#[doc(hidden)]\npub fn a() {}\n").is_empty());
        assert!(found("struct A;\npub(crate) struct B;\nmacro_rules! c {\n    () => {};\n}\n").is_empty());
        let elsewhere = [SourceFile::new("crates/hapax-sim/src/a.rs", "/// What.\npub fn a() {}\n")];
        assert!(shown(&elsewhere).is_empty());
    }
}
