//! How a transaction takes effect once: what is durable before its COMMIT, and what tells afterwards whether it was one.
//!
//! Invariant: COMMIT is sent only when the call's intent is durable, with everything before it. By *marker*, whose insert is
//! the last statement: its key lets one execution commit, and whoever comes second, a zombie or a successor, rolls back and
//! returns the first one's result. By *introspection*: a durable note, in one row with the intent, says beforehand by what
//! number the database knows it.

use super::{Tx, databases::Ready, sweep::Leaves, without_effects};
use crate::{
    clock,
    effects::{EffectFuture, failed},
    error::NodeError,
    gate::lock,
    item::Live,
    wait::{Busy, Wait},
};
use hapax_core::{
    canary,
    canonical::CanonicalError,
    error::{Coded, code},
    failure::clip,
    journal::{EffectOutcome, Entry, RecordedCall, RecordedTx, TxNote, TxSaid},
    json::Json,
    limits::MAX_PAYLOAD_BYTES,
    mailbox,
};
use hapax_store::{
    StoreError,
    db::{CommitError, Database, DbError, Fate, Marked, Strategy, TxOptions, Witness},
};
use serde::Serialize;
use std::{fmt, time::Duration};

/// For how long a run is parked at first when its database can't be used; each time twice as long.
const PARKED: Duration = Duration::from_secs(1);
/// How often it is looked whether the lease was renewed.
const LOOK: Duration = Duration::from_millis(50);
/// For how long at the most.
const PARKED_MOST: Duration = Duration::from_secs(60);

/// Why a transaction's outcome isn't known now.
pub(super) enum Stuck {
    /// The database can't be asked, or another execution is still at it: later it can.
    Away(String),
    /// Nobody but a person can tell.
    Doubt(String),
    /// The run stops: whoever waits here is dropped.
    Stopped,
}

impl From<DbError> for Stuck {
    fn from(error: DbError) -> Self {
        Stuck::Away(error.to_string())
    }
}

/// One call of a transaction.
pub(super) struct Call<'a> {
    pub(super) site: &'a EffectFuture<'a>,
    pub(super) live: &'a Live,
    pub(super) db: &'a str,
    /// What is known of an execution that was begun before and hasn't ended: it may still be under way.
    pub(super) before: Option<RecordedTx>,
    pub(super) options: &'a TxOptions,
}

/// What the closure came to, its transaction still open.
type Done = Result<Json, EffectOutcome>;

impl EffectFuture<'_> {
    /// What is known of this transaction, if it was begun and hasn't ended.
    pub(super) fn transaction(&self) -> Option<RecordedTx> {
        let recorded = lock(&self.attempt.item.recorded);
        let call = recorded.call(self.scope, self.index).filter(|call| call.outcome.is_none())?;
        call.transaction.clone()
    }
}

