//! Splits Rust source into code, comments and literals, and finds functions and test modules.
//!
//! It knows just enough of the grammar never to take a word in a string or a comment for code.
//! Every view of a file keeps its line breaks, so line numbers hold in each.

use std::ops::RangeInclusive;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Code,
    Comment,
    /// String and character literals, with their quotes.
    Literal,
}

/// Every character of the text with what it belongs to.
pub(super) fn classify(text: &str) -> Vec<(char, Kind)> {
    let chars: Vec<char> = text.chars().collect();
    let mut classified = Vec::with_capacity(chars.len());
    let mut at = 0;
    while at < chars.len() {
        let (kind, length) = piece(&chars, at);
        let end = (at + length).min(chars.len());
        classified.extend(chars[at..end].iter().map(|c| (*c, kind)));
        at = end;
    }
    classified
}

/// The text with every character of another kind blanked out.
pub(super) fn view(classified: &[(char, Kind)], wanted: Kind) -> String {
    classified.iter().map(|&(c, kind)| if kind == wanted || c == '\n' { c } else { ' ' }).collect()
}

/// The kind and length of the piece that begins at `at`.
fn piece(chars: &[char], at: usize) -> (Kind, usize) {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => (Kind::Comment, rest.iter().take_while(|c| **c != '\n').count()),
        ['/', '*', ..] => (Kind::Comment, block_comment(rest)),
        ['"', ..] => (Kind::Literal, string(rest)),
        ['r', ..] if may_open_raw(&chars[..at]) => literal(raw_string(rest)),
        ['\'', ..] => literal(character(rest)),
        _ => (Kind::Code, 1),
    }
}

/// A literal of this length, or one character of code when it turned out to be none.
fn literal(length: Option<usize>) -> (Kind, usize) {
    length.map_or((Kind::Code, 1), |length| (Kind::Literal, length))
}

/// Block comments nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// An `r` opens a raw string unless it ends a word; `br` and `cr` are the two words it may end.
fn may_open_raw(before: &[char]) -> bool {
    let before = before.strip_suffix(&['b']).or(before.strip_suffix(&['c'])).unwrap_or(before);
    !before.last().is_some_and(|c| is_word(*c))
}

fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let body = 2 + hashes;
    let closes = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some((body..rest.len()).find(closes).map_or(rest.len(), |at| at + 1 + hashes))
}

/// The length of a character literal; none for a lifetime.
fn character(rest: &[char]) -> Option<usize> {
    match rest {
        ['\'', '\\', _, tail @ ..] => tail.iter().position(|c| *c == '\'').map(|close| close + 4),
        ['\'', _, '\'', ..] => Some(3),
        _ => None,
    }
}

/// A function with the lines it spans, from its signature to its closing brace.
#[derive(Debug, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) lines: RangeInclusive<usize>,
}

/// The functions with a body in a code view, nested ones too.
pub(super) fn functions(code: &str) -> Vec<Function> {
    let starts = code.match_indices("fn").filter(|(at, _)| is_whole_word(code, *at, 2));
    starts.filter_map(|(at, _)| function(code, at)).collect()
}

fn function(code: &str, at: usize) -> Option<Function> {
    let signature = code[at + 2..].trim_start();
    let name: String = signature.chars().take_while(|c| is_word(*c)).collect();
    let body = at + body_start(&code[at..])?;
    let end = body + block_length(&code[body..])?;
    (!name.is_empty()).then(|| Function { name, lines: line_of(code, at)..=line_of(code, end) })
}

/// Where the body opens; none for a declaration that ends with a semicolon.
fn body_start(signature: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, c) in signature.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// How far it is from an opening brace to the one that closes it.
fn block_length(block: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, c) in block.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The lines of the `#[cfg(test)]` modules of a code view, attribute and braces included.
pub(super) fn test_modules(code: &str) -> Vec<RangeInclusive<usize>> {
    let attributes = ["#[cfg(test)]", "#[cfg(all(test"].into_iter().flat_map(|text| code.match_indices(text));
    attributes.filter_map(|(at, _)| test_module(code, at)).collect()
}

fn test_module(code: &str, at: usize) -> Option<RangeInclusive<usize>> {
    let mut item = code[at..].trim_start();
    while item.starts_with("#[") {
        item = item[item.find(']')? + 1..].trim_start();
    }
    let item = item.strip_prefix("pub").map_or(item, |rest| rest.trim_start().trim_start_matches("(crate)"));
    let module = item.trim_start().strip_prefix("mod ")?;
    let body = code.len() - module.len() + body_start(module)?;
    let end = body + block_length(&code[body..])?;
    Some(line_of(code, at)..=line_of(code, end))
}

fn line_of(code: &str, at: usize) -> usize {
    1 + code[..at].matches('\n').count()
}

/// Whether the text at `at` is no part of a longer word.
pub(super) fn is_whole_word(text: &str, at: usize, length: usize) -> bool {
    let edge = |c: Option<char>| c.is_some_and(is_word);
    let inside = &text[at..at + length];
    let left = edge(inside.chars().next()) && edge(text[..at].chars().next_back());
    let right = edge(inside.chars().next_back()) && edge(text[at + length..].chars().next());
    !left && !right
}

/// Whether `text` holds `needle` as a whole word.
pub(super) fn contains_word(text: &str, needle: &str) -> bool {
    text.match_indices(needle).any(|(at, _)| is_whole_word(text, at, needle.len()))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        view(&classify(text), Kind::Code)
    }

    #[test]
    fn strings_characters_and_comments_are_not_code() {
        for hidden in [
            "// word",
            "/* a /* word */ word */",
            r#""word \" word""#,
            r##"r#"word " word"#"##,
            r##"br#"word"#"##,
            "c\"word\"",
        ] {
            let text = format!("before {hidden}\n after");
            let code = code(&text);
            assert!(!code.contains("word"), "{code}");
            assert!(code.contains("before") && code.contains("\n after"), "{code}");
        }
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_do_not_open_strings() {
        assert!(code(r#"let a = '"'; word"#).contains("word"));
        assert!(code(r"let a = '\''; let b = '\u{1F600}'; word").contains("word"));
        assert!(code("fn f<'a>(x: &'a str) { word }").contains("word"));
        assert!(code(r##"let r = var"x"; r#type; word"##).contains("word"));
    }

    #[test]
    fn comments_and_literals_have_views_of_their_own() {
        let classified = classify("a // b\n\"c\"");
        assert_eq!(view(&classified, Kind::Comment), "  // b\n   ");
        assert_eq!(view(&classified, Kind::Literal), "      \n\"c\"");
    }

    #[test]
    fn functions_span_from_signature_to_closing_brace() {
        let text = "trait T {\n fn a(&self, x: [u8; 4]);\n fn b() {\n  if x { y }\n }\n}\ntype F = fn(u8);\nfn c<T>()\nwhere\n T: X,\n{}";
        let found = functions(text);
        let shown: Vec<(&str, RangeInclusive<usize>)> =
            found.iter().map(|f| (f.name.as_str(), f.lines.clone())).collect();
        assert_eq!(shown, [("b", 3..=5), ("c", 8..=11)]);
    }

    #[test]
    fn test_modules_are_found_behind_more_attributes() {
        let text =
            "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n fn b() {}\n}\n#[cfg(test)]\nfn c() {}\n";
        assert_eq!(test_modules(text), [2..=6]);
    }

    #[test]
    fn a_word_is_whole() {
        assert!(contains_word("x.await;", ".await"));
        assert!(!contains_word("x.awaiting", ".await"));
        assert!(!contains_word("hapax_runs_total", "hapax_runs"));
    }
}
