//! Requests that take effect once: their names, their hashes, and the plain data of their records.
//!
//! Invariant: a [`RequestId`] is checked when it is made, and a [`Record`] is in progress exactly as long as it has no
//! [`Completion`]. The formulas of [`RequestHash`] and [`Lease::derived_key`] are v1 and never changed: records outlive
//! programs, and whoever was called remembers the key.

use crate::{
    canary, canonical,
    id::{InvalidId, Namespace, check_name},
    json::Json,
    key::{Digest, DigestBuilder},
};
use std::fmt;

/// Names a request: two requests with the same name are one.
///
/// The principal is who asks, and has no default: clients draw their keys without knowing of each other. The method is the
/// full name of a gRPC method, or the verb and the template of the route.
///
/// ```
/// use hapax_core::{id::Namespace, request::RequestId};
/// let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// assert_eq!((id.principal(), id.method(), id.key()), ("merchant-7", "POST /charges", "8e03978e"));
/// assert!(RequestId::new(Namespace::default(), "", "POST /charges", "8e03978e").is_err());
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    namespace: Namespace,
    principal: String,
    method: String,
    key: String,
}

impl RequestId {
    /// Checks and takes a name: each part is 1 to 255 bytes of UTF-8 without control characters.
    pub fn new(
        namespace: Namespace,
        principal: impl Into<String>,
        method: impl Into<String>,
        key: impl Into<String>,
    ) -> Result<Self, InvalidId> {
        let (principal, method, key) = (principal.into(), method.into(), key.into());
        check_name("principal", &principal)?;
        check_name("method", &method)?;
        check_name("idempotency key", &key)?;
        Ok(Self { namespace, principal, method, key })
    }

    /// The tenant.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Who asks.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// What is asked for.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The client's own key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}/{} for {}", self.key, self.namespace, self.principal, self.method)
    }
}

/// What a request asks for, as far as its hash is concerned.
///
/// ```
/// use hapax_core::request::{Asked, RequestHash};
/// let asked = Asked {
///     method: "POST",
///     path: "/charges",
///     query: "",
///     content_type: "application/json; charset=utf-8",
///     body: br#"{"cents": 4200, "to": "ada"}"#,
/// };
/// let again = Asked { content_type: "Application/JSON", body: br#"{"to":"ada","cents":4200.0}"#, ..asked };
/// assert_eq!(RequestHash::of(&asked), RequestHash::of(&again), "it asks for the same");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The HTTP verb, or the full name of a gRPC method.
    pub method: &'a str,
    /// The path as it was sent.
    pub path: &'a str,
    /// What follows the `?`; empty where there is none.
    pub query: &'a str,
    /// The header's value; empty where there is none.
    pub content_type: &'a str,
    /// The whole body.
    pub body: &'a [u8],
}

/// Tells whether two requests of one name ask for the same.
///
/// A SHA-256 over method, path, query, content type and body, each preceded by its length. A body of a JSON type
/// (`application/json`, or one that ends in `+json`) counts as its canonical JSON; what has no canonical form, or a number
/// that this form would round, and a body of any other type, as its bytes. A type counts with its parameters, as they
/// were sent, but for the `charset=utf-8` of a JSON type, which says nothing. The case of a type's name never counts.
///
/// ```
/// use hapax_core::request::{Asked, RequestHash};
/// let asked = Asked { method: "POST", path: "/notes", query: "", content_type: "text/plain", body: b"1.0" };
/// assert_ne!(RequestHash::of(&asked), RequestHash::of(&Asked { body: b"1", ..asked }));
/// assert_ne!(RequestHash::of(&asked), RequestHash::of(&Asked { query: "dry-run", ..asked }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestHash(pub Digest);

impl RequestHash {
    /// The hash of what is asked for.
    #[must_use]
    pub fn of(asked: &Asked<'_>) -> Self {
        let (name, parameters) = asked.content_type.split_once(';').unwrap_or((asked.content_type, ""));
        let name = name.trim().to_ascii_lowercase();
        let is_json = name == "application/json" || name.ends_with("+json");
        let canonical = is_json.then(|| canonical::exactly_from_slice(asked.body).ok()).flatten();
        let mut digest = DigestBuilder::new("hapax.request.v1");
        digest.text(asked.method).text(asked.path).text(asked.query);
        let parameters = parameters.trim();
        digest.text(&name).text(if is_json && is_utf8(parameters) { "" } else { parameters });
        match &canonical {
            Some(text) => digest.text("json").text(text),
            None => digest.text("bytes").bytes(asked.body),
        };
        Self(digest.finish())
    }
}

