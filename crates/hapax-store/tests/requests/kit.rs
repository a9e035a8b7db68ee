//! The databases under one name.

use hapax_store::{
    mysql::MySqlOptions,
    postgres::PostgresOptions,
    requests::{MySqlRequests, PostgresRequests, RequestStore},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::time::MissedTickBehavior;

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
}

/// Opens it with one session, so that whatever is said is said one after the other.
pub(crate) async fn one_session(kind: Kind, url: &str) -> Arc<dyn RequestStore> {
    match kind {
        Kind::Postgres => {
            PostgresRequests::open(url, PostgresOptions::default().sessions(1)).await.expect("it opens")
        }
        Kind::MySql => MySqlRequests::open(url, MySqlOptions::default().sessions(1)).await.expect("it opens"),
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

/// Runs statements by the server's own client.
pub(crate) fn sql(url: &str, statements: &str) -> String {
    hapax_servers::sql(url, statements).expect("a statement")
}

/// How many effects were committed.
pub(crate) fn effects(url: &str) -> usize {
    sql(url, "SELECT concat('effect ', n) FROM effects").matches("effect ").count()
}

/// A table for effects, of which none can be had twice.
pub(crate) const EFFECTS: &str = "CREATE TABLE effects (n INT PRIMARY KEY)";

/// The address in a database's URL.
pub(crate) fn address(url: &str) -> SocketAddr {
    let (_, rest) = url.rsplit_once('@').expect("a user");
    let (address, _) = rest.split_once('/').expect("a database");
    address.parse().expect("an address")
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
