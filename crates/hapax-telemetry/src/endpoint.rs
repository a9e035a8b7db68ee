//! Where metrics are served: `GET /metrics` and nothing else.

use crate::{numbers::Numbers, telemetry::Error};
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, header},
    response::IntoResponse,
    routing::get,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tokio::{net::TcpListener, task::JoinHandle};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
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
        let at = parse(address).ok_or_else(|| wrong("it isn't an address like 127.0.0.1:9464".into()))?;
        let listener = TcpListener::bind(at).await.map_err(|error| wrong(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| wrong(error.to_string()))?;
        let routes = Router::new().route("/metrics", get(scrape)).with_state(Arc::new(numbers));
        let task = tokio::spawn(async move {
            // It goes on until it is dropped: a connection that fails is its client's affair.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { address, task })
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
