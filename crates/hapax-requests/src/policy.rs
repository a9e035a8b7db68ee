//! What a service decides for itself: who asks, what is asked for, which answers are final.
//!
//! Invariant: nothing here looks at a store. A request becomes a [`RequestId`] or a refusal by its head alone.

use crate::{dialect::Dialect, key, problem::Refusal, stats::Counters};
use hapax_core::{
    id::{InvalidId, Namespace},
    limits::{HTTP_BODY_BYTES, REQUEST_EXPIRY, REQUEST_LEASE},
    request::{Outcome, RequestId},
};
use hapax_store::requests::RequestStore;
use http::{Method, StatusCode, Uri, request::Parts};
use std::{sync::Arc, time::Duration};

/// Whether a request needs a key.
///
/// ```
/// use hapax_requests::KeyRule;
/// use http::Method;
/// assert_eq!(KeyRule::of_method(&Method::POST), KeyRule::Required);
/// assert_eq!(KeyRule::of_method(&Method::DELETE), KeyRule::Optional);
/// assert_eq!(KeyRule::of_method(&Method::GET), KeyRule::Ignored);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyRule {
    /// Without a key it is refused.
    Required,
    /// With a key it takes effect once; without one it goes to the handler as it is.
    Optional,
    /// It goes to the handler as it is, key or not.
    Ignored,
}

impl KeyRule {
    /// The rule by default: POST and PATCH need a key, what only reads ignores it, and everything else may have one.
    pub fn of_method(method: &Method) -> Self {
        match *method {
            Method::POST | Method::PATCH => KeyRule::Required,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::CONNECT => {
                KeyRule::Ignored
            }
            _ => KeyRule::Optional,
        }
    }
}

/// What a request gets whose key is being executed.
/// [`IdempotencyLayer::on_conflict`](crate::IdempotencyLayer::on_conflict) shows it.
///
/// ```
/// use hapax_requests::OnConflict;
/// assert_eq!(OnConflict::default(), OnConflict::Refuse);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// A 409 with `Retry-After`, at once.
    #[default]
    Refuse,
    /// The same answer as the other one, if it comes in so long; then a 409.
    Wait(Duration),
}

/// The outcome of an answer by default.
///
/// 2xx and 3xx succeeded. 408, 409, 425, 429 and 5xx may be tried again. Any other 4xx is final.
///
/// ```
/// use hapax_core::request::Outcome;
/// use hapax_requests::outcome_of;
/// use http::StatusCode;
/// assert_eq!(outcome_of(StatusCode::CREATED), Outcome::Succeeded);
/// assert_eq!(outcome_of(StatusCode::PAYMENT_REQUIRED), Outcome::FailedFinal);
/// assert_eq!(outcome_of(StatusCode::BAD_GATEWAY), Outcome::FailedRetryable);
/// ```
pub fn outcome_of(status: StatusCode) -> Outcome {
    match status.as_u16() {
        200..=399 => Outcome::Succeeded,
        408 | 409 | 425 | 429 => Outcome::FailedRetryable,
        400..=499 => Outcome::FailedFinal,
        _ => Outcome::FailedRetryable,
    }
}

/// The template of the route that axum matched, for [`IdempotencyLayer::route`](crate::IdempotencyLayer::route); the
/// path where it matched none. The [crate's](crate) example uses it.
///
/// ```
/// use http::Request;
/// let (parts, ()) = Request::post("/charges/7").body(()).unwrap().into_parts();
/// assert_eq!(hapax_requests::matched_path(&parts), "/charges/7", "no router has seen it");
/// ```
#[cfg(feature = "axum")]
pub fn matched_path(parts: &Parts) -> String {
    match parts.extensions.get::<axum::extract::MatchedPath>() {
        Some(matched) => matched.as_str().to_owned(),
        None => path(parts),
    }
}

/// The address as it was sent. A nested router of axum's strips its own part from it.
pub(crate) fn uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

pub(crate) fn path(parts: &Parts) -> String {
    uri(parts).path().to_owned()
}

/// Asks something of a request's head.
pub(crate) type Hook<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// How long a store may take to decide about a claim, by default.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// All that a layer can be told, whatever its protocol.
#[derive(Clone)]
pub(crate) struct Policy {
    pub(crate) store: Arc<dyn RequestStore>,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) namespace: Namespace,
    pub(crate) principal: Hook<Option<String>>,
    /// What is asked for, as a part of the name.
    pub(crate) method: Hook<String>,
    pub(crate) key_rule: Hook<KeyRule>,
    pub(crate) on_conflict: OnConflict,
    pub(crate) store_patience: Duration,
    pub(crate) lease: Duration,
    pub(crate) expiry: Duration,
    pub(crate) max_request_bytes: usize,
    pub(crate) max_response_bytes: usize,
}

impl Policy {
    pub(crate) fn new(
        store: Arc<dyn RequestStore>,
        dialect: Arc<dyn Dialect>,
        principal: Hook<Option<String>>,
        method: Hook<String>,
    ) -> Self {
        Self {
            store,
            dialect,
            counters: Arc::default(),
            namespace: Namespace::default(),
            principal,
            method,
            key_rule: Arc::new(|parts| KeyRule::of_method(&parts.method)),
            on_conflict: OnConflict::default(),
            store_patience: STORE_PATIENCE,
            lease: REQUEST_LEASE,
            expiry: REQUEST_EXPIRY,
            max_request_bytes: HTTP_BODY_BYTES,
            max_response_bytes: HTTP_BODY_BYTES,
        }
    }

    /// The name under which a request takes effect once; `None`: it goes to the handler as it is.
    pub(crate) fn name(&self, parts: &Parts) -> Result<Option<RequestId>, Refusal> {
        let rule = (self.key_rule)(parts);
        if rule == KeyRule::Ignored {
            return Ok(None);
        }
        let key = match key::read(&parts.headers).map_err(Refusal::BadKey)? {
            Some(key) => key,
            None if rule == KeyRule::Optional => return Ok(None),
            None => return Err(Refusal::MissingKey),
        };
        let principal = (self.principal)(parts).ok_or(Refusal::NoPrincipal)?;
        let id = RequestId::new(self.namespace.clone(), principal, (self.method)(parts), key);
        id.map(Some).map_err(|error| bad_name(&error))
    }
}

/// What is wrong with a name. A verb counts with its route, which nobody sees from the route alone.
fn bad_name(error: &InvalidId) -> Refusal {
    let limit = match (error.why, error.what) {
        ("is too long", "method") if error.shown.contains(' ') => {
            ": verb, space and route together have at most 255 bytes"
        }
        ("is too long", _) => ": it has at most 255 bytes",
        _ => "",
    };
    Refusal::BadName(format!("Its {} {}{limit}.", error.what, error.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_is_told_what_counts() {
        let refused = |principal: &str, method: &str| {
            let id = RequestId::new(Namespace::default(), principal, method, "k");
            bad_name(&id.expect_err("it is no name")).detail()
        };
        let long = "x".repeat(252);
        let route = refused("ada", &format!("POST /{long}"));
        assert_eq!(route, "Its method is too long: verb, space and route together have at most 255 bytes.");
        assert_eq!(
            refused("ada", &format!("/{long}/Pay")),
            "Its method is too long: it has at most 255 bytes."
        );
        assert_eq!(refused("", "POST /"), "Its principal is empty.");
    }
}
