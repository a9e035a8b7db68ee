//! Canonical JSON for people: indented and compared.
//!
//! Invariant: numbers and strings are shown as they are stored; nothing passes through a float.

use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// Indents a text without whitespace between its parts, as canonical JSON is.
pub(crate) fn indented(json: &str) -> String {
    let (mut text, mut depth, mut quoted, mut escaped) =
        (String::with_capacity(json.len() * 2), 0, false, false);
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        if quoted {
            text.push(c);
            quoted = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            '{' | '[' if chars.peek().is_some_and(|next| matches!(next, '}' | ']')) => {
                text.push(c);
                text.extend(chars.next());
            }
            '{' | '[' => {
                depth += 1;
                text.push(c);
                new_line(&mut text, depth);
            }
            '}' | ']' => {
                depth -= 1;
                new_line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                new_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            _ => {
                quoted = c == '"';
                text.push(c);
            }
        }
    }
    text
}

fn new_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

/// One difference between two values.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Change {
    /// Where, such as `/log/2` (RFC 6901).
    pub(crate) path: String,
    /// What was there; left out: nothing, which is something else than `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<Box<RawValue>>,
    /// What is there; left out: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<Box<RawValue>>,
}

/// All differences between two canonical texts, in the order of their paths.
pub(crate) fn changes(before: &str, after: &str) -> Vec<Change> {
    let mut found = vec![];
    compare(String::new(), Some(before), Some(after), &mut found);
    found
}

fn compare(path: String, before: Option<&str>, after: Option<&str>, found: &mut Vec<Change>) {
    if before == after {
        return;
    }
    if let (Some(before), Some(after)) = (before, after) {
        if let (Some(old), Some(new)) = (object(before), object(after)) {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            let value = |of: &BTreeMap<String, &'_ RawValue>, key: &String| {
                of.get(key).map(|raw| raw.get().to_owned())
            };
            for key in keys {
                let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                compare(path, value(&old, key).as_deref(), value(&new, key).as_deref(), found);
            }
            return;
        }
        if let (Some(old), Some(new)) = (array(before), array(after)) {
            for at in 0..old.len().max(new.len()) {
                let value = |of: &[&RawValue]| of.get(at).map(|raw| raw.get().to_owned());
                compare(format!("{path}/{at}"), value(&old).as_deref(), value(&new).as_deref(), found);
            }
            return;
        }
    }
    found.push(Change { path, before: before.and_then(raw), after: after.and_then(raw) });
}

/// A text that is known to be JSON, to be written as it stands.
pub(crate) fn raw(json: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(json.to_owned()).ok()
}

fn object(json: &str) -> Option<BTreeMap<String, &RawValue>> {
    json.starts_with('{').then(|| serde_json::from_str(json).ok()).flatten()
}

fn array(json: &str) -> Option<Vec<&RawValue>> {
    json.starts_with('[').then(|| serde_json::from_str(json).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indented_text_keeps_every_digit_and_quote() {
        let json = r#"{"a":[1,{"b":"x,\"{:"}],"c":{},"d":340282366920938463463374607431768211455}"#;
        let text = indented(json);
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x,\\\"{:\"\n    }\n  ],\n  \"c\": {},\n  \
                        \"d\": 340282366920938463463374607431768211455\n}";
        assert_eq!(text, expected);
    }

    #[test]
    fn changes_name_the_smallest_part_that_differs() {
        let found =
            changes(r#"{"a":1,"l":["x"],"m":{"k":1}}"#, r#"{"a":1,"l":["x","y"],"m":{"k":2},"n/":null}"#);
        let shown: Vec<_> = found
            .iter()
            .map(|c| {
                format!(
                    "{} {:?} {:?}",
                    c.path,
                    c.before.as_deref().map(RawValue::get),
                    c.after.as_deref().map(RawValue::get)
                )
            })
            .collect();
        assert_eq!(
            shown,
            [r#"/l/1 None Some("\"y\"")"#, r#"/m/k Some("1") Some("2")"#, r#"/n~1 None Some("null")"#]
        );
    }
}
