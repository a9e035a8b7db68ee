//! A request from its head to its claim.
//!
//! Invariant: the body is whole before a request is claimed, and from then on nothing depends on its client.

use crate::{
    answer::{BoxError, Unread, drain, read},
    dialect::Answer,
    execute::answer,
    policy::Policy,
    problem::Refusal,
    stats::count,
};
use bytes::Bytes;
use hapax_core::{canary, request::RequestId};
use hapax_store::requests::Claim;
use http::{Request, Response, request::Parts};
use http_body::Body;
use std::{future::Future, sync::Arc};
use tracing::{Instrument, debug, field::Empty, info_span};

/// Reads a request to its end, then hands it to a task that no client can end.
pub(crate) async fn once<B, H, F, R, E>(
    policy: Arc<Policy>,
    id: RequestId,
    mut parts: Parts,
    body: B,
    call: H,
) -> Result<Answer, E>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    H: FnOnce(Request<Bytes>) -> F + Send + 'static,
    F: Future<Output = Result<Response<R>, E>> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    E: Send + 'static,
{
    let mut body = Box::pin(body);
    let limit = policy.max_request_bytes;
    let body = match read(body.as_mut(), limit).await {
        Ok(body) => body.data,
        Err(Unread::Broken) => return Ok(refuse(&policy, &Refusal::BrokenBody)),
        Err(Unread::Large) => {
            drain(body.as_mut(), limit.saturating_mul(2)).await;
            return Ok(refuse(&policy, &Refusal::LargeBody { limit }));
        }
    };
    let (body, hash) = match policy.dialect.asked(&mut parts, body, limit) {
        Ok(asked) => asked,
        Err(refused) => {
            count(&policy.counters.refused);
            return Ok(*refused);
        }
    };
    let span = info_span!("idempotent_request", method = id.method(), decision = Empty, attempt = Empty);
    let claim = Arc::new(Claim { id, hash, lease: policy.lease, expiry: policy.expiry });
    let start = move |claimed| {
        parts.extensions.insert(claimed);
        call(Request::from_parts(parts, body))
    };
    let answer = detached(answer(policy.clone(), claim, start).instrument(span)).await;
    answer.unwrap_or_else(|| Ok(policy.dialect.refusal(&Refusal::Lost)))
}

/// Runs to its end, whether or not anybody waits for it. `None`: the runtime is going down.
async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    if canary::on("client_ends_work") {
        return Some(work.await);
    }
    tokio::spawn(work).await.ok()
}

/// Turns a request away that isn't fit to be claimed.
pub(crate) fn refuse(policy: &Policy, refusal: &Refusal) -> Answer {
    count(&policy.counters.refused);
    debug!(decision = refusal.word(), "a request is refused");
    policy.dialect.refusal(refusal)
}