/// Whether the parameters of a JSON type say what holds without them: all JSON is UTF-8.
fn is_utf8(parameters: &str) -> bool {
    let charsets = ["charset=utf-8", "charset=\"utf-8\""];
    charsets.iter().any(|charset| parameters.eq_ignore_ascii_case(charset))
}

impl fmt::Display for RequestHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a request stands.
///
/// ```
/// use hapax_core::request::Status;
/// assert_eq!(Status::InProgress.word(), "IN_PROGRESS");
/// assert_eq!(Status::read("FAILED_FINAL"), Some(Status::FailedFinal));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Somebody executes it, or died while doing so.
    InProgress,
    /// It took effect; duplicates get its answer.
    Succeeded,
    /// It failed for good; duplicates get that answer.
    FailedFinal,
    /// It failed, and may be executed again.
    FailedRetryable,
}

impl Status {
    /// Every one of them.
    pub const ALL: [Status; 4] =
        [Status::InProgress, Status::Succeeded, Status::FailedFinal, Status::FailedRetryable];

    /// One word for it, as stores and people see it.
    pub fn word(self) -> &'static str {
        match self {
            Status::InProgress => "IN_PROGRESS",
            Status::Succeeded => "SUCCEEDED",
            Status::FailedFinal => "FAILED_FINAL",
            Status::FailedRetryable => "FAILED_RETRYABLE",
        }
    }

    /// The one that has this word.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// How an execution ended.
///
/// ```
/// use hapax_core::request::{Outcome, Status};
/// assert_eq!(Status::from(Outcome::FailedRetryable), Status::FailedRetryable);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It took effect; duplicates get its answer.
    Succeeded,
    /// It failed for good; duplicates get that answer.
    FailedFinal,
    /// It failed, and may be executed again.
    FailedRetryable,
}

impl From<Outcome> for Status {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => Status::Succeeded,
            Outcome::FailedFinal => Status::FailedFinal,
            Outcome::FailedRetryable => Status::FailedRetryable,
        }
    }
}

impl Status {
    /// How it ended; `None`: it hasn't.
    pub fn outcome(self) -> Option<Outcome> {
        match self {
            Status::InProgress => None,
            Status::Succeeded => Some(Outcome::Succeeded),
            Status::FailedFinal => Some(Outcome::FailedFinal),
            Status::FailedRetryable => Some(Outcome::FailedRetryable),
        }
    }
}

/// The end of an execution, and the answer that duplicates get.
///
/// ```
/// use hapax_core::request::{Completion, Outcome};
/// let paid = Completion::succeeded(201, br#"{"charge":"ch_1"}"#);
/// assert_eq!((paid.status, paid.response_code), (Outcome::Succeeded, 201));
/// let refused = Completion::failed_final(402, b"no cover", "the card was declined");
/// assert_eq!(refused.error_message.as_deref(), Some("the card was declined"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// How it ended.
    pub status: Outcome,
    /// The HTTP or gRPC status; whatever the service calls its codes.
    pub response_code: i32,
    /// Names and values, in their order.
    pub response_headers: Vec<(String, Vec<u8>)>,
    /// The body, byte for byte.
    pub response_payload: Vec<u8>,
    /// What went wrong, in words.
    pub error_message: Option<String>,
}

impl Completion {
    /// It took effect.
    pub fn succeeded(response_code: i32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            status: Outcome::Succeeded,
            response_code,
            response_headers: vec![],
            response_payload: payload.into(),
            error_message: None,
        }
    }

    /// It failed for good, and this is what everybody is told.
    pub fn failed_final(response_code: i32, payload: impl Into<Vec<u8>>, error: impl Into<String>) -> Self {
        let status = Outcome::FailedFinal;
        Self { status, error_message: Some(error.into()), ..Self::succeeded(response_code, payload) }
    }

    /// It failed, and may be executed again.
    pub fn failed_retryable(response_code: i32, error: impl Into<String>) -> Self {
        let status = Outcome::FailedRetryable;
        Self { status, error_message: Some(error.into()), ..Self::succeeded(response_code, []) }
    }

    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        let headers: usize = self.response_headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        headers + self.response_payload.len() + self.error_message.as_ref().map_or(0, String::len)
    }
}

