//! Which payloads rest, when, and where.

#[cfg(feature = "object-store")]
use super::Bucket;
use super::{Depot, Folder};
use hapax_core::error::{Code, Coded, code};
use std::{fmt, sync::Arc, time::Duration};

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
    pub(super) depot: Arc<dyn Depot>,
    pub(super) after: Duration,
    pub(super) grace: Duration,
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
