//! A connection behind the library's back, with a transaction that the test begins and ends.

use crate::kit::Place;
use hapax_store::db::Kind;
use mysql_async::prelude::Queryable;

pub(crate) enum Raw {
    Postgres(tokio_postgres::Client),
    MySql(mysql_async::Conn),
}

impl Raw {
    pub(crate) async fn connect(place: &Place) -> Self {
        match place.kind {
            Kind::Postgres => {
                let connected = tokio_postgres::connect(&place.url, tokio_postgres::NoTls).await;
                let (client, connection) = connected.expect("a connection");
                tokio::spawn(connection);
                Raw::Postgres(client)
            }
            Kind::MySql => Raw::MySql(mysql_async::Conn::from_url(&place.url).await.expect("a connection")),
            Kind::Sqlite => panic!("SQLite has no server"),
        }
    }

    /// Runs a statement; it must succeed.
    pub(crate) async fn run(&mut self, sql: &str) {
        match self {
            Raw::Postgres(client) => client.batch_execute(sql).await.expect("a statement"),
            Raw::MySql(conn) => conn.query_drop(sql).await.expect("a statement"),
        }
    }
}
