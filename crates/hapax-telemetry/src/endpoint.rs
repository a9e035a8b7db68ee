//! Where metrics are served: `GET /metrics` and nothing else.

use crate::{numbers::Numbers, telemetry::Error};
use axum::serve::Listener;
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, header},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, lookup_host},
    task::{JoinHandle, JoinSet},
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Connections at the same time. Whoever comes later waits for his turn: an engine needs its files for other things.
const CONNECTIONS: usize = 32;
/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The endpoint; it ends with this.
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.address)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    pub(crate) async fn open(address: &str, numbers: Numbers) -> Result<Self, Error> {
        let wrong = |why: String| Error::Invalid(format!("metrics can't be served at `{address}`: {why}"));
        let named = async { lookup_host(address).await.ok()?.next() };
        let at = match parse(address) {
            Some(at) => Some(at),
            None => named.await,
        };
        let at = at.ok_or_else(|| wrong("it isn't an address like 127.0.0.1:9464".into()))?;
        let listener = TcpListener::bind(at).await.map_err(|error| wrong(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| wrong(error.to_string()))?;
        let routes = Router::new().route("/metrics", get(scrape)).with_state(Arc::new(numbers));
        Ok(Self { address, task: tokio::spawn(serve(listener, routes)) })
    }
}

/// Serves until it is dropped, and its connections with it.
async fn serve(mut listener: TcpListener, routes: Router) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        let (stream, _) = Listener::accept(&mut listener).await;
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
        // A connection that fails is its client's affair.
        connections
            .spawn(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes.clone())));
    }
}

/// An address; a mere port is one of this machine alone.
fn parse(address: &str) -> Option<SocketAddr> {
    let port = || address.strip_prefix(':').unwrap_or(address).parse().ok();
    let local = || port().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    address.parse().ok().or_else(local)
}

async fn scrape(State(numbers): State<Arc<Numbers>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let open = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
    let (kind, text) = if open { (OPEN_METRICS, numbers.open_metrics()) } else { (TEXT, numbers.text()) };
    ([(header::CONTENT_TYPE, kind)], text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mere_port_is_one_of_this_machine_alone() {
        assert_eq!(parse("9464"), Some(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(parse(":9464"), parse("127.0.0.1:9464"));
        assert_eq!(parse("0.0.0.0:1"), Some(SocketAddr::from(([0, 0, 0, 0], 1))));
        assert_eq!(parse("localhost"), None);
    }
}
