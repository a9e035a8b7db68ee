//! A cache over a store, the way to both, and a look at what lies in it.

use hapax_core::{
    id::Namespace,
    key::sha256,
    request::{Completion, Lease, RequestHash, RequestId},
};
use hapax_requests::{CacheOptions, CachedRequests};
use hapax_servers::Proxy;
use hapax_store::{
    Clock,
    requests::{Begun, Claim, Finished, MemoryRequests, RequestStore},
};
use redis::{Client, Commands, Connection};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tempfile::TempDir;

/// Nothing takes so long: a busy machine's Redis is no broken one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const SECRET: [u8; 32] = [7; 32];

/// A cache, the clock that it goes by, and what lies below.
pub(crate) struct Scene {
    pub(crate) store: Arc<CachedRequests>,
    pub(crate) below: Arc<dyn RequestStore>,
    pub(crate) clock: Clock,
    /// The cache's own database in Redis.
    pub(crate) redis: String,
}

/// A cache that waits for Redis as long as it takes.
pub(crate) fn patient(url: &str) -> CacheOptions {
    CacheOptions::new(url, SECRET).expect("an address").answer_limit(PATIENCE)
}

impl Scene {
    /// Over a store in memory, both by one clock that stands still.
    pub(crate) fn in_memory() -> Self {
        let clock = Clock::manual();
        let below = MemoryRequests::with_clock(clock.clone());
        let redis = hapax_servers::redis().expect("a server");
        let store = CachedRequests::new(below.clone(), patient(&redis).clock(clock.clone()));
        Self { store, below, clock, redis }
    }

    /// Another process of the service.
    pub(crate) fn another(&self) -> Arc<CachedRequests> {
        CachedRequests::new(self.below.clone(), patient(&self.redis).clock(self.clock.clone()))
    }

    /// Redis, as whoever got into it sees it.
    pub(crate) fn inside(&self) -> Connection {
        inside(&self.redis)
    }

    /// Executes a request, and waits until it is cached.
    pub(crate) async fn finished(&self, claim: &Claim, completion: &Completion) -> Lease {
        let lease = execute(&*self.store, claim).await;
        finish(&*self.store, &lease, completion).await;
        self.store.settled().await;
        lease
    }

    /// Where the one cached record lies, and its bytes.
    pub(crate) fn only(&self) -> (String, Vec<u8>) {
        let places = self.places();
        assert_eq!(places.len(), 1, "{places:?}");
        let bytes = self.inside().get(&places[0]).expect("Redis answers");
        (places[0].clone(), bytes)
    }

    pub(crate) fn places(&self) -> Vec<String> {
        self.inside().keys("*").expect("Redis answers")
    }

    /// Puts something in the place of a record.
    pub(crate) fn plant(&self, place: &str, bytes: &[u8]) {
        self.inside().set::<_, _, ()>(place, bytes).expect("Redis answers");
    }
}

pub(crate) fn inside(url: &str) -> Connection {
    Client::open(url).expect("an address").get_connection().expect("Redis is there")
}

pub(crate) fn id(principal: &str, key: &str) -> RequestId {
    RequestId::new(Namespace::default(), principal, "POST /charges", key).expect("names")
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim::new(id("ada", key), RequestHash(sha256(b"4200")))
}

pub(crate) fn other(claim: &Claim) -> Claim {
    Claim { hash: RequestHash(sha256(b"4300")), ..claim.clone() }
}

pub(crate) fn paid() -> Completion {
    Completion {
        response_headers: vec![("content-type".into(), b"text/plain".into())],
        ..Completion::succeeded(201, "charged")
    }
}

pub(crate) async fn execute(store: &dyn RequestStore, claim: &Claim) -> Lease {
    match store.reacquire(claim).await.expect("the store is there") {
        Begun::Execute(lease) => lease,
        begun => panic!("it isn't to be executed: {begun:?}"),
    }
}

pub(crate) async fn finish(store: &dyn RequestStore, lease: &Lease, completion: &Completion) {
    assert_eq!(store.finish(lease, completion).await.expect("the store is there"), Finished::Done);
}

/// What a claim on a finished request gets.
pub(crate) async fn replay(store: &dyn RequestStore, claim: &Claim) -> Completion {
    match store.reacquire(claim).await.expect("the store is there") {
        Begun::Replay(record) => record.completion.expect("it is finished"),
        begun => panic!("it isn't replayed: {begun:?}"),
    }
}

/// A database below a cache.
pub(crate) struct Below {
    pub(crate) store: Arc<dyn RequestStore>,
    /// Stands before it, where it is a server.
    pub(crate) proxy: Option<Proxy>,
    _folder: Option<TempDir>,
}

pub(crate) async fn sqlite() -> Below {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&format!("sqlite:{}", folder.path().join("shop.db").display())).await;
    Below { store, proxy: None, _folder: Some(folder) }
}

pub(crate) async fn postgres() -> Below {
    server(&hapax_servers::postgres().expect("a server")).await
}

pub(crate) async fn mysql() -> Below {
    server(&hapax_servers::mysql().expect("a server")).await
}

async fn server(url: &str) -> Below {
    let proxy = Proxy::start(address(url)).expect("a proxy");
    let store = open(&proxy.url(url).expect("a URL")).await;
    Below { store, proxy: Some(proxy), _folder: None }
}

async fn open(url: &str) -> Arc<dyn RequestStore> {
    hapax_store::requests::open(url).await.expect("it opens")
}

/// The address in a URL.
pub(crate) fn address(url: &str) -> SocketAddr {
    let (_, rest) = url.split_once("://").expect("a scheme");
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split_once('/').expect("a database").0.parse().expect("an address")
}
