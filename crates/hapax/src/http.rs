//! HTTP calls that are ready to use: recorded, keyed, capped, and clear about what may be repeated.
//!
//! Invariant: one call of an effect sends a write at most once. What could send it a second time (redirects, retries of
//! the client) is switched off; a retry is a new attempt of the node, with the same key.

mod client;
mod failed;
mod request;
mod response;

pub use client::{Client, ClientBuilder};
#[cfg(feature = "webhook")]
pub(crate) use failed::{cause, retry_after};
pub use request::Request;
pub use response::Response;

use crate::{Ctx, EffectError};
use client::Sent;
use hapax_core::{
    canary,
    error::{Code, Coded, code},
    state::State,
};

/// What is wrong with a client, a request, or the body of an answer. What happens on the way is an [`EffectError`].
///
/// ```
/// use hapax::{Coded, http};
/// let broken = http::Client::builder().root_certificate("no certificate").build();
/// assert_eq!(broken.unwrap_err().code(), "HX0080");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It can't be used as it is. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The body isn't what the program expects. It is recorded: another attempt sees the same.
    #[error("{0}")]
    Body(String),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Error::Invalid(_) => code::HTTP_INVALID,
            Error::Body(_) => code::HTTP_BODY,
        }
    }
}

impl<S: State, A: Send + Sync + 'static> Ctx<S, A> {
    /// Sends an HTTP request, recorded like every [effect](Ctx::effect): once an answer is recorded, no attempt and no
    /// crash sends it again.
    ///
    /// A status of 200 to 299 is an answer, and so is any that the request [accepts](Request::accept). All others are
    /// errors, which the next attempt of the node meets with the same request and key; those that may pass (408, 425, 429,
    /// 500 to 599, a 409 to a request with a key, no answer at all) are worth one. A `Retry-After` puts it off.
    ///
    /// ```
    /// use hapax::{http, prelude::*};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { cents: u64, receipt: Option<String> }
    /// # #[derive(Serialize)]
    /// # struct Charge { cents: u64 }
    /// # #[derive(Deserialize)]
    /// # struct Receipt { id: String }
    /// struct Shop { http: http::Client, psp: String, token: String }
    ///
    /// async fn charge(mut ctx: hapax::Ctx<Order, Shop>) -> hapax::Result<OrderDelta> {
    ///     let (order, shop) = (ctx.state(), ctx.app());
    ///     let request = http::Request::post(&format!("{}/charges", shop.psp)) // with an `Idempotency-Key`
    ///         .header("authorization", &format!("Bearer {}", shop.token)) // neither recorded nor logged
    ///         .json(&Charge { cents: order.cents });
    ///     let receipt: Receipt = ctx.http("charge", &shop.http, request).await?.json()?;
    ///     Ok(Order::delta().receipt(receipt.id))
    /// }
    /// # fn answer_once() -> std::io::Result<String> {
    /// #     use std::io::{Read, Write};
    /// #     let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// #     let address = format!("http://{}", listener.local_addr()?);
    /// #     std::thread::spawn(move || {
    /// #         let mut stream = listener.accept().unwrap().0;
    /// #         let _request = stream.read(&mut [0; 4096]).unwrap();
    /// #         stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 13\r\n\r\n{\"id\":\"r-17\"}").unwrap();
    /// #     });
    /// #     Ok(address)
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # const CHARGE: Node = Node::new("charge");
    /// # let http = http::Client::builder().no_proxy().no_system_roots().build()?;
    /// # let shop = Shop { http, psp: answer_once()?, token: "t".into() };
    /// # let engine = Engine::open("memory:").await?;
    /// # let orders = engine.register(Graph::new("orders", 1, CHARGE).node(CHARGE, charge), shop).await?;
    /// # let order = orders.start("order-42", Order { cents: 4200, receipt: None }).await?.wait().await?;
    /// # assert_eq!(order.receipt.as_deref(), Some("r-17"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn http(
        &mut self,
        name: &str,
        client: &Client,
        request: Request,
    ) -> Result<Response, EffectError> {
        if let Err(error) = request.check() {
            return Err(EffectError::fatal(name, error.code(), error.to_string()));
        }
        let clock = self.clock();
        let send = async |call: crate::Call| {
            let anew = canary::on("http_key_anew").then(|| uuid::Uuid::now_v7().to_string());
            let key = anew.as_deref().unwrap_or(call.key());
            client.send(&request, Sent { key, traceparent: call.traceparent() }, &clock).await
        };
        self.effect(name, request.kind_of_call(), &request.recorded(), send).await
    }
}
