//! What every store of requests must keep, as tests, listed once in [`request_conformance!`](crate::request_conformance).
//!
//! Invariant: nothing waits for a clock. A lease or an expiry of no length is over at once, by whichever clock.

use crate::requests::{Begun, Claim, Finished, RequestFilter, RequestStore};
use crate::{StoreError, store::BoxFuture};
use futures::future::join_all;
use hapax_core::{
    id::Namespace,
    json::Json,
    key::sha256,
    limits::MAX_RESPONSE_BYTES,
    request::{Completion, Lease, Record, RecoveryPoint, RequestHash, RequestId, Status},
};
use std::{any::Any, collections::HashSet, fmt, sync::Arc, time::Duration};

/// A fresh, empty store of requests, and a second handle on the same data.
///
/// ```
/// use hapax_store::{conformance::requests::RequestFixture, requests::MemoryRequests};
/// use std::sync::Arc;
/// let store = Arc::new(MemoryRequests::new());
/// let fixture = RequestFixture::new(store.clone(), store);
/// ```
pub struct RequestFixture {
    /// The store.
    pub store: Arc<dyn RequestStore>,
    /// The same data, as another process sees it.
    pub other: Arc<dyn RequestStore>,
    keep: Option<Box<dyn Any + Send>>,
}

impl RequestFixture {
    /// Two handles on the same data.
    pub fn new(store: Arc<dyn RequestStore>, other: Arc<dyn RequestStore>) -> Self {
        Self { store, other, keep: None }
    }

    /// Keeps something, say a folder, for as long as the stores.
    #[must_use]
    pub fn keep(mut self, something: impl Any + Send) -> Self {
        self.keep = Some(Box::new(something));
        self
    }
}

impl fmt::Debug for RequestFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFixture").field("kept", &self.keep.is_some()).finish_non_exhaustive()
    }
}

/// Runs the whole suite: a module of that name with one test per promise. The factory is a future that answers a fresh
/// [`RequestFixture`](crate::conformance::requests::RequestFixture).
///
/// ```
/// use hapax_store::{conformance::requests::RequestFixture, request_conformance, requests::MemoryRequests};
/// use std::sync::Arc;
///
/// async fn memory() -> RequestFixture {
///     let store = Arc::new(MemoryRequests::new());
///     RequestFixture::new(store.clone(), store)
/// }
/// request_conformance!(in_memory, memory);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! request_conformance {
    ($name:ident, $factory:expr) => {
        $crate::request_promises! { $name, $factory;
            a_new_request_is_executed_once_and_then_replayed,
            of_many_at_once_one_executes,
            another_hash_is_a_mismatch_whatever_became_of_the_first,
            names_that_differ_in_anything_are_independent,
            a_retryable_failure_is_told_and_taken_over_on_demand,
            of_many_retriers_one_wins,
            an_abandoned_request_is_taken_over_behind_its_recovery_point,
            of_many_who_take_over_one_wins,
            a_stale_worker_changes_nothing,
            a_heartbeat_keeps_a_slow_workers_request,
            a_finish_told_twice_is_one,
            an_expired_answer_starts_afresh_though_nobody_swept,
            what_is_executed_does_not_expire,
            an_answer_is_kept_from_its_end_on,
            a_sweep_deletes_what_has_expired_and_no_more_than_asked,
            a_release_fences_whoever_executes,
            times_are_those_of_the_databases_clock,
            requests_are_listed_by_what_is_asked_for,
            every_byte_of_an_answer_is_kept,
            an_oversized_answer_is_refused_and_may_be_mended,
        }
    };
}

/// Expands the list of promises; [`request_conformance!`](crate::request_conformance) is the one to call.
#[doc(hidden)]
#[macro_export]
macro_rules! request_promises {
    ($name:ident, $factory:expr; $($promise:ident),* $(,)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(#[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                $crate::conformance::requests::$promise(($factory)().await).await;
            })*
        }
    };
}

/// A request of this key.
///
/// ```
/// use hapax_store::conformance::requests::id;
/// assert_eq!(id("k").key(), "k");
/// ```
pub fn id(key: &str) -> RequestId {
    RequestId::new(Namespace::default(), "merchant-7", "POST /charges", key).expect("names")
}

/// A claim on the request of this key, with the usual times.
///
/// ```
/// use hapax_store::conformance::requests::claim;
/// assert_eq!(claim("k").lease.as_secs(), 30);
/// ```
pub fn claim(key: &str) -> Claim {
    Claim::new(id(key), RequestHash(sha256(b"4200")))
}

