//! What differs between protocols: how a request is hashed, what is kept of an answer, and how a refusal is put.
//!
//! Invariant: a dialect decides nothing. The flow in `execute` is the same for all of them.

use crate::problem::Refusal;
use bytes::Bytes;
use hapax_core::request::{Completion, Outcome, RequestHash};
use http::{HeaderMap, Response, request, response};
use http_body::{Body, Frame, SizeHint};
use std::{
    convert::Infallible,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

/// A protocol.
pub(crate) trait Dialect: Send + Sync + 'static {
    /// What a request asks for, and its body as the handler gets it; or what its client is told instead.
    fn asked(
        &self,
        parts: &mut request::Parts,
        body: Bytes,
        limit: usize,
    ) -> Result<(Bytes, RequestHash), Box<Answer>>;

    /// What an answer means.
    fn outcome(&self, head: &response::Parts, trailers: Option<&HeaderMap>) -> (i32, Outcome);

    /// What an answer means whose end wasn't read, because it is too large.
    fn outcome_of_large(&self, head: &response::Parts) -> Outcome;

    /// All that is kept of an answer besides its code and its body.
    fn kept(&self, head: &response::Parts, trailers: Option<&HeaderMap>) -> Vec<(String, Vec<u8>)>;

    /// A stored answer as it is sent.
    fn stored(&self, completion: Completion) -> Answer;

    /// A stored answer as it is sent to all but the first.
    fn replayed(&self, completion: Completion) -> Answer;

    /// What a client is told instead of an answer.
    fn refusal(&self, refusal: &Refusal) -> Answer;

    /// The same as the end of an execution.
    fn refused(&self, refusal: &Refusal, status: Outcome) -> Completion;
}

/// An answer in memory.
pub(crate) type Answer = Response<Whole>;

/// A body that was read to its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Whole {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl From<Bytes> for Whole {
    fn from(data: Bytes) -> Self {
        Self { data, trailers: None }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match mem::take(&mut self.data) {
            data if data.is_empty() => self.trailers.take().map(Frame::trailers),
            data => Some(Frame::data(data)),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.len() as u64)
    }
}
