//! Transactions in the user's own databases: each takes effect once, and the node gets what it returned.
//!
//! Invariant: what a transaction does is done by its [`Tx`] alone; no other call can be made while its closure runs.

mod co_commit;
mod databases;
mod protocol;
mod sweep;

pub(crate) use databases::Databases;
pub(crate) use sweep::{Markers, forget, left_by, sweep};

use crate::{
    context::{Ctx, next_call},
    effects::Begun,
    error::EffectError,
    trail::{end_with, within},
};
use hapax_core::{canary, journal::EffectKind};
use hapax_store::db::{DbError, FromRow, Row, Strategy, ToValue, Transaction, TxOptions, Value};
use protocol::{Call, begins};
use serde::{Serialize, de::DeserializeOwned};
use std::{cell::Cell, fmt, pin::pin, task::Poll};

/// A database by the name under which it is registered.
///
/// User and password are known to the engine alone: no checkpoint, no record and no log holds them.
///
/// ```
/// use hapax::{Db, Engine};
/// const SHOP: Db = Db("shop");
/// // In the environment it is HAPAX_DB_SHOP.
/// let builder = Engine::builder().database(SHOP.0, "postgres://shop:secret@db.internal/shop");
/// assert!(!format!("{builder:?}").contains("secret"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Db(pub &'static str);

/// A transaction that is under way.
///
/// The closure gets no other way to the outside: calls inside it don't compile, and those that cheat are refused. So are
/// statements that would end the transaction: COMMIT and its kin, and on MySQL DDL and CALL. Values are bound as the database
/// writes them: `$1` in PostgreSQL, `?` in MySQL and SQLite.
///
/// ```
/// use hapax::{Tx, store::db::DbError};
///
/// async fn reserve(tx: &mut Tx, item: &str) -> Result<i64, DbError> {
///     let shelf: Option<i64> = tx.query_opt("SELECT shelf FROM stock WHERE item = ? AND free > 0", &[&item]).await?;
///     let shelf = shelf.ok_or(DbError::Rows(0))?;
///     tx.execute("UPDATE stock SET free = free - 1 WHERE item = ?", &[&item]).await?;
///     Ok(shelf)
/// }
/// ```
pub struct Tx {
    inner: Box<dyn Transaction>,
    saved: u32,
    /// Why the database couldn't be used any more, once it couldn't.
    away: Option<String>,
    /// What it said last of a lock that was another's.
    contended: Option<String>,
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

impl Tx {
    /// Runs a statement; answers how many rows it changed.
    pub async fn execute(&mut self, sql: &str, values: &[&(dyn ToValue + Sync)]) -> Result<u64, DbError> {
        let done = self.inner.execute(sql, &bound(values)).await;
        self.noted(done)
    }

    /// All rows of a question.
    pub async fn query<T: FromRow>(
        &mut self,
        sql: &str,
        values: &[&(dyn ToValue + Sync)],
    ) -> Result<Vec<T>, DbError> {
        let rows = self.inner.query(sql, &bound(values)).await;
        let rows = self.noted(rows)?;
        Ok(rows.iter().map(T::from_row).collect::<Result<_, _>>()?)
    }

    /// The only row of a question.
    pub async fn query_one<T: FromRow>(
        &mut self,
        sql: &str,
        values: &[&(dyn ToValue + Sync)],
    ) -> Result<T, DbError> {
        let rows: Vec<Row> = self.query(sql, values).await?;
        match &rows[..] {
            [row] => Ok(T::from_row(row)?),
            rows => Err(DbError::Rows(rows.len())),
        }
    }

    /// The only row of a question, if there is one.
    pub async fn query_opt<T: FromRow>(
        &mut self,
        sql: &str,
        values: &[&(dyn ToValue + Sync)],
    ) -> Result<Option<T>, DbError> {
        let rows: Vec<Row> = self.query(sql, values).await?;
        match &rows[..] {
            [] => Ok(None),
            [row] => Ok(Some(T::from_row(row)?)),
            rows => Err(DbError::Rows(rows.len())),
        }
    }

    /// Does something that is undone by itself when it fails; the transaction goes on.
    pub async fn savepoint<T, E, F>(&mut self, work: F) -> Result<Result<T, E>, DbError>
    where
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        self.saved += 1;
        let number = self.saved;
        let saved = self.inner.save(number).await;
        self.noted(saved)?;
        let done = work(self).await;
        let unsaved = self.inner.unsave(number, done.is_ok()).await;
        self.noted(unsaved)?;
        Ok(done)
    }

    fn noted<T>(&mut self, answer: Result<T, DbError>) -> Result<T, DbError> {
        match &answer {
            Err(DbError::Away(why)) => self.away = Some(why.clone()),
            Err(DbError::Again(why)) => self.contended = Some(why.clone()),
            _ => {}
        }
        answer
    }
}

fn bound(values: &[&(dyn ToValue + Sync)]) -> Vec<Value> {
    values.iter().copied().map(ToValue::to_value).collect()
}

