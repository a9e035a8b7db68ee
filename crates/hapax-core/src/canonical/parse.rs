//! A strict JSON parser that writes canonical text as it reads.
//!
//! Invariant: whatever it accepts is JSON by RFC 8259 with one meaning; it never repairs.

use super::CanonicalError;
use super::decimal::same_value;
use super::writer::{Writer, needs_escape};

type Result<T = ()> = std::result::Result<T, CanonicalError>;

/// Reads one value, the whole text, and writes its canonical form.
pub(super) fn canonicalize(text: &str, writer: &mut Writer) -> Result {
    whole(Parser { text, at: 0, writer, exact: false })
}

/// The same, and refuses a number that would be rounded.
pub(super) fn canonicalize_exactly(text: &str, writer: &mut Writer) -> Result {
    whole(Parser { text, at: 0, writer, exact: true })
}

fn whole(mut parser: Parser<'_, '_>) -> Result {
    let text = parser.text;
    if text.starts_with('\u{feff}') {
        return parser.fail("a byte order mark");
    }
    parser.skip_space();
    parser.value()?;
    parser.skip_space();
    if parser.at < text.len() { parser.fail("text after the value") } else { Ok(()) }
}

struct Parser<'t, 'w> {
    text: &'t str,
    at: usize,
    writer: &'w mut Writer,
    /// A number must be worth in its canonical form what it is worth in the text.
    exact: bool,
}

impl<'t> Parser<'t, '_> {
    fn fail<T>(&self, reason: &'static str) -> Result<T> {
        let reason = if self.at < self.text.len() { reason } else { "unexpected end" };
        Err(CanonicalError::Syntax { at: self.at, reason })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result {
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => self.string().map(|_plain| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => self.fail("expected a value"),
        }
    }

    fn literal(&mut self, word: &'static str) -> Result {
        if !self.text[self.at..].starts_with(word) {
            return self.fail("expected a value");
        }
        self.at += word.len();
        self.writer.raw(word);
        Ok(())
    }

    fn array(&mut self) -> Result {
        let array = self.writer.open_array()?;
        self.at += 1;
        self.skip_space();
        if !self.take(b']') {
            loop {
                self.writer.begin_element(&array);
                self.value()?;
                if self.ends_with(b']', "expected ',' or ']'")? {
                    break;
                }
            }
        }
        self.writer.close_array();
        Ok(())
    }

    fn object(&mut self) -> Result {
        let mut object = self.writer.open_object()?;
        self.at += 1;
        self.skip_space();
        if !self.take(b'}') {
            loop {
                self.writer.begin_key(&object);
                let plain = self.key()?;
                self.writer.end_key(&mut object, plain)?;
                self.value()?;
                self.writer.end_value();
                if self.ends_with(b'}', "expected ',' or '}'")? {
                    break;
                }
            }
        }
        self.writer.close_object(&object)
    }

    /// Reads what follows an element: the bracket (true) or a comma (false).
    fn ends_with(&mut self, bracket: u8, expected: &'static str) -> Result<bool> {
        self.skip_space();
        if self.take(bracket) {
            return Ok(true);
        }
        if !self.take(b',') {
            return self.fail(expected);
        }
        self.skip_space();
        Ok(false)
    }

    fn key(&mut self) -> Result<bool> {
        if self.peek() != Some(b'"') {
            return self.fail("expected a key in quotes");
        }
        let plain = self.string()?;
        self.skip_space();
        if !self.take(b':') {
            return self.fail("expected ':'");
        }
        self.skip_space();
        Ok(plain)
    }

    /// Reads and writes a string, and says whether it is plain: ASCII without escapes.
    fn string(&mut self) -> Result<bool> {
        self.at += 1;
        self.writer.raw("\"");
        let mut plain = self.run();
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                _ => return self.fail("a raw control character in a string"),
            }
            self.run();
            plain = false;
        }
        self.at += 1;
        self.writer.raw("\"");
        Ok(plain)
    }

    /// Copies characters up to the next that cannot stand as it is, and says whether all were ASCII.
    fn run(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(needs_escape).unwrap_or(rest.len());
        let clean = &rest[..length];
        self.writer.raw(clean);
        self.at += length;
        clean.is_ascii()
    }

    fn escape(&mut self) -> Result {
        let start = self.at;
        self.at += 1;
        let decoded = match self.peek() {
            Some(quoted @ (b'"' | b'\\' | b'/')) => char::from(quoted),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(start),
            _ => return self.fail("an unknown escape"),
        };
        self.at += 1;
        self.writer.escaped(decoded.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    fn unicode_escape(&mut self, start: usize) -> Result {
        let lone = || CanonicalError::LoneSurrogate { at: start };
        let unit = self.hex4()?;
        let code = if (0xd800..0xdc00).contains(&unit) {
            if !self.text[self.at..].starts_with("\\u") {
                return Err(lone());
            }
            self.at += 1;
            let low = self.hex4()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(lone());
            }
            0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)
        } else {
            unit
        };
        let decoded = char::from_u32(code).ok_or_else(lone)?;
        self.writer.escaped(decoded.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    /// Reads `u` and four hex digits.
    fn hex4(&mut self) -> Result<u32> {
        self.at += 1;
        let mut value = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(16)) else {
                return self.fail("expected four hex digits");
            };
            value = value << 4 | digit;
            self.at += 1;
        }
        Ok(value)
    }

    fn number(&mut self) -> Result {
        let start = self.at;
        self.take(b'-');
        if self.take(b'0') {
            if matches!(self.peek(), Some(b'0'..=b'9')) {
                return self.fail("a leading zero");
            }
        } else {
            self.digits()?;
        }
        let integer_end = self.at;
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        let literal = &self.text[start..self.at];
        if self.at == integer_end { self.integer(literal) } else { self.float(literal, start) }
    }

    fn digits(&mut self) -> Result {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { self.fail("expected a digit") } else { Ok(()) }
    }

    fn integer(&mut self, literal: &'t str) -> Result {
        self.writer.raw(if literal == "-0" { "0" } else { literal });
        Ok(())
    }

    fn float(&mut self, literal: &'t str, start: usize) -> Result {
        let value: f64 = literal.parse().expect("JSON numbers are a part of Rust's");
        let refused = |reason| Err(CanonicalError::Syntax { at: start, reason });
        if !value.is_finite() {
            return refused("a number too large for a float");
        }
        if self.exact && !same_value(literal, ryu_js::Buffer::new().format_finite(value)) {
            return refused("a number that a float cannot hold");
        }
        self.writer.float(value)
    }
}
