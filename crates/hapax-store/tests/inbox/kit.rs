//! The databases under one name: a consumer's books, and deliveries that stand where a test wants them to.

use hapax_servers::sql;
use hapax_store::inbox::{InboxError, MySqlInbox, PostgresInbox, Received, SqliteInbox};
use mysql_async::{Conn, TxOpts, prelude::Queryable};
use rusqlite::{Connection, TransactionBehavior};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Client, NoTls};

/// The consumer of most tests.
pub(crate) const CONSUMER: &str = "bookkeeper";

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// Each of the tests in each of the databases.
macro_rules! on_each {
    ($($test:ident),* $(,)?) => {
        crate::kit::on_each!(@ sqlite, Sqlite, $($test),*);
        crate::kit::on_each!(@ postgres, Postgres, $($test),*);
        crate::kit::on_each!(@ mysql, MySql, $($test),*);
    };
    (@ $name:ident, $kind:ident, $($test:ident),*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::kit::Books::open(crate::kit::Kind::$kind).await).await;
            })*
        }
    };
}
pub(crate) use on_each;

/// An inbox of any kind.
enum Inbox {
    Sqlite(SqliteInbox),
    Postgres(PostgresInbox),
    MySql(MySqlInbox),
}

/// A database with an inbox and a table of effects, which any number may be in.
#[derive(Clone)]
pub(crate) struct Books {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    inbox: Arc<Inbox>,
    _folder: Arc<TempDir>,
}

/// How a delivery's transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    RollBack,
    /// The connection is gone.
    Crash,
}

/// A delivery that has asked its inbox, and stands before the end of its transaction.
pub(crate) struct Open {
    end: oneshot::Sender<End>,
    task: JoinHandle<Result<Received, InboxError>>,
}

impl Open {
    /// Lets the transaction end.
    pub(crate) async fn end(self, end: End) {
        self.end.send(end).expect("it waits for its end");
        // Whatever it was told, the test has heard it.
        let _ = self.task.await.expect("no panic");
    }
}