/// The same whose lease is over at once, as if its worker had died.
///
/// ```
/// use hapax_store::conformance::requests::dying;
/// assert!(dying("k").lease.is_zero());
/// ```
pub fn dying(key: &str) -> Claim {
    Claim { lease: Duration::ZERO, ..claim(key) }
}

/// The same that is forgotten as soon as it has ended.
///
/// ```
/// use hapax_store::conformance::requests::fleeting;
/// assert!(fleeting("k").expiry.is_zero());
/// ```
pub fn fleeting(key: &str) -> Claim {
    Claim { expiry: Duration::ZERO, ..claim(key) }
}

/// Claims what must be executed.
///
/// ```
/// use hapax_store::{conformance::requests::{claim, execute}, requests::MemoryRequests};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert_eq!(execute(&MemoryRequests::new(), &claim("k")).await.attempt, 1);
/// # }
/// ```
pub async fn execute(store: &dyn RequestStore, claim: &Claim) -> Lease {
    leased(store.begin(claim).await)
}

fn leased(begun: Result<Begun, StoreError>) -> Lease {
    match begun {
        Ok(Begun::Execute(lease)) => lease,
        begun => panic!("it isn't to be executed: {begun:?}"),
    }
}

fn done() -> Completion {
    Completion::succeeded(201, "charged")
}

async fn record(store: &dyn RequestStore, key: &str) -> Record {
    store.get(&id(key)).await.expect("it can be read").expect("it is there")
}

fn is_in_progress(begun: &Begun) -> bool {
    matches!(begun, Begun::InProgress { .. })
}

/// The first executes, those that come meanwhile are told to wait, and all later ones get the same answer.
pub async fn a_new_request_is_executed_once_and_then_replayed(fixture: RequestFixture) {
    let (store, other, claim) = (&*fixture.store, &*fixture.other, claim("k"));
    assert_eq!(store.get(&claim.id).await.unwrap(), None);
    let lease = execute(store, &claim).await;
    assert_eq!((lease.attempt, &lease.id, &lease.point), (1, &claim.id, &None));
    for store in [store, other] {
        for begun in [store.begin(&claim).await.unwrap(), store.reacquire(&claim).await.unwrap()] {
            let Begun::InProgress { retry_after } = begun else { panic!("{begun:?}") };
            assert!(retry_after > Duration::ZERO && retry_after <= claim.lease, "{retry_after:?}");
        }
    }
    assert_eq!(record(other, "k").await.lease(), lease);
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    for store in [store, other] {
        for begun in [store.begin(&claim).await.unwrap(), store.reacquire(&claim).await.unwrap()] {
            let Begun::Replay(record) = begun else { panic!("{begun:?}") };
            assert_eq!((record.completion, record.token), (Some(done()), lease.token));
        }
    }
}

async fn one_of_many(begins: Vec<BoxFuture<'_, Result<Begun, StoreError>>>) -> Lease {
    let all: Vec<Begun> = join_all(begins).await.into_iter().map(|begun| begun.expect("an answer")).collect();
    let leases: Vec<&Lease> = all
        .iter()
        .filter_map(|begun| match begun {
            Begun::Execute(lease) => Some(lease),
            _ => None,
        })
        .collect();
    assert_eq!(leases.len(), 1, "{all:?}");
    assert_eq!(all.iter().filter(|begun| is_in_progress(begun)).count(), all.len() - 1, "{all:?}");
    leases[0].clone()
}

/// From two handles, for several requests at once.
pub async fn of_many_at_once_one_executes(fixture: RequestFixture) {
    let claims: Vec<Claim> = (0..8).map(|number| claim(&format!("k{number}"))).collect();
    let each = claims.iter().map(|claim| {
        let both = [&fixture.store, &fixture.other].into_iter().cycle();
        one_of_many(both.take(16).map(|store| store.begin(claim)).collect())
    });
    let leases = join_all(each).await;
    let nonces: HashSet<u128> = leases.iter().map(|lease| lease.token.nonce).collect();
    assert_eq!(nonces.len(), claims.len());
}

