//! Writes canonical JSON, piece by piece, into one buffer.
//!
//! Invariant: when an object is closed its entries stand in canonical order, each key once. Entries are written
//! where they arrive and only moved if they came out of order, so sorted input costs no copy and no allocation.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use super::{CanonicalError, MAX_DEPTH};

pub(super) struct Writer {
    out: String,
    /// The entries of all open objects; an inner object's lie behind its parent's.
    spans: Vec<Span>,
    /// Kept between objects, so that reordering many of them allocates once.
    scratch: String,
    depth: usize,
    /// The first error inside an array or object, for a `Serialize` that swallows it and goes on.
    failure: Option<CanonicalError>,
}

/// Where an entry lies in the buffer.
struct Span {
    /// The key's opening quote.
    start: usize,
    /// The key's closing quote.
    key_end: usize,
    /// The end of the value.
    end: usize,
    /// The key is ASCII and has no escapes: its bytes compare like its UTF-16 code units.
    plain: bool,
}

impl Span {
    fn key<'a>(&self, out: &'a str) -> &'a str {
        &out[self.start + 1..self.key_end]
    }
}

/// An object that is being written.
pub(super) struct OpenObject {
    body: usize,
    first_span: usize,
    sorted: bool,
}

/// An array that is being written.
pub(super) struct OpenArray {
    body: usize,
}

impl Writer {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            out: String::with_capacity(bytes),
            spans: Vec::new(),
            scratch: String::new(),
            depth: 0,
            failure: None,
        }
    }

    pub(super) fn finish(self) -> Result<String, CanonicalError> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.out),
        }
    }

    /// Remembers an error, so that half-written text can never pass for canonical.
    pub(super) fn note<T>(&mut self, result: Result<T, CanonicalError>) -> Result<T, CanonicalError> {
        if let Err(error) = &result {
            self.failure.get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Writes text that is canonical already.
    pub(super) fn raw(&mut self, canonical: &str) {
        self.out.push_str(canonical);
    }

    /// An integer of the widest types.
    pub(super) fn wide_integer(&mut self, digits: impl fmt::Display) {
        write!(self.out, "{digits}").expect("a String takes everything");
    }

    /// The formatting machinery costs more than the digits; most integers of a state come this way.
    pub(super) fn integer(&mut self, negative: bool, mut magnitude: u64) {
        let mut buffer = [b'0'; 21];
        let mut start = buffer.len();
        loop {
            start -= 1;
            buffer[start] = b'0' + (magnitude % 10) as u8;
            magnitude /= 10;
            if magnitude == 0 {
                break;
            }
        }
        if negative {
            start -= 1;
            buffer[start] = b'-';
        }
        self.out.push_str(std::str::from_utf8(&buffer[start..]).expect("digits are ASCII"));
    }

    pub(super) fn float(&mut self, value: f64) -> Result<(), CanonicalError> {
        if !value.is_finite() {
            return Err(CanonicalError::NotFinite);
        }
        self.out.push_str(ryu_js::Buffer::new().format_finite(value));
        Ok(())
    }

    /// Writes a string with its quotes, and says whether it is plain: ASCII without escapes.
    pub(super) fn string(&mut self, text: &str) -> bool {
        self.out.push('"');
        let plain = self.escaped(text);
        self.out.push('"');
        plain
    }

    /// Writes what `Display` prints as a string.
    pub(super) fn display_string(&mut self, value: &(impl fmt::Display + ?Sized)) -> fmt::Result {
        self.out.push('"');
        write!(Escape(self), "{value}")?;
        self.out.push('"');
        Ok(())
    }

    /// Writes a part of a string, and says whether it is plain.
    pub(super) fn escaped(&mut self, text: &str) -> bool {
        let mut clean_from = 0;
        let mut all_bits = 0;
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            all_bits |= byte;
            if needs_escape(byte) {
                self.out.push_str(&text[clean_from..at]);
                self.escape(byte);
                clean_from = at + 1;
            }
        }
        self.out.push_str(&text[clean_from..]);
        clean_from == 0 && all_bits.is_ascii()
    }

    fn escape(&mut self, byte: u8) {
        match byte {
            b'"' => self.out.push_str("\\\""),
            b'\\' => self.out.push_str("\\\\"),
            0x08 => self.out.push_str("\\b"),
            0x0c => self.out.push_str("\\f"),
            b'\n' => self.out.push_str("\\n"),
            b'\r' => self.out.push_str("\\r"),
            b'\t' => self.out.push_str("\\t"),
            _ => write!(self.out, "\\u{byte:04x}").expect("a String takes everything"),
        }
    }

    fn descend(&mut self) -> Result<(), CanonicalError> {
        if self.depth == MAX_DEPTH {
            return Err(CanonicalError::TooDeep);
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn open_array(&mut self) -> Result<OpenArray, CanonicalError> {
        self.descend()?;
        self.out.push('[');
        Ok(OpenArray { body: self.out.len() })
    }

    pub(super) fn begin_element(&mut self, array: &OpenArray) {
        if self.out.len() > array.body {
            self.out.push(',');
        }
    }

    pub(super) fn close_array(&mut self) {
        self.depth -= 1;
        self.out.push(']');
    }

    /// Opens the object of one entry that tags an enum's variant.
    pub(super) fn open_tag(&mut self, variant: &str) -> Result<(), CanonicalError> {
        self.descend()?;
        self.out.push('{');
        self.string(variant);
        self.out.push(':');
        Ok(())
    }

    pub(super) fn close_tag(&mut self) {
        self.depth -= 1;
        self.out.push('}');
    }

    pub(super) fn open_object(&mut self) -> Result<OpenObject, CanonicalError> {
        self.descend()?;
        self.out.push('{');
        // Room for the fields of a common struct at once, where growing would allocate twice.
        self.spans.reserve(8);
        Ok(OpenObject { body: self.out.len(), first_span: self.spans.len(), sorted: true })
    }

    /// The next thing to be written is the key's string; then [`end_key`](Self::end_key).
    pub(super) fn begin_key(&mut self, object: &OpenObject) {
        if self.out.len() > object.body {
            self.out.push(',');
        }
        let start = self.out.len();
        self.spans.push(Span { start, key_end: start, end: start, plain: false });
    }

    /// `plain` must not be true unless the key is ASCII without escapes; false is always right, only slower.
    pub(super) fn end_key(&mut self, object: &mut OpenObject, plain: bool) -> Result<(), CanonicalError> {
        let key_end = self.out.len() - 1;
        let span = self.spans.last_mut().expect("begin_key pushed it");
        span.key_end = key_end;
        span.plain = plain;
        self.out.push(':');
        if object.sorted
            && let [.., previous, this] = &self.spans[object.first_span..]
        {
            match compare_keys(&self.out, previous, this) {
                Ordering::Less => {}
                Ordering::Equal => return Err(duplicate(&self.out, this)),
                Ordering::Greater => object.sorted = false,
            }
        }
        Ok(())
    }

    pub(super) fn end_value(&mut self) {
        let end = self.out.len();
        self.spans.last_mut().expect("a value follows its key").end = end;
    }

    pub(super) fn close_object(&mut self, object: &OpenObject) -> Result<(), CanonicalError> {
        if !object.sorted {
            self.reorder(object)?;
        }
        self.spans.truncate(object.first_span);
        self.depth -= 1;
        self.out.push('}');
        Ok(())
    }

    fn reorder(&mut self, object: &OpenObject) -> Result<(), CanonicalError> {
        let Self { out, spans, scratch, .. } = self;
        let spans = &mut spans[object.first_span..];
        spans.sort_unstable_by(|left, right| compare_keys(out, left, right));
        if let Some(pair) = spans.windows(2).find(|pair| compare_keys(out, &pair[0], &pair[1]).is_eq()) {
            return Err(duplicate(out, &pair[0]));
        }
        scratch.clear();
        for span in spans {
            if !scratch.is_empty() {
                scratch.push(',');
            }
            scratch.push_str(&out[span.start..span.end]);
        }
        out.truncate(object.body);
        out.push_str(scratch);
        Ok(())
    }
}

/// Escapes what a formatter writes.
struct Escape<'w>(&'w mut Writer);

impl fmt::Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.escaped(text);
        Ok(())
    }
}

