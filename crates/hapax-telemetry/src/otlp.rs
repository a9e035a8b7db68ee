//! The ways to a collector: OTLP in gRPC, or in HTTP with protobuf.

use crate::{
    queue::{Export, Taken},
    telemetry::Error,
    wire::Sender,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::BoxFuture;
use hapax::watch::Span;
use opentelemetry_sdk::Resource;
use percent_encoding::percent_decode_str;
use prost::Message;
use reqwest::{
    Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use std::sync::Arc;
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{Bytes, http::uri::PathAndQuery},
    metadata::MetadataMap,
    transport::{Channel, ClientTlsConfig, Endpoint},
};

/// Bytes of an answer that are read at the most.
const LONGEST_REPLY: usize = 64 * 1024;
/// What is called in gRPC.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Headers that collectors ask for, as OpenTelemetry names them: the more special one counts.
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];

/// An exporter to this address.
pub(crate) fn exporter(url: &str, resource: &Resource) -> Result<Arc<dyn Export>, Error> {
    // What is wrong with an address is said without it: it may hold a password.
    let address = Url::parse(url).map_err(|error| invalid(&format!("the collector's URL: {error}")))?;
    if !matches!(address.scheme(), "http" | "https") || !address.has_host() {
        return Err(invalid("the collector's URL is neither `http:` nor `https:`"));
    }
    let mut headers = match HEADERS.iter().find_map(std::env::var_os) {
        Some(said) => headers(&said.to_string_lossy())?,
        None => HeaderMap::new(),
    };
    let (address, login) = without_login(address);
    let unusable = |_| invalid("the collector's URL can't be used");
    if let Some(login) = login {
        headers.insert("authorization", HeaderValue::try_from(login).map_err(|_| unusable(()))?);
    }
    let sender = Sender::new(resource);
    if address.path() == "/" {
        let channel = channel(&address).map_err(|_| unusable(()))?;
        return Ok(Arc::new(ByGrpc { sender, channel, metadata: MetadataMap::from_headers(headers) }));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    // A redirection would take the address along, and the address may hold a token.
    let client = reqwest::Client::builder().default_headers(headers);
    let client = client.redirect(reqwest::redirect::Policy::none()).referer(false);
    let client = client.build().map_err(|_| unusable(()))?;
    Ok(Arc::new(ByHttp { sender, client, address }))
}

fn invalid(what: &str) -> Error {
    Error::Invalid(what.into())
}

/// The address, and the header that says who asks. Beneath us addresses are logged, headers aren't.
fn without_login(mut address: Url) -> (Url, Option<String>) {
    let (user, password) = (address.username().to_owned(), address.password().map(str::to_owned));
    // Only URLs without a host refuse.
    let _ = address.set_username("").and_then(|()| address.set_password(None));
    if user.is_empty() && password.is_none() {
        return (address, None);
    }
    let login = format!("{}:{}", decoded(&user), decoded(password.as_deref().unwrap_or_default()));
    (address, Some(format!("Basic {}", BASE64_STANDARD.encode(login))))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Headers as `OTEL_EXPORTER_OTLP_HEADERS` lists them: `key=value,key=value`, the values percent-encoded.
fn headers(said: &str) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for pair in said.split(',').filter(|pair| !pair.trim().is_empty()) {
        let header = pair.split_once('=').and_then(|(key, value)| {
            let value = HeaderValue::try_from(decoded(value.trim())).ok()?;
            Some((HeaderName::try_from(key.trim()).ok()?, value))
        });
        // Which one isn't said: it may be a password.
        let unreadable = || invalid("OTEL_EXPORTER_OTLP_HEADERS isn't a list of `key=value`");
        let (key, mut value) = header.ok_or_else(unreadable)?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

/// What a collector answers.
#[derive(Clone, PartialEq, prost::Message)]
struct Reply {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
}

impl Reply {
    fn taken(&self) -> Taken {
        let rejected = self.partial_success.as_ref().map_or(0, |partial| partial.rejected_spans);
        match usize::try_from(rejected).unwrap_or(0) {
            0 => Taken::All,
            spans => Taken::Without(spans),
        }
    }
}

/// By POST.
struct ByHttp {
    sender: Sender,
    client: reqwest::Client,
    address: Url,
}

impl Export for ByHttp {
    fn send<'a>(&'a self, batch: &'a [Span]) -> BoxFuture<'a, Taken> {
        let request = self.client.post(self.address.clone()).body(self.sender.request(batch));
        Box::pin(async move {
            match request.send().await {
                // What it answers besides is of interest only if it is what OTLP says.
                Ok(answer) if answer.status().is_success() => reply(answer).await.unwrap_or_default().taken(),
                _ => Taken::Without(batch.len()),
            }
        })
    }
}

/// Reads an answer, unless it is longer than any that OTLP has.
async fn reply(mut answer: reqwest::Response) -> Option<Reply> {
    let mut body = vec![];
    while let Some(chunk) = answer.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > LONGEST_REPLY {
            return None;
        }
    }
    Reply::decode(&*body).ok()
}

/// By a unary call.
struct ByGrpc {
    sender: Sender,
    channel: Channel,
    metadata: MetadataMap,
}

fn channel(address: &Url) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(address.to_string())?;
    let endpoint = match address.scheme() {
        "https" => endpoint.tls_config(ClientTlsConfig::new().with_enabled_roots())?,
        _ => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

impl Export for ByGrpc {
    fn send<'a>(&'a self, batch: &'a [Span]) -> BoxFuture<'a, Taken> {
        let mut request = Request::new(Bytes::from(self.sender.request(batch)));
        *request.metadata_mut() = self.metadata.clone();
        Box::pin(async move {
            let mut client = Grpc::new(self.channel.clone());
            if client.ready().await.is_err() {
                return Taken::Without(batch.len());
            }
            let mut client = client.max_decoding_message_size(LONGEST_REPLY);
            let reply = client.unary(request, PathAndQuery::from_static(METHOD), Written).await;
            reply.map_or_else(|_| Taken::Without(batch.len()), |reply| reply.into_inner().taken())
        })
    }
}

/// Requests that are written already.
struct Written;

impl Codec for Written {
    type Encode = Bytes;
    type Decode = Reply;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Written
    }

    fn decoder(&mut self) -> Self {
        Written
    }
}

impl Encoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, request: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(into, request);
        Ok(())
    }
}

impl Decoder for Written {
    type Item = Reply;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Reply>, Status> {
        Reply::decode(from).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_opentelemetry_lists_them() {
        let read = headers("api-key=s%2C3cret, x-team = red ,").unwrap();
        assert_eq!((read["api-key"].as_bytes(), read["x-team"].as_bytes()), (&b"s,3cret"[..], &b"red"[..]));
        for unreadable in ["api-key", "a b=c", "key=a%0Ab"] {
            let said = headers(unreadable).unwrap_err().to_string();
            assert!(!said.contains(unreadable), "{said}");
        }
    }

    #[test]
    fn what_a_collector_rejects_is_not_taken() {
        let partial = |rejected_spans| Reply { partial_success: Some(PartialSuccess { rejected_spans }) };
        assert_eq!(partial(3).taken(), Taken::Without(3));
        assert_eq!([Reply::default().taken(), partial(0).taken(), partial(-1).taken()], [Taken::All; 3]);
    }
}