/// While it is executed, abandoned, to be tried again, and finished.
pub async fn another_hash_is_a_mismatch_whatever_became_of_the_first(fixture: RequestFixture) {
    let store = &*fixture.store;
    let other = Claim { hash: RequestHash(sha256(b"4300")), ..claim("k") };
    let refused = async || {
        assert_eq!(store.begin(&other).await.unwrap(), Begun::HashMismatch);
        assert_eq!(fixture.other.reacquire(&other).await.unwrap(), Begun::HashMismatch);
    };
    execute(store, &dying("k")).await;
    refused().await;
    let lease = execute(store, &claim("k")).await;
    refused().await;
    let failed = Completion::failed_retryable(503, "the bank is closed");
    assert_eq!(store.finish(&lease, &failed).await.unwrap(), Finished::Done);
    refused().await;
    let lease = leased(store.reacquire(&claim("k")).await);
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    refused().await;
}

/// Two clients may draw the same key; and no database may take one name for another.
pub async fn names_that_differ_in_anything_are_independent(fixture: RequestFixture) {
    let store = &*fixture.store;
    let names = [
        ("default", "merchant-7", "POST /charges", "k"),
        ("default", "merchant-8", "POST /charges", "k"),
        ("default", "merchant-7", "POST /refunds", "k"),
        ("tenant-2", "merchant-7", "POST /charges", "k"),
        ("default", "merchant-7", "POST /charges", "K"),
        ("default", "merchant-7", "POST /charges", "k "),
        ("default", "merchant-7", "POST /charges", "ḱ"),
    ];
    let mut keys = HashSet::new();
    for (namespace, principal, method, key) in names {
        let id = RequestId::new(Namespace::new(namespace).unwrap(), principal, method, key).unwrap();
        let lease = execute(store, &Claim { id: id.clone(), ..claim("k") }).await;
        keys.insert(lease.derived_key("bank"));
        let answer = Completion::succeeded(200, id.to_string());
        assert_eq!(store.finish(&lease, &answer).await.unwrap(), Finished::Done);
        assert_eq!(store.get(&id).await.unwrap().unwrap().completion, Some(answer));
    }
    assert_eq!(keys.len(), names.len());
}

/// Who only begins is told; who reacquires goes on under a new token, with the same keys for its calls.
pub async fn a_retryable_failure_is_told_and_taken_over_on_demand(fixture: RequestFixture) {
    let (store, other) = (&*fixture.store, &*fixture.other);
    let first = execute(store, &claim("k")).await;
    let point = RecoveryPoint::new("reserved", Json::of(&7).unwrap()).unwrap();
    assert_eq!(store.set_point(&first, &point).await.unwrap(), Finished::Done);
    let failed = Completion::failed_retryable(503, "the bank is closed");
    assert_eq!(store.finish(&first, &failed).await.unwrap(), Finished::Done);
    assert_eq!(other.begin(&claim("k")).await.unwrap(), Begun::Retryable { attempt: 1 });
    assert_eq!(record(other, "k").await.completion, Some(failed));
    let second = leased(other.reacquire(&claim("k")).await);
    assert_eq!((second.attempt, &second.point), (2, &Some(point)));
    assert!(second.token.sequence > first.token.sequence && second.token.nonce != first.token.nonce);
    assert_eq!(second.derived_key("bank"), first.derived_key("bank"));
    assert_eq!(record(store, "k").await.completion, None);
    assert!(is_in_progress(&store.begin(&claim("k")).await.unwrap()));
    assert_eq!(store.finish(&first, &done()).await.unwrap(), Finished::Stale);
    assert_eq!(store.finish(&second, &done()).await.unwrap(), Finished::Done);
    assert!(matches!(store.reacquire(&claim("k")).await.unwrap(), Begun::Replay(_)));
}

/// The others find it in progress.
pub async fn of_many_retriers_one_wins(fixture: RequestFixture) {
    let lease = execute(&*fixture.store, &claim("k")).await;
    let failed = Completion::failed_retryable(503, "the bank is closed");
    assert_eq!(fixture.store.finish(&lease, &failed).await.unwrap(), Finished::Done);
    let claim = claim("k");
    let both = [&fixture.store, &fixture.other].into_iter().cycle();
    let winner = one_of_many(both.take(16).map(|store| store.reacquire(&claim)).collect()).await;
    assert_eq!(winner.attempt, 2);
}

