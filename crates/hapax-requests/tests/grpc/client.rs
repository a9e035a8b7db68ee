//! The service's client: tonic's own, and one that looks at the bytes.

use crate::server::{Order, PATIENCE, Receipt, Server};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{TryStreamExt, stream};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio::{task::JoinHandle, time::timeout};
use tonic::{
    Request, Response, Status,
    client::Grpc,
    codec::CompressionEncoding,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::{Service, ServiceExt};

/// What a client gets.
pub(crate) type Reply = Result<Response<Receipt>, Status>;

/// A merchant's connection.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    compresses: bool,
    merchant: &'static str,
}

impl Server {
    pub(crate) async fn client(&self) -> Client {
        Client::of(&self.address).await
    }
}

impl Client {
    pub(crate) async fn of(address: &str) -> Self {
        let channel = Endpoint::from_shared(address.to_owned()).expect("an address").connect().await;
        Self { channel: channel.expect("it connects"), compresses: false, merchant: "ada" }
    }

    /// One that compresses what it sends, and can read what is compressed.
    pub(crate) fn compressing(&self) -> Self {
        Self { compresses: true, ..self.clone() }
    }

    pub(crate) fn of_merchant(&self, merchant: &'static str) -> Self {
        Self { merchant, ..self.clone() }
    }

    fn grpc(&self) -> Grpc<Channel> {
        let grpc = Grpc::new(self.channel.clone());
        if !self.compresses {
            return grpc;
        }
        grpc.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip)
    }

    pub(crate) async fn ask(&self, method: &str, key: &str) -> Reply {
        self.order(method, key, Order::default()).await
    }

    /// The same in a task of its own.
    pub(crate) fn asked(&self, method: &'static str, key: &'static str) -> JoinHandle<Reply> {
        let client = self.clone();
        tokio::spawn(async move { client.ask(method, key).await })
    }

    pub(crate) async fn order(&self, method: &str, key: &str, order: Order) -> Reply {
        self.send(method, self.request(key, order)).await
    }

    /// A request with a key; an empty one is none.
    pub(crate) fn request<T>(&self, key: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if !key.is_empty() {
            request.metadata_mut().insert("idempotency-key", key.parse().expect("a value"));
        }
        if !self.merchant.is_empty() {
            request.metadata_mut().insert("x-merchant", self.merchant.parse().expect("a value"));
        }
        request
    }

    pub(crate) async fn send(&self, method: &str, request: Request<Order>) -> Reply {
        let mut grpc = self.grpc();
        grpc.ready().await.expect("it is there");
        let answer = grpc.unary(request, path(method), ProstCodec::default());
        timeout(PATIENCE, answer).await.expect("an answer comes")
    }

    /// Sends many messages, and gets one.
    pub(crate) async fn sum(&self, key: &str, orders: Vec<Order>) -> Reply {
        let mut grpc = self.grpc();
        grpc.ready().await.expect("it is there");
        let request = self.request(key, stream::iter(orders));
        let answer = grpc.client_streaming(request, path("Sum"), ProstCodec::default());
        timeout(PATIENCE, answer).await.expect("an answer comes")
    }

    /// Sends one message, and gets many.
    pub(crate) async fn several(&self, key: &str, order: Order) -> Result<(bool, Vec<Receipt>), Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.expect("it is there");
        let answer = grpc.server_streaming(self.request(key, order), path("Several"), ProstCodec::default());
        let answer: Response<tonic::Streaming<Receipt>> =
            timeout(PATIENCE, answer).await.expect("an answer comes")?;
        let is_replayed = answer.metadata().contains_key("idempotency-replayed");
        Ok((is_replayed, answer.into_inner().try_collect().await?))
    }

    /// Sends bytes, and looks at the bytes that come: the head, the body, what ends it.
    pub(crate) async fn raw(
        &self,
        method: &str,
        headers: Vec<(&'static str, String)>,
        body: Bytes,
    ) -> (http::HeaderMap, Bytes, http::HeaderMap) {
        let mut request = http::Request::post(path(method)).header("content-type", "application/grpc");
        request = request.header("te", "trailers").header("x-merchant", self.merchant);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(tonic::body::Body::new(Full::new(body))).expect("a request");
        let channel = &mut self.channel.clone();
        let answer = channel.ready().await.expect("it is there").call(request);
        let answer = timeout(PATIENCE, answer).await.expect("an answer comes").expect("it arrives");
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.expect("a body");
        let trailers = body.trailers().cloned().unwrap_or_default();
        (parts.headers, body.to_bytes(), trailers)
    }
}

/// An order as it is sent.
pub(crate) fn framed(order: &Order) -> Bytes {
    let message = order.encode_to_vec();
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.len() as u32);
    body.put_slice(&message);
    body.freeze()
}

/// The path of a method of the service, or of another's.
fn path(method: &str) -> http::uri::PathAndQuery {
    let other = method.starts_with('/').then(|| method.to_owned());
    other.unwrap_or_else(|| format!("/payments.v1.Payments/{method}")).parse().expect("a path")
}

pub(crate) fn is_replayed(reply: &Reply) -> bool {
    let metadata = match reply {
        Ok(response) => response.metadata(),
        Err(status) => status.metadata(),
    };
    metadata.get("idempotency-replayed").is_some_and(|value| value == "true")
}

/// Which charge it was.
pub(crate) fn charge(reply: &Reply) -> u64 {
    reply.as_ref().expect("a receipt").get_ref().charge
}

/// Why it was refused by the layer: its code and its reason.
pub(crate) fn refusal(reply: &Reply) -> (tonic::Code, String) {
    use tonic_types::StatusExt;
    let status = reply.as_ref().expect_err("a refusal");
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
    (status.code(), reason.unwrap_or_else(|| panic!("no reason: {status:?}")))
}
