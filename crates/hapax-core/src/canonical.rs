//! Canonical JSON: one value, one text.
//!
//! Invariant: equal JSON values have equal canonical bytes, whatever the order of their keys or the spelling of
//! their numbers and strings, and two different integers never share a form. What has no canonical form is an
//! error, never a guess.
//!
//! The form is RFC 8785 (keys sorted by UTF-16 code unit, ES6 numbers, no whitespace, only the escapes that JSON
//! demands) with one stricter rule: an integer is written with all its digits. RFC 8785 would round those beyond
//! ±2^53 to a float, and two different orders would share an idempotency key.

mod decimal;
mod parse;
mod serialize;
mod text;
mod writer;

use serde::ser::{self, Serialize};
use thiserror::Error;

use self::writer::Writer;

/// How many arrays and objects may be nested; one more is [`CanonicalError::TooDeep`].
///
/// It bounds the stack that untrusted text can claim. `serde_json` reads no deeper, and what is written must be readable.
///
/// ```
/// use hapax_core::canonical::{CanonicalError, MAX_DEPTH, from_text};
/// let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
/// assert!(from_text(&nested(MAX_DEPTH)).is_ok());
/// assert_eq!(from_text(&nested(MAX_DEPTH + 1)), Err(CanonicalError::TooDeep));
/// ```
pub const MAX_DEPTH: usize = 127;

/// Why a value or text has no canonical form.
///
/// ```
/// use hapax_core::canonical::{CanonicalError, from_text};
/// assert_eq!(from_text(r#"{"a":1,"a":2}"#), Err(CanonicalError::DuplicateKey { key: "a".into() }));
/// assert!(matches!(from_text("[1,]"), Err(CanonicalError::Syntax { at: 3, .. })));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// JSON has no NaN and no infinity.
    #[error("a number is not finite")]
    NotFinite,
    /// Readers differ in which of two equal keys they believe.
    #[error("the key {key:?} occurs twice in one object")]
    DuplicateKey {
        /// The key, unescaped.
        key: String,
    },
    /// Half of a surrogate pair is no character.
    #[error("a lone surrogate at byte {at}")]
    LoneSurrogate {
        /// The offset of its escape in the text.
        at: usize,
    },
    /// The text is not JSON. For a value that embeds raw JSON the offset counts within the embedded text.
    #[error("{reason} at byte {at}")]
    Syntax {
        /// The offset in the text.
        at: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// More than [`MAX_DEPTH`] arrays and objects are nested.
    #[error("nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// An object's key must have an obvious text.
    #[error("{found} cannot be an object's key; use a string, integer, bool, char or unit variant")]
    Key {
        /// What the map had for a key.
        found: &'static str,
    },
    /// A `Serialize` implementation gave up, with this message.
    #[error("{0}")]
    Custom(String),
}

impl ser::Error for CanonicalError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Custom(message.to_string())
    }
}

/// The canonical bytes of a value.
///
/// The shapes are those of `serde_json`: externally tagged enums, bytes as an array of numbers, keys that are
/// integers, bools or chars as strings. An `f32` is widened first. A `RawValue` is canonicalised like any text.
///
/// # Errors
///
/// See [`CanonicalError`].
///
/// ```
/// use serde::Serialize;
///
/// #[derive(Serialize)]
/// struct Order { total: f64, id: u64 }
///
/// let bytes = hapax_core::canonical::to_vec(&Order { total: 10.0, id: u64::MAX })?;
/// assert_eq!(bytes, br#"{"id":18446744073709551615,"total":10}"#);
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    let mut writer = Writer::with_capacity(128);
    value.serialize(&mut writer)?;
    writer.finish().map(String::into_bytes)
}

/// The canonical form of a JSON text.
///
/// The parser is strict: one value, RFC 8259 grammar, no duplicate keys (after unescaping), no lone surrogates,
/// no number beyond the floats. An integer literal keeps all its digits, however many; any other number is read as
/// a float.
///
/// # Errors
///
/// See [`CanonicalError`].
///
/// ```
/// use hapax_core::canonical::from_text;
///
/// assert_eq!(from_text(r#"{"b": 1E2, "a": "\u0041"}"#)?, r#"{"a":"A","b":100}"#);
/// assert!(from_text(r#"{"a": 1, "\u0061": 2}"#).is_err());
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub fn from_text(text: &str) -> Result<String, CanonicalError> {
    let mut writer = Writer::with_capacity(text.len());
    parse::canonicalize(text, &mut writer)?;
    writer.finish()
}

/// [`from_text`] for bytes that may not be UTF-8.
///
/// # Errors
///
/// As [`from_text`]; a byte that is not UTF-8 is a [`CanonicalError::Syntax`].
///
/// ```
/// use hapax_core::canonical::from_slice;
/// assert_eq!(from_slice(b"[ 1.0 ]").unwrap(), "[1]");
/// assert!(from_slice(b"\xff").is_err());
/// ```
pub fn from_slice(bytes: &[u8]) -> Result<String, CanonicalError> {
    from_text(utf8(bytes)?)
}

/// [`from_slice`] where two numbers that differ must not share a form: one that would be rounded is an error.
pub(crate) fn exactly_from_slice(bytes: &[u8]) -> Result<String, CanonicalError> {
    let text = utf8(bytes)?;
    let mut writer = Writer::with_capacity(text.len());
    parse::canonicalize_exactly(text, &mut writer)?;
    writer.finish()
}

fn utf8(bytes: &[u8]) -> Result<&str, CanonicalError> {
    std::str::from_utf8(bytes)
        .map_err(|error| CanonicalError::Syntax { at: error.valid_up_to(), reason: "invalid UTF-8" })
}
