//! Examples: what users meet shows how it is used, in code that the doc tests run.

use super::Finding;
use super::source::SourceFile;

/// The crates whose items users meet. Macros have their examples where `hapax` re-exports them, since only there they
/// can run.
const CRATES: &[&str] =
    &["hapax", "hapax-core", "hapax-store", "hapax-requests", "hapax-telemetry", "hapax-cli"];
const WHY: &str = "an example is read first, and a doc test keeps it true";

/// An item at the outermost level of a file, with its attributes and doc.
struct Item<'f> {
    file: &'f SourceFile,
    line: usize,
    name: String,
    doc: Vec<&'f str>,
}

impl Item<'_> {
    /// Whether some block of its doc is compiled and run.
    fn has_example(&self) -> bool {
        let fences =
            self.doc.iter().rev().filter_map(|line| line.strip_prefix("///")?.trim().strip_prefix("```"));
        // Every other fence closes a block.
        fences.step_by(2).any(runs)
    }
}

/// Whether rustdoc runs a block with these words after its fence: it runs Rust, unless it is told otherwise.
fn runs(words: &str) -> bool {
    let is_run = |word: &str| matches!(word, "" | "rust" | "should_panic") || word.starts_with("edition");
    words.split([',', ' ']).all(is_run)
}

/// Every public struct, enum, trait, function, constant, type alias and exported macro has an example of its own.
pub(super) fn shown(files: &[SourceFile]) -> Vec<Finding> {
    let without = files.iter().filter(|file| is_met(file)).flat_map(items).filter(|item| !item.has_example());
    without
        .map(|item| item.file.finding(item.line, format!("`{}` has no example that runs", item.name), WHY))
        .collect()
}

fn is_met(file: &SourceFile) -> bool {
    let inside = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
    // The suite's promises are called by its macro alone, and `private.rs` is hidden.
    let is_promise = |path: &str| {
        let file = path.strip_prefix("conformance/");
        file.is_some_and(|file| file != "mod.rs" && file != "sample.rs")
    };
    let is_met = |(name, path)| CRATES.contains(&name) && !is_promise(path) && path != "private.rs";
    file.is_rust() && inside.is_some_and(is_met)
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
            let rest = code.strip_prefix("pub ")?;
            // A function may have any of these words before it; else `const` is a kind of its own.
            let kinds =
                ["struct ", "enum ", "trait ", "fn ", "const fn ", "async fn ", "const ", "static ", "type "];
            kinds.iter().find_map(|kind| rest.strip_prefix(kind))?
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
        for item in [
            "struct A;",
            "enum A {}",
            "trait A {}",
            "fn A() {}",
            "async fn A() {}",
            "const fn A() {}",
            "const A: u8 = 1;",
            "static A: u8 = 1;",
            "type A = u8;",
        ] {
            let found = found(&format!("/// What.\n#[derive(Debug)]\npub {item}\n"));
            assert_eq!(found, ["3: `A` has no example that runs"], "{item}");
        }
        assert_eq!(found("/// What.\n#[macro_export]\nmacro_rules! a {\n    () => {};\n}\n").len(), 1);
    }

    #[test]
    fn only_an_example_of_its_own_will_do() {
        let own = "/// What.\n///\n/// ```\n/// a();\n/// ```\n#[must_use]\npub fn a() {}\n";
        assert!(found(own).is_empty());
        let other = "/// What.\n///\n/// See [`a`] for an example.\npub struct B;\n";
        assert_eq!(found(&format!("{own}\n{other}")), ["12: `B` has no example that runs"]);
    }

    #[test]
    fn only_an_example_that_runs_will_do() {
        let with =
            |words: &str| found(&format!("/// ```{words}\n/// a();\n/// ```\npub fn a() {{}}\n")).len();
        for words in ["", "rust", "should_panic", "rust,should_panic", "edition2024"] {
            assert_eq!(with(words), 0, "{words}");
        }
        for words in ["text", "json", "no_run", "ignore", "rust,ignore", "compile_fail", "rust,no_run"] {
            assert_eq!(with(words), 1, "{words}");
        }
        let second = "/// ```text\n/// a\n/// ```\n///\n/// ```\n/// a();\n/// ```\npub fn a() {}\n";
        assert!(found(second).is_empty());
    }

    #[test]
    fn what_users_do_not_meet_needs_none() {
        assert!(found("/// What.\n#[doc(hidden)]\npub fn a() {}\n").is_empty());
        assert!(found("struct A;\npub(crate) struct B;\nmacro_rules! c {\n    () => {};\n}\n").is_empty());
        let elsewhere = [SourceFile::new("crates/hapax-sim/src/a.rs", "/// What.\npub fn a() {}\n")];
        assert!(shown(&elsewhere).is_empty());
    }
}
