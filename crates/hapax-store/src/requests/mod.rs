//! Requests that take effect once, whatever their clients and servers go through: for services that move money.
//!
//! Invariant: nothing executes without a claim, and of all claims on one request one at a time holds. The database decides
//! by one atomic statement, an insert that does nothing where there is a row or an update that demands the row as it was
//! read, and by its own clock: the application's is never asked.
//!
//! | file | what it holds |
//! |---|---|
//! | `judge` | what a claim on a record means: the same for all databases |
//! | `memory` | the reference model |
//! | `sql`, `schema/` | the statements and the tables, for all databases |
//! | `server` | what PostgreSQL and MySQL have in common |
//!
//! What each database does in its own words is in `postgres/requests`, `mysql/requests` and `sqlite/requests`. Whoever
//! wants to make the table beforehand finds it in `schema/`, one file for each.
//!
//! A handler asks before it works, and says how it ended:
//!
//! ```
//! use hapax_core::{id::Namespace, request::{Asked, Completion, RequestHash, RequestId}};
//! use hapax_store::requests::{Begun, Claim, Finished, MemoryRequests, RequestStore};
//!
//! /// What a client is told: a code and a body.
//! type Reply = (i32, Vec<u8>);
//!
//! async fn charge(store: &dyn RequestStore, key: &str, body: &[u8]) -> Result<Reply, Box<dyn std::error::Error>> {
//!     let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", key)?;
//!     let content_type = "application/json";
//!     let asked = Asked { method: "POST", path: "/charges", query: "", content_type, body };
//!     let claim = Claim::new(id, RequestHash::of(&asked));
//!     let lease = match store.begin(&claim).await? {
//!         Begun::Execute(lease) => lease,
//!         Begun::Replay(record) => {
//!             let end = record.completion.expect("it is finished");
//!             return Ok((end.response_code, end.response_payload));
//!         }
//!         Begun::InProgress { .. } => return Ok((409, b"it is under way: try again later".into())),
//!         Begun::Retryable { .. } => return Ok((503, b"it failed: try again later".into())),
//!         Begun::HashMismatch => return Ok((422, b"this key was used for another request".into())),
//!     };
//!     // The work itself. A call to another service carries `lease.derived_key("bank")`, the same on every attempt.
//!     let done = Completion::succeeded(201, br#"{"charge":"ch_1"}"#);
//!     match store.finish(&lease, &done).await? {
//!         Finished::Done => Ok((done.response_code, done.response_payload)),
//!         Finished::Stale => Ok((503, b"another worker has taken over: try again later".into())),
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryRequests::new();
//! let first = charge(&store, "8e03978e", br#"{"cents":4200}"#).await?;
//! assert_eq!(first.0, 201);
//! assert_eq!(charge(&store, "8e03978e", br#"{ "cents": 4200 }"#).await?, first, "a duplicate gets the same answer");
//! assert_eq!(charge(&store, "8e03978e", br#"{"cents":1}"#).await?.0, 422);
//! # Ok(())
//! # }
//! ```

pub(crate) mod judge;
mod memory;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod server;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) mod sql;

use crate::{error::StoreError, store::Answer};
use hapax_core::{
    error::code,
    id::Namespace,
    limits::{MAX_RESPONSE_BYTES, REQUEST_EXPIRY, REQUEST_LEASE},
    request::{Completion, Lease, Record, RecoveryPoint, RequestHash, RequestId, Status, Token},
};
use std::{sync::Arc, time::Duration};

pub use memory::MemoryRequests;

#[cfg(feature = "mysql")]
pub use crate::mysql::MySqlRequests;
#[cfg(feature = "postgres")]
pub use crate::postgres::PostgresRequests;
#[cfg(feature = "sqlite")]
pub use crate::sqlite::SqliteRequests;

