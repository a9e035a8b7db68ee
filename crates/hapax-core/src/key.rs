//! The keys under which work is known, and the digest that tells what a key cannot.
//!
//! Invariant: every formula here is v1 and byte-exact; the vectors in `tests/vectors` were computed by another
//! program. A key that leaves the process is a promise to whoever remembers it, so a formula is never changed,
//! only joined by a new one.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::order::{OrderKey, PathHash, update_prefixed};

/// Why a key could not be made or read.
///
/// ```
/// use hapax_core::key::{KeyError, StepKey, command_key};
/// assert!(matches!(command_key("a\n", "t", "s", b"{}", b"[]"), Err(KeyError::Newline { field: "action" })));
/// assert!(matches!("sha256:7".parse::<StepKey>(), Err(KeyError::Form { .. })));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The fields of a command key are separated by newlines, so one inside a field would let two commands share
    /// a key.
    #[error("{field} contains a newline; remove it, for two commands could share a key")]
    Newline {
        /// The field at fault: `action`, `task_id` or `snapshot_id`.
        field: &'static str,
    },
    /// The text is not a key of this kind.
    #[error("expected {expected:?} followed by 64 lowercase hex digits")]
    Form {
        /// The prefix that was expected.
        expected: &'static str,
    },
}

/// The v1 key of a committed step. The database's unique index on it makes a repeated commit visible.
///
/// Its fields are not length-delimited, so distinct steps can share one; a [`Digest`] stands beside it.
///
/// ```
/// use hapax_core::key::{StepKey, step_key};
/// let key = step_key("run-001", 1, [], b"{}");
/// let text = key.to_string();
/// assert_eq!(text.parse(), Ok(key));
/// assert!(text.to_uppercase().parse::<StepKey>().is_err(), "one key has one text");
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepKey(pub [u8; 32]);

/// The key of a step, from its number and the frontier and state it leaves behind.
///
/// The frontier must be in merge order already. `state_json` is hashed as it is: canonical bytes are the
/// caller's duty ([`canonical::to_vec`](crate::canonical::to_vec)), and stored ones must not be touched.
///
/// ```
/// use hapax_core::{key::step_key, order::OrderKey};
///
/// let frontier = [("node-a", OrderKey(100)), ("node-b", OrderKey(200))];
/// let key = step_key("run-001", 1, frontier, br#"{"counter":5}"#);
/// assert_eq!(
///     key.to_string(),
///     "sha256:d6f5356f8e65db3bec3a4f2f02cd3b5bbcdb08255b7edf7cc2e7f0b4a51d89b7",
/// );
/// ```
#[must_use]
pub fn step_key<'a>(
    run_id: &str,
    step: u64,
    frontier: impl IntoIterator<Item = (&'a str, OrderKey)>,
    state_json: &[u8],
) -> StepKey {
    let mut hash = Sha256::new_with_prefix(run_id);
    hash.update(step.to_be_bytes());
    let mut previous = OrderKey(0);
    for (node_id, order_key) in frontier {
        debug_assert!(previous <= order_key, "the frontier is not in merge order at {node_id}");
        previous = order_key;
        hash.update(node_id);
        hash.update(order_key.0.to_be_bytes());
    }
    hash.update(state_json);
    StepKey(hash.finalize().into())
}

/// [`step_key`] for a frontier in any order: sorts a copy by order key.
///
/// Items of one order key stay as given, because what breaks the tie (the path hash) is not part of the key.
///
/// ```
/// use hapax_core::{key::{step_key, step_key_unsorted}, order::OrderKey};
/// let [a, b] = [("node-a", OrderKey(100)), ("node-b", OrderKey(200))];
/// assert_eq!(step_key_unsorted("r", 1, &[b, a], b"{}"), step_key("r", 1, [a, b], b"{}"));
/// ```
#[must_use]
pub fn step_key_unsorted(
    run_id: &str,
    step: u64,
    frontier: &[(&str, OrderKey)],
    state_json: &[u8],
) -> StepKey {
    let mut sorted = frontier.to_vec();
    sorted.sort_by_key(|&(_, order_key)| order_key);
    step_key(run_id, step, sorted, state_json)
}

/// The key that a foreign call carries on every attempt: `fx:` and 64 hex digits.
///
/// ```
/// use hapax_core::key::{EffectKey, EffectSite, effect_key};
/// # use hapax_core::order::PathHash;
/// # let (namespace, run_id, scope, name) = ("default", "order-42", "", "charge");
/// # let site = EffectSite { namespace, run_id, step: 1, path_hash: PathHash(7), scope, index: 0, name };
/// let key = effect_key(&site, b"4200");
/// // What a callee has written down is the key that every later attempt carries.
/// assert_eq!(key.as_str().parse::<EffectKey>(), Ok(effect_key(&site, b"4200")));
/// assert_ne!(key, effect_key(&site, b"4300"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EffectKey(String);

