//! The databases under one name.

use hapax_store::{
    mysql::MySqlOptions,
    postgres::PostgresOptions,
    requests::{MySqlRequests, PostgresRequests, RequestStore},
};
use std::sync::Arc;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MySql,
}

impl Kind {
    /// An empty database.
    pub(crate) fn database(self) -> String {
        match self {
            Kind::Postgres => hapax_servers::postgres(),
            Kind::MySql => hapax_servers::mysql(),
        }
        .expect("a server")
    }

    /// The one or the other.
    pub(crate) fn pick<T>(self, postgres: T, mysql: T) -> T {
        match self {
            Kind::Postgres => postgres,
            Kind::MySql => mysql,
        }
    }

    /// Opens it with one session, so that whatever is said is said one after the other.
    pub(crate) async fn one_session(self, url: &str) -> Arc<dyn RequestStore> {
        match self {
            Kind::Postgres => {
                PostgresRequests::open(url, PostgresOptions::default().sessions(1)).await.expect("it opens")
            }
            Kind::MySql => {
                MySqlRequests::open(url, MySqlOptions::default().sessions(1)).await.expect("it opens")
            }
        }
    }
}

/// Opens what must open.
pub(crate) async fn open(url: &str) -> Arc<dyn RequestStore> {
    hapax_store::requests::open(url).await.expect("it opens")
}

/// Each of the tests on each of the servers.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::kit::Kind::Postgres).await;
            })*
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::kit::Kind::MySql).await;
            })*
        }
    };
}
pub(crate) use on_both;
