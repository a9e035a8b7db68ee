//! Leftovers of work in progress: what was meant to be done later is done now or not at all.

use super::Finding;
use super::lex::contains_word;
use super::source::{SourceFile, numbered};

const WHY: &str = "the tree holds finished work only; plans belong in the tracker";

/// Sought in code.
const CALLS: &[&str] = &["todo!(", "unimplemented!(", "dbg!(", "#[ignore"];

/// Sought in code and comments; a string may hold them as data.
const WORDS: &[&str] = &["TODO", "FIXME", "XXX"];

pub(super) fn leftovers(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(in_file).collect()
}

fn in_file(file: &SourceFile) -> Vec<Finding> {
    let calls = CALLS.iter().map(|marker| (&file.code, marker));
    let words =
        [&file.code, &file.comments].into_iter().flat_map(|v| WORDS.iter().map(move |word| (v, word)));
    let sought = calls.chain(words);
    let found = sought.flat_map(|(view, marker)| {
        let lines = numbered(view).filter(move |(_, line)| contains_word(line, marker));
        lines.map(move |(number, _)| file.finding(number, format!("leftover `{marker}`"), WHY))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        leftovers(&[SourceFile::new("a.rs", text)]).len()
    }

    #[test]
    fn every_marker_is_found() {
        for marker in CALLS {
            assert_eq!(found(&format!("fn a() {{\n    {marker} }}")), 1, "{marker}");
        }
        for marker in WORDS {
            assert_eq!(found(&format!("// {marker}: later")), 1, "{marker}");
            assert_eq!(found(&format!("const {marker}: u8 = 1;")), 1, "{marker}");
        }
    }

    #[test]
    fn strings_and_longer_words_are_no_markers() {
        assert_eq!(found("let a = \"TODO and todo!()\"; // XXXX, mytodo"), 0);
        assert_eq!(found("fn a() { my_todo!(1) } // dbg!( in prose"), 0);
    }
}
