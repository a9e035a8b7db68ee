//! The handler's own view of its claim.

use crate::policy::Policy;
use hapax_core::request::{Completion, Lease};
use http::Response;
use std::{fmt, sync::Arc};

/// What a handler finds among the extensions of a request that takes effect once.
///
/// A handler that writes to the database of the records ends its record in its own transaction, with what
/// [`completion`](Self::completion) makes of its answer. The layer sees it and doesn't end it again: the client, and
/// whoever asks again, get that completion.
///
/// ```
/// use axum::{Extension, Router, body::Body, routing::post};
/// use hapax_requests::{Claimed, IdempotencyLayer};
/// use hapax_store::requests::MemoryRequests;
/// use http::Request;
/// use std::sync::Arc;
/// use tower::ServiceExt;
///
/// async fn charge(Extension(claimed): Extension<Claimed>) -> String {
///     // The same on every attempt: whoever is called does it once.
///     claimed.lease().derived_key("bank")
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = IdempotencyLayer::new(Arc::new(MemoryRequests::new()), |_| Some("merchant-7".into()));
/// let service = Router::new().route("/charges", post(charge)).layer(layer);
/// let request = Request::post("/charges").header("idempotency-key", "\"8e03978e\"").body(Body::empty())?;
/// let answer = axum::body::to_bytes(service.oneshot(request).await?.into_body(), 100).await?;
/// assert!(answer.starts_with(b"rq:"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Claimed {
    pub(crate) lease: Arc<Lease>,
    pub(crate) policy: Arc<Policy>,
}

impl Claimed {
    /// The right to execute the request, with its attempt, its recovery point and the keys for calls to others.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What the layer would store of an answer: for a handler that ends its record by itself.
    pub fn completion(&self, response: &Response<impl AsRef<[u8]>>) -> Completion {
        let mut head = http::Response::new(()).into_parts().0;
        head.status = response.status();
        head.headers = response.headers().clone();
        let kept = self.policy.completion(&head, response.body().as_ref(), None);
        kept.unwrap_or_else(|instead| instead)
    }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("lease", &self.lease).finish_non_exhaustive()
    }
}