/// A crash never wedges a key.
pub async fn an_abandoned_request_is_taken_over_behind_its_recovery_point(fixture: RequestFixture) {
    let (store, other) = (&*fixture.store, &*fixture.other);
    let dead = execute(store, &dying("k")).await;
    let point = RecoveryPoint::new("charged", Json::of("ch_1").unwrap()).unwrap();
    assert_eq!(store.set_point(&dead, &point).await.unwrap(), Finished::Done);
    let lease = execute(other, &dying("k")).await;
    assert_eq!((lease.attempt, &lease.point, lease.origin), (2, &Some(point), dead.origin));
    assert!(lease.token.sequence > dead.token.sequence, "{lease:?} after {dead:?}");
    assert_eq!(lease.derived_key("bank"), dead.derived_key("bank"));
    let lease = leased(store.reacquire(&claim("k")).await);
    assert_eq!(lease.attempt, 3);
    assert!(is_in_progress(&other.begin(&claim("k")).await.unwrap()));
}

/// The others find it in progress.
pub async fn of_many_who_take_over_one_wins(fixture: RequestFixture) {
    execute(&*fixture.store, &dying("k")).await;
    let claim = claim("k");
    let both = [&fixture.store, &fixture.other].into_iter().cycle();
    let winner = one_of_many(both.take(16).map(|store| store.begin(&claim)).collect()).await;
    assert_eq!(winner.attempt, 2);
}

/// Neither while another executes nor after it has finished.
pub async fn a_stale_worker_changes_nothing(fixture: RequestFixture) {
    let store = &*fixture.store;
    let stale = execute(store, &dying("k")).await;
    let lease = execute(&*fixture.other, &claim("k")).await;
    let point = RecoveryPoint::new("reserved", Json::null()).unwrap();
    let refused = async || {
        let before = record(store, "k").await;
        assert_eq!(store.finish(&stale, &done()).await.unwrap(), Finished::Stale);
        assert_eq!(store.heartbeat(&stale, Duration::from_secs(3600)).await.unwrap(), Finished::Stale);
        assert_eq!(store.set_point(&stale, &point).await.unwrap(), Finished::Stale);
        assert_eq!(record(store, "k").await, before);
    };
    refused().await;
    let forged = Lease { token: hapax_core::request::Token { nonce: 7, ..lease.token }, ..lease.clone() };
    assert_eq!(store.finish(&forged, &done()).await.unwrap(), Finished::Stale, "the nonce counts as well");
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    refused().await;
    assert_eq!(store.heartbeat(&lease, Duration::ZERO).await.unwrap(), Finished::Stale, "it has ended");
    let nobody = Lease { id: id("nobody"), ..lease };
    assert_eq!(store.finish(&nobody, &done()).await.unwrap(), Finished::Stale);
}

/// And changes nothing but the end of the lease.
pub async fn a_heartbeat_keeps_a_slow_workers_request(fixture: RequestFixture) {
    let (store, other) = (&*fixture.store, &*fixture.other);
    let lease = execute(store, &dying("k")).await;
    let before = record(store, "k").await;
    assert_eq!(store.heartbeat(&lease, Duration::from_secs(3600)).await.unwrap(), Finished::Done);
    let Begun::InProgress { retry_after } = other.begin(&claim("k")).await.unwrap() else { panic!("taken") };
    assert!(retry_after > Duration::from_secs(3000), "{retry_after:?}");
    let after = record(store, "k").await;
    assert!(after.lease_until_us > before.lease_until_us);
    assert_eq!(Record { lease_until_us: before.lease_until_us, ..after }, before);
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
}

/// Whoever lost the reply asks again. Who says something else then isn't believed.
pub async fn a_finish_told_twice_is_one(fixture: RequestFixture) {
    let store = &*fixture.store;
    let lease = execute(store, &claim("k")).await;
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    let first = record(store, "k").await;
    assert_eq!(fixture.other.finish(&lease, &done()).await.unwrap(), Finished::Done);
    let failed = Completion::failed_retryable(500, "a panic");
    assert_eq!(store.finish(&lease, &failed).await.unwrap(), Finished::Stale);
    assert_eq!(record(store, "k").await, first);
}

