//! gRPC, as tonic speaks it.
//!
//! Invariant: a replay has every byte of the messages, the metadata of the list, and all that ended the answer: its status,
//! its details and its trailers. Neither the hash of a request nor a replay depends on how a client compresses.

mod frames;
mod layer;
mod status;

pub use layer::{GrpcIdempotency, GrpcIdempotencyLayer};

use crate::{
    dialect::{Answer, Dialect, Whole},
    over_http::{REPLAYED, add, listed},
    policy::KeyRule,
    problem::Refusal,
};
use bytes::{Bytes, BytesMut};
use frames::{BadFrames, ENCODINGS, frame, plain};
use hapax_core::{
    canary,
    request::{Asked, Completion, Outcome, RequestHash},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    request,
    response::Parts,
};
use std::sync::Arc;
use tonic::{Code, Status};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Marks what is kept of an answer's end. No header's name has a colon.
const TRAILER: &str = "trailer:";

/// The outcome of an answer by default.
///
/// `Ok` succeeded. What would be answered the same way again is final: `InvalidArgument`, `NotFound`, `AlreadyExists`,
/// `PermissionDenied`, `FailedPrecondition`, `OutOfRange`, `Unimplemented` and `DataLoss`. Everything else may be tried again:
/// `Cancelled`, `Unknown`, `DeadlineExceeded`, `ResourceExhausted`, `Aborted`, `Internal`, `Unavailable`, `Unauthenticated`.
///
/// ```
/// use hapax_core::request::Outcome;
/// use hapax_requests::outcome_of_code;
/// use tonic::Code;
/// assert_eq!(outcome_of_code(Code::Ok), Outcome::Succeeded);
/// assert_eq!(outcome_of_code(Code::FailedPrecondition), Outcome::FailedFinal);
/// assert_eq!(outcome_of_code(Code::Unavailable), Outcome::FailedRetryable);
/// ```
pub fn outcome_of_code(code: Code) -> Outcome {
    match code {
        Code::Ok => Outcome::Succeeded,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss => Outcome::FailedFinal,
        Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::Unauthenticated => Outcome::FailedRetryable,
    }
}

impl KeyRule {
    /// The rule for gRPC by default, by the path of a method: each needs a key but those of gRPC's own services, health
    /// and reflection, which ignore it. No verb tells which methods only read.
    ///
    /// ```
    /// use hapax_requests::KeyRule;
    /// assert_eq!(KeyRule::of_grpc("/payments.v1.Payments/Charge"), KeyRule::Required);
    /// assert_eq!(KeyRule::of_grpc("/grpc.health.v1.Health/Check"), KeyRule::Ignored);
    /// ```
    pub fn of_grpc(path: &str) -> Self {
        if path.starts_with("/grpc.") { KeyRule::Ignored } else { KeyRule::Required }
    }
}

/// What [`GrpcIdempotencyLayer`] can be told about answers.
#[derive(Clone)]
struct Grpc {
    outcome: Arc<dyn Fn(Code) -> Outcome + Send + Sync>,
    kept_metadata: Arc<[HeaderName]>,
}

impl Default for Grpc {
    fn default() -> Self {
        Self { outcome: Arc::new(outcome_of_code), kept_metadata: Arc::new([]) }
    }
}

impl Dialect for Grpc {
    fn asked(
        &self,
        parts: &mut request::Parts,
        body: Bytes,
        limit: usize,
    ) -> Result<(Bytes, RequestHash), Box<Answer>> {
        let encoding = parts.headers.get(ENCODING).map_or(&b""[..], HeaderValue::as_bytes);
        let body = if canary::on("grpc_as_sent") { Ok(body) } else { plain(encoding, body, limit) };
        let body = body.map_err(|bad| {
            Box::new(match bad {
                BadFrames::Malformed => self.refusal(&Refusal::BrokenBody),
                BadFrames::Large => self.refusal(&Refusal::LargeBody { limit }),
                BadFrames::Encoding => unknown_encoding(),
            })
        })?;
        if !canary::on("grpc_as_sent") {
            // What the handler gets isn't compressed, and what it answers may be for somebody who can't read it then.
            parts.headers.remove(ENCODING);
            parts.headers.remove(ACCEPT_ENCODING);
            parts.headers.remove(CONTENT_LENGTH);
        }
        let hash = hash(parts.uri.path(), &body);
        Ok((body, hash))
    }

    fn outcome(&self, head: &Parts, trailers: Option<&HeaderMap>) -> (i32, Outcome) {
        let code = code(head, trailers);
        (code as i32, (self.outcome)(code))
    }

    /// It is so far what an answer is that succeeds.
    fn outcome_of_large(&self, head: &Parts) -> Outcome {
        (self.outcome)(if head.headers.contains_key(STATUS) { code(head, None) } else { Code::Ok })
    }

