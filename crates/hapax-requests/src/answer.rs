//! From an answer to what is stored of it, and back.
//!
//! Invariant: what is stored is whole. A client gets the bytes that every later one will get.

use crate::{policy::Policy, problem::Refusal};
use bytes::Bytes;
use hapax_core::{
    canary,
    limits::MAX_RESPONSE_BYTES,
    request::{Completion, Outcome},
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::{error::Error, iter, pin::Pin};

/// Says of an answer that it was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What bodies may fail with.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Why a body wasn't read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is larger than the limit, by its length or by what came.
    Large,
    /// It ended too early.
    Broken,
}

/// Reads a body to its end. No more than the limit is ever held.
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::Large);
    }
    let read = Limited::new(body, limit).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| {
        let first: &(dyn Error + 'static) = &*error;
        let mut causes = iter::successors(Some(first), |cause| (*cause).source());
        // A layer around this one may have a limit of its own.
        if causes.any(<dyn Error>::is::<LengthLimitError>) { Unread::Large } else { Unread::Broken }
    })
}

/// Lets go by what a client is still sending, up to so many bytes: it would miss an answer that comes before it is
/// done.
pub(crate) async fn drain<B: Body<Data = Bytes>>(mut body: Pin<&mut B>, limit: usize) {
    let mut left = limit;
    while body.size_hint().lower() <= left as u64 {
        let Some(Ok(frame)) = body.frame().await else { return };
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
        left = rest;
    }
}

impl Policy {
    /// The largest answer that can be kept.
    pub(crate) fn answer_limit(&self) -> usize {
        self.max_response_bytes.min(MAX_RESPONSE_BYTES)
    }

    /// What is stored of an answer; an error is what is stored instead of one that is too large.
    pub(crate) fn completion(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Completion, Completion> {
        let (outcome, code) = ((self.outcome)(status), status.as_u16());
        let failure = format!("the handler answered {code}");
        if outcome == Outcome::FailedRetryable {
            return Ok(Completion::failed_retryable(code.into(), failure));
        }
        let values = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let kept = self
            .kept_headers
            .iter()
            .flat_map(|name| values(name).map(|value| (name.to_string(), value.into())));
        let completion = Completion {
            status: outcome,
            response_code: code.into(),
            response_headers: kept.collect(),
            response_payload: body.into(),
            error_message: (outcome == Outcome::FailedFinal).then_some(failure),
        };
        if completion.weight() > self.answer_limit() {
            Err(self.large_answer(status))
        } else {
            Ok(completion)
        }
    }

    /// What is stored instead of an answer that is too large: the handler has done its work, so it must not do it
    /// again.
    pub(crate) fn large_answer(&self, status: StatusCode) -> Completion {
        if (self.outcome)(status) == Outcome::FailedRetryable || canary::on("large_answer_lost") {
            return Refusal::Lost.completion(Outcome::FailedRetryable);
        }
        Refusal::LargeAnswer { limit: self.answer_limit() }.completion(Outcome::FailedFinal)
    }
}

/// A stored answer as it is sent.
pub(crate) fn stored(completion: Completion) -> Response<Bytes> {
    let code = u16::try_from(completion.response_code).ok().and_then(|code| StatusCode::from_u16(code).ok());
    let mut response = Response::new(Bytes::from(completion.response_payload));
    // A handler that ended its record by itself may have had codes of its own.
    *response.status_mut() = code.unwrap_or(StatusCode::OK);
    for (name, value) in completion.response_headers {
        let header = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value));
        if let (Ok(name), Ok(value)) = header {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// A stored answer as it is sent to all but the first.
pub(crate) fn replayed(completion: Completion) -> Response<Bytes> {
    let mut response = stored(completion);
    if !canary::on("replay_unmarked") {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
