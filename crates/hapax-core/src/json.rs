//! Canonical JSON that is carried without being looked into: inputs, deltas, results.
//!
//! Invariant: the text is canonical, so equal values are equal bytes.

use crate::canonical::{self, CanonicalError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{fmt, sync::Arc};

/// A JSON value kept as its canonical text.
///
/// ```
/// use hapax_core::json::Json;
/// let json = Json::of(&("a", 1)).unwrap();
/// assert_eq!(json.as_str(), r#"["a",1]"#);
/// assert_eq!(json.read::<(String, u8)>().unwrap(), ("a".to_owned(), 1));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Writes a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, CanonicalError> {
        let bytes = canonical::to_vec(value)?;
        Ok(Self(String::from_utf8(bytes).expect("canonical JSON is UTF-8").into()))
    }

    /// The answer of a call that has none.
    pub fn null() -> Self {
        Self("null".into())
    }

    /// Takes any JSON text and brings it into canonical form.
    pub fn from_text(text: &str) -> Result<Self, CanonicalError> {
        Ok(Self(canonical::from_text(text)?.into()))
    }

    /// Reads it as a typed value.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The canonical text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Only canonical text is ever written, so it is taken as it stands.
        Ok(Self(Box::<RawValue>::deserialize(deserializer)?.get().into()))
    }
}