impl Books {
    pub(crate) async fn open(kind: Kind) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a temporary folder"));
        let url = match kind {
            Kind::Sqlite => folder.path().join("books.db").display().to_string(),
            Kind::Postgres => hapax_servers::postgres().expect("a server"),
            Kind::MySql => hapax_servers::mysql().expect("a server"),
        };
        let inbox = match kind {
            Kind::Sqlite => {
                Inbox::Sqlite(SqliteInbox::open(&url, Default::default()).await.expect("it opens"))
            }
            Kind::Postgres => {
                Inbox::Postgres(PostgresInbox::open(&url, Default::default()).await.expect("it opens"))
            }
            Kind::MySql => Inbox::MySql(MySqlInbox::open(&url, Default::default()).await.expect("it opens")),
        };
        let books = Self { kind, url, inbox: Arc::new(inbox), _folder: folder };
        books.sql("CREATE TABLE effects (id VARCHAR(80))");
        books
    }

    /// Runs statements behind everybody's back; answers what a server says.
    pub(crate) fn sql(&self, statements: &str) -> String {
        if self.kind != Kind::Sqlite {
            return sql(&self.url, statements).expect("a statement");
        }
        connect_file(&self.url.clone().into()).execute_batch(statements).expect("a statement");
        String::new()
    }

    /// How often a message took effect.
    pub(crate) fn effects(&self, id: &str) -> usize {
        if self.kind == Kind::Sqlite {
            let count = "SELECT count(*) FROM effects WHERE id = ?";
            let file = connect_file(&self.url.clone().into());
            return file.query_row(count, [id], |row| row.get::<_, u32>(0)).expect("a number") as usize;
        }
        let ask = format!("SELECT concat('effect ', id) FROM effects WHERE id = '{id}'");
        self.sql(&ask).matches("effect ").count()
    }

    /// Deletes what is older than that.
    pub(crate) async fn sweep(&self, older_than: Duration) -> Result<u64, InboxError> {
        match &*self.inbox {
            Inbox::Sqlite(inbox) => inbox.sweep(older_than).await,
            Inbox::Postgres(inbox) => inbox.sweep(older_than).await,
            Inbox::MySql(inbox) => inbox.sweep(older_than).await,
        }
    }

    /// A delivery of all these messages in one transaction, each with its effect if it is the first. The last one's word
    /// is told to `asked`; the transaction ends as `end` says.
    async fn receive(
        self,
        ids: Vec<String>,
        asked: oneshot::Sender<Received>,
        end: oneshot::Receiver<End>,
    ) -> Result<Received, InboxError> {
        match &*self.inbox {
            Inbox::Sqlite(_) => {
                let receive = move || self.receive_in_file(&ids, asked, end);
                tokio::task::spawn_blocking(receive).await.expect("no panic")
            }
            Inbox::Postgres(inbox) => {
                let (mut client, connection) = connect_postgres(&self.url).await;
                let tx = client.transaction().await.expect("a transaction");
                let mut last = Received::Again;
                for id in &ids {
                    last = inbox.first_in(&tx, CONSUMER, id).await?;
                    if last == Received::First {
                        tx.execute("INSERT INTO effects VALUES ($1)", &[id]).await.expect("an effect");
                    }
                }
                let _ = asked.send(last);
                match end.await.expect("an end") {
                    End::Commit => tx.commit().await.expect("a commit"),
                    End::RollBack => tx.rollback().await.expect("it is rolled back"),
                    End::Crash => connection.abort(),
                }
                Ok(last)
            }
            Inbox::MySql(inbox) => {
                let mut conn = connect_mysql(&self.url).await;
                let mut tx = conn.start_transaction(TxOpts::default()).await.expect("a transaction");
                let mut last = Received::Again;
                for id in &ids {
                    last = inbox.first_in(&mut tx, CONSUMER, id).await?;
                    if last == Received::First {
                        tx.exec_drop("INSERT INTO effects VALUES (?)", (id,)).await.expect("an effect");
                    }
                }
                let _ = asked.send(last);
                match end.await.expect("an end") {
                    End::Commit => tx.commit().await.expect("a commit"),
                    End::RollBack => tx.rollback().await.expect("it is rolled back"),
                    End::Crash => {
                        drop(tx);
                        conn.disconnect().await.expect("it is closed");
                    }
                }
                Ok(last)
            }
        }
    }

    /// The same in a file.
    fn receive_in_file(
        &self,
        ids: &[String],
        asked: oneshot::Sender<Received>,
        end: oneshot::Receiver<End>,
    ) -> Result<Received, InboxError> {
        let Inbox::Sqlite(inbox) = &*self.inbox else { panic!("no file") };
        let mut file = connect_file(&self.url.clone().into());
        let tx = file.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction");
        let mut last = Received::Again;
        for id in ids {
            last = inbox.first_in(&tx, CONSUMER, id)?;
            if last == Received::First {
                tx.execute("INSERT INTO effects VALUES (?)", [id]).expect("an effect");
            }
        }
        let _ = asked.send(last);
        match end.blocking_recv().expect("an end") {
            End::Commit => tx.commit().expect("a commit"),
            // A file whose process is gone is rolled back by whoever opens it next.
            End::RollBack | End::Crash => tx.rollback().expect("it is rolled back"),
        }
        Ok(last)
    }

    /// Starts a delivery, which may have to wait for another.
    pub(crate) fn begin(&self, ids: &[&str]) -> (oneshot::Receiver<Received>, Open) {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let ((told, asked), (end, ends)) = (oneshot::channel(), oneshot::channel());
        let task = tokio::spawn(self.clone().receive(ids, told, ends));
        (asked, Open { end, task })
    }

    /// Starts a delivery, and waits until its inbox has answered.
    pub(crate) async fn asked(&self, ids: &[&str]) -> (Received, Open) {
        let (asked, open) = self.begin(ids);
        match within(asked).await {
            Ok(received) => (received, open),
            Err(_) => panic!("{:?}", open.task.await.expect("no panic")),
        }
    }

    /// Delivers again and again until the inbox can say which delivery it was, and commits.
    pub(crate) async fn delivered(&self, id: &str) -> Received {
        loop {
            let (asked, open) = self.begin(&[id]);
            match within(asked).await {
                Ok(received) => {
                    open.end(End::Commit).await;
                    return received;
                }
                Err(_) => {
                    let failed = open.task.await.expect("no panic").expect_err("it said nothing");
                    assert!(is_passing(&failed), "{failed}");
                }
            }
        }
    }
}

/// Whether the next delivery may be taken.
fn is_passing(error: &InboxError) -> bool {
    matches!(error, InboxError::Store(hapax_store::StoreError::Retry(_)))
}

pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it takes for ever")
}

pub(crate) fn connect_file(path: &PathBuf) -> Connection {
    let file = Connection::open(path).expect("a file");
    file.busy_timeout(PATIENCE).expect("a timeout can be set");
    file
}

pub(crate) async fn connect_postgres(url: &str) -> (Client, JoinHandle<Result<(), tokio_postgres::Error>>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    (client, tokio::spawn(connection))
}

pub(crate) async fn connect_mysql(url: &str) -> Conn {
    Conn::from_url(url).await.expect("a connection")
}

/// Waits until somebody waits for a lock. InnoDB looks anew only for who hasn't asked for a tenth of a second.
pub(crate) async fn until_one_waits(books: &Books) {
    let ask = match books.kind {
        Kind::Sqlite => return,
        Kind::Postgres => {
            "SELECT 'waits' FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        }
        Kind::MySql => {
            "SELECT 'waits' FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p \
             ON p.id = t.trx_mysql_thread_id WHERE p.db = database() AND t.trx_state = 'LOCK WAIT'"
        }
    };
    let mut looks = tokio::time::interval(Duration::from_millis(200));
    let wait = async {
        while !tokio::task::block_in_place(|| books.sql(ask)).contains("waits") {
            looks.tick().await;
        }
    };
    within(wait).await;
}