impl Call<'_> {
    /// The same once it was begun: a person may have said that nothing of what was before took effect.
    pub(super) fn begun(mut self) -> Self {
        if let Some(before) = &mut self.before {
            before.pre_commit = self.site.transaction().and_then(|transaction| transaction.pre_commit);
        }
        self
    }

    /// The database, if it can be used as the transaction wants it.
    pub(super) async fn ready(&self) -> Result<Ready, DbError> {
        // One that would have written its own end has none, so it didn't take effect: how the next one's is known is open.
        let before = self.before.as_ref().and_then(|before| named(&before.strategy));
        let strategy = before.filter(|before| *before != Strategy::CoCommit).or(self.options.strategy);
        let (databases, store) = (&self.live.shared.databases, &self.live.shared.store);
        let ready = databases.ready(self.db, &**store, strategy, self.options.isolation);
        self.site.attempt.with_store(ready).await
    }

    /// Runs the transaction, or finds out how it ended.
    pub(super) async fn transact<T, E, F>(
        &self,
        key: &str,
        ready: Result<Ready, DbError>,
        work: F,
    ) -> Result<EffectOutcome, Stuck>
    where
        T: Serialize,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        let ready = match ready {
            Err(error @ DbError::Unusable { .. })
                if self.before.is_none() || canary::on("gives_up_unasked") =>
            {
                return Ok(rolled_back(&error, false));
            }
            ready => ready?,
        };
        if self.options.read_only {
            return self.read(&ready, work).await;
        }
        match ready.strategy {
            Strategy::CoCommit => self.by_co_commit(&ready, work).await,
            Strategy::Introspection => self.by_introspection(&ready, work).await,
            Strategy::Marker => {
                let id = self.id(key);
                let (item, markers) = (&self.site.attempt.item, &self.live.shared.markers);
                let _leaves = Leaves { markers, database: self.db, id: &id, run: &item.run, step: item.step };
                self.by_marker(&ready, &id, work).await
            }
        }
    }

    /// The first that tells of itself by its marker counts.
    async fn by_marker<T, E, F>(&self, ready: &Ready, id: &str, work: F) -> Result<EffectOutcome, Stuck>
    where
        T: Serialize,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        let database = &*ready.database;
        if let Some(outcome) = self.marked(database, id).await? {
            return Ok(outcome);
        }
        let mut tx = self.begin(ready).await?;
        let failed = match self.run(&mut tx, work).await? {
            Ok(response) => match self.seal(database, tx, id, EffectOutcome::Ok { response }).await? {
                Ok(outcome) => return Ok(outcome),
                Err(failed) => failed,
            },
            Err(failed) => {
                undo(tx).await?;
                failed
            }
        };
        if self.before.is_none() || canary::on("unsealed") {
            return Ok(failed);
        }
        // An earlier execution may still commit: a marker that says how this one ended keeps it from that.
        let tx = self.begin(ready).await?;
        let sealed = self.seal(database, tx, id, failed).await?;
        sealed.map_err(|failed| Stuck::Away(message(&failed)))
    }

    /// Commits what the transaction did with the outcome that it claims, and tells the outcome that counts. An inner error
    /// says that nothing was committed.
    async fn seal(
        &self,
        database: &dyn Database,
        mut tx: Tx,
        id: &str,
        claimed: EffectOutcome,
    ) -> Result<Result<EffectOutcome, EffectOutcome>, Stuck> {
        let said = Json::of(&claimed).map_err(|error| Stuck::Away(error.to_string()))?;
        let marked = match canary::on("unmarked") {
            true => Ok(Marked::Here),
            false => self.site.attempt.with_store(tx.inner.mark(id, &said)).await,
        };
        match marked {
            Ok(Marked::Here) => {}
            Ok(Marked::Taken) => {
                undo(tx).await?;
                let first = self.marker(database, id).await?;
                return first.map(Ok).ok_or_else(|| Stuck::Away("its marker was there and is gone".into()));
            }
            Err(error) => {
                undo(tx).await?;
                return undone(error).map(Err);
            }
        }
        match self.commit(tx).await {
            Ok(()) => Ok(Ok(claimed)),
            Err(CommitError::RolledBack(error)) => undone(error).map(Err),
            Err(CommitError::Unknown(why)) => match self.marker(database, id).await? {
                Some(outcome) => Ok(Ok(outcome)),
                // It may still be on its way: whoever comes next waits on its marker.
                None => Err(Stuck::Away(why)),
            },
            Err(CommitError::Ended(why)) => match self.marker(database, id).await? {
                Some(outcome) => Ok(Ok(outcome)),
                None => Err(Stuck::Doubt(why)),
            },
        }
    }

    /// The outcome that an earlier execution has left. None can have when none was begun.
    async fn marked(&self, database: &dyn Database, id: &str) -> Result<Option<EffectOutcome>, Stuck> {
        match self.before {
            Some(_) if !canary::on("marker_unasked") => self.marker(database, id).await,
            _ => Ok(None),
        }
    }

    async fn marker(&self, database: &dyn Database, id: &str) -> Result<Option<EffectOutcome>, Stuck> {
        let Some(said) = self.site.attempt.with_store(database.marker(id)).await? else { return Ok(None) };
        said.read().map(Some).map_err(|error| Stuck::Doubt(format!("its marker can't be read: {error}")))
    }

    /// By what the database says of its number.
    async fn by_introspection<T, E, F>(&self, ready: &Ready, work: F) -> Result<EffectOutcome, Stuck>
    where
        T: Serialize,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        if let Some((witness, response)) = self.before.as_ref().and_then(|before| before.pre_commit.as_ref())
        {
            let witness =
                witness.read().map_err(|error| Stuck::Doubt(format!("its note can't be read: {error}")))?;
            if let Some(outcome) = self.settle(&*ready.database, &witness, response.clone()).await? {
                return Ok(outcome);
            }
        }
        let mut tx = self.begin(ready).await?;
        let response = match self.run(&mut tx, work).await? {
            Ok(response) => response,
            Err(outcome) => {
                undo(tx).await?;
                return Ok(outcome);
            }
        };
        let witness = match tx.inner.witness().await {
            Ok(witness) => witness,
            Err(error) => {
                undo(tx).await?;
                return undone(error);
            }
        };
        let said = Json::of(&witness).map_err(|error| Stuck::Away(error.to_string()))?;
        // Only who owns the run can write it: whoever took it over knows that there is no other. The intent comes with it.
        let pre_commit = self.entry(TxSaid::PreCommit { witness: said, response: response.clone() });
        self.site.record(self.live, &[pre_commit], true, canary::on("pre_commit_late")).await;
        match self.commit(tx).await {
            Ok(()) => Ok(EffectOutcome::Ok { response }),
            Err(CommitError::RolledBack(error)) => undone(error),
            Err(CommitError::Unknown(why)) => {
                let settled = self.settle(&*ready.database, &witness, response).await?;
                settled.ok_or(Stuck::Away(why))
            }
            Err(CommitError::Ended(why)) => Err(Stuck::Doubt(why)),
        }
    }

    /// How a transaction ended that was about to be committed; `None`: nothing of it was.
    async fn settle(
        &self,
        database: &dyn Database,
        witness: &Witness,
        response: Json,
    ) -> Result<Option<EffectOutcome>, Stuck> {
        match self.site.attempt.with_store(database.ask(witness)).await? {
            Fate::Committed if canary::on("fate_forgotten") => Ok(None),
            Fate::Committed => Ok(Some(EffectOutcome::Ok { response })),
            Fate::Aborted => Ok(None),
            Fate::InProgress => Err(Stuck::Away("an earlier execution of it is still under way".into())),
            Fate::Unknown(why) => Err(Stuck::Doubt(why)),
        }
    }

    /// One that changes nothing needs nothing to be known of it.
    async fn read<T, E, F>(&self, ready: &Ready, work: F) -> Result<EffectOutcome, Stuck>
    where
        T: Serialize,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        let mut tx = self.begin(ready).await?;
        let done = self.run(&mut tx, work).await?;
        undo(tx).await?;
        Ok(match done {
            Ok(response) => EffectOutcome::Ok { response },
            Err(outcome) => outcome,
        })
    }

    async fn begin(&self, ready: &Ready) -> Result<Tx, Stuck> {
        self.while_leased().await;
        if !self.is_noted(ready) {
            let begins = begins(self.db, ready.strategy);
            match ready.strategy {
                Strategy::Marker => self.note(begins).await,
                // It is durable with what is written before COMMIT.
                _ => self.site.attempt.item.see([self.entry(begins)]),
            }
        }
        self.open(ready).await
    }

    /// Whether it is noted that such a transaction begins.
    pub(super) fn is_noted(&self, ready: &Ready) -> bool {
        let begins = |tx: RecordedTx| tx.strategy == word(ready.strategy) && tx.pre_commit.is_none();
        self.site.transaction().is_some_and(begins)
    }

    pub(super) async fn open(&self, ready: &Ready) -> Result<Tx, Stuck> {
        let inner = self.site.attempt.with_store(ready.database.begin(self.options)).await?;
        Ok(Tx { inner, saved: 0, away: None, contended: None })
    }

    /// Runs the closure. What it returns is no outcome when the database was gone meanwhile.
    pub(super) async fn run<T, E, F>(&self, tx: &mut Tx, work: F) -> Result<Done, Stuck>
    where
        T: Serialize,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        let done = without_effects(work(tx)).await;
        // Locks that it didn't get may be those of an earlier execution.
        let contended = tx.contended.take().filter(|_| self.before.is_some());
        if let (Err(_), Some(why)) = (&done, tx.away.take().or(contended)) {
            return Err(Stuck::Away(why));
        }
        let not_json = |error: CanonicalError| {
            failed(error.code(), format!("the result cannot be written as JSON: {error}"), false)
        };
        Ok(match done {
            Ok(value) => Json::of(&value).map_err(not_json).and_then(fits),
            Err(error) => Err(rolled_back(&error, true)),
        })
    }

    async fn commit(&self, tx: Tx) -> Result<(), CommitError> {
        let item = &self.site.attempt.item;
        let saw_more = !lock(&item.tail).is_empty();
        if saw_more {
            // What another lane has seen meanwhile may have reached the closure.
            self.site.record(self.live, &[], false, false).await;
        }
        self.while_leased().await;
        self.site.attempt.with_store(tx.inner.commit()).await
    }

    /// Waits until the run is ours for sure: what the store doesn't fence must not be done before. Never returns when it is
    /// another's.
    async fn while_leased(&self) {
        while !self.live.gate.is_leased() {
            self.site.unless_stopped(self.live).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Says something of the transaction that must be durable before whatever comes next.
    async fn note(&self, said: TxSaid) {
        let entry = self.entry(said);
        self.site.record(self.live, &[entry], false, false).await;
    }

    pub(super) fn entry(&self, said: TxSaid) -> Entry {
        let (scope, index) = (self.site.scope.clone(), self.site.index);
        Entry::Transaction(TxNote { scope, index, said, at_us: self.live.now_us() })
    }

    /// The id of the marker: the call's key, and another each time the transaction was rolled back for good.
    fn id(&self, key: &str) -> String {
        let recorded = lock(&self.site.attempt.item.recorded);
        recorded
            .call(self.site.scope, self.site.index)
            .map_or_else(|| key.to_owned(), |call| marker_id(key, call))
    }

    /// Parks the run: until its database can be asked again, or a person says how the transaction ended.
    pub(super) async fn stuck<T>(&self, key: &str, stuck: Stuck, busy: Busy<'_>) -> T {
        let waits = &self.site.attempt.waits;
        match stuck {
            Stuck::Stopped => std::future::pending().await,
            Stuck::Away(why) => {
                // Why is in the journal: a database's words may hold what is in its rows.
                tracing::warn!(
                    database = self.db,
                    call = self.site.name,
                    "a transaction waits for its database"
                );
                let times = self.site.transaction().and_then(|tx| tx.away).map_or(0, |(times, _)| times);
                let pause = PARKED.saturating_mul(1 << times.min(6)).min(PARKED_MOST);
                self.site.attempt.item.see([self.entry(TxSaid::Away { why: clip(why) })]);
                drop(busy);
                waits.wait(Wait::Until(clock::later(self.live.now_us(), pause))).await
            }
            Stuck::Doubt(why) => {
                tracing::error!(database = self.db, call = self.site.name, "a transaction is in doubt");
                self.note(TxSaid::Doubt { why: clip(why) }).await;
                drop(busy);
                waits.wait(Wait::Word(mailbox::resolution(key))).await
            }
        }
    }
}

/// Refuses a result that the journal couldn't take once its transaction is committed.
fn fits(response: Json) -> Done {
    let (size, limit) = (response.as_bytes().len(), MAX_PAYLOAD_BYTES);
    if size <= limit || canary::on("results_unbounded") {
        return Ok(response);
    }
    let error = StoreError::TooLarge { what: "a response".into(), size, limit };
    Err(failed(error.code(), error.to_string(), false))
}

/// The id of the marker of a call with this key.
pub(super) fn marker_id(key: &str, call: &RecordedCall) -> String {
    match call.transaction.as_ref().map_or(0, |transaction| transaction.rolled_back) {
        0 => key.to_owned(),
        times => format!("{key}:{times}"),
    }
}

/// What is said of a transaction that begins.
pub(super) fn begins(database: &str, strategy: Strategy) -> TxSaid {
    TxSaid::Begins { database: database.to_owned(), strategy: word(strategy).to_owned() }
}

pub(super) fn word(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::CoCommit => "co-commit",
        Strategy::Marker => "marker",
        Strategy::Introspection => "introspection",
    }
}

