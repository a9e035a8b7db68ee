//! An inbox in PostgreSQL.
//!
//! Invariant: whoever inserts a row that another's open transaction has inserted waits for its end. The commit of the
//! consumer's transaction waits for the disk, whatever its session does.

use super::{
    PostgresOptions,
    beside::{DURABLE, Table, prepare},
    connect,
    connection::Server,
    error::{fault, told},
};
use crate::{
    error::StoreError,
    inbox::{InboxError, Received, check, server, sql},
    server::{options::Options, pool::Sessions},
};
use hapax_core::canary;
use std::{sync::Arc, time::Duration};
use tokio_postgres::{Error, Row, Transaction, error::SqlState, types::Type};

/// The table, for whoever makes it beforehand.
const TABLE: Table = Table {
    name: sql::TABLE,
    holds: "inbox",
    schema: include_str!("../inbox/schema/postgres.sql"),
    last: "hapax_inbox_received",
    sequence: None,
    key: sql::KEY,
    rights: sql::RIGHTS,
};

/// An inbox in PostgreSQL, in the database of the effects.
///
/// ```no_run
/// use hapax_store::{inbox::PostgresInbox, postgres::PostgresOptions};
/// use std::time::Duration;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = PostgresInbox::open("postgres://localhost/books", PostgresOptions::default()).await?;
/// inbox.sweep(Duration::from_secs(90 * 24 * 3600)).await?;
/// # Ok(())
/// # }
/// ```
///
/// What can't be used is refused when it is opened, with what to do:
///
/// ```
/// use hapax_store::{inbox::PostgresInbox, postgres::PostgresOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let nobody = PostgresInbox::open("postgres://127.0.0.1:1/books?user=a", PostgresOptions::default()).await;
/// assert!(nobody.unwrap_err().to_string().contains("check that the server runs"));
/// # }
/// ```
pub struct PostgresInbox {
    sessions: Sessions,
    server: Arc<Server>,
}

impl std::fmt::Debug for PostgresInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresInbox").field("server", &self.server.what).finish_non_exhaustive()
    }
}

impl PostgresInbox {
    /// Connects, and creates the table where there is none.
    ///
    /// Refuses, with [`StoreError::Open`], a server that can't be reached, is older than 13, takes no writes, or may
    /// lose what it has committed; and a user who lacks rights, with the statements that grant them.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let Options { sessions, answer_limit, must_exist, .. } = options.shared.clone();
        let (server, mut first) = connect(url, options).await?;
        prepare(&mut first, &server.what, must_exist, &TABLE).await?;
        Ok(Self { sessions: Sessions::new(Arc::new(server.clone()), sessions, answer_limit), server })
    }

    /// Whether a message is delivered for the first time, to this consumer: if so, its effect belongs into the same
    /// transaction. Another delivery's that is under way is waited for: if it is committed, this is
    /// [again](Received::Again); if not, it is the first.
    ///
    /// An error ends the transaction, as any does in PostgreSQL. One that is stricter than READ COMMITTED fails, with
    /// [`StoreError::Retry`], when another delivery was committed since it began.
    ///
    /// ```no_run
    /// use hapax_store::inbox::{PostgresInbox, Received};
    /// # async fn example(
    /// #     inbox: &PostgresInbox, client: &mut tokio_postgres::Client,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let tx = client.transaction().await?;
    /// if inbox.first_in(&tx, "bookkeeper", "msg:3b0f").await? == Received::First {
    ///     tx.execute("UPDATE accounts SET cents = cents + 4200 WHERE id = 7", &[]).await?;
    /// }
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn first_in(
        &self,
        tx: &Transaction<'_>,
        consumer: &str,
        id: &str,
    ) -> Result<Received, InboxError> {
        check(consumer, id)?;
        // The mutant has seen none, and needs no other word.
        let saw_none =
            canary::on("inbox_checks_first") && self.ask(tx, sql::IS_THERE, consumer, id).await?.is_empty();
        let receive = format!("{}{DURABLE}", sql::RECEIVE_ONCE);
        let is_new = !self.ask(tx, &receive, consumer, id).await?.is_empty();
        if canary::on("inbox_row_apart") {
            tx.batch_execute("COMMIT; BEGIN").await.map_err(refused)?;
        }
        Ok(if is_new || saw_none { Received::First } else { Received::Again })
    }

    async fn ask(
        &self,
        tx: &Transaction<'_>,
        text: &str,
        consumer: &str,
        id: &str,
    ) -> Result<Vec<Row>, InboxError> {
        let words = self.server.options.words(text);
        tx.query_typed(&words, &[(&consumer, Type::TEXT), (&id, Type::TEXT)]).await.map_err(refused)
    }

    /// Deletes what was received longer ago than that, some at a time; answers how much. A message that is delivered once
    /// more after that takes effect once more: keep ids for longer than any redelivery may come, dead letters that an
    /// operator retries among them.
    pub async fn sweep(&self, older_than: Duration) -> Result<u64, InboxError> {
        server::sweep(&self.sessions, sql::SWEEP, older_than).await
    }
}

/// An error of a statement in the consumer's transaction.
fn refused(error: Error) -> InboxError {
    match error.code() {
        // Its ON CONFLICT finds no such key.
        Some(&SqlState::INVALID_COLUMN_REFERENCE) => InboxError::NotThere { what: told(&error) },
        _ => server::reported(fault(error)),
    }
}