/// Opens the requests at `url`: `sqlite:path/to/file.db`, `postgres://user@host/database` with the feature `postgres`,
/// `mysql://user@host/database` with the feature `mysql`, or `memory:` for tests. The table is made where there is none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store = hapax_store::requests::open("memory:").await?;
/// assert_eq!(store.sweep(100).await?, 0);
/// assert!(hapax_store::requests::open("redis://localhost").await.is_err());
/// # Ok(())
/// # }
/// ```
pub async fn open(url: &str) -> Result<Arc<dyn RequestStore>, StoreError> {
    let parts = url.split_once(':').map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
    match parts.as_ref().map(|(scheme, rest)| (scheme.as_str(), *rest)) {
        Some(("memory", _)) => Ok(Arc::new(MemoryRequests::new())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.is_empty() => Ok(SqliteRequests::open(path, Default::default()).await?),
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => Ok(PostgresRequests::open(url, Default::default()).await?),
        #[cfg(feature = "mysql")]
        Some(("mysql" | "mariadb", _)) => Ok(MySqlRequests::open(url, Default::default()).await?),
        _ => Err(StoreError::Open {
            what: parts.map_or_else(|| "the requests".into(), |(scheme, _)| format!("{scheme}:…")),
            why: "its address begins with sqlite:, postgres://, mysql:// or memory:, and the crate's feature of that name \
                  is on"
                .into(),
            code: code::BAD_URL,
        }),
    }
}

/// Where requests are kept until their answers may be forgotten.
///
/// Every store passes the suite in [`conformance`](crate::conformance). All times are by the database's clock. What is
/// answered is durable: it survives a crash of the process and of the machine. The [module](self) shows a handler.
///
/// ```
/// use hapax_store::requests::{Begun, Claim, Finished, MemoryRequests, RequestStore};
/// # use hapax_core::{id::Namespace, key::sha256, request::{Completion, RequestHash, RequestId}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryRequests::new();
/// # let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// # let claim = Claim::new(id, RequestHash(sha256(b"4200")));
/// let Begun::Execute(lease) = store.begin(&claim).await? else { panic!("it is new") };
/// let closed = Completion::failed_retryable(503, "the bank is closed");
/// assert_eq!(store.finish(&lease, &closed).await?, Finished::Done);
/// assert_eq!(store.begin(&claim).await?, Begun::Retryable { attempt: 1 });
/// let Begun::Execute(again) = store.reacquire(&claim).await? else { panic!("it may be tried again") };
/// assert_eq!(again.derived_key("bank"), lease.derived_key("bank"), "for the bank it is the same call");
/// assert_eq!(store.finish(&lease, &Completion::succeeded(201, "late")).await?, Finished::Stale);
/// # Ok(())
/// # }
/// ```
pub trait RequestStore: Send + Sync + 'static {
    /// Claims a request, by one atomic statement: of any number of calls at once for one request, one is told to
    /// [execute](Begun::Execute).
    ///
    /// A record whose lease is over is taken over, with its recovery point: a crash never wedges a key. A record that has
    /// expired starts afresh, unless it is being executed.
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun>;

    /// As [`begin`](Self::begin), and takes over a record that failed and may be tried again: never answers
    /// [`Begun::Retryable`]. Of many at once one wins.
    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun>;

    /// Says how an execution ended. Its answer is kept for as long as its claim asked for, from now on.
    ///
    /// To say it twice is to say it once. [`Finished::Stale`]: another has taken over, or it ended otherwise; nothing
    /// was changed.
    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished>;

    /// Prolongs a lease to so long from now, and changes nothing else.
    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished>;

    /// Notes how far an execution came; whoever takes it over is told.
    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished>;

    /// The record of a request, expired or not.
    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>>;

    /// Requests, those first that expire last.
    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>>;

    /// For an operator: makes a request that is in progress retryable at once, under a new token, so that whoever
    /// executes it can't finish it. Answers whether it was in progress.
    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool>;

    /// Deletes records that have expired and that nobody executes, of all tenants, so many at the most; answers how many.
    fn sweep(&self, limit: usize) -> Answer<'_, u64>;

    /// How many records [`sweep`](Self::sweep) would delete.
    fn expired(&self) -> Answer<'_, u64>;

    /// The database's clock, in microseconds since 1970: what a record's times are measured by.
    fn now_us(&self) -> Answer<'_, i64>;
}

