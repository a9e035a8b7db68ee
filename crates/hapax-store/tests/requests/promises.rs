//! Every store of requests keeps every promise.

use crate::kit::{Kind, open};
use hapax_store::{conformance::requests::RequestFixture, request_conformance, requests::MemoryRequests};
use std::sync::Arc;

async fn memory() -> RequestFixture {
    let store = Arc::new(MemoryRequests::new());
    RequestFixture::new(store.clone(), store)
}

async fn sqlite() -> RequestFixture {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let (store, other) = futures::join!(open(&url), open(&url));
    RequestFixture::new(store, other).keep(folder)
}

async fn on(kind: Kind) -> RequestFixture {
    let url = kind.database();
    let (store, other) = futures::join!(open(&url), open(&url));
    RequestFixture::new(store, other)
}

async fn postgres() -> RequestFixture {
    on(Kind::Postgres).await
}

async fn mysql() -> RequestFixture {
    on(Kind::MySql).await
}

request_conformance!(in_memory, memory);
request_conformance!(on_sqlite, sqlite);
request_conformance!(on_postgres, postgres);
request_conformance!(on_mysql, mysql);
