//! Runs in a database server: what PostgreSQL and MySQL have in common.
//!
//! Invariant: nothing is answered as committed before the server's COMMIT has succeeded, and every write demands the
//! run's epoch in a compare-and-set of its row; isolation levels aren't relied on.
//!
//! | file | what it holds |
//! |---|---|
//! | `sql`, `pool`, `address`, `tls`, `options` | what is known of a server: sessions, values, rows, faults; its address; encryption |
//! | `chain`, `writer` | writes that follow each other, and the lanes on which those of many runs share a transaction |
//! | `commit`, `flow`, `house`, `journal`, `lease`, `mailbox`, `outbox`, `runs`, `schedules` | what is done in a transaction |
//! | `flow::left` | what sweeps look at |
//! | `within` | an append as statements for another's transaction |
//! | `read` | what is read, checked against its digests |

pub(crate) mod address;
mod blobs;
mod census;
pub(crate) mod chain;
pub(crate) mod commit;
mod creation;
pub(crate) mod error;
mod flow;
mod house;
pub(crate) mod journal;
mod lease;
mod limit;
mod mailbox;
pub(crate) mod options;
mod outbox;
pub(crate) mod pool;
mod read;
mod recode;
pub(crate) mod runs;
mod schedules;
pub(crate) mod sql;
pub(crate) mod tls;
mod within;
mod writer;

use crate::{
    check::{check_letter, check_limits, check_new_run},
    clock::{Clock, now_us},
    codec::{Codec, Encoders},
    db::Statement,
    depot::{self, Rested},
    error::StoreError,
    flow::{Flow, NameKind, Swept, look_first, looks_first},
    house::House,
    outbox::Outbox,
    prepare::{self, Birth},
    recode::{PayloadKeys, Recoded},
    schedules::Schedules,
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fact, Fleet, GcPolicy, GcReport, Hint,
        Lease, ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreStats,
        Ticket, Verdict,
    },
};
use creation::Creation;
use error::{all_runs, reported, undone};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Append, Epoch, Write, Written},
    frontier::WorkItem,
    id::{Namespace, RunKey},
    journal::JournalRow,
    mailbox::{Letter, NewLetter, Posted},
};
use lease::Overlong;
use pool::{Lent, Sessions};
use sql::{Done, Fault, Session, one};
use std::sync::Arc;
use tokio::sync::broadcast;
use writer::{Lanes, Shared};

/// Lanes on which writes travel: on more of them fewer runs share a transaction.
const LANES: usize = 2;

/// The tables of the runs. Beside them `hapax_schema` says which program made them.
pub(crate) const TABLES: [&str; 16] = [
    "hapax_runs",
    "hapax_keys",
    "hapax_checkpoints",
    "hapax_frontier",
    "hapax_journal",
    "hapax_outbox",
    "hapax_channels",
    "hapax_letters",
    "hapax_tags",
    "hapax_schedules",
    "hapax_blobs",
    "hapax_objects",
    "hapax_flow_slots",
    "hapax_flow_queue",
    "hapax_flow_names",
    "hapax_shards",
];

/// What is done with each of them; whoever only looks needs the first.
pub(crate) const RIGHTS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// What is said of tables that aren't there, beside others that are.
pub(crate) fn tables_missing(missing: &[String]) -> String {
    match missing {
        [one] => format!("its table {one} is gone: restore it from a backup"),
        several => format!("its tables {} are gone: restore them from a backup", several.join(", ")),
    }
}

/// What is said of tables of which nobody knows any more how they were made.
pub(crate) const VERSION_LOST: &str =
    "its tables hold runs, and hapax_schema doesn't say of which version they are: restore it from a backup";

/// What is said of a database without our tables where they must be there.
pub(crate) const NO_STORE: &str =
    "it holds no runs of Hapax: check its address, or let the program that writes runs open it first";

/// What is said of rights that are missing, with the statements that grant them.
pub(crate) fn rights_missing(grants: &[String]) -> String {
    format!("this user lacks rights: {}", grants.join("; "))
}

/// What a transaction sees of others. Hapax is right under each: it rests on compare-and-set and unique keys.
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// use hapax_store::postgres::Isolation;
/// assert_eq!(Isolation::default(), Isolation::ReadCommitted);
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what is committed.
    #[default]
    ReadCommitted,
    /// As if one transaction ran after the other; those that can't be are tried again.
    Serializable,
}

impl Isolation {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::Serializable => "SERIALIZABLE",
        }
    }
}