fn named(name: &str) -> Option<Strategy> {
    let all = [Strategy::CoCommit, Strategy::Marker, Strategy::Introspection];
    all.into_iter().find(|strategy| word(*strategy) == name)
}

fn message(failed: &EffectOutcome) -> String {
    match failed {
        EffectOutcome::Err { message, .. } => message.clone(),
        EffectOutcome::Ok { .. } => String::new(),
    }
}

/// Undoes what a transaction did; if something else has ended it, nobody knows what that was.
pub(super) async fn undo(tx: Tx) -> Result<(), Stuck> {
    tx.inner.rollback().await.map_err(|error| Stuck::Doubt(error.to_string()))
}

/// The outcome of a transaction that the database undid, unless the database itself is gone.
pub(super) fn undone(error: DbError) -> Result<EffectOutcome, Stuck> {
    match error {
        DbError::Away(why) => Err(Stuck::Away(why)),
        error => Ok(rolled_back(&error, true)),
    }
}

fn rolled_back(error: &(impl fmt::Display + 'static), retryable: bool) -> EffectOutcome {
    let node = (error as &dyn std::any::Any).downcast_ref::<NodeError>();
    let retryable = node.map_or(retryable, NodeError::is_retryable);
    failed(code::EFFECT_FAILED, clip(error.to_string()), retryable)
}
