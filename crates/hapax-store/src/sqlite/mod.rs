//! Runs in a SQLite file: the default store.
//!
//! Invariant: one thread at a time has the connection that writes, the writer's own or that of a lone caller; everything
//! else reads. Nothing is answered as committed before SQLite's COMMIT, in WAL mode with `synchronous = FULL`, has
//! succeeded.
//!
//! | file | what it holds |
//! |---|---|
//! | `connection`, `schema`, `locks` | opening a file, its tables, the proof that an owner lives |
//! | `queue`, `writer` | from a prepared write to the thread, to a transaction shared by many |
//! | `turn` | who may write to the file next, the user's transactions among them |
//! | `commit`, `flow`, `house`, `journal`, `lease`, `mailbox`, `outbox`, `runs`, `schedules` | what is done in that transaction |
//! | `read`, `health` | what is read, checked against its digests; what is really in force |
//! | `beside`, `requests`, `inbox` | tables of a file beside those of runs |

mod beside;
mod blobs;
mod census;
mod commit;
pub(crate) mod connection;
mod error;
mod flow;
mod health;
mod house;
mod inbox;
mod journal;
mod lease;
mod locks;
mod mailbox;
mod outbox;
mod queue;
mod read;
mod recode;
mod requests;
mod runs;
mod schedules;
mod schema;
pub(crate) mod turn;
mod writer;

use crate::{
    check::{check_letter, check_limits, check_new_run},
    clock::Clock,
    codec::{Codec, Encoders, PayloadCodec},
    db::{self, Statement},
    depot::{self, Rested, Resting},
    error::StoreError,
    flow::{Flow, NameKind, Swept, look_first, looks_first},
    house::House,
    outbox::Outbox,
    prepare::{self, Birth},
    recode::{PayloadKeys, Recoded},
    schedules::Schedules,
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fact, Fleet, GcPolicy, GcReport, Lease,
        ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreStats,
        Ticket,
    },
};
use connection::{Place, Readers};
use error::{all_runs, unreadable};
use hapax_core::{
    canary,
    checkpoint::Checkpoint,
    commit::{Append, Epoch, Write, Written},
    frontier::WorkItem,
    id::{Namespace, RunKey},
    journal::JournalRow,
    mailbox::{Letter, NewLetter, Posted},
};
use lease::Leases;
use locks::Locks;
use queue::Queue;
use rusqlite::Connection;
use std::{path::Path, sync::Arc};
use turn::Turns;
use writer::{Halt, Shared, Writer};

pub use inbox::SqliteInbox;
pub use requests::SqliteRequests;

/// How a file is opened.
///
/// ```
/// let options = hapax_store::sqlite::SqliteOptions::default().allow_network_fs(false);
/// ```
#[derive(Clone, Default)]
pub struct SqliteOptions {
    allow_network_fs: bool,
    clock: Clock,
    must_exist: bool,
    codec: Codec,
}

impl SqliteOptions {
    /// Opens a file on a network file system, whose locks can't be trusted: only for a single process, and at
    /// your own risk.
    #[must_use]
    pub fn allow_network_fs(mut self, allow: bool) -> Self {
        self.allow_network_fs = allow;
        self
    }

    /// The clock by which leases end and parked runs wake: for tests, which move it on and wait for nothing.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Refuses a file that isn't a store yet, and leaves it as it is: for tools that look at the runs of others.
    #[must_use]
    pub fn must_exist(mut self, must_exist: bool) -> Self {
        self.must_exist = must_exist;
        self
    }

    /// Encrypts, or otherwise changes, what is stored of states, frontiers, journal entries, letters and messages.
    #[must_use]
    pub fn payload_codec(mut self, codec: Arc<dyn PayloadCodec>) -> Self {
        self.codec.hook = Some(codec);
        self
    }

    /// Stores payloads of more bytes than this beside their rows, in a table of their own; 64 KiB is a good measure. By default
    /// all are in their rows.
    #[must_use]
    pub fn blobs_over(mut self, bytes: usize) -> Self {
        self.codec.aside = Some(bytes);
        self
    }

    /// Lets what lies beside its row rest in an object store once its run is quiet: what is larger than 64 KiB, unless
    /// [`blobs_over`](Self::blobs_over) says otherwise.
    #[must_use]
    pub fn resting(mut self, resting: Resting) -> Self {
        self.codec.rest_in(resting);
        self
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("allow_network_fs", &self.allow_network_fs)
            .field("must_exist", &self.must_exist)
            .field("payload_codec", &self.codec.hook.is_some())
            .field("blobs_over", &self.codec.aside)
            .field("resting", &self.codec.resting)
            .finish()
    }
}

