//! Several databases as one store: each run lives in one of them, by its name.
//!
//! Invariant: a run and all that it is bound to share a database, since what binds them is written in one transaction. Which
//! database that is follows from its name alone, by a map that the databases themselves keep; another map is refused. So does
//! the one of a concurrency key and of a bucket, which any run of any database may use.
//!
//! A run's **route key** is its name up to the first `/` or `@` behind its first character: `order-42/parcel-1` and
//! `nightly@2031-01-01T00:00:00Z` belong with `order-42` and `nightly`. So a child is named after its parent, and a schedule's
//! runs are by themselves.
//!
//! | file | what it holds |
//! |---|---|
//! | `everywhere` | what is asked of all databases, and put together |
//! | `payloads` | how payloads are stored, in each of them |
//! | `plates` | what they say of themselves, and who is refused |
//! | `store`, `rest` | the contract: what goes to one database, what to all |
//! | `flow` | flow control, over all of them |
//! | `walk` | the way of a run to keys that live elsewhere |
//! | `sweep` | what is left when someone dies on that way |

mod everywhere;
mod flow;
mod payloads;
mod plates;
mod rest;
mod store;
mod sweep;
mod walk;

use crate::{
    error::StoreError,
    flow::names_of,
    store::{Hint, Store},
};
use hapax_core::{error::code, flow::Terms, id::RunKey, key::sha256};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize},
};
use tokio::sync::broadcast;

/// Runs are spread over so many logical partitions by the hash of their route key.
pub(crate) const PARTITIONS: usize = 1024;

/// The part of a run's name by which it is placed. A name that is followed by `/` or `@` and more has the same, whatever it
/// begins with.
///
/// ```
/// use hapax_store::sharded::route_key;
/// assert_eq!(route_key("order-42/parcel-1"), route_key("order-42"));
/// assert_eq!(route_key("nightly@2031-01-01T00:00:00Z"), "nightly");
/// assert_eq!(route_key("/nightly@2031-01-01T00:00:00Z"), "/nightly", "the first character ends no name");
/// ```
pub fn route_key(run: &str) -> &str {
    let end = run.char_indices().skip(1).find(|(_, one)| matches!(one, '/' | '@'));
    end.map_or(run, |(end, _)| &run[..end])
}

/// Which of the partitions a run belongs to, as servers write it into its row.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn partition(run: &hapax_core::id::RunId) -> u64 {
    partition_of(run.as_str()) as u64
}

fn partition_of(name: &str) -> usize {
    let [a, b, c, d, e, f, g, h, ..] = sha256(route_key(name).as_bytes()).0;
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]) % PARTITIONS as u64) as usize
}

/// Several databases as one store.
///
/// ```
/// use hapax_store::{MemoryStore, ShardedStore, Store, ListFilter, conformance::{Sample, sample::key}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let databases: Vec<Arc<dyn Store>> = (0..3).map(|_| MemoryStore::shared() as Arc<dyn Store>).collect();
/// let store = ShardedStore::open(databases.clone()).await?;
/// for n in 0..30 {
///     store.create(Sample::run(&format!("order-{n}")).build()).await?;
/// }
/// assert_eq!(store.list(ListFilter::default()).await?.len(), 30);
/// let home = store.shard_of("order-7");
/// assert!(databases[home].run(key("order-7")).await?.is_some(), "it is in one of them, by its name");
/// assert_eq!(store.shard_of("order-7/parcel-1"), home, "and so is what belongs to it");
/// # Ok(())
/// # }
/// ```
pub struct ShardedStore {
    shards: Vec<Arc<dyn Store>>,
    /// The database of each partition.
    map: Vec<u16>,
    /// Who is asked first, next time.
    turn: AtomicUsize,
    cursors: Mutex<sweep::Cursors>,
    /// The databases that have just kept the others waiting, and until when they are left alone, by this machine's clock.
    late: Mutex<HashMap<usize, i64>>,
    hints: Option<broadcast::Sender<Hint>>,
}

impl ShardedStore {
    /// Opens databases as one store, the partitions in even ranges over them. They remember it: whoever opens them in
    /// another order, others among them, or fewer of them, is refused with `HX0185`.
    pub async fn open(databases: Vec<Arc<dyn Store>>) -> Result<Arc<Self>, StoreError> {
        let count = databases.len().max(1);
        let map = (0..PARTITIONS).map(|partition| partition * count / PARTITIONS).collect();
        Self::open_with(databases, map).await
    }

    /// The same with a map of one's own: for each of the 1,024 partitions the place of its database.
    ///
    /// ```
    /// use hapax_store::{MemoryStore, ShardedStore, Store};
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), hapax_store::StoreError> {
    /// let databases: Vec<Arc<dyn Store>> = (0..2).map(|_| MemoryStore::shared() as Arc<dyn Store>).collect();
    /// // A large machine has three of four partitions.
    /// let map = (0..1024).map(|partition| usize::from(partition % 4 == 0)).collect();
    /// ShardedStore::open_with(databases.clone(), map).await?;
    /// let even = ShardedStore::open(databases).await;
    /// assert!(even.is_err(), "by another map most runs would be out of sight");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open_with(databases: Vec<Arc<dyn Store>>, map: Vec<usize>) -> Result<Arc<Self>, StoreError> {
        if map.len() != PARTITIONS || map.iter().any(|shard| *shard >= databases.len()) {
            let why = format!(
                "a map names one of {} databases for each of {PARTITIONS} partitions",
                databases.len()
            );
            return Err(refused(why));
        }
        let map: Vec<u16> = map.into_iter().map(|shard| u16::try_from(shard).unwrap_or(u16::MAX)).collect();
        plates::check(&databases, &map).await?;
        let hints = everywhere::gather_hints(&databases);
        let (turn, cursors, late) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { shards: databases, map, turn, cursors, late, hints }))
    }

    /// The place of the database that a run of this name belongs to.
    pub fn shard_of(&self, run: &str) -> usize {
        usize::from(self.map[partition_of(run)])
    }

    /// The database of a run.
    fn home(&self, run: &RunKey) -> &dyn Store {
        &*self.shards[self.shard_of(run.run.as_str())]
    }

    /// Refuses a run that is bound to one of another database.
    fn together(&self, run: &RunKey, with: &str, what: &str) -> Result<(), StoreError> {
        let (shard, other) = (self.shard_of(run.run.as_str()), self.shard_of(with));
        match shard == other {
            true => Ok(()),
            false => Err(StoreError::ShardSplit {
                run: run.clone(),
                shard,
                what: format!("{what} `{with}`"),
                other,
            }),
        }
    }

    /// Refuses a run with a singleton's name or a debounce of another database: only one run lives under it, whose row and
    /// whose name are written in one transaction.
    fn named_alike(&self, run: &RunKey, terms: &Terms) -> Result<(), StoreError> {
        names_of(terms).try_for_each(|(kind, name)| self.together(run, name, &format!("the {}", kind.word())))
    }

    fn cursors(&self) -> MutexGuard<'_, sweep::Cursors> {
        self.cursors.lock().expect("no call panics while it holds the lock")
    }
}

impl fmt::Debug for ShardedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedStore").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}

fn refused(why: String) -> StoreError {
    StoreError::Open { what: "the shards".into(), why, code: code::SHARD_MAP }
}
