//! The keys of the environment, for every command that opens a store.
//!
//! Invariant: a program that was built without encryption refuses keys, instead of writing beside them what nobody
//! encrypted. What isn't encrypted is read only on the operator's own word, `plain` among the keys: whoever can write to the
//! database could have put it there, and sealing it would make it look like ours.

use crate::failure::Failure;
use hapax_store::codec::PayloadCodec;
use std::sync::Arc;

/// What the keys are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Keyed {
    /// To read and to write, as they are given.
    #[default]
    AsGiven,
    /// To encrypt everything with that one of them, or with the first.
    #[cfg(feature = "encryption")]
    To(Option<String>),
    /// To decrypt everything.
    #[cfg(feature = "encryption")]
    Plain,
}

/// What the keys of the environment make of payloads; `None`: there are none.
#[cfg(feature = "encryption")]
pub(crate) fn codec(keyed: &Keyed) -> Result<Option<Arc<dyn PayloadCodec>>, Failure> {
    use hapax_core::error::Coded;
    use hapax_store::codec::{BadKeyring, Encrypted, Keyring};
    let refused = |error: BadKeyring| {
        let failure = Failure::coded(error.code(), format!("the keys can't be used: {error}"));
        failure.cured_by(cure(&error))
    };
    let Some(keys) = Keyring::from_env().map_err(refused)? else {
        return match keyed {
            Keyed::AsGiven => Ok(None),
            _ => {
                Err(refused(BadKeyring::Empty).cured_by("set HAPAX_KEYS, or name a file in HAPAX_KEYS_FILE"))
            }
        };
    };
    let keys = match keyed {
        Keyed::AsGiven | Keyed::To(None) => keys,
        Keyed::To(Some(id)) => keys.encrypts_with(id).map_err(refused)?,
        Keyed::Plain => keys.writes_plain(),
    };
    Ok(Some(Arc::new(Encrypted::new(keys))))
}

/// What to do about keys that can't be used: not in every case has one of them to be mended.
#[cfg(feature = "encryption")]
fn cure(error: &hapax_store::codec::BadKeyring) -> &'static str {
    use hapax_store::codec::BadKeyring;
    match error {
        BadKeyring::Empty => {
            "give a key: a name, a colon, and 32 random bytes in base64 (`openssl rand -base64 32`)"
        }
        BadKeyring::Entry { .. } => {
            "mend the entry that it names: a name, a colon, and 32 random bytes in base64 (`openssl rand -base64 32`)"
        }
        BadKeyring::Twice { .. } => {
            "give each key a name of its own; the name is part of what it has encrypted"
        }
        BadKeyring::Unknown { .. } => {
            "name a key that is in HAPAX_KEYS, or in the file of HAPAX_KEYS_FILE; or add it there"
        }
        BadKeyring::File { .. } => {
            "name a file of text that is there and that you may read, with one key a line"
        }
        BadKeyring::Both => "unset HAPAX_KEYS or HAPAX_KEYS_FILE",
        _ => "do what the message says",
    }
}

/// What the keys of the environment make of payloads; `None`: there are none.
#[cfg(not(feature = "encryption"))]
pub(crate) fn codec(_: &Keyed) -> Result<Option<Arc<dyn PayloadCodec>>, Failure> {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if ["HAPAX_KEYS", "HAPAX_KEYS_FILE"].into_iter().any(is_set) {
        let refused = Failure::usage("keys are given, and this program is built without encryption");
        return Err(refused.cured_by("install `hapax-cli` with the feature `encryption`"));
    }
    Ok(None)
}
