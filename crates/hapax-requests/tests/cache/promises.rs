//! A cached store keeps every promise of a store, and two processes that share a cache are two processes.

use crate::kit::patient;
use hapax_requests::CachedRequests;
use hapax_store::{
    conformance::requests::RequestFixture,
    request_conformance,
    requests::{MemoryRequests, open},
};
use std::sync::Arc;

async fn memory() -> RequestFixture {
    let below = Arc::new(MemoryRequests::new());
    let redis = hapax_servers::redis().expect("a server");
    let cached = || CachedRequests::new(below.clone(), patient(&redis));
    RequestFixture::new(cached(), cached())
}

async fn over(url: &str) -> RequestFixture {
    let redis = hapax_servers::redis().expect("a server");
    let (store, other) = futures::join!(open(url), open(url));
    let cached = |below: Result<_, _>| CachedRequests::new(below.expect("it opens"), patient(&redis));
    RequestFixture::new(cached(store), cached(other))
}

async fn sqlite() -> RequestFixture {
    let folder = tempfile::tempdir().expect("a folder");
    over(&format!("sqlite:{}", folder.path().join("shop.db").display())).await.keep(folder)
}

async fn postgres() -> RequestFixture {
    over(&hapax_servers::postgres().expect("a server")).await
}

async fn mysql() -> RequestFixture {
    over(&hapax_servers::mysql().expect("a server")).await
}

request_conformance!(in_memory, memory);
request_conformance!(on_sqlite, sqlite);
request_conformance!(on_postgres, postgres);
request_conformance!(on_mysql, mysql);
