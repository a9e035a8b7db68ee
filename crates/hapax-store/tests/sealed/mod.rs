//! Keys for tests, and codecs that hold them.

#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod large;
pub(crate) mod promises;
pub(crate) mod resting;

use hapax_store::codec::{Encrypted, Keyring, PayloadCodec};
use std::sync::Arc;

/// A key.
pub(crate) const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Another key.
pub(crate) const NEW: &str = "new:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";

/// The keys of a text.
pub(crate) fn keys(text: &str) -> Keyring {
    Keyring::parse(text).expect("keys")
}

/// Encrypts with the first of these keys.
pub(crate) fn codec(text: &str) -> Arc<dyn PayloadCodec> {
    Arc::new(Encrypted::new(keys(text)))
}
