//! A sink that sends signed POST requests, by [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! Invariant: a message is acknowledged by a status from 200 to 299 and by nothing else; and no text holds more of the address
//! than its origin, nor any part of a secret.

use super::{Delivery, Sink, SinkError};
use crate::http;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::BoxFuture;
use hapax_core::{canary, error::code, limits};
use hapax_store::clock::now_us;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{
    Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use sha2::Sha256;
use std::{fmt, time::Duration};

/// How many bytes a secret may have, by Standard Webhooks.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Posts each message as JSON to an address, signed by [Standard Webhooks](https://www.standardwebhooks.com): with
/// `webhook-id`, `webhook-timestamp` and `webhook-signature`. Behind the feature `webhook`.
///
/// The body is the whole message as [`Delivery`] has it in JSON, or the CloudEvent; `traceparent` is a header. Whoever
/// receives checks the signature and the age of the timestamp, and drops what comes again by the id.
///
/// | answer | means | because |
/// |---|---|---|
/// | 2xx | taken | |
/// | 408, 425, 429, 502, 503, 504, 507; none in time; one that broke off | it can't be taken now | nobody has looked at the message, or nobody knows; its topic waits, at least as long as `Retry-After` says |
/// | any other, redirects and 500 too | refused | somebody has looked at it and won't have it; what always fails must die one day |
/// | no connection | nobody is there | nothing was sent, and nothing else could be |
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::outbox::{RelayOptions, WebhookSink};
/// # let engine = hapax::Engine::open("memory:").await?;
/// let sink = WebhookSink::new("https://shop.example/hooks")?.secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
/// let relay = engine.relay(RelayOptions::default().topics(["orders"]), sink)?;
/// # relay.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct WebhookSink {
    url: Url,
    secrets: Vec<Vec<u8>>,
    headers: HeaderMap,
    client: http::Client,
    timeout: Duration,
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookSink({})", self.origin())
    }
}

impl WebhookSink {
    /// A sink for an address with `http://` or `https://`. It follows no redirects.
    ///
    /// ```
    /// use hapax::{Coded, outbox::WebhookSink};
    /// assert!(WebhookSink::new("https://shop.example/hooks").is_ok() && WebhookSink::new("HTTPS://a.example").is_ok());
    /// assert_eq!(WebhookSink::new("ftp://shop.example").unwrap_err().code(), "HX0072");
    /// ```
    pub fn new(url: &str) -> Result<Self, SinkError> {
        let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = parsed.ok_or_else(|| unfit("its address is not one of a webhook, https://host/path"))?;
        let client = http::Client::new().map_err(|error| unfit(error.to_string()))?;
        Ok(Self { url, secrets: vec![], headers: HeaderMap::new(), client, timeout: limits::SINK_TIMEOUT })
    }

    /// Signs with this secret: `whsec_` and base64 of 24 to 64 bytes. With several, each has a signature of its own, so that
    /// receivers may go over from one to the next. Without any, nothing is signed.
    ///
    /// ```
    /// use hapax::outbox::WebhookSink;
    /// # let sink = WebhookSink::new("https://shop.example/hooks")?;
    /// let sink = sink.secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?; // the new one
    /// let sink = sink.secret("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?; // the old one, for a while
    /// assert!(sink.secret("hunter2").is_err());
    /// # Ok::<(), hapax::outbox::SinkError>(())
    /// ```
    pub fn secret(mut self, secret: &str) -> Result<Self, SinkError> {
        let decoded = secret.strip_prefix("whsec_").and_then(|text| BASE64_STANDARD.decode(text).ok());
        let fits = decoded.filter(|bytes| SECRET_BYTES.contains(&bytes.len()));
        self.secrets
            .push(fits.ok_or_else(|| unfit("a secret is not `whsec_` and base64 of 24 to 64 bytes"))?);
        Ok(self)
    }