/// Finished, failed or abandoned: with whatever is asked for now, and with other keys for its calls.
pub async fn an_expired_answer_starts_afresh_though_nobody_swept(fixture: RequestFixture) {
    let store = &*fixture.store;
    let failed = Completion::failed_retryable(503, "the bank is closed");
    for (key, end) in [("done", Some(done())), ("failed", Some(failed)), ("dead", None)] {
        let claim = Claim { lease: Duration::ZERO, ..fleeting(key) };
        let old = execute(store, &claim).await;
        let point = RecoveryPoint::new("charged", Json::null()).unwrap();
        assert_eq!(store.set_point(&old, &point).await.unwrap(), Finished::Done);
        if let Some(end) = &end {
            assert_eq!(store.finish(&old, end).await.unwrap(), Finished::Done);
        }
        let anew = Claim { hash: RequestHash(sha256(b"4300")), ..self::claim(key) };
        let lease = execute(&*fixture.other, &anew).await;
        assert_eq!((lease.attempt, &lease.point), (1, &None), "{key}");
        assert!(lease.token.sequence > old.token.sequence, "{key}");
        assert_ne!(lease.derived_key("bank"), old.derived_key("bank"), "{key}");
        let found = record(store, key).await;
        assert_eq!((found.hash, found.completion), (anew.hash, None), "{key}");
        assert_eq!(store.finish(&old, &done()).await.unwrap(), Finished::Stale, "{key}");
        assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done, "{key}");
    }
}

/// Neither a duplicate nor a sweep ends an execution.
pub async fn what_is_executed_does_not_expire(fixture: RequestFixture) {
    let store = &*fixture.store;
    let lease = execute(store, &fleeting("k")).await;
    assert!(is_in_progress(&fixture.other.begin(&fleeting("k")).await.unwrap()));
    assert_eq!(store.sweep(100).await.unwrap(), 0);
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
}

/// A slow execution doesn't shorten what its clients have for asking again.
pub async fn an_answer_is_kept_from_its_end_on(fixture: RequestFixture) {
    let store = &*fixture.store;
    let lease = execute(store, &claim("k")).await;
    let before = record(store, "k").await;
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    let after = record(store, "k").await;
    assert!(after.expires_at_us >= before.expires_at_us, "{after:?}");
    assert_eq!((after.created_at_us, after.token), (before.created_at_us, before.token));
}

/// In batches. What hasn't expired stays, and so does what is executed.
pub async fn a_sweep_deletes_what_has_expired_and_no_more_than_asked(fixture: RequestFixture) {
    let store = &*fixture.store;
    for number in 0..5 {
        let lease = execute(store, &fleeting(&format!("old {number}"))).await;
        assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    }
    execute(store, &Claim { lease: Duration::ZERO, ..fleeting("dead") }).await;
    execute(store, &fleeting("executed")).await;
    execute(store, &dying("abandoned")).await;
    let lease = execute(store, &claim("kept")).await;
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    assert_eq!(fixture.other.expired().await.unwrap(), 6, "it is known before");
    let mut swept = vec![];
    for _ in 0..4 {
        swept.push(store.sweep(2).await.unwrap());
    }
    assert_eq!(swept, [2, 2, 2, 0]);
    assert_eq!(fixture.other.expired().await.unwrap(), 0);
    let left = fixture.other.list(&RequestFilter::default()).await.unwrap();
    let left: HashSet<&str> = left.iter().map(|listed| listed.id.key()).collect();
    assert_eq!(left, HashSet::from(["executed", "abandoned", "kept"]));
}

/// What is left of a lease can be told.
pub async fn times_are_those_of_the_databases_clock(fixture: RequestFixture) {
    let before = fixture.other.now_us().await.unwrap();
    execute(&*fixture.store, &claim("k")).await;
    let after = fixture.other.now_us().await.unwrap();
    let record = record(&*fixture.store, "k").await;
    assert!((before..=after).contains(&record.created_at_us), "{before} {record:?} {after}");
}

/// Only what is in progress can be released.
pub async fn a_release_fences_whoever_executes(fixture: RequestFixture) {
    let (store, other) = (&*fixture.store, &*fixture.other);
    assert!(!store.release(&id("k")).await.unwrap(), "there is none");
    let held = execute(store, &claim("k")).await;
    assert!(other.release(&held.id).await.unwrap());
    assert!(!other.release(&held.id).await.unwrap(), "it isn't in progress any more");
    assert_eq!(store.finish(&held, &done()).await.unwrap(), Finished::Stale);
    assert_eq!(store.heartbeat(&held, Duration::from_secs(3600)).await.unwrap(), Finished::Stale);
    assert_eq!(store.begin(&claim("k")).await.unwrap(), Begun::Retryable { attempt: 1 });
    let lease = leased(store.reacquire(&claim("k")).await);
    assert!(lease.token.sequence > held.token.sequence);
    assert_eq!(lease.derived_key("bank"), held.derived_key("bank"));
    assert_eq!(store.finish(&lease, &done()).await.unwrap(), Finished::Done);
    assert!(!store.release(&id("k")).await.unwrap(), "it is finished");
}