/// What a server says of itself, for `doctor`.
pub(crate) type Health =
    Arc<dyn Fn(Sessions) -> BoxFuture<'static, Result<Vec<Fact>, StoreError>> + Send + Sync>;

/// What is said of a server that can only be looked at.
pub(crate) fn takes_no_writes() -> Fact {
    let meaning = "runs can be looked at; whatever changes them needs the primary".into();
    Fact { name: "writes", found: "none: it is read-only".into(), verdict: Verdict::Note, meaning }
}

/// Does `$work` in a transaction of the store; `$about` is the run that errors name.
macro_rules! call {
    ($store:expr, $about:expr, |$tx:ident| $work:expr) => {{
        let mut session = $store.sessions.lend().await?;
        let outcome = $crate::server::writer::transact!(&mut **session, &$store.codec, |$tx| $work);
        outcome.map_err(|fault| $crate::server::error::reported(fault, $about))?
    }};
}
pub(crate) use call;

/// Reads in one snapshot.
macro_rules! look {
    ($store:expr, $about:expr, |$session:ident| $read:expr) => {{
        let mut lent = $store.sessions.lend().await?;
        let about = |fault: $crate::server::sql::Fault| $crate::server::error::undone(fault, $about);
        lent.begin_reading().await.map_err(about)?;
        let answer = {
            let $session: &mut dyn $crate::server::sql::Session = &mut **lent;
            $read.await
        };
        let over = lent.rollback().await;
        // What failed first says why.
        if answer.is_ok() {
            over.map_err(about)?;
        }
        answer
    }};
}
pub(crate) use look;

/// Does `$look` with a codec, and again with what it wanted of what rests elsewhere: no session is held while that is fetched.
macro_rules! with_hand {
    ($store:expr, |$codec:ident| $look:expr) => {{
        let $codec = &$store.codec.with_hand();
        loop {
            let answer = $look;
            if !$codec.fetch_wanted().await {
                break answer;
            }
        }
    }};
}
pub(crate) use with_hand;

/// Asks one question, which is a snapshot by itself.
macro_rules! ask {
    ($store:expr, $about:expr, |$session:ident| $read:expr) => {{
        let mut lent = $store.sessions.lend().await?;
        let answer = {
            let $session: &mut dyn $crate::server::sql::Session = &mut **lent;
            $read.await
        };
        answer.map_err(|fault| $crate::server::error::undone(fault, $about))
    }};
}
pub(crate) use ask;

/// Runs in a database server.
pub(crate) struct ServerStore {
    sessions: Sessions,
    /// Those on which a single question needs no transaction.
    asking: Sessions,
    lanes: Lanes,
    creation: Creation,
    overlong: Overlong,
    encoders: Arc<Encoders>,
    codec: Codec,
    shared: Arc<Shared>,
    health: Health,
    clock: Clock,
    swept: Swept,
}

impl ServerStore {
    pub(crate) fn new(
        sessions: Sessions,
        asking: Sessions,
        codec: Codec,
        health: Health,
        clock: Clock,
    ) -> Self {
        let (encoders, shared) = (Arc::new(Encoders::new(codec.clone())), Arc::<Shared>::default());
        let lanes = Lanes::start(LANES, &sessions, &codec, &encoders, &shared);
        let creation = Creation::start(&sessions, &codec);
        Self {
            sessions,
            asking,
            lanes,
            creation,
            overlong: Overlong::default(),
            encoders,
            codec,
            shared,
            health,
            clock,
            swept: Swept::default(),
        }
    }

    async fn create_run(&self, run: NewRun) -> Result<Created, StoreError> {
        check_new_run(&run)?;
        let _room = self.lanes.room(run.checkpoint.state.len()).await?;
        let birth = Birth::of(run, &self.codec)?;
        let (run, stored) = (birth.run.clone(), birth.parts.state.clone());
        let created = self.creation.create(birth).await?;
        if let Created::New(Some(lease)) = &created {
            let checkpoint = &run.checkpoint;
            self.encoders.remember(&run.key, lease.epoch, checkpoint.step, &checkpoint.state, &stored);
        }
        Ok(created)
    }

    async fn submit_write(&self, write: Arc<Write>) -> Result<Ticket, StoreError> {
        check_limits(&write)?;
        let room = self.lanes.room(write.weight()).await?;
        if hapax_core::canary::on("blob_apart") {
            let (prepared, run) = (prepare::prepare(&write, &self.encoders, &self.codec)?, write.run());
            call!(self, run, |tx| async { Ok(blobs::insert(tx, run, &prepared.blobs).await?) })?;
        }
        // From here on nothing waits, so that the order of encoding is the order of the queue.
        let prepared = prepare::prepare(&write, &self.encoders, &self.codec)?;
        self.lanes.write(prepared, room)
    }