/// A wish to execute a request.
///
/// ```
/// use hapax_core::{id::Namespace, key::sha256, request::{RequestHash, RequestId}};
/// use hapax_store::requests::Claim;
/// use std::time::Duration;
/// let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// let claim = Claim { lease: Duration::from_secs(5), ..Claim::new(id, RequestHash(sha256(b"4200"))) };
/// assert_eq!(claim.expiry.as_secs(), 24 * 3600);
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The request.
    pub id: RequestId,
    /// What it asks for.
    pub hash: RequestHash,
    /// For how long nobody else may execute it, unless a heartbeat comes; 30 seconds by default.
    pub lease: Duration,
    /// For how long it is remembered, from its beginning, and again from its end; a day by default.
    pub expiry: Duration,
}

impl Claim {
    /// A claim with the usual times.
    pub fn new(id: RequestId, hash: RequestHash) -> Self {
        Self { id, hash, lease: REQUEST_LEASE, expiry: REQUEST_EXPIRY }
    }
}

/// What became of a claim. The [module](self) shows what a handler makes of each.
///
/// ```
/// use hapax_store::requests::{Begun, Claim, MemoryRequests, RequestStore};
/// # use hapax_core::{id::Namespace, key::sha256, request::{RequestHash, RequestId}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryRequests::new();
/// # let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// # let claim = Claim::new(id, RequestHash(sha256(b"4200")));
/// assert!(matches!(store.begin(&claim).await?, Begun::Execute(lease) if lease.attempt == 1));
/// assert!(matches!(store.begin(&claim).await?, Begun::InProgress { retry_after } if retry_after <= claim.lease));
/// let other = Claim { hash: RequestHash(sha256(b"4300")), ..claim };
/// assert_eq!(store.begin(&other).await?, Begun::HashMismatch);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It is ours: execute it, behind its recovery point if it has one.
    Execute(Lease),
    /// It is finished for good: this is the answer.
    Replay(Box<Record>),
    /// Another executes it.
    InProgress {
        /// What is left of the other's lease.
        retry_after: Duration,
    },
    /// It failed, and may be executed again: see [`RequestStore::reacquire`].
    Retryable {
        /// Executions so far.
        attempt: u32,
    },
    /// The key was used for a request that asks for something else.
    HashMismatch,
}

/// Whether a write under a lease took effect. The [module](self) shows what a handler makes of each.
///
/// ```
/// use hapax_store::requests::{Begun, Claim, Finished, MemoryRequests, RequestStore};
/// # use hapax_core::{id::Namespace, key::sha256, request::{Completion, RequestHash, RequestId}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryRequests::new();
/// # let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// # let claim = Claim::new(id, RequestHash(sha256(b"4200")));
/// let Begun::Execute(lease) = store.begin(&claim).await? else { panic!("it is new") };
/// let done = Completion::succeeded(201, "charged");
/// assert_eq!(store.finish(&lease, &done).await?, Finished::Done);
/// assert_eq!(store.finish(&lease, &done).await?, Finished::Done, "said twice, it is one");
/// assert_eq!(store.heartbeat(&lease, claim.lease).await?, Finished::Stale, "it has ended");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It did, durably.
    Done,
    /// Another has taken over, or the execution has ended: nothing was changed, and nothing may be.
    Stale,
}

/// What became of a recovery point in the caller's own transaction. `point_in` of each database's requests shows where it
/// comes from.
///
/// ```
/// use hapax_store::requests::Pointed;
/// /// Commits, unless the request is another's by now.
/// fn committed<T>(pointed: Pointed<T>, commit: impl FnOnce(T)) -> bool {
///     match pointed {
///         Pointed::Set(tx) => {
///             commit(tx);
///             true
///         }
///         Pointed::Stale => false,
///     }
/// }
/// assert!(committed(Pointed::Set("a transaction"), |tx| assert_eq!(tx, "a transaction")));
/// ```
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
#[derive(Debug)]
#[must_use = "the point counts once its transaction is committed"]
pub enum Pointed<T> {
    /// It is set, once this transaction is committed.
    Set(T),
    /// Another has taken over, or the execution has ended: the transaction was rolled back.
    Stale,
}