/// By tenant, principal, method and status.
pub async fn requests_are_listed_by_what_is_asked_for(fixture: RequestFixture) {
    let store = &*fixture.store;
    for (key, expiry) in [("a", 10), ("b", 20), ("c", 30)] {
        let claim = Claim { expiry: Duration::from_secs(expiry * 3600), ..claim(key) };
        let lease = execute(store, &claim).await;
        let refused = Completion::failed_final(402, "no cover", "declined");
        if key != "c" {
            assert_eq!(store.finish(&lease, &refused).await.unwrap(), Finished::Done);
        }
    }
    let keys = async |filter: RequestFilter| -> Vec<String> {
        let listed = fixture.other.list(&filter).await.unwrap();
        listed.iter().map(|listed| listed.id.key().to_owned()).collect()
    };
    let all = RequestFilter::default();
    assert_eq!(keys(all.clone()).await, ["c", "b", "a"]);
    assert_eq!(keys(RequestFilter { limit: 2, ..all.clone() }).await, ["c", "b"]);
    let statuses = vec![Status::FailedFinal, Status::Succeeded];
    assert_eq!(keys(RequestFilter { statuses, ..all.clone() }).await, ["b", "a"]);
    let of = |principal: &str| RequestFilter { principal: Some(principal.into()), ..all.clone() };
    assert_eq!(keys(of("merchant-7")).await.len(), 3);
    assert!(keys(of("merchant-8")).await.is_empty());
    assert!(keys(RequestFilter { method: Some("GET /charges".into()), ..all.clone() }).await.is_empty());
    assert!(keys(RequestFilter { namespace: Namespace::new("t").unwrap(), ..all.clone() }).await.is_empty());
    let listed = store.list(&all).await.unwrap();
    assert_eq!((listed[1].status, listed[1].response_code), (Status::FailedFinal, Some(402)));
    assert_eq!((listed[1].error_message.as_deref(), listed[0].response_code), (Some("declined"), None));
}

/// Replays are byte-identical.
pub async fn every_byte_of_an_answer_is_kept(fixture: RequestFixture) {
    let store = &*fixture.store;
    let every: Vec<u8> = (0..=255).collect();
    let answers = [
        Completion {
            response_headers: vec![
                ("x".into(), every.clone()),
                ("x".into(), vec![]),
                ("Ü".into(), b"1".into()),
            ],
            error_message: Some("❌ '\"\\\n".into()),
            ..Completion::succeeded(i32::MIN, every.repeat(4096))
        },
        Completion::failed_final(i32::MAX, [], ""),
        Completion { error_message: None, ..Completion::failed_retryable(0, "") },
    ];
    for (number, answer) in answers.iter().enumerate() {
        let key = format!("{}{number}", "é".repeat(127));
        let lease = execute(store, &claim(&key)).await;
        assert_eq!(store.finish(&lease, answer).await.unwrap(), Finished::Done);
        assert_eq!(record(&*fixture.other, &key).await.completion.as_ref(), Some(answer));
    }
    let lease = execute(store, &claim("zero")).await;
    let zero = Completion::failed_final(500, [], "a\0b");
    for _ in 0..2 {
        assert_eq!(store.finish(&lease, &zero).await.unwrap(), Finished::Done);
    }
    let told = record(store, "zero").await.completion.unwrap().error_message;
    assert_eq!(told.as_deref(), Some("a\u{fffd}b"), "no database's text holds a zero");
}

/// Nothing is stored of it, and the execution may end otherwise.
pub async fn an_oversized_answer_is_refused_and_may_be_mended(fixture: RequestFixture) {
    let store = &*fixture.store;
    let lease = execute(store, &claim("k")).await;
    let large = Completion::succeeded(200, vec![0; MAX_RESPONSE_BYTES + 1]);
    let refused = store.finish(&lease, &large).await.unwrap_err();
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
    let data = Json::of(&"x".repeat(MAX_RESPONSE_BYTES)).unwrap();
    let refused = store.set_point(&lease, &RecoveryPoint::new("p", data).unwrap()).await.unwrap_err();
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
    assert_eq!(record(store, "k").await.lease(), lease);
    let largest = Completion::succeeded(200, vec![0xff; MAX_RESPONSE_BYTES]);
    assert_eq!(store.finish(&lease, &largest).await.unwrap(), Finished::Done);
    assert_eq!(record(store, "k").await.completion, Some(largest));
}