    /// A session for what is asked again and again. Where the server allows no further one, one of the others makes room.
    async fn lend_asking(&self) -> Result<Lent, StoreError> {
        match self.asking.lend().await {
            Err(StoreError::Retry(_)) => {
                self.sessions.lend().await?.retire();
                self.asking.lend().await
            }
            lent => lent,
        }
    }

    async fn look_out(&self, filter: ReadyFilter) -> Result<Outlook, StoreError> {
        let mut lent = self.lend_asking().await?;
        let outlook = lease::outlook(&mut **lent, &self.overlong, &self.clock, &filter).await;
        outlook.map_err(|fault| {
            // Whatever it is, the next one is asked on a session that was looked at: a primary may have become a standby.
            lent.retire();
            undone(fault, &all_runs(&filter.namespace))
        })
    }

    async fn settle_write(&self, write: Arc<Write>) -> Result<Written, StoreError> {
        // Without the lock of the run's row nothing is known.
        let unknown = |error| match error {
            StoreError::Retry(source) => StoreError::Unknown(source),
            error => error,
        };
        let mut session = self.sessions.lend().await.map_err(unknown)?;
        let settled = writer::transact!(&mut **session, &self.codec, |tx| commit::settle(tx, &write));
        settled.map_err(|fault| unknown(reported(fault, write.run())))?
    }
}

/// The server's clock, as it tells now.
pub(crate) async fn clock_of(session: &mut dyn Session) -> Result<Clock, StoreError> {
    let (clock, asked_us) = (Clock::of_server(), now_us());
    let said_us = match one(session, "SELECT {now}", &[]).await {
        Ok(Some(row)) => row.int(0),
        Ok(None) => Err(Fault::damage("the server tells no time")),
        Err(fault) => Err(fault),
    };
    let about = |fault: Fault| undone(fault, &all_runs(&Namespace::default()));
    clock.heard(asked_us, said_us.map_err(about)?, now_us());
    Ok(clock)
}

/// A store whose runs live in a server: it is that server's store under another name.
pub(crate) trait OnServer: Send + Sync + 'static {
    fn server(&self) -> &ServerStore;

    /// Listens to what other processes say, where they can.
    fn hear(&self) -> Option<broadcast::Receiver<Hint>> {
        None
    }

    /// Listens no more.
    fn stop_hearing(&self) {}

    /// What names the database.
    fn name<'a>(&'a self, session: &'a mut dyn Session) -> Done<'a, String>;

    /// A statement in the server's words, which finds our tables from any session.
    fn words(&self, sql: &str) -> String;

    /// Statements for another's transaction, the fence first.
    fn riding(&self, statements: Vec<Statement>) -> Vec<Statement> {
        let in_words = |statement: Statement| Statement { sql: self.words(&statement.sql), ..statement };
        statements.into_iter().map(in_words).collect()
    }
}

