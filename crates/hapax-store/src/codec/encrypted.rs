//! AES-256-GCM for all that is stored of a payload.
//!
//! Invariant: no two payloads of a run are sealed with one nonce and one key. Each run has its own key, derived from the
//! keyring's, so that a random nonce is drawn from 2^96 for the payloads of a single run. What was sealed for one place opens
//! nowhere else.
//!
//! The form: five bytes that tell it, the length of the key's name and the name, eight bytes that tell a wrong key from
//! damage, the nonce, the sealed bytes with their tag. All before the nonce, and the place, is authenticated.

use super::{
    keyring::{Key, Keyring},
    payload::{ENCRYPTED, PayloadCodec, Place, Stale, key_id_of},
};
use crate::error::{Locked, Source};
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand,
};
use hapax_core::canary;

/// Encrypts every payload: AES-256-GCM, bound to where the payload belongs.
///
/// What is encrypted under an older key of the keyring is read as well.
///
/// ```
/// use hapax_store::codec::{Encrypted, Keyring, Part, PayloadCodec, Place};
/// let keys = Keyring::parse("2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
/// let codec = Encrypted::new(keys);
/// let here = Place { namespace: "default", owner: "order-42", part: Part::State { step: 1 } };
/// let stored = codec.encode(b"{}".to_vec(), &here)?;
/// assert_eq!(codec.decode(&stored, &here)?, b"{}");
/// // It opens in no other place.
/// assert!(codec.decode(&stored, &Place { owner: "order-43", ..here }).is_err());
/// # Ok::<(), hapax_store::error::Source>(())
/// ```
#[derive(Debug, Clone)]
pub struct Encrypted {
    keys: Keyring,
}

impl Encrypted {
    /// Encrypts with the keyring's current key.
    pub fn new(keys: Keyring) -> Self {
        Self { keys }
    }

    /// The keys.
    pub fn keys(&self) -> &Keyring {
        &self.keys
    }
}

/// What it says of bytes that aren't what was sealed here: changed, cut, or brought from another place.
const BROKEN: &str = "its seal is broken: it was changed, or belongs elsewhere";

/// The key of a run.
fn key_of(key: &Key, place: &Place<'_>) -> Result<LessSafeKey, Source> {
    let namespace = (place.namespace.len() as u64).to_be_bytes();
    let info = [b"run", &namespace[..], place.namespace.as_bytes(), place.owner.as_bytes()];
    let derived = key.root.expand(&info, &AES_256_GCM).map_err(|_| "no key can be derived")?;
    Ok(LessSafeKey::new(UnboundKey::from(derived)))
}

fn bound_to(key: &Key, place: &Place<'_>) -> Aad<Vec<u8>> {
    if canary::on("aad_unbound") {
        return Aad::from(vec![]);
    }
    Aad::from([&key.mark[..], &place.to_bytes()].concat())
}

fn new_nonce() -> Result<[u8; NONCE_LEN], Source> {
    let mut nonce = [0; NONCE_LEN];
    if !canary::on("nonce_repeated") {
        rand::fill(&mut nonce).map_err(|_| "the system gives no random bytes")?;
    }
    Ok(nonce)
}

impl PayloadCodec for Encrypted {
    fn encode(&self, mut plain: Vec<u8>, place: &Place<'_>) -> Result<Vec<u8>, Source> {
        let Some(key) = self.keys.current_key() else { return Ok(plain) };
        let nonce = new_nonce()?;
        key_of(key, place)?
            .seal_in_place_append_tag(Nonce::from(&nonce), bound_to(key, place), &mut plain)
            .map_err(|_| "it can't be encrypted")?;
        Ok([&key.mark[..], &nonce, &plain].concat())
    }

