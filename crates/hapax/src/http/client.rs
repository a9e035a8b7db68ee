//! The client: connections, trust, and one exchange.

use super::{Error, Request, Response, failed::Failed};
use crate::NodeError;
use hapax_core::{journal::EffectKind, limits};
use hapax_store::Clock;
use reqwest::{Certificate, Url, header, redirect, retry};
use std::{fmt, time::Duration};

/// Connections that are kept open between requests, and whom they trust. Make one and keep it with what your nodes need;
/// clones share it.
///
/// It speaks HTTP/1.1, in TLS or without. Certificates are checked against the roots of the system. A proxy that the
/// environment names (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, but not for what `NO_PROXY` lists) is used.
///
/// ```
/// use hapax::http;
/// use std::time::Duration;
/// let client = http::Client::builder()
///     .connect_timeout(Duration::from_secs(2))
///     .user_agent("orders/1.4")
/// #   .no_system_roots()
///     .build()?;
/// # drop(client);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    pooled: reqwest::Client,
    /// Keeps no connection open: one that the other side has just closed would put a write at most once in doubt.
    fresh: reqwest::Client,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("http::Client")
    }
}

/// A client in the making.
///
/// ```
/// use hapax::http::Client;
/// assert!(Client::builder().user_agent("orders/1.0").no_proxy().build().is_ok());
/// assert!(Client::builder().root_certificate("no certificate").build().is_err());
/// ```
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    roots: Vec<Vec<u8>>,
    system_roots: bool,
    proxy: bool,
    connect_timeout: Duration,
    user_agent: String,
}

impl Client {
    /// A client with the usual settings.
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            roots: vec![],
            system_roots: true,
            proxy: true,
            connect_timeout: limits::HTTP_CONNECT_TIMEOUT,
            user_agent: concat!("hapax/", env!("CARGO_PKG_VERSION")).into(),
        }
    }

    /// The one that keeps connections open.
    #[cfg(feature = "webhook")]
    pub(crate) fn pooled(&self) -> &reqwest::Client {
        &self.pooled
    }

    /// One request and its answer, in the time that it has.
    pub(super) async fn send(
        &self,
        request: &Request,
        sent: Sent<'_>,
        clock: &Clock,
    ) -> Result<Response, NodeError> {
        let exchange = tokio::time::timeout(request.time(), self.exchange(request, sent, clock));
        let outcome = exchange.await.unwrap_or_else(|_| Err(Failed::Silent(request.time())));
        outcome.map_err(|failed| failed.into_error(request))
    }

    async fn exchange(&self, request: &Request, sent: Sent<'_>, clock: &Clock) -> Result<Response, Failed> {
        let at_most_once = request.kind_of_call() == EffectKind::WriteAtMostOnce;
        let client = if at_most_once { &self.fresh } else { &self.pooled };
        let (mut url, mut trusted, mut hops) = (request.full_url(), true, 0);
        loop {
            let headers = request.headers(sent, trusted)?;
            let post = client.request(request.method(), url.clone()).headers(headers).body(request.payload());
            let response = post.send().await.map_err(|e| Failed::sending(&e))?;
            let next = next_hop(request, &url, &response).filter(|_| hops < limits::HTTP_REDIRECTS);
            let Some(next) = next else { return take(request, response, clock).await };
            // Secrets are for those whom they were given to; they are not told again on the way back.
            trusted &= next.origin() == url.origin();
            (url, hops) = (next, hops + 1);
        }
    }
}

/// What goes with a request and isn't part of it.
#[derive(Clone, Copy)]
pub(super) struct Sent<'a> {
    pub(super) key: &'a str,
    pub(super) traceparent: Option<&'a str>,
}

/// Where a read is redirected to. A write never is: that would send it a second time.
fn next_hop(request: &Request, from: &Url, response: &reqwest::Response) -> Option<Url> {
    let moved = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    if !moved || !request.follows() || request.accepts(response.status().as_u16()) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
    let mut next = from.join(location).ok()?;
    let downgraded = from.scheme() == "https" && next.scheme() == "http";
    if downgraded || !matches!(next.scheme(), "http" | "https") {
        return None;
    }
    // Whoever redirects us doesn't choose whose password we use.
    next.set_username("").and_then(|()| next.set_password(None)).ok()?;
    Some(next)
}

async fn take(request: &Request, mut response: reqwest::Response, clock: &Clock) -> Result<Response, Failed> {
    let status = response.status().as_u16();
    if !request.accepts(status) {
        return Err(Failed::status(request, response, clock).await);
    }
    let body = read(&mut response, request.body_limit()).await?;
    Ok(Response::new(status, response.headers(), body))
}

/// Reads no further than the limit, whatever the other side says or omits about the length.
async fn read(response: &mut reqwest::Response, limit: usize) -> Result<Vec<u8>, Failed> {
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(Failed::TooLarge(limit));
    }
    let mut body = vec![];
    while let Some(chunk) = response.chunk().await.map_err(|e| Failed::lost(&e))? {
        if body.len() + chunk.len() > limit {
            return Err(Failed::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

impl ClientBuilder {
    /// Trusts the certificates of this PEM text too: those of your own authority.
    pub fn root_certificate(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.roots.push(pem.as_ref().to_vec());
        self
    }

    /// Trusts only the given certificates, and not those of the system.
    pub fn no_system_roots(mut self) -> Self {
        self.system_roots = false;
        self
    }

    /// Uses no proxy, whatever the environment says.
    pub fn no_proxy(mut self) -> Self {
        self.proxy = false;
        self
    }

    /// How long a connection may take to come about. Default: 5 s. Keep it below the time of the requests: a connection
    /// that doesn't come about proves that nothing was sent, a late answer doesn't.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// What the client calls itself. Default: `hapax/` and its version.
    pub fn user_agent(mut self, name: &str) -> Self {
        self.user_agent = name.into();
        self
    }

    /// The client.
    pub fn build(self) -> Result<Client, Error> {
        if self.connect_timeout.is_zero() {
            return Err(Error::Invalid("no connection comes about in no time".into()));
        }
        let mut roots = vec![];
        for pem in &self.roots {
            let found = Certificate::from_pem_bundle(pem).map_err(|e| unusable(&e))?;
            if found.is_empty() {
                return Err(Error::Invalid("a root certificate is not in PEM form".into()));
            }
            roots.extend(found);
        }
        let fresh = self.bare(&roots).pool_max_idle_per_host(0).build().map_err(|e| unusable(&e))?;
        let pooled = self.bare(&roots).build().map_err(|e| unusable(&e))?;
        Ok(Client { pooled, fresh })
    }

    /// A client that sends what it is told to and nothing else. The features of `reqwest` are those of the whole program,
    /// so what another crate may have switched on is switched off.
    fn bare(&self, roots: &[Certificate]) -> reqwest::ClientBuilder {
        let roots = roots.iter().cloned();
        let client = reqwest::Client::builder()
            .tls_backend_rustls()
            .http1_only()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .no_gzip()
            .no_brotli()
            .no_deflate()
            .no_zstd()
            .connect_timeout(self.connect_timeout)
            .user_agent(&self.user_agent);
        let client = if self.proxy { client } else { client.no_proxy() };
        if self.system_roots { client.tls_certs_merge(roots) } else { client.tls_certs_only(roots) }
    }
}

fn unusable(error: &reqwest::Error) -> Error {
    Error::Invalid(format!("the client cannot be made: {}", super::failed::cause(error)))
}
