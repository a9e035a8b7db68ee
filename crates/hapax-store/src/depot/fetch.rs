//! The way to an object store, for those who wait for it and those who stand still.

use super::{BadObjectName, Depot, Resting, resting::AT_A_TIME};
use crate::error::{Source, StoreError};
use futures::stream::{self, StreamExt};
use hapax_core::{id::RunKey, key::Digest, limits::OBJECT_PATIENCE};
#[cfg(feature = "sqlite")]
use std::sync::mpsc;
use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    thread,
};
use tokio::runtime::{Builder, Handle};

/// Why the bytes of an object can't be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Away {
    #[error("they rest in an object store, and none was given")]
    NotGiven,
    #[error("the object store is out of reach: {0}")]
    OutOfReach(#[source] Source),
    #[error("they rest in an object store, and have yet to be fetched")]
    Wanted,
}

impl Away {
    /// As the store reports it.
    pub(crate) fn of(self, run: &RunKey) -> StoreError {
        match self {
            Away::NotGiven => StoreError::NoDepot { run: run.clone() },
            away @ (Away::OutOfReach(_) | Away::Wanted) => StoreError::Retry(away.into()),
        }
    }

    /// The same for another who waits.
    pub(crate) fn for_another(&self) -> Self {
        match self {
            Away::NotGiven => Away::NotGiven,
            Away::Wanted => Away::Wanted,
            Away::OutOfReach(source) => Away::OutOfReach(source.to_string().into()),
        }
    }
}

/// A name like no other, which tells the content.
pub(super) fn name_of(hash: &Digest) -> String {
    format!("{hash}-{}", uuid::Uuid::new_v4().simple())
}

/// The bytes of objects by name, a few at a time; or why they can't be had.
pub(super) async fn fetch_all(
    resting: Option<&Resting>,
    names: BTreeSet<String>,
) -> Vec<(String, Result<Vec<u8>, Source>)> {
    let one = |name: String| async { (name.clone(), fetch(resting, name).await) };
    stream::iter(names).map(one).buffer_unordered(AT_A_TIME).collect().await
}

/// The bytes of an object.
pub(super) async fn fetch(resting: Option<&Resting>, name: String) -> Result<Vec<u8>, Source> {
    let found = here()?.spawn(get(resting.ok_or(Away::NotGiven)?.depot.clone(), name)).await;
    found_or_away(found.unwrap_or_else(|error| Err(error.into())))
}

/// The same for whoever can't wait otherwise than by standing still.
#[cfg(feature = "sqlite")]
pub(super) fn fetch_now(resting: Option<&Resting>, name: String) -> Result<Vec<u8>, Source> {
    let get = get(resting.ok_or(Away::NotGiven)?.depot.clone(), name);
    let (tell, told) = mpsc::channel();
    here()?.spawn(async move { tell.send(get.await) });
    found_or_away(told.recv().unwrap_or_else(|error| Err(error.into())))
}

type Found = (String, Option<Vec<u8>>);

async fn get(depot: Arc<dyn Depot>, name: String) -> Result<Found, Source> {
    let found = tokio::time::timeout(OBJECT_PATIENCE, depot.get(&name)).await;
    let found = found.map_err(|_| format!("it has said nothing for {OBJECT_PATIENCE:?}"))??;
    Ok((name, found))
}

fn found_or_away(found: Result<Found, Source>) -> Result<Vec<u8>, Source> {
    // A name that can't be is damage, and no better however often it is asked for.
    let (name, found) =
        found.map_err(|why| if why.is::<BadObjectName>() { why } else { Away::OutOfReach(why).into() })?;
    found.ok_or_else(|| {
        format!("the object store has no `{name}`: is it the one that this was put into?").into()
    })
}

/// The runtime of all object stores, on a thread of its own: whoever reads a file stands still until it answers, on whatever
/// thread that is.
pub(super) fn here() -> Result<&'static Handle, Source> {
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
