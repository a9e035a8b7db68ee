//! A connection behind the store's back, with a transaction that the test begins and ends.

use crate::both::Kind;
use mysql_async::prelude::Queryable;

pub(crate) enum Raw {
    Postgres(tokio_postgres::Client),
    MySql(mysql_async::Conn),
}

impl Raw {
    pub(crate) async fn connect(kind: Kind, url: &str) -> Self {
        match kind {
            Kind::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(connection);
                Raw::Postgres(client)
            }
            Kind::MySql => Raw::MySql(mysql_async::Conn::from_url(url).await.expect("a connection")),
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
