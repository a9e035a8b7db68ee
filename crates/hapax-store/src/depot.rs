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
mod folder;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod resting;

#[cfg(feature = "object-store")]
pub use bucket::Bucket;
pub use folder::Folder;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use resting::rest;

use crate::{
    error::{Source, StoreError},
    store::BoxFuture,
};
use hapax_core::{
    error::{Code, Coded, code},
    id::RunKey,
    key::Digest,
};
use std::{
    fmt,
    sync::{Arc, OnceLock, mpsc},
    thread,
    time::Duration,
};
use tokio::runtime::{Builder, Handle};

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

/// Which payloads rest, and where.
///
/// ```
/// use hapax_store::depot::Resting;
/// use std::time::Duration;
/// # let folder = tempfile::tempdir()?;
/// # let address = format!("file://{}", folder.path().display());
/// let resting = Resting::at(&address)?.after(Duration::from_secs(600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Resting {
    depot: Arc<dyn Depot>,
    after: Duration,
    grace: Duration,
}

impl Resting {
    /// At an address: `file:///FOLDER`, or, with the feature `object-store`, `s3://BUCKET/PREFIX`, for which it reads the
    /// variables that AWS's own tools read (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, …).
    ///
    /// ```
    /// use hapax_core::error::Coded;
    /// use hapax_store::depot::Resting;
    /// assert_eq!(Resting::at("ftp://archive").unwrap_err().code(), "HX0195");
    /// ```
    pub fn at(address: &str) -> Result<Self, BadDepot> {
        let refused = |why: String| BadDepot { address: address.to_owned(), why };
        match address.split_once("://") {
            Some(("file", folder)) if folder.starts_with('/') => {
                Folder::open(folder).map(Self::new).map_err(|error| refused(error.to_string()))
            }
            #[cfg(feature = "object-store")]
            Some(("s3", _)) => Bucket::s3(address).map(Self::new).map_err(|error| refused(error.to_string())),
            #[cfg(not(feature = "object-store"))]
            Some(("s3", _)) => {
                Err(refused("this program is built without the feature `object-store`".into()))
            }
            _ => Err(refused("it is neither `s3://BUCKET/PREFIX` nor `file:///FOLDER`".into())),
        }
    }

    /// Payloads that are stored beside their rows rest here, once their run has been quiet for a minute.
    pub fn new(depot: impl Depot + 'static) -> Self {
        Self::shared(Arc::new(depot))
    }

    /// The same with a depot that others use as well.
    pub fn shared(depot: Arc<dyn Depot>) -> Self {
        Self { depot, after: Duration::from_secs(60), grace: Duration::from_secs(3600) }
    }

    /// How long nothing must have changed in a run before its payloads come to rest.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// How long an object is kept that no run refers to any more, an hour by default: for whoever still reads what was
    /// there, and for whoever is about to say what it is for.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

impl fmt::Debug for Resting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resting")
            .field("after", &self.after)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
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
    /// From where to go on; `None`: all have been looked at.
    pub next: Option<From>,
}

/// The address of an object store that can't be used.
///
/// ```
/// use hapax_store::depot::Resting;
/// let refused = Resting::at("file://here").unwrap_err();
/// assert_eq!((&*refused.address, refused.why.contains("file:///FOLDER")), ("file://here", true));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the object store `{address}` can't be used: {why}")]
pub struct BadDepot {
    /// The address.
    pub address: String,
    /// Why.
    pub why: String,
}

impl Coded for BadDepot {
    fn code(&self) -> Code {
        code::BAD_DEPOT
    }
}

/// Why the bytes of an object can't be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Away {
    #[error("they rest in an object store, and none was given")]
    NotGiven,
    #[error("the object store is out of reach: {0}")]
    OutOfReach(#[source] Source),
}

impl Away {
    /// As the store reports it.
    pub(crate) fn of(self, run: &RunKey) -> StoreError {
        match self {
            Away::NotGiven => StoreError::NoDepot { run: run.clone() },
            away @ Away::OutOfReach(_) => StoreError::Retry(away.into()),
        }
    }

    /// The same for another who waits.
    pub(crate) fn for_another(&self) -> Self {
        match self {
            Away::NotGiven => Away::NotGiven,
            Away::OutOfReach(source) => Away::OutOfReach(source.to_string().into()),
        }
    }
}

/// A name like no other, which tells the content.
fn name_of(hash: &Digest) -> String {
    format!("{hash}-{}", uuid::Uuid::new_v4().simple())
}

/// The bytes of an object.
pub(crate) async fn fetch(resting: Option<&Resting>, name: String) -> Result<Vec<u8>, Source> {
    let depot = resting.ok_or(Away::NotGiven)?.depot.clone();
    let found = here()?.spawn(async move { depot.get(&name).await.map(|found| (name, found)) }).await;
    found_or_away(found.unwrap_or_else(|error| Err(error.into())))
}

/// The same for whoever can't wait otherwise than by standing still.
#[cfg(feature = "sqlite")]
pub(crate) fn fetch_now(resting: Option<&Resting>, name: String) -> Result<Vec<u8>, Source> {
    let depot = resting.ok_or(Away::NotGiven)?.depot.clone();
    let (tell, told) = mpsc::channel();
    here()?.spawn(async move { tell.send(depot.get(&name).await.map(|found| (name, found))) });
    found_or_away(told.recv().unwrap_or_else(|error| Err(error.into())))
}

fn found_or_away(found: Result<(String, Option<Vec<u8>>), Source>) -> Result<Vec<u8>, Source> {
    let (name, found) = found.map_err(Away::OutOfReach)?;
    found.ok_or_else(|| format!("the object store has no `{name}`").into())
}

/// The runtime of all object stores, on a thread of its own: whoever reads a file stands still until it answers, on whatever
/// thread that is.
fn here() -> Result<&'static Handle, Source> {
    static RUNTIME: OnceLock<Result<Handle, String>> = OnceLock::new();
    let start = || -> std::io::Result<Handle> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("hapax-depot".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    };
    let runtime = RUNTIME.get_or_init(|| start().map_err(|error| error.to_string()));
    runtime.as_ref().map_err(|error| Away::OutOfReach(error.clone().into()).into())
}