    fn decode(&self, stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, Source> {
        let Some(key_id) = key_id_of(stored) else {
            return if self.keys.reads_plain { Ok(stored.to_vec()) } else { Err(Locked::Plain.into()) };
        };
        let Some(key) = self.keys.keys.iter().find(|key| key.id == key_id) else {
            return Err(Locked::KeyMissing { key_id }.into());
        };
        let Some(rest) = stored.strip_prefix(&key.mark[..]) else {
            return Err(Locked::WrongKey { key_id }.into());
        };
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>().ok_or(BROKEN)?;
        let mut plain = sealed.to_vec();
        let opened = key_of(key, place)?.open_in_place(Nonce::from(nonce), bound_to(key, place), &mut plain);
        let len = opened.map_err(|_| BROKEN)?.len();
        plain.truncate(len);
        Ok(plain)
    }

    fn stale(&self) -> Stale {
        match self.keys.current_key() {
            Some(key) => Stale::NotBeginningWith(key.mark.clone()),
            None => Stale::BeginningWith(ENCRYPTED.to_vec()),
        }
    }

    fn marks(&self) -> Vec<(String, Vec<u8>)> {
        self.keys.keys.iter().map(|key| (key.id.clone(), key.mark.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Part;
    use proptest::prelude::*;

    const A: &str = "a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const B: &str = "b:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";
    const OTHER_A: &str = "a:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";

    fn codec(keys: &str) -> Encrypted {
        Encrypted::new(Keyring::parse(keys).unwrap())
    }

    const HERE: Place<'static> = Place { namespace: "n", owner: "r", part: Part::State { step: 1 } };

    fn locked(outcome: Result<Vec<u8>, Source>) -> Locked {
        outcome.unwrap_err().downcast_ref::<Locked>().expect("it lacks a key").clone()
    }

    #[test]
    fn the_same_payload_twice_is_two_texts_under_two_nonces() {
        let codec = codec(A);
        let sealed = |_| codec.encode(b"the same".to_vec(), &HERE).unwrap();
        let all: std::collections::HashSet<Vec<u8>> = (0..100).map(sealed).collect();
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn what_is_moved_to_another_place_does_not_open() {
        let codec = codec(A);
        let stored = codec.encode(b"pay 10".to_vec(), &HERE).unwrap();
        for elsewhere in [
            Place { part: Part::State { step: 2 }, ..HERE },
            Place { part: Part::Barriers { step: 1 }, ..HERE },
            Place { owner: "other", ..HERE },
            Place { namespace: "other", ..HERE },
        ] {
            let refused = codec.decode(&stored, &elsewhere).expect_err("it belongs elsewhere");
            assert_eq!(refused.to_string(), BROKEN);
        }
    }

    #[test]
    fn damage_is_told_from_a_key_that_is_missing_or_another() {
        let stored = codec(A).encode(b"pay 10".to_vec(), &HERE).unwrap();
        assert_eq!(locked(codec(B).decode(&stored, &HERE)), Locked::KeyMissing { key_id: "a".into() });
        assert_eq!(locked(codec(OTHER_A).decode(&stored, &HERE)), Locked::WrongKey { key_id: "a".into() });
        assert_eq!(locked(codec(A).decode(b"{}", &HERE)), Locked::Plain);
        for byte in codec(A).keys.keys[0].mark.len()..stored.len() {
            let mut damaged = stored.clone();
            damaged[byte] ^= 1;
            assert_eq!(codec(A).decode(&damaged, &HERE).unwrap_err().to_string(), BROKEN, "byte {byte}");
        }
        for cut in codec(A).keys.keys[0].mark.len()..stored.len() {
            assert_eq!(codec(A).decode(&stored[..cut], &HERE).unwrap_err().to_string(), BROKEN);
        }
    }

    #[test]
    fn a_new_key_reads_what_the_old_one_wrote_and_knows_that_it_is_stale() {
        let stored = codec(A).encode(b"{}".to_vec(), &HERE).unwrap();
        let both = codec(&format!("{B} {A}"));
        assert_eq!(both.decode(&stored, &HERE).unwrap(), b"{}");
        assert!(both.stale().is(&stored) && both.stale().is(b"{}"));
        assert!(!both.stale().is(&both.encode(b"{}".to_vec(), &HERE).unwrap()));
    }

    #[test]
    fn a_store_on_its_way_to_or_from_encryption_reads_both() {
        let (there, back) =
            (Keyring::parse(A).unwrap().reads_plain(), Keyring::parse(A).unwrap().writes_plain());
        let stored = codec(A).encode(b"{}".to_vec(), &HERE).unwrap();
        for keys in [there, back] {
            let codec = Encrypted::new(keys);
            assert_eq!(codec.decode(b"{}", &HERE).unwrap(), b"{}");
            assert_eq!(codec.decode(&stored, &HERE).unwrap(), b"{}");
        }
        let back = Encrypted::new(Keyring::parse(A).unwrap().writes_plain());
        assert_eq!(back.encode(b"{}".to_vec(), &HERE).unwrap(), b"{}");
        assert!(back.stale().is(&stored) && !back.stale().is(b"{}"));
    }

    proptest! {
        #[test]
        fn every_payload_comes_back_and_none_shows_through(plain in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let codec = codec(A);
            let stored = codec.encode(plain.clone(), &HERE).unwrap();
            prop_assert_eq!(codec.decode(&stored, &HERE).unwrap(), plain.clone());
            prop_assert!(plain.len() < 8 || !stored.windows(plain.len()).any(|some| some == plain));
        }

        #[test]
        fn no_bytes_make_it_panic(stored in proptest::collection::vec(any::<u8>(), 0..200)) {
            let marked = [&ENCRYPTED[..], &stored].concat();
            prop_assert!(codec(A).decode(&stored, &HERE).is_err() && codec(A).decode(&marked, &HERE).is_err());
        }
    }
}