    /// Sends this header too, such as `authorization`.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, SinkError> {
        let name: HeaderName =
            name.parse().map_err(|_| unfit(format!("{name:?} is not the name of a header")))?;
        let unsendable =
            |_| unfit(format!("the value of header `{name}` holds a character that no header may"));
        let mut value = HeaderValue::from_str(value).map_err(unsendable)?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Uses this client, say with root certificates of its own.
    pub fn client(mut self, client: http::Client) -> Self {
        self.client = client;
        self
    }

    /// How long the answer is waited for, the connection included. Default: 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    async fn hand_over(&self, message: &Delivery) -> Result<(), SinkError> {
        let body = message.json()?;
        let headers = self.headers(message, &body, now_us() / 1_000_000)?;
        let request = self.client.pooled().post(self.url.clone()).headers(headers).body(body);
        let origin = self.origin();
        match tokio::time::timeout(self.timeout, request.send()).await {
            Ok(Ok(answer)) => judged(&origin, &answer),
            Ok(Err(error)) => {
                let text = format!("{origin}: {}", http::cause(&error));
                Err(if error.is_connect() { SinkError::unavailable(text) } else { SinkError::busy(text) })
            }
            Err(_) => Err(SinkError::busy(format!("{origin}: no answer within {:?}", self.timeout))),
        }
    }

    fn headers(&self, message: &Delivery, body: &[u8], timestamp: i64) -> Result<HeaderMap, SinkError> {
        let mut headers = self.headers.clone();
        let mut told = vec![
            ("webhook-id", message.id.clone()),
            ("webhook-timestamp", timestamp.to_string()),
            ("traceparent", message.traceparent()),
            (CONTENT_TYPE.as_str(), message.content_type().to_owned()),
        ];
        if !self.secrets.is_empty() {
            told.push(("webhook-signature", signatures(&self.secrets, &message.id, timestamp, body)));
        }
        for (name, value) in told {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_str(&value).map_err(SinkError::refused)?,
            );
        }
        Ok(headers)
    }
}

fn unfit(what: impl Into<String>) -> SinkError {
    SinkError::unavailable(what.into()).under(code::SINK_INVALID)
}

/// One for each secret, with spaces between them.
fn signatures(secrets: &[Vec<u8>], id: &str, timestamp: i64, body: &[u8]) -> String {
    let sign = |secret: &Vec<u8>| {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length will do");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    };
    secrets.iter().map(sign).collect::<Vec<_>>().join(" ")
}

fn judged(origin: &str, answer: &Response) -> Result<(), SinkError> {
    let status = answer.status();
    if status.is_success() || canary::on("webhook_any_status") {
        return Ok(());
    }
    let text = format!("{origin} answered {status}");
    let passes = matches!(status.as_u16(), 408 | 425 | 429 | 502 | 503 | 504 | 507);
    if !passes {
        let note = if status == StatusCode::GONE { "; it wants no more messages" } else { "" };
        return Err(SinkError::refused(format!("{text}{note}")));
    }
    let rest = http::retry_after(answer.headers(), now_us()).unwrap_or_default();
    Err(SinkError::busy(text).rest(rest))
}

impl Sink for WebhookSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(self.hand_over(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Standard Webhooks.
    #[test]
    fn a_signature_is_that_of_the_standard() {
        let sink = WebhookSink::new("https://a.example").unwrap();
        let sink = sink.secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signed = signatures(&sink.secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn no_text_holds_a_secret() {
        let sink = WebhookSink::new("https://me:s3cr3t@a.example/s3cr3t?key=s3cr3t").unwrap();
        let texts = [
            format!("{sink:?}"),
            format!("{:?}", WebhookSink::new("https://me:s3cr3t@:x").unwrap_err()),
            format!("{:?}", sink.secret("whsec_s3cr3t").unwrap_err()),
        ];
        assert!(texts.iter().all(|text| !text.contains("s3cr3t")), "{texts:?}");
    }
}