/// Which call of which item an effect is: everything in its key but the request.
///
/// ```
/// use hapax_core::{key::{EffectSite, effect_key}, order::PathHash};
/// let (namespace, run_id, scope, name) = ("default", "order-42", "", "charge");
/// let first = EffectSite { namespace, run_id, step: 1, path_hash: PathHash(7), scope, index: 0, name };
/// let second = EffectSite { index: 1, ..first };
/// assert_ne!(effect_key(&first, b"4200"), effect_key(&second, b"4200"), "two calls, not one repeated");
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct EffectSite<'a> {
    /// The tenant.
    pub namespace: &'a str,
    /// The run.
    pub run_id: &'a str,
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The item within its step.
    pub path_hash: PathHash,
    /// The scope inside the item; the root scope is empty.
    pub scope: &'a str,
    /// The number of the call within its scope, from 0.
    pub index: u32,
    /// The effect's name.
    pub name: &'a str,
}

/// The key of a call; `request_canonical` is the canonical JSON of its request (`null` for a transaction).
///
/// ```
/// use hapax_core::{key::{EffectSite, effect_key}, order::PathHash};
///
/// let site = EffectSite {
///     namespace: "default",
///     run_id: "ynrzo",
///     step: 374570573921,
///     path_hash: PathHash(1548297114131675021),
///     scope: "",
///     index: 0,
///     name: "a7cb",
/// };
/// assert_eq!(
///     effect_key(&site, b"{}").as_str(),
///     "fx:f411e1ef99209e9f21595e0078f864a498a55efea22dc1720790da0c49287533",
/// );
/// ```
#[must_use]
pub fn effect_key(site: &EffectSite<'_>, request_canonical: &[u8]) -> EffectKey {
    effect_key_of_digest(site, &sha256(request_canonical))
}

/// [`effect_key`] for a caller that keeps the request's digest anyway, so that a large one is hashed once.
///
/// ```
/// use hapax_core::{key::{EffectSite, effect_key, effect_key_of_digest, sha256}, order::PathHash};
/// let site = EffectSite {
///     namespace: "default", run_id: "r", step: 0, path_hash: PathHash(7), scope: "", index: 0, name: "charge",
/// };
/// assert_eq!(effect_key_of_digest(&site, &sha256(b"{}")), effect_key(&site, b"{}"));
/// ```
#[must_use]
pub fn effect_key_of_digest(site: &EffectSite<'_>, request: &Digest) -> EffectKey {
    let mut hash = Sha256::new_with_prefix(b"hapax.fx.v1");
    update_prefixed(&mut hash, site.namespace);
    update_prefixed(&mut hash, site.run_id);
    hash.update(site.step.to_be_bytes());
    hash.update(site.path_hash.0.to_be_bytes());
    update_prefixed(&mut hash, site.scope);
    hash.update(site.index.to_be_bytes());
    update_prefixed(&mut hash, site.name);
    hash.update(request.0);
    EffectKey(prefixed_hex("fx:", &hash.finalize().into()))
}

/// The key of an agent's command: `ik:` and 64 hex digits.
///
/// ```
/// use hapax_core::key::{CommandKey, EffectKey, command_key};
/// let key = command_key("review", "T-0042", "snap-abc123", b"{}", b"[]")?;
/// assert_eq!(key.to_string().parse::<CommandKey>()?, key);
/// assert!(key.as_str().parse::<EffectKey>().is_err(), "the prefix tells them apart");
/// # Ok::<(), hapax_core::key::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandKey(String);

/// The key of a command. Inputs and expected outputs are canonical JSON, which holds no raw newline.
///
/// # Errors
///
/// [`KeyError::Newline`] if `action`, `task_id` or `snapshot_id` contains one.
///
/// ```
/// use hapax_core::key::command_key;
///
/// let key = command_key("review", "T-0042", "snap-abc123", b"{}", b"[]")?;
/// assert_eq!(key.as_str(), "ik:89a2718c7e2676ffb46e67e564a05bbd63f4aa10db52d12bb41333a4b84cfe66");
/// assert!(command_key("re\nview", "T-0042", "snap-abc123", b"{}", b"[]").is_err());
/// # Ok::<(), hapax_core::key::KeyError>(())
/// ```
pub fn command_key(
    action: &str,
    task_id: &str,
    snapshot_id: &str,
    inputs_canonical: &[u8],
    expected_outputs_canonical: &[u8],
) -> Result<CommandKey, KeyError> {
    let mut hash = Sha256::new();
    for (field, text) in [("action", action), ("task_id", task_id), ("snapshot_id", snapshot_id)] {
        if text.contains('\n') {
            return Err(KeyError::Newline { field });
        }
        hash.update(text);
        hash.update(b"\n");
    }
    hash.update(inputs_canonical);
    hash.update(b"\n");
    hash.update(expected_outputs_canonical);
    Ok(CommandKey(prefixed_hex("ik:", &hash.finalize().into())))
}

/// A SHA-256 hash; 64 lowercase hex digits as text and in JSON.
///
/// ```
/// use hapax_core::key::{Digest, sha256};
/// let digest = sha256(b"anvil");
/// assert_eq!(serde_json::to_string(&digest)?, format!("\"{digest}\""));
/// assert_eq!(digest.to_string().parse::<Digest>()?, digest);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Digest(pub [u8; 32]);

