//! Error codes and their pages: each code has a page, and no page outlives its code.

use std::collections::BTreeMap;

use super::Finding;
use super::source::{SourceFile, numbered};

const CODES: &str = "crates/hapax-core/src/error.rs";
const PAGES: &str = "docs/errors/";

const WHY_PAGE: &str = "an error message sends its reader to the page of its code";
const WHY_CODE: &str = "a page that no error leads to is never read, nor corrected";

pub(super) fn complete(files: &[SourceFile]) -> Vec<Finding> {
    let codes = codes_with_lines(files);
    let pages: Vec<(&str, &SourceFile)> =
        files.iter().filter_map(|file| Some((page_code(&file.path)?, file))).collect();
    let missing = codes.iter().filter(|(code, _)| !pages.iter().any(|(page, _)| page == *code));
    let missing = missing.map(|(code, line)| Finding {
        path: CODES.to_owned(),
        line: *line,
        message: format!("{code} has no page {PAGES}{code}.md"),
        why: WHY_PAGE,
    });
    let orphans = pages.iter().filter(|(code, _)| !codes.contains_key(code));
    let orphans =
        orphans.map(|(code, file)| file.finding(1, format!("{code} is not mentioned in {CODES}"), WHY_CODE));
    missing.chain(orphans).collect()
}

/// Every code of the error file with the first line that mentions it.
fn codes_with_lines(files: &[SourceFile]) -> BTreeMap<&str, usize> {
    let mut codes = BTreeMap::new();
    for file in files.iter().filter(|file| file.path == CODES) {
        for (number, line) in numbered(&file.text) {
            for (at, _) in line.match_indices("HX") {
                if let Some(code) = code_at(&line[at..]) {
                    codes.entry(code).or_insert(number);
                }
            }
        }
    }
    codes
}

/// The code at the start of the text: `HX` and exactly four digits.
fn code_at(text: &str) -> Option<&str> {
    let digits = text.strip_prefix("HX")?.bytes().take_while(u8::is_ascii_digit).count();
    (digits == 4).then(|| &text[..6])
}

fn page_code(path: &str) -> Option<&str> {
    let stem = path.strip_prefix(PAGES)?.strip_suffix(".md")?;
    code_at(stem).filter(|code| *code == stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(codes: &str, pages: &[&str]) -> Vec<SourceFile> {
        let pages = pages.iter().map(|page| SourceFile::new(&format!("docs/errors/{page}.md"), "# page"));
        pages.chain([SourceFile::new(CODES, codes)]).collect()
    }

    #[test]
    fn a_code_without_page_is_found() {
        let found = complete(&tree("//! Errors.\nconst A: &str = \"HX0001\"; // HX0002\n", &["HX0001"]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].path.as_str()), (2, CODES));
        assert!(found[0].message.starts_with("HX0002 has no page"));
    }

    #[test]
    fn a_page_without_code_is_found() {
        let found = complete(&tree("HX0001", &["HX0001", "HX0009"]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "docs/errors/HX0009.md");
    }

    #[test]
    fn codes_and_pages_that_match_are_fine() {
        assert!(
            complete(&tree("HX0001 HX0002 HX0001 HXnnnn HX00031", &["HX0001", "HX0002", "README"]))
                .is_empty()
        );
    }
}
