//! From an answer to what is stored of it, and back.
//!
//! Invariant: what is stored is whole. A client gets the bytes that every later one will get.

use crate::{dialect::Whole, policy::Policy, problem::Refusal};
use bytes::Bytes;
use hapax_core::{
    canary,
    limits::MAX_RESPONSE_BYTES,
    request::{Completion, Outcome},
};
use http::{HeaderMap, response::Parts};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::{error::Error, iter, pin::Pin};

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
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Whole, Unread>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::Large);
    }
    let read = Limited::new(body, limit).collect().await.map_err(|error| {
        let first: &(dyn Error + 'static) = &*error;
        let mut causes = iter::successors(Some(first), |cause| (*cause).source());
        // A layer around this one may have a limit of its own.
        if causes.any(<dyn Error>::is::<LengthLimitError>) { Unread::Large } else { Unread::Broken }
    })?;
    let trailers = read.trailers().cloned();
    Ok(Whole { data: read.to_bytes(), trailers })
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
        head: &Parts,
        body: &[u8],
        trailers: Option<&HeaderMap>,
    ) -> Result<Completion, Completion> {
        let (code, outcome) = self.dialect.outcome(head, trailers);
        let failure = format!("the handler answered {code}");
        if outcome == Outcome::FailedRetryable {
            return Ok(Completion::failed_retryable(code, failure));
        }
        let completion = Completion {
            status: outcome,
            response_code: code,
            response_headers: self.dialect.kept(head, trailers),
            response_payload: body.into(),
            error_message: (outcome == Outcome::FailedFinal).then_some(failure),
        };
        let is_large = completion.weight() > self.answer_limit();
        if is_large { Err(self.large_answer(outcome)) } else { Ok(completion) }
    }

    /// What is stored instead of an answer that is too large: the handler has done its work, so it must not do it
    /// again.
    pub(crate) fn large_answer(&self, outcome: Outcome) -> Completion {
        if outcome == Outcome::FailedRetryable || canary::on("large_answer_lost") {
            return self.dialect.refused(&Refusal::Lost, Outcome::FailedRetryable);
        }
        let large = Refusal::LargeAnswer { limit: self.answer_limit() };
        self.dialect.refused(&large, Outcome::FailedFinal)
    }
}
