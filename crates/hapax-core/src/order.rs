//! Where an item stands: its path from the start of the run, and its place in the merge.
//!
//! Invariant: both values are functions of the declared graph and of the routes taken, never of time, threads or
//! finish order. In JSON they are decimal strings, always: a reader that holds numbers as floats would corrupt
//! a hash silently.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// The highest edge index: an [`OrderKey`] keeps 24 bits for it.
///
/// ```
/// use hapax_core::order::{MAX_EDGE_INDEX, OrderKey, PathHash};
/// let last = OrderKey::of(PathHash::ROOT, MAX_EDGE_INDEX);
/// assert_eq!(last.edge_index(), MAX_EDGE_INDEX);
/// assert!(std::panic::catch_unwind(|| OrderKey::of(PathHash::ROOT, MAX_EDGE_INDEX + 1)).is_err());
/// ```
pub const MAX_EDGE_INDEX: u32 = (1 << 24) - 1;

/// An item's identity within its step: the hash of the way that led to it.
///
/// ```
/// use hapax_core::order::PathHash;
///
/// let start = PathHash::ROOT.child("plan", 0);
/// assert_ne!(start.child("left", 0), start.child("left", 1));
/// assert_eq!(start.to_string().parse(), Ok(start));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathHash(pub u64);

impl PathHash {
    /// The parent of the start item.
    pub const ROOT: Self = Self(0);

    /// The path of `node_id`, reached from here through the edge `edge_index`.
    #[must_use]
    pub fn child(self, node_id: &str, edge_index: u32) -> Self {
        let mut hash = Sha256::new_with_prefix(b"hapax.path.v1");
        hash.update(self.0.to_be_bytes());
        update_prefixed(&mut hash, node_id);
        hash.update(edge_index.to_be_bytes());
        Self(first_u64(hash))
    }
}

/// The place of an item in the order in which a step starts its items and merges their deltas.
///
/// It only sorts. Two items may share one (40 bits of the parent's hash can collide); ties break by the items'
/// own [`PathHash`], then by node id.
///
/// ```
/// use hapax_core::order::{OrderKey, PathHash};
///
/// let parent = PathHash::ROOT.child("plan", 0);
/// assert!(OrderKey::of(parent, 0) < OrderKey::of(parent, 1));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OrderKey(pub u64);

impl OrderKey {
    /// The key of the child that `parent` reached through the edge `edge_index`.
    ///
    /// # Panics
    ///
    /// If `edge_index` is over [`MAX_EDGE_INDEX`]: it would spill into the parent's bits and sort the child among
    /// strangers. A fan-out that wide is a limit error, to be reported before any key is made.
    #[must_use]
    pub fn of(parent: PathHash, edge_index: u32) -> Self {
        assert!(edge_index <= MAX_EDGE_INDEX, "edge index {edge_index} is over {MAX_EDGE_INDEX}");
        Self::by_formula(parent, edge_index)
    }

    /// The bare formula, for any index: `(parent with its low 24 bits cleared) | edge_index`. For tools that show
    /// what a key would be; an item's key is made by [`OrderKey::of`].
    ///
    /// ```
    /// use hapax_core::order::{OrderKey, PathHash};
    ///
    /// assert_eq!(OrderKey::by_formula(PathHash(u64::MAX), 5).0, 0xffff_ffff_ff00_0005);
    /// assert_eq!(OrderKey::by_formula(PathHash::ROOT, u32::MAX).0, 0xffff_ffff);
    /// ```
    #[must_use]
    pub const fn by_formula(parent: PathHash, edge_index: u32) -> Self {
        Self((parent.0 & !(MAX_EDGE_INDEX as u64)) | edge_index as u64)
    }

    /// The edge index in it.
    #[must_use]
    pub const fn edge_index(self) -> u32 {
        (self.0 & MAX_EDGE_INDEX as u64) as u32
    }
}

/// A text that is not the decimal form of a [`PathHash`] or an [`OrderKey`].
///
/// ```
/// use hapax_core::order::{OrderKey, ParseDecimalError};
/// assert_eq!("007".parse::<OrderKey>(), Err(ParseDecimalError));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
#[error("expected a decimal number from 0 to 18446744073709551615, without sign or leading zeros")]
pub struct ParseDecimalError;

/// Accepts only what Display prints, so that one value has one text.
fn parse_decimal(text: &str) -> Result<u64, ParseDecimalError> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().map_err(|_| ParseDecimalError) } else { Err(ParseDecimalError) }
}

macro_rules! decimal_string {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $type {
            type Err = ParseDecimalError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_decimal(text).map(Self)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(DecimalVisitor).map(Self)
            }
        }
    };
}

decimal_string!(PathHash);
decimal_string!(OrderKey);

/// Takes strings only: a number may already have lost digits on its way here.
struct DecimalVisitor;

impl Visitor<'_> for DecimalVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a u64 as a decimal string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        parse_decimal(text).map_err(E::custom)
    }
}

/// Feeds `be32(len) || text`, the length prefix that all v1 formulas share.
///
/// # Panics
///
/// If the text is longer than 4 GiB: a wrapped length would let two inputs share a hash.
pub(crate) fn update_prefixed(hash: &mut Sha256, text: &str) {
    let length = u32::try_from(text.len()).expect("names are far shorter than 4 GiB");
    hash.update(length.to_be_bytes());
    hash.update(text);
}

/// The first eight bytes of the hash, big-endian.
pub(crate) fn first_u64(hash: Sha256) -> u64 {
    let bytes: [u8; 32] = hash.finalize().into();
    bytes[..8].iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_sort_as_declared_and_stay_together() {
        let parent = PathHash(u64::MAX);
        assert_eq!(OrderKey::of(parent, 0).0, 0xffff_ffff_ff00_0000);
        assert_eq!(OrderKey::of(parent, MAX_EDGE_INDEX).0, u64::MAX);
    }

    #[test]
    #[should_panic(expected = "edge index 16777216")]
    fn an_edge_index_never_spills_into_the_parent() {
        let _ = OrderKey::of(PathHash::ROOT, MAX_EDGE_INDEX + 1);
    }

    #[test]
    fn json_holds_strings_and_refuses_numbers() {
        let hash = PathHash(u64::MAX);
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(json, "\"18446744073709551615\"");
        assert_eq!(serde_json::from_str::<PathHash>(&json).unwrap(), hash);
        assert!(serde_json::from_str::<PathHash>("5").is_err());
        assert!(serde_json::from_str::<OrderKey>("5.0").is_err());
    }

    #[test]
    fn one_value_has_one_text() {
        for text in ["", "+5", "-0", "05", "00", " 5", "5 ", "0x5", "18446744073709551616"] {
            assert_eq!(text.parse::<OrderKey>(), Err(ParseDecimalError), "{text:?}");
        }
        assert_eq!("0".parse(), Ok(OrderKey(0)));
    }
}
