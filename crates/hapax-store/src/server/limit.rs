//! A limit to every answer: a connection may stand still while all others work, and nobody else would notice.
//!
//! Invariant: whoever asked gets an answer in bounded time; a session that owes one is never lent again.

use super::{
    chain::Chain,
    pool::Pooled,
    sql::{Done, Fault, Inserts, Row, Session, Value},
};
use crate::store::{BoxFuture, Hint};
use hapax_core::canary;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A session whose answers have a limit.
pub(crate) struct Limited {
    session: Box<dyn Pooled>,
    limit: Duration,
    is_late: bool,
    /// Commits that were acknowledged.
    syncs: Arc<AtomicU64>,
}

impl Limited {
    pub(crate) fn new(session: Box<dyn Pooled>, limit: Duration, syncs: Arc<AtomicU64>) -> Self {
        let limit = if canary::on("waits_for_ever") { Duration::MAX } else { limit };
        Self { session, limit, is_late: false, syncs }
    }
}

/// Waits for an answer; without one, it isn't known what became of the question.
async fn within<T>(limit: Duration, is_late: &mut bool, answer: Done<'_, T>) -> Result<T, Fault> {
    // Whoever drops this is owed an answer as well.
    *is_late = true;
    let Ok(answer) = tokio::time::timeout(limit, answer).await else {
        return Err(Fault::Lost(format!("no answer came for {limit:?}").into()));
    };
    *is_late = false;
    answer
}

/// Each call of a session within the limit.
macro_rules! within {
    ($self:ident, $($call:tt)*) => {
        Box::pin(within($self.limit, &mut $self.is_late, $self.session.$($call)*))
    };
}

/// The same of a call that commits.
macro_rules! commits {
    ($self:ident, $($call:tt)*) => {{
        let committed = within($self.limit, &mut $self.is_late, $self.session.$($call)*);
        let count = |_: &_| _ = $self.syncs.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { committed.await.inspect(count) })
    }};
}

impl Session for Limited {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, u64> {
        within!(self, execute(sql, values))
    }

    fn rows<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, Vec<Row>> {
        within!(self, rows(sql, values))
    }

    fn begin(&mut self) -> Done<'_, ()> {
        within!(self, begin())
    }

    fn begin_reading(&mut self) -> Done<'_, ()> {
        within!(self, begin_reading())
    }

    fn commit(&mut self) -> Done<'_, ()> {
        commits!(self, commit())
    }

    fn rollback(&mut self) -> Done<'_, ()> {
        within!(self, rollback())
    }

    fn write_chains<'a>(&'a mut self, chains: &'a [Chain]) -> Done<'a, Vec<bool>> {
        commits!(self, write_chains(chains))
    }

    fn insert_all<'a>(&'a mut self, tables: &'a [Inserts<'a>]) -> Done<'a, ()> {
        commits!(self, insert_all(tables))
    }

    fn unless_there(&self) -> &'static str {
        self.session.unless_there()
    }

    fn warned(&mut self) -> bool {
        self.session.warned()
    }

    fn tell<'a>(&'a mut self, hints: &'a [Hint]) -> Done<'a, ()> {
        within!(self, tell(hints))
    }
}

impl Pooled for Limited {
    fn is_sound(&self) -> bool {
        !self.is_late && self.session.is_sound()
    }

    fn takes_writes(&mut self) -> BoxFuture<'_, Result<bool, Fault>> {
        within!(self, takes_writes())
    }
}
