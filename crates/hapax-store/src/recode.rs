//! Payloads encoded anew beside whoever works: under another key, or under none.
//!
//! Invariant: what a payload says stays the same, and so do all digests, leases and epochs.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod shelf;

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use shelf::{Change, Shelf, about, payload_keys, recode, runs_of, text};
use std::collections::BTreeMap;

/// From where it goes on; the default is the beginning.
///
/// ```
/// use hapax_store::recode::From;
/// assert_eq!(From::default(), From::default().clone());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct From {
    pub(crate) shard: usize,
    pub(crate) column: usize,
    pub(crate) namespace: String,
    pub(crate) owner: String,
    /// What else identifies the last payload that was looked at.
    pub(crate) keys: Vec<i64>,
    /// How often what follows was looked at before, since some of it changed meanwhile.
    pub(crate) again: u8,
}

/// What a batch came to.
///
/// ```
/// use hapax_store::{MemoryStore, Store, recode::{From, Recoded}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// // A store in memory encodes nothing, so nothing is left to do.
/// assert_eq!(MemoryStore::shared().recode(From::default()).await?, Recoded::default());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recoded {
    /// Payloads that were written anew.
    pub rewritten: u64,
    /// Those that changed between the look and the write. They are looked at again, a few times; after that, by the next pass.
    pub changed: u64,
    /// Those that can't be read, and stay as they are.
    pub damaged: Vec<String>,
    /// From where to go on; `None`: it is done.
    pub next: Option<From>,
}

/// Which keys the payloads of a store are under.
///
/// ```
/// use hapax_store::{MemoryStore, Store};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let keys = MemoryStore::shared().payload_keys().await?;
/// assert_eq!((keys.payloads, keys.stale), (0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadKeys {
    /// All payloads.
    pub payloads: u64,
    /// How many are under each of the keys that were given.
    pub under: BTreeMap<String, u64>,
    /// How many aren't encrypted.
    pub plain: u64,
    /// How many are under keys that weren't given.
    pub unknown: u64,
    /// How many the codec would encode otherwise today.
    pub stale: u64,
}
