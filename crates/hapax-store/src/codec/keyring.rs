//! Keys by name: one that encrypts, and any number that still decrypt.
//!
//! Invariant: no byte of a key is in what is shown, logged or reported. An error names the entry by its number, or the key
//! by its name, and never repeats what stood there.

use super::payload::ENCRYPTED;
use aws_lc_rs::hkdf;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hapax_core::error::{Code, Coded, code};
use std::{fmt, path::Path, sync::Arc};

/// A key's name is in all that it encrypts.
const MAX_ID: usize = 64;
/// So many bytes tell a wrong key from damage.
const CHECK: usize = 8;
/// Stands in the place of a key for what isn't encrypted.
const PLAIN: &str = "plain";

/// A key and its name.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: String,
    /// What all that it encrypts begins with: the form, its name, and a value that only this key has.
    pub(super) mark: Vec<u8>,
    /// From it each run's own key is made.
    pub(super) root: hkdf::Prk,
}

/// So many bytes, as the derivation of keys wants to be asked for them.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Key {
    fn new(id: &str, secret: &[u8; 32]) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"hapax.encrypted.v1").extract(secret);
        let mut check = [0; CHECK];
        root.expand(&[b"check"], Length(CHECK))
            .and_then(|okm| okm.fill(&mut check))
            .expect("so few bytes can always be derived");
        let len = u8::try_from(id.len()).expect("a name was found to be short");
        let mark = [&ENCRYPTED[..], &[len], id.as_bytes(), &check].concat();
        Self { id: id.to_owned(), mark, root }
    }
}

/// The keys of a store: one that encrypts, and any number that still decrypt.
///
/// As a text: names with 32 random bytes in base64, the key that encrypts first. After them the word `plain` reads also what
/// isn't encrypted, while a store is on its way to be. `openssl rand -base64 32` makes a key.
///
/// ```
/// use hapax_store::codec::Keyring;
/// let new = "2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// let old = "2026-05:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";
/// let keys = Keyring::parse(&format!("{new}, {old}"))?;
/// assert_eq!(keys.current(), Some("2026-11"));
/// assert_eq!(keys.ids(), ["2026-11", "2026-05"]);
/// // Nothing of a key is shown.
/// assert_eq!(format!("{keys:?}"), r#"Keyring { encrypts: Some("2026-11"), decrypts: ["2026-11", "2026-05"], plain: false }"#);
/// # Ok::<(), hapax_store::codec::BadKeyring>(())
/// ```
#[derive(Clone)]
pub struct Keyring {
    pub(super) keys: Vec<Arc<Key>>,
    /// The key that encrypts; `None`: nothing is encrypted any more.
    pub(super) current: Option<usize>,
    pub(super) reads_plain: bool,
}

impl Keyring {
    /// Reads keys from a text: entries `name:base64`, parted by commas, blanks or lines; `#` begins a comment.
    pub fn parse(text: &str) -> Result<Self, BadKeyring> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let entries = lines.flat_map(|line| line.split([',', ' ', '\t'])).filter(|entry| !entry.is_empty());
        let mut ring = Self { keys: vec![], current: Some(0), reads_plain: false };
        for (number, entry) in (1..).zip(entries) {
            if entry == PLAIN {
                ring.reads_plain = true;
                continue;
            }
            let key = parse_key(entry).map_err(|what| BadKeyring::Entry { number, what })?;
            if ring.keys.iter().any(|other| other.id == key.id) {
                return Err(BadKeyring::Twice { key_id: key.id });
            }
            ring.keys.push(Arc::new(key));
        }
        if ring.keys.is_empty() { Err(BadKeyring::Empty) } else { Ok(ring) }
    }

    /// Reads keys from a file.
    ///
    /// ```
    /// # use hapax_store::codec::Keyring;
    /// let missing = Keyring::from_file("no/such/file").unwrap_err();
    /// assert!(missing.to_string().contains("no/such/file"));
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, BadKeyring> {
        let path = path.as_ref();
        let unreadable = |error| BadKeyring::File { path: path.display().to_string(), error };
        Self::parse(&std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// The keys of the environment: in `HAPAX_KEYS`, or in the file that `HAPAX_KEYS_FILE` names; `None`: there are none.
    ///
    /// ```
    /// # use hapax_store::codec::Keyring;
    /// assert!(Keyring::from_env()?.is_none(), "this program was given none");
    /// # Ok::<(), hapax_store::codec::BadKeyring>(())
    /// ```
    pub fn from_env() -> Result<Option<Self>, BadKeyring> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        match (set("HAPAX_KEYS"), set("HAPAX_KEYS_FILE")) {
            (Some(_), Some(_)) => Err(BadKeyring::Both),
            (Some(text), None) => Self::parse(text.to_str().ok_or(BadKeyring::Empty)?).map(Some),
            (None, Some(path)) => Self::from_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Encrypts with another of its keys.
    ///
    /// ```
    /// # use hapax_store::codec::Keyring;
    /// let keys = Keyring::parse("a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
    /// assert!(keys.clone().encrypts_with("a").is_ok());
    /// assert!(keys.encrypts_with("b").unwrap_err().to_string().contains("`b`"));
    /// # Ok::<(), hapax_store::codec::BadKeyring>(())
    /// ```
    pub fn encrypts_with(mut self, key_id: &str) -> Result<Self, BadKeyring> {
        let found = self.keys.iter().position(|key| key.id == key_id);
        self.current = Some(found.ok_or_else(|| BadKeyring::Unknown { key_id: key_id.to_owned() })?);
        Ok(self)
    }

    /// Reads also what isn't encrypted: on the way to a store that is.
    #[must_use]
    pub fn reads_plain(mut self) -> Self {
        self.reads_plain = true;
        self
    }

    /// Encrypts nothing any more, and still decrypts: on the way back.
    ///
    /// ```
    /// # use hapax_store::codec::Keyring;
    /// let keys = Keyring::parse("a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
    /// assert_eq!(keys.writes_plain().current(), None);
    /// # Ok::<(), hapax_store::codec::BadKeyring>(())
    /// ```
    #[must_use]
    pub fn writes_plain(mut self) -> Self {
        (self.current, self.reads_plain) = (None, true);
        self
    }

    /// The name of the key that encrypts.
    pub fn current(&self) -> Option<&str> {
        self.current_key().map(|key| &*key.id)
    }

    /// The names of all keys.
    pub fn ids(&self) -> Vec<&str> {
        self.keys.iter().map(|key| &*key.id).collect()
    }

    pub(super) fn current_key(&self) -> Option<&Key> {
        self.current.and_then(|at| self.keys.get(at)).map(|key| &**key)
    }
}

fn parse_key(entry: &str) -> Result<Key, &'static str> {
    let (id, secret) = entry.split_once(':').ok_or("a key is `name:base64`, and it has no colon")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || id.len() > MAX_ID || !id.chars().all(is_name) || id == PLAIN {
        return Err("a name has 1 to 64 letters, digits, `.`, `_` and `-`, and isn't `plain`");
    }
    let secret = BASE64_STANDARD.decode(secret).map_err(|_| "what follows the name is not base64")?;
    let secret = secret.try_into().map_err(|_| "what follows the name is not 32 bytes in base64")?;
    Ok(Key::new(id, &secret))
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("encrypts", &self.current())
            .field("decrypts", &self.ids())
            .field("plain", &self.reads_plain)
            .finish()
    }
}

