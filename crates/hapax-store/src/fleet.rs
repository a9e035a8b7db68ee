//! What workers that share a store know of each other: what there is to do, who holds what, and what is said.

use hapax_core::id::{Namespace, RunKey};
use std::time::Duration;

/// What there is to do among the runs of some graphs.
///
/// ```
/// use hapax_store::{MemoryStore, Outlook, ReadyFilter, Store};
/// # use hapax_store::conformance::{Sample, sample::claimant};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store = MemoryStore::shared();
/// # let run = Sample::run("order-42").build();
/// # let graphs = vec![(run.graph.clone(), run.fingerprint)];
/// # let filter = || ReadyFilter { namespace: run.key.namespace.clone(), graphs: graphs.clone(), limit: 10 };
/// assert_eq!(store.outlook(filter()).await?, Outlook::default(), "there is nothing, and nothing comes");
/// store.create(run.clone()).await?;
/// assert!(store.outlook(filter()).await?.ready);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outlook {
    /// A run may be claimed now.
    pub ready: bool,
    /// How long, by the store's clock, until the next parked run is to be woken. A store whose workers may be on other
    /// machines counts the end of a lease as well, which comes only if its holder died, and adds a little so that not all
    /// of them come at the same moment.
    pub next: Option<Duration>,
}

/// What a process says to all others that work on its store.
///
/// ```
/// use hapax_store::{Hint, MemoryStore, Store};
/// # use hapax_core::id::Namespace;
/// assert!(MemoryStore::shared().hints().is_none(), "a store of one process has nobody to tell");
/// let hint = Hint::Ready(Namespace::default());
/// assert_ne!(hint, Hint::Ready(Namespace::new("another").unwrap()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// A run of this namespace may be claimed.
    Ready(Namespace),
    /// A cancel of this run was requested.
    Cancel(RunKey),
}

/// Who holds the runs of a namespace.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::Sample};
/// # use hapax_core::id::Namespace;
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store: Arc<dyn Store> = MemoryStore::shared();
/// Sample::run("order-1").claimed_by("engine-1", std::time::Duration::from_secs(15)).hold(&store).await;
/// Sample::run("order-2").create(&store).await;
/// let fleet = store.fleet(Namespace::default()).await?;
/// assert_eq!((fleet.holders[0].owner.as_str(), fleet.holders[0].runs), ("engine-1", 1));
/// assert_eq!(fleet.waiting, 1, "for a worker");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fleet {
    /// Those who hold runs, by name.
    pub holders: Vec<Holding>,
    /// Runs that could go on and that nobody holds, or whose holder's lease is over.
    pub waiting: u64,
    /// How long the one that has waited for longest could have gone on.
    pub lag: Duration,
}

/// What one worker holds.
///
/// ```
/// # use hapax_store::Holding;
/// # use std::time::Duration;
/// /// A worker that lives has renewed its leases.
/// fn seems_dead(worker: &Holding) -> bool {
///     worker.lease_left == Duration::ZERO
/// }
/// let gone = Holding { owner: "engine-1".into(), runs: 3, lease_left: Duration::ZERO, epoch: 7 };
/// assert!(seems_dead(&gone));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its name.
    pub owner: String,
    /// How many runs it holds.
    pub runs: u64,
    /// How long the first of their leases to end still lasts; zero: it is over, and the run may be taken over.
    pub lease_left: Duration,
    /// The highest epoch among them: how often one of its runs was claimed.
    pub epoch: u64,
}
