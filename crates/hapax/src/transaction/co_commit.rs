//! A transaction in the database of the runs: the record of its end is part of it, so no doubt can exist.
//!
//! Invariant: what the transaction did and the row that says so are committed together, behind everything that the run did
//! before, and only while the run is ours: the fence comes behind the last statement of the user's. Whoever waits for it may
//! be dropped meanwhile; the item has recorded the end all the same.

use super::{
    Tx,
    databases::Ready,
    protocol::{Call, Stuck, begins, undo, undone},
};
use crate::{
    clock,
    effects::failed,
    gate::{Turn, lock},
    item::{Attempt, Live},
};
use hapax_core::{
    canary,
    commit::Write,
    error::{Coded, code},
    journal::{EffectOutcome, Entry},
};
use hapax_store::{
    StoreError, check_limits,
    db::{CommitError, DbError, Kind},
};
use serde::Serialize;
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How long an answer may take when others wait for it.
const ANSWER: Duration = Duration::from_secs(30);

impl Call<'_> {
    /// The end is a row of the journal by the same COMMIT.
    pub(super) async fn by_co_commit<T, E, F>(&self, ready: &Ready, work: F) -> Result<EffectOutcome, Stuck>
    where
        T: Serialize,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        // In a file there is one writer: what the run has under way would wait for this transaction, and this one for that.
        let turn = match ready.database.kind() {
            Kind::Sqlite => {
                let turn = self.site.attempt.with_store(self.live.gate.quiet_turn()).await;
                Some(turn.map_err(|_| Stuck::Stopped)?)
            }
            _ => None,
        };
        if !self.is_noted(ready) {
            self.site.attempt.item.see([self.entry(begins(self.db, ready.strategy))]);
        }
        let mut tx = self.open(ready).await?;
        // Whoever waits for the turn meanwhile seems to wait for the store, which is nobody's time.
        let limited = turn.as_ref().filter(|_| !canary::on("closures_hang"));
        let time = limited.map_or(Duration::MAX, |_| clock::left_until(self.site.attempt.deadline));
        let done = match tokio::time::timeout(time, self.run(&mut tx, work)).await {
            Ok(done) => done?,
            Err(_) => Err(failed(code::NODE_TIMEOUT, "its attempt's time was over".into(), true)),
        };
        let outcome = match done {
            Ok(response) => EffectOutcome::Ok { response },
            Err(failed) => {
                undo(tx).await?;
                return Ok(failed);
            }
        };
        let end = self.site.result(self.live, outcome.clone());
        let ending = Ending { attempt: self.site.attempt.clone(), end, outcome };
        let ended = self.live.shared.tasks.spawn(ending.commit(tx, turn));
        let ended = self.site.attempt.with_store(ended).await;
        ended.unwrap_or_else(|error| Err(Stuck::Away(error.to_string())))
    }
}

/// A transaction that is about to end.
struct Ending {
    attempt: Arc<Attempt>,
    end: Entry,
    outcome: EffectOutcome,
}

impl Ending {
    async fn commit(self, mut tx: Tx, turn: Option<Turn>) -> Result<EffectOutcome, Stuck> {
        let item = &self.attempt.item;
        let Some(live) = &item.live else { return Err(Stuck::Stopped) };
        let mut turn = match turn {
            Some(turn) => turn,
            None => live.gate.quiet_turn().await.map_err(|_| Stuck::Stopped)?,
        };
        if let Some(first) = self.recorded() {
            // An attempt that was given up has ended after all.
            undo(tx).await?;
            return Ok(first);
        }
        if !self.attempt.alive.load(Ordering::Acquire) || self.attempt.is_condemned() {
            undo(tx).await?;
            return Err(Stuck::Stopped);
        }
        let entries = [self.end.clone()];
        let (append, seen) = live.append(item, turn.first_seq(), &entries, true);
        let statements = match live.shared.store.within(&append).await {
            Ok(statements) => statements,
            Err(error) => return Err(Stuck::Away(error.to_string())),
        };
        let rows = append.rows.len();
        let write = Arc::new(Write::Append(append));
        if let Err(error) = check_limits(&write) {
            undo(tx).await?;
            return Ok(failed(error.code(), error.to_string(), false));
        }
        match in_time(tx.inner.ride(&statements)).await {
            Ok(met) if met || canary::on("unfenced_ride") => {}
            Ok(_) => {
                undo(tx).await?;
                return refused(live, write, DbError::Away("the run is another's".into())).await;
            }
            Err(error) => {
                undo(tx).await?;
                return refused(live, write, error).await;
            }
        }
        let committed = tokio::time::timeout(ANSWER, tx.inner.commit()).await;
        match committed.unwrap_or_else(|_| Err(CommitError::Unknown("it doesn't answer".into()))) {
            Ok(()) => {}
            Err(CommitError::RolledBack(error)) => return refused(live, write, error).await,
            Err(CommitError::Ended(why)) => return Err(Stuck::Doubt(why)),
            Err(CommitError::Unknown(why)) => {
                if !is_there(live, write).await? {
                    return Err(Stuck::Away(why));
                }
            }
        }
        // Nothing waits from here on: the run's next row is behind these.
        turn.wrote(rows);
        item.journaled(seen, &entries);
        Ok(self.outcome)
    }

    /// How the call ended, if it did.
    fn recorded(&self) -> Option<EffectOutcome> {
        let Entry::Result { scope, index, .. } = &self.end else { return None };
        lock(&self.attempt.item.recorded).call(scope, *index)?.outcome.clone()
    }
}

/// The rows weren't let in, and all of it is undone: the store tells why the run must stop, if it must.
async fn refused(live: &Live, write: Arc<Write>, error: DbError) -> Result<EffectOutcome, Stuck> {
    match is_there(live, write).await? {
        true => Err(Stuck::Doubt(format!("its end is recorded, and it was undone: {error}"))),
        false => undone(error),
    }
}

/// What a statement answers, unless nothing comes: others wait for the row that it holds.
async fn in_time<T>(answer: impl Future<Output = Result<T, DbError>>) -> Result<T, DbError> {
    let answer = tokio::time::timeout(ANSWER, answer).await;
    answer.unwrap_or_else(|_| Err(DbError::Away("it doesn't answer".into())))
}

/// Whether a write is there, found out under the run's own lock, so that none is under way.
async fn is_there(live: &Live, write: Arc<Write>) -> Result<bool, Stuck> {
    loop {
        match live.shared.store.settle(write.clone()).await {
            Ok(_) => return Ok(true),
            Err(StoreError::Retry(_)) => return Ok(false),
            Err(error) => live.gate.bear(error).await.map_err(|_| Stuck::Stopped)?,
        }
    }
}