/// Keys that can't be used. Says where, and never what stood there.
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::codec::Keyring;
/// let bad = Keyring::parse("a:not-a-key").unwrap_err();
/// assert_eq!(bad.code(), "HX0193");
/// assert!(!bad.to_string().contains("not-a-key"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadKeyring {
    /// No key is there.
    #[error("there is no key in it: `name:` and 32 random bytes in base64 is one")]
    Empty,
    /// An entry is none.
    #[error("entry {number} is not a key: {what}")]
    Entry {
        /// Which, counted from 1.
        number: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Two keys have one name.
    #[error("two keys are called `{key_id}`")]
    Twice {
        /// The name.
        key_id: String,
    },
    /// There is no key of that name.
    #[error("there is no key `{key_id}` among them")]
    Unknown {
        /// The name.
        key_id: String,
    },
    /// The file can't be read.
    #[error("{path} can't be read: {error}")]
    File {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The environment has keys twice.
    #[error("HAPAX_KEYS and HAPAX_KEYS_FILE are both set: unset one of them")]
    Both,
}

impl Coded for BadKeyring {
    fn code(&self) -> Code {
        code::BAD_KEYRING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const B: &str = "HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";

    #[test]
    fn keys_are_parted_by_commas_blanks_and_lines() {
        for text in [
            format!("a:{A},b:{B}"),
            format!("a:{A} b:{B}"),
            format!("# the new one\na:{A}\n\nb:{B} # the old one\n"),
        ] {
            let ring = Keyring::parse(&text).unwrap();
            assert_eq!((ring.current(), ring.ids()), (Some("a"), vec!["a", "b"]));
            assert!(!ring.reads_plain);
        }
        assert!(Keyring::parse(&format!("a:{A} plain")).unwrap().reads_plain);
    }

    #[test]
    fn what_is_no_key_is_named_by_its_place_and_never_repeated() {
        let long = "x".repeat(65);
        for (text, found) in [
            (String::new(), "there is no key"),
            ("plain".into(), "there is no key"),
            (format!("a:{A} s3cret"), "entry 2 is not a key"),
            (format!("a:{A},b:s3cret!"), "entry 2 is not a key"),
            ("a:czNjcmV0".into(), "32 bytes"),
            (format!("{long}:{A}"), "a name has"),
            (format!("plain:{A}"), "a name has"),
            (format!("a:{A} a:{B}"), "two keys are called `a`"),
        ] {
            let error = Keyring::parse(&text).unwrap_err();
            assert!(error.to_string().contains(found), "{error}");
            for told in [error.to_string(), format!("{error:?}")] {
                assert!(!told.contains("s3cret") && !told.contains("czNj") && !told.contains(A), "{told}");
            }
        }
    }

    #[test]
    fn one_name_with_two_keys_leaves_two_marks() {
        let mark = |secret: &str| Keyring::parse(&format!("a:{secret}")).unwrap().keys[0].mark.clone();
        assert_ne!(mark(A), mark(B));
        assert_eq!(mark(A), mark(A));
    }
}