/// Fences an execution: each that is begun has another, and only the latest may write.
///
/// ```
/// use hapax_core::request::Token;
/// let (older, newer) = (Token { sequence: 1, nonce: 9, updated_at_us: 5 }, Token { sequence: 2, nonce: 3, updated_at_us: 5 });
/// assert_ne!(older, newer);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Drawn by the database; a later one is larger.
    pub sequence: i64,
    /// Drawn by whoever claims.
    pub nonce: u128,
    /// When it was drawn, in microseconds since 1970 by the database's clock.
    pub updated_at_us: i64,
}

/// How far an execution came: whoever takes it over goes on behind it.
///
/// ```
/// use hapax_core::{json::Json, request::RecoveryPoint};
/// let point = RecoveryPoint::new("charged", Json::of("ch_1")?)?;
/// assert_eq!(point.data.read::<String>()?, "ch_1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// The phase that is done.
    pub name: String,
    /// What the later ones need of it.
    pub data: Json,
}

impl RecoveryPoint {
    /// Checks the name and takes both.
    pub fn new(name: impl Into<String>, data: Json) -> Result<Self, InvalidId> {
        let name = name.into();
        check_name("recovery point", &name)?;
        Ok(Self { name, data })
    }
}

/// The right to execute a request, until it ends or another takes over.
///
/// ```
/// use hapax_core::{id::Namespace, request::{Lease, RequestId, Token}};
/// let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "8e03978e")?;
/// let token = Token { sequence: 1, nonce: 9, updated_at_us: 5 };
/// let lease = Lease { id, token, attempt: 1, lease_until_us: 30_000_005, point: None, origin: 9 };
/// let taken_over = Lease { token: Token { sequence: 2, ..token }, attempt: 2, ..lease.clone() };
/// assert_eq!(lease.derived_key("charge"), taken_over.derived_key("charge"), "it is the same call");
/// assert_ne!(lease.derived_key("charge"), lease.derived_key("refund"));
/// assert_ne!(lease.derived_key("charge"), Lease { origin: 10, ..lease.clone() }.derived_key("charge"));
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The request.
    pub id: RequestId,
    /// What every write demands.
    pub token: Token,
    /// Executions so far, with this one.
    pub attempt: u32,
    /// When others may take over, in microseconds since 1970 by the database's clock.
    pub lease_until_us: i64,
    /// How far the one before came.
    pub point: Option<RecoveryPoint>,
    /// Drawn when the request was first begun, or begun afresh after its record had expired; a takeover keeps it.
    pub origin: u128,
}

impl Lease {
    /// The key for a call to somebody else, `rq:` and 64 hex digits. The same for every execution of this request, so that
    /// the callee does it once; another for each name of a call, for each request, and for a request that is begun afresh
    /// after its record had expired.
    #[must_use]
    pub fn derived_key(&self, call: &str) -> String {
        let mut digest = DigestBuilder::new("hapax.rq.v1");
        digest
            .text(self.id.namespace.as_str())
            .text(&self.id.principal)
            .text(&self.id.method)
            .text(&self.id.key);
        let origin = if canary::on("derived_anew") { self.token.nonce } else { self.origin };
        format!("rq:{}", digest.bytes(&origin.to_be_bytes()).text(call).finish())
    }
}

/// A request as its store has it.
///
/// ```
/// use hapax_core::request::{Completion, Record, Status};
/// fn answer(record: &Record) -> Option<&[u8]> {
///     match record.status() {
///         Status::Succeeded | Status::FailedFinal => record.completion.as_ref().map(|end| &*end.response_payload),
///         Status::InProgress | Status::FailedRetryable => None,
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The request.
    pub id: RequestId,
    /// What it asks for.
    pub hash: RequestHash,
    /// The token of its latest execution.
    pub token: Token,
    /// Executions so far.
    pub attempt: u32,
    /// When the latest execution may be taken over, in microseconds since 1970, as all times by the database's clock.
    pub lease_until_us: i64,
    /// How far it came.
    pub point: Option<RecoveryPoint>,
    /// See [`Lease::origin`].
    pub origin: u128,
    /// How it ended; `None`: it is in progress.
    pub completion: Option<Completion>,
    /// When it was begun, or begun afresh.
    pub created_at_us: i64,
    /// When it is forgotten.
    pub expires_at_us: i64,
}