/// JSON allows these in a string only escaped, and canonical JSON escapes nothing else.
pub(super) fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn compare_keys(out: &str, left: &Span, right: &Span) -> Ordering {
    let (left_key, right_key) = (left.key(out), right.key(out));
    if left.plain && right.plain { left_key.cmp(right_key) } else { units(left_key).cmp(units(right_key)) }
}

fn duplicate(out: &str, span: &Span) -> CanonicalError {
    let units: Vec<u16> = units(span.key(out)).collect();
    CanonicalError::DuplicateKey { key: String::from_utf16_lossy(&units) }
}

/// The UTF-16 code units that a canonical string stands for.
fn units(escaped: &str) -> impl Iterator<Item = u16> {
    let mut units = escaped.encode_utf16();
    std::iter::from_fn(move || {
        let unit = units.next()?;
        if unit == u16::from(b'\\') { unescape(&mut units) } else { Some(unit) }
    })
}

/// The unit behind a backslash that [`Writer::escape`] wrote.
fn unescape(units: &mut impl Iterator<Item = u16>) -> Option<u16> {
    let escape = char::from_u32(u32::from(units.next()?))?;
    Some(match escape {
        'b' => 0x08,
        'f' => 0x0c,
        'n' => 0x0a,
        'r' => 0x0d,
        't' => 0x09,
        'u' => units.take(4).filter_map(hex_value).fold(0, |value, digit| value << 4 | digit),
        quoted => quoted as u16,
    })
}

fn hex_value(unit: u16) -> Option<u16> {
    let digit = char::from_u32(u32::from(unit))?.to_digit(16)?;
    u16::try_from(digit).ok()
}