impl<S: hapax_core::state::State, A: Send + Sync + 'static> Ctx<S, A> {
    /// Runs a transaction in a database of the user's: its effect happens exactly once, whatever crashes, and the node gets
    /// the value that the closure returned. An error of the closure rolls back; the node gets it, and another attempt runs
    /// another transaction. While the database can't be used the run is parked.
    ///
    /// ```
    /// use hapax::{Db, prelude::*};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { number: i64 }
    /// const SHOP: Db = Db("shop");
    /// const PLACE: Node = Node::new("place");
    ///
    /// async fn place(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
    ///     let number: i64 = ctx
    ///         .transaction(&SHOP, "place-order", async |tx| {
    ///             tx.execute("INSERT INTO orders (what) VALUES ('anvil')", &[]).await?;
    ///             tx.query_one("SELECT count(*) FROM orders", &[]).await
    ///         })
    ///         .await?;
    ///     Ok(Order::delta().number(number))
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> hapax::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("shop.db");
    /// # rusqlite::Connection::open(&file)?.execute_batch("CREATE TABLE orders (what TEXT NOT NULL)")?;
    /// # let url = format!("sqlite:{}", file.display());
    /// let engine = Engine::builder().database(SHOP.0, &url).open("memory:").await?;
    /// let flow = engine.register(Graph::new("orders", 1, PLACE).node(PLACE, place), ()).await?;
    /// assert_eq!(flow.start("order-42", Order::default()).await?.wait().await?.number, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<T, E, F>(&mut self, db: &Db, name: &str, work: F) -> Result<T, EffectError>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        self.transaction_with(db, name, TxOptions::default(), work).await
    }

    /// As [`Ctx::transaction`], with options: isolation, read-only, a limit to each statement, and how its outcome is known.
    ///
    /// ```
    /// use hapax::{Db, store::db::{Isolation, TxOptions}};
    /// # use hapax::prelude::*;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { number: i64 }
    /// async fn count(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
    ///     let exact = TxOptions { isolation: Isolation::Serializable, read_only: true, ..TxOptions::default() };
    ///     let number: i64 = ctx
    ///         .transaction_with(&Db("shop"), "count", exact, async |tx| {
    ///             tx.query_one("SELECT count(*) FROM orders", &[]).await
    ///         })
    ///         .await?;
    ///     Ok(Order::delta().number(number))
    /// }
    /// ```
    pub async fn transaction_with<T, E, F>(
        &mut self,
        db: &Db,
        name: &str,
        options: TxOptions,
        work: F,
    ) -> Result<T, EffectError>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display + 'static,
        F: AsyncFnOnce(&mut Tx) -> Result<T, E>,
    {
        let (attempt, scope, calls) = self.site();
        let site = next_call(attempt, scope, calls, name, EffectKind::Transaction);
        let asked = site.ask(db.0)?;
        if let Some(recorded) = asked.recorded {
            return site.recall(recorded).await;
        }
        let live = site.live().await;
        let call = Call { site: &site, live, db: db.0, before: site.transaction(), options: &options };
        let connecting = (!canary::on("idle_while_connecting")).then(|| site.attempt.waits.busy());
        let ready = call.ready().await;
        drop(connecting);
        // What an earlier execution has noted stays until its outcome is known.
        let first = ready.as_ref().ok().filter(|_| call.before.is_none());
        let note = first.map(|ready| call.entry(begins(db.0, ready.strategy)));
        // A marker outlives its run's memory of it, unless the intent is there first. The others write a row of their own
        // before, or with, their COMMIT: without that nothing of them took effect.
        let writes = ready.as_ref().is_ok_and(|ready| ready.strategy != Strategy::Marker);
        match site.begin_with(asked, note, writes).await {
            Begun::Told(outcome) => site.replay(outcome),
            Begun::Go(key, asked, busy) => {
                let call = call.begun();
                let outcome = match site.scripted(&key, db.0) {
                    Some(scripted) => Ok(scripted),
                    None => {
                        let open = site.open(false);
                        let traced = open.as_ref().map(|open| open.traced().clone());
                        let outcome = within(traced.as_ref(), call.transact(&key, ready, work)).await;
                        if let Ok(outcome) = &outcome {
                            end_with(open, outcome);
                        }
                        outcome
                    }
                };
                match outcome {
                    Ok(outcome) => site.finish(asked, outcome).await,
                    Err(stuck) => call.stuck(&key, stuck, busy).await,
                }
            }
        }
    }
}

thread_local! {
    /// Whether a transaction's closure is being polled on this thread.
    static IN_TRANSACTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether whoever asks is inside a transaction.
pub(crate) fn is_in_transaction() -> bool {
    IN_TRANSACTION.get()
}

/// Polls a closure's future so that no other call can be made inside it.
async fn without_effects<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let before = IN_TRANSACTION.replace(true);
        let polled: Poll<F::Output> = future.as_mut().poll(cx);
        IN_TRANSACTION.set(before);
        polled
    })
    .await
}