/// Which requests to list.
///
/// ```
/// use hapax_core::request::Status;
/// use hapax_store::requests::RequestFilter;
/// let stuck = RequestFilter { statuses: vec![Status::InProgress], limit: 10, ..RequestFilter::default() };
/// assert_eq!(stuck.principal, None);
/// ```
#[derive(Debug, Clone)]
pub struct RequestFilter {
    /// The tenant.
    pub namespace: Namespace,
    /// Only of this principal.
    pub principal: Option<String>,
    /// Only of this method.
    pub method: Option<String>,
    /// Only those that stand there; empty: all.
    pub statuses: Vec<Status>,
    /// How many at the most.
    pub limit: usize,
}

impl Default for RequestFilter {
    fn default() -> Self {
        Self { namespace: Namespace::default(), principal: None, method: None, statuses: vec![], limit: 100 }
    }
}

/// A request in a list: a record without its answer, which may be large.
///
/// ```
/// use hapax_store::requests::{MemoryRequests, RequestFilter, RequestStore};
/// # use hapax_core::{id::Namespace, key::sha256, request::{RequestHash, RequestId, Status}};
/// # use hapax_store::requests::Claim;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryRequests::new();
/// # let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// # store.begin(&Claim::new(id, RequestHash(sha256(b"4200")))).await?;
/// let listed = store.list(&RequestFilter::default()).await?;
/// assert_eq!((listed[0].status, listed[0].attempt), (Status::InProgress, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The request.
    pub id: RequestId,
    /// Where it stands.
    pub status: Status,
    /// The token of its latest execution.
    pub token: Token,
    /// Executions so far.
    pub attempt: u32,
    /// When the latest execution may be taken over, in microseconds since 1970, as all times by the database's clock.
    pub lease_until_us: i64,
    /// The name of its recovery point.
    pub point: Option<String>,
    /// The code of its answer.
    pub response_code: Option<i32>,
    /// What went wrong, in words.
    pub error_message: Option<String>,
    /// When it was begun, or begun afresh.
    pub created_at_us: i64,
    /// When it is forgotten.
    pub expires_at_us: i64,
}

/// What an operator's release leaves for whoever asks why.
pub(crate) const RELEASED: &str = "released by an operator";

/// Refuses what no store takes.
pub(crate) fn check_completion(completion: &Completion) -> Result<(), StoreError> {
    check_size("the answer to a request", completion.weight())
}

pub(crate) fn check_point(point: &RecoveryPoint) -> Result<(), StoreError> {
    check_size("the data of a recovery point", point.data.as_bytes().len())
}

fn check_size(what: &str, size: usize) -> Result<(), StoreError> {
    let limit = MAX_RESPONSE_BYTES;
    if size <= limit { Ok(()) } else { Err(StoreError::TooLarge { what: what.into(), size, limit }) }
}

/// A completion as it is stored: no text of PostgreSQL's holds a zero.
pub(crate) fn storable(completion: &Completion) -> std::borrow::Cow<'_, Completion> {
    use std::borrow::Cow;
    match &completion.error_message {
        Some(text) if text.contains('\0') => {
            let error_message = Some(text.replace('\0', "\u{fffd}"));
            Cow::Owned(Completion { error_message, ..completion.clone() })
        }
        _ => Cow::Borrowed(completion),
    }
}

/// Requests in a server are those of its field `requests`.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! on_server {
    ($store:ident) => {
        impl RequestStore for $store {
            fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
                Box::pin(self.requests.claim(claim, false))
            }

            fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
                Box::pin(self.requests.claim(claim, true))
            }

            fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
                Box::pin(self.requests.finish(lease, completion))
            }

            fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
                Box::pin(self.requests.heartbeat(lease, ttl))
            }

            fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
                Box::pin(self.requests.set_point(lease, point))
            }

            fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
                Box::pin(self.requests.get(id))
            }

            fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
                Box::pin(self.requests.list(filter))
            }

            fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
                Box::pin(self.requests.release(id))
            }

            fn sweep(&self, limit: usize) -> Answer<'_, u64> {
                Box::pin(self.requests.sweep(limit))
            }

            fn expired(&self) -> Answer<'_, u64> {
                Box::pin(self.requests.expired())
            }

            fn now_us(&self) -> Answer<'_, i64> {
                Box::pin(self.requests.now_us())
            }
        }
    };
}
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use on_server;

/// Drawn anew for each claim, before it is made.
pub(crate) fn nonce() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}
