//! PostgreSQL, MariaDB and SQLite under one name.

use hapax_core::json::Json;
use hapax_servers::Proxy;
use hapax_store::db::{
    CommitError, Database, DatabaseOptions, DbError, Kind, MySqlDatabase, PostgresDatabase, Row,
    SqliteDatabase, ToValue, Transaction, TxOptions, Value,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::time::MissedTickBehavior;

/// Each of the tests on each of the databases that are named.
macro_rules! on {
    ($($database:ident as $kind:ident { $($test:ident),* $(,)? })*) => {
        $(mod $database {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::kit::Place::new(hapax_store::db::Kind::$kind)).await;
            })*
        })*
    };
}
pub(crate) use on;

/// Each of the tests on all three.
macro_rules! on_all {
    ($($test:ident),* $(,)?) => {
        crate::kit::on! {
            postgres as Postgres { $($test),* }
            mysql as MySql { $($test),* }
            sqlite as Sqlite { $($test),* }
        }
    };
}
pub(crate) use on_all;

/// Each of the tests on both servers.
macro_rules! on_servers {
    ($($test:ident),* $(,)?) => {
        crate::kit::on! {
            postgres as Postgres { $($test),* }
            mysql as MySql { $($test),* }
        }
    };
}
pub(crate) use on_servers;

/// An empty database.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// Its URL; of SQLite the file.
    pub(crate) url: String,
    _folder: Option<TempDir>,
}

impl Place {
    pub(crate) fn new(kind: Kind) -> Self {
        let (url, folder) = match kind {
            Kind::Postgres => (hapax_servers::postgres().expect("a server"), None),
            Kind::MySql => (hapax_servers::mysql().expect("a server"), None),
            Kind::Sqlite => {
                let folder = tempfile::tempdir().expect("a folder");
                let file = folder.path().join("shop.db");
                std::fs::File::create(&file).expect("a file");
                (file.display().to_string(), Some(folder))
            }
        };
        Self { kind, url, _folder: folder }
    }

    /// Another address of the same database.
    pub(crate) fn at(&self, url: String) -> Self {
        Self { kind: self.kind, url, _folder: None }
    }

    /// A server of a test's own.
    pub(crate) fn on(kind: Kind, url: &str) -> Self {
        Self { kind, url: hapax_servers::fresh_database(url).expect("a database"), _folder: None }
    }

    pub(crate) async fn try_open(&self, options: &DatabaseOptions) -> Result<Arc<dyn Database>, DbError> {
        Ok(match self.kind {
            Kind::Postgres => Arc::new(PostgresDatabase::open_with(&self.url, options).await?),
            Kind::MySql => Arc::new(MySqlDatabase::open_with(&self.url, options).await?),
            Kind::Sqlite => Arc::new(SqliteDatabase::open_with(self.url.as_ref(), options).await?),
        })
    }

    pub(crate) async fn with_sessions(&self, sessions: usize) -> Arc<dyn Database> {
        let options = DatabaseOptions { sessions, ..DatabaseOptions::default() };
        self.try_open(&options).await.expect("it opens")
    }

    /// Opens it without a look at its table.
    pub(crate) async fn open(&self) -> Arc<dyn Database> {
        self.with_sessions(8).await
    }

    /// Opens it, ready for transactions, with a table for their effects.
    pub(crate) async fn ready(&self) -> Arc<dyn Database> {
        let database = self.open().await;
        database.prepare().await.expect("markers");
        self.sql("CREATE TABLE IF NOT EXISTS effects (n bigint NOT NULL)");
        database
    }

    /// Statements behind the library's back. Rows are lines, their columns parted by `|`.
    pub(crate) fn sql(&self, statements: &str) -> String {
        match self.kind {
            Kind::Postgres | Kind::MySql => hapax_servers::sql(&self.url, statements).expect("a statement"),
            Kind::Sqlite => self.sqlite(statements).expect("a statement"),
        }
    }

    fn sqlite(&self, statements: &str) -> Result<String, rusqlite::Error> {
        let connection = rusqlite::Connection::open(&self.url)?;
        if !statements.starts_with("SELECT") {
            connection.execute_batch(statements)?;
            return Ok(String::new());
        }
        let mut statement = connection.prepare(statements)?;
        let columns = statement.column_count();
        let rows = statement.query_map((), |row| {
            let cell = |column| row.get::<_, rusqlite::types::Value>(column);
            let cells = (0..columns).map(|column| Ok(format!("{:?}", cell(column)?)));
            cells.collect::<Result<Vec<_>, rusqlite::Error>>()
        })?;
        let lines = rows.map(|row| Ok(row?.join("|"))).collect::<Result<Vec<_>, rusqlite::Error>>()?;
        Ok(lines.join("\n").replace("Integer(", "").replace(')', ""))
    }

    /// How many effects there are.
    pub(crate) fn effects(&self) -> u64 {
        self.sql("SELECT count(*) FROM effects").parse().expect("a number")
    }

    /// A proxy before it, and the database by way of it.
    pub(crate) fn behind_proxy(&self) -> (Proxy, Place) {
        let proxy = Proxy::start(address(&self.url)).expect("a proxy");
        let url = proxy.url(&self.url).expect("a URL");
        (proxy, self.at(url))
    }
}

/// The address in a server's URL.
pub(crate) fn address(url: &str) -> SocketAddr {
    let (_, rest) = url.rsplit_once('@').expect("a user");
    let (address, _) = rest.split_once('/').expect("a database");
    address.parse().expect("an address")
}

/// The name of the database in a URL.
pub(crate) fn name(url: &str) -> &str {
    url.rsplit_once('/').expect("a database").1
}

pub(crate) fn json(value: &str) -> Json {
    Json::of(value).expect("JSON")
}

/// A statement with its places as the database has them.
pub(crate) fn places(kind: Kind, sql: &str) -> String {
    if kind != Kind::Postgres {
        return sql.to_owned();
    }
    let mut parts = sql.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.enumerate().fold(first, |sql, (number, part)| format!("{sql}${}{part}", number + 1))
}

/// Why a database refuses.
pub(crate) fn why<T>(outcome: Result<T, DbError>) -> String {
    match outcome {
        Err(DbError::Unusable { what, why }) => {
            assert!(!what.contains('@'), "{what} holds no user");
            why
        }
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was taken"),
    }
}

pub(crate) async fn begin(database: &Arc<dyn Database>) -> Box<dyn Transaction> {
    database.begin(&TxOptions::default()).await.expect("it begins")
}

/// A transaction with one effect.
pub(crate) async fn with_effect(database: &Arc<dyn Database>, n: i64) -> Box<dyn Transaction> {
    let mut tx = begin(database).await;
    let insert = places(database.kind(), "INSERT INTO effects VALUES (?)");
    assert_eq!(tx.execute(&insert, &[n.to_value()]).await.expect("an effect"), 1);
    tx
}

pub(crate) async fn one(tx: &mut dyn Transaction, sql: &str, values: &[Value]) -> Row {
    let mut rows = tx.query(sql, values).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(rows.len(), 1, "{sql}");
    rows.remove(0)
}

/// That nothing was committed.
pub(crate) fn is_rolled_back(outcome: &Result<(), CommitError>) -> bool {
    matches!(outcome, Err(CommitError::RolledBack(_)))
}

/// Waits for what must come. InnoDB looks anew only for who hasn't asked for a tenth of a second.
pub(crate) async fn until(what: &str, mut has_come: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(200));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let wait = async {
        while !tokio::task::block_in_place(&mut has_come) {
            looks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never {what}"));
}