/// The plain SHA-256 of some bytes.
///
/// ```
/// let digest = hapax_core::key::sha256(b"");
/// assert_eq!(digest.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
/// ```
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// A hash over a list of parts, in which distinct lists never share their bytes.
///
/// The domain is the first part; every part is preceded by its length, so no boundary can move.
///
/// ```
/// use hapax_core::key::DigestBuilder;
///
/// let one = DigestBuilder::new("example.v1").bytes(b"ab").bytes(b"c").u64(7).finish();
/// let other = DigestBuilder::new("example.v1").bytes(b"a").bytes(b"bc").u64(7).finish();
/// assert_ne!(one, other);
/// ```
#[derive(Clone, Debug)]
pub struct DigestBuilder(Sha256);

impl DigestBuilder {
    /// Starts a digest that no other domain can produce.
    pub fn new(domain: &str) -> Self {
        let mut digest = Self(Sha256::new());
        digest.bytes(domain.as_bytes());
        digest
    }

    /// Adds a part: its length as be64, then its bytes.
    pub fn bytes(&mut self, part: &[u8]) -> &mut Self {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
        self
    }

    /// Adds a text as a part.
    pub fn text(&mut self, part: &str) -> &mut Self {
        self.bytes(part.as_bytes())
    }

    /// Adds a number as a part of eight bytes, big-endian. It has its length too: a bare zero would read like an
    /// empty part.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// The digest of all parts.
    #[must_use]
    pub fn finish(&mut self) -> Digest {
        Digest(self.0.finalize_reset().into())
    }
}

macro_rules! hash_text {
    ($type:ident, $prefix:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                f.write_str(hex_str(&hex(&self.0)))
            }
        }

        impl FromStr for $type {
            type Err = KeyError;

            fn from_str(text: &str) -> Result<Self, KeyError> {
                parse_prefixed($prefix, text).map(Self)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

macro_rules! string_key {
    ($type:ident, $prefix:literal) => {
        impl $type {
            /// The key as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<$type> for String {
            fn from(key: $type) -> String {
                key.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = KeyError;

            fn from_str(text: &str) -> Result<Self, KeyError> {
                parse_prefixed($prefix, text).map(|_| Self(text.to_owned()))
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

macro_rules! deserialize_from_text {
    ($($type:ident),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

hash_text!(StepKey, "sha256:");
hash_text!(Digest, "");
string_key!(EffectKey, "fx:");
string_key!(CommandKey, "ik:");
deserialize_from_text!(StepKey, Digest, EffectKey, CommandKey);

fn hex(bytes: &[u8; 32]) -> [u8; 64] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

fn hex_str(text: &[u8; 64]) -> &str {
    std::str::from_utf8(text).expect("hex digits are ASCII")
}

fn prefixed_hex(prefix: &str, bytes: &[u8; 32]) -> String {
    [prefix, hex_str(&hex(bytes))].concat()
}

/// Accepts only what Display prints: upper-case digits would be a second text for one key.
fn parse_prefixed(prefix: &'static str, text: &str) -> Result<[u8; 32], KeyError> {
    text.strip_prefix(prefix).and_then(parse_hex).ok_or(KeyError::Form { expected: prefix })
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
    }
    Some(bytes)
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back_what_it_prints_and_nothing_else() {
        let digest = sha256(b"x");
        let step = StepKey(digest.0);
        let command = command_key("a", "b", "c", b"{}", b"[]").unwrap();
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(step.to_string().parse(), Ok(step));
        assert_eq!(command.to_string().parse(), Ok(command.clone()));
        assert!(step.to_string().to_uppercase().parse::<StepKey>().is_err());
        assert!(digest.to_string().parse::<StepKey>().is_err());
        assert!(digest.to_string().to_uppercase().parse::<Digest>().is_err());
        assert!(command.as_str().parse::<EffectKey>().is_err());
        assert!(format!("{command}0").parse::<CommandKey>().is_err());
    }

    #[test]
    fn json_holds_the_text() {
        let step = StepKey(sha256(b"x").0);
        let json = serde_json::to_string(&step).unwrap();
        assert_eq!(json, format!("\"{step}\""));
        assert_eq!(serde_json::from_str::<StepKey>(&json).unwrap(), step);
        assert!(serde_json::from_str::<Digest>(&json).is_err());
    }

    #[test]
    fn a_newline_in_any_field_is_refused() {
        let refused = |a, t, s| command_key(a, t, s, b"{}", b"[]").unwrap_err();
        assert_eq!(refused("\n", "", ""), KeyError::Newline { field: "action" });
        assert_eq!(refused("", "t\n", ""), KeyError::Newline { field: "task_id" });
        assert_eq!(refused("", "", "\ns"), KeyError::Newline { field: "snapshot_id" });
    }

    #[test]
    fn a_digest_keeps_its_domain_and_its_boundaries() {
        let one = DigestBuilder::new("d").bytes(b"").finish();
        assert_ne!(one, DigestBuilder::new("d").finish());
        assert_ne!(one, DigestBuilder::new("d").u64(0).finish());
        assert_ne!(one, DigestBuilder::new("e").bytes(b"").finish());
    }
}
