//! A database of the user's, of each kind, and a run that writes to it.

use crate::common::*;
use futures::{future::OptionFuture, poll};
use hapax::{
    Builder, Db, Error, NodeError, Tx,
    prelude::*,
    store::{
        SqliteOptions, SqliteStore, Store,
        db::{Strategy, TxOptions},
        mysql::{MySqlOptions, MySqlStore},
        postgres::{PostgresOptions, PostgresStore},
    },
};
use hapax_servers::Proxy;
use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, LazyLock},
    time::Duration,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const SHOP: Db = Db("shop");
pub(crate) const PAY: Node = Node::new("pay");

/// Each of the tests in each kind of database, and by each strategy that it has.
macro_rules! on_each {
    ($($test:ident),* $(,)?) => {
        crate::shop::elsewhere!($($test),*);
        crate::shop::in_place!($($test),*);
    };
}
pub(crate) use on_each;

/// The same where the runs are elsewhere.
macro_rules! elsewhere {
    ($($test:ident),* $(,)?) => {
        crate::shop::on!(sqlite, (crate::shop::Kind::Sqlite, crate::shop::MARKER), $($test),*);
        crate::shop::on!(postgres, (crate::shop::Kind::Postgres, crate::shop::MARKER), $($test),*);
        crate::shop::on!(postgres_by_introspection, (crate::shop::Kind::Postgres, crate::shop::INTROSPECTION), $($test),*);
        crate::shop::on!(mysql, (crate::shop::Kind::MySql, crate::shop::MARKER), $($test),*);
    };
}
pub(crate) use elsewhere;

/// The same where the runs are in the same database.
macro_rules! in_place {
    ($($test:ident),* $(,)?) => {
        crate::shop::on!(sqlite_by_co_commit, (crate::shop::Kind::Sqlite, crate::shop::CO_COMMIT), $($test),*);
        crate::shop::on!(postgres_by_co_commit, (crate::shop::Kind::Postgres, crate::shop::CO_COMMIT), $($test),*);
        crate::shop::on!(mysql_by_co_commit, (crate::shop::Kind::MySql, crate::shop::CO_COMMIT), $($test),*);
    };
}
pub(crate) use in_place;

macro_rules! on {
    ($name:ident, $which:expr, $($test:ident),*) => {
        mod $name {
            $(#[test]
            fn $test() {
                let (kind, strategy) = $which;
                super::$test(&crate::shop::Shop::open(kind, strategy));
            })*
        }
    };
}
pub(crate) use on;

/// Each of the tests in each server, and by each strategy that it has.
macro_rules! on_servers {
    ($($test:ident),* $(,)?) => {
        $(mod $test {
            #[test]
            fn postgres() {
                super::$test(crate::shop::Kind::Postgres, crate::shop::MARKER);
            }

            #[test]
            fn postgres_by_introspection() {
                super::$test(crate::shop::Kind::Postgres, crate::shop::INTROSPECTION);
            }

            #[test]
            fn mysql() {
                super::$test(crate::shop::Kind::MySql, crate::shop::MARKER);
            }
        })*
    };
}
pub(crate) use on_servers;

pub(crate) const MARKER: Strategy = Strategy::Marker;
pub(crate) const INTROSPECTION: Strategy = Strategy::Introspection;
pub(crate) const CO_COMMIT: Strategy = Strategy::CoCommit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// A database with a table into which each execution that commits writes a row.
pub(crate) struct Shop {
    pub(crate) kind: Kind,
    pub(crate) strategy: Strategy,
    pub(crate) url: String,
    known_by: Option<String>,
    _folder: TempDir,
}

impl Shop {
    pub(crate) fn open(kind: Kind, strategy: Strategy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = match kind {
            Kind::Sqlite => format!("sqlite:{}", folder.path().join("shop.db").display()),
            Kind::Postgres => hapax_servers::postgres().expect("a server"),
            Kind::MySql => hapax_servers::mysql().expect("a server"),
        };
        Self { _folder: folder, ..Self::at(kind, strategy, url) }
    }

    /// At an address of its own.
    pub(crate) fn at(kind: Kind, strategy: Strategy, url: String) -> Self {
        let shop = Self::found_at(kind, strategy, url);
        shop.sql("CREATE TABLE effects (what VARCHAR(100) NOT NULL)");
        shop
    }

    /// One that is there already.
    pub(crate) fn found_at(kind: Kind, strategy: Strategy, url: String) -> Self {
        Self { kind, strategy, url, known_by: None, _folder: tempfile::tempdir().unwrap() }
    }

    /// The same, whose transactions are made by the user of this address.
    pub(crate) fn beside(other: &Self, known_by: &str) -> Self {
        let known_by = Some(known_by.to_owned());
        Self { known_by, ..Self::found_at(other.kind, other.strategy, other.url.clone()) }
    }

    /// Where the runs are: in the same database, if their transactions write to it.
    pub(crate) fn runs(&self) -> Runs {
        match self.strategy {
            CO_COMMIT => Runs::At(self.url.clone()),
            _ => Runs::In(memory()),
        }
    }