/// Refuses to keep a file on a network file system: `magic` is what `statfs` says of its folder.
///
/// ```
/// const NFS: u64 = 0x6969;
/// assert!(hapax_store::sqlite::check_file_system("runs.db".as_ref(), NFS).is_err());
/// ```
pub fn check_file_system(file: &Path, magic: u64) -> Result<(), StoreError> {
    Ok(connection::check_file_system(file, magic)?)
}

/// Runs in a SQLite file.
///
/// Several stores, of one process or of many on one machine, may share a file.
///
/// ```
/// use hapax_store::{ListFilter, Store, sqlite::{SqliteOptions, SqliteStore}};
///
/// # tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("runs.db");
/// let store = SqliteStore::open(&path, SqliteOptions::default()).await?;
/// assert!(store.list(ListFilter::default()).await?.is_empty());
/// store.close().await;
/// # Ok::<(), hapax_store::StoreError>(())
/// # }).unwrap();
/// ```
pub struct SqliteStore {
    place: Place,
    queue: Queue,
    readers: Arc<Readers>,
    leases: Arc<Leases>,
    encoders: Arc<Encoders>,
    codec: Codec,
    clock: Clock,
    shared: Arc<Shared>,
    swept: Swept,
}

impl SqliteStore {
    /// Opens a file, and creates it with its tables where there is none.
    ///
    /// Refuses, with [`StoreError::Open`], what can't be durable: a read-only folder, a network file system, a
    /// damaged file, one that a newer program wrote. See [`SqliteOptions::must_exist`] for a file that must be there.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Arc<Self>, StoreError> {
        let path = path.as_ref().to_owned();
        let open = move || Self::open_blocking(&path, options);
        tokio::task::spawn_blocking(open).await.unwrap_or_else(|error| Err(StoreError::Retry(error.into())))
    }

    fn open_blocking(path: &Path, options: SqliteOptions) -> Result<Arc<Self>, StoreError> {
        let place = Place::new(path);
        if options.must_exist {
            connection::check_is_store(&place)?;
        }
        let connection = connection::open(&place, options.allow_network_fs)?;
        let SqliteOptions { codec, clock, .. } = options;
        let shared = Arc::<Shared>::default();
        let encoders = Arc::new(Encoders::new(codec.clone()));
        let turns = Turns::of(&place.file).map_err(|error| StoreError::Retry(error.into()))?;
        let mut writer = Writer {
            place: place.clone(),
            turns,
            turn: None,
            connection: None,
            shared: shared.clone(),
            encoders: encoders.clone(),
            codec: codec.clone(),
            clock: clock.clone(),
            broken: std::collections::HashMap::new(),
            begun: false,
        };
        let refused = |error| connection::cannot_be_set_up(&writer.place, &error);
        writer.connection = Some(writer.set_up(connection).map_err(refused)?);
        Ok(Arc::new(Self {
            queue: Queue::start(writer).map_err(|error| StoreError::Retry(error.into()))?,
            readers: Arc::new(Readers::new(place.clone())),
            leases: Arc::new(Leases::new(Locks::new(place.clone()))),
            place,
            encoders,
            codec,
            clock,
            shared,
            swept: Swept::default(),
        }))
    }

    /// Reads in one snapshot; `about` is the run that errors name.
    async fn read<T: Send + 'static>(
        &self,
        about: RunKey,
        read: impl FnOnce(&Connection, &Codec, &RunKey) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (codec, run) = (self.codec.clone(), about.clone());
        self.readers.read(about, move |connection| read(connection, &codec, &run)).await
    }

    /// Reads payloads, each time in one snapshot: again with what it wanted of what rests elsewhere. No turn is held while that is
    /// fetched.
    async fn read_payloads<T: Send + 'static>(
        &self,
        about: RunKey,
        read: impl Fn(&Connection, &Codec, &RunKey) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let (codec, read) = (self.codec.with_hand(), Arc::new(read));
        loop {
            let (with, run, read) = (codec.clone(), about.clone(), read.clone());
            let answer =
                self.readers.read(about.clone(), move |connection| read(connection, &with, &run)).await;
            if !codec.fetch_wanted().await {
                return answer;
            }
        }
    }

    async fn create_run(&self, run: NewRun) -> Result<Created, StoreError> {
        check_new_run(&run)?;
        if looks_first(NameKind::Singleton)
            && run.terms.singleton.is_some()
            && let Some(there) = look_first(self, &run).await?
        {
            return Ok(there);
        }
        if let Some(by) = &run.claim {
            self.leases.locks.hold(&by.owner)?;
        }
        let _room = self.queue.room(run.checkpoint.state.len()).await?;
        let birth = Birth::of(run, &self.codec)?;
        let (run, stored) = (birth.run.clone(), birth.parts.state.clone());
        let created = self.queue.call(run.key.clone(), move |tx| runs::create(tx, &birth)).await?;
        if let Created::New(Some(lease)) = &created {
            let checkpoint = &run.checkpoint;
            self.encoders.remember(&run.key, lease.epoch, checkpoint.step, &checkpoint.state, &stored);
        }
        Ok(created)
    }

    async fn submit_write(&self, write: Arc<Write>, pace: Pace) -> Result<Ticket, StoreError> {
        check_limits(&write)?;
        if canary::on("check_then_insert")
            && let Write::Step(step) = &*write
        {
            if self.checkpoint(step.run.clone(), step.checkpoint.step).await?.is_some() {
                return Ok(Ticket::ready(Ok(Written::AlreadyCommitted)));
            }
            // Others look meanwhile.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let room = self.queue.room(write.weight()).await?;
        if canary::on("blob_apart") {
            let (prepared, run) =
                (crate::prepare::prepare(&write, &self.encoders, &self.codec)?, write.run().clone());
            self.queue.call(run.clone(), move |tx| Ok(blobs::insert(tx, &run, &prepared.blobs)?)).await?;
        }
        // From here on nothing waits, so that the order of encoding is the order of the queue.
        let prepared = crate::prepare::prepare(&write, &self.encoders, &self.codec)?;
        self.queue.write(prepared, room, pace)
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(feature = "conformance")]
impl SqliteStore {
    /// Makes the n-th changing statement from now, counted from 0, fail. The answer disarms it and tells whether
    /// it fired.
    pub fn fail_at(&self, n: u64) -> impl Fn() -> bool + Send + Sync + 'static {
        use std::sync::atomic::Ordering;
        self.shared.faults.countdown.store(n + 1, Ordering::SeqCst);
        let shared = self.shared.clone();
        move || shared.faults.countdown.swap(0, Ordering::SeqCst) == 0
    }

    /// Loses SQLite's answer to the next COMMIT.
    pub fn lose_next_commit(&self) {
        self.shared.faults.lose_commit.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Lets the file grow to this many pages, so that a test can fill it.
    pub async fn limit_pages(&self, pages: u32) {
        let limit = move |tx: &writer::Tx<'_>| {
            Ok(tx.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
        };
        self.queue.call(all_runs(&Namespace::default()), limit).await.expect("a pragma of SQLite");
    }
}

impl Store for SqliteStore {
    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        Box::pin(self.create_run(run))
    }

    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        Box::pin(async move {
            self.leases.locks.hold(&by.owner)?;
            self.encoders.forget(&run);
            let leases = self.leases.clone();
            self.queue.call(run.clone(), move |tx| lease::claim(tx, &leases, &run, &by)).await
        })
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        Box::pin(async move {
            self.leases.locks.hold(&by.owner)?;
            let leases = self.leases.clone();
            let about = all_runs(&filter.namespace);
            self.queue.call(about, move |tx| lease::claim_ready(tx, &leases, &filter, &by)).await
        })
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        Box::pin(async move {
            let Some((first, _)) = leases.first() else { return Ok(vec![]) };
            self.queue.call(first.clone(), move |tx| lease::renew(tx, &leases, &by)).await
        })
    }

    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let read = move |connection: &_, _: &_, about: &_| {
                lease::cancels(connection, &owner).map_err(|error| unreadable(error, about))
            };
            self.read(all_runs(&Namespace::default()), read).await
        })
    }

    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket> {
        Box::pin(self.submit_write(write, pace))
    }

    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        Box::pin(async move {
            let settled = self.queue.call(write.run().clone(), move |tx| match commit::settle(tx, &write) {
                Err(Halt::Settle(answer)) => Ok(Box::new(answer)),
                Ok(written) => Ok(Box::new(Ok(written))),
                Err(Halt::Sql(error)) => Err(Halt::Sql(error)),
            });
            // Without the lock of the file nothing is known.
            *settled.await.map_err(|error| match error {
                StoreError::Retry(source) => StoreError::Unknown(source),
                error => error,
            })?
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        let name = db::file_identity(&self.place.file).map(Some);
        Box::pin(std::future::ready(name.map_err(|error| StoreError::Retry(error.into()))))
    }

    fn within<'a>(&'a self, append: &'a Append) -> Answer<'a, Vec<Statement>> {
        let entries = prepare::entries(&append.run, append.first_seq, &append.rows, &self.codec)
            .map_err(StoreError::Retry);
        let statements = entries.map(|entries| journal::within(append, &entries, self.clock.now_us()));
        Box::pin(std::future::ready(statements))
    }

    fn load(&self, run: RunKey) -> Answer<'_, Loaded> {
        Box::pin(self.read_payloads(run, read::load))
    }

    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>> {
        Box::pin(async move {
            let read =
                move |connection: &_, codec: &_, run: &_| read::checkpoint(connection, codec, run, step);
            Ok(self.read_payloads(run, read).await?.map(|(checkpoint, _)| checkpoint))
        })
    }

    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>> {
        Box::pin(async move {
            let read = move |connection: &_, codec: &_, run: &_| {
                read::checkpoints(connection, codec, run, from_step, limit)
            };
            self.read_payloads(run, read).await
        })
    }

    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>> {
        Box::pin(async move {
            let read = move |connection: &_, codec: &_, run: &_| {
                read::frontier_page(connection, codec, run, step, page)
            };
            self.read_payloads(run, read).await
        })
    }

    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>> {
        Box::pin(async move {
            let read = move |connection: &_, codec: &_, run: &_| {
                journal::read(connection, codec, run, from_seq, limit).map_err(|error| unreadable(error, run))
            };
            self.read_payloads(run, read).await
        })
    }

    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>> {
        Box::pin(async move {
            let read = move |connection: &_, _: &_, run: &_| {
                read::run(connection, run).map_err(|error| unreadable(error, run))
            };
            self.read(run, read).await
        })
    }

    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            let read = move |connection: &_, _: &_, about: &_| runs::list(connection, &filter, about);
            self.read(about, read).await
        })
    }

    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| runs::request_cancel(tx, &run)).await })
    }

    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        Box::pin(async move {
            check_letter(&letter)?;
            let payload = prepare::letter(&run, &letter, &self.codec)?;
            let posted = self.queue.call(run.clone(), move |tx| mailbox::post(tx, &run, &letter, &payload));
            if canary::on("signal_early") {
                // Poll it once, so that it is queued, and don't wait for the disk.
                return Ok(futures::FutureExt::now_or_never(posted).transpose()?.unwrap_or(Posted::New));
            }
            posted.await
        })
    }

    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>> {
        Box::pin(async move {
            let read = move |connection: &_, codec: &_, run: &_| {
                mailbox::waiting(connection, codec, run, &subject, after)
                    .map_err(|error| unreadable(error, run))
            };
            self.read_payloads(run, read).await
        })
    }

    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        Box::pin(async move {
            let (leases, now) = (self.leases.clone(), self.clock.now_us());
            let read = move |connection: &_, _: &_, about: &_| {
                lease::outlook(connection, &leases, &filter, now).map_err(|error| unreadable(error, about))
            };
            self.read(all_runs(&Namespace::default()), read).await
        })
    }

    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        Box::pin(async move {
            let (leases, now, about) = (self.leases.clone(), self.clock.now_us(), all_runs(&namespace));
            let read = move |connection: &_, _: &_, about: &_| {
                lease::fleet(connection, &leases, &namespace, now).map_err(|error| unreadable(error, about))
            };
            self.read(about, read).await
        })
    }

    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        Box::pin(async move {
            let (now, about) = (self.clock.now_us(), all_runs(&filter.namespace));
            let read = move |connection: &_, _: &_, about: &_| {
                census::census(connection, &filter, now).map_err(|error| unreadable(error, about))
            };
            self.read(about, read).await
        })
    }

    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| runs::retry(tx, &run)).await })
    }

    fn delete(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { self.queue.call(run.clone(), move |tx| runs::delete(tx, &run)).await })
    }

    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        Box::pin(async move {
            self.queue.call(all_runs(&policy.namespace), move |tx| runs::gc(tx, &policy)).await
        })
    }

    fn recode(&self, from: crate::recode::From) -> Answer<'_, Recoded> {
        Box::pin(async move { crate::recode::recode(self, from).await })
    }

    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        Box::pin(async move { crate::recode::payload_keys(self).await })
    }

    fn rest(&self, from: depot::From) -> Answer<'_, Rested> {
        Box::pin(async move { depot::rest(self, from).await })
    }

    fn outbox(&self) -> &dyn Outbox {
        self
    }

    fn schedules(&self) -> &dyn Schedules {
        self
    }

    fn house(&self) -> &dyn House {
        self
    }

    fn flow(&self) -> &dyn Flow {
        self
    }

    fn health(&self) -> Answer<'_, Vec<Fact>> {
        Box::pin(async move {
            let place = self.place.clone();
            let about = all_runs(&Namespace::default());
            let mut facts = self.queue.call(about.clone(), move |tx| Ok(health::facts(tx, &place)?)).await?;
            let rows = |connection: &_, _: &_, about: &_| {
                health::rows(connection).map_err(|error| unreadable(error, about))
            };
            facts.extend(self.read(about, rows).await?);
            Ok(facts)
        })
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn stats(&self) -> StoreStats {
        self.shared.stats()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // The writer's connection goes last: only it can fold the log into the file.
            self.readers.close().await;
            if let Some(thread) = self.queue.close() {
                // Its panic has been reported by the panic hook; the tickets say `Unknown`.
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            }
            self.leases.locks.release();
        })
    }
}
