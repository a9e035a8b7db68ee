//! What is counted of a store at a look, each look at a bounded cost.

use crate::store::RunRecord;
use hapax_core::{
    id::{Namespace, RunId},
    limits::MAX_COUNTED,
};
use std::{collections::BTreeMap, fmt};

/// Every word for where a run may stand, those first that aren't over.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) const STATUSES: [&str; 11] = [
    "running",
    "pending",
    "paused",
    "in_doubt",
    "waiting",
    "leaving",
    "arriving",
    "failed",
    "cancelled",
    "succeeded",
    "moved",
];
/// How many of them aren't over.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) const LIVE: usize = 7;

/// How many there are, counted no further than [`MAX_COUNTED`].
///
/// ```
/// use hapax_store::Tally;
/// # use hapax_core::limits::MAX_COUNTED;
/// assert_eq!(Tally::exactly(7).to_string(), "7");
/// let many = Tally::exactly(MAX_COUNTED + 1);
/// assert_eq!((many.count, many.or_more), (MAX_COUNTED, true));
/// assert_eq!(many.to_string(), "100000 or more");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// So many were counted.
    pub count: u64,
    /// There are others that weren't.
    pub or_more: bool,
}

impl Tally {
    /// So many; beyond [`MAX_COUNTED`] only that there are more.
    pub fn exactly(count: u64) -> Self {
        Self { count: count.min(MAX_COUNTED), or_more: count > MAX_COUNTED }
    }

    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, if self.or_more { " or more" } else { "" })
    }
}

/// What to count.
///
/// ```
/// use hapax_store::{CensusFilter, Clock, MemoryStore, Store, conformance::Sample};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let clock = Clock::manual();
/// let store = MemoryStore::with_clock(clock.clone());
/// store.create(Sample::run("order-1").build()).await?;
/// let first = store.census(CensusFilter::default()).await?;
/// clock.advance(Duration::from_secs(1));
/// store.create(Sample::run("order-2").build()).await?;
/// let since = CensusFilter { since_us: first.at_us, ..CensusFilter::default() };
/// assert_eq!(store.census(since).await?.created.count, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CensusFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Runs that were created after this, in microseconds since 1970 by the store's clock, are counted as new: the
    /// [`at_us`](Census::at_us) of an earlier look.
    pub since_us: i64,
    /// These are told of wherever they stand now, if they are there.
    pub follow: Vec<RunId>,
    /// How many runs of each status that isn't over are told of at the most.
    pub limit: usize,
}

impl Default for CensusFilter {
    fn default() -> Self {
        Self { namespace: Namespace::default(), since_us: i64::MAX, follow: vec![], limit: 100 }
    }
}

/// Where the runs of a tenant stand, at one moment.
///
/// ```
/// use hapax_store::{CensusFilter, MemoryStore, Store, Tally, conformance::Sample};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store: Arc<dyn Store> = MemoryStore::shared();
/// Sample::run("order-1").hold(&store).await.finish().await;
/// Sample::run("order-2").create(&store).await;
/// let census = store.census(CensusFilter::default()).await?;
/// assert_eq!(census.standing("succeeded"), Tally::exactly(1));
/// assert_eq!(census.standing("failed"), Tally::default());
/// assert_eq!(census.runs.len(), 1, "of those that are over only the followed are told");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Census {
    /// The store's time at this look, in microseconds since 1970.
    pub at_us: i64,
    /// Runs by the word for where they stand; a word under which there is none may be missing.
    pub statuses: BTreeMap<&'static str, Tally>,
    /// Runs that were created since the time that was asked for.
    pub created: Tally,
    /// The steps that those have committed, as far as they were counted.
    pub created_steps: u64,
    /// Those that were to be followed, and some of each status that isn't over, old ones first; each once, without its tags.
    /// A damaged row is left out: [`Store::list`](crate::Store::list) reports it.
    pub runs: Vec<RunRecord>,
}

impl Census {
    /// How many runs stand there.
    pub fn standing(&self, word: &str) -> Tally {
        self.statuses.get(word).copied().unwrap_or_default()
    }
}

/// Each run once, whichever of the questions found it.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn each_once(mut runs: Vec<RunRecord>) -> Vec<RunRecord> {
    let mut seen = std::collections::HashSet::new();
    runs.retain(|run| seen.insert(run.key.run.clone()));
    runs
}
