//! HTTP, as axum and hyper speak it.
//!
//! Invariant: a replay has the status, the kept headers and every byte of the body; trailers aren't kept.

use crate::{
    dialect::{Answer, Dialect, Whole},
    policy::{outcome_of, uri},
    problem::Refusal,
};
use bytes::Bytes;
use hapax_core::{
    canary,
    request::{Asked, Completion, Outcome, RequestHash},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, header::CONTENT_TYPE, request,
    response::Parts,
};
use std::sync::Arc;

/// Says of an answer that it was given before.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What [`IdempotencyLayer`](crate::IdempotencyLayer) can be told about answers.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) outcome: Arc<dyn Fn(StatusCode) -> Outcome + Send + Sync>,
    pub(crate) kept_headers: Arc<[HeaderName]>,
}

impl Default for Http {
    fn default() -> Self {
        let kept = [
            header::CONTENT_TYPE,
            header::CONTENT_ENCODING,
            header::CONTENT_LANGUAGE,
            header::CONTENT_LOCATION,
            header::LOCATION,
            header::ETAG,
            header::LAST_MODIFIED,
            header::LINK,
        ];
        Self { outcome: Arc::new(outcome_of), kept_headers: Arc::new(kept) }
    }
}

impl Dialect for Http {
    fn asked(
        &self,
        parts: &mut request::Parts,
        body: Bytes,
        _limit: usize,
    ) -> Result<(Bytes, RequestHash), Box<Answer>> {
        let hash = hash(parts, &body);
        Ok((body, hash))
    }

    fn outcome(&self, head: &Parts, _trailers: Option<&HeaderMap>) -> (i32, Outcome) {
        (head.status.as_u16().into(), (self.outcome)(head.status))
    }

    fn outcome_of_large(&self, head: &Parts) -> Outcome {
        (self.outcome)(head.status)
    }

    fn kept(&self, head: &Parts, _trailers: Option<&HeaderMap>) -> Vec<(String, Vec<u8>)> {
        listed(&self.kept_headers, &head.headers)
    }

    fn stored(&self, completion: Completion) -> Answer {
        let code =
            u16::try_from(completion.response_code).ok().and_then(|code| StatusCode::from_u16(code).ok());
        let mut response = Response::new(Whole::from(Bytes::from(completion.response_payload)));
        // A handler that ended its record by itself may have had codes of its own.
        *response.status_mut() = code.unwrap_or(StatusCode::OK);
        for (name, value) in completion.response_headers {
            add(response.headers_mut(), &name, &value);
        }
        response
    }

    fn replayed(&self, completion: Completion) -> Answer {
        let mut response = self.stored(completion);
        if !canary::on("replay_unmarked") {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }

    fn refusal(&self, refusal: &Refusal) -> Answer {
        refusal.response().map(Whole::from)
    }

    fn refused(&self, refusal: &Refusal, status: Outcome) -> Completion {
        refusal.completion(status)
    }
}

/// The headers of a list, each as often as it is there.
pub(crate) fn listed(list: &[HeaderName], headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let values = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    list.iter().flat_map(|name| values(name).map(|value| (name.to_string(), value.into()))).collect()
}

/// Adds what is a header; a handler that ended its record by itself may have had others.
pub(crate) fn add(headers: &mut HeaderMap, name: &str, value: &[u8]) {
    let header = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value));
    if let (Ok(name), Ok(value)) = header {
        headers.append(name, value);
    }
}

pub(crate) fn hash(parts: &request::Parts, body: &[u8]) -> RequestHash {
    let (uri, content_type) = (uri(parts), parts.headers.get(CONTENT_TYPE));
    // Byte by byte: other bytes are another request, whatever they mean.
    let content_type: String =
        content_type.into_iter().flat_map(HeaderValue::as_bytes).map(|byte| char::from(*byte)).collect();
    RequestHash::of(&Asked {
        method: parts.method.as_str(),
        path: uri.path(),
        query: uri.query().unwrap_or_default(),
        content_type: &content_type,
        body,
    })
}
