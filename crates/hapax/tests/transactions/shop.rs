//! A database of the user's, of each kind, and a run that writes to it.

use crate::common::*;
use hapax::{
    Builder, Db, Error, NodeError, Tx,
    prelude::*,
    store::{
        Store,
        db::{Strategy, TxOptions},
    },
};
use hapax_servers::Proxy;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tempfile::TempDir;

pub(crate) const SHOP: Db = Db("shop");
pub(crate) const PAY: Node = Node::new("pay");

/// Each of the tests in each kind of database, and by each strategy that it has.
macro_rules! on_each {
    ($($test:ident),* $(,)?) => {
        on_each!(@ sqlite, (crate::shop::Kind::Sqlite, crate::shop::MARKER), $($test),*);
        on_each!(@ postgres, (crate::shop::Kind::Postgres, crate::shop::MARKER), $($test),*);
        on_each!(@ postgres_by_introspection, (crate::shop::Kind::Postgres, crate::shop::INTROSPECTION), $($test),*);
        on_each!(@ mysql, (crate::shop::Kind::MySql, crate::shop::MARKER), $($test),*);
    };
    (@ $name:ident, $which:expr, $($test:ident),*) => {
        mod $name {
            $(#[test]
            fn $test() {
                let (kind, strategy) = $which;
                super::$test(&crate::shop::Shop::open(kind, strategy));
            })*
        }
    };
}
pub(crate) use on_each;

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
        let shop = Self { kind, strategy, url, _folder: tempfile::tempdir().unwrap() };
        shop.sql("CREATE TABLE effects (what VARCHAR(100) NOT NULL)");
        shop
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
        known_by(&self.url)
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
            way.known.give();
            if let Some(signal) = &way.may_go {
                signal.take().await;
            }
            Ok::<_, NodeError>(Board::delta().total(paid as u64))
        }
    );
    Graph::new("paying", 1, PAY).node(PAY, pay)
}

/// Goes on with the run in a healthy process, and gives its end.
pub(crate) fn finish(store: &Arc<dyn Store>, shop: &Shop, way: &Way) -> Board {
    end_of(store, shop, way).unwrap()
}

/// The same, however it ends.
pub(crate) fn end_of(store: &Arc<dyn Store>, shop: &Shop, way: &Way) -> Result<Board, Error> {
    let process = Process::healthy(store);
    process.run(async {
        let engine = process.build(shop.builder());
        let flow = engine.register(paying(shop, way), ()).await.unwrap();
        let end = flow.resume("run").await.unwrap().wait().await;
        engine.shutdown(Duration::from_secs(60)).await;
        end
    })
}