    fn kept(&self, head: &Parts, trailers: Option<&HeaderMap>) -> Vec<(String, Vec<u8>)> {
        if head.headers.contains_key(STATUS) {
            // The head is all there is: it is the end.
            return ending(&head.headers);
        }
        let mut kept = listed(&[CONTENT_TYPE], &head.headers);
        kept.extend(listed(&self.kept_metadata, &head.headers));
        if !canary::on("grpc_no_trailers") {
            kept.extend(trailers.map(ending).unwrap_or_default());
        }
        kept
    }

    fn stored(&self, completion: Completion) -> Answer {
        let (mut head, mut end) = (HeaderMap::new(), HeaderMap::new());
        for (name, value) in &completion.response_headers {
            match name.strip_prefix(TRAILER) {
                Some(name) => add(&mut end, name, value),
                None => add(&mut head, name, value),
            }
        }
        // A handler that ended its record by itself may have left it out.
        end.entry(STATUS).or_insert_with(|| HeaderValue::from(completion.response_code));
        let is_end = completion.response_payload.is_empty() && head.is_empty();
        let mut response = Response::new(Whole::from(Bytes::from(completion.response_payload)));
        if is_end {
            *response.headers_mut() = end;
        } else {
            *response.headers_mut() = head;
            response.body_mut().trailers = Some(end);
        }
        response.headers_mut().entry(CONTENT_TYPE).or_insert(GRPC);
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
        refusal.grpc_status().into_http()
    }

    fn refused(&self, refusal: &Refusal, status: Outcome) -> Completion {
        let head: Response<Whole> = refusal.grpc_status().into_http();
        Completion {
            status,
            response_code: refusal.grpc_code() as i32,
            response_headers: ending(head.headers()),
            response_payload: vec![],
            error_message: Some(refusal.title().into()),
        }
    }
}

/// The status of an answer; one that says none is unknown.
fn code(head: &Parts, trailers: Option<&HeaderMap>) -> Code {
    let status = trailers.and_then(|trailers| trailers.get(STATUS)).or_else(|| head.headers.get(STATUS));
    status.map_or(Code::Unknown, |status| Code::from_bytes(status.as_bytes()))
}

/// All that ends an answer.
fn ending(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let kept = headers.iter().filter(|(name, _)| *name != CONTENT_TYPE);
    kept.map(|(name, value)| (format!("{TRAILER}{name}"), value.as_bytes().into())).collect()
}

/// Over the method and the messages: whatever else a client says, it asks for the same.
fn hash(path: &str, body: &[u8]) -> RequestHash {
    RequestHash::of(&Asked { method: path, path: "", query: "", content_type: "application/grpc", body })
}

fn unknown_encoding() -> Answer {
    let mut response: Answer =
        Status::unimplemented("The request is compressed in an unknown way").into_http();
    response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(ENCODINGS));
    response
}

/// An answer with one message, as tonic would send it.
fn answer(metadata: HeaderMap, message: &[u8]) -> Response<Whole> {
    let mut data = BytesMut::new();
    frame(&mut data, message);
    let trailers = HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))]);
    let mut response = Response::new(Whole { data: data.freeze(), trailers: Some(trailers) });
    *response.headers_mut() = metadata;
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

impl crate::Claimed {
    /// What the gRPC layer would store of an answer with this message: for a handler that ends its record by itself. The
    /// message is encoded, as by `encode_to_vec` of prost's.
    ///
    /// ```
    /// use hapax_requests::Claimed;
    /// use hapax_store::requests::{Finished, RequestStore};
    /// use tonic::{Request, Response, Status};
    ///
    /// async fn charge(store: &dyn RequestStore, request: Request<()>) -> Result<Response<Vec<u8>>, Status> {
    ///     let claimed = request.extensions().get::<Claimed>().cloned().ok_or_else(|| Status::internal("no claim"))?;
    ///     let response = Response::new(b"an encoded message".to_vec());
    ///     // With `finish_in` of its database it would be one transaction with the effect.
    ///     match store.finish(claimed.lease(), &claimed.grpc_completion(&response)).await {
    ///         Ok(Finished::Done) => Ok(response),
    ///         _ => Err(Status::aborted("another has taken over")),
    ///     }
    /// }
    /// ```
    pub fn grpc_completion(&self, response: &tonic::Response<impl AsRef<[u8]>>) -> Completion {
        let metadata = response.metadata().clone().into_headers();
        let (head, body) = answer(metadata, response.get_ref().as_ref()).into_parts();
        let kept = self.policy.completion(&head, &body.data, body.trailers.as_ref());
        kept.unwrap_or_else(|instead| instead)
    }
}