impl Record {
    /// Where it stands.
    pub fn status(&self) -> Status {
        self.completion.as_ref().map_or(Status::InProgress, |end| end.status.into())
    }

    /// The right to execute it, as its latest execution has it.
    pub fn lease(&self) -> Lease {
        Lease {
            id: self.id.clone(),
            token: self.token,
            attempt: self.attempt,
            lease_until_us: self.lease_until_us,
            point: self.point.clone(),
            origin: self.origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked<'_> =
        Asked { method: "POST", path: "/a", query: "b", content_type: "application/json", body: b"{}" };

    #[test]
    fn no_boundary_between_the_parts_of_a_request_can_move() {
        let hash = RequestHash::of(&ASKED);
        assert_ne!(hash, RequestHash::of(&Asked { path: "/ab", query: "", ..ASKED }));
        assert_ne!(hash, RequestHash::of(&Asked { method: "PUT", ..ASKED }));
        assert_ne!(hash, RequestHash::of(&Asked { content_type: "text/plain", ..ASKED }));
        assert_ne!(hash, RequestHash::of(&Asked { body: b"[]", ..ASKED }));
    }

    #[test]
    fn json_counts_by_its_value_and_anything_else_by_its_bytes() {
        let of = |content_type, body: &[u8]| RequestHash::of(&Asked { content_type, body, ..ASKED });
        let problem = "application/problem+json";
        assert_eq!(
            of(problem, b"{\"a\":1}"),
            of("APPLICATION/problem+JSON ; Charset=UTF-8", b"{ \"a\" : 1.0 }")
        );
        assert_ne!(of("text/plain", b"1"), of("text/plain", b"1 "));
        assert_ne!(of("text/plain; charset=utf-8", b"1"), of("text/plain; charset=latin1", b"1"));
        let twice = br#"{"a":1,"a":2}"#;
        assert_eq!(of("application/json", twice), of("application/json", twice));
        assert_ne!(of("application/json", twice), of("application/json", br#"{"a":1, "a":2}"#));
        assert_ne!(of("application/json", b"\xff"), of("application/json", b"\xfe"));
        assert_ne!(of("application/json", b""), of("application/json", b"null"));
    }

    #[test]
    fn parameters_of_a_json_type_count_unless_they_say_what_holds_anyway() {
        let of = |content_type| RequestHash::of(&Asked { content_type, ..ASKED });
        assert_ne!(of("application/json; v=1"), of("application/json; v=2"));
        assert_ne!(of("application/json; v=1"), of("application/json"));
        assert_ne!(of("application/json; charset=latin1"), of("application/json"));
        for same in
            ["application/json; charset=utf-8", "Application/JSON;CHARSET=\"UTF-8\"", "application/json;"]
        {
            assert_eq!(of(same), of("application/json"), "{same}");
        }
    }

    #[test]
    fn numbers_that_no_float_tells_apart_are_different_requests() {
        let of = |body: &str| RequestHash::of(&Asked { body: body.as_bytes(), ..ASKED });
        assert_ne!(of(r#"{"sum":90071992547409.93}"#), of(r#"{"sum":90071992547409.94}"#));
        assert_ne!(of("[9007199254740993.0]"), of("[9007199254740992.0]"));
        assert_ne!(of("[1e-400]"), of("[0]"));
        assert_eq!(of(r#"{"sum":1.0,"to":[100]}"#), of(r#"{ "to": [1e2], "sum": 1 }"#));
        assert_eq!(of("[0.10, -0.0, 12.5e-1]"), of("[1E-1,0,1.25]"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let id = |principal: &str, method: &str, key: &str| {
            RequestId::new(Namespace::default(), principal, method, key).map_err(|error| error.what)
        };
        assert_eq!(id("", "m", "k"), Err("principal"));
        assert_eq!(id("p", "", "k"), Err("method"));
        assert_eq!(id("p", "m", ""), Err("idempotency key"));
        assert_eq!(id("p", "m", &"k".repeat(256)), Err("idempotency key"));
        assert!(id("p", "m", &"k".repeat(255)).is_ok());
        assert!(RecoveryPoint::new("", Json::null()).is_err());
    }

    #[test]
    fn every_word_is_read_back() {
        for status in Status::ALL {
            assert_eq!(Status::read(status.word()), Some(status));
            assert_eq!(status.outcome().map_or(Status::InProgress, Status::from), status);
        }
        assert_eq!(Status::read("in_progress"), None);
    }
}