    /// Runs a statement behind everybody's back.
    pub(crate) fn sql(&self, sql: &str) -> String {
        if self.kind != Kind::Sqlite {
            return hapax_servers::sql(&self.url, sql).expect("a statement").trim().to_owned();
        }
        let file = rusqlite::Connection::open(&self.url["sqlite:".len()..]).unwrap();
        file.busy_timeout(Duration::from_secs(30)).unwrap();
        let mut statement = file.prepare(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut said = vec![];
        while let Some(row) = rows.next().unwrap() {
            said.push(match row.get::<_, rusqlite::types::Value>(0).unwrap() {
                rusqlite::types::Value::Text(text) => text,
                rusqlite::types::Value::Integer(number) => number.to_string(),
                other => format!("{other:?}"),
            });
        }
        said.join("\n")
    }

    /// What took effect, in order.
    pub(crate) fn effects(&self) -> Vec<String> {
        self.sql("SELECT what FROM effects ORDER BY what").lines().map(str::to_owned).collect()
    }

    /// Waits until no transaction is open that has written to the table: only then it can be altered.
    pub(crate) fn until_over(&self) {
        self.sql("ALTER TABLE effects ADD COLUMN over_at INTEGER");
    }

    pub(crate) fn markers(&self) -> String {
        self.sql("SELECT count(*) FROM hapax_transactions")
    }

    pub(crate) fn builder(&self) -> Builder {
        known_by(self.known_by.as_deref().unwrap_or(&self.url))
    }

    pub(crate) fn options(&self) -> TxOptions {
        TxOptions { strategy: Some(self.strategy), ..TxOptions::default() }
    }

    /// Something between the engine and its database that loses what is said.
    pub(crate) fn proxy(&self) -> (Proxy, String) {
        let (_, rest) = self.url.rsplit_once('@').expect("a user");
        let address: SocketAddr = rest.split('/').next().unwrap().parse().expect("an address");
        let proxy = Proxy::start(address).expect("a proxy");
        let url = proxy.url(&self.url).expect("a URL");
        (proxy, url)
    }
}

/// Where runs are that outlive the processes which execute them.
pub(crate) enum Runs {
    In(Arc<dyn Store>),
    At(String),
}

impl Runs {
    /// For one process: the sessions of a server's store die with the process that opened them.
    pub(crate) fn open(&self) -> Arc<dyn Store> {
        static BEYOND: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
        let url = match self {
            Runs::In(store) => return store.clone(),
            Runs::At(url) => url.clone(),
        };
        let opened = BEYOND.spawn(async move {
            let opened: Arc<dyn Store> = match url.split_once(':').unwrap() {
                ("sqlite", file) => SqliteStore::open(file, SqliteOptions::default()).await.unwrap(),
                ("postgres", _) => PostgresStore::open(&url, PostgresOptions::default()).await.unwrap(),
                _ => MySqlStore::open(&url, MySqlOptions::default()).await.unwrap(),
            };
            opened
        });
        BEYOND.block_on(opened).unwrap()
    }
}

/// An engine that knows the database by this address.
pub(crate) fn known_by(url: &str) -> Builder {
    Engine::builder().database(SHOP.0, url)
}

/// What stands in the way of a run that pays, in the order of its life.
#[derive(Clone, Default)]
pub(crate) struct Way {
    /// Given when the closure has made its statements.
    pub(crate) paid: Signal,
    /// Taken before the closure ends, if it is to wait.
    pub(crate) may_end: Option<Signal>,
    /// Given when the node has the result.
    pub(crate) known: Signal,
    /// Taken before the node ends, if it is to wait.
    pub(crate) may_go: Option<Signal>,
    /// How often the closure was executed.
    pub(crate) executed: Diary,
    /// The closure fails for good, when all is done.
    pub(crate) fails: bool,
}

impl Way {
    /// Tells that the result is known, and waits if it is to wait. Whoever is told finds it in line already.
    async fn gives_way(&self) {
        let mut go = pin!(OptionFuture::from(self.may_go.as_ref().map(Signal::take)));
        let may_go = poll!(go.as_mut());
        self.known.give();
        if may_go.is_pending() {
            go.await;
        }
    }

    /// What the closure does: writes a row, and answers how many there are.
    pub(crate) async fn pay(&self, tx: &mut Tx, what: &str) -> Result<i64, NodeError> {
        self.executed.note("executed");
        tx.execute(&format!("INSERT INTO effects VALUES ('{what}')"), &[]).await?;
        self.paid.give();
        if let Some(signal) = &self.may_end {
            signal.take().await;
        }
        if self.fails {
            return Err(NodeError::new("no money").fatal());
        }
        Ok(tx.query_one::<i64>("SELECT count(*) FROM effects", &[]).await?)
    }
}

/// A run of one node that writes its run's id, once, and answers how many rows there are.
pub(crate) fn paying(shop: &Shop, way: &Way) -> Graph<Board> {
    let options = shop.options();
    let pay = node!(
        [way, options] | ctx | {
            let what = ctx.run_id().to_string();
            let inside = way.clone();
            let paid: i64 = ctx
                .transaction_with(&SHOP, "pay", options, async move |tx| inside.pay(tx, &what).await)
                .await?;
            way.gives_way().await;
            Ok::<_, NodeError>(Board::delta().total(paid as u64))
        }
    );
    Graph::new("paying", 1, PAY).node(PAY, pay)
}

/// Goes on with the run in a healthy process, and gives its end.
pub(crate) fn finish(runs: &Runs, shop: &Shop, way: &Way) -> Board {
    end_of(runs, shop, way).unwrap()
}

/// The same, however it ends.
pub(crate) fn end_of(runs: &Runs, shop: &Shop, way: &Way) -> Result<Board, Error> {
    let process = Process::healthy(&runs.open());
    process.run(async {
        let engine = process.build(shop.builder());
        let flow = engine.register(paying(shop, way), ()).await.unwrap();
        let end = flow.resume("run").await.unwrap().wait().await;
        engine.shutdown(Duration::from_secs(60)).await;
        end
    })
}
