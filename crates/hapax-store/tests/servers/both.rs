//! PostgreSQL and MySQL under one name.

use hapax_core::error::{Code, Coded};
use hapax_store::{
    Store, StoreError,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{Isolation, PostgresOptions, PostgresStore},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::time::MissedTickBehavior;

/// Each of the tests on each of the servers.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::both::Kind::Postgres).await;
            })*
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::both::Kind::MySql).await;
            })*
        }
    };
}
pub(crate) use on_both;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MySql,
}

impl Kind {
    /// An empty database.
    pub(crate) fn database(self) -> String {
        let database = match self {
            Kind::Postgres => hapax_servers::postgres(),
            Kind::MySql => hapax_servers::mysql(),
        };
        database.expect("a server")
    }

    pub(crate) async fn open(self, url: &str) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Kind::Postgres => PostgresStore::open(url, PostgresOptions::default()).await?,
            Kind::MySql => MySqlStore::open(url, MySqlOptions::default()).await?,
        })
    }

    /// Opens it if it holds runs of Hapax.
    pub(crate) async fn open_existing(self, url: &str) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Kind::Postgres => PostgresStore::open(url, PostgresOptions::default().must_exist(true)).await?,
            Kind::MySql => MySqlStore::open(url, MySqlOptions::default().must_exist(true)).await?,
        })
    }

    /// Opens it with transactions that see nothing of each other.
    pub(crate) async fn serializable(self, url: &str) -> Arc<dyn Store> {
        match self {
            Kind::Postgres => {
                let options = PostgresOptions::default().isolation(Isolation::Serializable);
                PostgresStore::open(url, options).await.expect("it opens")
            }
            Kind::MySql => {
                let options = MySqlOptions::default().isolation(Isolation::Serializable);
                MySqlStore::open(url, options).await.expect("it opens")
            }
        }
    }

    /// Opens it with one session, so that whatever is said is said one after the other.
    pub(crate) async fn one_session(self, url: &str) -> Arc<dyn Store> {
        match self {
            Kind::Postgres => {
                PostgresStore::open(url, PostgresOptions::default().sessions(1)).await.expect("it opens")
            }
            Kind::MySql => {
                MySqlStore::open(url, MySqlOptions::default().sessions(1)).await.expect("it opens")
            }
        }
    }

    /// Opens it with this limit to every answer.
    pub(crate) async fn answering_within(self, url: &str, limit: Duration) -> Arc<dyn Store> {
        match self {
            Kind::Postgres => {
                let options = PostgresOptions::default().answer_limit(limit);
                PostgresStore::open(url, options).await.expect("it opens")
            }
            Kind::MySql => {
                let options = MySqlOptions::default().answer_limit(limit);
                MySqlStore::open(url, options).await.expect("it opens")
            }
        }
    }

    /// Opens what must open.
    pub(crate) async fn store(self, url: &str) -> Arc<dyn Store> {
        self.open(url).await.expect("it opens")
    }

    /// Why it isn't opened, and the code.
    pub(crate) async fn refusal(self, url: &str) -> (String, Code) {
        let Err(error) = self.open(url).await else { panic!("{url} was opened") };
        (error.to_string(), error.code())
    }

    /// The one or the other.
    pub(crate) fn pick<T>(self, postgres: T, mysql: T) -> T {
        match self {
            Kind::Postgres => postgres,
            Kind::MySql => mysql,
        }
    }
}

/// Runs statements by the server's own client.
pub(crate) fn sql(url: &str, statements: &str) -> String {
    hapax_servers::sql(url, statements).expect("a statement")
}

/// The address in a database's URL.
pub(crate) fn address(url: &str) -> SocketAddr {
    let (_, rest) = url.rsplit_once('@').expect("a user");
    let (address, _) = rest.split_once('/').expect("a database");
    address.parse().expect("an address")
}

/// The name of the database in a URL.
pub(crate) fn name(url: &str) -> &str {
    url.rsplit_once('/').expect("a database").1
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
