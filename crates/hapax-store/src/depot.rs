//! Where large payloads rest: an object store beside the database, for what nobody has changed for a while.
//!
//! Invariant: no commit waits for an object store, and none depends on one. Bytes leave the database only after the object
//! store has said that it has them, and in one transaction with the word on where they are.
//!
//! ```
//! use hapax_store::{SqliteOptions, depot::Resting};
//! # let folder = tempfile::tempdir()?;
//! # let address = format!("file://{}", folder.path().display());
//! // Or `s3://acme-runs/production`, with the feature `object-store`.
//! let options = SqliteOptions::default().blobs_over(64 * 1024).resting(Resting::at(&address)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "object-store")]
mod bucket;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod fetch;
mod folder;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod hand;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod resting;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod terms;

#[cfg(feature = "object-store")]
pub use bucket::Bucket;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use fetch::Away;
pub use folder::Folder;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use hand::Hand;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use resting::{AT_A_TIME, rest};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use terms::{BadDepot, Resting};

use crate::{error::Source, store::BoxFuture};
use hapax_core::error::{Code, Coded, code};

/// Objects by name, each written once.
///
/// ```
/// use hapax_store::{BoxFuture, depot::Depot, error::Source};
/// use std::{collections::HashMap, sync::Mutex};
///
/// #[derive(Default)]
/// struct Shelf(Mutex<HashMap<String, Vec<u8>>>);
/// impl Depot for Shelf {
///     fn put<'a>(&'a self, name: &'a str, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), Source>> {
///         Box::pin(async move { Ok(drop(self.0.lock().unwrap().insert(name.into(), bytes))) })
///     }
///     fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Source>> {
///         Box::pin(async move { Ok(self.0.lock().unwrap().get(name).cloned()) })
///     }
///     fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Source>> {
///         Box::pin(async move { Ok(drop(self.0.lock().unwrap().remove(name))) })
///     }
/// }
/// ```
pub trait Depot: Send + Sync {
    /// Writes an object whose name is new. It is durable when this answers: the database forgets its own copy then.
    fn put<'a>(&'a self, name: &'a str, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), Source>>;
    /// Its bytes; `None`: there is no such object. An error says that it can't be told now.
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Source>>;
    /// Deletes an object; one that isn't there is deleted.
    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Source>>;
}

/// A name that no object can have: the row that names it isn't what a store has written.
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::depot::{BadObjectName, Depot, Folder};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let temporary = tempfile::tempdir()?;
/// let refused = Folder::open(temporary.path())?.get("../secrets").await.unwrap_err();
/// assert_eq!(refused.downcast_ref::<BadObjectName>().unwrap().code(), "HX0044");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no name of an object: it leads elsewhere")]
pub struct BadObjectName {
    /// The name.
    pub name: String,
}

impl Coded for BadObjectName {
    fn code(&self) -> Code {
        code::CORRUPT
    }
}

/// From where resting goes on; the default is the beginning.
///
/// ```
/// use hapax_store::depot::From;
/// assert_eq!(From::default(), From::default().clone());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct From {
    pub(crate) shard: usize,
    pub(crate) namespace: String,
    pub(crate) run: String,
    pub(crate) hash: Vec<u8>,
    /// No object is left whose time is over.
    pub(crate) ended: bool,
    /// All payloads have been looked at, and only objects are left to end.
    pub(crate) moved: bool,
}

/// What a look at the payloads that may rest came to.
///
/// ```
/// use hapax_store::{MemoryStore, Store, depot::{From, Rested}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// // A store in memory has nothing that could rest.
/// assert_eq!(MemoryStore::shared().rest(From::default()).await?, Rested::default());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rested {
    /// Payloads that rest now, and whose bytes the database has forgotten.
    pub rested: u64,
    /// Objects that were deleted, since no run refers to them.
    pub deleted: u64,
    /// Why others stay where they are, for now.
    pub failed: Vec<String>,
    /// From where to go on; `None`: all have been looked at, or the object store takes nothing now.
    pub next: Option<From>,
}
