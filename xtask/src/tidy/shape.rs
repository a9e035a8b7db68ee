//! The shape of a file: it says what it is for, and neither it nor its functions are too long.

use super::Finding;
use super::lex::functions;
use super::source::SourceFile;

const MAX_FUNCTION_LINES: usize = 70;
const MAX_FILE_LINES: usize = 800;
const MAX_TEST_FILE_LINES: usize = 1200;

const WHY_DOCS: &str = "a reader decides by a file's first line whether to read on";
const WHY_FUNCTION: &str = "a function is understood when it fits on a screen";
const WHY_FILE: &str = "a long file has more than one purpose";

/// Every Rust file begins with a module doc; inputs of compile-fail tests are exempt.
pub(super) fn module_docs(files: &[SourceFile]) -> Vec<Finding> {
    let undocumented =
        |file: &&SourceFile| file.is_rust() && !is_fixture(file) && !file.text.starts_with("//!");
    let finding =
        |file: &SourceFile| file.finding(1, "does not begin with a `//!` module doc".into(), WHY_DOCS);
    files.iter().filter(undocumented).map(finding).collect()
}

fn is_fixture(file: &SourceFile) -> bool {
    ["tests/ui/", "tests/compile_fail/"].iter().any(|folder| file.path.contains(folder))
}

pub(super) fn function_length(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(long_functions).collect()
}

fn long_functions(file: &SourceFile) -> Vec<Finding> {
    let measured = functions(&file.code).into_iter().map(|f| (*f.lines.start(), f.lines.count(), f.name));
    let long = measured.filter(|(_, lines, _)| *lines > MAX_FUNCTION_LINES);
    long.map(|(start, lines, name)| {
        let message = format!("`{name}` has {lines} lines, more than {MAX_FUNCTION_LINES}");
        file.finding(start, message, WHY_FUNCTION)
    })
    .collect()
}

/// Test modules don't count, and files of tests, which are lists by nature, may be longer.
pub(super) fn file_length(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.is_rust()).filter_map(long_file).collect()
}

fn long_file(file: &SourceFile) -> Option<Finding> {
    let all = file.text.lines().count();
    let (lines, limit) = if file.is_in("tests") {
        (all, MAX_TEST_FILE_LINES)
    } else {
        let tests: usize = file.test_modules.iter().map(|lines| lines.clone().count()).sum();
        (all - tests, MAX_FILE_LINES)
    };
    let message = format!("has {lines} lines, more than {limit}");
    (lines > limit).then(|| file.finding(limit, message, WHY_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> [SourceFile; 1] {
        [SourceFile::new(path, text)]
    }

    #[test]
    fn a_file_without_module_doc_is_found() {
        assert_eq!(module_docs(&file("a.rs", "// why\nfn a() {}")).len(), 1);
        assert!(module_docs(&file("a.rs", "//! Why.\nfn a() {}")).is_empty());
        assert!(module_docs(&file("crates/x/tests/ui/a.rs", "fn a() {}")).is_empty());
        assert!(module_docs(&file("a.md", "text")).is_empty());
    }

    #[test]
    fn a_function_over_the_limit_is_found() {
        let of_lines = |lines: usize| format!("\nfn a() {{\n{}}}\n", "x();\n".repeat(lines - 2));
        assert!(function_length(&file("a.rs", &of_lines(70))).is_empty());
        let found = function_length(&file("a.rs", &of_lines(71)));
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert_eq!(found[0].message, "`a` has 71 lines, more than 70");
    }

    #[test]
    fn a_file_over_the_limit_is_found_and_its_test_module_is_free() {
        let lines = |count: usize| "x();\n".repeat(count);
        let module = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(500));
        assert!(file_length(&file("src/a.rs", &format!("{}{module}", lines(800)))).is_empty());
        assert_eq!(file_length(&file("src/a.rs", &format!("{}{module}", lines(801)))).len(), 1);
        assert!(file_length(&file("tests/a.rs", &lines(1200))).is_empty());
        assert_eq!(file_length(&file("tests/a.rs", &lines(1201))).len(), 1);
    }
}
