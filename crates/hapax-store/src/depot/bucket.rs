//! Object stores as the crate `object_store` knows them: S3 and what speaks like it, and whatever a program brings.

use super::Depot;
use crate::{error::Source, store::BoxFuture};
use object_store::{
    Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutPayload, Result, aws::AmazonS3Builder,
    path::Path,
};
use std::{fmt, sync::Arc};
use url::Url;

/// A place in an object store.
///
/// ```
/// use hapax_store::depot::{Bucket, Resting};
/// use object_store::memory::InMemory;
/// let resting = Resting::new(Bucket::new(std::sync::Arc::new(InMemory::new()), "runs/production"));
/// ```
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    under: Path,
}

impl Bucket {
    /// Objects of this store whose names begin so.
    pub fn new(store: Arc<dyn ObjectStore>, under: &str) -> Self {
        Self { store, under: Path::from(under) }
    }

    /// What an address tells: `s3://BUCKET/PREFIX`. The rest is read from the variables that AWS's own tools read.
    pub fn s3(address: &str) -> Result<Self, Source> {
        let (_, under) = ObjectStoreScheme::parse(&Url::parse(address)?)?;
        let endpoint = |name| std::env::var(name).is_ok_and(|url| url.starts_with("http://"));
        let is_plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().any(endpoint);
        let mut builder = AmazonS3Builder::from_env().with_url(address);
        if is_plain {
            // Whoever names such an address means it: a server of their own, on their own network.
            builder = builder.with_allow_http(true);
        }
        let store = builder.build()?;
        Ok(Self { store: Arc::new(store), under })
    }

    fn at(&self, name: &str) -> Path {
        self.under.clone().join(name)
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({}, {})", self.store, self.under)
    }
}

impl Depot for Bucket {
    fn put<'a>(&'a self, name: &'a str, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), Source>> {
        Box::pin(async move {
            self.store.put(&self.at(name), PutPayload::from(bytes)).await?;
            Ok(())
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Source>> {
        Box::pin(async move {
            match self.store.get(&self.at(name)).await {
                Ok(found) => Ok(Some(found.bytes().await?.into())),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Source>> {
        Box::pin(async move {
            match self.store.delete(&self.at(name)).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }
}
