//! What a look at a database has at hand of what rests in an object store.
//!
//! Invariant: nobody who reads waits for an object store while he holds a session of a server or a turn at a file, which commits,
//! leases and other reads need. A look that comes to what rests notes its name and passes over it, and what it answers then is
//! worth nothing. What it wants is fetched when all is given back, and then it is looked again with that at hand.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::fetch::fetch;
#[cfg(feature = "sqlite")]
use super::fetch::fetch_now;
use super::fetch::{Away, fetch_all};
use crate::{codec::Codec, error::Source};
use hapax_core::canary;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What one look has at hand, shared by its repetitions.
#[derive(Clone, Default)]
pub(crate) struct Hand(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    /// By name, or why it can't be had.
    fetched: HashMap<String, Result<Vec<u8>, Source>>,
    wanted: BTreeSet<String>,
}

impl Hand {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of an object, or why they can't be had: for now, since they have yet to be fetched.
    fn take(&self, name: String) -> Result<Vec<u8>, Source> {
        let mut held = self.lock();
        match held.fetched.get(&name) {
            // They may be referred to twice.
            Some(Ok(bytes)) => return Ok(bytes.clone()),
            Some(Err(_)) => {}
            None => {
                held.wanted.insert(name);
                return Err(Away::Wanted.into());
            }
        }
        held.fetched.remove(&name).expect("it was there")
    }
}

impl Codec {
    /// The same for a look that can be repeated, as long as [`fetch_wanted`](Self::fetch_wanted) says.
    pub(crate) fn with_hand(&self) -> Self {
        let waits = self.resting.is_none() || canary::on("fetched_while_held");
        Self { hand: (!waits).then(Hand::default), ..self.clone() }
    }

    /// Whether the look came to something that has yet to be fetched.
    pub(crate) fn wants(&self) -> bool {
        self.wanted() > 0
    }

    /// How much that is.
    pub(crate) fn wanted(&self) -> usize {
        self.hand.as_ref().map_or(0, |hand| hand.lock().wanted.len())
    }

    /// Fetches what the look wanted, when it has given all back; answers whether it is to be repeated.
    pub(crate) async fn fetch_wanted(&self) -> bool {
        let Some(hand) = &self.hand else { return false };
        let wanted = std::mem::take(&mut hand.lock().wanted);
        let repeats = !wanted.is_empty();
        let fetched = fetch_all(self.resting.as_ref(), wanted).await;
        hand.lock().fetched.extend(fetched);
        repeats
    }

    /// The bytes of an object: those at hand. Who has none waits here, as in a transaction that can't be repeated.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) async fn object(&self, name: String) -> Result<Vec<u8>, Source> {
        match &self.hand {
            Some(hand) => hand.take(name),
            None => fetch(self.resting.as_ref(), name).await,
        }
    }

    /// The same for whoever stands still.
    #[cfg(feature = "sqlite")]
    pub(crate) fn object_now(&self, name: String) -> Result<Vec<u8>, Source> {
        match &self.hand {
            Some(hand) => hand.take(name),
            None => fetch_now(self.resting.as_ref(), name),
        }
    }
}
