//! The key as its header has it: a string by RFC 9651, or a plain word as most clients of today send it.
//!
//! Invariant: a key is 1 to 255 printable ASCII characters. Whatever is in doubt is refused: a key that was misread
//! could be another's.

use hapax_core::limits::MAX_ID_BYTES;
use http::HeaderMap;

/// The header that carries the key.
pub(crate) const HEADER: &str = "idempotency-key";

/// Reads the key. `None`: there is none. An error says what is wrong with it.
pub(crate) fn read(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("is there more than once");
    }
    let key = parse(value.as_bytes().trim_ascii())?;
    match key.len() {
        0 => Err("is empty"),
        1..=MAX_ID_BYTES => Ok(Some(key)),
        _ => Err("has more than 255 characters"),
    }
}

fn parse(value: &[u8]) -> Result<String, &'static str> {
    match value.strip_prefix(b"\"") {
        Some(rest) => quoted(rest),
        None => plain(value),
    }
}

/// What follows the first quote: the characters, then a quote, then nothing. Only quotes and backslashes are escaped.
fn quoted(rest: &[u8]) -> Result<String, &'static str> {
    let (mut key, mut bytes) = (String::new(), rest.iter());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'"' if bytes.as_slice().is_empty() => return Ok(key),
            b'"' => return Err("goes on behind its closing quote"),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => escaped,
                _ => return Err("has a backslash before something else than a quote or a backslash"),
            },
            b' '..=b'~' => byte,
            _ => return Err("has a character that is not printable ASCII"),
        };
        key.push(char::from(*byte));
    }
    Err("has no closing quote")
}

/// Without quotes there is nothing that would end a key, so what could is refused.
fn plain(value: &[u8]) -> Result<String, &'static str> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';');
    if !value.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err("has a character that is not printable ASCII");
    }
    if value.iter().all(is_plain) {
        Ok(value.iter().map(|byte| char::from(*byte)).collect())
    } else {
        Err("has characters that need quotes around it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(values: &[&[u8]]) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).expect("a header's value"));
        }
        read(&headers)
    }

    #[test]
    fn a_key_is_a_quoted_string_or_a_plain_word() {
        for (value, key) in [
            (r#""8e03978e-40d5""#, "8e03978e-40d5"),
            ("8e03978e-40d5", "8e03978e-40d5"),
            ("fx:0af3/7=", "fx:0af3/7="),
            (r#""two words, one; key""#, "two words, one; key"),
            (r#""a \"quoted\" \\ one""#, r#"a "quoted" \ one"#),
            (" \"spaced\"\t", "spaced"),
        ] {
            assert_eq!(of(&[value.as_bytes()]), Ok(Some(key.to_owned())), "{value}");
        }
        assert_eq!(of(&[]), Ok(None));
        let (longest, quoted) = ("k".repeat(255), format!("\"{}\"", "\\\"".repeat(255)));
        assert_eq!(of(&[longest.as_bytes()]), Ok(Some(longest.clone())));
        assert_eq!(of(&[quoted.as_bytes()]), Ok(Some("\"".repeat(255))), "what counts is the key itself");
    }

    #[test]
    fn what_could_be_misread_is_refused() {
        let over = "k".repeat(256);
        for value in [
            "",
            "\"\"",
            "\"",
            "\"open",
            "open\"",
            "\"a\"b",
            "\"a\", \"b\"",
            "\"a\";v=1",
            "a, b",
            "a b",
            "a;v=1",
            r#""a\b""#,
            r#""a\"#,
            r#""a\""#,
            "\"t\tab\"",
            "t\tab",
            "\u{e9}t\u{e9}",
            "\"\u{e9}\"",
            &over,
        ] {
            assert!(of(&[value.as_bytes()]).is_err(), "{value:?}");
        }
        assert_eq!(of(&[b"a", b"a"]), Err("is there more than once"));
        for quotes_would_not_help in ["\u{e9}t\u{e9}", "\"\u{e9}\"", "t\tab"] {
            let refused = of(&[quotes_would_not_help.as_bytes()]);
            assert_eq!(
                refused,
                Err("has a character that is not printable ASCII"),
                "{quotes_would_not_help}"
            );
        }
        assert!(of(&[b"\xff"]).is_err());
    }
}