impl<T: OnServer> Store for T {
    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        Box::pin(async move {
            if looks_first(NameKind::Singleton)
                && run.terms.singleton.is_some()
                && let Some(there) = look_first(self, &run).await?
            {
                return Ok(there);
            }
            self.server().create_run(run).await
        })
    }

    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        Box::pin(async move {
            self.server().encoders.forget(&run);
            call!(self.server(), &run, |tx| lease::claim(tx, &self.server().overlong, &run, &by))
        })
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            call!(self.server(), &about, |tx| lease::claim_ready(tx, &self.server().overlong, &filter, &by))
        })
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        Box::pin(async move {
            let Some((first, _)) = leases.first() else { return Ok(vec![]) };
            call!(self.server(), first, |tx| lease::renew(tx, &leases, &by))
        })
    }

    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let mut lent = self.server().lend_asking().await?;
            let runs = lease::cancels(&mut **lent, &owner).await;
            runs.map_err(|fault| undone(fault, &all_runs(&Namespace::default())))
        })
    }

    fn submit(&self, write: Arc<Write>, _: Pace) -> Answer<'_, Ticket> {
        Box::pin(self.server().submit_write(write))
    }

    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        Box::pin(self.server().settle_write(write))
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            let about = all_runs(&Namespace::default());
            ask!(self.server(), &about, |session| self.name(session)).map(Some)
        })
    }

    fn within<'a>(&'a self, append: &'a Append) -> Answer<'a, Vec<Statement>> {
        Box::pin(async move { Ok(self.riding(within::append(append, &self.server().codec).await?)) })
    }

    fn load(&self, run: RunKey) -> Answer<'_, Loaded> {
        Box::pin(async move {
            with_hand!(self.server(), |codec| look!(self.server(), &run, |session| read::load(
                session, codec, &run
            )))
        })
    }

    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>> {
        Box::pin(async move {
            let found = with_hand!(self.server(), |codec| look!(self.server(), &run, |session| {
                read::checkpoint(session, codec, &run, step)
            }));
            Ok(found?.map(|(checkpoint, _)| checkpoint))
        })
    }

    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>> {
        Box::pin(async move {
            with_hand!(self.server(), |codec| look!(self.server(), &run, |session| {
                read::checkpoints(session, codec, &run, from_step, limit)
            }))
        })
    }

    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>> {
        Box::pin(async move {
            with_hand!(self.server(), |codec| look!(self.server(), &run, |session| {
                read::frontier_page(session, codec, &run, step, page)
            }))
        })
    }

    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>> {
        Box::pin(async move {
            // A snapshot, since what is large lies in another table.
            with_hand!(self.server(), |codec| look!(self.server(), &run, |session| async {
                let rows = journal::read(session, codec, &run, from_seq, limit).await;
                rows.map_err(|fault| undone(fault, &run))
            }))
        })
    }

    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>> {
        Box::pin(async move {
            look!(self.server(), &run, |session| read::run(session, &run))
                .map_err(|fault| undone(fault, &run))
        })
    }

    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            look!(self.server(), &about, |session| runs::list(session, &filter, &about))
        })
    }

    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { call!(self.server(), &run, |tx| runs::request_cancel(tx, &run)) })
    }

    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        Box::pin(async move {
            check_letter(&letter)?;
            let payload = prepare::letter(&run, &letter, &self.server().codec)?;
            call!(self.server(), &run, |tx| mailbox::post(tx, &run, &letter, &payload))
        })
    }

    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>> {
        Box::pin(async move {
            with_hand!(self.server(), |codec| look!(self.server(), &run, |session| async {
                let letter = mailbox::waiting(session, codec, &run, &subject, after).await;
                letter.map_err(|fault| undone(fault, &run))
            }))
        })
    }

    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        Box::pin(self.server().look_out(filter))
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        self.hear()
    }

    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        Box::pin(async move {
            let about = all_runs(&namespace);
            let fleet = look!(self.server(), &about, |session| lease::fleet(session, &namespace));
            fleet.map_err(|fault| undone(fault, &about))
        })
    }

    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        Box::pin(async move {
            let about = all_runs(&filter.namespace);
            let census = look!(self.server(), &about, |session| census::census(session, &filter));
            census.map_err(|fault| undone(fault, &about))
        })
    }

    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { call!(self.server(), &run, |tx| runs::retry(tx, &run)) })
    }

    fn delete(&self, run: RunKey) -> Answer<'_, ()> {
        Box::pin(async move { call!(self.server(), &run, |tx| runs::delete(tx, &run)) })
    }

    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        Box::pin(async move {
            let about = all_runs(&policy.namespace);
            call!(self.server(), &about, |tx| runs::gc(tx, &policy))
        })
    }

    fn recode(&self, from: crate::recode::From) -> Answer<'_, Recoded> {
        Box::pin(async move { crate::recode::recode(self.server(), from).await })
    }

    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        Box::pin(async move { crate::recode::payload_keys(self.server()).await })
    }

    fn rest(&self, from: depot::From) -> Answer<'_, Rested> {
        Box::pin(async move { depot::rest(self.server(), from).await })
    }

    fn outbox(&self) -> &dyn Outbox {
        self.server()
    }

    fn schedules(&self) -> &dyn Schedules {
        self.server()
    }

    fn house(&self) -> &dyn House {
        self.server()
    }

    fn flow(&self) -> &dyn Flow {
        self.server()
    }

    fn health(&self) -> Answer<'_, Vec<Fact>> {
        (self.server().health)(self.server().sessions.clone())
    }

    fn clock(&self) -> Clock {
        self.server().clock.clone()
    }

    fn stats(&self) -> StoreStats {
        self.server().shared.stats(self.server().sessions.syncs())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // Whatever needs no answer comes first: whoever waits may give up on the lanes.
            self.stop_hearing();
            self.server().asking.close();
            self.server().lanes.close().await;
            self.server().sessions.close();
        })
    }
}
