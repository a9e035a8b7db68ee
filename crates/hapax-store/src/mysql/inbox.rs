//! An inbox in MySQL or MariaDB.
//!
//! Invariant: whoever inserts a row that another's open transaction has inserted waits for its end. A duplicate undoes its
//! own statement alone, so the consumer's transaction goes on.

use super::{
    MySqlOptions,
    beside::{Table, prepare},
    connect,
    connection::{Asking, Server},
    error::fault,
};
use crate::{
    error::StoreError,
    inbox::{InboxError, Received, check, server, sql},
    server::{options::Options, pool::Sessions, sql::Fault},
};
use hapax_core::canary;
use mysql_async::{Row, Transaction, prelude::Queryable};
use std::{sync::Arc, time::Duration};

/// The table, for whoever makes it beforehand.
const TABLE: Table = Table {
    name: sql::TABLE,
    holds: "inbox",
    schema: include_str!("../inbox/schema/mysql.sql"),
    key: sql::KEY,
    rights: sql::RIGHTS,
};

/// An inbox in MySQL or MariaDB, in a database of the server that has the effects.
///
/// ```no_run
/// use hapax_store::{inbox::MySqlInbox, mysql::MySqlOptions};
/// use std::time::Duration;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = MySqlInbox::open("mysql://root@localhost:3306/books", MySqlOptions::default()).await?;
/// inbox.sweep(Duration::from_secs(90 * 24 * 3600)).await?;
/// # Ok(())
/// # }
/// ```
///
/// What keeps it from opening is told with its cure:
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::{inbox::MySqlInbox, mysql::MySqlOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let refused = MySqlInbox::open("mysql://localhost:3306", MySqlOptions::default()).await.unwrap_err();
/// assert_eq!(refused.code(), "HX0050", "{refused}"); // docs/errors/HX0050.md
/// # }
/// ```
pub struct MySqlInbox {
    sessions: Sessions,
    server: Arc<Server>,
}

impl std::fmt::Debug for MySqlInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlInbox").field("server", &self.server.what).finish_non_exhaustive()
    }
}

impl MySqlInbox {
    /// Connects, and creates the table where there is none.
    ///
    /// Refuses, with [`StoreError::Open`], a server that can't be reached, is older than MySQL 8.0.1 or MariaDB 10.6,
    /// takes no writes or only small ones, or may lose what it has committed; and a user who lacks rights, with the
    /// statements that grant them.
    pub async fn open(url: &str, options: MySqlOptions) -> Result<Self, StoreError> {
        let Options { sessions, answer_limit, must_exist, .. } = options.shared.clone();
        let (server, mut first) = connect(url, options).await?;
        prepare(&mut first, &server.what, must_exist, &TABLE).await?;
        let sessions = Sessions::new(Arc::new(Asking(server.clone())), sessions, answer_limit);
        Ok(Self { sessions, server })
    }

    /// Whether a message is delivered for the first time, to this consumer: if so, its effect belongs into the same
    /// transaction, and into tables of InnoDB. Another delivery's that is under way is waited for: if it is committed,
    /// this is [again](Received::Again), and the transaction may go on; if not, it is the first.
    ///
    /// After an error roll back: a deadlock, which several that wait for one may find when that is rolled back, has
    /// undone the transaction already.
    ///
    /// ```no_run
    /// use hapax_store::inbox::{MySqlInbox, Received};
    /// use mysql_async::{TxOpts, prelude::Queryable};
    /// # async fn example(
    /// #     inbox: &MySqlInbox, conn: &mut mysql_async::Conn,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = conn.start_transaction(TxOpts::default()).await?;
    /// if inbox.first_in(&mut tx, "bookkeeper", "msg:3b0f").await? == Received::First {
    ///     tx.query_drop("UPDATE accounts SET cents = cents + 4200 WHERE id = 7").await?;
    /// }
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn first_in(
        &self,
        tx: &mut Transaction<'_>,
        consumer: &str,
        id: &str,
    ) -> Result<Received, InboxError> {
        check(consumer, id)?;
        let named = (consumer.as_bytes(), id.as_bytes());
        if canary::on("inbox_checks_first") {
            let found: Option<Row> =
                tx.exec_first(self.server.words(sql::IS_THERE), named).await.map_err(refused)?;
            // Whether the row can be inserted is of no matter to the mutant.
            let _ = tx.exec_drop(self.server.words(sql::RECEIVE), named).await;
            return Ok(if found.is_none() { Received::First } else { Received::Again });
        }
        let received = match tx.exec_drop(self.server.words(sql::RECEIVE), named).await.map_err(fault) {
            Ok(()) => Received::First,
            // The row is locked for us now, so the other's transaction is over.
            Err(Fault::Duplicate(_)) => Received::Again,
            Err(fault) => return Err(server::reported(fault)),
        };
        if canary::on("inbox_row_apart") {
            for apart in ["COMMIT", "BEGIN"] {
                tx.query_drop(apart).await.map_err(refused)?;
            }
        }
        Ok(received)
    }

    /// Deletes what was received longer ago than that, some at a time; answers how much. A message that is delivered once
    /// more after that takes effect once more: keep ids for longer than any redelivery may come, dead letters that an
    /// operator retries among them.
    pub async fn sweep(&self, older_than: Duration) -> Result<u64, InboxError> {
        server::sweep(&self.sessions, sql::SWEEP_MYSQL, older_than).await
    }
}

/// An error of a statement in the consumer's transaction.
fn refused(error: mysql_async::Error) -> InboxError {
    server::reported(fault(error))
}
